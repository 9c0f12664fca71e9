"""Commands that only read: ``ps``, ``tree`` and ``dead-letters``.

They read the state directory, with or without a running supervisor, and never write to it. They warn if the journal of
a dead supervisor shows entities as alive, and if a running supervisor lacks a resource, or cannot write its journal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import Final

import click
from msgspec import to_builtins
from msgspec.structs import replace

from supervisor.cli.fleet import RemoteHost, fleet_view, host_option, own_heading, read_replica
from supervisor.cli.lookup import open_journal
from supervisor.cli.options import examples, json_option, say, state_dir_option, state_dir_words, warn
from supervisor.cli.rendering import (
    clock,
    dead_letters_text,
    json_text,
    ps_text,
    tree_json,
    tree_text,
)
from supervisor.cli.terminal import table_width
from supervisor.control.error_messages import BadInput
from supervisor.control.ping import problems_of
from supervisor.diagnostics.state_times import read_state_times
from supervisor.diagnostics.task_status import DeadLetter, dead_letters
from supervisor.diagnostics.tree_view import STAYING, EntityLine, Node, ps, tool_calls, tree
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.task import Task
from supervisor.lifecycles.task_run import TaskRun
from supervisor.lifecycles.types import Kind
from supervisor.policies.budgets import Amounts
from supervisor.policies.usage import OWN_USAGE_EVENTS, USAGE_EVENTS, UsageTotals
from supervisor.ports import EntityRow, JournalDamaged, Reader

WATCH_S: Final = 1.0
"""Seconds between two tables of ``ps --watch``."""
_RESTING: Final = ((Kind.TASK, Task.FAILED.value), (Kind.RUN, TaskRun.CIRCUIT_OPEN.value))
"""States that only a person, or a decision about the run's task, can end."""


# ------------------------------------------------------------------------------------------------- what there is
_all = click.option("--all", "all_of_it", is_flag=True, help="Also agents and turns that have ended.")


@click.command(
    "ps", epilog=examples("supervisor ps --watch", "supervisor ps --all --json", "supervisor ps --processes")
)
@_all
@host_option
@click.option("--processes", is_flag=True, help="The processes of sessions instead, and their open calls.")
@click.option("--stalls", is_flag=True, help="The agents at work that make no progress instead, and what follows.")
@click.option("--watch", is_flag=True, help="Print the table again and again, until the supervisor has ended.")
@state_dir_option
@json_option
def ps_command(
    all_of_it: bool, host: str | None, processes: bool, stalls: bool, watch: bool, state_dir: Path, as_json: bool
) -> None:
    """Tasks, and sessions with their agents and turns, one in a line. ID is the first column. In a fleet, those of all
    hosts. --processes, --stalls and --watch are about this host, and need a running supervisor."""
    if host is not None and (processes or stalls or watch):
        raise BadInput("--host: --processes, --stalls and --watch are about this host; leave it out")
    if processes or stalls:
        from supervisor.cli.live_lists import show_processes, show_stalls  # here, since they import an event loop

        if all_of_it or watch or (processes and stalls):
            raise BadInput("--processes, --stalls: give one of them, and neither --all nor --watch")
        (show_processes if processes else show_stalls)(state_dir, as_json=as_json)
        return
    if watch and as_json:
        raise BadInput("--watch, --json: give one of them; `supervisor events --follow --json` prints every change")
    state = StateDir.open(state_dir, create=False)
    if watch:
        _watch(state, all_of_it=all_of_it)
    view = fleet_view(state, host)
    parts: list[tuple[str, str, list[EntityLine]]] = []
    if view.shows_own:
        rows, seen, running = seen_entities(state_dir, all_of_it=all_of_it)
        parts.append((view.own, own_heading(view), seen))
    for other in view.others:
        lines = read_replica(other, partial(_seen_remotely, other=other, all_of_it=all_of_it))
        parts.append((other.name, other.text, lines or []))
    if as_json:
        placed = [({"host": name} if name else {}, one) for name, _, seen in parts for one in seen]
        say(json_text([{**place, **to_builtins(one)} for place, one in placed]))
    else:
        width = table_width()
        texts = [(heading, ps_text(seen, width)) for _, heading, seen in parts]
        say("\n\n".join(f"{heading}\n{text}" if view.own else text for heading, text in texts))
    if view.shows_own:
        _warn_of_troubles(state, rows, running)


