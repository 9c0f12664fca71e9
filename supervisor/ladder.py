"""The end of a session's scope, rung by rung: request, cancel, terminate, kill, abandon.

Each rung has a budget, and the next begins when it is used up. The first two are climbed here; terminate and kill
are the shielded end of every process context, so they happen however a scope is left. A hurried end starts at kill.
Nothing here waits for a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from supervisor.abort import ProcessFate, RungsDue, rungs_due
from supervisor.ledger import Cause
from supervisor.lifecycles.events import Ended, OperatorStop
from supervisor.tree import EndReport, Tree, Work
from supervisor.vocabulary import AbortReason, CancelMode, Exit, Rung, TransitionReason, Verdict

__all__ = ["climb", "highest"]

SLACK_S = 5.0
"""What a loaded machine may add to the terminate and kill rungs before a scope is given up."""

RECORDED_S = 60.0
"""How long a session's last record waits for those of its turns and agents: they need a disk, its end does not."""


async def climb(tree: Tree, work: Work, cause: Cause, abort_id: str | None) -> None:
    """Join everything below a session, then write its last record."""
    rungs = _Rungs(tree, work, cause, abort_id)
    rungs.end_children()
    rung = await rungs.climb()
    survivors = sum(abs(fate.survivors) for fate in work.fates)
    took_s = anyio.current_time() - rungs.began
    work.report = EndReport(rung, took_s, tree.ledger.clock.wall.time(), survivors)
    work.over.set()
    with anyio.move_on_after(RECORDED_S):
        for below in tree.system.children(work.session_id):
            await tree.buried(below)
    ended = Ended(rung=rung.value, took_s=round(took_s, 6), survivors=survivors)
    tree.tell(work.session_id, ended, cause=cause)


class _Rungs:
    """One session's way up the ladder. How long each rung may take is looked up again whenever its end is pressed."""

    def __init__(self, tree: Tree, work: Work, cause: Cause, abort_id: str | None) -> None:
        self.began = anyio.current_time()
        self._tree, self._work = tree, work
        self._cause, self._abort_id = cause, abort_id
        self._fates_before = len(work.fates)
        self._requested: list[Work] = []

    # ------------------------------------------------------------------ what is below
    def end_children(self) -> None:
        """Tell the child sessions, each as its cancel mode says; who may outlive this session gets another parent."""
        for child in self._tree.children_of(self._work.session_id):
            if child.mode is not CancelMode.ABANDON:
                self._tell(child)
            if child.mode is not CancelMode.WAIT_COMPLETED:
                self._tree.rehome(child, self._cause, self._abort_id)
            if child.mode is CancelMode.WAIT_REQUESTED:
                self._requested.append(child)

    def _tell(self, child: Work) -> None:
        stop = OperatorStop(
            reason=f"its parent {self._work.session_id} ended",
            abort_id=self._abort_id,
            abort_reason=AbortReason.PARENT_ABORTED,
            transition_reason=TransitionReason.ABORTED,
        )
        waits = child.mode is CancelMode.WAIT_COMPLETED
        within_s = self.began + self._due.kill_s - anyio.current_time() if waits else None
        self._tree.end(child.session_id, stop, cause=self._cause, within_s=within_s)

    # ------------------------------------------------------------------ rung by rung
    @property
    def _due(self) -> RungsDue:
        asked = self._work.asked
        within_s = asked.deadline - self.began if asked is not None else None
        return rungs_due(self._work.policy.ladder, within_s)

    async def climb(self) -> Rung:
        """Up to the rung that ends it."""
        work = self._work
        if not work.hurried.is_set():
            if work.link is not None:
                work.link.finish()
            if await self._joined(lambda: self._due.request_s):
                return Rung.REQUEST
        if not work.hurried.is_set():
            self._tree.cancel_scope(work.session_id, self._abort_id or Rung.CANCEL)
            if await self._joined(self._give_way_s):
                return highest(work.fates[self._fates_before :])
        if work.link is not None:
            intent = Verdict(exit=Exit.ERROR, error="it was ended at once", abort_reason=AbortReason.SHUTDOWN_SIGNAL)
            work.link.kill(intent)
        self._tree.cancel_scope(work.session_id, self._abort_id or Rung.KILL)
        bound_s = anyio.current_time() - self.began + work.policy.ladder.kill_s + SLACK_S
        return Rung.KILL if await self._joined(lambda: bound_s, at_once=True) else Rung.ABANDON

    def _give_way_s(self) -> float:
        """Process contexts climb terminate and kill by themselves; where there is no time for that, they are told."""
        due = self._due
        return due.terminate_s if due.kill_s < self._work.policy.ladder.total_s else due.kill_s + SLACK_S

    async def _joined(self, bound_s: Callable[[], float], *, at_once: bool = False) -> bool:
        """Wait until the session's tasks and its children have ended; ``False`` if time or patience ran out first.

        *bound_s* counts from the beginning of the climb; *at_once*: it cannot be hurried any more.
        """
        done = False
        work = self._work

        async def join(scope: anyio.CancelScope) -> None:
            nonlocal done
            for child in self._requested:
                await child.heard.wait()
            for child in self._tree.children_of(work.session_id):
                await child.over.wait()
            await work.quiet()
            done = True
            scope.cancel()

        async def heed(bound: anyio.CancelScope) -> None:
            while at_once or not work.hurried.is_set():
                await work.pressed.wait()
                bound.deadline = self.began + bound_s()
                for child in self._tree.children_of(work.session_id):
                    self._tell(child)
            bound.cancel()

        with anyio.CancelScope(deadline=self.began + bound_s()) as bound:
            async with anyio.create_task_group() as group:
                group.start_soon(join, group.cancel_scope)
                group.start_soon(heed, bound)
        return done


def highest(fates: Sequence[ProcessFate]) -> Rung:
    """The rung that it took to end these processes, once their scope was cancelled."""
    ended_by = {fate.ended_by for fate in fates}
    if "kill" in ended_by:
        return Rung.KILL
    return Rung.TERMINATE if "terminate" in ended_by else Rung.CANCEL
