"""Output of ``supervisor run``: a table on a terminal, one line per record elsewhere, JSON for programs.

Theory of operation
-------------------
The journal is the source. A :class:`Reporter` remembers the number of the last record that it has shown, and on each
:meth:`Reporter.update` reads the records after it and passes them to a :class:`RunView`. The run calls ``update`` every
``TICK_S`` seconds in a thread, so that a slow terminal misses no record and delays no session.

Two failures must not stop a run:

* The journal cannot be written: the view shows that at once. If the journal cannot be read either, the next update
  tries again.
* Standard output cannot be written, or the view has a defect: the run continues without output, and the log of ``-v``
  on standard error continues. If the reader closed the pipe, the result counts as delivered; after any other error it
  does not, and another run can print it again (``Reporter.end``).

No code of this module decides about the run.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Final, Literal, Protocol, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from supervisor.cli.options import state_dir_words, warn
from supervisor.cli.patient_output import PatientOutput
from supervisor.cli.progress import OUTPUT_MAX, OutputFollower, OutputLine, Progress, merged
from supervisor.cli.rendering import json_line
from supervisor.cli.results import results_json, results_text
from supervisor.cli.run_table import RunTable, fit
from supervisor.cli.terminal import table_width
from supervisor.diagnostics.tree_view import NOTHING
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import BEGINNING, Kind, LifecycleEvent, RecordId
from supervisor.policies.budgets import Amounts
from supervisor.policies.redaction import printable
from supervisor.policies.usage import USAGE_EVENTS, UsageTotals
from supervisor.ports import EntityRow, JournalUnavailable, Reader
from supervisor.ports.outages import Outage
from supervisor.work.results import PlanResult

TICK_S: Final = 0.2
"""Seconds between updates, and between redraws of the table."""


RECOVERED: Final = "recovered: the journal can be written again"
_logger = logging.getLogger("supervisor")


# ------------------------------------------------------------------------------------------------------- views
class RunView(Protocol):
    """Format of the output of a run. Methods may block; they run only in the thread of a :class:`Reporter`."""

    def begin(self, run_id: str) -> None:
        """Show the id of the run, before anything else of the run."""
        ...

    def show(
        self, events: Sequence[LifecycleEvent], rows: Sequence[EntityRow], used: Mapping[str, Amounts] = NOTHING
    ) -> None:
        """Show new records; *rows* are the entities that the records are about, after the records, and *used* is the
        reported usage by entity id."""
        ...

    def outage(self, outage: Outage | None) -> None:
        """Show that the journal cannot be written or, if *outage* is ``None``, that it can be written again."""
        ...

    def end(self, result: PlanResult) -> None: ...

    def close(self) -> None:
        """Restore standard output."""
        ...


class _LineView:
    """Base class of the views that write lines."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def _write(self, text: str) -> None:
        """Write one line at once, so that no line of standard error is inserted into it."""
        self._out.write(f"{printable(text, lines=True)}\n")
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


class JsonView(_LineView):
    """View for programs: a JSON object per record, per change of the journal's availability, and for the result."""

    def begin(self, run_id: str) -> None:
        self._write(json_line({"run": run_id}))

    def show(
        self, events: Sequence[LifecycleEvent], rows: Sequence[EntityRow], used: Mapping[str, Amounts] = NOTHING
    ) -> None:
        for event in events:
            self._write(json_line(event))

    def outage(self, outage: Outage | None) -> None:
        self._write(json_line({"outage": outage}))

    def end(self, result: PlanResult) -> None:
        self._write(results_json(result))


class PlainView(_LineView):
    """View for pipes, files and terminals without cursor movement: a line for what begins, fails, waits and ends, the
    output of the agents, and a table at the end. *before* are the entities of earlier runs, as for
    :class:`OutputFollower`."""

    def __init__(self, out: TextIO, state: StateDir, before: Sequence[EntityRow] = ()) -> None:
        super().__init__(out)
        self._state = state
        self._table = RunTable(state_dir_words(state.root))
        self._progress = Progress(self._table)
        self._output = OutputFollower(state, before)
        self._sessions: set[str] = set()

    def begin(self, run_id: str) -> None:
        self._write(f"run {run_id}")

    def show(
        self, events: Sequence[LifecycleEvent], rows: Sequence[EntityRow], used: Mapping[str, Amounts] = NOTHING
    ) -> None:
        self._table.take(events, rows)
        sessions = self._sessions | {row.id for row in rows if row.kind == Kind.SESSION}
        outputs: list[tuple[str, OutputLine]] = []
        for session in sorted(sessions):
            lines = self._output.new_lines(session)
            if len(lines) > OUTPUT_MAX:
                more = f"… {len(lines) - OUTPUT_MAX} more lines, see: supervisor logs {session}"
                lines = [OutputLine(lines[-OUTPUT_MAX].time, more), *lines[-OUTPUT_MAX:]]
            outputs += ((session, line) for line in lines)
        self._sessions = set(self._table.sessions())
        for session in sessions - self._sessions:
            self._output.drop(session)
        for text in merged(list(self._progress.lines(events)), outputs):
            self._write(text)

    def outage(self, outage: Outage | None) -> None:
        self._write(RECOVERED if outage is None else printable(outage.words))

    def end(self, result: PlanResult) -> None:
        self._write(f"\n{results_text(result, self._state.root, table_width())}")


class TableView:
    """View on a terminal: a table that is redrawn, below the lines about failures and those written to standard error.

    While the table is drawn, the lines of the process for standard error are kept and printed above the table with the
    next update, if standard error is a terminal too; otherwise they would be written into the table, and the table over
    them. The cursor stays visible: a killed supervisor leaves the terminal as it was. *now* returns Unix time.
    """

    def __init__(
        self,
        out: TextIO,
        state: StateDir,
        before: Sequence[EntityRow] = (),
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._state, self._now = state, now
        self._table = RunTable(state_dir_words(state.root))
        self._progress = Progress(self._table)
        self._output = OutputFollower(state, before)
        self._outage: Outage | None = None
        self._drawn: object = None
        """Second, outage and size of the terminal of the last frame."""
        self._errors = ErrorLines(sys.stderr) if sys.stderr.isatty() else None
        colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        self._console = Console(file=out, color_system=colours, highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()
        self._console.show_cursor(True)
        if self._errors is not None:
            sys.stderr = self._errors

    def begin(self, run_id: str) -> None:
        pass  # the heading of the table names it

    def show(
        self, events: Sequence[LifecycleEvent], rows: Sequence[EntityRow], used: Mapping[str, Amounts] = NOTHING
    ) -> None:
        self._table.take(events, rows)
        self._table.used = used
        for line in self._progress.lines(events):
            if line.is_failure:
                self._print(str(line), style="red")
        now, changed = self._now(), bool(rows)
        for session in self._table.sessions():
            if lines := self._output.new_lines(session):
                self._table.last_lines[session], self._table.active_at[session] = lines[-1].text, now
                changed = True
        self._print_errors()
        drawn = int(now), self._outage, self._console.size
        if changed or drawn != self._drawn:  # ages are whole seconds
            self._drawn = drawn
            self._live.update(Group(*self._frame(now)), refresh=True)

    def _frame(self, now: float) -> list[Text]:
        """Return the rows of the table, at most as many as the terminal has."""
        width, height = self._console.size
        below = [one for one in [self._table.ended()] if one is not None]
        above = [Text(printable(self._table.headline()), style="bold")] if self._table.headline() else []
        above += [Text(printable(words), style="bold yellow") for words in self._table.alerts()]
        if self._outage is not None:
            below.append(Text(printable(self._outage.words), style="bold red"))
        used = sum(len(one.wrap(self._console, width)) for one in (*above, *below))
        return [*above, *fit(self._table.lines(now), width=width, height=height - 1 - used, now=now), *below]

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(printable(text), style=style), soft_wrap=True)

    def _print_errors(self) -> None:
        for text in self._errors.take() if self._errors is not None else ():
            self._print(text)

    def outage(self, outage: Outage | None) -> None:
        self._outage = outage

    def end(self, result: PlanResult) -> None:
        self._live.transient = True  # the table of the results says the same
        self.close()
        self._console.print(Text(results_text(result, self._state.root, table_width())), soft_wrap=True)

    def close(self) -> None:
        try:
            self._print_errors()
            self._live.stop()
        finally:
            if self._errors is not None:
                self._errors.restore()


class ErrorLines(io.TextIOBase):
    """Stand-in for standard error that keeps lines until :meth:`take`; any thread may write."""

    encoding = "utf-8"

    def __init__(self, stderr: TextIO) -> None:
        self._stderr = stderr
        self._lock = threading.Lock()
        self._text = ""

    def write(self, text: str) -> int:
        with self._lock:
            self._text += text
        return len(text)

    def isatty(self) -> bool:
        return True

    def take(self) -> list[str]:
        """Remove and return the lines that are complete."""
        with self._lock:
            *lines, self._text = self._text.split("\n")
        return lines

    def restore(self) -> None:
        """Make the real standard error the standard error again, and write to it what was not taken."""
        if sys.stderr is self:
            sys.stderr = self._stderr
        with self._lock:
            rest, self._text = self._text, ""
        self._stderr.write(rest)
        self._stderr.flush()


def draws_table(out: TextIO) -> bool:
    """Return whether a table can be drawn on *out*: a terminal that can move the cursor."""
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


def view_for(
    *, as_json: bool, state: StateDir, before: Sequence[EntityRow] = (), is_over: Callable[[], bool] = lambda: False
) -> RunView:
    """Return the view that suits standard output: JSON if requested, a table on a terminal that can move the cursor,
    else lines. Characters that the encoding of the output does not have are replaced. *before* are the entities of
    earlier runs, as for :class:`OutputFollower`; *is_over* says whether the run has ended, as for
    :class:`PatientOutput`."""
    sys.stdout.flush()
    out = cast(TextIO, PatientOutput(sys.stdout, is_over))
    if as_json:
        return JsonView(out)
    if draws_table(sys.stdout):
        return TableView(out, state, before)
    return PlainView(out, state, before)


# ------------------------------------------------------------------------------------------------------ reporter
class Reporter:
    """Reporter that shows the journal's records after number *after* in a view, and passes each to *log*, the log of
    ``-v``. *select* returns the records to show among new ones; by default, all are shown. The methods block; any
    thread may call them.

    After the reader of standard output has gone away the run continues without output, and the log continues.
    """

    def __init__(
        self,
        *,
        after: RecordId,
        log: Callable[[LifecycleEvent], None] | None = None,
        select: Callable[[Iterable[LifecycleEvent]], list[LifecycleEvent]] = list,
    ) -> None:
        self.last, self._log, self._select = after, log, select
        self.over = threading.Event()
        """Set when the run is over: from then on, a reader that has stopped reading is not waited for."""
        self._lock = threading.RLock()
        self._view: RunView | None = None
        self._is_begun = self._down = False
        self._output_complete = True
        """True while standard output has taken everything that was shown."""
        self._reader: Reader | None = None
        self._open = ExitStack()
        self._begin = after
        self._usage = UsageTotals()
        self._used: Mapping[str, Amounts] = NOTHING
        self._changed: dict[str, None] = {}
        """Ids of the entities whose rows were not read since their last records."""

    @property
    def started(self) -> bool:
        return self._reader is not None

    def start(self, reader: AbstractContextManager[Reader], make_view: Callable[[], RunView]) -> None:
        """Begin to report what *reader* reads, until :meth:`close`, in the view that *make_view* returns."""
        self._reader = self._open.enter_context(reader)
        self._view = make_view()

    def begin(self, run_id: str) -> None:
        """Show the id of the run, at the first call."""
        with self._lock:
            if not self._is_begun:
                self._is_begun = True
                self._with_view(lambda view: view.begin(run_id))

    def show_outage(self, outage: Outage | None) -> None:
        """Show that the journal cannot be written, or that it can be written again, if that has changed."""
        with self._lock:
            self._with_view(lambda view: self._show_outage(view, outage))

    def update(self, outage: Outage | None = None) -> None:
        """Show the new records. *outage*: the reason why the journal cannot be written now, or ``None``."""
        with self._lock:
            self.show_outage(outage)
            if self._view is None and self._log is None:
                return
            events, rows = self._new_records()
            if self._log is not None:
                for event in events:
                    self._log(event)
            self._with_view(lambda view: view.show(events, rows, self._used))

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
        self.over.set()  # before the lock, which an update may hold that waits for the reader
        with self._lock:
            self.update()
            self._with_view(lambda view: view.end(result))
            self._end_output()
        if not self._output_complete:
            with suppress(OSError):
                warn("the result could not be written; run the plan again to print it, no task is repeated for that")
        return self._output_complete

    def _end_output(self) -> None:
        self._with_view(lambda view: view.close())
        self._view = self._log = None

    def close(self) -> None:
        self.over.set()
        with self._lock:  # an update may still run in an abandoned thread
            self._end_output()
            self._open.close()

    def _with_view(self, call: Callable[[RunView], None]) -> None:
        """Call *call* with the view, if there is one. A view that fails is closed and dropped: the output must not end
        the run, whatever the error is."""
        if self._view is None:
            return
        try:
            call(self._view)
        except Exception as error:
            lost, self._view = self._view, None
            with suppress(Exception):
                lost.close()
            if isinstance(error, BrokenPipeError):
                return
            self._output_complete = False
            if isinstance(error, OSError):
                words = f"standard output cannot be written, the run continues without output: {error.strerror}"
            else:
                words = f"the output failed, the run continues without output: {type(error).__name__}: {error}"
                _logger.debug("the output failed", exc_info=error)
            with suppress(OSError):
                warn(words)

    def _new_records(self) -> tuple[list[LifecycleEvent], list[EntityRow]]:
        """Return the records that were not shown yet, and the rows of the entities that they are about."""
        assert self._reader is not None, "start() sets the view and the reader"
        events: list[LifecycleEvent] = []
        rows: list[EntityRow] = []
        with suppress(JournalUnavailable):  # the next update tries again
            new: list[LifecycleEvent] = []
            try:
                for event in self._reader.events(after_seq=self.last):
                    new.append(event)
                    self.last = event.seq
            finally:
                events = self._select(new)
                for event in events:
                    self._usage.take(event)
                self._changed |= dict.fromkeys(event.entity_id for event in events)
            rows = self._reader.entities(ids=list(self._changed)) if self._changed else []
            if any(row.kind == Kind.WORKSTREAM and row.born_seq <= self._begin for row in rows):
                # The run continues the workstream of an earlier run: the tasks without new records belong to it too.
                rows, self._begin = self._reader.entities(), BEGINNING
                before = (one for one in self._reader.events_named(*USAGE_EVENTS) if one.seq <= self.last)
                self._usage = UsageTotals(before)
                self._used = self._usage.sums()
            elif any(event.event in USAGE_EVENTS for event in events):
                self._used = self._usage.sums()
            self._changed.clear()
        return events, rows
