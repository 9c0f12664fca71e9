"""How one call that an agent runs by itself is ended without its turn: the agent is asked to, or its processes are.

Agents run their commands in sessions of their own. So what was born below an agent, in another session than its own,
since no call was open last, belongs to the calls that have been opened since: to a single one, or to all of them,
where they all end. Where several are open at once nothing of one is told from what is another's, and nothing is
killed. What an agent itself starts in a session of its own in that time cannot be told either, and shares that fate.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import anyio

from actors.timers import TimerService
from supervisor.ports import Process

__all__ = ["ASKED", "ASKED_S", "BESIDE", "STRUCK", "Births", "Struck", "strike"]

ASKED: Final = "the agent, which runs this call by itself, ended it when asked to, and its turn went on"
BESIDE: Final = "; what it may have left running cannot be told from what the calls beside it run"
STRUCK: Final = "the agent runs this call by itself: the processes of the call were killed, and its turn went on"
"""How a call was ended, for a receipt."""

ASKED_S: Final = 1.0
"""How long an agent has to end a call before what can be told to be the call's is killed. Measured: 5 ms."""

STRIKE_S: Final = 1.0
"""How long processes are killed that go on to start others, before they are given up until their agent ends."""
NAP_S: Final = 0.005


class Births:
    """Since when what is born belongs to the calls that are open, and whether that is one call only."""

    def __init__(self) -> None:
        self.since = 0.0
        self.single = True

    def quiet(self, process: Process | None) -> None:
        """No call is open now."""
        self.since = process.clock() if process is not None else 0.0
        self.single = True

    def opened(self, beside: int) -> None:
        """A call was opened, while that many were open."""
        self.single = self.single and not beside


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
