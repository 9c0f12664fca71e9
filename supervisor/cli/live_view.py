"""What ``supervisor run`` shows while it runs: a table on a terminal, one line per event elsewhere, JSON for programs.

The journal is what is shown: a reporter prints the records after the last one it has printed, whenever it is told to
look again, so that a slow terminal misses nothing and delays nobody. A journal that cannot be written is told at once,
one that cannot be read is looked at again later. Only printing and reading happen here.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from supervisor.cli.calls import ToolCallIndex
from supervisor.cli.options import warn
from supervisor.cli.rendering import columns, duration, event_line, json_line
from supervisor.cli.session_table import RunTable, SessionRow
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import follow_from
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.redaction import printable
from supervisor.ports import JournalUnavailable
from supervisor.runtime.availability import Outage
from supervisor.work.results import TaskResult

__all__ = ["Reporter", "RunView", "results_json", "results_text", "view_for"]

TICK_S: Final = 0.2
"""How often the journal is looked at, and the table on a terminal drawn again."""


RECOVERED: Final = "recovered: the journal can be written again"


# ------------------------------------------------------------------------------------------------------- results
def results_text(results: Sequence[TaskResult]) -> str:
    """The table that a run ends with, and below it what is to be known of a task beside its outcome."""
    heads = ("TASK", "OUTCOME", "TOOK", "SESSION", "ERROR")
    rows = ((one.id, one.outcome, duration(one.took_s), one.session_id, one.error) for one in results)
    table = columns(heads, rows)
    return "\n".join([table, *(printable(f"{one.id}: {remark}") for one in results for remark in one.remarks)])


def results_json(results: Iterable[TaskResult], *, ok: bool) -> str:
    """The last line of ``supervisor run --json``."""
    return json_line({"ok": ok, "tasks": [one._asdict() for one in results]})


# ------------------------------------------------------------------------------------------------------- tellers
class RunView(Protocol):
    """One way to show a run. Methods may block; a :class:`Reporter` sees to it that only its own thread waits."""

    def event(self, event: LifecycleEvent) -> None: ...

    def outage(self, outage: Outage | None) -> None:
        """The journal cannot be written now, or, with ``None``, can again."""
        ...

    def refresh(self) -> None:
        """Everything new has been told: time to draw."""
        ...

    def end(self, results: Sequence[TaskResult], *, ok: bool) -> None: ...

    def close(self) -> None:
        """Leave standard output as it was found."""
        ...


class _LineView:
    """A teller that writes lines."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._calls = ToolCallIndex()

    def _write(self, text: str) -> None:
        self._out.write(f"{printable(text, lines=True)}\n")

    def refresh(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


class JsonView(_LineView):
    """One JSON object per record, one for each change of the disk, and one for the result."""

    def event(self, event: LifecycleEvent) -> None:
        self._write(json_line(event))

    def outage(self, outage: Outage | None) -> None:
        self._write(json_line({"outage": outage}))

    def end(self, results: Sequence[TaskResult], *, ok: bool) -> None:
        self._write(results_json(results, ok=ok))
        self._out.flush()


class PlainView(_LineView):
    """One line per record, and a table at the end."""

    def event(self, event: LifecycleEvent) -> None:
        self._write(event_line(event, self._calls.label(event)))

    def outage(self, outage: Outage | None) -> None:
        self._write(RECOVERED if outage is None else printable(outage.words))

    def end(self, results: Sequence[TaskResult], *, ok: bool) -> None:
        self._write(f"\n{results_text(results)}")
        self._out.flush()


class TableView:
    """A table that is drawn again and again, with the last words of every session."""

    def __init__(self, out: TextIO, state: StateDir) -> None:
        self._state = state
        self._table = RunTable()
        self._offsets: dict[str, int] = {}
        self._outage: Outage | None = None
        self._live = Live(console=Console(file=out), auto_refresh=False)
        self._live.start()

    def event(self, event: LifecycleEvent) -> None:
        self._table.take(event)

    def outage(self, outage: Outage | None) -> None:
        self._outage = outage

    def refresh(self) -> None:
        for line in self._table.rows.values():
            line.last_line = self._last_line(line)
        down = self._outage
        caption = Text(printable(down.words), style="bold red") if down is not None else None
        self._live.update(self._table.view(time.time(), caption), refresh=True)

    def _last_line(self, line: SessionRow) -> str:
        text, self._offsets[line.id] = follow_from(self._state.transcript(line.id), self._offsets.get(line.id, 0))
        words = [part for part in text.splitlines() if part.strip()]
        return words[-1].partition("| ")[2] or words[-1] if words else line.last_line

    def end(self, results: Sequence[TaskResult], *, ok: bool) -> None:
        self.close()
        self._live.console.print(f"\n{results_text(results)}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


def view_for(*, as_json: bool, state: StateDir) -> RunView:
    """What fits standard output."""
    if as_json:
        return JsonView(sys.stdout)
    if sys.stdout.isatty():
        return TableView(sys.stdout, state)
    return PlainView(sys.stdout)


# ------------------------------------------------------------------------------------------------------ reporter
class Reporter:
    """Tells what the journal holds after *after*. Its methods block; any thread may call them.

    When the reader of standard output goes away the run goes on, untold.
    """

    def __init__(self, journal: Path, *, after: int) -> None:
        self._journal, self.last = journal, after
        self._lock = threading.Lock()
        self._view: RunView | None = None
        self._down = False
        self._output_complete = True
        """Standard output has taken all that was told."""
        self._reader: JournalReader | None = None

    @property
    def started(self) -> bool:
        return self._reader is not None

    def start(self, view: RunView) -> None:
        """The journal is there: begin.

        Raises:
            JournalError: it is not.
        """
        self._reader = JournalReader(self._journal)
        self._view = view

    def update(self, outage: Outage | None = None) -> None:
        """Tell what is new. *outage*: the journal cannot be written now."""
        self._with_view(lambda view: self._show_outage(view, outage))
        self._with_view(self._show_new_records)

    def _show_outage(self, view: RunView, outage: Outage | None) -> None:
        if self._down != (outage is not None):
            self._down = outage is not None
            view.outage(outage)

    def end(self, results: Sequence[TaskResult], *, ok: bool) -> bool:
        """Tell what is still untold, and the result: there is one, so the journal could be written. Nothing is told
        after that.

        Returns:
            Whether the result is out. A reader that has gone away did not want it, and has the exit status: it is out.
            On a disk that is full, or a terminal that is lost, it is not.
        """
        self.update()
        self._with_view(lambda view: view.end(results, ok=ok))
        self._close_view()
        if not self._output_complete:
            with suppress(OSError):
                warn("the result could not be written; run the plan again to see it: nothing is done again for that")
        return self._output_complete

    def _close_view(self) -> None:
        self._with_view(lambda view: view.close())
        with self._lock:
            self._view = None

    def close(self) -> None:
        self._close_view()
        if self._reader is not None:
            self._reader.close()

    def _with_view(self, tell: Callable[[RunView], None]) -> None:
        with self._lock:
            if self._view is None:
                return
            try:
                tell(self._view)
            except OSError as error:
                self._view = None
                if not isinstance(error, BrokenPipeError):
                    self._output_complete = False
                    with suppress(OSError):
                        warn(f"standard output cannot be written, the run goes on untold: {error.strerror}")

    def _show_new_records(self, view: RunView) -> None:
        assert self._reader is not None, "a teller comes with the journal it tells"
        with suppress(JournalUnavailable):  # it is looked at again
            for event in self._reader.events(after_seq=self.last):
                self.last = event.seq
                view.event(event)
        view.refresh()
