"""Routes of the HTTP API about runs of plans, the quality of their work, and what sessions do at this moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from httpx2 import AsyncClient

from supervisor import (
    AccessConfig,
    AgentConfig,
    LivenessConfig,
    Plan,
    Retention,
    Supervisor,
    TaskConfig,
    open_supervisor,
    submit,
)
from supervisor.control.http.app import create_app
from supervisor.control.operations import begin_prompt
from supervisor.journal import retention
from supervisor.lifecycles.types import NoSuchEntity
from supervisor.plans import monitoring
from supervisor.plans.daemon_control import PlanRequest, SubmittedPlan
from supervisor.plans.source import BadPlan
from tests.support import DEADLINE_S, FIRST_LINE, quick_settings, wait_for_record
from tests.unit.control.http.http_kit import api, client_of, error, helpful

pytestmark = pytest.mark.anyio

V1 = "/api/v1"
SCRIPTED = AgentConfig(adapter="scripted")


def plan_of(*tasks: dict[str, Any], agent: str = "helpful", **more: Any) -> Plan:
    made = tuple(TaskConfig(**{"agent": agent, "prompt": "work", **one}) for one in tasks)
    return Plan(**{"workstream": "ship", "agents": {"helpful": helpful}, **more, "tasks": made})


@asynccontextmanager
async def with_programs(directory: Path, **agents: AgentConfig) -> AsyncIterator[tuple[Supervisor, AsyncClient]]:
    """Run a supervisor with agents that are programs, and a client of its app."""
    given: dict[str, Any] = {"settings": quick_settings(), "workdir": directory, "control": False}
    with anyio.fail_after(DEADLINE_S):
        async with (
            open_supervisor(directory / "sd", agents=agents, **given) as sup,
            client_of(create_app(sup)) as client,
        ):
            try:
                yield sup, client
            finally:
                await sup.stop(now=True)


# ----------------------------------------------------------------------------------------------------------- runs
async def test_a_run_is_listed_and_shown_with_its_graph(tmp_path: Path) -> None:
    """A run has its outcome and counts; its graph has the dependencies of each task, also after the task has ended."""
    async with api(tmp_path / "sd") as (sup, client):
        plan = plan_of(
            {"id": "a", "prompt": "hang"}, {"id": "b", "depends_on": ["a"]}, {"id": "c", "depends_on": ["b"]}
        )
        handle = await submit(sup, plan, key="k1")
        await wait_for_record(sup, "tool_started", "a:t1", number=2)
        (line,) = (await client.get(f"{V1}/runs")).json()["items"]
        assert (line["id"], line["plan"], line["outcome"], line["tasks"], line["done"]) == ("r1", "ship", "", 3, 0)
        run = (await client.get(f"{V1}/runs/r1")).json()
        assert (run["key"], run["counts"]) == ("k1", {"IN_PROGRESS": 1, "OPEN": 2})
        await handle.cancel_task("a")
        result = await handle
        run = (await client.get(f"{V1}/runs/r1")).json()
        assert (run["outcome"], run["state"]) == (result.outcome, "cancelled")
        assert {one["id"]: one["depends_on"] for one in run["graph"]} == {
            "r1#a": [],
            "r1#b": ["r1#a"],
            "r1#c": ["r1#b"],
        }
        assert {one["name"]: one["outcome"] for one in run["graph"]} == {
            name: one.outcome for name, one in result.tasks.items()
        }
        error(await client.get(f"{V1}/runs/r9"), 404, "unknown")


async def test_tasks_are_added_to_a_run(tmp_path: Path) -> None:
    """POST /tasks adds tasks, given as JSON or as YAML text, to the only run or to the run that is named; the second
    request with a key adds nothing. A bad task is an error with its field."""
    async with api(tmp_path / "sd") as (sup, client):
        handle = await submit(sup, plan_of({"id": "a", "prompt": "hang"}))
        await wait_for_record(sup, "tool_started", "a:t1", number=2)
        body = {"tasks": [{"id": "b", "agent": "helpful", "prompt": "work"}], "reason": "found meanwhile"}
        key = {"Idempotency-Key": "k1"}
        added, again = [await client.post(f"{V1}/tasks", json=body, headers=key) for _ in range(2)]
        assert (added.status_code, added.json()["added"]["subtasks"]) == (201, ["r1#b"])
        assert [one.json()["added"]["repeated"] for one in (added, again)] == [False, True]
        text = {"run": "r1", "tasks": "[{id: c, agent: helpful, prompt: work, depends_on: [b]}]"}
        assert (await client.post(f"{V1}/tasks", json=text)).json()["added"]["subtasks"] == ["r1#c"]
        other = {"tasks": [{"id": "d", "agent": "nobody", "prompt": "work"}]}
        assert error(await client.post(f"{V1}/tasks", json=other), 422, "bad")["field"] == "tasks[0].agent"
        error(await client.post(f"{V1}/tasks", json={**text, "run": "r9"}), 404, "unknown")
        await handle.cancel_task("a")
        assert {name: one.outcome for name, one in (await handle).tasks.items()} == {
            "a": "aborted", "b": "completed", "c": "completed"
        }  # fmt: skip


async def test_runs_come_newest_first_and_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list begins with the newest run, has pages, and can leave out what has ended; a run that was moved to an
    archive is still shown by its id."""
    monkeypatch.setattr(retention, "SETTLED_S", 0.0)
    async with api(tmp_path / "sd") as (sup, client):
        for _ in range(3):
            await (await submit(sup, plan_of({"id": "a"})))
        pages, after = [], 0
        while after is not None:
            page = (await client.get(f"{V1}/runs", params={"limit": 1, "after": after})).json()
            pages, after = [*pages, *page["items"]], page["next"]
        assert [one["id"] for one in pages] == ["r3", "r2", "r1"]
        assert (await client.get(f"{V1}/runs", params={"ended": False})).json()["items"] == []
        assert (await sup.compact(Retention(keep_s=0))).records
        assert "r2" not in [one["id"] for one in (await client.get(f"{V1}/runs")).json()["items"]]
        run = (await client.get(f"{V1}/runs/r2")).json()
        assert (run["outcome"], [one["id"] for one in run["graph"]]) == ("completed", ["r2#a"])
        assert (await client.get(f"{V1}/quality", params={"run": "r2"})).json()["total"]["completed"] == 1


