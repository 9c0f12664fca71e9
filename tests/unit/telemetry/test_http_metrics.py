"""Tests of /metrics, and of the pages and files that name metrics."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import anyio
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_plain

from supervisor.control.http.app import create_app
from supervisor.telemetry import metrics_registry
from supervisor.telemetry.collector import expose
from supervisor.telemetry.metric_table import METRICS
from supervisor.telemetry.reference import page
from tests.unit.control.http.http_kit import client_of, error
from tests.unit.telemetry.telemetry_kit import observed

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "telemetry"


async def test_the_route_serves_both_formats() -> None:
    """GET /metrics serves the format that the client accepts, and each is read by its parser."""
    async with observed(telemetry={"metrics": True}) as sup, client_of(create_app(sup)) as client:
        await (await sup.start_session("lead", agent="helpful")).run("work")
        plain = await client.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain")
        assert "supervisor_sessions" in {one.name for one in read_plain(plain.text)}
        accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
        rich = await client.get("/metrics", headers=accept)
        assert rich.headers["content-type"].startswith("application/openmetrics-text")
        assert "supervisor_sessions" in {one.name for one in read_openmetrics(rich.text)}


async def test_the_route_names_the_setting_that_is_off() -> None:
    """Without the setting GET /metrics answers 404 and names the setting."""
    async with observed(telemetry={}) as sup, client_of(create_app(sup)) as client:
        found = error(await client.get("/metrics"), 404, "unknown")
    assert found["field"] == "telemetry.metrics"
    assert "set it to true" in found["message"]


def test_the_page_of_names_is_fresh() -> None:
    """The page of the names is what ``make telemetry`` writes."""
    assert (ROOT / "docs/reference/telemetry-names.md").read_text(encoding="utf-8") == page()


def exposed() -> set[str]:
    """Return every name that a scrape may have."""
    parts = ("", "_bucket", "_count", "_sum")
    return {f"{one.name}{part}" for one in METRICS.values() for part in (parts if one.buckets else ("",))}


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yaml"])
def test_dashboard_and_alerts_use_names_of_the_table(file: str) -> None:
    """Each metric that the dashboard and the alert rules name is in the table."""
    text = (EXAMPLES / file).read_text(encoding="utf-8")
    named = set(re.findall(r"\bsupervisor_[a-z_]+", text))
    assert len(named) > 5
    assert named <= exposed()


def test_every_panel_and_rule_has_an_expression() -> None:
    """Each panel of the dashboard has a query and a title, and ids are unique; each rule has a summary for people."""
    panels = json.loads((EXAMPLES / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    assert len({one["id"] for one in panels}) == len(panels) > 8
    assert all(one["title"] and all(target["expr"] for target in one["targets"]) for one in panels)
    rules = [
        rule
        for group in yaml.safe_load((EXAMPLES / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    assert len({one["alert"] for one in rules}) == len(rules) > 4
    assert all(one["expr"] and one["annotations"]["summary"] for one in rules)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
async def test_promtool_accepts_the_rules_and_a_scrape() -> None:
    """``promtool check`` accepts the alert rules, and the page of a scrape."""
    async with observed(telemetry={"metrics": True}) as sup:
        await (await sup.start_session("lead", agent="helpful")).run("work")
        text, _ = expose(metrics_registry(sup), "text/plain")
    await anyio.run_process(["promtool", "check", "rules", str(EXAMPLES / "alerts.yaml")])
    await anyio.run_process(["promtool", "check", "metrics"], input=text)
