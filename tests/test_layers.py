"""Architecture of the two packages, read from their source: order of packages, cycles, purity, docstrings, ``__all__``.

Each check is a function from sources to complaints, so that a test with a made-up module can show that the check
complains.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

STEPS: tuple[tuple[str, ...], ...] = (
    ("actors",),
    ("supervisor.lifecycles",),
    ("supervisor.policies",),
    ("supervisor.agent_catalogue",),
    ("supervisor.ports",),
    (
        "supervisor.journal",
        "supervisor.processes",
        "supervisor.diagnostics",
        "supervisor.plans",
        "supervisor.workspaces",
        "supervisor.runtime",
    ),
    ("supervisor.agents", "supervisor.fleet", "supervisor.plugins", "supervisor.sessions"),
    ("supervisor.host",),
    ("supervisor.telemetry",),
    ("supervisor.work", "supervisor.control"),
    ("supervisor.embedding", "supervisor.triggers"),
    ("supervisor.daemon",),
    ("supervisor.cli",),
    ("supervisor.simulation",),
)
"""Packages, the lowest first. A package may import packages of lower steps only; packages on the same step do not
import each other."""

STEP = {package: number for number, packages in enumerate(STEPS) for package in packages}
MOCK_MODEL = "supervisor.mock_model"
"""Package outside of the order: it imports no other package, and only the command line imports it."""
USERS_OF_THE_MOCK_MODEL = ("supervisor.cli.",)
FLAT = {"supervisor": "supervisor.embedding", "supervisor.__main__": "supervisor.cli"}
"""Modules outside of any package, each with the package whose step applies to it. ``supervisor`` itself only
re-exports."""

PURE = ("supervisor.lifecycles", "supervisor.policies", "supervisor.diagnostics")
"""Packages that use no clock, no random numbers, no disk, no processes and no tasks."""
PURE_MODULES = frozenset(
    {
        "actors.backoff",
        "actors.breaker",
        "actors.errors",
        "actors.failpoint",
        "actors.machine",
        "actors.restart",
        "actors.machine_views",
        "supervisor.cli.machines",
        "supervisor.fleet.batches",
        "supervisor.mock_model.dialects",
        "supervisor.mock_model.environment",
        "supervisor.mock_model.matcher",
        "supervisor.mock_model.routes",
        "supervisor.ports.logs",
        "supervisor.telemetry.activities",
        "supervisor.telemetry.figures",
        "supervisor.telemetry.metric_table",
        "supervisor.telemetry.span_table",
        "supervisor.triggers.event_values",
        "supervisor.triggers.schedule",
        "supervisor.triggers.signatures",
        "supervisor.work.backlog",
        "supervisor.work.leases",
        "supervisor.work.owned_paths",
        "supervisor.work.providers",
        "supervisor.work.ready_queue",
        "supervisor.work.timeouts",
    }
)
"""Modules of other packages that are pure in the same sense as PURE."""
FORBIDDEN = frozenset({"anyio", "trio", "asyncio", "time", "random", "os", "sqlite3", "apsw", "subprocess"})
DATABASES = frozenset({"sqlite3", "apsw"})
JOURNAL = "supervisor.journal"
BESIDE_THE_JOURNAL = frozenset({"statedir", "transcript", "jsonl", "engine"})
"""Modules of the journal's package that open no journal: everyone above may import them."""
JOURNAL_OWNERS = frozenset(
    {
        "supervisor.embedding.journals",
        "supervisor.embedding.runtime",
        "supervisor.fleet.replicas",
        "supervisor.host.factories",
        "supervisor.simulation.journal",
    }
)
"""Modules that compose journals, and know their classes; ``embedding.journals`` is the one that opens them by path."""
PROGRAMS = frozenset(
    {
        "supervisor.agents.probe.orphan_watch",
        "supervisor.__main__",
        "supervisor.processes.shim",
        "supervisor.agents.scripted_agent",
    }
)
"""Modules that are run as programs and must not be imported."""

