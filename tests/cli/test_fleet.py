"""Fleet from the command line: two daemons on real servers, what each shows of the other, and what keeps one out."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.field.field_kit import Finished, Running, Scratch, until
from tests.fleet_kit import Servers, nats_servers, server_binary

PLAN = """
    agents:
      worker:
        adapter: command
        command: ["sh", "-c", "echo hello; while [ ! -e go ]; do sleep 0.05; done"]
    tasks:
      - id: greet
        agent: worker
        prompt: say hello
"""

LOGIN = """
    authorization { users: [ {
      user: me, password: right
      permissions: { publish: ["supervisor.default.>", "$JS.API.>"], subscribe: "_INBOX.>" }
    } ] }
"""
"""Login with the permissions that the documentation names, and no others."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Start one server without a login."""
    with nats_servers(tmp_path_factory.mktemp("nats")) as started:
        yield started


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, Scratch]]:
    """Make a directory for each of two hosts, and end what was started in them."""
    made = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made[name] = Scratch(tmp_path / name)
    try:
        yield made
    finally:
        for host in made.values():
            host.close()


def serve(host: Scratch, servers: Servers, *options: str) -> Running:
    """Start a daemon, and wait until it serves."""
    started = host.start("serve", "--fleet", ",".join(servers.addresses), *options)
    until(lambda: "serving on" in started.err or started.ended)
    assert not started.ended, started.err
    return started


def test_each_host_shows_what_all_do(servers: Servers, hosts: dict[str, Scratch]) -> None:
    """`tree`, `ps` and `why` on one host show a session of another one, while it works, after it has ended, and after
    its daemon was killed; `fleet hosts` says which hosts are alive."""
    a, b = hosts["a"], hosts["b"]
    daemon = serve(a, servers, "--host-name", "a")
    serve(b, servers, "--host-name", "b", "--backend", "trio")
    a.plan(PLAN)
    assert a.run("submit", "plan.yaml").status == 0
    until(lambda: "host a (alive" in (shown := b.run("tree").out) and "greet" in shown)
    tree = b.run("tree").out
    assert "host b (this host)\nnothing has been started yet\n\nhost a (alive, records as of" in tree
    assert "host b" not in b.run("tree", "--host", "a").out
    until(lambda: any(one["kind"] == "agent" for one in json.loads(b.run("ps", "--json").out)))
    lines = json.loads(b.run("ps", "--json").out)
    assert {one["host"] for one in lines} == {"a"}
    own = json.loads(a.run("ps", "--json", "--host", "a").out)
    assert {one["id"] for one in own} == {one["id"] for one in lines}
    assert {one["host"] for one in json.loads(b.run("tree", "--json").out)} == {"a"}

    (a.path / "go").touch()
    assert a.run("wait", "greet").status == 0
    explained = a.run("why", "greet")
    until(lambda: b.run("why", "greet").out == explained.out)
    assert b.run("why", "greet").err.strip() == "supervisor: greet is on host a"
    assert b.run("why", "r1#greet", "-v").status == 0
    assert json.loads(b.run("why", "greet", "--json", "--host", "a").out)["root"]

    until(lambda: {one["name"]: one["state"] for one in host_list(b)} == {"a": "alive", "b": "here"})
    status = b.run("fleet", "status")
    assert status.status == 0, status.text
    assert "hosts      2: 1 alive, 1 here" in status.out
    daemon.kill()
    until(lambda: {one["name"]: one["state"] for one in host_list(b)} == {"a": "silent", "b": "here"})
    assert "host a (silent, last heard of at" in b.run("ps", "--all").out
    assert "silent: its lease is over" in b.run("fleet", "hosts").err
    left = a.run("fleet", "status")
    assert (left.status, "no daemon runs here" in left.out) == (1, True)
    assert "host b (unknown" in a.run("tree").out


def host_list(host: Scratch) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(host.run("fleet", "hosts", "--json").out)
    return found


def test_a_daemon_goes_on_without_servers(tmp_path: Path, hosts: dict[str, Scratch]) -> None:
    """While the servers are away, plans are worked on, and a restart of the daemon does not wait for them; the records
    are mirrored when they are back."""
    a, b = hosts["a"], hosts["b"]
    with nats_servers(tmp_path / "nats") as servers:
        daemon = serve(a, servers, "--host-name", "a")
        serve(b, servers, "--host-name", "b")
        until(lambda: "host b (alive" in a.run("tree").out and "host a (alive" in b.run("tree").out)
        servers.kill(0)
        a.plan(PLAN)
        (a.path / "go").touch()
        assert a.run("submit", "plan.yaml").status == 0
        until(lambda: a.run("wait", "greet").status == 0)  # its task is recorded after the reply to `submit`
        until(lambda: "some are not mirrored yet" in a.run("fleet", "status").out)
        until(lambda: a.run("fleet", "status").status == 1)
        until(lambda: "host b (unknown" in a.run("tree").out)
        daemon.kill()
        serve(a, servers, "--host-name", "a")
        servers.start(0)
        servers.wait()
        until(lambda: b.run("why", "greet").status == 0)
        until(lambda: a.run("fleet", "status").status == 0)


