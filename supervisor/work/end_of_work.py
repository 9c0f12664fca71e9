"""Work that a dead supervisor left and that no plan continues: which entities that is, and the records of their ends.

Tasks, task runs, jobs, workers and workstreams are restored as they are (``sessions.restore``). Those that wait for a
run of their plan stay; this module ends the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from actors.machine import Event
from supervisor.lifecycles import worker, workstream
from supervisor.lifecycles.task import Task, TaskData
from supervisor.lifecycles.task_cascade import TABLE_OF, Abandoned, TaskStates, step
from supervisor.lifecycles.types import SUPERVISOR_ENDED, Kind, NoSuchEntity
from supervisor.ports import EntityRow
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Entity, Refused
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.sessions.restore import CAUSE

_log = get_logger()

HELD: Final = frozenset({Task.CLAIMED.value, Task.IN_PROGRESS.value, Task.DONE.value})
"""Names of the states in which a session works, or has worked, on the task."""

LET_GO: Final = frozenset({Task.OPEN.value, Task.BLOCKED.value, Task.FAILED.value, Task.CANCELLED.value})
"""Names of the states in which no session works on the task any more, although its last turn may not be over."""


def at_rest(rows: Sequence[EntityRow]) -> set[str]:
    """Return the ids of failed tasks that are not tried again, since their workstream has ended, and the ids of their
    runs. Recovery leaves these entities unchanged."""
    live = {row.id for row in rows if row.kind == Kind.WORKSTREAM and not row.ended}
    failed = [row for row in rows if (row.kind, row.state) == (Kind.TASK, "FAILED")]
    tasks = {row.id for row in failed if msgspec.json.decode(row.data, type=TaskData).workstream not in live}
    runs = (row for row in rows if (row.kind, row.state) == (Kind.RUN, "CIRCUIT_OPEN"))
    return tasks | {row.id for row in runs if row.parent_id in tasks}


def left_over(rows: Sequence[EntityRow]) -> set[str]:
    """Return the ids of live entities that belong to ended workstreams: tasks, the sessions that hold these tasks, task
    runs, jobs and workers. No plan can continue these entities."""
    over = {row.id for row in rows if row.kind == Kind.WORKSTREAM and row.ended}
    held = {row.id: msgspec.json.decode(row.data, type=TaskData) for row in rows if row.kind == Kind.TASK}
    holders = {task_id: data.claimed_by for task_id, data in held.items() if data.workstream in over}
    ids, owners = {*holders, *holders.values()}, {*holders, *over}
    return {row.id for row in rows if not row.ended and (row.id in ids or row.parent_id in owners)}


def let_go(rows: Iterable[EntityRow]) -> set[str]:
    """Return the ids of the sessions whose tasks were taken from them, or have ended otherwise than completed: a dead
    supervisor was about to end these sessions."""
    tasks = [row for row in rows if row.kind == Kind.TASK]
    found = ((row.state, msgspec.json.decode(row.data, type=TaskData)) for row in tasks)
    return {
        data.last_claimed_by
        for state, data in found
        if data.last_claimed_by and (state in LET_GO or data.claimed_by != data.last_claimed_by)
    }


def holders_of_tasks(rows: Iterable[EntityRow]) -> dict[str, str]:
    """Return the runs of the sessions that work, or have worked, on one of the tasks of plans among the live entities
    *rows*, by the id of the session."""
    held = (row for row in rows if row.kind == Kind.TASK and row.state in HELD)
    tasks = (msgspec.json.decode(row.data, type=TaskData) for row in held)
    return {data.claimed_by: data.workstream for data in tasks if data.workstream}


async def end_work(registry: EntityRegistry, work: Sequence[Entity]) -> None:
    """Record the end of the entities *work*, which no plan continues, and remove them from memory.

    Raises:
        JournalError: the journal failed meanwhile.
    """
    record_end_of_work(registry, work)
    await registry.journal_writer.flush()
    for entity in work:
        registry.remove(entity.id)


def record_end_of_work(registry: EntityRegistry, work: Sequence[Entity]) -> None:
    """Record the ends of the entities *work*, without waiting for the journal.

    Workstreams end first: if the remaining records are lost in a crash, no plan continues a part of a workstream
    (``left_over``). A task ends with its job and its run, in one append; workers end last, after the jobs that they
    held.
    """
    groups: dict[str, list[Entity]] = {}
    for entity in sorted(work, key=lambda one: _ORDER_OF_ENDS.index(one.kind)):
        owner = entity.parent_id if entity.kind in (Kind.JOB, Kind.RUN) else entity.id
        groups.setdefault(owner or "", []).append(entity)
    for group in sorted(groups.values(), key=lambda one: _ORDER_OF_ENDS.index(one[0].kind)):
        moves = [(one.id, event) for one in group for event in _end_of(one, registry)]
        try:
            if moves:
                registry.apply(*moves, cause=CAUSE)
        except NoSuchEntity:  # its actor was lost
            pass
        except Refused as refusal:  # the other groups must end all the same
            _log.error("the end of left work was refused", entities=[one.id for one in group], why=str(refusal))


_ORDER_OF_ENDS: Final = (Kind.WORKSTREAM, Kind.JOB, Kind.RUN, Kind.TASK, Kind.WORKER)


def _end_of(entity: Entity, registry: EntityRegistry) -> Sequence[Event]:
    match entity.kind:
        case Kind.TASK | Kind.RUN | Kind.JOB:
            return _end_of_work(entity, registry.entities.get(entity.parent_id or ""))
        case Kind.WORKER:
            return [worker.SupervisorLost(reason=SUPERVISOR_ENDED)]
        case _ if entity.state is workstream.Workstream.VALIDATING:
            return [workstream.ValidationFailed(error=SUPERVISOR_ENDED)]
        case _:
            return [workstream.UserCancelled(reason=SUPERVISOR_ENDED)]


def _end_of_work(entity: Entity, above: Entity | None) -> list[Event]:
    """Return the events that end a task, run or job that no plan continues; *above* is the task of a run or a job."""
    logs = [entity] if above is None or above.kind is not Kind.TASK else [entity, above]
    events = step(TaskStates.of_logs(logs), Abandoned(reason=SUPERVISOR_ENDED)).events
    return [event for event in events if TABLE_OF[type(event)] == entity.kind]
