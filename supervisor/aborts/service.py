"""From a wish to abort to its receipt: a plan of the tree as it is, carried out, joined, or refused.

What a wish is about may have ended, be ending, or have changed since it was planned; which of them is decided before
anything here waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from supervisor.aborts.executor import AbortExecutor
from supervisor.diagnostics.causal_trace import split_call
from supervisor.lifecycles.types import AbortReason, AbortScope, Kind, Survivors
from supervisor.policies.abort_plan import AbortPlan, Receipt, UnknownTarget, plan_abort, scope_of, total_survivors
from supervisor.ports import Journal
from supervisor.runtime.entity import Refused
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.live_session import LiveSession

__all__ = ["AbortService"]


class AbortService:
    """The aborts of one supervisor. *over* waits for a session's last record, or, while the disk is down, for its end;
    whether the record is durable."""

    def __init__(
        self, registry: EntityRegistry, journal: Journal, over: Callable[[LiveSession], Awaitable[bool]]
    ) -> None:
        self._registry = registry
        self._journal = journal
        self._over = over
        self._aborter = AbortExecutor(registry)

    def plan(self, target: str, scope: AbortScope | str, *, now: bool = False) -> AbortPlan:
        """What an abort would end, without ending anything; with *now*, at once, and also what is ending already.

        Raises:
            UnknownTarget: nothing alive has that id.
            UnknownWord: no scope has that name.
            NoSiblings: SIBLING of a root session.
        """
        return plan_abort(self._registry.abort_tree(hurry=now), target, scope, now=now)

    async def _has_ended(self, target: str) -> bool:
        """True if the journal knows *target*: a session, or a tool call of one of its turns."""
        turn_id, number = split_call(target)
        if any(row.kind == Kind.SESSION for row in await self._journal.entities(ids=[target])):
            return True
        if number is None:
            return False
        events = await self._journal.events(entity_id=turn_id)
        return any(event.event == "tool_started" and event.metadata.get("number") == number for event in events)

    async def abort(
        self,
        target: str,
        scope: AbortScope | str,
        *,
        reason: str,
        actor: str,
        now: bool = False,
        within_s: float | None = None,
        plan_id: str | None = None,
    ) -> Receipt:
        """End what the scope reaches from *target*; the receipt says how. What has ended is no error.

        Args:
            now: start at the kill rung, also where an earlier abort is still climbing towards it.
            within_s: have less patience than the ladders; the gentlest rungs give way first.
            plan_id: only if it would do exactly what the plan of that id said.

        Raises:
            UnknownTarget: nothing alive has that id, and nothing that has ended had.
            UnknownWord: no scope has that name.
            NoSiblings: SIBLING of a root session.
            Refused: the plan of that id would not be carried out; nothing was ended.
        """
        scope = scope_of(scope)
        if within_s is not None and not within_s >= 0:
            raise ValueError(f"within_s: {within_s!r} is no time to end in; give seconds, 0 or more")
        try:
            plan = self.plan(target, scope, now=now)
        except UnknownTarget:
            if not await self._has_ended(target):
                raise
            survivors = self._survivors_of(target)
            return Receipt(
                abort_id="", target=target, scope=scope, reason="already_ended", already_ended=True, survivors=survivors
            )
        if plan_id is not None and plan_id not in self._plan_ids(plan, now):
            words = f"plan {plan_id} would not be carried out: the tree has changed since, the plan is {plan.id} now"
            raise Refused(f"{words}; look at it with --dry-run")
        return await self._carry_out(plan, reason, actor, now, within_s)

    def _survivors_of(self, call: str) -> Survivors:
        """Sum up what is left of a call that has ended, in a session that may go on: its processes may live."""
        session = self._registry.sessions.get(call.partition(":")[0])
        last = {one.pid: one.survivors for one in session.fates if one.owner == call} if session is not None else {}
        return total_survivors(last.values())

    def abort_session(self, session_id: str, reason: str, actor: str, because: int, blamed: AbortReason) -> None:
        """End a session with all below it, for that record's sake; nobody waits for a receipt. What is ending already
        needs no other reason. Await-free.
        """
        with suppress(UnknownTarget):
            plan = self.plan(session_id, AbortScope.SESSION)
            if not plan.already_ended:
                self._aborter.abort_session(plan, reason=reason, actor=actor, because=because, blamed=blamed)

    def _plan_ids(self, plan: AbortPlan, now: bool) -> list[str]:
        """The ids that a plan for that target may have now: for who hurries what is ending, and for who does not."""
        return [self.plan(plan.target, plan.scope, now=one).id for one in dict.fromkeys((now, False))]

    async def _join(self, plan: AbortPlan, reason: str, actor: str, now: bool, within_s: float | None) -> Receipt:
        """The receipt for what has ended, or is ending: that is waited for, so that the answer is true."""
        joined = self._aborter.join(plan, reason=reason, actor=actor, now=now, within_s=within_s)
        survivors, recorded = list[Survivors](), True
        for session in [self._registry.sessions[one.id] for one in plan.ending if one.id in self._registry.sessions]:
            recorded = await self._over(session) and recorded
            survivors.append(session.report.survivors if session.report is not None else "unknown")
        return Receipt(
            abort_id="",
            target=plan.target,
            scope=plan.scope,
            reason="already_ended",
            already_ended=True,
            survivors=total_survivors(survivors),
            joined=joined,
            outage=None if recorded else self._aborter.outage,
        )

    async def execute(
        self,
        plan: AbortPlan,
        *,
        reason: str,
        actor: str,
        now: bool = False,
        within_s: float | None = None,
    ) -> Receipt:
        """Carry out a plan. Whether it came in time is decided before this first waits.

        Raises:
            Refused: the tree has changed since the plan was made; nothing was ended. Make a new plan.
        """
        if not plan.already_ended and plan.id not in self._plan_ids(plan, now or plan.now):
            raise Refused(f"the tree below {plan.target} has changed since the abort was planned; plan it again")
        return await self._carry_out(plan, reason, actor, now, within_s)

    async def _carry_out(self, plan: AbortPlan, reason: str, actor: str, now: bool, within_s: float | None) -> Receipt:
        """Carry out a plan of the tree as it is."""
        now = now or plan.now
        if plan.already_ended:
            return await self._join(plan, reason, actor, now, within_s)
        return await self._aborter.execute(plan, reason=reason, actor=actor, now=now, within_s=within_s)
