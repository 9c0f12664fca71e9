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
    "actors.restart": ("kernel/test_restart_rules.py",),
    "actors.views": ("test_views.py", "test_machine.py", *TABLES),
    "actors.waits": ("kernel/test_waits.py",),
    "supervisor.abort": (
        "test_abort_state.py",
        "test_abort_plan.py",
        "--deselect=tests/test_abort_plan.py::test_every_tree[5-9-115-24516]",
        "--deselect=tests/test_abort_plan.py::test_what_has_ended_is_skipped[4-34176]",
        *(f"test_abort_exhaustive.py::test_every_plan[{size}]" for size in (1, 2, 3, 4)),
    ),
    "supervisor.abort_state": ("test_abort_state.py",),
    "supervisor.access": ("test_access.py",),
    "supervisor.causality": ("test_causality.py", "test_render.py"),
    "supervisor.effects": ("test_effects.py",),
    "supervisor.policies": ("field/test_survivors.py",),
    "supervisor.policies.call_processes": ("field/test_survivors.py",),
    "supervisor.policies.turn_processes": ("contract/test_process_contract.py",),
    **dict.fromkeys(
        (
            "supervisor.invariants",
            *(
                f"supervisor.invariants.{room}"
                for room in (
                    "aborting",
                    "books",
                    "checker",
                    "containment",
                    "counting",
                    "honesty",
                    "laws",
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
    "supervisor.lifecycles.run": (*TABLES, "test_validate.py"),
    "supervisor.lifecycles.session": ("test_session_cells.py", *TABLES),
    "supervisor.lifecycles.task": (*TABLES, "test_validate.py"),
    "supervisor.lifecycles.turn": ("test_turn_cells.py", *TABLES),
    "supervisor.lifecycles.worker": (*TABLES, "test_validate.py"),
    "supervisor.lifecycles.workstream": (*TABLES, "test_validate.py"),
    "supervisor.logs": ("test_logs.py",),
    "supervisor.overview": ("test_overview.py", "test_render.py"),
    "supervisor.standing": ("test_standing.py",),
    "supervisor.budgets": ("test_budgets.py",),
    "supervisor.liveness": ("test_liveness.py",),
    "supervisor.loops": ("test_loops.py",),
    "supervisor.permissions": ("test_permissions.py",),
    "supervisor.model_trouble": ("test_model_trouble.py",),
    "supervisor.usage": ("test_model_trouble.py",),
    "supervisor.policy": ("test_policy.py",),
    "supervisor.projection": ("test_visual_states.py",),
    "supervisor.fold": ("test_invariants.py",),
    "supervisor.redaction": (
        "test_redaction.py",
        "--deselect=tests/test_redaction.py::test_nothing_of_it_is_kept",
    ),
    "supervisor.replay": ("test_replay.py",),
    "supervisor.what_if": ("test_replay.py",),
    "supervisor.scheduling.escalation": ("test_escalation.py",),
    "supervisor.failures": ("test_failures.py",),
    "supervisor.scheduling.providers": ("test_providers.py",),
    "supervisor.scheduling.retry_budget": ("test_retry_budget.py",),
    "supervisor.scheduling.timeouts": ("test_timeouts.py",),
    "supervisor.validate": ("test_validate.py",),
    **dict.fromkeys(
        (f"supervisor.scheduling.{room}" for room in ("backlog", "lanes", "leases", "owned_paths")),
        ("test_backlog.py",),
    ),
    "supervisor.vocabulary": ("test_abort_state.py", "test_effects.py", "test_policy.py", *TABLES),
    "supervisor.work_invariants": ("test_work_invariants.py", "test_validate.py"),
}
