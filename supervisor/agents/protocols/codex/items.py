"""The items of a codex turn that are tool calls: what each is called, of which kind it is, and how it ended.

Names and kinds are those that the rest of the house has for calls. Nothing here remembers anything.
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
"""What the agent is told: it begins an item of these when it takes that up."""
AGENT_MESSAGE: Final = "agentMessage"

_ENDS: Final = {"completed": "completed", "failed": "failed", "declined": "failed", "interrupted": "failed"}


class CallDescription(NamedTuple):
    """What a tool call is, for whoever looks at it."""

    title: str
    kind: str


def call_of(item: Item) -> CallDescription | None:
    """The tool call that *item* is; ``None``: it is none, but a message, a thought, a plan."""
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
    """How a call ended that is over. A search has no status: it is over, so it was made."""
    return "completed" if item.status is None else _ENDS.get(item.status, "failed")


def arguments_and_result_of(item: Item) -> tuple[bytes, bytes]:
    """Its arguments, and what came of it; ``b""``: not told."""
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
