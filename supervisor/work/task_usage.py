"""Usage of the tasks of a run, the launches of their agents, and what their attempts took, from the journal's records.
Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from supervisor.lifecycles.task import TASK, StepFreed, StepHeld, Task
from supervisor.lifecycles.task_run import RUN, TaskRun
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.policies.usage import NOTHING, USAGE_EVENTS, UsageTotals
from supervisor.work.results import TaskResult

_MACHINES: Final = (RUN, TASK)
TASK_USAGE_EVENTS: Final = (*USAGE_EVENTS, *(event.name() for one in _MACHINES for event in one.events.values()))
"""Names of the events whose records are needed."""
_AT_WORK: Final = (Task.CLAIMED.value, Task.IN_PROGRESS.value, Task.DONE.value)
_BETWEEN_ATTEMPTS: Final = (TaskRun.RETRYING.value, TaskRun.CIRCUIT_OPEN.value, TaskRun.HALF_OPEN.value)


class _WorkTime:
    """Time in which one task is worked on: it is claimed, or done and not merged yet, its run is not between two
    attempts, and nothing holds it."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._began_s: float | None = None
        self._task = self._run = ""
        self._is_held = False

    def take(self, record: LifecycleEvent) -> None:
        """Process the next record of the task, or of its run."""
        if record.entity_type == Kind.RUN:
            self._run = record.to_status
        elif record.event in (StepHeld.name(), StepFreed.name()):
            self._is_held = record.event == StepHeld.name()
        elif record.from_status != record.to_status:
            self._task, self._is_held = record.to_status, False
        works = self._task in _AT_WORK and self._run not in _BETWEEN_ATTEMPTS and not self._is_held
        if works and self._began_s is None:
            self._began_s = record.monotonic_s
        elif not works and self._began_s is not None:
            self.spent_s += record.monotonic_s - self._began_s
            self._began_s = None


class TaskUsage(UsageTotals):
    """Usage totals, and for each task the launches of agents, the agent that worked on the task last, and the time of
    its last completed attempt. Records must be added in their order."""

    def __init__(self) -> None:
        super().__init__()
        self._launches = Counter[str]()
        self._holders: dict[str, str] = {}
        """The task that a session has claimed, by session."""
        self._agents: dict[str, str] = {}
        """The agent of a session, by session."""
        self._last_agents: dict[str, str] = {}
        """The agent of the session that has claimed a task last, by task."""
        self._began_s: dict[str, float] = {}
        """Start of the last attempt of a task run (the journal's seconds), by run."""
        self._attempts: dict[str, float] = {}
        """Seconds of the last completed attempt at a task, by task."""
        self._work_times: defaultdict[str, _WorkTime] = defaultdict(_WorkTime)
        """Time in which each task was worked on, by task."""

    def take(self, record: LifecycleEvent) -> None:
        super().take(record)
        if record.entity_type in (Kind.TASK, Kind.RUN) and record.outcome in ("born", "transition"):
            is_run = record.entity_type == Kind.RUN
            task_id = record.entity_id.rpartition(":")[0] if is_run else record.entity_id
            self._work_times[task_id].take(record)
        match record.entity_type:
            case Kind.AGENT if record.outcome == "born":
                self._launches[record.entity_id.rpartition(":")[0]] += 1
            case Kind.SESSION if record.outcome == "born":
                self._agents[record.entity_id] = str(record.metadata.get("agent", ""))
            case Kind.TASK if record.event == "claimed" and record.outcome == "transition":
                by = str(record.metadata["by"])
                self._holders[by], self._last_agents[record.entity_id] = record.entity_id, self._agents.get(by, "")
            case Kind.RUN if record.from_status != record.to_status:
                self._take_run(record)

    def _take_run(self, record: LifecycleEvent) -> None:
        """Note the start of an attempt, or what a completed attempt took."""
        if record.to_status == TaskRun.IN_PROGRESS.value:
            self._began_s[record.entity_id] = record.monotonic_s
        elif record.to_status == TaskRun.VALIDATING.value and record.entity_id in self._began_s:
            took_s = record.monotonic_s - self._began_s[record.entity_id]
            self._attempts[record.entity_id.rpartition(":")[0]] = round(took_s, 3)

    def attempt(self, task_id: str) -> tuple[str, float]:
        """Return the agent that has claimed the task last, and the seconds of its last completed attempt; ``""`` and 0
        if there is none."""
        return self._last_agents.get(task_id, ""), self._attempts.get(task_id, 0.0)

    def complete(self, *results: tuple[str, TaskResult]) -> list[TaskResult]:
        """Return *results*, each given with the id of its task, with the launches, the agent, the times of the
        attempt and of all work, and with what the agents of the task have used."""
        sums, launched = self.sums(), Counter[str]()
        for session_id, task_id in self._holders.items():
            launched[task_id] += self._launches[session_id]
        completed = list[TaskResult]()
        for task_id, one in results:
            used, (agent, attempt_s) = sums.get(task_id, NOTHING), self.attempt(task_id)
            cost_usd = round(used.cost_usd, 6)
            with_use = one._replace(launches=launched[task_id], tokens=used.tokens, cost_usd=cost_usd)
            worked_s = round(self._work_times[task_id].spent_s, 6)
            completed.append(with_use._replace(agent=agent, attempt_s=attempt_s, worked_s=worked_s))
        return completed
