"""End one call that an agent runs by itself without its turn, and find what is left of the calls that have ended.

Which processes are those of a call is decided in ``policies/call_processes.py``. Here is when that is asked: before a
call that is being ended has its result, and before a turn that was interrupted with a call open has its end. What
belongs to the calls is killed, what may belong to them is named, and as long as either is alive, or nothing could be
seen, the result of the call is ``unknown``, not ``aborted``. When the agent has ended, and its shim has proved that
nothing of it is left, that is recorded, and counted in every receipt from then on.

What an agent runs within its own process is no process of a call: there its word counts, that the call has ended.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import anyio
import msgspec

from actors import ActorStopped
from actors.timers import TimerService
from supervisor.policies.abort_plan import ProcessFate
from supervisor.policies.call_processes import CallProcesses, CallSpan, ProcessSeen, processes_of_calls
from supervisor.ports import Out, Process
from supervisor.runtime.agent_io import AgentIO
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.live_session import LiveSession

__all__ = ["KilledProcesses", "ToolCallTerminations", "end_processes"]

ASKED: Final = "the agent, which runs this call by itself, ended it when asked to, and its turn went on"
BESIDE: Final = "; what it may have left running cannot be told from what the calls beside it run"
STRUCK: Final = "the agent runs this call by itself: the processes of the call were killed, and its turn went on"
"""How a call was ended, for a receipt."""

ASKED_S: Final = 1.0
"""How long an agent has to end a call before what can be told to be the call's is killed. Measured: 5 ms."""

STRIKE_S: Final = 1.0
"""How long processes are killed that go on to start others, before they are given up until their agent ends."""
LINGER_S: Final = 0.25
"""How long a process that may belong to a call has to end, once the agent says that it has ended the call."""
NAP_S: Final = 0.005


class _CallTermination(NamedTuple):
    """A call that is to end alone: how, and who is told if it does not."""

    how: str
    told: list[Callable[[str], None]]


