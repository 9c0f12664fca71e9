"""Catalogue of the invariants: names, with one sentence each, and the class of a violation.

The first twenty invariants are the runtime's own, followed by two about time, one about a journal that cannot be
written, one about model errors, the fourteen of the specification of jobs, workstreams and workers, and one about
checkpoints. ``WORLD`` names the invariants that records alone cannot show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from supervisor.lifecycles.types import RecordId


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Violation of an invariant by a record of *entity_id*. ``seq`` is ``None`` for a record that is missing at the
    end."""

    invariant: str
    entity_id: str
    seq: RecordId | None
    message: str


ReportViolation = Callable[[str, str, str], None]
"""Function that reports a violation; its arguments are the invariant, the entity, and the text."""

INVARIANTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "containment": "A child ends before its parent does, nothing is born under one that is ending, and nothing"
        " runs below one that has ended.",
        "no_survivor": "When a session's last record is written, every process below it is dead and reaped; the record"
        " waits for processes that the kernel is still ending (checked by the simulator's oracle).",
        "bounded_kill": "An accepted abort ends every process in its reach within the budgets of its termination"
        " stages, even if the journal cannot be written; only a process that the kernel is ending, and that runs no"
        " code any more, may be there for longer (checked by the simulator's oracle).",
        "recorded": "Everything that an abort reached has a terminal record.",
        "isolation": "An abort changes nothing outside its reach (a test runs seeds with and without one; the"
        " simulator's oracle compares every end with the requests, and every plan with what it spares).",
        "tool_stays_tool": "A tool abort moves no session; its turn sees exactly one result, aborted or unknown, and"
        " goes on.",
        "no_level_crossed": "An abort ends nothing beyond its scope without a record that names the policy edge.",
        "one_answer": "Each abort gets one reply: its target is stopped, and ends.",
        "once": "An abort, a request and a message take effect at most once; a request gets one reply.",
        "legal": "Every transition is in its table, continues the entity's last record, and gives the same step again;"
        " numbers have no gap.",
        "final": "After its last record only refusals, facts and marked extensions name an entity.",
        "intent_before_effect": "A turn, an agent, a start and a claim come after the record that intends them.",
        "durable": "The recovered journal is a gap-free prefix that holds everything acknowledged (checked by the"
        " simulator's oracle).",
        "one_holder": "A task has at most one live holder.",
        "nothing_lost": "Every task is settled, claimable, waiting for something named, or held by a live session.",
        "counted_right": "The error counters follow the specification, at a threshold the session stops before any"
        " new launch, restarts never exceed their intensity, and each failure is charged once.",
        "honest_ends": "Success needs the agent's own report and no open call; every end goes back over older records"
        " to exactly one root, which names an actor.",
        "quiescence": "At the end everything is terminal, at rest, or waiting for something named.",
        "bounded": "Mailboxes stay within capacity, and tasks, descriptors, timers and memory return to their baseline"
        " (checked by the simulator's oracle).",
        "released": "Claims of a dead session or supervisor are released within the lease and a bound (checked by the"
        " simulator's oracle).",
        "monotonic": "The monotonic time of an entity's records never goes back.",
        "punctual": "A timer fires at its time, and a termination takes the time of its stages (checked by the"
        " simulator's oracle, where time is virtual).",
        "degraded": "While the journal cannot be written nothing new begins, requests are refused, terminations take"
        " their time, and the journal is not given up before an end has waited for it (checked by the simulator's"
        " oracle).",
        "one_budget": "Retries after model errors, the agent's and ours, are counted together, at most one more than"
        " the budget; an error that retries cannot solve is tried once and not reassigned (checked by the"
        " simulator's oracle).",
        "single_active_state": "A job is in exactly one state at any time.",
        "monotonic_progress": "A job, workstream or worker does not leave a terminal state.",
        "worker_assignment": "Only running jobs have a worker.",
        "retry_limit": "A job's retry_count never exceeds its max_retries.",
        "timestamp_ordering": "A job's created_at is no later than its started_at, which is no later than its"
        " completed_at.",
        "dependency_satisfaction": "A queued job has all its dependencies completed.",
        "task_state_consistency": "A workstream's state is consistent with those of its jobs.",
        "completion_requirement": "A workstream is completed only if all its jobs are.",
        "failure_propagation": "A critical job's failure fails its workstream.",
        "archive_preservation": "A workstream that has ended is in the archive, with every record of it (checked by the"
        " simulator's oracle).",
        "capacity_limit": "A worker has no more tasks than its max_concurrent_tasks.",
        "health_monitoring": "Only idle and busy workers send heartbeats; a worker that sends them is not lost, a"
        " worker that does not is (checked by the simulator's oracle).",
        "graceful_shutdown": "A worker completes its tasks before it shuts down.",
        "resource_cleanup": "A worker that goes idle or shuts down holds no task.",
        "checkpoints": "A recorded checkpoint exists, the run that continues from it begins with it, and work that is"
        " rolled back is not lost (checked by the simulator's oracle).",
    }
)

WORLD: Final = frozenset(
    {
        "no_survivor",
        "bounded_kill",
        "isolation",
        "durable",
        "bounded",
        "released",
        "punctual",
        "degraded",
        "checkpoints",
        "one_budget",
        "archive_preservation",
        "health_monitoring",
    }
)
"""Invariants that leave no trace in a record; the simulator's oracle checks them."""
