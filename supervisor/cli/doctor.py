"""``supervisor doctor``: the process guarantees that this machine can give, and how to get the missing ones.

JSON: ``abilities`` is a list of ``{name, there, used_for, fix}``; ``guarantees`` one of ``{dies, given, missing}`` with
``given`` one of ``at once``, ``mostly at once``, ``at the next start``, ``mostly at the next start``, ``not``;
``import_name`` is a sentence about another package with the import name ``supervisor``, or ``""``.
"""

from __future__ import annotations

import json

import click

from supervisor.cli.options import examples, json_option, say
from supervisor.embedding.import_name import FIX, find_clash
from supervisor.processes.capabilities import Capability, Guarantee, guarantees, probe_capabilities


@click.command("doctor", epilog=examples("supervisor doctor"))
@json_option
def doctor(as_json: bool) -> None:
    """Tests what the guarantees need, and prints how to get what is missing. The tests leave nothing behind."""
    found, clash = probe_capabilities(), find_clash()
    promised = guarantees(found)
    if as_json:
        abilities, given = [one._asdict() for one in found], [one._asdict() for one in promised]
        say(json.dumps({"abilities": abilities, "guarantees": given, "import_name": clash}, indent=2))
        return
    if clash:
        say(f"{clash}.\n    to mend it: {FIX}")
    say(
        "If one of these dies, everything that it had started is ended (a shim is the small process above each program,"
    )
    say("the fork server is the process that starts the shims):")
    width = max(len(one.dies) for one in promised)
    for guarantee in promised:
        say(f"  {guarantee.dies:<{width}}  {_given(guarantee)}")
    say("This machine has, for that:")
    for ability in found:
        say(f"  {_sentence(ability)}")
    missing = [one.name for one in found if not one.there]
    say(f"Missing: {', '.join(missing)}; each `to get it` says how to get it." if missing else "Nothing is missing.")


def _given(guarantee: Guarantee) -> str:
    return guarantee.given + (f" (no {', no '.join(guarantee.missing)})" if guarantee.missing else "")


def _sentence(ability: Capability) -> str:
    if ability.there:
        return f"{ability.name}: yes\n    used for: {ability.used_for}"
    return f"{ability.name}: NO\n    used for: {ability.used_for}\n    to get it: {ability.fix}"
