"""The adapter of an agent that stays, told line by line: what is the same whatever protocol the lines follow.

The first thing that breaks the protocol ends the conversation: it is named, and from then on nothing is read. An agent
that exits has not finished: whether it was ready, and whether a turn was under way, says what its exit is taken for.
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
    """A codec that hears lines, of *line_bytes_max* bytes at most. A protocol of its own says :meth:`_on_line`,
    :attr:`_is_ready` and :attr:`_in_turn`."""

    def __init__(self, line_bytes_max: int) -> None:
        self._lines = LineBuffer(line_bytes_max)
        self._over = False

    @property
    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether it has said what it opens with."""

    @property
    @abstractmethod
    def _in_turn(self) -> bool:
        """Whether a prompt is not answered yet."""

    @abstractmethod
    def _on_line(self, line: str) -> list[Out]:
        """What a line that is not empty says.

        Raises:
            WireError: it breaks the protocol.
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
