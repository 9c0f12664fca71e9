"""``supervisor logs``: the transcript of a session; of several sessions with the same name, the newest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import has_ended, open_journal, pause, sessions_named, task_given, with_run
from supervisor.cli.options import examples, json_option, run_option, say, state_dir_option, warn
from supervisor.cli.rendering import json_line
from supervisor.control.error_messages import BadInput
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import follow_from
from supervisor.lifecycles.run_ids import name_of_task
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.ports import Reader

_TRANSCRIPT_LINE: Final = re.compile(r"(?P<timestamp>\d\d:\d\d:\d\d\.\d{3}) (?P<source>\w+)\| (?P<text>.*)")
"""Pattern of a line of a transcript; the time of day is UTC. Other lines are notes of the transcript itself."""


@click.command(
    "logs",
    epilog=examples(
        "supervisor logs fix -f            # what the agents of fix write, until the task has ended",
        "supervisor logs fix-2 --exact     # an older session of the same name",
    ),
)
@click.argument("entity_id", metavar="ID", shell_complete=complete_ids(Kind.TASK, Kind.SESSION))
@click.option("-f", "--follow", is_flag=True, help="Continue until the task, or the session, has ended.")
@click.option("--exact", is_flag=True, help="ID is the id of one session, also if later sessions have its name.")
@run_option
@state_dir_option
@json_option
def logs_command(entity_id: str, follow: bool, exact: bool, run: str | None, state_dir: Path, as_json: bool) -> None:
    """ID is the name of a task, or the id of a task (RUN#TASK) or session. If several sessions have worked on the task,
    or had the name, the newest is printed."""
    with open_journal(state_dir) as (state, reader):
        _Logs(state, reader, with_run(entity_id, run), exact=exact, as_json=as_json).print(follow=follow)


class _Logs:
    """Printer of the transcripts of the sessions that *entity_id* means."""

    def __init__(self, state: StateDir, reader: Reader, entity_id: str, *, exact: bool, as_json: bool) -> None:
        self._state, self._reader, self._id = state, reader, entity_id
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
        return _TranscriptPrinter(self._state.transcript(session), session, self._as_json)

    def _goes_on(self, task: str, session: str) -> bool:
        """Return whether more output may come: a supervisor runs, and the task, or the session without a task, has not
        ended."""
        row = self._reader.entity(task or session)
        return row is not None and not has_ended(self._reader, row) and self._state.lock_holder() is not None


class _TranscriptPrinter:
    """Printer of the lines of a transcript; prints each line when it is complete."""

    def __init__(self, path: Path, session: str, as_json: bool) -> None:
        self._path, self.session, self._as_json = path, session, as_json
        self._offset, self._held = 0, ""

    def print_new(self) -> None:
        text, self._offset = follow_from(self._path, self._offset)
        *lines, self._held = (self._held + text).split("\n")
        for line in lines:
            self._show(line)

    def end(self) -> None:
        self.print_new()
        if self._held:
            self._show(self._held)

    def _show(self, line: str) -> None:
        if self._as_json:
            said = _TRANSCRIPT_LINE.fullmatch(line)
            parts = said.groupdict() if said else {"timestamp": None, "source": None, "text": line}
            say(json_line({"session": self.session, **parts}))
        else:
            say(line)
