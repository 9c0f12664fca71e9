"""Agent port: commands and events of the conversation with an agent, and the codec of its protocol.

A codec is sans-I/O: bytes in, agent events out; commands in, bytes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from supervisor.lifecycles.types import CancelMode, ModelProblem


class Send(msgspec.Struct, frozen=True):
    """Write these bytes to the agent's standard input."""

    data: bytes


class CloseInput(msgspec.Struct, frozen=True):
    """Command to close the agent's standard input."""


class Signal(msgspec.Struct, frozen=True):
    """Send this signal to the agent's main process (agents without an in-band cancel)."""

    number: int


class Ready(msgspec.Struct, frozen=True):
    """The agent can take prompts.

    ``resume_id`` is the agent's own name for the conversation, if it can be loaded again; ``steers``: the agent can be
    sent messages within a turn (:meth:`Codec.steer`).
    """

    resume_id: str | None = None
    info: str = ""
    steers: bool = False


class MessageAccepted(msgspec.Struct, frozen=True):
    """The agent works on the oldest message sent within the turn (:meth:`Codec.steer`) that it had not taken up yet."""


class ConversationNamed(msgspec.Struct, frozen=True):
    """The agent named its conversation after that had begun; by that name it can be loaded again."""

    resume_id: str


class Text(msgspec.Struct, frozen=True):
    """Text that the agent said (``message``), thought (``thought``) or logged (``log``)."""

    kind: str
    text: str


class ToolOpened(msgspec.Struct, frozen=True):
    """The agent began a tool call. ``parent`` is the open call that contains it: a sub-agent of the agent's own is a
    call of kind ``agent``, and the parent of its calls."""

    call_id: str
    title: str
    tool_kind: str = "other"
    parent: str = ""


class ToolClosed(msgspec.Struct, frozen=True):
    """A tool call returned: ``completed``, ``failed``, or ``unknown`` if the agent did not report it. ``asked`` and
    ``answered`` are digests of its arguments and of its result; ``""``: not reported."""

    call_id: str
    outcome: str
    asked: str = ""
    answered: str = ""


class CallNotEnded(msgspec.Struct, frozen=True):
    """The agent did not end a call that ``Codec.end_call`` asked it to end; *why* is the reason."""

    call_id: str
    why: str


class PermissionNeeded(msgspec.Struct, frozen=True):
    """The agent waits for an answer: one of ``options`` (option id, kind: ``allow_once``, ``allow_always``,
    ``reject_once``, ``reject_always``).

    ``tool_kind`` is the kind of the request in ACP's terms, ``tool`` the agent's name for the tool, ``paths`` the files
    that it names, and ``detail`` what a human must see to decide: a command line, a change. Long texts are cut.
    """

    request_id: str
    title: str
    options: tuple[tuple[str, str], ...]
    tool_kind: str = "other"
    tool: str = ""
    detail: str = ""
    paths: tuple[str, ...] = ()


class FileRequested(msgspec.Struct, frozen=True):
    """The agent requests that we write *text* to a file, or read one (``None``); answered by
    ``Codec.file_answered``."""

    request_id: str
    path: str
    text: str | None = None


class TerminalOpened(msgspec.Struct, frozen=True):
    """The agent requests that we run a command for it; ``call_id`` is the tool call that it serves (never empty)."""

    terminal_id: str
    call_id: str
    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str]


class TerminalKilled(msgspec.Struct, frozen=True):
    """The agent requests that we end that command (kill, or release while it runs)."""

    terminal_id: str


class ChildRequested(msgspec.Struct, frozen=True):
    """The agent requests a sub-agent: a child session that works on *prompt*; answered by ``Codec.child_ended``."""

    request_id: str
    name: str
    prompt: str
    agent: str | None
    call_id: str | None
    mode: CancelMode = CancelMode.WAIT_COMPLETED


class Usage(msgspec.Struct, frozen=True):
    """Usage that the agent reports, in its own terms, and the increase over earlier reports.

    ``cached_tokens`` are those of ``input_tokens`` that came from the provider's cache; ``requests`` counts the
    requests to the model that the agent reports: a step that begins is ``Usage({}, requests=1)``.
    """

    used: dict[str, Any]
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    cached_tokens: int = 0
    requests: int = 0


