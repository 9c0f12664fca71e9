"""Outage of the journal's disk: what waits, what continues, what is reported, and when the run ends."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import apsw
import msgspec
import pytest

from actors.backoff import Backoff
from supervisor import AgentTurn, Degraded
from supervisor.cli.live_view import JsonView, PlainView, Reporter, RunView
from supervisor.cli.rendering import receipt_text
from supervisor.embedding.journals import read_state
from supervisor.embedding.runtime import open_supervisor
from supervisor.host.handle import Session
from supervisor.journal import database
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.journal.schema import translate_errors
from supervisor.journal.sqlite import SqliteJournal
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.effects import StartTimer, encode_effect
from supervisor.lifecycles.events import BackoffElapsed
from supervisor.lifecycles.task import TaskData
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import AgentConfig, Plan, TaskConfig
from supervisor.policies.abort_plan import Receipt
from supervisor.ports import Append, Fenced, JournalError, JournalUnavailable, WorkspaceSpec
from supervisor.ports.outages import Outage
from supervisor.runtime import availability
from supervisor.runtime.journal_writer import HOST, Cause, Clock, JournalWriter, NewRecord
from supervisor.sessions import shutdown
from supervisor.sessions.live_session import SessionPhase
from supervisor.sessions.verification import Verification
from supervisor.work import plan_cancellation
from supervisor.work.completion_pipeline import CompletionPipeline, MergeResult
from supervisor.work.plan_handle import run_plan
from supervisor.work.plan_runner import PlanRunner
from supervisor.work.results import PlanResult
from supervisor.work.task_execution import TaskExecution
from supervisor.work.workers import WorkerPool
from tests.support import DEADLINE_S, Run, quick_settings, send_prompt, states_of, supervising, wait_for_record

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the supervisor try the disk again at once, and wait only 0.2 s for the disk at its end."""
    monkeypatch.setattr(availability, "RETRY", Backoff(base_s=0.001, factor=1.0, cap_s=0.001))
    monkeypatch.setattr(shutdown, "LAST_RECORDS_S", 0.2)
    monkeypatch.setattr(plan_cancellation, "LAST_RECORDS_S", 0.2)


class FailingJournal(MemoryJournal):
    """Journal whose disk fails while ``broken``; with ``lands``, the first commit that fails has been written
    nevertheless."""

    def __init__(self, store: MemoryStore, *, lands: bool = False) -> None:
        super().__init__(store)
        self.broken = False
        self.lost = 0
        """Number of the last records that are missing when the journal is opened again."""
        self.batches: list[list[int]] = []
        """Record numbers of each append that was tried."""
        self._lands = lands

    async def append(self, batch: Sequence[Append]) -> None:
        self.batches.append([one.record.seq for one in batch])
        if self.broken:
            if self._lands:
                self._lands = False
                await super().append(batch)
            raise JournalUnavailable("the disk is full")
        await super().append(batch)

    async def recover(self) -> int:
        if self.broken:
            raise JournalUnavailable("the disk is still full")
        return await super().recover() - self.lost


def disk_of(run: Run) -> FailingJournal:
    assert isinstance(run.sup.core.journal, FailingJournal)
    return run.sup.core.journal


async def fail(run: Run) -> None:
    """Make the disk fail with the next commit, and wait until the supervisor reports the outage."""
    disk_of(run).broken = True
    run.sup.core.registry.record_fact("s", "Noted", HOST, {})
    await run.sup.degraded()


async def answers(turn: AgentTurn) -> str:
    return f"{turn.prompt}: done"


async def hangs(turn: AgentTurn) -> str:
    await turn.call("something", anyio.sleep_forever)
    return "never"


@asynccontextmanager
async def working(tmp_path: Path) -> AsyncIterator[tuple[Run, Session, FailingJournal]]:
    """Yield a session whose agent is in the middle of a call while the disk fails; end the outage afterwards."""
    async with supervising(tmp_path, journal=FailingJournal) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=hangs)
        asked = send_prompt(group, session, "work")
        async with run.sup.subscribe(0) as events:
            async for event in events:
                if event.event == "tool_started":
                    break
        await fail(run)
        yield run, session, disk_of(run)
        disk_of(run).broken = False
        await run.sup.recovered()
        await session.abort(reason="the test is over")
        await asked.result()


