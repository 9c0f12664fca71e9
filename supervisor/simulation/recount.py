"""Memory against disk: once everything is on record, what a supervisor shows of itself is what its journal holds.

Whoever looks from outside sees rows, nodes and inspections; each is held to the durable rows here, and never to another
view of the same memory alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from supervisor.abort import TreeNode
from supervisor.ports import EntityRow
from supervisor.runtime import Supervisor
from supervisor.vocabulary import AbortPolicy

__all__ = ["recount"]

Say = Callable[[str, str, str], None]
Rows = Mapping[str, EntityRow]
SEEN = ("kind", "parent_id", "state", "entity_seq", "ended", "born_seq", "born_at")
"""What a row in memory says of its entity; its data is compared step by step elsewhere. (``changed_at`` is another: the
journal's counts facts, too.)"""


LARGE, LARGE_EVERY = 300, 25
"""Where so many live, so many looks are let pass: each one costs as much as there are."""


def recount(
    say: Say,
    sup: Supervisor,
    durable: Rows,
    timers: Callable[[str], int],
    ruling: Callable[[str], AbortPolicy | None],
    looked_at: int,
) -> None:
    """Compare, if nothing is on its way to the disk.

    Args:
        say: reports a law that was broken: its name, whose, and the words.
        durable: what the journal holds, by id.
        timers: how many timers of a session run, by the oracle's own books.
        ruling: the policy that rules a session, as far as the host has said so.
        looked_at: which of the living is inspected, as a number that is counted around.
    """
    if sup.ledger.error is not None or not sup.ledger.clean:
        return
    if len(sup.tree.entities) > LARGE and looked_at % LARGE_EVERY:
        return
    rows = sup.rows()
    for row in rows:
        _check_row(say, row, durable.get(row.id))
    _check_order(say, rows)
    _check_nodes(say, sup, durable)
    _check_rule(say, sup, durable, ruling)
    _check_cells(say, sup, durable)
    if rows:
        _inspect(say, sup, rows[looked_at % len(rows)], timers)


def _check_row(say: Say, row: EntityRow, kept: EntityRow | None) -> None:
    if kept is None:
        say("durable", row.id, "is in memory, all is on record, and the journal does not know it")
        return
    for name in SEEN:
        if getattr(row, name) != getattr(kept, name):
            say("durable", row.id, f"its {name} is {getattr(row, name)!r}; the journal has {getattr(kept, name)!r}")


def _check_order(say: Say, rows: list[EntityRow]) -> None:
    """Parents come first, since whoever is born later comes later."""
    born = {row.id: row.born_seq for row in rows}
    numbers = [row.born_seq for row in rows]
    if numbers != sorted(numbers) or len(born) != len(rows):
        say("legal", rows[0].id, "the living are not told in the order of their births")


def _check_nodes(say: Say, sup: Supervisor, durable: Rows) -> None:
    """The tree that aborts reason about: its sessions, their parents and children, and the calls that are open."""
    nodes = sup.tree.nodes(hurry=True)
    living = {row.id: row for row in durable.values() if row.kind == "session" and not row.ended}
    sessions = {one.id for one in nodes.values() if one.kind == "session"}
    for session_id in living.keys() ^ sessions:
        say("durable", session_id, f"is {'alive' if session_id in living else 'over'} on record, not in the tree")
    for session_id in living.keys() & sessions:
        node, above = nodes[session_id], living[session_id].parent_id
        if node.parent != (above if above in living else None):
            say("containment", session_id, f"is below {node.parent} in the tree, and below {above} on record")
        for child in node.children:
            if nodes[child].parent != session_id:
                say("containment", child, f"is among the children of {session_id}, and below {nodes[child].parent}")
    _check_processes(say, nodes, durable)
    calls = {one.id for one in nodes.values() if one.kind == "tool"}
    for row in durable.values():
        if row.kind == "turn" and not row.ended and row.id in sup.tree.entities:
            kept = {f"{row.id}:c{call['number']}" for call in msgspec.json.decode(row.data).get("open", ())}
            shown = {one for one in calls if one.startswith(f"{row.id}:c")}
            if kept != shown:
                say("durable", row.id, f"shows the calls {sorted(shown)}, and has {sorted(kept)} on record")


def _check_rule(say: Say, sup: Supervisor, durable: Rows, ruling: Callable[[str], AbortPolicy | None]) -> None:
    """Each session is ruled by the policy that it was given, or its nearest ancestor that was; who was told to end is
    ending."""
    for one in sup.tree.nodes().values():
        row = durable.get(one.id)
        if one.kind != "session" or row is None:
            continue
        policy = ruling(one.id)
        if policy is not None and one.policy != policy:
            say("no_level_crossed", one.id, f"is ruled by {one.policy}, and was given {policy}")
        if row.state == "Stopped" and not one.ended:
            say("final", one.id, "was told to end, on record, and is shown as one that goes on")


def _check_cells(say: Say, sup: Supervisor, durable: Rows) -> None:
    """A call that has returned leaves no actor behind."""
    for row in durable.values():
        if row.kind != "turn" or row.ended or row.id not in sup.tree.entities:
            continue
        kept = {f"{row.id}:c{call['number']}" for call in msgspec.json.decode(row.data).get("open", ())}
        for child in sup._system.children(row.id):
            if child.startswith(f"{row.id}:c") and child not in kept and sup._system.inspect(child).phase == "live":
                say("bounded", child, "has returned, on record, and its actor lives on")


def _check_processes(say: Say, nodes: Mapping[str, TreeNode], durable: Rows) -> None:
    """A call's processes are those that its session has for it; an agent that is there has the pid on record."""
    for one in nodes.values():
        if one.kind == "tool" and one.parent is not None:
            kept = tuple(each for each in nodes[one.parent].processes if each.owner == one.id)
            if one.processes != kept:
                say("durable", one.id, f"shows the processes {one.processes}; its session has {kept} for it")
            continue
        for each in one.processes:
            row = durable.get(each.owner)
            pid = msgspec.json.decode(row.data).get("pid") if row is not None and row.kind == "agent" else each.pid
            if pid != each.pid or not each.owner.startswith(one.id):
                say("durable", one.id, f"shows {each.owner} as process {each.pid}; it is {pid} on record")


def _inspect(say: Say, sup: Supervisor, row: EntityRow, timers: Callable[[str], int]) -> None:
    """What is shown of one: its kind, its state, its calls; and it has the timers that its records have set."""
    seen = sup.inspect(row.id)
    data = msgspec.json.decode(row.data)
    calls = tuple(f"{row.id}:c{call['number']}" for call in data.get("open", ()))
    shown, kept = (seen.id, seen.kind, seen.state, seen.open_calls), (row.id, row.kind, row.state, calls)
    if shown != kept:
        say("durable", row.id, f"an inspection shows {shown} of {kept}")
    if not 0 <= seen.handling_s <= HANDLING_MAX_S or any(number < 0 for number in seen.queued.values()):
        say("bounded", row.id, f"an inspection shows {seen.queued}, handled for {seen.handling_s:g} s")
    if row.kind == "session" and seen.phase == "live" and seen.timers != timers(row.id):
        say("punctual", row.id, f"has {seen.timers} timers, and its records have set {timers(row.id)}")
    if sup.state_of(row.id) != row.state:
        say("durable", row.id, f"is said to be {sup.state_of(row.id)}, and is {row.state} on record")


HANDLING_MAX_S = 3600.0
"""No handler of an entity waits; what is shown is a moment of this run, never a time since 1970."""
