"""Abort sessions and tool calls: plan the abort, record it, request every planned node to stop, return a receipt.

The steps of an abort, in order:

1. ``plan_abort`` (pure) determines what the scope reaches. For a target that has ended, or is ending, the receipt
   describes that end.
2. Record the abort, and each policy edge that the plan crosses. The records come first: in them, the next supervisor
   finds the work that was not carried out.
3. Every node of the plan is requested to stop, leaves first: a session (``LiveSession.request_stop``) terminates
   itself, a turn stops its call (``TurnEntity.stop_call``). Between the records and this step nothing awaits, so no
   node can be created or end in between, and the abort does not depend on the disk.
4. The receipt waits for every node, and then for the records, until ``slack_s`` after the plan's deadline, and longer
   only while the kernel ends killed processes (``EXITING_S``). Nodes and records that are missing by then are left open
   in the receipt; while the journal cannot be written the receipt does not wait for the records.

The deadlines of all nodes are those of the plan (``policies.stage_deadlines``); nothing here computes another one.

A second abort of a session that is terminating joins the first one: it can shorten the deadline, or skip to the kill.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.record_ids import id_after
from supervisor.lifecycles.turn import Turn, split_call
from supervisor.lifecycles.types import (
    AbortReason,
    AbortScope,
    CancelMode,
    InvalidArgument,
    Kind,
    NoSuchEntity,
    RecordId,
    Survivors,
    TerminationStage,
    TransitionReason,
    choice_of,
)
from supervisor.policies.abort_plan import (
    AbortPlan,
    AbortRecord,
    NodeReceipt,
    PlannedNode,
    ProcessFate,
    Receipt,
    plan_abort,
    stage_of_fates,
    total_survivors,
)
from supervisor.policies.argument_checks import check_type, check_types
from supervisor.policies.stage_deadlines import EXITING_S, SLACK_S
from supervisor.ports import Journal
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import HOST, Cause
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.shutdown import Shutdown
from supervisor.sessions.tool_calls import FOUND_LATER, NONE_FOUND
from supervisor.sessions.turn import StoppedCall


class _Order(NamedTuple):
    """An abort that is being carried out. ``within_s`` is the argument of :meth:`AbortService.abort`."""

    plan: AbortPlan
    abort_id: str
    reason: str
    actor: str
    within_s: float | None = None
    cause_seq: RecordId | None = None
    """Number of the record that the abort follows from, if no caller requested the abort."""
    abort_reason: AbortReason = AbortReason.USER_INTERRUPT
    """Abort reason of the target; nodes that end because of another node have abort reasons of their own."""

    def stop(self, abort_reason: AbortReason, scope: AbortScope) -> OperatorStop:
        siblings = scope is AbortScope.SIBLING
        return OperatorStop(
            reason=self.reason,
            abort_id=self.abort_id,
            abort_reason=abort_reason,
            transition_reason=TransitionReason.SIBLING_ABORTED if siblings else TransitionReason.ABORTED,
            now=self.plan.now,
        )


class _StoppedNode(NamedTuple):
    """Node of the plan that was requested to stop."""

    node: PlannedNode
    session: LiveSession
    """The session that the node is, or to which the call belongs."""
    fates_before: int
    """Number of the session's processes whose fate was known before the abort."""
    call: StoppedCall | None = None
    how: str = ""
    """Text about the session for the receipt."""

    def fates(self, owner: str | None = None) -> list[ProcessFate]:
        """Return the fates of processes that ended since the abort; with *owner*, only the fates of this owner's
        processes."""
        return [fate for fate in self.session.fates[self.fates_before :] if owner in (None, fate.owner)]

    @property
    def is_awaited(self) -> bool:
        return self.node.mode is CancelMode.WAIT_COMPLETED


