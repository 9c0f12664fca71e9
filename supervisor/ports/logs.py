"""Logs: structlog over the standard library's logger named ``supervisor``, silent until the host gives it a handler.

Embedded, the runtime configures nothing and prints nothing: structlog's own default would write to standard output.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import structlog

from supervisor.policies.redaction import Redactor, printable

logging.getLogger("supervisor").addHandler(logging.NullHandler())

_secrets: dict[str, str] = {}
_redactor = Redactor()


def conceal(environments: Iterable[Mapping[str, str]]) -> None:
    """Redact the secrets in these environments in every log of this process from now on."""
    global _redactor
    for environment in environments:
        _secrets.update(environment)
    _redactor = Redactor([_secrets])


def _clean(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {key: _redactor.value(value) for key, value in event.items()}


def _escaped(_: object, __: str, line: Any) -> str:
    """Escape the line for terminals, since the line may contain a program's output."""
    return printable(line)


def get_logger() -> structlog.stdlib.BoundLogger:
    """Return the runtime's logger; callers bind the ids of an entity to it."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger("supervisor"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            _clean,
            structlog.processors.LogfmtRenderer(key_order=["event"]),
            _escaped,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger
