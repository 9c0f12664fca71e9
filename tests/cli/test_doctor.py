"""The command ``supervisor doctor``: capabilities of the machine are tested, a fix is printed for missing ones, and the
resulting guarantees are listed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.processes import shim
from supervisor.processes.capabilities import Capability, guarantees, probe_capabilities
from tests.support import stdout_of

NAMES = ("subreaper", "pidfd", "list of children", "control group", "pid namespace", "environments")


def having(*there: str) -> list[Capability]:
    return [Capability(name, name in there, "", f"get {name}") for name in NAMES]


def given(*there: str) -> list[str]:
    return [one.given for one in guarantees(having(*there))]


def test_the_whole_promise() -> None:
    """With every capability all guarantees hold at once, except after the death of supervisor, shim and fork server
    together, where processes end at the next start."""
    assert given(*NAMES) == ["at once"] * 5 + ["at the next start", "at once"]


def test_without_a_control_group() -> None:
    """Without a control group, a process that has dropped its environment may escape after a death of shim and fork
    server, with or without the supervisor; ``doctor`` reports that."""
    assert given("subreaper", "environments") == [
        *["at once"] * 2, "mostly at once", *["at once"] * 2, *["mostly at the next start"] * 2
    ]  # fmt: skip
    assert guarantees(having("subreaper"))[5].missing == ("control group",)


def test_without_pid_namespaces() -> None:
    """Without pid namespaces the setting for them has no effect, and ``doctor`` names the missing capability."""
    assert guarantees(having("subreaper", "control group"))[-1][1:] == ("at the next start", ("pid namespace",))


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_trying_a_namespace_leaves_nothing() -> None:
    """The test of the capability of namespaces leaves no child process, and does not change the test's own
    namespace."""
    before = os.readlink("/proc/self/ns/pid_for_children"), set(shim.children(os.getpid()))
    probe_capabilities()
    assert (os.readlink("/proc/self/ns/pid_for_children"), set(shim.children(os.getpid()))) == before


def test_without_a_subreaper() -> None:
    """Without a subreaper none of the guarantees is given."""
    assert given() == ["not"] * 7


def test_each_try_says_how_to_get_it() -> None:
    """Every capability has a description of its use and of how to get it, and the guarantees refer to its name."""
    found = probe_capabilities()
    assert tuple(one.name for one in found) == NAMES
    assert all(one.used_for and one.fix for one in found)


def test_what_is_missing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text output of ``doctor`` names each missing capability, the guarantee that fails without it, and the fix."""
    monkeypatch.setattr("supervisor.cli.doctor.probe_capabilities", lambda: having("subreaper"))
    told = stdout_of("doctor")
    assert "to get it: get control group" in told
    assert any("the fork server too" in line and line.endswith("not (no control group)") for line in told.splitlines())


def test_as_json() -> None:
    """With ``--json`` the command prints the list of capabilities and the list of guarantees."""
    told = json.loads(stdout_of("doctor", "--json"))
    assert [one["name"] for one in told["abilities"]] == list(NAMES)
    assert len(told["guarantees"]) == 7


PACKAGE = Path(shim.__file__).parents[1]


@pytest.mark.parametrize(("is_last", "effect"), [(False, "updating or removing"), (True, "finds no API")])
def test_supervisord_in_the_same_directory_is_named(tmp_path: Path, is_last: bool, effect: str) -> None:
    """The command line warns of supervisord, which has the import name ``supervisor`` too, whichever of the two was
    installed last; if supervisor-runtime was, the import of the package warns."""
    where = tmp_path / "supervisor"
    where.mkdir()
    for path in PACKAGE.iterdir():
        (where / path.name).symlink_to(path)
    (where / "supervisord.py").touch()
    if is_last:
        (where / "__init__.py").unlink()
        (where / "__init__.py").write_text("# this is a package\n")
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "supervisord is installed here too, under the import name `supervisor`" in done.stderr
    assert effect in done.stderr