RUNTIME = frozenset({"supervisor.runtime.entity", "supervisor.runtime.entity_registry"})
"""Modules of the entities, where tables are stepped."""
USERS_OF_APPLY = frozenset(
    {
        "supervisor.triggers.service",
        "supervisor.work.end_of_work",
        "supervisor.work.task_entity",
        "supervisor.work.workers",
        "supervisor.work.workstream",
    }
)
"""Modules that move entities with ``EntityRegistry.apply``, past the mailboxes: the tables of work have no effects
yet."""
PURE_STEPS = ("supervisor.lifecycles.", "supervisor.diagnostics.", "supervisor.simulation.")
"""Modules that step a table on values, for a cascade or a replay, and change no entity."""
STEPPING = frozenset({"step", "enter", "apply", "receive"})
"""Methods of an entity, or of its registry, that step a table."""

Sources = Mapping[str, str]


def read_sources() -> dict[str, str]:
    """Return the source of every module of the two packages, by its dotted name."""
    paths = sorted(path for package in ("actors", "supervisor") for path in (ROOT / package).rglob("*.py"))
    return {module_name(path): path.read_text(encoding="utf-8") for path in paths}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str | None:
    """Return the package of STEPS (or the mock model) to which *module* belongs; None if it belongs to none."""
    if module in FLAT:
        return FLAT[module]
    parts = module.split(".")
    package = parts[0] if parts[0] == "actors" else ".".join(parts[:2])
    return package if package in STEP or package == MOCK_MODEL else None


