"""Logs: structlog over the standard library's logger named ``supervisor``.

A line has an event, and fields with the ids of entities; while traces are made, also the id of the trace. The message
of the standard library's record is the line as logfmt, and its attribute ``fields`` has the fields, for formatters that
write JSON.

Embedded, the runtime configures nothing: structlog's own default would write to standard output. As long as the host
configures no logging, Python prints warnings and errors, without colours or times, to standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from supervisor.policies.redaction import KnownSecrets, printable

if TYPE_CHECKING:
    import structlog

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


Fields = Mapping[str, Any]
_contexts: Final[list[Callable[[Fields], Fields]]] = []


def add_context(context: Callable[[Fields], Fields]) -> None:
    """Add the fields that *context* returns for the fields of a line to every line from now on."""
    _contexts.append(context)


def remove_context(context: Callable[[Fields], Fields]) -> None:
    """Take back :func:`add_context`; do nothing if that was done already."""
    if context in _contexts:
        _contexts.remove(context)


def _add_contexts(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    for context in _contexts:
        event.update(context(event))
    return event


def _clean(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {key: _redactor.value(value) for key, value in event.items()}


class LazyLogger:
    """The runtime's logger. structlog is imported with the first message that is written, or by ``load_logger``: it
    imports rich, which takes as long as a tenth of a start of ``supervisor run``, and most processes write none."""

    def debug(self, event: str, **fields: Any) -> None:
        self._write("debug", logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", logging.WARNING, event, fields)

    def displayed(self, event: str, *, is_error: bool = False, **fields: Any) -> None:
        """Write a warning, or an error, about something that the table of a run displays too. A terminal with that
        table gets only the table (:func:`is_displayed`)."""
        method, level = ("error", logging.ERROR) if is_error else ("warning", logging.WARNING)
        self._write(method, level, event, {**fields, _DISPLAYED: True})

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", logging.ERROR, event, fields)

    def critical(self, event: str, **fields: Any) -> None:
        self._write("critical", logging.CRITICAL, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Write an error with the traceback of the exception that is being handled."""
        self._write("exception", logging.ERROR, event, fields)

    def _write(self, method: str, level: int, event: str, fields: Mapping[str, Any]) -> None:
        if _standard.isEnabledFor(level):
            getattr(_structured(), method)(event, **fields)


_DISPLAYED: Final = "_is_displayed"


def is_displayed(record: logging.LogRecord) -> bool:
    """Return whether the table of a run displays the same as this log record."""
    return bool(getattr(record, "is_displayed", False))


_standard = logging.getLogger("supervisor")


def get_logger() -> LazyLogger:
    """Return the runtime's logger; callers give the ids of an entity as fields."""
    return LazyLogger()


def load_logger() -> None:
    """Import structlog now. A supervisor does so at its start: it has to write a message when no descriptor is left,
    and an import needs one."""
    _structured()


Rendered = tuple[tuple[str], dict[str, Any]]
"""Arguments of the standard library's logger."""


@cache
def _structured() -> structlog.stdlib.BoundLogger:
    import structlog

    logfmt = structlog.processors.LogfmtRenderer(key_order=["event"])

    def render(logger: object, name: str, event: MutableMapping[str, Any]) -> Rendered:
        """Return the line of *event*, and the traceback on the lines below; all of it escaped for terminals, since it
        may contain a program's output; and the fields of the standard library's record."""
        displayed, fields = bool(event.pop(_DISPLAYED, False)), dict(event)
        trace = event.pop("exception", None)
        line = printable(logfmt(logger, name, event))
        message = line if trace is None else f"{line}\n{printable(trace, lines=True)}"
        return (message,), {"extra": {"fields": fields, "is_displayed": displayed}}

    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        _standard,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            _add_contexts,
            structlog.processors.format_exc_info,
            _clean,
            render,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger
