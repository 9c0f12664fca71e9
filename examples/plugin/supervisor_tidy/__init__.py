"""Plug-in that counts transitions, refuses work with conflict marks, and gives failed tasks to another agent.

Each function that is marked with ``hookimpl`` implements the hook of its name, and takes only the arguments that it
needs. The hooks are called one at a time in one thread of this plug-in, so they need no lock. A verifier is called in a
thread of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plugins import FailedAttempt, Verification, Verifier, WorkItem, hookimpl

__all__ = ["SEEN", "no_marks"]

SEEN: Counter[str] = Counter()
"""Number of times that each transition was seen, for example ``task: DONE -> CLOSED``."""


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
    """Refuse work that contains marks of a merge conflict, in .py files or those that ``with: {suffix: .md}`` names."""
    suffix = str(asked.options.get("suffix", ".py"))
    for path in sorted(Path(asked.directory).rglob(f"*{suffix}")):
        if any(line.startswith("<<<<<<< ") for line in path.read_text(errors="replace").splitlines()):
            return f"{path.relative_to(asked.directory)} holds the marks of a conflict"
    return None


@hookimpl
def supervisor_priority(item: WorkItem) -> int | None:
    """Raise the priority of tasks without dependencies by one."""
    return None if item.depends_on else item.priority + 1


@hookimpl
def supervisor_escalate(attempt: FailedAttempt) -> str | None:
    """After two failures choose another agent than the failed one."""
    others = [name for name in attempt.agents if name != attempt.agent]
    return others[0] if others and attempt.attempt >= 2 else None
