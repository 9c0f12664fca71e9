"""``supervisor doctor``: what the machine gives is tried, what is missing has a fix, and what follows is said."""

from __future__ import annotations

import json
import os
import sys

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
    """With everything there only the death of all three kinds at once waits for the next start, if at all."""
    assert given(*NAMES) == ["at once"] * 4 + ["at the next start", "at once"]


def test_without_a_control_group() -> None:
    """Then who has thrown its environment away may escape the last one, and that is said with what is missing."""
    assert given("subreaper", "environments") == ["at once"] * 4 + ["mostly at the next start"] * 2
    assert guarantees(having("subreaper"))[4].missing == ("control group",)


def test_without_pid_namespaces() -> None:
    """Asking for them then changes nothing, and that is said."""
    assert guarantees(having("subreaper", "control group"))[-1][1:] == ("at the next start", ("pid namespace",))


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_trying_a_namespace_leaves_nothing() -> None:
    """The try is a process of its own: this one's children are born where they always were, and it has none left."""
    before = os.readlink("/proc/self/ns/pid_for_children"), set(shim.children(os.getpid()))
    probe_capabilities()
    assert (os.readlink("/proc/self/ns/pid_for_children"), set(shim.children(os.getpid()))) == before


def test_without_a_subreaper() -> None:
    """Nothing is promised that needs adoption."""
    assert given() == ["not"] * 6


def test_each_try_says_how_to_get_it() -> None:
    """Every capability has a use and a fix, whether it is there or not, and the names are those of the guarantees."""
    found = probe_capabilities()
    assert tuple(one.name for one in found) == NAMES
    assert all(one.used_for and one.fix for one in found)


def test_what_is_missing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text names what is missing, what it is for, and the fix."""
    monkeypatch.setattr("supervisor.cli.doctor.probe_capabilities", lambda: having("subreaper"))
    told = stdout_of("doctor")
    assert "to get it: get control group" in told
    assert any("the fork server too" in line and line.endswith("not (no control group)") for line in told.splitlines())


def test_as_json() -> None:
    """The command gives both lists as JSON."""
    told = json.loads(stdout_of("doctor", "--json"))
    assert [one["name"] for one in told["abilities"]] == list(NAMES)
    assert len(told["guarantees"]) == 6
