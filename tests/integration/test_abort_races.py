"""Races of aborts: two events at the same time, children started during an abort, cancel modes, and the content of each
receipt."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest

from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles.types import AbortPolicy, AbortScope, CancelMode, UnknownValue
from supervisor.policies.abort_plan import NoSiblings, Receipt
from supervisor.ports import Outcome
from supervisor.runtime.entity import Refused
from supervisor.sessions.inprocess import AgentTurn, ToolAborted
from supervisor.sessions.live_session import SessionPhase
from tests.support import Run, quick_settings, send_prompt, start_call, supervising, wait_for_record

pytestmark = pytest.mark.anyio
TOOL, SIBLING, SESSION = AbortScope.TOOL, AbortScope.SIBLING, AbortScope.SESSION


def results_of(run: Run, turn_id: str) -> list[str]:
    return [one.metadata["outcome"] for one in run.transitions("tool_completed", turn_id)]


async def sleeper(turn: AgentTurn) -> None:
    await anyio.sleep_forever()


# ------------------------------------------------------------------------------------------- one point decides
async def test_an_abort_during_a_shielded_commit_is_an_abort(tmp_path: Path) -> None:
    """The abort of a call that is in a shielded commit waits for the commit, but agent and record see ``aborted``, not
    the result."""
    begun, let_go, seen = anyio.Event(), anyio.Event(), []

    async def commit() -> str:
        with anyio.CancelScope(shield=True):
            begun.set()
            await let_go.wait()
        return "committed"

    async def agent(turn: AgentTurn) -> None:
        try:
            seen.append(await turn.call("commit", commit))
        except ToolAborted:
            seen.append("aborted")

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "go")
        await begun.wait()
        receipts = start_call(group, run.sup.abort, "s:t1:c1", TOOL, reason="no")
        await wait_for_record(run.sup, "tool_completed", "s:t1")
        let_go.set()
        assert (await asked.result()).outcome == "completed"
    assert (seen, results_of(run, "s:t1")) == (["aborted"], ["aborted"])
    assert [one.already_ended for one in receipts] == [False]


async def test_an_abort_after_the_return_is_too_late(tmp_path: Path) -> None:
    """An abort of a call that has returned gives a receipt with ``already_ended``; the call's result stands, though the
    record of the result is not yet durable."""
    seen: list[object] = []
    answers: list[Receipt] = []

    async def agent(turn: AgentTurn) -> None:
        async def work() -> str:
            return "done"

        seen.append(await turn.call("work", work))

    class Late(MemoryJournal):
        """Journal that aborts the call while the record of the call's result is being written."""

        async def append(self, batch):  # type: ignore[no-untyped-def]
            if any(one.record.event == "tool_completed" for one in batch) and not answers:
                answers.append(await run.sup.abort("s:t1:c1", TOOL, reason="no"))
            await super().append(batch)

    def journal(store: MemoryStore) -> MemoryJournal:
        return Late(store)

    async with supervising(tmp_path, journal=journal) as run:
        session = await run.sup.start_session("s", agent=agent)
        assert (await session.run("go")).outcome == "completed"
    assert (seen, results_of(run, "s:t1")) == (["done"], ["completed"])
    assert answers[0].already_ended


@pytest.mark.parametrize(("freeze_at", "outcome"), [("verify_requested", "aborted"), ("task_completed", "completed")])
async def test_a_turn_that_succeeds_as_its_session_is_aborted(tmp_path: Path, freeze_at: str, outcome: str) -> None:
    """A session abort makes a turn that is not yet verified end ``aborted``; a turn that succeeded before the abort
    stays ``completed``, and the receipt says so."""

    async def agent(turn: AgentTurn) -> str:
        return "done"

    async with supervising(tmp_path, freeze_at=freeze_at) as run, anyio.create_task_group() as group:
        disk = run.disk
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "go")
        await disk.frozen.wait()
        receipts = start_call(group, session.abort, reason="no")
        while session.state != "Stopped":
            await anyio.lowlevel.checkpoint()
        disk.thaw.set()
        assert (await asked.result()).outcome == outcome
    [receipt] = receipts
    assert not receipt.already_ended
    assert receipt.nodes[0].how == ("its turn s:t1 had succeeded" if outcome == "completed" else "")


