"""Model errors: decide when a model has failed, or was requested without a new result, too often for the turn to go on.

Failures are counted in one place. A retry that the agent makes by itself and a turn that failed because of the model
both count as one failure in a row; the count returns to 0 when something new comes from the model. When the allowed
number of failures is used up, the turn fails for that reason, and nothing else retries the turn; the next prompt has
one attempt until the model replies. A problem that no retry can solve is not retried.

Text counts as new unless it is among the last texts of the agent. A call, a call's result and a permission request
always count as new. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import msgspec

from supervisor.lifecycles.types import ModelFailure, ModelProblem, Verdict
from supervisor.policies.turn_outcome import model_failure_verdict

PERMANENT: Final = (ModelProblem.AUTH, ModelProblem.QUOTA, ModelProblem.NOT_FOUND, ModelProblem.CONTEXT_LENGTH)
"""Model problems that a retry of the same request meets again."""

SAID_MAX: Final = 64
"""Number of texts of an agent that are remembered, to recognise a repeated text."""
SAID_CHARS: Final = 256
"""Number of characters of each text that are compared."""


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on model errors of one session, after which its turn is ended; 0 means no bound.

    ``retries_max`` bounds failures in a row, of the agent's own retries and of the supervisor's together; 10 is the
    bound that Claude Code has for its own. ``at_once`` are the problems that are not retried. ``fruitless_max`` bounds
    requests in a row with nothing new in between: of nine agents measured against a failing model one made 20 such
    requests in 45 s and another one 448, where an agent with a working model makes none. ``requests_max`` bounds
    requests within ``within_s`` seconds, whatever their result: the agent with 448 made ten a second; a working agent
    makes about one, with a handful of sub-agents five.
    """

    retries_max: int = 10
    at_once: tuple[ModelProblem, ...] = PERMANENT
    fruitless_max: int = 20
    requests_max: int = 300
    within_s: float = 60.0


class ModelErrorStatus(NamedTuple):
    """Result of one model error: the number of failures in a row, and the verdict if the turn is to end."""

    in_a_row: int
    verdict: Verdict | None = None


class ModelRecord:
    """History of the model errors and model requests of one session."""

    __slots__ = ("_asked", "_fruitless", "_last", "_limits", "_said", "attempts", "in_a_row")

    def __init__(self, limits: ModelLimits) -> None:
        self._limits = limits
        self._said: dict[str, None] = {}
        self._asked: deque[float] = deque()
        self._fruitless = 0
        self._last: tuple[ModelProblem, int | None] | None = None
        self.in_a_row = 0
        """Failures since the model last gave something new."""
        self.attempts = 0
        """Failures that the agent has reported in this turn."""

    def turn_opened(self) -> None:
        """Begin a turn: the requests of an earlier turn no longer count, its failures still do."""
        self.attempts = self._fruitless = 0
        self._asked.clear()
        self._said.clear()

    # ------------------------------------------------------------------ what came
    def said(self, text: str) -> None:
        """Record *text* that the agent wrote as a message or a thought; a new text counts as progress."""
        words = text.strip()[:SAID_CHARS]
        if words and words not in self._said:
            self.progressed()
            self._said[words] = None
            if len(self._said) > SAID_MAX:
                del self._said[next(iter(self._said))]

    def progressed(self) -> None:
        """Record that something new came from the model."""
        self.in_a_row = self._fruitless = 0
        self._last = None

    # ------------------------------------------------------------------ what did not
    def troubled(self, problem: ModelProblem, status: int | None, words: str, now_s: float) -> ModelErrorStatus:
        """Record that the agent's model failed and that the agent retries by itself."""
        self.attempts += 1
        self.in_a_row += 1
        self._last = problem, status
        most = self._limits.retries_max
        said = f": {words}" if words else ""
        if problem in self._limits.at_once:
            why = f"the agent's model fails, and no further try mends that ({problem}){said}"
        elif most and self.in_a_row > most:
            why = f"the agent's model failed {self.in_a_row} times in a row ({problem}), the most is {most}{said}"
        else:
            return ModelErrorStatus(self.in_a_row, self.requested(1, now_s))
        return ModelErrorStatus(self.in_a_row, self._verdict(why, problem, status))

    def requested(self, requests: int, now_s: float) -> Verdict | None:
        """Record requests to the model that were observed; return the verdict if the turn is to end."""
        self._count(requests, now_s)
        most, within_s = self._limits.requests_max, self._limits.within_s
        if most and len(self._asked) > most:
            return self._in_vain(f"more than {most} requests within {within_s:g} s")
        return self.reported(requests)

    def reported(self, requests: int = 1) -> Verdict | None:
        """Record requests that the agent seems to have made, as its reports show; return the verdict if the turn is to
        end."""
        self._fruitless += requests
        most = self._limits.fruitless_max
        if most and self._fruitless > most:
            return self._in_vain(f"{self._fruitless} requests with nothing new in between; the most is {most}")
        return None

    def _count(self, requests: int, now_s: float) -> None:
        most = self._limits.requests_max
        self._asked.extend([now_s] * min(requests, most + 1 if most else 0))
        while self._asked and now_s - self._asked[0] > self._limits.within_s:
            self._asked.popleft()

    def _in_vain(self, how_many: str) -> Verdict:
        problem, status = self._last or (ModelProblem.UNKNOWN, None)
        return self._verdict(f"the agent asks its model in vain: {how_many}", problem, status)

    def _verdict(self, why: str, problem: ModelProblem, status: int | None) -> Verdict:
        failure = ModelFailure(problem=problem, status=status, attempts=self.attempts, final=True)
        return model_failure_verdict(why, failure)

    # ------------------------------------------------------------------ how a turn ended
    def failed(self, verdict: Verdict) -> Verdict:
        """Record that the agent ended its turn because of its model; return the verdict with the number of attempts,
        and with ``final`` set if no further attempt is to be made."""
        model = verdict.model
        if model is None:
            return verdict
        self.in_a_row += 1
        most = self._limits.retries_max
        final = model.problem in PERMANENT or bool(most and self.in_a_row > most)
        counted = msgspec.structs.replace(model, attempts=self.attempts, final=final)
        return msgspec.structs.replace(verdict, model=counted)
