"""Codec for codex: ``codex app-server``, threads and turns on standard input and output.

The supervisor is the client: one thread, one turn at a time. codex runs its commands itself, and leaves commands
running when a turn is interrupted, or when a turn ends without waiting for them. The codec therefore reports the end of
a turn only when codex has ended the commands that the turn left running (``_settle``). Unknown messages are ignored; a
line that is no message costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Raw

from supervisor.agents.protocols.codec_base import Conversation
from supervisor.agents.protocols.codex import messages
from supervisor.agents.protocols.codex.approvals import (
    GUARDED,
    KINDS,
    CodexApprovalRequests,
    PendingApproval,
    check_asking,
)
from supervisor.agents.protocols.codex.calls import (
    AGENT,
    AGENT_MESSAGE,
    COMMAND,
    COMPACTION,
    USER_MESSAGE,
    CodexToolCalls,
    call_of,
)
from supervisor.agents.protocols.codex.updates import CodexUsageMeter, Problem, problem_of
from supervisor.agents.protocols.json_rpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    JsonRpcMessage,
    Message,
    OnResult,
    OutgoingRequests,
    ProtocolError,
    RpcError,
    RpcId,
    check_not_held,
    id_in_use,
    read,
)
from supervisor.lifecycles.types import ModelProblem
from supervisor.ports import (
    AgentOptions,
    CallNotEnded,
    CloseInput,
    Compaction,
    MessageAccepted,
    ModelErrorReported,
    Out,
    Ready,
    Send,
    Text,
    TurnEnded,
)
from supervisor.ports.input_limits import LINE_BYTES_MAX

_HELLO: Final = {
    "clientInfo": {"name": "supervisor-runtime", "title": "supervisor-runtime", "version": "0.1.0"},
    "capabilities": {"experimentalApi": True},
}
"""Parameters of ``initialize``. Without ``experimentalApi`` the client cannot end the commands that codex leaves
running."""

_TURN_COMPLETED: Final = "turn/completed"

_NOTHING_GIVEN: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {"item/tool/requestUserInput": {"answers": {}}, "mcpServer/elicitation/request": {"action": "decline"}}
)
"""Results for requests of codex that ask a person for input: no person is present, and the results report this."""


_NO_OPTIONS: Final = AgentOptions()


class CodexCodec(Conversation):
    """Conversation with one codex process: one thread, one prompt at a time.

    ``prompt`` raises RuntimeError before :class:`Ready` and during a turn; ``steer`` sends a message within the turn.
    """

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX, agent_options: AgentOptions = _NO_OPTIONS) -> None:
        super().__init__(line_bytes_max)
        self._guarded = agent_options.guarded
        self._requests = OutgoingRequests(messages.JSON_RPC)
        self._thread: str | None = None
        self._turn: str | None = None
        """Id that codex gave the current turn; ``None`` until codex has reported the id."""
        self._prompted = self._cancelling = self._settling = self._has_called = False
        self._calls = CodexToolCalls()
        self._approvals = CodexApprovalRequests()
        self._meter = CodexUsageMeter()
        self._compacting: dict[str, None] = {}
        self._streamed: dict[str, None] = {}
        """Messages of this turn whose text codex reported piece by piece."""
        self._unread = 0
        """Number of messages that were sent within the turn and that the agent has not yet begun to process."""
        self._prompt_taken_up = False
        """True once the agent has begun to process the prompt."""
        self._failures = 0
        self._problem = Problem(None)
        """``_failures``: number of failed model requests in this turn. ``_problem``: the problem of the last failed
        request."""

    # ------------------------------------------------------------------------------------------ our requests
    def start(self, cwd: str, resume_id: str | None = None) -> list[Out]:
        return [self._ask("initialize", _HELLO, lambda result: self._on_initialized(result, cwd, resume_id))]

    def prompt(self, text: str) -> list[Out]:
        if self._over:
            return []
        if self._thread is None or self._prompted:
            raise RuntimeError(f"codex: prompt {'during a turn' if self._prompted else 'before the thread is open'}")
        self._begin_turn()
        params = {"threadId": self._thread, "input": _text_input(text)}
        return [self._ask("turn/start", params, self._turn_answered, self._turn_refused)]

    def steer(self, text: str) -> list[Out] | None:
        if self._over or self._turn is None or self._cancelling or self._settling or self._ending is not None:
            return None
        self._unread += 1
        params = {"threadId": self._thread, "expectedTurnId": self._turn, "input": _text_input(text)}
        return [self._ask("turn/steer", params, _nothing, _not_steered)]

    def interrupt(self) -> list[Out]:
        if self._ending is not None:
            return self._cut_ending(has_open_calls=bool(self._calls))
        if self._over or not self._prompted or self._settling:
            return []
        self._cancelling = True
        unanswered = [self._grant(one, None) for one in self._approvals.take_all()]
        return [*self._interrupted(self._turn), *unanswered]

    def end_call(self, call_id: str) -> list[Out] | None:
        call = self._calls.running(call_id)
        if self._over or call is None:
            return None
        if (pending := self._approvals.take_of(call_id)) is not None:
            return [self._grant(pending, "decline")]
        if call.type == AGENT:
            return self._end_agent(call.thread, call.turn)
        return [self._find_terminal(call_id, call.thread)] if call.type == COMMAND else None

    def close(self) -> list[Out]:
        return [CloseInput()]

    # ------------------------------------------------------------------------------------------ answers to the agent
    def permission(self, request_id: str, option_id: str | None) -> list[Out]:
        """Answer an approval request once; an answer to a request that needs no answer any more is ignored.

        Raises:
            ValueError: *option_id* was not offered.
        """
        pending = None if self._over else self._approvals.take(request_id, option_id)
        return [self._grant(pending, option_id)] if pending is not None else []

    # ------------------------------------------------------------------------------------------ messages
    @property
    def _is_ready(self) -> bool:
        return self._thread is not None

    @property
    def _in_turn(self) -> bool:
        return self._prompted

    def _on_line(self, line: str) -> list[Out]:
        return self._requests.receive(line, Message, self._notified, self._request)

    def _notified(self, method: str, params: Raw) -> list[Out]:
        if method not in _NOTIFICATIONS:
            return []
        kind, handle = _NOTIFICATIONS[method]
        try:
            return handle(self, read(params, kind, method))
        except ProtocolError as error:
            if method != _TURN_COMPLETED:
                raise
            # Without this notification the turn would never end.
            return self._end_reported(
                TurnEnded("error", f"the end of the turn cannot be read: {error}"), is_complete=True
            )

    def _request(self, rpc_id: RpcId, method: str, params: Raw) -> list[Out]:
        if self._approvals.waits(rpc_id):
            refused = id_in_use(rpc_id, method)
            return [messages.JSON_RPC.error(rpc_id, INVALID_REQUEST, refused.why), refused]
        if method in _NOTHING_GIVEN:
            return [messages.JSON_RPC.result(rpc_id, _NOTHING_GIVEN[method])]
        if method not in KINDS:
            return [messages.JSON_RPC.error(rpc_id, METHOD_NOT_FOUND, f"method not found: {method}")]
        pending = PendingApproval(rpc_id, method, read(params, messages.Approval, method))
        if self._cancelling or not self._prompted:
            return [self._grant(pending, None)]
        return [self._approvals.ask(pending)]

    # ------------------------------------------------------------------------------------------ opening
    def _on_initialized(self, result: Raw, cwd: str, resume_id: str | None) -> list[Out]:
        read(result, messages.Initialized, "the answer to initialize")
        ready = messages.JSON_RPC.notification("initialized", {})
        if resume_id is None:
            return [ready, self._new(cwd)]
        params = {"threadId": resume_id, "cwd": cwd, "excludeTurns": True, **self._asking}
        return [ready, self._ask("thread/resume", params, self._opened, lambda error: self._not_loaded(error, cwd))]

    def _new(self, cwd: str) -> Send:
        return self._ask("thread/start", {"cwd": cwd, **self._asking}, self._opened)

    @property
    def _asking(self) -> Mapping[str, str]:
        """Parameters of a new thread that make codex ask, if the plan's permissions need that."""
        return GUARDED if self._guarded else {}

    def _opened(self, result: Raw) -> list[Out]:
        opened = read(result, messages.ThreadOpened, "the answer to thread/start")
        if self._guarded:
            check_asking(opened)
        thread = opened.thread
        self._thread = thread.id
        return [Ready(thread.id, f"codex {thread.cli_version}".strip(), steers=True)]

    def _not_loaded(self, error: RpcError, cwd: str) -> list[Out]:
        """Report that the earlier conversation could not be loaded, and open a new conversation.

        Raises:
            ConversationInUse: another process has the conversation open: it is not lost.
        """
        check_not_held(error)
        words = f"the conversation could not be loaded, a new one was started: {error.text} (code {error.code})\n"
        return [Text("log", words), self._new(cwd)]

    def _not_ready(self, error: RpcError) -> list[Out]:
        raise ProtocolError(f"the agent refused to open a thread: {error.text} (code {error.code})")

    # ------------------------------------------------------------------------------------------ the turn
    def _begin_turn(self) -> None:
        self._prompted, self._cancelling, self._settling, self._turn = True, False, False, None
        self._has_called = False
        self._calls.begin_turn()
        self._compacting.clear()
        self._streamed.clear()
        self._failures, self._problem = 0, Problem(None)

    def _turn_answered(self, result: Raw) -> list[Out]:
        return self._turn_named(read(result, messages.TurnOpened, "the answer to turn/start").turn.id)

    def _turn_named(self, turn: str) -> list[Out]:
        """Record the id of the turn, and send an interrupt that was waiting for this id."""
        if self._turn is not None or not self._prompted:
            return []
        self._turn = turn
        return self._interrupted(turn) if self._cancelling else []

    def _turn_refused(self, error: RpcError) -> list[Out]:
        return self._settled_as(TurnEnded("error", f"the agent refused the turn: {error.text} (code {error.code})"))

    def _interrupted(self, turn: str | None) -> list[Out]:
        if turn is None:
            return []
        return [self._ask("turn/interrupt", {"threadId": self._thread, "turnId": turn}, _nothing, _passed_over)]

    def _turn_started(self, notification: messages.TurnNotification) -> list[Out]:
        if notification.thread_id == self._thread:
            return self._turn_named(notification.turn.id)
        return (
            self._calls.agent_started(notification.thread_id, notification.turn.id)
            if self._accepts_notifications
            else []
        )

    def _turn_completed(self, notification: messages.TurnNotification) -> list[Out]:
        if notification.thread_id != self._thread:
            return self._calls.agent_ended(notification.turn.id, notification.turn.status)
        if not self._accepts_notifications or self._turn not in (None, notification.turn.id):
            return []
        is_complete = bool(self._streamed or self._has_called) and not self._calls
        return self._end_reported(self._verdict(notification.turn), is_complete=is_complete)

    def _turn_over(self, ended: TurnEnded) -> list[Out]:
        must_settle = self._prompted and not self._settling and not self._over
        if must_settle and (ended.stop == "cancelled" or self._calls):
            return self._settle(ended)
        return self._settled_as(ended)

    def _verdict(self, turn: messages.Turn) -> TurnEnded:
        match turn.status:
            case "completed":
                return TurnEnded("end_turn")
            case "interrupted":
                return TurnEnded("cancelled")
            case "failed":
                return self._failure(
                    turn.error or messages.TurnError("the turn failed, and the agent does not say why")
                )
            case status:
                return TurnEnded("error", f"the agent ended the turn with an unknown status, {status!r}")

    def _failure(self, error: messages.TurnError) -> TurnEnded:
        """Return the failed end of a turn. If the final error is vaguer than the error before the last retry, the
        earlier problem is reported."""
        problem = problem_of(error.codex_error_info)
        if problem.kind is ModelProblem.UNKNOWN and self._problem.kind is not None:
            problem = self._problem
        return TurnEnded("error", error.message, problem.kind, problem.status)

    def _settle(self, ended: TurnEnded) -> list[Out]:
        """End the commands and sub-agents that codex left running; report the end of the turn when they have ended."""
        self._settling = True
        left = [out for agent in self._calls.agents for out in self._end_agent(agent.thread, agent.turn)]

        def over(_: object) -> list[Out]:
            return self._settled_as(ended)

        return [*left, self._clean(self._thread or "", over, over)]

    def _settled_as(self, ended: TurnEnded) -> list[Out]:
        if not self._prompted:
            return []
        self._prompted, self._turn = False, None
        return [*self._calls.close_all(), ended]

    @property
    def _accepts_notifications(self) -> bool:
        """True if notifications of codex belong to a turn that is neither over nor being settled."""
        return self._prompted and not self._settling

    # ------------------------------------------------------------------------------------------ ending one thing
    def _clean(self, thread: str, on_result: Callable[[Any], list[Out]], on_error: Callable[[Any], list[Out]]) -> Send:
        return self._requests.send("thread/backgroundTerminals/clean", {"threadId": thread}, on_result, on_error)

    def _end_agent(self, thread: str, turn: str) -> list[Out]:
        stop = self._ask("turn/interrupt", {"threadId": thread, "turnId": turn}, _nothing, _passed_over)
        return [stop, self._clean(thread, _nothing, _passed_over)]

    def _find_terminal(self, call_id: str, thread: str) -> Send:
        """End the command of a call. codex ends a command by a process id, which is not always part of its report of
        the call, so the list of codex's commands is read first."""

        def found(result: Raw) -> list[Out]:
            terminals = read(result, messages.BackgroundTerminals, "the answer to thread/backgroundTerminals/list").data
            name = next((one.process_id for one in terminals if one.item_id == call_id), None)
            return self._kept(call_id, "it runs no command for it") if name is None else [terminate(name)]

        def terminate(name: str) -> Send:
            params = {"threadId": thread, "processId": name}
            return self._ask("thread/backgroundTerminals/terminate", params, terminated, refused)

        def terminated(result: Raw) -> list[Out]:
            done = read(
                result, messages.TerminateResult, "the answer to thread/backgroundTerminals/terminate"
            ).terminated
            return [] if done else self._kept(call_id, "its command had ended")

        def refused(error: RpcError) -> list[Out]:
            return self._kept(call_id, error.text)

        return self._ask("thread/backgroundTerminals/list", {"threadId": thread}, found, refused)

    def _kept(self, call_id: str, why: str) -> list[Out]:
        return [CallNotEnded(call_id, why)] if self._calls.running(call_id) is not None else []

    # ------------------------------------------------------------------------------------------ items
    def _item_started(self, notification: messages.ItemNotification) -> list[Out]:
        item = self._item(notification, "item/started")
        if item is None or not self._accepts_notifications:
            return []
        if item.type == COMPACTION and item.id not in self._compacting:
            self._compacting[item.id] = None
            return [Compaction(True)]
        if item.type == USER_MESSAGE:
            return self._on_user_message()
        self._has_called = self._has_called or call_of(item) is not None
        return self._calls.started(notification, item)

    def _on_user_message(self) -> list[Out]:
        """Report that the agent has begun to process a message sent within the turn. The first user message of a turn
        is the prompt, which is not reported."""
        first, self._prompt_taken_up = not self._prompt_taken_up, True
        if first or not self._unread:
            return []
        self._unread -= 1
        return [MessageAccepted()]

    def _item_completed(self, notification: messages.ItemNotification) -> list[Out]:
        item = self._item(notification, "item/completed")
        if item is None or not self._prompted:
            return []
        if item.type == COMPACTION:
            return self._compacted(item.id)
        if item.type == AGENT_MESSAGE:
            return self._report_text(notification.thread_id, item.id, "" if item.id in self._streamed else item.text)
        late = self._settling and self._calls.running(item.id) is None
        self._has_called = self._has_called or call_of(item) is not None
        return [] if late else self._calls.completed(notification, item)

    def _item(self, notification: messages.ItemNotification, where: str) -> messages.Item | None:
        """Return the item of a notification if the item's type is known, otherwise ``None``: the shape of other types
        is undocumented."""
        named = read(notification.item, messages.ItemHead, where)
        known = (
            named.type in (COMPACTION, AGENT_MESSAGE, USER_MESSAGE)
            or call_of(messages.Item(named.id, named.type)) is not None
        )
        return read(notification.item, messages.Item, f"{where}: {named.type}") if known else None

    def _compacted(self, item_id: str) -> list[Out]:
        if item_id not in self._compacting:
            return []
        del self._compacting[item_id]
        return [Compaction(False)]

    # ------------------------------------------------------------------------------------------ words
    def _message_delta(self, notification: messages.Delta) -> list[Out]:
        return self._report_text(notification.thread_id, notification.item_id, notification.delta)

    def _report_text(self, thread: str, item_id: str, text: str) -> list[Out]:
        """Report text of an agent's message; each message begins on a new line. Text of a sub-agent becomes log
        text."""
        if not text or not self._prompted:
            return []
        if thread != self._thread:
            return [Text("log", text)]
        first, another = item_id not in self._streamed, bool(self._streamed)
        self._streamed[item_id] = None
        return [Text("message", f"\n{text}" if first and another else text)]

    def _thought_delta(self, notification: messages.Delta) -> list[Out]:
        return (
            [Text("thought", notification.delta)]
            if notification.delta and notification.thread_id == self._thread
            else []
        )

    def _warning(self, notification: messages.WarningNotification) -> list[Out]:
        return [Text("log", f"{notification.message}\n")]

    # ------------------------------------------------------------------------------------------ its model
    def _used(self, notification: messages.TokenUsageUpdated) -> list[Out]:
        return [*self._meter.report(notification, in_turn=self._prompted)]

    def _on_error(self, notification: messages.ErrorNotification) -> list[Out]:
        """Report a model request that failed and that codex repeats. A failure that is not repeated is reported by the
        end of the turn."""
        problem = problem_of(notification.error.codex_error_info)
        if not (notification.will_retry and self._prompted):
            return []
        self._failures += 1
        if notification.thread_id == self._thread:
            self._problem = problem
        words = notification.error.additional_details or notification.error.message
        kind = problem.kind or ModelProblem.UNKNOWN
        return [ModelErrorReported(kind, problem.status, attempt=self._failures, words=words)]

    def _resolved(self, notification: messages.RequestResolved) -> list[Out]:
        self._approvals.resolved(notification.request_id)
        return []

    # ------------------------------------------------------------------------------------------ small parts
    def _ask(
        self,
        method: str,
        params: dict[str, Any],
        on_result: OnResult,
        on_error: Callable[[RpcError], list[Out]] | None = None,
    ) -> Send:
        return self._requests.send(method, params, on_result, on_error or self._not_ready)

    def _grant(self, pending: PendingApproval, option_id: str | None) -> Send:
        return messages.JSON_RPC.result(pending.rpc_id, pending.answer(option_id))