# -------------------------------------------------------------------------------------------------------- quality
async def test_quality_names_checks_retries_and_rejections(tmp_path: Path) -> None:
    """Each check of a result is listed with its findings; a result that passes only at the second claim counts a
    rejection and a retry."""
    prompt = "test -f made || { touch made; exit 0; }; touch good"
    async with with_programs(tmp_path, sh=FIRST_LINE) as (sup, client):
        plan = plan_of(
            {"id": "late", "prompt": prompt, "acceptance": [{"command": ["test", "-f", "good"]}]},
            {"id": "fine", "prompt": "true"},
            agent="sh",
            agents={"sh": FIRST_LINE},
        )
        assert (await (await submit(sup, plan))).ok
        found = (await client.get(f"{V1}/quality", params={"run": "r1"})).json()
        late, fine = found["items"]
        assert (late["id"], late["claims"], late["rejections"], late["retries"]) == ("r1#late", 2, 1, 1)
        first, last = [one for one in late["checks"] if one["kind"] == "tests"]
        assert (first["passed"], last["passed"]) == (False, True)
        assert "test -f good" in first["text"]
        assert (fine["rejections"], fine["retries"], fine["outcome"]) == (0, 0, "completed")
        assert (found["total"]["completed"], found["total"]["first_time"], found["total"]["rejections"]) == (2, 1, 1)
        error(await client.get(f"{V1}/quality", params={"run": "r9"}), 404, "unknown")


# ------------------------------------------------------------------------------------------------------- sessions
@pytest.mark.parametrize("step", ["local", "run"])
async def test_processes_of_calls_come_and_go(tmp_path: Path, step: str) -> None:
    """The processes of a call, which the agent runs itself or in a terminal of ours, are listed while it is open."""
    async with with_programs(tmp_path, scripted=SCRIPTED) as (sup, client), anyio.create_task_group() as group:
        assert (await client.get(f"{V1}/processes")).json() == {"processes": [], "unlisted": []}
        session = await sup.start_session("lead", agent="scripted")
        group.start_soon(session.run, f"@{step} mkfifo wait; read line < wait")

        async def listed() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await client.get(f"{V1}/processes", params={"id": "lead"})).json()[
                "processes"
            ]
            return found

        of_call: list[dict[str, Any]] = []
        with anyio.fail_after(60):  # a process that was just forked has the command of its parent
            while not any("read line < wait" in one["command"] for one in of_call):
                of_call = [one for one in await listed() if one["role"] == "call"]
        assert {(one["agent"], *one["calls"]) for one in of_call} == {("lead:a1", "lead:t1:c1")}
        await anyio.to_thread.run_sync((tmp_path / "wait").write_text, "go\n")
        await wait_for_record(sup, "tool_completed", "lead:t1")
        assert {one["role"] for one in await listed()} <= {"agent"}
        await client.delete(f"{V1}/sessions/lead")
        assert (await client.get(f"{V1}/processes")).json()["processes"] == []
        error(await client.get(f"{V1}/processes", params={"id": "lead"}), 404, "unknown")


