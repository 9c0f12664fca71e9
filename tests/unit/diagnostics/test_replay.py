"""``supervisor replay`` and ``supervisor validate`` on real journals: sound, running, killed, tampered with, torn,
missing.

A journal is made by a real supervisor with in-process agents; tampering is done on a copy of its file.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import anyio
import apsw
import msgspec
import pytest

from supervisor.diagnostics.replay import Replay
from supervisor.diagnostics.tree_view import tree
from supervisor.diagnostics.what_if import Outcome, what_if
from supervisor.embedding.runtime import open_supervisor
from supervisor.host.api import Supervisor
from supervisor.journal.database import open_database
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import AbortPolicy, AbortScope, LifecycleEvent, TransitionReason
from supervisor.plans import AgentConfig, LimitsConfig, Plan, PolicyConfig, Settings, TaskConfig
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.inprocess import AgentTurn, ToolAborted
from supervisor.work.plan_handle import run_plan
from tests.record_log import Log
from tests.simulated import SCENARIOS, simulated_journal
from tests.support import run_command, supervising

# ------------------------------------------------------------------------------------------------------ real journals
NO_SOCKET = shutil.ignore_patterns("control.sock")
"""Filter for ``copytree`` that skips the control socket, because Python cannot copy the file of a socket."""

SETTINGS = Settings(limits=LimitsConfig(backoff_base_ms=1, backoff_cap_ms=2, restarts_max=1), policy=PolicyConfig())


async def work(turn: AgentTurn) -> str:
    """Agent function that, as the prompt says, makes a call, delegates and waits, hangs in a call, or fails."""
    if "fail" in turn.prompt:
        raise RuntimeError("it broke")
    if "hang" in turn.prompt:
        with suppress(ToolAborted):
            await turn.call("a call that hangs", anyio.sleep_forever)
        await anyio.sleep_forever()  # also without its call
    if "delegate" in turn.prompt:
        await turn.delegate("helper", "hang")
    await turn.call("a call", anyio.lowlevel.checkpoint)
    return "done"


async def play(sup: Supervisor) -> None:
    """Run ``lead`` with the hanging children ``lead/a`` and ``lead/b``, abort a call of ``lead/a`` and then ``lead``;
    ``poor`` fails until it is given up."""
    lead = await sup.start_session("lead", agent=work)
    await lead.run("work")
    children = [await lead.start_child(name) for name in ("a", "b")]
    async with anyio.create_task_group() as group:
        for child in children:
            group.start_soon(child.run, "hang")
        await _until_open(sup, "lead/a:t1:c1", "lead/b:t1:c1")
        await sup.abort("lead/a:t1:c1", AbortScope.TOOL, reason="enough")
        await lead.abort()
    poor = await sup.start_session("poor", agent=work)
    assert (await poor.run("fail")).outcome == "failed"


async def _until_open(sup: Supervisor, *calls: str) -> None:
    with anyio.fail_after(30):
        while not all(sup.core.registry.is_open(call) for call in calls):
            await anyio.lowlevel.checkpoint()


async def _run(state_dir: Path) -> None:
    async with open_supervisor(state_dir, settings=SETTINGS) as sup:
        await play(sup)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state directory of a supervisor that has ended."""
    state_dir = tmp_path_factory.mktemp("ended") / "state"
    anyio.run(_run, state_dir)
    return state_dir


@pytest.fixture
def copy(ended: Path, tmp_path: Path) -> Path:
    """Return a copy of the ended supervisor's state directory, for a test to tamper with."""
    return Path(shutil.copytree(ended, tmp_path / "copy", ignore=NO_SOCKET))


def events(state_dir: Path) -> list[LifecycleEvent]:
    with JournalReader(StateDir(state_dir).journal) as reader:
        return list(reader.events())


def the(records: list[LifecycleEvent], event: str, entity_id: str) -> LifecycleEvent:
    return next(one for one in records if (one.event, one.entity_id) == (event, entity_id))


def change(state_dir: Path, statement: str, *values: object) -> None:
    """Change the journal of *state_dir* with an SQL statement, as a forger would."""
    with closing(apsw.Connection(str(StateDir(state_dir).journal))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(statement, values)  # type: ignore[arg-type]
        assert db.changes() > 0


# ------------------------------------------------------------------------------------------------- nothing differs
@pytest.mark.parametrize("command", ["replay", "validate"])
@pytest.mark.parametrize("named", ["the directory", "the journal"])
def test_a_sound_journal(ended: Path, command: str, named: str) -> None:
    """``replay`` finds no difference and ``validate`` no violation in a journal that nobody changed, and both read
    every record."""
    path = ended if named == "the directory" else StateDir(ended).journal
    told = run_command(command, path, "--json")
    number = len(events(ended))
    assert told.status == 0
    if command == "replay":
        found = {name: told.json[name] for name in ("same", "records", "differences", "violations", "omitted")}
        assert found == {"same": True, "records": number, "differences": [], "violations": [], "omitted": 0}
    else:
        assert (told.json["valid"], told.json["report"]["records"]) == (True, number)
    words = "0 differences, 0 violations" if command == "replay" else "valid ("
    assert words in run_command(command, path).out


@pytest.mark.parametrize("command", [("replay",), ("validate",), ("journal", "check"), ("journal", "export")])
@pytest.mark.parametrize("there", ["nothing", "a directory", "a circle of links", "no possible name"])
def test_where_there_is_no_journal(tmp_path: Path, command: tuple[str, ...], there: str) -> None:
    """A command for a path without a journal ends with exit status 2 and a message with the path and the paths to
    give."""
    path = tmp_path / ("j" * 300 if there == "no possible name" else "j")
    match there:
        case "a directory":
            path.mkdir()
        case "a circle of links":
            path.symlink_to(path)
    told = run_command(*command, path)
    assert (told.status, told.out) == (2, "")
    assert f"{path}: " in told.err
    assert "give the path of a " in told.err
    assert "--state-dir" not in told.err


@pytest.mark.anyio
async def test_a_supervisor_that_runs(tmp_path: Path) -> None:
    """The replayed records of a supervisor that still runs agree with its journal's rows."""
    async with open_supervisor(tmp_path / "state", settings=SETTINGS) as sup:
        await play(sup)
        await sup.start_session("more", agent=work)
        with JournalReader(StateDir(tmp_path / "state").journal) as reader:
            replay = Replay(reader.entities(), reader.effects(), last_seq=reader.last_seq)
            for record in reader.events():
                replay.replay(record)
        replay.finish()
        assert (replay.differences, replay.violations) == ([], [])


@pytest.mark.anyio
async def test_a_supervisor_that_died(tmp_path: Path) -> None:
    """``replay`` finds no difference in the journal of a killed supervisor, neither before nor after recovery."""
    async with open_supervisor(tmp_path / "state", settings=SETTINGS) as sup, anyio.create_task_group() as group:
        session = await sup.start_session("s", agent=work)
        group.start_soon(session.run, "hang")
        await _until_open(sup, "s:t1:c1")
        dead = Path(shutil.copytree(tmp_path / "state", tmp_path / "dead", ignore=NO_SOCKET))
        await session.abort()
    assert run_command("replay", dead).status == 0
    async with open_supervisor(dead, settings=SETTINGS):
        pass
    assert run_command("replay", dead).status == 0
    assert run_command("validate", dead).status == 0


@pytest.mark.parametrize("scenario", SCENARIOS[::3])
def test_simulated_runs_replay(scenario: str) -> None:
    """The records of a simulated run replay to the entity rows of its journal, with state, data, parents and ends."""
    store = simulated_journal(scenario, 7)
    records = store.log.after(0, 1_000_000)
    replay = Replay(store.entities.values())
    for record in records:
        replay.replay(record)
    replay.finish()
    assert (replay.differences, replay.violations) == ([], [])
    assert what_if(records).parts_at is None


# ------------------------------------------------------------------------------------------------------- what differs
def test_a_tampered_state(copy: Path) -> None:
    """A record whose state was changed to one that its table does not allow is reported as a violation."""
    record = the(events(copy), "SessionStarted", "lead")
    change(copy, "UPDATE events SET to_status = 'Interrupting' WHERE seq = ?", record.seq)
    for command in ("replay", "validate"):
        told = run_command(command, copy)
        assert told.status == 1
        assert f"record {record.seq}: legal: lead: SessionStarted takes it from Spawning to Running" in told.out
    found = run_command("replay", copy, "--json").json["violations"]
    assert [(one["invariant"], one["seq"]) for one in found[:2]] == [("chain", record.seq), ("legal", record.seq)]
    assert [one["invariant"] for one in run_command("validate", copy, "--json").json["report"]["violations"]] == [
        one["invariant"] for one in found
    ]


@pytest.mark.parametrize(
    ("statement", "field"),
    [
        ("UPDATE entities SET state = 'Running' WHERE id = 'lead'", "state"),
        ("UPDATE entities SET parent_id = NULL WHERE id = 'lead/a'", "parent"),
        ("UPDATE entities SET ended = 0 WHERE id = 'lead'", "ended"),
        ("UPDATE entities SET data = CAST(replace(data, 'broke', 'brake') AS BLOB) WHERE id = 'poor'", "data"),
        ("UPDATE entities SET entity_seq = entity_seq + 9 WHERE id = 'lead'", "records"),
        ("UPDATE effects SET payload = x'7b7d' WHERE rowid = 1", "effect"),
        ("DELETE FROM effects WHERE rowid = 1", "effect"),
        ("INSERT INTO effects VALUES ('1.7', 'lead', 1, x'7b7d', 1)", "effect"),
    ],
)
def test_a_tampered_row(copy: Path, statement: str, field: str) -> None:
    """An entity or effect row that was changed is reported as exactly one difference, with the field."""
    change(copy, statement)
    told = run_command("replay", copy, "--json")
    assert told.status == 1
    assert [one["field"] for one in told.json["differences"]] == [field]
    assert f": {field}: the journal has " in run_command("replay", copy).out


def test_a_row_counts_the_records_of_its_log(copy: Path) -> None:
    """A row that counts more records than its entity has is reported as a difference with both numbers."""
    change(copy, "UPDATE entities SET entity_seq = entity_seq + 9 WHERE id = 'lead'")
    [found] = run_command("replay", copy, "--json").json["differences"]
    assert found["recorded"] == f"{int(found['replayed']) + 9} of its log"


@pytest.mark.parametrize("field", ["$.cooled", "$.limits.waiting_max"])
def test_a_field_that_an_earlier_version_did_not_write(copy: Path, field: str) -> None:
    """A row that lacks a field, also a nested one, as if an earlier version had written it, is no difference."""
    change(copy, f"UPDATE entities SET data = CAST(json_remove(data, '{field}') AS BLOB) WHERE id = 'lead'")
    assert run_command("replay", copy, "--json").json["differences"] == []


def test_a_missing_record(copy: Path) -> None:
    """A deleted record is reported as a gap in the numbers, and by violations of the entity's later records."""
    record = the(events(copy), "WorktreeReady", "lead")
    change(copy, "DELETE FROM events WHERE seq = ?", record.seq)
    found = run_command("replay", copy, "--json").json["violations"]
    assert {one["invariant"] for one in found} >= {"legal"}
    assert (found[0]["invariant"], found[0]["seq"]) == ("chain", record.seq + 1)
    assert found[1]["message"] == f"record {record.seq + 1} comes after {record.seq - 1}"


@pytest.mark.parametrize("command", ["replay", "validate"])
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE events SET actor = 'mallory' WHERE seq = 3", "record 3: chain: journal: it is not what was written"),
        ("UPDATE events SET chain = zeroblob(16) WHERE seq = 4", "record 4: chain: journal: it is not what was"),
        ("UPDATE entities SET changed_at = 1.5 WHERE id = 'lead'", "at the end: chain: lead: it is not as its last"),
        ("DELETE FROM entities WHERE id = 'lead'", " records more than the entities have"),
        ("UPDATE snapshot SET records = records + 1", "is not what its snapshot says"),
    ],
)
def test_what_breaks_no_law_and_was_not_written(copy: Path, command: str, statement: str, words: str) -> None:
    """A changed row that violates no invariant is found by its hash, and the journal file is not written."""
    change(copy, statement)
    before = StateDir(copy).journal.read_bytes()
    told = run_command(command, copy)
    assert (told.status, words in told.out) == (1, True)
    assert StateDir(copy).journal.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE events SET metadata = '{' WHERE seq = 3", "record 3"),
        ("UPDATE events SET actor = CAST(x'f0' AS TEXT) WHERE seq = 3", "'utf-8' codec"),
        ("UPDATE entities SET state = CAST(x'f0' AS TEXT) WHERE id = 'lead'", "'utf-8' codec"),
        ("DROP TABLE effects", "no such table: effects"),
    ],
)
def test_what_cannot_be_read_on(copy: Path, statement: str, words: str) -> None:
    """Metadata that are not JSON, a text that is not UTF-8 and a missing table are reported as damage, without a
    traceback."""
    with closing(apsw.Connection(str(StateDir(copy).journal))) as db:
        db.execute(statement)
    for command in ("replay", "validate"):
        told = run_command(command, copy)
        assert told.status == 1
        assert f"journal.db is damaged ({words}" in told.out + told.err
        assert "Traceback" not in told.err
    told = run_command("journal", "check", copy)
    assert told.status == 1
    assert f"journal.db: is damaged ({words}" in told.out


@pytest.mark.parametrize(("held", "words"), [(b"", "is not a journal"), (bytes(4096), "is not a journal")])
def test_what_only_has_the_name_is_no_journal(tmp_path: Path, held: bytes, words: str) -> None:
    """An empty file, and a file of zeros, named journal.db, are rejected with exit status 2."""
    path = tmp_path / "journal.db"
    path.write_bytes(held)
    for command in (["validate"], ["replay"], ["journal", "check"]):
        told = run_command(*command, path)
        assert (told.status, told.out) == (2, "")
        assert words in told.err


def test_a_journal_without_records_says_so(tmp_path: Path) -> None:
    """A journal without records is reported as valid, with the remark that it holds no record."""
    state = StateDir.open(tmp_path / "state")
    open_database(state.journal, None).close()
    assert run_command("validate", state.root).out == f"{state.journal}: valid, but it holds no record\n"
    assert run_command("journal", "check", state.root).out == f"{state.journal}: sound, but it holds no record\n"


def test_a_forged_event_does_not_break_the_reader(copy: Path) -> None:
    """A record whose metadata name an unknown call is reported as a violation, and the reader does not fail."""
    record = the(events(copy), "tool_completed", "lead:t1")
    change(
        copy, "UPDATE events SET metadata = ? WHERE seq = ?", '{"call_id": "ghost", "outcome": "aborted"}', record.seq
    )
    told = run_command("replay", copy)
    assert told.status == 1
    assert f"record {record.seq}: legal: lead:t1:" in told.out


@pytest.mark.parametrize("command", [["replay"], ["validate"], ["journal", "check"], ["journal", "export"]])
@pytest.mark.parametrize(("begin", "status"), [(b"", 1), (b"no database file", 2)])
def test_a_torn_journal(copy: Path, command: list[str], begin: bytes, status: int) -> None:
    """A truncated journal gives exit status 1; a file that is no database, but has the journal's name, gives 2."""
    journal = StateDir(copy).journal
    journal.write_bytes(begin + journal.read_bytes()[len(begin) : 5000])
    told = run_command(*command, journal)
    assert told.status == status
    assert str(journal) in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["replay"], ["replay", "--at", "1"], ["validate"]])
def test_what_is_not_there(tmp_path: Path, arguments: list[str]) -> None:
    """A missing file or directory gives exit status 2 and a message with the path, and nothing is created."""
    for path in (tmp_path / "nix.db", tmp_path):
        told = run_command(*arguments, path)
        assert told.status == 2
        assert str(path) in told.err
    assert list(tmp_path.iterdir()) == []


def test_a_text_is_no_journal(ended: Path) -> None:
    """``replay`` rejects a transitions.jsonl, because it is not a journal."""
    told = run_command("replay", StateDir(ended).transitions)
    assert told.status == 2
    assert "is not a journal" in told.err


# ---------------------------------------------------------------------------------------------------- as of a record
def test_the_tree_at_a_record(ended: Path) -> None:
    """``replay --at`` prints the tree of the entities and open calls as they were at that record."""
    wish = the(events(ended), "AbortRecord", "lead/a:t1")
    (lead,) = run_command("replay", ended, "--at", wish.seq, "--json").json
    below = {one["id"]: one for one in lead["children"]}
    assert {"lead/a", "lead/b", "lead:a1"} == set(below)
    (turn,) = [one for one in below["lead/a"]["children"] if one["kind"] == "turn"]
    assert (turn["state"], [one["id"] for one in turn["children"]]) == ("TOOL_USE", ["lead/a:t1:c1"])
    assert '"a call that hangs"' in run_command("replay", ended, "--at", wish.seq).out
    assert "poor" not in run_command("replay", ended, "--at", wish.seq).out


def test_the_tree_at_the_last_record(ended: Path) -> None:
    """``replay --at`` with the last record prints the same tree as ``tree``."""
    records = events(ended)
    replay = Replay()
    for record in records:
        replay.replay(record)
    with JournalReader(StateDir(ended).journal) as reader:
        assert tree(replay.rows()) == tree(reader.entities())
    kept = run_command("tree", "--state-dir", ended, "--json").json
    assert run_command("replay", ended, "--at", len(records), "--json").json == kept


def test_the_tree_of_a_plan_that_has_ended(tmp_path: Path) -> None:
    """In the replayed tree of a plan that has ended the task is below its workstream, as in the tree of the journal."""

    async def run() -> None:
        agents = {"sh": AgentConfig(adapter="command", command=("true",))}
        plan = Plan(agents=agents, tasks=(TaskConfig(id="t", agent="sh"),))
        async with open_supervisor(tmp_path / "state", agents=agents, workdir=tmp_path) as sup:
            await run_plan(sup, plan)

    anyio.run(run)
    kept = run_command("tree", "--state-dir", tmp_path / "state", "--json").json
    assert [one["id"] for one in kept] == ["r1", "t"]
    assert run_command("replay", tmp_path / "state", "--at", len(events(tmp_path / "state")), "--json").json == kept


@pytest.mark.parametrize("at", [0, -1, 1_000_000])
def test_a_record_that_is_none(ended: Path, at: int) -> None:
    """``replay --at`` with a number of no record gives exit status 2 and a message with the valid range."""
    told = run_command("replay", ended, "--at", at)
    assert told.status == 2
    assert f"has no record {at}; give 1 to {len(events(ended))}" in told.err


# ---------------------------------------------------------------------------------------------- under other policies
def test_an_abort_that_would_have_crossed(ended: Path) -> None:
    """With the policy edge tool_to_sibling the abort would have ended the sibling too: ``replay`` names the sibling,
    and the abort's record as the first difference."""
    wish = the(events(ended), "AbortRecord", "lead/a:t1")
    told = run_command("replay", ended, "--abort-policy", "tool_to_sibling=true", "--json")
    assert told.status == 0
    found = told.json
    assert (found["parts_at"], found["ended"], found["lived"]) == (wish.seq, ["lead/b"], [])
    assert found["aborts"][0]["would_end"] == ["lead/b"]
    text = run_command("replay", ended, "--abort-policy", "tool_to_sibling=yes").out
    assert text.startswith(f"the runs differ from record {wish.seq} of ")
    assert "  would have ended lead/b" in text.splitlines()


def test_an_abort_that_would_have_gone_all_the_way(ended: Path) -> None:
    """With both policy edges one abort would have ended sibling and parent too, and the later abort ends nothing
    more."""
    outcome = what_if(events(ended), edges={"tool_to_sibling": True, "sibling_to_session": True})
    assert set(outcome.ended) == {"lead", "lead/a", "lead/b"}
    [first] = outcome.aborts
    assert set(first.would_end) == {"lead", "lead/a", "lead/b"}


def test_an_abort_that_would_not_have_crossed(tmp_path: Path) -> None:
    """Without a policy edge that a recorded abort crossed, the sibling that it ended would have lived on."""

    async def run() -> None:
        policy = AbortPolicy(tool_to_sibling=True)
        async with open_supervisor(tmp_path / "state", settings=SETTINGS) as sup, anyio.create_task_group() as group:
            lead = await sup.start_session("lead", agent=work, policy=policy)
            for name in ("a", "b"):
                group.start_soon((await lead.start_child(name)).run, "hang")
            await _until_open(sup, "lead/a:t1:c1", "lead/b:t1:c1")
            await sup.abort("lead/a:t1:c1", AbortScope.TOOL, reason="enough")
            await lead.abort()

    anyio.run(run)
    records = events(tmp_path / "state")
    assert what_if(records).parts_at is None
    outcome = what_if(records, edges={"tool_to_sibling": False})
    assert (outcome.lived, outcome.ended) == (("lead/b",), ())
    assert outcome.parts_at == the(records, "AbortRecord", "lead/a:t1").seq


def test_giving_up_earlier(ended: Path) -> None:
    """With one error allowed, the session would have given up at its first failure, and a launch would have been
    saved."""
    first = the(events(ended), "SessionExited", "poor")
    found = run_command("replay", ended, "--restart-policy", "max_total_errors=1", "--json").json
    assert (found["parts_at"], found["ended"]) == (first.seq, ["poor"])
    assert (found["sessions"][0]["would"], found["launches_spent"]) == ("give_up", 0)
    assert found["restart_policy"] == {"max_total_errors": 1}
    assert "poor would have given up (1 errors in a row, 1 in all)" in (
        run_command("replay", ended, "--restart-policy", "max_total_errors=1").out
    )


def test_giving_up_later(ended: Path) -> None:
    """With more restarts allowed, the session that was given up would have been launched again."""
    found = run_command("replay", ended, "--restart-policy", "restarts_max=9, restarts_within_s=30", "--json").json
    assert (found["lived"], found["ended"], found["launches_spent"]) == (["poor"], [], 1)
    assert found["waited_s"] == found["would_wait_s"]


def test_waiting_longer(ended: Path) -> None:
    """Another backoff does not change the course of the run, only the time spent waiting."""
    told = run_command("replay", ended, "--restart-policy", "backoff_base_ms=5000,backoff_cap_ms=60000")
    assert told.status == 0
    assert told.out.startswith("the runs do not differ")
    assert "backoff: 0.00 s as it was, 5.00 s as it would be" in told.out


def test_both_policies_at_once(ended: Path) -> None:
    """An abort policy and restart limits together make one other run, which differs from the first record that either
    of the two changes."""
    records = events(ended)
    outcome = what_if(records, edges={"tool_to_sibling": True}, limits={"max_total_errors": 1})
    assert set(outcome.ended) == {"lead/b", "poor"}
    assert outcome.parts_at == outcome.aborts[0].seq < outcome.sessions[0].seq


def test_what_comes_below_the_gone_is_saved() -> None:
    """If a session would have ended, the later launches of its agent and of its children count as saved."""
    log = Log()
    log.running("s", max_total_errors=2)
    log.fail("s", "s:t1")
    log.exit("s:a1")
    log.open_turn("s", log.tell("s", "BackoffElapsed", at=200.0))
    log.launch("s", "s:a2")
    log.running("s/a")
    outcome: Outcome = what_if(log.records, limits={"max_consecutive_errors": 1})
    assert (outcome.ended, outcome.launches, outcome.launches_saved) == (("s", "s/a"), 3, 2)


def test_who_would_be_abandoned_lives_on() -> None:
    """A child with the cancel mode abandon would live on after its parent's end, and after an abort of the parent."""
    log = Log()
    log.running("s")
    for child in ("s/free", "s/tied", "s/tied/free"):
        log.running(child)
    for child in ("s/free", "s/tied/free"):
        log.fact(child, "Placed", mode="abandon", policy=None)
    log.abort("s/tied", "s/tied", "sibling")
    log.fail("s", "s:t1")
    assert what_if(log.records, limits={"max_total_errors": 1}).ended == ("s", "s/tied")
    [abort] = what_if(log.records, edges={"sibling_to_session": True}).aborts
    assert set(abort.would_end) == {"s", "s/tied"}


def test_the_loss_of_a_supervisor_is_no_restart() -> None:
    """An exit because the supervisor was lost is not counted as a restart."""
    log, reason = Log(), TransitionReason.ORPHAN_RECOVERED
    log.running("s")
    lost = {"exit": "Error", "error": "its supervisor ended", "transition_reason": reason.value}
    failed = log.tell("s:t1", "task_failed", verdict=lost)
    log.tell("s", "SessionExited", incarnation=1, verdict=lost, cause_id=failed)
    log.records[-1] = msgspec.structs.replace(log.records[-1], transition_reason=reason)
    assert log.records[-1].to_status == "CoolingDown"
    assert what_if(log.records, limits={"restarts_max": 0}).parts_at is None


@pytest.mark.anyio
async def test_what_is_tried_once_is_no_restart(tmp_path: Path) -> None:
    """Failures of requests that are tried only once are not counted as restarts."""
    async with supervising(tmp_path, settings=SETTINGS) as run:
        session = await run.sup.start_session("s", agent=work)
        for _ in range(3):
            told = await run.sup.core.requests.outcome_of(session.id, "fail", Cause(actor="host"), once=True)
            assert told.outcome == "failed"
    assert len(run.transitions("SessionExited", "s")) == 3
    assert what_if(run.events(), limits={"restarts_max": 0}).parts_at is None


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--abort-policy", "tool_to_sibling=maybe", "tool_to_sibling: 'maybe' is neither true nor false"),
        ("--abort-policy", "tool_to_world=true", "'tool_to_world' is unknown; use tool_to_sibling, sibling_to_session"),
        ("--abort-policy", "tool_to_sibling", "tool_to_sibling has no value; give tool_to_sibling=VALUE"),
        ("--abort-policy", "", "'' is unknown; use tool_to_sibling"),
        (
            "--restart-policy",
            "max_total_errors=0",
            "max_total_errors: '0' cannot be it; give a whole number, 1 to 1000000000",
        ),
        ("--restart-policy", "max_total_errors=2.5", "'2.5' cannot be it; give a whole number"),
        (
            "--restart-policy",
            "restarts_max=-1",
            "restarts_max: '-1' cannot be it; give a whole number, 0 to 1000000000",
        ),
        ("--restart-policy", "max_total_errors=" + "9" * 400, "9…' cannot be it; give a whole number, 1 to 1000000000"),
        (
            "--restart-policy",
            "max_total_errors=" + "9" * 5000,
            "9…' cannot be it; give a whole number, 1 to 1000000000",
        ),
        ("--restart-policy", "restarts_within_s=1e10", "'1e10' cannot be it; give seconds, above 0"),
        ("--restart-policy", "restarts_within_s=nan", "'nan' cannot be it; give seconds, above 0"),
        ("--restart-policy", "restarts_within_s=0", "'0' cannot be it; give seconds, above 0"),
        ("--restart-policy", "patience=1", "'patience' is unknown; use max_consecutive_errors"),
        ("--restart-policy", "restarts_max=1,restarts_max=2", "restarts_max is given twice"),
    ],
)
def test_a_policy_that_is_none(ended: Path, option: str, value: str, words: str) -> None:
    """An invalid policy option gives exit status 2 and one line with the key, the value and the values allowed."""
    told = run_command("replay", ended, option, value)
    assert (told.status, told.out) == (2, "")
    assert words in told.err
    assert len(told.err.splitlines()) == 1


def test_a_policy_and_a_record_at_once(ended: Path) -> None:
    """``--at`` together with a policy option gives exit status 2."""
    told = run_command("replay", ended, "--at", "3", "--abort-policy", "tool_to_sibling=true")
    assert told.status == 2
    assert "give one of them" in told.err


def test_only_named_fields_of_a_policy_change(ended: Path) -> None:
    """Policy limits equal to the recorded ones, or not named at all, lead to the same run as recorded."""
    limits = msgspec.to_builtins(SETTINGS.limits.value())
    same = {name: limits[name] for name in ("max_total_errors", "restarts_max", "backoff_base_ms", "backoff_cap_ms")}
    assert what_if(events(ended), limits=same, edges={"tool_to_sibling": False}).parts_at is None
