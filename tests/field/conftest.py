"""Fixture of the field tests: a scratch directory whose supervisor has ended when the test has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from field_kit import Scratch


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    """A scratch directory with the real ``supervisor`` command; everything that was started has ended afterwards."""
    made = Scratch(tmp_path)
    yield made
    made.close()
