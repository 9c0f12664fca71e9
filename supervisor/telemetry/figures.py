"""Figures: counters and histograms, counted from the records. Pure, and without the library of Prometheus.

A record costs a few additions to dictionaries; everything else is done at a scrape. A value is counted exactly once,
whatever becomes of its exemplar: an exemplar that is too long is left out before anything is counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

from supervisor.diagnostics.state_times import PROVIDER_BREAKER
from supervisor.lifecycles.agent import Agent
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.telemetry.activities import Activity, ActivityKind, Began, Change, Ended, Launched, Used
from supervisor.telemetry.metric_table import LABEL_VALUES_MAX, METRICS, OTHER, USER_LABELS

EXEMPLAR_MAX: Final = 128
"""Largest number of characters of the labels of an exemplar, names and values together (OpenMetrics)."""

Labels = tuple[str, ...]


class Exemplar(NamedTuple):
    """An observed value, when it was observed (Unix time), and labels that lead to its trace."""

    labels: Mapping[str, str]
    value: float
    at: float


class Histogram:
    """Observed values, counted in buckets; the last bucket has no bound."""

    __slots__ = ("bounds", "counts", "exemplars", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.exemplars: dict[int, Exemplar] = {}
        self.sum = 0.0

    def observe(self, value: float, labels: Mapping[str, str], at: float) -> None:
        number = bisect_left(self.bounds, value)
        self.counts[number] += 1
        self.sum += value
        if labels and sum(map(len, labels)) + sum(map(len, labels.values())) <= EXEMPLAR_MAX:
            self.exemplars[number] = Exemplar(labels, value, at)


class Figures:
    """Counters and histograms of one supervisor. A reader in another thread takes copies of the dictionaries."""

    def __init__(self) -> None:
        self.counters: dict[str, dict[Labels, float]] = {
            name: {} for name, one in METRICS.items() if one.kind == "counter"
        }
        self.histograms: dict[str, dict[Labels, Histogram]] = {
            name: {} for name, one in METRICS.items() if one.kind == "histogram"
        }
        self.breakers: dict[str, str] = {}
        """State of the breaker of each provider."""
        self.asked: dict[tuple[str, int], float] = {}
        """Unix time of each permission request that waits for a person, by turn and number."""
        self._records = self.counters["supervisor_records_total"]
        self._transitions = self.counters["supervisor_transitions_total"]
        self._values: dict[str, set[str]] = {name: set() for name in USER_LABELS}
        self._failures: dict[str, str] = {}
        """Kind of the last failure of each task run, until the decision about another attempt."""

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        counted = self.counters[name]
        key = self._bounded(METRICS[name].labels, labels)
        counted[key] = counted.get(key, 0) + by

    def observe(self, name: str, value: float, *labels: str, at: float = 0.0, trace_id: str = "") -> None:
        metric, histograms = METRICS[name], self.histograms[name]
        key = self._bounded(metric.labels, labels)
        found = histograms.get(key)
        if found is None:
            found = histograms[key] = Histogram(metric.buckets)
        found.observe(value, {"trace_id": trace_id} if trace_id else {}, at)

    def _bounded(self, names: Labels, values: Labels) -> Labels:
        """Return the values of labels, without those of users that are too many."""
        return tuple(
            self._known(name, value) if name in USER_LABELS else value
            for name, value in zip(names, values, strict=True)
        )

    def _known(self, name: str, value: str) -> str:
        known = self._values[name]
        if value in known:
            return value
        if len(known) >= LABEL_VALUES_MAX:
            return OTHER
        known.add(value)
        return value

    # ------------------------------------------------------------------ records
    def take(self, record: LifecycleEvent) -> None:
        """Count the next record."""
        key = (record.entity_type, record.outcome)
        self._records[key] = self._records.get(key, 0) + 1
        if record.outcome == "transition" and record.from_status != record.to_status:
            move = (record.entity_type, record.from_status, record.to_status)
            self._transitions[move] = self._transitions.get(move, 0) + 1
        match record.entity_type:
            case Kind.AGENT.value:
                self._take_agent(record)
            case Kind.RUN.value | Kind.TASK.value:
                self._take_work(record)
            case Kind.TURN.value if record.event.startswith("Permission"):
                self._take_permission(record)
        if record.event == PROVIDER_BREAKER and record.outcome == "fact":
            provider, state = str(record.metadata.get("provider")), str(record.metadata.get("circuit"))
            self.count("supervisor_breaker_transitions_total", provider, state)
            self.breakers[self._known("provider", provider)] = state

    def _take_agent(self, record: LifecycleEvent) -> None:
        if record.event == "agent_exited" and record.to_status == Agent.DEAD.value:
            killed = record.metadata.get("killed")
            if isinstance(killed, int) and killed:
                self.count("supervisor_processes_killed_total", by=killed)

    def _take_work(self, record: LifecycleEvent) -> None:
        fact = record.metadata
        if record.outcome != "transition":
            return
        match record.event:
            case "execution_failed":
                kind = "provider" if fact.get("provider") else str(fact.get("category", "unknown"))
                self._failures[record.entity_id] = kind
            case "execution_timed_out":
                self._failures[record.entity_id] = "timeout"
            case "tests_failed":
                self._failures[record.entity_id] = "tests"
            case "retry_decided":
                reason = self._failures.pop(record.entity_id, "unknown")
                if record.to_status == TaskRun.RETRYING.value:
                    self.count("supervisor_retries_total", reason)
            case "retried" | "reopened":
                self.count("supervisor_retries_total", "claim")

    def _take_permission(self, record: LifecycleEvent) -> None:
        key = (record.entity_id, int(record.metadata.get("number", 0)))
        if record.outcome != "transition":
            return
        if record.event == "PermissionRequested" and record.metadata.get("asked"):
            self.asked[key] = record.timestamp
        elif record.event == "PermissionAnswered":
            self.asked.pop(key, None)
            self.count("supervisor_permissions_total", str(record.metadata.get("decision")))

    # ------------------------------------------------------------------ activities
    def apply(self, change: Change, trace_id: str) -> None:
        """Count what has begun or ended; *trace_id* is that of the activity, ``""`` if it has none."""
        match change:
            case Ended(activity):
                self._ended(activity, trace_id)
            case Used(session, more):
                labels = (session.agent, session.plan)
                for kind, tokens in (
                    ("input", more.input_tokens),
                    ("output", more.output_tokens),
                    ("cached", more.cached_tokens),
                ):
                    if tokens:
                        self.count("supervisor_tokens_total", *labels, kind, by=tokens)
                if more.cost_usd:
                    self.count("supervisor_cost_usd_total", *labels, by=more.cost_usd)
            case Launched(session, again):
                self.count("supervisor_agent_launches_total", session.agent)
                if again:
                    self.count("supervisor_agent_restarts_total", session.agent)
            case Began(Activity(kind=ActivityKind.ABORT) as abort):
                self.count("supervisor_aborts_total", abort.name, abort.error)

    def _ended(self, activity: Activity, trace_id: str) -> None:
        at = activity.ended_at or 0.0
        match activity.kind:
            case ActivityKind.TURN:
                for key in [one for one in self.asked if one[0] == activity.id]:  # a lost turn is told no answer
                    del self.asked[key]
                name = "supervisor_turn_duration_seconds"
                self.observe(name, activity.took_s, activity.agent, activity.outcome, at=at, trace_id=trace_id)
            case ActivityKind.CALL:
                name = "supervisor_tool_call_duration_seconds"
                self.observe(
                    name, activity.took_s, activity.agent, activity.name, activity.outcome, at=at, trace_id=trace_id
                )
            case ActivityKind.SESSION:
                self.count("supervisor_sessions_ended_total", activity.agent, activity.outcome)
                if activity.survivors:
                    known = isinstance(activity.survivors, int)
                    by = activity.survivors if isinstance(activity.survivors, int) else 1
                    self.count("supervisor_survivors_total", "known" if known else "unknown", by=by)
            case ActivityKind.RUN:
                self.count("supervisor_runs_ended_total", activity.plan, activity.outcome)
            case ActivityKind.TASK:
                self.count("supervisor_tasks_ended_total", activity.plan, activity.outcome)
                if activity.outcome == "failed":
                    self.count("supervisor_dead_letters_total", activity.plan)
            case ActivityKind.ABORT:
                name = "supervisor_abort_duration_seconds"
                self.observe(name, activity.took_s, activity.name, activity.stage or "none", at=at, trace_id=trace_id)
