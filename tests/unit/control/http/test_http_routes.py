"""Routes of the HTTP API, called without a server: what they return, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter

from supervisor.control.http.admission import BODY_BYTES_MAX, Admission, RateLimit
from supervisor.control.http.app import create_app
from supervisor.control.http.callers import HttpClient
from supervisor.control.http.errors import Problem
from supervisor.control.http.schemas import FIELDS, schema_of
from supervisor.control.operations import OPERATIONS
from supervisor.control.roles import Role
from supervisor.ports import Caller, Origin
from tests.support import wait_for_record
from tests.unit.control.http.http_kit import BASE, api, client_of, error, supervised
from tests.unit.control.test_task_operations import Work

pytestmark = pytest.mark.anyio

V1 = "/api/v1"


# ------------------------------------------------------------------------------------------------------ sessions
async def test_a_session_is_started_prompted_and_closed(tmp_path: Path) -> None:
    """A session starts by POST, works on a prompt, shows what happened, and ends by DELETE."""
    async with api(tmp_path / "sd") as (_sup, client):
        started = await client.post(f"{V1}/sessions", json={"name": "lead", "agent": "helpful"})
        assert (started.status_code, started.json()) == (201, {"session": "lead"})
        result = await client.post(f"{V1}/sessions/lead/prompts", json={"text": "run the tests", "wait": True})
        assert result.status_code == 202
        assert (result.json()["result"]["outcome"], result.json()["result"]["text"]) == (
            "completed",
            "run the tests: done",
        )
        session = (await client.get(f"{V1}/sessions/lead")).json()
        assert (session["state"], session["kind"], session["ended"]) == ("SessionComplete", "session", False)
        assert session["budget"] is not None
        turns = (await client.get(f"{V1}/turns", params={"parent": "lead", "ended": True})).json()["items"]
        assert [one["id"] for one in turns] == ["lead:t1"]
        (call,) = (await client.get(f"{V1}/tool-calls", params={"turn": "lead:t1"})).json()["items"]
        assert (call["id"], call["title"], call["state"]) == ("lead:t1:c1", "make test", "completed")
        output = (await client.get(f"{V1}/transcripts/lead")).json()
        assert "run the tests" in output["text"]
        assert (await client.get(f"{V1}/transcripts/lead", params={"after": output["next"]})).json()["text"] == ""
        causes = (await client.get(f"{V1}/causes/lead:t1")).json()
        assert causes["root"]["actor"] == "http"
        assert (await client.request("DELETE", f"{V1}/sessions/lead")).json() == {"closed": "lead"}
        assert (await client.get(f"{V1}/sessions")).json()["items"] == []
        (ended,) = (await client.get(f"{V1}/sessions", params={"ended": True})).json()["items"]
        assert (ended["id"], ended["outcome"]) == ("lead", "completed")


async def test_a_prompt_that_is_not_waited_for_is_worked_on() -> None:
    """Without ``wait`` the reply comes at once, and the turn runs to its end."""
    async with api() as (sup, client):
        started = await client.post(f"{V1}/sessions", json={"name": "lead", "agent": "helpful", "prompt": "one"})
        assert started.status_code == 201
        reply = await client.post(f"{V1}/sessions/lead/prompts", json={"text": "two"})
        assert (reply.status_code, reply.json()) == (202, {"result": None})
        await wait_for_record(sup, "TurnReaped", "lead", number=2)


async def test_ids_with_slashes_are_found() -> None:
    """The id of a child session, which contains a slash, is found in every kind of path, also if it ends like a
    route."""
    async with api() as (sup, client):
        lead = await sup.start_session("lead", agent="helpful")
        child = await lead.start_child("messages", agent="helpful")
        assert child.id == "lead/messages"
        assert (await client.get(f"{V1}/sessions/lead/messages")).json()["parent"] == "lead"
        sent = await client.post(f"{V1}/sessions/lead/messages/messages", json={"text": "hello"})
        assert (sent.status_code, set(sent.json())) == (201, {"message_id"})
        await wait_for_record(sup, "MessageReceived", "lead/messages")


async def test_an_abort_is_planned_and_then_executed() -> None:
    """POST /aborts ends nothing and names what would end; POST /aborts/ID ends it; an unknown plan is refused."""
    async with api() as (sup, client):
        await client.post(f"{V1}/sessions", json={"name": "lead", "agent": "helpful", "prompt": "hang"})
        await wait_for_record(sup, "tool_started", "lead:t1", number=2)
        planned = await client.post(f"{V1}/aborts", json={"id": "lead", "scope": "session"})
        assert planned.status_code == 201
        plan = planned.json()["plan"]
        assert [one["id"] for one in plan["nodes"]] == ["lead"]
        assert [one.id for one in sup.sessions()] == ["lead"]
        error(await client.post(f"{V1}/aborts/nothing"), 404, "unknown")
        done = await client.post(f"{V1}/aborts/{plan['id']}", json={"reason": "too slow"})
        assert done.status_code == 200
        assert (done.json()["receipt"]["survivors"], done.json()["receipt"]["reason"]) == (0, "too slow")
        assert sup.sessions() == []


async def test_an_abort_that_would_end_something_else_is_refused() -> None:
    """A plan is executed only as it was returned: after a change of what it names it is refused, and ends nothing."""
    async with api() as (sup, client):
        lead = await sup.start_session("lead", agent="helpful")
        plan = (await client.post(f"{V1}/aborts", json={"id": "lead", "scope": "session"})).json()["plan"]
        await lead.start_child("docs", agent="helpful")
        refused = error(await client.post(f"{V1}/aborts/{plan['id']}"), 409, "refused")
        assert "plan" in refused["message"]
        assert len(sup.sessions()) == 2


# --------------------------------------------------------------------------------------------------------- tasks
async def test_commands_about_tasks_have_a_reply_for_each_task() -> None:
    """A command names tasks and has a reply for each; if every task refuses, the response is an error."""
    async with api() as (sup, client):
        work = Work()
        sup.core.plan_commands.append(work)  # type: ignore[arg-type]
        mixed = await client.post(f"{V1}/tasks/approve", json={"tasks": ["a", "open"]})
        assert mixed.status_code == 200
        first, second = mixed.json()["items"]
        assert (first["task"], first["answer"]["verb"], second["refused"]["kind"]) == ("a", "approve", "refused")
        error(await client.post(f"{V1}/tasks/approve", json={"tasks": ["open"]}), 409, "refused")
        error(await client.post(f"{V1}/tasks/cancel", json={"tasks": ["nobody"]}), 404, "unknown")
        error(await client.post(f"{V1}/tasks/cancel", json={}), 422, "bad")
        subtasks = "[{id: part, agent: helpful, prompt: do it}]"
        parts = await client.post(f"{V1}/tasks/split", json={"task": "a", "subtasks": subtasks})
        assert parts.json()["items"][0]["answer"]["subtasks"] == ["r1#part"]


async def test_a_key_makes_a_command_take_effect_once() -> None:
    """The header ``Idempotency-Key`` is the command's id: the second request with it is answered as repeated."""
    async with api() as (sup, client):
        sup.core.plan_commands.append(Work())  # type: ignore[arg-type]
        key = {"Idempotency-Key": "k1"}
        replies = [await client.post(f"{V1}/tasks/retry", json={"tasks": ["a"]}, headers=key) for _ in range(2)]
        assert [one.json()["items"][0]["answer"]["repeated"] for one in replies] == [False, True]
        named = await client.post(f"{V1}/tasks/retry", json={"tasks": ["a"], "command_id": "k1"})
        assert error(named, 422, "bad")["field"] == "command_id"


