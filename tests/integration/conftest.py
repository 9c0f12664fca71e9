"""Fixtures of the integration tests: nothing is left of any of them, and a repository to work in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import git, no_leaks


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Assert that a test leaves no process and no descriptor behind."""
    with no_leaks():
        yield


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a git repository with one commit of ``a.txt`` on ``main``."""
    where = tmp_path / "repository"
    where.mkdir()
    (where / "a.txt").write_text("first\n")
    git(where, "init", "--quiet", "--initial-branch=main")
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "--message", "first")
    return where
