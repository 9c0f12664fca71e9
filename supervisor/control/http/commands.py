"""POST and DELETE routes of the HTTP API: one for each operation of ``control.operations`` that changes something.

A route takes the fields of the operation's request in its path and in its body, and replies as the control socket does.
The fields are checked by the request model, so that errors have the same text everywhere. ``by`` is the name of the
caller, and ``command_id`` (``key`` of a plan) the header ``Idempotency-Key``: neither can be given in a body.

An abort takes two requests. POST /aborts with what is to end returns the plan, which names everything that would end;
POST /aborts/ID executes exactly that plan, or is refused if it has changed meanwhile. The plans that were returned last
are kept in memory.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, FastAPI, Header, Path, Request
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, create_model, model_validator
from starlette.responses import Response

from supervisor.control.http.callers import client_of
from supervisor.control.http.errors import ErrorDetail, ErrorReply, Problem, problem_of
from supervisor.control.http.queries import ERRORS, reply, supervisor_of
from supervisor.control.http.schemas import schema_of
from supervisor.control.operations import OPERATIONS, Lines, Operation, admit
from supervisor.control.requests import ABOUT_TASKS, BadRequest, unknown_field
from supervisor.lifecycles.types import AbortScope, Verb
from supervisor.plans.task_control import CommandResult
from supervisor.policies.abort_plan import AbortPlan, Receipt
from supervisor.ports import Compacted, MergePlan
from supervisor.ports.outages import Outage
from supervisor.runtime.entity import Refused

PLANS_MAX: Final = 1_024
"""Number of abort plans that are kept for their execution."""
_KEYS: Final = ("command_id", "key")
"""Fields of requests that the header ``Idempotency-Key`` stands for."""
_NEVER: Final = ("do", "by", *_KEYS)
"""Fields of requests that no body may have."""
_IN_PATH: Final = re.compile(r"\{(\w+)(?::path)?\}")

_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    **ERRORS,
    408: {"model": ErrorReply, "description": "The body did not arrive in time."},
    409: {
        "model": ErrorReply,
        "description": "The state of the entity or the supervisor does not allow that.",
    },
    413: {"model": ErrorReply, "description": "The body is too large."},
}


class _Route(NamedTuple):
    """Route of an operation; *fixed* are fields that the path stands for."""

    operation: str
    path: str
    model: type[BaseModel]
    status: int = 200
    method: str = "POST"
    fixed: Mapping[str, Any] = {}
    without: Sequence[str] = ()
    summary: str = ""


# -------------------------------------------------------------------------------------------------------- replies
class Started(BaseModel):
    """Reply to the start of a session."""

    session: str = Field(description="the id of the session: the name, with a number if it was used before")


class Sent(BaseModel):
    """Reply to a message."""

    message_id: str = Field(description="the id of the message")


class TurnOutcome(BaseModel):
    """Result of a prompt."""

    outcome: str = Field(description="completed, failed or aborted")
    error: str = Field(description="why it has not completed")
    text: str = Field(description="the end of the agent's text")
    seq: int | None = Field(description="the number of the record that decided it; null if nothing could be written")


class Prompted(BaseModel):
    """Reply to a prompt."""

    result: TurnOutcome | None = Field(description="the result of the turn; null if the reply did not wait for it")


class Closed(BaseModel):
    """Reply to the end of a session."""

    closed: str = Field(description="the id of the session")


class Choice(BaseModel):
    """The option of the agent that expresses an answer."""

    option: str | None = Field(description="the id of the option; null if the agent offers none, and is sent a cancel")
    kind: str | None = Field(description="the kind of the option")


class Answered(BaseModel):
    """Reply to an answer."""

    answered: Choice = Field(description="the option that was chosen")


class TaskReply(BaseModel):
    """Reply of one task to a command: either `answer` or `refused` is there."""

    task: str = Field(description="the id of the task, as it was given")
    answer: schema_of(CommandResult) | None = Field(None, description="the result of the command")  # type: ignore[valid-type]
    refused: ErrorDetail | None = Field(None, description="the error for which nothing was done")


class TaskReplies(BaseModel):
    """Replies to a command about tasks. If it was refused for each of them, the response is an error."""

    items: list[TaskReply] = Field(description="the replies, in the order of the tasks")


class TasksAdded(BaseModel):
    """Reply to an addition of tasks."""

    added: schema_of(CommandResult) = Field(  # type: ignore[valid-type]
        description="the result: the run, and in subtasks the ids of the tasks"
    )


class Submitted(BaseModel):
    """Reply to a plan."""

    run: str = Field(description="the id of the run, which is on the disk")
    notes: list[str] = Field(description="sentences about what of the plan has no effect here")


class RunCancelled(BaseModel):
    """Reply to the end of a run."""

    run: str = Field(description="the id of the run")
    already_ended: bool = Field(description="whether the run had ended before, so that nothing was done")


class RunMerged(BaseModel):
    """Reply to the merge of a run."""

    plan: schema_of(MergePlan) = Field(description="the merge plan")  # type: ignore[valid-type]
    merged: str = Field(description="a sentence about the merge; empty after a dry run")


class Reloaded(BaseModel):
    """Reply to a reload of the configuration."""

    reloaded: str = Field(description="a sentence about what was read")


class Moved(BaseModel):
    """Reply to a compaction."""

    compacted: schema_of(Compacted) = Field(description="what was moved to the archive")  # type: ignore[valid-type]


class Planned(BaseModel):
    """Plan of an abort. Nothing has ended yet."""

    plan: schema_of(AbortPlan) = Field(description="the plan: POST /api/v1/aborts/ID executes it")  # type: ignore[valid-type]


class Aborted(BaseModel):
    """Receipt of an abort."""

    receipt: schema_of(Receipt) = Field(description="what has ended, and how")  # type: ignore[valid-type]


class Stopping(BaseModel):
    """Reply to a stop."""

    stopping: str = Field(description="drain (turns may finish) or now")
    outage: schema_of(Outage) | None = Field(description="why the journal cannot be written now; null if it can be")  # type: ignore[valid-type]


_ROUTES: Final = (
    _Route("start", "/sessions", Started, 201),
    _Route("prompt", "/sessions/{id:path}/prompts", Prompted, 202),
    _Route("send", "/sessions/{id:path}/messages", Sent, 201),
    _Route("close", "/sessions/{id:path}", Closed, method="DELETE"),
    _Route("answer", "/permissions/{id:path}", Answered),
    _Route("add_tasks", "/tasks", TasksAdded, 201, without=("source",)),
    _Route("split", "/tasks/split", TaskReplies, without=("source",)),
    *(
        _Route(
            "steer",
            f"/tasks/{verb}",
            TaskReplies,
            fixed={"verb": verb},
            without=[
                *(("on",) if verb is not Verb.BLOCK else ()),
                *(("all_planned", "run") if verb not in (Verb.APPROVE, Verb.REJECT) else ()),
            ],
            summary=f"Give the tasks the command {verb}. Each task has a reply: the refusal of one stops no other.",
        )
        for verb in ABOUT_TASKS
    ),
    _Route(
        "abort",
        "/aborts",
        Planned,
        201,
        fixed={"dry_run": True},
        without=("reason", "within_s", "plan"),
        summary="Plan an abort, and name everything that would end. POST /api/v1/aborts/ID executes the plan.",
    ),
    _Route("submit", "/runs", Submitted, 201),
    _Route("cancel_run", "/runs/{run:path}", RunCancelled, method="DELETE"),
    _Route("merge_run", "/runs/{run:path}/merge", RunMerged),
    _Route("compact", "/compactions", Moved),
    _Route("reload", "/reload", Reloaded),
    _Route("stop", "/stop", Stopping, 202),
)
"""The routes. No path matches two of them."""


# ------------------------------------------------------------------------------------------------------- requests
class _Body(BaseModel):
    """Body as it comes: the request model checks it."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="wrap")
    @classmethod
    def _take(cls, data: Any, handler: object) -> _Body:
        if not isinstance(data, dict):
            raise BadRequest("body: is not a JSON object; send one, with Content-Type: application/json")
        return cls.model_construct(None, **data)

    def checked(self) -> dict[str, Any]:
        """Return the fields that were given.

        Raises:
            BadRequest: there is no such field.
        """
        fields = type(self).model_fields
        given = {**self.__dict__, **(self.__pydantic_extra__ or {})}
        for name in given:
            if name not in fields:
                raise BadRequest(unknown_field(name, "this request", fields))
        return {name: given[name] for name in self.model_fields_set}


