"""Options of the HTTP service, its tokens, and its listening sockets. Importing this module needs no extra.

The sockets are bound once, when the supervisor opens, and outlive a crash of the service: a client that connects while
the service is started again waits, and is served. The Unix socket is bound under another name, gets its mode, and is
then renamed, so that no other user can connect at any moment; the socket of a process that lives is never replaced.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from supervisor.control.error_messages import BadInput
from supervisor.control.roles import Role
from supervisor.journal.statedir import socket_address
from supervisor.ports.secure_files import write_private

TOKEN_LENGTH_MIN: Final = 32
_BACKLOG: Final = 1_024
"""Number of clients that may wait to be accepted: all of them reconnect at once when the service has crashed."""


class BadHttpOptions(BadInput, ValueError):
    """Raised for options with which nothing can be served; the message names the option, its value and the fix."""


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the HTTP service, which always serves the Unix socket ``runtime/http.sock`` of the state directory.

    Args:
        listen: ``HOST:PORT`` to serve over TCP, too; port 0 takes a free port.
        token_file: file with a line ``ROLE TOKEN`` for each token, readable for its owner only; needed for TCP. If it
            does not exist, it is made, with a token for each role.
        hosts: names under which clients reach the service, beside those of *listen*: others are refused.
        origins: sites of other hosts whose pages may use the API.
        certificate: file with the certificate, and the chain, for TLS.
        key: file with the key of the certificate.
        behind_proxy: a proxy on this machine or network encrypts, so *listen* need not be a loopback address.

    Raises:
        BadHttpOptions: the options contradict each other.
    """

    listen: str | None = None
    token_file: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    certificate: str | None = None
    key: str | None = None
    behind_proxy: bool = False

    def __post_init__(self) -> None:
        if (self.certificate is None) is not (self.key is None):
            raise BadHttpOptions("certificate, key: one is given without the other; give both for TLS, or none")
        if self.listen is None:
            if self.token_file is not None or self.certificate is not None:
                raise BadHttpOptions("listen: missing; give HOST:PORT, or leave out token_file, certificate and key")
            return
        host, _ = self.address
        if self.token_file is None:
            raise BadHttpOptions("token_file: missing; TCP is served only to those who have a token: name a file")
        if not _is_loopback(host) and self.certificate is None and not self.behind_proxy:
            raise BadHttpOptions(
                f"listen: {self.listen!r} is no loopback address, and tokens would cross the network in the clear; "
                "give certificate and key, or set behind_proxy if a proxy encrypts, or listen on 127.0.0.1"
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of ``listen``."""
        host, _, port = (self.listen or "").rpartition(":")
        if not host or not port.isdigit() or int(port) > 65_535:
            raise BadHttpOptions(f"listen: {self.listen!r} is no address; give HOST:PORT, such as 127.0.0.1:8790")
        return host.strip("[]"), int(port)

    @property
    def known_hosts(self) -> frozenset[str]:
        """Names, without a port, that the header ``Host`` of a request over TCP may have."""
        host, _ = self.address
        local = {"localhost", "127.0.0.1", "::1"} if _is_loopback(host) else set()
        return frozenset({host, *local, *self.hosts})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --------------------------------------------------------------------------------------------------------- tokens
class TokenFile:
    """Tokens of a file, and their roles. Only hashes are kept, and every comparison takes the same time. The file is
    made if it does not exist.

    Raises:
        BadHttpOptions: others may read the file, or a line is wrong.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._roles = _read_roles(path)
        self.generation = 0
        """Number of times that the file was read again."""

    def role_of(self, token: str) -> Role | None:
        """Return the role of *token*; ``None`` if nobody was given it."""
        given = _hash(token)
        found = [role for known, role in self._roles if hmac.compare_digest(known, given)]
        return found[0] if found else None

    def read_again(self) -> None:
        """Read the file again.

        Raises:
            BadHttpOptions: as for the class; the tokens stay as they were.
        """
        self._roles = _read_roles(self._path)
        self.generation += 1


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def _read_roles(path: Path) -> list[tuple[bytes, Role]]:
    try:
        if not path.exists():
            write_private(path, "".join(f"{role} {secrets.token_urlsafe(32)}\n" for role in Role))
        status = path.stat()
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadHttpOptions(f"token_file: {path} cannot be used: {error}; name another file") from None
    if status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise BadHttpOptions(f"token_file: others may read {path}, or own it; `chmod 600` it")
    roles: dict[str, Role] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        role, _, token = line.strip().partition(" ")
        if role not in list(Role) or len(token.strip()) < TOKEN_LENGTH_MIN:
            wanted = f"ROLE TOKEN, with a role of {', '.join(Role)} and {TOKEN_LENGTH_MIN} characters or more"
            raise BadHttpOptions(f"token_file: line {number} of {path} is no token; give {wanted}")
        roles[token.strip()] = Role(role)
    if not roles:
        raise BadHttpOptions(f"token_file: {path} has no token; remove it, and it is made, with a token for each role")
    return [(_hash(token), role) for token, role in roles.items()]


# -------------------------------------------------------------------------------------------------------- sockets
class Listening(NamedTuple):
    """Sockets of the service, and the tokens for the one over TCP."""

    unix: socket.socket
    tcp: socket.socket | None
    tokens: TokenFile | None


@contextmanager
def listening(path: Path, options: HttpOptions) -> Iterator[Listening]:
    """Bind the Unix socket at *path*, and the address of *options*, for the time of the block. The caller holds the
    lock of the state directory.

    Raises:
        BadHttpOptions: an address is in use or cannot be bound, or the token file cannot be used.
    """
    with ExitStack() as stack:
        tcp = stack.enter_context(_bind_tcp(options)) if options.listen is not None else None
        try:
            unix = stack.enter_context(_bind_unix(path))
        except OSError as error:
            fix = "stop that process" if error.errno == errno.EADDRINUSE else "remove what is there"
            raise BadHttpOptions(f"{path} cannot be bound: {error.strerror or error}; {fix}") from None
        # Last, since the file may be made: without sockets nobody needs tokens.
        tokens = TokenFile(Path(options.token_file)) if options.token_file is not None else None
        yield Listening(unix, tcp, tokens)


def _bind_tcp(options: HttpOptions) -> socket.socket:
    host, port = options.address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error.strerror or error}"
        raise BadHttpOptions(f"listen: {options.listen} {what}; give another address or port") from None
    bound.setblocking(False)
    return bound


@contextmanager
def _bind_unix(path: Path) -> Iterator[socket.socket]:
    if _is_served(path):
        raise OSError(errno.EADDRINUSE, "another process serves it")
    unbound = path.with_name(f"{path.name}.new")
    unbound.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as bound:
        with socket_address(unbound) as address:
            bound.bind(address)
        unbound.chmod(0o600)
        unbound.rename(path)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
        ours = path.stat()
        try:
            yield bound
        finally:
            with suppress(OSError):
                if os.path.samestat(ours, path.stat()):  # a later supervisor may have its own there by now
                    path.unlink()


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            with socket_address(path) as address:
                probe.connect(address)
        except OSError:
            return False
        return True
