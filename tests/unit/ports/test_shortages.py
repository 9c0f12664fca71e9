"""Waits for the end of a shortage of file descriptors."""

from __future__ import annotations

import errno

import anyio
import pytest

from actors.backoff import Backoff
from actors.one_shot_event import OneShotEvent
from supervisor.ports import shortages
from tests.support import DEADLINE_S

pytestmark = pytest.mark.anyio


async def test_a_wait_for_descriptors_ends_with_its_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is repeated because no file descriptor is free is not repeated after its agent was killed."""
    monkeypatch.setattr(shortages, "RETRY", Backoff(base_s=0.001, factor=1.0, cap_s=0.001))
    tried, killed = list[int](), OneShotEvent()

    async def fail() -> None:
        tried.append(1)
        if len(tried) == 2:
            killed.set()
        raise OSError(errno.EMFILE, "Too many open files")

    with anyio.fail_after(DEADLINE_S), pytest.raises(OSError, match="Too many open files"):
        await shortages.outlast_shortage(fail, killed)
    assert len(tried) == 2
