"""Commands of people and agents about a task that its states refuse, and the text of the refusal.

A command is a leading event (``task_cascade``). The table of the event decides whether the event is possible; here are
the moments at which a command must wait all the same, since the task is about to go on by itself. The runtime gives
leading events of its own (a lost worker, the end of a delay) only in states that call for them.

Pure: no clock, no file, no random number; of the product, the modules of this package only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from actors.machine import Event, IllegalTransition
from supervisor.lifecycles import task
from supervisor.lifecycles.job import Job
from supervisor.lifecycles.task import TASK, Task
from supervisor.lifecycles.task_cascade import NOTHING, RunChecks, TaskResources, TaskStates, pending_effect
from supervisor.lifecycles.task_run import ManualReset
from supervisor.lifecycles.types import Verb

VERBS: Final[Mapping[type[Event], Verb]] = MappingProxyType(
    {
        task.Approved: Verb.APPROVE,
        task.ApprovalGiven: Verb.APPROVE,
        task.Rejected: Verb.REJECT,
        task.ApprovalDenied: Verb.REJECT,
        task.Requeued: Verb.REQUEUE,
        task.Unclaimed: Verb.UNCLAIM,
        task.Cancelled: Verb.CANCEL,
        task.Split: Verb.SPLIT,
        task.Blocked: Verb.BLOCK,
        task.Unblocked: Verb.UNBLOCK,
        task.Kept: Verb.KEEP,
    }
)
"""Commands, by the events of the task that they give."""

_MOVES: Final[Mapping[type[Event], Callable[[TaskStates], bool]]] = MappingProxyType(
    {
        task.Split: lambda states: states.task is Task.OPEN and states.job is Job.RUNNING,  # it is being claimed
        task.ApprovalDenied: lambda states: bool(states.task_data.approved_by),  # it is being merged
    }
)
"""Tests, by the event of a command, for states in which the task is about to go on, although its table allows the
event."""


def refusal(states: TaskStates, lead: Event, resources: TaskResources = NOTHING) -> str:
    """Return why the command that gives *lead* is not possible for a task in these states, as a text that follows the
    name of the task; ``""`` if the command is possible."""
    assert states.task is not None, "it was opened"
    if isinstance(pending_effect(states, resources), RunChecks) and not isinstance(lead, task.Cancelled):
        return "is done, and its work is being checked; wait for that, or cancel it"
    moves = _MOVES.get(type(lead))
    try:
        states.after(lead)
        if moves is None or not moves(states):
            return ""
    except IllegalTransition:
        pass
    if isinstance(lead, ManualReset):
        return f"needs no retry: its run is {states.run.value if states.run else 'over'}, not given up"
    allowed, state = TASK.allowed(states.task), states.task.value
    if type(lead) in allowed:
        return f"is {state}, and is about to go on by itself; ask again"
    possible = sorted({verb.value for event, verb in VERBS.items() if event in allowed})
    if not possible:
        return f"has ended ({state}): no command changes it"
    return f"is {state}: {VERBS.get(type(lead), Verb.RETRY).value} is not possible now, only {', '.join(possible)}"
