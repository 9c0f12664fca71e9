"""``supervisor why``: the root cause of an entity's last change in a sentence, and the records that lead to it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

from supervisor.cli.completion import complete_ids
from supervisor.cli.fleet import fleet_view, host_option, read_replica
from supervisor.cli.lookup import in_session, newest_of_name, open_journal, task_given, unknown_id, with_run
from supervisor.cli.options import examples, json_option, run_option, say, state_dir_option, warn
from supervisor.cli.rendering import counted, event_line, json_text
from supervisor.control.error_messages import BadInput, UnknownId
from supervisor.diagnostics.causal_trace import (
    Annotation,
    Explanation,
    RecordRole,
    SpineStep,
    explain,
)
from supervisor.diagnostics.tool_calls import ToolCallIndex
from supervisor.diagnostics.tree_view import STAYING
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.policies.redaction import printable
from supervisor.ports import Reader


@click.command(
    "why",
    epilog=examples(
        "supervisor why fix",
        "supervisor why fix:t1:c1 -v",
        "supervisor why r1#fix             # the task fix of run r1, and not its session",
        "supervisor why fix --exact        # the first session named fix, also if fix-2 is newer",
    ),
)
@click.argument("entity_id", metavar="ID", shell_complete=complete_ids())
@click.option("--exact", is_flag=True, help="ID is the id of one session, also if later sessions have its name.")
@click.option("-v", "--verbose", is_flag=True, help="Print the records, too: the tree of causes from the root event.")
@run_option
@host_option
@state_dir_option
@json_option
def why_command(
    entity_id: str, exact: bool, verbose: bool, run: str | None, host: str | None, state_dir: Path, as_json: bool
) -> None:
    """ID is the id of a session, turn, agent, task (RUN#TASK), run or tool call. A name means the newest session of its
    task, as in `supervisor logs`. Prints a sentence with the root cause. With -v the tree of causes from the one root
    event to the end follows: the actor, policy edges, termination stages, and causes that came too late. In a fleet, an
    ID that this host does not know is looked for on the others."""
    entity_id = with_run(entity_id, run)
    explanation, events = _explained_in_fleet(state_dir, entity_id, host, exact=exact)
    if "#" not in entity_id and explanation.entity_id != entity_id and "#" not in explanation.entity_id:
        warn(f"{explanation.entity_id} is the newest of {entity_id}; `supervisor why {entity_id} --exact`: the first")
    if as_json:
        say(json_text(explanation))
        return
    say(printable(explanation.sentence))
    if verbose:
        say(why_text(explanation, events))


def explained(state_dir: Path, entity_id: str, *, exact: bool = False) -> tuple[Explanation, list[LifecycleEvent]]:
    """Return the explanation of an entity's last change, and the records of the turns in it. A name means the newest
    session of the name, unless it is to be *exact*.

    Raises:
        UnknownId: no record is about that id.
        BadInput: there is no such run or task, or several running runs have a task of that name.
    """
    with open_journal(state_dir) as (state, reader):
        running = state.lock_holder() is not None
        return _explained_by(reader, entity_id=entity_id, exact=exact, running=running)


def _explained_by(
    reader: Reader, *, entity_id: str, exact: bool, running: bool
) -> tuple[Explanation, list[LifecycleEvent]]:
    if exact:
        entity_id = _exact_id(reader, entity_id, running=running)
    else:
        entity_id = newest_of_name(reader, entity_id, running=running)
    if (explanation := explain(reader, entity_id)) is None:
        raise unknown_id(reader, entity_id)
    turns = dict.fromkeys(one.entity_id for one in explanation.records if one.entity_type == Kind.TURN)
    return explanation, [one for turn in turns for one in reader.events(turn, archived=True)]


def _explained_in_fleet(
    state_dir: Path, entity_id: str, host: str | None, *, exact: bool
) -> tuple[Explanation, list[LifecycleEvent]]:
    """Return the explanation by this host's journal, or else by the replica of the one host that knows the id.

    Raises:
        BadInput: as for :func:`explained`; or several other hosts know the id.
    """
    view = fleet_view(StateDir.open(state_dir, create=False), host)
    missing: BadInput | None = None
    if view.shows_own:
        try:
            return explained(state_dir, entity_id, exact=exact)
        except BadInput as error:
            is_absent = isinstance(error, UnknownId) or "#" in entity_id
            if not (view.others and is_absent):
                raise
            missing = error
    found: list[tuple[str, tuple[Explanation, list[LifecycleEvent]]]] = []
    for other in view.others:
        try:
            ask = partial(_explained_by, entity_id=entity_id, exact=exact, running=other.is_running)
            answer = read_replica(other, ask)
        except BadInput as error:
            missing = missing or error
        else:
            if answer is not None:
                found.append((other.name, answer))
    if len(found) > 1:
        names = " or ".join(name for name, _ in found)
        raise BadInput(f"{entity_id}: more than one host has that id; give --host {names}")
    if not found:
        raise missing or BadInput(f"{entity_id}: the records of the other hosts cannot be read now; try again")
    if host is None:
        warn(f"{entity_id} is on host {found[0][0]}")
    return found[0][1]


def _exact_id(reader: Reader, entity_id: str, *, running: bool) -> str:
    """Return the id itself if it is the id of an entity; else, of the task with that name, the id."""
    rows = reader.entities(ended_kinds=STAYING)
    entity_id = in_session(reader, rows, entity_id)
    is_known = reader.entity(entity_id) is not None or ("#" in entity_id and reader.archived_records())
    task = None if is_known else task_given(rows, entity_id, running=running)
    return task.id if task is not None else entity_id


# ---------------------------------------------------------------------------------------------------------- text
def why_text(explanation: Explanation, events: Iterable[LifecycleEvent] = ()) -> str:
    """Return the tree of causes: the spine from the root to the end, each record with its annotations below it.

    *events* are records from which the tool calls in the explanation are identified. The spine is not indented, because
    it may be thousands of records long.
    """
    calls = ToolCallIndex()
    for one in events:
        calls.take(one)
    last = len(explanation.steps) - 1
    lines = [f"why {printable(explanation.entity_id)}: {_asked(explanation)}"]
    for number, step in enumerate(explanation.steps):
        lines += _step_lines(step, calls, first=number == 0, last=number == last)
    return "\n".join(lines)


def _asked(explanation: Explanation) -> str:
    """Return the headline of an explanation: the number of roots, the root event and its actor."""
    if explanation.root is None:
        return f"the journal does not hold record {explanation.missing}, which caused the first one"
    roots = counted(explanation.roots, "root", "roots")
    return f"{roots}, {explanation.root.event} by {printable(explanation.root.actor or 'an unnamed actor')}"


def _step_lines(step: SpineStep, calls: ToolCallIndex, *, first: bool, last: bool) -> list[str]:
    mark = "─" if first and last else "┌" if first else "└" if last else "├"
    below = " " if last else "│"
    lines = [f"{mark} {event_line(step.record, calls.label(step.record))}"]
    for branch in step.branches:
        fork = "└─" if branch is step.branches[-1] else "├─"
        lines.append(f"{below}   {fork} {_branch(branch, calls)}")
    return lines


def _branch(branch: Annotation, calls: ToolCallIndex) -> str:
    role = "stage" if branch.role is RecordRole.STAGE else branch.role  # the JSON keeps the journal's word, ``rung``
    return f"{role}: {event_line(branch.record, calls.label(branch.record))}"