# ------------------------------------------------------------------------------------------------- what is recorded
@pytest.mark.parametrize("lands", [False, True], ids=["it is not there", "it is there"])
async def test_a_commit_of_unknown_outcome_is_looked_up_and_nothing_is_written_twice(
    tmp_path: Path, lands: bool
) -> None:
    """A commit reports an error, and is or is not in the journal: after the outage the prompt is answered and each
    record is in the journal once."""

    def journal(store: MemoryStore) -> FailingJournal:
        return FailingJournal(store, lands=lands)

    async with supervising(tmp_path, journal=journal) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=answers)
        disk = disk_of(run)
        disk.broken = True
        asked = send_prompt(group, session, "work")
        await run.sup.degraded()
        [*_, unknown] = disk.batches
        disk.broken = False
        assert (await asked.result()).text == "work: done"
        assert disk.batches.count(unknown) == (1 if lands else 2)
    seqs = [one.seq for one in run.events()]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_what_waits_keeps_its_order_and_wakes_nobody_early(tmp_path: Path) -> None:
    """During an outage no record is published; afterwards all are, in order, and the abort is recorded."""
    async with working(tmp_path) as (run, session, disk):
        durable = [one.seq for one in run.events()]
        receipt = await session.abort(reason="enough")
        assert [one.seq for one in run.events()] == durable
        assert run.sup.core.journal_writer.last_seq > durable[-1]
        disk.broken = False
        await run.sup.recovered()
        assert run.sup.outage is None
    assert states_of(run.events(), "s")[-1] == "Stopped"
    assert [one.entity_id for one in run.events() if one.event == "AbortRecord"] == ["s"]
    assert receipt.abort_id in {one.abort_id for one in run.events("s")}


async def test_a_disk_that_lost_what_it_had_promised_is_no_outage(tmp_path: Path) -> None:
    """The run ends with an error if the journal, opened again after an outage, lacks records that were durable."""
    with pytest.raises(JournalError, match="has lost what it had promised"):
        async with supervising(tmp_path, journal=FailingJournal) as run:
            await run.sup.start_session("s", agent=answers)
            await fail(run)
            disk_of(run).lost = 1
            disk_of(run).broken = False
            await run.sup.stopping.wait()


async def test_an_error_of_our_own_at_the_journal_is_its_end(tmp_path: Path) -> None:
    """An unexpected exception of the journal ends the run; the error names the exception."""

    class BrokenJournal(MemoryJournal):
        async def append(self, batch: Sequence[Append]) -> None:
            if any(one.record.event == "SessionStarted" for one in batch):
                raise RuntimeError("nobody has thought of it")
            await super().append(batch)

    with pytest.raises(JournalError, match=r"RuntimeError.*nobody has thought of it.*more it is not known"):
        async with supervising(tmp_path, journal=BrokenJournal) as run:
            asked = await (await run.sup.start_session("s", agent=answers)).run("work")
            assert (asked.outcome, "nobody has thought of it" in asked.error) == ("failed", True)


async def test_who_waits_behind_an_error_of_our_own_is_answered(tmp_path: Path) -> None:
    """After an unexpected exception in ``publish`` the writer ends: replies that were not given yet fail with an error
    that says how many records are in doubt."""

    class Told:
        def __init__(self) -> None:
            self.answers: list[str] = []

        def resolve(self, value: Any) -> None:
            self.answers.append("durable")

        def fail(self, error: BaseException) -> None:
            self.answers.append(str(error))

    def publish(record: LifecycleEvent) -> None:
        if record.seq == 2:
            raise RuntimeError("nobody has thought of it")

    failed: list[JournalError] = []
    clock = Clock(SimpleNamespace(time=lambda: 1.0))
    journal_writer = JournalWriter(MemoryJournal(MemoryStore()), clock, publish)
    journal_writer.failed = failed.append
    told = [Told() for _ in range(4)]
    for number, one in enumerate(told):
        subject = SimpleNamespace(
            id=f"t{number}", parent_id=None, kind_name="task", state_name="OPEN", data={}, entity_seq=1, epoch=1
        )
        journal_writer.record(subject, NewRecord(name="it", outcome="fact", cause=Cause(), reply=one))
    with anyio.fail_after(DEADLINE_S):
        await journal_writer.run()
    words = str(failed[0])
    assert "0 records are not in it, of 3 more it is not known" in words
    assert [one.answers for one in told] == [["durable"], [words], [words], [words]]


# ------------------------------------------------------------------------------------------------- what does not begin
async def test_nothing_new_begins_while_the_disk_is_down(tmp_path: Path) -> None:
    """During an outage new sessions, child sessions, prompts and messages are refused with ``Degraded``; the error
    names the cause and the remedy."""
    async with working(tmp_path) as (run, session, _):
        for wish in (
            run.sup.start_session("new", agent=answers),
            session.start_child("child", agent=answers),
            session.run("another prompt"),
            session.send("another message"),
        ):
            with pytest.raises(Degraded, match=r"is not taken: degraded since .*the disk is (still )?full.*ask again"):
                await wish
        assert set(run.sup.core.registry.sessions) == {"s"}


async def test_what_cannot_be_is_still_refused_as_such(tmp_path: Path) -> None:
    """During an outage an invalid name, an invalid text and an unknown session still raise their usual errors."""
    async with working(tmp_path) as (run, session, _):
        with pytest.raises(ValueError, match="name"):
            await run.sup.start_session("a b", agent=answers)
        with pytest.raises(ValueError, match="surrogate"):
            await session.run("\ud800")
        with pytest.raises(LookupError, match="nobody"):
            await run.sup.session("nobody").run("x")


async def test_a_plan_waits_for_the_disk(tmp_path: Path) -> None:
    """The next task of a plan waits for the end of an outage, and no task fails because of the outage."""
    agents = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}
    tasks = (
        TaskConfig(id="a", agent="sh", prompt="echo a"),
        TaskConfig(id="b", agent="sh", prompt="echo b", depends_on=("a",)),
    )
    plan = Plan(agents=agents, tasks=tasks)
    async with supervising(tmp_path, journal=FailingJournal, agents=agents) as run:
        disk_of(run).broken = True

        async def mend() -> None:
            await run.sup.degraded()
            disk_of(run).broken = False

        async with anyio.create_task_group() as group:
            group.start_soon(mend)
            result = await run_plan(run.sup, plan)
    assert {one.id: one.outcome for one in result.tasks.values()} == {"a": "completed", "b": "completed"}


async def test_a_plan_that_is_given_up_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of a plan ends while the disk is down, also if work was merged just before it was given up; the end of
    that task is on record when the disk is up again."""
    agents = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}
    plan = Plan(agents=agents, tasks=(TaskConfig(id="a", agent="sh", prompt="echo a"),))
    scope = anyio.CancelScope()
    async with supervising(tmp_path, journal=FailingJournal, agents=agents) as run:

        async def merge(self: CompletionPipeline, execution: TaskExecution, judged: str) -> MergeResult:
            disk_of(run).broken = True
            execution.note("Noted", {}, "")
            await run.sup.degraded()
            scope.cancel()
            return MergeResult("merged into main")

        monkeypatch.setattr(CompletionPipeline, "_merged", merge)
        with anyio.fail_after(60), scope:
            await PlanRunner(run.sup.core).run(plan)
        assert scope.cancelled_caught
        disk_of(run).broken = False
        await run.sup.recovered()
    assert states_of(run.events(), "r1#a")[-2:] == ["DONE", "CLOSED"]


# ------------------------------------------------------------------------------------------------- what goes on
async def test_an_abort_ends_and_says_that_it_is_not_on_record_yet(tmp_path: Path) -> None:
    """During an outage an abort returns its receipt when everything has ended; the receipt says why it is not recorded
    yet."""
    async with working(tmp_path) as (run, session, _):
        receipt = await session.abort(reason="enough")
        assert [(one.id, one.outcome) for one in receipt.nodes] == [("s", "ended")]
        assert receipt.killed_at is not None
        assert (receipt.recorded_at, receipt.survivors) == (None, 0)
        assert receipt.outage is not None
        assert "not recorded yet: the disk is" in receipt_text(receipt)
        again = await session.abort(reason="again")
        assert (again.already_ended, again.joined) == (True, receipt.abort_id)
        assert "not recorded yet: the disk is" in receipt_text(again)
        assert run.sup.inspect("s").state == "Stopped"
    assert run.row("s").ended


async def test_a_tool_abort_ends_its_call(tmp_path: Path) -> None:
    """A TOOL abort ends its call during an outage; the turn records the result after the outage."""
    async with working(tmp_path) as (run, _, disk):
        receipt: Receipt = await run.sup.abort("s:t1:c1", "tool", reason="enough")
        assert [(one.id, one.outcome) for one in receipt.nodes] == [("s:t1:c1", "ended")]
        assert receipt.outage is not None
        disk.broken = False
    [result] = run.transitions("tool_completed")
    assert (result.metadata["outcome"], result.abort_id) == ("aborted", receipt.abort_id)


async def test_whoever_runs_it_is_told(tmp_path: Path) -> None:
    """The reported outage has its cause, the number of tries, and the number of waiting records."""
    async with working(tmp_path) as (run, _, _):
        told = await run.sup.degraded()
        assert told == run.sup.outage
        assert told.why in ("the disk is full", "the disk is still full")
        assert (told.attempts >= 1, told.waiting >= 1) == (True, True)
        assert "nothing new begins, aborts and kills go on" in told.words


# ------------------------------------------------------------------------------------------------- the end of patience
async def test_too_much_that_waits_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the records that wait in memory exceed their bound, the run ends and the error says so."""
    with pytest.raises(JournalUnavailable, match=r"records waited for it: more than may wait in memory \(64 MiB\)"):
        async with supervising(tmp_path, journal=FailingJournal) as run:
            await run.sup.start_session("s", agent=answers)
            await fail(run)
            monkeypatch.setattr(availability, "HELD_BYTES_MAX", 0)
            run.sup.core.registry.record_fact("s", "Noted", HOST, {})
            await run.sup.stopping.wait()
    assert run.sup.core.registry.sessions["s"].phase is SessionPhase.FINISHED


async def test_an_end_does_not_wait_for_ever(tmp_path: Path) -> None:
    """Leaving the supervisor's block during an outage ends everything within the usual time, and raises an error about
    the records in doubt."""
    settings = quick_settings().model_copy(update={"drain_s": 0.01})
    with pytest.raises(JournalUnavailable, match=r"the run ended before it could be written again: .* it is not known"):
        async with supervising(tmp_path, journal=FailingJournal, settings=settings) as run:
            await run.sup.start_session("s", agent=answers)
            disk_of(run).broken = True
    assert run.sup.core.registry.sessions["s"].phase is SessionPhase.FINISHED


class DeafJournal(FailingJournal):
    """Journal that fails the first acknowledgement of effects."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.broken = True
        self.refused: list[str] = []

    async def settle(self, effect_ids: Sequence[str]) -> None:
        if self.broken:
            self.refused += effect_ids
            self.broken = False
            raise JournalUnavailable("the disk is full")
        await super().settle(effect_ids)


async def test_what_the_dead_owe_is_settled_when_the_disk_is_up_again(tmp_path: Path) -> None:
    """Effects in the outbox of a dead supervisor are acknowledged within the takeover, also if the first try fails for
    an outage."""

    store = MemoryStore()
    store.write([msgspec.structs.replace(entry(1), ended=True)])
    timer = StartTimer(name="backoff", delay_s=1.0, event=BackoffElapsed())
    store.owed["1.0"] = ("1.0", "s", encode_effect(timer))
    disk = DeafJournal(store)
    async with open_supervisor(journal=disk, settings=quick_settings(), workdir=tmp_path) as sup:
        assert set(disk.refused) == {"1.0"}
        assert sup.core.journal_writer.disk.outages == 1
        assert await disk.owed() == []


def task_left(seq: int) -> Append:
    """Return an append of the task of a plan that a dead supervisor left open."""
    data = TaskData(workstream="1.1", name="left", digest="")
    born = msgspec.structs.replace(
        record(seq), entity_type="task", entity_id="r1#left", entity_seq=1, event="Born", outcome="born"
    )
    told = msgspec.structs.replace(born, to_status="OPEN", actor="plan", metadata=msgspec.to_builtins(data))
    return Append(record=told, parent_id=None, state="OPEN", data=msgspec.json.encode(data))


@pytest.mark.parametrize("left_by", [None, ValueError])
async def test_tasks_that_nobody_took_up_do_not_keep_an_end(tmp_path: Path, left_by: type[Exception] | None) -> None:
    """A task that no plan took over does not delay the end of the supervisor during an outage, whether the block ends
    normally or by an exception."""

    def journal(store: MemoryStore) -> FailingJournal:
        store.write([task_left(1)])
        return FailingJournal(store)

    settings = quick_settings().model_copy(update={"drain_s": 0.01})
    with pytest.raises(left_by or JournalUnavailable):
        async with supervising(tmp_path, journal=journal, settings=settings) as run:
            assert run.sup.core.recovered_work.work == {"r1#left"}
            await run.sup.start_session("s", agent=answers)
            disk_of(run).broken = True
            if left_by is not None:
                raise left_by
    assert run.sup.core.registry.sessions["s"].phase is SessionPhase.FINISHED


async def test_a_plan_ends_with_its_journal(tmp_path: Path) -> None:
    """A task was approved during an outage: if the run then ends, both the plan and the approval end with
    JournalError."""
    agents = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}
    plan = Plan(agents=agents, tasks=(TaskConfig(id="a", agent="sh", prompt="true", approval="before"),))
    ends = list[JournalError]()
    with pytest.raises(JournalUnavailable), anyio.fail_after(10):
        async with supervising(tmp_path, journal=FailingJournal, agents=agents) as run:
            runner = PlanRunner(run.sup.core)

            async def ends_with(wish: Awaitable[object]) -> None:
                try:
                    await wish
                except* JournalError as lost:
                    ends.append(next(one for one in lost.exceptions if isinstance(one, JournalError)))

            async with anyio.create_task_group() as group:
                group.start_soon(ends_with, runner.run(plan))
                await wait_for_record(run.sup, "all_tasks_created", "r1")
                disk_of(run).broken = True
                group.start_soon(ends_with, runner.commands.approve("a", by="operator:me"))
                await run.sup.degraded()
                await run.sup.stop(now=True)
    assert len(ends) == 2


async def test_a_plan_is_given_up_without_its_disk(tmp_path: Path) -> None:
    """A cancelled run of a plan returns during an outage; the end of its task is recorded after the outage."""
    agents = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}
    plan = Plan(agents=agents, tasks=(TaskConfig(id="a", agent="sh", prompt="sleep 1000"),))
    settings = quick_settings(ladder={"request_s": 0.1})
    async with supervising(tmp_path, journal=FailingJournal, settings=settings, agents=agents) as run:
        async with anyio.create_task_group() as group:
            group.start_soon(run_plan(run.sup, plan).wait)
            await wait_for_record(run.sup, "started", "r1#a")
            disk_of(run).broken = True
            group.cancel_scope.cancel()
        assert run.sup.outage is not None
        disk_of(run).broken = False
        await run.sup.recovered()
        await run.sup.session("a").abort(reason="the test is over")
    assert run.row("r1#a").state == "CANCELLED"


class DownWhenDone(FailingJournal):
    """Journal whose disk fails from the record on by which a task is done."""

    async def append(self, batch: Sequence[Append]) -> None:
        self.broken = self.broken or any(one.state == "DONE" for one in batch)
        await super().append(batch)


async def test_what_was_saved_of_a_task_stays_where_its_end_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the record of a task's end is lost in an outage, the task's saved work is not deleted: another supervisor
    continues the task from it."""
    forgotten = list[str]()

    async def forget(_: Verification, place: WorkspaceSpec) -> None:
        forgotten.append(place.owner)

    async def abandon() -> None:
        await run.sup.degraded()
        run.sup.core.journal_writer.abandon()

    monkeypatch.setattr(Verification, "forget", forget)
    agents = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}
    plan = Plan(agents=agents, tasks=(TaskConfig(id="a", agent="sh", prompt="true"),))
    with pytest.raises(JournalUnavailable):
        async with (
            supervising(tmp_path, journal=DownWhenDone, agents=agents) as run,
            anyio.create_task_group() as group,
        ):
            group.start_soon(abandon)
            with suppress(JournalUnavailable):
                await run_plan(run.sup, plan)
    assert run.row("r1#a").state == "IN_PROGRESS"
    assert forgotten == []


async def test_a_worker_that_could_not_register_has_no_slot(tmp_path: Path) -> None:
    """A worker whose registration could not be recorded has no free slots."""
    with pytest.raises(JournalUnavailable):
        async with supervising(tmp_path, journal=FailingJournal) as run:
            await run.sup.start_session("s", agent=answers)
            await fail(run)
            pool = WorkerPool(run.sup.core, {}, 1)
            async with anyio.create_task_group() as group:
                group.start_soon(pool.start, "r1", HOST)
                await anyio.wait_all_tasks_blocked()
                run.sup.core.journal_writer.abandon()
            assert pool.free() == []


async def test_who_waits_for_a_record_is_not_kept_by_a_stop(tmp_path: Path) -> None:
    """Stopping the supervisor during an outage fails the waiting ``flush`` instead of waiting for the disk."""
    with pytest.raises(JournalUnavailable, match="the run ended before it could be written again"):
        async with supervising(tmp_path, journal=FailingJournal) as run:
            await run.sup.start_session("s", agent=answers)
            await fail(run)
            await run.sup.stop(now=True)
            with pytest.raises(JournalUnavailable, match="2 records are not in it, of 1 more it is not known"):
                await run.sup.core.journal_writer.flush()


# ------------------------------------------------------------------------------------------------- the real journal
def entry(seq: int) -> Append:
    return Append(record=record(seq), parent_id=None, state="Running", data=b"{}")


def record(seq: int) -> LifecycleEvent:
    return LifecycleEvent(
        seq=seq,
        timestamp=float(seq),
        monotonic_s=float(seq),
        entity_type="session",
        entity_id="s",
        entity_seq=seq,
        event="Happened",
    )


@asynccontextmanager
async def on_disk(path: Path) -> AsyncIterator[SqliteJournal]:
    journal = await SqliteJournal.open(path, jsonl=None)
    try:
        await journal.append([entry(1)])
        yield journal
    finally:
        await journal.close()


async def test_a_locked_journal_is_unavailable_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program's lock on the journal raises JournalUnavailable; afterwards the journal can be used again."""
    monkeypatch.setattr(database, "BUSY_MS", 10)
    path = tmp_path / "journal.db"
    async with on_disk(path) as journal:
        other = apsw.Connection(str(path))
        other.execute("BEGIN EXCLUSIVE")
        assert await journal.recover() == 1
        with pytest.raises(JournalUnavailable, match="another program holds a lock on it"):
            await journal.append([entry(2)])
        other.execute("ROLLBACK")
        other.close()
        assert await journal.recover() == 1
        await journal.append([entry(2)])
        assert await journal.recover() == 2


async def test_a_journal_that_cannot_be_opened_again_is_looked_at_again(tmp_path: Path) -> None:
    """A journal file that is missing for a while raises JournalUnavailable from ``recover`` and ``events``, and both
    work when the file is back."""
    path = tmp_path / "journal.db"
    async with on_disk(path) as journal:
        path.rename(tmp_path / "away.db")
        for _ in range(2):
            with pytest.raises(JournalUnavailable, match=r"journal\.db could not be used"):
                await journal.recover()
            with pytest.raises(JournalUnavailable, match=r"journal\.db could not be used"):
                await journal.events()
        (tmp_path / "away.db").rename(path)
        assert await journal.recover() == 1
        assert [one.seq for one in await journal.events()] == [1]


async def test_a_look_at_the_disk_of_another_owner_is_fenced(tmp_path: Path) -> None:
    """``recover`` of a journal that a later supervisor has opened raises ``Fenced``."""
    path = tmp_path / "journal.db"
    async with on_disk(path) as journal:
        later = await SqliteJournal.open(path, jsonl=None)
        with pytest.raises(Fenced, match="generation 2 owns this journal now"):
            await journal.recover()
        await later.close()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (apsw.FullError("full"), True),
        (apsw.IOError("I/O"), True),
        (apsw.ReadOnlyError("read-only"), True),
        (apsw.BusyError("busy"), True),
        (apsw.LockedError("locked"), True),
        (apsw.CantOpenError("cannot open"), True),
        (OSError(5, "Input/output error"), True),
        (apsw.CorruptError("malformed"), False),
        (apsw.NotADBError("not a database"), False),
        (apsw.ConstraintError("a bug"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_may_pass_and_what_may_not(error: Exception, passes: bool) -> None:
    """Errors of the disk become JournalUnavailable and are waited for; damage, a foreign file and a bug do not."""
    with pytest.raises(JournalError) as told, translate_errors(Path("journal.db")):
        raise error
    assert isinstance(told.value, JournalUnavailable) is passes


# ------------------------------------------------------------------------------------------------- the progress
DOWN = Outage(since=0.0, why="the disk is full", attempts=3, waiting=2)


async def reported(tmp_path: Path, view_in: Callable[[io.StringIO, StateDir], RunView]) -> list[str]:
    """Return the progress lines of an outage that is reported twice, and of its end."""
    state = StateDir.open(tmp_path / "state")
    journal = await SqliteJournal.open(state.journal, jsonl=None)
    out = io.StringIO()
    reporter = Reporter(after=0)
    reporter.start(read_state(state), lambda: view_in(out, state))
    for now in (None, DOWN, DOWN, None, None):
        reporter.update(now)
    reporter.close()
    await journal.close()
    return out.getvalue().splitlines()


async def test_the_progress_tells_of_an_outage_once(tmp_path: Path) -> None:
    """The progress for people has one line when an outage begins and one when it is over."""
    began, over = await reported(tmp_path, PlainView)
    assert began == DOWN.words
    assert "2 records wait in memory" in began
    assert over == "recovered: the journal can be written again"


async def test_the_progress_tells_of_a_recovery_before_the_end(tmp_path: Path) -> None:
    """A run that ends right after an outage prints the end of the outage before its result."""
    state = StateDir.open(tmp_path / "state")
    journal = await SqliteJournal.open(state.journal, jsonl=None)
    out = io.StringIO()
    reporter = Reporter(after=0)
    reporter.start(read_state(state), lambda: JsonView(out))
    reporter.update(DOWN)
    reporter.end(PlanResult({}))
    reporter.close()
    await journal.close()
    assert [json.loads(line) for line in out.getvalue().splitlines()][1:] == [
        {"outage": None},
        {
            "run": "",
            "ok": True,
            "outcome": "completed",
            "error": "",
            "output": "",
            "branch": "",
            "tasks": [],
            "workers": [],
        },
    ]


async def test_the_progress_tells_programs_of_an_outage(tmp_path: Path) -> None:
    """The progress as JSON has one line when an outage begins, with its cause and counts, and one when it is over."""
    began, over = [json.loads(line) for line in await reported(tmp_path, lambda out, state: JsonView(out))]
    assert began == {"outage": {"since": 0.0, "why": "the disk is full", "attempts": 3, "waiting": 2}}
    assert over == {"outage": None}
