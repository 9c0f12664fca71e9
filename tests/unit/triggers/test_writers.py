"""Tests of the warning that agents can make the daemon read other triggers: by the file, or a folder above it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor.triggers.definitions import writable_by_agents

OTHER_USER = 54_321


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a triggers file that the user of the daemon does not own, and neither any folder above it."""
    made = tmp_path / "sd" / "config" / "triggers.yaml"
    made.parent.mkdir(parents=True)
    made.write_text("triggers: {}")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    return made


def test_a_file_of_somebody_else_in_folders_of_somebody_else(file: Path) -> None:
    """Nothing is said where neither the file nor a folder above it is the daemon's; in a folder such as ``/tmp``
    everybody may make files, and only replace their own."""
    assert writable_by_agents(file) == ""
    file.parent.parent.chmod(0o1777)
    assert writable_by_agents(file) == ""


@pytest.mark.parametrize(
    ("writable", "said"),
    [
        ("sd/config/triggers.yaml", "can write {0}/sd/config/triggers.yaml: "),
        ("sd/config", "can replace {0}/sd/config/triggers.yaml: "),
        ("sd", "can replace {0}/sd/config: "),
        (".", "can replace {0}/sd: "),
    ],
)
def test_each_folder_above_counts(tmp_path: Path, file: Path, writable: str, said: str) -> None:
    """The first place is named that agents can write, or replace since they may write the folder around it, whoever
    owns it; the warning says where the fix is."""
    (tmp_path / writable).chmod(0o777)
    found = writable_by_agents(file)
    assert said.format(tmp_path) in found
    assert "docs/how-to/triggers.md" in found


def test_a_link_on_the_way_counts(tmp_path: Path, file: Path) -> None:
    """A state directory that is reached by a link can be exchanged where the link is."""
    links = tmp_path / "links"
    links.mkdir()
    (links / "sd").symlink_to(file.parent.parent)
    assert writable_by_agents(links / "sd/config/triggers.yaml") == ""
    links.chmod(0o777)
    assert f"can replace {links}/sd: " in writable_by_agents(links / "sd/config/triggers.yaml")


def test_a_folder_that_is_mounted_read_only(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the file may be in a folder of the daemon if it is mounted there read-only: it can be neither
    renamed nor written."""
    file.chmod(0o666)
    file.parent.parent.chmod(0o777)
    assert f"can write {file}: " in writable_by_agents(file)
    usual = os.statvfs

    def read_only(path: Path) -> object:
        return SimpleNamespace(f_flag=os.ST_RDONLY) if path in (file, file.parent) else usual(path)

    monkeypatch.setattr(os, "statvfs", read_only)
    assert f"can replace {file.parent}: " in writable_by_agents(file)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == file.parent)
    assert writable_by_agents(file) == ""


def test_the_administrator(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of a daemon that runs as root can write everything."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert f"can write {file}: " in writable_by_agents(file)
