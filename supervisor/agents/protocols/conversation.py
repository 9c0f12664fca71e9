"""Base class of the codecs for agents that stay alive and send one message per line (ACP, Claude Code, codex).

Theory of operation: the process connection passes every chunk of the agent's standard output to
:meth:`Conversation.feed`, which splits the chunks into lines and passes each line to the protocol's
:meth:`Conversation._on_line`. The codec returns values of :mod:`supervisor.ports` (``Out``) and performs nothing
itself.

The conversation ends at the first message that breaks the protocol: ``feed`` returns one ``Malformed`` that names the
fault, and later input is ignored. When the agent's process exits, the state of the protocol decides the result:
``Malformed`` before the handshake is done, a failed turn while a prompt is unanswered, and nothing otherwise. An exit
status never counts as success.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from supervisor.agents.protocols.codec_defaults import CodecDefaults
from supervisor.agents.protocols.exit_status import exit_words
from supervisor.agents.protocols.framing import LineBuffer
from supervisor.agents.protocols.json_rpc import ProtocolError
from supervisor.ports import Malformed, Out, TurnEnded

__all__ = ["Conversation"]


class Conversation(CodecDefaults, ABC):
    """Line protocol with a limit of *line_bytes_max* bytes per line.

    A subclass implements :meth:`_on_line`, :attr:`_is_ready` and :attr:`_in_turn`.
    """

    def __init__(self, line_bytes_max: int) -> None:
        self._lines = LineBuffer(line_bytes_max)
        self._over = False

    @property
    @abstractmethod
    def _is_ready(self) -> bool:
        """True once the handshake is complete."""

    @property
    @abstractmethod
    def _in_turn(self) -> bool:
        """True while a prompt is unanswered."""

    @abstractmethod
    def _on_line(self, line: str) -> list[Out]:
        """Handle one line that is not empty.

        Raises:
            ProtocolError: the line breaks the protocol.
        """

    @property
    def one_shot(self) -> bool:
        return False

    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        return tuple(command)

    def feed(self, data: bytes) -> list[Out]:
        outs: list[Out] = []
        if self._over:
            return outs
        for line in self._lines.feed(data) if data else self._lines.end():
            outs += self._end(line.why) if isinstance(line, Malformed) else self._line(line)
            if self._over:
                break
        return outs

    def exited(self, status: int | None) -> list[Out]:
        if self._over:
            return []
        self._over = True
        half = ", after half a message" if self._lines.unfinished else ""
        if not self._is_ready:
            return [Malformed(f"the agent {exit_words(status)} before it was ready{half}")]
        if self._in_turn:
            return [TurnEnded("error", f"the agent {exit_words(status)} in the middle of a turn{half}")]
        return []

    def _line(self, line: str) -> list[Out]:
        if not line.strip():
            return []
        try:
            return self._on_line(line)
        except ProtocolError as error:
            return self._end(str(error))

    def _end(self, why: str) -> list[Out]:
        self._over = True
        return [Malformed(why)]
