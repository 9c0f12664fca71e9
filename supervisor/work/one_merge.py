"""The one merge of a workstream: its plan, the merge of its branch into the target, and what becomes of the branch.

Theory of operation
-------------------
Where a plan says ``merge: once``, the work of each task is merged into the branch of the workstream, and the target
stays as it was until the end::

    all tasks completed     the final validation runs on the last commit of the branch
    it has passed           the merge plan with that commit is recorded (``MergePlanned``): nothing is tested again
    merged                  ``ValidationPassed``; the branch is removed
    an obstacle             the workstream is held, and the merge is made again, as that of a task (rule 48)
    a conflict, a failure   the workstream stays VALIDATING and held, with the command that helps; its run is over

A supervisor that is killed in between leaves a workstream that is VALIDATING. The next run of the plan, or ``supervisor
merge RUN``, makes only the merge; if the merge had been made, there is nothing to merge.

The branch of a workstream that has failed or was cancelled stays, with the work of the tasks that were completed.
``supervisor merge RUN`` merges that, too, and a run that resumes the workstream goes on upon it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec

from supervisor.diagnostics.merge_plan import conflict_fix
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.task import ENDS_WELL, TaskEnd
from supervisor.lifecycles.types import HeldBy, Kind, LifecycleEvent, NoSuchEntity
from supervisor.lifecycles.workstream import ValidationPassed, Workstream, WorkstreamData
from supervisor.ports import EntityRow, Merge, MergePlan, WorkspaceHeld, WorkspaceSpec
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.sessions.journal_state import entity_of, records_of
from supervisor.sessions.obstacles import outlast_obstacles
from supervisor.work.plan_run import PlanRun
from supervisor.work.reporting import results_of_rows
from supervisor.work.workstream import MERGE_PLAN, WHOLE_MERGED, WorkstreamEntity
from supervisor.work.workstream_export import export_workstream

_log = get_logger()


# ------------------------------------------------------------------------------------------------------- in a run
async def merge_whole(plan_run: PlanRun, commit: str) -> str:
    """Merge the branch of a workstream that is VALIDATING, and end the workstream. Return the reason why the branch is
    not merged, with the command that helps; ``""`` if it is.

    Args:
        plan_run: the run of the workstream.
        commit: the commit that has just passed the final validation; ``""``: the validation passed under an earlier
            supervisor, and what a person has added to the branch since is merged, too.
    """
    sup, workstream = plan_run.sup, plan_run.workstream
    try:
        plan = await _plan(sup, workstream.id, commit, workstream.data.to_merge)
    except Refused as refusal:
        return _refuse(workstream, str(refusal), f"supervisor merge {workstream.id}")
    plan = _with_tasks(plan, _ends(plan_run))
    workstream.note_merge_plan(plan)
    await sup.journal_writer.flush()  # before the merge: whoever goes on must not test again what may be merged
    do = partial(sup.verification.merge, workstream.id, _message(plan, plan_run.plan.workstream), plan.commit)
    clock = sup.journal_writer.clock.wall
    try:
        merge = await outlast_obstacles(do, workstream.note_obstacle, clock, sup.stopping, workstream.data.held_by)
    except WorkspaceHeld as held:  # the supervisor is ending
        return f"not merged yet: {held}; then: supervisor merge {workstream.id}"
    if merge.outcome == "refused":
        return _refuse(workstream, *_obstacle_words(plan, merge))
    await workstream.record_validated("", _sentence(plan, merge))
    return ""


def _refuse(workstream: WorkstreamEntity, what: str, fix: str) -> str:
    """Record that only a person can go on with the merge; return the reason."""
    workstream.note_obstacle(HeldBy(what=what, fix=fix))
    return f"not merged: {what}; {fix}"


async def leave_branch(plan_run: PlanRun) -> str:
    """Remove the branch of a workstream that has ended, and that of the one that it resumes, unless only the branch has
    the work: then record what could be merged, and return the name of the branch. ``""``: nothing is left."""
    sup, workstream = plan_run.sup, plan_run.workstream
    branch = workstream.branch
    if branch is None:
        return ""
    if workstream.state is Workstream.VALIDATING:
        return branch.name
    left = await _clean_up(sup, workstream.id, workstream.resumes, branch.directory)
    if left:
        try:
            workstream.note_merge_plan(_with_tasks(await _plan(sup, workstream.id, "", ""), _ends(plan_run)))
        except Refused as refusal:
            _log.warning("the merge of a run could not be planned", run=workstream.id, why=str(refusal))
    return left


async def _clean_up(sup: SupervisorCore, run: str, resumes: str, directory: str) -> str:
    """Remove the branches of a run and of the run that it resumes, and checkpoints, as far as the target has them."""
    left = await sup.cleanup.clean_up(run, "")
    if resumes:
        await sup.cleanup.clean_up(resumes, "")
    await sup.verification.forget(WorkspaceSpec(directory=directory, workstream=run))
    return left.branch


async def _plan(sup: SupervisorCore, run: str, commit: str, to_merge: str) -> MergePlan:
    """Return the plan of the merge of *commit*, or of the whole branch; if the branch is gone, of *to_merge*, which the
    target may have by now.

    Raises:
        Refused: the branch is gone, or git fails.
    """
    try:
        plan = await sup.verification.plan_merge(run, commit)
    except Refused:
        if not to_merge:
            raise
        plan = await sup.verification.plan_merge(run, to_merge)
    return msgspec.structs.replace(plan, run=run)


def _ends(plan_run: PlanRun) -> Iterable[tuple[str, str]]:
    """Yield the name and the word for the end of each task of a run that is over."""
    for one in plan_run.executions.values():
        yield one.name, one.result.outcome if one.result is not None else TaskEnd.CANCELLED.value


def _with_tasks(plan: MergePlan, ends: Iterable[tuple[str, str]]) -> MergePlan:
    """Return *plan* with the tasks whose work is on the branch, and those that are left out, by the *ends* of all."""
    found = dict(ends)
    tasks = tuple(name for name, end in found.items() if end == TaskEnd.COMPLETED)
    left_out = tuple(f"{name} ({end or 'open'})" for name, end in found.items() if end not in ENDS_WELL)
    return msgspec.structs.replace(plan, tasks=tasks, left_out=left_out)


def _message(plan: MergePlan, name: str) -> str:
    """Return the message of the merge commit: one line, and a line for each task."""
    count = f"{len(plan.tasks)} task{'' if len(plan.tasks) == 1 else 's'}"
    tasks = ["", *(f"- {one}" for one in plan.tasks)] if plan.tasks else []
    return "\n".join([f"{plan.run}: {name}, {count}", *tasks])


def _sentence(plan: MergePlan, merge: Merge) -> str:
    if merge.outcome == "merged":
        return f"merged into {merge.target} as {merge.commit[:12]}"
    return f"nothing to merge: {merge.why}"


def _obstacle_words(plan: MergePlan, merge: Merge) -> tuple[str, str]:
    """Return what refuses the merge, and the command that helps."""
    if merge.conflicts:
        return f"{plan.branch} is {merge.why}", conflict_fix(plan)
    words = f"{plan.branch} cannot be merged into {plan.target}: {merge.why}"
    return words, f"mend that, then: supervisor merge {plan.run}"


# ----------------------------------------------------------------------------------------- by a person's command
async def merge_run(
    sup: SupervisorCore, run: str, *, by: str, dry_run: bool = False, commit: str = ""
) -> tuple[MergePlan, str]:
    """Merge the branch of a run that has ended, or whose merge is held, into the target. Return the merge plan, and a
    sentence about the merge; with *dry_run* only the plan, and nothing is merged. If *commit* is given, the branch must
    be there.

    Raises:
        NoSuchEntity: the journal has no such run.
        Refused: the run has no branch, it goes on, another run has its work, or the merge is refused.
    """
    await sup.journal_writer.durable()
    rows = await sup.journal.entities()
    row = next((one for one in rows if one.id == run and one.kind == Kind.WORKSTREAM), None)
    if row is None:
        raise NoSuchEntity(run)
    data = msgspec.json.decode(row.data, type=WorkstreamData)
    records = await records_of(sup.journal, run)
    _check_mergeable(sup, row, data, rows, records)
    plan = await _plan(sup, run, "", data.to_merge)
    recorded = [msgspec.convert(one.metadata, MergePlan) for one in records if one.event == MERGE_PLAN]
    if recorded:
        plan = msgspec.structs.replace(plan, tasks=recorded[-1].tasks, left_out=recorded[-1].left_out)
    else:
        plan = _with_tasks(plan, ((one.id, one.outcome) for one in results_of_rows(rows, run, None)))
    if dry_run:
        return plan, ""
    if commit not in ("", plan.commit):
        now = f"{plan.branch} is at {plan.commit[:12]} by now, and not at {commit[:12]}"
        raise Refused(f"{now}; look at the merge plan again")
    workstream = WorkstreamEntity(sup)
    entity = entity_of(row, sup.journal_writer) if row.ended else sup.registry.entity(run)
    workstream.take_up_at(entity, records[-1].seq)
    workstream.note_merge_request(by, plan)
    await sup.journal_writer.flush()
    merge = await _merge_now(sup, plan, data.name)
    await workstream.record_merged_whole(_sentence(plan, merge))
    if data.branch is not None:
        await _clean_up(sup, run, data.resumes, data.branch.directory)
    await export_workstream(sup, run, row.born_seq)
    sup.recovered_work.work.discard(run)
    workstream.remove()
    return plan, _sentence(plan, merge)


async def _merge_now(sup: SupervisorCore, plan: MergePlan, name: str) -> Merge:
    """Merge once, without waiting for an obstacle: a person waits for the reply.

    Raises:
        Refused: the merge is refused, or something outside of the work holds it.
    """
    try:
        merge = await sup.verification.merge(plan.run, _message(plan, name), plan.commit)
    except WorkspaceHeld as held:
        raise Refused(f"run {plan.run} is not merged: {held}; then: supervisor merge {plan.run}") from held
    if merge.outcome == "refused":
        raise Refused(f"run {plan.run} is not merged: {'; '.join(_obstacle_words(plan, merge))}")
    return merge


def _check_mergeable(
    sup: SupervisorCore,
    row: EntityRow,
    data: WorkstreamData,
    rows: Iterable[EntityRow],
    records: Iterable[LifecycleEvent],
) -> None:
    """Check that the run has a branch that is not merged yet, and by nobody else.

    Raises:
        Refused: it has none, it is merged, it goes on, or another run has its work.
    """
    if data.branch is None:
        raise Refused(f"run {row.id} has no branch to merge: its tasks were merged one by one, or worked in place")
    for record in records:
        if record.event in (WHOLE_MERGED, ValidationPassed.spelled):
            raise Refused(f"run {row.id} is done: {record.reason}")
    if any(one.run_id == row.id for one in sup.plan_commands):
        raise Refused(f"run {row.id} goes on, and merges at its end, if its validation passes")
    if not (row.ended or data.to_merge):
        raise Refused(f"run {row.id} was interrupted in the state {row.state}; run its plan again to go on with it")
    for one in rows:
        if one.kind == Kind.WORKSTREAM and one.id != row.id:
            later = msgspec.json.decode(one.data, type=WorkstreamData)
            if later.resumes == row.id and later.branch is not None:
                raise Refused(f"run {row.id} was resumed by {one.id}, which has its work: supervisor merge {one.id}")
