"""Scripts of simulated tasks: the outcomes of tries, tests and merges of a task, and a record of those that happened.

A script is drawn before its task begins, from the faults that strike the task, so the script does not depend on the
agents that try the task or on their order. The last entry of a list counts for all later tries. The record of the tries
is made by the simulated world itself, never by querying a supervisor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from supervisor.simulation.faults import FaultPlan

_NAME: Final = re.compile(r"w\d+(?:t\d+(?:s\d+)*)?")
"""Pattern for names of simulated plans and tasks; the name of a session begins with the name of its plan or task."""
TRIES_MAX: Final = 7
"""The most tries that fail before a try succeeds: more than the attempts and probes of a task run."""


def prompt_of(name: str) -> str:
    """Return the prompt of a task."""
    return f"carry out {name}\n"


def asks_for(prompt: str, name: str) -> bool:
    """Whether *prompt* asks for the task *name*, whatever else the prompt contains."""
    return prompt_of(name) in prompt


class Try(StrEnum):
    """Scripted outcome of one try at a task."""

    DONE = "done"
    BUSY = "busy"
    OVERLOADED = "overloaded"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"
    HANGS = "hangs"
    CRASHES = "crashes"


class Attempt(msgspec.Struct):
    """Try of an agent at a task, as the simulated world saw the try: the session, the times (seconds), the pieces of
    work that the agent found and made, and the task run that was on record for the try."""

    session_id: str
    way: Try
    began_s: float
    found: tuple[str, ...] = ()
    ended_s: float | None = None
    pieces: list[str] = msgspec.field(default_factory=list)
    run: str = ""


def _ignore_attempt(task_script: TaskScript, attempt: Attempt) -> None:
    """Ignore the attempt: the default of *begun*."""


Begun = Callable[["TaskScript", Attempt], None]


class TaskScript:
    """Script of one task: ``ways`` of its tries; ``checks``, ``merges`` and ``approvals`` are true for a pass.
    ``begun`` is called with each attempt before it does anything."""

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
        """Whether an operator approves the task before it is begun, where the plan asks for that."""
        self.attempts: list[Attempt] = []
        self.checked: list[bool] = []
        self.merged: list[bool] = []
        self.approved: list[bool] = []
        self.begun: Begun = _ignore_attempt

    def begin(self, session_id: str, now_s: float, found: tuple[str, ...] = ()) -> Attempt:
        """Record one more try at the task, and return the try."""
        attempt = Attempt(session_id, self.way(len(self.attempts)), now_s, found)
        self.begun(self, attempt)
        self.attempts.append(attempt)
        return attempt

    def way(self, number: int) -> Try:
        """Return the scripted outcome of try *number*, counted from 0."""
        return self.ways[min(number, len(self.ways) - 1)]

    def check(self) -> bool:
        """Record one more acceptance test; return whether it passes."""
        return _next(self.checks, self.checked)

    def merge(self) -> bool:
        """Record one more merge; return whether it succeeds."""
        return _next(self.merges, self.merged)

    def approve(self) -> bool:
        """Record one more review by a person; return whether the result is approved."""
        return _next(self.approvals, self.approved)


def _next(drawn: tuple[bool, ...], seen: list[bool]) -> bool:
    seen.append(drawn[min(len(seen), len(drawn) - 1)])
    return seen[-1]


class TaskScripts:
    """Scripts of all tasks of a simulated run. *begun* is called with every attempt before it does anything."""

    def __init__(self, begun: Begun = _ignore_attempt) -> None:
        self._begun = begun
        self._all: dict[str, TaskScript] = {}

    def __iter__(self) -> Iterator[TaskScript]:
        return iter(self._all.values())

    def add(self, task_script: TaskScript) -> None:
        """Add the script of a task."""
        task_script.begun = self._begun
        self._all[task_script.name] = task_script

    def of(self, session_id: str) -> TaskScript | None:
        """Return the script of the task on which the session of this name works; ``None`` for sessions without a task,
        and for child sessions."""
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
"""Kinds of faults that make an attempt fail, with the outcome of such an attempt."""


def draw_task_script(name: str, faults: FaultPlan) -> TaskScript:
    """Draw the script of a task from the faults that strike the task. At most one kind makes tries fail: the first
    tries, and sometimes all."""
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
