"""Checker of tasks: their records, compared with the work, tests and merges of the simulated world.

A task may be closed only if an agent has done its work and its tests have passed; a task may fail only if something
went wrong; and a session that works on a task must be the only one, must hold the task on record, and must find the
task's dependencies done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Final

import msgspec

from supervisor.lifecycles.types import LifecycleEvent, SessionLimits
from supervisor.plans import Plan, TaskConfig
from supervisor.plans.tasks import every_task
from supervisor.policies.liveness import Liveness
from supervisor.ports import Append
from supervisor.simulation.plan_workload.plans import DEPUTY, WORKER
from supervisor.simulation.plan_workload.task_scripts import Attempt, TaskScript, TaskScripts, Try
from supervisor.simulation.plan_workload.workspace_contents import WorkspaceContents
from supervisor.work.results import TaskResult
from supervisor.work.task_execution import ACTOR
from tests.verification.checkers.archive import ArchiveChecker
from tests.verification.checkers.checkpoints import CheckpointChecker
from tests.verification.checkers.command_log import CommandLogChecker
from tests.verification.checkers.expected_outcome import USUAL, WATCHED, Ending, expected_endings
from tests.verification.checkers.heartbeats import HeartbeatChecker
from tests.verification.checkers.leases import LeaseChecker
from tests.verification.checkers.metadata import MetadataChecker
from tests.verification.checkers.results import ResultChecker
from tests.verification.checkers.work_conservation import WorkConservationChecker

Say = Callable[[str, str, str], None]
HELD: Final = frozenset({"CLAIMED", "IN_PROGRESS", "WAITING_FOR_SUBTASKS", "CANCELLED"})
"""States in which the holder of a task may work on the task: also on the task's own part beside subtasks, and until the
abort of a cancelled task arrives. A prompt of an operator is no work on the task."""
SETTLED: Final[Mapping[str, frozenset[str]]] = {
    "task": frozenset({"CLOSED", "CANCELLED", "FAILED"}),
    "run": frozenset({"COMPLETED", "SKIPPED", "CANCELLED", "CIRCUIT_OPEN"}),
    "job": frozenset({"completed", "failed", "cancelled"}),
    "workstream": frozenset({"completed", "failed", "cancelled"}),
    "worker": frozenset({"shutdown"}),
}
"""States in which entities must be when their plan is over."""
PASSING: Final = frozenset({Try.BUSY, Try.OVERLOADED, Try.UNKNOWN})
"""Outcomes of an attempt after which the same session tries again, since its agent was ready."""
UNCLAIMED: Final = "nobody goes on with its plan"
"""Reason on record of a task that is closed without a merge: its plan was given up, or never continued."""
FINAL: Final = frozenset({"CLOSED", "CANCELLED"})
"""Final states of tasks."""
HEARS_S: Final = 0.01
"""Seconds within which the caller of a command receives the result."""
LONGEST_S: Final = 7200.0
"""Seconds of the longest attempt, for any task size (docs/reference/plan-tasks.md)."""
UNHEARD_S: Final = 90.0
"""Seconds of silence after which an agent may be woken, interrupted or ended (docs/explanation/budgets.md)."""
ENDED_S: Final = 30.0
"""Seconds that the end of an attempt may take: the grace of its turn, and a termination."""
STARTED_S: Final = 1.0
"""Seconds by which a turn may begin before its program starts."""
OUTCOMES: Final[Mapping[str, frozenset[str]]] = {
    "completed": frozenset({"CLOSED"}),
    "failed": frozenset({"FAILED"}),
    "skipped": frozenset({"CANCELLED"}),
    "blocked": frozenset({"CANCELLED"}),
    "rejected": frozenset({"CANCELLED"}),
    "aborted": frozenset({"CANCELLED"}),
    "cancelled": frozenset({"CANCELLED"}),
}


class TaskState(msgspec.Struct):
    """State of a task according to the records: its id, its state, and its holder."""

    entity_id: str
    name: str
    """Name of the task in its plan; each run of the plan has a task of this name."""
    state: str
    holder: str = ""
    run_id: str = ""
    """Id of the newest task run of the task."""
    excused: bool = False
    """Whether the task needs no work of its own: its subtasks do the work, the policy for orphans counts it as done, or
    a person has kept what it had."""
    unclaimed: bool = False
    """Whether the task was closed under this supervisor since nobody continues its plan: its work is on its branch."""
    unmerged: bool = False
    """Whether the task was closed for that reason under any supervisor."""
    before: str = ""
    """State of the task before its present one; ``left_s`` is the time of the change."""
    left_s: float = 0.0


class TaskChecker:
    """Checker of the tasks, task runs, jobs and workers of one simulated run. *say* reports a violation; *bound_s* is
    the time, in seconds, for which something may be held after its end; *now* is the run's clock; *archive*: whether
    the run has an archive."""

    def __init__(
        self,
        say: Say,
        task_scripts: TaskScripts,
        workspaces: WorkspaceContents,
        bound_s: float,
        now: Callable[[], float],
        *,
        archive: bool = False,
    ) -> None:
        self._say, self._now = say, now
        self.leases, self.heartbeats = LeaseChecker(say, bound_s, now), HeartbeatChecker(say, bound_s, now)
        self.metadata, self.conservation = (
            MetadataChecker(say, bound_s, now),
            WorkConservationChecker(say, bound_s, now),
        )
        self._command_log = CommandLogChecker(say)
        self._results = ResultChecker(say)
        self._archive = ArchiveChecker(say) if archive else None
        self._task_scripts = task_scripts
        self._tasks: dict[str, TaskState] = {}
        """Tasks of the newest run of each plan, by name."""
        self._account: dict[str, TaskState] = {}
        """Tasks by the id of the task, and by the id of its task runs."""
        self._by_stream: dict[str, dict[str, TaskState]] = {}
        """Tasks by name and workstream."""
        self._moved: dict[str, int] = {}
        """Sequence number of the last record with which a plan run moved each workstream."""
        self._names: dict[str, str] = {}
        """Name of the plan of each workstream."""
        self._resumed: dict[str, str] = {}
        """Workstream that each workstream resumes."""
        self._states: dict[str, tuple[str, str]] = {}
        """Kind and state of each entity."""
        self._plans: dict[str, tuple[Plan, dict[str, TaskConfig]]] = {}
        self.checkpoints = CheckpointChecker(say, task_scripts, workspaces)
        self.lost_processes = False
        """Whether a process may be alive that cannot be ended, since its shim was lost."""

    # ------------------------------------------------------------------ supervisors and clocks
    def started(self) -> None:
        """Note the start of another supervisor."""
        self.leases.started()
        self.metadata.ended()
        self.conservation.ended()
        self.heartbeats.forget()
        for book in self._account.values():
            book.unclaimed = False

    def ended(self, how: str) -> None:
        """Note the end of the supervisor; *how*: killed, given up without its disk, or closed in order."""
        if how != "closed":
            self.checkpoints.supervisor_lost()
        if how != "gave up":
            self.leases.ended()
            self.metadata.ended()
            self.conservation.ended()
        if self._archive is not None:
            if how == "closed":
                self._archive.closed()
            elif how == "killed":
                self._archive.killed()

    def preserved(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        """Process a file that was added to the archive."""
        assert self._archive is not None
        self._archive.preserved(name, records)

    def disk_was_down(self, seconds: float) -> None:
        """Note that for so many seconds nothing could be recorded."""
        self.leases.delayed(seconds)
        self.metadata.delayed(seconds)
        self.conservation.delayed(seconds)

    def slept(self, seconds: float) -> None:
        """Note that for so many seconds nothing could be done."""
        self.leases.delayed(seconds)
        self.metadata.delayed(seconds)
        self.conservation.delayed(seconds)
        self.heartbeats.slept(seconds)

    # ------------------------------------------------------------------ what is asked
    def planned(self, plan: Plan) -> None:
        """Note a plan that the host is about to run."""
        tasks = {one.task.id: one.task for one in every_task(plan.tasks)}
        self._plans[plan.workstream] = (plan, tasks)
        self.metadata.planned(plan)

    def has_closed(self, session_id: str) -> bool:
        """Return whether the session holds a task that is closed."""
        return any(book.state == "CLOSED" and book.holder == session_id for book in self._account.values())

    def plan_ended(self, results: Iterable[TaskResult]) -> None:
        """Check the results of a plan that has ended: outcomes and sessions must be those on record."""
        results = list(results)
        stream = self._workstream_of([one.id for one in results])
        for one in results:
            book = self._by_stream.get(one.id, {}).get(stream) or self._tasks.get(one.id)
            if book is None:
                continue  # a plan that says nothing of its tasks but their order is not kept here
            # A task that was at work when its workstream failed, and whose supervisor was killed then, is failed by the
            # next supervisor: it was cut short all the same.
            cut_short = one.outcome == "cancelled" and book.state == "FAILED"
            if not (cut_short or book.state in OUTCOMES[one.outcome]):
                self._say("honest_ends", one.id, f"was said to be {one.outcome}, and is {book.state} on record")
            if one.session_id and book.holder and one.session_id != book.holder:
                self._say("honest_ends", one.id, f"was said to be {one.session_id}'s, and is {book.holder}'s on record")
            if book.unclaimed and not self._was_closed_before(book, stream):  # somebody did, and this is the answer
                self._say("completion_requirement", one.id, f"is closed without a merge, since {UNCLAIMED}")
            if one.outcome == "completed":
                self._check_merged(book)
            if one.outcome == "failed":
                self.metadata.failed(book.entity_id)
            if one.took_s < 0.0:  # no upper bound: the wall clock, which may be set, counts over several supervisors
                self._say("punctual", one.id, f"was said to have taken {one.took_s:g} s")

    def _workstream_of(self, names: Iterable[str]) -> str:
        """Return the workstream of a plan that has just ended. A plan may continue the work of an earlier plan, and
        other plans with tasks of these names may have run meanwhile."""
        streams = {stream for name in names for stream in self._by_stream.get(name, ())}
        for stream, before in self._resumed.items():  # oldest first; one that found everything closed has no tasks
            if before in streams:
                streams.add(stream)
        return max(sorted(streams), key=lambda one: self._moved.get(one, 0), default="")

    def _check_merged(self, book: TaskState) -> None:
        """Check that the work of a task that counts as done is merged, also if its plan was not continued."""
        workspaces, task_script = self.checkpoints.workspaces, self._task_scripts.of(book.name)
        if task_script is None or not workspaces.worktrees:
            return
        if book.unmerged and not (task_script.merged and task_script.merged[-1]):
            self._say("completion_requirement", book.name, f"counts as done; its merges were {task_script.merged}")
        done = [one for one in task_script.attempts if one.way is Try.DONE and one.session_id == book.holder]
        if done and not book.excused and (missing := workspaces.lacks(done[-1].pieces)):
            self._say("completion_requirement", book.name, f"counts as done, and {missing[0]} is not merged")

    def _was_closed_before(self, book: TaskState, stream: str) -> bool:
        """Return whether the task was closed in an earlier run that this plan run resumes: the task then counts as done
        (docs/how-to/operate.md)."""
        streams = self._by_stream[book.name]
        while stream and streams.get(stream) is not book:
            stream = self._resumed.get(stream, "")
            if streams.get(stream) is book:
                return True
        return False

    def shown(self, planned: Collection[str], known: Collection[str]) -> None:
        """Check that the reported list of tasks that wait for approval equals *known*, the list on record."""
        if set(planned) != set(known):
            self._say("honest_ends", "run", f"{sorted(planned)} are said to be planned, on record {sorted(known)} are")

    def answered(self, name: str, state: str) -> None:
        """Check that the task's state which an operator's command returned is the state on record."""
        book = self._tasks.get(name)
        if book is None or not (state in FINAL or book.state in FINAL) or book.state == state:
            return
        # it may have ended since for another reason
        overtaken = state == book.before and self._now() - book.left_s <= HEARS_S
        if not overtaken:
            self._say("honest_ends", name, f"was answered to be {state}, and is {book.state} on record")

    # ------------------------------------------------------------------ what is durable
    def wrote(self, one: Append, at_s: float) -> None:
        """Process a durable append. *at_s* is the time of the record, by the run's clock."""
        record = one.record
        if self._archive is not None:
            self._archive.wrote(one)
        self.heartbeats.happened(at_s)
        if record.entity_type not in SETTLED:
            return
        self._command_log.wrote(record)
        self._results.wrote(record)
        self.leases.wrote(one, at_s)
        self.metadata.wrote(one, at_s, self._config)
        self.conservation.wrote(one, at_s)
        if record.entity_type == "worker":
            self.heartbeats.wrote(one, at_s)
            self._worker(record)
        self._states[record.entity_id] = (record.entity_type, one.state)
        if record.entity_type == "workstream" and record.outcome == "born":
            self._resumed[record.entity_id] = str(record.metadata["resumes"])
            self._names[record.entity_id] = str(record.metadata["name"])
        if record.entity_type == "workstream" and record.actor == ACTOR:
            self._moved[record.entity_id] = record.seq
        if record.entity_type == "task":
            self._task(record, one.state)
        elif record.entity_type == "run":
            self._run(record)

    def _worker(self, record: LifecycleEvent) -> None:
        """Note that the plan of a new worker is begun or continued."""
        if record.outcome == "born":
            stream = str(record.metadata["workstream"])
            account = (by_stream.get(stream) for by_stream in self._by_stream.values())
            self.checkpoints.plan_continued({book.entity_id for book in account if book is not None})

    def _run(self, record: LifecycleEvent) -> None:
        if record.outcome == "born":
            self._account[record.entity_id] = self._account[str(record.metadata["task"])]
        book = self._account[record.entity_id]
        book.run_id = record.entity_id
        if (task := self._config(book.name)) is not None:
            self.checkpoints.wrote(record, book.name, task)

    def _config(self, name: str) -> TaskConfig | None:
        """Return the configuration of a task; ``None`` for a task that an operator split off."""
        plan = self._plans.get(name.partition("t")[0])
        return plan[1].get(name) if plan is not None else None

    def _task(self, record: LifecycleEvent, state: str) -> None:
        if record.outcome == "born":
            name, told = str(record.metadata["name"]), record.metadata
            book = self._account[record.entity_id] = self._tasks[name] = TaskState(record.entity_id, name, state)
            self._by_stream.setdefault(name, {})[str(told["workstream"])] = book
            return
        book = self._account[record.entity_id]
        if book.state != state:
            book.before, book.left_s = book.state, self._now()
        book.state = state
        if record.event == "closed" and record.outcome == "transition":
            book.unclaimed = book.unmerged = UNCLAIMED in record.reason
        if record.event == "claimed" and record.outcome == "transition":
            book.holder = str(record.metadata["by"])
        book.excused = book.excused or state == "WAITING_FOR_SUBTASKS" or record.event in ("recovered", "kept")

    # ------------------------------------------------------------------ what the world sees
    def attempt_began(self, task_script: TaskScript, attempt: Attempt) -> None:
        """Check that an agent may begin to work on a task, and that no other agent works on the task."""
        book = self._tasks.get(task_script.name)
        if book is None:
            self._say(
                "intent_before_effect", task_script.name, "is worked on, and no record says that there is such a task"
            )
            return
        # One commit may let an agent begin and take the task away from its session: the session is ended then.
        is_overtaken = book.before in HELD and book.left_s == self._now()
        if not (book.state in HELD or is_overtaken) or book.holder != attempt.session_id:
            words = f"{attempt.session_id} works on it; on record it is {book.state}, of {book.holder or 'nobody'}"
            self._say("intent_before_effect", task_script.name, words)
        attempt.run = book.run_id
        others = [one.session_id for one in task_script.attempts if one.ended_s is None]
        if others and not self.lost_processes:
            self._say("one_holder", task_script.name, f"{attempt.session_id} works on it beside {', '.join(others)}")
        self._check_place(task_script.name)
        if (task := self._config(task_script.name)) is not None:
            self.checkpoints.attempt_began(task_script, attempt, task)

    def _check_place(self, name: str) -> None:
        _, tasks = self._plans[name.partition("t")[0]]
        for needed in self._needs(tasks, name):
            book = self._tasks.get(needed)
            if book is None or book.state not in ("CLOSED", "CANCELLED"):
                state = book.state if book is not None else "not there"
                self._say("dependency_satisfaction", name, f"is worked on, but {needed} is {state}")

    def _needs(self, tasks: Mapping[str, TaskConfig], name: str) -> Iterable[str]:
        """Yield the names of the tasks on which a task depends, or on which the task that it is a part of depends."""
        for task in tasks.values():
            if task.id == name or (task.subtasks and name.startswith(f"{task.id}s")):
                yield from task.depends_on

    # ------------------------------------------------------------------ in the end
    def settled(self) -> None:
        """Check the end of the simulated run, when every plan is over: every entity has ended, and the results agree
        with the simulated world."""
        for entity_id, (kind, state) in self._states.items():
            if state not in SETTLED[kind]:
                self._say("nothing_lost", entity_id, f"is {state} when its plan is over")
        closed = {name for name, book in self._tasks.items() if book.state == "CLOSED"}
        self.checkpoints.settled(closed | {one for one, (_, state) in self._states.items() if state == "CLOSED"})
        for _, tasks in self._plans.values():
            for name, task in tasks.items():
                book, task_script = self._tasks.get(name), self._task_scripts.of(name)
                if book is not None and task_script is not None:
                    self._check_closed(task, book, task_script)
                    self._check_whole(task, book, task_script)

    def _check_closed(self, task: TaskConfig, book: TaskState, task_script: TaskScript) -> None:
        if book.state == "CLOSED" and task.agent in (WORKER, DEPUTY) and not book.excused:
            done = any(one.way is Try.DONE and one.session_id == book.holder for one in task_script.attempts)
            if not done:
                self._say("honest_ends", task.id, f"is closed, and {book.holder or 'nobody'} has not done it")
            if task.acceptance and not (task_script.checked and task_script.checked[-1]):
                self._say("completion_requirement", task.id, f"is closed; its tests said {task_script.checked}")
            if not book.unmerged and not (task_script.merged and task_script.merged[-1]):
                self._say("completion_requirement", task.id, f"is closed; its merges were {task_script.merged}")

    def _check_whole(self, task: TaskConfig, book: TaskState, task_script: TaskScript) -> None:
        """Check that a closed task which its plan split had passed its acceptance tests as a whole."""
        if (
            book.state == "CLOSED"
            and task.subtasks
            and task.acceptance
            and task_script.checked
            and not task_script.checked[-1]
        ):
            self._say(
                "completion_requirement", task.id, f"is closed; the tests of the whole said {task_script.checked}"
            )

    def check_expected(self, session: SessionLimits = USUAL, liveness: Liveness = WATCHED) -> None:
        """Check that every task ended as expected; called only if nothing interfered. Plans that lost a worker with its
        tasks are not checked."""
        lost = {self._names.get(stream) for stream in self.heartbeats.lost_tasks}
        for plan, tasks in [one for one in self._plans.values() if one[0].workstream not in lost]:
            given_up_s = self._given_up_s(tasks)
            for task in tasks.values():
                self._check_times(plan, task, given_up_s)
                self._check_sessions(task)
            endings = expected_endings(plan, self._task_scripts, session, liveness)
            for name in tasks if endings is not None else ():
                self._compare(name, endings[name] if endings is not None else Ending(""))

    def _given_up_s(self, tasks: Mapping[str, TaskConfig]) -> float:
        """Return the time since which the other tasks of a plan are unwanted, because a critical task has failed
        (docs/explanation/work.md)."""
        critical = (self._tasks.get(name) for name, task in tasks.items() if task.critical)
        return min((one.left_s for one in critical if one is not None and one.state == "FAILED"), default=inf)

    def _check_times(self, plan: Plan, task: TaskConfig, given_up_s: float) -> None:
        """Check that a hanging agent is ended when its time is over and not before, except after long silence, or when
        its plan is given up."""
        task_script = self._task_scripts.of(task.id)
        if task_script is None or task.subtasks or task.agent not in (WORKER, DEPUTY):
            return
        most_s = task.timeout_s or plan.task_lifecycle.value().timeout_s
        if task.scope is not None and task.timeout_s is None:
            most_s = LONGEST_S  # what others of its kind took has a say
        for one in task_script.attempts:
            took_s = (one.ended_s if one.ended_s is not None else one.began_s) - one.began_s
            if took_s > most_s + ENDED_S:
                self._say("punctual", task.id, f"an attempt of it took {took_s:.3f} s, of {most_s:g} s")
            unwanted = one.ended_s is not None and one.ended_s >= given_up_s
            if one.way is Try.HANGS and not unwanted and took_s < min(most_s, UNHEARD_S) - STARTED_S:
                self._say("punctual", task.id, f"a try that hung was ended after {took_s:.3f} s, of {most_s:g} s")

    def _check_sessions(self, task: TaskConfig) -> None:
        """Check that a temporary error is tried again in the same session, and another claim in another session."""
        task_script = self._task_scripts.of(task.id)
        for one, other in pairwise(task_script.attempts if task_script is not None else ()):
            same = one.session_id == other.session_id
            if (one.run == other.run and one.way in PASSING and not same) or (one.run != other.run and same):
                words = f"{one.session_id} tried it for {one.run}, and then {other.session_id} for {other.run}"
                self._say("one_holder", task.id, words)

    def _compare(self, name: str, ending: Ending) -> None:
        book, task_script = self._tasks.get(name), self._task_scripts.of(name)
        if book is None or task_script is None or not ending.outcome:
            return
        if book.state not in OUTCOMES[ending.outcome]:
            words = f"is {book.state} in the end; by what it met it is {ending.outcome}"
            self._say("counted_right", name, words)
        elif len(task_script.attempts) != ending.attempts:
            words = f"was tried {len(task_script.attempts)} times, of {ending.attempts} by what it met"
            self._say("counted_right", name, words)
