"""Progress of a plan run as lines of text: what begins, fails, waits and ends, and what agents write.

A line is made from a record, in the words of ``tree`` and ``ps``. Most records make no line; ``supervisor events``
prints all records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from supervisor.cli.rendering import counted, duration
from supervisor.cli.run_table import RunTable
from supervisor.diagnostics.outcomes import data_of
from supervisor.diagnostics.state_times import time_of_day
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import end_of, follow_from
from supervisor.lifecycles.run_ids import name_of_task
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.task import ENDS_WELL, Task, task_end
from supervisor.lifecycles.types import SUPERVISOR_ENDED, Kind, LifecycleEvent
from supervisor.policies.redaction import printable
from supervisor.ports import EntityRow

OUTPUT_MAX: Final = 20
"""Lines of output of one session that are shown for one update; of more, the last ones are shown."""
_SOURCES: Final = ("message", "stderr")
"""Sources in a transcript that an agent writes for people."""


class ProgressLine(NamedTuple):
    """A line, the Unix time of its record, and whether the line is about a failure."""

    at: float
    text: str
    is_failure: bool = False

    def __str__(self) -> str:
        return f"{time_of_day(self.at)} {printable(self.text)}"


class OutputLine(NamedTuple):
    """A line that an agent wrote; ``time`` is the time of day in UTC, as ``HH:MM:SS.mmm``."""

    time: str
    text: str


class OutputFollower:
    """Reader of the lines that agents append to their transcripts. *before* are the entities of earlier runs, as the
    journal has them before this run begins: the earlier runs have printed what the sessions among them wrote until
    now."""

    def __init__(self, state: StateDir, before: Iterable[EntityRow] = ()) -> None:
        self._state = state
        sessions = [row for row in before if row.kind == Kind.SESSION]
        self._over = frozenset(row.id for row in sessions if row.ended)
        self._offsets = {row.id: end_of(state.transcript(row.id)) for row in sessions if not row.ended}
        self._held: dict[str, str] = {}

    def new_lines(self, session_id: str) -> list[OutputLine]:
        """Return the lines that the agent of a session has written since the last call, without unfinished ones."""
        if session_id in self._over:
            return []
        text, self._offsets[session_id] = follow_from(
            self._state.transcript(session_id), self._offsets.get(session_id, 0)
        )
        *lines, self._held[session_id] = (self._held.get(session_id, "") + text).split("\n")
        found: list[OutputLine] = []
        for line in lines:
            head, _, said = line.partition("| ")
            time, _, source = head.partition(" ")
            if source in _SOURCES and said.strip():
                found.append(OutputLine(time, said.rstrip()))
        return found

    def drop(self, session_id: str) -> None:
        """Forget the unfinished line of a session that has ended. Its offset stays: a late record of the session must
        not make all of its lines new."""
        self._held.pop(session_id, None)


class Progress:
    """Maker of progress lines; *table* is the state of the run after the records."""

    def __init__(self, table: RunTable) -> None:
        self._table = table
        self._began_at: dict[str, float] = {}
        self._errors: dict[str, str] = {}
        """Last error of each task for which there was a line."""
        self._failed: set[str] = set()
        """Tasks that fail with one of the records at hand: the failure of their last attempt makes no line."""

    def lines(self, events: Sequence[LifecycleEvent]) -> Iterator[ProgressLine]:
        """Yield the lines for new records."""
        failed = (one for one in events if one.entity_type == Kind.TASK and one.to_status == Task.FAILED.value)
        self._failed = {name_of_task(one.entity_id) for one in failed if one.from_status != one.to_status}
        for event in events:
            match event.entity_type:
                case Kind.TASK:
                    made = self._of_task(event)
                case Kind.RUN:
                    made = self._of_run(event)
                case Kind.SESSION:
                    made = self._of_session(event)
                case Kind.WORKSTREAM if event.outcome == "born":
                    tasks = counted(int(event.metadata.get("tasks", 0)), "task", "tasks")
                    made = iter((ProgressLine(event.timestamp, f"{event.entity_id}: {tasks}"),))
                case Kind.TURN if event.event == "PermissionRequested" and event.metadata.get("asked"):
                    made = self._of_permission(event)
                case _:
                    continue
            yield from made

    def _of_task(self, event: LifecycleEvent) -> Iterator[ProgressLine]:
        name, at, why = name_of_task(event.entity_id), event.timestamp, event.reason
        if event.outcome not in ("transition", "born") or event.from_status == event.to_status:
            return
        match event.to_status:
            case Task.CLAIMED.value:
                self._began_at.setdefault(name, at)
                session = str(event.metadata.get("by"))
                yield ProgressLine(at, f"{name}: begins{'' if session == name else f' in session {session}'} ({why})")
            case Task.CLOSED.value:
                took_s = at - self._began_at.get(name, at)
                result = f": {why}" if why and not why.startswith("nothing to merge") else ""
                yield ProgressLine(at, f"{name}: completed in {duration(took_s)}{result}")
            case Task.FAILED.value:
                reason = f": {why}" if why and why != self._errors.get(name) else ""
                yield ProgressLine(at, f"{name}: failed{reason}", is_failure=True)
            case Task.CANCELLED.value:
                end = task_end(event.to_status, str(event.metadata.get("outcome", "")))
                yield ProgressLine(at, f"{name}: {end}{f': {why}' if why else ''}", is_failure=end not in ENDS_WELL)
            case Task.OPEN.value if event.from_status == Task.FAILED.value:
                not_before = time_of_day(at + float(event.metadata.get("delay_s") or 0))
                yield ProgressLine(at, f"{name}: is tried again not before {not_before} ({why})")
            case Task.PLANNED.value | Task.PENDING_APPROVAL.value | Task.BLOCKED.value as state:
                row = self._table.row(event.entity_id)
                if row is not None and row.state == state:
                    yield ProgressLine(at, f"{name}: {self._table.notes.of(row, data_of(row))}")

    def _of_run(self, event: LifecycleEvent) -> Iterator[ProgressLine]:
        row, at = self._table.row(event.entity_id), event.timestamp
        name = name_of_task((row.parent_id if row is not None else None) or event.entity_id)
        error = str(event.metadata.get("error") or "")
        if event.event in ("execution_failed", "execution_timed_out", "tests_failed"):
            if name in self._failed:
                return
            self._errors[name] = error
            yield ProgressLine(at, f"{name}: attempt failed: {error}", is_failure=True)
        elif row is not None and event.from_status != event.to_status == row.state:
            delay = self._table.notes.task_status.delay(row)
            yield from [ProgressLine(at, f"{name}: {delay}")] if delay else []

    def _of_session(self, event: LifecycleEvent) -> Iterator[ProgressLine]:
        at, name, why = event.timestamp, event.entity_id, event.reason
        if event.outcome != "transition":
            return
        # What the plan ends has a line of the task.
        if event.event == "OperatorStop" and event.metadata.get("outcome") == "aborted" and event.actor != "plan":
            yield ProgressLine(
                at, f"{name}: aborted{f' by {event.actor}' if event.actor else ''}: {why}", is_failure=True
            )
        elif event.event == "FatalError":
            message = str(event.metadata.get("message") or why)
            words = "session ended with its supervisor" if message == SUPERVISOR_ENDED else f"session failed: {message}"
            yield ProgressLine(at, f"{name}: {words}", is_failure=message != SUPERVISOR_ENDED)
        elif event.event == "SessionExited" and event.from_status == Session.SPAWNING.value:
            yield ProgressLine(at, f"{name}: agent could not be started: {why}", is_failure=True)

    def _of_permission(self, event: LifecycleEvent) -> Iterator[ProgressLine]:
        row = self._table.row(event.entity_id)
        number, title = event.metadata.get("number"), event.metadata.get("title", "")
        if row is not None:
            words = self._table.notes.permission(row, {"number": number})
            yield ProgressLine(event.timestamp, f"{row.parent_id}: {words} ({title})")


def merged(lines: Sequence[ProgressLine], outputs: Iterable[tuple[str, OutputLine]]) -> list[str]:
    """Return progress lines and lines of agents' output as text, in the order of their times; each output belongs to
    the session named with it."""
    dated = [(datetime.fromtimestamp(line.at, UTC).strftime("%H:%M:%S.%f")[:-3], str(line)) for line in lines]
    dated += [(one.time, f"         {printable(session)}| {printable(one.text)}") for session, one in outputs]
    return [text for _, text in sorted(dated, key=lambda one: one[0])]
