"""The items of a codex turn that are tool calls: what each is called, of which kind it is, and how it ended.

Names and kinds are those that the rest of the house has for calls. Nothing here remembers anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from supervisor.agents.protocols.codex.messages import Item

__all__ = ["COMMAND", "COMPACTION", "MESSAGE", "SAID", "Call", "call_of", "outcome_of", "told_of"]

COMMAND: Final = "commandExecution"
COMPACTION: Final = "contextCompaction"
SAID: Final = "userMessage"
"""What the agent is told: it begins an item of these when it takes that up."""
MESSAGE: Final = "agentMessage"

_ENDS: Final = {"completed": "completed", "failed": "failed", "declined": "failed", "interrupted": "failed"}


class Call(NamedTuple):
    """What a tool call is, for whoever looks at it."""

    title: str
    kind: str


def _command(item: Item) -> Call:
    return Call(item.command, "execute")


def _change(item: Item) -> Call:
    return Call("edit " + ", ".join(one.path for one in item.changes), "edit")


def _mcp(item: Item) -> Call:
    return Call(f"{item.server}.{item.tool}", "other")


def _search(item: Item) -> Call:
    return Call(f"search the web: {item.query}", "fetch")


def _collaboration(item: Item) -> Call:
    return Call(f"{item.tool}: {item.prompt}" if item.prompt else item.tool, "other")


def _tool(item: Item) -> Call:
    return Call(item.tool or item.type, "other")


_CALLS: Final[Mapping[str, Callable[[Item], Call]]] = MappingProxyType(
    {
        COMMAND: _command,
        "fileChange": _change,
        "mcpToolCall": _mcp,
        "dynamicToolCall": _tool,
        "webSearch": _search,
        "collabAgentToolCall": _collaboration,
    }
)
"""By the type of the item. The rest of the items are no calls: messages, thoughts, plans."""


def call_of(item: Item) -> Call | None:
    """The tool call that *item* is; ``None``: it is none."""
    made = _CALLS.get(item.type)
    return made(item) if made is not None else None


def outcome_of(item: Item) -> str:
    """How a call ended that is over. A search has no status: it is over, so it was made."""
    return "completed" if item.status is None else _ENDS.get(item.status, "failed")


def told_of(item: Item) -> tuple[bytes, bytes]:
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