def refused(host: Scratch, *options: str) -> Finished:
    """Run a daemon that cannot start; nothing of it is left."""
    done = host.start("serve", "--host-name", "c", *options).wait()
    assert done.status == 2, done.text
    assert "Traceback" not in done.text
    assert not (host.path / ".sdd").exists()
    return done


def test_what_keeps_a_host_out(servers: Servers, tmp_path: Path, hosts: dict[str, Scratch]) -> None:
    """Servers that cannot be reached, are too old or have no JetStream, a wrong login, a name that is taken: each is
    said with its fix, the exit status is 2, and nothing was started."""
    a, b = hosts["a"], hosts["b"]
    assert (
        "no server of the fleet can be reached (nats://127.0.0.1:1: Connect"
        in refused(a, "--fleet", "127.0.0.1:1").text
    )
    with old_server("2.10.27") as address:
        assert "its version is 2.10; a fleet needs 2.15 or newer" in refused(a, "--fleet", address).text
    with nats_servers(tmp_path / "off", jetstream="") as off:
        assert "JetStream is off; write `jetstream {" in refused(a, "--fleet", off.addresses[0]).text
    login = a.write("login", "me:wrong\n")
    login.chmod(0o600)
    with nats_servers(tmp_path / "login", extra=LOGIN) as closed:
        address = closed.addresses[0]
        assert "name a file with the login as credentials" in refused(a, "--fleet", address).text
        wrong = refused(a, "--fleet", address, "--fleet-credentials", "login").text
        assert "correct the login in login" in wrong
        login.write_text("me:right\n")
        serve(a, closed, "--fleet-credentials", "login", "--host-name", "c")
    serve(b, servers, "--host-name", "c")
    taken = Scratch((tmp_path / "d", (tmp_path / "d").mkdir())[0])
    assert "host: 'c' is in the fleet already, on" in refused(taken, "--fleet", servers.addresses[0]).text


@contextmanager
def old_server(version: str) -> Iterator[str]:
    """Serve one client after the other with the greeting of an old server; yield its address."""
    info = {"server_id": "x", "version": version, "max_payload": 1_048_576, "proto": 1, "headers": True}
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            try:
                while True:
                    client, _ = listening.accept()
                    with client:
                        client.sendall(f"INFO {json.dumps(info)}\r\n".encode())
                        while received := client.recv(4096):
                            if b"PING" in received:
                                client.sendall(b"PONG\r\n")
            except OSError:
                return  # the test is over

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--fleet-name", "x"], "--fleet-name: there is no fleet; give its servers with --fleet, too"),
        (["serve", "--host-name", "x"], "--host-name: there is no fleet"),
        (["serve", "--fleet", ","], "--fleet: none is given"),
        (["serve", "--fleet", "nats://a:b@c"], "has a login in it"),
        (["serve", "--fleet", "a", "--fleet-name", "x.y"], "--fleet-name: 'x.y' is no name"),
        (["serve", "--fleet", "a", "--host-name", ""], "--host-name: '' is no name"),
        (["serve", "--fleet", "a", "--fleet-credentials", "none"], "credentials: none cannot be read: No such file"),
    ],
)
def test_wrong_options_are_bad_input(hosts: dict[str, Scratch], arguments: list[str], message: str) -> None:
    """A wrong option of a fleet is bad input, and nothing is left of the start."""
    server_binary()
    done = hosts["a"].start(*arguments).wait()
    assert (done.status, message in done.err) == (2, True), done.text
    assert not (hosts["a"].path / ".sdd").exists()


def test_commands_about_a_fleet_without_one(hosts: dict[str, Scratch]) -> None:
    """Without a fleet, `fleet status`, `fleet hosts` and `--host` are bad input with the command that joins one, and
    the output of `ps` and `tree` is as it was."""
    a = hosts["a"]
    a.plan(PLAN)
    (a.path / "go").touch()
    assert a.run("run", "plan.yaml").status == 0
    for arguments in (
        ["fleet", "status"],
        ["fleet", "hosts"],
        ["tree", "--host", "b"],
        ["why", "greet", "--host", "b"],
    ):
        done = a.run(*arguments)
        assert (done.status, "is in no fleet; `supervisor serve --fleet" in done.err) == (2, True), done.text
    assert "host" not in a.run("tree", "--all").out
    assert all("host" not in one for one in json.loads(a.run("ps", "--all", "--json").out))
    done = a.run("ps", "--watch", "--host", "b")
    assert (done.status, "--host: --processes, --stalls and --watch are about this host" in done.err) == (2, True)
