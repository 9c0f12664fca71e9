"""Pytest plug-in with the fixture ``stub_model``, a model server on loopback for one test.

Every run of pytest on a machine with this distribution imports this file, so this file imports only pytest; everything
else is imported when a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from supervisor.mock_model.server import StubModel


@pytest.fixture
def stub_model() -> Iterator[StubModel]:
    """Scripted model server in a thread of its own: ``base_url``, ``env``, ``requests`` and ``script(...)``."""
    try:
        from supervisor.mock_model.hosting import hosted_stub_model
    except ModuleNotFoundError as error:
        if error.name != "h11":
            raise
        pytest.fail("stub_model needs h11: pip install 'supervisor-runtime[stub-model]'", pytrace=False)
    with hosted_stub_model() as stub:
        yield stub
