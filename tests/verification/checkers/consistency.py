"""Checker of memory against disk: once everything is on record, the data that a supervisor shows must equal the content
of its journal.

The supervisor's rows, nodes and inspections are compared with durable rows, never only with another view of the same
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

import msgspec

from supervisor.host.api import Supervisor
from supervisor.lifecycles.types import AbortPolicy
from supervisor.policies.abort_plan import TreeNode
from supervisor.ports import EntityRow

Say = Callable[[str, str, str], None]
Rows = Mapping[str, EntityRow]
Nodes = Mapping[str, TreeNode]
SEEN = ("kind", "parent_id", "state", "entity_seq", "ended", "born_seq", "born_at")
"""Fields of a row that are compared; the row's data is compared elsewhere, at each transition. (``changed_at`` may
differ, since the journal changes this field for facts, too.)"""
_seen = attrgetter(*SEEN)


class _Call(msgspec.Struct):
    """Part of the data of an open tool call that is compared."""

    number: int


class _Data(msgspec.Struct):
    """Part of an entity's data that is compared: its open tool calls, and its pid."""

    open: tuple[_Call, ...] = ()
    pid: int | None = None


_read = msgspec.json.Decoder(_Data).decode

LARGE = 40
"""Number of live entities up to which every check is made; with n times as many, one check in n is made."""


