"""Acceptance tests: they pass, fail with a reason, or end at their time-out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from supervisor.plans.acceptance import AcceptanceResult, AcceptanceTest, run_acceptance_tests
from supervisor.plugins import Plugins
from supervisor.processes.host import ShimHost

pytestmark = pytest.mark.anyio

ENV = {"PATH": os.environ["PATH"]}


async def check(directory: Path, *tests: AcceptanceTest) -> list[AcceptanceResult]:
    async with ShimHost() as host:
        return await run_acceptance_tests(host, tests, str(directory), ENV, Plugins().verified, str)


def one(kind: str, *words: str, timeout_s: float = 30.0) -> AcceptanceTest:
    return AcceptanceTest(kind=kind, words=words, timeout_s=timeout_s)


async def test_what_holds_passes(tmp_path: Path) -> None:
    """An existing file, an importable module and programs that exit with 0 pass, and the output is kept."""
    (tmp_path / "module.py").write_text("VALUE = 1\n")
    done = await check(
        tmp_path,
        one("file_exists", "module.py"),
        one("python_import", "module"),
        one("unit_tests", "sh", "-c", "echo 3 passed"),
        one("lint", "true"),
        one("command", "test", "-f", "module.py"),
    )
    assert [checked.problem for checked in done] == [""] * 5
    assert done[2].output == "3 passed"


async def test_a_missing_file_fails_and_what_follows_is_not_tried(tmp_path: Path) -> None:
    """The first test that fails is the last that runs."""
    done = await check(tmp_path, one("file_exists", "report.txt"), one("command", "touch", "ran"))
    assert [checked.problem for checked in done] == [f"report.txt does not exist in {tmp_path}"]
    assert not (tmp_path / "ran").exists()


async def test_a_file_outside_the_directory_does_not_count(tmp_path: Path) -> None:
    """A file outside the directory, by its path or by a link, does not count."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "outside.txt").write_text("")
    (work / "link.txt").symlink_to(tmp_path / "outside.txt")
    for name in ("../outside.txt", "link.txt", "/etc/passwd"):
        assert (await check(work, one("file_exists", name)))[0].problem == f"{name} is not inside {work}"


async def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    """A link to itself fails its test, and nothing else."""
    (tmp_path / "out").symlink_to("out")
    for name in ("out", "x" * 300):
        (failed,) = await check(tmp_path, one("file_exists", name))
        assert not failed.passed


async def test_a_program_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    """A failed program is reported with its status and the last line of its output."""
    failed = (await check(tmp_path, one("unit_tests", "sh", "-c", "echo first; echo 1 failed >&2; exit 3")))[0]
    assert failed.problem == "exited with 3: 1 failed"
    assert failed.output == "first\n1 failed"
    assert (await check(tmp_path, one("command", "sh", "-c", "kill -9 $$")))[0].problem == "was ended by signal 9"


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
async def test_a_module_in_javascript_is_imported(tmp_path: Path) -> None:
    """A module of JavaScript passes if it can be imported, and fails with the error of the import."""
    (tmp_path / "fine.mjs").write_text("export const value = 1\n")
    (tmp_path / "broken.mjs").write_text("throw new Error('half done')\n")
    fine, broken = await check(
        tmp_path, one("javascript_import", "./fine.mjs"), one("javascript_import", "./broken.mjs")
    )
    assert (fine.problem, broken.problem) == ("", "exited with 1: Error: half done")


async def test_a_module_that_cannot_be_imported_fails(tmp_path: Path) -> None:
    """A module that cannot be imported fails with the error of the import."""
    (tmp_path / "broken.py").write_text("raise ValueError('half done')\n")
    broken = (await check(tmp_path, one("python_import", "broken")))[0]
    assert broken.problem == "exited with 1: ValueError: half done"


async def test_a_test_that_never_ends_is_ended(tmp_path: Path) -> None:
    """A test that exceeds its time-out is ended with everything that it started."""
    stuck = (await check(tmp_path, one("command", "sh", "-c", "echo begun; sleep 1000 & wait", timeout_s=0.2)))[0]
    assert stuck.problem == "it was still running after 0.2 s"


async def test_a_program_that_is_not_there_fails(tmp_path: Path) -> None:
    """A missing program fails with its name."""
    missing = (await check(tmp_path, one("lint", "no-such-linter")))[0]
    assert "no-such-linter" in missing.problem
