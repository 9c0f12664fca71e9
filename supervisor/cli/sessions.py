"""Commands that send requests to a running supervisor: ``abort``, ``send``, ``inspect`` and ``stop``.

They use the control socket and print the reply. Aborting a target that has ended is not an error, even if no supervisor
runs any more: then the journal shows that the target has ended. Aborting a target that the journal shows alive needs a
running supervisor.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec

from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import running_namesakes
from supervisor.cli.options import json_option, say, state_dir_option, warn
from supervisor.cli.query import ended, used_by
from supervisor.cli.rendering import inspected_text, json_text, plan_text, receipt_text
from supervisor.control.client import answers_to
from supervisor.control.error_messages import BadInput, ControlError, NotRunning, UnknownId, WorkFailed
from supervisor.control.requests import Abort, Inspect, Request, Send, Stop
from supervisor.diagnostics.visual_state import Inspected
from supervisor.journal.statedir import StateDir, StateDirError
from supervisor.lifecycles.types import AbortScope, DeliveryPoint, Kind
from supervisor.policies.abort_plan import AbortPlan, Receipt
from supervisor.policies.redaction import encodable
from supervisor.ports import JournalError
from supervisor.runtime.outages import Outage

_POINTS = ("now", "tool_boundary", "turn_end")
_SCOPES = ("tool", "sibling", "session")


def operator() -> str:
    """Return the name of the user who gives a command, as the actor for the records."""
    try:
        return encodable(f"operator:{getpass.getuser()}")
    except (KeyError, OSError):  # a user without a name, as in a container
        return "operator"


def send_request(state_dir: Path, asked: Request) -> dict[str, Any]:
    """Send a request to the supervisor that has a reply of one line, and return that line."""
    return anyio.run(answers_to, StateDir(state_dir).control_socket, asked)[0]


@click.command("abort")
@click.argument("target", metavar="ID", shell_complete=complete_ids(Kind.SESSION, "tool", living=True))
@click.option("--scope", type=click.Choice(_SCOPES), required=True, help="What ends besides the target.")
@click.option("--dry-run", is_flag=True, help="Print the plan only: what would end, by when, and the plan's id.")
@click.option("--plan", metavar="PLAN", help="Abort only if the effect is still that of the plan with this id.")
@click.option("--now", is_flag=True, help="Start at the stage kill, even if an earlier abort has not got that far.")
@click.option(
    "--within", "within_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Deadline of the whole abort."
)
@click.option("--reason", default="aborted from the command line", show_default=True)
@state_dir_option
@json_option
def abort(target: str, scope: str, reason: str, state_dir: Path, as_json: bool, **how: Any) -> None:
    """Prints the receipt: what was ended, how, and what is left."""
    if how["within_s"] is not None and not isfinite(how["within_s"]):
        raise BadInput(f"--within: {how['within_s']} is not a duration; give seconds, 0 or more")
    if how["dry_run"] and (how["plan"] is not None or how["within_s"] is not None):
        raise BadInput("--dry-run: it makes a new plan and ends nothing; leave out --plan and --within")
    try:
        answer = send_request(state_dir, Abort(id=target, scope=AbortScope(scope), reason=reason, by=operator(), **how))
    except (NotRunning, ControlError) as error:
        if not _has_ended(state_dir, target, error):
            raise
        gone = Receipt(abort_id="", target=target, scope=AbortScope(scope), reason=reason, already_ended=True)
        answer = {"receipt": msgspec.to_builtins(gone)}
    if as_json:
        say(json_text(answer.get("plan") or answer["receipt"]))
    elif "plan" in answer:
        plan = msgspec.convert(answer["plan"], AbortPlan)
        say(plan_text(plan, _namesakes(state_dir, target) if plan.already_ended else ()))
    else:
        receipt = msgspec.convert(answer["receipt"], Receipt)
        say(receipt_text(receipt, _namesakes(state_dir, target) if receipt.already_ended else ()))


def _namesakes(state_dir: Path, target: str) -> list[str]:
    """Return the running sessions that have the target's name with another number, since the id was used in an earlier
    run."""
    try:
        return running_namesakes(state_dir, target)
    except (StateDirError, JournalError):  # an abort is answered all the same
        return []


def _has_ended(state_dir: Path, target: str, error: NotRunning | ControlError) -> bool:
    """Return whether *target* has ended according to the journal.

    Raises:
        WorkFailed: the journal shows *target* alive, and no supervisor runs that could end it.
        UnknownId: the journal does not know *target*.
    """
    if isinstance(error, ControlError) and error.kind != "unknown":
        return False
    try:
        known = ended(state_dir, target)
    except (StateDirError, JournalError):
        return False
    if isinstance(error, NotRunning):
        if known is None and StateDir(state_dir).journal.exists():
            raise UnknownId(target) from error
        if known is False:
            raise WorkFailed(
                f"{target} was not aborted: no supervisor runs on {state_dir}. It stopped with its supervisor; the "
                "next `supervisor run` there ends it, or goes on with it"
            ) from error
    return known is True


@click.command("send")
@click.argument("session", metavar="ID", shell_complete=complete_ids(Kind.SESSION, living=True))
@click.argument("text")
@click.option("--urgent", is_flag=True, help="Do not wait for the next prompt: interrupt the turn.")
@click.option(
    "--at",
    type=click.Choice(_POINTS),
    help="When to deliver an urgent message: now (the default), when no tool call is open, or in a turn of its own "
    "right after this one.",
)
@state_dir_option
@json_option
def send(session: str, text: str, urgent: bool, at: str | None, state_dir: Path, as_json: bool) -> None:
    if at is not None and not urgent:
        raise BadInput(f"--at {at}: only an urgent message is delivered before the next prompt; add --urgent")
    point = DeliveryPoint(at) if at is not None else None
    answer = send_request(state_dir, Send(id=session, text=text, urgent=urgent, at=point, by=operator()))
    say(json_text(answer) if as_json else f"message {answer['message_id']} for {session}")


@click.command("inspect")
@click.argument("entity_id", metavar="ID", shell_complete=complete_ids(living=True))
@state_dir_option
@json_option
def inspect(entity_id: str, state_dir: Path, as_json: bool) -> None:
    """ID is the id of a living session, turn, agent, task or tool call. The output includes the stacks of its tasks,
    which show where an entity is stuck."""
    answer = send_request(state_dir, Inspect(id=entity_id))
    used = used_by(state_dir, entity_id)
    document = {**answer["inspected"], "used": used.as_record if used is not None else {}}
    inspected = msgspec.convert(answer["inspected"], Inspected)
    words = inspected_text(inspected) + (f"\n  used: {used.words}" if used is not None and used.words else "")
    say(json_text(document) if as_json else words)
    _warn_of_outage(answer)


def _warn_of_outage(answer: Mapping[str, Any]) -> None:
    if answer["outage"] is not None:
        warn(msgspec.convert(answer["outage"], Outage).words)


@click.command("stop")
@click.option("--now", is_flag=True, help="Abort everything instead of letting turns finish.")
@state_dir_option
@json_option
def stop(now: bool, state_dir: Path, as_json: bool) -> None:
    answer = send_request(state_dir, Stop(now=now, by=operator()))
    ending = answer["stopping"] == "now"  # asked for, or because it was the second time
    words = "everything is being aborted" if ending else "draining: no new turn begins, turns in progress may finish"
    say(json_text(answer) if as_json else words)
    _warn_of_outage(answer)
