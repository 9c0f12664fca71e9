"""Test of the end of a program whose collector is away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

AWAY = """
import atexit, sys, threading
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

class Away(SpanExporter):
    def export(self, spans):
        threading.Event().wait()

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Away()))
trace.set_tracer_provider(provider)
atexit.register(lambda: print("functions for the exit were called", file=sys.stderr))
"""
"""Configuration of an SDK whose exporter never returns, as with a collector that accepts and stays silent."""
PLAN = """
telemetry: {traces: true}
agents: {sh: {adapter: command, command: [sh, -c, "{prompt}"]}}
tasks: [{id: a, agent: sh, prompt: "true"}]
"""


def test_a_run_ends_while_its_collector_is_away(tmp_path: Path) -> None:
    """`supervisor run` prints its result, says that spans were not exported, and ends with the status of the plan,
    although the exporter of its SDK never returns: what the SDK has registered for the exit, which would wait for half
    a minute, is not called."""
    (tmp_path / "sitecustomize.py").write_text(AWAY)
    (tmp_path / "plan.yaml").write_text(PLAN)
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "run", "plan.yaml", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the last spans were not exported in time" in done.stderr
    assert "functions for the exit" not in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["ok"] is True
