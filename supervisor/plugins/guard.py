"""A plug-in's codec as the supervisor may call it: whatever it does wrong is its agent's end, and nobody else's.

``supervisor.ports.Codec`` says that a codec never raises. Ours keep that by their tests; of others it is made true
here: an exception, or a word that no codec may say, becomes :class:`Malformed`, after which nothing of it is heard.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, get_args

from supervisor.ports import Codec, Launch, Malformed, Out, Process, SpawnError

__all__ = ["AdapterFailed", "GuardedCodec", "NoHost"]

_OUTS = get_args(Out)
_MAY_DECLINE = ("steer", "end_call")
"""What a protocol may have no way to do."""

Failed = Callable[[str, BaseException], None]
"""Told what was called, and what it raised."""


class AdapterFailed(Exception):
    """An adapter of a plug-in could not say how its agent is launched."""


class NoHost:
    """``supervisor.ports.ProcessHost`` where there is nothing to start: every launch fails for the same reason."""

    def __init__(self, why: str) -> None:
        self._why = why

    @asynccontextmanager
    async def spawn(
        self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0
    ) -> AsyncGenerator[Process, None]:
        raise SpawnError(self._why)
        yield  # what makes it a generator


class GuardedCodec:
    """One conversation of a plug-in's codec.

    Raises:
        AdapterFailed: (here, and from ``argv``) it cannot be had, or does not know the command line.
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

    def interrupt(self) -> list[Out]:
        return self._outs("interrupt")

    def steer(self, text: str) -> list[Out] | None:
        return self._outs_or_none("steer", text)

    def end_call(self, call_id: str) -> list[Out] | None:
        return self._outs_or_none("end_call", call_id)

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

    def _outs(self, what: str, *given: Any) -> list[Out]:
        return self._outs_or_none(what, *given) or []

    def _outs_or_none(self, what: str, *given: Any) -> list[Out] | None:
        """``None`` where that is its answer: to some questions it may be."""
        if self._broken:
            return []
        try:
            said: Any = getattr(self._codec, what)(*given)
        except Exception as error:
            return [Malformed(str(self._gone(what, error)))]
        return None if said is None and what in _MAY_DECLINE else self._checked(what, said)

    def _checked(self, what: str, said: Iterable[Out]) -> list[Out]:
        try:
            outs = list(said)
            if strange := [one for one in outs if not isinstance(one, _OUTS)]:
                raise TypeError(f"{strange[0]!r} is nothing that a codec may say")
        except Exception as error:
            return [Malformed(str(self._gone(what, error)))]
        return outs

    def _gone(self, what: str, error: Exception) -> AdapterFailed:
        self._broken = True
        self._failed(what, error)
        return AdapterFailed(f"the adapter {self._name} failed in {what}: {error!r}")