# ------------------------------------------------------------------------------------------------------- records
async def test_records_come_in_pages(tmp_path: Path) -> None:
    """The pages of /records contain every record once, in order, also with a filter; so do the pages of entities."""
    async with api(tmp_path / "sd") as (sup, client):
        for name in "abc":
            await (await sup.start_session(name, agent="helpful")).run("work")
        with sup.reader() as reader:
            records = [one.seq for one in reader.events()]
            of_b = [one.seq for one in reader.events("b")]

        async def pages(path: str, **wanted: Any) -> list[Any]:
            found, after = [], 0
            while after is not None:
                page = (await client.get(path, params={"limit": 2, "after": after, **wanted})).json()
                found, after = [*found, *page["items"]], page["next"]
            return found

        assert [one["seq"] for one in await pages(f"{V1}/records")] == records
        assert [one["seq"] for one in await pages(f"{V1}/records", id="b")] == of_b
        born = await pages(f"{V1}/records", event="Born", kind="turn")
        assert [one["entity_id"] for one in born] == ["a:t1", "b:t1", "c:t1"]
        assert [one["id"] for one in await pages(f"{V1}/sessions")] == ["a", "b", "c"]


# -------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("method", "path", "given", "status", "code", "field"),
    [
        ("GET", "/nothing", {}, 404, "unknown", None),
        ("GET", f"{V1}/sessions/nobody", {}, 404, "unknown", "id"),
        ("GET", f"{V1}/causes/nobody", {}, 404, "unknown", "id"),
        ("GET", f"{V1}/inspections/nobody", {}, 404, "unknown", None),
        ("PUT", f"{V1}/sessions", {}, 405, "method_not_allowed", None),
        ("GET", f"{V1}/sessions?limit=0", {}, 422, "bad", "limit"),
        ("GET", f"{V1}/records?after=x", {}, 422, "bad", "after"),
        ("GET", f"{V1}/records?kind=cat", {}, 422, "bad", "kind"),
        ("GET", f"{V1}/tree?access_token=secret", {}, 400, "malformed", "Authorization"),
        ("POST", f"{V1}/sessions", {"content": b"{"}, 400, "malformed", None),
        ("POST", f"{V1}/sessions", {"content": b"[" * 100_000}, 400, "malformed", None),
        ("POST", f"{V1}/sessions", {"json": []}, 422, "bad", "body"),
        ("POST", f"{V1}/sessions", {"json": {"name": "a b"}}, 422, "bad", "name"),
        ("POST", f"{V1}/sessions", {"json": {"agent": "x"}}, 422, "bad", "name"),
        ("POST", f"{V1}/sessions", {"json": {"name": "a", "by": "root"}}, 422, "bad", "by"),
        ("POST", f"{V1}/sessions", {"json": {"name": "a", "agent": "nobody"}}, 422, "bad", "agent"),
        ("POST", f"{V1}/sessions/nobody/prompts", {"json": {"text": "x"}}, 404, "unknown", None),
        ("POST", f"{V1}/tasks/approve", {"json": {"tasks": ["a"]}}, 409, "refused", None),
        ("POST", f"{V1}/permissions/nobody", {"json": {"allow": True}}, 409, "refused", None),
        ("POST", f"{V1}/permissions/nobody", {"json": {"allow": "yes"}}, 422, "bad", "allow"),
        ("POST", f"{V1}/compactions", {}, 409, "refused", None),
        ("POST", f"{V1}/compactions", {"json": {"keep_s": -1}}, 422, "bad", "keep_s"),
        ("POST", f"{V1}/sessions", {"content": b"x" * (BODY_BYTES_MAX + 1)}, 413, "too_large", "body"),
    ],
)
async def test_every_error_has_the_same_form(
    method: str, path: str, given: dict[str, Any], status: int, code: str, field: str | None
) -> None:
    """An error has status, code, message, field and fix, also for errors of the framework; nothing has begun."""
    headers = {"Content-Type": "application/json"} if "content" in given else {}
    async with api() as (sup, client):
        found = error(await client.request(method, path, headers=headers, **given), status, code)
        assert sup.sessions() == []
        assert sup.core.journal.last_seq == 0
    assert found["field"] == field, found


