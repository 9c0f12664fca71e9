"""Terminate sessions, turns and tool calls within a bounded time: the stages, their one timer, and the actor behind it.

Theory of operation
-------------------
A :class:`Termination` passes through stages, gentlest first. Each stage has an action and a deadline; at the deadline
the next stage begins. There are three kinds, each with its own table of stages:

==========  ============================  ==================================  =============================
stage       session (``live_session``)    turn (``turn``)                     tool call (``tool_calls``)
==========  ============================  ==================================  =============================
request     the agent closes when idle    the agent is asked to interrupt      the agent is asked to end it
cancel      the session's scope is left
kill        the agent is killed           the agent is killed                  its processes are killed
exiting     the kernel is waited for      the same, before the kill            the kernel is waited for
abandon     what still runs is reported                                        its turn is interrupted
==========  ============================  ==================================  =============================

TERMINATE is no stage of these tables: when the session's scope is left, each process context sends SIGTERM and, after
the budget of that stage, SIGKILL. The shim of each process has the same two budgets, since the shim acts also when the
supervisor is dead.

EXITING is entered only if a killed process is still there that runs no code any more, since the kernel is releasing
what the process holds (``LiveSession.waits_for_kernel``). The stage has a budget of its own, ``EXITING_S``, which no
deadline of an abort counts.

``policies.stage_deadlines`` has the time at which each stage ends.

Invariants
----------
* A termination is one object and one timer. Ten thousand sessions may be aborted at once, so the termination of a
  session has no task.
* Nothing here awaits: an abort does not depend on the disk (docs/spec, rule 13).
* Stages only advance and deadlines only become earlier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ClassVar, Final, NamedTuple, TypeVar

import anyio

from actors import ActorStopped, ActorSystem, AskTimeout, Context, Lane
from actors.one_shot_event import OneShotEvent
from actors.timers import Timer, TimerService
from supervisor.lifecycles.types import TerminationStage
from supervisor.policies.stage_deadlines import SLACK_S, Schedule
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.runtime.entity_registry import END_S

_log = get_logger()
_T = TypeVar("_T")

BACKGROUND_ACTOR: Final = ":janitor"
"""Id of the actor that terminates sessions and runs asynchronous tasks that outlive them, as logs have it. No session
can have this id."""


class Termination(ABC):
    """Base class of a termination that is being carried out. A subclass defines the table: the ``stages``, their
    actions and their schedule."""

    __slots__ = ("_entered", "_timer", "stage", "timers")

    stages: ClassVar[tuple[TerminationStage, ...]]

    def __init__(self, timers: TimerService) -> None:
        self.timers = timers
        self.stage: TerminationStage | None = None
        """Present stage; ``None`` before the first stage, and after the end of the termination."""
        self._entered = timers.now()
        """Time at which the present stage was entered (monotonic seconds)."""
        self._timer: Timer | None = None

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """Times at which the stages end. The schedule may change while the termination is carried out."""

    @abstractmethod
    def act(self, stage: TerminationStage) -> None:
        """Perform the action of *stage*. An implementation must not wait."""

    def applies(self, stage: TerminationStage) -> bool:
        """Return whether *stage* is needed now; a stage that is not needed is skipped."""
        return True

    def enter(self, stage: TerminationStage) -> None:
        """Begin *stage*: perform its action, then set the timer for the next stage."""
        self.stage, self._entered = stage, self.timers.now()
        self.act(stage)
        if self.stage is stage:  # the action may have ended the termination
            self.reschedule()

    @property
    def ends_at(self) -> float | None:
        """Time at which the present stage ends (monotonic seconds); ``None`` for the last stage."""
        assert self.stage is not None, "a termination that is over has no stage"
        return self.schedule.ends_at(self.stage, self._entered)

    def reschedule(self) -> None:
        """Set the timer of the present stage again, because the schedule has changed."""
        ends_at = self.ends_at
        if ends_at is None:
            self.cancel_timer()
        else:
            self.call_at(ends_at, self._advance)

    def finish(self) -> None:
        """End the termination, so that no further stage begins."""
        self.stage = None
        self.cancel_timer()

    def call_at(self, moment: float, call: Callable[[], None]) -> None:
        """Call the function *call* at the time *moment* (monotonic seconds), by the one timer of this termination."""
        self.cancel_timer()
        self.set_timer(max(moment - self.timers.now(), 0.0), call)

    def _advance(self) -> None:
        assert self.stage is not None, "the timer is cancelled when the termination is over"
        later = self.stages[self.stages.index(self.stage) + 1 :]
        self.enter(next(stage for stage in later if self.applies(stage)))

    def set_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        def fire(_: Timer) -> None:
            self._timer = None  # a timer that has fired must not be cancelled
            try:
                call()
            except Exception:  # here it would end the task that fires all timers
                _log.exception("a stage of a termination failed")

        self._timer = self.timers.set(None, None, delay_s, fire)

    def cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            self.timers.cancel(timer)


class StageBudgetSpent(NamedTuple):
    """Message that the timer of a session's termination sends at the end of a stage; ``call`` is the function to call
    then."""

    call: Callable[[], None]


class _Heartbeat:
    """Message that shows, by being handled, that the actor and the kernel's dispatcher are alive."""

    def __init__(self) -> None:
        self.handled = anyio.Event()


