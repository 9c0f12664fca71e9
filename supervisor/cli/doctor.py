"""``supervisor doctor``: the process guarantees that this machine can give, and how to get the missing ones.

JSON: ``abilities`` is a list of ``{name, there, used_for, fix}``; ``guarantees`` one of ``{dies, given, missing}`` with
``given`` one of ``at once``, ``at the next start``, ``mostly at the next start``, ``not``; ``import_name`` is a
sentence about another package with the import name ``supervisor``, or ``""``.
"""

from __future__ import annotations

import json

import click

from supervisor.cli.options import json_option, say
from supervisor.embedding.import_name import FIX, find_clash
from supervisor.processes.capabilities import Capability, Guarantee, guarantees, probe_capabilities


@click.command("doctor")
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
    say("When one of these dies, nothing of what it had started is left:")
    width = max(len(one.dies) for one in promised)
    for guarantee in promised:
        say(f"  {guarantee.dies:<{width}}  {_given(guarantee)}")
    say("What this machine has for it:")
    for ability in found:
        say(f"  {_sentence(ability)}")


def _given(guarantee: Guarantee) -> str:
    return guarantee.given + (f" (no {', no '.join(guarantee.missing)})" if guarantee.missing else "")


def _sentence(ability: Capability) -> str:
    if ability.there:
        return f"{ability.name}: yes"
    return f"{ability.name}: NO\n    used for: {ability.used_for}\n    to get it: {ability.fix}"
