"""Agent port: commands and events of the conversation with an agent, and the codec of its protocol.

A codec is sans-I/O: bytes in, agent events out; commands in, bytes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from supervisor.lifecycles.types import CancelMode, ModelProblem, RecordId, Verdict
from supervisor.policies.context_window import ContextUse


class Send(msgspec.Struct, frozen=True):
    """Command to write these bytes to the agent's standard input."""

    data: bytes


class CloseInput(msgspec.Struct, frozen=True):
    """Command to close the agent's standard input."""


class Signal(msgspec.Struct, frozen=True):
    """Command to send this signal to the agent's main process (for agents without a cancel in their protocol)."""

    number: int


class Ready(msgspec.Struct, frozen=True):
    """Event: the agent can take prompts.

    ``resume_id`` is the agent's own name for the conversation, if it can be loaded again; ``steers``: the agent can be
    sent messages within a turn (:meth:`Codec.steer`).
    """

    resume_id: str | None = None
    info: str = ""
    steers: bool = False


class MessageAccepted(msgspec.Struct, frozen=True):
    """Event: the agent works on the oldest message sent within the turn (:meth:`Codec.steer`) that it had not taken up
    yet."""


class ConversationNamed(msgspec.Struct, frozen=True):
    """Event: the agent named its conversation after the conversation had begun; by that name the conversation can be
    loaded again."""

    resume_id: str


class Text(msgspec.Struct, frozen=True):
    """Event: the agent wrote text: a message to the user (``message``), a thought (``thought``) or a log line
    (``log``)."""

    kind: str
    text: str


class ToolOpened(msgspec.Struct, frozen=True):
    """Event: the agent began a tool call. ``parent`` is the open call that contains it: a sub-agent that the agent runs
    by itself is a call of kind ``agent``, and the parent of the sub-agent's calls."""

    call_id: str
    title: str
    tool_kind: str = "other"
    parent: str = ""


class ToolClosed(msgspec.Struct, frozen=True):
    """Event: a tool call returned, with the outcome ``completed``, ``failed``, or ``unknown`` if the agent did not
    report it. ``asked`` and ``answered`` are digests of the call's arguments and of its result; ``""``: not
    reported."""

    call_id: str
    outcome: str
    asked: str = ""
    answered: str = ""


class CallNotEnded(msgspec.Struct, frozen=True):
    """Event: the agent did not end a call that ``Codec.end_call`` requested it to end; *why* is the reason."""

    call_id: str
    why: str


class PermissionNeeded(msgspec.Struct, frozen=True):
    """Event: the agent requests a permission and waits for the answer: one of ``options`` (option id, kind:
    ``allow_once``, ``allow_always``, ``reject_once``, ``reject_always``).

    ``tool_kind`` is the kind of the request in ACP's terms, ``tool`` the agent's name for the tool, ``paths`` the files
    that the request names, and ``detail`` what a human must see to decide: a command line, a change. Long texts are
    cut.
    """

    request_id: str
    title: str
    options: tuple[tuple[str, str], ...]
    tool_kind: str = "other"
    tool: str = ""
    detail: str = ""
    paths: tuple[str, ...] = ()


class RequestRefused(msgspec.Struct, frozen=True):
    """Event: a request of the agent was answered with an error and not considered, because it breaks the protocol;
    ``what`` is the kind of the request, *why* the reason."""

    what: str
    why: str


class FileRequested(msgspec.Struct, frozen=True):
    """Event: the agent requests that the supervisor writes *text* to a file, or reads the file (``None``); the reply is
    sent by ``Codec.file_answered``."""

    request_id: str
    path: str
    text: str | None = None


class TerminalOpened(msgspec.Struct, frozen=True):
    """Event: the agent requests that the supervisor runs a command for it; ``call_id`` is the tool call that the
    command serves (never empty)."""

    terminal_id: str
    call_id: str
    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str]


class TerminalKilled(msgspec.Struct, frozen=True):
    """Event: the agent requests that the supervisor ends such a command (kill, or release while it runs)."""

    terminal_id: str


