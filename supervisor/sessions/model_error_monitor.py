"""Monitor of model API errors of one session: errors are recorded, and a turn with too many of them fails.

Such a turn fails as by its own deadline: it is over at once, its agent is asked to interrupt it, and killed after the
grace. Other listeners (the circuit breaker of a provider) are called with every error at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from supervisor.lifecycles.events import TaskFailed
from supervisor.lifecycles.types import ModelFailure, Verdict
from supervisor.policies.model_errors import ModelLimits, ModelRecord
from supervisor.ports import (
    ChildRequested,
    Compaction,
    ModelErrorReported,
    Out,
    PermissionNeeded,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    Usage,
)
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause

__all__ = ["IN_VAIN", "RECORDS_MAX", "TROUBLE", "ModelErrorMonitor"]

TROUBLE: Final = "ModelTrouble"
"""Fact: an agent's model failed, and the agent tries again by itself."""
IN_VAIN: Final = "ModelAskedInVain"
"""Fact: an agent calls its model again and again, without progress."""
RECORDS_MAX: Final = 32
"""Errors of one turn that have a record each; of more, the turn's failure says how many there were."""

_NEW: Final = (ToolOpened, ToolClosed, PermissionNeeded, TerminalOpened, ChildRequested, Compaction)
"""Messages that count as progress, whatever they contain; loops of calls are detected elsewhere."""

Note = Callable[[str, dict[str, Any], str], int]
"""Appends a fact to the session's log, and returns the number of the record."""


class ModelErrorMonitor:
    """Monitor of the model of one session.

    Args:
        note: appends a fact to the session's log.
        heard: called with every failure of the model, of the agent's own tries and of turns.
    """

    def __init__(
        self, registry: EntityRegistry, limits: ModelLimits, note: Note, heard: Callable[[ModelFailure], None]
    ) -> None:
        self._registry = registry
        self._note = note
        self._heard = heard
        self._turn_id = ""
        self._failed = False
        self._recorded: int | None = None
        """Number of the last error's record."""
        self._counts = False
        """The agent reports how many requests it makes."""
        self.record = ModelRecord(limits)

    def turn_began(self, turn_id: str) -> None:
        """Begin to count for another turn: its agent has the prompt. Messages before belong to the turn before, also if
        that had failed, and this one waited for the agent."""
        self._turn_id, self._failed = turn_id, False
        self.record.turn_opened()

    def observe(self, out: Out) -> None:
        """Process a message of the agent within its turn."""
        if isinstance(out, Text):
            if out.kind != "log":
                self.record.said(out.text)
        elif isinstance(out, _NEW):
            self.record.progressed()
        elif isinstance(out, ModelErrorReported):
            self._trouble(out)
        elif isinstance(out, Usage):
            self._used(out)

    def judge(self, verdict: Verdict) -> Verdict:
        """Return the verdict of a turn that the agent ended with *verdict*, given the errors before."""
        if verdict.model is None:
            return verdict
        self._heard(verdict.model)
        return self.record.failed(verdict)

    def _trouble(self, trouble: ModelErrorReported) -> None:
        if self._failed:
            return
        ruling = self.record.troubled(trouble.problem, trouble.status, trouble.words, self._now())
        if self.record.attempts <= RECORDS_MAX:
            told = {"turn": self._turn_id, **_told(trouble), "in_a_row": ruling.in_a_row}
            self._recorded = self._note(TROUBLE, told, "")
        self._heard(ModelFailure(problem=trouble.problem, status=trouble.status))
        self._rule(ruling.verdict, self._recorded)

    def _used(self, usage: Usage) -> None:
        """Count requests. Each report of an agent that does not count its requests is one request; their rate then has
        no meaning."""
        if self._failed:
            return
        self._counts = self._counts or usage.requests > 0
        verdict = self.record.requested(usage.requests, self._now()) if self._counts else self.record.reported()
        if verdict is not None:
            self._rule(verdict, self._note(IN_VAIN, {"turn": self._turn_id}, verdict.error))

    def _rule(self, verdict: Verdict | None, because: int | None) -> None:
        if verdict is not None:
            self._failed = True
            self._registry.send(self._turn_id, TaskFailed(verdict=verdict), cause=Cause(because, None, "model"))

    def _now(self) -> float:
        return self._registry.system.timers.now()


def _told(trouble: ModelErrorReported) -> dict[str, Any]:
    """Return the fields of an error that the agent has given, for a record."""
    found = {
        "problem": trouble.problem.value,
        "status": trouble.status,
        "attempt": trouble.attempt or None,
        "retry_s": trouble.retry_s,
        "words": trouble.words or None,
    }
    return {name: one for name, one in found.items() if one is not None}