async def test_a_request_of_another_site_is_refused() -> None:
    """A request with the origin of another site is refused; the own site, and configured origins, are allowed."""
    async with supervised() as sup:
        app = create_app(sup, origins=["https://board.example"])
        async with client_of(app) as client:
            for headers, status in (
                ({"Origin": "https://evil.example"}, 403),
                ({"Origin": "null"}, 403),
                ({"Sec-Fetch-Site": "cross-site"}, 403),
                ({"Origin": BASE}, 200),
                ({"Origin": "https://board.example"}, 200),
                ({"Sec-Fetch-Site": "same-origin"}, 200),
            ):
                assert (await client.get(f"{V1}/tree", headers=headers)).status_code == status, headers
        async with client_of(create_app(sup)) as client:
            preflight = {"Origin": "https://board.example", "Access-Control-Request-Method": "POST"}
            found = await client.options(f"{V1}/sessions", headers=preflight)
            assert "access-control-allow-origin" not in found.headers


async def test_rates_are_limited_by_sender() -> None:
    """A sender that sends too much is told to wait; another one is not affected."""
    limit = RateLimit(per_s=1.0, burst=2)
    for _ in range(2):
        limit.check("a", 10.0)
    with pytest.raises(Problem) as refused:
        limit.check("a", 10.0)
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    limit.check("b", 10.0)
    limit.check("a", 11.0)


