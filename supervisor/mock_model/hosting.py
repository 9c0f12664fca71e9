"""Model server in a thread of its own, for tests with any event loop or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anyio.from_thread import start_blocking_portal

from supervisor.mock_model.server import StubModel, open_stub_model


@contextmanager
def hosted_stub_model(port: int = 0) -> Iterator[StubModel]:
    """Run a model server on 127.0.0.1 in another thread for the duration of the block.

    Raises:
        OSError: the port is taken.
    """
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(open_stub_model(port)) as stub:
        yield stub