class AbortService:
    """Service that carries out the aborts of one supervisor, and closes its sessions."""

    def __init__(self, registry: SessionRegistry, journal: Journal, shutdown: Shutdown) -> None:
        self._registry = registry
        self._journal = journal
        self._shutdown = shutdown
        self.task_enders: list[Callable[[str, str], Awaitable[str]]] = []
        """Functions that cancel the task of a plan, by the id of the session that worked for the task last, with a
        reason; each returns the name of the task, or ``""`` if it has no such task that is not settled."""
        self.on_receipt: list[Callable[[Receipt], None]] = []
        """Functions that are called with the receipt of each abort that was carried out; they must not raise."""
        self.slack_s = 2 * SLACK_S
        """Seconds after a plan's deadline at which the receipt is returned, whether or not every node has ended."""

    def plan(
        self, target: str, scope: AbortScope | str, *, now: bool = False, within_s: float | None = None
    ) -> AbortPlan:
        return plan_abort(self._registry.abort_tree(hurry=now), target, scope, now=now, within_s=within_s)

    async def abort(
        self,
        target: str,
        scope: AbortScope | str,
        *,
        reason: str = "",
        actor: str = "host",
        now: bool = False,
        within_s: float | None = None,
        plan_id: str | None = None,
        because: RecordId | None = None,
    ) -> Receipt:
        """Abort *target*; implements ``Supervisor.abort``, where the arguments are described. *because* is the number
        of the record that the abort follows from, if a plan decided it."""
        check_type("target", target, str)
        check_type("reason", reason, str)
        check_type("actor", actor, str)
        check_type("now", now, bool)
        check_types(str, plan_id=plan_id)
        check_types(int, float, within_s=within_s)
        reason, scope = reason or f"aborted by {actor}", choice_of(AbortScope, "scope", scope)
        if within_s is not None and not within_s >= 0:
            raise InvalidArgument(f"within_s: {within_s!r} is no time to end in; give seconds, 0 or more")
        try:
            plan = self.plan(target, scope, now=now, within_s=within_s)
        except NoSuchEntity:
            if not await self._is_in_journal(target):
                raise
            # The session of a call that has ended may go on, and with it processes of the call.
            session = self._registry.sessions.get(target.partition(":")[0])
            fates = session.fates if session is not None else ()
            survivors = total_survivors({one.pid: one.survivors for one in fates if one.owner == target}.values())
            return Receipt(
                abort_id="",
                target=target,
                scope=scope,
                reason="already_ended",
                already_ended=True,
                survivors=survivors,
                cancelled_task=await self.end_task(target, reason) if scope is AbortScope.SESSION else None,
            )
        if plan_id is not None and plan_id not in self._plan_ids(plan, now):
            words = f"plan {plan_id} would not be carried out: the tree has changed since, the plan is {plan.id} now"
            raise Refused(f"{words}; plan the abort again")
        order = _Order(plan, self._new_id(), reason, actor, within_s, because)
        return await (self._join(order) if plan.already_ended else self._carry_out(order))

    async def close_session(self, session_id: str, *, reason: str, cause: Cause = HOST) -> None:
        """End a session as completed, and wait until everything below the session has ended; do nothing if the session
        has ended. A close by the host (*cause*) also cancels the task that the session was the last to work for.

        Raises:
            JournalError: the journal was lost meanwhile; nevertheless the session was ended.
        """
        check_type("reason", reason, str)
        session = self._registry.sessions.get(session_id)
        if cause == HOST and (session is None or session.is_stopping):
            await self.end_task(session_id, reason)
        if session is None:
            return
        stop = OperatorStop(reason=reason, outcome="completed", transition_reason="completed")
        session.request_stop(stop, cause=cause)
        await self._shutdown.wait_recorded(session)

    async def end_task(self, session_id: str, reason: str) -> str | None:
        """Cancel the task that the session, which has ended or is ending, worked for last; return the name of the task;
        ``None`` if there is no such task, or the task is settled. Wait for the cancellation at most ``slack_s``."""
        for end in self.task_enders:
            if name := await end(session_id, reason):
                return name
        return None

    def abort_session(self, session_id: str, reason: str, actor: str, because: RecordId, blamed: AbortReason) -> None:
        """Abort a session, and everything below it, because of the record *because*; without a receipt, and without an
        await. For a session that is ending already, nothing is done."""
        self._abort_now(session_id, AbortScope.SESSION, reason, actor, because, blamed)

    def abort_call(self, call_id: str, reason: str, actor: str, because: RecordId, blamed: AbortReason) -> None:
        """Abort a tool call because of the record *because*, as ``abort_session`` does; its session goes on."""
        self._abort_now(call_id, AbortScope.TOOL, reason, actor, because, blamed)

    def _abort_now(
        self, target: str, scope: AbortScope, reason: str, actor: str, because: RecordId, blamed: AbortReason
    ) -> None:
        with suppress(NoSuchEntity):
            plan = self.plan(target, scope)
            if not plan.already_ended:
                self._stop(_Order(plan, self._new_id(), reason, actor, cause_seq=because, abort_reason=blamed))

    def _new_id(self) -> str:
        return f"abort-{id_after(self._registry.journal_writer.last_seq)}"

    def _plan_ids(self, plan: AbortPlan, now: bool) -> list[str]:
        """Return the ids that a plan for the same target may have now: planned with sessions that are ending, and
        without them."""
        return [self.plan(plan.target, plan.scope, now=one).id for one in dict.fromkeys((now, False))]

    async def _is_in_journal(self, target: str) -> bool:
        """Return whether the journal contains *target*: a session, or a tool call of one of its turns."""
        turn_id, number = split_call(target)
        if any(row.kind == Kind.SESSION for row in await self._journal.entities(ids=[target])):
            return True
        if number is None:
            return False
        events = await self._journal.events(entity_id=turn_id)
        return any(event.event == "tool_started" and event.metadata.get("number") == number for event in events)

    async def _carry_out(self, order: _Order) -> Receipt:
        """Carry out the plan, and return the receipt. All terminations begin before the first await."""
        plan, timers = order.plan, self._registry.system.timers
        began, ended = timers.now(), self._stop(order)
        receipts: list[NodeReceipt] = []
        killed_at: float | None = None
        recorded_at: float | None = None
        for within_s in (plan.deadline_s + self.slack_s, EXITING_S + self.slack_s):
            with timers.limit(within_s) as waited:
                for one in ended[len(receipts) :]:
                    receipts.append(await self._receipt_of(one, began))  # noqa: PERF401  what came in time counts
                killed_at = killed_at or self._wall()
                if await self._wait_recorded(plan.target, ended):
                    recorded_at = self._wall()
            if not (waited.cancelled_caught and any(one.session.waits_for_kernel for one in ended)):
                break
        for one in ended[len(receipts) :]:  # a node behind one that has not ended may well have ended
            if one.node.kind == "session" and one.session.phase >= SessionPhase.FINISHED:
                receipts.append(await self._receipt_of(one, began))
            else:
                receipts.append(NodeReceipt(id=one.node.id, kind=one.node.kind, outcome="abandoned"))
        fates: dict[tuple[str, int], ProcessFate] = {}
        for one in ended:
            is_alone = one.call is not None and not one.call.is_interrupted
            fates |= {(fate.owner, fate.pid): fate for fate in one.fates(one.node.id if is_alone else None)}
        receipt = Receipt(
            abort_id=order.abort_id,
            target=plan.target,
            scope=plan.scope,
            reason=order.reason,
            already_ended=False,
            nodes=tuple(receipts),
            processes=tuple(fates.values()),
            survivors=total_survivors(fate.survivors for fate in fates.values()),
            killed_at=killed_at,
            recorded_at=recorded_at,
            spared=plan.spared,
            outage=self._outage if recorded_at is None else None,
            beside=plan.beside if any(one.call is not None and one.call.is_interrupted for one in ended) else (),
        )
        for call in self.on_receipt:
            call(receipt)
        return receipt

    async def _join(self, order: _Order) -> Receipt:
        """Wait for the end of a target that has ended or is ending, and return the receipt."""
        plan, sessions = order.plan, self._registry.sessions
        causes: dict[str | None, Cause] = {None: Cause(actor=order.actor)}
        if plan.crossings:
            causes = self._record(order)
        self._add_cause(order, causes)
        first = sessions.get(plan.ending[0].id) if plan.ending else None
        joined = first.stop_request.abort_id if first is not None and first.stop_request is not None else None
        cancelled = await self.end_task(plan.target, order.reason) if plan.scope is AbortScope.SESSION else None
        survivors, recorded = list[Survivors](), True
        for session in [sessions[one.id] for one in plan.ending if one.id in sessions]:
            recorded = await self._shutdown.wait_finished(session) and recorded
            survivors.append(session.report.survivors if session.report is not None else "unknown")
        return Receipt(
            abort_id="",
            target=plan.target,
            scope=plan.scope,
            reason="already_ended",
            already_ended=True,
            survivors=total_survivors(survivors),
            joined=joined,
            cancelled_task=cancelled,
            outage=None if recorded else self._outage,
        )

    @property
    def _outage(self) -> str | None:
        """Reason why the journal cannot be written now; ``None`` while it can be written."""
        outage = self._registry.journal_writer.disk.outage
        return None if outage is None else outage.why

    def _wall(self) -> float:
        return self._registry.journal_writer.clock.wall.time()

    # ------------------------------------------------------------------ record and stop: nothing here awaits
    def _stop(self, order: _Order) -> list[_StoppedNode]:
        """Record the abort, then request every node of the plan to stop, leaves first."""
        causes = self._record(order)
        ends = frozenset(node.id for node in order.plan.nodes)
        stopped = [self._stop_node(node, order, causes[node.edge], ends) for node in order.plan.nodes]
        self._add_cause(order, causes)
        return stopped

    def _stop_node(self, node: PlannedNode, order: _Order, cause: Cause, ends: frozenset[str]) -> _StoppedNode:
        stop = order.stop(order.abort_reason if node.reason is AbortReason.USER_INTERRUPT else node.reason, node.scope)
        if node.kind == "tool":
            turn = self._registry.turn_of(node.id)
            session = self._registry.sessions[turn.data.session_id]
            fates_before, is_bounded = len(session.fates), order.plan.now or order.within_s is not None
            call = turn.stop_call(node, stop, cause, ends=ends, is_bounded=is_bounded)
            return _StoppedNode(node, session, fates_before, call)
        session = self._registry.sessions[node.id]
        turn_id = session.data.verifying or session.data.turn_id
        state = self._registry.entities[turn_id].state if turn_id in self._registry.entities else None
        # An abort ends the session, but not what its turn has achieved before.
        how = f"its turn {turn_id} had succeeded" if state is Turn.COMPLETING else ""
        if state is Turn.VERIFYING and session.data.verifying:
            how = f"its turn {turn_id} was being verified"
        stopped = _StoppedNode(node, session, len(session.fates), how=how)
        session.request_stop(stop, cause=cause, within_s=node.due.kill_s if node.due is not None else None)
        return stopped

    def _add_cause(self, order: _Order, causes: dict[str | None, Cause]) -> None:
        """Add the abort as a cause to the sessions in the reach that are ending already. A child session receives the
        cause from its parent."""
        ids = {one.id for one in order.plan.ending}
        for one in order.plan.ending:
            session = self._registry.sessions.get(one.id)
            if session is not None and session.parent_id not in ids:
                stop = order.stop(order.abort_reason, order.plan.scope)
                session.request_stop(stop, cause=causes[one.edge], within_s=order.within_s)

    def _record(self, order: _Order) -> dict[str | None, Cause]:
        """Record the abort, and each policy edge that the abort crosses, in the order of the crossings; return the
        cause that each edge gives (``None``: the abort itself)."""
        plan = order.plan
        root = AbortRecord(
            id=order.abort_id,
            scope=plan.scope,
            target=plan.target,
            reason=order.reason,
            actor=order.actor,
            deadline_s=plan.deadline_s if order.within_s is None else min(order.within_s, plan.deadline_s),
            stages=next((node.due for node in plan.nodes if node.id == plan.target), None),
        )
        records: dict[str | None, AbortRecord] = {None: root}
        causes: dict[str | None, Cause] = {None: self._append(root, order, order.cause_seq)}
        for crossing in plan.crossings:
            before = records[crossing.after]
            record = records[crossing.edge] = msgspec.structs.replace(
                root,
                id=f"{before.id}/{crossing.edge}",
                scope=crossing.scope,
                stages=None,
                parent_record=before.id,
                policy_edge=crossing.edge,
                ruled_by=crossing.ruled_by,
            )
            causes[crossing.edge] = self._append(record, order, causes[crossing.after].seq)
        return causes

    def _append(self, record: AbortRecord, order: _Order, because: RecordId | None) -> Cause:
        is_direct = record.scope is not AbortScope.SIBLING and record.policy_edge is None
        self._registry.record_fact(
            self._log_of(order.plan),
            "AbortRecord",
            Cause(because, None, order.actor),
            msgspec.to_builtins(record),
            abort_id=order.abort_id,
            reason=order.reason,
            abort_reason=order.abort_reason if is_direct else AbortReason.SIBLING_ABORTED,
            severity="warning",
        )
        return Cause(self._registry.journal_writer.last_seq, None, order.actor)

    def _log_of(self, plan: AbortPlan) -> str:
        """Return the id of the entity whose log contains the records of the abort.

        A tool call has no log. The records of an abort of the call alone are in the log of the call's turn. The records
        of an abort of the call's session or siblings are in the session's log, where the next supervisor looks for work
        that was not carried out.
        """
        if plan.target in self._registry.entities:
            return plan.target
        turn_id = plan.target.rpartition(":")[0]
        turn = self._registry.entities.get(turn_id)
        return turn_id if turn is None or plan.scope is AbortScope.TOOL else str(turn.data.session_id)

    # ------------------------------------------------------------------ receipt
    async def _receipt_of(self, ended: _StoppedNode, began: float) -> NodeReceipt:
        """Wait for the end of one node, as far as the node's cancel mode requires; return the node's part of the
        receipt."""
        node, session = ended.node, ended.session
        if ended.call is not None:
            await self._registry.system.join(node.id)
            return NodeReceipt(
                id=node.id,
                kind="tool",
                outcome="ended",
                rung=(await self._stage_of_call(ended, ended.call)).value,
                took_s=round(self._registry.system.timers.now() - began, 6),
                how=self._how_ended(ended, ended.call),
                ended_at=self._wall(),
            )
        if node.mode is CancelMode.WAIT_REQUESTED:
            await session.reached(SessionPhase.TERMINATING).wait()
        if not ended.is_awaited and session.report is None:
            return NodeReceipt(id=node.id, kind=node.kind, outcome="requested", how=f"its cancel mode is {node.mode}")
        await session.reached(SessionPhase.FINISHED).wait()
        report = session.report
        if report is None:
            return NodeReceipt(id=node.id, kind=node.kind, outcome="ended", how="its actor crashed")
        is_abandoned = report.survivors or report.stage is TerminationStage.ABANDON
        return NodeReceipt(
            id=node.id,
            kind=node.kind,
            outcome="abandoned" if is_abandoned else "ended",
            rung=report.stage.value,
            took_s=round(report.took_s, 6),
            how=ended.how,
            ended_at=report.killed_at,
        )

    def _how_ended(self, ended: _StoppedNode, call: StoppedCall) -> str:
        """Return the description of the way in which a call has ended, without a contradiction to its processes: they
        may have been looked for again after the turn was interrupted."""
        how = call.way or "scope"
        return how.replace(NONE_FOUND, FOUND_LATER) if ended.fates(ended.node.id) else how

    async def _stage_of_call(self, ended: _StoppedNode, call: StoppedCall) -> TerminationStage:
        """Return the stage at which a call has ended. If the call's turn was interrupted, wait first until the agent
        has stopped work on the turn."""
        if call.is_interrupted:
            connection = call.connection
            await connection.wait_turn_over(ended.node.id.rpartition(":c")[0])
            if connection.turn_id is None and not connection.reusable:
                await connection.ended.wait()
            killed = any(fate.ended_by == "kill" for fate in ended.fates())
            return TerminationStage.KILL if killed else TerminationStage.REQUEST
        fates = [one for one in ended.fates(ended.node.id) if one.ended_by]
        return stage_of_fates(fates) if fates or not call.way else TerminationStage.REQUEST

    async def _wait_recorded(self, target: str, ended: list[_StoppedNode]) -> bool:
        """Wait until the journal contains the end of every awaited node; return ``False`` if the journal cannot be
        written.

        A call that has ended sends its result to its turn, and a call whose turn has failed gets its result from the
        durable record of that failure. In both cases the turn processes the result later, so this method waits until
        each turn has done so. If the target is a call but no node of the plan, because the call had just returned, its
        turn is waited for too.
        """
        disk = self._registry.journal_writer.disk
        for one in ended:
            recorded = one.session.reached(SessionPhase.RECORDED)
            if one.node.kind == "session" and one.is_awaited and not await disk.wait_unless_down(recorded):
                return False
        calls = [one.node.id for one in ended if one.call is not None]
        turns = dict.fromkeys(one.rpartition(":c")[0] for one in (*calls, target))
        for turn_id in [one for one in turns if one in self._registry.entities]:
            if not await self._wait_durable():
                return False
            await self._registry.wait_processed(turn_id)
        return await self._wait_durable()

    async def _wait_durable(self) -> bool:
        """Wait until all records of now are durable; return ``False`` if the journal cannot be written."""
        durable, journal_writer = OneShotEvent(), self._registry.journal_writer
        journal_writer.when_durable(durable.set)
        return await journal_writer.disk.wait_unless_down(durable) and journal_writer.error is None