class ChildRequested(msgspec.Struct, frozen=True):
    """Event: the agent requests a sub-agent: a child session that works on *prompt*; the reply is sent by
    ``Codec.child_ended``."""

    request_id: str
    name: str
    prompt: str
    agent: str | None
    call_id: str | None
    mode: CancelMode = CancelMode.WAIT_COMPLETED


class Usage(msgspec.Struct, frozen=True):
    """Event: the agent reports its usage, in its own terms (``used``); the other fields are the increase over earlier
    reports.

    ``cached_tokens`` are the part of ``input_tokens`` that came from the provider's cache; ``requests`` counts the
    requests to the model that the agent reports: a step that begins is ``Usage({}, requests=1)``.

    ``context`` says how full the context is; ``None``: the report does not say.

    With ``total_of`` the tokens and the cost are not an increase but the totals of a whole conversation, which may have
    begun in an earlier process: of the conversation with that id, or with ``THIS_CONVERSATION`` of the one that the
    agent is in. A measure that is 0 is not reported. ``requests`` is an increase all the same.
    """

    used: dict[str, Any]
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    cached_tokens: int = 0
    requests: int = 0
    total_of: str | None = None
    context: ContextUse | None = None


THIS_CONVERSATION: Final = ""
"""Value of ``Usage.total_of`` for the conversation that the agent is in, under whatever id."""


class ModelErrorReported(msgspec.Struct, frozen=True):
    """Event: the agent's model failed or refused, and the agent retries by itself.

    ``status`` is the HTTP status, ``attempt`` the agent's own count of its attempts (from 1; 0: not reported),
    ``retry_s`` the seconds until its next attempt, ``words`` its error text.
    """

    problem: ModelProblem
    status: int | None = None
    attempt: int = 0
    retry_s: float | None = None
    words: str = ""


class Compaction(msgspec.Struct, frozen=True):
    """Event: the agent began to compact its context (``active``), or ended that. ``failed``: the context is not
    compacted; ``goes_on``: the agent works on without that, otherwise its turn has failed."""

    active: bool
    failed: bool = False
    goes_on: bool = False


class TurnEnding(msgspec.Struct, frozen=True):
    """Event: the agent reported the end of its turn, but what belongs to the turn may still come.

    An agent that stays alive has written nothing yet, or has a call open: its last words, or the end of the call, may
    follow the report. A program that serves one prompt has not exited yet.
    """


class TurnEnded(msgspec.Struct, frozen=True):
    """Event: the agent reports the end of its turn (``stop``): ``end_turn``, ``cancelled``, ``refusal``,
    ``max_tokens``, ``max_turns``, ``error``.

    The report is a claim: success also needs no open tool call and no error. ``problem`` is the model problem that
    ended the turn, ``status`` the provider's HTTP status, if reported.
    """

    stop: str
    error: str = ""
    problem: ModelProblem | None = None
    status: int | None = None


class StrayLine(msgspec.Struct, frozen=True):
    """Event: the agent wrote a line that is no message of its protocol, or a notification that cannot be read; *why*
    names the fault. The conversation goes on without the line."""

    line: str
    why: str


class Malformed(msgspec.Struct, frozen=True):
    """Event: the agent broke its protocol; *why* names the error. The agent's turn fails with that reason.
    ``permanent``: another launch with the same configuration fails in the same way. ``held``: the conversation that was
    to be loaded is in use by another process; the next launch tries to load it again."""

    why: str
    permanent: bool = False
    held: bool = False


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
    | RequestRefused
    | FileRequested
    | TerminalOpened
    | TerminalKilled
    | ChildRequested
    | Usage
    | Compaction
    | ModelErrorReported
    | TurnEnding
    | TurnEnded
    | StrayLine
    | Malformed
)
"""All outputs of a codec: bytes for the agent, and events of the agent."""


