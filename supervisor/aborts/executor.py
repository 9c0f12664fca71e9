"""Carries out an abort: records first, then every scope of the plan at once, then a receipt.

Nothing here waits for a disk before it ends something. The wait for the receipt is bounded by the ladder; what the
disk has not answered by then is left open in it and said so, and so is at once what a disk that is down cannot take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from actors import Lane
from supervisor.aborts.termination import SLACK_S, highest
from supervisor.lifecycles.events import OperatorStop, ToolCompleted, UrgentMessage
from supervisor.lifecycles.turn import Call, Turn, TurnData
from supervisor.lifecycles.types import (
    AbortReason,
    AbortScope,
    CancelMode,
    TerminationStage,
    ToolOutcome,
    TransitionReason,
)
from supervisor.policies.abort_plan import (
    AbortPlan,
    AbortRecord,
    Crossing,
    EndingNode,
    NodeReceipt,
    PlannedNode,
    ProcessFate,
    Receipt,
    total_survivors,
)
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import Connection, LiveSession, SessionPhase
from supervisor.runtime.one_shot_event import OneShotEvent

__all__ = ["AbortExecutor"]


class _AbortRequest(NamedTuple):
    """One abort: what was planned, who wants it, and why."""

    plan: AbortPlan
    abort_id: str
    reason: str
    actor: str
    because: int | None = None
    """The record that it follows from, where it is not somebody's word."""
    blamed: AbortReason = AbortReason.USER_INTERRUPT
    """What ends the target; whatever else ends with it has reasons of its own."""

    def reason_of(self, node: PlannedNode) -> AbortReason:
        return self.blamed if node.reason is AbortReason.USER_INTERRUPT else node.reason


@dataclass
class _AbortedNode:
    """One node that was told to end, and what it takes to see that it did."""

    node: PlannedNode
    session: LiveSession
    fates_before: int
    how: str = ""
    connection: Connection | None = None
    """Of a call: whose it is."""
    interrupted: bool = False
    """The call could not be ended alone."""

    def fates(self, owner: str | None = None) -> list[ProcessFate]:
        """What became of its processes since; of those of *owner*, where it is given."""
        return [fate for fate in self.session.fates[self.fates_before :] if owner in (None, fate.owner)]

    @property
    def waited_for(self) -> bool:
        return self.node.mode is CancelMode.WAIT_COMPLETED


