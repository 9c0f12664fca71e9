"""Find the model's problem in the error with which an ACP agent answers a prompt: the protocol has no field for it.

Gemini puts the HTTP status into the error's code; codex-acp and claude-agent-acp put a word of their own into the
error's data; other agents describe the problem only in a sentence. An error without any hint at a model gives no
problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from supervisor.agents.protocols.acp.messages import AUTHENTICATION_NEEDED
from supervisor.agents.protocols.json_rpc import RpcError
from supervisor.lifecycles.types import ModelProblem
from supervisor.policies.error_classification import ends_of, problem_of_status, status_in


def _table(*rows: tuple[ModelProblem, str]) -> tuple[tuple[ModelProblem, re.Pattern[str]], ...]:
    return tuple((problem, re.compile(pattern, re.IGNORECASE)) for problem, pattern in rows)


_STATUS_KEYS: Final = ("http_status_code", "httpStatusCode", "status", "statusCode", "code")
_CLEARER: Final = _table(
    (ModelProblem.CONTEXT_LENGTH, r"context.?(?:window|length)|prompt is too long|too many (?:input )?tokens"),
    (ModelProblem.CONNECTION, r"\Aterminated\b"),
    (ModelProblem.QUOTA, r"billing|usage.?limit|insufficient.?(?:quota|credit|balance|funds)|credit balance"),
)
"""Patterns that are more specific than an HTTP status: providers answer with 400 or 429 where the context is full or
the money is spent, and gemini reports a stream that was cut off as status 500, with the word of Node's own client."""
_WORDS: Final = _table(
    (ModelProblem.SERVER, r"\binternal_server_error\b"),  # codex's own name for it; its sentence speaks of high demand
    (ModelProblem.OVERLOADED, r"overloaded|high demand"),
    (ModelProblem.RATE_LIMIT, r"rate.?limit|too many requests|resource.?exhausted"),
    (ModelProblem.AUTH, r"authentication|unauthori[sz]ed|invalid (?:api|x-api).?key|permission.?denied"),
    (ModelProblem.NOT_FOUND, r"model\b.{0,80}\bnot (?:found|exist)|not_found_error"),
    (ModelProblem.CONNECTION, r"stream (?:disconnected|closed|ended)|connection|ECONN|fetch failed|socket|timed out"),
    (ModelProblem.SERVER, r"server.?error|bad gateway"),
)


def problem_of(error: RpcError) -> tuple[ModelProblem | None, int | None]:
    """Return the model's problem and the HTTP status that an error reports; ``None`` for a part that the error does not
    report."""
    words = ends_of(f"{error.message} {bytes(error.data).decode(errors='replace')}")
    status = _status(error, words)
    if error.code == AUTHENTICATION_NEEDED:
        return ModelProblem.AUTH, status
    return _named(_CLEARER, words) or problem_of_status(status) or _named(_WORDS, words), status


def _status(error: RpcError, words: str) -> int | None:
    for code in (error.code, *_codes(_data(error))):
        if 400 <= code < 600:
            return code
    return status_in(words)


def _data(error: RpcError) -> Any:
    try:
        return msgspec.json.decode(error.data)
    except (msgspec.DecodeError, RecursionError):
        return None


def _codes(data: Any, depth: int = 0) -> Iterator[int]:
    """Yield the numbers in an error's data that may be an HTTP status."""
    if isinstance(data, dict) and depth < 4:
        for key in _STATUS_KEYS:
            if type(data.get(key)) is int:
                yield data[key]
        for value in data.values():
            yield from _codes(value, depth + 1)


def _named(table: tuple[tuple[ModelProblem, re.Pattern[str]], ...], words: str) -> ModelProblem | None:
    return next((problem for problem, pattern in table if pattern.search(words)), None)