class Outcome(NamedTuple):
    """Outcome of a request: ``completed``, ``failed`` or ``aborted``. ``seq`` is the number of the record that decided
    the outcome, ``how`` the verdict of the request's last turn, and ``exception`` the exception that the function of an
    in-process agent raised in that turn; a later supervisor does not have it."""

    outcome: str
    error: str
    text: str
    seq: RecordId | None = None
    how: Verdict | None = None
    exception: BaseException | None = None


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server, which offers tools to an agent: a program (``command`` and ``env``), or an address (``url`` and
    ``headers``) with the ``transport`` ``http`` or ``sse``."""

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    transport: str = "http"
    headers: dict[str, str] = {}


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that a plan gives an agent beyond its command line, in the agent's terms; an empty value is the agent's
    default.

    ``auth`` is the way to log in, ``options`` are settings of the agent by their ids. ``guarded``: the plan denies the
    agent something or lets a person decide, so that an agent that acts without asking must be given no prompt; a codec
    checks this in the agent's own answers. ``started`` is the name in the catalogue of the agent that the command line
    starts, as far as the command line shows it.
    """

    guarded: bool = False
    started: str = ""
    mode: str = ""
    model: str = ""
    auth: str = ""
    options: dict[str, str] = {}
    mcp_servers: tuple[McpServer, ...] = ()


class Codec(Protocol):
    """Encoder and decoder of the conversation with one agent process, without I/O. Every method returns commands and
    events.

    A codec never raises for the output of an agent, however wrong: it returns :class:`Malformed`.
    """

    @property
    def one_shot(self) -> bool:
        """Whether the process serves one prompt and exits (the prompt is known at the launch)."""
        ...

    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        """Return the command line of a process whose first prompt is *prompt*.

        *new_id* is a fresh UUID for a new conversation, where the agent lets the supervisor choose the id. *resume_id*
        is the conversation to load, as for :meth:`start`.
        """
        ...

    def start(self, cwd: str, resume_id: str | None = None) -> Iterable[Out]:
        """Begin the conversation of the process, which runs already, or load the conversation *resume_id* if the agent
        can."""
        ...

    def prompt(self, text: str) -> Iterable[Out]: ...

    def compact_and_prompt(self, text: str) -> Iterable[Out] | None:
        """Have the agent compact its context, and prompt it with *text* when that is over; return ``None`` if the agent
        cannot compact on request. Both are one turn; :class:`Compaction` reports the beginning and the end."""
        ...

    def steer(self, text: str) -> Iterable[Out] | None:
        """Send *text* to the agent within the running turn; return ``None`` if that is impossible now.

        :class:`MessageAccepted` reports that the agent has taken the message up. A message that the agent has not taken
        up when it is interrupted, or when its turn ends, must not be taken up later: the message is then sent as a
        prompt.
        """
        ...

    def settled(self) -> Iterable[Out]:
        """End the turn whose end was reported (:class:`TurnEnding`): the agent has been silent since, or has had its
        time. Without such a turn, return nothing."""
        ...

    def interrupt(self) -> Iterable[Out]:
        """Send the agent the request, in its protocol, to stop what it is doing now."""
        ...

    def end_call(self, call_id: str) -> Iterable[Out] | None:
        """Request that the agent ends this one tool call; its turn goes on.

        Return ``None`` if the protocol has no such request. A later :class:`CallNotEnded` reports that the agent did
        not end the call.
        """
        ...

    def close(self) -> Iterable[Out]:
        """Request that the agent ends."""
        ...

    def feed(self, data: bytes) -> Iterable[Out]:
        """Parse *data* of the agent's standard output; ``b""`` stands for the end of that output."""
        ...

    def exited(self, status: int | None) -> Iterable[Out]:
        """Handle the exit of the main process; all its output has been passed to :meth:`feed` before."""
        ...

    def permission(self, request_id: str, option_id: str | None) -> Iterable[Out]:
        """Answer a :class:`PermissionNeeded` with one of the agent's options; ``None`` is *cancelled*."""
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
