"""What ``supervisor run`` shows while it runs: a table on a terminal, one line per event elsewhere, JSON for programs.

The journal is what is shown: a reporter prints the records after the last one it has printed, whenever it is told to
look again, so that a slow terminal misses nothing and delays nobody. Only printing and reading happen here.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import follow_from
from supervisor.surfaces.render import columns, duration, event_line, json_line, printable
from supervisor.vocabulary import Kind, LifecycleEvent

__all__ = ["Board", "Line", "Reporter", "TaskEnd", "Teller", "results_json", "results_text", "teller_for"]

TICK_S: Final = 0.2
"""How often the journal is looked at, and the table on a terminal drawn again."""


class TaskEnd(Protocol):
    """How a task of a plan ended."""

    @property
    def id(self) -> str: ...
    @property
    def session_id(self) -> str | None: ...
    @property
    def outcome(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def took_s(self) -> float: ...


# ------------------------------------------------------------------------------------------------------- results
def results_text(results: Iterable[TaskEnd]) -> str:
    """The table that a run ends with."""
    heads = ("TASK", "OUTCOME", "TOOK", "SESSION", "ERROR")
    return columns(
        heads, ((one.id, one.outcome, duration(one.took_s), one.session_id or "", one.error) for one in results)
    )


def results_json(results: Iterable[TaskEnd], *, ok: bool) -> str:
    """The last line of ``supervisor run --json``."""
    names = ("id", "session_id", "outcome", "error", "took_s")
    return json_line({"ok": ok, "tasks": [{name: getattr(one, name) for name in names} for one in results]})


# -------------------------------------------------------------------------------------------------------- board
class Line:
    """What the board knows of one session."""

    def __init__(self, session_id: str, since: float) -> None:
        self.id = session_id
        self.since = since
        self.until: float | None = None
        self.state = ""
        self.calls: dict[str, str] = {}
        self.said = ""
        self.trouble = ""

    def doing(self) -> str:
        """The open tool calls, else what went wrong, else what was said last."""
        if self.calls:
            return ", ".join(f'{call} "{title}"' for call, title in self.calls.items())
        return self.trouble or self.said


class Board:
    """The sessions of a run, folded from its records. Pure: texts are handed in."""

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}
        self.lines: dict[str, Line] = {}

    def take(self, event: LifecycleEvent) -> None:
        if event.outcome in ("transition", "born"):
            match event.entity_type:
                case Kind.TASK:
                    self._task(event)
                case Kind.SESSION:
                    self._session(event)
                case Kind.TURN:
                    self._turn(event)

    def _task(self, event: LifecycleEvent) -> None:
        """A task that was claimed is seen as its session from then on."""
        if event.outcome == "born" or event.entity_id in self.waiting:
            self.waiting[event.entity_id] = event.to_status
        if event.to_status == "CLAIMED":
            self.waiting.pop(event.entity_id, None)

    def _session(self, event: LifecycleEvent) -> None:
        line = self.lines.setdefault(event.entity_id, Line(event.entity_id, event.timestamp))
        line.state = event.to_status or line.state
        line.trouble = _trouble(event) or (line.trouble if event.from_status == event.to_status else "")
        line.until = event.timestamp if event.event == "Ended" else None

    def _turn(self, event: LifecycleEvent) -> None:
        session, _, turn = event.entity_id.rpartition(":")
        line = self.lines.get(session)
        if line is None:
            return
        match event.event:
            case "tool_started":
                line.calls[f"{turn}:c{event.metadata.get('number')}"] = str(event.metadata.get("title", ""))
            case "tool_completed" | "task_failed" | "verify_requested":
                self._closed(line, turn, event)

    def _closed(self, line: Line, turn: str, event: LifecycleEvent) -> None:
        """Forget the calls that ended. A result names the agent's call id only, so the turn's oldest one goes."""
        if event.event == "tool_completed" and event.to_status == "TOOL_USE":
            number = event.metadata.get("number")
            line.calls.pop(f"{turn}:c{number}" if number else next(iter(line.calls), ""), None)
        else:
            line.calls.clear()

    def table(self, now: float) -> Table:
        """The board as a table for a terminal."""
        table = Table(box=None, pad_edge=False)
        for head in ("SESSION", "STATE", "AGE", "DOING"):
            table.add_column(head, no_wrap=True, overflow="ellipsis")
        for line in self.lines.values():
            age = duration(max(0.0, (line.until or now) - line.since))
            table.add_row(Text(printable(line.id)), _coloured(line.state), age, Text(printable(line.doing())))
        for task, state in self.waiting.items():
            table.add_row(Text(printable(task), style="dim"), Text(state, style="dim"), "", "")
        return table


def _trouble(event: LifecycleEvent) -> str:
    """The reason of an event, unless it is the good one."""
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


# ------------------------------------------------------------------------------------------------------- tellers
class Teller(Protocol):
    """One way to show a run. Methods may block; a :class:`Reporter` sees to it that only its own thread waits."""

    def event(self, event: LifecycleEvent) -> None: ...

    def drawn(self) -> None:
        """Everything new has been told: time to draw."""
        ...

    def end(self, results: Sequence[TaskEnd], *, ok: bool) -> None: ...

    def close(self) -> None:
        """Leave standard output as it was found."""
        ...


class _Lines:
    """A teller that writes lines."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def drawn(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


class JsonTeller(_Lines):
    """One JSON object per record, and one for the result."""

    def event(self, event: LifecycleEvent) -> None:
        self._out.write(json_line(event) + "\n")

    def end(self, results: Sequence[TaskEnd], *, ok: bool) -> None:
        self._out.write(results_json(results, ok=ok) + "\n")
        self._out.flush()


class PlainTeller(_Lines):
    """One line per record, and a table at the end."""

    def event(self, event: LifecycleEvent) -> None:
        self._out.write(event_line(event) + "\n")

    def end(self, results: Sequence[TaskEnd], *, ok: bool) -> None:
        self._out.write(f"\n{results_text(results)}\n")
        self._out.flush()


class LiveTeller:
    """A table that is drawn again and again, with the last words of every session."""

    def __init__(self, out: TextIO, state: StateDir) -> None:
        self._state = state
        self._board = Board()
        self._offsets: dict[str, int] = {}
        self._live = Live(console=Console(file=out), auto_refresh=False)
        self._live.start()

    def event(self, event: LifecycleEvent) -> None:
        self._board.take(event)

    def drawn(self) -> None:
        for line in self._board.lines.values():
            line.said = self._last_words(line)
        self._live.update(self._board.table(time.time()), refresh=True)

    def _last_words(self, line: Line) -> str:
        text, self._offsets[line.id] = follow_from(self._state.transcript(line.id), self._offsets.get(line.id, 0))
        words = [part for part in text.splitlines() if part.strip()]
        return words[-1].partition("| ")[2] or words[-1] if words else line.said

    def end(self, results: Sequence[TaskEnd], *, ok: bool) -> None:
        self.close()
        self._live.console.print(f"\n{results_text(results)}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


def teller_for(*, as_json: bool, state: StateDir) -> Teller:
    """What fits standard output."""
    if as_json:
        return JsonTeller(sys.stdout)
    if sys.stdout.isatty():
        return LiveTeller(sys.stdout, state)
    return PlainTeller(sys.stdout)


# ------------------------------------------------------------------------------------------------------ reporter
def _warn(words: str) -> None:
    with suppress(OSError):
        print(f"supervisor: {words}", file=sys.stderr, flush=True)


class Reporter:
    """Tells what the journal holds after *after*. Its methods block; any thread may call them.

    When the reader of standard output goes away the run goes on, untold.
    """

    def __init__(self, journal: Path, *, after: int) -> None:
        self._journal, self.last = journal, after
        self._lock = threading.Lock()
        self._teller: Teller | None = None
        self._reader: JournalReader | None = None

    @property
    def started(self) -> bool:
        return self._reader is not None

    def start(self, teller: Teller) -> None:
        """The journal is there: begin.

        Raises:
            JournalError: it is not.
        """
        self._reader = JournalReader(self._journal)
        self._teller = teller

    def look(self) -> None:
        """Tell what is new."""
        self._telling(self._tell_new)

    def end(self, results: Sequence[TaskEnd], *, ok: bool) -> None:
        """Tell what is still untold, and the result."""
        self._telling(self._tell_new)
        self._telling(lambda teller: teller.end(results, ok=ok))

    def close(self) -> None:
        self._telling(lambda teller: teller.close())
        if self._reader is not None:
            self._reader.close()

    def _telling(self, tell: Callable[[Teller], None]) -> None:
        with self._lock:
            if self._teller is None:
                return
            try:
                tell(self._teller)
            except OSError as error:
                self._teller = None
                if not isinstance(error, BrokenPipeError):
                    _warn(f"standard output cannot be written, the run goes on untold: {error.strerror}")

    def _tell_new(self, teller: Teller) -> None:
        assert self._reader is not None, "a teller comes with the journal it tells"
        for event in self._reader.events(after_seq=self.last):
            self.last = event.seq
            teller.event(event)
        teller.drawn()
