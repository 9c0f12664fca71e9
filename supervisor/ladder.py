"""The end of a session's scope, rung by rung: request, cancel, terminate, kill, abandon.

Each rung has a budget, and the next begins when it is used up. The first two are climbed here; terminate and kill
are the shielded end of every process context, so they happen however a scope is left. A hurried end starts at kill.
Nothing here waits for a disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from supervisor.abort import ProcessFate
from supervisor.ledger import Cause
from supervisor.lifecycles.events import Ended, OperatorStop
from supervisor.tree import EndReport, Tree, Work
from supervisor.vocabulary import AbortReason, Exit, Rung, TransitionReason, Verdict

__all__ = ["climb", "highest"]

SLACK_S = 5.0
"""What a loaded machine may add to the terminate and kill rungs before a scope is given up."""

RECORDED_S = 60.0
"""How long a session's last record waits for those of its turns and agents: they need a disk, its end does not."""


async def climb(tree: Tree, work: Work, cause: Cause, abort_id: str | None) -> None:
    """Join everything below a session, then write its last record."""
    began, before = anyio.current_time(), len(work.fates)
    _end_children(tree, work, cause, abort_id)
    rung = await _ascend(tree, work, abort_id)
    if rung is Rung.CANCEL:
        rung = highest(work.fates[before:])
    survivors = sum(abs(fate.survivors) for fate in work.fates)
    took_s = anyio.current_time() - began
    work.report = EndReport(rung, took_s, tree.ledger.clock.wall.time(), survivors)
    work.over.set()
    with anyio.move_on_after(RECORDED_S):
        for below in tree.system.children(work.session_id):
            await tree.buried(below)
    ended = Ended(rung=rung.value, took_s=round(took_s, 6), survivors=survivors)
    tree.tell(work.session_id, ended, cause=cause)


def _end_children(tree: Tree, work: Work, cause: Cause, abort_id: str | None) -> None:
    for child in tree.children_of(work.session_id):
        stop = OperatorStop(
            reason=f"its parent {work.session_id} ended",
            abort_id=abort_id,
            abort_reason=AbortReason.PARENT_ABORTED,
            transition_reason=TransitionReason.ABORTED,
        )
        tree.end(child.session_id, stop, cause=cause)


async def _ascend(tree: Tree, work: Work, abort_id: str | None) -> Rung:
    ladder = work.policy.ladder
    if not work.hurried.is_set():
        if work.link is not None:
            work.link.finish()
        if await _joined(tree, work, ladder.request_s, work.hurried.wait):
            return Rung.REQUEST
        if not work.hurried.is_set():
            tree.cancel_scope(work.session_id, abort_id or Rung.CANCEL)
            bound_s = ladder.cancel_s + ladder.terminate_s + ladder.kill_s + SLACK_S
            if await _joined(tree, work, bound_s, work.hurried.wait):
                return Rung.CANCEL
    if work.link is not None:
        work.link.kill(Verdict(exit=Exit.ERROR, error="it was ended at once", abort_reason=AbortReason.SHUTDOWN_SIGNAL))
    tree.cancel_scope(work.session_id, abort_id or Rung.KILL)
    if await _joined(tree, work, ladder.kill_s + SLACK_S, None):
        return Rung.KILL
    return Rung.ABANDON


async def _joined(tree: Tree, work: Work, within_s: float, unless: Callable[[], Awaitable[None]] | None) -> bool:
    """Wait until the session's tasks and its children have ended; ``False`` if time or patience ran out first."""
    done = False

    async def join(scope: anyio.CancelScope) -> None:
        nonlocal done
        for child in tree.children_of(work.session_id):
            await child.over.wait()
        await work.quiet()
        done = True
        scope.cancel()

    async def watch(scope: anyio.CancelScope, until: Callable[[], Awaitable[None]]) -> None:
        await until()
        scope.cancel()

    with anyio.move_on_after(within_s):
        async with anyio.create_task_group() as group:
            group.start_soon(join, group.cancel_scope)
            if unless is not None:
                group.start_soon(watch, group.cancel_scope, unless)
    return done


def highest(fates: Sequence[ProcessFate]) -> Rung:
    """The rung that it took to end these processes, once their scope was cancelled."""
    ended_by = {fate.ended_by for fate in fates}
    if "kill" in ended_by:
        return Rung.KILL
    return Rung.TERMINATE if "terminate" in ended_by else Rung.CANCEL
