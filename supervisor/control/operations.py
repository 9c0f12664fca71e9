"""Table of the operations of a running supervisor: request, handler, effect, and who may call.

Theory of operation
-------------------
Each way to reach a supervisor from outside takes the same four steps, and adds only its own transport::

    request = read_request(data)            # BadRequest: field, value, fix
    request = admit(sup, request, caller)   # Refused: this caller may not; else the caller is named in it
    async for line in OPERATIONS[request.do].handle(sup, request):
        ...                                 # objects that msgspec encodes: the lines of the reply
    error_reply(error)                        # kind and message of any exception of the steps above

The control socket (``server``) transports JSON lines; the MCP server makes a tool of each operation, the HTTP API
(``http``) a route. A new operation is a request model, a handler, and a row of :data:`OPERATIONS`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from supervisor.control.callers import Access, for_operators, own_permission, own_task, refusal, within_sessions
from supervisor.control.error_messages import BadInput, cause_of
from supervisor.control.named_tasks import find_entity, find_only_run, find_run, find_session, find_task
from supervisor.control.requests import (
    Abort,
    AccessLevels,
    AddTasks,
    Answer,
    BadRequest,
    CancelRun,
    Close,
    Command,
    Compact,
    Follow,
    Inspect,
    Page,
    Permissions,
    Ping,
    Processes,
    Prompt,
    Reload,
    Request,
    Send,
    Split,
    Stalls,
    Start,
    Steer,
    Stop,
    Submit,
)
from supervisor.control.roles import Role
from supervisor.lifecycles.run_ids import id_of_task
from supervisor.lifecycles.types import RecordId, Verb
from supervisor.plans.daemon_control import DaemonControl, PlanRequest
from supervisor.plans.source import BadPlan
from supervisor.plans.splitting import read_tasks
from supervisor.plans.task_control import CommandResult, WorkControl
from supervisor.policies.abort_plan import AbortPlan
from supervisor.ports import Caller, JournalError, Origin, Outcome, Retention
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Degraded, Refused
from supervisor.runtime.journal_writer import Cause

if TYPE_CHECKING:
    from supervisor.host.api import Supervisor

Replies = AsyncGenerator[Mapping[str, Any], None]

_log = get_logger()
_RESULT: Final = ("outcome", "error", "text", "seq")
"""Fields of a turn's result in a reply; the exception of an in-process agent stays in the process."""
_KINDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (Degraded, "degraded"),
    (Refused, "refused"),
    (BadPlan, "bad"),
    (BadInput, "bad"),
    (ValueError, "bad"),
    (JournalError, "failed"),
)
"""Kinds of error replies by the type of the exception; the first match counts."""


class Effect(StrEnum):
    """Largest effect that an operation can have on the supervisor and its sessions."""

    READS = "reads"
    CHANGES = "changes"
    ENDS = "ends"


class Lines(StrEnum):
    """Number of lines of a reply; an endless reply ends when the client leaves or the supervisor ends."""

    ONE = "one"
    MANY = "many"
    ENDLESS = "endless"


class Operation(NamedTuple):
    """Row of the table: *handle* returns the lines of the reply. ``access`` is the rule for callers that are no
    operators; ``None``: all of them may call. ``idempotent``: a second call with the same arguments changes nothing.
    ``role`` is the least role of a token with which the operation may be called."""

    request: type[Request]
    handle: Callable[[Supervisor, Any], Replies]
    effect: Effect
    access: Access | None = None
    lines: Lines = Lines.ONE
    idempotent: bool = False
    role: Role = Role.OPERATE

    @property
    def name(self) -> str:
        return str(self.request.model_fields["do"].default)


