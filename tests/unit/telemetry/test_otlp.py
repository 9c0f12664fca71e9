"""Test of an export by OTLP: the spans of a program, as a collector receives them over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from supervisor.telemetry.span_table import LINK, SCHEMAS, SCOPE, GenAi
from tests.support import DEADLINE_S

ROOT = Path(__file__).parents[3]
PROGRAM = """
import anyio
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from tests.unit.telemetry.telemetry_kit import helpful, observed

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)

async def main():
    async with observed(telemetry={"traces": True}) as sup:
        lead = await sup.start_session("lead", agent="helpful")
        await lead.run("delegate")
        async with anyio.create_task_group() as group:
            group.start_soon(lead.run, "hang")
            while not sup.core.registry.is_open("lead:t2:c2"):
                await anyio.lowlevel.checkpoint()
            await sup.abort("lead", "session")

anyio.run(main)
provider.shutdown()
"""


class Collector:
    """Collector that keeps the spans it receives, by the ids of their entities."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []

    def spans(self) -> dict[str, Span]:
        found = [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return {attribute(one, "supervisor.entity.id"): one for one in found}


def attribute(span: Span | Span.Link, name: str) -> str:
    return next((one.value.string_value for one in span.attributes if one.key == name), "")


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """Run a collector in a thread; yield it and its address."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.paths.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_collector_receives_the_tree_of_sessions() -> None:
    """A collector receives each span once, in one trace, below the spans of the session tree; the span of the abort
    has links to the spans that it has ended, none of which is an error."""
    with collecting() as (collector, url):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, check=True, timeout=DEADLINE_S)
    assert set(collector.paths) == {"/v1/traces"}
    spans = collector.spans()
    assert len(spans) == sum(
        len(scope.spans) for one in collector.requests for found in one.resource_spans for scope in found.scope_spans
    )
    names = {one.span_id: entity for entity, one in spans.items()}
    parents = {entity: names.get(one.parent_span_id, "") for entity, one in spans.items()}
    [abort] = [entity for entity, one in spans.items() if one.name == "abort session"]
    delegating = next(entity for entity in spans if entity.startswith("lead:t1:c") and parents["lead/child"] == entity)
    assert {entity: above for entity, above in parents.items() if entity != abort} == {
        "lead": "",
        "lead:t1": "lead",
        "lead:t1:c1": "lead:t1",
        delegating: "lead:t1",
        "lead/child": delegating,
        "lead/child:t1": "lead/child",
        "lead/child:t1:c1": "lead/child:t1",
        "lead:t2": "lead",
        "lead:t2:c1": "lead:t2",
        "lead:t2:c2": "lead:t2",
    }
    assert len({one.trace_id for one in spans.values()}) == 1
    assert {names[one.span_id] for one in spans[abort].links} == {"lead", "lead:t2", "lead:t2:c2"}
    assert {attribute(one, LINK) for one in spans[abort].links} == {"ends"}
    assert {one.status.code for one in spans.values()} == {Status.STATUS_CODE_UNSET}
    scopes = {
        (scope.scope.name, scope.schema_url)
        for one in collector.requests
        for found in one.resource_spans
        for scope in found.scope_spans
    }
    assert scopes == {(SCOPE, SCHEMAS[GenAi.V0_1_0] or "")}
