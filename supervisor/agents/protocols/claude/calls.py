"""The tool calls of Claude Code: who made which, and by what name the program can be asked to end one.

A call is opened once and closed once. One that a sub-agent made is a call within the sub-agent's, and ends with it.
What takes a while is a task, by whose name it can be stopped: a sub-agent is one from its beginning, a command once it
has run for some three seconds. Nothing here reads or writes messages.
"""

from __future__ import annotations

from msgspec import Raw

from supervisor.agents.protocols.acp.calls import ToolCallTable
from supervisor.agents.protocols.claude import messages
from supervisor.agents.protocols.claude.updates import AGENT, EXECUTE, describe_call, kind_of
from supervisor.ports import Out

__all__ = ["ClaudeToolCalls"]


class ClaudeToolCalls:
    """The calls of a turn, and the tasks that they are."""

    def __init__(self) -> None:
        self._calls = ToolCallTable()
        self._kinds: dict[str, str] = {}
        self._parents: dict[str, str] = {}
        self._tasks: dict[str, str] = {}
        """The call of each task that runs."""
        self._ending: dict[str, None] = {}
        """Calls that are to be ended as soon as they can be."""

    def is_open(self, call_id: str) -> bool:
        return self._calls.is_open(call_id)

    def asked(self, asked: messages.PermissionRequest) -> list[Out]:
        """Leave is asked for a call: that may be the first word about it, where a sub-agent makes it."""
        if asked.tool_use_id is None:
            return []
        return self._opened(asked.tool_use_id, asked.tool_name, asked.input, self._tasks.get(asked.agent_id or "", ""))

    def used(self, block: messages.Block, parent: str | None) -> list[Out]:
        """The model, or that of the sub-agent which *parent* is, makes a call."""
        if block.id is None or block.name is None:
            return []
        return self._opened(block.id, block.name, block.input, parent or "")

    def returned(self, block: messages.Block) -> list[Out]:
        """A call has its result."""
        assert block.tool_use_id is not None
        self._calls.tell(block.tool_use_id, answered=bytes(block.content))
        return self._closed(block.tool_use_id, "failed" if block.is_error else "completed")

    def end(self, call_id: str) -> list[str] | None:
        """The tasks to stop so that the call ends: none yet, where it will be one soon. ``None``: it cannot be."""
        if tasks := [task_id for task_id, call in self._tasks.items() if call == call_id]:
            return tasks
        if self._kinds.get(call_id) not in (AGENT, EXECUTE):
            return None
        self._ending[call_id] = None
        return []

    def task_started(self, task: messages.Task) -> str | None:
        """A call is a task from now on: the call, if it is to be ended."""
        call_id = task.tool_use_id
        if call_id is None or not self.is_open(call_id):
            return None
        self._tasks[task.task_id] = call_id
        return call_id if call_id in self._ending else None

    def task_ended(self, task: messages.Task) -> None:
        """A task is over; of its call the agent tells by itself."""
        self._tasks.pop(task.task_id, None)

    def close_all(self) -> list[Out]:
        """Whatever is open has failed: inner calls before those that they are within."""
        return [out for call_id in list(self._kinds) for out in self._closed(call_id, "failed")]

    def forget(self) -> None:
        """A new turn begins."""
        self._calls.forget()
        for known in (self._kinds, self._parents, self._tasks, self._ending):
            known.clear()

    # ------------------------------------------------------------------------------------------ small parts
    def _opened(self, call_id: str, tool: str, given: Raw, parent: str) -> list[Out]:
        kind = kind_of(tool)
        within = parent if self.is_open(parent) else ""
        opened = self._calls.opened(call_id, describe_call(tool, given).title, kind, within)
        if opened:
            self._kinds[call_id], self._parents[call_id] = kind, within
            self._calls.tell(call_id, asked=bytes(given))
        return [*opened]

    def _closed(self, call_id: str, outcome: str) -> list[Out]:
        """It is over, and so is what was made within it and has no result: nobody will hear of one."""
        over = {call_id: None}
        for one, parent in self._parents.items():  # a call is younger than the one that it is within
            if parent in over:
                over[one] = None
        for one in over:
            for known in (self._kinds, self._parents, self._ending):
                known.pop(one, None)
        inner = [out for one in reversed(list(over)) if one != call_id for out in self._calls.closed(one, "failed")]
        return [*inner, *self._calls.closed(call_id, outcome)]
