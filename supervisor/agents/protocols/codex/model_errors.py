"""Translate codex's error information into the kinds of model problems of this package.

``codexErrorInfo`` is a word, or an object whose one key is a word and whose value may hold the HTTP status. The status
takes precedence. An unknown word gives ``unknown``, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from supervisor.lifecycles.types import ModelProblem
from supervisor.policies.error_classification import problem_of_status

__all__ = ["Problem", "problem_of"]

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
"""Errors of codex itself, in which its model has no part."""


class Problem(NamedTuple):
    """Kind of problem, and the HTTP status if reported. ``kind`` is ``None`` if the model has no part in the error."""

    kind: ModelProblem | None
    status: int | None = None


def problem_of(info: Any) -> Problem:
    """Return the problem in *info*, a ``codexErrorInfo``; ``other`` and unknown words are ``unknown``."""
    word, details = next(iter(info.items()), ("", None)) if isinstance(info, dict) else (info, None)
    if not isinstance(word, str) or word in _OWN:
        return Problem(None)
    status = _status(details)
    return Problem(problem_of_status(status) or _BY_WORD.get(word, ModelProblem.UNKNOWN), status)


def _status(details: Any) -> int | None:
    told = details.get("httpStatusCode") if isinstance(details, dict) else None
    return told if isinstance(told, int) and told in _HTTP else None