async def test_a_head_request_is_answered_at_once() -> None:
    """HEAD has the status and headers of GET and no body, also where GET never ends."""
    async with api() as (_sup, client):
        for path in (f"{V1}/tree", f"{V1}/events", "/livez"):
            found = await client.head(path)
            assert (found.status_code, found.content) == (200, b"")
        assert (await client.head(f"{V1}/sessions/nobody")).status_code == 404
        assert (await client.get(f"{V1}/health")).json()["streams"] == 0


# --------------------------------------------------------------------------------------------------------- roles
def sender(role: Role, origin: Origin = Origin.OPERATOR) -> HttpClient:
    return HttpClient(Caller(origin, 1, "lead"), role, f"http:{role}", "me")


@pytest.mark.parametrize("role", list(Role))
async def test_a_role_allows_what_its_operations_need(role: Role) -> None:
    """A token with the role ``read`` changes nothing, ``operate`` does not stop the supervisor, ``admin`` does all."""
    async with supervised() as sup:
        inner = create_app(sup)
        assert isinstance(inner, Admission)
        async with client_of(Admission(inner._app, lambda scope: sender(role))) as client:
            assert (await client.get(f"{V1}/tree")).status_code == 200
            started = await client.post(f"{V1}/sessions", json={"name": "lead", "agent": "helpful"})
            assert started.status_code == (403 if role is Role.READ else 201)
            if role is not Role.READ:
                await wait_for_record(sup, "Born", "lead", outcome="born")
            stopped = await client.post(f"{V1}/stop", json={"now": True})
            assert stopped.status_code == (202 if role is Role.ADMIN else 403)
            assert sup.stopping.is_set() is (role is Role.ADMIN)


async def test_an_agent_has_its_own_rights_whatever_token_it_holds() -> None:
    """An agent with the token of an admin may read and send to its own session, and nothing else."""
    async with supervised() as sup:
        inner = create_app(sup)
        assert isinstance(inner, Admission)
        await sup.start_session("lead", agent="helpful")
        await sup.start_session("other", agent="helpful")
        async with client_of(Admission(inner._app, lambda scope: sender(Role.ADMIN, Origin.AGENT))) as client:
            assert (await client.get(f"{V1}/tree")).status_code == 200
            assert (await client.post(f"{V1}/sessions/lead/messages", json={"text": "hi"})).status_code == 201
            for path, body in (
                ("sessions/other/messages", {"text": "hi"}),
                ("sessions", {"name": "more", "agent": "helpful"}),
                ("stop", {"now": True}),
                ("compactions", {}),
            ):
                assert "refused" in error(await client.post(f"{V1}/{path}", json=body), 403, "forbidden")["message"]
            error(await client.request("DELETE", f"{V1}/sessions/other"), 403, "forbidden")
            assert not sup.stopping.is_set()


def test_every_operation_has_a_route() -> None:
    """Every operation of the table is reached by HTTP, by a route of its own or by a GET route that reads the same; but
    a link to the page is given on the control socket only."""
    from supervisor.control.http.commands import _ROUTES

    read = {"ping", "inspect", "permissions", "processes", "stalls", "access_levels", "follow"}
    assert {one.operation for one in _ROUTES} | read == set(OPERATIONS) - {"page"}


# ------------------------------------------------------------------------------------------------------- schemas
def test_every_field_of_a_response_is_described() -> None:
    """Every struct that a response contains has a description for each of its fields, and for no other."""
    for struct, described in FIELDS.items():
        assert set(described) == set(struct.__struct_fields__), struct
        schema_of(struct)


async def test_responses_are_what_the_document_says(tmp_path: Path) -> None:
    """The responses of the routes match their schemas in openapi.json, in which each property has a description."""
    async with api(tmp_path / "sd") as (sup, client):
        document = (await client.get("/openapi.json")).json()
        bare = [name for name, one in _properties(document) if "description" not in one]
        assert bare == []
        await (await sup.start_session("lead", agent="helpful")).run("work")
        for path, field in (("tree", "Tree"), ("sessions", "Lines"), ("records", "Records"), ("usage", "UsageReply")):
            found = await client.get(f"{V1}/{path}")
            model = __import__("supervisor.control.http.queries", fromlist=[field])
            TypeAdapter(getattr(model, field)).validate_json(found.content, strict=True)
        detail = await client.get(f"{V1}/turns/lead:t1")
        schema_of(__import__("supervisor.control.http.views", fromlist=["Detail"]).Detail).model_validate_json(
            detail.content
        )


def _properties(document: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    if isinstance(document, dict):
        properties = document.get("properties")
        found += properties.items() if isinstance(properties, dict) else []
        found += [one for value in document.values() for one in _properties(value)]
    elif isinstance(document, list):
        found += [one for value in document for one in _properties(value)]
    return found


# -------------------------------------------------------------------------------------------------------- health
async def test_readiness_asks_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """/livez says that the server works; /readyz is 503 when the core does not respond, and when a stop has begun."""
    async with api() as (sup, client):
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        with monkeypatch.context() as patched:

            async def hangs(*, timeout_s: float) -> None:
                raise TimeoutError

            patched.setattr(sup.core.background, "heartbeat", hangs)
            error(await client.get("/readyz"), 503, "failed")
        await sup.stop()
        assert (await client.get("/livez")).json() == {"status": "live"}
        error(await client.get("/readyz"), 503, "stopping")


def test_nothing_of_the_extra_is_imported_without_need() -> None:
    """Embedding and command line import neither FastAPI nor hypercorn."""
    code = "import sys, supervisor.embedding.runtime, supervisor.cli.commands, supervisor.cli.run; "
    code += "print([one for one in ('fastapi', 'starlette', 'hypercorn') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_bug_is_answered_and_does_not_show_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is a bug of ours is status 500, in the same form, and the app goes on."""
    async with api() as (sup, client):
        monkeypatch.setattr(sup, "permissions", lambda: msgspec.json.decode(b"{"), raising=True)
        monkeypatch.setattr(sup, "inspect", lambda entity_id: {}["x"], raising=True)
        error(await client.get(f"{V1}/inspections/a"), 500, "failed")
        assert (await client.get(f"{V1}/tree")).status_code == 200
