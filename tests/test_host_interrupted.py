"""A host that is interrupted as no shield keeps out: by a Ctrl-C, which on asyncio is its own cancel of the task.

At whatever moment that comes, leaving the block waits for the end: nothing is left running or open, and the next
supervisor has nothing to see to.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.from_thread
import pytest
from trio.lowlevel import enable_ki_protection

from actors import ActorSystem, nursery, open_system
from tests.support import DEADLINE_S, nothing_left


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


@enable_ki_protection
def interrupt() -> None:
    """A Ctrl-C while the event loop is at work: the host's task has it where it waits next."""
    signal.raise_signal(signal.SIGINT)


async def interrupted() -> None:
    """Until the host has had its Ctrl-C, and waits again, or has ended."""
    interrupt()
    await anyio.wait_all_tasks_blocked()


def run_interrupted(host: Callable[[], Awaitable[None]], backend: str) -> None:
    """Run *host* to its end, by which it has had a Ctrl-C and nothing else."""
    with pytest.raises(BaseException) as caught:
        anyio.run(host, backend=backend)
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, KeyboardInterrupt), repr(error)


def test_a_system_that_opens(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is interrupted while it waits for it: it is shut down in order, and nobody waits for ever."""
    log: list[str] = []

    class Opening(ActorSystem):
        def __init__(self, group: Any, seed: int | None) -> None:
            super().__init__(group, seed)
            group.cancel_scope.deadline = anyio.current_time() + DEADLINE_S  # of the test
            interrupt()

        async def shut_down(self, cause: object = None) -> None:
            await super().shut_down(cause)
            log.append("shut down")

    async def host() -> None:
        async with open_system():
            await anyio.sleep_forever()

    monkeypatch.setattr(nursery, "ActorSystem", Opening)
    run_interrupted(host, anyio_backend)
    assert log == ["shut down"]
