"""Transcripts: lines made from chunks, the cap on their size, followers, and a full disk."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from supervisor.journal.transcript import CAP_BYTES, OpenTranscripts, Transcript, follow_from

NOON = 12 * 3600.0


def lines_of(path: Path) -> list[str]:
    """Return the lines of the transcript at *path*, without their newlines."""
    text, _ = follow_from(path, 0)
    return text.removesuffix("\n").split("\n") if text else []


def written(folder: Path) -> int:
    """Return the size in bytes of the transcript's files together."""
    return sum(one.stat().st_size for one in folder.iterdir())


def test_a_line_has_its_time_its_source_and_its_text(tmp_path: Path) -> None:
    """Every line of a text is one line of the transcript, with the given time and the source."""
    with Transcript(tmp_path / "transcript.log") as log:
        log.write("agent", "hello\nworld\n", at=NOON + 1.25)
        log.write("stderr", "\n", at=NOON + 2)
    assert lines_of(tmp_path / "transcript.log") == [
        "12:00:01.250 agent| hello",
        "12:00:01.250 agent| world",
        "12:00:02.000 stderr| ",
    ]


def test_chunks_of_one_source_share_a_line_until_it_ends(tmp_path: Path) -> None:
    """Chunks of one source are one line with the time of the first chunk, until a newline, another source or a
    flush."""
    with Transcript(tmp_path / "transcript.log") as log:
        for n, chunk in enumerate(("Hel", "lo ", "you\nthere")):
            log.write("agent", chunk, at=NOON + n)
        log.write("tool", "ran", at=NOON + 5)
        log.write("agent", "done", at=NOON + 6)
        log.flush()
        log.flush()
        log.write("agent", "next", at=NOON + 7)
    assert lines_of(tmp_path / "transcript.log") == [
        "12:00:00.000 agent| Hello you",
        "12:00:02.000 agent| there",
        "12:00:05.000 tool| ran",
        "12:00:06.000 agent| done",
        "12:00:07.000 agent| next",
    ]


def test_nothing_is_made_before_something_is_said(tmp_path: Path) -> None:
    """A transcript without text makes no file and no folder; both are made with the first text."""
    path = tmp_path / "agents" / "main" / "transcript.log"
    with Transcript(path) as log:
        log.flush()
        log.write("agent", "", at=NOON)
        assert list(tmp_path.iterdir()) == []
        log.write("agent", "now", at=NOON)
        assert lines_of(path) == ["12:00:00.000 agent| now"]
    assert lines_of(tmp_path / "never.log") == []


def test_a_transcript_is_continued_on_a_new_line(tmp_path: Path) -> None:
    """Text that is written after a kill in the middle of a line begins on a new line."""
    path = tmp_path / "transcript.log"
    path.write_text("12:00:00.000 agent| I was going to s")
    with Transcript(path) as log:
        log.write("agent", "back", at=NOON)
        log.close()
        log.write("agent", "again", at=NOON)
    assert lines_of(path) == [
        "12:00:00.000 agent| I was going to s",
        "12:00:00.000 agent| back",
        "12:00:00.000 agent| again",
    ]


def test_the_transcript_written_longest_ago_is_closed_for_another(tmp_path: Path) -> None:
    """Of the open transcripts the one written longest ago is closed, not the one opened first; the line of the closed
    one is ended."""
    open_transcripts = OpenTranscripts(2)
    logs = [Transcript(tmp_path / name / "log", open_transcripts=open_transcripts) for name in "abc"]
    for log in (logs[0], logs[1], logs[0], logs[2], logs[0], logs[1]):
        log.write("agent", "x", at=NOON)
    assert [len(lines_of(log.path)) for log in logs] == [1, 2, 1]


def test_what_cannot_be_encoded_is_replaced(tmp_path: Path) -> None:
    """A lone surrogate is written as a question mark; a Unicode line separator does not begin a new line."""
    with Transcript(tmp_path / "transcript.log") as log:
        log.write("agent", "a\udc80b\u2028c\n", at=NOON)
    assert lines_of(tmp_path / "transcript.log") == ["12:00:00.000 agent| a?b\u2028c"]


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("cap", [1024, 4000])
def test_the_cap_keeps_both_ends_and_counts_what_is_missing(tmp_path: Path, cap: int, reopened: bool) -> None:
    """The files never exceed the cap: beginning and end are stored, and a note counts the bytes dropped in between,
    also after reopens."""
    path, whole = tmp_path / "transcript.log", b""
    log = Transcript(path, cap_bytes=cap)
    for n in range(600):
        log.write("agent", f"line number {n} with ünïcödé\n", at=NOON + n)
        whole += f"12:{n // 60:02d}:{n % 60:02d}.000 agent| line number {n} with ünïcödé\n".encode()
        assert written(tmp_path) <= cap
        if reopened:
            log.close()
            log = Transcript(path, cap_bytes=cap)
    log.close()
    text, end = follow_from(path, 0)
    head, note, tail = text.partition("-- ")
    dropped, _, tail = tail.partition(" bytes dropped --\n")
    assert note
    assert end == len(whole)
    assert len(head.encode()) + int(dropped) + len(tail.encode()) == len(whole)
    assert whole.startswith(head.encode())
    assert whole.endswith(tail.encode())
    assert cap // 2 - 60 < len(head.encode()) <= cap // 2
    assert cap // 4 - 60 < len(tail.encode()) <= cap // 2


