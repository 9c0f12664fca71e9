"""Options of a host in a fleet. Importing this module needs no extra."""

from __future__ import annotations

import re
import socket
import stat
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
"""Pattern of the names of fleets and hosts: they are parts of subjects of the engine, and of paths."""
_SCHEMES: Final = ("nats", "tls")
_PORT: Final = 4222
_CREDENTIALS_MAX: Final = 64 * 1024


class BadFleetOptions(ValueError):
    """Raised for options with which no fleet can be joined; the message names the option, its value and the fix."""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """Login of a host at the servers: a file of NATS credentials, a user with a password, or a token."""

    credentials: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a host in a fleet.

    Args:
        servers: addresses of the servers, ``nats://HOST:PORT``, or ``tls://HOST:PORT`` to insist on TLS; several of one
            cluster.
        name: name of the fleet: several fleets may share servers.
        host: name of this host, unique in the fleet; by default the machine's name.
        credentials: file with the login, readable for its owner only: NATS credentials, ``USER:PASSWORD``, or a token.
        ca: file with the certificates of the authorities that the servers' certificates are checked against.
        certificate: file with this host's certificate, for servers that ask for one.
        key: file with the key of the certificate.
        replicas: number of servers that store each record (1, 3 or 5); by default 3 in a cluster of three or more.

    Raises:
        BadFleetOptions: an option is wrong.
    """

    servers: tuple[str, ...]
    name: str = "default"
    host: str | None = None
    credentials: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    replicas: int | None = None

    def __post_init__(self) -> None:
        if not self.servers:
            raise BadFleetOptions("servers: none is given; give an address, such as nats://127.0.0.1:4222")
        for one in self.servers:
            _check_address(one)
        for field, value in (("name", self.name), ("host", self.host_name)):
            if not NAME.fullmatch(value):
                raise BadFleetOptions(
                    f"{field}: {value!r} is no name; give at most 32 letters, digits, - and _, such as build-1"
                )
        if (self.certificate is None) is not (self.key is None):
            raise BadFleetOptions("certificate, key: one is given without the other; give both, or none")
        if self.replicas not in (None, 1, 3, 5):
            raise BadFleetOptions(f"replicas: {self.replicas}; give 1, 3 or 5, or leave it out")

    @property
    def host_name(self) -> str:
        """Name of this host: as given, or the machine's, without its domain."""
        if self.host is not None:
            return self.host
        return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0])[:32]

    def login(self) -> Login:
        """Read the file of credentials.

        Raises:
            BadFleetOptions: others may read the file, it cannot be read, or it is empty.
        """
        if self.credentials is None:
            return Login()
        path = Path(self.credentials)
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise BadFleetOptions(f"credentials: others may read {path}; chmod 600 {path}")
            text = path.read_bytes()[:_CREDENTIALS_MAX].decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise BadFleetOptions(f"credentials: {path} cannot be read: {reason}") from None
        if "BEGIN NATS USER JWT" in text:
            return Login(credentials=str(path))
        user, colon, password = text.strip().partition(":")
        if not user:
            raise BadFleetOptions(f"credentials: {path} is empty; write USER:PASSWORD, a token or NATS credentials")
        return Login(user=user, password=password) if colon else Login(token=user)


def _check_address(address: str) -> None:
    """Raise an error if *address* is none of a server."""
    fix = "give nats://HOST:PORT, such as nats://127.0.0.1:4222"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise BadFleetOptions(f"servers: {address!r} is no address; {fix}") from None
    if parts.password is not None or parts.username is not None:
        where = f"{parts.scheme}://{parts.hostname}:{port or _PORT}"
        raise BadFleetOptions(
            f"servers: the address of {where} has a login in it, which other users see; put it into a file, and name"
            " that as credentials"
        )
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.path or parts.query or parts.fragment or port == 0:
        raise BadFleetOptions(f"servers: {address!r} is no address; {fix}")


def addresses_of(text: str) -> tuple[str, ...]:
    """Return the addresses in *text*, which are separated by commas; one without a scheme has that of the first."""
    scheme = text.partition("://")[0] if "://" in text else "nats"
    parts = [one.strip() for one in text.split(",")]
    return tuple(one if "://" in one else f"{scheme}://{one}" for one in parts if one)
