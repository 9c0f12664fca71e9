"""Tests of the README: its example runs as printed, the files that it links to exist, and its plan is valid."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.plans import load_plan

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
        [sys.executable, str(script), backend], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["run the unit tests: done", "ended with 0 survivors"]
    assert [path.name for path in tmp_path.iterdir()] == ["example.py"]


def test_the_smallest_plan_is_a_plan(tmp_path: Path) -> None:
    """The plan in the README is a valid plan."""
    (text,) = blocks("yaml")
    plan = tmp_path / "plan.yaml"
    plan.write_text(text, encoding="utf-8")
    assert [task.id for task in load_plan(plan).tasks] == ["t"]


def test_every_link_of_the_readme_leads_somewhere() -> None:
    """Each relative link of the README names a file of the project."""
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [connection for connection in links if not (ROOT / connection).exists()] == []
