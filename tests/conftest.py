"""Shared fixtures: every anyio test runs on both backends."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Under nohup it would be ignored in every program that a test starts and hangs up; a handler is not inherited.
    signal.signal(signal.SIGHUP, lambda number, frame: None)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both backends, always."""
    return str(request.param)


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """As a program on a terminal does; in the background, and in pytest's own processes, it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_addoption(parser: pytest.Parser) -> None:
    """How large the tests of scale are."""
    parser.addoption("--sessions", type=int, default=2_000, help="sessions in tests/test_scale.py, in hundreds")
    parser.addoption("--runs", type=int, default=200, help="simulated runs in tests/test_why_everywhere.py")
    parser.addoption("--levels", type=int, default=1_200, help="levels in tests/test_scale.py")
