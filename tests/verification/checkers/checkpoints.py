"""Checker of checkpoints: the saved work according to the records, compared with the content of the simulated machine.

A checkpoint on record contains all work that the attempt did before the checkpoint, and exists until its task is
closed. The record of a task run that resumes from a checkpoint names that checkpoint, and the first attempt of the
task run finds exactly its content. No later attempt finds work that was rolled back, and no work is ever lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import TaskConfig
from supervisor.simulation.plan_workload.task_scripts import Attempt, TaskScript, TaskScripts
from supervisor.simulation.plan_workload.workspace_contents import WorkspaceContents

INVARIANT: Final = "checkpoints"
BADLY: Final = frozenset({"CIRCUIT_OPEN", "CANCELLED"})
"""Last states of task runs that ended without success."""
UNDER_WAY: Final = frozenset({"IN_PROGRESS", "VALIDATING"})
"""States of task runs while an attempt is under way."""
BEGINS: Final = frozenset({"executor_started", "backoff_completed", "probe_started"})


class RunState(msgspec.Struct):
    """State of a task run according to the records."""

    entity_id: str
    task: str
    """Id of the task."""
    name: str
    rollback: bool = False
    state: str = "PENDING"
    saved_in: str = ""
    saved_as: str = ""
    resumed: tuple[str, str] = ("", "")
    """Task run that this task run resumes, and the checkpoint."""
    is_new_attempt: bool = False
    """Whether an attempt is on record that no agent has begun yet."""
    newest: list[Attempt] = []
    """Newest attempt as the simulated world recorded it; several entries if its session began the attempt anew."""

    @property
    def done(self) -> list[str]:
        """Return the pieces of work of the newest attempt."""
        return [piece for one in self.newest for piece in one.pieces]

    def left(self, *, rollback: bool) -> tuple[str, str]:
        """Return the task run and the checkpoint from which the next task run resumes; two empty strings if there is
        none."""
        if self.state == "COMPLETED":
            return "", ""
        return (self.entity_id, self.saved_as) if self.saved_in and not rollback else self.resumed


class CheckpointChecker:
    """Checker of the checkpoints of one machine. *say* reports a violation: the invariant, the entity, and the
    message."""

    def __init__(
        self, say: Callable[[str, str, str], None], task_scripts: TaskScripts, workspaces: WorkspaceContents
    ) -> None:
        self._say, self._task_scripts, self.workspaces = say, task_scripts, workspaces
        self._runs: dict[str, RunState] = {}
        """Newest task run of each task, by the name of the task."""
        self._all: dict[str, RunState] = {}
        self._kept: dict[str, set[str]] = {}
        """Pieces of work that are never rolled back, by the name of their task: the work of completed task runs, and
        the work that the last attempts of these task runs found."""
        self._left: dict[str, dict[str, set[str]]] = {}
        """Pieces of work that remained after a kill, by name and id of the task. If nobody continued the plan, a new
        run of the plan has new tasks, which may find these pieces; a continued plan rolls them back."""
        self._beside: dict[str, list[Attempt]] = {}
        """Attempts that agents made between attempts of the task, for a prompt of an operator."""
        self._resumed: set[str] = set()
        """Names of the tasks whose plan the host resumes."""
        self._saved: dict[str, RunState] = {}
        """Task run of each checkpoint on record."""
        self._cut_short: set[str] = set()
        """Task runs whose supervisor was killed, or had no disk, before it could roll their work back; possibly nobody
        continues these task runs."""
        self._abandoned: set[str] = set()
        """Task runs that were cut short like that after they had failed, while nobody continues their plans. A
        continued plan rolls their work back; a new run of the plan has new tasks, which may find their work."""
        self._taken_back: set[str] = set()
        """Pieces of work that were rolled back on record, or under a supervisor that was killed before the record of
        the rollback: another checkpoint contains these pieces."""

    def supervisor_lost(self) -> None:
        """Note that the supervisor is dead, and that the next supervisor continues from the records."""
        self._cut_short |= self._all.keys()
        self._abandoned |= {name for name, book in self._all.items() if book.state in BADLY}
        self._taken_back |= self.workspaces.taken_back

    def plan_continued(self, tasks: Collection[str]) -> None:
        """Note that the plan of these tasks is continued."""
        self._abandoned -= {name for name in self._abandoned if self._all[name].task in tasks}

    def resumed(self, names: Collection[str]) -> None:
        """Note that the host resumes a plan of these tasks."""
        self._resumed |= set(names)

    # ------------------------------------------------------------------ what is durable
    def wrote(self, record: LifecycleEvent, name: str, task: TaskConfig) -> None:
        """Process a durable record of a task run of that task."""
        if record.outcome == "born":
            self._born(record, name, task)
            return
        book = self._all[record.entity_id]
        if record.event == "RolledBack":
            told = record.metadata
            self._check_saved(book, str(told["saved_as"]), str(told["session"]), task)
            self._take_back(book, str(told["saved_as"]))
        if record.outcome != "transition":
            return
        book.state = record.to_status
        book.is_new_attempt = book.is_new_attempt or record.event in BEGINS
        if record.event == "checkpoint_saved":
            self._take(book, record, task)
        newest = book.done
        if book.state == "COMPLETED":
            self._kept.setdefault(name, set()).update(newest, *(one.found for one in book.newest))
        elif record.actor == "recovery":
            self._left.setdefault(name, {}).setdefault(book.task, set()).update(newest)

    def _born(self, record: LifecycleEvent, name: str, task: TaskConfig) -> None:
        told, last = record.metadata, self._runs.get(name)
        resumed = str(told["resumed_from"]), str(told["resumed_at"])
        book = RunState(record.entity_id, str(told["task"]), name, task.rollback, resumed=resumed)
        self._runs[name] = self._all[record.entity_id] = book
        if last is not None and last.task == book.task:
            wanted = last.left(rollback=task.rollback)
        else:
            wanted = last.left(rollback=False) if last is not None and name in self._resumed else ("", "")
        if resumed != wanted:
            self._say(INVARIANT, record.entity_id, f"goes on with {resumed}, not with {wanted}")

    def _take(self, book: RunState, record: LifecycleEvent, task: TaskConfig) -> None:
        told = record.metadata
        book.saved_in, book.saved_as = str(told["state"]), str(told["saved_as"])
        self._check_saved(book, book.saved_as, str(told["session"]), task, at_work=book.saved_in == "CANCELLED")

    def _take_back(self, book: RunState, saved_as: str) -> None:
        """Note which pieces of the newest attempt are in that checkpoint, so that later checkpoints need not contain
        them."""
        held = set(self.workspaces.held(saved_as) or ())
        self._taken_back |= held & set(book.done)

    def _check_saved(
        self, book: RunState, saved_as: str, session_id: str, task: TaskConfig, *, at_work: bool = False
    ) -> None:
        """Check that a checkpoint on record exists and contains the work of the newest attempt; if the attempt's agent
        may still be *at work*, any part of that work is allowed."""
        if not saved_as:
            return
        self._saved[saved_as] = book
        held = self.workspaces.held(saved_as)
        if held is None:
            self._say(INVARIANT, book.entity_id, f"the checkpoint {saved_as} is on record, and is not there")
            return
        if at_work or (task.rollback and book.is_new_attempt):
            return  # no agent has begun it: what was done before is taken back, and another checkpoint has that
        done = [piece for one in book.newest if one.session_id == session_id for piece in one.pieces]
        elsewhere = self._taken_back if task.rollback else ()
        if missing := [piece for piece in done if piece not in held and piece not in elsewhere]:
            self._say(INVARIANT, book.entity_id, f"the checkpoint {saved_as} lacks {missing[0]}, which was done before")

    # ------------------------------------------------------------------ what the world sees
    def check_rollback(self, task: str) -> None:
        """Check that the attempt of a task has ended on record before its shared workspace is rolled back: otherwise
        the next supervisor would continue the attempt, and never roll back the work done then."""
        book = next((one for one in reversed(self._all.values()) if one.task == task), None)
        if book is not None and book.state in UNDER_WAY:
            self._say(INVARIANT, book.entity_id, f"is taken back, and {book.state} on record")

    def attempt_began(self, task_script: TaskScript, attempt: Attempt, task: TaskConfig) -> None:
        """Check the work that an agent finds in its workspace when it begins an attempt."""
        book, workspaces = self._runs.get(task_script.name), self.workspaces
        if book is None:
            return
        if book.state != "IN_PROGRESS":
            self._beside.setdefault(task_script.name, []).append(attempt)
            return
        begins_session = all(one.session_id != attempt.session_id for one in task_script.attempts)
        if workspaces.worktrees and begins_session:
            self._check_start(book, attempt, workspaces, rollback=task.rollback)
        if task.rollback and book.is_new_attempt:
            beside = (piece for one in self._beside.get(task_script.name, ()) for piece in one.pieces)
            spared = self._kept.get(task_script.name, ())
            allowed = {*(workspaces.held(book.resumed[1]) or ()), *spared, *beside, *self._left_by_others(book)}
            if old := [piece for piece in attempt.found if piece not in allowed]:
                self._say(INVARIANT, book.entity_id, f"an attempt finds {old[0]}, which was to be taken back")
        book.newest = [*(() if book.is_new_attempt else book.newest), attempt]
        book.is_new_attempt = False

    def _left_by_others(self, book: RunState) -> Iterator[str]:
        """Yield the pieces of work of other tasks with the same name, whose plans nobody continued."""
        for task, pieces in self._left.get(book.name, {}).items():
            yield from pieces if task != book.task else ()
        for one in (self._all[name] for name in self._abandoned):
            yield from one.done if one.name == book.name and one.task != book.task else ()

    def _check_start(self, book: RunState, attempt: Attempt, workspaces: WorkspaceContents, *, rollback: bool) -> None:
        start = book.saved_as if book.saved_as and not rollback else book.resumed[1]
        wanted = workspaces.held(start) if start else ()
        if attempt.found != wanted:
            words = f"{attempt.session_id} begins with {attempt.found}, not with its checkpoint {start}: {wanted}"
            self._say(INVARIANT, book.entity_id, words)

    # ------------------------------------------------------------------ in the end
    def settled(self, closed: AbstractSet[str]) -> None:
        """Check the end of the simulated run, when every plan has ended. *closed*: names and ids of closed tasks."""
        if not self.workspaces.worktrees:
            self._check_taken_back(self.workspaces)
        there = self.workspaces.everything()
        for name, book in self._saved.items():
            if not {book.name, book.task} & closed and self.workspaces.held(name) is None:
                self._say(INVARIANT, book.name, f"its checkpoint {name} is gone, and it is not closed")
        for task_script in self._task_scripts:
            kept = [
                one for one in task_script.attempts if self.workspaces.worktrees or self._task_of(one) not in closed
            ]
            pieces = [piece for one in kept for piece in one.pieces]
            lost = [piece for piece in pieces if piece not in there]
            if lost and (self.workspaces.worktrees or task_script.name not in closed):
                self._say(INVARIANT, task_script.name, f"{lost[0]} was done, and is nowhere any more")

    def _task_of(self, attempt: Attempt) -> str:
        """Return the id of the task of an attempt; a later run of the plan has another task of this name, which may not
        be closed."""
        book = self._all.get(attempt.run)
        return "" if book is None else book.task

    def _check_taken_back(self, workspaces: WorkspaceContents) -> None:
        """Check that no work of a task run that ended without success remains in a shared workspace, if the plan asks
        for rollbacks."""
        for name, book in self._runs.items():
            if not book.rollback or book.state not in BADLY or book.entity_id in self._cut_short:
                continue
            if left := [piece for piece in workspaces.found(name) if piece in book.done]:
                self._say(INVARIANT, book.entity_id, f"is {book.state}, and {left[0]} was not taken back")
