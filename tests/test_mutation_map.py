"""What ``make mutants`` is about: every pure module has its tests, and they exist."""

from __future__ import annotations

from pathlib import Path

from mutation.targets import ALWAYS, TESTS
from test_layers import PURE_LAYERS, SOURCES, layer_of

HERE = Path(__file__).parent


def test_every_pure_module_has_its_tests() -> None:
    """A new module of a layer that decides must say which tests are about it."""
    pure = {module for module in SOURCES if layer_of(module) in PURE_LAYERS} | {"actors.waits"}
    assert set(TESTS) == pure


def test_the_tests_of_a_module_exist() -> None:
    """A test file that was renamed is renamed in the map as well."""
    arguments = {one for arguments in (ALWAYS, *TESTS.values()) for one in arguments}
    files = {one.removeprefix("--deselect=tests/").partition("::")[0] for one in arguments}
    assert [name for name in sorted(files) if not (HERE / name).is_file()] == []
