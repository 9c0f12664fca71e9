"""Shared parts of the codecs: texts for an exit status, lines, tool calls, optional methods, and conversations.

Codecs of agents that stay alive and send one message per line (ACP, Claude Code, codex) derive from
:class:`Conversation`. The process connection passes every chunk of the agent's standard output to
:meth:`Conversation.feed`, which splits the chunks into lines and passes each line to the protocol's
:meth:`Conversation._on_line`. The codec returns values of :mod:`supervisor.ports` (``Out``) and performs nothing
itself.

A line that is no message of the protocol (a banner, a warning of another program, half a line) costs nobody the work:
``feed`` returns a ``StrayLine`` for it, and the conversation goes on. The conversation ends, with one ``Malformed``
that names the fault, at ``STRAY_LINES_MAX`` such lines in a row, since such a program does not speak the protocol, and
at a message without which it cannot go on: a reply to a request of ours that cannot be read. Later input is ignored.

Some agents send the last words of a turn, or the end of a call, after they have reported the turn's end. So a turn that
has said nothing yet, or has a call open, is not over with the report: ``feed`` returns ``TurnEnding``, messages still
belong to the turn, and :meth:`Conversation.settled` ends the turn.

When the agent's process exits, the state of the protocol decides the result: ``Malformed`` before the handshake is
done, a failed turn while a prompt is unanswered, and nothing otherwise. An exit status never counts as success.
"""

from __future__ import annotations

import hashlib
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from supervisor.agents.protocols.json_rpc import (
    ConfigurationRefused,
    ConversationInUse,
    NoMessage,
    ProtocolError,
    shortened,
)
from supervisor.ports import Malformed, Out, StrayLine, ToolClosed, ToolOpened, TurnEnded, TurnEnding
from supervisor.ports.input_limits import STRAY_CHARS_MAX, STRAY_LINES_MAX, LineBuffer
from supervisor.ports.json_text import decodable

COST_MAX: Final = 1e9
"""Largest cost of a conversation, in US dollars, that is accepted from an agent."""

CLOSED_MAX = 20_000
"""Number of closed calls whose ids are stored, so that a late message about a closed call does not open the call again:
twice the number of calls that a turn may make."""


def signal_name(number: int) -> str:
    """Return the name of a signal: ``SIGKILL`` for 9, and ``SIG35`` where this platform has no name for the number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def exit_words(status: int | None) -> str:
    """Return a phrase about the end of a process, to be put after its name: ``exited with status 3``, ``was ended by
    SIGKILL``.

    *status* has Python's form: a negative number is the signal that ended the process; ``None`` is an unknown status.
    """
    if status is None:
        return "ended, and its exit status is not known"
    if status < 0:
        return f"was ended by {signal_name(-status)}"
    return f"exited with status {status}"


class _CallDigests:
    """Digests of a call's arguments and result."""

    __slots__ = ("answered", "asked", "is_empty", "output_digest")

    def __init__(self) -> None:
        self.asked = self.answered = ""
        self.is_empty = False
        """Whether the agent reported an empty result."""
        self.output_digest: hashlib.blake2b | None = None
        """Digest of the output and the exit status of the command that the supervisor ran for the call."""

    @property
    def result(self) -> str:
        return self.answered + (self.output_digest.hexdigest() if self.output_digest is not None else "")


_NOTHING = _CallDigests()


