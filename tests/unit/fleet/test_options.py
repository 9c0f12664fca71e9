"""Options of a host in a fleet: what is wrong with them is said with the field, the value and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.fleet.options import BadFleetOptions, FleetOptions, Login, addresses_of


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": ()}, "servers: none is given; give an address"),
        ({"servers": ("http://a:1",)}, "servers: 'http://a:1' is no address; give nats://HOST:PORT"),
        ({"servers": ("nats://a:x",)}, "servers: 'nats://a:x' is no address"),
        ({"servers": ("nats://",)}, "servers: 'nats://' is no address"),
        ({"servers": ("nats://a:0",)}, "servers: 'nats://a:0' is no address"),
        ({"servers": ("nats://a/path",)}, "is no address"),
        ({"servers": ("nats://[::1",)}, "is no address"),
        ({"name": "a.b"}, "name: 'a.b' is no name; give at most 32 letters"),
        ({"name": ""}, "name: '' is no name"),
        ({"host": "../x"}, "host: '../x' is no name"),
        ({"host": "x" * 33}, "host: 'x+' is no name"),
        ({"certificate": "c"}, "certificate, key: one is given without the other"),
        ({"replicas": 2}, "replicas: 2; give 1, 3 or 5"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    """Each wrong option is refused with a message that names it."""
    with pytest.raises(BadFleetOptions, match=message.replace("'x+'", "'x+'")):
        FleetOptions(**{"servers": ("nats://127.0.0.1:4222",), **options})


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    """A login in an address is refused, since `ps` shows it; the message does not have it."""
    with pytest.raises(BadFleetOptions, match="has a login in it") as refused:
        FleetOptions(servers=("nats://me:secret@a:4222",))
    assert "secret" not in str(refused.value)


def test_addresses_may_be_short() -> None:
    """Addresses are separated by commas, and have the scheme of the first, or nats."""
    assert addresses_of("a:1, b") == ("nats://a:1", "nats://b")
    assert addresses_of("tls://a:1,b:2,") == ("tls://a:1", "tls://b:2")


@pytest.mark.parametrize(
    ("text", "login"),
    [
        ("me:pass:word\n", Login(user="me", password="pass:word")),
        ("token\n", Login(token="token")),
        ("-----BEGIN NATS USER JWT-----\nx\n", Login(credentials="FILE")),
    ],
)
def test_a_login_is_read_from_a_private_file(tmp_path: Path, text: str, login: Login) -> None:
    """A file has a user and a password, a token, or NATS credentials."""
    file = tmp_path / "login"
    file.write_text(text)
    file.chmod(0o600)
    found = FleetOptions(servers=("nats://a",), credentials=str(file)).login()
    expected = Login(credentials=str(file)) if login.credentials else login
    assert found == expected


def test_a_login_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """A file that others may read, that is empty, or that is not there, is refused with its path."""
    file = tmp_path / "login"
    options = FleetOptions(servers=("nats://a",), credentials=str(file))
    with pytest.raises(BadFleetOptions, match="login cannot be read: No such file"):
        options.login()
    file.write_text("\n")
    file.chmod(0o644)
    with pytest.raises(BadFleetOptions, match=r"others may read .*; chmod 600"):
        options.login()
    file.chmod(0o600)
    with pytest.raises(BadFleetOptions, match="is empty; write USER:PASSWORD"):
        options.login()


def test_the_name_of_a_host_is_the_machines() -> None:
    """Without a name, a host has the machine's, with what no name may have replaced."""
    name = FleetOptions(servers=("nats://a",)).host_name
    assert name
    assert "." not in name
