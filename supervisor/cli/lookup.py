"""Find what an id on the command line names, whether that has ended, and which ids are near to a misspelt one.

The same name may occur in the journal more than once: two runs may have tasks of that name, and each further session of
the name has a number (``t``, ``t-2``, ``t-3``). A name means the task of the only running run that has the task; if
several have it, the command is refused; if none has it, the newest. ``RUN#TASK``, and an id with a colon (``t:t1``),
always mean exactly one entity. Behind ``RUN#TASK`` a slash or a colon leads to the newest session of the task.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from supervisor.cli.options import state_dir_words
from supervisor.control.error_messages import BadInput, UnknownId
from supervisor.diagnostics.outcomes import Outcomes, data_of
from supervisor.diagnostics.tree_view import STAYING, tool_calls
from supervisor.embedding.journals import read_state
from supervisor.journal.statedir import StateDir, StateDirError
from supervisor.lifecycles.run_ids import GivenId, ambiguous_task, id_of_task, is_run_id, name_of_task, read_id
from supervisor.lifecycles.task import TaskEnd
from supervisor.lifecycles.trigger import TRIGGER_PREFIX
from supervisor.lifecycles.turn import split_permission
from supervisor.lifecycles.types import InvalidArgument, Kind
from supervisor.ports import EntityRow, JournalError, Reader

LOOK_AGAIN_S: Final = 0.2
"""Seconds between two looks at the journal."""
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


def with_run(entity_id: str, run: str | None) -> str:
    """Return an id in one word, ``RUN#TASK``, if it is given with ``--run``.

    Raises:
        BadInput: the id or the run has a wrong form, or there is a second run.
    """
    given = _read(entity_id, run or "")
    return f"{given.task_id}{given.below}" if given.run else entity_id


def _read(entity_id: str, run: str = "") -> GivenId:
    try:
        return read_id(entity_id, run)
    except InvalidArgument as error:
        raise BadInput(str(error)) from None


# -------------------------------------------------------------------------------------------------------- tasks
def task_given(rows: Iterable[EntityRow], entity_id: str, *, running: bool) -> EntityRow | None:
    """Return the task that *entity_id* means; ``None`` if it means no task, or nothing. *running*: a supervisor runs.

    Raises:
        BadInput: there is no such run, or the run has no such task; or several running runs have a task of that name.
    """
    given, rows = _read(entity_id), list(rows)
    if given.run:
        return None if given.below else _task_of_run(rows, given)
    found = [row for row in rows if row.kind == Kind.TASK and data_of(row).get("name") == entity_id]
    running_runs = {row.id for row in rows if running and row.kind == Kind.WORKSTREAM and not row.ended}
    going_on = [row for row in found if row.parent_id in running_runs]
    if len(going_on) > 1:
        raise BadInput(str(ambiguous_task(entity_id, [str(row.parent_id) for row in going_on])))
    return max(going_on or found, key=lambda row: row.born_seq, default=None)


def _task_of_run(rows: Sequence[EntityRow], given: GivenId) -> EntityRow:
    """Return the task of a run; a task that the run has taken over from a run that it resumes is a task of that run."""
    tasks = {row.id: row for row in rows if row.kind == Kind.TASK}
    runs = {row.id: row for row in rows if row.kind == Kind.WORKSTREAM}
    if given.run not in runs:
        raise _unknown_run(given.run, runs)
    run = given.run
    while run in runs and id_of_task(run, given.name) not in tasks:
        run = str(data_of(runs[run]).get("resumes", ""))
    if (task := tasks.get(id_of_task(run, given.name))) is not None:
        return task
    from difflib import get_close_matches  # here, since only an error needs it

    names = [name_of_task(one) for one in tasks if one.startswith(f"{given.run}#")]
    near = get_close_matches(given.name[:200], names, n=3)
    guess = f"did you mean {' or '.join(id_of_task(given.run, one) for one in near)}? " if near else ""
    raise BadInput(f"run {given.run} has no task {given.name!r}; {guess}`supervisor ps --all` shows the ids")


def run_given(reader: Reader, run: str | None) -> EntityRow:
    """Return the row of the workstream of a run, also of an archived one; of the newest run if none is given.

    Raises:
        BadInput: there is no such run, or no plan was run.
    """
    if run is not None and is_run_id(run) and (row := reader.entity(run)) is not None:
        return row
    runs = {row.id: row for row in reader.entities() if row.kind == Kind.WORKSTREAM}
    if run is not None:
        raise _unknown_run(run, runs)
    if not runs:
        archived = "; `supervisor runs --all` lists the runs in the archive" if reader.archived_records() else ""
        raise BadInput(f"no plan was run here{archived}; `supervisor run PLAN.yaml` runs one")
    return max(runs.values(), key=lambda row: row.born_seq)


def _unknown_run(run: str, known: Iterable[str]) -> BadInput:
    return BadInput(f"run {run!r} is not in the journal; the runs are: {', '.join(known) or 'none'}")


def has_ended(row: EntityRow) -> bool:
    """Return whether an entity has ended. A failed task has ended when the run has given the task up: until then it may
    be tried again."""
    return row.ended or (row.kind == Kind.TASK and bool(data_of(row).get("dead_letter")))


# ----------------------------------------------------------------------------------------------------- sessions
def sessions_named(reader: Reader, entity_id: str, *, running: bool) -> list[str]:
    """Return the sessions that *entity_id* means, the oldest first.

    For a task these are the sessions that have claimed the task, and for the name of a task the sessions of every task
    with that name, those of the task that the name means last. For the name of a session they are all sessions of the
    name. For the id of a turn, agent or tool call it is the one session of that entity. The list is empty if no session
    has claimed the task yet.

    Raises:
        UnknownId: nothing has that id.
        BadInput: as for :func:`task_given`.
    """
    rows = reader.entities(ended_kinds=STAYING)
    sessions = {row.id for row in rows if row.kind == Kind.SESSION}
    if (task := task_given(rows, entity_id, running=running)) is not None:
        tasks = [task]
        if "#" not in entity_id:
            named = [row for row in rows if row.kind == Kind.TASK and data_of(row).get("name") == entity_id]
            tasks = [*(row for row in named if row.id != task.id), task]
        found = list(dict.fromkeys(by for one in tasks for by in claims_of(reader, one.id) if by in sessions))
        if found or entity_id not in sessions:
            return found
    entity_id = in_session(reader, rows, entity_id)
    names = entity_id.split("/")
    if ":" not in entity_id and (found := [row.id for row in rows if _is_namesake(row, names)]):
        return found
    session = reader.entity(entity_id.partition(":")[0])
    if session is None or session.kind != Kind.SESSION:
        raise unknown_id(reader, entity_id)
    return [session.id]


def living_session(state: StateDir, reader: Reader, entity_id: str) -> str:
    """Return the living session that *entity_id* means, as :func:`sessions_named` does.

    Raises:
        BadInput: there is none; the error says what has that id.
    """
    running = state.lock_holder() is not None
    found = sessions_named(reader, entity_id, running=running)
    row = reader.entity(found[-1]) if found else None
    if row is None or row.ended:
        raise not_living(state.root, row.id if row is not None else entity_id, "send")
    return row.id


def claims_of(reader: Reader, task_id: str) -> list[str]:
    """Return the sessions that have claimed a task, the oldest first."""
    return [str(one.metadata.get("by")) for one in reader.events(task_id) if one.event == "claimed"]


def in_session(reader: Reader, rows: Iterable[EntityRow], entity_id: str) -> str:
    """Return the id of what a session has made, if *entity_id* names it by the task of the session: ``fix-2:t1:c1`` for
    ``r1#fix:t1:c1``. Any other id is returned as it is.

    Raises:
        BadInput: there is no such run or task, or no session has worked on the task.
    """
    given = _read(entity_id)
    if not (given.run and given.below) or given.is_task_run_or_job:
        return entity_id
    task = _task_of_run(list(rows), given)
    if not (claims := claims_of(reader, task.id)):
        raise BadInput(f"{entity_id}: no session has worked on the task {task.id} yet")
    return f"{claims[-1]}{given.below}"


def newest_of_name(reader: Reader, name: str, *, running: bool) -> str:
    """Return the id that a name means: of the task that the name means the newest session that has claimed the task, or
    the task itself; or the newest session of the name. Any other id is returned as it is, or as :func:`in_session`
    says.

    Raises:
        UnknownId: nothing has that name.
        BadInput: as for :func:`task_given`.
    """
    rows = reader.entities(ended_kinds=STAYING)
    if "#" in name:
        name = in_session(reader, rows, name)
        is_known = reader.entity(name) is not None or reader.archived_records()  # else it is said what is wrong with it
        task = None if is_known else task_given(rows, name, running=running)
        return task.id if task is not None else name
    if ":" in name or is_run_id(name) or name.startswith(TRIGGER_PREFIX):
        return name
    task = task_given(rows, name, running=running)
    if task is None:
        return (sessions_named(reader, name, running=running) or [name])[-1]
    return (claims_of(reader, task.id) or [task.id])[-1]


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
    """Return the names, or for RUN#TASK the ids, of living tasks that are near to *name*; none if the journal cannot be
    read."""
    from difflib import get_close_matches

    try:
        with open_journal(state_dir) as (_, reader):
            rows = reader.entities(live_only=True)
    except (StateDirError, JournalError):
        return []
    tasks = [row for row in rows if row.kind == Kind.TASK]
    names = [row.id for row in tasks] if "#" in name else [str(data_of(row).get("name")) for row in tasks]
    return get_close_matches(name[:200], dict.fromkeys(names), n=3)


def not_living(state_dir: Path, entity_id: str, verb: str) -> BadInput:
    """Return the error for an id that ``abort``, ``send``, ``inspect`` or a command about tasks (*verb*) cannot be
    applied to, since nothing alive has the id, or no supervisor runs: what has that id, and what to type instead.

    Raises:
        StateDirError, JournalError: the journal cannot be read.
        BadInput: as for :func:`task_given`.
    """
    with open_journal(state_dir) as (state, reader):
        rows = reader.entities(ended_kinds=STAYING)
        entity_id = in_session(reader, rows, entity_id)
        running = state.lock_holder() is not None
        task = task_given(rows, entity_id, running=running)
        row = (verb == "task" and task) or reader.entity(entity_id) or task
        if row is None and (asked := reader.entity(split_permission(entity_id)[0])) is not None:
            why = f"`supervisor why {entity_id}{state_dir_words(state.root)}` says how one was answered"
            return BadInput(f"no request {entity_id} of {asked.id} waits for an answer; {why}")
        if row is None:
            return unknown_id(reader, entity_id)
        if row.kind in (Kind.RUN, Kind.JOB) and row.parent_id is not None:
            row = reader.entity(row.parent_id) or row
    if row.kind == Kind.SESSION or verb in ("inspect", "task") or not running:
        return BadInput(_after_the_end(row, rows, verb, running=running, options=state_dir_words(state.root)))
    session = row.parent_id or entity_id.partition(":")[0]
    match row.kind:
        case Kind.TASK:
            words = f"{entity_id} belongs to the task {row.id}, and is no session: " + _of_task(row, verb)
        case Kind.TURN | Kind.AGENT:
            words = f"{row.id} is the {row.kind} of a session: `{_command(verb, session)}` is for the session"
            words += ", `supervisor tree` shows its tool calls" if verb == "abort" else ""
        case _:
            words = f"{row.id} is a {row.kind}: `supervisor stop` ends the run; `supervisor tree` shows the sessions"
    return BadInput(words)


def _after_the_end(row: EntityRow, rows: Sequence[EntityRow], verb: str, *, running: bool, options: str) -> str:
    """Return a sentence about an entity that has ended, or that its supervisor has left, and the commands that show
    what it has done."""
    end = Outcomes(rows).of(row)
    kind = {Kind.TASK.value: "task", Kind.WORKSTREAM.value: "run"}.get(row.kind, row.kind)
    name = f"{kind} {row.id}"
    words = f"{name} has ended{f' ({end})' if end else ''}"
    if not row.ended and not running and not end:
        next_run = "the next `supervisor run` ends it, or goes on with it"
        words = f"no supervisor runs, and {name} stopped with the last one: {next_run}"
    writer = row.parent_id if row.kind in (Kind.TURN, Kind.AGENT) else row.id
    advice = [f"`supervisor why {row.id}{options}` explains its end"]
    if row.kind in (Kind.SESSION, Kind.TASK, Kind.TURN, Kind.AGENT):
        advice.insert(0, f"`supervisor logs {writer}{options}` shows what its agent wrote")
    if verb == "task" and row.kind == Kind.TASK and end != TaskEnd.COMPLETED:
        advice.append(f"`supervisor run PLAN.yaml --resume{options}` does what was left")
    return f"{words}; {', '.join(advice)}"


def _command(verb: str, session: str) -> str:
    return f"supervisor {verb} {session} {'--scope session' if verb == 'abort' else 'TEXT'}"


def _of_task(row: EntityRow, verb: str) -> str:
    data = data_of(row)
    holder = str(data.get("claimed_by") or "")
    cancel = f"`supervisor task cancel {row.id}` ends the task" if verb == "abort" else ""
    has_session = holder and not row.ended
    its_session = f"`{_command(verb, holder)}` is for its session" if has_session else "no session works on it now"
    return ", ".join(part for part in (cancel, its_session) if part)
