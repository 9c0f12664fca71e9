"""Terminate a single tool call that an agent runs by itself, and account for the processes of terminated calls.

Terminating a call leaves its turn running. The stages are request (the agent is requested, in its protocol, to end the
call), kill (the processes that belong to the call are killed) and abandon (the caller is notified that the call
continues, and interrupts the turn). ``policies.call_processes`` decides which processes belong to a call. This module
decides when to look for them: before a terminated call gets its result, and before an interrupted turn with an open
call ends.

Processes that belong to the call are killed; processes that may belong to the call are named in a record. While a
process of either kind is alive, or if the processes could not be listed, the result of the call is ``unknown`` and not
``aborted``. A process that the kernel is ending runs no code, so it is only waited for. When the agent has ended and
its shim has proved that no process is left, a record says so, and later receipts count these processes as dead.

Work of a call inside the agent's own process does not count as a process of the call. For such work the agent's report
that the call has ended is accepted.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import anyio
import msgspec

from actors import ActorStopped
from actors.timers import TimerService
from supervisor.lifecycles.types import StageBudgets, Survivors, TerminationStage
from supervisor.policies.abort_plan import ProcessFate
from supervisor.policies.call_processes import (
    AgentPrograms,
    CallProcesses,
    CallSpan,
    ProcessSeen,
    processes_of_calls,
)
from supervisor.policies.stage_deadlines import CALL_KILL_S, EXITING_S, CallSchedule
from supervisor.ports import Out, Process
from supervisor.sessions.agent_io import AgentIO
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.termination import Termination

ASKED: Final = "the agent, which runs this call by itself, ended it when asked to, and its turn went on"
BESIDE: Final = "; what it may have left running cannot be told from what the calls beside it run"
KILLED: Final = "the agent runs this call by itself: the processes of the call were killed, and its turn went on"
ENDING: Final = "it was ending already"
"""Descriptions, for a receipt, of the way in which a call was ended."""

NONE_FOUND: Final = "no process of it was found"
FOUND_LATER: Final = "its processes were found only later"
NOT_LISTED: Final = "its processes could not be listed"
NOT_ALONE: Final = "its processes cannot be told from those of the calls beside it"
"""Reasons, for a receipt, why no process of a call was killed; see also ``_not_killed``."""

EXITING_AFTER_S: Final = 0.5
"""Seconds after which the end of a killed process by the kernel counts as one that takes long."""
LINGER_S: Final = 0.25
"""Seconds that a process which may belong to a call has to end without being killed, after the agent reported the end
of the call."""
POLL_S: Final = 0.005
"""Seconds between two listings of the processes."""
EXITING_POLL_S: Final = 0.05
"""The same, while only processes are left that the kernel is ending."""


class CallTermination(Termination):
    """Termination of one call. *on_kill* and *on_abandon* are called when the stages KILL and ABANDON begin.

    The stage EXITING is skipped unless *is_exiting* then returns true: the kernel is ending a process of
    the call.
    """

    __slots__ = (
        "_began",
        "_is_exiting",
        "_on_abandon",
        "_on_kill",
        "_schedule",
        "how",
        "not_ended",
        "tool_id",
    )

    stages = (TerminationStage.REQUEST, TerminationStage.KILL, TerminationStage.EXITING, TerminationStage.ABANDON)

    def __init__(
        self,
        timers: TimerService,
        tool_id: str,
        how: str,
        budgets: StageBudgets,
        on_kill: Callable[[], None],
        on_abandon: Callable[[], None],
        is_exiting: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(timers)
        self.tool_id, self.how = tool_id, how
        self.not_ended: list[Callable[[str], None]] = []
        """Functions that are called once, with the reason, if the call cannot be terminated alone."""
        self._began = timers.now()
        self._schedule = CallSchedule(budgets)
        self._on_kill, self._on_abandon, self._is_exiting = on_kill, on_abandon, is_exiting

    @property
    def schedule(self) -> CallSchedule:
        return self._schedule

    @property
    def spent_s(self) -> float:
        """Seconds since the termination began."""
        return round(self.timers.now() - self._began, 1)

    def hasten(self, *, now: bool, within_s: float | None) -> None:
        """End the termination within *within_s* seconds (the stage REQUEST is shortened first); *now* skips the stage
        REQUEST."""
        if within_s is not None:
            deadline = min(self._schedule.deadline, self.timers.now() + within_s)
            self._schedule = self._schedule._replace(deadline=deadline)
        if now and self.stage is TerminationStage.REQUEST:
            self.enter(TerminationStage.KILL)
        elif self.stage is not None:
            self.reschedule()

    def act(self, stage: TerminationStage) -> None:
        match stage:
            case TerminationStage.KILL:
                self._on_kill()
            case TerminationStage.ABANDON:
                self._on_abandon()

    def applies(self, stage: TerminationStage) -> bool:
        return stage is not TerminationStage.EXITING or self._is_exiting()


class ToolCallTerminations:
    """Terminations of the calls whose work one agent runs by itself.

    Args:
        calls: actor ids of the turn's open calls, by the agent's names for the calls.
        aborted: names of the calls of the turn that are being terminated alone.
        ask: returns the messages that request the agent to end a call; ``None`` if the agent supports no such request.
        agent_io: sends messages to the agent.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        session: LiveSession,
        agent_id: str,
        calls: Mapping[str, str],
        aborted: Container[str],
        ask: Callable[[str], Iterable[Out] | None],
        agent_io: AgentIO,
    ) -> None:
        self._registry = registry
        self._session = session
        self._agent_id = agent_id
        self._calls = calls
        self._aborted = aborted
        self._ask = ask
        self._agent_io = agent_io
        self._terminations: dict[str, CallTermination] = {}
        self._span = CallSpan(0, 0)
        """Span of time in which the processes of the open calls were started."""
        self._opened: dict[str, None] = {}
        """Calls that were opened within this span of time."""
        self._written = (0, 0)
        """Clock ticks between which the agent wrote the output that is being processed now."""
        self._closed_last = False
        """True if the output that is being processed now has closed the last open call."""
        self._left: dict[tuple[str, int], None] = {}
        """Processes that may be alive, each with the call for which it was found. Pid 0 means that the processes could
        not be listed."""
        self._lock = anyio.Lock(fast_acquire=True)

    # ------------------------------------------------------------------ what the agent does
    def begin_turn(self) -> None:
        """Drop the calls of the last turn, because no call of the next turn is open yet."""
        self.finish()
        now = self._agent_io.process.clock() if self._agent_io.process is not None else 0
        self._span, self._closed_last = CallSpan(now, now), False
        self._opened.clear()

    def finish(self) -> None:
        """End the terminations of all calls, because the turn, or the agent, has ended."""
        for termination in self._terminations.values():
            termination.finish()
        self._terminations.clear()

    def note_closed(self, call_id: str) -> None:
        """End the termination of a call that has been closed. The agent may later open another call with the same
        name."""
        termination = self._terminations.pop(call_id, None)
        if termination is not None:
            termination.finish()

    def note_output(self, written: tuple[int, int]) -> None:
        """Store the clock ticks, *written*, between which the agent wrote the output that is processed from now on."""
        clear = self._span.clear
        if self._closed_last and not self._calls and written[0] >= clear:
            # All output up to that tick is processed, and no call was open: a process born later is of a new call.
            self._span = CallSpan(clear, clear)
        self._written, self._closed_last = written, False

    def note_all_closed(self) -> None:
        """Record that no call is open. The agent may have opened the next call already, in output that was not read
        yet."""
        begin, end = self._written
        self._span, self._closed_last = CallSpan(max(begin, self._span.since), max(end, self._span.since)), True
        self._opened.clear()

    def note_opened(self, call_id: str) -> None:
        """Record that a call is about to be opened, in addition to the calls that are open."""
        self._opened[call_id] = None

    @property
    def span(self) -> CallSpan:
        """Span of time in which the processes of the open calls were started."""
        return self._span

    @property
    def _alone(self) -> bool:
        """True if every process that was started in the present span belongs to a call that is being terminated."""
        return all(one in self._aborted for one in self._opened)

    async def before_result(self, call_id: str) -> bool:
        """End the processes that a terminated call has left running, before the call gets its result; return ``False``
        if some of these processes may still be alive."""
        if call_id in self._aborted and call_id in self._calls:
            return await self._end_processes(self._calls[call_id], self._alone)
        return True

    async def before_end(self, tool_id: str) -> bool:
        """End the processes that the calls of an interrupted turn have left running, before the turn ends; return
        ``False`` if some of these processes may still be alive."""
        return await self._end_processes(tool_id, alone=True)

    # ------------------------------------------------------------------ stages
    def terminate(
        self, call_id: str, not_ended: Callable[[str], None], *, now: bool = False, within_s: float | None = None
    ) -> str:
        """Begin to terminate one call, or hasten a termination that has begun; *not_ended* is called with the reason if
        the termination fails later. With *now* the termination begins with the kill; *within_s* bounds the seconds
        until the termination is given up.

        Returns:
            Description, for a receipt, of the way in which the call ends; ``""`` if it cannot be terminated alone.
        """
        tool_id, known = self._calls.get(call_id, ""), self._terminations.get(call_id)
        if known is not None and known.tool_id == tool_id:
            known.not_ended.append(not_ended)
            known.hasten(now=now, within_s=within_s)
            return known.how
        self.note_closed(call_id)  # of an earlier call of that name
        is_alive = self._registry.system.context(tool_id) is not None
        outs = self._ask(call_id) if is_alive else None
        if not is_alive:
            return ENDING
        if outs is None and not self._alone:
            return ""
        how = KILLED if outs is None else ASKED if self._alone else f"{ASKED}{BESIDE}"
        termination = self._terminations[call_id] = CallTermination(
            self._registry.system.timers,
            tool_id,
            how,
            self._session.policy.ladder,
            on_kill=lambda: self._start_kill(call_id, tool_id, asked=outs is not None),
            on_abandon=lambda: self.give_up(call_id, f"it had not ended {termination.spent_s:g} s later"),
            is_exiting=lambda: tool_id in self._session.exiting,
        )
        termination.not_ended.append(not_ended)
        termination.hasten(now=now, within_s=within_s)
        self._agent_io.put(outs or ())
        termination.enter(TerminationStage.KILL if outs is None or now else TerminationStage.REQUEST)
        return how if call_id in self._terminations else ENDING

    def _start_kill(self, call_id: str, tool_id: str, *, asked: bool) -> None:
        """Start a task, in the call's scope, that kills the call's processes. *asked*: the agent was requested to end
        the call; it may then have ended its own process of the call and still wait for processes that this process
        started."""
        ctx = self._registry.system.context(tool_id)
        if ctx is not None and self._alone:
            try:
                self._session.start(ctx, self._kill_processes, call_id, tool_id, asked)
            except ActorStopped:
                self.note_closed(call_id)  # its scope is being cancelled
        elif not asked:
            self.give_up(call_id, NOT_ALONE)

    async def _kill_processes(self, call_id: str, tool_id: str, asked: bool) -> None:
        """Kill the processes of the one call that is open and continues."""
        process, found = self._agent_io.process, KilledProcesses()
        if process is not None:
            async with self._lock:
                found = await self._kill_and_wait(tool_id, process, self._span)
            self._note_killed(tool_id, found)
            # A worker that has started the process that was killed cannot be recognized later.
            self._note_left(tool_id, sorted(found.above))
        if not (found.killed or found.exiting_s or asked):
            self.give_up(call_id, _not_killed(found.may_live))

    async def _kill_and_wait(
        self, tool_id: str, process: Process, span: CallSpan, linger_s: float = 0.0
    ) -> KilledProcesses:
        """Kill the processes of the calls in *span*. If the kernel is still ending some of them after that, record
        this, and wait for them, at most ``EXITING_S`` seconds; processes that are still there then may live."""
        agent, timers = self._session.profile.programs_of(process.pid), self._registry.system.timers
        began = timers.now()
        found = await end_processes(process, span, timers, agent, linger_s)
        if not found.exiting or found.left:  # a tool that forks all the time is not killed for longer
            return found
        killed, above = found.killed, found.above
        self._session.begin_exiting(tool_id, found.exiting)
        try:
            span = span._replace(had_own=span.had_own or bool(killed))
            found = await end_processes(process, span, timers, agent, within_s=EXITING_S, exiting_s=EXITING_S)
        finally:
            self._session.exiting.pop(tool_id, None)
        return found._replace(
            killed=tuple(dict.fromkeys((*killed, *found.killed))),
            may_live=tuple(dict.fromkeys((*found.may_live, *(found.alive & above), *found.exiting))),
            above=found.above | (found.alive & above),
            exiting_s=round(timers.now() - began, 6),
        )

    def give_up(self, call_id: str, why: str) -> None:
        """Give up the termination of a call: report to the callers that requested it that the agent does not end the
        call alone, and *why*."""
        termination = self._terminations.pop(call_id, None)
        if termination is not None:
            termination.finish()
            for not_ended in termination.not_ended if self._calls.get(call_id) == termination.tool_id else ():
                not_ended(why)

    # ------------------------------------------------------------------ its processes
    async def _end_processes(self, tool_id: str, alone: bool) -> bool:
        """Kill the processes of the calls, and record the processes that may belong to the calls; return ``True`` if no
        such process is alive."""
        process = self._agent_io.process
        if process is None:
            return True
        async with self._lock:
            linger_s = LINGER_S if not self._left else 0.0  # a process that outlived the wait once gets no second one
            had_own = any(fate.owner == tool_id and fate.ended_by == "kill" for fate in self._session.fates)
            span = self._span._replace(alone=alone, had_own=had_own)
            found = await self._kill_and_wait(tool_id, process, span, linger_s)
        self._note_killed(tool_id, found)
        if process.pid in found.alive:
            self._note_ended([one for one in self._left if one[1] and one[1] not in found.alive])
        self._note_left(tool_id, found.may_live)
        return not (found.left or any(owner == tool_id for owner, _ in self._left))

    def _note_left(self, tool_id: str, pids: Iterable[int]) -> None:
        """Record processes that may belong to a call and may live on; pid 0: they could not be listed."""
        if may_live := [pid for pid in pids if (tool_id, pid) not in self._left]:
            fact = {"call": tool_id, "pids": [pid for pid in may_live if pid]}
            self._session.record_turn_fact("CallProcessesLeft", fact)
        for pid in may_live:
            self._record_fate(tool_id, pid, "", "unknown")

    def _note_killed(self, tool_id: str, found: KilledProcesses) -> None:
        if found.killed:
            fact = {"call": tool_id, "pids": [*found.killed], "left": [*found.left]}
            self._session.record_turn_fact("CallProcessesKilled", fact)
        for pid in found.killed:
            self._record_fate(tool_id, pid, "kill", int(pid in found.left), found.exiting_s)

    def _record_fate(self, tool_id: str, pid: int, ended_by: str, survivors: Survivors, exiting_s: float = 0.0) -> None:
        fate = ProcessFate(
            owner=tool_id,
            pid=pid,
            status=None,
            ended_by=ended_by,
            killed=0,
            survivors=survivors,
            exiting_s=exiting_s,
        )
        self._session.fates.append(fate)
        if survivors:
            self._left[tool_id, pid] = None

    def note_processes_gone(self) -> None:
        """Record that the agent has ended, together with every process that it had started."""
        self._note_ended(list(self._left))

    def _note_ended(self, found: Sequence[tuple[str, int]]) -> None:
        """Record that the processes in *found*, each given with its call, have ended; later receipts count them as
        dead."""
        for one in found:
            del self._left[one]
        for tool_id in dict.fromkeys(owner for owner, _ in found):
            fact = {"call": tool_id, "pids": [pid for owner, pid in found if owner == tool_id and pid]}
            self._registry.record_fact(self._agent_id, "CallProcessesEnded", self._session.cause, fact)
        for number, fate in enumerate(self._session.fates):
            if fate.survivors and (fate.owner, fate.pid) in found:
                self._session.fates[number] = msgspec.structs.replace(fate, survivors=0)


