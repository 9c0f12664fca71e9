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
from supervisor.ladder import SLACK_S, highest
from supervisor.ledger import Cause
from supervisor.lifecycles.events import OperatorStop, ToolCompleted
from supervisor.tree import Tree, Work
from supervisor.vocabulary import AbortReason, AbortScope, Rung, TransitionReason

__all__ = ["Aborter"]


class _Sent(NamedTuple):
    """One node that was told to end, and what it takes to see that it did."""

    node: PlannedNode
    work: Work
    fates_before: int

    def fates(self, owner: str | None = None) -> list[ProcessFate]:
        """What became of its processes since; of those of *owner*, where it is given."""
        return [fate for fate in self.work.fates[self.fates_before :] if owner in (None, fate.owner)]


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
        recorded_at: float | None = None
        with anyio.move_on_after(plan.deadline_s + 2 * SLACK_S):
            for one in sent:
                receipts.append(await self._joined(one, began))  # noqa: PERF401  what came in time counts
            killed_at = self._wall()
            await self._recorded(sent)
            recorded_at = self._wall()
        missed = [NodeReceipt(id=one.node.id, kind=one.node.kind, outcome="abandoned") for one in sent[len(receipts) :]]
        fates = _fates(sent)
        return Receipt(
            abort_id=abort_id,
            target=plan.target,
            scope=plan.scope,
            reason=reason,
            already_ended=False,
            nodes=(*receipts, *missed),
            processes=fates,
            survivors=sum(abs(fate.survivors) for fate in fates),
            killed_at=None if missed else killed_at,
            recorded_at=recorded_at,
        )

    def _wall(self) -> float:
        return self._tree.ledger.clock.wall.time()

    # ------------------------------------------------------------------ telling
    def _send(self, plan: AbortPlan, abort_id: str, reason: str, actor: str, now: bool) -> list[_Sent]:
        """Await-free: records, then cancellations; nothing can be born or end in between."""
        causes = self._record(plan, abort_id, reason, actor)
        return [self._end(node, plan, abort_id, reason, causes[node.edge], now) for node in plan.nodes]

    def _record(self, plan: AbortPlan, abort_id: str, reason: str, actor: str) -> dict[str | None, Cause]:
        """One record for the wish, and one for each policy edge that it crosses."""
        causes: dict[str | None, Cause] = {}
        crossed = {node.edge: node.scope for node in plan.nodes if node.edge is not None}
        for edge, scope in [(None, plan.scope), *crossed.items()]:
            record = AbortRecord(
                id=abort_id if edge is None else f"{abort_id}/{edge}",
                scope=scope,
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
        sent = _Sent(node, work, len(work.fates))
        stop = OperatorStop(
            reason=reason,
            abort_id=abort_id,
            abort_reason=_abort_reason(node, plan),
            transition_reason=(
                TransitionReason.SIBLING_ABORTED if node.scope is AbortScope.SIBLING else TransitionReason.ABORTED
            ),
            now=now,
        )
        self._tree.end(node.id, stop, cause=cause)
        return sent

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
        if node.kind == "tool":
            return await self._tool_joined(sent, began)
        await work.over.wait()
        report = work.report
        assert report is not None, "a session that is over has a report"
        outcome = "abandoned" if report.survivors or report.rung is Rung.ABANDON else "ended"
        return NodeReceipt(
            id=node.id, kind=node.kind, outcome=outcome, rung=report.rung.value, took_s=round(report.took_s, 6)
        )

    async def _recorded(self, sent: list[_Sent]) -> None:
        """Wait until the journal has the end of every node."""
        for one in sent:
            if one.node.kind == "session":
                await one.work.ended.wait()
        await self._tree.ledger.flush()

    async def _tool_joined(self, sent: _Sent, began: float) -> NodeReceipt:
        tool_id, work = sent.node.id, sent.work
        await self._tree.system.join(tool_id)
        rung, how = highest(sent.fates(tool_id)), "scope"
        if tool_id in work.interrupted_for:
            how = "the turn was interrupted, since the agent runs this call by itself"
            rung = await self._interrupted(sent)
        took_s = round(anyio.current_time() - began, 6)
        return NodeReceipt(id=tool_id, kind="tool", outcome="ended", rung=rung.value, took_s=took_s, how=how)

    async def _interrupted(self, sent: _Sent) -> Rung:
        """Wait until the agent has let go of the call's turn; it is killed if it does not within its grace."""
        link, turn_id = sent.work.link, sent.node.id.rpartition(":c")[0]
        if link is None or link.turn_id != turn_id:
            return Rung.REQUEST
        await link.free()
        if not link.reusable:
            await link.ended.wait()
        return Rung.KILL if any(fate.ended_by == "kill" for fate in sent.fates()) else Rung.REQUEST


def _fates(sent: list[_Sent]) -> tuple[ProcessFate, ...]:
    found: dict[tuple[str, int], ProcessFate] = {}
    for one in sent:
        scoped = one.node.kind == "tool" and one.node.id not in one.work.interrupted_for
        for fate in one.fates(one.node.id if scoped else None):
            found[(fate.owner, fate.pid)] = fate
    return tuple(found.values())


def _abort_reason(node: PlannedNode, plan: AbortPlan) -> AbortReason:
    if node.id == plan.target:
        return AbortReason.USER_INTERRUPT
    return AbortReason.SIBLING_ABORTED if node.scope is AbortScope.SIBLING else AbortReason.PARENT_ABORTED