# ----------------------------------------------------------------------------------------------- joined, refused
async def test_a_second_abort_joins_the_first(tmp_path: Path) -> None:
    """A second abort waits for the first abort, gives a receipt with ``already_ended`` and the first abort's id, and is
    recorded."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=sleeper)
        send_prompt(group, session, "go")
        await wait_for_record(run.sup, "SessionStarted", "s")
        receipts: list[Receipt] = []

        async def abort(reason: str) -> None:
            receipts.append(await session.abort(reason=reason))

        group.start_soon(abort, "first")
        while not run.sup.core.registry.sessions["s"].is_stopping:
            await anyio.lowlevel.checkpoint()
        await abort("second")
    by_answer = {one.already_ended: one for one in receipts}
    assert by_answer[True].joined == by_answer[False].abort_id
    [joined] = [one for one in run.events("s") if one.event == "AbortJoined"]
    assert (joined.reason, joined.metadata["first_reason"]) == ("second", "first")


async def test_a_second_abort_at_once_joins_when_only_records_are_missing(tmp_path: Path) -> None:
    """A second abort with ``now`` joins the first abort when the session has ended and only its records are still to be
    written."""

    async with supervising(tmp_path, freeze_at="OperatorStop") as run, anyio.create_task_group() as group:
        disk = run.disk
        session = await run.sup.start_session("s", agent=sleeper)
        send_prompt(group, session, "go")
        await wait_for_record(run.sup, "SessionStarted", "s")
        receipts: list[Receipt] = []

        async def abort(reason: str, now: bool) -> None:
            receipts.append(await run.sup.abort("s", SESSION, reason=reason, now=now))

        group.start_soon(abort, "first", False)
        await disk.frozen.wait()
        while not run.sup.core.registry.sessions["s"].reached(SessionPhase.FINISHED).is_set():
            await anyio.lowlevel.checkpoint()
        group.start_soon(abort, "second", True)
        while not run.sup.core.registry.sessions["s"].stop_request.later:  # type: ignore[union-attr]
            await anyio.lowlevel.checkpoint()
        disk.thaw.set()
    by_answer = {one.already_ended: one for one in receipts}
    assert (by_answer[True].nodes, by_answer[True].joined) == ((), by_answer[False].abort_id)
    assert [one.reason for one in run.events("s") if one.event in ("AbortRecord", "AbortJoined")] == ["first", "second"]


async def test_an_aborted_call_starts_no_child(tmp_path: Path) -> None:
    """A delegation whose call is aborted before the call's record is durable starts no child session; the agent gets
    ``ToolAborted``."""
    seen: list[object] = []

    async def agent(turn: AgentTurn) -> None:
        try:
            seen.append(await turn.delegate("kid", "go"))
        except ToolAborted:
            seen.append("aborted")

    async with supervising(tmp_path, freeze_at="tool_started") as run, anyio.create_task_group() as group:
        disk = run.disk
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "go")
        await disk.frozen.wait()
        group.start_soon(run.sup.abort, "s:t1:c1", TOOL)
        while run.sup.core.registry.entity("s:t1").data.open:
            await anyio.lowlevel.checkpoint()
        disk.thaw.set()
        assert (await asked.result()).outcome == "completed"
    assert (seen, results_of(run, "s:t1")) == (["aborted"], ["aborted"])
    assert not [one for one in run.events() if one.entity_id == "s/kid"]


async def test_an_abort_plan_is_executed_by_its_id(tmp_path: Path) -> None:
    """An abort with the id of an outdated abort plan is refused and ends nothing; an abort with the id of the current
    abort plan is carried out."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=sleeper)
        plan = run.sup.plan_abort("s", SESSION)
        await session.start_child("kid")
        with pytest.raises(Refused, match=f"plan {plan.id} would not be carried out"):
            await run.sup.abort("s", SESSION, plan_id=plan.id)
        receipt = await run.sup.abort("s", SESSION, plan_id=run.sup.plan_abort("s", SESSION).id)
        assert {one.id for one in receipt.nodes} == {"s", "s/kid"}


