"""Contract of a host and its supervisor, on asyncio and trio: exceptions of the block, cancelled awaits, and a stop.

The page docs/how-to/embed.md states the contract. Ctrl-C is tested in test_host_interrupted.py, a service that fails in
test_services.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from supervisor import (
    AgentTurn,
    JournalError,
    Plan,
    Refused,
    Session,
    Supervisor,
    TaskConfig,
    TurnResult,
    open_supervisor,
    run_plan,
)
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.plans import AgentConfig
from supervisor.ports import Append
from tests.support import DEADLINE_S, quick_settings, wait_for_record

pytestmark = pytest.mark.anyio


class HostError(Exception):
    pass


class Agent:
    """In-process agent whose turn sets ``began`` and waits for ``gate``."""

    def __init__(self) -> None:
        self.began, self.gate = anyio.Event(), anyio.Event()
        self.ended_by: list[type[BaseException]] = []

    async def __call__(self, turn: AgentTurn) -> str:
        self.began.set()
        try:
            await self.gate.wait()
        except BaseException as error:
            self.ended_by.append(type(error))
            raise
        return f"{turn.prompt}: done"


class BreakableJournal(MemoryJournal):
    """Journal in memory that fails for good once ``broken`` is set."""

    broken = False

    async def append(self, batch: Sequence[Append]) -> None:
        if self.broken:
            raise JournalError("a bad sector")
        await super().append(batch)


@asynccontextmanager
async def host(**options: Any) -> AsyncIterator[Supervisor]:
    with anyio.fail_after(DEADLINE_S):
        async with open_supervisor(settings=quick_settings(), **options) as sup:
            yield sup


class Prompt:
    """Prompt that is sent by an asynchronous task of its own, with its result."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.result: TurnResult | None = None
        self.cancel_scope = anyio.CancelScope()

    async def __call__(self) -> None:
        with self.cancel_scope:
            self.result = await self._session.run("work")


# ------------------------------------------------------------------------------------------------- the block's error
async def test_the_error_of_the_block_is_raised_as_it_is() -> None:
    """An error of the block's code is raised itself, in no exception group, after the sessions were aborted with the
    error as their reason."""
    store, agent, error = MemoryStore(), Agent(), HostError("no fuel")
    async with anyio.create_task_group() as group:
        with pytest.raises(HostError) as caught:
            async with host(journal=MemoryJournal(store)) as sup:
                group.start_soon(Prompt(await sup.start_session("s", agent=agent)))
                await agent.began.wait()
                raise error
    assert caught.value is error
    assert len(agent.ended_by) == 1
    assert "the host left by HostError: no fuel" in {one.reason for one in store.logs["s"].after(0, 1_000)}


async def test_an_exception_group_of_the_block_stays_one() -> None:
    """The exception group of a task group inside of the block is raised as it is."""
    error = ExceptionGroup("two tasks failed", [HostError(), KeyError()])
    with pytest.raises(ExceptionGroup) as caught:
        async with host():
            raise error
    assert caught.value is error


async def test_a_cancelled_host_ends_its_sessions_first() -> None:
    """A cancellation that reaches the block aborts the sessions, and goes on to the scope that was cancelled."""
    store, agent = MemoryStore(), Agent()
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with host(journal=MemoryJournal(store)) as sup:
                session = await sup.start_session("s", agent=agent)
                group.start_soon(Prompt(session))
                await agent.began.wait()
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert sup.sessions() == []
    assert "the host was cancelled" in {one.reason for one in store.logs["s"].after(0, 1_000)}


async def test_a_lost_journal_is_raised_at_the_end_of_the_block() -> None:
    """A journal that fails for good sets ``stopping`` and does not cancel the block's code; leaving the block raises
    the error."""
    journal, left = BreakableJournal(MemoryStore()), False
    with pytest.raises(JournalError, match="a bad sector"):
        async with host(journal=journal) as sup:
            journal.broken = True
            with pytest.raises(JournalError, match="a bad sector"):
                await sup.start_session("s", agent=Agent())
            await sup.stopping.wait()
            assert isinstance(sup.failure, JournalError)
            await anyio.lowlevel.checkpoint()
            left = True
    assert left


async def test_the_error_of_the_block_goes_before_a_lost_journal() -> None:
    """If the journal is lost and the block's code fails too, the error of the code is raised."""
    journal = BreakableJournal(MemoryStore())
    with pytest.raises(HostError):
        async with host(journal=journal) as sup:
            journal.broken = True
            with pytest.raises(JournalError):
                await sup.start_session("s", agent=Agent())
            raise HostError


