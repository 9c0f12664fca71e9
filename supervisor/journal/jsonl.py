"""``transitions.jsonl``: the journal's transitions, one JSON object a line, for people and for other programs.

The file is derived: it is written after the commit and never synced, so the file can be behind the journal but never
ahead of it, and an incomplete last line is removed and written again. The same records always give the same bytes, and
timestamps never go back. The ``outcome`` of a record in the journal decides whether the record is a transition.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from supervisor.lifecycles.types import LifecycleEvent, RecordId
from supervisor.ports import JournalError


class TransitionLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of ``transitions.jsonl`` (spec 004's event schema), with the number of the record in the journal, and the
    abort and the cause if there is one."""

    timestamp: str
    event_type: str
    severity: str
    entity_id: str
    from_state: str
    to_state: str
    trigger: str
    metadata: dict[str, Any]
    seq: RecordId
    abort_id: str | None = None
    cause_id: RecordId | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TransitionLine).decode
_EXPLAINED = ("reason", "transition_reason", "abort_reason", "actor")


def transition_line(record: LifecycleEvent, *, not_before: str = "") -> TransitionLine:
    """Return *record* as a line whose timestamp is at least *not_before*, the timestamp of the line above."""
    why = {name: value for name in _EXPLAINED if (value := getattr(record, name))}
    return TransitionLine(
        timestamp=max(not_before, _iso(record.timestamp)),  # fixed width: the order of the text is that of the times
        event_type=f"{record.entity_type}_state_transition",
        severity=record.severity,
        entity_id=record.entity_id,
        from_state=record.from_status,
        to_state=record.to_status,
        trigger=record.event,
        metadata={**record.metadata, **why},
        seq=record.seq,
        abort_id=record.abort_id,
        cause_id=record.cause_id,
    )


def _iso(unix_s: float) -> str:
    second, ms = divmod(round(unix_s * 1000), 1000)
    return f"{_second(second)}.{ms:03d}Z"


@lru_cache(maxsize=16)  # a batch of records rarely spans two
def _second(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).replace(tzinfo=None).isoformat()


class TransitionLog:
    """The open ``transitions.jsonl``. ``last_seq`` is the number of the last line's record: later records of the
    journal have no line yet."""

    def __init__(self, path: Path, fd: int, size_bytes: int, last: TransitionLine | None) -> None:
        self._path = path
        self._fd = fd
        self._set_end(size_bytes, last)

    def _set_end(self, size_bytes: int, last: TransitionLine | None) -> None:
        self._size_bytes = size_bytes
        self._timestamp = last.timestamp if last else ""
        self.last_seq = last.seq if last else 0

    @classmethod
    def open(cls, path: Path, *, journal_seq: int) -> TransitionLog:
        """Open or create *path* for a journal that ends at *journal_seq*, and remove an incomplete last line.

        Raises:
            JournalError: the file has later records than the journal, or belongs to another journal; it is left
                unchanged.
            OSError: the file cannot be opened or truncated.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size_bytes, last = _last_line(fd, path)
            if last and last.seq > journal_seq:
                raise JournalError(
                    f"{path} ends at seq {last.seq}, the journal at {journal_seq}: the journal has lost its end, or the"
                    " file belongs to another one; restore a copy of the journal, or move the file away"
                )
            _truncate(fd, size_bytes)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, size_bytes, last)

    def is_cut(self) -> bool:
        """Return whether another program has shortened the file, so that lines are missing."""
        return os.fstat(self._fd).st_size < self._size_bytes

    def find_end(self) -> None:
        """Read the file again; ``last_seq`` is then the number of the last line that is left.

        Raises:
            JournalError: the file holds other lines only.
        """
        self._set_end(*_last_line(self._fd, self._path))

    def extend(self, records: Iterable[LifecycleEvent]) -> None:
        """Append a line for each transition among *records*: all of the lines or none.

        Raises:
            OSError: the lines cannot be written; ``last_seq`` is the number of the last written line.
        """
        timestamp, last_seq, text = self._timestamp, self.last_seq, bytearray()
        for record in records:
            if record.outcome == "transition":
                line = transition_line(record, not_before=timestamp)
                timestamp, last_seq = line.timestamp, line.seq
                text += _encode(line) + b"\n"
        self._write(text)
        self._timestamp, self.last_seq = timestamp, last_seq

    def _write(self, text: bytearray) -> None:
        _truncate(self._fd, self._size_bytes)  # what an earlier write left half done
        done = 0
        while done < len(text):
            done += os.write(self._fd, memoryview(text)[done:])
        self._size_bytes += done

    def close(self) -> None:
        os.close(self._fd)


def _truncate(fd: int, size_bytes: int) -> None:
    if os.lseek(fd, 0, os.SEEK_END) != size_bytes:
        os.ftruncate(fd, size_bytes)


def _last_line(fd: int, path: Path) -> tuple[int, TransitionLine | None]:
    """Return the position after the last complete line, and that line. A power cut can leave several bad lines at the
    end."""
    if not os.fstat(fd).st_size:
        return 0, None
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as view:
        whole = end = view.rfind(b"\n") + 1
        while end:
            start = view.rfind(b"\n", 0, end - 1) + 1
            if line := _parse(view[start:end]):
                return end, line
            end = start
    if whole:
        raise JournalError(f"{path} holds no line of a supervisor's transitions; move it away")
    return 0, None


def _parse(text: bytes) -> TransitionLine | None:
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # the last: nested a thousand times
        return None
