"""Aborts of real agents: the processes that each abort scope ends, the processes that it spares, receipts and records.

The decision which nodes an abort ends is tested exhaustively in tests/unit/policies; here the decision is carried out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from supervisor.embedding import runtime
from supervisor.host.api import Supervisor
from supervisor.journal.memory import MemoryJournal
from supervisor.lifecycles.types import AbortPolicy, AbortScope, NoSuchEntity
from supervisor.plans import AgentConfig
from supervisor.policies.abort_plan import Receipt
from supervisor.ports import Append, JournalError
from supervisor.runtime.entity import Refused
from supervisor.sessions import tool_calls
from supervisor.sessions.live_session import SessionPhase
from supervisor.sessions.termination import BACKGROUND_ACTOR
from supervisor.sessions.turn import NOT_ENDED
from tests.support import (
    AGENTS,
    DEADLINE_S,
    FrozenJournal,
    Gate,
    HeldPipe,
    Run,
    agent_pids,
    quick_settings,
    send_prompt,
    start_call,
    states_of,
    supervising,
    wait_for_exit,
    wait_for_record,
)

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]
TOOL, SIBLING, SESSION = AbortScope.TOOL, AbortScope.SIBLING, AbortScope.SESSION


@pytest.fixture
def roll(tmp_path: Path, nothing_left: None) -> Iterator[HeldPipe]:
    roll = HeldPipe(tmp_path)
    yield roll
    roll.close()


@pytest.fixture
def gate(tmp_path: Path, nothing_left: None) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.close()


def hold(name: str = "tool") -> str:
    """Return a shell command that reports its pid to the pipe, starts a child and a daemon that hold the pipe open, and
    goes on running."""
    daemon = "setsid sh -c 'trap \"\" TERM; sleep 1000' & setsid sleep 1000 &"
    return f"exec 9>roll; {daemon} echo {name} $$ >&9; exec sleep 1000"


def ends(receipt: Receipt) -> dict[str, str]:
    return {node.id: node.outcome for node in receipt.nodes}


def rungs(receipt: Receipt) -> dict[str, str]:
    return {node.id: node.rung for node in receipt.nodes}


def results_of(run: Run, turn_id: str) -> list[str]:
    """Return the outcomes of a turn's calls."""
    return [one.metadata["outcome"] for one in run.transitions("tool_completed", turn_id)]


# ---------------------------------------------------------------------------------------------------- TOOL
async def test_a_tool_abort_ends_one_call(tmp_path: Path, roll: HeldPipe) -> None:
    """After an abort of one call all processes of the call are gone, the call has the one result ``aborted``, and the
    turn goes on and succeeds."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, f"@run {hold()}\n@say and on")
        await roll.here(1)
        receipt = await run.sup.abort("s:t1:c1", TOOL, reason="enough", actor="ann")
        await roll.all_gone()
        result = await asked.result()
        assert result.outcome == "completed"
        assert result.text.endswith("and on\n")
    assert ends(receipt) == {"s:t1:c1": "ended"}
    assert (receipt.already_ended, receipt.survivors, len(receipt.processes)) == (False, 0, 1)
    assert receipt.processes[0].owner == "s:t1:c1"
    assert receipt.processes[0].ended_by in ("terminate", "kill")
    assert receipt.killed_at is not None
    assert receipt.recorded_at is not None
    assert receipt.killed_at <= receipt.recorded_at
    assert results_of(run, "s:t1") == ["aborted"]
    assert "Interrupting" not in states_of(run.events(), "s")
    assert states_of(run.events(), "s:t1")[-1] == "REAPED"


async def test_a_tool_abort_leaves_the_other_calls(tmp_path: Path, roll: HeldPipe) -> None:
    """An abort of one of three parallel calls ends that call only; the turn stays in TOOL_USE, and each call has one
    result."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        command = "exec 9>roll; echo tool $$ >&9; test -e go || while ! test -e go; do sleep 0.01; done"
        asked = send_prompt(group, session, f"@tools 3 {command}")
        await roll.here(3)
        await wait_for_record(run.sup, "ProcessStarted", "s:t1", number=3, outcome="fact")
        await run.sup.abort("s:t1:c2", TOOL, reason="enough")
        assert run.sup.core.registry.state_of("s:t1") == "TOOL_USE"
        (tmp_path / "go").touch()
        assert (await asked.result()).outcome == "completed"
        await roll.all_gone()
    assert sorted(results_of(run, "s:t1")) == ["aborted", "completed", "completed"]


