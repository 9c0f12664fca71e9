"""Open permission requests of an ACP agent: each gets one response, an option that the agent offered or a cancel.

A request may be the first message about a tool call. Such a request opens the call and, if it is not granted, closes it
again, because some agents report nothing more of a call that they did not make.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from supervisor.agents.protocols.acp import messages
from supervisor.agents.protocols.acp.calls import ToolCallTable
from supervisor.agents.protocols.acp.messages import RpcId
from supervisor.agents.protocols.acp.updates import detail_of
from supervisor.ports import Out, PermissionAsked, Send

__all__ = ["AcpPermissionRequests"]


class _OpenRequest(NamedTuple):
    rpc_id: RpcId
    options: dict[str, str]
    """Kind of each option, by the option's id."""
    call_id: str
    opened: bool
    """True if the request was the first message about its call."""


class AcpPermissionRequests:
    """Unanswered permission requests of one conversation, by the ids that we gave them."""

    def __init__(self, calls: ToolCallTable) -> None:
        self._calls = calls
        self._open: dict[str, _OpenRequest] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._open))

    def asked(self, rpc_id: RpcId, request_id: str, asked: messages.PermissionRequest) -> list[Out]:
        call = asked.tool_call
        title, kind = call.title or call.tool_call_id, call.kind or "other"
        opened = self._calls.asked_for(call.tool_call_id, title, kind, call.parent)
        options = {one.option_id: one.kind for one in asked.options}
        self._open[request_id] = _OpenRequest(rpc_id, options, call.tool_call_id, bool(opened))
        choices = tuple(options.items())
        return [
            *opened,
            PermissionAsked(request_id, title, choices, kind, tool=call.tool, detail=detail_of(call), paths=call.paths),
        ]

    def answer(self, request_id: str, option_id: str | None) -> list[Out]:
        """Answer a request; a request that was answered before is ignored.

        Raises:
            ValueError: the agent did not offer *option_id*.
        """
        if request_id not in self._open:
            return []
        options = self._open[request_id].options
        if option_id is not None and option_id not in options:
            raise ValueError(f"acp: permission option {option_id!r} was not offered; choose of: {', '.join(options)}")
        one = self._open.pop(request_id)
        granted = option_id is not None and options[option_id].startswith("allow")
        refused = self._calls.closed(one.call_id, "failed") if one.opened and not granted else []
        return [cancelled(one.rpc_id) if option_id is None else _selected(one.rpc_id, option_id), *refused]

    def withdraw(self, rpc_id: RpcId) -> list[Out]:
        """Close a request that the agent has cancelled; a later answer to the request has no effect."""
        for request_id, one in self._open.items():
            if one.rpc_id == rpc_id:
                del self._open[request_id]
                closed = self._calls.closed(one.call_id, "failed") if one.opened else []
                return [messages.error(rpc_id, messages.CANCELLED, "withdrawn"), *closed]
        return []


def cancelled(rpc_id: RpcId) -> Send:
    """Return the response to a permission request of a turn that is being cancelled."""
    return messages.result(rpc_id, {"outcome": {"outcome": "cancelled"}})


def _selected(rpc_id: RpcId, option_id: str) -> Send:
    return messages.result(rpc_id, {"outcome": {"outcome": "selected", "optionId": option_id}})
