"""An event loop without a world: whatever asyncio offers that reaches a thread, a socket, a process or a signal is
refused. What is left is tasks, callbacks and time, which the simulated loop adds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from supervisor.simulation.engine.hermetic import escape

__all__ = ["SealedLoop"]

REFUSED = (
    *("run_in_executor", "set_default_executor", "add_reader", "remove_reader", "add_writer", "remove_writer"),
    *("add_signal_handler", "remove_signal_handler", "subprocess_exec", "subprocess_shell"),
    *("connect_read_pipe", "connect_write_pipe", "getaddrinfo", "getnameinfo", "start_tls", "sendfile"),
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server"),
    *("create_datagram_endpoint", "connect_accepted_socket", "sock_recv", "sock_recv_into", "sock_recvfrom"),
    *("sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept", "sock_sendfile"),
)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *_: Any, **__: Any) -> NoReturn:
        escape(f"loop.{name}()")

    refuse.__name__ = name
    return refuse


class SealedLoop(asyncio.AbstractEventLoop):
    """Refuses all of it, at the call, not at the ``await``."""


for _name in REFUSED:
    setattr(SealedLoop, _name, _refusal(_name))