def test_one_text_larger_than_the_cap_is_capped_too(tmp_path: Path) -> None:
    """A single text larger than the cap is cut between characters, and the files stay within the cap."""
    path = tmp_path / "transcript.log"
    with Transcript(path, cap_bytes=1024) as log:
        log.write("agent", "\U0001f600" * 5000, at=NOON)
        assert written(tmp_path) <= 1024
    text, end = follow_from(path, 0)
    assert end == len("12:00:00.000 agent| ") + 4 * 5000 + 1
    assert "\ufffd" not in text
    assert text.endswith("\U0001f600\n")


def test_a_cap_too_small_to_mean_anything_is_refused(tmp_path: Path) -> None:
    """A cap below 1024 bytes is refused; the default is 8 MiB."""
    with pytest.raises(ValueError, match="cap_bytes: 100 is too small for a transcript; give at least 1024"):
        Transcript(tmp_path / "transcript.log", cap_bytes=100)
    assert CAP_BYTES == 8 * 1024 * 1024


def test_a_follower_sees_every_byte_once(tmp_path: Path) -> None:
    """A follower that reads from the returned offset each time gets every byte once, across the transcript's files."""
    path, seen, offset = tmp_path / "transcript.log", "", 0
    assert follow_from(path, 0) == ("", 0)
    with Transcript(path, cap_bytes=1024) as log:
        for n in range(100):
            log.write("agent", f"line {n}\n", at=NOON)
            more, offset = follow_from(path, offset)
            assert more == f"12:00:00.000 agent| line {n}\n"
            seen += more
        assert follow_from(path, offset) == ("", offset)
    assert seen.count("\n") == 100


def test_a_follower_who_was_away_too_long_is_told(tmp_path: Path) -> None:
    """Text that was dropped between two reads of a follower is reported as one line with the number of bytes."""
    path = tmp_path / "transcript.log"
    with Transcript(path, cap_bytes=1024) as log:
        log.write("agent", "first\n", at=NOON)
        _, offset = follow_from(path, 0)
        for _ in range(100):
            log.write("agent", "x" * 30 + "\n", at=NOON)
        text, end = follow_from(path, offset)
    assert text.count(" bytes dropped --\n") == 1
    line = len("12:00:00.000 agent| ") + 31
    assert end == offset + 100 * line
    assert text.endswith("x\n")


def test_a_character_that_is_still_being_written_is_not_broken(tmp_path: Path) -> None:
    """Half a character at the end of the transcript is not returned before its other half is written."""
    path = tmp_path / "transcript.log"
    path.write_bytes(b"ab\xf0\x9f")
    assert follow_from(path, 0) == ("ab", 2)
    path.write_bytes("ab\U0001f600".encode())
    assert follow_from(path, 2) == ("\U0001f600", 6)


def test_a_disk_that_refuses_fails_no_session_and_the_gap_is_told(tmp_path: Path) -> None:
    """Text that a full disk refuses is counted; when writing is possible again, a line says how many bytes were
    lost."""
    path = tmp_path / "transcript.log"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Transcript(path) as log:
        log.write("agent", "before", at=NOON)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
        try:
            log.write("agent", " lost", at=NOON)
            log.write("agent", "x" * 100, at=NOON)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        lost = len(" lost") + len("12:00:00.000 agent| ") + 100
        log.write("agent", "after", at=NOON)
    assert lines_of(path) == [
        "12:00:00.000 agent| before",
        f"-- up to {lost} bytes lost, the disk refused them --",
        "12:00:00.000 agent| after",
    ]


def test_a_folder_that_cannot_be_made_is_a_loss_not_an_error(tmp_path: Path) -> None:
    """If the transcript's folder cannot be made, no error is raised; a later line says how many bytes were lost."""
    (tmp_path / "agents").write_text("in the way")
    with Transcript(tmp_path / "agents" / "main" / "transcript.log") as log:
        log.write("agent", "hello\n", at=NOON)
        (tmp_path / "agents").unlink()
        log.write("agent", "after\n", at=NOON)
    lost = len("12:00:00.000 agent| hello\n")
    assert lines_of(tmp_path / "agents" / "main" / "transcript.log") == [
        f"-- up to {lost} bytes lost, the disk refused them --",
        "12:00:00.000 agent| after",
    ]
