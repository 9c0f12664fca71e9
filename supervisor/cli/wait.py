"""``supervisor wait``: wait until a task, a session or the run of a plan has ended; the exit status is its outcome."""

from __future__ import annotations

import time
from math import isfinite
from pathlib import Path

import click

from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import has_ended, newest_of_name, pause, task_given, unknown_id, with_run
from supervisor.cli.options import examples, json_option, run_option, say, state_dir_option, state_dir_words, warn
from supervisor.cli.rendering import json_text
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput, TimedOut, WorkFailed
from supervisor.diagnostics.outcomes import Outcomes
from supervisor.diagnostics.run_summary import merge_obstacle
from supervisor.diagnostics.tree_view import ps
from supervisor.embedding.journals import read_state
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.task import ENDS_WELL, Task
from supervisor.lifecycles.types import Kind
from supervisor.policies.redaction import printable
from supervisor.ports import EntityRow, Reader

_KINDS = (Kind.TASK, Kind.SESSION, Kind.WORKSTREAM)
_FOR_A_PERSON = (Task.PLANNED.value, Task.PENDING_APPROVAL.value)
"""States of a task that end with an approval or a rejection."""


@click.command("wait", epilog=examples("supervisor wait fix --timeout 600 && git push"))
@click.argument("entity_id", metavar="[ID]", required=False, shell_complete=complete_ids(*_KINDS))
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up after this time."
)
@run_option
@state_dir_option
@json_option
def wait_command(
    entity_id: str | None, timeout_s: float | None, run: str | None, state_dir: Path, as_json: bool
) -> int:
    """ID is the name of a task, or the id of a task (RUN#TASK), a session or a run; without ID, the newest run, or the
    run of --run, is waited for. Prints the word for the end: completed, skipped, rejected, failed, aborted (somebody's
    decision), cancelled (the plan's) or blocked (by what it depends on). While a `supervisor run` starts, nothing is
    answered. While a supervisor runs, a name and the run are not those of a run that ended before the supervisor began:
    `wait` waits for a newer one. Without a supervisor they are the newest; a `supervisor run` counts from the moment it
    has locked the state directory. Exit status: 0 it was completed, skipped or rejected, 1 it ended otherwise or its
    supervisor has died, 124 it has not ended within --timeout."""
    if timeout_s is not None and not isfinite(timeout_s):
        raise BadInput(f"--timeout: {timeout_s} is not a duration; give seconds, 0 or more")
    deadline = _Deadline(timeout_s)
    if run is not None:
        entity_id = with_run(entity_id, run) if entity_id is not None else run
    state = StateDir.open(state_dir, create=False)
    _await_begin(state, deadline)
    with read_state(state) as reader:
        row = _await_present(state, reader, entity_id, deadline)
        row = _await_end(state, reader, row.id, deadline)
        rows = reader.entities()
    rows = rows if any(one.id == row.id for one in rows) else [*rows, row]  # it may have been moved to the archive
    outcome = Outcomes(rows).of(row)
    note = next(one.note for one in ps(rows, now=time.time()) if one.id == row.id)
    note = note.removeprefix(outcome).removeprefix(", ")
    if as_json:
        end = {"outcome": outcome, "ok": outcome in ENDS_WELL, "note": note}
        say(json_text({"id": row.id, "kind": row.kind, "state": row.state, **end}))
    else:
        say(f"{printable(row.id)}: {outcome}{f' ({printable(note)})' if note else ''}")
    return DONE if outcome in ENDS_WELL else WORK_FAILED


