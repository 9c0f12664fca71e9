"""A task whose next step something outside of the work holds: it waits, says what holds it, is charged nothing, and
goes on when the obstacle is gone (rule 48)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from field_kit import DEADLINE_S, Running, Scratch, until

from tests.support import running_program

BASE = "base\n"


@pytest.fixture
def work(scratch: Scratch) -> Scratch:
    """Fixture: a repository, and a plan whose agent changes ``file``. ``launches`` has a line for each launch."""
    scratch.plan("""
        workspace: worktree
        merge_into: main
        merge: each
        agents:
          a: {adapter: command, command: [sh, -c, 'echo x >> ../../../launches; echo by the agent > file']}
        tasks: [{id: t, agent: a, prompt: ""}]
    """)
    scratch.write(".gitignore", "/.sdd/\n/plan.yaml\n/launches\n/second/\n")
    scratch.write("file", BASE)
    scratch.git("init", "-q", "-b", "main")
    scratch.git("add", ".")
    scratch.git("commit", "-qm", "base")
    return scratch


# ------------------------------------------------------------------------------------------------------ obstacles
@contextmanager
def changes(work: Scratch) -> Iterator[str]:
    work.write("file", "by the user\n")
    yield f"{work.path}, which has changes of its own in the way: file"
    work.git("checkout", "-q", "file")


@contextmanager
def open_commit(work: Scratch) -> Iterator[str]:
    """A ``git commit --all`` of a person that waits for the editor: it holds the index, and has closed its lock."""
    work.write("other", "by the user\n")
    work.git("add", "other")
    pipe = work.path.parent / "editor"
    os.mkfifo(pipe)
    env = {**work.env, "GIT_EDITOR": f"cat {pipe}; echo message >"}
    argv = ["git", "commit", "--all"]
    with running_program(argv, cwd=work.path, env=env, stdout=subprocess.DEVNULL) as commit:
        try:
            until((work.path / ".git" / "index.lock").exists)
            yield f"{work.path}/.git/index.lock, which git commit --all (pid {commit.pid}) holds"
        except BaseException:
            os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))  # an editor that waits ends, and nobody waits for one
            raise
        pipe.write_text("")  # the editor ends, and the commit is made
        commit.wait(DEADLINE_S)


@contextmanager
def left_lock(work: Scratch) -> Iterator[str]:
    lock = work.write(".git/index.lock", "")
    yield f"{lock}; no process is known to hold it"
    lock.unlink()


@contextmanager
def open_merge(work: Scratch) -> Iterator[str]:
    work.git("checkout", "-q", "-b", "side")
    work.git("commit", "-q", "--allow-empty", "-m", "side")
    work.git("checkout", "-q", "main")
    work.git("merge", "-q", "--no-ff", "--no-commit", "side")
    yield f"a merge that was begun in {work.path} and not committed"
    work.git("commit", "-q", "-m", "merged by the user")


@contextmanager
def rebase(work: Scratch) -> Iterator[str]:
    work.git("commit", "-q", "--allow-empty", "-m", "more")
    with pytest.raises(AssertionError):  # the command fails, and the rebase stops there
        work.git("rebase", "-q", "--force-rebase", "--exec", "false", "HEAD~1")
    yield "a rebase of main that is under way"
    work.git("rebase", "--abort")


@contextmanager
def second_checkout(work: Scratch) -> Iterator[str]:
    work.git("worktree", "add", "-q", "--force", "second", "main")
    yield f"main, which is checked out in {work.path}, {work.path / 'second'}"
    work.git("worktree", "remove", "second")


OBSTACLES: dict[str, Callable[[Scratch], Any]] = {
    "changes": changes,
    "open-commit": open_commit,
    "left-lock": left_lock,
    "open-merge": open_merge,
    "rebase": rebase,
    "second-checkout": second_checkout,
}


# -------------------------------------------------------------------------------------------------------- what is seen
def held_record(work: Scratch, run: Running) -> dict[str, Any]:
    """Wait for the record that the task is held, and return it."""

    def found() -> list[dict[str, Any]]:
        assert not run.ended, run.out + run.err
        journal = work.path / ".sdd" / "runtime" / "journal.db"
        return [one for one in work.records("r1#t") if one["event"] == "held"] if journal.exists() else []

    return until(found)[-1]


def assert_not_charged(work: Scratch) -> None:
    """Check that the agent worked once, and that no record is about a failure or another try."""
    assert (work.path / "launches").read_text() == "x\n"
    names = {one["event"] for one in work.records() if one["entity_type"] in ("task", "run", "job")}
    assert not names & {"failed", "verification_rejected", "retried", "execution_failed", "retry_decided"}
    (task,) = [one for one in json.loads(work.run("ps", "--all", "--json").out) if one["id"] == "r1#t"]
    assert "retry" not in task["note"]


@pytest.mark.parametrize("name", OBSTACLES)
def test_a_merge_waits_for_what_is_in_its_way(work: Scratch, name: str) -> None:
    """While something outside of the work is in the way of a merge, the task is held: `ps`, `why`, `inspect` and the
    log name the obstacle and the fix. When it is gone, the work is merged, and the agent worked once."""
    with OBSTACLES[name](work) as obstacle:
        run = work.start("run", "plan.yaml")
        record = held_record(work, run)
        assert obstacle in record["metadata"]["held_by"]["what"]
        assert record["metadata"]["held_by"]["fix"] in record["reason"]
        assert (record["from_status"], record["to_status"]) == ("DONE", "DONE")
        assert f"by {obstacle}" in work.run("ps").out
        assert "held" in work.run("why", "r1#t").out.splitlines()[-1]
        seen = json.loads(work.run("inspect", "r1#t", "--json").out)["held_by"]
        assert seen == record["metadata"]["held_by"]
        assert seen["since"] <= record["timestamp"]
        assert obstacle in run.err
    done = run.wait()
    assert done.status == 0, done.text
    assert "t: was held for" in done.out
    assert work.git("show", "main:file") == "by the agent"
    assert [one["event"] for one in work.records("r1#t")][-2:] == ["freed", "closed"]
    assert_not_charged(work)


@pytest.mark.parametrize(
    ("step", "state"), [("worktree add", "CLAIMED"), ("commit --allow-empty", "IN_PROGRESS"), ("merge-tree", "DONE")]
)
def test_a_full_disk_is_charged_to_nobody(work: Scratch, step: str, state: str) -> None:
    """While the disk is full, the worktree of a task is not made, its work not committed, and not merged: the task is
    held in its state, and goes on when there is room."""
    real, folder = shutil.which("git"), work.path.parent / "bin"
    folder.mkdir()
    (full := folder / "full").touch()
    (folder / "git").write_text(f"""#!/bin/sh
        case " $* " in *" {step} "*)
            [ ! -e {full} ] || {{ echo "fatal: unable to write file x: No space left on device" >&2; exit 128; }} ;;
        esac
        exec {real} "$@"
    """)
    (folder / "git").chmod(0o755)
    run = work.start("run", "plan.yaml", env={"PATH": f"{folder}:{work.env['PATH']}"})
    record = held_record(work, run)
    assert record["to_status"] == state
    assert "No space left on device" in record["metadata"]["held_by"]["what"]
    assert "held since" in work.run("ps").out
    full.unlink()
    done = run.wait()
    assert done.status == 0, done.text
    assert work.git("show", "main:file") == "by the agent"
    assert_not_charged(work)


def test_a_kill_of_the_supervisor_does_not_end_the_wait(work: Scratch) -> None:
    """A task that is held when its supervisor is killed is held by the next supervisor, since the same time, and its
    work is merged when the obstacle is gone."""
    with changes(work):
        first = work.start("run", "plan.yaml")
        before = held_record(work, first)
        first.kill()
        second = work.start("run", "plan.yaml")
        until(lambda: second.ended or "continuing the interrupted run" in second.err)
        shown = until(lambda: [line for line in work.run("ps").out.splitlines() if "held since" in line])
        assert "which has changes of its own in the way: file" in shown[0]
        held_by = json.loads(work.run("inspect", "r1#t", "--json").out)["held_by"]
        assert held_by["since"] == before["metadata"]["held_by"]["since"]
    assert second.wait().status == 0, second.err
    assert_not_charged(work)


def test_a_stop_leaves_the_merge_to_a_run_with_resume(work: Scratch) -> None:
    """A supervisor that is stopped does not wait for an obstacle: the task is closed unmerged, the run says what held
    it and ends with 1, and `run --resume` makes the merge alone."""
    with changes(work):
        run = work.start("run", "plan.yaml")
        held_record(work, run)
        run.process.send_signal(signal.SIGTERM)
        done = run.wait()
        assert done.status == 1, done.text
        assert "not merged yet: held by" in done.out
        assert "--resume merges it" in done.out
        again = work.start("run", "plan.yaml", "--resume")  # the obstacle is still there
        until(lambda: again.ended or "a plan is held" in again.err)
        again.process.send_signal(signal.SIGTERM)
        stopped = again.wait()
        assert "t is not merged yet: held by" in stopped.err
        assert "Traceback" not in stopped.err
    resumed = work.run("run", "plan.yaml", "--resume")
    assert resumed.status == 0, resumed.text
    assert work.git("show", "main:file") == "by the agent"
    assert_not_charged(work)


def test_a_cancel_ends_the_wait(work: Scratch) -> None:
    """`task cancel` of a held task counts at once; the result names the branch with the work."""
    with changes(work):
        run = work.start("run", "plan.yaml")
        held_record(work, run)
        assert work.run("task", "cancel", "t").status == 0
        done = run.wait()
    assert done.status == 1, done.text
    assert "its work is on the branch supervisor/t" in done.out
    assert work.git("show", "supervisor/t:file") == "by the agent"
    assert work.records("r1#t")[-1]["to_status"] == "CANCELLED"