class Background:
    """Actor in whose scope the tasks run that outlive every session. The actor is started with this object."""

    actor_id: Final = BACKGROUND_ACTOR

    def __init__(self, system: ActorSystem) -> None:
        self.slack_s = SLACK_S
        """Seconds that a slow, loaded machine may add to the stages terminate and kill before a scope is abandoned."""
        self._system = system
        self._checks: deque[Callable[[], None]] = deque()
        self._is_checking = False
        system.spawn(self, BACKGROUND_ACTOR, shutdown_s=END_S)

    def receive(self, ctx: object, message: object) -> None:
        if isinstance(message, StageBudgetSpent):
            message.call()
        elif isinstance(message, _Heartbeat):
            message.handled.set()
        else:
            _log.error("a task of the supervisor failed", what=str(message))

    @property
    def context(self) -> Context:
        ctx = self._system.context(self.actor_id)
        assert ctx is not None, "this actor outlives every session"
        return ctx

    @property
    def has_ended(self) -> bool:
        """Whether the supervisor has ended, so that no task can run any more."""
        return self._system.context(BACKGROUND_ACTOR) is None

    async def run_to_completion(self, do: Callable[[], Awaitable[_T]], name: str) -> _T:
        """Run *do* in a task of its own, so that a cancellation of the caller does not cancel *do*; return its result.

        Raises:
            Refused: the supervisor ended before *do* returned.
            Exception: the exception that *do* raised.
        """
        return await self.begin(do, name)()

    def begin(self, do: Callable[[], Awaitable[_T]], name: str) -> Callable[[], Awaitable[_T]]:
        """Run *do* in a task of its own; return a function that waits for its result, and raises as
        :meth:`run_to_completion`."""
        over, results = OneShotEvent(), list[_T | Exception]()

        async def run() -> None:
            try:
                results.append(await do())
            except Exception as error:  # raised in the caller, if that is still waiting
                results.append(error)
            finally:
                over.set()

        async def result() -> _T:
            if began:
                await over.wait()
            if not results:
                raise Refused(f"{name}: the supervisor has ended")
            if isinstance(results[0], Exception):
                raise results[0]
            return results[0]

        ctx, began = self._system.context(BACKGROUND_ACTOR), False
        if ctx is not None:
            with suppress(ActorStopped):
                ctx.start_task(run, name=name)
                began = True
        return result

    async def heartbeat(self, *, timeout_s: float) -> None:
        """Wait until this actor has handled a message, which shows that the event loop, the dispatcher of the actor
        system and the actor that terminates sessions work.

        Raises:
            ActorStopped: the actor has ended.
            AskTimeout: the message was not handled within *timeout_s*.
        """
        ref, beat = self._system.ref(BACKGROUND_ACTOR), _Heartbeat()
        if ref is None:
            raise ActorStopped(BACKGROUND_ACTOR)
        ref.tell(beat, lane=Lane.CONTROL)  # not `ask`: an ask of an idle actor bypasses the dispatcher
        with self._system.timers.limit(timeout_s):
            await beat.handled.wait()
            return
        raise AskTimeout(BACKGROUND_ACTOR, timeout_s)

    def enqueue(self, check: Callable[[], None]) -> None:
        """Run *check* after the checks that are queued already. A check may queue other checks, so that a deep tree
        causes no recursion."""
        self._checks.append(check)
        if not self._is_checking:
            self._is_checking = True
            try:
                while self._checks:
                    self._checks.popleft()()
            finally:
                self._is_checking = False
