"""``supervisor plugins``: the plug-ins that a run would use, loaded as a run loads them, and what they add.

A plug-in that cannot be used is listed with its problem; the command succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import msgspec

from supervisor.cli.options import examples, json_option, say
from supervisor.cli.rendering import json_text
from supervisor.plans.agents import ADAPTERS
from supervisor.plugins import PluginReport, Plugins


@click.command("plugins", epilog=examples("supervisor plugins"))
@json_option
def plugins(as_json: bool) -> None:
    """Each plug-in is loaded as a run would load it, and its problems are printed."""
    found = Plugins.load(None, reserved=ADAPTERS)
    found.dismiss()
    reports = found.reports()
    if as_json:
        plain = msgspec.to_builtins(reports)
        say(json_text([{key: value for key, value in one.items() if key != "counts"} for one in plain]))
    elif not reports:
        say("no plug-in is installed")
    for one in () if as_json else reports:
        say("\n".join(_lines(one)))


def _lines(one: PluginReport) -> Iterator[str]:
    yield f"{one.name} {one.version or '(no version)'}, from {one.source}{'' if one.used else ': NOT USED'}"
    for what, names in (("hooks", one.hooks), ("adapters", one.adapters), ("verifiers", one.verifiers)):
        if names:
            yield f"  {what}: {', '.join(names)}"
    for problem in one.problems:
        yield f"  problem: {problem}"
