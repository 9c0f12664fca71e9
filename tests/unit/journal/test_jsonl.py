"""transitions.jsonl: the lines of spec 004, which can be made again from the journal."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.journal.jsonl import TransitionLog, transition_line
from supervisor.journal.sqlite import SqliteJournal
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append, JournalError

on_both_backends = pytest.mark.anyio


def record(seq: int, **more: Any) -> LifecycleEvent:
    """Return a transition of one entity, with fields replaced by name."""
    fields: dict[str, Any] = {
        "timestamp": 1705314600.0 + seq,
        "monotonic_s": float(seq),
        "entity_type": "job",
        "entity_id": "job-1",
        "entity_seq": seq,
        "event": "execution_completed",
        "from_status": "running",
        "to_status": "validating",
    }
    return LifecycleEvent(seq=seq, **(fields | more))


def appends(records: Iterable[LifecycleEvent]) -> list[Append]:
    return [Append(record=one, parent_id=None, state=one.to_status, data=b"{}") for one in records]


RECORDS = [
    record(1, outcome="born"),
    record(2, metadata={"retry_count": 0}),
    record(3, outcome="fact"),
    record(4, reason="läuft", timestamp=1000.0),
    record(5, outcome="refused"),
    record(6, abort_id="ab-1", cause_id=5),
    record(7, outcome="stale"),
]


async def journal_of(folder: Path, records: Iterable[LifecycleEvent] = ()) -> bytes:
    """Open the journal in *folder*, append *records* one by one, close it, and return the content of
    transitions.jsonl."""
    journal = await SqliteJournal.open(folder / "journal.db", jsonl=folder / "transitions.jsonl")
    try:
        for one in appends(records):
            await journal.append([one])
    finally:
        await journal.close()
    return (folder / "transitions.jsonl").read_bytes()


def test_a_line_is_an_event_of_seed_004() -> None:
    """A line has the keys of the schema in spec 004, in their order, and ``seq``."""
    line = transition_line(record(7, timestamp=1705314600.0004, severity="warning", metadata={"duration_seconds": 45}))
    assert msgspec.json.encode(line).decode() == (
        '{"timestamp":"2024-01-15T10:30:00.000Z","event_type":"job_state_transition","severity":"warning",'
        '"entity_id":"job-1","from_state":"running","to_state":"validating","trigger":"execution_completed",'
        '"metadata":{"duration_seconds":45},"seq":7}'
    )


def test_why_and_who_join_the_metadata_where_they_are_known() -> None:
    """reason, transition_reason, abort_reason and actor are added to a line's metadata, abort_id and cause_id to the
    line."""
    line = transition_line(
        record(
            7,
            reason="stop",
            transition_reason="aborted",
            abort_reason="timeout",
            actor="operator",
            abort_id="ab-1",
            cause_id=3,
            metadata={"n": 1},
        )
    )
    assert line.metadata == {
        "n": 1,
        "reason": "stop",
        "transition_reason": "aborted",
        "abort_reason": "timeout",
        "actor": "operator",
    }
    assert (line.abort_id, line.cause_id) == ("ab-1", 3)


@pytest.mark.parametrize(
    ("unix_s", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1754300000.9994, "2025-08-04T09:33:20.999Z"),
        (1754300000.9996, "2025-08-04T09:33:21.000Z"),
        (-0.25, "1969-12-31T23:59:59.750Z"),
    ],
)
def test_timestamps_are_iso_8601_in_milliseconds(unix_s: float, text: str) -> None:
    """Unix time is written as ISO 8601 in UTC, rounded to milliseconds."""
    assert transition_line(record(1, timestamp=unix_s)).timestamp == text


@on_both_backends
async def test_only_transitions_are_written_and_time_never_goes_back(tmp_path: Path) -> None:
    """Only transitions are written, no births, facts, refusals or stale events; if the clock goes back, the last time
    is repeated."""
    lines = [msgspec.json.decode(line) for line in (await journal_of(tmp_path, RECORDS)).splitlines()]
    assert [(line["seq"], line["timestamp"]) for line in lines] == [
        (2, "2024-01-15T10:30:02.000Z"),
        (4, "2024-01-15T10:30:02.000Z"),
        (6, "2024-01-15T10:30:06.000Z"),
    ]


@on_both_backends
async def test_time_does_not_go_back_over_a_reopen(tmp_path: Path) -> None:
    """After a reopen a line is not written with an earlier time than the last line of the file."""
    await journal_of(tmp_path, RECORDS)
    last = (await journal_of(tmp_path, [record(8, timestamp=5.0)])).splitlines()[-1]
    assert msgspec.json.decode(last)["timestamp"] == "2024-01-15T10:30:06.000Z"


@on_both_backends
async def test_a_file_that_is_whole_is_left_as_it_is(tmp_path: Path) -> None:
    """A reopen of the journal does not write to a transitions.jsonl that is complete."""
    whole = await journal_of(tmp_path, RECORDS)
    before = (tmp_path / "transitions.jsonl").stat()
    assert await journal_of(tmp_path) == whole
    after = (tmp_path / "transitions.jsonl").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@on_both_backends
async def test_a_last_line_torn_at_any_byte_is_rebuilt(tmp_path: Path) -> None:
    """A last line that is cut at any byte is written again at the next opening, and the file has the same bytes as
    before."""
    whole = await journal_of(tmp_path, RECORDS)
    begins = whole[:-1].rindex(b"\n") + 1
    for length in range(begins, len(whole), 11):
        (tmp_path / "transitions.jsonl").write_bytes(whole[:length])
        assert await journal_of(tmp_path) == whole, length
    (tmp_path / "transitions.jsonl").write_bytes(whole[:-1])  # all but the newline
    assert await journal_of(tmp_path) == whole


@on_both_backends
@pytest.mark.parametrize("tail", [b"\0" * 700, b"\xff\xfe{\n}\n", b'{"seq":9}\n', b'{"timestamp":"x"'])
async def test_garbage_after_the_last_good_line_is_cut(tmp_path: Path, tail: bytes) -> None:
    """Garbage after the last valid line is removed at the next opening, and the missing lines are written again."""
    whole = await journal_of(tmp_path, RECORDS[:-1])
    first_line = whole[: whole.index(b"\n") + 1]
    for good in (first_line, whole):
        (tmp_path / "transitions.jsonl").write_bytes(good + tail)
        assert await journal_of(tmp_path) == whole


@on_both_backends
async def test_a_file_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    """A deleted transitions.jsonl is written again from the journal with the same bytes."""
    whole = await journal_of(tmp_path, RECORDS)
    (tmp_path / "transitions.jsonl").unlink()
    assert await journal_of(tmp_path) == whole


@on_both_backends
async def test_a_file_ahead_of_the_journal_is_the_witness_of_a_lost_end(tmp_path: Path) -> None:
    """A transitions.jsonl with lines beyond the journal's end is an error with both numbers, and the file is
    unchanged."""
    theirs = await journal_of(tmp_path, RECORDS)
    (tmp_path / "journal.db").unlink()
    with pytest.raises(
        JournalError, match="ends at seq 6, the journal at 0: the journal has lost its end, or the file belongs to"
    ):
        await journal_of(tmp_path)
    assert (tmp_path / "transitions.jsonl").read_bytes() == theirs


@on_both_backends
async def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """A transitions.jsonl without any line of a supervisor is an error, and the file is unchanged."""
    (tmp_path / "transitions.jsonl").write_text("dear diary\n")
    with pytest.raises(JournalError, match=r"transitions\.jsonl holds no line of a supervisor's transitions"):
        await journal_of(tmp_path, RECORDS)
    assert (tmp_path / "transitions.jsonl").read_text() == "dear diary\n"


@on_both_backends
async def test_a_folder_in_the_way_is_an_error_with_its_name(tmp_path: Path) -> None:
    """A folder in place of transitions.jsonl is an error that names the file."""
    (tmp_path / "transitions.jsonl").mkdir()
    with pytest.raises(JournalError, match=r"transitions\.jsonl could not be used \(IsADirectoryError"):
        await journal_of(tmp_path)


@on_both_backends
async def test_a_journal_may_have_no_lines(tmp_path: Path) -> None:
    """A journal opened with ``jsonl=None`` writes no file; a later opening with a path writes all lines."""
    journal = await SqliteJournal.open(tmp_path / "journal.db", jsonl=None)
    await journal.append(appends(RECORDS))
    await journal.close()
    assert not (tmp_path / "transitions.jsonl").exists()
    assert len((await journal_of(tmp_path)).splitlines()) == 3


def test_a_line_that_was_half_written_is_cut_before_the_next(tmp_path: Path) -> None:
    """A line that a full disk has cut is removed before the next line is written."""
    path = tmp_path / "transitions.jsonl"
    log = TransitionLog.open(path, journal_seq=0)
    log.extend([record(1)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        with pytest.raises(OSError, match=os.strerror(27)):
            log.extend([record(2), record(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes().endswith(b'{"timestamp":"2024-0')
    assert log.last_seq == 1
    log.extend([record(2), record(3)])
    log.close()
    assert [msgspec.json.decode(line)["seq"] for line in path.read_bytes().splitlines()] == [1, 2, 3]
