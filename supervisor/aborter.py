"""Carries out an abort: records first, then every scope of the plan at once, then a receipt.

Nothing here waits for a disk before it ends something. The wait for the receipt is bounded by the ladder; what the
disk has not answered by then is left open in it and said so.
"""

from __future__ import annotations

from typing import NamedTuple

import anyio
import msgspec

from actors import Lane
from supervisor.abort import AbortPlan, AbortRecord, NodeReceipt, PlannedNode, ProcessFate, Receipt
from supervisor.ladder import SLACK_S
from supervisor.ledger import Cause
from supervisor.lifecycles.events import OperatorStop, ToolCompleted
from supervisor.tree import Tree, Work
from supervisor.vocabulary import AbortReason, AbortScope, TransitionReason

__all__ = ["Aborter"]


class _Sent(NamedTuple):
    """One node that was told to end, and what it takes to see that it did."""

    node: PlannedNode
    work: Work | None
    fates_before: int


class Aborter:
    """Executes abort plans on a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    async def execute(self, plan: AbortPlan, *, reason: str, actor: str, now: bool = False) -> Receipt:
        """End everything the plan names; the receipt says how each node and process ended."""
        abort_id = f"abort-{self._tree.ledger.last_seq + 1}"
        began = anyio.current_time()
        sent = self._send(plan, abort_id, reason, actor, now)
        receipts: list[NodeReceipt] = []
        with anyio.move_on_after(plan.deadline_s + 2 * SLACK_S):
            for one in sent:
                receipt = await self._joined(one, began)
                receipts.append(receipt)
        missed = [NodeReceipt(id=one.node.id, kind=one.node.kind, outcome="abandoned") for one in sent[len(receipts) :]]
        return self._receipt(plan, abort_id, reason, (*receipts, *missed), sent)

    # ------------------------------------------------------------------ telling
    def _send(self, plan: AbortPlan, abort_id: str, reason: str, actor: str, now: bool) -> list[_Sent]:
        """Await-free: records, then cancellations; nothing can be born or end in between."""
        causes = self._record(plan, abort_id, reason, actor)
        return [self._end(node, plan, abort_id, reason, causes[node.edge], now) for node in plan.nodes]

    def _record(self, plan: AbortPlan, abort_id: str, reason: str, actor: str) -> dict[str | None, Cause]:
        """One record for the wish, and one for each policy edge that it crosses."""
        causes: dict[str | None, Cause] = {}
        edges = dict.fromkeys([None, *(node.edge for node in plan.nodes)])
        for edge in edges:
            record = AbortRecord(
                id=abort_id if edge is None else f"{abort_id}/{edge}",
                scope=plan.scope,
                target=plan.target,
                reason=reason,
                actor=actor,
                parent_record=None if edge is None else abort_id,
                policy_edge=edge,
                deadline_s=plan.deadline_s,
            )
            before = causes[None].seq if edge is not None else None
            cause = Cause(before, None, actor)
            self._tree.note(
                self._log_of(plan.target),
                "AbortRecord",
                cause,
                msgspec.to_builtins(record),
                abort_id=abort_id,
                reason=reason,
                severity="warning",
            )
            causes[edge] = Cause(self._tree.ledger.last_seq, None, actor)
        return causes

    def _log_of(self, target: str) -> str:
        """The entity whose log tells of the abort: a tool call has none, so its turn's."""
        return target if target in self._tree.entities else target.rpartition(":")[0]

    def _end(self, node: PlannedNode, plan: AbortPlan, abort_id: str, reason: str, cause: Cause, now: bool) -> _Sent:
        if node.kind == "tool":
            return self._end_tool(node, abort_id, reason, cause)
        work = self._tree.works[node.id]
        stop = OperatorStop(
            reason=reason,
            abort_id=abort_id,
            abort_reason=_abort_reason(node, plan),
            transition_reason=(
                TransitionReason.SIBLING_ABORTED if node.scope is AbortScope.SIBLING else TransitionReason.ABORTED
            ),
            now=now,
        )
        self._tree.tell(node.id, stop, cause=cause, lane=Lane.CONTROL)
        return _Sent(node, work, 0)

    def _end_tool(self, node: PlannedNode, abort_id: str, reason: str, cause: Cause) -> _Sent:
        turn_id, _, number = node.id.rpartition(":c")
        turn = self._tree.entity(turn_id)
        work = self._tree.works[turn.data.session_id]
        call = next(call for call in turn.data.open if call.number == int(number))
        aborted = ToolCompleted(call_id=call.call_id, outcome="aborted", reason=reason, abort_id=abort_id)
        self._tree.tell(turn_id, aborted, cause=cause, lane=Lane.CONTROL)
        return _Sent(node, work, len(work.fates))

    # ------------------------------------------------------------------ joining
    async def _joined(self, sent: _Sent, began: float) -> NodeReceipt:
        node, work = sent.node, sent.work
        assert work is not None, "every node belongs to a session"
        if node.kind == "tool":
            return await self._tool_joined(sent, work, began)
        await work.ended.wait()
        report = work.report
        assert report is not None, "a session that has ended has a report"
        outcome = "abandoned" if report.survivors else "ended"
        return NodeReceipt(
            id=node.id, kind=node.kind, outcome=outcome, rung=report.rung.value, took_s=round(report.took_s, 6)
        )

    async def _tool_joined(self, sent: _Sent, work: Work, began: float) -> NodeReceipt:
        tool_id = sent.node.id
        await self._tree.system.join(tool_id)
        await self._tree.ledger.flush()
        fates = [fate for fate in work.fates[sent.fates_before :] if fate.owner == tool_id]
        interrupted = not fates and _interrupting(self._tree, work, tool_id)
        took_s = round(anyio.current_time() - began, 6)
        how = "the turn was interrupted, since the agent runs this call by itself" if interrupted else "scope"
        rung = "kill" if any(fate.ended_by == "kill" for fate in fates) else "cancel"
        return NodeReceipt(id=tool_id, kind="tool", outcome="ended", rung=rung, took_s=took_s, how=how)

    def _receipt(
        self, plan: AbortPlan, abort_id: str, reason: str, nodes: tuple[NodeReceipt, ...], sent: list[_Sent]
    ) -> Receipt:
        fates = _fates(sent)
        wall = self._tree.ledger.clock.wall.time()
        ended = [one.work.report.killed_at for one in sent if one.work is not None and one.work.report is not None]
        missed = any(node.outcome == "abandoned" for node in nodes)
        return Receipt(
            abort_id=abort_id,
            target=plan.target,
            scope=plan.scope,
            reason=reason,
            already_ended=not plan.nodes,
            nodes=nodes,
            processes=fates,
            survivors=sum(abs(fate.survivors) for fate in fates),
            killed_at=max(ended, default=wall) if nodes else None,
            recorded_at=None if missed else wall,
        )


def _fates(sent: list[_Sent]) -> tuple[ProcessFate, ...]:
    found: dict[tuple[str, int], ProcessFate] = {}
    for one in sent:
        for fate in one.work.fates[one.fates_before :] if one.work is not None else ():
            if one.node.kind == "session" or fate.owner == one.node.id:
                found[(fate.owner, fate.pid)] = fate
    return tuple(found.values())


def _abort_reason(node: PlannedNode, plan: AbortPlan) -> AbortReason:
    if node.id == plan.target:
        return AbortReason.USER_INTERRUPT
    return AbortReason.SIBLING_ABORTED if node.scope is AbortScope.SIBLING else AbortReason.PARENT_ABORTED


def _interrupting(tree: Tree, work: Work, tool_id: str) -> bool:
    """True if the session was told to go on without that call: it could not be ended by a scope of ours."""
    session = tree.entities.get(work.session_id)
    return session is not None and any(message.id == f"abort of {tool_id}" for message in session.data.inbox)