def read_request(data: object) -> Request:
    """Return the request in the decoded JSON object *data*.

    Raises:
        BadRequest: *data* is no request; the message names field, value and fix.
    """
    if not isinstance(data, dict):
        raise BadRequest(f"a request is an object, not {data!r:.60}; give for example {{'do': 'ping'}}")
    do = data.get("do")
    operation = OPERATIONS.get(do) if isinstance(do, str) else None
    if operation is None:
        raise BadRequest(f"do: {do!r:.60} is not an operation; give one of {', '.join(OPERATIONS)}")
    return operation.request.model_validate(data)


def admit(sup: Supervisor, request: Request, caller: Caller) -> Request:
    """Check that *caller* may send the request; return the request with the caller's name as its sender, and with the
    id of the entity that it is about.

    Raises:
        Refused: the caller may not send this request. The refusal is recorded.
        NoSuchEntity, InvalidArgument: as for ``named_tasks.find_session``.
    """
    if isinstance(request, Abort | Send):
        request = request.model_copy(update={"id": find_session(sup.core.registry, request.id)})
    access = OPERATIONS[request.do].access
    if access is not None and caller.origin is not Origin.OPERATOR:
        why = refusal(access, request, caller, sup.core.registry.reach_of(caller), lambda one: _plan(sup, one))
        if why:
            _note_refused(sup, caller, request.do, why)
            raise Refused(why)
    return request.model_copy(update={"by": caller.named(request.by)}) if isinstance(request, Command) else request


def _note_refused(sup: Supervisor, caller: Caller, wanted: str, why: str) -> None:
    """Log that a request of *caller* was refused, and record the refusal for the caller's session, if there is one."""
    name = caller.named("nobody")
    _log.warning("a request to the supervisor was refused", by=name, wanted=wanted, why=why)
    metadata = {"request": wanted, "pid": caller.pid}
    sup.core.registry.record_fact(caller.session, "RequestRefused", Cause(actor=name), metadata, reason=why)


def begin_prompt(sup: Supervisor, session_id: str, text: str, *, actor: str) -> Callable[[], Awaitable[Outcome]]:
    """Send a prompt to a session for *actor*; return a function that waits for the outcome. The request goes on when
    the caller is cancelled, or never calls the function.

    Raises:
        NoSuchEntity, Refused: as for ``Session.run``.
    """
    core = sup.core
    core.requests.check_prompt(session_id, text)
    prompted = partial(core.requests.outcome_of, session_id, text, Cause(actor=actor))
    return core.background.begin(prompted, f"prompt {session_id}")


def error_reply(raised: Exception) -> dict[str, str]:
    """Return kind and message of an error for the reply; log the error if it is a bug of the supervisor."""
    error = cause_of(raised)
    if isinstance(error, LookupError) and not isinstance(error, KeyError | IndexError):
        return {"kind": "unknown", "message": str(error)}
    if (kind := next((kind for one, kind in _KINDS if isinstance(error, one)), None)) is not None:
        return {"kind": kind, "message": str(error)}
    _log.error("control_request_failed", exc_info=raised)
    return {"kind": "failed", "message": f"the supervisor failed: {type(error).__name__}: {error}"}


# ------------------------------------------------------------------------------------------------------- handlers
async def ping(sup: Supervisor, request: Ping) -> Replies:
    """Return the pid of the supervisor, the outage or shortage that it waits for, and processes of unknown origin."""
    yield {
        "pid": os.getpid(),
        "outage": sup.outage,
        "shortage": sup.shortage,
        "unidentified": sup.unidentified,
    }


async def inspect(sup: Supervisor, request: Inspect) -> Replies:
    """Show the present activity of a live entity: its mailbox, its tasks, and where each of them waits."""
    yield {"inspected": sup.inspect(find_entity(sup.core.registry, request.id)), "outage": sup.outage}


async def permissions(sup: Supervisor, request: Permissions) -> Replies:
    """List the permission requests that wait for an answer, oldest first. A request is denied after left_s seconds."""
    yield {"permissions": sup.permissions()}


