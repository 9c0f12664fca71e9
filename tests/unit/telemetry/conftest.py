"""Fixtures for tests of telemetry."""

from __future__ import annotations

import pytest

from tests.unit.telemetry.telemetry_kit import Exported, use_sdk_in_memory


@pytest.fixture
def exported() -> Exported:
    """Return the spans that the test exports."""
    return use_sdk_in_memory()
