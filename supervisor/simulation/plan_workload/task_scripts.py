"""What each task of a simulated plan meets, and what the world saw of it: its attempts, its tests, its merges.

An errand is drawn before its task begins, from the faults that strike it, so that it is the same whoever tries, and in
whichever order. The last way of a list is what every further try meets. What is kept of the tries is the world's own:
no supervisor is asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from supervisor.simulation.faults import FaultPlan

__all__ = ["Attempt", "TaskScript", "TaskScripts", "Try", "asks_for", "draw_task_script", "prompt_of"]

_NAME: Final = re.compile(r"w\d+(?:t\d+(?:s\d+)*)?")
"""How simulated plans and their tasks are called, at the beginning of their sessions' names."""
TRIES_MAX: Final = 7
"""Tries that may go wrong before one does not: more than a run's attempts and its probes."""


def prompt_of(name: str) -> str:
    """What whoever has a task is asked to do."""
    return f"carry out {name}\n"


def asks_for(prompt: str, name: str) -> bool:
    """Whether it is asked to do that task, whatever else it is told."""
    return prompt_of(name) in prompt


class Try(StrEnum):
    """How an attempt goes."""

    DONE = "done"
    BUSY = "busy"
    OVERLOADED = "overloaded"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"
    HANGS = "hangs"
    CRASHES = "crashes"


class Attempt(msgspec.Struct):
    """One try of an agent at a task, as the world saw it: by which session, from when to when (seconds), what it found
    there, and what it did; and the run that it is on record for by then."""

    session_id: str
    way: Try
    began_s: float
    found: tuple[str, ...] = ()
    ended_s: float | None = None
    pieces: list[str] = msgspec.field(default_factory=list)
    run: str = ""


def _ignore_attempt(task_script: TaskScript, attempt: Attempt) -> None:
    """Nobody hears of it."""


Begun = Callable[["TaskScript", Attempt], None]


class TaskScript:
    """What one task meets: its ``ways``; its ``checks``, ``merges`` and ``approvals`` are true for a pass. ``begun``
    hears of each attempt, before anything comes of it."""

    def __init__(
        self,
        name: str,
        ways: tuple[Try, ...] = (Try.DONE,),
        checks: tuple[bool, ...] = (True,),
        merges: tuple[bool, ...] = (True,),
        approvals: tuple[bool, ...] = (True,),
        wanted: bool = True,
    ) -> None:
        self.name = name
        self.ways, self.checks, self.merges, self.approvals = ways, checks, merges, approvals
        self.wanted = wanted
        """It is approved before anything is done for it, where the plan says so."""
        self.attempts: list[Attempt] = []
        self.checked: list[bool] = []
        self.merged: list[bool] = []
        self.approved: list[bool] = []
        self.begun: Begun = _ignore_attempt

    def begin(self, session_id: str, now_s: float, found: tuple[str, ...] = ()) -> Attempt:
        """One more try."""
        attempt = Attempt(session_id, self.way(len(self.attempts)), now_s, found)
        self.begun(self, attempt)
        self.attempts.append(attempt)
        return attempt

    def way(self, number: int) -> Try:
        """How the try of that number goes, from 0."""
        return self.ways[min(number, len(self.ways) - 1)]

    def check(self) -> bool:
        """One more look at its work: whether it is accepted."""
        return _next(self.checks, self.checked)

    def merge(self) -> bool:
        """One more merge: whether nothing is in its way."""
        return _next(self.merges, self.merged)

    def approve(self) -> bool:
        """A person looks at the result: whether it is wanted."""
        return _next(self.approvals, self.approved)


def _next(drawn: tuple[bool, ...], seen: list[bool]) -> bool:
    seen.append(drawn[min(len(seen), len(drawn) - 1)])
    return seen[-1]


class TaskScripts:
    """Those of all plans of a run. *begun* hears of every attempt at them."""

    def __init__(self, begun: Begun = _ignore_attempt) -> None:
        self._begun = begun
        self._all: dict[str, TaskScript] = {}

    def __iter__(self) -> Iterator[TaskScript]:
        return iter(self._all.values())

    def add(self, task_script: TaskScript) -> None:
        """One more task will be tried."""
        task_script.begun = self._begun
        self._all[task_script.name] = task_script

    def of(self, session_id: str) -> TaskScript | None:
        """What the task meets that a session of that name works on; ``None`` if it is no task's, but a child of one."""
        found = _NAME.match(session_id) if "/" not in session_id else None
        return self._all.get(found[0]) if found else None


FAILING: Final[Mapping[str, Try]] = {
    "work.busy": Try.BUSY,
    "work.overloaded": Try.OVERLOADED,
    "work.unknown": Try.UNKNOWN,
    "work.crashes": Try.CRASHES,
    "work.hangs": Try.HANGS,
    "work.permanent": Try.PERMANENT,
}
"""The kinds that make an attempt fail."""


def draw_task_script(name: str, faults: FaultPlan) -> TaskScript:
    """What strikes that task: one kind makes its first tries fail, mostly not all of them."""
    ways: tuple[Try, ...] = (Try.DONE,)
    for kind, way in FAILING.items():
        if faults.strikes(kind, name):
            ways = _drawn_ways(way, name, kind, faults)
    return TaskScript(
        name,
        ways,
        checks=_passes("work.rejected", name, faults),
        merges=_passes("work.conflict", name, faults),
        approvals=_passes("work.denied", name, faults),
        wanted=not faults.strikes("work.unwanted", name),
    )


def _drawn_ways(way: Try, name: str, kind: str, faults: FaultPlan) -> tuple[Try, ...]:
    how = faults.draws(kind, name)
    failing = (way,) * how.integer(1, TRIES_MAX, "tries")
    return failing if how.happens(0.2, "for ever") else (*failing, Try.DONE)


def _passes(kind: str, name: str, faults: FaultPlan) -> tuple[bool, ...]:
    if not faults.strikes(kind, name):
        return (True,)
    how = faults.draws(kind, name)
    failing = (False,) * how.integer(1, 2, "times")
    return failing if how.happens(0.2, "for ever") else (*failing, True)
