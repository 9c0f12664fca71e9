"""Sender of an HTTP request: the program, as the kernel knows it, and the role of its token.

A request may do what both allow. The role is that of the token (``read``, ``operate``, ``admin``); the program decides
as on the control socket (``control.callers``): whatever token an agent holds, it has the rights of its session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from supervisor.control.http.errors import Problem
from supervisor.control.roles import Role
from supervisor.ports import Caller, Origin

Scope = Mapping[str, Any]
"""ASGI scope of a request."""
CLIENT: Final = "supervisor.client"
"""Key of the ``HttpClient`` in the ASGI scope, which the admission sets."""
CALLER: Final = "supervisor.caller"
"""Key of the ``Caller`` in the ASGI scope: the program that has connected, which the server sets."""


class HttpClient(NamedTuple):
    """Sender of a request. *name* is the name in the records, for an operator; *key* stands for the sender where rates
    are limited."""

    caller: Caller
    role: Role
    name: str
    key: str

    def check(self, needed: Role, what: str) -> None:
        """Raise a Problem if the role does not include *needed*, the role that *what* needs. The rights of an agent are
        checked elsewhere, by its session."""
        if not self.role.includes(needed):
            raise Problem(403, f"{what} needs a token with the role {needed}, and this one has the role {self.role}")


Identify = Callable[[Scope], HttpClient]
"""Function that returns the sender of a request; it raises a Problem for a sender who is not known."""

HOST: Final = HttpClient(Caller(Origin.OPERATOR, 0), Role.ADMIN, "http", "host")
"""Sender of every request to an app that a host has mounted: the host lets in whom it trusts."""


def client_of(request: Request) -> HttpClient:
    found: HttpClient = request.scope[CLIENT]
    return found
