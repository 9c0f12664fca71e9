"""Logs: structlog over the standard library's logger named ``supervisor``, silent until the host gives it a handler.

Embedded, the runtime configures nothing and prints nothing: structlog's own default would write to standard output.
"""

from __future__ import annotations

import logging

import structlog

__all__ = ["get_logger"]

logging.getLogger("supervisor").addHandler(logging.NullHandler())


def get_logger() -> structlog.stdlib.BoundLogger:
    """The runtime's logger; bind the entity's ids to it."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger("supervisor"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger
