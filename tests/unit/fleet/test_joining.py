"""Requirements of a daemon that joins a fleet: the library, and a configuration without errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from supervisor.daemon.config import load_config
from supervisor.daemon.service import join_fleet
from supervisor.fleet.options import BadFleetOptions, FleetOptions
from supervisor.journal.statedir import StateDir
from supervisor.plans.source import BadPlan


@pytest.mark.anyio
async def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the message has the command that installs it, and nothing is written."""
    monkeypatch.setitem(sys.modules, "nats", None)
    monkeypatch.delitem(sys.modules, "supervisor.fleet.nats_engine", raising=False)
    with pytest.raises(BadFleetOptions, match="the library nats is not installed; pip install"):
        await join_fleet(FleetOptions(servers=("nats://127.0.0.1:1",)), StateDir(tmp_path / "s"))
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_names_its_files_from_where_it_lies(tmp_path: Path) -> None:
    """Relative paths are relative to the file; what is left out has its default."""
    file = tmp_path / "daemon.yaml"
    file.write_text("fleet: {servers: ['tls://a', 'tls://b'], name: f, host: h, credentials: login, ca: ca.pem}\n")
    config = load_config(file)
    assert config.fleet is not None
    expected = FleetOptions(
        servers=("tls://a", "tls://b"),
        name="f",
        host="h",
        credentials=str(tmp_path / "login"),
        ca=str(tmp_path / "ca.pem"),
    )
    assert config.fleet.value() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fleet: {servers: ['http://a']}", "fleet.servers: 'http://a' is no address; give nats://HOST:PORT"),
        ("fleet: {servers: ['nats://a'], host: a/b}", "fleet.host: 'a/b' is no name"),
        ("fleet: {servers: ['nats://a'], key: k}", "fleet.certificate: one is given without the other"),
        ("fleet: {name: x}", "fleet.servers"),
    ],
)
def test_a_wrong_configuration_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    """An error in the configuration of a fleet has the line, the field, the value and the fix."""
    file = tmp_path / "daemon.yaml"
    file.write_text(f"{text}\n")
    with pytest.raises(BadPlan) as refused:
        load_config(file)
    assert message in str(refused.value)
    assert "daemon.yaml:1" in str(refused.value)


def test_a_fleet_needs_a_restart(tmp_path: Path) -> None:
    """A reload with another fleet is refused, since a daemon joins at its start."""
    file = tmp_path / "daemon.yaml"
    file.write_text("fleet: {servers: ['nats://a']}\n")
    former = load_config(file)
    file.write_text("fleet: {servers: ['nats://b']}\n")
    with pytest.raises(BadPlan, match="fleet: takes effect at the start; restart the daemon"):
        load_config(file).check_reload(file, former)