class KilledProcesses(NamedTuple):
    """Result of :func:`end_processes`, as pids: processes that were killed; those that were killed but are still alive
    (``left``); processes that are alive and may belong to a call (``may_live``; 0: the processes could not be listed);
    all processes that are alive, the agent included; processes of a call that the kernel is still ending (``exiting``);
    the seconds that the kernel took to end such processes, 0 if it took less than ``EXITING_AFTER_S``; and those of
    ``may_live`` that are older than the call and have started a process of it (``above``)."""

    killed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    may_live: tuple[int, ...] = ()
    alive: frozenset[int] = frozenset()
    exiting: tuple[int, ...] = ()
    exiting_s: float = 0.0
    above: frozenset[int] = frozenset()


def _not_killed(may_live: Sequence[int]) -> str:
    """Return the reason, for a receipt, why no process of a call was killed, given the processes that may belong to
    the call."""
    pids = ", ".join(str(pid) for pid in may_live if pid)
    if pids:
        return f"only processes were found that cannot be told from the agent's own (pid {pids})"
    return NOT_LISTED if may_live else NONE_FOUND


async def end_processes(
    process: Process,
    span: CallSpan,
    timers: TimerService,
    agent: AgentPrograms,
    linger_s: float = 0.0,
    within_s: float = CALL_KILL_S,
    exiting_s: float = EXITING_AFTER_S,
) -> KilledProcesses:
    """Kill the processes of the calls in *span*, and repeat this until none is found, for at most *within_s* seconds
    (*exiting_s* seconds if only processes are found that the kernel is ending).

    *linger_s* is the number of seconds that a process which may belong to a call has to end without being killed.
    """
    killed: dict[int, None] = {}
    above: set[int] = set()
    seen: tuple[ProcessSeen, ...] | None = None
    found = CallProcesses()
    patient_until, runs_at = timers.now() + linger_s, timers.now()
    with timers.limit(within_s):
        while True:
            seen = None  # a shim that was stopped gives no reply, and this loop is cancelled while it waits
            seen = await process.list_processes()
            if seen is None:
                break
            found = processes_of_calls(seen, span._replace(had_own=span.had_own or bool(killed)), agent)
            above.update(one.pid for one in found.above)
            is_clear = not found.belong and not found.exiting
            if is_clear and (not found.may_belong or timers.now() >= patient_until):
                break
            if not found.exiting or found.belong:
                runs_at = timers.now()
            elif timers.now() >= runs_at + exiting_s:
                break
            process.signal_processes(found.belong, signal.SIGKILL)
            killed.update(dict.fromkeys(one.pid for one in found.belong))
            await anyio.sleep(POLL_S if found.belong or found.may_belong else EXITING_POLL_S)
    alive = frozenset(one.pid for one in seen or () if one.alive)
    may_live = dict.fromkeys([*sorted(above & alive), *(one.pid for one in found.may_belong)])
    return KilledProcesses(
        killed=tuple(killed),
        left=tuple([one.pid for one in found.belong]),
        may_live=(0,) if seen is None else tuple(may_live),
        alive=alive,
        exiting=tuple([one.pid for one in found.exiting]),
        above=frozenset(above & alive),
    )
