"""Spans of runs, sessions, turns, tool calls and aborts, by the API of OpenTelemetry. The SDK, and with it the
collector, is that of the program or of the user; without an SDK nothing happens here.

Theory of operation
-------------------
A span is begun and ended by the supervisor that has seen its activity begin, so nothing is told twice: neither what a
recovery repeats nor what a replay reads again is a new record. A long activity may outlive its supervisor. Its span
ends then, with the outcome ``left``, or is lost with a process that is killed; the next supervisor begins another span
for the rest, in a new trace, with a link to the one before. The journal has what the link needs: the fact ``Traced``
of the session or run.

    supervisor 1   session lead ---------------- (left)
                     turn lead:t1 ---
    supervisor 2                                    session lead (link) -----------
                                                      turn lead:t2 ---

Parents are given explicitly, and no span is ever "current": the records of a hundred sessions come from one task.

An abort is a span with a link to each span that it ends. An abort is no error; the status of a span is an error only
for a failure, and has no description: texts of exceptions hold paths, addresses and secrets.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from supervisor.ports.version import installed_version
from supervisor.telemetry.activities import Activity, ActivityKind, Began, Caught, Change, Ended
from supervisor.telemetry.span_table import (
    CONTINUED,
    ENTITY,
    ERROR_TYPE,
    LINK,
    NAMES,
    OPERATION,
    OUTCOME,
    PLAN,
    SCHEMAS,
    SCOPE,
    GenAi,
)

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Spans:
    """Spans of one supervisor.

    Args:
        genai: version of the GenAI conventions.
        provider: provider of the tracer; by default that of the process.
    """

    def __init__(self, genai: GenAi, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._names = NAMES[genai]
        self._tracer = trace.get_tracer(SCOPE, installed_version(), provider, SCHEMAS[genai])
        self._spans: dict[str, Span] = {}

    def apply(self, change: Change) -> None:
        """Begin or end a span, as *change* says."""
        match change:
            case Began(activity):
                self.begin(activity)
            case Caught(abort, activity):
                self._link(abort, activity)
            case Ended(activity):
                self.end(activity)

    def begin(self, activity: Activity, before: str = "") -> None:
        """Begin the span of *activity*; *before* is the ``traceparent`` of the span that it continues."""
        names = self._names.get(activity.kind)
        if names is None:
            return
        values: dict[str, AttributeValue] = {ENTITY: activity.id}
        if names.is_genai:
            values[OPERATION] = names.operation
        if activity.plan:
            values[PLAN] = activity.plan
        links: list[Link] = []
        if activity.is_found:
            values[CONTINUED] = True
            links = [Link(one, {LINK: "continues"}) for one in _contexts(before)]
        label = activity.name or activity.agent  # of few values: a name of a span must not have an id
        session_id = activity.id.partition(":")[0]
        values |= self._chosen(activity, agent=activity.agent or label, conversation=session_id, call=activity.id)
        values |= self._chosen(activity, tool=label, scope=label, abort_reason=activity.error)
        self._spans[activity.id] = self._tracer.start_span(
            f"{names.operation} {label}".strip(),
            context=self._parent_of(activity),
            kind=SpanKind.INTERNAL,
            attributes=values,
            links=links,
            start_time=None if activity.is_found else _nanoseconds(activity.began_at),
        )

    def end(self, activity: Activity) -> None:
        """End the span of *activity*."""
        span = self._spans.pop(activity.id, None)
        if span is None:
            return
        span.set_attribute(OUTCOME, activity.outcome)
        span.set_attributes(
            self._chosen(
                activity,
                stage=activity.stage,
                survivors=activity.survivors if activity.stage else "",
                turns=activity.turns,
                calls=activity.calls,
                input_tokens=activity.used.input_tokens or "",
                output_tokens=activity.used.output_tokens or "",
                cached_tokens=activity.used.cached_tokens or "",
                agent_id=activity.agent_id,
            )
        )
        if activity.outcome == "failed" and activity.kind is not ActivityKind.ABORT:
            span.set_attribute(ERROR_TYPE, activity.error or "error")
            span.set_status(Status(StatusCode.ERROR))
        span.end(None if activity.ended_at is None else _nanoseconds(activity.ended_at))

    def _chosen(self, activity: Activity, **values: AttributeValue) -> dict[str, AttributeValue]:
        """Return those values that are not empty and that spans of this kind have, by the names of their attributes."""
        attributes = self._names[activity.kind].attributes if activity.kind in self._names else {}
        return {attributes[what]: value for what, value in values.items() if what in attributes and value != ""}

    def _parent_of(self, activity: Activity) -> Context:
        """Return the context with the span of the activity around this one: for a session, of the call that has asked
        for it, if that is open."""
        for above in (activity.started_by, activity.above):
            if above in self._spans:
                return trace.set_span_in_context(self._spans[above], Context())
        return Context()

    def _link(self, abort: Activity, activity: Activity) -> None:
        span, ended = self._spans.get(abort.id), self._spans.get(activity.id)
        if span is not None and ended is not None:
            span.add_link(ended.get_span_context(), {LINK: "ends"})

    # ------------------------------------------------------------------ contexts
    def trace_id(self, activity_id: str) -> str:
        """Return the id of the trace of an activity that has not ended; ``""`` if it has none."""
        span = self._spans.get(activity_id)
        context = span.get_span_context() if span is not None else None
        return f"{context.trace_id:032x}" if context is not None and context.is_valid else ""

    def carrier(self, activity_id: str) -> Mapping[str, str]:
        """Return ``traceparent``, and ``tracestate`` if there is one, of an activity that has not ended."""
        span, found = self._spans.get(activity_id), dict[str, str]()
        if span is not None:
            _PROPAGATOR.inject(found, trace.set_span_in_context(span, Context()))
        return found

    # ------------------------------------------------------------------ the end
    def flush(self, within_s: float) -> bool:
        """Have the SDK export what has ended, for *within_s* seconds at most; return whether it is done.

        The export is made in a thread that is left behind if it takes longer: a collector that is away must not hold up
        the end of the supervisor.
        """
        provider = self._provider or trace.get_tracer_provider()
        force_flush = getattr(provider, "force_flush", None)
        if force_flush is None:
            return True
        done = threading.Event()

        def run() -> None:
            try:
                force_flush(int(within_s * 1000))
            finally:
                done.set()

        threading.Thread(target=run, name="telemetry-flush", daemon=True).start()
        return done.wait(within_s)


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)


def _contexts(traceparent: str) -> list[SpanContext]:
    """Return the context that a ``traceparent`` names, if it names one."""
    context = trace.get_current_span(_PROPAGATOR.extract({"traceparent": traceparent}, Context())).get_span_context()
    return [context] if context.is_valid else []
