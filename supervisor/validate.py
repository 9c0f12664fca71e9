"""The check of a ``transitions.jsonl``: schema, order, legality, and the invariants of seed 004, line by line.

Pure: lines come in, a report goes out. It trusts nothing that it reads: a line may be torn, too long, not UTF-8, or
a lie, and then it is a problem with a line number, never an exception. Memory grows with the number of entities and
of reported problems, not with the log. What is legal is read from the tables; nothing is restated here.

``metadata`` tells how things are after the line's transition. Two of the fourteen invariants leave no trace in a
line and are checked elsewhere: which workers send heartbeats, and that a failed workstream's state is archived.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from actors.machine import Machine
from supervisor.lifecycles import MACHINES
from supervisor.vocabulary import Severity

__all__ = ["LINE_BYTES_MAX", "Problem", "Report", "split_lines", "validate_lines"]

LINE_BYTES_MAX: Final = 1 << 20
"""A longer line is reported and not looked into."""


class Problem(msgspec.Struct, frozen=True):
    """What is wrong in line *line* (from 1), and in which of its fields, where it is one field."""

    line: int
    field: str | None
    message: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was read and what was wrong; ``omitted`` counts the problems beyond the limit on ``problems``."""

    lines: int
    entities: int
    problems: list[Problem]
    omitted: int = 0


def validate_lines(lines: Iterable[bytes | str], *, problems_max: int = 1000) -> Report:
    """Check *lines*, read one at a time; a file opened in binary mode will do, or :func:`split_lines` for hostile ones.

    At most *problems_max* problems are kept, the others are counted.
    """
    log = _Log(problems_max)
    for line, is_last in _with_last(lines):
        log.take(line, is_last)
    return Report(lines=log.number, entities=len(log.states), problems=log.problems, omitted=log.omitted)


def split_lines(chunks: Iterable[bytes], *, bytes_max: int = LINE_BYTES_MAX) -> Iterator[bytes]:
    """Lines out of chunks of a file, each cut one byte behind the limit, so that a line costs no more memory."""
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


# ----------------------------------------------------------------------------------------------------- the tables
Say = Callable[[str | None, str], None]
"""Report a problem: the field, and the words."""


class _Table:
    """One machine as text: its states, its edges, and what is allowed where."""

    def __init__(self, machine: Machine[Any, Any]) -> None:
        self.name = machine.name
        self.states = tuple(str(state.value) for state in machine.states)
        self.initial = tuple(str(state.value) for state in machine.initial)
        self.terminal = frozenset(str(state.value) for state in machine.terminal)
        edges = [(str(one.source.value), one.on.name(), str(one.target.value)) for one in machine.rules]
        self.edges = frozenset(edges)
        self.allowed = {
            state: ", ".join(dict.fromkeys(f"{on} to {to}" for source, on, to in edges if source == state)) or "nothing"
            for state in self.states
        }


