"""Takeover of a dead supervisor's sessions and work; settings and the embedding program decide which are continued.

Sessions are continued by ``supervisor.sessions.takeover``. Tasks and the rest of the work are restored as they are and
wait for a run of their plan (``work.plan_recovery``); work that no plan can continue is ended (``work.end_of_work``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from supervisor.host.recovered_work import RecoveredWork
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.types import Kind
from supervisor.plans.earlier_runs import find_earlier_runs
from supervisor.ports import EntityRow, JournalError
from supervisor.runtime.entity import Entity
from supervisor.sessions.restore import Recovered
from supervisor.sessions.takeover import Choice
from supervisor.work.end_of_work import at_rest, end_work, holders_of_tasks, left_over, let_go
from supervisor.work.workstream_export import export_workstream

Choose = Callable[[Sequence[EntityRow]], Collection[str]]
"""Function that returns, given all entities of the journal, the ids of the sessions and tasks that may be continued."""

_WORK: Final = (Kind.WORKSTREAM, Kind.TASK, Kind.RUN, Kind.JOB, Kind.WORKER, Kind.SESSION)
"""Kinds of entities that a plan reads to find out which work it continues."""


async def take_over(sup: SupervisorCore, rows: Sequence[EntityRow], choose: Choose | None = None) -> Recovered:
    """Continue the sessions that an earlier supervisor left, as the setting ``recovery.sessions`` says; stop the other
    sessions. Tasks wait for a run of their plan, or are ended.

    Args:
        sup: the supervisor that takes over.
        rows: every entity of the journal.
        choose: function that returns the ids of the sessions (each with the sessions below it) and tasks that may be
            continued; by default all may.

    Raises:
        JournalError: the journal failed meanwhile.
    """
    among, rests = None if choose is None else choose(rows), at_rest(rows)
    live = [row for row in rows if not row.ended and row.id not in rests]
    holders = holders_of_tasks(live)
    choice = Choice(among, left_over(rows) | let_go(rows), holders)
    recovery = await sup.takeover.restore(rows, live, holders, choice)
    await _end(sup, [one for one in recovery.others if not _stays(one, choice)])
    recovered = await sup.takeover.finish(recovery)
    work = {one.id for one in recovery.others if one.id in sup.registry.entities}
    kept = {row.id: row for row in rows if row.kind in _WORK} if work else {}
    sup.recovered_work = RecoveredWork(work, recovered.answers, kept, find_earlier_runs(rows))
    return recovered


def _stays(work: Entity, choice: Choice) -> bool:
    """Return whether *work* waits for a run of its plan. The setting ``recovery.sessions`` does not decide that: tasks
    keep their states when all sessions are stopped."""
    return choice.admits(work.id) and (work.kind is not Kind.TASK or bool(work.data.workstream))


async def end_recovered_work(sup: SupervisorCore) -> None:
    """End the recovered work that no plan has taken over. A workstream that has passed its validation stays: only its
    merge is left, which a person may request later."""
    with suppress(JournalError):
        left = [sup.registry.entity(one) for one in sorted(sup.recovered_work.work)]
        await _end(sup, [one for one in left if not (one.kind is Kind.WORKSTREAM and one.data.to_merge)])
    sup.recovered_work.work.clear()


async def _end(sup: SupervisorCore, work: Sequence[Entity]) -> None:
    """End the entities *work*, and write the records of the workstreams among them into the archive.

    Raises:
        JournalError: the journal failed meanwhile.
    """
    await end_work(sup.registry, work)
    for one in work:
        if one.kind is Kind.WORKSTREAM:
            await export_workstream(sup, one.id, one.born_seq)
