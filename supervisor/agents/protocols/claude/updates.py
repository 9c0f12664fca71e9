"""Translate Claude Code's calls, usage and model errors into the values of this package.

Usage is reported twice: each part of a model's answer carries the usage of its request so far, and each result the
usage of the turn, which may include requests that were not seen. Each token is counted once, by differences. This
module writes no messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from supervisor.agents.protocols.claude import messages
from supervisor.agents.protocols.codec_base import COST_MAX
from supervisor.lifecycles.types import ModelProblem
from supervisor.policies.budgets import COUNT_MAX
from supervisor.ports import THIS_CONVERSATION, TurnEnded, Usage

AGENT: Final = "agent"
EXECUTE: Final = "execute"
_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Agent": AGENT,
        "Task": AGENT,
        "Bash": EXECUTE,
        "BashOutput": "read",
        "TaskOutput": "read",
        "Read": "read",
        "NotebookRead": "read",
        "Glob": "search",
        "Grep": "search",
        "LS": "search",
        "Edit": "edit",
        "MultiEdit": "edit",
        "NotebookEdit": "edit",
        "Write": "edit",
        "WebFetch": "fetch",
        "WebSearch": "fetch",
        "EnterPlanMode": "switch_mode",
        "ExitPlanMode": "switch_mode",
        "TodoWrite": "think",
    }
)
"""Kind of tool call, in the words of ACP, for each tool of version 2.1.197; the kind ``agent`` is a sub-agent."""

_PROBLEMS: Final[Mapping[str, ModelProblem]] = MappingProxyType(
    {
        "authentication_failed": ModelProblem.AUTH,
        "oauth_org_not_allowed": ModelProblem.AUTH,
        "billing_error": ModelProblem.QUOTA,
        "rate_limit": ModelProblem.RATE_LIMIT,
        "overloaded": ModelProblem.OVERLOADED,
        "model_not_found": ModelProblem.NOT_FOUND,
        "server_error": ModelProblem.SERVER,
    }
)
"""Model problems for the error names that the program uses; for other errors the message text is more specific."""

_TERMINAL_PROBLEMS: Final[Mapping[str, ModelProblem]] = MappingProxyType(
    {"prompt_too_long": ModelProblem.CONTEXT_LENGTH, "blocking_limit": ModelProblem.CONTEXT_LENGTH}
)
_STOPS: Final[Mapping[str, str]] = MappingProxyType({"max_tokens": "max_tokens", "refusal": "refusal"})
_REQUESTS_MAX: Final = 256
"""Number of requests to the model whose usage may still grow."""


def kind_of(tool: str) -> str:
    """Return the kind of tool call, in the words of ACP, for the tool named *tool*."""
    return _KINDS.get(tool, "other")


class CallDescription(NamedTuple):
    """Title of a call for people, details of the call, and the paths of the files that the call names."""

    title: str
    detail: str
    paths: tuple[str, ...]


def describe_call(tool: str, given: Raw) -> CallDescription:
    """Return the title, details and file paths of a call of *tool* with the arguments *given*."""
    values = _object(given)
    paths = tuple(one for one in (_text(values, "file_path"), _text(values, "notebook_path")) if one)
    if (command := _text(values, "command")) and tool == "Bash":
        return CallDescription(command, command, ())
    about = _text(values, "description") or _text(values, "url") or _text(values, "pattern")
    title = " ".join((tool, *(paths or (about,)))).strip()
    return CallDescription(title, bytes(given).decode(errors="replace"), paths)


def _object(given: Raw) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    return value if isinstance(value, str) else ""


# ------------------------------------------------------------------------------------------------- ends
def problem_of(error: str | None, status: int | None) -> ModelProblem:
    """Return the model's problem for the program's own error name. An error without an HTTP status means that there was
    no complete answer: the model could not be reached, or the connection was cut off."""
    if error == "server_error" and status is None:
        return ModelProblem.CONNECTION
    problem = _PROBLEMS.get(error or "")
    return problem or (ModelProblem.CONNECTION if status is None else ModelProblem.UNKNOWN)


def verdict_of(result: messages.Result, error: str | None) -> TurnEnded:
    """Return the end of a turn that *result* describes; *error* is the model's error if the model's last message was an
    error."""
    why = result.terminal_reason
    if why is not None and why.startswith("aborted"):
        return TurnEnded("cancelled")
    if result.subtype == "error_max_turns":
        return TurnEnded("max_turns")
    if result.subtype != "success" or result.is_error:
        return _failure(result, error)
    if (stop := _STOPS.get(result.stop_reason or "")) is not None:
        return TurnEnded(stop)
    if why not in (None, "completed"):
        return TurnEnded("error", f"the agent ended the turn early: {why}", _TERMINAL_PROBLEMS.get(why or ""))
    if result.stop_reason == "tool_use":
        return TurnEnded("error", "the agent ended the turn while its model waited for a tool")
    return TurnEnded("end_turn")


def _failure(result: messages.Result, error: str | None) -> TurnEnded:
    words = result.result or "; ".join(result.errors) or f"the agent ended the turn with {result.subtype}"
    status = result.api_error_status
    problem = problem_of(error, status) if error in _PROBLEMS else _TERMINAL_PROBLEMS.get(result.terminal_reason or "")
    return TurnEnded("error", words, problem, status)


# ------------------------------------------------------------------------------------------------- use
class _Amount(NamedTuple):
    into: int = 0
    out: int = 0
    cached: int = 0

    def beyond(self, before: _Amount) -> _Amount:
        """Return the differences between these amounts and *before*, each at least 0."""
        return _Amount(*(max(0, now - then) for now, then in zip(self, before, strict=True)))

    def plus(self, more: _Amount) -> _Amount:
        return _Amount(*(one + other for one, other in zip(self, more, strict=True)))


_NOTHING: Final = _Amount()


class ClaudeUsageMeter:
    """Usage that one Claude Code process has reported, so that each token is counted once.

    The cost of a result is the total of the conversation. So are its tokens in older versions; of a process that
    resumes a conversation, such a total counts from the first result on, whose requests were seen.

    Args:
        resumed: whether the process resumes a conversation.
    """

    def __init__(self, *, resumed: bool = False) -> None:
        self._requests: dict[str, _Amount] = {}
        self._counted = _NOTHING
        """Usage of the requests that were seen since the last result."""
        self._total = None if resumed else _NOTHING
        """Total of the last result, in older versions; ``None`` if it is not known."""

    def answered(self, request: str | None, tokens: messages.Tokens | None) -> list[Usage]:
        """Return the usage that a part of the model's answer to *request* adds to the usage reported before."""
        if request is None or tokens is None or not (tokens.input_tokens or tokens.output_tokens):
            return []
        known, amount = request in self._requests, _of_request(tokens)
        added = amount.beyond(self._requests.get(request, _NOTHING))
        self._requests[request] = amount
        if len(self._requests) > _REQUESTS_MAX:
            del self._requests[next(iter(self._requests))]
        if known and not any(added):
            return []
        self._counted = self._counted.plus(added)
        return [_usage({}, added, requests=0 if known else 1)]

    def at_end(self, result: messages.Result) -> list[Usage]:
        """Return the usage that the result of a turn adds to the usage reported before, and the conversation's cost."""
        reported = _total(result.model_usage or {})
        if result.since_last_result is not None:
            used = _total(result.since_last_result)
        else:
            used = self._counted if self._total is None else reported.beyond(self._total)
        added, self._counted, self._total = used.beyond(self._counted), _NOTHING, reported
        said: dict[str, Any] = {"input_tokens": reported.into, "output_tokens": reported.out}
        found = [_usage(said, added)] if any(added) else []
        cost_usd = result.total_cost_usd
        if cost_usd is not None and 0 < cost_usd <= COST_MAX:
            said = {**said, "total_cost_usd": cost_usd}
            found.append(Usage(said, cost_usd=cost_usd, total_of=THIS_CONVERSATION))
        return found


def _usage(report: dict[str, Any], added: _Amount, *, requests: int = 0) -> Usage:
    return Usage(report, added.into, added.out, cached_tokens=added.cached, requests=requests)


def _of_request(tokens: messages.Tokens) -> _Amount:
    made, read = _count(tokens.cache_creation_input_tokens), _count(tokens.cache_read_input_tokens)
    return _Amount(_count(tokens.input_tokens) + made + read, _count(tokens.output_tokens), read)


def _total(models: dict[str, messages.ModelUse]) -> _Amount:
    total = _NOTHING
    for one in models.values():
        read = _count(one.cache_read_input_tokens)
        into = _count(one.input_tokens) + _count(one.cache_creation_input_tokens) + read
        total = total.plus(_Amount(into, _count(one.output_tokens), read))
    return total


def _count(reported: int | None) -> int:
    return reported if reported is not None and 0 <= reported <= COUNT_MAX else 0