_TABLES: Final[Mapping[str, _Table]] = {f"{name}_state_transition": _Table(one) for name, one in MACHINES.items()}


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
    """The JSON object of a line.

    Raises:
        ValueError: it is none; the message says why.
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


def _check_schema(fields: dict[str, Any], say: Say) -> None:
    for name in _REQUIRED:
        if name not in fields:
            say(name, "missing")
    for name in fields:
        if name not in _KNOWN:
            say(name[:60], f"unknown field; known are {', '.join((*_REQUIRED, *_OPTIONAL))}")
    for name in (*_TEXTS, "abort_id"):
        if fields.get(name) is not None and not _is_text(fields[name]):
            say(name, f"must be a non-empty string, is {_short(fields[name])}")
    for name in _REQUIRED:
        if name in fields and fields[name] is None:
            say(name, "must not be null")
    if not isinstance(fields.get("metadata", {}), dict | None):
        say("metadata", f"must be an object, is {_short(fields['metadata'])}")
    if _is_text(fields.get("severity")) and fields["severity"] not in _SEVERITIES:
        say("severity", f"{_short(fields['severity'])} is none of {', '.join(_SEVERITIES)}")
    if _is_text(fields.get("event_type")) and fields["event_type"] not in _TABLES:
        say("event_type", f"{_short(fields['event_type'])} is none of {', '.join(_TABLES)}")


class _Log:
    """What has been read so far: the last state of every entity, the last time and number, the problems."""

    def __init__(self, problems_max: int) -> None:
        self.number = 0
        self.states: dict[tuple[str, str], str | None] = {}
        self.problems: list[Problem] = []
        self.omitted = 0
        self._problems_max = problems_max
        self._timestamp = ""
        self._seq = 0
        self._work = _Work(self.say)

    def say(self, field: str | None, message: str) -> None:
        if len(self.problems) < self._problems_max:
            self.problems.append(Problem(self.number, field, message))
        else:
            self.omitted += 1

    def take(self, line: bytes | str, is_last: bool) -> None:
        self.number += 1
        try:
            fields = _decoded(line)
        except ValueError as error:
            torn = is_last and not _is_whole(line)
            self.say(None, f"torn last line, it was never written whole: {error}" if torn else str(error))
            return
        _check_schema(fields, self.say)
        self._check_time(_text(fields, "timestamp"))
        self._check_numbers(fields)
        table = _TABLES.get(_text(fields, "event_type"))
        if table and (entity_id := _text(fields, "entity_id")):
            self._check_step(table, entity_id, fields)

    def _check_time(self, value: str) -> None:
        if not value:
            return
        if not _TIMESTAMP.fullmatch(value) or _moment(value) is None:
            self.say("timestamp", f"{_short(value)} is not a time such as 2024-01-15T10:30:00.000Z")
        elif value < self._timestamp:  # fixed width: the order of the text is that of the times
            self.say("timestamp", f"goes back: {value} after {self._timestamp}")
        else:
            self._timestamp = value

    def _check_numbers(self, fields: dict[str, Any]) -> None:
        seq = _count(fields, "seq", self.say, least=1)
        cause = _count(fields, "cause_id", self.say, least=1)
        if seq is not None and seq <= self._seq:
            self.say("seq", f"must rise: {seq} after {self._seq}")
        if cause is not None and (seq is None or cause >= seq):
            self.say("cause_id", f"must be less than the line's seq: {cause} in {'no seq' if seq is None else seq}")
        self._seq = max(self._seq, seq or 0)

    def _check_step(self, table: _Table, entity_id: str, fields: dict[str, Any]) -> None:
        source, target = self._state(table, fields, "from_state"), self._state(table, fields, "to_state")
        key = (table.name, entity_id)
        if source:
            self._check_source(table, key, source)
        if source and target:
            self._check_edge(table, source, _text(fields, "trigger"), target)
        self.states[key] = target
        metadata = fields.get("metadata")
        if target:
            self._work.take(table.name, entity_id, target, metadata if isinstance(metadata, dict) else {})

    def _state(self, table: _Table, fields: dict[str, Any], name: str) -> str | None:
        state = _text(fields, name)
        if not state:
            return None
        if state not in table.allowed:
            self.say(name, f"{table.name} has no state {_short(state)}; it has {', '.join(table.states)}")
            return None
        return state

    def _check_source(self, table: _Table, key: tuple[str, str], source: str) -> None:
        if key not in self.states:
            if source not in table.initial:
                start = " or ".join(table.initial)
                self.say("from_state", f"{_short(key[1])} begins in {source}; a {table.name} begins in {start}")
        elif (last := self.states[key]) is not None and source != last:
            self.say("from_state", f"is {source}, but {_short(key[1])} was last in {last}")

    def _check_edge(self, table: _Table, source: str, trigger: str, target: str) -> None:
        if not trigger or (source, trigger, target) in table.edges:
            return
        what = f"{table.name}: {_short(trigger)} does not take {source} to {target}"
        ended = f"{source} is terminal; " if source in table.terminal else ""
        self.say("trigger", f"{what}; {ended}allowed in {source}: {table.allowed[source]}")


# ----------------------------------------------------------------------------------------- invariants of seed 004
class _Job:
    """What the log has shown of a job."""

    __slots__ = (
        "completed_at",
        "created_at",
        "critical",
        "max_retries",
        "started_at",
        "state",
        "waits",
        "where",
        "who",
    )

    def __init__(self) -> None:
        self.state: str | None = None
        self.where: str | None = None
        self.who: str | None = None
        self.waits: list[Any] = []
        self.critical = False
        self.max_retries: int | None = None
        self.created_at: object = None
        self.started_at: object = None
        self.completed_at: object = None


class _Work:
    """Jobs, workers and workstreams against each other; every line costs the same, however long the log is."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._jobs: dict[str, _Job] = {}
        self._streams: dict[str, Counter[str]] = {}
        self._stream_states: dict[str, str] = {}
        self._running: Counter[str] = Counter()
        self._slots: dict[str, int] = {}

    def take(self, machine: str, entity_id: str, state: str, metadata: dict[str, Any]) -> None:
        match machine:
            case "job":
                self._take_job(entity_id, state, metadata)
            case "worker":
                self._take_worker(entity_id, state, metadata)
            case "workstream":
                self._stream_states[entity_id] = state
                self._check_stream(entity_id, state)

    # ------------------------------------------------------------------------------------------------- jobs
    def _take_job(self, entity_id: str, state: str, metadata: dict[str, Any]) -> None:
        job = self._jobs.setdefault(entity_id, _Job())
        self._check_retries(job, metadata)
        self._check_stamps(job, metadata)
        self._note_stream(job, state, metadata)
        self._note_worker(job, state, metadata)
        job.state = state
        self._check_dependencies(job, state, metadata)

    def _check_retries(self, job: _Job, metadata: dict[str, Any]) -> None:
        limit = _count(metadata, "max_retries", self._meta)
        retries = _count(metadata, "retry_count", self._meta)
        job.max_retries = job.max_retries if limit is None else limit
        if retries is not None and job.max_retries is not None and retries > job.max_retries:
            self._meta("retry_count", f"{retries} exceeds max_retries {job.max_retries}")

    def _check_stamps(self, job: _Job, metadata: dict[str, Any]) -> None:
        names = [name for name in ("created_at", "started_at", "completed_at") if metadata.get(name) is not None]
        for name in names:
            if _moment(metadata[name]) is None:
                self._meta(name, f"{_short(metadata[name])} is neither a number nor an ISO 8601 time with a zone")
            else:
                setattr(job, name, metadata[name])
        if names:
            self._compare("created_at", job.created_at, "started_at", job.started_at)
            self._compare("started_at", job.started_at, "completed_at", job.completed_at)
            if job.started_at is None:
                self._compare("created_at", job.created_at, "completed_at", job.completed_at)

    def _compare(self, early: str, first: object, late: str, second: object) -> None:
        one, two = _moment(first), _moment(second)
        if one is None or two is None:
            return
        if isinstance(first, str) is not isinstance(second, str):
            self._meta(late, f"{early} and {late} must be in one form, both numbers or both ISO 8601")
        elif one > two:
            self._meta(late, f"{_short(second)} is before {early} {_short(first)}")

    def _note_stream(self, job: _Job, state: str, metadata: dict[str, Any]) -> None:
        where = _name(metadata, "workstream_id", self._meta)
        if where and job.where and where != job.where:
            self._meta("workstream_id", f"changed from {_short(job.where)} to {_short(where)}; a job stays in one")
        critical = metadata.get("critical") is True
        counts = self._streams.get(job.where) if job.where else None
        if counts is not None and job.state:
            counts[job.state] -= 1
            counts["critical failed"] -= job.critical and job.state == "failed"
        job.where, job.critical = job.where or where, job.critical or critical
        if job.where:
            counts = self._streams.setdefault(job.where, Counter())
            counts[state] += 1
            counts["critical failed"] += job.critical and state == "failed"
            self._check_start(job.where, state)

    def _check_start(self, where: str, state: str) -> None:
        stream = self._stream_states.get(where)
        if state == "running" and stream in ("planned", "completed", "failed", "cancelled"):
            self._say("to_state", f"a job runs, but its workstream {_short(where)} is {stream}")

    def _note_worker(self, job: _Job, state: str, metadata: dict[str, Any]) -> None:
        who = _name(metadata, "worker_id", self._meta)
        if job.who:
            self._running[job.who] -= 1
        job.who = who if state == "running" else None
        if who and state != "running":
            self._meta("worker_id", f"a {state} job has no worker, this one has {_short(who)}")
        if state == "running" and "worker_id" in metadata and metadata["worker_id"] is None:
            self._meta("worker_id", "a running job has a worker, this one has none")
        if job.who:
            self._running[job.who] += 1
            self._check_capacity(job.who, self._running[job.who], "worker_id")

    def _check_capacity(self, worker: str, tasks: int, field: str) -> None:
        slots = self._slots.get(worker)
        if slots is not None and tasks > slots:
            self._meta(field, f"worker {_short(worker)} has {tasks} tasks; max_concurrent_tasks is {slots}")

    def _check_dependencies(self, job: _Job, state: str, metadata: dict[str, Any]) -> None:
        waits = metadata.get("depends_on")
        if isinstance(waits, list):
            job.waits = waits
        elif waits is not None:
            self._meta("depends_on", f"must be a list of job ids, is {_short(waits)}")
        if state != "queued":
            return
        for one in job.waits:
            if not isinstance(one, str):
                self._meta("depends_on", f"must be a list of job ids, holds {_short(one)}")
            elif (seen := self._jobs.get(one)) is None or seen.state != "completed":
                now = seen.state if seen else "not in this log"
                self._meta("depends_on", f"a queued job waits for nothing, but {_short(one)} is {now}")
        job.waits = []  # what is completed stays so, and what is not has been said

    # --------------------------------------------------------------------------------- workers, workstreams
    def _take_worker(self, entity_id: str, state: str, metadata: dict[str, Any]) -> None:
        slots = _count(metadata, "max_concurrent_tasks", self._meta, least=1)
        if slots is not None:
            self._slots[entity_id] = slots
        active = _count(metadata, "active_tasks", self._meta)
        if active is not None:
            self._check_capacity(entity_id, active, "active_tasks")
        if state in ("idle", "shutdown"):
            if active:
                self._meta("active_tasks", f"a worker in {state} holds no task, this one {active}")
            if running := self._running[entity_id]:
                self._say("to_state", f"worker {_short(entity_id)} goes to {state}, but {running} of its jobs run")

    def _check_stream(self, entity_id: str, state: str) -> None:
        counts = self._streams.get(entity_id)
        if counts is None:
            return
        critical = counts["critical failed"]
        jobs = counts.total() - critical
        waiting = counts["pending"] + counts["queued"]
        if state == "ready" and waiting < jobs:
            self._say("to_state", f"ready, but {jobs - waiting} of its {jobs} jobs have started")
        if state == "executing" and waiting == jobs:
            self._say("to_state", f"executing, but none of its {jobs} jobs has started")
        if state in ("validating", "completed") and counts["completed"] < jobs:
            self._say("to_state", f"{state}, but only {counts['completed']} of its {jobs} jobs are completed")
        if critical and state not in ("failed", "cancelled"):
            self._say("to_state", f"{state}, but {critical} critical jobs failed; then it must fail")

    def _meta(self, field: str | None, message: str) -> None:
        self._say(f"metadata.{field}", message)


