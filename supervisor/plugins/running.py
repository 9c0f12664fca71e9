"""Plug-ins of one supervisor: plug-ins receive records and give opinions; each wait for a plug-in is bounded.

A plug-in cannot disturb the supervisor: records are queued for the plug-in, and an opinion that comes too late is
ignored. Only a verifier can reject: work is not accepted if the verifier rejects it, fails, or is late.
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
from supervisor.plugins.worker import CALL_S, Counts
from supervisor.ports import Codec
from supervisor.ports.logs import get_logger

CLOSE_S: Final = 1.0
"""Seconds that the end of a supervisor waits for all plug-ins to process the records that are queued for them."""

WATCH_S: Final = 1.0
"""Seconds between two checks of the plug-ins' threads."""

THREADS: Final = 4
"""Maximal number of opinions that are waited for at the same time."""

_log = get_logger()


class PluginReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report on one plug-in, for people. ``used`` is False if problems prevent the use of the plug-in."""

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
    """Adapters and verifiers of one plug-in, registered under names that no other plug-in had taken."""

    adapters: dict[str, Callable[[], Codec]] = {}
    verifiers: dict[str, Verifier] = {}


class Plugins:
    """All plug-ins of one supervisor, made by :meth:`load`. ``Plugins()`` stands for no plug-ins, and costs nothing.

    Args:
        loaded: the plug-ins, in the order in which they were found.
        impls: implementations by hook, in the order in which they are called.
    """

    def __init__(
        self, loaded: Sequence[Loaded] = (), impls: Mapping[str, Sequence[tuple[Loaded, Impl]]] = MappingProxyType({})
    ) -> None:
        self.loaded = tuple(loaded)
        self._impls = dict(impls)
        self._served: dict[str, _Served] = {}
        self._waiters: anyio.CapacityLimiter | None = None
        self.listens = any(name in self._impls for name in (*EVENT_HOOKS.values(), ABORT_HOOK))
        """Whether any plug-in implements a hook for records."""

    @classmethod
    def load(
        cls,
        names: Sequence[str] | None = (),
        given: Sequence[object] = (),
        *,
        reserved: Collection[str] = (),
        limit_s: float = CALL_S,
    ) -> Plugins:
        """Import and register plug-ins. Blocks: call it in a worker thread.

        Args:
            names: names of installed plug-ins; ``None``: all of them.
            given: modules, or objects with hook implementations, of the embedding program.
            reserved: names of adapters that no plug-in may take.
            limit_s: seconds that one call of a hook may take.

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

    # ------------------------------------------------------------------ registrations
    def _register(self, reserved: Collection[str]) -> None:
        """Register the adapters and verifiers of each plug-in; a name belongs to the first plug-in that uses
        the name."""
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
        """Functions that make guarded codecs of plug-ins, by adapter name. An error in a codec ends only its turn."""
        return {
            name: partial(GuardedCodec, name, make, partial(self._codec_failed, one))
            for one in self.loaded
            for name, make in self._served[one.name].adapters.items()
        }

    @property
    def verifiers(self) -> dict[str, Verifier]:
        """Verifiers of all plug-ins, by name."""
        return {name: made for served in self._served.values() for name, made in served.verifiers.items()}

    def reports(self) -> tuple[PluginReport, ...]:
        """Return a report on each plug-in, with the counts of its calls so far."""
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
        """Queue a durable record for the plug-ins with a hook for it; never waits, never raises."""
        hooks = [EVENT_HOOKS.get(record.entity_type, ""), *([ABORT_HOOK] if record.event in ABORT_RECORDS else [])]
        for hook in hooks:
            for one, impl in self._impls.get(hook, ()):
                one.thread.send(hook, partial(_call_with_copy, impl, record))

    # ------------------------------------------------------------------ opinions
    async def priority(self, item: WorkItem) -> int:
        """Return the priority of *item* by the first opinion of a plug-in, or the item's own priority."""
        opinion = await self._opinion(
            "supervisor_priority",
            lambda value: isinstance(value, int) and not isinstance(value, bool),
            item=item,
        )
        return item.priority if opinion is None else int(opinion)

    async def escalation(self, attempt: FailedAttempt) -> str | None:
        """Return the agent, one of ``attempt.agents``, for the next attempt; ``None`` if no plug-in has an opinion."""
        return await self._opinion("supervisor_escalate", lambda value: value in attempt.agents, attempt=attempt)  # type: ignore[no-any-return]

    async def retry(self, attempt: FailedAttempt) -> bool | None:
        """Return whether to try again, by the first opinion of a plug-in; ``None`` if no plug-in has an opinion."""
        return await self._opinion("supervisor_judge_retry", lambda value: isinstance(value, bool), attempt=attempt)  # type: ignore[no-any-return]

    async def _opinion(self, hook: str, fits: Callable[[Any], bool], **given: Any) -> Any:
        """Call the hook of each plug-in in turn, and return the first result for which *fits* holds; ``None`` if there
        is none."""
        self._waiters = self._waiters or anyio.CapacityLimiter(THREADS)
        for one, impl in self._impls.get(hook, ()):
            wait = partial(one.thread.answer, hook, partial(impl, **given))
            answer = await anyio.to_thread.run_sync(wait, abandon_on_cancel=True, limiter=self._waiters)
            if answer is None or answer.error is not None or answer.value is None:
                continue
            if fits(answer.value):
                return answer.value
            one.thread.counts.failed += 1
            _log.error("a plug-in gave an invalid answer", plugin=one.name, hook=hook, answer=repr(answer.value))
        return None

    # ------------------------------------------------------------------ verifiers
    async def verified(self, test: AcceptanceTest, directory: str, env: Mapping[str, str]) -> str:
        """Return the reason why the verifier named by *test* does not accept the work in *directory*; ``""`` if it
        accepts."""
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
            future.cancel()  # ends the wait of the worker thread; a later result is ignored

    # ------------------------------------------------------------------ threads
    async def watch(self) -> None:
        """Check the thread of each plug-in every second, until cancelled: log a late call, replace a dead thread.

        This is the loop of a service. Calls that wait are in the plug-in's queue, and survive the end of thread and
        loop.
        """
        while True:
            failpoint.crash("service", "plug-ins")
            for one in self.loaded:
                one.thread.look()
                one.thread.replace_dead()
            await anyio.sleep(WATCH_S)

    # ------------------------------------------------------------------ the end
    def dismiss(self) -> None:
        """Stop the threads of all plug-ins after the queued calls, without waiting."""
        for one in self.loaded:
            one.thread.stop()

    async def close(self) -> None:
        """Let each plug-in process its queued records, at most ``CLOSE_S`` seconds in all; then do not wait for its
        thread."""
        self.dismiss()
        if self.loaded:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._joined)

    def _joined(self) -> None:
        until = monotonic() + CLOSE_S
        for one in self.loaded:
            one.thread.join(max(0.0, until - monotonic()))


def _call_with_copy(impl: Impl, record: LifecycleEvent) -> None:
    """Call a hook, in the plug-in's thread, with a copy of the record, since the metadata of a record are mutable."""
    impl(event=msgspec.json.decode(msgspec.json.encode(record), type=LifecycleEvent))


def _problem(one: Loaded, problem: str) -> None:
    one.problems += (problem,)
    _log.error("a plug-in has a problem", plugin=one.name, problem=problem)


def _verify(verifier: Verifier, asked: Verification, future: Future[str]) -> None:
    try:
        answer: object = verifier(asked)
        problem = "" if answer is None else answer
        if not isinstance(problem, str):
            problem = f"the verifier answered {answer!r}, which is neither text nor None"
    except BaseException as error:  # an error is no acceptance
        _log.error("a verifier failed", verifier=asked.name, error=repr(error), exc_info=error)
        problem = f"the verifier failed: {error!r}"
    with suppress(InvalidStateError):  # too late: the future was cancelled
        future.set_result(problem)


def _in_time(future: Future[str], timeout_s: float) -> str:
    try:
        return future.result(timeout_s)
    except CancelledError:
        return "the verification was cancelled"
    except TimeoutError:
        return f"it was still running after {timeout_s:g} s"