def _watch(state: StateDir, *, all_of_it: bool) -> None:
    """Print the table on a terminal every ``WATCH_S`` seconds, and elsewhere whenever a state has changed, until no
    supervisor runs."""
    shown: object = None
    is_drawn = False
    while state.lock_holder() is not None:
        _, seen, _ = seen_entities(state.root, all_of_it=all_of_it)
        if sys.stdout.isatty():
            click.clear()
            is_drawn = True
            say(_fitting(ps_text(sorted(seen, key=lambda one: one.ended))))
        elif shown != (shown := [(one.id, one.state, one.note) for one in seen]):
            say(f"{ps_text(seen, table_width())}\n")
        sys.stdout.flush()
        time.sleep(WATCH_S)
    if is_drawn:  # otherwise the screen is the user's
        click.clear()


def _fitting(table: str) -> str:
    """Return the lines of a table that fit on the terminal, and the number of the others."""
    from rich.cells import chop_cells  # here, since only --watch on a terminal needs it

    size = get_terminal_size()
    lines = table.splitlines()
    room = len(lines) if len(lines) <= size.lines - 1 else max(2, size.lines - 2)
    more = [f"... and {len(lines) - room} more; `supervisor ps` prints all"] if len(lines) > room else []
    return "\n".join([*("".join(chop_cells(line, size.columns)[:1]) for line in lines[:room]), *more])


def seen_entities(state_dir: Path, *, all_of_it: bool) -> tuple[list[EntityRow], list[EntityLine], bool]:
    """Return each session, and each agent and turn that has not ended (*all_of_it*: also those that have): the rows,
    the lines to show, and whether a supervisor runs."""
    with open_journal(state_dir) as (state, reader):
        running = state.lock_holder() is not None  # before the rows: one that ends now leaves none alive
        rows = reader.entities(ended_kinds=None if all_of_it else STAYING)
        used = used_by_rows(reader, rows)
        times = read_state_times(reader, rows)
    active_at, options = _last_outputs(state, rows), state_dir_words(state.root)
    now = time.time()
    seen = ps(rows, now=now, active_at=active_at, times=times, used=used, options=options, supervised=running)
    return rows, _aged(seen, rows), running


def _seen_remotely(reader: Reader, *, other: RemoteHost, all_of_it: bool) -> list[EntityLine]:
    """Return the lines of ``ps`` for another host, whose transcripts are not here."""
    rows = reader.entities(ended_kinds=None if all_of_it else STAYING)
    used, times = used_by_rows(reader, rows), read_state_times(reader, rows)
    options = _elsewhere(other)
    seen = ps(rows, now=time.time(), times=times, used=used, options=options, supervised=other.is_running)
    return _aged(seen, rows)


def _elsewhere(other: RemoteHost) -> str:
    """Return the comment that a printed command has if it is to be typed on another host."""
    return f"  # on {other.name}"


def _remote_tree(reader: Reader, *, other: RemoteHost, all_of_it: bool) -> Sequence[Node]:
    rows = reader.entities(ended_kinds=None if all_of_it else STAYING)
    used, times = used_by_rows(reader, rows), read_state_times(reader, rows)
    return tree(rows, used, times, _elsewhere(other), now=time.time(), supervised=other.is_running)


@click.command("tree", epilog=examples("supervisor tree --all", "supervisor tree --host build-2"))
@_all
@host_option
@state_dir_option
@json_option
def tree_command(all_of_it: bool, host: str | None, state_dir: Path, as_json: bool) -> None:
    """In a fleet, the sessions of all hosts."""
    view = fleet_view(StateDir.open(state_dir, create=False), host)
    parts: list[tuple[str, str, Sequence[Node]]] = []
    warn_after: Callable[[], None] | None = None
    if view.shows_own:
        nodes, warn_after = _own_tree(state_dir, all_of_it=all_of_it, as_json=as_json)
        parts.append((view.own, own_heading(view), nodes))
    for other in view.others:
        found = read_replica(other, partial(_remote_tree, other=other, all_of_it=all_of_it))
        parts.append((other.name, other.text, found or ()))
    if as_json:
        hosts = [name for name, _, nodes in parts for _ in nodes] if view.own else []
        say(tree_json([one for _, _, nodes in parts for one in nodes], hosts))
    else:
        texts = ((heading, tree_text(nodes) or "nothing has been started yet") for _, heading, nodes in parts)
        say("\n\n".join(f"{heading}\n{text}" if view.own else text for heading, text in texts))
    if warn_after is not None:
        warn_after()


def _own_tree(state_dir: Path, *, all_of_it: bool, as_json: bool) -> tuple[Sequence[Node], Callable[[], None]]:
    """Return the tree of this host, and a function that prints its warnings."""
    with open_journal(state_dir) as (state, reader):
        running = state.lock_holder() is not None  # before the rows, as in ``ps``
        rows = reader.entities(ended_kinds=None if all_of_it else STAYING)
        used = used_in(reader) if as_json else used_by_rows(reader, rows)
        times = read_state_times(reader, rows)
    now, active_at = time.time(), _last_outputs(state, rows)
    nodes = tree(rows, used, times, state_dir_words(state.root), now=now, active_at=active_at, supervised=running)
    return nodes, partial(_warn_of_troubles, state, rows, running)


