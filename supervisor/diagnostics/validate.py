"""Check a ``transitions.jsonl`` line by line: schema, order, legality, and the invariants of spec 004. Pure.

Lines come in, a report comes out. The input is not trusted: a line may be torn, too long, not UTF-8, or untrue; then a
problem with the line number is reported, and no exception raised. Memory grows with the number of entities and of
reported problems, not with the log. Legality is read from the tables; no rule is repeated here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from supervisor.diagnostics.event_replay import KINDS, EntityKind
from supervisor.diagnostics.work_invariants import (
    ReportProblem,
    WorkInvariants,
    count_of,
    is_text,
    moment_of,
    shortened,
)
from supervisor.lifecycles.types import Severity

LINE_BYTES_MAX: Final = 1 << 20
"""Length in bytes of the longest line that is examined; a longer line is reported as a problem."""


class Problem(msgspec.Struct, frozen=True):
    """Problem in line *line*, counted from 1, and in one field of the line, if the problem belongs to a field."""

    line: int
    field: str | None
    message: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check: counts and problems; ``omitted`` counts the problems beyond the limit."""

    lines: int
    entities: int
    problems: list[Problem]
    omitted: int = 0


def validate_lines(lines: Iterable[bytes | str], *, problems_max: int = 1000) -> Report:
    """Check *lines*, read one at a time: a file opened in binary mode, or :func:`split_lines` for untrusted files.

    At most *problems_max* problems are kept; the others are counted.
    """
    log = _LogChecker(problems_max)
    for line, is_last in _with_last(lines):
        log.check_line(line, is_last)
    return Report(lines=log.number, entities=len(log.states), problems=log.problems, omitted=log.omitted)


def split_lines(chunks: Iterable[bytes], *, bytes_max: int = LINE_BYTES_MAX) -> Iterator[bytes]:
    """Yield the lines in *chunks* of a file, each cut one byte behind *bytes_max*, so that a long line needs no more
    memory."""
    held = bytearray()
    for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            held += end[: bytes_max + 1 - len(held)]
            yield bytes(held) + b"\n"
            held.clear()
        held += rest[: bytes_max + 1 - len(held)]
    if held:
        yield bytes(held)


_KINDS: Final[Mapping[str, EntityKind]] = {f"{name}_state_transition": kind for name, kind in KINDS.items()}
"""Kinds of entities by the ``event_type`` of their lines."""


# ------------------------------------------------------------------------------------------------------ the lines
def _with_last(lines: Iterable[bytes | str]) -> Iterator[tuple[bytes | str, bool]]:
    iterator = iter(lines)
    for held in iterator:
        for line in iterator:
            yield held, False
            held = line
        yield held, True


def _is_whole(line: bytes | str) -> bool:
    return line.endswith(b"\n") if isinstance(line, bytes) else line.endswith("\n")


def _decoded(line: bytes | str) -> dict[str, Any]:
    """Return the JSON object in a line.

    Raises:
        ValueError: the line holds no JSON object; the message gives the reason.
    """
    if len(line) - _is_whole(line) > LINE_BYTES_MAX:
        raise ValueError(f"longer than {LINE_BYTES_MAX} bytes; a transition is one short line")
    if not line.strip():
        raise ValueError("empty; remove it")
    try:
        value = msgspec.json.decode(line if isinstance(line, bytes) else line.encode())
    except UnicodeError as error:
        raise ValueError(f"not UTF-8: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, not an object")
    return value


_TIMESTAMP: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
_TEXTS: Final = ("timestamp", "event_type", "severity", "entity_id", "from_state", "to_state", "trigger")
_REQUIRED: Final = (*_TEXTS, "metadata")
_OPTIONAL: Final = ("seq", "abort_id", "cause_id")
_KNOWN: Final = frozenset({*_REQUIRED, *_OPTIONAL})
_SEVERITIES: Final = tuple(one.value for one in Severity)


def _check_schema(fields: dict[str, Any], report: ReportProblem) -> None:
    for name in _REQUIRED:
        if name not in fields:
            report(name, "missing")
    for name in fields:
        if name not in _KNOWN:
            report(name[:60], f"unknown field; known are {', '.join((*_REQUIRED, *_OPTIONAL))}")
    for name in (*_TEXTS, "abort_id"):
        if fields.get(name) is not None and not is_text(fields[name]):
            report(name, f"must be a non-empty string, is {shortened(fields[name])}")
    for name in _REQUIRED:
        if name in fields and fields[name] is None:
            report(name, "must not be null")
    if not isinstance(fields.get("metadata", {}), dict | None):
        report("metadata", f"must be an object, is {shortened(fields['metadata'])}")
    if is_text(fields.get("severity")) and fields["severity"] not in _SEVERITIES:
        report("severity", f"{shortened(fields['severity'])} is none of {', '.join(_SEVERITIES)}")
    if is_text(fields.get("event_type")) and fields["event_type"] not in _KINDS:
        report("event_type", f"{shortened(fields['event_type'])} is none of {', '.join(_KINDS)}")


