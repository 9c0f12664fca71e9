"""Lines of the live view of a plan run, computed from the rows of its entities. Pure: texts and times are arguments.

There is a line for each session that has not ended, and for each task that no such session works on and that has not
ended. Lines that run come first, then lines that wait for a person or a time, then tasks that wait for other tasks or a
worker. What has ended is one line of counts. The texts are those of ``tree`` and ``ps``.

:func:`fit` chooses the lines that a terminal has space for, and counts the others in a line of its own. A text that
says what to type is wrapped and not cut.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from supervisor.cli.rendering import cost, counted, duration
from supervisor.diagnostics.outcomes import data_of
from supervisor.diagnostics.state_times import StateTimes
from supervisor.diagnostics.task_status import hold
from supervisor.diagnostics.tree_view import Notes, SignsOfLife, VisualStates, waiting_permissions
from supervisor.diagnostics.visual_state import VisualState
from supervisor.lifecycles.session import Session
from supervisor.lifecycles.task import Task, TaskEnd
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.policies.budgets import Amounts
from supervisor.policies.redaction import printable
from supervisor.ports import EntityRow

_HELD: Final = (Task.CLAIMED.value, Task.IN_PROGRESS.value, Task.DONE.value)
_OUTCOME_STYLES: Final[Mapping[str, str]] = {TaskEnd.COMPLETED: "green", TaskEnd.FAILED: "red"}
"""Colours of ends; the others are yellow."""
_PERSON: Final = (Task.PLANNED.value, Task.PENDING_APPROVAL.value, Task.BLOCKED.value)
_AGENT_WORKS: Final = (Session.SPAWNING.value, Session.RUNNING.value, Session.INTERRUPTING.value)
_STYLES: Final = {"dark orange": "dark_orange", "gray": "grey50"}
"""Names of the terminal for the colours of the specification, where they differ."""
QUEUED_MAX: Final = 8
"""Largest number of lines about tasks that wait for other tasks or a worker."""
_WIDE: Final = 80
"""Columns of a terminal from which on the last sign of life and the cost of a session are shown."""
_WRAPPED_MAX: Final = 3
"""Largest number of rows of the terminal for one line."""


_SHOWN: Final = (Kind.TASK, Kind.RUN, Kind.SESSION, Kind.AGENT, Kind.TURN)
"""Kinds of entities from which the lines are made."""


class Group(IntEnum):
    """Order of the lines: what runs, what waits for a person or a time, what waits for other tasks or a worker."""

    RUNS = 0
    WAITS = 1
    QUEUED = 2


_GROUP_NAMES: Final = {Group.RUNS: "running", Group.WAITS: "waiting", Group.QUEUED: "queued"}


class TableLine(NamedTuple):
    """Line about one session or task. ``since`` is Unix time; ``silent_s`` is the time in seconds since the last sign
    of life of a session; ``wraps``: the text of ``doing`` is not cut."""

    group: Group
    name: str
    state: str
    since: float
    doing: str
    style: str = ""
    indicator: str = " "
    wraps: bool = False
    silent_s: float | None = None
    cost: str = ""


class RunTable:
    """State of the sessions and tasks of a plan run. *options* are added to the commands in the texts."""

    def __init__(self, options: str = "") -> None:
        self._options = options
        self.times = StateTimes()
        self.last_lines: dict[str, str] = {}
        """Last line of output of each session."""
        self.active_at: dict[str, float] = {}
        """Unix time at which each session last produced output."""
        self.used: Mapping[str, Amounts] = {}
        """Reported usage by entity id."""
        self._rows: dict[str, EntityRow] = {}
        self._workstream: EntityRow | None = None
        self._notes: Notes | None = None

    def take(self, events: Iterable[LifecycleEvent], rows: Iterable[EntityRow]) -> None:
        """Process new records, and the rows of the entities that they are about."""
        self._notes = None
        for event in events:
            self.times.take(event)
        for row in rows:
            if row.kind == Kind.WORKSTREAM:
                if self._workstream is None or not row.ended or row.id == self._workstream.id:
                    self._workstream = row
            elif row.kind in _SHOWN:
                self._rows[row.id] = row
        sessions = {row.id for row in self._rows.values() if row.kind == Kind.SESSION and not row.ended}
        for one, row in list(self._rows.items()):
            session = row.id if row.kind == Kind.SESSION else row.parent_id
            if row.kind not in (Kind.TASK, Kind.RUN) and session not in sessions:
                del self._rows[one]
                self.last_lines.pop(one, None)

    def sessions(self) -> list[str]:
        """Return the ids of the sessions that have not ended."""
        return [row.id for row in self._rows.values() if row.kind == Kind.SESSION]

    def row(self, entity_id: str) -> EntityRow | None:
        """Return the row of an entity; ``None`` if the table does not need the entity."""
        return self._rows.get(entity_id)

    @property
    def notes(self) -> Notes:
        """Texts about the entities, as ``tree`` shows them."""
        if self._notes is None:  # made once for all lines between two calls of ``take``
            rows = [*self._rows.values(), *([self._workstream] if self._workstream is not None else [])]
            self._notes = Notes(sorted(rows, key=lambda row: row.born_seq), self.times, self._options)
        return self._notes

    def _tasks(self) -> list[EntityRow]:
        stream = self._workstream.id if self._workstream is not None else None
        tasks = [row for row in self._rows.values() if row.kind == Kind.TASK]
        return [row for row in tasks if stream is None or data_of(row).get("workstream") == stream]

    # ------------------------------------------------------------------ the lines
    def headline(self) -> str:
        """Return ``run r1 of plan: executing, 2 of 6 tasks completed, 0.2500 USD``; ``""`` without a workstream."""
        row = self._workstream
        if row is None:
            return ""
        spent = self._cost(row.id)
        counts = f"{self.notes.task_status.counts(row)}{f', {spent}' if spent else ''}"
        return f"run {row.id} of {data_of(row).get('name')}: {row.state}, {counts}"

    def _cost(self, entity_id: str) -> str:
        used = self.used.get(entity_id)
        return cost(used.cost_usd, used.tokens) if used is not None else ""

    def alerts(self) -> list[str]:
        """Return a sentence for each provider against which no agent is launched now."""
        return [one.words for one in self.times.failing_providers]

    def ended(self) -> Text | None:
        """Return the line that counts the tasks that have ended; ``None`` if there are none."""
        counts = Counter(map(self.notes.outcomes.of, self._tasks()))
        found = [
            Text(f"{counts[end]} {end}", style=_OUTCOME_STYLES.get(end, "yellow")) for end in TaskEnd if counts[end]
        ]
        return Text("ended: ") + Text(", ").join(found) if found else None

    def lines(self, now: float) -> list[TableLine]:
        """Return the lines in the order in which they are shown. *now* is Unix time."""
        rows = sorted(self._rows.values(), key=lambda row: row.born_seq)
        notes, visual_states = self.notes, VisualStates(rows, now, self.active_at, self.times, self.notes.data)
        notes.now = now
        signs = SignsOfLife(rows, self.active_at, notes.data)
        turns = {row.parent_id: row for row in rows if row.kind == Kind.TURN and not row.ended}
        runs = {row.parent_id: row for row in rows if row.kind == Kind.RUN}
        tasks = [row for row in self._tasks() if not notes.outcomes.of(row)]
        held = {str(data_of(row).get("claimed_by")): row for row in tasks if row.state in _HELD}
        lines: list[tuple[Group, TableLine]] = []
        group = Group.RUNS
        for depth, row in _parents_first([row for row in rows if row.kind == Kind.SESSION]):
            task = held.pop(row.id, None)
            run = runs.get(task.id) if task is not None else None
            line = self._of_session(row, turns.get(row.id), task, run, notes, visual_states.of(row))
            group = line.group if depth == 0 else group  # a child session stays below its parent
            line = line._replace(silent_s=signs.silent_s(row, now), cost=self._cost(row.id))
            lines.append((group, line._replace(name="  " * depth + row.id)))
        without_session = [row for row in tasks if row.state not in _HELD or row in held.values()]
        lines += [
            (line.group, line) for row in without_session for line in [self._of_task(row, runs.get(row.id), notes)]
        ]
        return [line for _, line in sorted(lines, key=lambda one: one[0])]

    def _of_session(
        self,
        row: EntityRow,
        turn: EntityRow | None,
        task: EntityRow | None,
        run: EntityRow | None,
        notes: Notes,
        visual: VisualState | None,
    ) -> TableLine:
        data, run_data = data_of(row), data_of(run) if run is not None else {}
        asked, calls = list[str](), list[str]()
        if turn is not None:
            turn_data, name = data_of(turn), turn.id.rpartition(":")[2]
            asked = [f"{notes.permission(turn, one)} ({one['title']})" for one in waiting_permissions(turn_data)]
            calls = [f'{name}:c{one["number"]} "{one["title"]}"' for one in turn_data.get("open") or ()]
        is_delayed = run is not None and bool(notes.task_status.delay(run))
        is_checked = run is not None and run.state == TaskRun.VALIDATING.value
        is_held = task is not None and bool(hold(task, data_of(task)))
        step, outcome, reason = notes.of_session(row, data), notes.outcomes.of(row), notes.reason_of(row, data)
        if asked:
            parts = asked
        elif task is not None and is_delayed:
            parts = [notes.task_status.step(task), str(run_data.get("last_error", ""))]
        elif task is not None and (task.state == Task.DONE.value or is_held):
            parts = [notes.of(task, data_of(task))]
        else:
            is_named = is_checked or run_data.get("attempts", 0) > 1
            parts = [notes.task_status.step(task) if task is not None and is_named else ""]
            if not is_checked:
                step = step or (notes.time_out(row) if visual is VisualState.STALLED else "")
                parts += [step, reason] if step else [", ".join(calls) or self.last_lines.get(row.id, "")]
        cools = row.state == Session.COOLING_DOWN.value
        word, style = row.state, "yellow" if cools else "cyan"
        if outcome:
            word, style = outcome, _OUTCOME_STYLES.get(outcome, "yellow")
        elif visual is not None and (row.state in _AGENT_WORKS or visual is VisualState.MERGING):
            word, style = visual.value, _STYLES.get(visual.colour, visual.colour)
        return TableLine(
            group=Group.WAITS if (cools or is_delayed or is_held) and not asked else Group.RUNS,
            name=row.id,
            state=word,
            since=row.born_at,
            doing=", ".join(part for part in parts if part),
            style=style,
            indicator=visual.indicator if visual is not None else " ",
            wraps=bool(asked) or is_delayed or cools or is_held,
        )

    def _of_task(self, row: EntityRow, run: EntityRow | None, notes: Notes) -> TableLine:
        status = notes.task_status
        is_delayed = bool(status.delay_of_claim(row) or (run is not None and status.delay(run)))
        group = Group.RUNS if row.state in _HELD else Group.QUEUED
        if row.state in _PERSON or is_delayed or hold(row, data_of(row)):
            group = Group.WAITS
        style = "yellow" if group is Group.WAITS else "dim"
        doing, since = notes.of(row, data_of(row)), self.times.entered(row)
        line = TableLine(group, row.id, row.state, since, doing, style, wraps=group is Group.WAITS)
        if row.state != Task.DONE.value:
            return line
        merging = VisualState.MERGING  # the session has ended already
        return line._replace(state=merging.value, indicator=merging.indicator, style=merging.colour)


def _parents_first(sessions: Sequence[EntityRow]) -> list[tuple[int, EntityRow]]:
    """Return every session with its depth, after its parent and the earlier children of that parent. Iterative, not
    recursive."""
    known = {row.id for row in sessions}
    below: dict[str, list[EntityRow]] = {}
    for row in sessions:
        below.setdefault(row.parent_id if row.parent_id in known and row.parent_id else "", []).append(row)
    order: list[tuple[int, EntityRow]] = []
    pending = [(0, row) for row in reversed(below.get("", []))]
    while pending:
        depth, row = pending.pop()
        order.append((depth, row))
        pending += [(depth + 1, child) for child in reversed(below.get(row.id, []))]
    return order


# ------------------------------------------------------------------------------------------------------- layout
def fit(lines: Sequence[TableLine], *, width: int, height: int, now: float) -> list[Text]:
    """Return rows of the terminal, at most *height* of them and none wider than *width*: a heading, the first lines,
    and the number of lines for which there is no space. The last sign of life and the cost are left out where no line
    has them, and on a narrow terminal."""
    if not lines or height < 1:
        return []
    names, states = [line.name for line in lines], [line.state for line in lines]
    name_width = min(max(map(cell_len, [*names, "SESSION"])), max(8, width // 3))
    state_width = max(map(cell_len, [*states, "STATE"]))
    columns = {"AGE": [_whole_seconds(now - line.since) for line in lines]}
    if width >= _WIDE:
        columns["SEEN"] = ["" if line.silent_s is None else _whole_seconds(line.silent_s) for line in lines]
        columns["COST"] = [line.cost for line in lines]
    widths = {head: max(map(len, [*cells, head])) for head, cells in columns.items() if any(cells)}
    left = 2 + name_width + 2 + state_width + 2 + sum(widths.values()) + 2 * len(widths)
    heads = "  ".join(f"{head:>{column_width}}" for head, column_width in widths.items())
    heading = f"  {'SESSION':{name_width}}  {'STATE':{state_width}}  {heads}  DOING"
    rows, count = [Text(heading, style="bold")], 0
    most = sum(line.group is not Group.QUEUED for line in lines) + QUEUED_MAX
    # A line without space is not wrapped: there may be thousands of them in each frame.
    for number, line in enumerate(lines[:most], 1):
        cells = [_shortened(line.name, name_width), line.state.ljust(state_width)]
        cells += [columns[head][number - 1].rjust(column_width) for head, column_width in widths.items()]
        doing = _wrapped(line.doing, max(8, width - left), _WRAPPED_MAX if line.wraps else 1)
        if len(rows) + len(doing) + (number < len(lines)) > height:
            break
        rows.append(Text(f"{line.indicator} {'  '.join(cells)}  {doing[0]}".rstrip(), style=line.style))
        rows += [Text(f"{'':{left}}{more}", style=line.style) for more in doing[1:]]
        count = number
    if count < len(lines):
        hidden = Counter(line.group for line in lines[count:])
        kinds = ", ".join(f"{hidden[group]} {name}" for group, name in _GROUP_NAMES.items() if hidden[group])
        words = f"  … {counted(len(lines) - count, 'more row', 'more rows')}: {kinds} (all: supervisor ps)"
        rows = [*rows[: height - 1], Text(set_cell_size(words, min(width, cell_len(words))), style="bold")]
    return [_cut(row, width) for row in rows]


def _whole_seconds(seconds: float) -> str:
    whole_s = int(max(0, seconds))
    return duration(whole_s) if whole_s >= 60 else f"{whole_s} s"


def _wrapped(text: str, width: int, rows_max: int) -> list[str]:
    """Return *text* as at most *rows_max* rows of *width* columns; what does not fit is replaced by an ellipsis."""
    whole = printable(text)
    if rows_max == 1:
        return [_shortened_end(whole, width)]
    is_wide = cell_len(whole) != len(whole)  # textwrap counts characters, and not columns
    rows = (chop_cells(whole, width) if is_wide else textwrap.wrap(whole, width)) or [""]
    return (
        rows
        if len(rows) <= rows_max
        else [*rows[: rows_max - 1], _shortened_end(" ".join(rows[rows_max - 1 :]), width)]
    )


def _shortened_end(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"


def _shortened(name: str, width: int) -> str:
    """Return a name padded to *width* columns; a longer name loses its middle, since names often differ at the end."""
    name = printable(name)
    if cell_len(name) > width:
        tail = (width - 1) // 2
        name = f"{set_cell_size(name, width - 1 - tail)}…{set_cell_size(name[::-1], tail)[::-1]}"
    return set_cell_size(name, width)


def _cut(row: Text, width: int) -> Text:
    row.no_wrap, row.overflow = True, "ellipsis"
    row.truncate(width, overflow="ellipsis")
    return row