class _Deadline:
    """Deadline of a wait, *timeout_s* seconds from now; ``None``: no deadline."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._until_s = None if timeout_s is None else time.monotonic() + timeout_s

    def check(self, message: str, state: str = "") -> None:
        """Raise TimedOut if the time is over; *message* and *state* are the beginning and the end of the message."""
        if self._until_s is not None and time.monotonic() >= self._until_s:
            raise TimedOut(f"{message} after {self._timeout_s:g} s{state}")


def _await_begin(state: StateDir, deadline: _Deadline) -> None:
    """Wait until a run that is starting has begun. Before, the newest run in the journal is not the run that the caller
    means, and there may be no journal yet.

    Raises:
        TimedOut: the run has not begun at the deadline.
    """
    said = False
    while (holder := state.lock_holder()) is not None and holder.starting:
        if not said:
            said = True
            warn(f"{holder.words} starts a run on {state.root}: waiting for its begin")
        deadline.check(f"the run on {state.root} has not begun")
        pause()


def _find(reader: Reader, entity_id: str | None, *, running: bool) -> EntityRow:
    """Return the entity to wait for.

    Raises:
        UnknownId, BadInput: there is none, or it is of a kind that is not waited for.
    """
    rows = reader.entities()
    if entity_id is None:
        streams = [row for row in rows if row.kind == Kind.WORKSTREAM]
        if not streams:
            raise BadInput("no plan was run here; name the session to wait for (`supervisor ps` shows the ids)")
        return streams[-1]
    found = task_given(rows, entity_id, running=running)
    found = found or reader.entity(newest_of_name(reader, entity_id, running=running))
    if found is None:
        raise unknown_id(reader, entity_id)
    if found.kind not in _KINDS:
        raise BadInput(f"{entity_id} is a {found.kind}: give the id of a task, a session or a run")
    return found


def _await_present(state: StateDir, reader: Reader, entity_id: str | None, deadline: _Deadline) -> EntityRow:
    """Return the entity to wait for. If the newest one of a name is of a run that ended before the present supervisor
    began, wait for a newer one: that supervisor is only starting. An id means the same entity at all times.

    Raises:
        TimedOut: there is no newer one yet at the deadline.
        WorkFailed: the supervisor has ended, and there is no newer one.
        UnknownId, BadInput: as for :func:`_find`.
    """
    started = False
    while True:
        holder = state.lock_holder()  # asked first: all that a supervisor recorded before its end is still seen
        row = _find(reader, entity_id, running=holder is not None)
        if row.id == entity_id or (holder is None and not started):
            return row
        stream = row if row.kind == Kind.WORKSTREAM else reader.entity(row.parent_id or row.id)
        ended_s = stream.changed_at if stream is not None and stream.ended else None
        if ended_s is None or (holder is not None and holder.since is not None and ended_s >= holder.since):
            return row
        words = f"{row.id} ({row.state}) is of an earlier run"
        if holder is None:
            raise WorkFailed(f"{words}, and the supervisor on {state.root} has ended without a newer one")
        if not started:
            warn(f"{words}: waiting for a newer one, of {holder.words} on {state.root}")
        deadline.check(f"{words}, and there is no newer one")
        started = True
        pause()


def _await_end(state: StateDir, reader: Reader, entity_id: str, deadline: _Deadline) -> EntityRow:
    """Wait for the end of an entity, and return its last row. Say once that a task waits for an approval.

    Raises:
        TimedOut: it has not ended at the deadline.
        WorkFailed: no supervisor runs that could end it; or it is a run whose merge waits for a person.
    """
    said = False
    while True:
        running = state.lock_holder() is not None  # asked first: the end that a supervisor records last is still seen
        row = reader.entity(entity_id)
        assert row is not None, "rows stay"
        if has_ended(row):
            return row
        if row.kind == Kind.WORKSTREAM and (held_by := merge_obstacle(row)):
            raise WorkFailed(f"{entity_id} is {row.state}, and held by {held_by}")
        if not running:
            words = f"{entity_id} has not ended ({row.state}), and no supervisor runs on {state.root}"
            how = "`supervisor run PLAN.yaml`, or the daemon that had it, continues an interrupted plan"
            raise WorkFailed(f"{words}; {how}")
        if row.state in _FOR_A_PERSON and not said:
            said = True
            approve = f"supervisor approve {row.id}{state_dir_words(state.root)}"
            warn(f"{entity_id} waits for a person: `{approve}`, or reject")
        deadline.check(f"{entity_id} has not ended", f": it is {row.state}")
        pause()