# ------------------------------------------------------------------------------------------------- cancelled awaits
async def test_a_cancelled_prompt_goes_on() -> None:
    """Cancelling ``session.run`` does not end the turn: ``session.result`` still returns the result."""
    agent = Agent()
    async with host() as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent=agent)
        prompt = Prompt(session)
        group.start_soon(prompt)
        await agent.began.wait()
        prompt.cancel_scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert (prompt.result, agent.ended_by) == (None, [])
        agent.gate.set()
        result = await session.result()
        assert result is not None
        assert result.text == "work: done"


async def test_a_cancelled_abort_is_carried_out() -> None:
    """Cancelling ``session.abort`` does not stop the abort."""
    agent = Agent()
    async with host() as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent=agent)
        group.start_soon(Prompt(session))
        await agent.began.wait()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await session.abort(reason="too slow")
        await wait_for_record(sup, "Ended", "s")
        assert sup.sessions() == []


async def test_a_cancelled_start_ends_its_session() -> None:
    """A session whose ``start_session`` was cancelled does not run on."""
    async with host() as sup:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await sup.start_session("s", agent=Agent())
        await wait_for_record(sup, "Ended", "s")
        assert sup.sessions() == []


PLAN = Plan(
    agents={"sh": AgentConfig(adapter="command", command=("sh",))},
    tasks=(TaskConfig(id="a", agent="sh", prompt="true"),),
)


async def test_a_failed_run_is_raised_by_its_await() -> None:
    """A run that cannot be carried out raises its error where the handle is awaited, each time, and not from the
    block."""
    async with host() as sup:
        run = run_plan(sup, PLAN)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^agent: .*'sh'"):
                await run


async def test_a_failed_run_that_is_not_awaited_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A run that fails without an await of its handle is logged with its traceback; the block is left normally."""
    async with host() as sup:
        await run_plan(sup, PLAN).ended.wait()
    [line] = [one for one in caplog.messages if "a plan failed" in one]
    assert "'sh'" in line
    assert "Traceback" in line


# ------------------------------------------------------------------------------------------------------------ a stop
async def test_a_stop_begins_nothing_and_finishes_what_runs() -> None:
    """After a stop ``stopping`` is set, new sessions and prompts are refused, the turn in progress gets its result, and
    the block's code is not cancelled."""
    agent = Agent()
    async with host() as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent=agent)
        prompt = Prompt(session)
        group.start_soon(prompt)
        await agent.began.wait()
        await sup.stop()
        await sup.stopping.wait()
        with pytest.raises(Refused, match="the supervisor is ending"):
            await sup.start_session("t", agent=agent)
        with pytest.raises(Refused, match="the supervisor is ending"):
            await session.run("more")
        agent.gate.set()
    assert prompt.result is not None
    assert prompt.result.text == "work: done"


async def test_a_stop_begins_no_turn_of_a_prompt_that_waits() -> None:
    """After a stop the turn in progress gets its result; a prompt that waits behind it gets the result that it was
    aborted, and never reaches the agent."""
    agent = Agent()
    async with host() as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent=agent)
        first, second = Prompt(session), Prompt(session)
        group.start_soon(first)
        await agent.began.wait()
        group.start_soon(second)
        await anyio.wait_all_tasks_blocked()
        await sup.stop()
        agent.began = anyio.Event()
        agent.gate.set()
    assert first.result is not None
    assert first.result.ok
    assert second.result is not None
    assert (second.result.outcome, second.result.error) == ("aborted", "no turn begins while draining")
    assert not agent.began.is_set()


async def test_a_stop_cancels_a_host_that_asks_for_it() -> None:
    """With ``stop_cancels_host`` the block's code is cancelled once the turns in progress have their results, and the
    block is left normally."""
    agent, cancelled = Agent(), False
    async with anyio.create_task_group() as group:
        async with host(stop_cancels_host=True) as sup:
            prompt = Prompt(await sup.start_session("s", agent=agent))
            group.start_soon(prompt)
            await agent.began.wait()
            await sup.stop()
            await anyio.wait_all_tasks_blocked()  # this host is not cancelled yet
            agent.gate.set()
            try:
                await anyio.sleep_forever()
            finally:
                cancelled = True
        assert cancelled
        assert prompt.result is not None
        assert prompt.result.ok
