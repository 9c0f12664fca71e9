"""Logs: structlog over the standard library's logger named ``supervisor``.

Embedded, the runtime configures nothing: structlog's own default would write to standard output. As long as the host
configures no logging, Python prints warnings and errors, without colours or times, to standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final

import structlog

from supervisor.policies.redaction import KnownSecrets, printable

_SECRETS_MAX: Final = 4_096
_secrets = KnownSecrets(_SECRETS_MAX)  # it is not known here which are in use
_redactor = _secrets.redactor


def conceal(environments: Iterable[Mapping[str, str]]) -> None:
    """Redact the secrets in these environments in every log of this process from now on, as long as they are among the
    newest (:class:`KnownSecrets`)."""
    global _redactor
    _secrets.add(environments)
    _secrets.drop_oldest()
    _redactor = _secrets.redactor


def _clean(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {key: _redactor.value(value) for key, value in event.items()}


_logfmt = structlog.processors.LogfmtRenderer(key_order=["event"])


def _render(logger: object, name: str, event: MutableMapping[str, Any]) -> str:
    """Return the line of *event*, and the traceback on the lines below; all of it escaped for terminals, since it may
    contain a program's output."""
    trace = event.pop("exception", None)
    line = printable(_logfmt(logger, name, event))
    return line if trace is None else f"{line}\n{printable(trace, lines=True)}"


def get_logger() -> structlog.stdlib.BoundLogger:
    """Return the runtime's logger; callers bind the ids of an entity to it."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger("supervisor"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            _clean,
            _render,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger
