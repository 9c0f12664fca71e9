"""Rows of the run table about work: the workstream, and the tasks that no session works on. Pure.

A claimed task is shown as its session; the task has a row of its own again when it waits for another task or a person,
or was given up.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

from supervisor.diagnostics.task_status import plan_name, settling
from supervisor.lifecycles.types import Kind, LifecycleEvent

_NUMBERED: Final = re.compile(r"-\d+$")
_ASKED: Final = ("PLANNED", "PENDING_APPROVAL")
_ALONE: Final = ("OPEN", "BLOCKED", "WAITING_FOR_SUBTASKS", "FAILED", *_ASKED)
"""States of a task on which no session works, though a session may have claimed it before."""


class TaskRow:
    """State of one task for the table."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ""
        self.waits_for: tuple[str, ...] = ()
        self.claimed = False
        self.attempts, self.attempts_max = 0, 0
        self.trouble = ""
        self.settling = ""
        """Processes of the task's turn that are waited for before its work is verified, and until when."""

    @property
    def alone(self) -> bool:
        """Whether no session is shown for the task."""
        return self.state in _ALONE or not self.claimed

    @property
    def attempt(self) -> str:
        """The current attempt as ``attempt 2 of 5``; ``""`` for the first attempt."""
        return f"attempt {self.attempts} of {self.attempts_max}" if self.attempts > 1 else ""


class WorkTable:
    """State of the workstream and tasks of a run, computed from its records."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskRow] = {}
        self._names: dict[str, TaskRow] = {}
        self._holders: dict[str, TaskRow] = {}
        self._stream, self._state, self._count = "", "", 0

    def take(self, event: LifecycleEvent) -> None:
        """Process the record of a birth or a transition of a workstream, task or task run."""
        match event.entity_type:
            case Kind.WORKSTREAM:
                self._workstream(event)
            case Kind.TASK:
                self._task(event)
            case Kind.RUN:
                self._run(event)

    def _workstream(self, event: LifecycleEvent) -> None:
        if event.outcome == "born":
            self._stream, self._count = plan_name(event.entity_id), int(event.metadata.get("tasks", 0))
        if event.event == "tasks_added":
            self._count += int(event.metadata.get("count", 0))
        self._state = event.to_status

    def _task(self, event: LifecycleEvent) -> None:
        fact = event.metadata
        if event.outcome == "born":
            row = TaskRow(str(fact.get("name") or plan_name(event.entity_id)))
            row.waits_for = tuple(fact.get("waiting_for", ()))
            self.tasks[event.entity_id] = self._names[row.name] = row
        elif (known := self.tasks.get(event.entity_id)) is None:
            return
        else:
            row = known
        row.state = event.to_status
        self._follow(row, event, fact)

    def _follow(self, row: TaskRow, event: LifecycleEvent, fact: dict[str, Any]) -> None:
        match event.event:
            case "claimed":
                row.claimed, row.trouble, row.waits_for = True, "", ()
                self._holders[str(fact.get("by"))] = row
            case "split":
                row.waits_for = tuple(fact.get("subtasks", ()))
            case "blocked":
                row.waits_for = tuple(fact.get("on", ()))
            case "subtask_timed_out":
                row.waits_for = (str(fact.get("subtask")),)
            case "failed" | "verification_rejected" | "approval_denied" | "recovery_failed":
                row.trouble = event.reason

    def _run(self, event: LifecycleEvent) -> None:
        """Process a record of a task run. The id of a run contains the name of its task; later runs of the task also
        have a number."""
        name = plan_name(event.entity_id)
        row = self._names.get(name) or self._names.get(_NUMBERED.sub("", name))
        if row is None:
            return
        row.settling = settling(event.metadata) if event.event == "turn_settling" else ""
        if event.outcome == "born":
            row.attempts, row.attempts_max = 0, int(event.metadata.get("max_attempts", 0))
        elif event.to_status == "IN_PROGRESS" and event.from_status != "IN_PROGRESS":
            row.attempts += 1
        elif event.event in ("execution_failed", "execution_timed_out"):
            row.trouble = str(event.metadata.get("error", ""))
        elif event.to_status == "CIRCUIT_OPEN":
            row.trouble = f"circuit open: {row.trouble}" if row.trouble else "circuit open"

    # ------------------------------------------------------------------ texts
    def headline(self) -> str:
        """Return ``workstream plan: executing, 2 of 6 tasks closed``; ``""`` without a workstream."""
        if not self._stream:
            return ""
        states = Counter(row.state for row in self.tasks.values())
        asked = sum(states[state] for state in _ASKED)
        parts = [f"workstream {self._stream}: {self._state}", f"{states['CLOSED']} of {self._count} tasks closed"]
        parts += [f"{states['FAILED']} failed"] if states["FAILED"] else []
        return ", ".join([*parts, *([f"{asked} to be approved"] if asked else [])])

    def waiting(self) -> dict[str, TaskRow]:
        """Return the tasks that no session works on and that are not closed, by id."""
        return {one: row for one, row in self.tasks.items() if row.alone and row.state != "CLOSED"}

    def doing(self, row: TaskRow) -> str:
        """Return the command to approve the task, the names of the tasks for which it waits, or the error for which it
        was given up."""
        if row.state in _ASKED:
            return f"supervisor approve {row.name}"
        waits = [name for name in row.waits_for if not self._is_closed(name)]
        return f"waits for {', '.join(map(plan_name, waits))}" if waits else row.trouble

    def _is_closed(self, name: str) -> bool:
        row = self.tasks.get(name) or self._names.get(name)
        return row is not None and row.state == "CLOSED"

    def of_session(self, session_id: str) -> TaskRow | None:
        """Return the task on which this session works, or ``None``."""
        return self._holders.get(session_id)