class ToolCallTable:
    """Tool calls of one agent: each call is opened once and closed once, however often the agent repeats its reports.

    A call belongs to the turn in which it was opened. Digests of the call's arguments and result are stored: of the
    arguments and the result that the agent reported last, and of everything that a command run by the supervisor wrote
    for the call.
    """

    def __init__(self) -> None:
        self._served: dict[str, bool] = {}
        """Open calls, and whether a command run by the supervisor serves the call."""
        self._digests: dict[str, _CallDigests] = {}
        self._closed: dict[str, None] = {}
        self._only_requested: dict[str, None] = {}

    def open_requested(self, call_id: str, title: str, kind: str, parent: str = "") -> list[ToolOpened]:
        """Record a permission request for *call_id*; the request opens the call unless the call is known."""
        opened = self.open(call_id, title, kind, parent)
        self._only_requested.update(dict.fromkeys(one.call_id for one in opened))
        return opened

    def open(self, call_id: str, title: str, kind: str, parent: str = "") -> list[ToolOpened]:
        """Open *call_id* unless the call is known; *parent* is the enclosing call, which is ignored unless that call is
        open."""
        self._only_requested.pop(call_id, None)
        if call_id in self._served or call_id in self._closed:
            return []
        self._served[call_id] = False
        return [ToolOpened(call_id, title, kind, parent if parent in self._served else "")]

    def close(self, call_id: str, outcome: str) -> list[ToolClosed]:
        """Close *call_id* with *outcome*; a second close has no effect."""
        if self._served.pop(call_id, None) is None:
            return []
        digests = self._digests.get(call_id, _NOTHING)
        result = digests.result or (_digest(b"") if digests.is_empty and outcome == "completed" else "")
        self._close(call_id)
        return [ToolClosed(call_id, outcome, digests.asked, result)]

    def record_digests(self, call_id: str, *, asked: bytes = b"", answered: bytes = b"") -> None:
        """Record digests of the arguments or the result that the agent reports for an open call."""
        if call_id in self._served and (asked or answered):
            digests = self._digests.setdefault(call_id, _CallDigests())
            digests.asked = _digest(asked) if asked else digests.asked
            digests.answered = _digest(answered) if answered else digests.answered

    def record_empty_result(self, call_id: str) -> None:
        """Record that the agent reports an empty result for an open call. It counts if the call completes without
        another result."""
        if call_id in self._served:
            self._digests.setdefault(call_id, _CallDigests()).is_empty = True

    def add_output(self, call_id: str, data: bytes) -> None:
        """Add output or an exit status, as bytes, of the command that the supervisor runs for an open call."""
        if call_id in self._served:
            digests = self._digests.setdefault(call_id, _CallDigests())
            digests.output_digest = digests.output_digest or hashlib.blake2b(digest_size=8)
            digests.output_digest.update(data)

    def close_unreported(self) -> list[ToolClosed]:
        """Close, at the end of a turn, the calls of which only a permission request was seen; their outcome is
        unknown."""
        return [one for call_id in list(self._only_requested) for one in self.close(call_id, "unknown")]

    def close_all(self, outcome: str) -> list[ToolClosed]:
        """Close all open calls with *outcome*, oldest first."""
        return [one for call_id in list(self._served) for one in self.close(call_id, outcome)]

    def begin_turn(self) -> None:
        """Begin a new turn: calls that the previous turn left open count as closed."""
        for call_id in self._served:
            self._close(call_id)
        self._served.clear()

    def _close(self, call_id: str) -> None:
        self._digests.pop(call_id, None)
        self._only_requested.pop(call_id, None)
        self._closed[call_id] = None
        if len(self._closed) > CLOSED_MAX:
            del self._closed[next(iter(self._closed))]

    def is_open(self, call_id: str | None) -> bool:
        return call_id in self._served

    def __bool__(self) -> bool:
        """Return whether any call is open."""
        return bool(self._served)

    def serve(self, wanted: str | None) -> str | None:
        """Return the call that a new command serves: *wanted*, if that call is open; otherwise the only open call that
        no command serves yet; otherwise ``None``."""
        unserved = [call_id for call_id, served in self._served.items() if not served]
        call_id = wanted if wanted in self._served else unserved[0] if len(unserved) == 1 else None
        if call_id is not None:
            self._served[call_id] = True
        return call_id


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class StrayLines:
    """Lines of one agent, since its last message, that are no messages of its protocol: their number, and the last
    one."""

    def __init__(self) -> None:
        self._count = 0
        self._last = ""

    @property
    def are_too_many(self) -> bool:
        return self._count > STRAY_LINES_MAX

    @property
    def words(self) -> str:
        """Words about the last line, to be put after the reason of a failure; ``""`` if the last line was a message."""
        return f"; its last line was no message: {self._last}" if self._count else ""

    def add(self, stray: StrayLine) -> list[Out]:
        """Count *stray*; return the line, and the end of the conversation if there are too many such lines now."""
        self._count += 1
        self._last = repr(shortened(stray.line, STRAY_CHARS_MAX))
        if not self.are_too_many:
            return [stray]
        why = f"the agent wrote {self._count} lines in a row that are no messages of its protocol"
        return [stray, Malformed(f"{why}, the last one: {self._last}; check the agent's command and adapter")]

    def clear(self) -> None:
        """Begin to count anew, because of a message."""
        self._count = 0


