"""The pure modules that mutants are made of, and the fastest tests that are about each.

What a module decides is claimed by tests that start no process and wait for nothing; only those are here. Each entry
is arguments for pytest, relative to ``tests``. Whether every pure module is in it, ``test_mutation_map.py`` says.
"""

from __future__ import annotations

__all__ = ["ALWAYS", "TESTS"]

ALWAYS = ("test_values.py::test_values_are_frozen[{module}]", "test_values.py::test_fields_are_named[{module}]")
"""What is claimed of every pure module alike."""

TABLES = ("test_lifecycles.py", "test_reference.py")

TESTS: dict[str, tuple[str, ...]] = {
    "actors.backoff": ("kernel/test_backoff.py",),
    "actors.breaker": ("kernel/test_breaker.py",),
    "actors.errors": ("kernel/test_errors.py",),
    "actors.fault": ("kernel/test_fault.py",),
    "actors.machine": ("test_machine.py", "test_views.py", *TABLES),
    "actors.restart": ("kernel/test_supervision.py",),
    "actors.views": ("test_views.py", "test_machine.py", *TABLES),
    "supervisor.policies.abort_plan": (
        "test_abort_state.py",
        "test_abort_plan.py",
        "--deselect=tests/unit/policies/test_abort_plan.py::test_every_tree[5-9-115-24516]",
        "--deselect=tests/unit/policies/test_abort_plan.py::test_what_has_ended_is_skipped[4-34176]",
        *(f"test_abort_exhaustive.py::test_every_plan[{size}]" for size in (1, 2, 3, 4)),
    ),
    "supervisor.policies.abort_request": ("test_abort_state.py",),
    "supervisor.policies.access": ("test_access.py",),
    "supervisor.diagnostics.causal_trace": ("test_causality.py", "test_render.py"),
    "supervisor.lifecycles.effects": ("test_effects.py",),
    "supervisor.policies": ("field/test_survivors.py",),
    "supervisor.policies.caller_reach": ("field/test_agent_is_no_operator.py",),
    "supervisor.policies.call_processes": ("field/test_survivors.py",),
    "supervisor.policies.turn_processes": ("contract/test_process_contract.py",),
    **dict.fromkeys(
        (
            "supervisor.diagnostics.invariants",
            *(
                f"supervisor.diagnostics.invariants.{room}"
                for room in (
                    "aborting",
                    "shadow_state",
                    "checker",
                    "containment",
                    "counting",
                    "honesty",
                    "catalogue",
                    "promises",
                    "work",
                )
            ),
        ),
        ("test_invariants.py",),
    ),
    "supervisor.lifecycles": TABLES,
    "supervisor.lifecycles.agent": ("test_agent_cells.py", *TABLES),
    "supervisor.lifecycles.events": ("test_effects.py", "test_agent_cells.py", "test_turn_cells.py", *TABLES),
    "supervisor.lifecycles.job": (*TABLES, "test_validate.py"),
    "supervisor.lifecycles.task_run": (*TABLES, "test_validate.py"),
    "supervisor.lifecycles.session": ("test_session_cells.py", *TABLES),
    "supervisor.lifecycles.task": (*TABLES, "test_validate.py"),
    "supervisor.lifecycles.turn": ("test_turn_cells.py", *TABLES),
    "supervisor.lifecycles.worker": (*TABLES, "test_validate.py"),
    "supervisor.lifecycles.workstream": (*TABLES, "test_validate.py"),
    "supervisor.ports.logs": ("test_logs.py",),
    "supervisor.diagnostics.tree_view": ("test_overview.py", "test_render.py"),
    "supervisor.diagnostics.task_status": ("test_standing.py",),
    "supervisor.policies.budgets": ("test_budgets.py",),
    "supervisor.policies.liveness": ("test_liveness.py",),
    "supervisor.policies.loop_detection": ("test_loops.py",),
    "supervisor.policies.permissions": ("test_permissions.py",),
    "supervisor.policies.model_errors": ("test_model_trouble.py",),
    "supervisor.policies.usage": ("test_model_trouble.py",),
    "supervisor.policies.turn_outcome": ("test_policy.py",),
    "supervisor.diagnostics.visual_state": ("test_visual_states.py",),
    "supervisor.diagnostics.event_replay": ("test_invariants.py",),
    "supervisor.policies.redaction": (
        "test_redaction.py",
        "--deselect=tests/integration/test_redaction.py::test_nothing_of_it_is_kept",
    ),
    "supervisor.diagnostics.replay": ("test_replay.py",),
    "supervisor.diagnostics.what_if": ("test_replay.py",),
    "supervisor.policies.fallback_agent": ("test_escalation.py",),
    "supervisor.policies.error_classification": ("test_failures.py",),
    "supervisor.work.providers": ("test_providers.py",),
    "supervisor.policies.retry_budget": ("test_retry_budget.py",),
    "supervisor.work.timeouts": ("test_timeouts.py",),
    "supervisor.diagnostics.validate": ("test_validate.py",),
    **dict.fromkeys(
        (f"supervisor.work.{room}" for room in ("backlog", "ready_queue", "leases", "owned_paths")),
        ("test_backlog.py",),
    ),
    "supervisor.lifecycles.types": ("test_abort_state.py", "test_effects.py", "test_policy.py", *TABLES),
    "supervisor.diagnostics.work_invariants": ("test_work_invariants.py", "test_validate.py"),
}
