"""What is asked of a supervisor, and what it answers: every wish of a run passes here, so that the oracle hears of it.

That a wish is refused is an answer. What is cancelled meanwhile is withdrawn. Anything else that comes back is an error
of the runtime, and ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from supervisor.abort import NoSiblings, UnknownTarget
from supervisor.entity import Refused
from supervisor.plans.source import BadPlan
from supervisor.ports import JournalError
from supervisor.simulation.oracle import Oracle
from supervisor.work import NoSuchEntity

__all__ = ["Desk"]

GONE = (NoSuchEntity, Refused, UnknownTarget, NoSiblings, JournalError, BadPlan)
"""What a host may hear when it speaks to what has ended, or asks for what cannot be."""


class Desk:
    """Where wishes are numbered."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._asked = 0

    @contextmanager
    def asking(self, words: str) -> Iterator[list[str]]:
        """One wish: whoever asks puts the answer into the list."""
        self._asked += 1
        name, said = f"q{self._asked}", ["withdrawn"]
        self._oracle.asked(name, words)
        try:
            yield said
        except Exception as error:
            said.append(f"refused: {_refusal(error)}")
        finally:
            self._oracle.answered(name, said[-1])


def _refusal(error: Exception) -> str:
    leaves = _leaves(error)
    if not all(isinstance(one, GONE) for one in leaves):
        raise error
    return " and ".join(sorted({type(one).__name__ for one in leaves}))


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
