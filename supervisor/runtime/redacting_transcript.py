"""What agents say, without the secrets that they say: between them and the transcript that is kept of them."""

from __future__ import annotations

from supervisor.policies.redaction import StreamRedactor
from supervisor.ports import TranscriptSink
from supervisor.runtime.journal_writer import JournalWriter

__all__ = ["RedactingTranscript"]

KEYS_MAX = 16
"""Sources of one session that may each be in the middle of a private key."""


class RedactingTranscript:
    """A transcript without secrets. Whoever speaks next ends what the one before has left open, but for a private key:
    that goes on where its source does."""

    def __init__(self, sink: TranscriptSink, journal_writer: JournalWriter) -> None:
        self._sink, self._journal_writer = sink, journal_writer
        self._source, self._at = "", 0.0
        self._stream = StreamRedactor(journal_writer.redactor)
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
            self._stream = self._in_key.pop(source) if known else StreamRedactor(self._journal_writer.redactor)
        self._at = at
        if clean := self._stream.feed(text):
            self._sink.write(source, clean, at=at)

    def _end(self) -> None:
        if rest := self._stream.end():
            self._sink.write(self._source, rest, at=self._at)

    def close(self) -> None:
        self._end()
        self._sink.close()
