"""Output of the log of ``run`` and ``serve``: lines for people, or lines of JSON; and the end of an SDK's exporters."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, TextIO

from supervisor.cli.rendering import json_line
from supervisor.ports.logs import is_displayed

LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)
"""Level of the runtime's logger by the number of ``-v``."""


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Handler that writes to the standard error of the moment: while a table is drawn, the live view replaces it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class JsonFormatter(logging.Formatter):
    """Formatter of lines of JSON: the time in UTC, the level, the event and its fields, which name entities."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = getattr(record, "fields", None) or {"event": record.getMessage()}
        return json_line({"time": at, "level": record.levelname.lower(), **fields})


def configure_logging(*, verbose: int, as_json: bool = False, has_table: bool = False) -> None:
    """Send logs of the runtime to standard error; an embedding program configures logging by itself.

    Args:
        verbose: 0 for warnings, 1 for what happens, 2 for everything.
        as_json: write lines of JSON.
        has_table: the table of a run is on the same terminal, so that what it displays is not logged beside it.
    """
    handler = _StderrHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter() if as_json else plain)
    if has_table and not verbose:
        handler.addFilter(lambda record: not is_displayed(record))
    logger = logging.getLogger("supervisor")
    logger.handlers = [handler]
    logger.setLevel(LEVELS[min(verbose, 2)])
    logger.propagate = False


def log_message(text: str) -> None:
    """Write a message for the operator into the log, where every line is JSON."""
    logging.getLogger("supervisor").warning("%s", text)


def leave_exporters(status: int) -> None:
    """End the process now if an SDK of OpenTelemetry is loaded: what it has registered for the exit waits for a
    collector that may be away, and the telemetry service has had the last spans exported already."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(status)