class AbortExecutor:
    """Executes abort plans on a tree."""

    def __init__(self, registry: EntityRegistry) -> None:
        self._registry = registry

    async def execute(self, plan: AbortPlan, *, reason: str, actor: str, now: bool, within_s: float | None) -> Receipt:
        """End everything the plan names; the receipt says how each node and process ended."""
        wish = _AbortRequest(plan, self._new_id(), reason, actor)
        began = self._registry.system.timers.now()
        sent = self._send(wish, now, within_s)
        receipts: list[NodeReceipt] = []
        killed_at: float | None = None
        recorded_at: float | None = None
        with self._registry.system.timers.limit(plan.deadline_s + 2 * SLACK_S):
            for one in sent:
                receipts.append(await self._joined(one, began))  # noqa: PERF401  what came in time counts
            killed_at = self._wall()
            if await self._recorded(plan.target, sent):
                recorded_at = self._wall()
        for one in sent[len(receipts) :]:  # who waited behind one that is not over may well be
            missed = NodeReceipt(id=one.node.id, kind=one.node.kind, outcome="abandoned")
            receipts.append(await self._joined(one, began) if _is_over(one) else missed)
        fates = _fates(sent)
        return Receipt(
            abort_id=wish.abort_id,
            target=plan.target,
            scope=plan.scope,
            reason=reason,
            already_ended=False,
            nodes=tuple(receipts),
            processes=fates,
            survivors=total_survivors(fate.survivors for fate in fates),
            killed_at=killed_at,
            recorded_at=recorded_at,
            spared=plan.spared,
            outage=self.outage if recorded_at is None else None,
        )

    def abort_session(self, plan: AbortPlan, *, reason: str, actor: str, because: int, blamed: AbortReason) -> None:
        """End everything the plan names, for that record's sake, without a receipt. Await-free."""
        self._send(_AbortRequest(plan, self._new_id(), reason, actor, because, blamed), False, None)

    @property
    def outage(self) -> str | None:
        """Why the journal cannot be written now."""
        outage = self._registry.journal_writer.disk.outage
        return None if outage is None else outage.why

    def join(self, plan: AbortPlan, *, reason: str, actor: str, now: bool, within_s: float | None) -> str | None:
        """The plan ends nothing, for its target is ending: append this cause. The abort that it is ending by."""
        wish = _AbortRequest(plan, self._new_id(), reason, actor)
        causes: dict[str | None, Cause] = {None: Cause(actor=actor)}
        if plan.crossings:
            causes = self._record(wish, within_s)
        self._join(wish, causes, now, within_s)
        session = self._registry.sessions.get(plan.ending[0].id) if plan.ending else None
        return session.stop_request.abort_id if session is not None and session.stop_request is not None else None

    def _new_id(self) -> str:
        return f"abort-{self._registry.journal_writer.last_seq + 1}"

    def _wall(self) -> float:
        return self._registry.journal_writer.clock.wall.time()

    # ------------------------------------------------------------------ telling
    def _send(self, wish: _AbortRequest, now: bool, within_s: float | None) -> list[_AbortedNode]:
        """Await-free: records, then cancellations; nothing can be born or end in between."""
        causes = self._record(wish, within_s)
        sent = [self._end(node, wish, causes[node.edge], now, within_s) for node in wish.plan.nodes]
        self._join(wish, causes, now, within_s)
        return sent

    def _record(self, wish: _AbortRequest, within_s: float | None) -> dict[str | None, Cause]:
        """One record for the wish, and one for each policy edge that it crosses, in the order of the crossings."""
        plan = wish.plan
        bound_s = plan.deadline_s if within_s is None else min(within_s, plan.deadline_s)
        root = AbortRecord(
            id=wish.abort_id,
            scope=plan.scope,
            target=plan.target,
            reason=wish.reason,
            actor=wish.actor,
            deadline_s=bound_s,
        )
        records: dict[str | None, AbortRecord] = {None: root}
        causes: dict[str | None, Cause] = {None: self._note(root, wish, wish.because)}
        for crossing in plan.crossings:
            record = records[crossing.edge] = _crossed(root, crossing, records[crossing.after])
            causes[crossing.edge] = self._note(record, wish, causes[crossing.after].seq)
        return causes

    def _note(self, record: AbortRecord, wish: _AbortRequest, because: int | None) -> Cause:
        self._registry.record_fact(
            self._log_of(wish.plan),
            "AbortRecord",
            Cause(because, None, wish.actor),
            msgspec.to_builtins(record),
            abort_id=wish.abort_id,
            reason=wish.reason,
            abort_reason=wish.blamed if _is_direct(record) else AbortReason.SIBLING_ABORTED,
            severity="warning",
        )
        return Cause(self._registry.journal_writer.last_seq, None, wish.actor)

    def _log_of(self, plan: AbortPlan) -> str:
        """The entity whose log tells of the abort. A tool call has none: an abort of the call is told by its turn's,
        one of its session or of siblings by the session's, where the next supervisor looks for what was not done."""
        if plan.target in self._registry.entities:
            return plan.target
        turn_id = plan.target.rpartition(":")[0]
        turn = self._registry.entities.get(turn_id)
        return turn_id if turn is None or plan.scope is AbortScope.TOOL else str(turn.data.session_id)

    def _end(
        self, node: PlannedNode, wish: _AbortRequest, cause: Cause, now: bool, within_s: float | None
    ) -> _AbortedNode:
        if node.kind == "tool":
            return self._end_tool(node, wish, cause)
        session = self._registry.sessions[node.id]
        sent = _AbortedNode(node, session, len(session.fates), self._how(session))
        bound_s = node.due.kill_s if node.due is not None else None
        if within_s is not None:
            bound_s = within_s if bound_s is None else min(bound_s, within_s)
        self._registry.request_stop(
            node.id, _stop(wish.reason_of(node), node.scope, wish, now), cause=cause, within_s=bound_s
        )
        return sent

    def _how(self, session: LiveSession) -> str:
        """An abort of a session ends it, but not what its turn has achieved before."""
        turn_id = self._registry.entity(session.session_id).data.turn_id
        turn = self._registry.entities.get(turn_id)
        return f"its turn {turn_id} had succeeded" if turn is not None and turn.state is Turn.COMPLETING else ""

    def _join(self, wish: _AbortRequest, causes: dict[str | None, Cause], now: bool, within_s: float | None) -> None:
        """Sessions in the reach that are ending already get one more cause; those below them have it from them."""
        for one in _heads(self._registry, wish.plan.ending):
            stop = _stop(AbortReason.USER_INTERRUPT, wish.plan.scope, wish, now)
            self._registry.request_stop(one.id, stop, cause=causes[one.edge], within_s=within_s)

    def _end_tool(self, node: PlannedNode, wish: _AbortRequest, cause: Cause) -> _AbortedNode:
        turn_id, _, number = node.id.rpartition(":c")
        turn = self._registry.entity(turn_id)
        session = self._registry.sessions[turn.data.session_id]
        call = next(call for call in turn.data.open if call.number == int(number))
        sent = _AbortedNode(node, session, len(session.fates), connection=session.connection)
        started = any(child.started_by == node.id for child in self._registry.children_of(session.session_id))
        assert session.connection is not None, "a call that is open has a link"
        if started or session.connection.runs_call(call.call_id):
            result = ToolCompleted(
                call_id=call.call_id, outcome=ToolOutcome.ABORTED, reason=wish.reason, abort_id=wish.abort_id
            )
            session.connection.abandon_call(call.call_id)
            self._registry.send(turn_id, result, cause=cause, lane=Lane.CONTROL)
            return sent
        session.connection.abort_own_call(call.call_id, wish.reason, wish.abort_id)
        if self._ends_with_another(call, turn.data, session.connection, wish):
            sent.how = ENDED_WITHIN
            return sent
        sent.how = session.connection.terminate_call(
            call.call_id, lambda why: self._interrupt(sent, call, wish, cause, f": {why}")
        )
        if not sent.how:
            self._interrupt(sent, call, wish, cause)
        return sent

    def _ends_with_another(self, call: Call, turn: TurnData, connection: Connection, wish: _AbortRequest) -> bool:
        """True if it is made within a call that the agent runs by itself too, and that this abort ends."""
        above = next((one for one in turn.open if one.number == call.within), None)
        if above is None or connection.runs_call(above.call_id):
            return False
        return any(one.id == f"{turn.id}:c{above.number}" for one in wish.plan.nodes)

    def _interrupt(self, sent: _AbortedNode, call: Call, wish: _AbortRequest, cause: Cause, why: str = "") -> None:
        """The agent runs that call, and does not end it alone: its turn ends with it, and the next one goes on."""
        if sent.interrupted or not self._registry.is_open(sent.node.id):
            return
        sent.interrupted, sent.how = True, f"{NOT_ASKED if not why else NOT_ENDED}{why}"
        turn_id = sent.node.id.rpartition(":c")[0]
        told = {"call": sent.node.id, "why": sent.how}
        self._registry.record_fact(turn_id, "TurnInterrupted", cause, told, abort_id=wish.abort_id, reason=sent.how)
        because = cause._replace(seq=self._registry.journal_writer.last_seq)
        text = f"The tool call {call.call_id} was aborted ({wish.reason}). Go on without its result."
        message = UrgentMessage(message_id=f"abort of {sent.node.id}", sender="supervisor", text=text)
        self._registry.send(sent.session.session_id, message, cause=because)

    # ------------------------------------------------------------------ joining
    async def _joined(self, sent: _AbortedNode, began: float) -> NodeReceipt:
        node, session = sent.node, sent.session
        if node.kind == "tool":
            return await self._tool_joined(sent, began)
        if node.mode is CancelMode.WAIT_REQUESTED:
            await session.reached(SessionPhase.TERMINATING).wait()
        if not sent.waited_for and session.report is None:
            return NodeReceipt(id=node.id, kind=node.kind, outcome="requested", how=f"its cancel mode is {node.mode}")
        await session.reached(SessionPhase.FINISHED).wait()
        report = session.report
        if report is None:
            return NodeReceipt(id=node.id, kind=node.kind, outcome="ended", how="its actor crashed")
        return NodeReceipt(
            id=node.id,
            kind=node.kind,
            outcome="abandoned" if report.survivors or report.rung is TerminationStage.ABANDON else "ended",
            rung=report.rung.value,
            took_s=round(report.took_s, 6),
            how=sent.how,
            ended_at=report.killed_at,
        )

    async def _recorded(self, target: str, sent: list[_AbortedNode]) -> bool:
        """Wait until the journal has the end of every node that is waited for; ``False`` if it cannot be written.

        A call that is over has told its turn its result, and one whose turn has failed has it from that record, once
        that is durable: so the turn has heard it only after that. A target that is no node had just returned.
        """
        journal_writer = self._registry.journal_writer
        for one in sent:
            if (
                one.node.kind == "session"
                and one.waited_for
                and not await journal_writer.disk.wait_unless_down(one.session.reached(SessionPhase.RECORDED))
            ):
                return False
        calls = [one.node.id for one in sent if one.node.kind == "tool"]
        turns = dict.fromkeys(one.rpartition(":c")[0] for one in (*calls, target))
        for turn_id in [one for one in turns if one in self._registry.entities]:
            if not await self._durable():
                return False
            await self._registry.wait_processed(turn_id)
        return await self._durable()

    async def _durable(self) -> bool:
        """Wait until all that is recorded now is durable; ``False`` if it cannot be written."""
        durable, journal_writer = OneShotEvent(), self._registry.journal_writer
        journal_writer.when_durable(durable.set)
        return await journal_writer.disk.wait_unless_down(durable) and journal_writer.error is None

    async def _tool_joined(self, sent: _AbortedNode, began: float) -> NodeReceipt:
        tool_id = sent.node.id
        await self._registry.system.join(tool_id)
        rung = await self._interrupted(sent) if sent.interrupted else _rung_of(sent)
        took_s = round(self._registry.system.timers.now() - began, 6)
        return NodeReceipt(
            id=tool_id,
            kind="tool",
            outcome="ended",
            rung=rung.value,
            took_s=took_s,
            how=sent.how or "scope",
            ended_at=self._wall(),
        )

    async def _interrupted(self, sent: _AbortedNode) -> TerminationStage:
        """Wait until the agent has let go of the call's turn; it is killed if it does not within its grace."""
        connection, turn_id = sent.connection, sent.node.id.rpartition(":c")[0]
        assert connection is not None, "a call that is open has a link"
        await connection.wait_turn_over(turn_id)
        if connection.turn_id is None and not connection.reusable:
            await connection.ended.wait()
        return (
            TerminationStage.KILL if any(fate.ended_by == "kill" for fate in sent.fates()) else TerminationStage.REQUEST
        )


