"""Dispatcher: runs the actors that have messages, one at a time; a turn of an actor handles a batch of its messages.

Actors with a CONTROL message go ahead of the others; after 32 such turns an actor without one has its turn. Between
turns the ends of actors advance by a step each. The dispatcher yields to the event loop after 256 messages or 1 ms,
whichever comes first; asks that are handled in the asking task count too, so that no asker blocks the event loop
either. Each turn has a copy of the context variables of the code that opened the system: a value that a handler sets
ends with its turn, and no other actor sees it.
"""

from __future__ import annotations

from collections import deque
from contextvars import copy_context
from typing import Protocol

import anyio

from actors import failpoint
from actors.waiter import Backend, Waiter

QUANTUM = 16
"""Number of messages that one actor handles per turn, and between two readings of the clock."""
BATCH = 256
"""Number of messages between two checkpoints, at which tasks and aborts run. With 64, a task beside a flood of messages
waits half as long, and throughput is a fifth lower."""
BATCH_S = 0.001
"""Seconds between two checkpoints, at most."""
FRONT_RUN_MAX = 32
"""Number of turns in a row for actors with a CONTROL message, after which an actor without one has a turn."""
CREDIT = 64
"""Number of asks that are handled in the asking task between two checkpoints of the dispatcher."""


class Runnable(Protocol):
    """Protocol of the part of an actor that the dispatcher needs."""

    queued: bool
    queued_first: bool

    def drain(self, most: int) -> int: ...

    def has_messages(self) -> bool: ...

    def has_control(self) -> bool: ...

    def take_end_step(self) -> None: ...


class Dispatcher:
    """The queue of runnable actors of one actor system, and the loop that runs them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.context = copy_context()
        """Context variables of which every turn gets a copy."""
        self.runnable: deque[Runnable] = deque()
        self._front: deque[Runnable] = deque()
        self._ending: deque[Runnable] = deque()
        self._front_run = 0
        self._credit = CREDIT
        self.idle_waiter: Waiter | None = None
        """Set while no actor has anything to do."""
        self._idle: anyio.Event | None = None

    # ------------------------------------------------------------------ what is to be done
    def make_runnable(self, one: Runnable, *, first: bool = False) -> None:
        """Queue an actor for a turn (with *first* ahead of actors without a CONTROL message), at most once in each
        queue."""
        if first:
            if not one.queued_first:
                one.queued_first = True
                self._front.append(one)
        elif not one.queued:
            one.queued = True
            self.runnable.append(one)
        if self.idle_waiter is not None:
            self.rouse()

    def queue_end_step(self, one: Runnable) -> None:
        self._ending.append(one)
        if self.idle_waiter is not None:
            self.rouse()

    def rouse(self) -> None:
        if self.idle_waiter is not None:
            self.idle_waiter.wake()
            self.idle_waiter = None

    def charge(self) -> bool:
        """Count an ask that is handled in the asking task; return ``False`` if the event loop must run first."""
        self._credit -= 1
        return self._credit > 0

    async def idle(self) -> None:
        """Wait until no actor has anything to do. Running tasks and pending timers are not waited for."""
        await anyio.lowlevel.checkpoint()
        while self.idle_waiter is None:
            if self._idle is None:
                self._idle = anyio.Event()
            await self._idle.wait()

    # ------------------------------------------------------------------ doing it
    async def run(self) -> None:
        """Give turns to actors until cancelled."""
        now, checkpoint = self.backend.now, self.backend.checkpoint
        while True:
            if self.runnable or self._front or self._ending:
                await checkpoint()
            else:
                self.idle_waiter = waiter = self.backend.new_waiter()
                if self._idle is not None:
                    self._idle.set()
                    self._idle = None
                await waiter.wait()
            self._credit = CREDIT
            self._run_batch(now() + BATCH_S)

    def _run_batch(self, until: float) -> None:
        """Give turns to actors until none has anything to do, or a checkpoint is due."""
        handled, unclocked = 0, 0
        most = 1 if failpoint.active("dispatch.batch_of_one") else BATCH
        while handled < most and (self._front or self.runnable or self._ending):
            done = self._turn()
            handled += done
            unclocked += done
            if unclocked >= QUANTUM:
                if self.backend.now() >= until:
                    return
                unclocked = 0

    def _turn(self) -> int:
        """Take some steps of actors that end, then give one actor a turn; return the number of steps and messages."""
        steps = 0
        while self._ending and steps < QUANTUM:
            self._ending.popleft().take_end_step()
            steps += 1
        if self._front and (self._front_run < FRONT_RUN_MAX or not self.runnable):
            self._front_run += 1
            one = self._front.popleft()
            one.queued_first = False
        else:
            self._front_run = 0
            if not self.runnable:
                return steps
            one = self.runnable.popleft()
            one.queued = False
        taken = self.context.copy().run(one.drain, QUANTUM)
        if one.has_messages():
            self.make_runnable(one, first=one.has_control())
        return steps + taken