class ModelErrorReported(msgspec.Struct, frozen=True):
    """The agent's model failed or refused, and the agent retries by itself.

    ``status`` is the HTTP status, ``attempt`` the agent's own count of its attempts (from 1; 0: not reported),
    ``retry_s`` the seconds until its next attempt, ``words`` its error text.
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
    """The agent's report on the turn: ``end_turn``, ``cancelled``, ``refusal``, ``max_tokens``, ``max_turns``,
    ``error``.

    The report is a claim: success also needs no open tool call and no error. ``problem``: the turn ended because of its
    model, ``status`` is the provider's HTTP status, if they are reported.
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
    | MessageAccepted
    | Text
    | ToolOpened
    | ToolClosed
    | CallNotEnded
    | PermissionNeeded
    | FileRequested
    | TerminalOpened
    | TerminalKilled
    | ChildRequested
    | Usage
    | Compaction
    | ModelErrorReported
    | TurnEnded
    | Malformed
)
"""All outputs of a codec: bytes for the agent, and events of the agent."""


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server of tools for an agent: a program (``command`` and ``env``), or an address (``url`` and ``headers``) with
    the ``transport`` ``http`` or ``sse``."""

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
    """Conversation with one agent process, without I/O. Every method returns commands and events.

    A codec never raises for what an agent sends: it returns :class:`Malformed`.
    """

    @property
    def one_shot(self) -> bool:
        """Whether the process serves one prompt and exits (the prompt is known at the launch)."""
        ...

    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        """Return the command line of a process whose first prompt is *prompt*.

        *new_id* is a fresh UUID for a new conversation, where the agent lets us choose. *resume_id* is the conversation
        to load, as for :meth:`start`.
        """
        ...

    def start(self, cwd: str, resume_id: str | None = None) -> Iterable[Out]:
        """Begin the conversation of the process, which runs, or load the conversation *resume_id* if the agent can."""
        ...

    def prompt(self, text: str) -> Iterable[Out]: ...

    def steer(self, text: str) -> Iterable[Out] | None:
        """Send *text* to the agent within the running turn; return ``None`` if that is impossible now.

        :class:`MessageAccepted` says that the agent has taken the message up. A message that the agent has not taken
        up when it is interrupted, or when its turn ends, must not be taken up later: it is then sent as a prompt.
        """
        ...

    def interrupt(self) -> Iterable[Out]:
        """Ask the agent to stop what it is doing now, within the protocol."""
        ...

    def end_call(self, call_id: str) -> Iterable[Out] | None:
        """Ask the agent to end this one tool call; its turn goes on.

        Return ``None`` if the agent cannot be asked. A later :class:`CallNotEnded` says that it did not end the call.
        """
        ...

    def close(self) -> Iterable[Out]:
        """Ask the agent to end."""
        ...

    def feed(self, data: bytes) -> Iterable[Out]:
        """Parse *data* of the agent's standard output; ``b""`` is its end."""
        ...

    def exited(self, status: int | None) -> Iterable[Out]:
        """Handle the exit of the main process; all its output has been fed."""
        ...

    def permission(self, request_id: str, option_id: str | None) -> Iterable[Out]:
        """Answer a :class:`PermissionNeeded`; ``None`` is *cancelled*."""
        ...

    def terminal_output(self, terminal_id: str, data: bytes) -> Iterable[Out]: ...

    def terminal_exited(self, terminal_id: str, status: int | None) -> Iterable[Out]:
        """Report that the command of a :class:`TerminalOpened` ended (status in Python's form), or could not start
        (127)."""
        ...

    def file_answered(self, request_id: str, text: str, why: str = "") -> Iterable[Out]:
        """Send the text that a :class:`FileRequested` has read (``""`` for a write), or the reason of the failure
        (*why*)."""
        ...

    def child_ended(self, request_id: str, outcome: str, text: str) -> Iterable[Out]:
        """Report the end of a :class:`ChildRequested`: ``completed``, ``failed`` or ``aborted``."""
        ...
