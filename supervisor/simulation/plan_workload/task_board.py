"""Tasks as an operator's screen shows them: states and holders by name, read from durable records."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from supervisor.ports import Append


class _Task(msgspec.Struct):
    """A task: its name in its plan, its state, and its holder."""

    name: str
    state: str
    whole: str
    """Name of the task of the plan that this task was split from; the task's own name if it is no subtask."""
    holder: str = ""
    run: str = ""
    """State of its newest run."""


class TaskBoard:
    """Tasks of all plans of a run. Where several have one name, the newest is shown."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Task] = {}
        self._by_entity: dict[str, _Task] = {}
        """Tasks by the id of the task or of its run."""

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
        """Names of the tasks in that state: those in *wholes*, and all that were split from them."""
        return [name for name, task in self._by_name.items() if task.state == state and task.whole in wholes]

    def cooling(self, wholes: Collection[str]) -> list[str]:
        """The same for tasks whose circuit is open, or that have failed."""
        return [
            name
            for name, task in self._by_name.items()
            if task.whole in wholes and (task.run == "CIRCUIT_OPEN" or task.state == "FAILED")
        ]

    def whose(self, entity_id: str) -> tuple[str, str] | None:
        """Name and holder of the task that an entity is, or is the run of."""
        task = self._by_entity.get(entity_id)
        return (task.name, task.holder) if task is not None else None
