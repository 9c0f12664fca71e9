"""What codex asks leave for, and how it is answered: each request once.

A request that codex takes back (its turn is over) needs no answer. Nothing here writes messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from supervisor.agents.protocols.codex import messages
from supervisor.agents.protocols.json_rpc import RpcId
from supervisor.ports import PermissionAsked

__all__ = ["KINDS", "OPTIONS", "CodexApprovalRequests", "PendingApproval"]

OPTIONS: Final = (("accept", "allow_once"), ("acceptForSession", "allow_always"), ("decline", "reject_once"))
"""What may be answered, and what it means. ``cancel`` is none of them: it ends the turn."""

PERMISSIONS: Final = "item/permissions/requestApproval"
KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "item/commandExecution/requestApproval": "execute",
        "item/fileChange/requestApproval": "edit",
        PERMISSIONS: "other",
    }
)
"""The requests that ask for leave, and the kind of call that they are about."""


class PendingApproval(NamedTuple):
    """A request that waits for its answer."""

    rpc_id: RpcId
    method: str
    asked: messages.Approval

    def answer(self, option_id: str | None) -> dict[str, Any]:
        """The result that says so; ``None``: cancelled, which grants nothing and ends the turn."""
        if self.method != PERMISSIONS:
            return {"decision": option_id or "cancel"}
        granted = option_id in ("accept", "acceptForSession")
        return {
            "permissions": self.asked.permissions if granted else {},
            "scope": "session" if option_id == "acceptForSession" else "turn",
        }


class CodexApprovalRequests:
    """The requests of one conversation that wait for an answer, by the names that we gave them."""

    def __init__(self) -> None:
        self._waiting: dict[str, PendingApproval] = {}
        self._count = 0

    def ask(self, pending: PendingApproval) -> PermissionAsked:
        """Keep it until it is answered."""
        self._count += 1
        request_id = f"permission-{self._count}"
        self._waiting[request_id] = pending
        asked, kind = pending.asked, KINDS[pending.method]
        title = asked.command or asked.reason or f"codex asks for leave ({kind})"
        return PermissionAsked(request_id, title, OPTIONS, kind, pending.method.split("/")[1], _detail(asked))

    def take(self, request_id: str, option_id: str | None) -> PendingApproval | None:
        """That request, which is answered now; ``None``: it needs no answer any more.

        Raises:
            ValueError: *option_id* was not offered.
        """
        offered = [option for option, _ in OPTIONS]
        if request_id in self._waiting and option_id is not None and option_id not in offered:
            raise ValueError(f"codex: permission option {option_id!r} was not offered; choose of: {', '.join(offered)}")
        return self._waiting.pop(request_id, None)

    def take_all(self) -> list[PendingApproval]:
        """All of them, oldest first."""
        taken = list(self._waiting.values())
        self._waiting.clear()
        return taken

    def take_of(self, call_id: str) -> PendingApproval | None:
        """The one that is about that call."""
        found = next((name for name, one in self._waiting.items() if one.asked.item_id == call_id), None)
        return self._waiting.pop(found) if found is not None else None

    def resolved(self, rpc_id: RpcId) -> None:
        """Codex needs no answer to it any more."""
        for name in [name for name, one in self._waiting.items() if one.rpc_id == rpc_id]:
            del self._waiting[name]


def _detail(asked: messages.Approval) -> str:
    """What a human has to see to judge."""
    return "\n".join(one for one in (asked.command, asked.grant_root, asked.reason, _profile(asked)) if one)


def _profile(asked: messages.Approval) -> str:
    said = bytes(asked.permissions).decode()
    return "" if said in ("{}", "null") else said