def check_memory(
    say: Say,
    sup: Supervisor,
    durable: Rows,
    living: Rows,
    timers: Callable[[str], int],
    ruling: Callable[[str], AbortPolicy | None],
    begun: Callable[[str], bool],
    looked_at: int,
) -> None:
    """Compare memory and disk, unless records are still on their way to the disk.

    Args:
        say: reports a violation: the invariant, the entity, and the message.
        durable: rows of the journal, by id.
        living: those rows of *durable* that have not ended; a long run has many more ended ones.
        timers: returns the number of running timers of a session, according to the timer checker.
        ruling: returns the abort policy of a session, if the host has given one.
        begun: returns whether a tool call of a living turn is on record.
        looked_at: number of this check; the check inspects the live entity with this index, modulo their number.
    """
    if sup.core.journal_writer.error is not None or not sup.core.journal_writer.clean:
        return
    if looked_at % max(1, len(sup.core.registry.entities) // LARGE):
        return
    rows = sup.core.registry.rows(data=False)
    for row in rows:
        kept = durable.get(row.id)
        if kept is None or _seen(row) != _seen(kept):
            _say_row(say, row, kept)
    _check_order(say, rows)
    nodes = dict(sup.core.registry.abort_tree(hurry=True))
    _check_nodes(say, nodes, living)
    _check_processes(say, nodes, durable)
    _check_calls(say, sup, nodes, living, begun)
    _check_rule(say, sup, nodes, durable, ruling)
    if rows:
        _inspect(say, sup, sup.core.registry.row(rows[looked_at % len(rows)].id), timers)


def _say_row(say: Say, row: EntityRow, kept: EntityRow | None) -> None:
    if kept is None:
        say("durable", row.id, "is in memory, all is on record, and the journal does not know it")
        return
    for name in SEEN:
        if getattr(row, name) != getattr(kept, name):
            say("durable", row.id, f"its {name} is {getattr(row, name)!r}; the journal has {getattr(kept, name)!r}")


def _check_order(say: Say, rows: list[EntityRow]) -> None:
    """Check that the supervisor lists entities in the order of their births, so that parents come before their
    children."""
    born = {row.id: row.born_seq for row in rows}
    numbers = [row.born_seq for row in rows]
    if numbers != sorted(numbers) or len(born) != len(rows):
        say("legal", rows[0].id, "the living are not told in the order of their births")


def _check_nodes(say: Say, nodes: Nodes, living: Rows) -> None:
    """Check the tree of sessions that aborts use: sessions, parents and children must be those on record."""
    above = {row.id: row.parent_id for row in living.values() if row.kind == "session"}
    sessions = {one.id: one for one in nodes.values() if one.kind == "session"}
    for session_id in above.keys() ^ sessions.keys():
        say("durable", session_id, f"is {'alive' if session_id in above else 'over'} on record, not in the tree")
    for session_id, node in sessions.items():
        parent = above.get(session_id)
        if session_id in above and node.parent != (parent if parent in above else None):
            say("containment", session_id, f"is below {node.parent} in the tree, and below {parent} on record")
        for child in node.children if session_id in above else ():
            if nodes[child].parent != session_id:
                say("containment", child, f"is among the children of {session_id}, and below {nodes[child].parent}")


def _check_calls(say: Say, sup: Supervisor, nodes: Nodes, living: Rows, begun: Callable[[str], bool]) -> None:
    """Check that the open tool calls of each turn are those on record, and that no actor of a returned call is still
    live.

    A tool call has its actor before its first record, while the request to write that record is in the mailbox of its
    turn. A call that has not *begun* on record has not returned either.
    """
    calls: dict[str, set[str]] = {}
    for one in nodes.values():
        if one.kind == "tool":
            calls.setdefault(one.id.rpartition(":c")[0], set()).add(one.id)
    for row in living.values():
        if row.kind != "turn" or row.id not in sup.core.registry.entities:
            continue
        kept, told = set(_open_calls(row)), calls.get(row.id, set())
        if kept != told:
            say("durable", row.id, f"shows the calls {sorted(told)}, and has {sorted(kept)} on record")
        returned = [one for one in sup.core.registry.system.children(row.id) if begun(one) and one not in kept]
        for child in returned:
            if sup.core.registry.system.inspect(child).phase == "live":
                say("bounded", child, "has returned, on record, and its actor lives on")


def _open_calls(row: EntityRow) -> Iterator[str]:
    return (f"{row.id}:c{call.number}" for call in _read(row.data).open)


def _check_rule(
    say: Say, sup: Supervisor, nodes: Nodes, durable: Rows, ruling: Callable[[str], AbortPolicy | None]
) -> None:
    """Check that each session has the abort policy that the host gave, directly or by its nearest ancestor with a
    policy; and that the tree without *hurry* shows a stopped session as ended."""
    unhurried = sup.core.registry.abort_tree()
    for one in nodes.values():
        row = durable.get(one.id)
        if one.kind != "session" or row is None:
            continue
        policy = ruling(one.id)
        if policy is not None and one.policy != policy:
            say("no_level_crossed", one.id, f"is ruled by {one.policy}, and was given {policy}")
        if row.state == "Stopped" and not unhurried[one.id].ended:
            say("final", one.id, "was told to end, on record, and is shown as one that goes on")


def _check_processes(say: Say, nodes: Nodes, durable: Rows) -> None:
    """Check that the processes shown for calls and agents are those on record. An agent that is being started may have
    no pid on record yet."""
    for one in nodes.values():
        if one.kind == "tool" and one.parent is not None:
            kept = tuple(each for each in nodes[one.parent].processes if each.owner == one.id)
            if one.processes != kept:
                say("durable", one.id, f"shows the processes {one.processes}; its session has {kept} for it")
            continue
        for each in one.processes:
            row = durable.get(each.owner)
            pid = _read(row.data).pid if row is not None and row.kind == "agent" else each.pid
            if pid is None and row is not None and row.state == "starting":
                continue
            if pid != each.pid or not each.owner.startswith(one.id):
                say("durable", one.id, f"shows {each.owner} as process {each.pid}; it is {pid} on record")


def _inspect(say: Say, sup: Supervisor, row: EntityRow, timers: Callable[[str], int]) -> None:
    """Compare the inspection of one entity with the entity's row: kind, state, open calls, and the number of timers."""
    seen = sup.inspect(row.id)
    calls = tuple(_open_calls(row))
    shown, kept = (seen.id, seen.kind, seen.state, seen.open_calls), (row.id, row.kind, row.state, calls)
    if shown != kept:
        say("durable", row.id, f"an inspection shows {shown} of {kept}")
    if any(number < 0 for number in seen.queued.values()):
        say("bounded", row.id, f"an inspection shows {seen.queued}")
    if row.kind == "session" and seen.phase == "live" and seen.timers != timers(row.id):
        say("punctual", row.id, f"has {seen.timers} timers, and its records have set {timers(row.id)}")
    if sup.core.registry.state_of(row.id) != row.state:
        say("durable", row.id, f"is said to be {sup.core.registry.state_of(row.id)}, and is {row.state} on record")
