"""Tasks as an operator's screen shows them: states and holders by name, read from durable records."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from supervisor.ports import Append


class _Task(msgspec.Struct):
    """Task on the board: name in its plan, state, and holder (the session that works on the task)."""

    name: str
    state: str
    whole: str
    """Name of the plan's task from which this task was split; the task's own name if the task is not a subtask."""
    holder: str = ""
    run: str = ""
    """State of the task's newest task run."""


class TaskBoard:
    """Board with the tasks of all plans of a simulated run. If several tasks have one name, the newest is shown."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Task] = {}
        self._by_entity: dict[str, _Task] = {}
        """Tasks by the entity id of the task, and by that of its task run."""

    def wrote(self, one: Append) -> None:
        """Take in a durable record."""
        record = one.record
        if record.entity_type == "task":
            if record.outcome == "born":
                name, above = str(record.metadata["name"]), self._by_entity.get(str(record.metadata["part_of"]))
                task = _Task(name, one.state, above.whole if above is not None else name)
                self._by_name[name] = self._by_entity[record.entity_id] = task
            task = self._by_entity[record.entity_id]
            task.state = one.state
            if record.event == "claimed" and record.outcome == "transition":
                task.holder = str(record.metadata["by"])
        elif record.entity_type == "run":
            if record.outcome == "born":
                self._by_entity[record.entity_id] = self._by_entity[str(record.metadata["task"])]
            self._by_entity[record.entity_id].run = one.state

    def waiting(self, state: str, wholes: Collection[str]) -> list[str]:
        """Return the names of the tasks in this state, out of the tasks in *wholes* and their subtasks."""
        return [name for name, task in self._by_name.items() if task.state == state and task.whole in wholes]

    def cooling(self, wholes: Collection[str]) -> list[str]:
        """Return the names of the tasks that have failed or whose circuit is open, out of the tasks in *wholes* and
        their subtasks."""
        return [
            name
            for name, task in self._by_name.items()
            if task.whole in wholes and (task.run == "CIRCUIT_OPEN" or task.state == "FAILED")
        ]

    def whose(self, entity_id: str) -> tuple[str, str] | None:
        """Return name and holder of a task, given the entity id of the task or of its task run; ``None`` for other
        entities."""
        task = self._by_entity.get(entity_id)
        return (task.name, task.holder) if task is not None else None
