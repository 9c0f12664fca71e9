"""``supervisor replay``: replay a journal and compare, show the tree as of a record, or replay under other policies.

The journal is only read, with or without a running supervisor. Policies are parsed strictly: an unknown key or an
invalid value is bad input, and the message says what is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from supervisor.cli.options import PATH, examples, json_option, say
from supervisor.cli.rendering import duration, json_text, tree_json, tree_text
from supervisor.cli.validate import VIOLATIONS_MAX, as_violations, journal_at, violation_line
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput
from supervisor.diagnostics.invariants.aborts import EDGES
from supervisor.diagnostics.replay import Difference, Replay
from supervisor.diagnostics.tree_view import STAYING, tree
from supervisor.diagnostics.what_if import LIMITS, Outcome, what_if
from supervisor.embedding.journals import open_file
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.redaction import printable
from supervisor.policies.usage import USAGE_EVENTS, UsageTotals

_BOOLEANS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_VALUE_MAX: Final = 120
"""Number of characters of a value that are shown to people; JSON has the whole value."""
_LEAST: Final[Mapping[str, float]] = {"max_consecutive_errors": 1, "max_total_errors": 1}
"""Smallest values of limits whose smallest value is not 0."""
_MOST: Final = 10**9
"""Largest value of a limit, larger than any number that occurs."""


@click.command(
    "replay", epilog=examples("supervisor replay .sdd", "supervisor replay .sdd --restart-policy max_total_errors=3")
)
@click.argument("journal", type=PATH, metavar="JOURNAL")
@click.option("--at", type=int, metavar="SEQ", help="Show only the tree as it was after that record.")
@click.option("--abort-policy", metavar="KEY=BOOL,...", help="What if: tool_to_sibling, sibling_to_session.")
@click.option(
    "--restart-policy",
    metavar="KEY=VALUE,...",
    help="What if: max_consecutive_errors, max_total_errors, restarts_max, restarts_within_s, backoff_base_ms, "
    "backoff_cap_ms.",
)
@json_option
def replay(journal: Path, at: int | None, abort_policy: str | None, restart_policy: str | None, as_json: bool) -> int:
    """JOURNAL is a journal.db or a state directory; it is only read. Every recorded event goes through the lifecycle
    tables again: the results are compared with the recorded ones, and the invariants are checked. Exit status 1: there
    is a difference. With a policy, it shows how the run would have gone under that policy."""
    edges = _edges(abort_policy) if abort_policy is not None else {}
    pairs = _pairs("--restart-policy", restart_policy, tuple(LIMITS)) if restart_policy is not None else ()
    limits = {key: _limit(key, value) for key, value in pairs}
    if at is not None and (edges or limits):
        raise BadInput("--at: it shows the recorded tree, a policy another run; give one of them")
    path = journal_at(journal)
    if at is not None:
        _replay_tree(path, at, as_json=as_json)
    elif edges or limits:
        _replay_under(path, edges, limits, as_json=as_json)
    else:
        return DONE if _replay_all(path, as_json=as_json) else WORK_FAILED
    return DONE


# ------------------------------------------------------------------------------------------------- all of it, again
def _replay_all(path: Path, *, as_json: bool) -> bool:
    """Replay all records and compare; return whether nothing differs and no invariant is violated."""
    with open_file(path) as file:
        _check_whole(path, is_part=file.is_part)
        changed = as_violations(file.find_damage())
        last_seq = file.last_seq
        replay = Replay(file.entities(archived=True), file.effects(), last_seq=last_seq)
        for record in file.events(archived=True):
            replay.replay(record)
    replay.finish()
    replay.violations[:0] = changed
    same = not (replay.differences or replay.violations)
    if as_json:
        say(json_text({"file": str(path), "same": same, **_as_json(replay)}))
    else:
        say(_replay_text(str(path), replay))
    return same


def _check_whole(path: Path, *, is_part: bool) -> None:
    if is_part:
        raise BadInput(f"{path} is an archive, a part of a journal: give the state directory, or `validate` it")


def _as_json(replay: Replay) -> dict[str, Any]:
    differences, violations = replay.differences[:VIOLATIONS_MAX], replay.violations[:VIOLATIONS_MAX]
    omitted = len(replay.differences) - len(differences) + len(replay.violations) - len(violations)
    counted = {"records": replay.records, "entities": len(replay.shadows), "omitted": omitted}
    return {**counted, "differences": differences, "violations": violations}


def _replay_text(name: str, replay: Replay) -> str:
    lines = [_difference_line(one) for one in replay.differences[:VIOLATIONS_MAX]]
    lines += [violation_line(one) for one in replay.violations[:VIOLATIONS_MAX]]
    counted = f"{replay.records} records, {len(replay.shadows)} entities"
    found = f"{len(replay.differences)} differences, {len(replay.violations)} violations"
    return "\n".join([*(f"{name}: {line}" for line in lines), f"{name}: {counted}: {found}"])


def _difference_line(one: Difference) -> str:
    where = f"record {one.seq}" if one.seq is not None else "at the end"
    recorded, replayed = _short(one.recorded), _short(one.replayed)
    return f"{where}: {printable(one.entity_id)}: {one.field}: the journal has {recorded}, its records give {replayed}"


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _VALUE_MAX else f"{text[:_VALUE_MAX]}…"


# -------------------------------------------------------------------------------------------------- as of a record
def _replay_tree(path: Path, at: int, *, as_json: bool) -> None:
    """Print the tree as it was after record *at*."""
    replay, usage_records = Replay(), list[LifecycleEvent]()
    with open_file(path) as file:
        _check_whole(path, is_part=file.is_part)
        last_seq = file.last_seq
        if not 1 <= at <= last_seq:
            has = f"no record {at}; give 1 to {last_seq}" if last_seq else "no records yet"
            raise BadInput(f"--at: {path} has {has}")
        for record in file.events(archived=True):
            replay.replay(record)
            if as_json and record.event in USAGE_EVENTS:
                usage_records.append(record)
            if record.seq >= at:
                break
    rows = replay.rows()
    parents = {row.id: row.parent_id for row in rows}
    used = UsageTotals(usage_records, parents.get).sums()
    nodes = tree([row for row in rows if not row.ended or row.kind in STAYING], used)
    say(tree_json(nodes) if as_json else tree_text(nodes))


# -------------------------------------------------------------------------------------------- under other policies
def _replay_under(path: Path, edges: Mapping[str, bool], limits: Mapping[str, Any], *, as_json: bool) -> None:
    """Print how the recorded run would have gone under other policies."""
    with open_file(path) as file:
        _check_whole(path, is_part=file.is_part)
        outcome = what_if(list(file.events(archived=True)), edges=edges, limits=limits)
    if as_json:
        document = {"file": str(path), "abort_policy": edges, "restart_policy": limits}
        say(json_text({**document, **msgspec.to_builtins(outcome)}))
    else:
        say(_outcome_text(outcome))


def _outcome_text(outcome: Outcome) -> str:
    lines = [
        f"the runs do not differ: {outcome.records} records, the same ends"
        if outcome.parts_at is None
        else f"the runs differ from record {outcome.parts_at} of {outcome.records}"
    ]
    for abort in outcome.aborts:
        lines.append(f"record {abort.seq}: {abort.abort_id}, a {abort.scope} abort of {abort.target}")
        lines += [f"  would have ended {one}" for one in abort.would_end]
        lines += [f"  would not have ended {one}" for one in abort.would_live]
    for one in outcome.sessions:
        would = "would have given up" if one.would == "give_up" else "would have tried again"
        lines.append(f"record {one.seq}: {one.session_id} {would} ({one.why})")
    lines.append(f"ended earlier, or never born: {_names(outcome.ended)}")
    lines.append(f"not ended there: {_names(outcome.lived)}")
    saved, spent = outcome.launches_saved, outcome.launches_spent
    lines.append(f"launches: {outcome.launches} as it was, {saved} saved, at least {spent} more")
    if outcome.waited_s != outcome.would_wait_s:
        lines.append(
            f"backoff: {duration(outcome.waited_s)} as it was, {duration(outcome.would_wait_s)} as it would be"
        )
    return "\n".join(printable(line) for line in lines)


def _names(ids: tuple[str, ...]) -> str:
    return ", ".join(ids) or "none"


# ------------------------------------------------------------------------------------------------ reading policies
def _edges(text: str) -> dict[str, bool]:
    """Parse policy edges, such as ``tool_to_sibling=true,sibling_to_session=false``.

    Raises:
        BadInput: an edge is unknown, or a value is neither true nor false.
    """
    found: dict[str, bool] = {}
    for key, value in _pairs("--abort-policy", text, EDGES):
        word = _BOOLEANS.get(value.lower())
        if word is None:
            raise BadInput(
                f"--abort-policy: {key}: {value!r} is neither true nor false; give {key}=true or {key}=false"
            )
        found[key] = word
    return found


def _limit(key: str, value: str) -> int | float:
    """Parse the value of one limit of a list such as ``max_total_errors=3,restarts_within_s=30``.

    Raises:
        BadInput: the value is invalid, or larger than ``_MOST``.
    """
    kind, least = LIMITS[key], _LEAST.get(key, 0)
    words = "a whole number" if kind is int else "seconds"
    try:
        number = kind(value)
    except ValueError:  # also a whole number of thousands of digits
        number = -1
    if not (least <= number <= _MOST and (kind is int or number > 0)):
        above = f"{least:g} to {_MOST}" if kind is int else f"above 0, up to {_MOST}"
        raise BadInput(f"--restart-policy: {key}: {_short(value)!r} cannot be it; give {words}, {above}")
    return int(number) if kind is int else float(number)


def _pairs(option: str, text: str, known: tuple[str, ...]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in text.split(","):
        key, equals, value = (one.strip() for one in part.partition("="))
        if key not in known:
            raise BadInput(f"{option}: {key!r} is unknown; use {', '.join(known)}")
        if not equals or not value:
            raise BadInput(f"{option}: {key} has no value; give {key}=VALUE")
        if key in dict(found):
            raise BadInput(f"{option}: {key} is given twice; give it once")
        found.append((key, value))
    return found
