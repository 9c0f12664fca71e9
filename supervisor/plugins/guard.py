"""Guard around a plug-in's codec: an error in the codec ends the agent of that codec, and nothing else.

``supervisor.ports.Codec`` says that a codec never raises. The built-in codecs are tested for that. For a plug-in's
codec an exception, or a value that is no ``Out``, becomes :class:`Malformed`; after that the codec is not called any
more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, get_args

from supervisor.ports import Codec, InvalidLaunch, Launch, Malformed, OnExiting, Out, Process

_OUTS = get_args(Out)
_MAY_DECLINE = ("compact_and_prompt", "steer", "end_call")
"""Methods of a codec that return None if the protocol does not support the operation."""

Failed = Callable[[str, BaseException], None]
"""Function that is called with the name of the method that failed, and its exception."""


class AdapterFailed(Exception):
    """Raised when a plug-in's adapter could not make a codec, or the command line that launches its agent."""


class NoHost:
    """Implementation of ``supervisor.ports.ProcessHost`` for an agent that cannot be launched: every launch fails with
    the same error."""

    def __init__(self, why: str) -> None:
        self._why = why

    @asynccontextmanager
    async def spawn(
        self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0, on_exiting: OnExiting | None = None
    ) -> AsyncGenerator[Process, None]:
        raise InvalidLaunch(self._why)
        yield  # makes this function a generator


class GuardedCodec:
    """Wrapper of a plug-in's codec, for one conversation, that turns each error of the codec into ``Malformed``.

    Raises:
        AdapterFailed: (here, and from ``argv``) the codec cannot be made, or returns no command line.
    """

    def __init__(self, name: str, make: Callable[[], Codec], failed: Failed) -> None:
        self._name = name
        self._failed = failed
        self._broken = False
        try:
            self._codec = make()
            self._one_shot = bool(self._codec.one_shot)
        except Exception as error:
            raise self._gone("its making", error) from error

    @property
    def one_shot(self) -> bool:
        return self._one_shot

    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        try:
            argv = tuple(self._codec.argv(command, prompt, new_id, resume_id))
            if not argv or not all(isinstance(word, str) for word in argv):
                raise TypeError(f"{argv!r} is no command line")
        except Exception as error:
            raise self._gone("argv", error) from error
        return argv

    def start(self, cwd: str, resume_id: str | None = None) -> list[Out]:
        return self._outs("start", cwd, resume_id)

    def prompt(self, text: str) -> list[Out]:
        return self._outs("prompt", text)

    def compact_and_prompt(self, text: str) -> list[Out] | None:
        return self._call("compact_and_prompt", text)

    def interrupt(self) -> list[Out]:
        return self._outs("interrupt")

    def settled(self) -> list[Out]:
        return self._outs("settled")

    def steer(self, text: str) -> list[Out] | None:
        return self._call("steer", text)

    def end_call(self, call_id: str) -> list[Out] | None:
        return self._call("end_call", call_id)

    def close(self) -> list[Out]:
        return self._outs("close")

    def feed(self, data: bytes) -> list[Out]:
        return self._outs("feed", data)

    def exited(self, status: int | None) -> list[Out]:
        return self._outs("exited", status)

    def permission(self, request_id: str, option_id: str | None) -> list[Out]:
        return self._outs("permission", request_id, option_id)

    def terminal_output(self, terminal_id: str, data: bytes) -> list[Out]:
        return self._outs("terminal_output", terminal_id, data)

    def terminal_exited(self, terminal_id: str, status: int | None) -> list[Out]:
        return self._outs("terminal_exited", terminal_id, status)

    def file_answered(self, request_id: str, text: str, why: str = "") -> list[Out]:
        return self._outs("file_answered", request_id, text, why)

    def child_ended(self, request_id: str, outcome: str, text: str) -> list[Out]:
        return self._outs("child_ended", request_id, outcome, text)

    def _outs(self, method: str, *arguments: Any) -> list[Out]:
        return self._call(method, *arguments) or []

    def _call(self, method: str, *arguments: Any) -> list[Out] | None:
        """Call a method of the codec; return None only from a method that may do so. A failure is returned as
        ``Malformed``."""
        if self._broken:
            return []
        try:
            value: Any = getattr(self._codec, method)(*arguments)
            if value is None and method in _MAY_DECLINE:
                return None
            outs = list(value)
            if strange := [one for one in outs if not isinstance(one, _OUTS)]:
                raise TypeError(f"{strange[0]!r} is no output of a codec")
        except Exception as error:
            return [Malformed(str(self._gone(method, error)))]
        return outs

    def _gone(self, what: str, error: Exception) -> AdapterFailed:
        self._broken = True
        self._failed(what, error)
        return AdapterFailed(f"the adapter {self._name} failed in {what}: {error!r}")
