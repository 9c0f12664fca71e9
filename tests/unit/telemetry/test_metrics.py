"""Tests of the metrics: what a scrape shows of real sessions, the formats, and the rules of the table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import anyio
import anyio.to_thread
import pytest
from prometheus_client import start_http_server
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_plain

from supervisor.ports.process import UnidentifiedProcess
from supervisor.processes.containment import Containment
from supervisor.processes.descent import identity
from supervisor.processes.losses import Losses
from supervisor.telemetry import TelemetryOff, metrics_registry
from supervisor.telemetry.collector import expose
from supervisor.telemetry.figures import EXEMPLAR_MAX, Figures, Histogram
from supervisor.telemetry.metric_table import LABEL_VALUES_MAX, METRICS, OTHER
from tests.support import DEADLINE_S
from tests.unit.telemetry.telemetry_kit import Exported, observed, value

pytestmark = pytest.mark.anyio
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
METRICS_ON = {"metrics": True}


async def test_a_scrape_shows_what_sessions_have_done() -> None:
    """A scrape has the states, durations, outcomes, tokens and cost of the sessions of a supervisor."""
    async with observed(telemetry=METRICS_ON) as sup:
        session = await sup.start_session("lead", agent="helpful")
        await session.run("work")
        await (await sup.start_session("other", agent="helpful")).run("fail")
        assert value(sup, "supervisor_sessions") == 1  # the other one has given up
        assert value(sup, "supervisor_sessions_ended_total", agent="helpful", outcome="failed") == 1
        assert value(sup, "supervisor_agent_restarts_total", agent="helpful") >= 1
        turns = "supervisor_turn_duration_seconds_count"
        assert value(sup, turns, agent="helpful", outcome="completed") == 1
        assert value(sup, turns, agent="helpful", outcome="failed") >= 1
        assert value(sup, "supervisor_tool_call_duration_seconds_count", outcome="completed") >= 2
        assert value(sup, "supervisor_tokens_total", agent="helpful", plan="", type="input") >= 200
        assert value(sup, "supervisor_cost_usd_total", agent="helpful") >= 1.0
        assert value(sup, "supervisor_agent_launches_total", agent="helpful") >= 1
        assert value(sup, "supervisor_journal_writable") == 1
        assert value(sup, "supervisor_journal_commit_duration_seconds_count") > 0
        assert value(sup, "supervisor_transitions_total", kind="turn", to_state="REAPED") >= 2
        await session.close()
        assert value(sup, "supervisor_sessions") == 0
        assert value(sup, "supervisor_sessions_ended_total", agent="helpful", outcome="completed") == 1


async def test_an_abort_is_measured_by_scope_and_stage() -> None:
    """The time of an abort is observed once, with its scope and the stage that was needed."""
    async with observed(telemetry=METRICS_ON) as sup:
        session = await sup.start_session("lead", agent="helpful")
        async with anyio.create_task_group() as group:
            group.start_soon(session.run, "hang")
            await _until_open(sup, "lead:t1:c2")
            await sup.abort("lead", "session")
        name = "supervisor_abort_duration_seconds_count"
        assert value(sup, name, scope="session") == 1
        assert value(sup, name, scope="session", stage="none") == 0
        assert value(sup, "supervisor_aborts_total", scope="session", reason="user_interrupt") == 1
        assert value(sup, "supervisor_turn_duration_seconds_count", outcome="aborted") == 1
        assert value(sup, "supervisor_turn_duration_seconds_count", outcome="failed") == 0


async def _until_open(sup: object, call_id: str) -> None:
    while not sup.core.registry.is_open(call_id):  # type: ignore[attr-defined]
        await anyio.lowlevel.checkpoint()


async def test_both_formats_are_read_by_their_parsers(exported: Exported) -> None:
    """The parsers of Prometheus read the plain page and the OpenMetrics page; only the latter has exemplars, with the
    id of the trace."""
    async with observed(telemetry={"metrics": True, "traces": True}) as sup:
        await (await sup.start_session("lead", agent="helpful")).run("work")
        registry = metrics_registry(sup)
        page, kind = expose(registry, "text/plain")
        assert kind.startswith("text/plain")
        plain = {one.name for one in read_plain(page.decode())}
        page, kind = expose(registry, OPENMETRICS)
        assert kind.startswith("application/openmetrics-text")
        families = list(read_openmetrics(page.decode()))
    assert {one.removesuffix("_total") for one in METRICS} == {one.name for one in families}
    assert {one.removesuffix("_total") for one in METRICS} >= plain
    exemplars = [one.exemplar for family in families for one in family.samples if one.exemplar is not None]
    traces = {f"{one.context.trace_id:032x}" for one in exported.all}
    assert exemplars
    assert {one.labels["trace_id"] for one in exemplars} <= traces


def test_an_exemplar_that_is_too_long_is_left_out() -> None:
    """A value whose exemplar is too long for OpenMetrics is counted once, without the exemplar."""
    histogram = Histogram((1.0,))
    histogram.observe(0.5, {"trace_id": "f" * (EXEMPLAR_MAX - 7)}, 1.0)
    assert (histogram.counts, histogram.sum, histogram.exemplars) == ([1, 0], 0.5, {})
    histogram.observe(0.5, {"trace_id": "f" * (EXEMPLAR_MAX - 8)}, 1.0)
    assert (histogram.counts, len(histogram.exemplars)) == ([2, 0], 1)


def test_values_of_users_are_bounded() -> None:
    """Of a label whose values users choose, values that are too many count as ``other``."""
    figures = Figures()
    for number in range(LABEL_VALUES_MAX + 5):
        figures.count("supervisor_dead_letters_total", f"plan-{number}")
    counted = figures.counters["supervisor_dead_letters_total"]
    assert len(counted) == LABEL_VALUES_MAX + 1
    assert counted[(OTHER,)] == 5


@pytest.mark.parametrize("name", METRICS)
def test_names_keep_the_rules(name: str) -> None:
    """A name has underscores only, begins with ``supervisor_``, and ends with ``_total`` exactly if it is a counter; a
    histogram has seconds and buckets; no label is an id."""
    metric = METRICS[name]
    assert re.fullmatch(r"supervisor(_[a-z]+)+", name)
    assert name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram") == name.endswith("_duration_seconds")
    assert not {"id", "session", "turn", "task", "run", "trace_id"}.intersection(metric.labels)
    assert metric.help.endswith(".")


async def test_a_scrape_may_come_from_another_thread() -> None:
    """Scrapes of a server in another thread succeed while sessions begin and end."""
    async with observed(telemetry=METRICS_ON) as sup:
        server, thread = start_http_server(0, addr="127.0.0.1", registry=metrics_registry(sup))
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        over = anyio.Event()
        pages: list[str] = []

        def ask() -> str:
            with urlopen(Request(url, headers={"Accept": OPENMETRICS}), timeout=DEADLINE_S) as reply:
                return str(reply.read().decode())

        async def scrape() -> None:
            while not over.is_set():
                pages.append(await anyio.to_thread.run_sync(ask))

        async with anyio.create_task_group() as group:
            group.start_soon(scrape)
            for number in range(20):
                session = await sup.start_session(f"s{number}", agent="helpful")
                await session.run("work")
                await session.close()
            over.set()
        pages.append(await anyio.to_thread.run_sync(ask))
        await anyio.to_thread.run_sync(server.shutdown)
        server.server_close()
        thread.join()
    assert len(pages) > 1
    ended = [family for family in read_openmetrics(pages[-1]) if family.name == "supervisor_sessions_ended"]
    assert sum(sample.value for one in ended for sample in one.samples if sample.name.endswith("_total")) == 20


async def test_a_scrape_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape, which may come from another thread, only looks at what is known of processes that may have escaped:
    their list is changed by the supervisor's own watch."""
    losses = Losses(Containment())
    own, gone = identity(os.getpid()), (os.getpid(), 1)
    known = {one: UnidentifiedProcess(pid=one[0], name="", since=0.0, sessions=()) for one in (own, gone)}
    monkeypatch.setattr(losses, "_unidentified", dict(known))
    async with observed(telemetry=METRICS_ON) as sup:
        sup.core.unidentified = losses.unidentified
        assert value(sup, "supervisor_unidentified_processes") == 1
        assert losses._unidentified == known
        losses.follow()
        assert losses._unidentified.keys() == {own}


