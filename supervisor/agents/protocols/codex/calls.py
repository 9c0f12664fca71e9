"""Open tool calls of a codex turn, and the turn's sub-agents.

A sub-agent has a thread of its own. A turn of that thread is represented as a call of kind ``agent``, with the turn's
id, and the calls of that turn are nested in it. Functions of this module describe the items that are calls: title,
kind, outcome, arguments and result. This module writes no messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from supervisor.agents.protocols.codec_base import ToolCallTable
from supervisor.agents.protocols.codex import messages
from supervisor.agents.protocols.codex.messages import Item
from supervisor.ports import Out, ToolClosed

COMMAND: Final = "commandExecution"


COMPACTION: Final = "contextCompaction"


USER_MESSAGE: Final = "userMessage"
"""Type of the item that begins when the agent starts to work on a prompt or a message."""


AGENT_MESSAGE: Final = "agentMessage"


AGENT = "agent"
"""Type of calls that are sub-agents; every other call has the type of its item."""


_ENDS: Final = {"completed": "completed", "failed": "failed", "declined": "failed", "interrupted": "failed"}


class CallDescription(NamedTuple):
    """Title and kind of a tool call."""

    title: str
    kind: str


def call_of(item: Item) -> CallDescription | None:
    """Return the description of the tool call that *item* represents; ``None`` for a message, a thought or a plan."""
    match item.type:
        case "commandExecution":
            return CallDescription(item.command, "execute")
        case "fileChange":
            return CallDescription("edit " + ", ".join(one.path for one in item.changes), "edit")
        case "mcpToolCall":
            return CallDescription(f"{item.server}.{item.tool}", "other")
        case "dynamicToolCall":
            return CallDescription(item.tool or item.type, "other")
        case "webSearch":
            return CallDescription(f"search the web: {item.query}", "fetch")
        case "collabAgentToolCall":
            return CallDescription(f"{item.tool}: {item.prompt}" if item.prompt else item.tool, "other")
        case _:
            return None


def outcome_of(item: Item) -> str:
    """Return the outcome of an ended call. A web search has no status and counts as completed."""
    return "completed" if item.status is None else _ENDS.get(item.status, "failed")


def arguments_and_result_of(item: Item) -> tuple[bytes, bytes]:
    """Return the arguments and the result of a call; ``b""`` for a part that the item does not hold."""
    if item.type == COMMAND:
        asked = f"{item.command}\0{item.cwd}"
        over = item.exit_code is not None or item.aggregated_output is not None
        answered = f"{item.aggregated_output or ''}\0{item.exit_code}" if over else ""
        return asked.encode(errors="replace"), answered.encode(errors="replace")
    if item.changes:
        return msgspec.json.encode(item.changes), b""
    asked_with = bytes(item.arguments) or (item.query or item.prompt or "").encode(errors="replace")
    result = bytes(item.result)
    return asked_with, b"" if result == b"null" else result


class OpenCall(NamedTuple):
    """Open call: the type of its item, and the thread and the turn in which the call is made. For a sub-agent these are
    the sub-agent's own thread and turn."""

    type: str
    thread: str
    turn: str


class CodexToolCalls:
    """Calls of one turn of the main thread, and of every sub-agent that the turn started."""

    def __init__(self) -> None:
        self._calls = ToolCallTable()
        self._running: dict[str, OpenCall] = {}
        self._tasks: dict[str, str] = {}
        """Prompt of each sub-agent, by the id of the sub-agent's thread."""

    def begin_turn(self) -> None:
        self._calls.begin_turn()
        self._running.clear()
        self._tasks.clear()

    def running(self, call_id: str) -> OpenCall | None:
        """Return the call *call_id* if it is open, otherwise ``None``."""
        return self._running.get(call_id)

    @property
    def agents(self) -> list[OpenCall]:
        """Calls that are running sub-agents."""
        return [one for one in self._running.values() if one.type == AGENT]

    def __bool__(self) -> bool:
        """Return whether any call of the turn is open."""
        return bool(self._running)

    # ------------------------------------------------------------------------------------------ items
    def started(self, notification: messages.ItemNotification, item: messages.Item) -> list[Out]:
        """Open the call that *item* represents; return nothing if the item is not a call."""
        for thread in item.receiver_thread_ids:
            self._tasks.setdefault(thread, item.prompt or "")
        call = call_of(item)
        if call is None:
            return []
        parent = notification.turn_id if notification.turn_id in self._running else ""
        outs: list[Out] = [*self._calls.open(item.id, call.title, call.kind, parent)]
        if outs:
            self._running[item.id] = OpenCall(item.type, notification.thread_id, notification.turn_id)
        asked, answered = arguments_and_result_of(item)
        self._calls.record_digests(item.id, asked=asked, answered=answered)
        return outs

    def completed(self, notification: messages.ItemNotification, item: messages.Item) -> list[Out]:
        """Close the call that *item* represents; a call whose start was not reported is opened first."""
        outs = self.started(notification, item)
        if call_of(item) is None:
            return outs
        return [*outs, *self._close(item.id, outcome_of(item))]

    # ------------------------------------------------------------------------------------------ sub-agents
    def agent_started(self, thread: str, turn: str) -> list[Out]:
        """Open a call that represents a sub-agent's turn: a turn of another thread."""
        outs: list[Out] = [*self._calls.open(turn, self._tasks.get(thread) or "a sub-agent", AGENT)]
        if outs:
            self._running[turn] = OpenCall(AGENT, thread, turn)
        return outs

    def agent_ended(self, turn: str, status: str) -> list[Out]:
        """Close the call of a sub-agent's turn, and before it the calls nested in that turn."""
        within = [call_id for call_id, one in self._running.items() if one.turn == turn and call_id != turn]
        closed = [one for call_id in within for one in self._close(call_id, "failed")]
        return [*closed, *self._close(turn, "completed" if status == "completed" else "failed")]

    # ------------------------------------------------------------------------------------------ ends
    def close_all(self) -> list[Out]:
        """Close all open calls as failed, because the turn is over."""
        self._running.clear()
        return [*self._calls.close_all("failed")]

    def _close(self, call_id: str, outcome: str) -> list[ToolClosed]:
        self._running.pop(call_id, None)
        return self._calls.close(call_id, outcome)
