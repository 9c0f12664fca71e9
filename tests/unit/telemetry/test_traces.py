"""Tests of the traces: spans of real sessions on both event loops, received by an SDK in memory."""

from __future__ import annotations

import os
import threading
from copy import deepcopy
from pathlib import Path

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from supervisor import AgentConfig, Supervisor
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.telemetry.activities import ActivityKind
from supervisor.telemetry.span_table import COMMON, LINK, NAMES, OPERATION, SCHEMAS, GenAi
from supervisor.telemetry.spans import Spans
from tests.unit.telemetry.telemetry_kit import Exported, observed, strings

pytestmark = pytest.mark.anyio
TRACES_ON = {"traces": True}


async def until_open(sup: Supervisor, call_id: str) -> None:
    """Wait until a tool call is open."""
    while not sup.core.registry.is_open(call_id):
        await anyio.lowlevel.checkpoint()


async def hang_and_abort(sup: Supervisor, target: str, scope: str) -> None:
    """Run a session ``lead`` whose second call hangs, and abort *target*."""
    session = await sup.start_session("lead", agent="helpful")
    async with anyio.create_task_group() as group:
        group.start_soon(session.run, "hang")
        await until_open(sup, "lead:t1:c2")
        await sup.abort(target, scope, reason="too slow")


async def test_the_tree_of_spans_is_the_tree_of_sessions(exported: Exported) -> None:
    """Each session, turn and call has one span; a turn lies in its session, a call in its turn, and a child session
    below its parent."""
    async with observed(telemetry=TRACES_ON) as sup:
        session = await sup.start_session("lead", agent="helpful")
        await session.run("delegate")
        await session.close()
    parents = {one: exported.parent(one) for one in map(entity, exported.all)}
    assert len(parents) == len(exported.all)
    assert parents["lead"] == ""
    assert parents["lead:t1"] == "lead"
    assert parents["lead:t1:c1"] == "lead:t1"
    assert parents["lead/child:t1"] == "lead/child"
    assert parents["lead/child"].partition(":")[0] == "lead"
    assert len({one.context.trace_id for one in exported.all}) == 1
    usage = exported.of("lead:t1").attributes or {}
    assert usage["gen_ai.usage.input_tokens"] == 100


def entity(span: ReadableSpan) -> str:
    return str((span.attributes or {})["supervisor.entity.id"])


@pytest.mark.parametrize("genai", GenAi)
async def test_every_name_stands_in_the_table(exported: Exported, genai: GenAi) -> None:
    """Span names, attributes, scope and schema are those of the table, for both versions of the conventions."""
    async with observed(telemetry={"traces": True, "genai": genai.value}) as sup:
        await hang_and_abort(sup, "lead", "session")
    table = NAMES[genai]
    attributes = {*COMMON, OPERATION, *(name for names in table.values() for name in names.attributes.values())}
    assert len(exported.all) == 5  # the session, its turn, two calls, and the abort
    for span in exported.all:
        assert span.name.partition(" ")[0] in {names.operation for names in table.values()}
        assert set(span.attributes or {}) <= attributes
        assert span.instrumentation_scope is not None
        assert (span.instrumentation_scope.schema_url or None) == SCHEMAS[genai]
    turn = exported.of("lead:t1").attributes or {}
    assert (turn[OPERATION], turn["gen_ai.agent.name"]) == ("invoke_agent", "helpful")
    assert ("gen_ai.agent.id" in turn) == (genai is GenAi.V1_41)


def test_the_versions_differ_where_the_conventions_do() -> None:
    """The name of a workflow is that of an agent in v0.1.0, and has an attribute of its own in v1.41."""
    named = {genai: NAMES[genai][ActivityKind.RUN].attributes["agent"] for genai in GenAi}
    assert named == {GenAi.V0_1_0: "gen_ai.agent.name", GenAi.V1_41: "gen_ai.workflow.name"}


