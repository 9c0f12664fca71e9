"""Tests of the simulator's modules: each serves a user's commands or tests, and a user's test loads few of them."""

from __future__ import annotations

import pytest

from tests.test_layers import reached, read_sources

PACKAGE = "supervisor.simulation"
ROOTS = (f"{PACKAGE}.commands.cli", f"{PACKAGE}.pytest_plugin")
"""Modules that users enter: the commands (one run, soak, shrink, bench), and the pytest fixture."""
MODULES_MAX = 80
LINES_MAX = 12_000

USERS_TEST = """
import sys

def test_mine(simulated_supervisor):
    async def main(sup):
        session = await sup.start_session("s", agent="acp")
        return (await session.run("work")).outcome

    simulated_supervisor(main, faults=["process.*"])
    simulation = [name for name in sys.modules if name.startswith("supervisor.simulation")]
    print("\\nloaded:", *simulation, *[name for name in sys.modules if name.partition(".")[0] == "tests"])
"""

pytest_plugins = ["pytester"]


def test_each_module_serves_a_command_or_the_fixture() -> None:
    """Every module of the simulator is imported, directly or indirectly, by the commands or the fixture; only import
    statements count."""
    sources = read_sources()
    found = {module for root in ROOTS for module in reached(root, sources)}
    packages = {module.rpartition(".")[0] for module in found}
    modules = {module for module in sources if module.startswith(PACKAGE)}
    assert modules - found - packages == set()


def test_the_simulator_stays_within_its_size() -> None:
    lines = {module: text.count("\n") for module, text in read_sources().items() if module.startswith(PACKAGE)}
    assert sum(lines.values()) <= LINES_MAX


def test_a_users_test_loads_few_modules_and_no_verification(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USERS_TEST)
    ran = pytester.runpytest_subprocess("-s", "--simulation-seeds", "3")
    ran.assert_outcomes(passed=1)
    (line,) = [one for one in ran.outlines if one.startswith("loaded: ")]
    loaded = line.split()[1:]
    assert not [one for one in loaded if one.startswith("tests")]
    assert 0 < len(loaded) <= MODULES_MAX
