"""How one call that an agent runs by itself is ended without its turn: the agent is asked to, or its processes are.

Agents run their commands in sessions of their own. So what was born below an agent, in another session than its own,
since no call was open last, belongs to the calls that have been opened since: to a single one, or to all of them,
where they all end. Where several are open at once nothing of one is told from what is another's, and nothing is
killed. What an agent itself starts in a session of its own in that time cannot be told either, and shares that fate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import anyio

from actors import ActorStopped
from actors.timers import TimerService
from supervisor.abort import ProcessFate
from supervisor.ports import Out, Process
from supervisor.tree import Tree
from supervisor.wire import Wire
from supervisor.work import Work

__all__ = ["CallEnds", "Struck", "strike"]

ASKED: Final = "the agent, which runs this call by itself, ended it when asked to, and its turn went on"
BESIDE: Final = "; what it may have left running cannot be told from what the calls beside it run"
STRUCK: Final = "the agent runs this call by itself: the processes of the call were killed, and its turn went on"
"""How a call was ended, for a receipt."""

ASKED_S: Final = 1.0
"""How long an agent has to end a call before what can be told to be the call's is killed. Measured: 5 ms."""

STRIKE_S: Final = 1.0
"""How long processes are killed that go on to start others, before they are given up until their agent ends."""
NAP_S: Final = 0.005


class _Ending(NamedTuple):
    """A call that is to end alone: how, and who is told if it does not."""

    how: str
    told: list[Callable[[str], None]]


class CallEnds:
    """The calls of one agent that are to end alone.

    Args:
        calls: the open calls of its turn: their actors, by what the agent calls them.
        ask: what asks the agent to end a call; ``None`` if it cannot be asked.
        wire: to the agent.
    """

    def __init__(
        self,
        tree: Tree,
        work: Work,
        calls: Mapping[str, str],
        ask: Callable[[str], Iterable[Out] | None],
        wire: Wire,
    ) -> None:
        self._tree = tree
        self._work = work
        self._calls = calls
        self._ask = ask
        self._wire = wire
        self._ending: dict[str, _Ending] = {}
        self._since = 0.0
        """What was born since then belongs to the open calls (the process's clock)."""
        self._single = True
        """That is one call only."""
        self._striking = anyio.Lock(fast_acquire=True)

    # ------------------------------------------------------------------ what the agent does
    def begin(self) -> None:
        """Another turn."""
        self._ending.clear()
        self.quiet()

    def quiet(self) -> None:
        """No call is open now."""
        process = self._wire.process
        self._since = process.clock() if process is not None else 0.0
        self._single = True

    def opened(self) -> None:
        """A call is about to be opened, beside those that are."""
        self._single = self._single and not self._calls

    async def before_result(self, call_id: str) -> None:
        """What a call that was ended alone has left running ends before it has a result."""
        if call_id in self._ending and call_id in self._calls and self._single:
            await self.strike(self._calls[call_id])

    # ------------------------------------------------------------------ ending one
    def end(self, call_id: str, kept: Callable[[str], None]) -> str:
        """End this one call: how, for a receipt; ``""`` if it cannot be. *kept* hears why, if it does not end."""
        if call_id in self._ending:
            self._ending[call_id].told.append(kept)
            return self._ending[call_id].how
        ctx = self._tree.system.context(self._calls.get(call_id, ""))
        outs = self._ask(call_id) if ctx is not None else None
        if ctx is None or (outs is None and not self._single):
            return ""
        how = STRUCK if outs is None else ASKED if self._single else f"{ASKED}{BESIDE}"
        self._ending[call_id] = _Ending(how, [kept])
        self._wire.put(outs or ())
        try:
            self._work.start(ctx, self._see_to_end, call_id, outs is not None)
        except ActorStopped:
            return ""
        return how

    async def _see_to_end(self, call_id: str, asked: bool) -> None:
        """In the call's own scope: this is over when it has a result. An agent that was asked to end it may have ended
        its own process, and wait for those that this has started."""
        within_s, timers = self._work.policy.ladder.request_s, self._tree.system.timers
        if asked:
            with timers.limit(min(ASKED_S, within_s)):
                await anyio.sleep_forever()
        with timers.limit(within_s):
            struck = self._single and await self.strike(self._calls.get(call_id, ""))
            if not (struck or asked):
                self.kept(call_id, "no process of it was found")
            await anyio.sleep_forever()
        self.kept(call_id, f"it had not ended {within_s:g} s later")

    def kept(self, call_id: str, why: str) -> None:
        """The agent does not end that call alone: whoever asked for it hears why."""
        ending = self._ending.pop(call_id, None)
        for kept in ending.told if ending is not None and call_id in self._calls else ():
            kept(why)

    async def strike(self, tool_id: str) -> bool:
        """Kill what was started for the calls that are open; whether there was anything."""
        process = self._wire.process
        if process is None:
            return False
        async with self._striking:
            struck = await strike(process, self._since, self._tree.system.timers)
        if struck.pids:
            told = {"call": tool_id, "pids": [*struck.pids], "left": [*struck.left]}
            self._tree.note_in_turn(self._work, "CallProcessesKilled", told)
        for pid in struck.pids:
            fate = ProcessFate(
                owner=tool_id, pid=pid, status=None, ended_by="kill", killed=0, survivors=int(pid in struck.left)
            )
            self._work.fates.append(fate)
        return bool(struck.pids)


class Struck(NamedTuple):
    """The processes that were killed, and those of them that were still found when there was no more time."""

    pids: tuple[int, ...]
    left: tuple[int, ...]


async def strike(process: Process, since: float, timers: TimerService) -> Struck:
    """Kill what *process* has started since then in other sessions, until nothing is found; 1 s at most."""
    pids: dict[int, None] = {}
    left: tuple[int, ...] = ()
    with timers.limit(STRIKE_S):
        while left := await process.strike(since):
            pids.update(dict.fromkeys(left))
            await anyio.sleep(NAP_S)
    return Struck(tuple(pids), left)
