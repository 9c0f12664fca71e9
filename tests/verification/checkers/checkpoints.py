"""Checkpoints: what the records say was saved, compared with what the simulated machine holds.

A checkpoint on record holds what the attempt did before it, and stays until its task is closed. A run that resumes from
a checkpoint says so, and its first attempt finds exactly that. What is rolled back is found by no later attempt, and no
work is ever gone.
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
"""Last states of runs that came to nothing."""
UNDER_WAY: Final = frozenset({"IN_PROGRESS", "VALIDATING"})
"""States of runs while an attempt goes on."""
BEGINS: Final = frozenset({"executor_started", "backoff_completed", "probe_started"})


class RunState(msgspec.Struct):
    """A run as it is on record."""

    entity_id: str
    task: str
    """Id of the task."""
    name: str
    rollback: bool = False
    state: str = "PENDING"
    saved_in: str = ""
    saved_as: str = ""
    resumed: tuple[str, str] = ("", "")
    """The run that this one resumes, and the checkpoint."""
    is_new_attempt: bool = False
    """Whether an attempt is on record that no agent has begun yet."""
    newest: list[Attempt] = []
    """The newest attempt as the world saw it; several entries if its session began it anew."""

    @property
    def done(self) -> list[str]:
        """Pieces of work of the newest attempt."""
        return [piece for one in self.newest for piece in one.pieces]

    def left(self, *, rollback: bool) -> tuple[str, str]:
        """Run and checkpoint from which the next run resumes."""
        if self.state == "COMPLETED":
            return "", ""
        return (self.entity_id, self.saved_as) if self.saved_in and not rollback else self.resumed


class CheckpointChecker:
    """Checkpoints of one machine. *say* reports a violation: the invariant, the entity, and the message."""

    def __init__(
        self, say: Callable[[str, str, str], None], task_scripts: TaskScripts, workspaces: WorkspaceContents
    ) -> None:
        self._say, self._task_scripts, self.workspaces = say, task_scripts, workspaces
        self._runs: dict[str, RunState] = {}
        """The newest run of each task, by the name of the task."""
        self._all: dict[str, RunState] = {}
        self._kept: dict[str, set[str]] = {}
        """Pieces of a task that are not rolled back, by its name: those of its completed runs, and those on which their
        last attempts worked."""
        self._left: dict[str, dict[str, set[str]]] = {}
        """Pieces that were left after a kill where nobody continued the plan, by name and id of the task. A new run of
        the plan has new tasks, which may find them; a continued plan rolls them back."""
        self._beside: dict[str, list[Attempt]] = {}
        """Attempts that agents made between attempts of the task, for a prompt of an operator."""
        self._resumed: set[str] = set()
        """Tasks whose plan the host resumes."""
        self._saved: dict[str, RunState] = {}
        """The run of each checkpoint on record."""
        self._cut_short: set[str] = set()
        """Runs whose supervisor was killed, or had no disk, before it could roll them back; perhaps nobody continues
        them."""
        self._abandoned: set[str] = set()
        """Those of them that had come to nothing by then, while nobody continues their plans. A continued plan rolls
        them back; a new run of the plan has new tasks, which may find their work."""
        self._taken_back: set[str] = set()
        """Pieces that were rolled back on record, or under a supervisor that was killed before that record: another
        checkpoint has them."""

    def supervisor_lost(self) -> None:
        """Note that the supervisor is gone, and the next one continues from the records."""
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
        """Take in a durable record of a run of that task."""
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
        """Note that the pieces of the newest attempt are in that checkpoint, so that later ones need not have them."""
        held = set(self.workspaces.held(saved_as) or ())
        self._taken_back |= held & set(book.done)

    def _check_saved(
        self, book: RunState, saved_as: str, session_id: str, task: TaskConfig, *, at_work: bool = False
    ) -> None:
        """Check that a checkpoint on record exists and holds what the newest attempt did; if its agent may be *at work*
        still, any part of that."""
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
        """Check that the attempt of a task is over on record before its shared place is rolled back: otherwise the next
        supervisor would continue the attempt, and never roll back what it does then."""
        book = next((one for one in reversed(self._all.values()) if one.task == task), None)
        if book is not None and book.state in UNDER_WAY:
            self._say(INVARIANT, book.entity_id, f"is taken back, and {book.state} on record")

    def attempt_began(self, task_script: TaskScript, attempt: Attempt, task: TaskConfig) -> None:
        """Check what an agent finds when it begins."""
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
        """Pieces of other tasks with the same name, whose plans nobody continued."""
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
        """Check the end of the run, when every plan is over. *closed*: names and ids of closed tasks."""
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
        """Task of an attempt; a later run of its plan may not have closed it."""
        book = self._all.get(attempt.run)
        return "" if book is None else book.task

    def _check_taken_back(self, workspaces: WorkspaceContents) -> None:
        """Check that nothing of a run that came to nothing stays in a shared place, if its plan says so."""
        for name, book in self._runs.items():
            if not book.rollback or book.state not in BADLY or book.entity_id in self._cut_short:
                continue
            if left := [piece for piece in workspaces.found(name) if piece in book.done]:
                self._say(INVARIANT, book.entity_id, f"is {book.state}, and {left[0]} was not taken back")
