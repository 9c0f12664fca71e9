"""The dispatcher: it lets the actors that have something to do take turns, one at a time, in batches.

Actors with a CONTROL message go ahead of the others, and after 32 such turns one of the others has its turn. Ends go
on a step at a time between the turns. The loop is given up by count and by time, whichever comes first; asks that
are answered outside of a turn are charged too, so that no asker keeps the loop either. Each turn has a copy of the
context variables of whoever opened the system: what a handler sets ends with its turn, and nobody else sees it.
"""

from __future__ import annotations

from collections import deque
from contextvars import copy_context
from typing import Protocol

import anyio

from actors import fault
from actors.parking import Backend, Waiter

__all__ = ["Dispatcher", "Runnable"]

QUANTUM = 16
"""Messages one actor may handle before the next one's turn, and before the clock is read again."""
BATCH = 256
"""Messages handled between two checkpoints, so that tasks and aborts get the loop; 64 halve what a task waits beside a
flood, and cost a fifth of the throughput."""
BATCH_S = 0.001
"""Seconds between two checkpoints, whichever comes first."""
FRONT_RUN_MAX = 32
"""After this many turns in a row for actors with a CONTROL message, one goes to an actor without."""
CREDIT = 64
"""Asks answered in place between two checkpoints of the asker."""


class Runnable(Protocol):
    """What the dispatcher needs of an actor."""

    front: bool
    queued: bool

    def drain(self, most: int) -> int:
        """Handle up to *most* messages; how many were taken."""
        ...

    def ready(self) -> bool:
        """There is a message that it would handle now."""
        ...

    def pressing(self) -> bool:
        """What it would handle now is a CONTROL message."""
        ...

    def step_down(self) -> None:
        """One step of its end."""
        ...


class Dispatcher:
    """The run queue of one system."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.context = copy_context()
        """The context variables that every handler sees; each gets a copy."""
        self.runnable: deque[Runnable] = deque()
        self._front: deque[Runnable] = deque()
        self._advancing: deque[Runnable] = deque()
        self._front_run = 0
        self._credit = CREDIT
        self.parked: Waiter | None = None
        """Set while there is nothing to do."""
        self._idle: anyio.Event | None = None

    # ------------------------------------------------------------------ what is to be done
    def make_runnable(self, one: Runnable, *, first: bool = False) -> None:
        """Queue an actor for a turn, *first* ahead of those without a CONTROL message; at most once in each queue."""
        if first:
            if not one.front:
                one.front = True
                self._front.append(one)
        elif not one.queued:
            one.queued = True
            self.runnable.append(one)
        if self.parked is not None:
            self.rouse()

    def make_advance(self, one: Runnable) -> None:
        """Have the end of an actor looked at."""
        self._advancing.append(one)
        if self.parked is not None:
            self.rouse()

    def rouse(self) -> None:
        if self.parked is not None:
            self.parked.unpark()
            self.parked = None

    def charge(self) -> bool:
        """An ask is answered outside of a turn; ``False`` if the loop must be given up first."""
        self._credit -= 1
        return self._credit > 0

    async def idle(self) -> None:
        """Wait until no actor has anything to do. Tasks and timers that are yet to report are not waited for."""
        await anyio.lowlevel.checkpoint()
        while self.parked is None:
            if self._idle is None:
                self._idle = anyio.Event()
            await self._idle.wait()

    # ------------------------------------------------------------------ doing it
    async def run(self) -> None:
        """Take turns, for ever."""
        now, give_way = self.backend.now, self.backend.give_way
        while True:
            if self._busy():
                await give_way()
            else:
                await self._parker().wait()
            self._credit = CREDIT
            self._run_batch(now() + BATCH_S)

    def _busy(self) -> bool:
        return bool(self.runnable or self._front or self._advancing)

    def _parker(self) -> Waiter:
        """There is nothing to do: what it waits for until there is."""
        self.parked = parked = self.backend.parker()
        if self._idle is not None:
            self._idle.set()
            self._idle = None
        return parked

    def _run_batch(self, until: float) -> None:
        """Take turns until nobody has anything to do, or it is time for a checkpoint."""
        handled, unclocked = 0, 0
        most = 1 if fault.point("dispatch.batch_of_one") else BATCH
        while handled < most and (self._front or self.runnable or self._advancing):
            done = self._turn()
            handled += done
            unclocked += done
            if unclocked >= QUANTUM:
                if self.backend.now() >= until:
                    return
                unclocked = 0

    def _turn(self) -> int:
        """Let some ends come one step further, then one actor handle some messages; how much was done."""
        steps = 0
        while self._advancing and steps < QUANTUM:
            self._advancing.popleft().step_down()
            steps += 1
        one = self._next() if self._front else self._next_ordinary()
        if one is None:
            return steps
        taken = self.context.copy().run(one.drain, QUANTUM)
        if one.ready():
            self.make_runnable(one, first=one.pressing())
        return steps + taken

    def _next(self) -> Runnable | None:
        """One with a CONTROL message, or, after many of them, one without."""
        if self._front_run < FRONT_RUN_MAX or not self.runnable:
            self._front_run += 1
            one = self._front.popleft()
            one.front = False
            return one
        return self._next_ordinary()

    def _next_ordinary(self) -> Runnable | None:
        self._front_run = 0
        if not self.runnable:
            return None
        one = self.runnable.popleft()
        one.queued = False
        return one
