"""The word for the end of a task, a session or the run of a plan, from the journal's rows. Pure.

Every view takes the word from here: the lines and the table of ``run``, ``tree``, ``ps``, ``wait``, and their JSON. The
words are those of :class:`~supervisor.lifecycles.task.TaskEnd`. A session that worked for a task until the task ended
has the word of the task: the plan may end a session by an abort although nobody decided an abort, and it closes a
session as completed although its task has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from supervisor.lifecycles.task import ENDS_WELL, SESSION_ENDS, TaskEnd, task_end
from supervisor.lifecycles.types import Kind
from supervisor.lifecycles.workstream import Workstream
from supervisor.ports import EntityRow

_ENDS_OF_TASKS: Final = {reason: end.value for end, reason in SESSION_ENDS.items()}
"""Word for the end of a session's task, by the reason with which the session was closed."""

_NOTHING: Final[Mapping[str, Mapping[str, Any]]] = {}


class EndedSession(NamedTuple):
    """Session that has ended: its parent (``None``: it was a root session), its agent, the word for its end
    (``completed``, ``failed``, ``aborted`` or ``cancelled``) with the reason, and the Unix times of its first and its
    last record."""

    id: str
    parent: str | None
    agent: str
    outcome: str
    reason: str
    started_at: float
    ended_at: float


def ended_sessions(rows: Sequence[EntityRow]) -> list[EndedSession]:
    """Return the sessions among all *rows* that have ended, in the order in which they ended."""
    outcomes = Outcomes(rows)
    found = [row for row in rows if row.kind == Kind.SESSION and row.ended]
    return [
        EndedSession(
            row.id,
            row.parent_id,
            str(data_of(row).get("agent", "")),
            outcomes.of(row),
            outcomes.reason(row),
            row.born_at,
            row.changed_at,
        )
        for row in sorted(found, key=lambda row: row.changed_at)
    ]


def data_of(row: EntityRow) -> Mapping[str, Any]:
    """Return the stored data of an entity as a mapping; an empty mapping if the data is not a JSON object."""
    data = msgspec.json.decode(row.data) if row.data else {}
    return data if isinstance(data, dict) else {}


class Outcomes:
    """Words for the ends of the entities among *rows*. *data* are the stored data of entities by id, where the caller
    has decoded them."""

    def __init__(self, rows: Iterable[EntityRow], data: Mapping[str, Mapping[str, Any]] = _NOTHING) -> None:
        self._data = data
        self._of_tasks: dict[str, list[str]] = {}
        self._of_holders: dict[str, str] = {}
        for row in rows:
            if row.kind == Kind.TASK:
                values = self._data_of(row)
                end = task_end(row.state, str(values.get("ended_as", "")))
                self._of_tasks.setdefault(str(values.get("workstream", "")), []).append(end)
                if values.get("claimed_by"):
                    self._of_holders[str(values["claimed_by"])] = end

    def _data_of(self, row: EntityRow) -> Mapping[str, Any]:
        found = self._data.get(row.id)
        return data_of(row) if found is None else found

    def of(self, row: EntityRow) -> str:
        """Return the word for the end of an entity, or ``""`` for an entity that neither has ended nor is ending, and
        for an entity of another kind."""
        match row.kind:
            case Kind.TASK:
                return task_end(row.state, str(self._data_of(row).get("ended_as", "")))
            case Kind.WORKSTREAM:
                return self._of_run(row)
            case Kind.SESSION:
                data = self._data_of(row)
                own = str(data.get("outcome") or "")
                of_task = _ENDS_OF_TASKS.get(str(data.get("last_error") or ""), "")
                return own and (self._of_holders.get(row.id) or of_task or own)
        return ""

    def of_tasks(self, run_id: str) -> Sequence[str]:
        """Return the word for the end of each task of a run, ``""`` for a task that has not ended."""
        return self._of_tasks.get(run_id, ())

    def reason(self, row: EntityRow) -> str:
        """Return the reason for the end of a session; ``""`` for a session that was closed for the end of its task,
        since the word says that."""
        reason = str(self._data_of(row).get("last_error") or "")
        return "" if reason in _ENDS_OF_TASKS else reason

    def _of_run(self, row: EntityRow) -> str:
        match row.state:
            case Workstream.COMPLETED.value:
                return TaskEnd.COMPLETED.value
            case Workstream.FAILED.value:
                return TaskEnd.FAILED.value
            case Workstream.CANCELLED.value:
                # A task that was rejected has ended well, and its workstream counts it as cancelled.
                ends = self.of_tasks(row.id)
                is_well = len(ends) == self._data_of(row).get("tasks") and ENDS_WELL.issuperset(ends)
                return (TaskEnd.COMPLETED if is_well else TaskEnd.CANCELLED).value
        return ""
