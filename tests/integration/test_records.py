"""Records of a run: a journal without gaps or refused events, causes, log lines that the validator accepts,
subscriptions, and the lock of the state directory.

``tests.support.check_records`` checks the invariants after every test that runs a supervisor in memory; here that
function checks the journal on disk after a run with nearly every kind of event, and is itself tested.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import apsw
import msgspec
import pytest

from supervisor.diagnostics.validate import validate_lines
from supervisor.embedding.runtime import open_supervisor
from supervisor.host.api import Supervisor
from supervisor.journal.memory import MemoryStore
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDirBusy
from supervisor.lifecycles.types import AbortScope, LifecycleEvent
from supervisor.ports import EntityRow
from supervisor.runtime import subscriptions
from supervisor.runtime.subscriptions import SubscriptionLagged
from supervisor.sessions.inprocess import AgentTurn
from tests.support import (
    AGENTS,
    DEADLINE_S,
    check_records,
    quick_settings,
    send_prompt,
    supervising,
    wait_for_record,
)

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]


class Journalled:
    """Container of the records, rows, pending effects and log lines that a supervisor has written to its state
    directory."""

    def __init__(self, state_dir: Path) -> None:
        with JournalReader(state_dir / "runtime" / "journal.db") as journal:
            self.events = list(journal.events())
            self.rows = journal.entities()
        with closing(apsw.Connection(str(state_dir / "runtime" / "journal.db"), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            self.owed = db.execute("SELECT effect_id, entity_id, payload FROM effects WHERE settled = 0").fetchall()
        self.lines = (state_dir / "transitions.jsonl").read_bytes().splitlines(keepends=True)

    def root_of(self, record: LifecycleEvent) -> LifecycleEvent:
        """Return the root of a record's chain of causes."""
        by_seq = {one.seq: one for one in self.events}
        while record.cause_id is not None:
            record = by_seq[record.cause_id]
        return record

    def last_of(self, entity_id: str) -> LifecycleEvent:
        return [one for one in self.events if one.entity_id == entity_id][-1]


async def work(turn: AgentTurn) -> str:
    """Handle a prompt as an in-process agent that calls a tool."""

    async def tool() -> str:
        await anyio.lowlevel.checkpoint()
        return turn.prompt

    return await turn.call("tool", tool)


async def eventful(sup: Supervisor, workdir: Path) -> None:
    """Run sessions with successes, a crash, a message, an interrupt, child sessions, a tool abort, a session abort and
    an agent that fails."""
    async with anyio.create_task_group() as group:
        busy = await sup.start_session("busy", agent="scripted")
        first = send_prompt(group, busy, "@run sleep 1000\n@agent kid\n  @run true\n@compact\n@say done")
        hung = await sup.start_session("hung", agent="scripted")
        send_prompt(group, hung, "@agent kid\n  @hang\n")
        urged = await sup.start_session("urged", agent="scripted")
        second = send_prompt(group, urged, "@hang")
        crashing = send_prompt(
            group, await sup.start_session("crashing", agent="scripted"), "@crash-once crashed 3\n@say up"
        )
        hopeless = send_prompt(group, await sup.start_session("hopeless", agent="scripted"), "@exit 3")
        ours = send_prompt(group, await sup.start_session("ours", agent=work), "hello")
        await wait_for_record(sup, "SessionStarted", "urged")
        await urged.send("@say yes", urgent=True)
        await wait_for_record(sup, "ProcessStarted", "busy:t1", outcome="fact")
        await sup.abort("busy:t1:c1", AbortScope.TOOL, reason="too slow", actor="ann")
        await wait_for_record(sup, "SessionStarted", "hung/kid")
        await sup.abort("hung", AbortScope.SESSION, reason="hung", actor="ann")
        results = [(await one.result()).outcome for one in (first, second, crashing, hopeless, ours)]
    assert results == ["completed", "completed", "completed", "failed", "completed"]


@pytest.fixture
async def books(tmp_path: Path, nothing_left: None) -> Journalled:
    settings = quick_settings(max_total_errors=3)
    with anyio.fail_after(DEADLINE_S):
        async with open_supervisor(tmp_path / "sd", agents=AGENTS, settings=settings, workdir=tmp_path) as sup:
            await eventful(sup, tmp_path)
            living = {
                row.id: (row.state, row.data, row.entity_seq) for row in sup.core.registry.rows() if not row.ended
            }
            await sup.core.journal_writer.flush()
            durable = {row.id: (row.state, row.data, row.entity_seq) for row in await sup.core.journal.entities()}
            assert living.items() <= durable.items()
    return Journalled(tmp_path / "sd")


async def test_the_journal_of_an_eventful_run(books: Journalled) -> None:
    """The journal of an eventful run has no gaps, its records replay to its rows, no event was refused, no effect is
    pending, and no entity is left open."""
    check_records(books.events, books.rows, books.owed)


async def test_the_lines_of_an_eventful_run(books: Journalled) -> None:
    """After an eventful run transitions.jsonl has every transition of the journal, in order, and the validator finds no
    problem."""
    report = validate_lines(books.lines)
    assert report.problems == []
    transitions = [one for one in books.events if one.outcome == "transition"]
    assert len(transitions) > 100
    lines = [msgspec.json.decode(line) for line in books.lines]
    seqs = [one["seq"] for one in lines]
    assert seqs == sorted(seqs)
    assert {one.seq for one in transitions} <= set(seqs)


async def test_every_end_has_a_root(books: Journalled) -> None:
    """The chain of causes of every entity's last record leads to a record whose actor is a named operator or
    program."""
    for row in books.rows:
        root = books.root_of(books.last_of(row.id))
        assert root.actor not in ("", "supervisor"), row.id


async def test_an_abort_is_the_root_of_what_it_ended(books: Journalled) -> None:
    """The chain of causes of each last record of an aborted family leads to the one record of the abort, with its
    reason and its actor."""
    for session_id in ("hung", "hung/kid"):
        root = books.root_of(books.last_of(session_id))
        assert (root.event, root.entity_id, root.actor, root.reason) == ("AbortRecord", "hung", "ann", "hung")
    results = [one for one in books.events if one.entity_id == "busy:t1" and one.metadata.get("outcome") == "aborted"]
    [aborted] = [one for one in results if one.outcome == "transition"]  # what the agent says of it later is stale
    root = books.root_of(aborted)
    assert (root.event, root.actor, root.reason) == ("AbortRecord", "ann", "too slow")


async def test_a_second_supervisor_goes_on_in_the_same_journal(tmp_path: Path) -> None:
    """A second supervisor in the same state directory does not reuse the ids of the first, continues the record
    numbers, and the whole journal passes the check."""
    for number in range(2):
        async with open_supervisor(tmp_path / "sd", agents=AGENTS, settings=quick_settings(), workdir=tmp_path) as sup:
            session = await sup.start_session("s", agent="scripted")
            assert session.id == ("s", "s-2")[number]
            assert (await session.run("@say hi")).text == "hi\n"
    books = Journalled(tmp_path / "sd")
    check_records(books.events, books.rows, books.owed)
    assert validate_lines(books.lines).problems == []


async def test_one_supervisor_per_state_directory(tmp_path: Path) -> None:
    """A second supervisor on the same state directory is refused while the first runs, without an effect on the first,
    and may start when the first has ended."""
    async with open_supervisor(tmp_path / "sd", agents=AGENTS, workdir=tmp_path) as sup:
        session = await sup.start_session("s", agent="scripted")
        with pytest.raises(StateDirBusy, match="another supervisor"):
            async with open_supervisor(tmp_path / "sd"):
                pytest.fail("there were two")
        assert (await session.run("@say undisturbed")).text == "undisturbed\n"
    async with open_supervisor(tmp_path / "sd") as sup:
        assert sup.core.journal.generation == 2


