"""Tests of the README: its example runs as printed, its commands work as typed, and the files that it links
to exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import running_program

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_embedding_example_runs_as_printed(backend: str, tmp_path: Path) -> None:
    """The Python example in the README prints the lines that the README shows, on asyncio and on trio."""
    (example,) = blocks("python")
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, str(script), backend], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["run the unit tests: done", "ended with 0 survivors"]
    assert [path.name for path in tmp_path.iterdir()] == ["example.py"]


ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
"""Environment in which `supervisor` is the command of this installation."""


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the README in *folder*."""
    return subprocess.run(
        line, shell=True, cwd=folder, env=ENVIRONMENT, text=True, capture_output=True, timeout=120, check=False
    )


def test_the_first_plan_runs_as_typed(tmp_path: Path) -> None:
    """In an empty directory, the README's first plan runs, ends with the table of the README, and has the logs."""
    (tmp_path / "plan.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
    (line,) = [block for block in blocks("sh") if "supervisor run" in block]
    run = typed(line, tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    table = [row.split() for row in run.stdout.rpartition("TASK")[2].splitlines()]
    printed = [row.split() for row in blocks("text")[1].rpartition("TASK")[2].splitlines()]
    assert (table[0], table[1][:2], table[1][-1]) == (printed[0], printed[1][:2], printed[1][-1])
    assert "message| hello" in typed("supervisor logs t", tmp_path).stdout


def test_the_block_for_the_second_terminal_works_as_typed(tmp_path: Path) -> None:
    """While the README's second plan runs, each line of the block for a second terminal does what the table says."""
    (tmp_path / "long.yaml").write_text(blocks("yaml")[1], encoding="utf-8")
    (block,) = [block for block in blocks("sh") if "supervisor tree" in block]
    expected = [
        "fix:t1:c1",
        "tool fix:t1:c1: ended",
        "message m1.1 for fix",
        "prompt| @run sleep 600",
        "session fix is ",
        "no permission waits",
        "everything is being aborted",
    ]
    argv = ["supervisor", "run", "-v", "long.yaml"]  # the log says when both tool calls have started
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    with running_program(argv, cwd=tmp_path, env=ENVIRONMENT, text=True, stdout=quiet, stderr=pipe) as run:
        try:
            assert run.stderr is not None
            calls = 0
            while calls < 2:
                line = run.stderr.readline()
                assert line, "the run has ended"
                calls += ": started, " in line
            for line, words in zip(block.splitlines(), expected, strict=True):
                one = typed(line, tmp_path)
                assert (one.returncode, one.stderr, words in one.stdout) == (0, "", True), f"{line}: {one.stdout}"
            run.communicate(timeout=120)
        finally:
            run.kill()
    assert run.returncode == 1


def test_every_link_of_the_readme_leads_somewhere() -> None:
    """Each relative link of the README names a file of the project."""
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [connection for connection in links if not (ROOT / connection).exists()] == []
