"""The plug-ins of one supervisor: told of records, asked for opinions, and never waited for longer than they may take.

Nothing that a plug-in does or fails to do changes what the supervisor does: a record is put down for it and that is
all; an opinion that does not come in time is none. A verifier has the one power that was given to it on purpose: work
that it does not accept is not accepted, and silence is no acceptance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec

from actors import failpoint
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans.acceptance import AcceptanceTest
from supervisor.plugins.guard import GuardedCodec
from supervisor.plugins.hooks import (
    ABORT_HOOK,
    ABORT_RECORDS,
    EVENT_HOOKS,
    FailedAttempt,
    Verification,
    Verifier,
    WorkItem,
)
from supervisor.plugins.loading import Impl, Loaded, load
from supervisor.plugins.worker import CALL_S, Answer, Counts
from supervisor.ports import Codec
from supervisor.ports.logs import get_logger

__all__ = ["CLOSE_S", "PluginReport", "Plugins"]

CLOSE_S: Final = 1.0
"""How long the end of a supervisor waits for plug-ins that have not heard all of it yet, in seconds, all together."""

WATCH_S: Final = 1.0
"""Seconds between two checks of the plug-ins' threads."""

THREADS: Final = 4
"""Opinions that may be waited for at once."""

_log = get_logger()


class PluginReport(msgspec.Struct, frozen=True, kw_only=True):
    """One plug-in as people see it; ``used`` is false where its problems leave nothing of it."""

    name: str
    version: str
    source: str
    hooks: tuple[str, ...]
    used: bool
    problems: tuple[str, ...]
    adapters: tuple[str, ...]
    verifiers: tuple[str, ...]
    counts: Counts


class _Served(msgspec.Struct):
    """What a plug-in's registration hooks gave, that nobody had before it."""

    adapters: dict[str, Callable[[], Codec]] = {}
    verifiers: dict[str, Verifier] = {}


class Plugins:
    """Every plug-in of one supervisor. Made by :meth:`load`; ``Plugins()`` has none, and costs nothing.

    Args:
        loaded: the plug-ins, in the order in which they were found.
        impls: by hook, its implementations, those that are asked first in front.
    """

    def __init__(
        self, loaded: Sequence[Loaded] = (), impls: Mapping[str, Sequence[tuple[Loaded, Impl]]] = MappingProxyType({})
    ) -> None:
        self.loaded = tuple(loaded)
        self._impls = dict(impls)
        self._served: dict[str, _Served] = {}
        self._waiters: anyio.CapacityLimiter | None = None
        self.listens = any(name in self._impls for name in (*EVENT_HOOKS.values(), ABORT_HOOK))
        """Whether any record is of interest to any of them."""

    @classmethod
    def load(
        cls,
        names: Sequence[str] | None = (),
        given: Sequence[object] = (),
        *,
        reserved: Collection[str] = (),
        limit_s: float = CALL_S,
    ) -> Plugins:
        """Import and register; call it in a thread that may wait.

        Args:
            names: of installed ones; ``None``: all that are.
            given: plug-ins of the host's own: modules, or objects with hook implementations.
            reserved: names of adapters that no plug-in may take.
            limit_s: how long one call of a hook may take, in seconds.

        Raises:
            UnknownPlugin: one of *names* is not installed.
        """
        manager, loaded = load(names, given, limit_s=limit_s)
        by_name = {one.name: one for one in loaded}
        impls: dict[str, list[tuple[Loaded, Impl]]] = {}
        for one in loaded:
            for hook in one.hooks:
                impls[hook] = [
                    (by_name[impl.plugin_name], Impl(hook, impl.function, impl.argnames))
                    for impl in reversed(getattr(manager.hook, hook).get_hookimpls())
                ]
        plugins = cls(loaded, impls)
        plugins._register(reserved)
        return plugins

    # ------------------------------------------------------------------ what there is
    def _register(self, reserved: Collection[str]) -> None:
        """Ask each what it adds; a name belongs to whoever came first."""
        self._served = {one.name: _Served() for one in self.loaded}
        for hook, field, taken in (
            ("supervisor_adapters", "adapters", set(reserved)),
            ("supervisor_verifiers", "verifiers", set[str]()),
        ):
            for one, impl in self._impls.get(hook, ()):
                answer = one.thread.answer(hook, impl)
                value = answer.value if answer is not None and answer.error is None else None
                if not isinstance(value, Mapping):
                    _problem(one, f"{hook} gave no mapping of names")
                    continue
                for name, made in value.items():
                    if name in taken or not isinstance(name, str) or not callable(made):
                        why = "is taken already" if name in taken else "is no name of a function"
                        _problem(one, f"{hook}: {name!r} {why}; it is left out")
                    else:
                        taken.add(name)
                        getattr(self._served[one.name], field)[name] = made

    @property
    def adapters(self) -> dict[str, Callable[[], Codec]]:
        """What makes a codec, by the name of its adapter."""
        return {
            name: partial(GuardedCodec, name, make, partial(self._codec_failed, one))
            for one in self.loaded
            for name, make in self._served[one.name].adapters.items()
        }

    @property
    def verifiers(self) -> dict[str, Verifier]:
        """By their names."""
        return {name: made for served in self._served.values() for name, made in served.verifiers.items()}

    def reports(self) -> tuple[PluginReport, ...]:
        """Every plug-in, with what became of its calls so far."""
        return tuple(
            PluginReport(
                name=one.name,
                version=one.version,
                source=one.source,
                hooks=one.hooks,
                used=one.used,
                problems=one.problems,
                adapters=tuple(self._served[one.name].adapters),
                verifiers=tuple(self._served[one.name].verifiers),
                counts=msgspec.structs.replace(one.thread.counts),
            )
            for one in self.loaded
        )

    def _codec_failed(self, one: Loaded, what: str, error: BaseException) -> None:
        one.thread.counts.failed += 1
        _log.error("an adapter of a plug-in failed", plugin=one.name, call=what, error=repr(error), exc_info=error)

    # ------------------------------------------------------------------ records
    def publish(self, record: LifecycleEvent) -> None:
        """Put a durable record down for whoever wants to hear of it; never waits, never raises."""
        self._tell(EVENT_HOOKS.get(record.entity_type, ""), record)
        if record.event in ABORT_RECORDS:
            self._tell(ABORT_HOOK, record)

    def _tell(self, hook: str, record: LifecycleEvent) -> None:
        for one, impl in self._impls.get(hook, ()):
            one.thread.tell(hook, partial(_told, impl, record))

    # ------------------------------------------------------------------ opinions
    async def priority(self, item: WorkItem) -> int:
        """The priority that *item* is ordered by; its own, where nobody has another opinion."""
        said = await self._opinion("supervisor_priority", _is_whole, item=item)
        return item.priority if said is None else int(said)

    async def escalation(self, attempt: FailedAttempt) -> str | None:
        """The agent that the next attempt is given to, one of ``attempt.agents``; ``None``: as the plan has it."""
        return await self._opinion("supervisor_escalate", lambda said: said in attempt.agents, attempt=attempt)  # type: ignore[no-any-return]

    async def retry(self, attempt: FailedAttempt) -> bool | None:
        """Whether to try again; ``None``: nobody has an opinion."""
        return await self._opinion("supervisor_judge_retry", _is_flag, attempt=attempt)  # type: ignore[no-any-return]

    async def _opinion(self, hook: str, fits: Callable[[Any], bool], **given: Any) -> Any:
        """The first answer that *fits*."""
        for one, impl in self._impls.get(hook, ()):
            answer = await self._answer(one, hook, partial(impl, **given))
            if answer is None or answer.error is not None or answer.value is None:
                continue
            if fits(answer.value):
                return answer.value
            one.thread.counts.failed += 1
            _log.error("a plug-in gave an answer that is none", plugin=one.name, hook=hook, answer=repr(answer.value))
        return None

    async def _answer(self, one: Loaded, hook: str, call: Callable[[], Any]) -> Answer | None:
        self._waiters = self._waiters or anyio.CapacityLimiter(THREADS)
        wait = partial(one.thread.answer, hook, call)
        return await anyio.to_thread.run_sync(wait, abandon_on_cancel=True, limiter=self._waiters)

    # ------------------------------------------------------------------ verifiers
    async def verified(self, test: AcceptanceTest, directory: str, env: Mapping[str, str]) -> str:
        """Why the verifier that *test* names does not accept the work in *directory*; ``""`` where it does."""
        asked = Verification(
            name=test.words[0], directory=directory, options=test.options, env=env, timeout_s=test.timeout_s
        )
        verifier = self.verifiers.get(asked.name)
        if verifier is None:
            return f"no plug-in has a verifier {asked.name!r}; there are: {', '.join(self.verifiers) or 'none'}"
        future: Future[str] = Future()
        run = threading.Thread(target=_verify, args=(verifier, asked, future), daemon=True)
        run.start()
        try:
            wait = partial(_in_time, future, asked.timeout_s)
            return await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)
        finally:
            future.cancel()  # whoever still waits for it waits no more, and whatever comes of it is not heard

    # ------------------------------------------------------------------ threads
    async def watch(self) -> None:
        """Check the thread of each plug-in every second, until cancelled: log a late call, replace a dead thread.

        This is the loop of a service. What waits for a plug-in lies in its queue, and survives thread and loop.
        """
        while True:
            failpoint.crash("service", "plug-ins")
            for one in self.loaded:
                one.thread.look()
                one.thread.replace_dead()
            await anyio.sleep(WATCH_S)

    # ------------------------------------------------------------------ the end
    def dismiss(self) -> None:
        """Nothing more is wanted of them, and nobody waits."""
        for one in self.loaded:
            one.thread.stop()

    async def close(self) -> None:
        """Let each hear what it was told; one that does not come to an end is left behind."""
        self.dismiss()
        if self.loaded:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._joined)

    def _joined(self) -> None:
        until = monotonic() + CLOSE_S
        for one in self.loaded:
            one.thread.join(max(0.0, until - monotonic()))


def _told(impl: Impl, record: LifecycleEvent) -> None:
    """In the plug-in's thread: a copy, since the metadata of a record can be changed, and others read them."""
    impl(event=msgspec.json.decode(msgspec.json.encode(record), type=LifecycleEvent))


def _problem(one: Loaded, words: str) -> None:
    one.problems += (words,)
    _log.error("a plug-in has a problem", plugin=one.name, problem=words)


def _is_whole(said: Any) -> bool:
    return isinstance(said, int) and not isinstance(said, bool)


def _is_flag(said: Any) -> bool:
    return isinstance(said, bool)


def _verify(verifier: Verifier, asked: Verification, future: Future[str]) -> None:
    try:
        said = verifier(asked)
        problem = said if isinstance(said, str) else _verdict(said)
    except BaseException as error:  # silence is no acceptance, and an error is none either
        _log.error("a verifier failed", verifier=asked.name, error=repr(error), exc_info=error)
        problem = f"the verifier failed: {error!r}"
    with suppress(InvalidStateError):  # too late: nobody listens any more
        future.set_result(problem)


def _verdict(said: object) -> str:
    return "" if said is None else f"the verifier answered {said!r}, which is neither text nor None"


def _in_time(future: Future[str], timeout_s: float) -> str:
    try:
        return future.result(timeout_s)
    except CancelledError:
        return "nobody waits for it any more"
    except TimeoutError:
        return f"it was still running after {timeout_s:g} s"
