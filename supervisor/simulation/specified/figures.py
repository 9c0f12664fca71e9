"""The figures that the documents promise, written down a second time, and where each stands.

A default that moves is a promise that is broken, though nothing else looks wrong: who wrote no number into a plan gets
another one than the page says. Only what a document tells is here; what is nobody's promise may be tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["BOUNDS", "PLAN"]

PLAN: Final[Mapping[str, Any]] = {
    "max_sessions": 6,
    "drain_s": 120.0,
    "policy.tool_to_sibling": False,
    "policy.sibling_to_session": False,
    "policy.ladder.request_s": 10.0,
    "policy.ladder.cancel_s": 5.0,
    "policy.ladder.terminate_s": 2.0,
    "policy.ladder.kill_s": 1.0,
    "limits.max_consecutive_errors": 5,
    "limits.max_total_errors": 20,
    "limits.restarts_max": 3,
    "limits.restarts_within_s": 60.0,
    "limits.waiting_max": 100,
    "limits.backoff_base_ms": 2000,
    "limits.backoff_cap_ms": 60000,
    "limits.steer_grace_s": 2.0,
    "limits.grace_s": 10.0,
    "limits.spawn_deadline_s": 60.0,
    "limits.turn_timeout_s": 300.0,
    "limits.stable_after_s": 0.0,
    "task_lifecycle.default_timeout": 300.0,
    "task_lifecycle.validation_timeout": 30.0,
    "task_lifecycle.max_attempts": 5,
    "task_lifecycle.base_retry_delay": 2.0,
    "task_lifecycle.max_retry_delay": 60.0,
    "task_lifecycle.jitter_percentage": 25.0,
    "task_lifecycle.circuit_breaker.max_error_repeats": 2,
    "task_lifecycle.circuit_breaker.cooldown_period": 60.0,
    "task_lifecycle.circuit_breaker.probes_max": 3,
    "retry_budget.share": 0.2,
    "retry_budget.least": 10,
    "hand_back.wall_s": 60.0,
    "hand_back.tool_calls": 10,
    "loops.same_call_max": 5,
    "loops.same_edit_max": 3,
    "model_trouble.retries_max": 10,
    "model_trouble.fruitless_max": 20,
    "model_trouble.requests_max": 300,
    "model_trouble.within_s": 60.0,
    "liveness.snapshot_s": 30.0,
    "liveness.default.wake": 3,
    "liveness.default.stop": 5,
    "liveness.default.kill": 7,
    "liveness.large.wake": 5,
    "liveness.large.stop": 8,
    "liveness.large.kill": 12,
    "liveness.tests.wake": 8,
    "liveness.tests.stop": 12,
    "liveness.tests.kill": 16,
}
"""The defaults of a plan, by their keys (docs/plans.md)."""

BOUNDS: Final[Mapping[str, Any]] = {
    # docs/security.md: what an agent can make us hold
    "supervisor.agents.protocols.framing:LINE_BYTES_MAX": 8 * 2**20,
    "supervisor.ports.input_limits:ID_CHARS_MAX": 256,
    "supervisor.ports.input_limits:WORDS_CHARS_MAX": 2_000,
    "supervisor.ports.input_limits:PROMPT_CHARS_MAX": 2**20,
    "supervisor.ports.input_limits:COMMAND_BYTES_MAX": 128 * 2**10,
    "supervisor.ports.input_limits:VARIABLES_MAX": 256,
    "supervisor.ports.input_limits:VARIABLES_BYTES_MAX": 64 * 2**10,
    "supervisor.ports.input_limits:PATH_CHARS_MAX": 4_096,
    "supervisor.ports.input_limits:FILE_BYTES_MAX": 4 * 2**20,
    "supervisor.ports.input_limits:OPEN_CALLS_MAX": 256,
    "supervisor.ports.input_limits:CALLS_MAX": 10_000,
    "supervisor.ports.input_limits:OPTIONS_MAX": 64,
    "supervisor.ports.input_limits:PERMISSIONS_MAX": 64,
    "supervisor.ports.input_limits:USAGE_BYTES_MAX": 16 * 2**10,
    "supervisor.ports.input_limits:TERMINALS_MAX": 256,
    "supervisor.ports.input_limits:CHILDREN_MAX": 64,
    "supervisor.ports.input_limits:TERMINALS_BYTES_MAX": 64 * 2**20,
    "supervisor.ports.input_limits:UNREAD_BYTES_MAX": 4 * 2**20,
    "supervisor.ports.input_limits:UNREAD_S": 30.0,
    "supervisor.agents.protocols.acp.updates:COST_MAX": 1e9,
    "supervisor.agents.protocols.acp.terminals:OUTPUT_BYTES": 2**20,
    "supervisor.agents.protocols.acp.terminals:OUTPUT_BYTES_MAX": 8 * 2**20,
    "supervisor.agents.protocols.acp.terminals:WAITING_MAX": 64,
    "supervisor.runtime.live_session:TEXT_MAX": 64 * 2**10,
    # docs/design.md: a disk that fails
    "supervisor.runtime.availability:RETRY": (0.1, 2.0, 5.0),
    "supervisor.runtime.availability:HELD_BYTES_MAX": 64 * 2**20,
    "supervisor.host.shutdown:LAST_RECORDS_S": 10.0,
    "supervisor.runtime.entity_registry:POST_S": 30
    * 24
    * 3600.0,  # who asks waits for it as long as it takes, a month at most
    # docs/model-trouble.md, docs/budgets.md, docs/permissions.md
    "supervisor.sessions.model_error_monitor:RECORDS_MAX": 32,
    "supervisor.sessions.session_monitor:EACH_MAX": 32,
    "supervisor.policies.budgets:PARTS": 64,
    "supervisor.policies.permissions:ANSWER_WITHIN_S": 300.0,
    # docs/plans.md, docs/plugins.md
    "supervisor.work.commands:KEPT_MAX": 10_000,
    "supervisor.work.commands:ID_MAX": 200,
    "supervisor.runtime.subscriptions:SUBSCRIPTION_MAX": 4_096,
    "supervisor.runtime.subscriptions:SUBSCRIPTION_BYTES_MAX": 8 * 2**20,
    "supervisor.policies.loop_detection:KNOWN_MAX": 512,
    "supervisor.lifecycles.turn:EXTENSION_S": 600.0,
    # docs/kernel.md
    "actors.dispatch:QUANTUM": 16,
    "actors.dispatch:BATCH": 256,
    "actors.dispatch:BATCH_S": 0.001,
    "actors.dispatch:FRONT_RUN_MAX": 32,
    "actors.dispatch:CREDIT": 64,
    "actors.host:QUANTUM": 16,
    "actors.inspection:TRACE_MAX": 64,
    "actors.mailbox:URGENT_RUN_MAX": 32,
    "actors.mailbox:DEFAULT_LIMITS.capacity": 256,
    "actors.mailbox:DEFAULT_LIMITS.capacity_bytes": 8 * 2**20,
    "actors.cell:SWALLOWED_AFTER_S": 0.25,
    "actors.cell:KILL_S": 0.25,
    "actors.timers:LATE_S": 1.0,
    "actors.timers:GRACE_S": 2.0,
    "actors.actor:SHUTDOWN_S": 5.0,
    "actors.actor:CLEANUP_S": 5.0,
    "actors.supervision:PER_SUPERVISOR": (10, 60.0),
    "actors.supervision:PER_CHILD": (3, 60.0),
    # the Agent Client Protocol and JSON-RPC
    "supervisor.agents.protocols.acp.messages:PROTOCOL_VERSION": 1,
    "supervisor.agents.protocols.acp.messages:AUTHENTICATION_NEEDED": -32000,
    "supervisor.agents.protocols.acp.messages:CANCELLED": -32800,
    "supervisor.agents.protocols.json_rpc:METHOD_NOT_FOUND": -32601,
    "supervisor.agents.protocols.json_rpc:INVALID_PARAMS": -32602,
}
"""Bounds and times of the runtime, as ``module:name``."""
