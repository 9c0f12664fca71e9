"""Table of codex's approval requests that have no response yet, and the responses: one for each request.

A request that codex withdraws, because the request's turn is over, needs no response. This module writes no messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from supervisor.agents.protocols.codex import messages
from supervisor.agents.protocols.json_rpc import UNGUARDED, ConfigurationRefused, RpcId
from supervisor.ports import PermissionNeeded

OPTIONS: Final = (("accept", "allow_once"), ("acceptForSession", "allow_always"), ("decline", "reject_once"))
"""Answers that codex accepts, with the kind of each. ``cancel`` is left out: that answer ends the turn."""

PERMISSIONS: Final = "item/permissions/requestApproval"
KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "item/commandExecution/requestApproval": "execute",
        "item/fileChange/requestApproval": "edit",
        PERMISSIONS: "other",
    }
)
"""Methods of approval requests, and the kind of call that each method is about."""


GUARDED: Final[Mapping[str, str]] = MappingProxyType(
    {"sandbox": "read-only", "approvalPolicy": "on-request", "approvalsReviewer": "user"}
)
"""Parameters with which a thread is opened in which codex does nothing but read without a permission of ours."""


def check_asking(opened: messages.ThreadOpened) -> None:
    """Check in codex's own answer that nothing but reading is done in a thread without a permission of ours.

    Raises:
        ConfigurationRefused: codex does not ask, asks somebody else, or does not report whether it asks.
    """
    sandbox, policy, reviewer = opened.sandbox, opened.approval_policy, opened.approvals_reviewer
    why = ""
    if sandbox is None or sandbox.type != "readOnly" or sandbox.network_access is not False:
        why = f"its sandbox is {_shown(sandbox)}, where read-only without network was asked for"
    elif policy in (None, "never", "on-failure"):
        why = f"its approval policy is {policy!r}, where 'on-request' was asked for"
    elif reviewer not in (None, "user"):
        why = f"its approvals are reviewed by {reviewer!r}, where 'user' was asked for"
    if why:
        fix = "install a version of codex that follows what it is asked for, or change codex's configuration"
        raise ConfigurationRefused(f"the agent may act without asking, {UNGUARDED[0]}: {why}; {fix}, {UNGUARDED[1]}")


def _shown(sandbox: messages.Sandbox | None) -> str:
    if sandbox is None:
        return "not reported"
    return f"{sandbox.type!r}{' with network' if sandbox.network_access is not False else ''}"


class PendingApproval(NamedTuple):
    """Approval request of codex that waits for a response."""

    rpc_id: RpcId
    method: str
    asked: messages.Approval

    def answer(self, option_id: str | None) -> dict[str, Any]:
        """Return the result that grants or denies the request, by the chosen option; ``None`` cancels the request,
        which grants nothing and ends the turn."""
        if self.method != PERMISSIONS:
            return {"decision": option_id or "cancel"}
        granted = option_id in ("accept", "acceptForSession")
        return {
            "permissions": self.asked.permissions if granted else {},
            "scope": "session" if option_id == "acceptForSession" else "turn",
        }


class CodexApprovalRequests:
    """Unanswered approval requests of one conversation, by the ids that this table gave the requests."""

    def __init__(self) -> None:
        self._waiting: dict[str, PendingApproval] = {}
        self._count = 0

    def ask(self, pending: PendingApproval) -> PermissionNeeded:
        """Store a request under the next id, and return the permission request for the supervisor."""
        self._count += 1
        request_id = f"permission-{self._count}"
        self._waiting[request_id] = pending
        asked, kind = pending.asked, KINDS[pending.method]
        title = asked.command or asked.reason or f"codex asks for leave ({kind})"
        return PermissionNeeded(request_id, title, OPTIONS, kind, pending.method.split("/")[1], _detail(asked))

    def waits(self, rpc_id: RpcId) -> bool:
        """Return whether the request *rpc_id* of codex has no response yet."""
        return any(one.rpc_id == rpc_id for one in self._waiting.values())

    def take(self, request_id: str, option_id: str | None) -> PendingApproval | None:
        """Remove and return a request that is being answered; return ``None`` if the request needs no answer any more.

        Raises:
            ValueError: *option_id* was not offered.
        """
        offered = [option for option, _ in OPTIONS]
        if request_id in self._waiting and option_id is not None and option_id not in offered:
            raise ValueError(
                f"codex: permission option {option_id!r} was not offered; use one of: {', '.join(offered)}"
            )
        return self._waiting.pop(request_id, None)

    def take_all(self) -> list[PendingApproval]:
        """Remove and return all requests, oldest first."""
        taken = list(self._waiting.values())
        self._waiting.clear()
        return taken

    def take_of(self, call_id: str) -> PendingApproval | None:
        """Remove and return the request about the call *call_id*; return ``None`` if there is no such request."""
        found = next((name for name, one in self._waiting.items() if one.asked.item_id == call_id), None)
        return self._waiting.pop(found) if found is not None else None

    def resolved(self, rpc_id: RpcId) -> None:
        """Remove a request that codex has withdrawn."""
        for name in [name for name, one in self._waiting.items() if one.rpc_id == rpc_id]:
            del self._waiting[name]


def _detail(asked: messages.Approval) -> str:
    """Return the details of a request that a person needs in order to decide about it."""
    return "\n".join(one for one in (asked.command, asked.grant_root, asked.reason, _profile(asked)) if one)


def _profile(asked: messages.Approval) -> str:
    said = bytes(asked.permissions).decode()
    return "" if said in ("{}", "null") else said
