"""Find what an id on the command line names, whether that has ended, and which ids are near to a misspelt one.

The same name may occur in the journal more than once: a second run of a plan has a second task of that name, and each
further session of the name has a number (``t``, ``t-2``, ``t-3``). A name means the newest of them; an id with a colon
(``task:t``, ``t:t1``) always means exactly one entity.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from supervisor.control.error_messages import BadInput, UnknownId
from supervisor.diagnostics.outcomes import data_of
from supervisor.diagnostics.tree_view import tool_calls
from supervisor.embedding.journals import read_state
from supervisor.journal.statedir import StateDir, StateDirError
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.types import Kind
from supervisor.ports import EntityRow, JournalError, Reader

LOOK_AGAIN_S: Final = 0.2
"""Seconds between two looks at the journal."""
_GIVEN_UP: Final = "DeadLettered"
"""Fact that a failed task is not tried again by itself."""
_NUMBER: Final = re.compile(r"-\d+")
"""Pattern of the suffix that distinguishes sessions with the same name."""


def pause() -> None:
    """Wait until the next look at the journal."""
    time.sleep(LOOK_AGAIN_S)


@contextmanager
def open_journal(state_dir: Path) -> Iterator[tuple[StateDir, Reader]]:
    state = StateDir.open(state_dir, create=False)
    with read_state(state) as reader:
        yield state, reader


# -------------------------------------------------------------------------------------------------------- tasks
def newest_task(rows: Iterable[EntityRow], name: str) -> EntityRow | None:
    """Return the newest task that has the id *name*, or that name in its plan; ``None`` if there is none."""
    return max(_tasks(rows, name), key=lambda row: row.born_seq, default=None)


def _tasks(rows: Iterable[EntityRow], name: str) -> list[EntityRow]:
    return [row for row in rows if row.kind == Kind.TASK and name in (row.id, data_of(row).get("name"))]


def has_ended(reader: Reader, row: EntityRow) -> bool:
    """Return whether an entity has ended. A failed task has ended when the run has given the task up: until then it may
    be tried again."""
    if row.kind != Kind.TASK or row.state != Task.FAILED.value:
        return row.ended
    since_failed: list[str] = []
    for event in reader.events(row.id):
        since_failed = [] if event.outcome == "transition" else [*since_failed, event.event]
    return _GIVEN_UP in since_failed


# ----------------------------------------------------------------------------------------------------- sessions
def sessions_named(reader: Reader, entity_id: str) -> list[str]:
    """Return the sessions that *entity_id* means, the oldest first.

    For a task these are the sessions that have claimed the task, and for the name of a task the sessions of every task
    with that name. For the name of a session they are all sessions of the name. For the id of a turn, agent or tool
    call it is the one session of that entity. The list is empty if no session has claimed the task yet.

    Raises:
        UnknownId: nothing has that id.
    """
    rows = reader.entities()
    sessions = {row.id for row in rows if row.kind == Kind.SESSION}
    if tasks := _tasks(rows, entity_id):
        claims = [one for task in tasks for one in reader.events(task.id) if one.event == "claimed"]
        found = list(dict.fromkeys(by for one in claims if (by := one.metadata.get("by")) in sessions))
        if found or entity_id not in sessions:
            return found
    names = entity_id.split("/")
    if ":" not in entity_id and (found := [row.id for row in rows if _is_namesake(row, names)]):
        return found
    session = reader.entity(entity_id.partition(":")[0])
    if session is None or session.kind != Kind.SESSION:
        raise unknown_id(reader, entity_id)
    return [session.id]


def newest_of_name(reader: Reader, name: str) -> str:
    """Return the id that a name means: of the newest task with the name the newest session that has claimed the task,
    or the task itself; or the newest session of the name. Any other id is returned as it is.

    Raises:
        UnknownId: nothing has that name.
    """
    if ":" in name:
        return name
    task = newest_task(reader.entities(), name)
    if task is None:
        return (sessions_named(reader, name) or [name])[-1]
    claims = [one.metadata.get("by") for one in reader.events(task.id) if one.event == "claimed"]
    return str(claims[-1]) if claims else task.id


def running_namesakes(state_dir: Path, entity_id: str) -> list[str]:
    """Return the other running sessions that have the same name as the session *entity_id*, or as the session of that
    turn or call."""
    with open_journal(state_dir) as (state, reader):
        if state.lock_holder() is None:
            return []
        rows = reader.entities(live_only=True)
    session = entity_id.partition(":")[0]
    return [row.id for row in rows if _is_namesake(row, session.split("/")) and row.id != session]


def _is_namesake(row: EntityRow, names: list[str]) -> bool:
    """Return whether a row is a session, each part of whose id is the name, or the name followed by a number."""
    parts = row.id.split("/")
    if row.kind != Kind.SESSION or len(parts) != len(names):
        return False
    pairs = zip(parts, names, strict=True)
    return all(part == name or (part.startswith(name) and _NUMBER.fullmatch(part, len(name))) for part, name in pairs)


# ----------------------------------------------------------------------------------------------------- misspelt
def unknown_id(reader: Reader, entity_id: str) -> UnknownId:
    """Return the error for an id that names nothing, with the ids that are near to it."""
    from difflib import get_close_matches  # here, since only an error needs it

    known: dict[str, None] = {}
    for row in reader.entities():
        known |= dict.fromkeys([row.id, *(tool_calls(row) if row.kind == Kind.TURN else ())])
    return UnknownId(entity_id, get_close_matches(entity_id[:200], known, n=3))


def near_tasks(state_dir: Path, name: str) -> list[str]:
    """Return the names of living tasks that are near to *name*; none if the journal cannot be read."""
    from difflib import get_close_matches

    try:
        with open_journal(state_dir) as (_, reader):
            rows = reader.entities(live_only=True)
    except (StateDirError, JournalError):
        return []
    names = {str(data_of(row).get("name")): None for row in rows if row.kind == Kind.TASK}
    return get_close_matches(name[:200], names, n=3)


def unended_task(state_dir: Path, name: str) -> str | None:
    """Return the id of the newest task named *name*, or ``None`` if that task has ended, or *name* is its id."""
    with open_journal(state_dir) as (_, reader):
        task = newest_task(reader.entities(), name)
    return task.id if task is not None and not task.ended and task.id != name else None


def not_living(state_dir: Path, entity_id: str, verb: str) -> BadInput:
    """Return the error for an id that ``abort``, ``send`` or ``inspect`` (*verb*) cannot be applied to: what has that
    id, and what to type instead.

    Raises:
        StateDirError, JournalError: the journal cannot be read.
    """
    with open_journal(state_dir) as (_, reader):
        row = reader.entity(entity_id) or newest_task(reader.entities(), entity_id)
        if row is None:
            return unknown_id(reader, entity_id)
        if row.kind in (Kind.RUN, Kind.JOB) and row.parent_id is not None:
            row = reader.entity(row.parent_id) or row
    if verb == "inspect":
        return BadInput(f"{row.id} does not live any more: `supervisor why {row.id}` explains its end")
    data, session = data_of(row), row.parent_id or entity_id.partition(":")[0]
    match row.kind:
        case Kind.SESSION:
            outcome = f" ({data['outcome']})" if data.get("outcome") else ""
            words = f"session {row.id} has ended{outcome}; `supervisor tree` shows what lives"
        case Kind.TASK:
            words = f"{entity_id} belongs to the task {data.get('name')}, and is no session: " + _of_task(row, verb)
        case Kind.TURN | Kind.AGENT:
            words = f"{row.id} is the {row.kind} of a session: `{_command(verb, session)}` is for the session"
            words += ", `supervisor tree` shows its tool calls" if verb == "abort" else ""
        case _:
            words = f"{row.id} is a {row.kind}: `supervisor stop` ends the run; `supervisor tree` shows the sessions"
    return BadInput(words)


def _command(verb: str, session: str) -> str:
    return f"supervisor {verb} {session} {'--scope session' if verb == 'abort' else 'TEXT'}"


def _of_task(row: EntityRow, verb: str) -> str:
    data = data_of(row)
    holder = str(data.get("claimed_by") or "")
    cancel = f"`supervisor task cancel {data.get('name')}` ends the task" if verb == "abort" else ""
    has_session = holder and not row.ended
    its_session = f"`{_command(verb, holder)}` is for its session" if has_session else "no session works on it now"
    return ", ".join(part for part in (cancel, its_session) if part)