def _text_input(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _nothing(result: Raw) -> list[Out]:
    return []


def _passed_over(error: RpcError) -> list[Out]:
    """Ignore the error of a request to end something: nothing was left to end."""
    return []


def _not_steered(error: RpcError) -> list[Out]:
    return [Text("log", f"the agent did not take the message: {error.text} (code {error.code})\n")]


_NOTIFICATIONS: Final[Mapping[str, tuple[type[JsonRpcMessage], Callable[[CodexCodec, Any], list[Out]]]]] = (
    MappingProxyType(
        {
            "turn/started": (messages.TurnNotification, CodexCodec._turn_started),
            _TURN_COMPLETED: (messages.TurnNotification, CodexCodec._turn_completed),
            "item/started": (messages.ItemNotification, CodexCodec._item_started),
            "item/completed": (messages.ItemNotification, CodexCodec._item_completed),
            "item/agentMessage/delta": (messages.Delta, CodexCodec._message_delta),
            "item/reasoning/textDelta": (messages.Delta, CodexCodec._thought_delta),
            "item/reasoning/summaryTextDelta": (messages.Delta, CodexCodec._thought_delta),
            "thread/tokenUsage/updated": (messages.TokenUsageUpdated, CodexCodec._used),
            "serverRequest/resolved": (messages.RequestResolved, CodexCodec._resolved),
            "error": (messages.ErrorNotification, CodexCodec._on_error),
            "warning": (messages.WarningNotification, CodexCodec._warning),
        }
    )
)
"""Type and handler of each kind of notification: a notification is decoded as the type; other kinds are ignored."""
