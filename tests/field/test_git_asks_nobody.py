"""Git wants something from a person, or from a server that says nothing, and nobody is there: the step fails soon,
once, and says what git waited for. A lock that a dead agent has left fails nothing."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from field_kit import Scratch, until

from supervisor.ports import WorktreeSetup
from supervisor.processes.host import ShimHost
from supervisor.workspaces import git_command
from supervisor.workspaces.git import GitWorkspaces
from supervisor.workspaces.git_command import WorkspaceError

PLAN = """
    workspace: worktree
    agents: {a: {adapter: command, command: [sh, -c, 'echo done > result']}}
    tasks: [{id: t, agent: a}]
"""


class Unauthorized(BaseHTTPRequestHandler):
    """Handler of a server that wants a password for everything."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic realm=field")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def password_server() -> Iterator[str]:
    """Run a server that wants a password; yield the address of a repository there."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Unauthorized) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/r.git"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def mute_server() -> Iterator[str]:
    """Listen at a port, and never say anything; yield the address of a repository there."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as mute:
        yield f"http://127.0.0.1:{mute.getsockname()[1]}/r.git"


def partial_clone(scratch: Scratch, url: str) -> None:
    """Make the scratch directory a clone that lacks its files, and would fetch them from *url*."""
    source = scratch.path.parent / "source"
    source.mkdir()
    (source / "file").write_text("content\n")
    (source / ".gitignore").write_text("/.sdd/\n/plan.yaml\n")
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "one")):
        scratch.git("-C", str(source), *words)
    scratch.git("-C", str(source), "config", "uploadpack.allowFilter", "true")
    scratch.git("clone", "-q", "--filter=blob:none", "--no-checkout", f"file://{source}", "clone")
    shutil.move(scratch.path / "clone" / ".git", scratch.path / ".git")
    (scratch.path / "clone").rmdir()
    scratch.git("remote", "set-url", "origin", url)


def program(scratch: Scratch, name: str, text: str) -> str:
    """Write a program for sh beside the repository; return its path."""
    path = scratch.path.parent / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def failed_once(scratch: Scratch) -> str:
    """Run the plan, whose task fails before any agent is launched; check that it was tried once, and return why."""
    scratch.plan(PLAN)
    done = scratch.run("run", "plan.yaml", "--json")
    assert done.status == 1, done.text
    assert {one["entity_id"] for one in scratch.records() if one["entity_type"] == "session"} == {"t"}
    assert not [one for one in scratch.records() if one["entity_type"] == "agent"]
    return str(done.json()["tasks"][0]["error"])


# ------------------------------------------------------------------------------------------------------ prompts
def test_a_program_that_asks_for_the_password_is_not_started(scratch: Scratch) -> None:
    """A user's git asks for passwords in a window (``core.askPass``): the window does not open, the task fails at
    once, and the reason is git's own word for a password that it could not ask for."""
    asks = program(scratch, "ask", f"touch {scratch.path.parent / 'asked'}; sleep 1000")
    with password_server() as url:
        partial_clone(scratch, url)
        scratch.git("config", "core.askPass", asks)
        why = failed_once(scratch)
    assert "could not read Username" in why
    assert "terminal prompts disabled" in why
    assert not (scratch.path.parent / "asked").exists()


@pytest.mark.parametrize("configured", [False, True], ids=["default", "core.sshCommand"])
def test_ssh_asks_nobody(scratch: Scratch, configured: bool) -> None:
    """The host key of a server is not known: ssh is told not to ask, also the user's own ssh command, and the reason
    has ssh's last words, and not only git's."""
    log = scratch.path.parent / "ssh.log"
    ssh = program(scratch, "ssh", f'echo "$@" >> {log}; echo "Host key verification failed." >&2; exit 255')
    scratch.env["PATH"] = f"{Path(ssh).parent}:{scratch.env['PATH']}"
    partial_clone(scratch, "ssh://git@127.0.0.1:9/r.git")
    if configured:
        scratch.git("config", "core.sshCommand", f"{ssh} -i key")
    why = failed_once(scratch)
    assert why.endswith("Host key verification failed.; fatal: Could not read from remote repository.")
    [said] = {line.partition(" git@")[0] for line in log.read_text().splitlines()}
    assert "-o BatchMode=yes -o ConnectTimeout=" in said
    assert said.startswith("-i key ") is configured


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (password_server, "its credential helper (/bin/sh -c sleep 1000; true"),
        (mute_server, "Operation too slow"),
    ],
    ids=["credential helper", "mute server"],
)
def test_nobody_waits_for_a_helper_or_a_server(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, server: object, reason: str
) -> None:
    """A credential helper waits for a person, or a server says nothing: git is ended soon, and the reason names what
    it waited for. (The times are shortened here: 10 s and 15 s.)"""
    monkeypatch.setattr(git_command, "PROMPT_S", 0.3)
    monkeypatch.setattr(git_command, "LOOK_S", 0.05)
    monkeypatch.setitem(git_command.NEVER_ASK, "GIT_HTTP_LOW_SPEED_TIME", "1")
    monkeypatch.setenv("HOME", scratch.env["HOME"])

    async def make() -> None:
        async with ShimHost() as host:
            workspaces = GitWorkspaces(host, scratch.path / ".sdd" / "worktrees", str(scratch.path))
            with pytest.raises(WorkspaceError) as error:
                await workspaces.prepare("s", str(scratch.path), root_id="s")
            assert reason in str(error.value)
            assert await workspaces.list_sessions() == []

    with server() as url:  # type: ignore[operator]
        partial_clone(scratch, url)
        scratch.git("config", "credential.helper", "!sleep 1000; true")
        anyio.run(make)


def test_a_worktree_that_takes_long_holds_up_no_other(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter of a file takes long in one worktree: another worktree of the repository is made meanwhile, and its
    work is merged. A filter that takes longer than ``timeout_s`` fails the worktree, with the command and its last
    words."""
    monkeypatch.setenv("HOME", scratch.env["HOME"])
    waits = "case $PWD in */slow) touch ../slow-began; while [ ! -e ../go ]; do sleep 0.01; done;; esac; cat"
    scratch.write(".gitattributes", "file filter=waits\n")
    scratch.write("file", "content\n")
    scratch.repository()
    scratch.git("config", "filter.waits.smudge", waits)
    scratch.git("config", "filter.waits.clean", "cat")
    scratch.git("config", "filter.waits.required", "true")
    root = scratch.path / ".sdd" / "worktrees"

    async def make() -> None:
        async with ShimHost() as host:
            workspaces = GitWorkspaces(host, root, str(scratch.path))
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: workspaces.prepare("slow", str(scratch.path), root_id="slow"))
                await anyio.to_thread.run_sync(until, (root / "slow-began").exists)
                where = Path(await workspaces.prepare("fast", str(scratch.path), root_id="fast"))
                (where / "result").write_text("by another session\n")
                assert (await workspaces.merge("fast", "work")).outcome == "merged"
                (root / "go").touch()
            assert (root / "slow" / "file").read_text() == "content\n"
            (root / "go").unlink()
            await workspaces.clean_up("slow", "rest")
            impatient = GitWorkspaces(host, root, str(scratch.path), setup=WorktreeSetup(timeout_s=0.5))
            with pytest.raises(WorkspaceError, match=r"`git reset --quiet --hard`: it was still running after 0.5 s"):
                await impatient.prepare("slow", str(scratch.path), root_id="slow")
            assert not (root / "slow").exists()
            (root / "go").touch()  # a filter may outlive its git for a moment

    anyio.run(make)


# -------------------------------------------------------------------------------------------------------- locks
@pytest.mark.parametrize(
    "lock",
    [
        "$(git rev-parse --git-dir)/HEAD.lock",
        "$(git rev-parse --git-dir)/index.lock",
        "$(git rev-parse --git-common-dir)/refs/heads/supervisor/t.lock",
        "$(git rev-parse --git-dir)/logs/HEAD.lock",
    ],
)
def test_a_lock_of_a_dead_agent_is_removed(scratch: Scratch, lock: str) -> None:
    """An agent's git was killed, and has left a lock in its worktree or of its branch: the work of the agent is
    committed and merged all the same, without another launch."""
    scratch.repository()
    scratch.plan(PLAN.replace("echo done > result", f'echo done > result; mkdir -p "$(dirname {lock})"; touch {lock}'))
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert scratch.git("show", "main:result") == "done"
    assert scratch.git("branch", "--list", "supervisor/*") == ""


def test_a_lock_in_the_user_s_repository_holds_the_task(scratch: Scratch) -> None:
    """An agent has left a lock of a reference that everybody uses: nobody can know whose it is, so the task is held,
    says which file it is, and goes on when the user has removed it."""
    scratch.repository()
    scratch.plan(
        PLAN.replace(
            "echo done > result", "echo done > result; touch $(git rev-parse --git-common-dir)/refs/heads/main.lock"
        )
    )
    run = scratch.start("run", "plan.yaml")
    lock = scratch.path / ".git" / "refs" / "heads" / "main.lock"
    until(lambda: f"rm {lock}" in run.err)
    lock.unlink()
    assert run.wait().status == 0
    assert scratch.git("show", "main:result") == "done"
