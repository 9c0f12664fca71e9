"""What an entity begins with where nobody has said anything: counters at nothing, and the figures of the seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["BLANK"]

BLANK: Final[Mapping[str, Mapping[str, Any]]] = {
    "session": {
        **dict.fromkeys(("incarnation", "concluded", "turn_seq", "offered"), 0),
        **dict.fromkeys(("consecutive_errors", "total_errors"), 0),
        **dict.fromkeys(("urgent_latched", "ended", "spent", "cooled"), False),
        **dict.fromkeys(("turn_id", "prompt", "last_error", "outcome"), ""),
        **dict.fromkeys(("current", "abort_id", "due_s"), None),
        "session_seq": 1,
    },
    "turn": {
        **dict.fromkeys(("incarnation", "calls", "permissions"), 0),
        **dict.fromkeys(("request_id", "phase"), ""),
        **dict.fromkeys(("due_s", "verdict", "abort_id"), None),
        "timeout_s": 300.0,
        "boundary_awaited": False,
    },
    "run": {
        "max_attempts": 5,
        "base_delay_s": 2.0,
        "max_delay_s": 60.0,
        "jitter": 0.25,
        "max_error_repeats": 2,
        "probes_max": 3,
        "cooldown_s": 60.0,
        "timeout_s": 300.0,
        **dict.fromkeys(("attempts", "failures", "same_error", "probes", "saved_attempt"), 0),
        **dict.fromkeys(("permanent", "probe"), False),
        **dict.fromkeys(("skipped", "saved_in"), None),
        "delay_s": 0.0,
    },
    "task": {"max_retries": 3, "needs_approval": False, "claims": 0, "retries": 0, "claimed_by": ""},
    "job": {
        "max_retries": 4,
        "critical": False,
        "retry_count": 0,
        "token": 0,
        **dict.fromkeys(("worker_id", "created_at", "started_at", "attempt_started_at", "completed_at"), None),
    },
    "worker": {
        "max_concurrent_tasks": 1,
        "misses_max": 3,
        "shutdown_s": 180.0,
        "active_tasks": 0,
        "draining": False,
    },
    "workstream": {"started_at": None, "last_error": ""},
    "agent": {"pid": None, "resume_id": None, "status": None, "ended_by": ""},
}
"""By the name of the lifecycle, and of what it knows."""
