"""Usage of the tasks of a run, and the launches of their agents, from the journal's records. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.policies.budgets import Amounts
from supervisor.policies.usage import NOTHING, UsageTotals
from supervisor.work.results import TaskResult


class TaskUsage(UsageTotals):
    """Usage totals, and the number of launches of agents for each task. Records must be added in their order."""

    def __init__(self) -> None:
        super().__init__()
        self._launches = Counter[str]()
        self._holders: dict[str, str] = {}

    def take(self, record: LifecycleEvent) -> None:
        super().take(record)
        if record.entity_type == Kind.AGENT and record.outcome == "born":
            self._launches[record.entity_id.rpartition(":")[0]] += 1
        elif record.entity_type == Kind.TASK and record.event == "claimed":
            self._holders[str(record.metadata["by"])] = record.entity_id

    def launches(self) -> Mapping[str, int]:
        """Return the number of launches for each task that was claimed, by its entity id."""
        launched = Counter[str]()
        for session_id, task_id in self._holders.items():
            launched[task_id] += self._launches[session_id]
        return launched


def with_usage(
    result: TaskResult, task_id: str, sums: Mapping[str, Amounts], launches: Mapping[str, int]
) -> TaskResult:
    """Return *result* with the launches of the task, and with what its agents have used."""
    used = sums.get(task_id, NOTHING)
    return result._replace(launches=launches.get(task_id, 0), tokens=used.tokens, cost_usd=round(used.cost_usd, 6))
