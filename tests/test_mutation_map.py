"""What ``make mutants`` is about: every pure module has its tests, and they exist."""

from __future__ import annotations

import tomllib
from pathlib import Path

from mutation.soak import RUNS, SIMULATED
from mutation.targets import ALWAYS, TESTS
from test_layers import PURE_MODULES, SOURCES, is_pure

from supervisor.simulation.scenario import library

HERE = Path(__file__).parent


def test_every_pure_module_has_its_tests() -> None:
    """A new module of a layer that decides must say which tests are about it."""
    others = {one for one in PURE_MODULES if one.startswith(("supervisor.cli", "supervisor.mock_model"))}
    pure = {module for module in SOURCES if is_pure(module)} - others - {"supervisor.diagnostics"} | {"actors.waits"}
    assert set(TESTS) == pure


def test_the_tests_of_a_module_exist() -> None:
    """A test file that was renamed is renamed in the map as well."""
    arguments = {one for arguments in (ALWAYS, *TESTS.values()) for one in arguments}
    files = {one.removeprefix("--deselect=tests/").partition("::")[0] for one in arguments}
    assert [name for name in sorted(files) if not (HERE / name).is_file()] == []


def test_what_is_simulated_is_there() -> None:
    """Every module that mutants are made of exists, and every run of the soak is one of the library."""
    assert [one for one in SIMULATED if one not in SOURCES] == []
    assert {one.scenario for one in RUNS} <= set(library())


def test_an_equivalent_mutant_is_of_a_line_that_is_there() -> None:
    """An entry of a line that was rewritten is out of date; none is without a reason."""
    for one in tomllib.loads((HERE / "mutation" / "equivalents.toml").read_text())["equivalent"]:
        lines = {line.strip() for line in SOURCES[one["module"]].splitlines()}
        assert {line.strip() for line in one["before"].strip().splitlines()} <= lines
        assert one["why"]