# -------------------------------------------------------------------------------------------------------- values
_INTEGER_MAX: Final = 2**63 - 1


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _text(fields: dict[str, Any], name: str) -> str:
    """The string of that name, ``""`` if it is none (which the schema has reported)."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _name(fields: dict[str, Any], name: str, say: Say) -> str | None:
    value = fields.get(name)
    if value is not None and not _is_text(value):
        say(name, f"must be a non-empty string or null, is {_short(value)}")
        return None
    return value


def _count(fields: dict[str, Any], name: str, say: Say, *, least: int = 0) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _INTEGER_MAX:
        say(name, f"must be an integer from {least} to {_INTEGER_MAX}, is {_short(value)}")
        return None
    return value


def _moment(value: object) -> float | None:
    """A number, or an ISO 8601 time with a zone, as seconds; ``None`` for anything else."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        return moment.timestamp() if moment.tzinfo else None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _INTEGER_MAX:
        return None
    return float(value)


def _short(value: object) -> str:
    """A value for a message: quoted, and never long."""
    match value:
        case str():
            return repr(value if len(value) <= 60 else f"{value[:60]}…")
        case list() | dict():
            return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
        case int() if abs(value) > _INTEGER_MAX:
            return f"an integer of {value.bit_length()} bits"
        case _:
            return repr(value)