THINK = "@pause 0.05\n"
"""Script line for a pause before a call, since the kernel dates the birth of processes in hundredths of a second."""


async def test_a_tool_abort_ends_the_processes_of_a_call_that_the_agent_runs(tmp_path: Path, roll: HeldPipe) -> None:
    """An abort of a call that the agent itself runs kills all processes that the call has started, and the turn goes
    on."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, f"{THINK}@local {hold()}\n@say and on")
        await roll.here(1)
        await wait_for_record(run.sup, "tool_started", "s:t1")  # the agent began it without asking
        receipt = await run.sup.abort("s:t1:c1", TOOL, reason="enough")
        await roll.all_gone()
        assert (await asked.result()).text.endswith("and on\n")
    [node] = receipt.nodes
    assert (node.outcome, node.rung, node.how) == ("ended", "kill", tool_calls.KILLED)
    assert {fate.owner for fate in receipt.processes} == {"s:t1:c1"}
    assert receipt.survivors == 0
    assert results_of(run, "s:t1") == ["aborted"]
    assert "Interrupting" not in states_of(run.events(), "s")


@pytest.mark.parametrize("output", ["", "exec >/dev/null; "])
async def test_a_tool_abort_that_the_agent_carries_out(tmp_path: Path, roll: HeldPipe, output: str) -> None:
    """An agent that can end one call is requested to end the aborted call. Remaining processes of the call are killed:
    before the end of the call if the call waits for them (a daemon holds its output), else after the end."""
    agents = {"scripted": AgentConfig(adapter="scripted", env={"SCRIPTED_ENDS_CALLS": "1"})}
    async with supervising(tmp_path, agents=agents) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, f"{THINK}@local {output}{hold()}\n@say and on")
        await roll.here(1)
        await wait_for_record(run.sup, "tool_started", "s:t1")
        receipt = await run.sup.abort("s:t1:c1", TOOL, reason="enough")
        await roll.all_gone()
        assert (await asked.result()).text.endswith("and on\n")
    [node] = receipt.nodes
    assert (node.outcome, node.how) == ("ended", tool_calls.ASKED)
    assert results_of(run, "s:t1") == ["aborted"]
    assert len([one for one in run.events() if one.event == "CallProcessesKilled"]) == 1


async def test_a_tool_abort_of_a_call_without_processes_of_its_own(tmp_path: Path) -> None:
    """An abort of a call without processes interrupts the turn: the same agent process is prompted again, and the
    receipt says why."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@inside call\n@say never")
        await wait_for_record(run.sup, "tool_started", "s:t1")
        receipt = await run.sup.abort("s:t1:c1", TOOL, reason="enough")
        assert (await asked.result()).text.startswith("understood: ")
    [node] = receipt.nodes
    assert (node.outcome, node.rung) == ("ended", "request")
    assert node.how == f"{NOT_ENDED}: no process of it was found"
    [record] = [one for one in run.events() if one.event == "TurnInterrupted"]
    assert record.metadata == {"call": "s:t1:c1", "why": node.how}
    assert results_of(run, "s:t1") == ["aborted"]
    assert len(agent_pids(run.events(), "s")) == 1
    assert states_of(run.events(), "s").count("Running") == 2


@pytest.mark.parametrize(
    ("grace_s", "how"), [(0.1, {}), (1000.0, {"now": True}), (1000.0, {"within_s": 0.1})], ids=["", "now", "within"]
)
async def test_a_tool_abort_of_a_call_that_a_deaf_agent_runs(
    tmp_path: Path, grace_s: float, how: dict[str, Any]
) -> None:
    """An agent that ignores the interrupt for an aborted call is killed after the grace period, or within the time that
    the abort has; the result of the call is ``unknown``."""
    settings = quick_settings(grace_s=grace_s)
    async with supervising(tmp_path, settings=settings) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@deaf\n@inside call")
        await wait_for_record(run.sup, "tool_started", "s:t1")
        receipt = await run.sup.abort("s:t1:c1", TOOL, reason="enough", **how)
        assert (await asked.result()).text.startswith("understood: ")
    assert results_of(run, "s:t1") == ["unknown"]
    assert rungs(receipt) == {"s:t1:c1": "kill"}
    assert [(fate.owner, fate.ended_by, fate.survivors) for fate in receipt.processes] == [("s:a1", "kill", 0)]


async def test_a_tool_abort_of_a_delegating_call(tmp_path: Path, roll: HeldPipe) -> None:
    """An abort of a delegating call ends the child session at the request stage, then the call; the parent's turn goes
    on."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, f"@agent kid\n  @run {hold()}\n@say and on")
        await roll.here(1)
        receipt = await run.sup.abort("s:t1:c1", TOOL, reason="enough")
        await roll.all_gone()
        result = await asked.result()
        assert result.outcome == "completed"
        assert result.text.startswith("kid aborted: ")
        assert result.text.endswith("and on\n")
    assert ends(receipt) == {"s/kid": "ended", "s:t1:c1": "ended"}
    assert rungs(receipt)["s/kid"] == "request"
    assert states_of(run.events(), "s/kid")[-1] == "Stopped"
    [stop] = run.transitions("OperatorStop", "s/kid")
    assert (stop.abort_reason, stop.abort_id) == ("parent_aborted", receipt.abort_id)
    assert results_of(run, "s:t1") == ["aborted"]


# ---------------------------------------------------------------------------------------------------- SESSION
FAMILY = """\
@agent a
  @agent aa
    @run {hold}
@agent b
  @run {hold}
@agent c
  @wait go
  @say c is done
@say the lead is done
"""


async def family(run: Run, group: anyio.abc.TaskGroup, roll: HeldPipe, policy: AbortPolicy | None = None) -> None:
    """Start a lead session with the children a, b and c, and a child aa of a; aa and b hold the pipe open, c waits for
    a file."""
    prompt = FAMILY.replace("{hold}", hold())
    session = await run.sup.start_session("lead", agent="scripted", policy=policy)
    run.asked = send_prompt(group, session, prompt)
    await roll.here(2)
    await wait_for_record(run.sup, "SessionStarted", "lead/c")


async def test_a_session_abort_reaches_all_descendants(tmp_path: Path, roll: HeldPipe) -> None:
    """A SESSION abort of the root ends all descendants with all their processes, each child before its parent; other
    sessions go on."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        other = await run.sup.start_session("other", agent="scripted")
        others = send_prompt(group, other, "@wait go\n@say untouched")
        await wait_for_record(run.sup, "SessionStarted", "other")
        await family(run, group, roll)
        receipt = await run.sup.abort("lead", SESSION, reason="all of it")
        await roll.all_gone()
        result = await run.asked.result()
        assert (result.outcome, result.error) == ("aborted", "all of it")
        await wait_for_exit(
            *[pid for name in ("lead", "lead/a", "lead/a/aa", "lead/b") for pid in agent_pids(run.events(), name)]
        )
        (tmp_path / "go").touch()
        assert (await others.result()).text == "untouched\n"
    everybody = {"lead", "lead/a", "lead/a/aa", "lead/b", "lead/c"}
    assert ends(receipt) == dict.fromkeys(everybody, "ended")
    assert receipt.survivors == 0
    endings = [one.entity_id for one in run.transitions("Ended") if one.entity_id in everybody]
    assert endings.index("lead/a/aa") < endings.index("lead/a") < endings.index("lead") == len(endings) - 1
    assert {one.abort_id for one in run.transitions("OperatorStop") if one.entity_id in everybody} == {receipt.abort_id}


async def test_an_agent_that_ignores_signals_is_killed(tmp_path: Path, roll: HeldPipe) -> None:
    """The termination of an agent that ignores signals, with such a daemon, reaches the kill stage, and no process is
    left."""
    async with supervising(tmp_path, settings=quick_settings(ladder={"request_s": 0.1})) as run:
        async with anyio.create_task_group() as group:
            session = await run.sup.start_session("s", agent="scripted")
            asked = send_prompt(
                group, session, "@deaf\n@daemon\n@local exec 9>roll; echo tool $$ >&9; trap '' TERM; sleep 1000"
            )
            await roll.here(1)
            receipt = await session.abort(reason="hung")
            await roll.all_gone()
            assert (await asked.result()).outcome == "aborted"
    assert rungs(receipt) == {"s": "kill"}
    [fate] = receipt.processes
    assert (fate.owner, fate.ended_by, fate.survivors) == ("s:a1", "kill", 0)
    assert fate.killed >= 2
    [exited] = run.transitions("agent_exited", "s:a1")
    assert (exited.metadata["status"], exited.metadata["survivors"]) == (-9, 0)


async def test_a_second_abort_at_once_jumps_to_kill(tmp_path: Path, roll: HeldPipe) -> None:
    """A second abort with ``now`` moves a termination that would take ten minutes to the kill stage."""
    slow = quick_settings(ladder={"request_s": 600.0, "cancel_s": 600.0})
    async with supervising(tmp_path, settings=slow) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        send_prompt(group, session, "@deaf\n@agent kid\n  @deaf\n  @local exec 9>roll; echo tool $$ >&9; sleep 1000")
        await roll.here(1)
        receipts: list[Receipt] = []

        async def politely(reason: str) -> None:
            receipts.append(await session.abort(reason=reason))

        group.start_soon(politely, "please")
        await wait_for_record(run.sup, "OperatorStop", "s")
        group.start_soon(politely, "me too")
        hurried = await run.sup.abort("s", SESSION, reason="now", now=True)
        await roll.all_gone()
    assert rungs(hurried) == {"s/kid": "kill", "s": "kill"}
    [first] = [one for one in receipts if not one.already_ended]
    assert rungs(first) == rungs(hurried)
    [second] = [one for one in receipts if one.already_ended]
    assert (second.nodes, second.survivors) == ((), 0)
    assert {one.reason for one in run.events("s") if one.event == "AbortRecord"} == {"please", "now"}


async def test_an_abort_at_once_starts_at_kill(tmp_path: Path, roll: HeldPipe) -> None:
    """A first abort with ``now`` starts at the kill stage."""
    slow = quick_settings(ladder={"request_s": 600.0, "cancel_s": 600.0})
    async with supervising(tmp_path, settings=slow) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, f"@deaf\n@run {hold()}")
        await roll.here(1)
        receipt = await run.sup.abort("s", SESSION, reason="now", now=True)
        await roll.all_gone()
        assert (await asked.result()).outcome == "aborted"
    assert rungs(receipt) == {"s": "kill"}


async def test_an_abort_before_the_agent_is_ready(tmp_path: Path, gate: Gate) -> None:
    """An abort of a session in Spawning gives up the launch and ends the launched process; the prompt gets the result
    ``aborted``."""
    async with supervising(tmp_path, agents={"slow": gate.agent()}) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="slow")
        asked = send_prompt(group, session, "@say hi")
        await wait_for_record(run.sup, "AgentLaunched", "s")
        [pid] = agent_pids(run.events(), "s")
        receipt = await session.abort(reason="too slow")
        await wait_for_exit(pid)
        assert (await asked.result())[:3] == ("aborted", "too slow", "")
    assert ends(receipt) == {"s": "ended"}
    assert states_of(run.events(), "s:t1") == ["IDLE", "CLAIMING", "SPAWNING", "FAILED", "REAPED"]


@pytest.mark.parametrize("state", ["Initializing", "BuildingPrompt", "Spawning", "Running", "Interrupting"])
async def test_an_abort_at_any_moment_of_the_start(tmp_path: Path, state: str) -> None:
    """An abort in any state of a starting session ends the session; the prompt gets the result ``aborted``, and no
    event is refused."""
    async with supervising(tmp_path) as run:
        for number in range(4):
            async with anyio.create_task_group() as group:
                session = await run.sup.start_session(f"s{number}", agent="scripted")
                asked = send_prompt(group, session, "@run sleep 1000")
                await reached(run, session.id, state)
                for _ in range(3 * number):
                    await anyio.lowlevel.checkpoint()
                receipt = await session.abort(reason="no")
                assert (await asked.result()).outcome == "aborted"
                assert ends(receipt) == {session.id: "ended"}


async def reached(run: Run, session_id: str, state: str) -> None:
    """Wait until the session is in the state *state*; the record of the state may not be durable yet."""
    registry = run.sup.core.registry
    while registry.entity(session_id).data.current is None or registry.state_of(session_id) != state:
        if run.sup.core.registry.state_of(session_id) == "Running":
            await run.sup.core.requests.send(session_id, "hm", urgent=True, sender="test")
        await anyio.lowlevel.checkpoint()


# ---------------------------------------------------------------------------------------------------- SIBLING
async def test_a_sibling_abort_spares_the_trigger_and_the_parent(tmp_path: Path, roll: HeldPipe) -> None:
    """A SIBLING abort triggered by the child c ends the sessions below and including its siblings a and b; c and the
    parent go on and succeed."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        await family(run, group, roll)
        receipt = await run.sup.abort("lead/c", SIBLING, reason="c found it")
        await roll.all_gone()
        assert run.sup.core.registry.state_of("lead/c") == "Running"
        (tmp_path / "go").touch()
        result = await run.asked.result()
        assert result.outcome == "completed"
        assert result.text.endswith("c completed: c is done\nthe lead is done\n")
    assert set(ends(receipt)) == {"lead/a/aa", "lead/a", "lead/b"}
    for child in ("lead/a", "lead/b"):
        [stop] = run.transitions("OperatorStop", child)
        assert (stop.abort_reason, stop.transition_reason) == ("sibling_aborted", "sibling_aborted")


# ---------------------------------------------------------------------------------------------------- what is refused
async def test_an_abort_of_an_ended_target_is_answered(tmp_path: Path) -> None:
    """An abort of an ended session or call gives a receipt with ``already_ended``, and records nothing."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        await session.run("@run true")
        before = len(run.events())
        over = await run.sup.abort("s:t1:c1", TOOL, reason="late")
        assert (over.already_ended, over.nodes) == (True, ())
        assert len(run.events()) == before
        await session.close()
        for scope in (SESSION, TOOL):
            assert (await session.abort(scope)).already_ended


@pytest.mark.parametrize("number", ["01", "1" * 5000, "\N{SUPERSCRIPT ONE}"], ids=["zero", "long", "other"])
async def test_a_call_id_has_one_spelling(tmp_path: Path, number: str) -> None:
    """A call id whose number has leading zeros, too many digits or digits that are not ASCII is refused as unknown."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        await session.run("@run true")
        with pytest.raises(NoSuchEntity, match="nothing alive has the id 's:t1:c"):
            await run.sup.abort(f"s:t1:c{number}", TOOL)


async def test_a_plan_for_another_tree_is_refused(tmp_path: Path) -> None:
    """An abort plan made before another child session was started is refused, and no session ends."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        plan = run.sup.plan_abort("s", SESSION)
        await session.start_child("kid")
        with pytest.raises(Refused, match="the tree has changed since"):
            await session.abort(plan_id=plan.id)
        assert run.sup.core.registry.state_of("s") == "Initializing"
        plan = run.sup.plan_abort("s", SESSION)
        assert [node.id for node in plan.nodes] == ["s/kid", "s"]
        assert set(ends(await session.abort(plan_id=plan.id, reason="as planned"))) == {"s", "s/kid"}


# ---------------------------------------------------------------------------------------------------- the disk
async def test_an_abort_does_not_wait_for_a_disk(tmp_path: Path, roll: HeldPipe) -> None:
    """While writes to the journal hang, an abort ends all processes of a family of sessions; the receipt is returned
    when the records are durable."""
    settings = quick_settings(ladder={"request_s": 0.3})
    async with (
        supervising(tmp_path, journal=FrozenJournal, settings=settings) as run,
        anyio.create_task_group() as group,
    ):
        journal = run.disk
        await family(run, group, roll)
        durable = len(run.events())
        journal.freeze()
        receipts = start_call(group, run.sup.abort, "lead", SESSION, reason="the disk hangs")
        await roll.all_gone()
        await wait_for_exit(*agent_pids(run.events(), "lead"))
        await run.sup.core.registry.sessions["lead"].reached(SessionPhase.FINISHED).wait()
        assert (len(run.events()), receipts) == (durable, [])
        journal.thaw.set()
        assert (await run.asked.result()).outcome == "aborted"
    [receipt] = receipts
    assert set(ends(receipt).values()) == {"ended"}
    assert set(rungs(receipt).values()) <= {"request", "cancel", "terminate", "kill"}
    assert receipt.killed_at is not None
    assert receipt.recorded_at is not None
    assert receipt.killed_at < receipt.recorded_at


