"""Output of ``supervisor run``: a table on a terminal, one line per record elsewhere, JSON for programs.

Theory of operation
-------------------
The journal is the source. A :class:`Reporter` remembers the number of the last record that it has shown, and on each
:meth:`Reporter.update` reads the records after it and passes them to a :class:`RunView`. The run calls ``update`` every
``TICK_S`` seconds in a thread, so that a slow terminal misses no record and delays no session.

Two failures must not stop a run:

* The journal cannot be written: the view shows that at once. If the journal cannot be read either, the next update
  tries again.
* Standard output cannot be written: the run continues without output. If the reader closed the pipe, the result counts
  as delivered; after any other error it does not, and another run can print it again (``Reporter.end``).

No code of this module decides about the run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from supervisor.cli.calls import ToolCallIndex
from supervisor.cli.options import warn
from supervisor.cli.rendering import event_line, json_line
from supervisor.cli.results import results_json, results_text
from supervisor.cli.session_table import RunTable, SessionRow
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import follow_from
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.redaction import printable
from supervisor.ports import JournalUnavailable
from supervisor.runtime.outages import Outage
from supervisor.work.results import PlanResult

TICK_S: Final = 0.2
"""Seconds between updates, and between redraws of the table."""


RECOVERED: Final = "recovered: the journal can be written again"


# ------------------------------------------------------------------------------------------------------- views
class RunView(Protocol):
    """Format of the output of a run. Methods may block; they run only in the thread of a :class:`Reporter`."""

    def event(self, event: LifecycleEvent) -> None: ...

    def outage(self, outage: Outage | None) -> None:
        """Show that the journal cannot be written or, if *outage* is ``None``, that it can be written again."""
        ...

    def refresh(self) -> None:
        """Draw or flush the output after all new records are shown."""
        ...

    def end(self, result: PlanResult) -> None: ...

    def close(self) -> None:
        """Restore standard output."""
        ...


class _LineView:
    """Base class of the views that write lines."""

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
    """View for programs: a JSON object per record, per change of the journal's availability, and for the result."""

    def event(self, event: LifecycleEvent) -> None:
        self._write(json_line(event))

    def outage(self, outage: Outage | None) -> None:
        self._write(json_line({"outage": outage}))

    def end(self, result: PlanResult) -> None:
        self._write(results_json(result))
        self._out.flush()


class PlainView(_LineView):
    """View without a terminal: one line per record, and a table at the end."""

    def __init__(self, out: TextIO, state: StateDir) -> None:
        super().__init__(out)
        self._state = state

    def event(self, event: LifecycleEvent) -> None:
        self._write(event_line(event, self._calls.label(event)))

    def outage(self, outage: Outage | None) -> None:
        self._write(RECOVERED if outage is None else printable(outage.words))

    def end(self, result: PlanResult) -> None:
        self._write(f"\n{results_text(result, self._state.root)}")
        self._out.flush()


class TableView:
    """View on a terminal: a table that is redrawn, with the last line of output of every session."""

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

    def end(self, result: PlanResult) -> None:
        self.close()
        self._live.console.print(
            f"\n{results_text(result, self._state.root)}", markup=False, highlight=False, soft_wrap=True
        )

    def close(self) -> None:
        self._live.stop()


def view_for(*, as_json: bool, state: StateDir) -> RunView:
    """Return the view that suits standard output: JSON if requested, a table on a terminal, else lines."""
    if as_json:
        return JsonView(sys.stdout)
    if sys.stdout.isatty():
        return TableView(sys.stdout, state)
    return PlainView(sys.stdout, state)


# ------------------------------------------------------------------------------------------------------ reporter
class Reporter:
    """Reporter that shows the journal's records after number *after* in a view. The methods block; any thread may call
    them.

    After the reader of standard output has gone away the run continues without output.
    """

    def __init__(self, journal: Path, *, after: int) -> None:
        self._journal, self.last = journal, after
        self._lock = threading.Lock()
        self._view: RunView | None = None
        self._down = False
        self._output_complete = True
        """True while standard output has taken everything that was shown."""
        self._reader: JournalReader | None = None

    @property
    def started(self) -> bool:
        return self._reader is not None

    def start(self, view: RunView) -> None:
        """Begin to report in *view*; the journal must exist.

        Raises:
            JournalError: the journal cannot be opened.
        """
        self._reader = JournalReader(self._journal)
        self._view = view

    def update(self, outage: Outage | None = None) -> None:
        """Show the new records. *outage*: the reason why the journal cannot be written now, or ``None``."""
        self._with_view(lambda view: self._show_outage(view, outage))
        self._with_view(self._show_new_records)

    def _show_outage(self, view: RunView, outage: Outage | None) -> None:
        if self._down != (outage is not None):
            self._down = outage is not None
            view.outage(outage)

    def end(self, result: PlanResult) -> bool:
        """Print the remaining records and the result, then end the output.

        Returns:
            Whether the result was delivered. It counts as delivered if the reader has closed the pipe, since the reader
            has the exit status; it is not delivered if the disk is full or the terminal is lost.
        """
        self.update()
        self._with_view(lambda view: view.end(result))
        self._close_view()
        if not self._output_complete:
            with suppress(OSError):
                warn("the result could not be written; run the plan again to print it, no task is repeated for that")
        return self._output_complete

    def _close_view(self) -> None:
        self._with_view(lambda view: view.close())
        with self._lock:
            self._view = None

    def close(self) -> None:
        self._close_view()
        if self._reader is not None:
            self._reader.close()

    def _with_view(self, call: Callable[[RunView], None]) -> None:
        with self._lock:
            if self._view is None:
                return
            try:
                call(self._view)
            except OSError as error:
                self._view = None
                if not isinstance(error, BrokenPipeError):
                    self._output_complete = False
                    with suppress(OSError):
                        warn(f"standard output cannot be written, the run continues without output: {error.strerror}")

    def _show_new_records(self, view: RunView) -> None:
        assert self._reader is not None, "start() sets the view and the reader"
        with suppress(JournalUnavailable):  # the next update tries again
            for event in self._reader.events(after_seq=self.last):
                self.last = event.seq
                view.event(event)
        view.refresh()
