"""Fixture for all integration tests, which checks that a test leaves no process and no descriptor behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import no_leaks


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Assert that a test leaves no process and no descriptor behind."""
    with no_leaks():
        yield
