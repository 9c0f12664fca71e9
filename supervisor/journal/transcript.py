"""Transcript: the output of an agent, as a text log of limited size for people; the journal does not hold it.

Text is written at once: it survives the supervisor's death, and a reader can follow it. Offsets count the whole text
ever written. The beginning of the text is kept in the file itself, its end in two files beside it, each named by the
offset of its first byte; when both are full the older file is removed, and a note in the log gives the number of
missing bytes. A disk error never fails the session: once the file can be written again, a note gives the number of lost
bytes. Times are arguments.
"""

from __future__ import annotations

import codecs
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from supervisor.policies.redaction import Redactor, StreamRedactor
from supervisor.ports import TranscriptSink
from supervisor.ports.secure_files import make_private

CAP_BYTES: Final = 8 * 1024 * 1024
_CAP_LEAST_BYTES: Final = 1_024


class Transcript:
    """The log of one session at *path*, continued if it is there. Lines are ``HH:MM:SS.mmm source| text`` in UTC.

    Args:
        path: the first file; made, with its folder, when the first text is written.
        cap_bytes: how much of the text is kept: the first half of it, and the last quarter to half.
        open_transcripts: the transcripts whose files are open; it closes the oldest when there are too many.
    """

    def __init__(
        self, path: Path, *, cap_bytes: int = CAP_BYTES, open_transcripts: OpenTranscripts | None = None
    ) -> None:
        if cap_bytes < _CAP_LEAST_BYTES:
            raise ValueError(f"cap_bytes: {cap_bytes} is too small for a transcript; give at least {_CAP_LEAST_BYTES}")
        self.path = path
        self._head_bytes = cap_bytes // 2
        self._tail_bytes = cap_bytes // 4
        self._fd: int | None = None
        self._start = self._end = 0  # offsets in the whole text: of the open file, and of what comes next
        self._source: str | None = None  # whose line is open
        self._lost_bytes = 0
        self._open_transcripts = open_transcripts

    def write(self, source: str, text: str, *, at: float) -> None:
        """Append *text* of *source* at Unix time *at*. Texts of one source without a newline between them share a
        line."""
        if text:
            self._add(self._rendered(source, text, at))
            if self._open_transcripts is not None and self._fd is not None:
                self._open_transcripts.used(self)

    def flush(self) -> None:
        """End the open line, so that the next text begins a new line."""
        if self._source is not None:
            self._source = None
            self._add("\n")

    def close(self) -> None:
        """End the open line and close the file; a later write opens the file again."""
        self.flush()
        self._release()
        if self._open_transcripts is not None:
            self._open_transcripts.closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------------- text
    def _rendered(self, source: str, text: str, at: float) -> str:
        prefix = f"{_clock(at)} {source}| "
        *whole, rest = text.split("\n")
        opening = "" if self._source == source else prefix if self._source is None else f"\n{prefix}"
        body = f"\n{prefix}".join([*whole, rest] if rest else whole)
        self._source = source if rest else None
        return f"{opening}{body}" if rest else f"{opening}{body}\n"

    # ---------------------------------------------------------------------------------------------------- file
    def _add(self, text: str) -> None:
        lost = _note(f"up to {self._lost_bytes} bytes lost, the disk refused them") if self._lost_bytes else ""
        try:
            unsure = self._fd is None or lost  # whether the line before is whole
            self._open()
            self._store(("\n" if unsure and self._mid_line() else "") + lost + text)
            self._lost_bytes = 0
        except OSError:  # not logged: a log may lie on the same disk. The transcript gets a note
            self._lost_bytes += len(text.encode(errors="replace"))
            self._source = None

    def _open(self) -> None:
        if self._fd is None:
            self._check_ours()
            if self.path.parent.is_symlink():  # an agent may have put it there, to have the supervisor write elsewhere
                raise OSError(errno.ELOOP, "its folder is a symbolic link", str(self.path.parent))
            make_private(self.path.parent)
            parts = _parts(self.path)
            self._open_part(parts[-1][0] if parts else 0)

    def _open_part(self, start: int) -> None:
        path = _part(self.path, start)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._start, self._end = start, start + os.fstat(self._fd).st_size

    def _mid_line(self) -> bool:
        assert self._fd is not None
        size = self._end - self._start
        return size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def _store(self, text: str) -> None:
        step = self._tail_bytes // 4  # characters, of at most four bytes each: a piece always fits into a file
        for first in range(0, len(text), step):
            data = text[first : first + step].encode(errors="replace")
            if self._end + len(data) > self._start + (self._tail_bytes if self._start else self._head_bytes):
                self._rotate()
            self._put(data)

    def _check_ours(self) -> None:
        if self._open_transcripts is not None and not self._open_transcripts.is_ours():
            raise FileNotFoundError(errno.ENOENT, "its state directory was deleted or replaced", str(self.path))

    def _rotate(self) -> None:
        self._check_ours()
        for _, old in [part for part in _parts(self.path) if part[0]][:-1]:
            old.unlink()
        self._release()
        self._open_part(self._end)

    def _put(self, data: bytes) -> None:
        assert self._fd is not None
        while data:
            done = os.write(self._fd, data)
            self._end += done
            data = data[done:]

    def _release(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


class OpenTranscripts:
    """The transcripts whose files are open, at most *files_max*, in the order of their last writes.

    The limit exists because a session that waits for file descriptors must not hold one for its transcript. *is_ours*
    returns whether files may be opened: not if the state directory belongs to another supervisor by now.
    """

    def __init__(self, files_max: int, is_ours: Callable[[], bool] = lambda: True) -> None:
        self._files_max = files_max
        self.is_ours = is_ours
        self._open: dict[Path, Transcript] = {}

    def used(self, transcript: Transcript) -> None:
        """Record that *transcript* is open and was just written; close the oldest transcripts above the limit."""
        self._open.pop(transcript.path, None)
        self._open[transcript.path] = transcript
        while len(self._open) > self._files_max:
            oldest = self._open.pop(next(iter(self._open)))
            oldest.close()

    def closed(self, transcript: Transcript) -> None:
        """Record that *transcript* was closed."""
        self._open.pop(transcript.path, None)


def follow_from(path: Path, offset: int) -> tuple[str, int]:
    """Return the text of the transcript at *path* from *offset* on, and the offset to pass to the next call.

    Text that was removed is reported in a line of its own; a missing file is an empty transcript.
    """
    text = ""
    for start, part in _parts(path):
        data = _bytes_from(part, max(0, offset - start))
        if data and start > offset:
            text += ("\n" if text and not text.endswith("\n") else "") + _note(f"{start - offset} bytes dropped")
        more, used = codecs.utf_8_decode(data, "replace", False)  # a character that is still being written comes later
        text += more
        offset = max(offset, start) + used if data else offset
    return text, offset


def end_of(path: Path) -> int:
    """Return the offset at which the transcript at *path* ends now, for :func:`follow_from`; 0 for a missing file."""
    ends = [start + part.stat().st_size for start, part in _parts(path)[-1:]]
    return ends[0] if ends else 0


def last_written_at(folder: Path | str, name: str) -> float | None:
    """Return the Unix time at which the transcript *name* in *folder* was last written; ``None`` if there is none."""
    try:
        with os.scandir(folder) as entries:
            parts = [one.path for one in entries if one.name.startswith(name)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    last_at = None
    for part in parts:
        with suppress(FileNotFoundError):  # dropped since we looked
            last_at = max(os.stat(part).st_mtime, last_at or 0.0)
    return last_at


def _bytes_from(part: Path, offset: int) -> bytes:
    try:
        with part.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:  # dropped since we looked
        return b""


def _part(path: Path, start: int) -> Path:
    return path.with_name(f"{path.name}.{start}") if start else path


def _parts(path: Path) -> list[tuple[int, Path]]:
    """Return the files of a transcript, each with the offset of its first byte, in order; none behind a symbolic link,
    since what an agent has linked is not what the agent has written."""
    if path.parent.is_symlink():
        return []
    tails = ((one.name.removeprefix(f"{path.name}."), one) for one in path.parent.glob(f"{path.name}.*"))
    parts = [(int(start), one) for start, one in tails if start.isdigit()]
    return sorted([(0, path), *parts] if path.exists() else parts)


def _note(what: str) -> str:
    return f"-- {what} --\n"


def _clock(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%H:%M:%S.%f")[:-3]


KEYS_MAX = 16
"""Number of sources of one session that may each be in the middle of a private key."""


class RedactingTranscript:
    """Transcript in which secrets are redacted. Text of another source ends the open text of the source before; only a
    private key that has begun continues with the next text of its own source.

    Args:
        redactor: function that returns the current redactor, since a plan that begins may add secrets.
    """

    def __init__(self, sink: TranscriptSink, redactor: Callable[[], Redactor]) -> None:
        self._sink, self._redactor = sink, redactor
        self._source, self._at = "", 0.0
        self._stream = StreamRedactor(redactor())
        self._in_key: dict[str, StreamRedactor] = {}

    def write(self, source: str, text: str, *, at: float) -> None:
        if source != self._source:
            self._end()
            if self._stream.in_key:
                self._in_key[self._source] = self._stream
                while len(self._in_key) > KEYS_MAX:
                    del self._in_key[next(iter(self._in_key))]
            self._source = source
            known = source in self._in_key
            self._stream = self._in_key.pop(source) if known else StreamRedactor(self._redactor())
        self._at = at
        if clean := self._stream.feed(text):
            self._sink.write(source, clean, at=at)

    def _end(self) -> None:
        if rest := self._stream.end():
            self._sink.write(self._source, rest, at=self._at)

    def close(self) -> None:
        self._end()
        self._sink.close()
