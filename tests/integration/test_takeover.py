"""Takeovers that fail or are interrupted: no session is recorded as ended, and the next takeover continues all
sessions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import AcceptanceConfig, AgentConfig, Plan, RecoveryConfig, TaskConfig
from supervisor.ports import JournalError
from supervisor.work.plan_handle import run_plan
from tests.support import (
    FrozenJournal,
    check_records,
    quick_settings,
    send_prompt,
    states_of,
    supervising,
    taking_over,
    wait_for_record,
)

pytestmark = pytest.mark.anyio

AGENTS = {
    "sh": AgentConfig(adapter="command", command=("sh", "-c", "while ! test -e gate; do sleep 0.01; done; echo done"))
}
SETTINGS = quick_settings().model_copy(update={"recovery": RecoveryConfig(sessions="restart")})


async def left_by_a_dead_one(workdir: Path) -> MemoryStore:
    """Return the journal of a supervisor that died while two sessions each worked on a prompt."""
    (workdir / "gate").unlink(missing_ok=True)
    async with supervising(workdir, agents=AGENTS) as run, anyio.create_task_group() as group:
        sessions = [await run.sup.start_session(name, agent="sh") for name in ("a", "b")]
        for session in sessions:
            send_prompt(group, session, "work")
            await wait_for_record(run.sup, "SessionStarted", session.id)
        left = copy.deepcopy(run.store)
        for session in sessions:
            await session.abort(reason="it has died")
    return left


async def taken_over(workdir: Path, journal: MemoryJournal) -> dict[str, bool]:
    """Take over, wait for the results of the interrupted prompts, and return for each session whether its prompt
    succeeded."""
    async with taking_over(journal, workdir, agents=AGENTS, settings=SETTINGS) as sup:
        results = {one.id: await one.result() for one in sup.sessions()}
    return {name: result is not None and result.ok for name, result in results.items()}


async def goes_on(workdir: Path, store: MemoryStore) -> None:
    """Assert that the next takeover finds both sessions and completes their prompts."""
    (workdir / "gate").write_text("go\n")
    assert await taken_over(workdir, MemoryJournal(store)) == {"a": True, "b": True}
    check_records(store.log.after(0, 1_000_000), store.entities.values(), store.owed.values())


class Unread(MemoryJournal):
    """Journal that raises an error when the log of session b is read."""

    async def events(
        self, *, entity_id: str | None = None, after_seq: int = 0, limit: int = 10_000
    ) -> list[LifecycleEvent]:
        if entity_id == "b":
            raise JournalError("a bad sector")
        return await super().events(entity_id=entity_id, after_seq=after_seq, limit=limit)


class Unowed(MemoryJournal):
    """Journal that raises an error when the pending effects are read."""

    async def owed(self) -> list[tuple[str, str, bytes]]:
        raise JournalError("a bad sector")


@pytest.mark.parametrize("journal", [Unread, Unowed])
async def test_an_unreadable_journal_ends_no_session(
    tmp_path: Path, journal: Callable[[MemoryStore], MemoryJournal]
) -> None:
    """When the journal cannot be read, the takeover fails before it restores any session: nothing is recorded, and the
    next takeover succeeds."""
    store = await left_by_a_dead_one(tmp_path)
    before = store.last_seq
    with pytest.raises(JournalError, match="a bad sector"):
        await taken_over(tmp_path, journal(store))
    assert store.last_seq == before
    await goes_on(tmp_path, store)


async def test_a_damaged_entity_ends_no_session(tmp_path: Path) -> None:
    """When a row of the journal is damaged, the takeover fails with an error that names the row's entity, and no
    session is ended."""
    store = await left_by_a_dead_one(tmp_path)
    before, row = store.last_seq, store.entities["b"]
    store.entities["b"] = msgspec.structs.replace(row, state="NoState")
    with pytest.raises(JournalError, match="the journal's entity 'b' is damaged"):
        await taken_over(tmp_path, MemoryJournal(store))
    assert store.last_seq == before
    store.entities["b"] = row
    await goes_on(tmp_path, store)


async def test_an_interrupted_takeover_ends_no_session(tmp_path: Path) -> None:
    """When a takeover is cancelled, no end of a session is recorded, and the next takeover continues the sessions."""
    store = await left_by_a_dead_one(tmp_path)
    journal = FrozenJournal(store, freeze_at="Resumed")
    async with anyio.create_task_group() as group:
        group.start_soon(taken_over, tmp_path, journal)
        await journal.frozen.wait()
        group.cancel_scope.cancel()
        journal.thaw.set()
    assert not [one for one in store.log.after(0, 1_000_000) if one.event in ("OperatorStop", "FatalError", "Ended")]
    await goes_on(tmp_path, store)


# ---------------------------------------------------------------------------------------------------- a task's answer
async def test_a_completed_prompt_is_not_sent_again(tmp_path: Path) -> None:
    """After a crash during acceptance tests, the tests run again, but the completed prompt is not sent again, though
    the agent cannot load its conversation."""
    test = AcceptanceConfig(command=("sh", "-c", "while ! test -e gate; do sleep 0.01; done"))
    tasks = (TaskConfig(id="t", agent="scripted", prompt="@run echo once >> effects", acceptance=(test,)),)
    plan = Plan(agents={"scripted": AgentConfig(adapter="scripted")}, tasks=tasks)
    async with supervising(tmp_path, agents=plan.agents) as run, anyio.create_task_group() as group:
        group.start_soon(run_plan(run.sup, plan).wait)
        await wait_for_record(run.sup, "execution_completed", "r1#t:run")
        store = copy.deepcopy(run.store)
        group.cancel_scope.cancel()
    (tmp_path / "gate").touch()
    async with taking_over(store, tmp_path, agents=plan.agents) as sup:
        result = await run_plan(sup, plan)
    assert [(one.session_id, one.outcome) for one in result.tasks.values()] == [("t", "completed")]
    assert (tmp_path / "effects").read_text().split() == ["once"]
    records = store.log.after(0, 1_000_000)
    assert states_of(records, "r1#t") == ["OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "CLOSED"]
    check_records(records, store.entities.values(), store.owed.values())


async def test_a_state_directory_has_its_own_journal(tmp_path: Path) -> None:
    """A start with both a state directory and a journal is refused, and the directory is not created."""
    with pytest.raises(ValueError, match="give state_dir or journal, not both"):
        async with open_supervisor(tmp_path / "state", journal=MemoryJournal(MemoryStore())):
            pass
    assert not (tmp_path / "state").exists()
