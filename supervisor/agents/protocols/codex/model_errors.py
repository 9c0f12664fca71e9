"""What codex says of its model when a request fails, in the words of the house.

``codexErrorInfo`` is a word, or an object whose one key is a word and whose value may have the HTTP status. The status
says more than the word where both are there. A word that nobody knows is ``unknown``, never an error.
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
"""What is codex's own trouble: its model has no part in it."""


class Problem(NamedTuple):
    """What is the matter, and the HTTP status where one is told. ``kind`` ``None``: nothing with its model."""

    kind: ModelProblem | None
    status: int | None = None


def problem_of(info: Any) -> Problem:
    """What *info*, a ``codexErrorInfo``, says. ``other`` and what nobody knows are ``unknown``."""
    word, details = next(iter(info.items()), ("", None)) if isinstance(info, dict) else (info, None)
    if not isinstance(word, str) or word in _OWN:
        return Problem(None)
    status = _status(details)
    return Problem(problem_of_status(status) or _BY_WORD.get(word, ModelProblem.UNKNOWN), status)


def _status(details: Any) -> int | None:
    told = details.get("httpStatusCode") if isinstance(details, dict) else None
    return told if isinstance(told, int) and told in _HTTP else None