def is_pure(module: str) -> bool:
    return module in PURE_MODULES or package_of(module) in PURE


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def import_statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(parsed(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(module: str, sources: Sources) -> list[str]:
    """Return the modules that *module* imports, including imports in functions and under TYPE_CHECKING."""
    found: list[str] = []
    for node in import_statements(sources[module]):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        else:
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
        if package_of(module) is None:
            yield f"{module} is in no package of the layout; put it into one, or add its package to STEPS"


def upward_imports(sources: Sources) -> Iterator[str]:
    for module in sources:
        for other in internal(module, sources):
            if module != "supervisor" and other != "supervisor" and not _allowed(module, other):
                yield f"{module} imports {other}: {package_of(module)} may not import {package_of(other)}"


def _allowed(module: str, other: str) -> bool:
    user, used = package_of(module), package_of(other)
    if user == used or user is None or used is None:
        return True
    if used == MOCK_MODEL:
        return module.startswith(USERS_OF_THE_MOCK_MODEL)
    return user != MOCK_MODEL and STEP[used] < STEP[user]


def missing_imports(sources: Sources) -> Iterator[str]:
    for module in sources:
        for other in imports(module, sources):
            if other.split(".")[0] in ("actors", "supervisor") and other not in sources:
                yield f"{module} imports {other}, which is no module"


def cycles(sources: Sources) -> Iterator[str]:
    """Yield one complaint for each import that closes a cycle of modules."""
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
    """Yield a complaint for each forbidden import of a pure module, by the module itself or by a module that it
    imports."""
    for module in sources:
        if is_pure(module):
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
    """Yield a complaint for each package without ``__all__``. For modules inside of a package, a leading underscore
    marks private names."""
    for module, text in sources.items():
        if any(other.startswith(f"{module}.") for other in sources) and declared(text) is None:
            yield f"{module} has no __all__ of string literals"


def declared(text: str) -> list[str] | None:
    """Return the names in a module's ``__all__``; None if the module has none, or none that consists of literals."""
    for node in parsed(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            try:
                return list(ast.literal_eval(node.value or ast.Constant(None)))
            except (ValueError, TypeError):
                return None
    return None


def opened_journals(sources: Sources) -> Iterator[str]:
    """Yield a complaint for each module that opens a journal by itself, where it should use a ``ports.Reader``."""
    allowed = {f"{JOURNAL}.{name}" for name in BESIDE_THE_JOURNAL} | {JOURNAL}
    for module in sources:
        if package_of(module) == JOURNAL:
            continue
        for other in imports(module, sources):
            is_journal = other.startswith(f"{JOURNAL}.") and other not in allowed and module not in JOURNAL_OWNERS
            if is_journal or other.split(".")[0] in DATABASES:
                yield f"{module} imports {other}; read journals through a Reader of supervisor.embedding.journals"


def agents_in_the_kernel(sources: Sources) -> Iterator[str]:
    for module, text in sources.items():
        if module.split(".")[0] == "actors":
            for number, line in enumerate(text.splitlines(), 1):
                if "agent" in line.casefold():
                    yield f'{module}, line {number}: the word "agent" has no place in the kernel'


def tables_stepped_by_others(sources: Sources) -> Iterator[str]:
    """Yield a complaint for each call outside of the entities that steps a state table or takes such a step."""
    for module, text in sources.items():
        if module in RUNTIME or module.startswith(("actors", *PURE_STEPS)):
            continue
        for node in ast.walk(parsed(text)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            steps = called.endswith(("machine.step", ".enter")) and len(node.args) > 1  # a stage has one argument
            applies = called.endswith("registry.apply") and module not in USERS_OF_APPLY
            if steps or applies:
                yield f"{module} calls {called}; send the event to the entity, which steps its table"


def performs_that_wait(sources: Sources) -> Iterator[str]:
    """Yield a complaint for each ``perform`` that waits or steps a table, by itself or by a method of its class, or of
    a base class, that it calls."""
    kinds = {
        node.name: (module, node)
        for module, text in sources.items()
        if module.split(".")[1:2] in (["runtime"], ["sessions"])
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.ClassDef)
    }
    for module, kind in kinds.values():
        if any(one.name == "perform" for one in functions_of(kind)):
            family = [kind]
            for one in family:  # the list grows while it is read: the class, its bases, and their bases
                family += [kinds[base.id][1] for base in one.bases if isinstance(base, ast.Name) and base.id in kinds]
            yield from performed_badly(module, kind.name, [one for part in family for one in functions_of(part)])


def functions_of(kind: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [one for one in kind.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def performed_badly(module: str, kind: str, methods: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> Iterator[str]:
    """Yield a complaint for each of *methods*, of one class and its bases, that waits or steps a table and that
    ``perform`` calls, directly or not."""
    names = ["perform"]
    for name in names:  # the list grows while it is read
        for method in [one for one in methods if one.name == name]:
            calls = [node.func for node in ast.walk(method) if isinstance(node, ast.Call)]
            attributes = [func for func in calls if isinstance(func, ast.Attribute)]
            own = [func.attr for func in attributes if ast.unparse(func.value) in ("self", "super()")]
            names += [one for one in dict.fromkeys(own) if one not in names]
            called = {func.attr for func in attributes}
            waits = isinstance(method, ast.AsyncFunctionDef)
            if waits or STEPPING & called:
                what = "waits" if waits else f"calls {', '.join(sorted(STEPPING & called))}"
                yield f"{module}: {kind}.perform {what} in {name}; start a task, or send an event"


COMPOSITION = "supervisor.host.supervision"


def acting_compositions(sources: Sources) -> Iterator[str]:
    """Yield a complaint for each lambda in the composition of a supervisor, and for each of its methods that calls a
    part: whoever needs a part calls the part, so that there is one way to each."""
    text = sources.get(COMPOSITION, "")
    for kind in [node for node in parsed(text).body if isinstance(node, ast.ClassDef)]:
        if any(isinstance(node, ast.Lambda) for node in ast.walk(kind)):
            yield f"{COMPOSITION}: {kind.name} has a lambda; give the part that is to be called"
        for method in kind.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name == "__init__":
                continue
            calls = [ast.unparse(node.func) for node in ast.walk(method) if isinstance(node, ast.Call)]
            for call in [one for one in calls if one.startswith("self.")]:
                yield f"{COMPOSITION}: {kind.name}.{method.name} calls {call}; call it where it is needed"


CHECKS = (
    acting_compositions,
    performs_that_wait,
    tables_stepped_by_others,
    unknown_modules,
    upward_imports,
    missing_imports,
    cycles,
    impure_imports,
    undocumented,
    without_all,
    opened_journals,
    agents_in_the_kernel,
)
SOURCES = read_sources()


@pytest.mark.parametrize("check", CHECKS)
def test_the_packages_keep_the_rules(check: object) -> None:
    """Each check of this file, such as the order of imports, finds nothing to complain about in the two packages."""
    assert {"actors.machine", "supervisor", "supervisor.lifecycles.task"} <= set(SOURCES)
    assert callable(check)
    found = list(check(SOURCES))
    assert not found, "\n".join(found)


def test_the_table_of_packages_has_the_steps() -> None:
    """The table of packages in CONTRIBUTING.md lists every package on its step."""
    rows = re.findall(r"^\| (\d+) \| `(\w+)/`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = {f"supervisor.{name}" if name != "actors" else name: int(step) - 1 for step, name in rows}
    assert listed == STEP


@pytest.mark.parametrize("module", [one for one in SOURCES if one not in PROGRAMS])
def test_surface_exists(module: str) -> None:
    """Every name in a module's ``__all__`` can be imported, and is listed only once."""
    names = declared(SOURCES[module]) or []
    assert len(names) == len(set(names))
    loaded = importlib.import_module(module)
    assert [name for name in names if not hasattr(loaded, name)] == []


@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        (
            {"supervisor.new": ""},
            "supervisor.new is in no package of the layout; put it into one, or add its package to STEPS",
        ),
        (
            {"supervisor.ports": "if TYPE_CHECKING:\n    from .runtime import x", "supervisor.runtime": ""},
            "supervisor.ports imports supervisor.runtime: supervisor.ports may not import supervisor.runtime",
        ),
        (
            {"supervisor.journal": "def f():\n    import supervisor.processes", "supervisor.processes": ""},
            "supervisor.journal imports supervisor.processes: supervisor.journal may not import supervisor.processes",
        ),
        (
            {"supervisor.work.a": "from supervisor import mock_model", "supervisor.mock_model": ""},
            "supervisor.work.a imports supervisor.mock_model: supervisor.work may not import supervisor.mock_model",
        ),
        ({"actors.ref": "from actors.gone import x"}, "actors.ref imports actors.gone, which is no module"),
        (
            {"actors.a": "import actors.b", "actors.b": "from actors import c", "actors.c": "from actors.a import x"},
            "import cycle: actors.a > actors.b > actors.c > actors.a",
        ),
        ({"supervisor.policies.usage": "import time"}, "supervisor.policies.usage is pure but imports time"),
        ({"supervisor.cli.machines": "import os.path"}, "supervisor.cli.machines is pure but imports os.path"),
        (
            {"supervisor.policies.usage": "from actors.clock import now", "actors.clock": "from time import monotonic"},
            "supervisor.policies.usage is pure but imports time (through actors.clock)",
        ),
        ({"actors.ref": "x = 1"}, "actors.ref has no docstring; say what it is for and what must be true in it"),
        ({"actors": "__all__ = names", "actors.ref": ""}, "actors has no __all__ of string literals"),
        (
            {"supervisor.sessions.a": "class A:\n  def perform(self): self._go()\n  async def _go(self): ..."},
            "supervisor.sessions.a: A.perform waits in _go; start a task, or send an event",
        ),
        (
            {"supervisor.runtime.a": "class A:\n  def perform(self): self.entity.enter(1)"},
            "supervisor.runtime.a: A.perform calls enter in perform; start a task, or send an event",
        ),
        (
            {
                "supervisor.sessions.a": "class A(B):\n  def perform(self): self.end()",
                "supervisor.sessions.b": "class B:\n  def end(self): self.machine.step(1, 2)",
            },
            "supervisor.sessions.a: A.perform calls step in end; start a task, or send an event",
        ),
        (
            {COMPOSITION: "class A:\n  def stop(self): self.shutdown.stop()"},
            f"{COMPOSITION}: A.stop calls self.shutdown.stop; call it where it is needed",
        ),
        (
            {COMPOSITION: "class A:\n  def __init__(self): self.b = B(lambda: self.c)"},
            f"{COMPOSITION}: A has a lambda; give the part that is to be called",
        ),
        (
            {"supervisor.work.a": "def f(sup): sup.registry.apply(('t', e), cause=c)"},
            "supervisor.work.a calls sup.registry.apply; send the event to the entity, which steps its table",
        ),
        (
            {"supervisor.sessions.a": "def f(a): a.machine.step(s, d, e)"},
            "supervisor.sessions.a calls a.machine.step; send the event to the entity, which steps its table",
        ),
        (
            {"supervisor.cli.query": "from supervisor.journal.reader import x", "supervisor.journal.reader": ""},
            "supervisor.cli.query imports supervisor.journal.reader; read journals through a Reader of"
            " supervisor.embedding.journals",
        ),
        (
            {"supervisor.control.http": "def f():\n    import sqlite3"},
            "supervisor.control.http imports sqlite3; read journals through a Reader of supervisor.embedding.journals",
        ),
        ({"actors.ref": "AGENTS = 1"}, 'actors.ref, line 1: the word "agent" has no place in the kernel'),
    ],
)
def test_each_complaint_is_made(sources: Sources, complaint: str) -> None:
    """For a made-up module that breaks a rule, the check of that rule complains and names the module."""
    assert complaint in [one for check in CHECKS for one in check(sources)]
