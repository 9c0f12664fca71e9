"""Tool calls of Claude Code: which agent made which call, and by which name the program can be asked to end a call.

A call is opened once and closed once. A call that a sub-agent makes is nested in the sub-agent's call and ends with it.
The program runs long work as a task, and a task can be stopped by its name: a sub-agent is a task from its beginning, a
command becomes one after some three seconds. Nothing here reads or writes messages.
"""

from __future__ import annotations

from msgspec import Raw

from supervisor.agents.protocols.claude import messages
from supervisor.agents.protocols.claude.updates import AGENT, EXECUTE, describe_call, kind_of
from supervisor.agents.protocols.codec_base import ToolCallTable
from supervisor.ports import Out


class ClaudeToolCalls:
    """Calls of a turn, and the tasks that they run as."""

    def __init__(self) -> None:
        self._calls = ToolCallTable()
        self._kinds: dict[str, str] = {}
        self._parents: dict[str, str] = {}
        self._tasks: dict[str, str] = {}
        """Call of each running task."""
        self._ending: dict[str, None] = {}
        """Calls to end as soon as they run as a task."""

    def is_open(self, call_id: str) -> bool:
        return self._calls.is_open(call_id)

    def asked(self, asked: messages.PermissionRequest) -> list[Out]:
        """Open the call that a permission request names: the request may be the first message about a sub-agent's
        call."""
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
        """Return the tasks to stop so that the call ends; empty if the call will soon be a task, ``None`` if it never
        will."""
        if tasks := [task_id for task_id, call in self._tasks.items() if call == call_id]:
            return tasks
        if self._kinds.get(call_id) not in (AGENT, EXECUTE):
            return None
        self._ending[call_id] = None
        return []

    def task_started(self, task: messages.Task) -> str | None:
        """Record that a call runs as a task; return the call if it is to be ended."""
        call_id = task.tool_use_id
        if call_id is None or not self.is_open(call_id):
            return None
        self._tasks[task.task_id] = call_id
        return call_id if call_id in self._ending else None

    def task_ended(self, task: messages.Task) -> None:
        """Forget a task; the agent reports the end of the call itself."""
        self._tasks.pop(task.task_id, None)

    def close_all(self) -> list[Out]:
        """Close all open calls as failed, inner calls first."""
        return [out for call_id in list(self._kinds) for out in self._closed(call_id, "failed")]

    def begin_turn(self) -> None:
        """Begin a new turn."""
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
        """Close a call, and before it the calls nested in it, of which no result will come."""
        over = {call_id: None}
        for one, parent in self._parents.items():  # a call is younger than the one that it is within
            if parent in over:
                over[one] = None
        for one in over:
            for known in (self._kinds, self._parents, self._ending):
                known.pop(one, None)
        inner = [out for one in reversed(list(over)) if one != call_id for out in self._calls.close(one, "failed")]
        return [*inner, *self._calls.close(call_id, outcome)]
