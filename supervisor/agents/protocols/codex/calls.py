"""Open tool calls of a codex turn, and its sub-agents.

A sub-agent has a thread of its own. While a turn of that thread runs, the turn is a call of kind ``agent`` with the
turn's id, and the calls of that turn are nested in it. Nothing here writes messages.
"""

from __future__ import annotations

from typing import NamedTuple

from supervisor.agents.protocols.acp.calls import ToolCallTable
from supervisor.agents.protocols.codex import messages
from supervisor.agents.protocols.codex.items import arguments_and_result_of, call_of, outcome_of
from supervisor.ports import Out, ToolClosed

__all__ = ["AGENT", "CodexToolCalls", "OpenCall"]

AGENT = "agent"
"""Type of calls that are sub-agents; every other call has the type of its item."""


class OpenCall(NamedTuple):
    """Open call: the type of its item, and the thread and the turn in which it is made (or which it is)."""

    type: str
    thread: str
    turn: str


class CodexToolCalls:
    """Calls of one turn of the main thread, and of everything that the turn started."""

    def __init__(self) -> None:
        self._calls = ToolCallTable()
        self._running: dict[str, OpenCall] = {}
        self._tasks: dict[str, str] = {}
        """Prompt of each sub-agent, by its thread."""

    def forget(self) -> None:
        """Begin a new turn."""
        self._calls.forget()
        self._running.clear()
        self._tasks.clear()

    def running(self, call_id: str) -> OpenCall | None:
        """Return that call if it is open."""
        return self._running.get(call_id)

    @property
    def agents(self) -> list[OpenCall]:
        """Sub-agents that are running."""
        return [one for one in self._running.values() if one.type == AGENT]

    def __bool__(self) -> bool:
        """Return whether any call is open."""
        return bool(self._running)

    # ------------------------------------------------------------------------------------------ items
    def started(self, told: messages.ItemNotification, item: messages.Item) -> list[Out]:
        """Open the call that *item* is; return nothing if the item is not a call."""
        self._note_tasks(item)
        call = call_of(item)
        if call is None:
            return []
        parent = told.turn_id if told.turn_id in self._running else ""
        outs: list[Out] = [*self._calls.opened(item.id, call.title, call.kind, parent)]
        if outs:
            self._running[item.id] = OpenCall(item.type, told.thread_id, told.turn_id)
        self._tell(item)
        return outs

    def completed(self, told: messages.ItemNotification, item: messages.Item) -> list[Out]:
        """Close the call that *item* is; a call whose start was not reported is opened first."""
        outs = self.started(told, item)
        if call_of(item) is None:
            return outs
        return [*outs, *self._close(item.id, outcome_of(item))]

    def _tell(self, item: messages.Item) -> None:
        asked, answered = arguments_and_result_of(item)
        self._calls.tell(item.id, asked=asked, answered=answered)

    def _note_tasks(self, item: messages.Item) -> None:
        for thread in item.receiver_thread_ids:
            self._tasks.setdefault(thread, item.prompt or "")

    # ------------------------------------------------------------------------------------------ sub-agents
    def agent_started(self, thread: str, turn: str) -> list[Out]:
        """Open a call for a turn of another thread."""
        outs: list[Out] = [*self._calls.opened(turn, self._tasks.get(thread) or "a sub-agent", AGENT)]
        if outs:
            self._running[turn] = OpenCall(AGENT, thread, turn)
        return outs

    def agent_ended(self, turn: str, status: str) -> list[Out]:
        """Close the call of another thread's turn, and before it the calls nested in it."""
        within = [call_id for call_id, one in self._running.items() if one.turn == turn and call_id != turn]
        closed = [one for call_id in within for one in self._close(call_id, "failed")]
        return [*closed, *self._close(turn, "completed" if status == "completed" else "failed")]

    # ------------------------------------------------------------------------------------------ ends
    def close_all(self) -> list[Out]:
        """Close all open calls as failed: the turn is over."""
        self._running.clear()
        return [*self._calls.close_all("failed")]

    def _close(self, call_id: str, outcome: str) -> list[ToolClosed]:
        self._running.pop(call_id, None)
        return self._calls.closed(call_id, outcome)
