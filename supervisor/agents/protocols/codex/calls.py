"""The tool calls of a codex turn, and the sub-agents that it has: what is open, and whose it is.

A sub-agent has a thread of its own. While a turn of that thread runs it is a call of kind ``agent``, named like the
turn; the calls of that turn are made within it. Nothing here writes messages.
"""

from __future__ import annotations

from typing import NamedTuple

from supervisor.agents.protocols.acp.calls import ToolCallTable
from supervisor.agents.protocols.codex import messages
from supervisor.agents.protocols.codex.items import arguments_and_result_of, call_of, outcome_of
from supervisor.ports import Out, ToolClosed

__all__ = ["AGENT", "CodexToolCalls", "OpenCall"]

AGENT = "agent"
"""The type of the calls that are sub-agents; all others are the types of items."""


class OpenCall(NamedTuple):
    """A call that is open: the type of its item, and the thread and the turn that it is made in (or that it is)."""

    type: str
    thread: str
    turn: str


class CodexToolCalls:
    """The calls of one turn of the main thread, and of whatever it has set going."""

    def __init__(self) -> None:
        self._calls = ToolCallTable()
        self._running: dict[str, OpenCall] = {}
        self._tasks: dict[str, str] = {}
        """What the thread of each sub-agent was asked."""

    def forget(self) -> None:
        """A new turn begins."""
        self._calls.forget()
        self._running.clear()
        self._tasks.clear()

    def running(self, call_id: str) -> OpenCall | None:
        """That call, if it is open."""
        return self._running.get(call_id)

    @property
    def agents(self) -> list[OpenCall]:
        """The sub-agents that work."""
        return [one for one in self._running.values() if one.type == AGENT]

    def __bool__(self) -> bool:
        """Whether any call is open."""
        return bool(self._running)

    # ------------------------------------------------------------------------------------------ items
    def started(self, told: messages.ItemNotification, item: messages.Item) -> list[Out]:
        """The agent begins *item*; nothing, where that is no call."""
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
        """*item* is over; a call that nobody has heard of begins and ends with it."""
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
        """A turn of another thread begins."""
        outs: list[Out] = [*self._calls.opened(turn, self._tasks.get(thread) or "a sub-agent", AGENT)]
        if outs:
            self._running[turn] = OpenCall(AGENT, thread, turn)
        return outs

    def agent_ended(self, turn: str, status: str) -> list[Out]:
        """A turn of another thread is over, and with it what was made within it."""
        within = [call_id for call_id, one in self._running.items() if one.turn == turn and call_id != turn]
        closed = [one for call_id in within for one in self._close(call_id, "failed")]
        return [*closed, *self._close(turn, "completed" if status == "completed" else "failed")]

    # ------------------------------------------------------------------------------------------ ends
    def close_all(self) -> list[Out]:
        """The turn is over: whatever is still open was ended with it."""
        self._running.clear()
        return [*self._calls.close_all("failed")]

    def _close(self, call_id: str, outcome: str) -> list[ToolClosed]:
        self._running.pop(call_id, None)
        return self._calls.closed(call_id, outcome)