def _body_of(route: _Route, operation: Operation, in_path: Sequence[str]) -> type[_Body] | None:
    """Return the model of the body, whose schema is that of the request's fields; ``None`` if there are none."""
    left_out = {*_NEVER, *in_path, *route.fixed, *route.without}
    fields: dict[str, Any] = {
        name: (SkipValidation[one.rebuild_annotation()], one)  # type: ignore[misc]
        for name, one in operation.request.model_fields.items()
        if name not in left_out
    }
    name = f"{route.operation.title()}{str(route.fixed.get('verb', '')).title()}Body"
    text = f"Fields of the request {route.operation}."
    return create_model(name, __base__=_Body, __doc__=text, **fields) if fields else None


async def _run(request: Request, operation: Operation, given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Check a request, carry it out, and return the lines of the reply.

    Raises:
        Problem: this caller may not do that, or the operation was refused.
    """
    sup, client = supervisor_of(request), client_of(request)
    client.check(operation.role, operation.name)
    named = {"by": client.name} if "by" in operation.request.model_fields else {}
    asked = operation.request.model_validate({**given, **named})
    try:
        asked = admit(sup, asked, client.caller)
    except Refused as error:
        raise Problem(403, str(error)) from error
    return [line async for line in operation.handle(sup, asked)]


def _add(router: APIRouter, route: _Route) -> None:
    operation = OPERATIONS[route.operation]
    in_path = _IN_PATH.findall(route.path)
    body = _body_of(route, operation, in_path)
    key_field = next((one for one in _KEYS if one in operation.request.model_fields), None)

    async def endpoint(request: Request, **given: Any) -> Response:
        fields = {**route.fixed, **{name: given[name] for name in in_path}}
        if key_field is not None and (key := given["idempotency_key"]) is not None:
            fields[key_field] = key
        if (sent := given.get("body")) is not None:
            fields |= sent.checked()
        lines = await _run(request, operation, fields)
        if operation.name == "abort":
            _keep(request, fields, lines[0]["plan"])
        if operation.lines is Lines.MANY or operation.name == "split":
            _check_not_refused(lines)
            return reply({"items": lines}, route.status)
        return reply(lines[0], route.status)

    described = {name: operation.request.model_fields[name].description for name in in_path}
    parameters = [Parameter("request", Parameter.KEYWORD_ONLY, annotation=Request)]
    parameters += [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[str, Path(description=text)])
        for name, text in described.items()
    ]
    if key_field is not None:
        header = Header(description=operation.request.model_fields[key_field].description)
        key: Any = Annotated[str | None, header]
        parameters.append(Parameter("idempotency_key", Parameter.KEYWORD_ONLY, annotation=key, default=None))
    if body is not None:
        is_needed = any(one.is_required() for one in body.model_fields.values())
        annotation = body if is_needed else body | None
        default = Parameter.empty if is_needed else None
        parameters.append(Parameter("body", Parameter.KEYWORD_ONLY, annotation=annotation, default=default))
    endpoint.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    endpoint.__doc__ = route.summary or operation.handle.__doc__
    router.add_api_route(
        route.path,
        endpoint,
        methods=[route.method],
        status_code=route.status,
        response_model=route.model,
        responses=_ERRORS,
        name=f"{route.operation}_{route.fixed['verb']}" if "verb" in route.fixed else route.operation,
        tags=["commands"],
    )


def _check_not_refused(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raise the first refusal if a command was refused for each of its tasks."""
    if lines and all("refused" in one for one in lines):
        first = lines[0]["refused"]
        texts = "\n".join(f"{one['task']}: {one['refused']['message']}" for one in lines)
        raise problem_of(_REFUSALS.get(first["kind"], Refused)(texts))


_REFUSALS: Final[Mapping[str, type[Exception]]] = {"unknown": LookupError, "bad": BadRequest}


# --------------------------------------------------------------------------------------------------------- aborts
class Execution(_Body):
    """Options for the execution of an abort plan."""

    reason: SkipValidation[str] = Field("", description="the reason, for the agents and the records")
    within_s: SkipValidation[float | None] = Field(
        None, description="the seconds that the whole abort may take, 0 or more", ge=0
    )


def _keep(request: Request, fields: Mapping[str, Any], plan: AbortPlan) -> None:
    plans: OrderedDict[str, dict[str, Any]] = request.app.state.abort_plans
    plans[plan.id] = {"id": plan.target, "scope": AbortScope(fields["scope"]), "now": plan.now}
    plans.move_to_end(plan.id)
    while len(plans) > PLANS_MAX:
        plans.popitem(last=False)


async def execute_abort(
    request: Request,
    plan: Annotated[str, Path(description="the id of an abort plan")],
    body: Execution | None = None,
) -> Response:
    """Execute an abort plan, and return the receipt when everything in it has ended. If the plan would be another one
    by now, nothing is ended: POST /api/v1/aborts returns the new plan."""
    planned = request.app.state.abort_plans.get(plan)
    if planned is None:
        raise Problem(404, f"plan: {plan!r} is no plan that is kept; POST /api/v1/aborts for a plan, and execute that")
    given = body.checked() if body is not None else {}
    lines = await _run(request, OPERATIONS["abort"], {**planned, **given, "plan": plan})
    return reply(lines[0])


def add_commands(app: FastAPI) -> None:
    """Add the routes of this module to *app*."""
    router = APIRouter(prefix="/api/v1")
    for route in _ROUTES:
        _add(router, route)
    described: dict[str, Any] = {"response_model": Aborted, "responses": _ERRORS, "tags": ["commands"]}
    router.add_api_route("/aborts/{plan}", execute_abort, methods=["POST"], **described)
    app.include_router(router)
