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

from supervisor.cli.calls import Calls
from supervisor.cli.options import warn
from supervisor.cli.rendering import columns, duration, event_line, json_line
from supervisor.cli.session_table import Board, Line
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import follow_from
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.redaction import printable
from supervisor.ports import JournalUnavailable
from supervisor.runtime.availability import Outage
from supervisor.work.results import TaskResult

__all__ = ["Reporter", "Teller", "results_json", "results_text", "teller_for"]

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
class Teller(Protocol):
    """One way to show a run. Methods may block; a :class:`Reporter` sees to it that only its own thread waits."""

    def event(self, event: LifecycleEvent) -> None: ...

    def outage(self, outage: Outage | None) -> None:
        """The journal cannot be written now, or, with ``None``, can again."""
        ...

    def drawn(self) -> None:
        """Everything new has been told: time to draw."""
        ...

    def end(self, results: Sequence[TaskResult], *, ok: bool) -> None: ...

    def close(self) -> None:
        """Leave standard output as it was found."""
        ...


class _Lines:
    """A teller that writes lines."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._calls = Calls()

    def _write(self, text: str) -> None:
        self._out.write(f"{printable(text, lines=True)}\n")

    def drawn(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


class JsonTeller(_Lines):
    """One JSON object per record, one for each change of the disk, and one for the result."""

    def event(self, event: LifecycleEvent) -> None:
        self._write(json_line(event))

    def outage(self, outage: Outage | None) -> None:
        self._write(json_line({"outage": outage}))

    def end(self, results: Sequence[TaskResult], *, ok: bool) -> None:
        self._write(results_json(results, ok=ok))
        self._out.flush()


class PlainTeller(_Lines):
    """One line per record, and a table at the end."""

    def event(self, event: LifecycleEvent) -> None:
        self._write(event_line(event, self._calls.label(event)))

    def outage(self, outage: Outage | None) -> None:
        self._write(RECOVERED if outage is None else printable(outage.words))

    def end(self, results: Sequence[TaskResult], *, ok: bool) -> None:
        self._write(f"\n{results_text(results)}")
        self._out.flush()


class LiveTeller:
    """A table that is drawn again and again, with the last words of every session."""

    def __init__(self, out: TextIO, state: StateDir) -> None:
        self._state = state
        self._board = Board()
        self._offsets: dict[str, int] = {}
        self._outage: Outage | None = None
        self._live = Live(console=Console(file=out), auto_refresh=False)
        self._live.start()

    def event(self, event: LifecycleEvent) -> None:
        self._board.take(event)

    def outage(self, outage: Outage | None) -> None:
        self._outage = outage

    def drawn(self) -> None:
        for line in self._board.lines.values():
            line.said = self._last_words(line)
        down = self._outage
        caption = Text(printable(down.words), style="bold red") if down is not None else None
        self._live.update(self._board.view(time.time(), caption), refresh=True)

    def _last_words(self, line: Line) -> str:
        text, self._offsets[line.id] = follow_from(self._state.transcript(line.id), self._offsets.get(line.id, 0))
        words = [part for part in text.splitlines() if part.strip()]
        return words[-1].partition("| ")[2] or words[-1] if words else line.said

    def end(self, results: Sequence[TaskResult], *, ok: bool) -> None:
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
class Reporter:
    """Tells what the journal holds after *after*. Its methods block; any thread may call them.

    When the reader of standard output goes away the run goes on, untold.
    """

    def __init__(self, journal: Path, *, after: int) -> None:
        self._journal, self.last = journal, after
        self._lock = threading.Lock()
        self._teller: Teller | None = None
        self._down = False
        self._is_out = True
        """Standard output has taken all that was told."""
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

    def look(self, outage: Outage | None = None) -> None:
        """Tell what is new. *outage*: the journal cannot be written now."""
        self._telling(lambda teller: self._tell_disk(teller, outage))
        self._telling(self._tell_new)

    def _tell_disk(self, teller: Teller, outage: Outage | None) -> None:
        if self._down != (outage is not None):
            self._down = outage is not None
            teller.outage(outage)

    def end(self, results: Sequence[TaskResult], *, ok: bool) -> bool:
        """Tell what is still untold, and the result: there is one, so the journal could be written. Nothing is told
        after that.

        Returns:
            Whether the result is out. A reader that has gone away did not want it, and has the exit status: it is out.
            On a disk that is full, or a terminal that is lost, it is not.
        """
        self.look()
        self._telling(lambda teller: teller.end(results, ok=ok))
        self._end_telling()
        if not self._is_out:
            with suppress(OSError):
                warn("the result could not be written; run the plan again to see it: nothing is done again for that")
        return self._is_out

    def _end_telling(self) -> None:
        self._telling(lambda teller: teller.close())
        with self._lock:
            self._teller = None

    def close(self) -> None:
        self._end_telling()
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
                    self._is_out = False
                    with suppress(OSError):
                        warn(f"standard output cannot be written, the run goes on untold: {error.strerror}")

    def _tell_new(self, teller: Teller) -> None:
        assert self._reader is not None, "a teller comes with the journal it tells"
        with suppress(JournalUnavailable):  # it is looked at again
            for event in self._reader.events(after_seq=self.last):
                self.last = event.seq
                teller.event(event)
        teller.drawn()
