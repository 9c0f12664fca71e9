"""Agents: what an agent tells and is told, and the codec of its protocol.

A codec is sans-I/O: bytes in, agent events out; commands in, bytes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from supervisor.lifecycles.types import CancelMode, ModelProblem

__all__ = [
    "AgentOptions",
    "CallNotEnded",
    "ChildAsked",
    "CloseInput",
    "Codec",
    "Compaction",
    "ConversationNamed",
    "FileAsked",
    "Malformed",
    "McpServer",
    "ModelErrorReported",
    "Out",
    "PermissionAsked",
    "Ready",
    "Send",
    "Signal",
    "SteeringAccepted",
    "TerminalKilled",
    "TerminalOpened",
    "Text",
    "ToolClosed",
    "ToolOpened",
    "TurnEnded",
    "Usage",
]


class Send(msgspec.Struct, frozen=True):
    """Write these bytes to the agent's standard input."""

    data: bytes


class CloseInput(msgspec.Struct, frozen=True):
    """End of the agent's standard input."""


class Signal(msgspec.Struct, frozen=True):
    """Send this signal to the agent's main process (agents without an in-band cancel)."""

    number: int


class Ready(msgspec.Struct, frozen=True):
    """The agent can take prompts. ``resume_id`` is its own name for the conversation, where it can be loaded again;
    ``steers``: it can be told something within a turn (:meth:`Codec.steer`)."""

    resume_id: str | None = None
    info: str = ""
    steers: bool = False


class SteeringAccepted(msgspec.Struct, frozen=True):
    """The agent works on what it was told within the turn (:meth:`Codec.steer`): on the oldest that it had not yet."""


class ConversationNamed(msgspec.Struct, frozen=True):
    """The agent says its own name for the conversation, once that is under way: it can be loaded again by that."""

    resume_id: str


class Text(msgspec.Struct, frozen=True):
    """Something the agent said (``message``), thought (``thought``) or logged (``log``)."""

    kind: str
    text: str


class ToolOpened(msgspec.Struct, frozen=True):
    """The agent began a tool call. ``parent`` is the open call that it is made within: a sub-agent of the agent's own
    is a call of kind ``agent``, and its calls have it as their parent."""

    call_id: str
    title: str
    tool_kind: str = "other"
    parent: str = ""


class ToolClosed(msgspec.Struct, frozen=True):
    """A tool call returned: ``completed``, ``failed``, or ``unknown`` where the agent never told. ``asked`` and
    ``answered`` are digests of its arguments and of what came of it; ``""``: not told."""

    call_id: str
    outcome: str
    asked: str = ""
    answered: str = ""


class CallNotEnded(msgspec.Struct, frozen=True):
    """The agent did not end a call that ``Codec.end_call`` asked it to end; *why* says what stood in the way."""

    call_id: str
    why: str


class PermissionAsked(msgspec.Struct, frozen=True):
    """The agent may not go on before it is answered with one of ``options`` (option id, kind: ``allow_once``,
    ``allow_always``, ``reject_once``, ``reject_always``).

    ``tool_kind`` is what it asks for, in the words of ACP, ``tool`` its own name for the tool, ``paths`` the files it
    names, and ``detail`` what a human has to see to judge: a command line, a change. What is too long is cut.
    """

    request_id: str
    title: str
    options: tuple[tuple[str, str], ...]
    tool_kind: str = "other"
    tool: str = ""
    detail: str = ""
    paths: tuple[str, ...] = ()


class FileAsked(msgspec.Struct, frozen=True):
    """The agent asks us to write *text* to a file, or to read one (``None``); answered by ``Codec.file_answered``."""

    request_id: str
    path: str
    text: str | None = None


class TerminalOpened(msgspec.Struct, frozen=True):
    """The agent asks us to run a command for it; ``call_id`` is the tool call it serves (never empty)."""

    terminal_id: str
    call_id: str
    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str]


class TerminalKilled(msgspec.Struct, frozen=True):
    """The agent asks us to end that command (kill, or release while it runs)."""

    terminal_id: str


class ChildAsked(msgspec.Struct, frozen=True):
    """The agent asks for a sub-agent: a child session that works on *prompt*; answered by ``Codec.child_ended``."""

    request_id: str
    name: str
    prompt: str
    agent: str | None
    call_id: str | None
    mode: CancelMode = CancelMode.WAIT_COMPLETED


class Usage(msgspec.Struct, frozen=True):
    """Use that the agent reports: in its own terms, and what the report adds to earlier ones.

    ``cached_tokens`` are those of ``input_tokens`` that came from the provider's cache; ``requests`` counts the
    requests to its model that the agent tells of: a step that begins is ``Usage({}, requests=1)``.
    """

    used: dict[str, Any]
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    cached_tokens: int = 0
    requests: int = 0


