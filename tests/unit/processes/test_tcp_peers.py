"""Process at the other end of a TCP connection: found by its socket, and judged by all that hold it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.ports import Caller, Origin
from supervisor.processes.tcp_peers import TcpPeer, find_peer, is_same_peer, judge_peer
from tests.support import DEADLINE_S, running_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets are looked up in /proc")

OPERATOR, AGENT = Caller(Origin.OPERATOR, 1), Caller(Origin.AGENT, 2, "lead")
UNKNOWN = Caller(Origin.UNIDENTIFIED, 3)


@contextmanager
def connected(family: int, host: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Connect a client, and yield both ends: the client's, and the accepted one."""
    with socket.create_server((host, 0), family=family) as listener, socket.socket(family) as client:
        client.connect(listener.getsockname()[:2])
        accepted, _ = listener.accept()
        with accepted:
            yield client, accepted


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_every_holder_of_the_socket_is_found(family: int, host: str) -> None:
    """The processes that hold the client's socket are found, a child that has inherited it included."""
    try:
        with connected(family, host) as (client, accepted):
            assert find_peer(accepted).pids == (os.getpid(),)
            argv = [sys.executable, "-c", "input()"]
            with running_program(argv, stdin=subprocess.PIPE, pass_fds=[client.fileno()]) as child:
                found = find_peer(accepted)
                assert set(found.pids) == {os.getpid(), child.pid}
                assert is_same_peer(accepted, found)
                child.communicate(b"\n", timeout=DEADLINE_S)
            client.close()
            assert not is_same_peer(accepted, found)
    except OSError as error:
        if family == socket.AF_INET6:
            pytest.skip(f"no IPv6 here: {error}")
        raise


def test_one_agent_among_the_holders_makes_an_agent() -> None:
    """The worst holder counts; another user's client, and one of another machine, are operators; a client that cannot
    be found may only read while sessions run."""
    here = TcpPeer(True, None, ())
    assert judge_peer(here, [OPERATOR, AGENT], has_agents=True) == AGENT
    assert judge_peer(here, [OPERATOR, UNKNOWN], has_agents=True) == UNKNOWN
    assert judge_peer(here, [OPERATOR], has_agents=True) == OPERATOR
    assert judge_peer(here, [], has_agents=True).origin is Origin.UNIDENTIFIED
    assert judge_peer(here, [], has_agents=False).origin is Origin.OPERATOR
    assert judge_peer(TcpPeer(False, None, ()), [], has_agents=True).origin is Origin.OPERATOR