# ---------------------------------------------------------------------------------------------------- subscriptions
async def test_a_subscriber_receives_every_record_in_order(tmp_path: Path) -> None:
    """A subscriber gets every record once, in order and when it is durable: from the first record, from a given number
    on, or from now on."""
    async with supervising(tmp_path) as run:
        heard: dict[int | None, list[int]] = {None: [], 0: [], 7: []}

        async def listen(after: int | None, listening: anyio.Event) -> None:
            async with run.sup.subscribe(after) as records:
                listening.set()
                async for record in records:
                    assert record.seq <= run.store.last_seq
                    heard[after].append(record.seq)
                    if record.event == "Ended":
                        return

        session = await run.sup.start_session("s", agent="scripted")
        await session.run("@say one")
        before = run.store.last_seq
        async with anyio.create_task_group() as group:
            for after in heard:
                listening = anyio.Event()
                group.start_soon(listen, after, listening)
                await listening.wait()
            await session.run("@run true")
            await session.close()
        last = run.transitions("Ended")[0].seq
    assert heard[0] == list(range(1, last + 1))
    assert heard[7] == list(range(8, last + 1))
    assert heard[None] == list(range(before + 1, last + 1))


async def test_a_slow_subscriber_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber that reads too slowly gets the records in its buffer, then SubscriptionLagged; the later records can
    be read from the journal."""
    monkeypatch.setattr(subscriptions, "SUBSCRIPTION_MAX", 5)
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        async with run.sup.subscribe() as slow:
            assert (await session.run("@run true")).outcome == "completed"
            heard = []
            with pytest.raises(SubscriptionLagged, match="read on from the journal"):
                async for record in slow:
                    heard.append(record.seq)
        assert heard == list(range(2, 7))
        later = [one.seq for one in await run.sup.core.journal.events(after_seq=heard[-1])]
        assert later == list(range(7, run.store.last_seq + 1))


async def test_subscriptions_end_with_the_supervisor(tmp_path: Path) -> None:
    """A subscriber gets all records up to the last one of the supervisor, then its iteration ends; a later subscription
    ends at once."""
    heard: list[str] = []

    async def listen(sup: Supervisor, listening: anyio.Event) -> None:
        async with sup.subscribe() as records:
            listening.set()
            async for record in records:
                heard.append(record.event)

    async with anyio.create_task_group() as group, supervising(tmp_path) as run:
        listening = anyio.Event()
        group.start_soon(listen, run.sup, listening)
        await listening.wait()
        await (await run.sup.start_session("s", agent="scripted")).run("@say hi")
    assert heard[-1] == "Ended"
    assert len(heard) == run.store.last_seq
    with anyio.fail_after(DEADLINE_S):
        async with run.sup.subscribe() as records:
            assert [one async for one in records] == [], "nor does who comes later wait for more"


# ---------------------------------------------------------------------------------------------------- the check itself
async def small_store(tmp_path: Path) -> MemoryStore:
    async with supervising(tmp_path) as run:
        await (await run.sup.start_session("s", agent=work)).run("hi")
    return run.store


FORGERIES: dict[str, Any] = {
    "a gap": lambda events: events.pop(5),
    "a wrong state": lambda events: _change(events, 5, to_status="Running"),
    "a wrong origin": lambda events: _change(events, 4, from_status="Running"),
    "a cause that comes later": lambda events: _change(events, 5, cause_id=9),
    "no explanation": lambda events: _change(events, 5, cause_id=None, actor="supervisor"),
    "a refusal": lambda events: _change(events, 5, outcome="refused"),
    "another prompt": lambda events: _change(events, 5, metadata={"prompt": "ho", "messages": 0}),
}


def _change(events: list[LifecycleEvent], at: int, **changes: Any) -> None:
    events[at] = msgspec.structs.replace(events[at], **changes)


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_forged_journal_is_found(tmp_path: Path, forgery: str) -> None:
    """``check_records`` raises AssertionError for each kind of forged record."""
    store = await small_store(tmp_path)
    events, rows = store.log.after(0, 1_000), list(store.entities.values())
    check_records(events, rows, [])
    FORGERIES[forgery](events)
    with pytest.raises(AssertionError):
        check_records(events, rows, [])


async def test_an_open_end_is_found(tmp_path: Path) -> None:
    """``check_records`` finds an entity that has not ended, and a pending effect."""
    store = await small_store(tmp_path)
    events, rows = store.log.after(0, 1_000), list(store.entities.values())
    with pytest.raises(AssertionError, match="is left in"):
        check_records(events, [reopened(rows[0]), *rows[1:]], [])
    with pytest.raises(AssertionError, match=r"1\.0"):
        check_records(events, rows, [("1.0", "s", b"{}")])


def reopened(row: EntityRow) -> EntityRow:
    return msgspec.structs.replace(row, ended=False)
