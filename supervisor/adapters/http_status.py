"""What an HTTP status says of a model, whoever tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from supervisor.vocabulary import ModelProblem

__all__ = ["problem_of_status"]

_PROBLEMS: Final[Mapping[int, ModelProblem]] = MappingProxyType(
    {
        401: ModelProblem.AUTH,
        402: ModelProblem.QUOTA,
        403: ModelProblem.AUTH,
        404: ModelProblem.NOT_FOUND,
        413: ModelProblem.CONTEXT_LENGTH,
        429: ModelProblem.RATE_LIMIT,
        503: ModelProblem.OVERLOADED,
        529: ModelProblem.OVERLOADED,
    }
)


def problem_of_status(status: int | None) -> ModelProblem | None:
    """``None``: it says nothing of a model, or there is none."""
    if status is None:
        return None
    return _PROBLEMS.get(status) or (ModelProblem.SERVER if status >= 500 else None)
