"""Commands about permissions: ``permissions`` lists the requests that wait for a person, ``answer`` answers one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from supervisor.cli.completion import complete_ids
from supervisor.cli.options import examples, json_option, say, state_dir_option
from supervisor.cli.rendering import columns, duration, json_text
from supervisor.cli.sessions import operator, send_request
from supervisor.cli.terminal import table_width
from supervisor.control.requests import Answer, Permissions
from supervisor.policies.permissions import OpenPermission, detail_text
from supervisor.policies.redaction import printable


@click.command("permissions", epilog=examples("supervisor permissions"))
@state_dir_option
@json_option
def permissions(state_dir: Path, as_json: bool) -> None:
    """Requests that a policy decides do not wait and are not listed."""
    reply = send_request(state_dir, Permissions())["permissions"]
    say(json_text(reply) if as_json else _text(msgspec.convert(reply, list[OpenPermission])))


def _text(waiting: Sequence[OpenPermission]) -> str:
    if not waiting:
        return "no permission waits for an answer"
    heads = ("ID", "AGENT", "KIND", "TITLE", "LEFT", "OFFERS")
    rows = ((one.id, one.agent, _kind(one), one.title, duration(one.left_s), ", ".join(one.options)) for one in waiting)
    details = [f"\n{printable(one.id)}:\n{_indented(detail_text(one.detail))}" for one in waiting if one.detail]
    return "\n".join([columns(heads, rows, table_width()), *details])


def _kind(one: OpenPermission) -> str:
    return f"{one.kind} ({one.tool})" if one.tool else one.kind


def _indented(detail: str) -> str:
    return "\n".join(f"  {printable(line)}" for line in detail.splitlines())


@click.command("answer", epilog=examples('supervisor answer fix:t1:p1 deny --because "not in this directory"'))
@click.argument("permission_id", metavar="ID", shell_complete=complete_ids("permission", living=True))
@click.argument("decision", type=click.Choice(["allow", "deny"]))
@click.option("--always", is_flag=True, help="Also for the same request later in the session.")
@click.option("--because", default="", metavar="TEXT", help="Reason to record.")
@state_dir_option
@json_option
def answer(permission_id: str, decision: str, always: bool, because: str, state_dir: Path, as_json: bool) -> None:
    """The first answer counts; a later one is refused. A request that is not answered in time is denied."""
    allow = decision == "allow"
    asked = Answer(id=permission_id, allow=allow, always=always, because=because, by=operator())
    reply = send_request(state_dir, asked)["answered"]
    for_good = " for good" if (reply["kind"] or "").endswith("_always") else ""
    nothing = (
        ""
        if reply["option"] is not None
        else " (the agent offers no such answer, and gets the reply that none was chosen)"
    )
    words = f"{printable(permission_id)}: {'allowed' if allow else 'denied'}{for_good}{nothing}"
    say(json_text(reply) if as_json else words)
