"""GET routes of the HTTP API: what there is, what happened, and how the supervisor does.

Each route has a path without variable parts after an id, since ids contain slashes. A route that reads the journal is a
plain function, which FastAPI calls in a thread; a route that asks the running supervisor is a coroutine function.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Final, Literal

import anyio.to_thread
import msgspec
from fastapi import APIRouter, FastAPI, Path, Query, Request
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import BaseModel, Field
from starlette.responses import Response

from supervisor.control.http.errors import ErrorReply, Problem
from supervisor.control.http.schemas import schema_of
from supervisor.control.http.views import APPROVED_BY_PERSONS, Detail, Health, Line, Usage, Views
from supervisor.control.named_tasks import find_session
from supervisor.diagnostics.causal_trace import Explanation
from supervisor.diagnostics.quality import QualityTotals, TaskQuality
from supervisor.diagnostics.run_graph import RunGraph
from supervisor.diagnostics.run_summary import RunSummary
from supervisor.diagnostics.task_status import DeadLetter
from supervisor.diagnostics.tool_calls import ToolCall
from supervisor.diagnostics.tree_view import Node
from supervisor.diagnostics.visual_state import Inspected
from supervisor.host.api import Supervisor
from supervisor.lifecycles.types import INTEGER_MAX, Kind, LifecycleEvent, NoSuchEntity, RecordId
from supervisor.policies.access import AccessLevel
from supervisor.policies.budgets import Amounts
from supervisor.policies.liveness import SilentAgent
from supervisor.policies.permissions import OpenPermission
from supervisor.ports.version import installed_version
from supervisor.sessions.inspection import LiveProcesses
from supervisor.telemetry import TelemetryOff, metrics_registry

HEARTBEAT_S: Final = 2.0
"""Seconds that the core has to show that it works, before the supervisor counts as not ready."""

ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ErrorReply, "description": "The body is not JSON, or a token stands in the URL."},
    401: {"model": ErrorReply, "description": "No valid token was given."},
    403: {"model": ErrorReply, "description": "This caller may not do that, or the request comes from another site."},
    404: {"model": ErrorReply, "description": "Nothing has that id."},
    422: {"model": ErrorReply, "description": "A parameter or field is not valid."},
    429: {"model": ErrorReply, "description": "The caller sends too many requests."},
    503: {"model": ErrorReply, "description": "The journal cannot be written now, or too many clients are connected."},
}
"""Statuses that every route can have."""
PAGE_MAX: Final = 1_000

Id = Annotated[str, Path(description="the id of the entity")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description=f"the largest number of items, 1 to {PAGE_MAX}")]
After = Annotated[int, Query(ge=0, le=INTEGER_MAX, description="`next` of the page before; 0 for the first page")]
Ended = Annotated[bool, Query(description="true to list also what has ended, as long as the journal has it")]


class Ready(BaseModel):
    """The supervisor works."""

    status: Literal["live", "ready"] = Field(description="live, or ready")


class Page(BaseModel):
    """Page of a list."""

    next: int | None = Field(description="the value of `after` for the next page; null on the last page")


class Lines(Page):
    """Entities in the order of their creation."""

    items: list[schema_of(Line)] = Field(description="the entities")  # type: ignore[valid-type]


class Records(Page):
    """Records in their order."""

    items: list[schema_of(LifecycleEvent)] = Field(description="the records")  # type: ignore[valid-type]


class ToolCalls(BaseModel):
    """Tool calls of a turn."""

    items: list[schema_of(ToolCall)] = Field(description="the calls, in the order of their starts")  # type: ignore[valid-type]


class OpenPermissions(BaseModel):
    """Permission requests that wait for a person."""

    items: list[schema_of(OpenPermission)] = Field(description="the requests, oldest first")  # type: ignore[valid-type]


class Tree(BaseModel):
    """Entities with everything below them."""

    seq: int = Field(description="the number of the last record: /api/v1/events?after= goes on from here")
    nodes: list[schema_of(Node)] = Field(description="the entities without a parent")  # type: ignore[valid-type]


class Output(BaseModel):
    """Text of a transcript: prompts, and what the agent wrote."""

    text: str = Field(description="the lines: time of day in UTC, source, text; a secret is written as its name")
    next: int = Field(description="the value of `after` for the text to come")
    ended: bool = Field(description="whether the session has ended, so that no text will come")


class UsageReply(BaseModel):
    """Tokens and cost, archives included."""

    total: schema_of(Amounts) = Field(description="the usage of all sessions together")  # type: ignore[valid-type]
    items: list[schema_of(Usage)] = Field(description="the usage of each entity")  # type: ignore[valid-type]


class Runs(Page):
    """Runs of plans, the newest first."""

    items: list[schema_of(RunSummary)] = Field(description="the runs")  # type: ignore[valid-type]


class Quality(BaseModel):
    """Checks of results, retries and rejections."""

    total: schema_of(QualityTotals) = Field(description="the sums over the tasks")  # type: ignore[valid-type]
    items: list[schema_of(TaskQuality)] = Field(description="the tasks, in the order of their creation")  # type: ignore[valid-type]


class Stalls(BaseModel):
    """Agents at work that make no progress."""

    items: list[schema_of(SilentAgent)] = Field(description="the agents, those silent for longest first")  # type: ignore[valid-type]


class AccessLevels(BaseModel):
    """Trust levels of agents."""

    items: list[schema_of(AccessLevel)] = Field(  # type: ignore[valid-type]
        description="the levels by the names of agents; empty without graduated access"
    )


class DeadLetters(BaseModel):
    """Tasks that were given up."""

    items: list[schema_of(DeadLetter)] = Field(description="the tasks, in the order of their creation")  # type: ignore[valid-type]


class _Metrics(Response):
    """Class of the response in the document."""

    media_type = "text/plain"


_PAGE: Final[dict[str, Any]] = {
    "description": "The figures.",
    "content": {"text/plain": {"schema": {"type": "string", "description": "Lines in the format of Prometheus."}}},
}
health_router = APIRouter(tags=["health"])
router = APIRouter(prefix="/api/v1", responses=ERRORS, tags=["queries"])


def supervisor_of(request: Request) -> Supervisor:
    """Return the supervisor that the app of the request serves; raise a Problem if it serves only a journal."""
    found: Supervisor | None = request.app.state.supervisor
    if found is None:
        raise Problem(409, "the supervisor of this journal has ended; start it again to command it", code="refused")
    return found


def _views(request: Request) -> Views:
    found: Views = request.app.state.views
    return found


def reply(value: object, status: int = 200) -> Response:
    """Return *value*, which msgspec encodes, as a response."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


