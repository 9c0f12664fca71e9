"""What is watched of the model of one session: troubles go on record, and the turn that has had enough of them fails.

A turn is failed as its own deadline fails it: it is over at once, its agent is asked to stop within its protocol, and
is killed when it does not within the grace. Who wants to hear of a trouble (a provider's breaker) hears of it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from supervisor.lifecycles.events import TaskFailed
from supervisor.lifecycles.types import ModelFailure, Verdict
from supervisor.policies.model_errors import ModelLimits, ModelRecord
from supervisor.ports import (
    ChildAsked,
    Compaction,
    ModelErrorReported,
    Out,
    PermissionAsked,
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
"""The fact that says that an agent's model failed, and that the agent tries again by itself."""
IN_VAIN: Final = "ModelAskedInVain"
"""The fact that says that an agent asks its model again and again, and nothing comes of it."""
RECORDS_MAX: Final = 32
"""Troubles of one turn that have a record each; of more, the failure of the turn says how many there were."""

_NEW: Final = (ToolOpened, ToolClosed, PermissionAsked, TerminalOpened, ChildAsked, Compaction)
"""What is something new, whatever is in it: circles of calls are watched elsewhere."""

Note = Callable[[str, dict[str, Any], str], int]
"""Puts a fact into the log of the session; its number."""


class ModelErrorMonitor:
    """Watches the model of one session.

    Args:
        note: puts a fact into the session's log.
        heard: is told of every failure of the model, of the agent's own tries and of turns.
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
        """The last trouble that has a record."""
        self._counts = False
        """Its agent says how many requests it makes."""
        self.record = ModelRecord(limits)

    def turn_began(self, turn_id: str) -> None:
        """The agent has the prompt of another turn: what it said until now belongs to the one before, also where that
        had failed, and the next one waited for the agent."""
        self._turn_id, self._failed = turn_id, False
        self.record.turn_opened()

    def observe(self, out: Out) -> None:
        """The agent said something within its turn."""
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
        """The agent has ended its turn by itself, with that verdict: what it means after what was before."""
        if verdict.model is None:
            return verdict
        self._heard(verdict.model)
        return self.record.failed(verdict)

    # ------------------------------------------------------------------ small parts
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
        """Of an agent that counts no requests each report of its use is one; how many there are in a time says nothing,
        then."""
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
    """A trouble as it stands in a record: only what was told."""
    found = {
        "problem": trouble.problem.value,
        "status": trouble.status,
        "attempt": trouble.attempt or None,
        "retry_s": trouble.retry_s,
        "words": trouble.words or None,
    }
    return {name: one for name, one in found.items() if one is not None}
