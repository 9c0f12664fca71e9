"""Telemetry of one supervisor: one listener of its records, and the loop that writes what waits.

The listener is called with every durable record, in the task that commits. An error in it must not harm the journal:
the listener is removed, and the error is logged. Nothing is imported from Prometheus or OpenTelemetry unless the
settings ask for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskStatus

from actors.waiting import any_of
from supervisor.host.supervision import SupervisorCore
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.plans.monitoring import TelemetryConfig
from supervisor.policies.abort_plan import Receipt
from supervisor.policies.budgets import Amounts
from supervisor.policies.usage import USAGE
from supervisor.ports import EntityRow, logs
from supervisor.ports.logs import get_logger
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.journal_state import records_of
from supervisor.telemetry.activities import (
    Activity,
    ActivityKind,
    ActivityTracker,
    Began,
    Change,
    Ended,
    Placement,
)
from supervisor.telemetry.figures import Figures
from supervisor.telemetry.files import TelemetryFiles
from supervisor.telemetry.span_table import GenAi

if TYPE_CHECKING:
    from supervisor.telemetry.spans import Spans

TRACED: Final = "Traced"
"""Name of the fact with the trace of a session or a run, which a later supervisor continues by a link."""
FLUSH_S: Final = 2.0
"""Seconds that the export of the last spans may hold up the end of the supervisor."""
WRITE_S: Final = 0.5
"""Seconds for which a write of the files waits for more lines."""
_FOUND: Final = {
    Kind.WORKSTREAM.value: ActivityKind.RUN,
    Kind.TASK.value: ActivityKind.TASK,
    Kind.SESSION.value: ActivityKind.SESSION,
}
"""Kinds of entities that are found at a start, in the order in which one names another."""
_OWN_VARIABLES: Final = ("_HEADERS", "_SERVICE_NAME")
"""Ends of the names of variables that agents do not get: credentials, and the name of the supervisor itself."""
_SELF: Final = Cause(actor="telemetry")
_log = get_logger()
_TRACE_OF: Final = ("turn", "session", "entity", "run")
"""Fields of a log line that name an entity, the most exact first."""


class Telemetry:
    """Telemetry of one supervisor, as *config* says.

    Args:
        state: state directory for the files; ``None`` if there is none.
        spans: maker of spans; ``None``: no traces.
    """

    def __init__(
        self, core: SupervisorCore, config: TelemetryConfig, state: StateDir | None, spans: Spans | None
    ) -> None:
        self._core, self._spans = core, spans
        self.figures = Figures() if config.metrics else None
        self._files = TelemetryFiles(state.metrics, state.traces) if config.files and state is not None else None
        self._has_lines = anyio.Event()
        """Set when an activity with lines has ended; then another one takes its place."""
        self._unnamed: dict[str, Activity] = {}
        """Runs and sessions that were found, and whose new trace is not on record yet."""
        self._tracker = ActivityTracker(self._place_of, keeps_parts=self._files is not None)

    # ------------------------------------------------------------------ records
    def listen(self, record: LifecycleEvent) -> None:
        """Take the next durable record. Never raises."""
        try:
            if self.figures is not None:
                self.figures.take(record)
            for change in self._tracker.take(record):
                self._apply(change)
            if self._unnamed and (found := self._unnamed.pop(record.entity_id, None)) is not None:
                self._note_trace(found)
        except Exception:
            _log.exception("telemetry has failed, and is off until the next start", record=record.seq)
            self.stop()

    def take_receipt(self, receipt: Receipt) -> None:
        """Take the receipt of an abort. Never raises."""
        try:
            for change in self._tracker.settle(receipt, self._core.journal_writer.clock.wall.time()):
                self._apply(change)
        except Exception:
            _log.exception("telemetry has failed, and is off until the next start", abort=receipt.abort_id)
            self.stop()

    def start(self) -> None:
        """Listen to the records and the receipts from now on."""
        self._core.listeners.append(self.listen)
        self._core.aborts.on_receipt.append(self.take_receipt)

    def stop(self) -> None:
        for listeners, own in ((self._core.listeners, self.listen), (self._core.aborts.on_receipt, self.take_receipt)):
            if own in listeners:
                listeners.remove(own)  # type: ignore[arg-type]

    def _apply(self, change: Change) -> None:
        trace_id = ""
        if self._spans is not None:
            if isinstance(change, Ended):
                trace_id = self._spans.trace_id(change.activity.id)
            self._spans.apply(change)
            if isinstance(change, Began):
                self._note_trace(change.activity)
        if self.figures is not None:
            self.figures.apply(change, trace_id)
        if self._files is not None and isinstance(change, Ended) and self._files.add(change.activity, trace_id):
            self._has_lines.set()

    def _note_trace(self, activity: Activity) -> None:
        """Record the trace of an activity that may outlive this supervisor."""
        if self._spans is None or activity.kind not in (ActivityKind.SESSION, ActivityKind.RUN):
            return
        carrier, entity = self._spans.carrier(activity.id), self._core.registry.entities.get(activity.id)
        if carrier and entity is not None and not entity.ended:  # nothing follows the last record of an entity
            entity.record_fact(TRACED, _SELF, dict(carrier))

    def _place_of(self, session_id: str) -> Placement:
        session = self._core.registry.sessions.get(session_id)
        if session is None:
            return Placement(session_id.rpartition("/")[0])
        return Placement(session.parent_id or "", session.started_by or "", session.plan_run)

    # ------------------------------------------------------------------ the beginning
    async def find_left(self, rows: Sequence[EntityRow]) -> None:
        """Add what an earlier supervisor has left alive, before that is taken over."""
        plans: dict[str, str] = {}
        runs: dict[str, str] = {}
        """Runs of the sessions that have claimed a task."""
        order = list(_FOUND)
        known = [row for row in rows if row.kind in order]
        for row in sorted(known, key=lambda row: (order.index(row.kind), row.born_seq)):
            kind = _FOUND.get(row.kind)
            if kind is None or row.ended:
                continue
            data = msgspec.json.decode(row.data)
            run = str(data.get("workstream", "")) or runs.get(row.id, "")
            plan = str(data.get("name", "")) if kind is ActivityKind.RUN else plans.get(run, "")
            plans[row.id] = plan
            if data.get("claimed_by"):
                runs[str(data["claimed_by"])] = run
            one = Activity(
                kind=kind,
                id=row.id,
                began_at=row.born_at,
                above=row.parent_id or run,
                agent=str(data.get("agent", "")),
                plan=plan,
                name=str(data.get("name", "")),
            )
            before = await self._read_past(one) if kind is not ActivityKind.TASK else ""
            self._tracker.add_found(one)
            if self._spans is not None:
                self._spans.begin(one, before)
                self._unnamed[one.id] = one  # it is no entity yet, of which something could be recorded

    async def _read_past(self, activity: Activity) -> str:
        """Set the usage of a session that its log has, and return the ``traceparent`` of its last span."""
        before = ""
        for record in await records_of(self._core.journal, activity.id):
            if record.outcome == "fact" and record.event == USAGE:
                activity.used = msgspec.convert(record.metadata["used"], Amounts)
            elif record.outcome == "fact" and record.event == TRACED:
                before = str(record.metadata.get("traceparent", ""))
        return before

    # ------------------------------------------------------------------ agents and logs
    def environment_of(self, session_id: str, own: Mapping[str, str]) -> Mapping[str, str]:
        """Return the variables by which an agent that is launched now continues the trace of its session, and finds the
        collector: ``TRACEPARENT``, and the variables ``OTEL_*`` of *own*, the supervisor's environment."""
        if self._spans is None:
            return {}
        session = self._tracker.live.get(session_id)
        carrier = (session is not None and self._spans.carrier(session.turn)) or self._spans.carrier(session_id)
        found = {name: own[name] for name in own if name.startswith("OTEL_") and not name.endswith(_OWN_VARIABLES)}
        return {**found, **{name.upper(): value for name, value in carrier.items()}}

    def context_of(self, fields: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the id of the trace of the entity that the *fields* of a log line name, if it has one."""
        for name in _TRACE_OF:
            if self._spans is not None and (found := self._spans.trace_id(str(fields.get(name, "")))):
                return {"trace_id": found}
        return {}

    # ------------------------------------------------------------------ the end
    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Write what waits until the supervisor closes; then end the spans that are left, and have them exported. This
        is the loop of a service."""
        closing = self._core.services.closing
        task_status.started()
        logs.add_context(self.context_of)
        while self._files is not None and not closing.is_set():
            await any_of(self._has_lines, closing)
            with anyio.move_on_after(WRITE_S):  # more may end meanwhile
                await closing.wait()
            self._has_lines = anyio.Event()
            await self._write(self._files)
        await closing.wait()
        await self.close()

    async def _write(self, files: TelemetryFiles, *, is_last: bool = False) -> None:
        lost = await anyio.to_thread.run_sync(partial(files.write, is_last=is_last))
        if lost and self.figures is not None:
            self.figures.count("supervisor_telemetry_lines_lost_total", by=lost)

    async def close(self) -> None:
        self.stop()
        left = self._tracker.close(self._core.journal_writer.clock.wall.time())
        logs.remove_context(self.context_of)
        if self._spans is not None:
            for one in left:
                self._spans.end(one)
            if not await anyio.to_thread.run_sync(self._spans.flush, FLUSH_S):
                _log.warning(
                    "the last spans were not exported in time: the collector is away, or slow", within_s=FLUSH_S
                )
        if self._files is not None:
            await self._write(self._files, is_last=True)


class TelemetrySlot:
    """Place of the telemetry in a supervisor (``SupervisorCore.part``); ``None``: the settings ask for none."""

    def __init__(self, core: SupervisorCore) -> None:
        self.telemetry: Telemetry | None = None


async def start_telemetry(core: SupervisorCore, state: StateDir | None, rows: Sequence[EntityRow]) -> None:
    """Start the telemetry that the settings of a supervisor ask for. *rows* are the entities of the journal, of which
    nothing is taken over yet; *state* is the state directory for the files, if there is one."""
    config = core.settings.telemetry
    spans: Spans | None = None
    if config.traces:
        from supervisor.telemetry.spans import Spans  # here, since it needs an extra

        spans = Spans(GenAi(config.genai))
    telemetry = core.part(TelemetrySlot).telemetry = Telemetry(core, config, state, spans)
    await telemetry.find_left(rows)
    telemetry.start()
    if spans is not None:
        core.launch_variables.append(lambda session_id: telemetry.environment_of(session_id, os.environ))
    if telemetry.figures is not None:
        name = "supervisor_journal_commit_duration_seconds"
        core.journal_writer.on_committed = partial(telemetry.figures.observe, name)
    await core.services.start("telemetry", telemetry.run)