async def processes(sup: Supervisor, request: Processes) -> Replies:
    """List the processes of live sessions at this moment, each with the open calls that it belongs to, or may belong
    to."""
    wanted = None if request.id is None else find_session(sup.core.registry, request.id)
    found = await sup.processes(wanted)
    yield {"processes": found.processes, "unlisted": found.unlisted}


async def stalls(sup: Supervisor, request: Stalls) -> Replies:
    """List the agents at work that make no progress, with the snapshots without progress, the actions taken, and the
    next one."""
    yield {"stalls": sup.stalls()}


async def access_levels(sup: Supervisor, request: AccessLevels) -> Replies:
    """List the trust level of each agent, and what it permits; the list is empty without graduated access."""
    yield {"access_levels": sup.access_levels()}


async def follow(sup: Supervisor, request: Follow) -> Replies:
    """Send every durable record, those to come included, until the supervisor ends."""
    async with sup.subscribe(RecordId(request.after)) as events, aclosing(events):
        async for event in events:
            if request.id in (None, event.entity_id):
                yield {"event": event}


async def abort(sup: Supervisor, request: Abort) -> Replies:
    """Abort a tool call, a session, or its siblings, and return a receipt. With dry_run, only return the plan."""
    if request.dry_run:
        yield {"plan": _plan(sup, request)}
        return
    how: dict[str, Any] = {"now": request.now, "within_s": request.within_s, "plan_id": request.plan}
    yield {"receipt": await sup.abort(request.id, request.scope, reason=request.reason, actor=request.by, **how)}


def _plan(sup: Supervisor, request: Abort) -> AbortPlan:
    return sup.plan_abort(request.id, request.scope, now=request.now)


async def send(sup: Supervisor, request: Send) -> Replies:
    """Send a session a message: for its next prompt, or, if it is urgent, within the running turn."""
    yield {
        "message_id": await sup.core.requests.send(
            request.id, request.text, urgent=request.urgent, sender=request.by, at=request.at
        )
    }


async def start(sup: Supervisor, request: Start) -> Replies:
    """Start a session, and have its agent begin to work on the prompt, if one is given. If the name was used before, a
    number is appended to it."""
    given: dict[str, Any] = {"agent": request.agent, "parent": request.parent, "directory": request.directory}
    session_id = await sup.core.session_factory.start(request.name, **given, cause=Cause(actor=request.by))
    if request.prompt is not None:
        begin_prompt(sup, session_id, request.prompt, actor=request.by)
    yield {"session": session_id}


async def prompt(sup: Supervisor, request: Prompt) -> Replies:
    """Have the agent of a session work on a prompt, after the prompts that it has already. The reply comes at once, or,
    with wait, when the turn has ended. A caller that leaves meanwhile ends nothing."""
    outcome = begin_prompt(sup, request.id, request.text, actor=request.by)
    ended = await outcome() if request.wait else None
    yield {"result": None if ended is None else {name: getattr(ended, name) for name in _RESULT}}


async def close(sup: Supervisor, request: Close) -> Replies:
    """End a session as completed, with everything below it, and reply when all of it has ended."""
    sup.core.registry.session(request.id)
    await sup.core.aborts.close_session(request.id, reason=request.reason, cause=Cause(actor=request.by))
    yield {"closed": request.id}


async def answer(sup: Supervisor, request: Answer) -> Replies:
    """Answer a permission that an agent waits for. The first answer counts; a later one is an error."""
    how: dict[str, Any] = {"allow": request.allow, "always": request.always, "because": request.because}
    yield {"answered": (await sup.answer(request.id, **how, by=request.by))._asdict()}


async def stop(sup: Supervisor, request: Stop) -> Replies:
    """Begin the end of the supervisor: let turns finish; with now, or the second time, abort everything. A daemon
    suspends what is open: the next daemon goes on with it."""
    await sup.stop(now=request.now, actor=request.by)
    stopping = "now" if request.now or sup.core.stop_now.is_set() else "drain"
    suspends = {} if sup.core.daemon is None else {"suspends": True}
    yield {"stopping": stopping, "outage": sup.outage, **suspends}


