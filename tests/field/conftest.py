"""Fixture of the field tests: a scratch directory; when a test ends, every process that it started there is ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from field_kit import Scratch


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    """Fixture: a scratch directory in which the real ``supervisor`` command can be run; after the test every started
    process is ended."""
    made = Scratch(tmp_path)
    yield made
    made.close()