@pytest.mark.parametrize(("target", "scope"), [("lead", "session"), ("lead:t1:c2", "tool")])
async def test_an_abort_is_no_error_and_links_to_what_it_ended(exported: Exported, target: str, scope: str) -> None:
    """The spans that an abort ends have the outcome ``aborted`` and no error, with the same words on asyncio and trio;
    the span of the abort has a link to each of them."""
    async with observed(telemetry=TRACES_ON) as sup:
        await hang_and_abort(sup, target, scope)
    [abort] = [one for one in exported.all if one.name.startswith("abort")]
    ended = exported.of(target)
    assert (ended.attributes or {})["supervisor.outcome"] == "aborted"
    assert ended.context in [one.context for one in abort.links]
    assert {(one.attributes or {})[LINK] for one in abort.links} == {"ends"}
    assert (abort.name, (abort.attributes or {})["supervisor.outcome"]) == (f"abort {scope}", "completed")
    assert (abort.attributes or {})["supervisor.abort.reason"] == "user_interrupt"
    assert {one.status.status_code for one in exported.all} == {StatusCode.UNSET}
    assert not [one for one in strings(exported.all) if "Cancelled" in one or "too slow" in one]


async def test_a_failure_is_an_error_without_its_text(exported: Exported) -> None:
    """The span of a failed turn has the status error and a class of errors, and no text of the exception."""
    async with observed(telemetry=TRACES_ON) as sup:
        await (await sup.start_session("lead", agent="helpful")).run("fail")
    turn = exported.of("lead:t1")
    assert (turn.status.status_code, turn.status.description) == (StatusCode.ERROR, None)
    assert (turn.attributes or {})["error.type"]
    assert not turn.events
    assert not [one for one in strings(exported.all) if "secret words" in one or "telemetry_kit" in one]


async def test_the_next_supervisor_continues_by_a_link(exported: Exported) -> None:
    """A session that outlives its supervisor has a second span, in another trace, with a link to the first; nothing
    that has ended before has another span."""
    store = MemoryStore()
    async with observed(telemetry=TRACES_ON, journal=MemoryJournal(store)) as sup:
        session = await sup.start_session("lead", agent="helpful")
        await session.run("work")
        await sup.core.journal_writer.durable()
        left = deepcopy(store)
        # As in a daemon, which closes its services, and leaves its sessions to the next one.
        await sup.core.services.close()
    first = exported.of("lead")
    assert (first.attributes or {})["supervisor.outcome"] == "left"
    names = sorted(map(entity, exported.all))
    async with observed(telemetry=TRACES_ON, journal=MemoryJournal(left)) as sup:
        await sup.session("lead").run("more")
        await sup.core.journal_writer.durable()
        traced = [one for one in await sup.core.journal.events(entity_id="lead") if one.event == "Traced"]
    later = [one for one in exported.all if one.context.trace_id != first.context.trace_id]
    assert {entity(one) for one in later} == {"lead", "lead:t2", "lead:t2:c1"}
    assert sorted(map(entity, exported.all)) == sorted([*names, "lead", "lead:t2", "lead:t2:c1"])
    [second] = [one for one in later if entity(one) == "lead"]
    [link] = second.links
    assert (link.context.span_id, (link.attributes or {})[LINK]) == (first.context.span_id, "continues")
    assert (second.attributes or {})["supervisor.continued"] is True
    spans = [str(one.metadata["traceparent"]).split("-")[2] for one in traced]
    assert spans == [f"{one.context.span_id:016x}" for one in (first, second)]  # the third would link to the second


async def test_an_agent_gets_the_trace_and_the_collector(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is launched in a turn has the turn as ``TRACEPARENT``, and the variables ``OTEL_*`` of the
    supervisor except for credentials and the name of the service."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME"):
        monkeypatch.setenv(name, f"value of {name}")
    agents = {
        "sh": AgentConfig(adapter="command", command=("sh", "-c", 'env > "$0"', str(tmp_path / "env"), "{prompt}"))
    }
    async with observed(telemetry=TRACES_ON, agents=agents, workdir=tmp_path) as sup:
        session = await sup.start_session("lead", agent="sh")
        await session.run("work")
        await session.close()
    found = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    context = exported.of("lead:t1").context
    assert found["TRACEPARENT"].startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
    assert {one for one in found if one.startswith("OTEL_")} == {"OTEL_EXPORTER_OTLP_ENDPOINT"}
    assert "TRACEPARENT" not in os.environ


async def test_a_collector_that_is_away_does_not_hold_up_the_end() -> None:
    """An export that never ends is left behind after its deadline."""

    class Away(trace.NoOpTracerProvider):
        gate = threading.Event()

        def force_flush(self, timeout_millis: int) -> bool:
            return self.gate.wait()

    away = Away()
    try:
        assert await anyio.to_thread.run_sync(Spans(GenAi.V0_1_0, away).flush, 0.05) is False
    finally:
        away.gate.set()
    assert await anyio.to_thread.run_sync(Spans(GenAi.V0_1_0, away).flush, 60.0) is True