@pytest.mark.parametrize("event", ["task_claimed", "PromptReady", "AgentLaunched", "SessionStarted", "tool_started"])
async def test_an_abort_while_a_record_is_on_its_way(tmp_path: Path, event: str) -> None:
    """An abort that comes while the write of any one record hangs ends the session, and the prompt gets the result
    ``aborted``."""

    async with supervising(tmp_path, freeze_at=event) as run, anyio.create_task_group() as group:
        disk = run.disk
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@run sleep 1000")
        await disk.frozen.wait()
        receipts = start_call(group, session.abort, reason="no")
        while session.state != "Stopped":
            await anyio.lowlevel.checkpoint()
        disk.thaw.set()
        assert (await asked.result()).outcome == "aborted"
    assert [ends(one) for one in receipts] == [{"s": "ended"}]


async def test_a_receipt_does_not_wait_for_ever(tmp_path: Path, roll: HeldPipe) -> None:
    """An abort whose records are not durable by its deadline returns a receipt without ``recorded_at``."""
    settings = quick_settings(ladder={"request_s": 0.2, "cancel_s": 0.2, "kill_s": 0.2})
    async with supervising(tmp_path, journal=FrozenJournal, settings=settings) as run:
        async with anyio.create_task_group() as group:
            run.sup.core.aborts.slack_s = 0.4
            journal = run.disk
            session = await run.sup.start_session("s", agent="scripted")
            asked = send_prompt(group, session, f"@run {hold()}")
            await roll.here(1)
            journal.freeze()
            receipt = await session.abort(reason="the disk hangs")
            assert (ends(receipt), receipt.survivors) == ({"s": "ended"}, 0)
            assert receipt.killed_at is not None
            assert receipt.recorded_at is None
            await roll.all_gone()
            journal.thaw.set()
            assert (await asked.result()).outcome == "aborted"


class BrokenJournal(MemoryJournal):
    """Journal whose appends fail once ``broken`` is set."""

    broken = False

    async def append(self, batch: Sequence[Append]) -> None:
        if self.broken:
            raise JournalError("the disk is full")
        await super().append(batch)


async def test_a_broken_disk_ends_everything(tmp_path: Path, roll: HeldPipe) -> None:
    """When the journal cannot be written, every process ends, every prompt gets a result, and the end of the ``async
    with`` block raises the error."""
    with pytest.raises(JournalError, match="the disk is full"):
        async with supervising(tmp_path, journal=BrokenJournal) as run, anyio.create_task_group() as group:
            session = await run.sup.start_session("s", agent="scripted")
            asked = send_prompt(group, session, f"@deaf\n@run {hold()}")
            await roll.here(1)
            journal = run.sup.core.journal
            assert isinstance(journal, BrokenJournal)
            journal.broken = True
            with pytest.raises((JournalError, Refused)):  # the second, if its agent's word broke it before ours
                await session.send("hello")
            result = await asked.result()
            assert (result.outcome, "the disk is full" in result.error) == ("failed", True)
            with anyio.fail_after(DEADLINE_S):
                assert await session.result() in (result, None)  # for who asks later, as long as it is there
            await roll.all_gone()
            with pytest.raises(Refused):
                await run.sup.start_session("another", agent="scripted")


# ---------------------------------------------------------------------------------------------------- leaving
async def test_leaving_in_order_finishes_what_was_asked(tmp_path: Path) -> None:
    """Leaving the block of a supervisor waits for the prompts that were sent, then ends every session."""
    async with anyio.create_task_group() as group, supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@wait go\n@say done")
        queued = send_prompt(group, session, "@say done too")
        await wait_for_record(run.sup, "TurnRequested", "s", number=2)
        (tmp_path / "go").touch()
    assert (await asked.result()).text == "done\n"
    assert (await queued.result()).text == "done too\n"
    [stop] = run.transitions("OperatorStop", "s")
    assert (stop.metadata["outcome"], stop.reason) == ("completed", "the supervisor is closing")


async def test_a_drain_has_a_deadline(tmp_path: Path, roll: HeldPipe) -> None:
    """A prompt that still runs at the deadline of the drain is aborted."""
    settings = quick_settings().model_copy(update={"drain_s": 0.1})
    async with anyio.create_task_group() as group:
        async with supervising(tmp_path, settings=settings) as run:
            session = await run.sup.start_session("s", agent="scripted")
            asked = send_prompt(group, session, f"@run {hold()}")
            await roll.here(1)
        await roll.all_gone()
        assert (await asked.result()).outcome == "aborted"


