"""Describe the items of a codex turn that are tool calls: title, kind and outcome, as this package names them.

This module keeps no state.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from supervisor.agents.protocols.codex.messages import Item

__all__ = [
    "AGENT_MESSAGE",
    "COMMAND",
    "COMPACTION",
    "USER_MESSAGE",
    "CallDescription",
    "arguments_and_result_of",
    "call_of",
    "outcome_of",
]

COMMAND: Final = "commandExecution"
COMPACTION: Final = "contextCompaction"
USER_MESSAGE: Final = "userMessage"
"""Item that begins when the agent takes up a prompt or a message."""
AGENT_MESSAGE: Final = "agentMessage"

_ENDS: Final = {"completed": "completed", "failed": "failed", "declined": "failed", "interrupted": "failed"}


class CallDescription(NamedTuple):
    """Title and kind of a tool call."""

    title: str
    kind: str


def call_of(item: Item) -> CallDescription | None:
    """Return the tool call that *item* is; ``None`` for a message, a thought or a plan."""
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
    """Return the outcome of an ended call. A web search has no status: it ended, so it was made."""
    return "completed" if item.status is None else _ENDS.get(item.status, "failed")


def arguments_and_result_of(item: Item) -> tuple[bytes, bytes]:
    """Return the arguments and the result of a call; ``b""`` for what the item does not hold."""
    if item.type == COMMAND:
        asked = f"{item.command}\0{item.cwd}"
        over = item.exit_code is not None or item.aggregated_output is not None
        answered = f"{item.aggregated_output or ''}\0{item.exit_code}" if over else ""
        return asked.encode(errors="replace"), answered.encode(errors="replace")
    if item.changes:
        return msgspec.json.encode(item.changes), b""
    asked_with = bytes(item.arguments) or (item.query or item.prompt or "").encode(errors="replace")
    return asked_with, _said(bytes(item.result))


def _said(result: bytes) -> bytes:
    return b"" if result == b"null" else result
