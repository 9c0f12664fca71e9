"""Places where the work on a plan touches the world, and where tables are applied, read from the source.

A workspace, a session or a process is used only by the effects of a task (``TaskScheduler._performers``) and what they
call; the exceptions are listed here with their reason. State tables are applied by the entities alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

PRODUCT: Final = Path(__file__).parents[3] / "supervisor"
PORTS: Final = frozenset(
    {
        *("start_session", "close_session", "outcome_of", "last_outcome", "abort", "clean_up", "run_command"),
        *("processes_of_turn", "signal_processes", "wait_process_exit"),
    }
)
"""Methods that use a session, a process or a workspace."""
OWNERS: Final = frozenset({"verification"})
"""Objects each of whose methods uses a workspace or a process."""
PERFORMERS: Final = (
    *("Attempts.start", "Attempts.make"),
    *("CompletionPipeline.check", "CompletionPipeline.merge", "CompletionPipeline.put_away"),
)
"""Functions that perform the effects of a task."""
EXCEPTIONS: Final[Mapping[str, str]] = {
    "CompletionPipeline.merge_late": "its task was closed under an earlier run, so it has no effects",
    "PlanCancellation._end_execution": "the plan is given up: no effect is performed any more",
    "PlanCancellation._end_session": "the plan is given up",
    "PlanRecovery.go_on": "a task that was settled under an earlier supervisor has no effects",
    "PlanRecovery._end_session": "a session that holds no task belongs to no effect",
    "PlanRunner._conclude": "the validation of the plan is no effect of a task",
    "merge_run": "a person merges the branch of a run that is over",
    "PlanRun.with_checkpoint": "a checkpoint that the plan wants with a decision is saved before the decision",
}


def functions(module: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions of a module with their names, ``Class.function`` for a method."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{one.name}", one


def parsed(folder: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((PRODUCT / folder).rglob("*.py")):
        yield str(path.relative_to(PRODUCT)), ast.parse(path.read_text())


def uses_port(function: ast.AST) -> bool:
    """Return whether a function, or a function within it, calls a method of a port, or passes the method on (a step
    that may be held)."""
    for one in ast.walk(function):
        if isinstance(one, ast.Attribute):
            is_owned = isinstance(one.value, ast.Attribute) and one.value.attr in OWNERS
            if one.attr in PORTS or (is_owned and one.attr != "allows"):
                return True
    return False


def named_in(function: ast.AST) -> set[str]:
    """Return the names of everything that a function mentions."""
    names = {one.attr for one in ast.walk(function) if isinstance(one, ast.Attribute)}
    return names | {one.id for one in ast.walk(function) if isinstance(one, ast.Name)}


def reached_from(known: Mapping[str, ast.AST], *starts: str) -> set[str]:
    """Return the functions that *starts* call, directly or through others, by the last part of their names."""
    by_last: dict[str, list[str]] = {}
    for name in known:
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
        by_last.setdefault(name.partition(".")[0], []).append(name)  # a class: all of its methods
    reached, queue = set(starts), [*starts]
    for name in queue:
        more = {one for last in named_in(known[name]) for one in by_last.get(last, ())} - reached
        reached |= more
        queue += more
    return reached


def test_only_effects_use_sessions_processes_and_workspaces() -> None:
    """Every function below ``work`` that calls a port is an effect, or is called by one, but for the listed exceptions;
    each of these is needed."""
    known = {name: one for _, module in parsed("work") for name, one in functions(module)}
    assert set(PERFORMERS) <= known.keys()
    users = {name for name, one in known.items() if uses_port(one)}
    assert len(users) > 20
    # Only the code of effects: what moves a task is reached from everywhere, and calls no port.
    others = users - reached_from(known, *PERFORMERS)
    listed = {name for start in EXCEPTIONS for name in reached_from({**known}, start)}
    assert others <= listed, sorted(others - listed)
    assert set(EXCEPTIONS) <= known.keys()


STEPPING: Final = frozenset({"runtime/entity.py", "runtime/entity_registry.py"})
FOLDERS: Final = ("runtime", "sessions", "host", "work", "control", "embedding")
CASCADE: Final = frozenset({"work/plan_run.py", "work/end_of_work.py"})
"""Modules that ask the cascade which events follow; the entities then step their tables by these events."""


def test_only_entities_step_a_table() -> None:
    """A table is applied to an event by the entities alone. (Pure packages compute with tables, and change nothing.)"""
    stepping, cascading = set[str](), set[str]()
    for name, module in [one for folder in FOLDERS for one in parsed(folder)]:
        for one in ast.walk(module):
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "step":
                stepping |= {name} if len(one.args) >= len(("state", "data", "event")) else set()
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "step":
                cascading.add(name)
    assert stepping == STEPPING
    assert cascading == CASCADE
