"""The soak that mutants of the runtime are tried against: fixed runs in virtual time, judged by the oracle alone.

A mutant is killed by a violation, by an exception, by a crash of its interpreter, or by an endless loop; never by a
digest, for that only says that something is different.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

__all__ = ["RUNS", "SIMULATED", "Run", "play"]


class Run(NamedTuple):
    """A scenario of the library, and its seed."""

    scenario: str
    seed: int

    def __str__(self) -> str:
        return f"{self.scenario} {self.seed}"


_SEEDS = {
    "brief-turns": 2,
    "broken-protocol": 1,
    "budgets": 3,
    "calm": 1,
    "clocks": 1,
    "deep-delegation": 1,
    "drains": 2,
    "failing-disk": 2,
    "given-up-starts": 2,
    "hung-provider": 1,
    "kernel": 2,
    "killed": 3,
    "liars": 1,
    "lost-wardens": 1,
    "model-trouble": 2,
    "offices": 1,
    "orphan-storm": 1,
    "permissions": 2,
    "plans": 2,
    "poison-prompt": 1,
    "policies": 2,
    "quiet": 1,
    "restart-storm": 1,
    "slow-disk": 1,
    "slow-starts": 1,
    "stubborn-commands": 2,
    "stubborn-functions": 2,
    "swarm": 8,
    "urgent": 2,
    "works": 6,
    "works-alone": 6,
}
_MORE = {
    "checkpoints": (5, 6, 7, 8, 9, 10, 11, 13, 16, 20, 25),
    "killed-plans": (7, 11, 13, 14, 21),
    "killed-works": range(1, 21),
    "silent-workers": (1, 2, 3, 8),
    "works": (7, 8, 10, 11, 12, 13, 14, 23, 25),
    "works-alone": (10, 12, 13, 25),
}
RUNS = tuple(
    Run(name, seed)
    for name, seeds in [*((name, range(1, count + 1)) for name, count in _SEEDS.items()), *_MORE.items()]
    for seed in seeds
)
"""The soak: so many seeds of each scenario, from 1; and those by which what is rare on the work side is come by."""


def play(run: Run) -> tuple[str, ...]:
    """Run it; what the oracle says of it."""
    running = importlib.import_module("supervisor.simulation.running")
    scenario = importlib.import_module("supervisor.simulation.scenario")
    problems: tuple[str, ...] = running.simulate(scenario.named(run.scenario).draw(run.seed)).problems
    return problems


_MODULES = {
    "actors": (
        "actor backoff breaker cell dispatch errors host inspection machine mailbox nursery parking place "
        "reading ref restart scopes supervision timers waiting working"
    ),
    "supervisor.aborts": "executor service termination tool_calls",
    "supervisor.agents.protocols": "command exit_status framing inprocess json_rpc",
    "supervisor.agents.protocols.acp": (
        "calls capabilities codec errors handshake messages permissions terminals updates"
    ),
    "supervisor.embedding": "runtime",
    "supervisor.host": "actor_failures inspection journal_upkeep shutdown supervision trust_scores verification",
    "supervisor.lifecycles": "agent effects events job session task task_run turn types worker workstream",
    "supervisor.plans": "acceptance task_control",
    "supervisor.policies": (
        "abort_plan abort_request access budgets error_classification fallback_agent liveness loop_detection "
        "model_errors permissions retry_budget turn_outcome usage"
    ),
    "supervisor.ports": "input_limits path_safety",
    "supervisor.processes": "helper_programs",
    "supervisor.recovery": "journal_state restore resumable takeover",
    "supervisor.runtime": (
        "abort_tree_view agent_io availability entity entity_registry entity_types id_allocator "
        "journal_writer live_session one_shot_event subscriptions"
    ),
    "supervisor.sessions": (
        "agent_connection approval_queue compaction_tracker effect_executor handle model_error_monitor "
        "monitor_registry pending_requests permission_requests process_connection session_monitor terminals"
    ),
    "supervisor.work": (
        "attempt_runner authorization backlog blocking budgeting commands completion_pipeline leases "
        "owned_paths plan_recovery plan_run plan_runner plugin_policies providers ready_queue results review "
        "task_commands task_execution timeouts workers workstream workstream_export"
    ),
}
SIMULATED = tuple(f"{package}.{name}" for package, names in _MODULES.items() for name in names.split())
"""What mutants are made of: the pure modules that a supervisor is made of (tables, policies, planning, codecs), and
the runtime (the kernel's actors, supervision, hands, ledger, entities, links, and the work side).

Not the judge itself, nor the doors to the operating system, the adapters that no simulated agent speaks, the command
line, what reads and checks plan files, what only looks or draws (``projection``, ``views``), or the checks of logs:
none of that is inside a simulated run."""
