"""Commands that send requests to a running supervisor: ``abort``, ``send`` and ``inspect``.

They use the control socket and print the reply. Aborting a target that has ended is not an error, even if no supervisor
runs any more: then the journal shows that the target has ended. Aborting a target that the journal shows alive needs a
running supervisor.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path
from threading import Timer
from typing import Any

import anyio
import click
import msgspec

from supervisor.cli.completion import complete_ids
from supervisor.cli.lookup import living_session, not_living, open_journal, running_namesakes, with_run
from supervisor.cli.options import examples, json_option, run_option, say, state_dir_option, warn
from supervisor.cli.query import ended, used_by
from supervisor.cli.rendering import inspected_text, json_text, plan_text, receipt_text
from supervisor.control.client import answers_to
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput, ControlError, NotRunning, WorkFailed
from supervisor.control.requests import Abort, Inspect, Request, Send
from supervisor.diagnostics.visual_state import Inspected
from supervisor.journal.statedir import StateDir, StateDirError
from supervisor.journal.transcript import end_of
from supervisor.lifecycles.task import TaskEnd
from supervisor.lifecycles.types import AbortScope, DeliveryPoint, Kind
from supervisor.policies.abort_plan import AbortPlan, Receipt
from supervisor.policies.redaction import encodable
from supervisor.ports import JournalError
from supervisor.ports.outages import Outage

WAITING_S = 2.0
"""Seconds after which a command says what it waits for."""
_LOOK = "`supervisor tree` shows what is left"
_POINTS = ("now", "tool_boundary", "turn_end")
_SCOPES = ("tool", "sibling", "session")


def operator() -> str:
    """Return the name of the user who gives a command, as the actor for the records."""
    try:
        return encodable(f"operator:{getpass.getuser()}")
    except (KeyError, OSError):  # a user without a name, as in a container
        return "operator"


def send_request(state_dir: Path, request: Request, waiting: str = "") -> dict[str, Any]:
    """Send a request to the supervisor that has a reply of one line, and return that line. *waiting* is said if the
    reply takes long, and if the user does not wait for it."""
    timer = Timer(WAITING_S, warn, [waiting])
    timer.daemon = True
    if waiting:
        timer.start()
    try:
        return anyio.run(answers_to, StateDir(state_dir).control_socket, request)[0]
    except KeyboardInterrupt:
        if waiting:
            warn(waiting)
        raise
    finally:
        timer.cancel()


@click.command(
    "abort",
    epilog=examples(
        "supervisor abort fix:t1:c1 --scope tool       # one tool call; its session goes on",
        "supervisor abort fix --scope session --dry-run",
    ),
)
@click.argument("target", metavar="ID", shell_complete=complete_ids(Kind.SESSION, "tool", living=True))
@click.option("--scope", type=click.Choice(_SCOPES), required=True, help="What ends besides the target.")
@click.option("--dry-run", is_flag=True, help="Print the plan only: what would end, by when, and the plan's id.")
@click.option("--plan", metavar="PLAN", help="Abort only if the effect is still that of the plan with this id.")
@click.option("--now", is_flag=True, help="Start at the stage kill, even if an earlier abort has not got that far.")
@click.option(
    "--within", "within_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Deadline of the whole abort."
)
@click.option("--reason", default="aborted from the command line", show_default=True)
@run_option
@state_dir_option
@json_option
def abort(
    target: str, scope: str, reason: str, run: str | None, state_dir: Path, as_json: bool, **options: Any
) -> None:
    """ID is the id of a tool call (fix:t1:c1) or of a session (fix), or a task (RUN#TASK), for the session that works
    on it; `supervisor tree` shows the ids. The scope tool ends that call, session ends the session and everything below
    it, and sibling ends the other children of its parent. The output is a receipt: what was ended, how, and what is
    left. A target that had ended already is no error."""
    target = with_run(target, run)
    if options["within_s"] is not None and not isfinite(options["within_s"]):
        raise BadInput(f"--within: {options['within_s']} is not a duration; give seconds, 0 or more")
    if options["dry_run"] and (options["plan"] is not None or options["within_s"] is not None):
        raise BadInput("--dry-run: it makes a new plan and ends nothing; leave out --plan and --within")
    try:
        request = Abort(id=target, scope=AbortScope(scope), reason=reason, by=operator(), **options)
        answer = send_request(
            state_dir, request, "" if options["dry_run"] else f"the abort of {target} goes on; {_LOOK}"
        )
    except (NotRunning, ControlError) as error:
        if not _has_ended(state_dir, target, error):
            raise explained(state_dir, target, "abort", error) from None
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
            raise not_living(state_dir, target, "abort") from error
        if known is False:
            raise WorkFailed(
                f"{target} was not aborted: no supervisor runs on {state_dir}. It stopped with its supervisor; the "
                "next `supervisor run` there ends it, or goes on with it"
            ) from error
    return known is True


def explained(state_dir: Path, target: str, verb: str, error: NotRunning | ControlError) -> Exception:
    """Return the error to report for *error*: if no living session has the id *target*, or no supervisor runs, what has
    it, and what to type instead."""
    if isinstance(error, NotRunning) or error.kind == "unknown":
        with suppress(StateDirError, JournalError):
            return not_living(state_dir, target, verb)
    return error


@click.command("send", epilog=examples('supervisor send fix "Use the other API." --urgent'))
@click.argument("session", metavar="ID", shell_complete=complete_ids(Kind.SESSION, living=True))
@click.argument("text")
@click.option("--urgent", is_flag=True, help="Do not wait for the next prompt: interrupt the turn.")
@click.option(
    "--at",
    type=click.Choice(_POINTS),
    help="When to deliver an urgent message: now (the default), when no tool call is open, or in a turn of its own "
    "right after this one.",
)
@click.option("--wait", is_flag=True, help="Wait for the turn that answers the message, and print its result.")
@run_option
@state_dir_option
@json_option
def send(
    session: str, text: str, urgent: bool, at: str | None, wait: bool, run: str | None, state_dir: Path, as_json: bool
) -> int:
    """The message comes with the session's next prompt. The session of a task usually gets one prompt only: use
    --urgent to reach its agent, or an idle one. Exit status with --wait: 0 the turn was completed, 1 it
    has failed for good, or the session has ended before."""
    if at is not None and not urgent:
        raise BadInput(f"--at {at}: only an urgent message is delivered before the next prompt; add --urgent")
    point, session = DeliveryPoint(at) if at is not None else None, with_run(session, run)
    request = Send(id=session, text=text, urgent=urgent, at=point, by=operator())
    if wait:
        return _send_and_wait(state_dir, request, as_json=as_json)
    answer = send_message(state_dir, request)
    say(json_text(answer) if as_json else f"message {answer['message_id']} for {session}")
    return DONE


def send_message(state_dir: Path, request: Send) -> dict[str, Any]:
    """Send a message, and return the reply.

    Raises:
        BadInput: no living session has that id; the error says what has it.
        NotRunning, ControlError: as for ``client.request``.
    """
    try:
        return send_request(state_dir, request)
    except (NotRunning, ControlError) as error:
        raise explained(state_dir, request.id, "send", error) from None


def _send_and_wait(state_dir: Path, request: Send, *, as_json: bool) -> int:
    """Send a message, wait for the turn that it leads to, and print the result; return the exit status."""
    from supervisor.cli.message_turn import (
        await_message,
        is_at_rest,
    )  # here, since only --wait needs the models of a session

    with open_journal(state_dir) as (state, reader):
        session = living_session(state, reader, request.id)
        if request.at is not DeliveryPoint.TURN_END and is_at_rest(reader, session):
            fix = "add --urgent --at turn_end, which gives the message a turn of its own"
            raise BadInput(f"--wait: {session} is at rest, and no prompt is on its way; {fix}")
        offset = end_of(state.transcript(session))  # before the message: all that the agent answers comes later
        message_id = str(send_message(state_dir, request.model_copy(update={"id": session}))["message_id"])
        result = await_message(state, reader, session, message_id, offset)
    if as_json:
        say(json_text(result._asdict()))
    else:
        say(result.text or f"{session}: {result.outcome}")
    if result.outcome != TaskEnd.COMPLETED:
        warn(f"{session}: {result.outcome}: {result.error}")
    return DONE if result.outcome == TaskEnd.COMPLETED else WORK_FAILED


@click.command("inspect", epilog=examples("supervisor inspect fix"))
@click.argument("entity_id", metavar="ID", shell_complete=complete_ids(living=True))
@run_option
@state_dir_option
@json_option
def inspect(entity_id: str, run: str | None, state_dir: Path, as_json: bool) -> None:
    """ID is the id of a living session, turn, agent, task (RUN#TASK) or tool call, or the name of a task, for its
    session, or for the task while no session has claimed it. The output includes the stacks of its tasks, which show
    where an entity is stuck."""
    entity_id = with_run(entity_id, run)
    try:
        answer = send_request(state_dir, Inspect(id=entity_id))
    except (NotRunning, ControlError) as error:
        raise explained(state_dir, entity_id, "inspect", error) from None
    used = used_by(state_dir, answer["inspected"]["id"])
    document = {**answer["inspected"], "used": used.as_record if used is not None else {}}
    inspected = msgspec.convert(answer["inspected"], Inspected)
    words = inspected_text(inspected) + (f"\n  used: {used.words}" if used is not None and used.words else "")
    say(json_text(document) if as_json else words)
    warn_of_outage(answer)


def warn_of_outage(answer: Mapping[str, Any]) -> None:
    if answer["outage"] is not None:
        warn(msgspec.convert(answer["outage"], Outage).words)
