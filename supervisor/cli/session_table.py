"""Table of a run's sessions for a terminal, computed from the records. Pure: texts and the time are arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from supervisor.cli.calls import ToolCallIndex
from supervisor.cli.rendering import duration
from supervisor.cli.work_table import WorkTable
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.policies.redaction import printable


class SessionRow:
    """Row of one session in the table."""

    def __init__(self, session_id: str, since: float) -> None:
        self.id = session_id
        self.since = since
        self.until: float | None = None
        self.state = ""
        self.calls: dict[str, str] = {}
        self.last_line = ""
        self.trouble = ""

    def doing(self) -> str:
        """Return the open tool calls of the session, else its last error, else the last line of its output."""
        if self.calls:
            return ", ".join(f'{call} "{title}"' for call, title in self.calls.items())
        return self.trouble or self.last_line


class RunTable:
    """State of the sessions and tasks of a run, computed from its records."""

    def __init__(self) -> None:
        self.work = WorkTable()
        self.rows: dict[str, SessionRow] = {}
        self._calls = ToolCallIndex()

    def take(self, event: LifecycleEvent) -> None:
        if event.outcome in ("transition", "born"):
            match event.entity_type:
                case Kind.TASK | Kind.RUN | Kind.WORKSTREAM:
                    self.work.take(event)
                case Kind.SESSION:
                    self._session(event)
                case Kind.TURN:
                    self._turn(event)

    def _session(self, event: LifecycleEvent) -> None:
        row = self.rows.setdefault(event.entity_id, SessionRow(event.entity_id, event.timestamp))
        row.state = event.to_status or row.state
        row.trouble = _trouble(event) or (row.trouble if event.from_status == event.to_status else "")
        row.until = event.timestamp if event.event == "Ended" else None

    def _turn(self, event: LifecycleEvent) -> None:
        session, _, turn = event.entity_id.rpartition(":")
        row = self.rows.get(session)
        if row is None:
            return
        match event.event:
            case "tool_started":
                number = self._calls.take(event)
                row.calls[f"{turn}:c{number}"] = str(event.metadata.get("title", ""))
            case "tool_completed" | "task_failed" | "verify_requested":
                self._closed(row, turn, event)

    def _closed(self, row: SessionRow, turn: str, event: LifecycleEvent) -> None:
        """Remove from the row the call that ended, or the turn's oldest call if the start of the ended call was not
        seen; remove all calls if none is open any more."""
        if event.event == "tool_completed" and event.to_status == "TOOL_USE":
            number = self._calls.take(event)
            row.calls.pop(f"{turn}:c{number}" if number else next(iter(row.calls), ""), None)
        else:
            row.calls.clear()

    def table(self, now: float) -> Table:
        """Return the table of the sessions. On a narrow terminal only the column DOING and the ids are cut."""
        table = Table(box=None, pad_edge=False)
        for head in ("SESSION", "STATE", "AGE", "DOING"):  # a column that may wrap is the one that is made narrower
            table.add_column(head, no_wrap=head in ("STATE", "AGE"))
        for depth, row in self._in_order():
            age = duration(max(0.0, (row.until or now) - row.since))
            table.add_row(_cut("  " * depth + row.id), _coloured(row.state), age, _cut(self._doing(row)))
        for task, waiting in self.work.waiting().items():
            doing = _cut(self.work.doing(waiting), style="dim")
            table.add_row(_cut(task, style="dim"), Text(waiting.state, style="dim"), "", doing)
        return table

    def view(self, now: float, caption: Text | None = None) -> Group:
        """Return the table, below a line about the workstream if there is one."""
        table = self.table(now)
        table.caption = caption
        workstream = self.work.headline()
        return Group(_cut(workstream), table) if workstream else Group(table)

    def _doing(self, row: SessionRow) -> str:
        """Return a text about the activity of a session, with the attempt of its task unless that is the first
        attempt."""
        task = self.work.of_session(row.id)
        return ": ".join(
            part for part in (task.attempt if task else "", task.settling if task else "", row.doing()) if part
        )

    def _in_order(self) -> list[tuple[int, SessionRow]]:
        """Return every session with its depth, after its parent and the earlier children of that parent. Iterative, not
        recursive."""
        below: dict[str, list[SessionRow]] = {}
        for row in self.rows.values():
            parent = row.id.rpartition("/")[0]
            below.setdefault(parent if parent in self.rows else "", []).append(row)
        order: list[tuple[int, SessionRow]] = []
        pending = [(0, row) for row in reversed(below.get("", []))]
        while pending:
            depth, row = pending.pop()
            order.append((depth, row))
            pending += [(depth + 1, child) for child in reversed(below.get(row.id, []))]
        return order


def _cut(text: str, style: str = "") -> Text:
    """Return a cell of one line, cut to the width of its column."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def _trouble(event: LifecycleEvent) -> str:
    """Return the reason of an event; ``""`` if the event is a success."""
    return "" if event.transition_reason == "completed" else event.reason


_COLOURS: Final[Mapping[str, str]] = {
    "Running": "green",
    "Interrupting": "yellow",
    "CoolingDown": "yellow",
    "SessionComplete": "cyan",
    "Stopped": "dim",
}


def _coloured(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, ""))