async def submit(sup: Supervisor, request: Submit) -> Replies:
    """Have the daemon run a plan, and return the id of the run as soon as the run is on the disk. Notes say what of the
    plan has no effect here. A second request with the same key returns the run of the first."""
    text = request.plan if isinstance(request.plan, str) else "" if request.plan is None else _as_text(request.plan)
    wanted = PlanRequest(
        text=text,
        path=request.path or "",
        directory=request.directory,
        environment=request.environment,
        instead=request.instead,
        name=request.name or "",
        fail_fast=request.fail_fast,
        installed=request.plugins,
        key=request.key,
        resume=request.resume,
        by=request.by,
    )
    yield msgspec.to_builtins(await _daemon(sup).submit(wanted))


def _as_text(document: object) -> str:
    return msgspec.json.encode(document).decode()  # JSON is YAML


async def cancel_run(sup: Supervisor, request: CancelRun) -> Replies:
    """Give up the run of a plan: its sessions are aborted, its open tasks are cancelled. Reply when the run has
    ended."""
    has_ended = not await _daemon(sup).cancel_run(request.run, by=request.by, reason=request.reason)
    yield {"run": request.run, "already_ended": has_ended}


async def reload(sup: Supervisor, request: Reload) -> Replies:
    """Have the daemon read its configuration again. An invalid one is an error, and changes nothing."""
    yield {"reloaded": await _daemon(sup).reload(by=request.by)}


async def page(sup: Supervisor, request: Page) -> Replies:
    """Return a link that lets one browser in to the page, which is served on loopback from the first link on."""
    if sup.core.make_page_link is None:
        raise Refused(
            "this supervisor serves no page: it needs a state directory, and the extra http when it starts "
            "(pip install 'supervisor-runtime[http]')"
        )
    yield {"url": await sup.core.make_page_link()}


def _daemon(sup: Supervisor) -> DaemonControl:
    if sup.core.daemon is None:
        raise Refused("this supervisor takes no plans: it belongs to one run, or to a program; a daemon takes them")
    return sup.core.daemon


async def compact(sup: Supervisor, request: Compact) -> Replies:
    """Move entities that ended long ago from the journal to the archive. Given bounds replace those of the plan."""
    given = request.keep_s is not None or request.records_max is not None
    retention = Retention(keep_s=request.keep_s, records_max=request.records_max) if given else None
    yield {"compacted": await sup.compact(retention)}


async def steer(sup: Supervisor, request: Steer) -> Replies:
    """Give a command about tasks of running plans. Each task has a reply: the refusal of one stops no other."""
    plans = _running_plans(sup)
    tasks = tuple(dict.fromkeys(await _planned(plans, request.run) if request.all_planned else request.tasks))
    how: dict[str, Any] = {"by": request.by, "reason": request.reason}
    if request.verb is Verb.BLOCK:
        how["on"] = request.on
    for task in tasks:
        # Each task has a command id of its own: a second command with the same id would not be executed.
        derived = request.command_id is not None and len(tasks) > 1
        how["command_id"] = f"{request.command_id}/{task}" if derived else request.command_id

        async def give(work: WorkControl, name: str) -> CommandResult:
            result: CommandResult = await getattr(work, request.verb)(name, **how)  # named like its verb
            return result

        yield await _task_reply(plans, task, give)


async def split(sup: Supervisor, request: Split) -> Replies:
    """Split a task of a running plan into subtasks; the task is completed when its subtasks are."""
    how: dict[str, Any] = {"by": request.by, "reason": request.reason, "command_id": request.command_id}

    async def give(work: WorkControl, name: str) -> CommandResult:
        return await work.split(name, read_tasks(request.subtasks, request.source), **how)

    yield await _task_reply(_running_plans(sup), request.task, give)