async def test_invalid_arguments_are_named(tmp_path: Path) -> None:
    """Each of these arguments raises an error that names the argument: an unknown scope or cancel mode, siblings of a
    root, a mode without a parent, a negative deadline."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=sleeper)
        with pytest.raises(UnknownValue, match="scope: 'world' is unknown"):
            await run.sup.abort("s", "world")
        with pytest.raises(NoSiblings, match="s is a root session"):
            await session.abort(SIBLING)
        with pytest.raises(UnknownValue, match="cancel_mode: 'later' is unknown"):
            await session.start_child("kid", cancel_mode="later")
        with pytest.raises(ValueError, match="session 't' has no parent"):
            await run.sup.start_session("t", agent=sleeper, cancel_mode="abandon")
        with pytest.raises(ValueError, match="within_s: -1 is no time to end in"):
            await run.sup.abort("s", SESSION, within_s=-1)


# ---------------------------------------------------------------------------------------------------- deadlines
async def test_a_second_abort_shortens_the_deadline(tmp_path: Path) -> None:
    """A second abort with a shorter deadline moves the termination that the first abort began from a stage of ten
    minutes to the cancel stage."""
    slow = quick_settings(ladder={"request_s": 600.0})
    let_go = anyio.Event()

    async def busy(turn: AgentTurn) -> None:
        with anyio.CancelScope(shield=True):
            await let_go.wait()

    async with supervising(tmp_path, settings=slow) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=busy)
        send_prompt(group, session, "go")
        await wait_for_record(run.sup, "SessionStarted", "s")
        receipts: list[Receipt] = []

        async def abort(within_s: float | None) -> None:
            receipts.append(await run.sup.abort("s", SESSION, reason="no", within_s=within_s))

        group.start_soon(abort, None)
        await wait_for_record(run.sup, "OperatorStop", "s")
        group.start_soon(abort, 1.2)
        context = run.sup.core.registry.system.context("s")
        assert context is not None
        while not context.scope.cancelled:
            await anyio.lowlevel.checkpoint()
        let_go.set()
    assert [one.nodes[0].rung for one in receipts if one.nodes] == ["cancel"]


# ------------------------------------------------------------------------------------------------- cancel modes
async def test_an_abandoned_child_lives_on(tmp_path: Path) -> None:
    """A child session with the cancel mode ``abandon`` survives the abort of its parent: abort plan and receipt name
    the child as spared, and a record says that the nearest living ancestor is the new parent."""
    async with supervising(tmp_path) as run:
        top = await run.sup.start_session("top", agent=sleeper)
        middle = await top.start_child("middle")
        kid = await middle.start_child("kid", cancel_mode="abandon")
        plan = run.sup.plan_abort("top/middle", SESSION)
        assert [(one.id, one.parent) for one in plan.spared] == [("top/middle/kid", "top")]
        receipt = await middle.abort(reason="no")
        assert ([one.id for one in receipt.nodes], receipt.spared) == (["top/middle"], plan.spared)
        assert kid.state == "Initializing"
        [adopted] = [one for one in run.events(kid.id) if one.event == "Adopted"]
        assert (adopted.metadata["left"], adopted.metadata["parent"]) == ("top/middle", "top")
        assert msgspec.convert(adopted.metadata["policy"], AbortPolicy) == run.sup.core.registry.sessions[kid.id].policy
        assert {one.id for one in run.sup.plan_abort("top", SESSION).nodes} == {"top"}
        await top.abort(reason="no")
        assert kid.state == "Initializing"
        assert run.sup.core.registry.sessions[kid.id].parent_id is None
        assert [one.id for one in (await kid.abort(reason="now it")).nodes] == [kid.id]


@pytest.mark.parametrize(("mode", "heard"), [(CancelMode.TRY, False), (CancelMode.WAIT_REQUESTED, True)])
async def test_a_child_that_is_not_waited_for_ends_after_its_parent(
    tmp_path: Path, mode: CancelMode, heard: bool
) -> None:
    """With the cancel modes TRY and WAIT_REQUESTED the parent ends while the child still cleans up; the receipt says
    ``requested`` for the child."""
    let_go, begun = anyio.Event(), anyio.Event()

    async def slow(turn: AgentTurn) -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await let_go.wait()

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        top = await run.sup.start_session("top", agent=sleeper)
        kid = await top.start_child("kid", agent=slow, cancel_mode=mode)
        send_prompt(group, kid, "go")
        await begun.wait()
        receipt = await top.abort(reason="no")
        assert {one.id: one.outcome for one in receipt.nodes} == {"top/kid": "requested", "top": "ended"}
        assert run.sup.core.registry.sessions["top/kid"].reached(SessionPhase.TERMINATING).is_set() or not heard
        let_go.set()
    [ended] = run.transitions("Ended", "top/kid")
    assert ended.seq > run.transitions("Ended", "top")[0].seq


async def test_an_aborted_call_releases_its_abandoned_child(tmp_path: Path) -> None:
    """After an abort of a call that waits for an abandoned child, the agent goes on at once, and the child works on to
    its end."""
    seen: list[Outcome] = []
    done = anyio.Event()

    async def kid(turn: AgentTurn) -> str:
        await done.wait()
        return "late but done"

    async def agent(turn: AgentTurn) -> object:
        if turn.session_id != "s":
            return await kid(turn)
        seen.append(await turn.delegate("kid", "go", cancel_mode="abandon"))
        return None

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "go")
        await wait_for_record(run.sup, "SessionStarted", "s/kid")
        receipt = await run.sup.abort("s:t1:c1", TOOL, reason="no")
        assert [(one.id, one.parent) for one in receipt.spared] == [("s/kid", "s")]
        assert (await asked.result()).outcome == "completed"
        assert [one.outcome for one in seen] == ["aborted"]
        assert run.sup.core.registry.state_of("s/kid") == "Running"
        done.set()
    assert results_of(run, "s:t1") == ["aborted"]
    assert [one.metadata["outcome"] for one in run.transitions("OperatorStop", "s/kid")] == ["completed"]
