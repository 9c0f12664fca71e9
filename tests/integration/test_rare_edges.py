"""Edges of the specification that only rare circumstances lead to: each of them by a way that a user may meet."""

from __future__ import annotations

import copy
from pathlib import Path

import anyio
import pytest

from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.memory import MemoryStore
from supervisor.journal.reader import JournalReader
from supervisor.lifecycles.types import AbortScope, LifecycleEvent
from supervisor.plans import AgentConfig, Plan, RecoveryConfig
from supervisor.sessions.live_session import SessionPhase
from supervisor.work.plan_handle import run_plan
from supervisor.workspaces.directory import DirectoryWorkspace
from tests.support import (
    FrozenJournal,
    check_records,
    quick_settings,
    send_prompt,
    start_call,
    supervising,
    taking_over,
    wait_for_record,
)

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

Edge = tuple[str, str, str]


def edges_of(events: list[LifecycleEvent], entity_id: str) -> list[Edge]:
    """Return the transitions of an entity: state, event and next state."""
    moved = [one for one in events if one.outcome == "transition" and one.entity_id == entity_id]
    return [(one.from_status, one.event, one.to_status) for one in moved]


# ---------------------------------------------------------------------------------------------------- a run
async def test_a_probe_that_cannot_start_opens_the_circuit(tmp_path: Path) -> None:
    """A file of the task has become a pipe, which cannot be copied for a rollback: the probe of the task's circuit
    cannot start, and the run goes from HALF_OPEN back to CIRCUIT_OPEN."""
    script = "rm -f a.txt; mkfifo a.txt; exec sleep 60"
    plan = Plan.model_validate(
        {
            "agents": {"sh": AgentConfig(adapter="command", command=("sh", "-c", script))},
            "tasks": [
                {"id": "t", "agent": "sh", "prompt": "go", "files": ["a.txt"], "rollback": True, "timeout_s": 0.3}
            ],
            "task_lifecycle": {
                "max_attempts": 1,
                "circuit_breaker": {"enabled": True, "cooldown_period": 0.05, "probes_max": 1},
            },
            "policy": quick_settings().policy,
        }
    )
    state_dir = tmp_path / ".sdd"
    async with open_supervisor(state_dir, agents=plan.agents, settings=plan.settings, workdir=tmp_path) as sup:
        result = await run_plan(sup, plan)
    with JournalReader(state_dir / "runtime" / "journal.db") as journal:
        events = list(journal.events())
    assert ("HALF_OPEN", "probe_failed", "CIRCUIT_OPEN") in edges_of(events, "r1#t:run")
    assert "cannot be copied" in result.tasks["t"].error


# ------------------------------------------------------------------------------------------------ a session
async def test_an_abort_while_the_prompt_is_built(tmp_path: Path) -> None:
    """The disk is full when the workspace of a session is ready: an abort stops the session in BuildingPrompt."""
    stores: list[FrozenJournal] = []

    def frozen(store: MemoryStore) -> FrozenJournal:
        stores.append(FrozenJournal(store, "WorktreeReady"))
        return stores[0]

    async with supervising(tmp_path, journal=frozen) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        send_prompt(group, session, "@say hello")
        await run.disk.frozen.wait()
        start_call(group, run.sup.abort, "s", AbortScope.SESSION, reason="enough")
        await run.sup.core.registry.session("s").reached(SessionPhase.TERMINATING).wait()
        run.disk.thaw.set()
    assert ("BuildingPrompt", "OperatorStop", "Stopped") in edges_of(run.events(), "s")


async def test_a_session_whose_directory_is_gone(tmp_path: Path) -> None:
    """The working directory of a session does not exist: the session ends in Initializing, and says so."""
    where = tmp_path / "work"
    where.mkdir()
    async with supervising(where) as run:
        session = await run.sup.start_session("s", agent="scripted")
        where.rmdir()
        result = await session.run("@say hello")
        where.mkdir()
    assert result.error == f"the working directory {where} of session 's' does not exist"
    assert ("Initializing", "FatalError", "Stopped") in edges_of(run.events(), "s")


async def test_a_workspace_that_fails_after_the_session_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session is aborted while its workspace is made, for example on a slow network disk, and that then fails: the
    error of the stopped session is on record."""
    begun, stopped = anyio.Event(), anyio.Event()

    async def prepare(self: DirectoryWorkspace, session_id: str, directory: str, *, root_id: str) -> str:
        begun.set()
        await stopped.wait()
        raise OSError("the network disk does not answer")

    monkeypatch.setattr(DirectoryWorkspace, "prepare", prepare)
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        send_prompt(group, session, "@say hello")
        await begun.wait()
        start_call(group, run.sup.abort, "s", AbortScope.SESSION, reason="enough")
        await wait_for_record(run.sup, "OperatorStop", "s")
        stopped.set()
    assert ("Stopped", "FatalError", "Stopped") in edges_of(run.events(), "s")


# ----------------------------------------------------------------------- a session that its next supervisor stops
async def left_in(workdir: Path, state: str) -> MemoryStore:
    """Return the journal of a supervisor that died while the session ``s`` was in *state*."""
    frozen_at = {"BuildingPrompt": "PromptReady", "Interrupting": "task_failed"}.get(state, "")
    async with supervising(workdir, journal=lambda store: FrozenJournal(store, frozen_at)) as run:
        async with anyio.create_task_group() as group:
            session = await run.sup.start_session("s", agent="scripted")
            match state:
                case "SessionComplete":
                    await session.run("@say hello")
                case "BuildingPrompt":
                    send_prompt(group, session, "@say hello")
                    await run.disk.frozen.wait()
                case "Interrupting":
                    send_prompt(group, session, "@wait never")
                    await wait_for_record(run.sup, "SessionStarted", "s")
                    await session.send("look here", urgent=True)
                    await run.disk.frozen.wait()
            left = copy.deepcopy(run.store)
            run.disk.thaw.set()
            await session.abort(reason="it has died")
    return left


@pytest.mark.parametrize("state", ["Initializing", "BuildingPrompt", "SessionComplete", "Interrupting"])
async def test_a_session_that_the_next_supervisor_stops(tmp_path: Path, state: str) -> None:
    """With ``recovery.sessions: stop`` the next supervisor stops a session in whatever state it was left."""
    left = await left_in(tmp_path, state)
    assert left.entities["s"].state == state
    settings = quick_settings().model_copy(update={"recovery": RecoveryConfig(sessions="stop")})
    async with taking_over(left, tmp_path, settings=settings) as sup:
        assert sup.sessions() == []
    events = left.log.after(0, 1_000_000)
    assert (state, "FatalError", "Stopped") in edges_of(events, "s")
    check_records(events, left.entities.values(), left.owed.values())
