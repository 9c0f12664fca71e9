"""Find the task of a running plan, or the session that works on it, that an id in a request means.

A task is named by its name in the plan, or, in one word, by ``RUN#TASK``. A name means the task of the only running
plan that has such a task; where several have one, nothing is done, and the error names the ids. Where a session or a
call is wanted, ``RUN#TASK`` stands for the session that works on the task, or worked on it last, and may be followed by
a slash and a child session, or a colon and a turn or call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from supervisor.lifecycles.run_ids import ambiguous_task, read_id
from supervisor.lifecycles.types import InvalidArgument, Kind, NoSuchEntity
from supervisor.plans.task_control import WorkControl
from supervisor.runtime.entity import Entity, Refused

if TYPE_CHECKING:
    from supervisor.sessions.registry import SessionRegistry


class UnknownTask(LookupError):
    """Error: a run that does not go on here, or a task that the run does not have."""


async def find_task(plans: Sequence[WorkControl], text: str) -> tuple[WorkControl, str]:
    """Return the running plan that has the task *text*, and the task's name in the plan.

    Raises:
        UnknownTask: the run does not go on here, or has no such task.
        NoSuchEntity: no running plan has a task of that name.
        InvalidArgument: *text* is no task, or several running plans have a task of that name.
    """
    given = read_id(text)
    if given.run and not given.below:
        work = await find_run(plans, given.run)
        if not work.has(given.name):
            raise UnknownTask(f"run {given.run} has no task {given.name!r}")
        return work, given.name
    found = [(await work.begun(), work) for work in plans]
    having = {run: work for run, work in found if run and work.has(text)}
    if len(having) > 1:
        raise ambiguous_task(text, having)
    if not having:
        raise NoSuchEntity(text)
    return next(iter(having.values())), text


async def find_run(plans: Sequence[WorkControl], run: str) -> WorkControl:
    """Return the running plan whose run has the id *run*.

    Raises:
        UnknownTask: that run does not go on here.
    """
    # A plan that has not begun has no id yet: it is waited for last.
    for work in sorted(plans, key=lambda work: not work.run_id):
        if await work.begun() == run:
            return work
    running = ", ".join(one.run_id for one in plans)
    fix = "what a run that has ended left undone is done by a run that resumes it (--resume)"
    raise UnknownTask(f"run {run!r} does not go on here, only {running}; {fix}")


async def find_only_run(plans: Sequence[WorkControl], run: str) -> WorkControl:
    """Return the running plan whose run has the id *run*; with ``""`` the only one.

    Raises:
        UnknownTask: that run does not go on here.
        InvalidArgument: no run is named, and several go on.
    """
    if not run and len(plans) > 1:
        running = [begun for work in plans if (begun := await work.begun())]
        raise InvalidArgument(f"run: missing, and several runs go on; name one of {', '.join(running)}")
    return await find_run(plans, run) if run else plans[0]


def find_session(registry: SessionRegistry, text: str) -> str:
    """Return the id of the session, turn or call that *text* means; an id of another form is returned as it is.

    Raises:
        NoSuchEntity: no running plan has that task.
        Refused: no session has worked on the task yet.
        InvalidArgument: *text* is not an id, or several running plans have a task of that name.
    """
    given = read_id(text)
    if given.run and not given.is_task_run_or_job:
        holder = _holder(registry.entity(given.task_id))
        if not holder:
            raise Refused(f"no session has worked on the task {given.task_id} yet; cancel the task instead")
        return f"{holder}{given.below}"
    task = None if given.run or given.below else _find_named(registry, text)
    return text if task is None else _holder(task) or text


def find_entity(registry: SessionRegistry, text: str) -> str:
    """Return the id of the live entity, or of the call, that *text* means: of the name of a task the session that works
    on the task, or the task itself while no session does. An id of another form is returned as it is.

    Raises:
        NoSuchEntity, Refused, InvalidArgument: as for :func:`find_session`.
    """
    given = read_id(text)
    if given.below:
        return find_session(registry, text)
    task = None if given.run else _find_named(registry, text)
    if task is None:
        return text
    return holder if (holder := _holder(task)) in registry.sessions else task.id


def _holder(task: Entity) -> str:
    holder: str = task.data.claimed_by
    return holder


def _find_named(registry: SessionRegistry, name: str) -> Entity | None:
    """Return the task of the only running plan that has a task of that name; ``None`` if a live session has the name,
    or no plan has such a task."""
    tasks = [one for one in registry.entities.values() if one.kind is Kind.TASK and one.data.name == name]
    if len(tasks) > 1:
        raise ambiguous_task(name, [task.data.workstream for task in tasks])
    return tasks[0] if tasks and name not in registry.sessions else None
