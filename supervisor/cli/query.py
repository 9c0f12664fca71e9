"""Commands that only read: ``ps``, ``tree``, ``logs`` and ``dead-letters``.

They read the state directory, with or without a running supervisor, and never write to it. They warn if the journal of
a dead supervisor shows entities as alive, and if a running supervisor lacks a resource, or cannot write its journal.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from msgspec import to_builtins
from msgspec.structs import replace

from supervisor.cli.options import json_option, say, state_dir_option, warn
from supervisor.cli.rendering import (
    clock,
    dead_letters_text,
    json_line,
    json_text,
    ps_text,
    tree_json,
    tree_text,
)
from supervisor.control.client import problems_of
from supervisor.control.error_messages import UnknownId
from supervisor.diagnostics.state_times import PROVIDER_BREAKER, StateTimes, needs_times
from supervisor.diagnostics.task_status import DeadLetter, dead_letters
from supervisor.diagnostics.tree_view import STAYING, EntityLine, ps, tool_calls, tree
from supervisor.journal.history import History
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.journal.transcript import follow_from
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.types import Kind
from supervisor.policies.budgets import Amounts
from supervisor.policies.usage import USAGE_EVENTS, UsageTotals
from supervisor.ports import EntityRow, JournalDamaged

_LOOK_AGAIN_S: Final = 0.2
_RESTING: Final = ((Kind.TASK, Task.FAILED.value), (Kind.RUN, TaskRun.CIRCUIT_OPEN.value))
"""States that only a person, or a decision about the run's task, can end."""
_NUMBER: Final = re.compile(r"-\d+")
"""Pattern of the suffix that distinguishes sessions with the same name."""
_TRANSCRIPT_LINE: Final = re.compile(r"(?P<timestamp>\d\d:\d\d:\d\d\.\d{3}) (?P<source>\w+)\| (?P<text>.*)")
"""Pattern of a line of a transcript; the time of day is UTC. Other lines are notes of the transcript itself."""


@contextmanager
def open_history(state_dir: Path) -> Iterator[tuple[StateDir, History]]:
    state = StateDir.open(state_dir, create=False)
    with History(state.journal) as reader:
        yield state, reader


# ------------------------------------------------------------------------------------------------- what there is
_all = click.option("--all", "all_of_it", is_flag=True, help="Also agents and turns that have ended.")


@click.command("ps")
@_all
@state_dir_option
@json_option
def ps_command(all_of_it: bool, state_dir: Path, as_json: bool) -> None:
    state = StateDir.open(state_dir, create=False)
    running = as_json or state.lock_holder() is not None  # before the rows: one that ends now leaves none alive
    rows, seen = seen_entities(state_dir, all_of_it=all_of_it)
    say(json_text(seen) if as_json else ps_text(seen))
    _warn_of_troubles(state, rows, running)


def seen_entities(state_dir: Path, *, all_of_it: bool) -> tuple[list[EntityRow], list[EntityLine]]:
    """Return each session, and each agent and turn that has not ended (*all_of_it*: also those that have): the rows,
    and the lines to show."""
    with open_history(state_dir) as (state, reader):
        rows = _wanted(reader.live.entities(), all_of_it)
        times = _state_times(reader.live, rows)
    return rows, _aged(ps(rows, now=time.time(), active_at=_last_output_times(state, rows), times=times), rows)


def _state_times(reader: JournalReader, rows: Iterable[EntityRow]) -> StateTimes:
    """Return the times of the entities that wait for a time, and of the failing providers of the last plan run."""
    times = StateTimes()
    for row in rows:
        if needs_times(row):
            for event in reader.events(row.id):
                times.take(event)
        elif row.kind == Kind.WORKSTREAM and not row.ended:
            for event in reader.events_named(PROVIDER_BREAKER):
                if event.seq > row.born_seq:
                    times.take(event)
    return times


@click.command("tree")
@_all
@state_dir_option
@json_option
def tree_command(all_of_it: bool, state_dir: Path, as_json: bool) -> None:
    with open_history(state_dir) as (state, reader):
        running = as_json or state.lock_holder() is not None  # before the rows, as in ``ps``
        rows = _wanted(reader.live.entities(), all_of_it)
        used = _used(reader) if as_json else {}
        times = _state_times(reader.live, rows)
    nodes = tree(rows, used, times)
    say(tree_json(nodes) if as_json else tree_text(nodes) or "nothing has been started yet")
    _warn_of_troubles(state, rows, running)


def used_by(state_dir: Path, entity_id: str) -> Amounts | None:
    """Return the reported usage of an entity and everything below it, or ``None``."""
    with open_history(state_dir) as (_, reader):
        return _used(reader).get(entity_id)


def _used(reader: History) -> Mapping[str, Amounts]:
    """Return the usage by entity id, for every entity with usage of its own or below it. If an archive is missing, its
    part is not counted, and a warning is printed."""
    try:
        return _sums(reader)
    except JournalDamaged as error:
        sums = _sums(reader.live)
        warn(f"usage is shown without archived records: {error}")
        return sums


def _sums(reader: History | JournalReader) -> Mapping[str, Amounts]:
    def parent_of(session_id: str) -> str | None:
        row = reader.entity(session_id)
        return row.parent_id if row is not None else None

    return UsageTotals(reader.events_named(*USAGE_EVENTS), parent_of).sums()


def _warn_of_troubles(state: StateDir, rows: list[EntityRow], running: bool) -> None:
    """Print warnings about shortages of a running supervisor, or about entities that a killed supervisor left open."""
    if running:
        for words in problems_of(state.control_socket):
            warn(words)
    elif any(not _settled(row) for row in rows):
        last_change = max([*(row.changed_at for row in rows), *_last_output_times(state, rows).values()])
        warn(
            f"no supervisor runs on {state.root}: alive entities are shown as of its death at {clock(last_change)[:8]};"
            " the next run records their end"
        )


