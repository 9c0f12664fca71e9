"""The style as a test: layers, cycles, purity, docstrings and ``__all__``, read from the source.

Each check is a function from sources to complaints, so that a made-up module can show that it does complain.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "actors.machine",
        "actors.views",
        "actors.errors",
        "actors.backoff",
        "actors.breaker",
        "actors.restart",
        "actors.fault",
    ),
    ("actors",),
    ("supervisor.vocabulary", "supervisor.effects", "supervisor.redaction", "supervisor.logs"),
    ("supervisor.lifecycles",),
    (
        "supervisor.abort",
        "supervisor.abort_state",
        "supervisor.access",
        "supervisor.permissions",
        "supervisor.policy",
        "supervisor.projection",
        "supervisor.causality",
        "supervisor.overview",
        "supervisor.standing",
        "supervisor.validate",
        "supervisor.work_invariants",
        "supervisor.fold",
        "supervisor.replay",
        "supervisor.what_if",
        "supervisor.invariants",
        "supervisor.budgets",
        "supervisor.loops",
        "supervisor.model_trouble",
        "supervisor.usage",
        "supervisor.liveness",
        "supervisor.policies",
        "supervisor.scheduling.backlog",
        "supervisor.scheduling.escalation",
        "supervisor.failures",
        "supervisor.scheduling.lanes",
        "supervisor.scheduling.leases",
        "supervisor.scheduling.owned_paths",
        "supervisor.scheduling.providers",
        "supervisor.scheduling.retry_budget",
        "supervisor.scheduling.timeouts",
    ),
    (
        "supervisor.ports",
        "supervisor.parts",
        "supervisor.bounds",
        "supervisor.outage",
        "supervisor.ledger",
        "supervisor.entity",
        "supervisor.hands",
        "supervisor.tree",
        "supervisor.link",
        "supervisor.asking",
        "supervisor.permission_desk",
        "supervisor.terminals",
        "supervisor.process_link",
        "supervisor.wire",
        "supervisor.call_ends",
        "supervisor.compacting",
        "supervisor.ladder",
        "supervisor.kinds",
        "supervisor.aborter",
        "supervisor.inspecting",
        "supervisor.moments",
        "supervisor.work",
        "supervisor.model_watch",
        "supervisor.watch",
        "supervisor.overseer",
        "supervisor.names",
        "supervisor.within",
        "supervisor.private",
        "supervisor.nodes",
        "supervisor.programs",
        "supervisor.acceptance",
        "supervisor.janitor",
        "supervisor.signals",
        "supervisor.handle",
        "supervisor.subscriptions",
        "supervisor.agents",
        "supervisor.plans",
        "supervisor.scheduling.commands",
        "supervisor.scheduling.control",
    ),
    (
        "supervisor.journal",
        "supervisor.processes",
        "supervisor.adapters",
        "supervisor.workspace",
        "supervisor.plugins",
        "supervisor.stub_model",
    ),
    ("supervisor.surfaces", "supervisor.probing"),
    (
        "supervisor.inheritance",
        "supervisor.interrupted",
        "supervisor.recovery",
        "supervisor.equipment",
        "supervisor.aborts",
        "supervisor.clean_transcript",
        "supervisor.succession",
        "supervisor.prompting",
        "supervisor.shutdown",
        "supervisor.casualties",
        "supervisor.supervision",
        "supervisor.runtime",
        "supervisor.review",
        "supervisor.trust",
        "supervisor.upkeep",
        "supervisor.scheduling",
    ),
    ("supervisor.simulation",),
    (
        "supervisor.attending",
        "supervisor.planning",
        "supervisor.app",
        "supervisor.demo",
        "supervisor.__main__",
    ),
)
"""Lowest first; a prefix stands for itself and everything below it, the longest prefix wins. ``supervisor`` itself,
which only re-exports, is in the last one."""

PURE_LAYERS = frozenset({0, 2, 3, 4})
PURE_MODULES = frozenset(
    {
        "supervisor.surfaces.machines",
        "supervisor.stub_model.deciding",
        "supervisor.stub_model.dialects",
        "supervisor.stub_model.environment",
        "supervisor.stub_model.routes",
    }
)
FORBIDDEN = frozenset({"anyio", "trio", "asyncio", "time", "random", "os", "sqlite3", "apsw", "subprocess"})
STANDALONE = frozenset(
    {
        "supervisor.probing.lingering",
        "supervisor.__main__",
        "supervisor.processes.warden",
        "supervisor.adapters.scripted_agent",
    }
)
"""Programs: nobody imports names from them."""

Sources = Mapping[str, str]


def read_sources() -> dict[str, str]:
    """Every module of the two packages, by its dotted name."""
    paths = sorted(path for package in ("actors", "supervisor") for path in (ROOT / package).rglob("*.py"))
    return {module_name(path): path.read_text(encoding="utf-8") for path in paths}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> int | None:
    if module == "supervisor":
        return len(LAYERS) - 1
    fits = [
        (len(prefix), number)
        for number, prefixes in enumerate(LAYERS)
        for prefix in prefixes
        if module == prefix or module.startswith(f"{prefix}.")
    ]
    return max(fits)[1] if fits else None


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def imports(module: str, sources: Sources) -> list[str]:
    """What a module imports, wherever it stands (functions and TYPE_CHECKING count), as the modules meant."""
    found: list[str] = []
    for node in ast.walk(parsed(sources[module])):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node, sources)
            found += [name if (name := f"{base}.{alias.name}") in sources else base for alias in node.names]
    return list(dict.fromkeys(found))


def absolute(module: str, node: ast.ImportFrom, sources: Sources) -> str:
    if node.level == 0:
        return node.module or ""
    is_package = any(other.startswith(f"{module}.") for other in sources)
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def internal(module: str, sources: Sources) -> list[str]:
    return [one for one in imports(module, sources) if one in sources]


# -------------------------------------------------------------------------------------------------- the checks
def unknown_modules(sources: Sources) -> Iterator[str]:
    for module in sources:
        if layer_of(module) is None:
            yield f"{module} is in no layer; add it to LAYERS in tests/test_layers.py"


def upward_imports(sources: Sources) -> Iterator[str]:
    for module in sources:
        for other in internal(module, sources):
            low, high = layer_of(module), layer_of(other)
            if low is not None and high is not None and low < high:
                yield f"{module} (layer {low}) imports {other} (layer {high}): import downwards only"


def missing_imports(sources: Sources) -> Iterator[str]:
    for module in sources:
        for other in imports(module, sources):
            if other.split(".")[0] in ("actors", "supervisor") and other not in sources:
                yield f"{module} imports {other}, which is no module"


def cycles(sources: Sources) -> Iterator[str]:
    """One complaint for each import that closes a circle."""
    graph = {module: internal(module, sources) for module in sources}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> Iterator[str]:
        if module in path:
            yield f"import cycle: {' > '.join((*path[path.index(module) :], module))}"
        elif module not in done:
            for other in graph[module]:
                yield from visit(other, (*path, module))
            done.add(module)

    for module in graph:
        yield from visit(module, ())


def impure_imports(sources: Sources) -> Iterator[str]:
    """What a pure module imports, and what that imports in turn, is free of clocks, chance, disks and tasks."""
    for module in sources:
        if layer_of(module) in PURE_LAYERS or module in PURE_MODULES:
            for user in reached(module, sources):
                for other in imports(user, sources):
                    if other.split(".")[0] in FORBIDDEN:
                        through = "" if user == module else f" (through {user})"
                        yield f"{module} is pure but imports {other}{through}"


def reached(module: str, sources: Sources) -> list[str]:
    seen = [module]
    for one in seen:
        seen += [other for other in internal(one, sources) if other not in seen]
    return seen


def undocumented(sources: Sources) -> Iterator[str]:
    for module, text in sources.items():
        if not ast.get_docstring(parsed(text)):
            yield f"{module} has no docstring; say what it is for and what must be true in it"


def without_all(sources: Sources) -> Iterator[str]:
    for module, text in sources.items():
        if module not in STANDALONE and declared(text) is None:
            yield f"{module} has no __all__ of string literals"


def declared(text: str) -> list[str] | None:
    """The names in a module's ``__all__``; ``None`` if it has none that can be read."""
    for node in parsed(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            try:
                return list(ast.literal_eval(node.value or ast.Constant(None)))
            except (ValueError, TypeError):
                return None
    return None


def agents_in_the_kernel(sources: Sources) -> Iterator[str]:
    for module, text in sources.items():
        if module.split(".")[0] == "actors":
            for number, line in enumerate(text.splitlines(), 1):
                if "agent" in line.casefold():
                    yield f'{module}, line {number}: the word "agent" has no place in the kernel'


# ------------------------------------------------------------------------------------------------- the verdicts
SOURCES = read_sources()


def accept(complaints: Iterator[str]) -> None:
    """Fail with every complaint on a line of its own."""
    found = list(complaints)
    assert not found, "\n".join(found)


def test_there_is_something_to_read() -> None:
    """The two packages were found where this file looks for them."""
    assert {"actors", "actors.machine", "supervisor", "supervisor.lifecycles.task"} <= set(SOURCES)


def test_every_module_has_a_layer() -> None:
    """A new module must be given its place."""
    accept(unknown_modules(SOURCES))


def test_imports_go_down() -> None:
    """No module imports one of a higher layer, not even for its types."""
    accept(upward_imports(SOURCES))


def test_imports_exist() -> None:
    """Everything imported from the two packages is one of their modules."""
    accept(missing_imports(SOURCES))


def test_imports_make_no_circle() -> None:
    """No module imports itself by any path."""
    accept(cycles(SOURCES))


def test_pure_layers_are_pure() -> None:
    """No clock, no chance, no disk, no process and no task in the layers that decide."""
    accept(impure_imports(SOURCES))


def test_every_module_states_its_law() -> None:
    """Every module opens with a docstring."""
    accept(undocumented(SOURCES))


def test_every_module_owns_its_surface() -> None:
    """Every module but a program has an ``__all__`` that can be read."""
    accept(without_all(SOURCES))


@pytest.mark.parametrize("module", [one for one in SOURCES if one not in STANDALONE])
def test_surface_exists(module: str) -> None:
    """Every name in ``__all__`` can be imported, and stands there once."""
    names = declared(SOURCES[module]) or []
    assert len(names) == len(set(names))
    loaded = importlib.import_module(module)
    assert [name for name in names if not hasattr(loaded, name)] == []


def test_kernel_does_not_know_agents() -> None:
    """The kernel is useful on its own: the word does not occur in it."""
    accept(agents_in_the_kernel(SOURCES))


# ------------------------------------------------------------------------------------- the checks do complain
@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        (
            {"supervisor.new": ""},
            "supervisor.new is in no layer; add it to LAYERS in tests/test_layers.py",
        ),
        (
            {"actors.machine": "if TYPE_CHECKING:\n    from actors.ref import Ref", "actors.ref": ""},
            "actors.machine (layer 0) imports actors.ref (layer 1): import downwards only",
        ),
        (
            {"supervisor.ports": "def f():\n    from supervisor import runtime", "supervisor.runtime": ""},
            "supervisor.ports (layer 5) imports supervisor.runtime (layer 8): import downwards only",
        ),
        (
            {"supervisor.ports": "from . import runtime", "supervisor.runtime": "", "supervisor": ""},
            "supervisor.ports (layer 5) imports supervisor.runtime (layer 8): import downwards only",
        ),
        ({"actors.ref": "from actors.gone import x"}, "actors.ref imports actors.gone, which is no module"),
        (
            {"actors.a": "import actors.b", "actors.b": "from actors import c", "actors.c": "from actors.a import x"},
            "import cycle: actors.a > actors.b > actors.c > actors.a",
        ),
        ({"supervisor.policy": "import time"}, "supervisor.policy is pure but imports time"),
        (
            {"supervisor.surfaces.machines": "import os.path"},
            "supervisor.surfaces.machines is pure but imports os.path",
        ),
        (
            {"supervisor.policy": "from actors.clock import now", "actors.clock": "from time import monotonic"},
            "supervisor.policy is pure but imports time (through actors.clock)",
        ),
        ({"actors.ref": "x = 1"}, "actors.ref has no docstring; say what it is for and what must be true in it"),
        ({"actors.ref": "__all__ = names"}, "actors.ref has no __all__ of string literals"),
        ({"actors.ref": "AGENTS = 1"}, 'actors.ref, line 1: the word "agent" has no place in the kernel'),
    ],
)
def test_each_complaint_is_made(sources: Sources, complaint: str) -> None:
    """A made-up module that breaks a rule is named, with the rule."""
    checks = [
        unknown_modules,
        upward_imports,
        missing_imports,
        cycles,
        impure_imports,
        undocumented,
        without_all,
        agents_in_the_kernel,
    ]
    assert complaint in [one for check in checks for one in check(sources)]


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        ("actors", 1),
        ("actors.machine", 0),
        ("actors.mailbox", 1),
        ("supervisor", 10),
        ("supervisor.lifecycles", 3),
        ("supervisor.lifecycles.task", 3),
        ("supervisor.journal.sqlite", 6),
        ("supervisor.surfaces.machines", 7),
        ("supervisor.__main__", 10),
        ("supervisor.journalist", None),
        ("supervisor.something.new", None),
    ],
)
def test_layers_are_found_by_prefix(module: str, layer: int | None) -> None:
    """A prefix ends at a dot, and an unknown module of the supervisor has no layer."""
    assert layer_of(module) == layer