class CodecDefaults:
    """Defaults for the optional methods of :class:`supervisor.ports.Codec`: every method does nothing and returns
    nothing.

    Most agents run their own commands, edit their own files and start their own sub-agents, and so never send the
    supervisor such requests. Some agents cannot receive a message within a turn.
    """

    def settled(self) -> Iterable[Out]:
        return []

    def compact_and_prompt(self, text: str) -> Iterable[Out] | None:
        return None

    def steer(self, text: str) -> Iterable[Out] | None:
        return None

    def end_call(self, call_id: str) -> Iterable[Out] | None:
        return None

    def permission(self, request_id: str, option_id: str | None) -> Iterable[Out]:
        return []

    def terminal_output(self, terminal_id: str, data: bytes) -> Iterable[Out]:
        return []

    def terminal_exited(self, terminal_id: str, status: int | None) -> Iterable[Out]:
        return []

    def file_answered(self, request_id: str, text: str, why: str = "") -> Iterable[Out]:
        return []

    def child_ended(self, request_id: str, outcome: str, text: str) -> Iterable[Out]:
        return []


class Conversation(CodecDefaults, ABC):
    """Base of codecs for agents that stay alive and send one message per line, of at most *line_bytes_max* bytes.

    A subclass implements :meth:`_on_line`, :meth:`_turn_over`, :attr:`_is_ready` and :attr:`_in_turn`.
    """

    def __init__(self, line_bytes_max: int) -> None:
        self._lines = LineBuffer(line_bytes_max)
        self._over = False
        self._strays = StrayLines()
        self._ending: TurnEnded | None = None
        """End of the turn as the agent reported it, while late messages of the turn are waited for."""

    @property
    @abstractmethod
    def _is_ready(self) -> bool:
        """True once the handshake with the agent is complete."""

    @property
    @abstractmethod
    def _in_turn(self) -> bool:
        """True while a prompt is unanswered."""

    @abstractmethod
    def _on_line(self, line: str) -> list[Out]:
        """Handle one line that is not empty.

        Raises:
            NoMessage: the line is no message of the protocol, or a notification that cannot be read.
            ProtocolError: the line breaks the protocol, so that the conversation cannot go on.
        """

    @abstractmethod
    def _turn_over(self, ended: TurnEnded) -> list[Out]:
        """End the turn: return what is left of the turn, and *ended*."""

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
            outs += self._strays.add(line) if isinstance(line, StrayLine) else self._read_line(line)
            self._over = self._over or self._strays.are_too_many
            if self._over:
                break
        return outs

    def _read_line(self, line: str) -> list[Out]:
        if not line.strip():
            return []
        try:
            outs = self._on_line(decodable(line))
        except NoMessage as error:
            return self._strays.add(StrayLine(line, str(error)))
        except ProtocolError as error:
            self._over = True
            permanent, held = isinstance(error, ConfigurationRefused), isinstance(error, ConversationInUse)
            return [Malformed(str(error), permanent=permanent, held=held)]
        self._strays.clear()
        return outs

    def exited(self, status: int | None) -> list[Out]:
        if self._over:
            return []
        self._over = True
        if self._ending is not None:
            return self._turn_over(self._ending)
        stray = self._strays.words
        if not self._is_ready:
            return [Malformed(f"the agent {exit_words(status)} before it was ready{stray}")]
        if self._in_turn:
            return [TurnEnded("error", f"the agent {exit_words(status)} in the middle of a turn{stray}")]
        return []

    # ------------------------------------------------------------------------------------------ the end of a turn
    def _end_reported(self, ended: TurnEnded, *, is_complete: bool) -> list[Out]:
        """End the turn, because the agent has reported its end. A success that is not complete, since nothing was said
        or a call is open, waits for late messages first."""
        if ended.stop != "end_turn" or is_complete:
            self._ending = None
            return self._turn_over(ended)
        self._ending = ended
        return [TurnEnding()]

    def settled(self) -> list[Out]:
        ended, self._ending = self._ending, None
        return [] if ended is None or self._over else self._turn_over(ended)

    def _cut_ending(self, *, has_open_calls: bool) -> list[Out]:
        """End a turn whose end the agent has reported, because it is interrupted: no request can stop anything now.
        Calls that are open are cut off."""
        if has_open_calls:
            self._ending = TurnEnded("cancelled")
        return self.settled()
