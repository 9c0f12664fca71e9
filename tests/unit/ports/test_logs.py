"""Logs of the runtime: lines for the handlers of the host, or else for standard error."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from supervisor.cli.log_output import configure_logging
from supervisor.ports.logs import add_context, get_logger, remove_context


def test_a_line_names_its_event_first(caplog: pytest.LogCaptureFixture) -> None:
    """A log line has the event first, then the values of the call."""
    with caplog.at_level(logging.INFO, logger="supervisor"):
        get_logger().info("started", session="lead", pid=7)
    assert [record.getMessage() for record in caplog.records] == ["event=started session=lead pid=7"]


@pytest.fixture
def own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the runtime's logger its handlers and level back after the test."""
    logger = logging.getLogger("supervisor")
    for name in ("handlers", "level", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))


@pytest.mark.usefixtures("own_handlers")
def test_a_line_of_json_has_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON, a log line is one object with time, level, event, the ids of entities, and the fields of contexts; a
    message of another module has them too, and a traceback is a field."""

    def context(fields: object) -> dict[str, str]:
        return {"trace_id": "abc"}

    configure_logging(verbose=1, as_json=True)
    add_context(context)
    try:
        get_logger().info("started", session="lead", pid=7)
    finally:
        remove_context(context)
    logging.getLogger("supervisor").warning("plain %s", "words")
    try:
        raise KeyError("x")
    except KeyError:
        get_logger().exception("broken", task="a")
    first, second, third = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert first.pop("time").endswith("+00:00")
    assert first == {"level": "info", "event": "started", "session": "lead", "pid": 7, "trace_id": "abc"}
    assert (second["level"], second["event"]) == ("warning", "plain words")
    assert (third["event"], third["task"]) == ("broken", "a")
    assert third["exception"].endswith("KeyError: 'x'")


@pytest.mark.usefixtures("own_handlers")
@pytest.mark.parametrize(("has_table", "verbose", "shown"), [(True, 0, 1), (True, 1, 2), (False, 0, 2)])
def test_what_the_table_displays_is_not_logged_beside_it(
    capsys: pytest.CaptureFixture[str], has_table: bool, verbose: int, shown: int
) -> None:
    """On the terminal with the table of a run, a warning about what the table displays is left out, and no other; with
    ``-v``, and elsewhere, both are logged."""
    configure_logging(verbose=verbose, has_table=has_table)
    get_logger().displayed("a task is held", task="a")
    get_logger().warning("another thing", task="a")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == shown
    assert lines[-1].endswith('WARNING event="another thing" task=a')


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
