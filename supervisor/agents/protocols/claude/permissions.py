"""Open permission requests of Claude Code, and the responses: one for each request.

A request that the agent takes back needs no response. A permission for good holds for the conversation only: settings
of the project or the user are not changed. Nothing here reads messages.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from supervisor.agents.protocols.claude import messages
from supervisor.agents.protocols.claude.updates import describe_call, kind_of
from supervisor.ports import PermissionAsked, Send

__all__ = ["ClaudePermissionRequests"]

_ALLOW: Final = ("allow", "allow_once")
_ALWAYS: Final = ("allow_always", "allow_always")
_DENY: Final = ("deny", "reject_once")
_REFUSED: Final = "this was not permitted"
_ENDED: Final = "the supervisor has ended this call"
_CANCELLED: Final = "the turn is being ended"
_QUESTIONS: Final = "AskUserQuestion"
_NOBODY: Final = "nobody is there to answer questions: decide by yourself, and say what you have assumed"


class _Pending(NamedTuple):
    asked: messages.PermissionRequest
    options: tuple[tuple[str, str], ...]


class ClaudePermissionRequests:
    """Unanswered permission requests of one conversation, by the agent's own ids."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Pending] = {}

    def ask(self, request_id: str, asked: messages.PermissionRequest) -> Send | PermissionAsked:
        """Register a request. A question to a person is answered at once: no person is there."""
        if asked.tool_name == _QUESTIONS:
            return _deny(request_id, _NOBODY)
        options = (_ALLOW, _ALWAYS, _DENY) if _rules(asked) else (_ALLOW, _DENY)
        self._waiting[request_id] = _Pending(asked, options)
        about = describe_call(asked.tool_name, asked.input)
        detail = "\n".join(one for one in (about.detail, asked.decision_reason) if one)
        paths = about.paths if asked.blocked_path is None else (asked.blocked_path,)
        return PermissionAsked(
            request_id, about.title, options, kind_of(asked.tool_name), asked.tool_name, detail, paths
        )

    def answer(self, request_id: str, option_id: str | None) -> list[Send]:
        """Return the response to a request, or nothing if the request needs none any more. ``None`` cancels and ends
        the turn.

        Raises:
            ValueError: *option_id* was not offered.
        """
        if request_id not in self._waiting:
            return []
        asked, options = self._waiting[request_id]
        offered = [option for option, _ in options]
        if option_id is not None and option_id not in offered:
            raise ValueError(
                f"claude: permission option {option_id!r} was not offered; choose of: {', '.join(offered)}"
            )
        del self._waiting[request_id]
        if option_id is None:
            return [_deny(request_id, _CANCELLED, interrupt=True)]
        if option_id == _DENY[0]:
            return [_deny(request_id, _REFUSED)]
        given: dict[str, Any] = {"behavior": "allow", "updatedInput": asked.input}
        if option_id == _ALWAYS[0]:
            given["updatedPermissions"] = _rules(asked)
        return [messages.control_answer(request_id, given)]

    def end_call(self, call_id: str) -> list[Send]:
        """Refuse the requests of that call, which ends the call."""
        found = [name for name, one in self._waiting.items() if one.asked.tool_use_id == call_id]
        for name in found:
            del self._waiting[name]
        return [_deny(name, _ENDED) for name in found]

    def cancel_all(self) -> list[Send]:
        """Cancel all open requests."""
        return [one for name in list(self._waiting) for one in self.answer(name, None)]

    def taken_back(self, request_id: str) -> None:
        """Forget a request that the agent has taken back."""
        self._waiting.pop(request_id, None)


def _deny(request_id: str, why: str, *, interrupt: bool = False) -> Send:
    return messages.control_answer(request_id, {"behavior": "deny", "message": why, "interrupt": interrupt})


def _rules(asked: messages.PermissionRequest) -> list[dict[str, Any]]:
    """Return the agent's suggested permanent rules, limited to its conversation."""
    suggested = asked.permission_suggestions
    known = [one for one in suggested if isinstance(one, dict)] if isinstance(suggested, list) else []
    return [{**one, "destination": "session"} for one in known]
