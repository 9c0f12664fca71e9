"""``supervisor doctor``: the process guarantees that this machine can give, and how to get the missing ones.

JSON: ``abilities`` is a list of ``{name, there, used_for, fix}``; ``guarantees`` one of ``{dies, given, missing}`` with
``given`` one of ``at once``, ``at the next start``, ``mostly at the next start``, ``not``.
"""

from __future__ import annotations

import json

import click

from supervisor.cli.options import json_option, say
from supervisor.processes.capabilities import Capability, Guarantee, guarantees, probe_capabilities


@click.command("doctor")
@json_option
def doctor(as_json: bool) -> None:
    """Tests what the guarantees need, and prints how to get what is missing. The tests leave nothing behind."""
    found = probe_capabilities()
    promised = guarantees(found)
    if as_json:
        document = {"abilities": [one._asdict() for one in found], "guarantees": [one._asdict() for one in promised]}
        say(json.dumps(document, indent=2))
        return
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