# -------------------------------------------------------------------------------------------------------- health
@health_router.get("/livez", response_model=Ready)
async def livez() -> Response:
    """Say that the HTTP server works. No token is needed."""
    return reply({"status": "live"})


@health_router.get("/readyz", response_model=Ready, responses={503: ERRORS[503]})
async def readyz(request: Request) -> Response:
    """Say whether the supervisor takes work: its core has handled a message just now, the journal can be written, and
    no stop has begun. No token is needed."""
    sup = supervisor_of(request)
    try:
        await sup.core.background.heartbeat(timeout_s=HEARTBEAT_S)
    except Exception as error:  # whatever it is: the core does not work
        raise Problem(503, f"the core of the supervisor does not respond: {error}", code="failed") from error
    if sup.failure is not None:
        raise Problem(503, "the supervisor has failed, and ends its sessions", code="failed")
    if sup.stopping.is_set():
        raise Problem(503, "the supervisor is stopping", code="stopping")
    if sup.outage is not None:
        raise Problem(503, "the journal cannot be written now", code="degraded", headers={"Retry-After": "1"})
    return reply({"status": "ready"})


@health_router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> Response:
    """Return the description of this API. It takes half a second to make, the first time."""
    return reply(request.app.openapi())


@health_router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Show the description as a page for people, whose script comes from a public server."""
    return get_swagger_ui_html(openapi_url=f"{request.scope.get('root_path', '')}/openapi.json", title="supervisor")


@health_router.get("/metrics", response_class=_Metrics, responses={200: _PAGE, 404: ERRORS[404]})
def metrics(request: Request) -> Response:
    """Show the figures for Prometheus, as OpenMetrics with exemplars to a client whose header Accept names
    application/openmetrics-text. The settings must say telemetry.metrics: true."""
    try:
        registry = metrics_registry(supervisor_of(request))
    except TelemetryOff as error:
        raise Problem(404, str(error)) from None
    from supervisor.telemetry.collector import expose  # here, since it needs an extra

    page, kind = expose(registry, request.headers.get("accept", ""))
    return Response(page, headers={"Content-Type": kind})


@router.get("/health", response_model=schema_of(Health), tags=["health"])
async def health(request: Request) -> Response:
    """Show the state of the supervisor: outage, shortage, processes of unknown origin, open streams."""
    sup = supervisor_of(request)
    state = "failed" if sup.failure is not None else "stopping" if sup.stopping.is_set() else "running"
    found = Health(
        pid=os.getpid(),
        version=installed_version(),
        state=state,
        seq=sup.core.journal.last_seq,
        sessions=len(sup.core.registry.sessions),
        streams=len(request.app.state.streams),
        outage=sup.outage,
        shortage=sup.shortage,
        unidentified=sup.unidentified,
        failure=None if sup.failure is None else str(sup.failure),
    )
    return reply(found)


# ------------------------------------------------------------------------------------------------------ entities
def _add_entities(kind: Kind, what: str) -> None:
    """Add the list of the entities of a kind, and the route of one of them."""

    def listed(
        request: Request,
        limit: Limit = 100,
        after: After = 0,
        ended: Ended = False,
        parent: Annotated[str | None, Query(description="the id of the only parent wanted")] = None,
        state: Annotated[list[str] | None, Query(description="the only states wanted; repeatable")] = None,
    ) -> Response:
        return _page(request, kind, ended=ended, parent=parent, states=state or (), after=after, limit=limit)

    async def detailed(request: Request, id: Id) -> Response:
        return await _detail(request, kind, id)

    listed.__doc__ = f"List {what}, in the order of creation."
    detailed.__doc__ = f"Show one of the {what}, with its data, usage and budget."
    router.add_api_route(f"/{kind}s", listed, name=f"list_{kind}s", response_model=Lines)
    router.add_api_route(f"/{kind}s/{{id:path}}", detailed, name=f"get_{kind}", response_model=schema_of(Detail))


def _page(request: Request, kind: Kind, *, after: int, limit: int, **wanted: Any) -> Response:
    found = _views(request).lines(kind, after=RecordId(after), limit=limit + 1, **wanted)
    shown = found[:limit]
    return reply({"items": shown, "next": shown[-1].seq if len(found) > limit else None})


async def _detail(request: Request, kind: Kind, entity_id: str) -> Response:
    found = await anyio.to_thread.run_sync(_views(request).detail, kind, entity_id)
    if kind is Kind.SESSION and not found.ended:
        try:
            budget = supervisor_of(request).core.monitors.left_of(entity_id)
        except NoSuchEntity:  # it has ended meanwhile
            budget = None
        found = msgspec.structs.replace(found, budget=budget)
    return reply(found)


for _kind, _what in {
    Kind.SESSION: "sessions",
    Kind.AGENT: "agents",
    Kind.TURN: "turns",
    Kind.TASK: "tasks of plans",
    Kind.WORKER: "workers of plans",
}.items():
    _add_entities(_kind, _what)


@router.get("/runs", response_model=Runs)
def runs(
    request: Request,
    limit: Limit = 100,
    after: After = 0,
    ended: Annotated[bool, Query(description="false to list only runs that go on")] = True,
) -> Response:
    """List the runs of plans that the journal has, the newest first."""
    found, following = _views(request).runs(live_only=not ended, before=RecordId(after), limit=limit)
    return reply({"items": found, "next": following})


@router.get("/runs/{id:path}", response_model=schema_of(RunGraph))
def run(request: Request, id: Annotated[str, Path(description="the id of the run")]) -> Response:
    """Show a run with the graph of its tasks, also if it is in an archive."""
    return reply(_views(request).run(id))


@router.get("/quality", response_model=Quality)
def quality(
    request: Request,
    run: Annotated[str | None, Query(description="the id of the only run wanted; it may be in an archive")] = None,
) -> Response:
    """Show the checks of results (acceptance tests, reviews, approvals), attempts, retries and rejections of the tasks
    that the journal has."""
    total, items = _views(request).quality(run)
    return reply({"total": total, "items": items})


@router.get("/approvals", response_model=Lines)
def approvals(request: Request, limit: Limit = 100, after: After = 0) -> Response:
    """List the tasks that wait for a person: POST /api/v1/tasks/approve or /api/v1/tasks/reject answers."""
    wanted = {"ended": False, "parent": None, "states": APPROVED_BY_PERSONS}
    return _page(request, Kind.TASK, after=after, limit=limit, **wanted)


@router.get("/tree", response_model=Tree)
def tree(request: Request, ended: Ended = False) -> Response:
    """Show every entity below its parent: sessions, agents, turns, open tool calls, permissions, tasks."""
    seq, nodes = _views(request).tree(ended=ended)
    return reply({"seq": seq, "nodes": nodes})


@router.get("/tool-calls", response_model=ToolCalls)
def tool_calls(request: Request, turn: Annotated[str, Query(description="the id of the turn")]) -> Response:
    """List the tool calls of a turn, open ones and ended ones."""
    return reply({"items": _views(request).tool_calls(turn)})


@router.get("/permissions", response_model=OpenPermissions)
async def permissions(request: Request) -> Response:
    """List the permission requests that wait for a person."""
    return reply({"items": supervisor_of(request).permissions()})


@router.get("/stalls", response_model=Stalls)
async def stalls(request: Request) -> Response:
    """List the agents at work that make no progress: the snapshots without progress, the actions taken, and the next
    one. GET /api/v1/records?event=Stalled lists the actions of the past."""
    return reply({"items": supervisor_of(request).stalls()})


@router.get("/access-levels", response_model=AccessLevels)
async def access_levels(request: Request) -> Response:
    """List the trust level of each agent, and what it permits."""
    return reply({"items": supervisor_of(request).access_levels()})


@router.get("/processes", response_model=schema_of(LiveProcesses))
async def processes(
    request: Request,
    id: Annotated[str | None, Query(description="the id of the only session wanted, with all below it")] = None,
) -> Response:
    """List the processes of live sessions at this moment, each with the open calls that it belongs to, or may belong
    to."""
    sup = supervisor_of(request)
    return reply(await sup.processes(None if id is None else find_session(sup.core.registry, id)))


@router.get("/dead-letters", response_model=DeadLetters)
def dead_letters(request: Request) -> Response:
    """List the tasks that were given up."""
    return reply({"items": _views(request).dead_letters()})


# ------------------------------------------------------------------------------------------------------- history
@router.get("/records", response_model=Records)
def records(
    request: Request,
    limit: Limit = 100,
    after: After = 0,
    id: Annotated[str | None, Query(description="the id of the only entity wanted")] = None,
    kind: Annotated[Kind | None, Query(description="the only kind of entities wanted")] = None,
    event: Annotated[str | None, Query(description="the name of the only event wanted")] = None,
) -> Response:
    """List records, archives included."""
    found, following = _views(request).records(id, kind, event, RecordId(after), limit)
    return reply({"items": found, "next": following})


@router.get("/causes/{id:path}", response_model=schema_of(Explanation))
def causes(request: Request, id: Id) -> Response:
    """Explain the last change of an entity, or of a tool call: the chain of causes from the root event."""
    return reply(_views(request).causes(id))


@router.get("/transcripts/{id:path}", response_model=Output)
def transcripts(
    request: Request,
    id: Annotated[str, Path(description="the id of the session")],
    after: Annotated[int, Query(ge=0, le=INTEGER_MAX, description="`next` of the reply before; 0 at first")] = 0,
) -> Response:
    """Show the prompts of a session and what its agent wrote. The position is an offset into the text: output is no
    record, and has a sequence of its own."""
    text, following, ended = _views(request).transcript(id, after)
    return reply({"text": text, "next": following, "ended": ended})


@router.get("/usage", response_model=UsageReply)
def usage(
    request: Request, id: Annotated[str | None, Query(description="the id of the only entity wanted")] = None
) -> Response:
    """Show tokens and cost, by entity and in total."""
    total, items = _views(request).usage(id)
    return reply({"total": total, "items": items})


@router.get("/inspections/{id:path}", response_model=schema_of(Inspected))
async def inspections(request: Request, id: Id) -> Response:
    """Inspect a living entity, also if it is stuck: its mailbox, its tasks, and where each of them waits."""
    return reply(supervisor_of(request).inspect(id))


def add_queries(app: FastAPI) -> None:
    """Add the routes of this module to *app*."""
    app.include_router(health_router)
    app.include_router(router)
