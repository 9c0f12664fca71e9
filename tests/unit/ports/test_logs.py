"""Logs of the runtime: lines for the handlers of the host, or else for standard error."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from supervisor.ports.logs import get_logger


def test_a_line_names_its_event_first(caplog: pytest.LogCaptureFixture) -> None:
    """A log line has the event first, then the values of the call."""
    with caplog.at_level(logging.INFO, logger="supervisor"):
        get_logger().info("started", session="lead", pid=7)
    assert [record.getMessage() for record in caplog.records] == ["event=started session=lead pid=7"]


def test_a_level_that_the_host_filters_is_not_rendered(caplog: pytest.LogCaptureFixture) -> None:
    """The level of the standard library's logger decides which events are rendered."""
    with caplog.at_level(logging.WARNING, logger="supervisor"):
        get_logger().info("started")
    assert caplog.records == []


def test_without_a_handler_errors_go_to_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a handler, Python prints warnings and errors of an embedded runtime to standard error, and nothing else;
    a traceback is on lines of its own, with control characters escaped."""
    logger = logging.getLogger("supervisor")
    monkeypatch.setattr(logger, "handlers", [])  # a command that ran in this process may have added its own
    logger.propagate = False
    try:
        get_logger().info("started")
        try:
            raise KeyError("\x1b[2J")
        except KeyError as error:
            get_logger().error("broken", exc_info=error)
    finally:
        logger.propagate = True
    out, err = capsys.readouterr()
    first, *trace = err.splitlines()
    assert (out, first, trace[0]) == ("", "event=broken", "Traceback (most recent call last):")
    assert trace[-1] == r"KeyError: '\x1b[2J'"


def test_structlog_is_not_imported_before_a_message() -> None:
    """A program that imports the package and logs nothing loads neither structlog nor rich."""
    code = "import sys; from supervisor import open_supervisor; print({'structlog', 'rich'} & {*sys.modules})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "set()\n"