def used_by(state_dir: Path, entity_id: str) -> Amounts | None:
    """Return the reported usage of an entity and everything below it, or ``None``."""
    with open_journal(state_dir) as (_, reader):
        return used_in(reader).get(entity_id)


def used_in(reader: Reader, *, archived: bool = True) -> Mapping[str, Amounts]:
    """Return the usage by entity id, for every entity with usage of its own or below it. If an archive is missing, its
    part is not counted, and a warning is printed. *archived*: count what is in archives, too."""

    def parent_of(session_id: str) -> str | None:
        row = reader.entity(session_id)
        return row.parent_id if row is not None else None

    try:
        return UsageTotals(reader.events_named(*USAGE_EVENTS, archived=archived), parent_of).sums()
    except JournalDamaged as error:
        parents = {row.id: row.parent_id for row in reader.entities()}
        sums = UsageTotals(reader.events_named(*USAGE_EVENTS), parents.get).sums()
        warn(f"usage is shown without archived records: {error}")
        return sums


def used_by_rows(reader: Reader, rows: Iterable[EntityRow]) -> Mapping[str, Amounts]:
    """Return the usage by entity id, without what is in archives. *rows* are all sessions and tasks: they say what is
    below what, so that births, most of the records, are not read."""
    totals = UsageTotals(reader.events_named(*OWN_USAGE_EVENTS))
    for row in rows:
        if row.parent_id and row.kind in (Kind.SESSION, Kind.TASK):
            totals.place(row.id, row.parent_id)
    return totals.sums()


def _warn_of_troubles(state: StateDir, rows: list[EntityRow], running: bool) -> None:
    """Print warnings about shortages of a running supervisor, or about entities that a killed supervisor left open."""
    if running:
        for words in problems_of(state.control_socket):
            warn(words)
    elif any(not _settled(row) for row in rows):
        last_change = max([*(row.changed_at for row in rows), *_last_outputs(state, rows).values()])
        warn(
            f"no supervisor runs on {state.root}: alive entities are shown as of its death at {clock(last_change)[:8]};"
            " the next run records their end"
        )


def _settled(row: EntityRow) -> bool:
    """Return whether the entity will not change by itself; a FAILED task could be tried again, but is not."""
    return row.ended or (row.kind, row.state) in _RESTING


def _aged(seen: Iterable[EntityLine], rows: Iterable[EntityRow]) -> list[EntityLine]:
    """Replace the age of each settled entity by its age at the last change."""
    ages = {row.id: row.lasted_s for row in rows if _settled(row)}
    return [replace(one, age_s=ages.get(one.id, one.age_s)) for one in seen]


def _last_outputs(state: StateDir, rows: Iterable[EntityRow]) -> dict[str, float]:
    return state.last_outputs(row.id for row in rows if row.kind == Kind.SESSION and not row.ended)


# -------------------------------------------------------------------------------------------------- dead letters
@click.command("dead-letters", epilog=examples("supervisor dead-letters"))
@state_dir_option
@json_option
def dead_letters_command(state_dir: Path, as_json: bool) -> None:
    """Each with its attempts, its last error, and the command that tries it again. A task that a later run of the plan
    has done, or does, is not listed."""
    with open_journal(state_dir) as (state, reader):
        running = state.lock_holder() is not None
        rows = reader.entities()
    live = {row.id for row in rows if row.kind == Kind.WORKSTREAM and not row.ended} if running else set()
    letters = [(one, _again(one, state_dir, live=one.workstream in live)) for one in dead_letters(rows)]
    if as_json:
        say(json_text([{**to_builtins(one), "try_again": again} for one, again in letters]))
    else:
        say(dead_letters_text(letters, table_width()) if letters else "no task was given up")


def _again(letter: DeadLetter, state_dir: Path, *, live: bool) -> str:
    command = f"supervisor retry {letter.entity_id}" if live else "supervisor run PLAN.yaml --resume"
    return command + state_dir_words(state_dir)


def ended(state_dir: Path, entity_id: str) -> bool | None:
    """Return whether a session, turn or tool call has ended according to the journal; ``None`` if the journal does not
    know the id."""
    with open_journal(state_dir) as (_, reader):
        row = reader.entity(entity_id)
        if row is not None:
            return row.ended
        turn = reader.entity(entity_id.rpartition(":")[0])
    if turn is None or entity_id not in tool_calls(turn):
        return None
    return entity_id not in {one.id for node in tree([turn]) for one in node.children}
