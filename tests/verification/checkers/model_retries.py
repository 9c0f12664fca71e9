"""Checker of model errors: the tries that agents report, compared with the runtime's reaction.

A simulated agent counts its own tries, from 1, since its last message; the runtime's count must be at least as large.
So no count on record may exceed the budget plus one, and after a permanent error there may be no second try. The agent
also counts requests without result. A prompt whose model failed for good must not be sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.policies.model_errors import ModelLimits

Say = Callable[[str, str, str], None]
TELLING: Final = frozenset(
    {"ModelTrouble", "ModelAskedInVain", "Usage", "task_claimed", "task_failed", "verify_requested", "SessionExited"}
)
"""Events that this checker processes."""
FRUITFUL: Final = 8
"""Number of requests that no simulated turn with results exceeds."""


class ModelRetryChecker:
    """Checker of the model errors of one simulated run. *say* reports a violation: the invariant, the entity, and the
    message."""

    def __init__(self, say: Say, limits: ModelLimits) -> None:
        self._say = say
        self._limits = limits
        self._prompts: dict[str, str] = {}
        """Id of the prompt of each session's last turn."""
        self._given_up: set[tuple[str, str]] = set()
        self._settled: set[str] = set()
        """Turns that are over, or whose requests without result the runtime has noticed."""

    def wrote(self, record: LifecycleEvent) -> None:
        """Process a durable record."""
        match record.event, record.outcome:
            case "ModelTrouble", "fact":
                self._trouble(record)
            case "ModelAskedInVain", "fact":
                self._settled.add(str(record.metadata["turn"]))
            case "Usage", "fact":
                self._used(record)
            case "task_claimed", "transition":
                self._claimed(record)
            case "task_failed" | "verify_requested", "transition":
                self._settled.add(record.entity_id)
            case "SessionExited", "transition":
                self._exited(record)

    def _trouble(self, record: LifecycleEvent) -> None:
        told, most = record.metadata, self._limits.retries_max
        attempt, problem = int(told.get("attempt", 0)), told["problem"]
        if most and attempt > most + 1:
            self._broken(record, f"its agent tries for the {attempt}. time in a row; the most is {most}")
        if problem in self._limits.at_once and attempt > 1:
            self._broken(record, f"its agent tries for the {attempt}. time what no retry mends ({problem})")
        if int(told["in_a_row"]) < attempt:
            self._broken(record, f"counts {told['in_a_row']} failures in a row, its agent {attempt}")

    def _used(self, record: LifecycleEvent) -> None:
        requests, most = int(record.metadata.get("said", {}).get("requests", 0)), self._limits.fruitless_max
        turn_id = str(record.metadata["turn"])
        if most and requests > most + FRUITFUL and turn_id not in self._settled:
            self._broken(record, f"its agent made {requests} requests in vain in {turn_id}; the most is {most}")

    def _claimed(self, record: LifecycleEvent) -> None:
        session_id, prompt = record.entity_id.partition(":")[0], str(record.metadata.get("request_id", ""))
        self._prompts[session_id] = prompt
        if (session_id, prompt) in self._given_up:
            self._broken(record, f"is for the prompt {prompt}, whose model has failed for good")

    def _exited(self, record: LifecycleEvent) -> None:
        model = (record.metadata.get("verdict") or {}).get("model") or {}
        if model.get("final") and (record.from_status, record.to_status) == ("Running", "CoolingDown"):
            self._given_up.add((record.entity_id, self._prompts.get(record.entity_id, "")))

    def _broken(self, record: LifecycleEvent, words: str) -> None:
        self._say("one_budget", record.entity_id, words)
