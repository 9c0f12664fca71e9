"""Logs of the runtime: lines for the host's handlers, and silence without a handler."""

from __future__ import annotations

import logging

import pytest

from supervisor.ports.logs import get_logger


def test_a_line_names_its_event_first(caplog: pytest.LogCaptureFixture) -> None:
    """A log line has the event first, then the bound values and the values of the call."""
    with caplog.at_level(logging.INFO, logger="supervisor"):
        get_logger().bind(session="lead").info("started", pid=7)
    assert [record.getMessage() for record in caplog.records] == ["event=started session=lead pid=7"]


def test_a_level_that_the_host_filters_is_not_rendered(caplog: pytest.LogCaptureFixture) -> None:
    """The level of the standard library's logger decides which events are rendered."""
    with caplog.at_level(logging.WARNING, logger="supervisor"):
        get_logger().info("started")
    assert caplog.records == []


def test_without_a_handler_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Without a handler an embedded runtime prints nothing."""
    logger = logging.getLogger("supervisor")
    assert any(isinstance(one, logging.NullHandler) for one in logger.handlers)
    logger.propagate = False
    try:
        get_logger().error("broken")
    finally:
        logger.propagate = True
    assert capfd.readouterr() == ("", "")