class _LogChecker:
    """State of a check: the last state of every entity, the last time and record number, and the problems so far."""

    def __init__(self, problems_max: int) -> None:
        self.number = 0
        self.states: dict[tuple[str, str], str | None] = {}
        self.problems: list[Problem] = []
        self.omitted = 0
        self._problems_max = problems_max
        self._timestamp = ""
        self._seq = 0
        self._work = WorkInvariants(self.report)

    def report(self, field: str | None, message: str) -> None:
        if len(self.problems) < self._problems_max:
            self.problems.append(Problem(self.number, field, message))
        else:
            self.omitted += 1

    def check_line(self, line: bytes | str, is_last: bool) -> None:
        self.number += 1
        try:
            fields = _decoded(line)
        except ValueError as error:
            torn = is_last and not _is_whole(line)
            self.report(None, f"torn last line, it was never written whole: {error}" if torn else str(error))
            return
        _check_schema(fields, self.report)
        self._check_time(_text(fields, "timestamp"))
        self._check_numbers(fields)
        kind = _KINDS.get(_text(fields, "event_type"))
        if kind and (entity_id := _text(fields, "entity_id")):
            self._check_step(kind, entity_id, fields)

    def _check_time(self, value: str) -> None:
        if not value:
            return
        if not _TIMESTAMP.fullmatch(value) or moment_of(value) is None:
            self.report("timestamp", f"{shortened(value)} is not a time such as 2024-01-15T10:30:00.000Z")
        elif value < self._timestamp:  # fixed width: the order of the text is that of the times
            self.report("timestamp", f"goes back: {value} after {self._timestamp}")
        else:
            self._timestamp = value

    def _check_numbers(self, fields: dict[str, Any]) -> None:
        seq = count_of(fields, "seq", self.report, least=1)
        cause = count_of(fields, "cause_id", self.report, least=1)
        if seq is not None and seq <= self._seq:
            self.report("seq", f"must rise: {seq} after {self._seq}")
        if cause is not None and (seq is None or cause >= seq):
            self.report("cause_id", f"must be less than the line's seq: {cause} in {'no seq' if seq is None else seq}")
        self._seq = max(self._seq, seq or 0)

    def _check_step(self, kind: EntityKind, entity_id: str, fields: dict[str, Any]) -> None:
        source, target = self._state(kind, fields, "from_state"), self._state(kind, fields, "to_state")
        key = (kind.machine.name, entity_id)
        if source:
            self._check_source(kind, key, source)
        if source and target:
            self._check_edge(kind, source, _text(fields, "trigger"), target)
        self.states[key] = target
        metadata = fields.get("metadata")
        if target:
            known = metadata if isinstance(metadata, dict) else {}
            self._work.check(kind.machine.name, entity_id, target, known, _text(fields, "trigger"))
            self._check_severity(kind, source, target, _text(fields, "severity"))

    def _check_severity(self, kind: EntityKind, source: str | None, target: str, severity: str) -> None:
        """Check the severity of a machine whose table has severities; in the others, it depends on the event."""
        severities = kind.severities
        if severities and source and severity in _SEVERITIES:
            expected = severities.get(target, Severity.INFO.value) if source != target else Severity.INFO.value
            if severity != expected:
                self.report("severity", f"{severity}; a {kind.machine.name} that enters {target} has {expected}")

    def _state(self, kind: EntityKind, fields: dict[str, Any], name: str) -> str | None:
        state = _text(fields, name)
        if not state:
            return None
        if state not in kind.states:
            self.report(name, f"{kind.machine.name} has no state {shortened(state)}; it has {', '.join(kind.states)}")
            return None
        return state

    def _check_source(self, kind: EntityKind, key: tuple[str, str], source: str) -> None:
        if key not in self.states:
            if source not in kind.initial:
                start = " or ".join(kind.initial)
                self.report("from_state", f"{shortened(key[1])} begins in {source}; a {key[0]} begins in {start}")
        elif (last := self.states[key]) is not None and source != last:
            self.report("from_state", f"is {source}, but {shortened(key[1])} was last in {last}")

    def _check_edge(self, kind: EntityKind, source: str, trigger: str, target: str) -> None:
        if not trigger or (source, trigger, target) in kind.edges:
            return
        what = f"{kind.machine.name}: {shortened(trigger)} does not take {source} to {target}"
        ended = f"{source} is terminal; " if source in kind.terminal else ""
        self.report("trigger", f"{what}; {ended}allowed in {source}: {kind.allowed(source)}")


def _text(fields: dict[str, Any], name: str) -> str:
    """Return the string in the field *name*, or ``""`` if the value is no string (which the schema check has
    reported)."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""
