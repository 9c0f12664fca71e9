"""The service of triggers in virtual time: schedules over days, downtimes, and a limit of records."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from trio.testing import MockClock

from supervisor.diagnostics.invariants import RecordChecker
from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles.types import LifecycleEvent, RecordId
from supervisor.plans import Plan
from supervisor.plans.daemon_control import PlanRequest, SubmittedPlan
from supervisor.plugins.reading import load_plan
from supervisor.runtime.entity import Refused
from supervisor.triggers import service
from supervisor.triggers.service import REFUSALS_PER_HOUR, TriggerService
from tests.simulated import VirtualLoop
from tests.support import AGENTS, quick_settings
from tests.unit.triggers.webhook_kit import NOW, PUBLIC, SECRET, signed

HOUR_S = 3600.0
TASK = "task: {id: t, agent: scripted, prompt: '@say hi'}"


def every(**seconds: int) -> str:
    """Return a triggers file with intervals by name."""
    triggers = [f"{name}: {{schedule: {{every_s: {every_s}}}, {TASK}}}" for name, every_s in seconds.items()]
    return f"triggers: {{{', '.join(triggers)}}}"


class Wall:
    """Wall clock that begins at an instant in UTC and moves with the event loop; a test may set it."""

    def __init__(self) -> None:
        self.offset = 0.0

    def set(self, text: str) -> None:
        self.offset = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() - anyio.current_time()

    def time(self) -> float:
        return self.offset + anyio.current_time()


class Taker:
    """Daemon that takes plans, each of which runs until the test ends it."""

    def __init__(self, *, runs_s: float = 1.0) -> None:
        self.ending = anyio.Event()
        self.runs_s = runs_s
        self.runs: dict[str, str] = {}
        """Runs by their keys."""
        self.asked: list[PlanRequest] = []
        self.causes: list[RecordId | None] = []
        self.refuses = False

    def read_request(self, request: PlanRequest) -> Plan:
        return load_plan(Path("plan.yaml"), content=request.text.encode(), agents=AGENTS)

    async def submit(self, request: PlanRequest, cause: RecordId | None) -> SubmittedPlan:
        await anyio.lowlevel.checkpoint()
        if self.refuses:
            raise Refused("not now")
        self.asked.append(request)
        self.causes.append(cause)
        assert request.key is not None
        run = self.runs.setdefault(request.key, f"r{len(self.runs) + 1}")
        return SubmittedPlan(run=run)

    def run_of(self, key: str) -> str:
        return self.runs.get(key, "")

    async def wait_ended(self, run: str) -> None:
        await anyio.sleep(self.runs_s)


class World:
    """State directory, clock and journal, which outlive the daemons of a test."""

    def __init__(self, path: Path) -> None:
        self.path, self.store, self.wall = path, MemoryStore(), Wall()
        (path / "state" / "config").mkdir(parents=True, mode=0o700)
        self.file = path / "state" / "config" / "triggers.yaml"

    def write(self, text: str) -> None:
        self.file.write_text(textwrap.dedent(text))

    @asynccontextmanager
    async def daemon(self, taker: Taker) -> AsyncIterator[TriggerService]:
        """Run the triggers of one daemon; its end is that of a kill, which ends no trigger."""
        rows = list(self.store.entities.values())
        async with open_supervisor(
            agents=AGENTS, settings=quick_settings(), workdir=self.path, journal=MemoryJournal(self.store)
        ) as sup:
            sup.core.journal_writer.clock.wall = self.wall
            running = TriggerService(self.file, self.path, self.path / "state", taker)
            running.restore(sup.core, rows)
            async with anyio.create_task_group() as group:
                await running.begin(group)
                yield running
                await sup.core.journal_writer.durable()
                taker.ending.set()
                group.cancel_scope.cancel()

    def records(self) -> list[LifecycleEvent]:
        found: list[LifecycleEvent] = self.store.log.after(0, 1_000_000)
        checker = RecordChecker()
        assert [violation for one in found for violation in checker.check(one)] == []
        return found

    def deliveries(self, event: str = "delivery_accepted") -> list[str]:
        return [one.metadata["delivery"] for one in self.records() if one.event == event]

    def reasons(self) -> list[str]:
        return [one.reason for one in self.records() if one.event == "delivery_refused"]


Play = Callable[[World], Coroutine[Any, Any, None]]


@pytest.fixture(params=["asyncio", "trio"])
def virtually(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Play], None]:
    """Return a function that runs a test in virtual time. What goes to threads is called at once, since the clock does
    not wait for them."""

    async def call(function: Callable[..., Any], *arguments: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(anyio.to_thread, "run_sync", call)

    def run(play: Play) -> None:
        is_trio = request.param == "trio"
        options: dict[str, Any] = (
            {"clock": MockClock(autojump_threshold=0)} if is_trio else {"loop_factory": VirtualLoop}
        )
        anyio.run(play, World(tmp_path), backend=request.param, backend_options=options)

    return run


@pytest.mark.parametrize(
    ("zone", "evening", "cron", "fired"),
    [
        ("Europe/Berlin", "2026-03-28 20:00", "30 2 * * *", ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
        ("Europe/Berlin", "2026-10-24 20:00", "30 2 * * *", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
        ("America/New_York", "2026-03-08 00:00", "30 2 * * *", ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]),
        ("America/New_York", "2026-11-01 00:00", "30 1 * * *", ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]),
        ("Australia/Lord_Howe", "2026-10-03 10:00", "15 2 * * *", ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]),
        ("Australia/Lord_Howe", "2026-04-04 10:00", "45 1 * * *", ["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"]),
    ],
)
def test_both_nights_on_the_virtual_clock(
    virtually: Callable[[Play], None], zone: str, evening: str, cron: str, fired: list[str]
) -> None:
    """Over the two nights around a change of the clock a daily job fires once each, whatever the night; daemons that
    follow each other every hour fire nothing twice."""

    async def play(world: World) -> None:
        world.write(f"triggers: {{t: {{schedule: {{cron: '{cron}', timezone: {zone}}}, {TASK}}}}}")
        world.wall.set(evening)
        for _ in range(40):
            async with world.daemon(Taker()):
                await anyio.sleep(HOUR_S)
        assert world.deliveries() == fired
        assert world.reasons() == []

    virtually(play)


@pytest.mark.parametrize(
    ("missed", "fired", "reasons"),
    [
        ("missed: skip", ["12:00:00"], ["missed: 3 occurrences from 2026-05-01T09:00:00Z to 2026-05-01T11:00:00Z"]),
        (
            "missed: once",
            ["11:00:00", "12:00:00"],
            ["missed: 2 occurrences from 2026-05-01T09:00:00Z to 2026-05-01T10"],
        ),
        ("missed: all", ["09:00:00", "10:00:00", "11:00:00", "12:00:00"], []),
    ],
)
def test_three_hours_of_downtime(
    virtually: Callable[[Play], None], missed: str, fired: list[str], reasons: list[str]
) -> None:
    """Of the occurrences of three hours without a daemon none, the last, or each starts a run, one after the other;
    what is skipped is on record."""

    async def play(world: World) -> None:
        world.write(f"triggers: {{t: {{schedule: {{cron: '0 * * * *', {missed}}}, overlap: queue, {TASK}}}}}")
        world.wall.set("2026-05-01 08:30")
        taker = Taker()
        async with world.daemon(taker):
            await anyio.sleep(60)
        await anyio.sleep(3 * HOUR_S - 60)
        async with world.daemon(taker := Taker()):
            await anyio.sleep(HOUR_S)
        assert [one[11:19] for one in world.deliveries()] == fired
        assert [one[: len(words)] for one, words in zip(world.reasons(), reasons, strict=True)] == reasons
        assert len(taker.asked) == len(fired)
        assert [one.by for one in taker.asked] == ["trigger t"] * len(fired)

    virtually(play)


def test_a_clock_that_is_set_back_fires_nothing_again(virtually: Callable[[Play], None]) -> None:
    """After the wall clock was set back by two hours the occurrences of these hours do not come a second time."""

    async def play(world: World) -> None:
        world.write(f"triggers: {{t: {{schedule: {{cron: '0 * * * *'}}, {TASK}}}}}")
        world.wall.set("2026-05-01 08:30")
        async with world.daemon(Taker()):
            await anyio.sleep(2 * HOUR_S)
            world.wall.offset -= 2 * HOUR_S
            await anyio.sleep(3 * HOUR_S)
        assert [one[11:13] for one in world.deliveries()] == ["09", "10", "11"]

    virtually(play)


def test_an_interval_fires_by_elapsed_time(virtually: Callable[[Play], None]) -> None:
    """An interval fires every so many seconds from the start of the trigger on, also after a restart, and a run that
    takes longer skips what comes meanwhile."""

    async def play(world: World) -> None:
        world.write(every(t=600))
        world.wall.set("2026-05-01 08:03")
        async with world.daemon(Taker()):
            await anyio.sleep(1000)
        async with world.daemon(Taker(runs_s=700)):
            await anyio.sleep(2300)
        assert [one[11:16] for one in world.deliveries()] == ["08:13", "08:23", "08:43"]
        starts = [one for one in world.records() if one.event == "delivery_accepted"]
        apart = [b.timestamp - a.timestamp for a, b in pairwise(starts)]
        assert apart == pytest.approx([600, 1200], abs=1.0)
        assert world.reasons() == ["overlap: a run of this trigger goes on"] * 2

    virtually(play)


def test_a_kill_between_decision_and_run_loses_nothing(virtually: Callable[[Play], None]) -> None:
    """A delivery that was accepted, and whose plan was not taken before the daemon ended, is submitted by the next one;
    one whose run is on the disk is not submitted again."""

    async def play(world: World) -> None:
        class Stuck(Taker):
            async def submit(self, request: PlanRequest, cause: RecordId | None) -> SubmittedPlan:
                found = await super().submit(request, cause)
                await anyio.sleep_forever()
                return found

        world.write(every(t=600))
        world.wall.set("2026-05-01 08:00")
        first, second = Stuck(), Taker()
        async with world.daemon(first):
            await anyio.sleep(610)
        assert (world.deliveries("delivery_accepted"), world.deliveries("run_started")) == (
            ["2026-05-01T08:10:00Z"],
            [],
        )
        second.runs = first.runs  # the journal knows the key of the run
        async with world.daemon(second):
            await anyio.sleep(60)
        assert world.deliveries("run_started") == world.deliveries("run_ended") == ["2026-05-01T08:10:00Z"]
        assert second.asked == []

    virtually(play)


def test_a_run_follows_from_its_delivery(virtually: Callable[[Play], None]) -> None:
    """The cause of a run is the record of its delivery, also if the daemon was killed between the record and the
    run."""

    async def play(world: World) -> None:
        class Deaf(Taker):
            async def submit(self, request: PlanRequest, cause: RecordId | None) -> SubmittedPlan:
                await anyio.sleep_forever()
                raise AssertionError

        world.write(every(t=600))
        world.wall.set("2026-05-01 08:00")
        async with world.daemon(Deaf()):
            await anyio.sleep(610)
        async with world.daemon(second := Taker()):
            await anyio.sleep(600)
        assert second.causes == [one.seq for one in world.records() if one.event == "delivery_accepted"]
        assert len(second.causes) == 2

    virtually(play)


def test_refused_occurrences_do_not_fill_the_journal(virtually: Callable[[Play], None]) -> None:
    """While a run goes on for an hour, of the occurrences of every ten seconds one a minute is on record, and each
    record says how many have none; a daemon that follows decides none of them again."""

    async def play(world: World) -> None:
        world.write(f"triggers: {{t: {{schedule: {{every_s: 10, missed: once}}, {TASK}}}}}")
        world.wall.set("2026-05-01 08:00")
        async with world.daemon(taker := Taker(runs_s=HOUR_S)):
            await anyio.sleep(HOUR_S)
        refused = [one for one in world.records() if one.event == "delivery_refused"]
        assert 58 <= len(refused) <= REFUSALS_PER_HOUR
        assert sum(1 + one.metadata["unrecorded"] for one in refused) >= 358 - 6
        assert {one.reason for one in refused} == {"overlap: a run of this trigger goes on"}
        assert len(taker.asked) == 1

    virtually(play)


def test_a_week_without_a_daemon_is_decided_in_few_records(virtually: Callable[[Play], None]) -> None:
    """Of the 60,480 occurrences of a week, ``missed: all`` starts or queues as many as one run and its queue take; one
    record has the number of the others. Nothing of the week is decided again."""

    async def play(world: World) -> None:
        world.write(f"triggers: {{t: {{schedule: {{every_s: 10, missed: all}}, overlap: queue, {TASK}}}}}")
        world.wall.set("2026-05-01 08:00")
        async with world.daemon(Taker()):
            await anyio.sleep(1)
        world.wall.offset += 7 * 24 * HOUR_S
        async with world.daemon(taker := Taker(runs_s=HOUR_S)):
            await anyio.sleep(5)
        missed, *others = world.reasons()
        assert missed.startswith("missed: 60452 occurrences from 2026-05-01T08:00:")
        assert others == []  # the six that are not late find the queue full: counted
        assert (len(taker.asked), len(world.deliveries("delivery_queued"))) == (1, 20)

    virtually(play)


def test_requests_to_unknown_webhooks_are_on_record(virtually: Callable[[Play], None]) -> None:
    """A request to a webhook that is not there is on record, with its name as data of few characters, up to the limit
    of an hour; the log is kept by the next daemon, and is no trigger of the file."""

    async def play(world: World) -> None:
        world.write(every(t=600))
        world.wall.set("2026-05-01 08:00")
        async with world.daemon(Taker()) as running:
            assert (await running.deliver("pusch", {}, b"{}")).status == 404
            for number in range(100):
                running.note_unknown(f"\x1b[31m{number}" + "x" * 5000)
        async with world.daemon(Taker()) as running:
            running.note_unknown("t")
        refused = [one for one in world.records() if one.event == "delivery_refused"]
        assert {one.entity_id for one in refused} == {"@unknown"}
        assert refused[0].reason == "unknown: there is no webhook 'pusch'"
        assert all(one.reason.isascii() and one.reason.isprintable() and len(one.reason) < 200 for one in refused)
        assert len(refused) == REFUSALS_PER_HOUR + 1

    virtually(play)


def test_a_plan_that_is_not_taken_is_on_record(virtually: Callable[[Play], None]) -> None:
    """A start that fails has its reason on record; the trigger waits for the next delivery."""

    async def play(world: World) -> None:
        world.write(every(t=600))
        world.wall.set("2026-05-01 08:00")
        taker = Taker()
        taker.refuses = True
        async with world.daemon(taker):
            await anyio.sleep(650)
            taker.refuses = False
            await anyio.sleep(600)
        failed = [one for one in world.records() if one.event == "start_failed"]
        assert [(one.reason, one.to_status) for one in failed] == [("not now", "waiting")]
        assert len(world.deliveries("run_started")) == 1

    virtually(play)


def test_a_reload_changes_what_is_defined(virtually: Callable[[Play], None]) -> None:
    """A trigger that is new begins, one that is gone is closed, and one whose times are others counts from now on."""

    async def play(world: World) -> None:
        world.write(
            f"triggers: {{a: {{schedule: {{every_s: 600}}, {TASK}}}, b: {{schedule: {{every_s: 900}}, {TASK}}}}}"
        )
        world.wall.set("2026-05-01 08:00")
        async with world.daemon(Taker()) as running:
            await anyio.sleep(500)
            world.write(
                f"triggers: {{a: {{schedule: {{every_s: 700}}, {TASK}}}, c: {{schedule: {{every_s: 60}}, {TASK}}}}}"
            )
            words = await running.use(running.load())
            await anyio.sleep(650)
        assert words == "triggers a, c are new or changed; triggers b are gone"
        accepted = [one.entity_id for one in world.records() if one.event == "delivery_accepted"]
        assert (accepted.count("@a"), accepted.count("@b"), accepted.count("@c")) == (0, 0, 10)
        assert [one.reason for one in world.records() if one.event == "trigger_closed"] == [
            "the trigger is gone from the file"
        ]

    virtually(play)


def test_refusals_do_not_fill_the_journal(virtually: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand forged requests in an hour sixty have a record; the next record after that says how many have
    none."""
    monkeypatch.setenv("HOOK", "0123456789abcdef")

    async def play(world: World) -> None:
        world.write(f"triggers: {{h: {{webhook: {{provider: generic, secret: {{env: HOOK}}}}, {TASK}}}}}")
        async with world.daemon(Taker()) as running:
            for _ in range(1000):
                reply = await running.deliver("h", {"authorization": "Bearer wrong"}, b"{}")
                assert reply.status == 401
            await anyio.sleep(2 * HOUR_S)
            await running.deliver("h", {}, b"{}")
        refused = [one for one in world.records() if one.event == "delivery_refused"]
        assert len(refused) == REFUSALS_PER_HOUR + 1
        assert refused[-1].metadata["unrecorded"] == 1000 - REFUSALS_PER_HOUR

    virtually(play)


def test_a_long_log_is_continued_in_a_new_one(
    virtually: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log with many records ends when nothing goes on, so that it can be archived; the trigger goes on in another
    one, and knows what it knew."""
    monkeypatch.setattr(service, "RECORDS_MAX", 5)

    async def play(world: World) -> None:
        world.write(every(t=600))
        world.wall.set("2026-05-01 08:00")
        async with world.daemon(Taker()):
            await anyio.sleep(1850)
        closed = [one.entity_id for one in world.records() if one.event == "trigger_closed"]
        assert closed == ["@t"]
        found = [one for one in world.records() if one.event == "delivery_accepted"]
        accepted = [(one.entity_id, one.metadata["delivery"][11:16]) for one in found]
        assert accepted == [("@t", "08:10"), ("@t", "08:20"), ("@t-2", "08:30")]

    virtually(play)


def test_deliveries_that_wait_are_taken_one_by_one(
    virtually: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``overlap: queue`` deliveries start their runs one after the other, in their order; those that wait when a
    daemon ends are taken by the next one."""
    monkeypatch.setenv("HOOK", "0123456789abcdef")

    async def play(world: World) -> None:
        hook = "webhook: {provider: generic, secret: {env: HOOK}}, overlap: queue, values: {n: n}"
        world.write(f"triggers: {{h: {{{hook}, {TASK}}}}}")
        async with world.daemon(Taker(runs_s=100)) as running:
            for number in range(3):
                headers = {"authorization": "Bearer 0123456789abcdef", "idempotency-key": f"k{number}"}
                reply = await running.deliver("h", headers, b'{"n": %d}' % number)
                assert (reply.status, reply.body["outcome"]) == (202, "queued" if number else "accepted")
            await anyio.sleep(150)
        async with world.daemon(taker := Taker(runs_s=10)):
            await anyio.sleep(50)
        assert world.deliveries() == ["k0", "k1", "k2"]
        assert ['{\\"n\\": \\"2\\"}' in one.text for one in taker.asked] == [True]

    virtually(play)


def test_discord_and_slack_get_the_replies_that_they_know(
    virtually: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command of Discord is answered with a message for its giver, and a question of Slack with its challenge."""
    monkeypatch.setenv("SLACK", SECRET)
    monkeypatch.setenv("DISCORD", PUBLIC)

    async def play(world: World) -> None:
        slack, discord = (f"{{provider: {one}, secret: {{env: {one.upper()}}}}}" for one in ("slack", "discord"))
        world.write(f"triggers: {{slack: {{webhook: {slack}, {TASK}}}, discord: {{webhook: {discord}, {TASK}}}}}")
        world.wall.offset = NOW - anyio.current_time()
        async with world.daemon(Taker()) as running:
            given = signed("discord", {"type": 2, "id": "1", "data": {"name": "x"}})
            command = await running.deliver("discord", *given)
            assert command.status == 200
            assert command.body == {"type": 4, "data": {"content": "accepted: a run begins", "flags": 64}}
            question = {"type": "url_verification", "challenge": "c"}
            assert (await running.deliver("slack", *signed("slack", question))).body == {"challenge": "c"}
            assert (await running.deliver("discord", *signed("discord", {"type": 1}))).body == {"type": 1}
        assert world.deliveries() == ["1"]

    virtually(play)
