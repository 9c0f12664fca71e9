"""Loss of the state directory: the directory, or a file of it, is deleted or replaced while its supervisor runs.

Expected: the supervisor reports the loss on the terminal at once, ends its agents, exits with status 1, and writes
nothing to the path, where other files may be by then.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from field_kit import DEADLINE_S, Running, Scratch, alive, until

from supervisor import Settings, open_supervisor
from supervisor.ports import JournalLost

SLEEPS = """
    agents:
      a: {adapter: command, command: [sh, -c, "echo $$ > roll; exec sleep 300"]}
      b: {adapter: command, command: [sh, -c, "touch begun-all-the-same"]}
    tasks:
      - {id: t, agent: a, prompt: ""}
      - {id: then, agent: b, prompt: "", depends_on: [t]}
"""


def started(scratch: Scratch, *args: str) -> tuple[Running, int]:
    """Start a run whose task sleeps; return the run and the pid of the task's agent."""
    scratch.plan(SLEEPS)
    run = scratch.start("run", "plan.yaml", *args)
    roll = scratch.path / "roll"
    return run, int(until(lambda: roll.exists() and roll.read_text().strip()))


def ended_for_it(scratch: Scratch, run: Running, agent: int, what: str) -> None:
    """Check that the supervisor reports the loss of *what*, exits with status 1, ends the process
    *agent*, and starts no other task."""
    until(lambda: f"{what} was deleted or replaced" in run.err)
    done = run.wait(20)
    assert done.status == 1, done.text
    assert "Traceback" not in done.text, done.text
    assert "this is a bug" not in done.text
    until(lambda: not alive(agent))
    assert not (scratch.path / "begun-all-the-same").exists()


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_deleted_state_directory_ends_the_supervisor(scratch: Scratch, backend: str) -> None:
    """After `rm -rf .sdd` the supervisor reports the loss at once and ends, although nothing is recorded meanwhile; no
    new state directory is created."""
    run, agent = started(scratch, "--backend", backend)
    shutil.rmtree(scratch.path / ".sdd")
    ended_for_it(scratch, run, agent, ".sdd/runtime/journal.db")
    assert not (scratch.path / ".sdd").exists()


def test_a_renamed_state_directory_is_not_made_anew(scratch: Scratch) -> None:
    """After `mv .sdd .old` the supervisor reports the loss and ends; the records made before can be read in the renamed
    directory."""
    run, agent = started(scratch)
    (scratch.path / ".sdd").rename(scratch.path / ".old")
    ended_for_it(scratch, run, agent, ".sdd/runtime/journal.db")
    assert not (scratch.path / ".sdd").exists()
    shown = scratch.run("ps", "--all", "--state-dir", ".old")
    assert shown.status == 0, shown.text
    assert "r1#t" in shown.out


def copied(path: Path) -> None:
    """Replace a file by a copy of the file."""
    shutil.copy2(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


@pytest.mark.parametrize("name", ["journal.db", "journal.db-wal", "lock"])
@pytest.mark.parametrize("lose", [copied, Path.unlink])
def test_a_single_file_that_is_lost_ends_the_supervisor(
    scratch: Scratch, name: str, lose: Callable[[Path], None]
) -> None:
    """When the journal, its write-ahead log or the lock is deleted, or replaced by a copy, the supervisor reports the
    loss and ends; files at those paths are not changed."""
    run, agent = started(scratch)
    lose(scratch.path / ".sdd" / "runtime" / name)
    before = everything_in(scratch.path / ".sdd" / "runtime")
    ended_for_it(scratch, run, agent, f".sdd/runtime/{name}")
    after = everything_in(scratch.path / ".sdd" / "runtime")
    assert set(after) == set(before)
    if lose is copied:
        assert after[name] == before[name]


def test_the_next_supervisor_in_the_place_is_not_disturbed(scratch: Scratch) -> None:
    """A second supervisor that starts at the path of a deleted state directory completes its run, undisturbed by the
    end of the first supervisor."""
    scratch.repository()
    run, agent = started(scratch)
    os.kill(run.pid, signal.SIGSTOP)  # the first one notices nothing before the second one is at work
    shutil.rmtree(scratch.path / ".sdd")
    scratch.write(
        "second.yaml",
        """
        workspace: worktree
        agents: {a: {adapter: command, command: [sh, -c, "touch done; while ! test -e $OLDPWD/go; do sleep 0.1; done"]}}
        tasks: [{id: t, agent: a, prompt: ""}]
        """.replace("$OLDPWD", str(scratch.path)),
    )
    second = scratch.start("run", "second.yaml")
    until(lambda: (scratch.path / ".sdd" / "worktrees" / "t" / "done").exists())
    before = set(everything_in(scratch.path / ".sdd"))
    os.kill(run.pid, signal.SIGCONT)
    ended_for_it(scratch, run, agent, ".sdd/runtime/journal.db")
    asked = scratch.run("inspect", "t")
    assert asked.status == 0, asked.text
    assert before <= set(everything_in(scratch.path / ".sdd"))
    (scratch.path / "go").touch()
    done = second.wait()
    assert done.status == 0, done.text
    assert (scratch.path / "done").exists()
    checked = scratch.run("validate", ".sdd")
    assert checked.status == 0, checked.text


def test_an_agent_that_cleans_its_directory_takes_the_journal_with_it(scratch: Scratch) -> None:
    """When an agent deletes the state directory by `git clean -fdx`, the run ends with status 1 and reports the
    loss."""
    scratch.repository()
    scratch.plan("""
        agents:
          a: {adapter: command, command: [sh, -c, "git clean -qfdx -e plan.yaml; sleep 300"]}
        tasks: [{id: tidy, agent: a, prompt: ""}]
    """)
    done = scratch.run("run", "plan.yaml")
    assert done.status == 1, done.text
    assert "was deleted or replaced under this supervisor" in done.err


def test_worktrees_that_went_with_the_state_directory(scratch: Scratch) -> None:
    """When a state directory with worktrees is deleted, the clean-up of the worktrees does not create the directory
    again."""
    scratch.repository()
    scratch.plan(
        """
        workspace: worktree
        agents:
          a: {adapter: command, command: [sh, -c, "echo $$ > ROLL; exec sleep 300"]}
        tasks: [{id: t, agent: a, prompt: ""}]
    """.replace("ROLL", str(scratch.path / "roll"))
    )
    run = scratch.start("run", "plan.yaml")
    roll = scratch.path / "roll"
    agent = int(until(lambda: roll.exists() and roll.read_text().strip()))
    shutil.rmtree(scratch.path / ".sdd", ignore_errors=True)
    ended_for_it(scratch, run, agent, ".sdd/runtime/journal.db")
    assert not (scratch.path / ".sdd").exists()


def test_transitions_are_written_anew_from_the_journal(scratch: Scratch) -> None:
    """When `transitions.jsonl` is deleted, the supervisor does not end; the file is made from the journal again, by the
    next supervisor at the latest."""
    run, _ = started(scratch)
    (scratch.path / ".sdd" / "transitions.jsonl").unlink()
    stopped = scratch.run("stop", "--now")
    assert stopped.status == 0, stopped.text
    run.wait()
    scratch.plan('agents: {a: {adapter: command, command: [echo, hi]}}\ntasks: [{id: u, agent: a, prompt: ""}]')
    assert scratch.run("run", "plan.yaml").status == 0
    lines = (scratch.path / ".sdd" / "transitions.jsonl").read_text()
    assert '"entity_id":"r1#t"' in lines
    assert '"entity_id":"r2#u"' in lines


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_host_is_told(tmp_path: Path, anyio_backend: str) -> None:
    """When the state directory of an embedded supervisor is deleted, the pending prompt fails with the reason, and
    `open_supervisor` raises JournalLost at the end of its block."""

    async def agent(turn: object) -> None:
        shutil.rmtree(tmp_path / "state")
        await anyio.sleep_forever()

    with pytest.raises(JournalLost, match="was deleted or replaced"):
        async with open_supervisor(tmp_path / "state", settings=Settings()) as sup:
            session = await sup.start_session("s", agent=agent)
            with anyio.fail_after(DEADLINE_S):
                result = await session.run("go")
            assert result.outcome == "failed"
            assert "was deleted or replaced" in result.error