async def test_without_the_setting_there_is_no_registry() -> None:
    """A supervisor whose settings do not ask for metrics has no registry; the error names the setting."""
    async with observed(telemetry={}) as sup:
        assert sup.core.listeners == []
        with pytest.raises(TelemetryOff, match=r"^telemetry\.metrics: .* set it to true"):
            metrics_registry(sup)


async def test_telemetry_that_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting whose library is not installed, or whose files have no place, is refused before anything begins; the
    error names the setting and the fix."""
    with pytest.raises(ValueError, match=r"^settings\.telemetry\.files: .*; give state_dir"):
        async with observed(telemetry={"files": True}):
            pass
    monkeypatch.setattr("supervisor.embedding.runtime.find_spec", lambda package: None)
    for setting, library in (("metrics", "prometheus_client"), ("traces", "opentelemetry")):
        with pytest.raises(ValueError, match=rf"^settings\.telemetry: {library} is not installed; `pip install"):
            async with observed(telemetry={setting: True}):
                pass


def test_nothing_is_imported_without_the_setting(tmp_path: Path) -> None:
    """A program that imports the package and runs a supervisor without telemetry loads no library of telemetry."""
    code = (
        "import sys, anyio, supervisor\n"
        "async def main():\n"
        "    async with supervisor.open_supervisor('sd'): pass\n"
        "anyio.run(main)\n"
        "print({'prometheus_client', 'opentelemetry', 'supervisor.telemetry'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "set()\n"


async def test_a_failure_of_telemetry_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An error in the counting is logged once, and ends telemetry, not the session."""
    async with observed(telemetry=METRICS_ON) as sup:

        def fail(record: object) -> None:
            raise ZeroDivisionError

        from supervisor.telemetry.service import TelemetrySlot

        telemetry = sup.core.part(TelemetrySlot).telemetry
        assert telemetry is not None
        assert telemetry.figures is not None
        telemetry.figures.take = fail  # type: ignore[method-assign]
        result = await (await sup.start_session("lead", agent="helpful")).run("work")
        assert result.outcome == "completed"
        assert sup.core.listeners == []
    assert caplog.text.count("telemetry has failed") == 1
