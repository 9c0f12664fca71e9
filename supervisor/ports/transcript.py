"""Transcripts: what the agent of a session said, for people."""

from __future__ import annotations

from typing import Protocol


class TranscriptSink(Protocol):
    """Transcript of a session's agent, for people; never raises."""

    def write(self, source: str, text: str, *, at: float) -> None: ...

    def close(self) -> None: ...
