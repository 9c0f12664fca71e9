"""``supervisor run`` with HTTP options that cannot be served: one message, exit status 2, and no work."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.support import run_command

PLAN = """\
agents: {sh: {adapter: command, command: [sh, -eu]}}
tasks: [{id: a, agent: sh, prompt: touch worked}]
"""
STATE = ("--state-dir", "state")


def refused(directory: Path, *options: str) -> str:
    """Run a plan with *options*; assert that it is refused before any work, and return the message."""
    (directory / "plan.yaml").write_text(PLAN)
    done = run_command("run", "plan.yaml", *STATE, *options, cwd=directory)
    assert done.status == 2, done
    assert not (directory / "worked").exists()
    assert done.err.count("\n") == 1, done.err
    return str(done.err)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--listen", "localhost"), "listen: 'localhost' is no address; give HOST:PORT"),
        (("--token-file", "t"), "listen: missing; give HOST:PORT"),
        (("--listen", "0.0.0.0:80", "--token-file", "t"), "listen: '0.0.0.0:80' is no loopback address"),
        (("--listen", "127.0.0.1:80"), "token_file: missing"),
    ],
)
def test_options_that_contradict_each_other_are_refused(tmp_path: Path, options: Sequence[str], message: str) -> None:
    """Options that are unsafe or incomplete are refused, with the option and the fix; no token file is made."""
    assert refused(tmp_path, *options).startswith(f"supervisor: {message}")
    assert not (tmp_path / "t").exists()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """If the port is in use nothing begins, whoever uses it is untouched, and no token file is made."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        message = refused(tmp_path, "--listen", address, "--token-file", "t")
        assert f"listen: {address} is in use; give another address or port" in message
        socket.create_connection(taken.getsockname()).close()
    assert not (tmp_path / "t").exists()


def test_a_socket_that_is_served_is_not_replaced(tmp_path: Path) -> None:
    """If another process serves the Unix socket nothing begins, and clients still reach that process."""
    runtime = tmp_path / "state" / "runtime"
    runtime.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as served, socket.socket(socket.AF_UNIX) as client:
        served.bind(str(runtime / "http.sock"))
        served.listen()
        assert "another process serves it; stop that process" in refused(tmp_path, "--http")
        client.connect(str(runtime / "http.sock"))


def test_a_journal_of_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    """A journal that a newer version has written is refused, and not changed."""
    (tmp_path / "plan.yaml").write_text(PLAN.replace("worked", "before"))
    assert run_command("run", "plan.yaml", *STATE, cwd=tmp_path).status == 0
    journal = tmp_path / "state" / "runtime" / "journal.db"
    with closing(apsw.Connection(str(journal))) as db:
        db.execute("UPDATE meta SET value = 1000000 WHERE key = 'schema_version'")
        db.pragma("wal_checkpoint", "TRUNCATE")
    before = journal.read_bytes()
    assert "has schema 1000000, this version reads" in refused(tmp_path, "--http")
    assert journal.read_bytes() == before
