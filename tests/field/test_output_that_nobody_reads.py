"""A reader of the output of ``run`` has stopped reading, and keeps the pipe open: the run ends all the same."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from field_kit import Scratch, until

TASKS = 12
MANY = "agents: {a: {adapter: command, command: [pwd]}}\ntasks:\n" + "".join(
    f"  - {{id: t{number}, agent: a}}\n" for number in range(TASKS)
)
"""Plan whose records are more than a pipe holds, as JSON."""


@contextmanager
def unread_pipe() -> Iterator[tuple[int, int]]:
    """Yield both ends of a pipe that nobody reads."""
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def test_a_run_ends_though_nobody_reads_its_output(scratch: Scratch) -> None:
    """Nobody reads standard output: the work is done, the run ends with its status, says that its result could not be
    written, and the next ``run`` shows the result without doing the work again."""
    scratch.plan(MANY)
    with unread_pipe() as (_, writing):
        run = scratch.start("run", "plan.yaml", "--json", stdout=writing)
        run.process.wait(120)
    assert run.process.returncode == 0, run.err
    assert "the result could not be written" in run.err
    shown = scratch.run("run", "plan.yaml", "--json")
    assert shown.status == 0
    assert "ended before its result could be shown" in shown.err
    assert [task["outcome"] for task in shown.json()["tasks"]] == ["completed"] * TASKS


def test_a_run_ends_though_nobody_reads_its_errors(scratch: Scratch) -> None:
    """Standard output and standard error are one pipe that nobody reads, and everything is logged: neither the work
    nor the end of the run waits for it."""
    scratch.plan(MANY)
    with unread_pipe() as (_, writing):
        run = scratch.start("run", "plan.yaml", "--json", "-vv", stdout=writing, stderr=subprocess.STDOUT)
        run.process.wait(120)
    assert run.process.returncode == 0
    assert scratch.run("wait", "r1").status == 0


def test_a_slow_reader_gets_everything(scratch: Scratch) -> None:
    """A reader that pauses while the run goes on, as a pager does, and reads on after its end, misses nothing."""
    scratch.plan(MANY)
    with unread_pipe() as (reading, writing):
        run = scratch.start("run", "plan.yaml", "--json", stdout=writing)
        until(lambda: scratch.path.joinpath(".sdd").exists() and scratch.run("wait", "r1").status == 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # so that the reader meets the end of file
        with open(reading, "rb", closefd=False) as pipe:
            text = pipe.read().decode()
        assert run.wait().status == 0
    assert [task["outcome"] for task in json.loads(text.splitlines()[-1])["tasks"]] == ["completed"] * TASKS
