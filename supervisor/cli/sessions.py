"""The commands that speak to a running supervisor: ``abort``, ``send`` and ``stop``.

They go through the control socket and print the answer. Aborting what has ended is no error, and neither is it where
the supervisor has ended with it: then the journal knows.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import msgspec

from supervisor.cli.query import ended, namesakes, used_by
from supervisor.cli.rendering import inspected_text, json_text, plan_text, receipt_text
from supervisor.control.client import request
from supervisor.control.error_messages import BadInput, ControlError, NotRunning, UnknownId
from supervisor.diagnostics.visual_state import Inspected
from supervisor.journal.statedir import StateDir, StateDirError
from supervisor.lifecycles.types import AbortScope
from supervisor.policies.abort_plan import AbortPlan, Receipt
from supervisor.policies.redaction import sound
from supervisor.ports import JournalError
from supervisor.runtime.availability import Outage

__all__ = ["abort", "inspect", "operator", "send", "stop"]

Say = Callable[[str], None]


def operator() -> str:
    """Who gives the command, as the records name them."""
    try:
        return sound(f"operator:{getpass.getuser()}")
    except (KeyError, OSError):  # a user without a name, as in a container
        return "operator"


def ask(state_dir: Path, message: Mapping[str, Any]) -> dict[str, Any]:
    """The one line of an answer."""
    return anyio.run(_first, StateDir(state_dir).control_socket, message)


async def _first(path: Path, message: Mapping[str, Any]) -> dict[str, Any]:
    async with aclosing(request(path, message)) as answers:
        told = [answer async for answer in answers]
    return told[0]


def abort(
    state_dir: Path, target: str, scope: AbortScope, say: Say, *, how: Mapping[str, Any], reason: str, as_json: bool
) -> None:
    """End *target* as far as *scope* reaches, or print what that would end; *how*: ``control.Abort``'s other fields."""
    message = {"do": "abort", "target": target, "scope": scope, **how}
    try:
        answer = ask(state_dir, {**message, "reason": reason, "actor": operator()})
    except (NotRunning, ControlError) as error:
        if not _over(state_dir, target, error):
            raise
        gone = Receipt(abort_id="", target=target, scope=scope, reason=reason, already_ended=True)
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
    """The living sessions with the target's name and a number: its id was used in an earlier run."""
    try:
        return namesakes(state_dir, target)
    except (StateDirError, JournalError):  # an abort is answered all the same
        return []


def _over(state_dir: Path, target: str, error: NotRunning | ControlError) -> bool:
    """Whether the journal knows *target*, and it cannot be running: it has ended, or its supervisor has."""
    if isinstance(error, ControlError) and error.kind != "unknown":
        return False
    try:
        known = ended(state_dir, target)
    except (StateDirError, JournalError):
        return False
    if isinstance(error, NotRunning):
        if known is None and StateDir(state_dir).journal.exists():
            raise UnknownId(target) from error
        return known is not None
    return known is True


def send(state_dir: Path, session: str, text: str, say: Say, *, urgent: bool, at: str | None, as_json: bool) -> None:
    """Give a session a message: for its next prompt, or, if it is urgent, *at* a point of the turn that runs.

    Raises:
        BadInput: *at* is given for a message that is not urgent.
    """
    if at is not None and not urgent:
        raise BadInput(f"--at {at}: only an urgent message is delivered before the next prompt; add --urgent")
    message = {"do": "send", "session": session, "text": text, "urgent": urgent, "at": at}
    answer = ask(state_dir, {**message, "sender": operator()})
    say(json_text(answer) if as_json else f"message {answer['message_id']} for {session}")


def inspect(state_dir: Path, entity_id: str, say: Say, warn: Say, *, as_json: bool) -> None:
    """Print what goes on in a living entity, also in one that is stuck."""
    answer = ask(state_dir, {"do": "inspect", "entity": entity_id})
    used = used_by(state_dir, entity_id, warn)
    told = {**answer["inspected"], "used": used.told if used is not None else {}}
    inspected = msgspec.convert(answer["inspected"], Inspected)
    words = inspected_text(inspected) + (f"\n  used: {used.words}" if used is not None and used.words else "")
    say(json_text(told) if as_json else words)
    _tell_of_the_disk(answer, warn)


def _tell_of_the_disk(answer: Mapping[str, Any], warn: Say) -> None:
    if answer["outage"] is not None:
        warn(msgspec.convert(answer["outage"], Outage).words)


def stop(state_dir: Path, say: Say, warn: Say, *, now: bool, as_json: bool) -> None:
    """Ask the supervisor to drain, or to abort everything."""
    answer = ask(state_dir, {"do": "stop", "now": now, "actor": operator()})
    ending = answer["stopping"] == "now"  # asked for, or because it was the second time
    words = "everything is being aborted" if ending else "draining: no new turn begins, those under way may finish"
    say(json_text(answer) if as_json else words)
    _tell_of_the_disk(answer, warn)
