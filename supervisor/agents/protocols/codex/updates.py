"""Functions that read model errors and usage from codex's notifications."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from supervisor.agents.protocols.codex.messages import Tokens, TokenUsageUpdated
from supervisor.lifecycles.types import ModelProblem
from supervisor.policies.context_window import ContextUse
from supervisor.policies.error_classification import problem_of_status
from supervisor.ports import Usage

THREADS_MAX = 1_000
"""Number of sub-agent threads whose totals are stored; usage of further threads is not counted."""


_HTTP: Final = range(100, 600)


_BY_WORD: Final[Mapping[str, ModelProblem]] = MappingProxyType(
    {
        "contextWindowExceeded": ModelProblem.CONTEXT_LENGTH,
        "sessionBudgetExceeded": ModelProblem.QUOTA,
        "usageLimitExceeded": ModelProblem.QUOTA,
        "rateLimitExceeded": ModelProblem.RATE_LIMIT,
        "flexUnavailable": ModelProblem.OVERLOADED,
        "serverOverloaded": ModelProblem.OVERLOADED,
        "policyCapacityUnavailable": ModelProblem.OVERLOADED,
        "modelNotFound": ModelProblem.NOT_FOUND,
        "cyberPolicy": ModelProblem.REFUSED,
        "misalignmentPolicyViolation": ModelProblem.REFUSED,
        "inferenceHookDenied": ModelProblem.REFUSED,
        "internalServerError": ModelProblem.SERVER,
        "unauthorized": ModelProblem.AUTH,
        "httpConnectionFailed": ModelProblem.CONNECTION,
        "responseStreamConnectionFailed": ModelProblem.CONNECTION,
        "responseStreamDisconnected": ModelProblem.CONNECTION,
        "responseTooManyFailedAttempts": ModelProblem.CONNECTION,
    }
)


_OWN: Final = frozenset({"sandboxError", "threadRollbackFailed", "tooManyDenials", "activeTurnNotSteerable"})
"""Errors of codex itself, which are not caused by the model."""


class Problem(NamedTuple):
    """Kind of a model problem, and the HTTP status if reported. ``kind`` is ``None`` if the error was not caused by the
    model."""

    kind: ModelProblem | None
    status: int | None = None


def problem_of(info: Any) -> Problem:
    """Return the problem that *info*, a ``codexErrorInfo``, describes. ``other`` and unknown words give an unknown
    problem and raise no error.

    *info* is a word, or an object with one key, which is a word. The object's value may hold an HTTP status, which
    takes precedence over the word.
    """
    word, details = next(iter(info.items()), ("", None)) if isinstance(info, dict) else (info, None)
    if not isinstance(word, str) or word in _OWN:
        return Problem(None)
    reported = details.get("httpStatusCode") if isinstance(details, dict) else None
    status = reported if isinstance(reported, int) and reported in _HTTP else None
    return Problem(problem_of_status(status) or _BY_WORD.get(word, ModelProblem.UNKNOWN), status)


class CodexUsageMeter:
    """Last token totals that codex reported for its threads, each of which is a conversation with totals of its own.

    An unchanged total does not count as a request, and neither does the total that codex reports of a thread that it
    has loaded.
    """

    def __init__(self) -> None:
        self._totals: dict[str, Tokens] = {}

    def report(self, notification: TokenUsageUpdated, *, in_turn: bool) -> list[Usage]:
        """Return the total of a thread that a ``thread/tokenUsage/updated`` notification reports; an empty list if it
        reports nothing new."""
        thread, total = notification.thread_id, notification.token_usage.total
        before = self._totals.get(thread)
        if before is None and len(self._totals) >= THREADS_MAX:
            return []
        self._totals[thread] = total
        if before == total or not (total.input_tokens or total.output_tokens):
            return []
        return [
            Usage(
                _summary(notification),
                total.input_tokens,
                total.output_tokens,
                cached_tokens=total.cached_input_tokens,
                requests=1 if in_turn or before is not None else 0,
                total_of=thread,
                context=_context(notification),
            )
        ]


def _context(notification: TokenUsageUpdated) -> ContextUse | None:
    usage = notification.token_usage
    window = usage.model_context_window
    return None if window is None else ContextUse(usage.last.total_tokens, window)


def _summary(notification: TokenUsageUpdated) -> dict[str, int]:
    total, window = notification.token_usage.total, notification.token_usage.model_context_window
    summary = {
        "input_tokens": total.input_tokens,
        "cached_input_tokens": total.cached_input_tokens,
        "output_tokens": total.output_tokens,
        "reasoning_output_tokens": total.reasoning_output_tokens,
        "used": notification.token_usage.last.total_tokens,
    }
    return summary if window is None else {**summary, "size": window}
