"""Collector of Prometheus: the figures that were counted, and gauges that are asked for at each scrape.

This module needs the extra ``telemetry``. A scrape may come from another thread than the supervisor's
(``prometheus_client.start_http_server``): everything that changes meanwhile is copied first, and nothing is changed.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import exposition as plain
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from actors.breaker import Circuit
from supervisor.host.supervision import SupervisorCore
from supervisor.journal.engine import sqlite_version
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import Kind
from supervisor.ports.version import installed_version
from supervisor.telemetry.figures import Figures, Histogram
from supervisor.telemetry.metric_table import METRICS

_STATES: Final = {Kind.SESSION: "supervisor_sessions", Kind.TURN: "supervisor_turns", Kind.TASK: "supervisor_tasks"}
_WAITING: Final = {Task.PLANNED.value, Task.PENDING_APPROVAL.value}
"""States of tasks that wait for a person."""

Samples = Mapping[tuple[str, ...], float]


def make_registry(core: SupervisorCore, figures: Figures) -> CollectorRegistry:
    """Return a registry with the metrics of one supervisor."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SupervisorCollector(core, figures))
    return registry


def expose(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the page of a scrape and its media type: OpenMetrics, with exemplars, for a client that accepts it."""
    if "application/openmetrics-text" in accept:
        return openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
    return generate_latest(registry), plain.CONTENT_TYPE_LATEST


class SupervisorCollector(Collector):
    """Collector of the metrics of one supervisor."""

    def __init__(self, core: SupervisorCore, figures: Figures) -> None:
        self._core, self._figures = core, figures

    def describe(self) -> Iterable[Metric]:
        return [_family(name) for name in METRICS]

    def collect(self) -> Iterator[Metric]:
        for name, counted in self._figures.counters.items():
            yield _filled(name, dict(counted))
        for name, histograms in self._figures.histograms.items():
            family = HistogramMetricFamily(name, METRICS[name].help, labels=METRICS[name].labels)
            for labels, histogram in list(histograms.items()):
                _add(family, labels, histogram)
            yield family
        for name, samples in self._gauges().items():
            yield _filled(name, samples)

    def _gauges(self) -> dict[str, Samples]:
        core, outage = self._core, self._core.journal_writer.disk.outage
        shortage = core.processes.shortage
        versions = (installed_version(), sqlite_version(), platform.python_version())
        found: dict[str, Samples] = {
            "supervisor_pending_requests": {(): len(core.requests.waiting)},
            "supervisor_stalled_agents": {(): len(core.monitors.silences())},
            "supervisor_journal_backlog_records": {(): core.journal_writer.waiting},
            "supervisor_journal_writable": {(): float(outage is None)},
            "supervisor_waiting_launches": {} if shortage is None else {(shortage.lacks,): shortage.waiting},
            "supervisor_unidentified_processes": {(): len(core.unidentified())},
            "supervisor_subscribers": {(): len(core.subscriptions)},
            "supervisor_build_info": {versions: 1},
            "supervisor_breaker_open": {
                (provider,): float(state != Circuit.CLOSED.value)
                for provider, state in dict(self._figures.breakers).items()
            },
        }
        return found | self._of_entities()

    def _of_entities(self) -> dict[str, Samples]:
        """Return the gauges about the living entities. One pass over them: there may be ten thousand."""
        # The wall clock: the journal's clock begins at Unix time too, but trio lets no other thread read it.
        core, now_s = self._core, self._core.journal_writer.clock.wall.time()
        states: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in _STATES.values()}
        queued: list[float] = []
        approvals = [now_s - at for at in list(self._figures.asked.values())]
        tasks: list[float] = []
        held = waiting = fullest = 0
        for entity in list(core.registry.entities.values()):
            if (name := _STATES.get(entity.kind)) is not None:
                states[name][(entity.state_name,)] += 1
            if entity.kind is Kind.TASK:
                held += entity.data.held_by is not None
                if entity.state_name in _WAITING:
                    tasks.append(now_s - entity.since_s)
            elif entity.kind is Kind.JOB and entity.state_name == Job.QUEUED.value:
                queued.append(now_s - entity.since_s)
            if entity.lifecycle.has_actor:
                cell = core.registry.system.cell(entity.id)
                size = len(cell.box) if cell is not None and cell.box is not None else 0
                waiting, fullest = waiting + size, max(fullest, size)
        waits = {"permission": approvals, "task": tasks}
        return {
            **states,
            "supervisor_queued_tasks": {(): len(queued)},
            "supervisor_queued_tasks_oldest_seconds": {(): max([0.0, *queued])},
            "supervisor_held_tasks": {(): held},
            "supervisor_mailbox_messages": {(): waiting},
            "supervisor_mailbox_messages_max": {(): fullest},
            "supervisor_open_approvals": {(kind,): len(ages) for kind, ages in waits.items()},
            "supervisor_open_approvals_oldest_seconds": {(kind,): max([0.0, *ages]) for kind, ages in waits.items()},
        }


def _family(name: str) -> Any:
    metric = METRICS[name]
    if metric.kind == "histogram":
        return HistogramMetricFamily(name, metric.help, labels=metric.labels)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(name, metric.help, labels=metric.labels)


def _filled(name: str, samples: Samples) -> Metric:
    family = _family(name)
    for labels, value in samples.items():
        family.add_metric(labels, value)
    found: Metric = family
    return found


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    """Add a histogram, whose buckets Prometheus counts cumulatively."""
    buckets: list[Any] = []
    total = 0
    bounds = [*map(str, histogram.bounds), "+Inf"]
    for number, (bound, count) in enumerate(zip(bounds, list(histogram.counts), strict=True)):
        total += count
        exemplar = histogram.exemplars.get(number)
        shown = None if exemplar is None else Exemplar(dict(exemplar.labels), exemplar.value, exemplar.at)
        buckets.append((bound, total, shown))
    family.add_metric(labels, buckets, sum_value=histogram.sum)
