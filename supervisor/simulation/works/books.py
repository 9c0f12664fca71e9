"""The judge's own record of the work side: what became of every task, held against what the world saw of it.

Its books are made of durable records, of the plans that the host drew, and of what agents, tests and merges met. A task
is closed only where an agent has done it and its tests have passed; it has failed only where something went wrong; and
whoever works on one is the only one, holds it on record, and finds everything that it depends on done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from supervisor.plans import Plan, TaskConfig
from supervisor.plans.tasks import every_task
from supervisor.ports import Append
from supervisor.simulation.works.errands import Attempt, Errand, Errands, Way
from supervisor.simulation.works.foretold import Ending, foretell
from supervisor.simulation.works.plans import DEPUTY, WORKER
from supervisor.vocabulary import LifecycleEvent

__all__ = ["TaskBook", "WorkBooks"]

Say = Callable[[str, str, str], None]
HELD: Final = frozenset({"CLAIMED", "IN_PROGRESS", "WAITING_FOR_SUBTASKS", "DONE", "CANCELLED"})
"""Where a task is while its holder may work: on its own part beside subtasks, on what an operator asks after it, and
while the abort of what was cancelled is on its way."""
SETTLED: Final[Mapping[str, frozenset[str]]] = {
    "task": frozenset({"CLOSED", "CANCELLED", "FAILED"}),
    "run": frozenset({"COMPLETED", "SKIPPED", "CANCELLED", "CIRCUIT_OPEN"}),
    "job": frozenset({"completed", "failed", "cancelled"}),
    "workstream": frozenset({"completed", "failed", "cancelled"}),
    "worker": frozenset({"shutdown"}),
}
"""Where an entity of the work side rests when its plan is over."""
OUTCOMES: Final[Mapping[str, frozenset[str]]] = {
    "completed": frozenset({"CLOSED"}),
    "failed": frozenset({"FAILED"}),
    "skipped": frozenset({"CANCELLED"}),
    "blocked": frozenset({"CANCELLED"}),
    "aborted": frozenset({"CANCELLED"}),
}


class TaskBook(msgspec.Struct):
    """What is on record of one task: its entity, its state, and who holds it."""

    entity_id: str
    state: str
    whole: str
    """The task that it is a part of, of no other itself; or its own name."""
    holder: str = ""
    run: str = ""
    """The state of its newest run."""
    excused: bool = False
    """Others do it, its subtasks; or what was left of it is taken for done, as the policy for orphans has it."""


class WorkBooks:
    """The work side of one run. *say* reports a law that was broken: its name, whose, and the words."""

    def __init__(self, say: Say, errands: Errands) -> None:
        self._say = say
        self._errands = errands
        self._tasks: dict[str, TaskBook] = {}
        """By the task's name in its plan."""
        self._names: dict[str, str] = {}
        """The name in its plan of the task that an entity is."""
        self._states: dict[str, tuple[str, str]] = {}
        """Kind and state of every entity of the work side."""
        self._plans: dict[str, tuple[Plan, dict[str, TaskConfig]]] = {}
        self.lost_processes = False
        """Some process may live that nobody can end: its warden was lost."""

    # ------------------------------------------------------------------ what is asked
    def planned(self, plan: Plan) -> None:
        """The host has a plan run."""
        tasks = {one.task.id: one.task for one in every_task(plan.tasks)}
        self._plans[plan.workstream] = (plan, tasks)
        for name in tasks:
            errand = self._errands.of(name)
            if errand is not None:
                errand.begun = self._begun

    def waiting(self, state: str, wholes: Collection[str]) -> list[str]:
        """The tasks that are in that state on record, by name: those of *wholes*, and all that they were split into."""
        return [name for name, book in self._tasks.items() if book.state == state and book.whole in wholes]

    def cooling(self, wholes: Collection[str]) -> list[str]:
        """The same for those whose circuit is open, or that have failed."""
        return [
            name
            for name, book in self._tasks.items()
            if book.whole in wholes and (book.run == "CIRCUIT_OPEN" or book.state == "FAILED")
        ]

    def whose(self, entity_id: str) -> tuple[str, str] | None:
        """The name of the task that an entity is, or is the run of, and the session that holds it."""
        name = self._names.get(entity_id)
        return (name, self._tasks[name].holder) if name is not None else None

    # ------------------------------------------------------------------ what is durable
    def wrote(self, one: Append) -> None:
        """This is durable."""
        record = one.record
        if record.entity_type not in SETTLED:
            return
        self._states[record.entity_id] = (record.entity_type, one.state)
        if record.entity_type == "task":
            self._task(record, one.state)
        elif record.entity_type == "run":
            self._run(record, one.state)

    def _run(self, record: LifecycleEvent, state: str) -> None:
        if record.outcome == "born":
            self._names[record.entity_id] = self._names[str(record.metadata["task"])]
        self._tasks[self._names[record.entity_id]].run = state

    def _task(self, record: LifecycleEvent, state: str) -> None:
        if record.outcome == "born":
            name = str(record.metadata["name"])
            self._names[record.entity_id] = name
            above = self._names.get(str(record.metadata["part_of"]))
            whole = self._tasks[above].whole if above is not None else name
            self._tasks[name] = TaskBook(record.entity_id, state, whole)
            return
        book = self._tasks[self._names[record.entity_id]]
        book.state = state
        if record.event == "claimed" and record.outcome == "transition":
            book.holder = str(record.metadata["by"])
        book.excused = book.excused or state == "WAITING_FOR_SUBTASKS" or record.event == "recovered"

    # ------------------------------------------------------------------ what the world sees
    def _begun(self, errand: Errand, attempt: Attempt) -> None:
        """An agent begins to work on a task: it may, and nobody else does."""
        book = self._tasks.get(errand.name)
        if book is None:
            self._say("intent_before_effect", errand.name, "is worked on, and no record says that there is such a task")
            return
        if book.state not in HELD or book.holder != attempt.session_id:
            words = f"{attempt.session_id} works on it; on record it is {book.state}, of {book.holder or 'nobody'}"
            self._say("intent_before_effect", errand.name, words)
        others = [one.session_id for one in errand.attempts if one.ended_s is None]
        if others and not self.lost_processes:
            self._say("one_holder", errand.name, f"{attempt.session_id} works on it beside {', '.join(others)}")
        self._check_place(errand.name)

    def _check_place(self, name: str) -> None:
        _, tasks = self._plans[name.partition("t")[0]]
        for needed in self._needs(tasks, name):
            book = self._tasks.get(needed)
            if book is None or book.state not in ("CLOSED", "CANCELLED"):
                state = book.state if book is not None else "not there"
                self._say("dependency_satisfaction", name, f"is worked on, but {needed} is {state}")

    def _needs(self, tasks: Mapping[str, TaskConfig], name: str) -> Iterable[str]:
        """What it depends on, and what those depend on that it is a part of."""
        for task in tasks.values():
            if task.id == name or (task.subtasks and name.startswith(f"{task.id}s")):
                yield from task.depends_on

    # ------------------------------------------------------------------ in the end
    def settled(self) -> None:
        """Every plan is over: so is everything that was begun for it, and the world bears out what is said of it."""
        for entity_id, (kind, state) in self._states.items():
            if state not in SETTLED[kind]:
                self._say("nothing_lost", entity_id, f"is {state} when its plan is over")
        for _, tasks in self._plans.values():
            for name, task in tasks.items():
                book, errand = self._tasks.get(name), self._errands.of(name)
                if book is not None and errand is not None:
                    self._bear_out(task, book, errand)

    def _bear_out(self, task: TaskConfig, book: TaskBook, errand: Errand) -> None:
        if book.state == "CLOSED" and task.agent in (WORKER, DEPUTY) and not book.excused:
            done = any(one.way is Way.DONE and one.session_id == book.holder for one in errand.attempts)
            if not done:
                self._say("honest_ends", task.id, f"is closed, and {book.holder or 'nobody'} has not done it")
            if task.acceptance and not (errand.checked and errand.checked[-1]):
                self._say("completion_requirement", task.id, f"is closed; its tests said {errand.checked}")
            if not (errand.merged and errand.merged[-1]):
                self._say("completion_requirement", task.id, f"is closed; its merges were {errand.merged}")

    def as_foretold(self) -> None:
        """Nothing has struck, and nobody has interfered: every task has ended as it had to."""
        for plan, tasks in self._plans.values():
            endings = foretell(plan, self._errands)
            for name in tasks if endings is not None else ():
                self._compare(name, endings[name] if endings is not None else Ending(""))

    def _compare(self, name: str, ending: Ending) -> None:
        book, errand = self._tasks.get(name), self._errands.of(name)
        if book is None or errand is None or not ending.outcome:
            return
        if book.state not in OUTCOMES[ending.outcome]:
            words = f"is {book.state} in the end; by what it met it is {ending.outcome}"
            self._say("counted_right", name, words)
        elif len(errand.attempts) != ending.attempts:
            words = f"was tried {len(errand.attempts)} times, of {ending.attempts} by what it met"
            self._say("counted_right", name, words)