def _settled(row: EntityRow) -> bool:
    """Return whether the entity will not change by itself; a FAILED task could be tried again, but is not."""
    return row.ended or (row.kind, row.state) in _RESTING


def _aged(seen: Iterable[EntityLine], rows: Iterable[EntityRow]) -> list[EntityLine]:
    """Replace the age of each settled entity by its age at the last change."""
    ages = {row.id: max(0.0, row.changed_at - row.born_at) for row in rows if _settled(row)}
    return [replace(one, age_s=ages.get(one.id, one.age_s)) for one in seen]


def _wanted(rows: Iterable[EntityRow], all_of_it: bool) -> list[EntityRow]:
    return [row for row in rows if all_of_it or not row.ended or row.kind in STAYING]


def _last_output_times(state: StateDir, rows: Iterable[EntityRow]) -> dict[str, float]:
    """Return the time of the last output of each living session, which is the time of the last change of its
    transcript."""
    live = [row.id for row in rows if row.kind == Kind.SESSION and not row.ended]
    return {one: spoken for one in live if (spoken := _changed_at(state.transcript(one))) is not None}


def _changed_at(transcript: Path) -> float | None:
    parts = transcript.parent.glob(f"{transcript.name}*")
    return max((part.stat().st_mtime for part in parts if part.exists()), default=None)


# -------------------------------------------------------------------------------------------------- dead letters
@click.command("dead-letters")
@state_dir_option
@json_option
def dead_letters_command(state_dir: Path, as_json: bool) -> None:
    """Each with its attempts in all runs, and its last error."""
    with open_history(state_dir) as (state, reader):
        running = state.lock_holder() is not None
        rows = reader.live.entities()
    live = {row.id for row in rows if row.kind == Kind.WORKSTREAM and not row.ended} if running else set()
    letters = [(one, _again(one, live=one.workstream in live)) for one in dead_letters(rows)]
    if as_json:
        say(json_text([{**to_builtins(one), "try_again": again} for one, again in letters]))
    else:
        say(dead_letters_text(letters) if letters else "no task was given up")


def _again(letter: DeadLetter, *, live: bool) -> str:
    return f"supervisor task reset {letter.task}" if live else "its run has ended: run the plan again"


def ended(state_dir: Path, entity_id: str) -> bool | None:
    """Return whether a session, turn or tool call has ended according to the journal; ``None`` if the journal does not
    know the id."""
    with open_history(state_dir) as (_, reader):
        row = reader.entity(entity_id)
        if row is not None:
            return row.ended
        turn = reader.entity(entity_id.rpartition(":")[0])
    if turn is None or entity_id not in tool_calls(turn):
        return None
    return entity_id not in {one.id for node in tree([turn]) for one in node.children}


def namesakes(state_dir: Path, entity_id: str) -> list[str]:
    """Return the running sessions that have the same name as the ended session *entity_id*, or as the session of that
    turn or call."""
    with open_history(state_dir) as (state, reader):
        if state.lock_holder() is None:
            return []
        rows = reader.live.entities(live_only=True)
    names = entity_id.partition(":")[0].split("/")
    return [row.id for row in rows if row.kind == Kind.SESSION and _is_namesake(row.id.split("/"), names)]


def _is_namesake(parts: list[str], names: list[str]) -> bool:
    """Return whether each part of an id equals the name, or the name followed by a number."""
    if len(parts) != len(names):
        return False
    pairs = zip(parts, names, strict=True)
    return all(part == name or (part.startswith(name) and _NUMBER.fullmatch(part, len(name))) for part, name in pairs)


# --------------------------------------------------------------------------------------------------------- logs
def pause() -> None:
    time.sleep(_LOOK_AGAIN_S)


@click.command("logs")
@click.argument("entity_id", metavar="ID")
@click.option("--follow", is_flag=True, help="Continue until the session ends.")
@state_dir_option
@json_option
def logs_command(entity_id: str, follow: bool, state_dir: Path, as_json: bool) -> None:
    with open_history(state_dir) as (state, reader):
        session = _session_of(reader, entity_id)
        lines = _TranscriptPrinter(state.transcript(session), session, as_json)
        going_on = follow
        while going_on:
            going_on = _goes_on(reader, state, session)  # asked first: what was said before the end is still read
            lines.print_new()
            if going_on:
                pause()
        lines.end()


def _session_of(reader: History, entity_id: str) -> str:
    row = reader.entity(entity_id)
    session = (
        _claimed_by(reader, entity_id) if row is not None and row.kind == Kind.TASK else entity_id.partition(":")[0]
    )
    found = reader.entity(session)
    if found is None or found.kind != Kind.SESSION:
        raise UnknownId(entity_id)
    return found.id


def _claimed_by(reader: History, task_id: str) -> str:
    """Return the session that last worked on a task; the task's own id if no session has claimed it."""
    claims = [one.metadata["by"] for one in reader.events(task_id) if one.metadata.get("by")]
    return str(claims[-1]) if claims else task_id


def _goes_on(reader: History, state: StateDir, session: str) -> bool:
    row = reader.entity(session)
    return row is not None and not row.ended and state.lock_holder() is not None


class _TranscriptPrinter:
    """Printer of the lines of a transcript; prints each line when it is complete."""

    def __init__(self, path: Path, session: str, as_json: bool) -> None:
        self._path, self._session, self._as_json = path, session, as_json
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
            say(json_line({"session": self._session, **parts}))
        else:
            say(line)