class ToolCallTerminations:
    """The calls of one agent that are to end alone.

    Args:
        calls: the open calls of its turn: their actors, by what the agent calls them.
        aborted: those calls of its turn that are being ended alone.
        ask: what asks the agent to end a call; ``None`` if it cannot be asked.
        wire: to the agent.
    """

    def __init__(
        self,
        registry: EntityRegistry,
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
        self._ending: dict[str, _CallTermination] = {}
        self._span = CallSpan(0, 0)
        """When the processes of the open calls were born."""
        self._begun: dict[str, None] = {}
        """The calls that have been opened in that time."""
        self._written = (0, 0)
        """Between which ticks the agent wrote what is dealt with now."""
        self._closed_last = False
        """The last open call was closed by what is dealt with now."""
        self._left: dict[tuple[str, int], None] = {}
        """The processes that may be alive, and the call that they were found for. Pid 0: they could not be seen."""
        self._looking = anyio.Lock(fast_acquire=True)

    # ------------------------------------------------------------------ what the agent does
    def begin_turn(self) -> None:
        """Another turn is about to be given to it: it has no open call now."""
        self._ending.clear()
        now = self._agent_io.process.clock() if self._agent_io.process is not None else 0
        self._span, self._closed_last = CallSpan(now, now), False
        self._begun.clear()

    def note_output(self, written: tuple[int, int]) -> None:
        """Note between which ticks the output was *written* that is dealt with from now on."""
        clear = self._span.clear
        if self._closed_last and not self._calls and written[0] >= clear:
            # All that it had written by then has been heard, and no call was open: what is born later is of a new call.
            self._span = CallSpan(clear, clear)
        self._written, self._closed_last = written, False

    def note_all_closed(self) -> None:
        """No call is open now. When the next one began is not known: perhaps right after this one, and before we read
        of either."""
        begin, end = self._written
        self._span, self._closed_last = CallSpan(max(begin, self._span.since), max(end, self._span.since)), True
        self._begun.clear()

    def note_opened(self, call_id: str) -> None:
        """A call is about to be opened, beside those that are."""
        self._begun[call_id] = None

    @property
    def _alone(self) -> bool:
        """True if what is born in that time is of calls that are being ended."""
        return all(one in self._aborted for one in self._begun)

    async def before_result(self, call_id: str) -> bool:
        """End what a call has left running that was ended alone; ``False`` if something of it may be alive."""
        if call_id in self._aborted and call_id in self._calls:
            return await self._end_processes(self._calls[call_id], self._alone)
        return True

    async def before_end(self, tool_id: str) -> bool:
        """End what all calls of an interrupted turn have left running; ``False`` if something of it may be alive."""
        return await self._end_processes(tool_id, alone=True)

    # ------------------------------------------------------------------ ending one
    def terminate(self, call_id: str, kept: Callable[[str], None]) -> str:
        """End this one call: how, for a receipt; ``""`` if it cannot be. *kept* hears why, if it does not end."""
        if call_id in self._ending:
            self._ending[call_id].told.append(kept)
            return self._ending[call_id].how
        ctx = self._registry.system.context(self._calls.get(call_id, ""))
        outs = self._ask(call_id) if ctx is not None else None
        if ctx is None or (outs is None and not self._alone):
            return ""
        how = STRUCK if outs is None else ASKED if self._alone else f"{ASKED}{BESIDE}"
        self._ending[call_id] = _CallTermination(how, [kept])
        self._agent_io.put(outs or ())
        try:
            self._session.start(ctx, self._see_to_end, call_id, outs is not None)
        except ActorStopped:
            return ""
        return how

    async def _see_to_end(self, call_id: str, asked: bool) -> None:
        """In the call's own scope: this is over when it has a result. An agent that was asked to end it may have ended
        its own process, and wait for those that this has started."""
        within_s, timers = self._session.policy.ladder.request_s, self._registry.system.timers
        if asked:
            with timers.limit(min(ASKED_S, within_s)):
                await anyio.sleep_forever()
        with timers.limit(within_s):
            found = self._alone and await self._kill_processes(self._calls.get(call_id, ""))
            if not (found or asked):
                self.give_up(call_id, "no process of it was found")
            await anyio.sleep_forever()
        self.give_up(call_id, f"it had not ended {within_s:g} s later")

    def give_up(self, call_id: str, why: str) -> None:
        """The agent does not end that call alone: whoever asked for it hears why."""
        ending = self._ending.pop(call_id, None)
        for kept in ending.told if ending is not None and call_id in self._calls else ():
            kept(why)

    # ------------------------------------------------------------------ its processes
    async def _kill_processes(self, tool_id: str) -> bool:
        """Kill what belongs to the one call that is open and goes on; ``False`` if there was nothing."""
        process = self._agent_io.process
        if process is None:
            return False
        async with self._looking:
            found = await end_processes(
                process, self._span, self._registry.system.timers, servers=self._session.profile.servers
            )
        self._note_killed(tool_id, found)
        return bool(found.killed)

    async def _end_processes(self, tool_id: str, alone: bool) -> bool:
        """Kill what belongs to the calls, and name what may; ``True`` if nothing of them is alive."""
        process = self._agent_io.process
        if process is None:
            return True
        async with self._looking:
            linger_s = LINGER_S if not self._left else 0.0  # what has outlived that once is waited for no more
            span = self._span._replace(alone=alone)
            found = await end_processes(
                process, span, self._registry.system.timers, linger_s, self._session.profile.servers
            )
        self._note_killed(tool_id, found)
        if process.pid in found.alive:
            self._note_ended([one for one in self._left if one[1] and one[1] not in found.alive])
        if may_live := [pid for pid in found.may_live if (tool_id, pid) not in self._left]:
            told = {"call": tool_id, "pids": [pid for pid in may_live if pid]}
            self._registry.record_turn_fact(self._session, "CallProcessesLeft", told)
        for pid in may_live:
            self._keep(ProcessFate(owner=tool_id, pid=pid, status=None, ended_by="", killed=0, survivors="unknown"))
        return not (found.left or found.may_live)

    def _note_killed(self, tool_id: str, found: KilledProcesses) -> None:
        if found.killed:
            told = {"call": tool_id, "pids": [*found.killed], "left": [*found.left]}
            self._registry.record_turn_fact(self._session, "CallProcessesKilled", told)
        for pid in found.killed:
            left = pid in found.left
            self._keep(ProcessFate(owner=tool_id, pid=pid, status=None, ended_by="kill", killed=0, survivors=int(left)))

    def _keep(self, fate: ProcessFate) -> None:
        self._session.fates.append(fate)
        if fate.survivors:
            self._left[fate.owner, fate.pid] = None

    def note_processes_gone(self) -> None:
        """The agent has ended with all that it had started: so has whatever was left of its calls."""
        self._note_ended(list(self._left))

    def _note_ended(self, found: Sequence[tuple[str, int]]) -> None:
        """Note of processes, each with its call, that they have ended: on record, and in each receipt still to come."""
        for one in found:
            del self._left[one]
        for tool_id in dict.fromkeys(owner for owner, _ in found):
            told = {"call": tool_id, "pids": [pid for owner, pid in found if owner == tool_id and pid]}
            self._registry.record_fact(self._agent_id, "CallProcessesEnded", self._session.cause, told)
        for number, fate in enumerate(self._session.fates):
            if fate.survivors and (fate.owner, fate.pid) in found:
                self._session.fates[number] = msgspec.structs.replace(fate, survivors=0)


class KilledProcesses(NamedTuple):
    """Pids of processes: those that were killed, those of them that were still alive when there was no more time, those
    that may belong to a call and are alive (0: nothing could be seen), and all that are alive, the agent too."""

    killed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    may_live: tuple[int, ...] = ()
    alive: frozenset[int] = frozenset()


async def end_processes(
    process: Process, span: CallSpan, timers: TimerService, linger_s: float = 0.0, servers: Collection[str] = ()
) -> KilledProcesses:
    """Kill what belongs to the calls of that time until nothing of it is found, 1 s at most; wait *linger_s* for what
    may belong to them to end by itself."""
    killed: dict[int, None] = {}
    seen: tuple[ProcessSeen, ...] | None = None
    found = CallProcesses()
    patient_until = timers.now() + linger_s
    with timers.limit(STRIKE_S):
        while True:
            seen = None  # until the reply is here: a shim that was stopped gives none
            seen = await process.list_processes()
            if seen is None:
                break
            found = processes_of_calls(seen, process.pid, span, servers)
            if not found.belong and (not found.may_belong or timers.now() >= patient_until):
                break
            process.signal_processes(found.belong, signal.SIGKILL)
            killed.update(dict.fromkeys(one.pid for one in found.belong))
            await anyio.sleep(NAP_S)
    return KilledProcesses(
        killed=tuple(killed),
        left=tuple([one.pid for one in found.belong]),
        may_live=(0,) if seen is None else tuple([one.pid for one in found.may_belong]),
        alive=frozenset(one.pid for one in seen or () if one.alive),
    )
