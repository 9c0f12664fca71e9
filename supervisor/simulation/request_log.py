"""Requests to a supervisor and their replies: every request of a run is recorded here and reported to the oracle.

A refusal is a reply. A request that is cancelled counts as withdrawn. Any other error is an error of the runtime, and
ends the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import anyio

from supervisor.lifecycles.types import NoSuchEntity
from supervisor.plans.source import BadPlan
from supervisor.policies.abort_plan import NoSiblings
from supervisor.ports import JournalError
from supervisor.runtime.entity import Refused
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.oracle import Oracle

REFUSALS = (NoSuchEntity, Refused, NoSiblings, JournalError, BadPlan)
"""Errors with which a supervisor may refuse a request: the entity has ended, or the request is impossible."""

WITHDRAWN = "withdrawn"
"""Text that stands for the reply of a request that was cancelled."""
PATIENCE_S = (0.0, 0.002, 0.5, 10.0)
"""Seconds that an impatient caller may wait for a reply."""


class RequestLog:
    """Recorder of the requests of a run, with a number for each. Some callers are impatient: their requests are
    cancelled before the reply."""

    def __init__(self, oracle: Oracle, faults: FaultPlan) -> None:
        self._oracle, self._faults = oracle, faults
        self._asked = 0
        self._words = Counter[str]()

    @contextmanager
    def record(self, words: str) -> Iterator[list[str]]:
        """Report one request to the oracle, run the block, and report the reply, which the block appends to the list
        that is yielded."""
        self._asked += 1
        name, said = f"q{self._asked}", [WITHDRAWN]
        self._oracle.request_sent(name, words)
        try:
            with self._patience(words):
                yield said
        except Exception as error:
            said.append(f"refused: {_refusal(error)}")
        finally:
            self._oracle.reply_received(name, said[-1])

    def _patience(self, words: str) -> AbstractContextManager[object]:
        """Return a cancel scope that ends the wait early if this caller is impatient, else an empty context."""
        if not self._faults.may_strike("host.impatient"):
            return nullcontext()
        self._words[words] += 1
        place = f"{words.replace(' ', '_')}.{self._words[words]}"
        if not self._faults.strikes("host.impatient", place):
            return nullcontext()
        how = self._faults.draws("host.impatient", place)
        return anyio.move_on_after(how.choice(PATIENCE_S, "how long") * how.unit("waits"))


def _refusal(error: Exception) -> str:
    leaves = _leaves(error)
    if not all(isinstance(one, REFUSALS) for one in leaves):
        raise error
    return " and ".join(sorted({type(one).__name__ for one in leaves}))


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
