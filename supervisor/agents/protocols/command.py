"""Codec for any program: the program receives the prompt and writes output, and its exit status is the result of the
turn.

A process serves one prompt. The prompt replaces ``{prompt}`` in the command; in a command without ``{prompt}``, the
prompt is written to standard input. The output is meant for people and is never parsed, so that no byte of it is an
error.
"""

from __future__ import annotations

import codecs
import signal
from collections.abc import Sequence
from typing import Final

from supervisor.agents.protocols.codec_base import CodecDefaults, signal_name
from supervisor.ports import CloseInput, Out, Ready, Send, Signal, Text, TurnEnded

PROMPT: Final = "{prompt}"
"""Placeholder in a command that the prompt replaces."""


class CommandCodec(CodecDefaults):
    """Conversation with one run of a program. Call ``argv`` first: this method decides whether the prompt is passed on
    the command line or on standard input."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._prompt_in_argv = False
        self._interrupted = False

    @property
    def one_shot(self) -> bool:
        return True

    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        self._prompt_in_argv = any(PROMPT in word for word in command)
        return tuple(word.replace(PROMPT, prompt) for word in command)

    def start(self, cwd: str, resume_id: str | None = None) -> list[Out]:
        return [Ready()]

    def prompt(self, text: str) -> list[Out]:
        return [CloseInput()] if self._prompt_in_argv else [Send(text.encode()), CloseInput()]

    def interrupt(self) -> list[Out]:
        self._interrupted = True
        return [Signal(signal.SIGINT)]

    def close(self) -> list[Out]:
        return []

    def feed(self, data: bytes) -> list[Out]:
        text = self._decoder.decode(data, final=not data)
        return [Text("message", text)] if text else []

    def exited(self, status: int | None) -> list[Out]:
        return [*self.feed(b""), self._verdict(status)]

    def _verdict(self, status: int | None) -> TurnEnded:
        if self._interrupted:
            return TurnEnded("cancelled")
        if status == 0:
            return TurnEnded("end_turn")
        if status is None:
            return TurnEnded("error", "its exit status is not known: the process that watched over it was lost")
        return TurnEnded("error", f"exit status {status}" if status > 0 else f"ended by signal {signal_name(-status)}")
