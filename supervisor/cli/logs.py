"""``supervisor logs``: the transcript of a session, of several sessions with the same name the newest; or all of them.

With ``--all`` the lines of all sessions are printed in the order of their times, each with the name of its session.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import has_ended, open_journal, pause, run_given, sessions_named, task_given, with_run
from supervisor.cli.options import examples, json_option, run_option, say, state_dir_option, warn
from supervisor.cli.rendering import json_line
from supervisor.cli.transcript_times import TRANSCRIPT_LINE, line_times, read_since
from supervisor.control.error_messages import BadInput
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import follow_from, last_written_at
from supervisor.lifecycles.run_ids import name_of_task
from supervisor.lifecycles.types import Kind, LifecycleEvent, RecordId
from supervisor.ports import EntityRow, Reader


@click.command(
    "logs",
    epilog=examples(
        "supervisor logs fix -f            # what the agents of fix write, until the task has ended",
        "supervisor logs fix-2 --exact     # an older session of the same name",
        "supervisor logs --all --since 10m # what all agents have written in the last ten minutes",
    ),
)
@click.argument("entity_id", metavar="[ID]", required=False, shell_complete=complete_ids(Kind.TASK, Kind.SESSION))
@click.option("--all", "of_all", is_flag=True, help="All sessions, in the order of time; with --run, those of a run.")
@click.option(
    "--since",
    metavar="TIME",
    help="Only lines since TIME: 10m or 2h ago, 14:30, or a date and time (2026-03-01T14:30).",
)
@click.option("-f", "--follow", is_flag=True, help="Continue until the task, session or supervisor has ended.")
@click.option("--exact", is_flag=True, help="ID is the id of one session, also if later sessions have its name.")
@run_option
@state_dir_option
@json_option
def logs_command(
    entity_id: str | None,
    of_all: bool,
    since: str | None,
    follow: bool,
    exact: bool,
    run: str | None,
    state_dir: Path,
    as_json: bool,
) -> None:
    """ID is the name of a task, or the id of a task (RUN#TASK) or session. If several sessions have worked on the task,
    or had the name, the newest is printed. Times of lines are UTC; TIME is local unless it has an offset."""
    if of_all and (entity_id is not None or exact):
        raise BadInput("--all: it means every session; leave out ID and --exact, or --all")
    if entity_id is None and not of_all:
        raise BadInput("ID: missing; name a task or session (`supervisor ps` shows them), or give --all")
    since_at = _read_since(since)
    with open_journal(state_dir) as (state, reader):
        if entity_id is None:
            run_id = run_given(reader, run).id if run is not None else ""
            _AllLogs(state, reader, run_id, since_at, as_json=as_json).print(follow=follow)
            return
        given = with_run(entity_id, run)
        _Logs(state, reader, given, since_at, exact=exact, as_json=as_json).print(follow=follow)


def _read_since(text: str | None) -> float:
    """Return the Unix time of the option ``--since``; 0 if it was not given.

    Raises:
        BadInput: *text* is no time.
    """
    if text is None:
        return 0.0
    try:
        return read_since(text, time.time())
    except (ValueError, OverflowError):
        raise BadInput(f"--since: {text!r} is no time; give 10m, 2h, 14:30, or 2026-03-01T14:30") from None


class _Logs:
    """Printer of the transcripts of the sessions that *entity_id* means."""

    def __init__(
        self, state: StateDir, reader: Reader, entity_id: str, since: float, *, exact: bool, as_json: bool
    ) -> None:
        self._state, self._reader, self._id, self._since = state, reader, entity_id, since
        self._exact, self._as_json = exact, as_json

    def print(self, *, follow: bool) -> None:
        """Print the newest session's transcript; with *follow* also what comes until the end, including the transcripts
        of sessions that begin meanwhile.

        Raises:
            UnknownId: nothing has the id.
            BadInput: the id is that of a task without a session.
        """
        seq = self._reader.last_seq
        sessions, task = self._sessions(), self._task()
        if not sessions and not (follow and self._goes_on(task, "")):
            raise BadInput(f"{self._id}: no session has worked on this task yet; `supervisor tree` shows why it waits")
        if len(sessions) > 1:
            older = ", ".join(f"`supervisor logs {one} --exact`" for one in sessions[:-1])
            warn(f"{sessions[-1]} is the newest of {len(sessions)} sessions of {self._id}; the older ones: {older}")
        current = self._printer(sessions)
        goes_on = follow
        while goes_on:
            goes_on = self._goes_on(task, current.session)  # asked first: what was said before the end is still read
            named = False
            for event in self._reader.events(after_seq=seq):
                seq, named = event.seq, named or self._names(event)
            if named:
                goes_on, task = True, self._task()  # the task may be another one now: asked again after the pause
                if (newer := self._sessions()) != sessions:
                    sessions = newer
                    current.end()
                    warn(f"{sessions[-1]} works on {self._id} now")
                    current = self._printer(sessions)
            current.print_new()
            if goes_on:
                pause()
        current.end()

    def _sessions(self) -> Sequence[str]:
        found = sessions_named(self._reader, self._id, running=self._is_running())
        return [self._id] if self._exact and self._id in found else found

    def _task(self) -> str:
        """Return the id of the newest task that *entity_id* means; ``""`` if it means a session."""
        task = None if self._exact else task_given(self._reader.entities(), self._id, running=self._is_running())
        return task.id if task is not None else ""

    def _is_running(self) -> bool:
        return self._state.lock_holder() is not None

    def _names(self, event: LifecycleEvent) -> bool:
        """Return whether a record may change the sessions or the task that *entity_id* means: only then all entities
        are read again, since a large plan has thousands. The id of a later task or session of a name contains the
        name."""
        born = event.event == "Born" and event.entity_type in (Kind.TASK, Kind.SESSION)
        name = name_of_task(self._id).partition("/")[0]
        return (born or event.event == "claimed") and name in event.entity_id

    def _printer(self, sessions: Sequence[str]) -> _TranscriptPrinter:
        session = sessions[-1] if sessions else ""
        transcript = TranscriptLines(self._state.transcript(session), session, self._since)
        return _TranscriptPrinter(transcript, session, self._as_json)

    def _goes_on(self, task: str, session: str) -> bool:
        """Return whether more output may come: a supervisor runs, and the task, or the session without a task, has not
        ended."""
        row = self._reader.entity(task or session)
        return row is not None and not has_ended(row) and self._state.lock_holder() is not None


class _AllLogs:
    """Printer of the transcripts of all sessions, or of those of the run *run_id*: the lines since the Unix time
    *since*, in the order of their times."""

    def __init__(self, state: StateDir, reader: Reader, run_id: str, since: float, *, as_json: bool) -> None:
        self._state, self._reader, self._run_id, self._since = state, reader, run_id, since
        self._as_json = as_json
        self._transcripts: dict[str, TranscriptLines] = {}
        self._rows: list[EntityRow] = []
        self._seq: RecordId | None = None
        """Number of the last record when the rows were read: they are read again only after another record."""
        self._over: set[str] = set()
        """Sessions that had ended when their transcript was read."""

    def print(self, *, follow: bool) -> None:
        """Print what there is; with *follow* also what comes until the supervisor has ended."""
        goes_on = True
        while goes_on:
            goes_on = follow and self._state.lock_holder() is not None  # asked first: what came before is still read
            self._print_new(end=not goes_on)
            if goes_on:
                pause()

    def _print_new(self, *, end: bool) -> None:
        if (seq := self._reader.last_seq) != self._seq:
            self._rows, self._seq = self._sessions(), seq
        rows = self._rows
        lines = [self._lines_of(row, end=end or row.ended) for row in rows if row.id not in self._over]
        self._over |= {row.id for row in rows if row.ended}
        for _, session, line in heapq.merge(*lines, key=lambda one: one[0]):
            said = TRANSCRIPT_LINE.fullmatch(line)
            if self._as_json:
                say(line_json(session, line))
            elif said is not None:
                say(f"{said['timestamp']} {session} {said['source']}| {said['text']}")
            else:
                say(f"{session} {line}")

    def _lines_of(self, row: EntityRow, *, end: bool) -> Iterator[tuple[float, str, str]]:
        path = self._state.transcript(row.id)
        transcript = self._transcripts.setdefault(row.id, TranscriptLines(path, row.id, self._since))
        for at, line in transcript.take(end=end):
            yield at, row.id, line

    def _sessions(self) -> list[EntityRow]:
        rows = self._reader.entities()
        sessions = [row for row in rows if row.kind == Kind.SESSION]
        if not self._run_id:
            return sessions
        claims = (one for one in self._reader.events_named("claimed") if one.entity_id.startswith(f"{self._run_id}#"))
        holders = {str(one.metadata.get("by")) for one in claims}
        return [row for row in sessions if row.id.partition("/")[0] in holders]


class TranscriptLines:
    """Reader of the complete lines of a transcript that are not older than the Unix time *since*, each with its time;
    *since* 0: all lines."""

    def __init__(self, path: Path, session: str, since: float) -> None:
        self._path, self.session, self._since = path, session, since
        self._offset, self._held = 0, ""

    def take(self, *, end: bool) -> Iterable[tuple[float, str]]:
        """Return the lines that are new since the last call; at the *end* also an unfinished line."""
        # Asked first: what is written meanwhile is not dated too early.
        last_at = last_written_at(self._path.parent, self._path.name)
        if last_at is None or (not self._offset and last_at < self._since):
            return []
        text, self._offset = follow_from(self._path, self._offset)
        *lines, self._held = (self._held + text).split("\n")
        if end and self._held:
            lines, self._held = [*lines, self._held], ""
        dated = zip(line_times(lines, last_at), lines, strict=True)
        return [(at, line) for at, line in dated if at >= self._since]


class _TranscriptPrinter:
    """Printer of the lines of a transcript; prints each line when it is complete."""

    def __init__(self, transcript: TranscriptLines, session: str, as_json: bool) -> None:
        self._transcript, self.session, self._as_json = transcript, session, as_json

    def print_new(self) -> None:
        self._print(end=False)

    def end(self) -> None:
        self._print(end=True)

    def _print(self, *, end: bool) -> None:
        for _, line in self._transcript.take(end=end):
            say(line_json(self.session, line) if self._as_json else line)


def line_json(session: str, line: str) -> str:
    """Return a line of the transcript of a session as a JSON object."""
    said = TRANSCRIPT_LINE.fullmatch(line)
    parts = said.groupdict() if said else {"timestamp": None, "source": None, "text": line}
    return json_line({"session": session, **parts})