class Mishap(Exception):
    """Exception that the program which embeds the supervisor raises."""


async def test_leaving_by_an_exception_aborts_everything(tmp_path: Path, roll: HeldPipe) -> None:
    """An exception in the block of a supervisor ends every session, is named as the cause, and is raised unchanged."""
    async with anyio.create_task_group() as group:
        with pytest.raises(Mishap) as caught:
            async with supervising(tmp_path) as run:
                session = await run.sup.start_session("s", agent="scripted")
                asked = send_prompt(group, session, f"@run {hold()}")
                await roll.here(1)
                raise Mishap("oops")
        await roll.all_gone()
        result = await asked.result()
    assert (result.outcome, result.error) == ("aborted", "the host left by Mishap: oops")
    assert str(caught.value) == "oops"
    [stop] = run.transitions("OperatorStop", "s")
    assert (stop.reason, stop.actor) == ("the host left by Mishap: oops", "host")


async def test_leaving_by_a_cancellation_aborts_everything(tmp_path: Path, roll: HeldPipe) -> None:
    """When the host is cancelled, leaving the block waits for the end of every session, and the journal names the
    cancellation."""
    with anyio.CancelScope() as scope:
        async with supervising(tmp_path, settings=quick_settings(ladder={"request_s": 0.3})) as run:
            session = await run.sup.start_session("s", agent="scripted")
            async with anyio.create_task_group() as group:
                send_prompt(group, session, f"@deaf\n@run {hold()}")
                await roll.here(1)
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught
    await roll.all_gone()
    [stop] = run.transitions("OperatorStop", "s")
    assert stop.reason == "the host was cancelled"


@pytest.mark.parametrize("now", [False, True])
async def test_a_stop_after_the_end_has_no_effect(now: bool) -> None:
    """A call of ``stop`` after the supervisor's end changes nothing."""
    async with runtime.open_supervisor() as sup:
        pass
    await sup.stop(now=now)
    assert not sup.core.stop_now.is_set()


@pytest.mark.parametrize("now", [False, True])
async def test_a_stop_while_the_last_actors_close_has_no_effect(now: bool) -> None:
    """A background task that calls ``stop`` while the closing supervisor cancels that task gets no error."""
    stopped = anyio.Event()

    async def lasts() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await sup.stop(now=now)
            stopped.set()

    async with runtime.open_supervisor() as sup:
        background = sup.core.registry.system.context(BACKGROUND_ACTOR)
        assert background is not None
        background.start_task(lasts)
    assert stopped.is_set()


async def test_stop_now_ends_a_block_that_drains(tmp_path: Path, roll: HeldPipe) -> None:
    """A call of ``stop(now=True)`` from another task ends the drain of a block and aborts the running prompt."""
    async with anyio.create_task_group() as group:
        draining = anyio.Event()

        async def operator(sup: Supervisor) -> None:
            await draining.wait()
            await sup.stop(now=True)

        async with supervising(tmp_path) as run:
            session = await run.sup.start_session("s", agent="scripted")
            asked = send_prompt(group, session, f"@deaf\n@run {hold()}")
            await roll.here(1)
            group.start_soon(operator, run.sup)
            draining.set()
        await roll.all_gone()
        assert (await asked.result()).outcome == "aborted"
    [stop] = run.transitions("OperatorStop", "s")
    assert (stop.reason, stop.metadata["now"]) == ("stopped at once", True)


async def test_commands_are_aborted_too(tmp_path: Path, roll: HeldPipe) -> None:
    """An abort sends SIGINT to a program of the adapter ``command``; a program that reacts to SIGINT ends at the
    request stage, with all its processes."""
    agents = {**AGENTS, "sh": AgentConfig(adapter="command", command=("sh", "-c", hold("main")))}
    async with supervising(tmp_path, agents=agents) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="sh")
        asked = send_prompt(group, session, "")
        await roll.here(1)
        receipt = await session.abort(reason="enough")
        await roll.all_gone()
        assert (await asked.result()).outcome == "aborted"
    assert (receipt.survivors, ends(receipt)) == (0, {"s": "ended"})
    assert rungs(receipt) == {"s": "request"}