ENDED_WITHIN = "it ended with the call that it was made within"
NOT_ASKED = "the turn was interrupted, since the agent runs this call by itself and cannot be asked to end it alone"
NOT_ENDED = "the turn was interrupted, since the agent runs this call by itself and did not end it alone"


def _rung_of(sent: _AbortedNode) -> TerminationStage:
    """On which rung a call ended that was ended alone: the agent was asked, or its scope was cancelled."""
    fates = [one for one in sent.fates(sent.node.id) if one.ended_by]
    return highest(fates) if fates or not sent.how else TerminationStage.REQUEST


def _crossed(root: AbortRecord, crossing: Crossing, before: AbortRecord) -> AbortRecord:
    return msgspec.structs.replace(
        root,
        id=f"{before.id}/{crossing.edge}",
        scope=crossing.scope,
        parent_record=before.id,
        policy_edge=crossing.edge,
        ruled_by=crossing.ruled_by,
    )


def _is_direct(record: AbortRecord) -> bool:
    """Whether what it reaches is what was asked for, and does not end for another one's sake."""
    return record.scope is not AbortScope.SIBLING and record.policy_edge is None


def _stop(abort_reason: AbortReason, scope: AbortScope, wish: _AbortRequest, now: bool) -> OperatorStop:
    over = TransitionReason.SIBLING_ABORTED if scope is AbortScope.SIBLING else TransitionReason.ABORTED
    return OperatorStop(
        reason=wish.reason, abort_id=wish.abort_id, abort_reason=abort_reason, transition_reason=over, now=now
    )


def _heads(registry: EntityRegistry, ending: tuple[EndingNode, ...]) -> Iterator[EndingNode]:
    ids = {one.id for one in ending}
    for one in ending:
        session = registry.sessions.get(one.id)
        if session is not None and session.parent_id not in ids:
            yield one


def _is_over(sent: _AbortedNode) -> bool:
    """Its end is known, so that nobody waits for it."""
    return sent.node.kind == "session" and sent.session.phase >= SessionPhase.FINISHED


def _fates(sent: list[_AbortedNode]) -> tuple[ProcessFate, ...]:
    found: dict[tuple[str, int], ProcessFate] = {}
    for one in sent:
        scoped = one.node.kind == "tool" and not one.interrupted
        for fate in one.fates(one.node.id if scoped else None):
            found[(fate.owner, fate.pid)] = fate
    return tuple(found.values())
