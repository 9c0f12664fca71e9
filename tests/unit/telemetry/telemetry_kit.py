"""Helpers for tests of telemetry: supervisors with function agents, and the spans that an SDK in memory receives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from supervisor import AgentTurn, Supervisor, ToolAborted, open_supervisor
from supervisor.plans.monitoring import TelemetryConfig
from supervisor.telemetry import metrics_registry
from tests.support import DEADLINE_S, quick_settings


async def helpful(turn: AgentTurn) -> str:
    """Agent that makes one call; for ``hang`` one that hangs, for ``fail`` one that fails, for ``delegate`` a child
    session."""
    await turn.call("make test", anyio.lowlevel.checkpoint)
    turn.used(input_tokens=100, output_tokens=20, cost_usd=0.5)
    if "hang" in turn.prompt:
        with suppress(ToolAborted):
            await turn.call("a test that hangs", anyio.sleep_forever)
    if "fail" in turn.prompt:
        raise ValueError("secret words of an exception")
    if "delegate" in turn.prompt:
        await turn.delegate("child", "work")
    return "done"


class Exported:
    """Spans that were exported since the beginning of a test."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def of(self, entity_id: str) -> ReadableSpan:
        """Return the one span of an entity."""
        [found] = [one for one in self.all if one.attributes and one.attributes["supervisor.entity.id"] == entity_id]
        return found

    def parent(self, entity_id: str) -> str:
        """Return the id of the entity whose span is the parent of that of *entity_id*; ``""`` for a root span."""
        above = self.of(entity_id).parent
        names = {one.context.span_id: str(one.attributes["supervisor.entity.id"]) for one in self.all if one.attributes}
        return "" if above is None else names[above.span_id]


_exporter = InMemorySpanExporter()


def use_sdk_in_memory() -> Exported:
    """Have this process use an SDK whose spans stay in memory; a process can choose its SDK only once."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(_exporter))
        trace.set_tracer_provider(provider)
    _exporter.clear()
    return Exported(_exporter)


@asynccontextmanager
async def observed(
    state_dir: Path | None = None, *, telemetry: Mapping[str, Any], **given: Any
) -> AsyncIterator[Supervisor]:
    """Run a supervisor with the agent ``helpful`` and that telemetry; end it at once when the block is left."""
    settings = quick_settings().model_copy(update={"telemetry": TelemetryConfig(**telemetry)})
    agents = given.pop("agents", {"helpful": helpful})
    with anyio.fail_after(DEADLINE_S):
        async with open_supervisor(state_dir, agents=agents, settings=settings, control=False, **given) as sup:
            try:
                yield sup
            finally:
                await sup.stop(now=True)


def scraped(sup: Supervisor) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples of a scrape, as the parser of Prometheus reads them, by name and labels."""
    page = generate_latest(metrics_registry(sup)).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(sup: Supervisor, name: str, **labels: str) -> float:
    """Return the sum of the samples of a scrape that have these labels."""
    wanted = frozenset(labels.items())
    return sum(one for (found, given), one in scraped(sup).items() if found == name and wanted <= given)


def strings(spans: list[ReadableSpan]) -> Iterator[str]:
    """Yield every text of the spans."""
    for span in spans:
        yield span.name
        yield str(span.status.description)
        for holder in (span, *span.events, *span.links):
            yield from (str(one) for one in (holder.attributes or {}).values())
