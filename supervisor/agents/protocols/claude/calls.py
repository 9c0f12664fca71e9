"""Tool calls of Claude Code: the agent that made each call, and the task name by which the program can be requested to
end the call.

A call is opened once and closed once. A call that a sub-agent makes is nested in the sub-agent's call and ends with it.
Claude Code runs long work as a "task", which can be stopped by its name: a sub-agent is such a task from its beginning,
a command becomes one after some three seconds. This module reads and writes no messages.
"""

from __future__ import annotations

from msgspec import Raw

from supervisor.agents.protocols.claude import messages
from supervisor.agents.protocols.claude.updates import AGENT, EXECUTE, describe_call, kind_of
from supervisor.agents.protocols.codec_base import ToolCallTable
from supervisor.ports import Out


class ClaudeToolCalls:
    """Calls of one turn, and Claude Code's tasks that run these calls."""

    def __init__(self) -> None:
        self._calls = ToolCallTable()
        self._kinds: dict[str, str] = {}
        self._parents: dict[str, str] = {}
        self._tasks: dict[str, str] = {}
        """Call that each running task of Claude Code belongs to, by the task's name."""
        self._ending: dict[str, None] = {}
        """Calls that are to be ended as soon as they run as a task."""

    def __bool__(self) -> bool:
        """Return whether any call of the turn is open."""
        return bool(self._calls)

    def is_open(self, call_id: str) -> bool:
        return self._calls.is_open(call_id)

    def asked(self, asked: messages.PermissionRequest) -> list[Out]:
        """Open the call that a permission request names, because the request may be the first message about a
        sub-agent's call."""
        if asked.tool_use_id is None:
            return []
        return self._opened(asked.tool_use_id, asked.tool_name, asked.input, self._tasks.get(asked.agent_id or "", ""))

    def used(self, block: messages.Block, parent: str | None) -> list[Out]:
        """Open the call in a ``tool_use`` block of the model, or of the sub-agent whose call is *parent*."""
        if block.id is None or block.name is None:
            return []
        return self._opened(block.id, block.name, block.input, parent or "")

    def returned(self, block: messages.Block) -> list[Out]:
        """Close the call whose result *block* holds."""
        assert block.tool_use_id is not None
        self._calls.record_digests(block.tool_use_id, answered=bytes(block.content))
        return self._closed(block.tool_use_id, "failed" if block.is_error else "completed")

    def end(self, call_id: str) -> list[str] | None:
        """Return the names of the tasks to stop in order to end the call. The list is empty if the call will soon run
        as a task; the result is ``None`` if the call cannot be ended alone."""
        if tasks := [task_id for task_id, call in self._tasks.items() if call == call_id]:
            return tasks
        if self._kinds.get(call_id) not in (AGENT, EXECUTE):
            return None
        self._ending[call_id] = None
        return []

    def task_started(self, task: messages.Task) -> str | None:
        """Record that a call now runs as a task; return the call's id if the call is to be ended, otherwise
        ``None``."""
        call_id = task.tool_use_id
        if call_id is None or not self.is_open(call_id):
            return None
        self._tasks[task.task_id] = call_id
        return call_id if call_id in self._ending else None

    def task_ended(self, task: messages.Task) -> None:
        """Remove a task that has ended; the agent reports the end of the task's call separately."""
        self._tasks.pop(task.task_id, None)

    def close_all(self) -> list[Out]:
        """Close all open calls as failed, nested calls first."""
        return [out for call_id in list(self._kinds) for out in self._closed(call_id, "failed")]

    def begin_turn(self) -> None:
        """Begin a new turn: drop the calls and tasks of the turn before."""
        self._calls.begin_turn()
        for known in (self._kinds, self._parents, self._tasks, self._ending):
            known.clear()

    # ------------------------------------------------------------------------------------------ small parts
    def _opened(self, call_id: str, tool: str, given: Raw, parent: str) -> list[Out]:
        kind = kind_of(tool)
        within = parent if self.is_open(parent) else ""
        opened = self._calls.open(call_id, describe_call(tool, given).title, kind, within)
        if opened:
            self._kinds[call_id], self._parents[call_id] = kind, within
            self._calls.record_digests(call_id, asked=bytes(given))
        return [*opened]

    def _closed(self, call_id: str, outcome: str) -> list[Out]:
        """Close a call, and before it the calls nested in it, for which no result will arrive."""
        over = {call_id: None}
        for one, parent in self._parents.items():  # a call is younger than the one that it is within
            if parent in over:
                over[one] = None
        for one in over:
            for known in (self._kinds, self._parents, self._ending):
                known.pop(one, None)
        inner = [out for one in reversed(list(over)) if one != call_id for out in self._calls.close(one, "failed")]
        return [*inner, *self._calls.close(call_id, outcome)]
