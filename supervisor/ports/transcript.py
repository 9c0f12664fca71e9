"""Transcript port: the text that the agent of a session wrote, for people."""

from __future__ import annotations

from typing import Protocol


class TranscriptSink(Protocol):
    """Writer of the transcript of a session, for people; never raises."""

    def write(self, source: str, text: str, *, at: float) -> None: ...

    def close(self) -> None: ...