async def test_an_agent_without_progress_is_listed_with_what_follows() -> None:
    """An agent at work that has been silent for a snapshot is listed, with the actions taken and the next one."""
    liveness = LivenessConfig(snapshot_s=0.01, tests=monitoring.TestsStallConfig(wake=2, stop=100_000, kill=200_000))
    settings = quick_settings().model_copy(update={"liveness": liveness})
    async with (
        open_supervisor(agents={"helpful": helpful}, settings=settings) as sup,
        client_of(create_app(sup)) as client,
    ):
        assert (await client.get(f"{V1}/stalls")).json() == {"items": []}
        begin_prompt(sup, (await sup.start_session("lead", agent="helpful")).id, "hang", actor="test")
        await wait_for_record(sup, "Stalled", "lead", outcome="fact")
        (found,) = (await client.get(f"{V1}/stalls")).json()["items"]
        assert (found["session"], found["turn"], found["profile"]) == ("lead", "lead:t1", "tests")
        assert (found["taken"], found["next"]) == (["wake"], "stop")
        assert 0 < found["next_in_s"] <= 1_000 < found["ends_in_s"] <= 2_000
        await sup.stop(now=True)


async def test_access_levels_are_listed(repository: Path) -> None:
    """Each agent has its trust level with its rights; without graduated access there is none."""
    async with api() as (_sup, client):
        assert (await client.get(f"{V1}/access-levels")).json() == {"items": []}
    access = AccessConfig(initial={"sh": "trusted"})
    settings = quick_settings().model_copy(update={"access": access, "workspace": "worktree"})
    agents = {"sh": FIRST_LINE, "new": FIRST_LINE}
    async with (
        open_supervisor(repository.parent / "sd", agents=agents, settings=settings, workdir=repository) as sup,
        client_of(create_app(sup)) as client,
    ):
        new, sh = (await client.get(f"{V1}/access-levels")).json()["items"]
        assert (new["agent"], new["level"], new["may_write"]) == ("new", "untrusted", False)
        assert (sh["agent"], sh["level"], sh["files_max"], sh["violations"]) == ("sh", "trusted", 20, 0)


# --------------------------------------------------------------------------------------------------------- daemon
class Daemon:
    """Daemon that notes the requests that reach it."""

    def __init__(self) -> None:
        self.asked: list[PlanRequest] = []

    async def submit(self, request: PlanRequest) -> SubmittedPlan:
        self.asked.append(request)
        return SubmittedPlan(run="r7", notes=("max_sessions has no effect here",))

    async def cancel_run(self, run: str, *, by: str, reason: str) -> bool:
        if run != "r7":
            raise NoSuchEntity(run)
        return reason != "again"

    async def reload(self, *, by: str) -> str:
        raise BadPlan("agents: 3 is not valid; give a mapping")


async def test_a_plan_is_submitted_and_its_run_is_cancelled() -> None:
    """POST /runs hands the plan to the daemon, with the key of the header and the caller's name; DELETE ends the
    run."""
    async with api() as (sup, client):
        daemon = Daemon()
        sup.core.daemon = daemon  # type: ignore[assignment]
        body = {"plan": {"workstream": "ship"}, "directory": "/tmp", "environment": {"A": "b"}}
        sent = await client.post(f"{V1}/runs", json=body, headers={"Idempotency-Key": "k1"})
        assert (sent.status_code, sent.json()["run"], len(sent.json()["notes"])) == (201, "r7", 1)
        (asked,) = daemon.asked
        assert (asked.text, asked.key, asked.by, asked.environment) == (
            '{"workstream":"ship"}',
            "k1",
            "http",
            {"A": "b"},
        )
        relative = error(await client.post(f"{V1}/runs", json={"plan": "x", "directory": "tmp"}), 422, "bad")
        assert relative["field"] == "directory"
        assert error(await client.post(f"{V1}/runs", json={**body, "key": "k"}), 422, "bad")["field"] == "key"
        assert (await client.delete(f"{V1}/runs/r7")).json() == {"run": "r7", "already_ended": False}
        again = await client.request("DELETE", f"{V1}/runs/r7", json={"reason": "again"})
        assert again.json()["already_ended"] is True
        error(await client.delete(f"{V1}/runs/r9"), 404, "unknown")
        assert error(await client.post(f"{V1}/reload"), 422, "bad")["field"] == "agents"
        sup.core.daemon = None  # so that the supervisor's own stop is the supervisor's


async def test_a_supervisor_without_a_daemon_takes_no_plan() -> None:
    """A plan is refused where no daemon runs, and the error says what takes plans."""
    async with api() as (_sup, client):
        refused = await client.post(f"{V1}/runs", json={"plan": "workstream: x", "directory": "/tmp"})
        assert "a daemon takes them" in error(refused, 409, "refused")["message"]