class ModelErrorReported(msgspec.Struct, frozen=True):
    """The agent's model failed or turned it away, and the agent tries again by itself.

    ``status`` is that of HTTP, ``attempt`` the agent's own count of its tries (from 1; 0: not told), ``retry_s`` what
    it waits before the next one, ``words`` what it says about it.
    """

    problem: ModelProblem
    status: int | None = None
    attempt: int = 0
    retry_s: float | None = None
    words: str = ""


class Compaction(msgspec.Struct, frozen=True):
    """Context compaction began (``active``) or ended."""

    active: bool
    failed: bool = False


class TurnEnded(msgspec.Struct, frozen=True):
    """The agent's word on the turn: ``end_turn``, ``cancelled``, ``refusal``, ``max_tokens``, ``max_turns``, ``error``.

    It is a claim: success also needs no open tool call and no error. ``problem``: it ended because of its model,
    ``status`` the HTTP status that the provider answered with, where either is told.
    """

    stop: str
    error: str = ""
    problem: ModelProblem | None = None
    status: int | None = None


class Malformed(msgspec.Struct, frozen=True):
    """The agent broke its protocol; *why* names what was wrong. Its turn fails with that reason."""

    why: str


Out = (
    Send
    | CloseInput
    | Signal
    | Ready
    | ConversationNamed
    | SteeringAccepted
    | Text
    | ToolOpened
    | ToolClosed
    | CallNotEnded
    | PermissionAsked
    | FileAsked
    | TerminalOpened
    | TerminalKilled
    | ChildAsked
    | Usage
    | Compaction
    | ModelErrorReported
    | TurnEnded
    | Malformed
)
"""Everything a codec answers with: bytes for the agent, or what the agent told us."""


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server of tools that an agent is to use: a program (``command`` and ``env``), or an address (``url`` and
    ``headers``) that is spoken to over ``transport``, ``http`` or ``sse``."""

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    transport: str = "http"
    headers: dict[str, str] = {}


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that a plan gives an agent beyond its command line, in the agent's terms; empty: the agent's default.

    ``auth`` is the way to log in, ``options`` are settings of the agent by their ids.
    """

    mode: str = ""
    model: str = ""
    auth: str = ""
    options: dict[str, str] = {}
    mcp_servers: tuple[McpServer, ...] = ()


class Codec(Protocol):
    """Conversation with one agent process, without I/O. Every method answers with what to do and what was said.

    A codec never raises for anything an agent sends: it answers :class:`Malformed`.
    """

    @property
    def one_shot(self) -> bool:
        """True if the process serves one prompt and exits (the prompt is known at the launch)."""
        ...

    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        """The command line for a process that will first be given *prompt*.

        *new_id* is a fresh UUID: what a new conversation is to be called, where the agent lets us choose. *resume_id*
        is the conversation that is to be loaded, as for :meth:`start`.
        """
        ...

    def start(self, cwd: str, resume_id: str | None = None) -> Iterable[Out]:
        """The process runs: begin the conversation, or load the one of that name where the agent can."""
        ...

    def prompt(self, text: str) -> Iterable[Out]: ...

    def steer(self, text: str) -> Iterable[Out] | None:
        """Say this to the agent within the turn under way; ``None`` where there is no way to, or not now.

        :class:`SteeringAccepted` says that the agent has taken the message up. A message that the agent has not taken
        up when it is interrupted, or when its turn ends, must not be taken up later: it is then sent as a prompt.
        """
        ...

    def interrupt(self) -> Iterable[Out]:
        """Ask the agent to stop what it is doing now, within the protocol."""
        ...

    def end_call(self, call_id: str) -> Iterable[Out] | None:
        """Ask the agent to end this one tool call; its turn goes on.

        ``None``: it cannot be asked. :class:`CallNotEnded` says later that it did not.
        """
        ...

    def close(self) -> Iterable[Out]:
        """Ask the agent to end."""
        ...

    def feed(self, data: bytes) -> Iterable[Out]:
        """Bytes of the agent's standard output; ``b""`` is its end."""
        ...

    def exited(self, status: int | None) -> Iterable[Out]:
        """The agent's main process ended, all its output has been fed."""
        ...

    def permission(self, request_id: str, option_id: str | None) -> Iterable[Out]:
        """Answer a :class:`PermissionAsked`; ``None`` is *cancelled*."""
        ...

    def terminal_output(self, terminal_id: str, data: bytes) -> Iterable[Out]: ...

    def terminal_exited(self, terminal_id: str, status: int | None) -> Iterable[Out]:
        """The command of a :class:`TerminalOpened` ended (Python's form of status), or could not start (127)."""
        ...

    def file_answered(self, request_id: str, text: str, why: str = "") -> Iterable[Out]:
        """Give the agent the text that a :class:`FileAsked` has read (``""`` for a write), or *why* that failed."""
        ...

    def child_ended(self, request_id: str, outcome: str, text: str) -> Iterable[Out]:
        """The child session of a :class:`ChildAsked` ended: ``completed``, ``failed`` or ``aborted``."""
        ...
