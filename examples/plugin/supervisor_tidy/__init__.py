"""A plug-in of the supervisor: it counts what happens, refuses work that is not tidy, and gives failures to others.

Each function that is marked with ``hookimpl`` implements the hook of its name; it takes the arguments that it needs.
All of them are called in one thread of this plug-in, one after the other, so nothing here needs a lock. A verifier is
called in a thread of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plugins import FailedAttempt, Verification, Verifier, WorkItem, hookimpl

__all__ = ["SEEN", "no_marks"]

SEEN: Counter[str] = Counter()
"""How often each transition was seen, for example ``task: DONE -> CLOSED``."""


@hookimpl
def supervisor_task_event(event: LifecycleEvent) -> None:
    if event.outcome == "transition":
        SEEN[f"task: {event.from_status} -> {event.to_status}"] += 1


@hookimpl
def supervisor_session_event(event: LifecycleEvent) -> None:
    if event.event == "Ended":
        SEEN["session: ended"] += 1


@hookimpl
def supervisor_abort_event(event: LifecycleEvent) -> None:
    SEEN[f"abort: {event.reason}"] += 1


@hookimpl
def supervisor_verifiers() -> Mapping[str, Verifier]:
    return {"no_marks": no_marks}


def no_marks(asked: Verification) -> str | None:
    """Refuse work that holds the marks of a merge conflict; ``with: {suffix: .md}`` looks at other files than .py."""
    suffix = str(asked.options.get("suffix", ".py"))
    for path in sorted(Path(asked.directory).rglob(f"*{suffix}")):
        if any(line.startswith("<<<<<<< ") for line in path.read_text(errors="replace").splitlines()):
            return f"{path.relative_to(asked.directory)} holds the marks of a conflict"
    return None


@hookimpl
def supervisor_priority(item: WorkItem) -> int | None:
    """What others wait for comes first."""
    return None if item.depends_on else item.priority + 1


@hookimpl
def supervisor_escalate(attempt: FailedAttempt) -> str | None:
    """After two failures, another agent than the one that failed."""
    others = [name for name in attempt.agents if name != attempt.agent]
    return others[0] if others and attempt.attempt >= 2 else None