async def add_tasks(sup: Supervisor, request: AddTasks) -> Replies:
    """Add tasks to a running plan, with agents of the plan; return the ids of the tasks when they are on the disk. A
    second request with the same command_id returns the reply of the first."""
    text = request.tasks if isinstance(request.tasks, str) else _as_text(request.tasks)
    work = await find_only_run(_running_plans(sup), request.run)
    how: dict[str, Any] = {"by": request.by, "reason": request.reason, "command_id": request.command_id}
    yield {"added": await work.add_tasks(read_tasks(text, request.source), **how)}


def _running_plans(sup: Supervisor) -> Sequence[WorkControl]:
    if not sup.core.plan_commands:
        raise Refused("no plan runs here, so there is no task to command")
    return tuple(sup.core.plan_commands)  # a run may begin or end while the command waits


async def _planned(plans: Sequence[WorkControl], run: str) -> list[str]:
    """Return the ids of the tasks of *run*, or of all running plans, that wait for approval before they begin."""
    if run:
        plans = [await find_run(plans, run)]
    return [id_of_task(work.run_id, task) for work in plans for task in await work.planned()]


async def _task_reply(
    plans: Sequence[WorkControl], task: str, give: Callable[[WorkControl, str], Awaitable[CommandResult]]
) -> Mapping[str, Any]:
    """Give a command to the plan that has *task*; return ``{"task", "answer"}``, or ``{"task", "refused"}`` with kind
    and message."""
    try:
        return {"task": task, "answer": await give(*await find_task(plans, task))}
    except Exception as error:
        return {"task": task, "refused": error_reply(error)}


# ------------------------------------------------------------------------------------------------------- the table
_NO_AGENT: Final = Access("", never=for_operators)
"""Rule of operations that no agent may call, whatever the plan says."""

_TABLE: Final = (
    Operation(Ping, ping, Effect.READS, role=Role.READ),
    Operation(Inspect, inspect, Effect.READS, role=Role.READ),
    Operation(Permissions, permissions, Effect.READS, role=Role.READ),
    Operation(Processes, processes, Effect.READS, role=Role.READ),
    Operation(Stalls, stalls, Effect.READS, role=Role.READ),
    Operation(AccessLevels, access_levels, Effect.READS, role=Role.READ),
    Operation(Follow, follow, Effect.READS, lines=Lines.ENDLESS, role=Role.READ),
    Operation(Start, start, Effect.CHANGES, Access("sessions")),
    Operation(Prompt, prompt, Effect.CHANGES, Access("sessions")),
    Operation(Send, send, Effect.CHANGES, Access("send", within=within_sessions)),
    Operation(Answer, answer, Effect.CHANGES, Access("answer", never=own_permission)),
    Operation(Steer, steer, Effect.ENDS, Access("tasks"), Lines.MANY),  # a cancelled task ends its session
    Operation(Split, split, Effect.CHANGES, Access("tasks", within=own_task)),
    Operation(AddTasks, add_tasks, Effect.CHANGES, Access("tasks")),
    Operation(Compact, compact, Effect.CHANGES, Access("compact"), role=Role.ADMIN),
    Operation(Abort, abort, Effect.ENDS, Access("abort", within=within_sessions), idempotent=True),
    Operation(Close, close, Effect.ENDS, Access("sessions")),
    Operation(Submit, submit, Effect.CHANGES, _NO_AGENT),
    Operation(CancelRun, cancel_run, Effect.ENDS, _NO_AGENT, idempotent=True),
    Operation(Reload, reload, Effect.CHANGES, _NO_AGENT, idempotent=True, role=Role.ADMIN),
    Operation(Stop, stop, Effect.ENDS, Access("stop"), role=Role.ADMIN),
    Operation(Page, page, Effect.CHANGES, _NO_AGENT, role=Role.ADMIN),
)
OPERATIONS: Final[Mapping[str, Operation]] = {one.name: one for one in _TABLE}
"""Every operation, by its name."""
