"""Codec for Claude Code: stream-json on standard input and output, with control requests in both directions.

Theory of operation
-------------------
A process is one conversation, whose id the supervisor chooses, with one turn at a time. The program runs its tools
itself and reports them; a sub-agent is a call of kind ``agent``, and the sub-agent's calls are nested in that call.
Messages of unknown types are ignored; a line that is no message costs nothing.

A message sent within a turn (``steer``) is a user message with a uuid. The program replays the message when its model
reads the message; until then the message is in ``_unread``. A result that arrives while a message is unread does not
end the turn, because the program continues with that message. When a turn ends in another way, unread messages are
cancelled: otherwise each message would begin a turn that no caller waits for.

A result counts as success only if no part of it reports an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from supervisor.agents.protocols.claude import messages, permission_checks
from supervisor.agents.protocols.claude.calls import ClaudeToolCalls
from supervisor.agents.protocols.claude.messages import MessageHead
from supervisor.agents.protocols.claude.updates import ClaudeUsageMeter, describe_call, kind_of, problem_of, verdict_of
from supervisor.agents.protocols.codec_base import Conversation
from supervisor.agents.protocols.json_rpc import ConfigurationRefused, NoMessage, ProtocolError, id_in_use, read
from supervisor.ports import (
    AgentOptions,
    CallNotEnded,
    CloseInput,
    Compaction,
    MessageAccepted,
    ModelErrorReported,
    Out,
    PermissionNeeded,
    Ready,
    Send,
    Text,
    TurnEnded,
)
from supervisor.ports.input_limits import LINE_BYTES_MAX

_ALLOW: Final = ("allow", "allow_once")
_ALWAYS: Final = ("allow_always", "allow_always")
_DENY: Final = ("deny", "reject_once")
_REFUSED: Final = "this was not permitted"
_ENDED: Final = "the supervisor has ended this call"
_CANCELLED: Final = "the turn is being ended"
_QUESTIONS: Final = "AskUserQuestion"
_NOBODY: Final = "nobody is there to answer questions: decide by yourself, and say what you have assumed"


class _Pending(NamedTuple):
    asked: messages.PermissionRequest
    options: tuple[tuple[str, str], ...]


class ClaudePermissionRequests:
    """Unanswered permission requests of one conversation, by the agent's own ids. Each request gets one response,
    except requests that the agent withdraws.

    A permission "for good" (``allow_always``) holds for the conversation only: settings of the project or the user are
    not changed.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, _Pending] = {}

    def ask(self, request_id: str, asked: messages.PermissionRequest) -> Send | PermissionNeeded:
        """Store a permission request and return it for the supervisor. A question to a person is answered at once with
        a denial, because no person is present."""
        if asked.tool_name == _QUESTIONS:
            return _deny(request_id, _NOBODY)
        options = (_ALLOW, _ALWAYS, _DENY) if _rules(asked) else (_ALLOW, _DENY)
        self._waiting[request_id] = _Pending(asked, options)
        about = describe_call(asked.tool_name, asked.input)
        detail = "\n".join(one for one in (about.detail, asked.decision_reason) if one)
        paths = about.paths if asked.blocked_path is None else (asked.blocked_path,)
        return PermissionNeeded(
            request_id, about.title, options, kind_of(asked.tool_name), asked.tool_name, detail, paths
        )

    def waits(self, request_id: str) -> bool:
        """Return whether the request *request_id* of the agent has no response yet."""
        return request_id in self._waiting

    def answer(self, request_id: str, option_id: str | None) -> list[Send]:
        """Return the response to a request, or nothing if the request needs no response any more. The option ``None``
        cancels the request and ends the turn.

        Raises:
            ValueError: *option_id* was not offered.
        """
        if request_id not in self._waiting:
            return []
        asked, options = self._waiting[request_id]
        offered = [option for option, _ in options]
        if option_id is not None and option_id not in offered:
            raise ValueError(
                f"claude: permission option {option_id!r} was not offered; use one of: {', '.join(offered)}"
            )
        del self._waiting[request_id]
        if option_id is None:
            return [_deny(request_id, _CANCELLED, interrupt=True)]
        if option_id == _DENY[0]:
            return [_deny(request_id, _REFUSED)]
        given: dict[str, Any] = {"behavior": "allow", "updatedInput": asked.input}
        if option_id == _ALWAYS[0]:
            given["updatedPermissions"] = _rules(asked)
        return [messages.control_answer(request_id, given)]

    def end_call(self, call_id: str) -> list[Send]:
        """Deny the permission requests of the call *call_id*, which ends the call."""
        found = [name for name, one in self._waiting.items() if one.asked.tool_use_id == call_id]
        for name in found:
            del self._waiting[name]
        return [_deny(name, _ENDED) for name in found]

    def cancel_all(self) -> list[Send]:
        return [one for name in list(self._waiting) for one in self.answer(name, None)]

    def taken_back(self, request_id: str) -> None:
        """Remove a request that the agent has withdrawn."""
        self._waiting.pop(request_id, None)


def _deny(request_id: str, why: str, *, interrupt: bool = False) -> Send:
    return messages.control_answer(request_id, {"behavior": "deny", "message": why, "interrupt": interrupt})


def _rules(asked: messages.PermissionRequest) -> list[dict[str, Any]]:
    """Return the permanent rules that the agent suggests, limited to the agent's conversation."""
    suggested = asked.permission_suggestions
    known = [one for one in suggested if isinstance(one, dict)] if isinstance(suggested, list) else []
    return [{**one, "destination": "session"} for one in known]


_FLAGS: Final = (
    *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
    *("--replay-user-messages", "--include-partial-messages", "--permission-prompt-tool", "stdio"),
)
"""Command-line flags of every process. With these flags, the program replays a user message when the model reads it,
and sends partial messages, so that an agent in the middle of a long message is not taken for a silent one."""

_STEM: Final = "00000000-0000-4000-8000-"
"""Prefix of message uuids if the supervisor was given no id from which to derive one."""

_NO_OPTIONS: Final = AgentOptions()

_OnAnswer = Callable[[messages.ControlResult], list[Out]]


class ClaudeCodec(Conversation):
    """Conversation with one Claude Code process: one prompt at a time; :meth:`steer` sends another message within the
    turn.

    ``prompt`` raises RuntimeError before :class:`Ready` and during a turn.
    """

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX, agent_options: AgentOptions = _NO_OPTIONS) -> None:
        self._agent_options = agent_options
        super().__init__(line_bytes_max)
        self._waiting: dict[str, _OnAnswer] = {}
        self._requests_sent = self._sent = 0
        self._name: str | None = None
        self._mode = ""
        """Permission mode that the agent is set to, if its permissions depend on requests of the agent."""
        self._stem = _STEM
        """Prefix of the uuids of our messages; no two processes of a conversation use the same uuid."""
        self._ready = self._prompted = self._cancelling = False
        self._has_spoken = self._has_called = self._compacting = False
        self._calls = ClaudeToolCalls()
        self._permissions = ClaudePermissionRequests()
        self._meter = ClaudeUsageMeter()
        self._unread: dict[str, None] = {}
        """Ids of the messages that were sent within the turn and that the model has not read yet."""
        self._failed: str | None = None
        """Error of the model, if the model's last message reported an error."""

    # ------------------------------------------------------------------------------------------ our requests
    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        self._stem, self._name = new_id[:24] or _STEM, resume_id or new_id or None
        self._meter = ClaudeUsageMeter(resumed=resume_id is not None)
        named = ("--resume", resume_id) if resume_id is not None else ("--session-id", new_id) if new_id else ()
        wished = (("--model", self._agent_options.model), ("--permission-mode", self._agent_options.mode))
        return (*command, *_FLAGS, *(word for flag in wished if flag[1] for word in flag), *named)

    def start(self, cwd: str, resume_id: str | None = None) -> list[Out]:
        return [self._ask(self._on_initialized, "initialize", hooks=None)]

    def prompt(self, text: str) -> list[Out]:
        if self._over:
            return []
        if not self._ready or self._prompted:
            raise RuntimeError(f"claude: prompt {'during a turn' if self._prompted else 'before it is ready'}")
        self._prompted, self._cancelling, self._failed = True, False, None
        self._has_spoken = self._has_called = False
        self._calls.begin_turn()
        self._unread.clear()
        return [messages.user_message(self._uuid(), text)]

    def steer(self, text: str) -> list[Out] | None:
        if self._over or not self._prompted or self._cancelling or self._ending is not None:
            return None
        uuid = self._uuid()
        self._unread[uuid] = None
        return [messages.user_message(uuid, text)]

    def interrupt(self) -> list[Out]:
        if self._ending is not None:
            return self._cut_ending(has_open_calls=bool(self._calls))
        if self._over or not self._prompted:
            return []
        self._cancelling = True
        return [*self._cancel_unread(), *self._permissions.cancel_all(), self._ask(_nothing, "interrupt")]

    def end_call(self, call_id: str) -> list[Out] | None:
        if self._over or not self._prompted or not self._calls.is_open(call_id):
            return None
        if refused := self._permissions.end_call(call_id):
            return [*refused]
        tasks = self._calls.end(call_id)
        return None if tasks is None else [self._stop(task_id, call_id) for task_id in tasks]

    def close(self) -> list[Out]:
        return [CloseInput()]

    # ------------------------------------------------------------------------------------------ answers to the agent
    def permission(self, request_id: str, option_id: str | None) -> list[Out]:
        """Answer a permission request once; an answer to a request that needs no answer any more is ignored.

        Raises:
            ValueError: the agent did not offer *option_id*.
        """
        return [] if self._over else [*self._permissions.answer(request_id, option_id)]

    # ------------------------------------------------------------------------------------------ messages
    @property
    def _is_ready(self) -> bool:
        return self._ready

    @property
    def _in_turn(self) -> bool:
        return self._prompted

    def _on_line(self, line: str) -> list[Out]:
        try:
            head = read(line, MessageHead, "the agent wrote a line")
        except ProtocolError as error:
            raise NoMessage(str(error)) from None
        name = f"system/{head.subtype}" if head.type == "system" else head.type
        if name not in _MESSAGES:
            return []
        kind, handle = _MESSAGES[name]
        try:
            return handle(self, read(line, kind, name))
        except ProtocolError as error:
            if name in _AWAITED:
                raise
            raise NoMessage(str(error)) from None

    def _on_control_response(self, message: messages.ControlResponse) -> list[Out]:
        answer = message.response
        on_answer = self._waiting.pop(answer.request_id, None)
        return on_answer(answer) if on_answer is not None else []

    def _on_control_request(self, asked: messages.ControlRequest) -> list[Out]:
        request_id = asked.request_id
        try:
            what = read(asked.request, messages.ControlRequestHead, "control_request").subtype
            if self._permissions.waits(request_id):
                refused = id_in_use(request_id, what)
                return [messages.control_refusal(request_id, refused.why), refused]
            if what != "can_use_tool":
                return [messages.control_refusal(request_id, f"this client does not do {what}")]
            wanted = read(asked.request, messages.PermissionRequest, "can_use_tool")
        except ProtocolError as error:  # the agent waits for an answer
            return [messages.control_refusal(request_id, str(error))]
        opened = self._calls.asked(wanted) if self._prompted else []
        question = self._permissions.ask(request_id, wanted)
        if self._prompted and not self._cancelling:
            return [*opened, question]
        return [*opened, question] if isinstance(question, Send) else [*opened, *self.permission(request_id, None)]

    def _on_control_cancelled(self, message: messages.ControlCancelled) -> list[Out]:
        self._permissions.taken_back(message.request_id)
        return []

    # ------------------------------------------------------------------------------------------ opening
    def _on_initialized(self, answer: messages.ControlResult) -> list[Out]:
        if answer.subtype != "success":
            raise ProtocolError(f"the agent refused to begin: {answer.error or answer.subtype}")
        if not self._agent_options.guarded:
            return self._set_tool_servers()
        current = read(answer.response, messages.Initialized, "the answer to initialize").current_permission_mode
        self._mode = permission_checks.asking_mode(self._agent_options.mode, current)
        return [self._ask(self._on_settings, "get_settings")]

    def _on_settings(self, answer: messages.ControlResult) -> list[Out]:
        if answer.subtype != "success":
            permission_checks.refuse_unverified("its settings")
        permission_checks.check_settings(
            read(answer.response, permission_checks.Settings, "the answer to get_settings")
        )
        return [self._ask(self._on_rules, "list_permission_rules")]

    def _on_rules(self, answer: messages.ControlResult) -> list[Out]:
        if answer.subtype == "success":
            listed = read(answer.response, permission_checks.PermissionRules, "the answer to list_permission_rules")
            for rule in listed.state.rules:
                permission_checks.check_rule(rule)
        elif not self._agent_options.started:  # an older version; the plan has checked the command line that it sees
            permission_checks.refuse_unverified("the rules of a command line that the plan does not show")
        return [self._ask(self._on_mode_set, "set_permission_mode", mode=self._mode)]

    def _on_mode_set(self, answer: messages.ControlResult) -> list[Out]:
        if answer.subtype != "success":
            permission_checks.refuse_unverified(f"its permission mode ({answer.error or answer.subtype})")
        permission_checks.check_mode(
            read(answer.response, permission_checks.PermissionMode, "the answer to set_permission_mode").mode
        )
        return self._set_tool_servers()

    def _set_tool_servers(self) -> list[Out]:
        if self._agent_options.mcp_servers:  # said to it, since a command line is for everybody to read
            servers = {one.name: messages.mcp_server(one) for one in self._agent_options.mcp_servers}
            return [self._ask(self._on_tool_servers_set, "mcp_set_servers", servers=servers)]
        return self._begin()

    def _on_tool_servers_set(self, answer: messages.ControlResult) -> list[Out]:
        if answer.subtype != "success":
            raise ConfigurationRefused(f"the agent refused its tool servers: {answer.error or answer.subtype}")
        return self._begin()

    def _begin(self) -> list[Out]:
        self._ready = True
        return [Ready(self._name, "claude", steers=True)]

    # ------------------------------------------------------------------------------------------ the turn
    def _on_assistant(self, message: messages.Assistant) -> list[Out]:
        outs: list[Out] = []
        parent = message.parent_tool_use_id
        if parent is None:
            self._failed = message.error
        for block in messages.blocks_of(message.message):
            if block.type == "tool_use":
                self._has_called = True
                outs += self._calls.used(block, parent) if self._prompted else []
            else:
                outs += self._report_block(block, aside=parent is not None or message.error is not None)
        return [*outs, *self._meter.answered(message.message.id, message.message.usage)]

    def _report_block(self, block: messages.Block, *, aside: bool) -> list[Out]:
        """Report a part of an agent's message. Text of a sub-agent, and text that describes an error, becomes log text
        instead of a message."""
        if block.type == "thinking" and block.thinking:
            return [Text("thought", block.thinking)]
        if block.type != "text" or not block.text:
            return []
        if aside or not self._prompted:
            return [Text("log", f"{block.text}\n")]
        first, self._has_spoken = not self._has_spoken, True
        return [Text("message", block.text if first else f"\n{block.text}")]

    def _on_user(self, message: messages.User) -> list[Out]:
        """Handle results of tool calls, or the replay of a message of ours, which shows that the model reads this
        message now."""
        if message.is_replay:
            known = message.uuid in self._unread
            self._unread.pop(message.uuid or "", None)
            return [MessageAccepted()] if known else []
        blocks = messages.blocks_of(message.message)
        results = [one for one in blocks if one.type == "tool_result" and one.tool_use_id is not None]
        return [out for one in results for out in self._calls.returned(one)]

    def _on_result(self, result: messages.Result) -> list[Out]:
        used = self._meter.at_end(result)  # reported after the turn's end
        if not self._prompted or (result.origin is not None and result.origin.kind != "human"):
            return [*used]
        ended = verdict_of(result, self._failed)
        if ended.stop == "end_turn" and self._unread:
            return [*used]  # the agent goes on by itself with the unread messages
        is_complete = (self._has_spoken or self._has_called) and not self._calls
        return [*self._cancel_unread(), *self._end_reported(ended, is_complete=is_complete), *used]

    def _turn_over(self, ended: TurnEnded) -> list[Out]:
        self._prompted = self._compacting = False
        unfinished = [] if ended.stop == "end_turn" else self._calls.close_all()
        return [*unfinished, ended]

    def _cancel_unread(self) -> list[Send]:
        """Cancel the messages that the model has not read: each of these messages would begin a turn of its own."""
        taken = [self._ask(_nothing, "cancel_async_message", message_uuid=uuid) for uuid in self._unread]
        self._unread.clear()
        return taken

    # ------------------------------------------------------------------------------------------ system
    def _on_api_retry(self, message: messages.ApiRetry) -> list[Out]:
        problem = problem_of(message.error, message.error_status)
        wait_s = message.retry_delay_ms / 1000 if message.retry_delay_ms is not None else None
        return [ModelErrorReported(problem, message.error_status, message.attempt, wait_s, message.error or "")]

    def _on_status(self, message: messages.Status) -> list[Out]:
        if message.status == "compacting" and not self._compacting:
            self._compacting = True
            return [Compaction(True)]
        if message.compact_result is None or not self._compacting:
            return []
        self._compacting = False
        # Where it could not compact it says why, and goes on: whether it can work so is for its model to say.
        if message.compact_result == "success":
            return [Compaction(False)]
        why = f"the agent could not compact its context: {message.compact_error}\n"
        return [Compaction(False, failed=True, goes_on=True), Text("log", why)]

    def _on_compact_boundary(self, _: MessageHead) -> list[Out]:
        over, self._compacting = self._compacting, False
        return [Compaction(False)] if over else []

    def _on_task_started(self, task: messages.Task) -> list[Out]:
        wanted = self._calls.task_started(task) if self._prompted else None
        return [self._stop(task.task_id, wanted)] if wanted is not None else []

    def _on_task_ended(self, task: messages.Task) -> list[Out]:
        self._calls.task_ended(task)
        return []

    # ------------------------------------------------------------------------------------------ small parts
    def _stop(self, task_id: str, call_id: str) -> Send:
        def on_answer(answer: messages.ControlResult) -> list[Out]:
            failed = answer.subtype != "success" and self._calls.is_open(call_id)
            return [CallNotEnded(call_id, answer.error or "the agent does not say why")] if failed else []

        return self._ask(on_answer, "stop_task", task_id=task_id)

    def _ask(self, on_answer: _OnAnswer, subtype: str, **fields: object) -> Send:
        self._requests_sent += 1
        name = f"supervisor-{self._requests_sent}"
        self._waiting[name] = on_answer
        return messages.control_request(name, subtype, **fields)

    def _uuid(self) -> str:
        self._sent += 1
        return f"{self._stem}{self._sent:012x}"


def _nothing(answer: messages.ControlResult) -> list[Out]:
    return []


_MESSAGES: Final[Mapping[str, tuple[type[messages.ClaudeMessage], Callable[[ClaudeCodec, Any], list[Out]]]]] = (
    MappingProxyType(
        {
            "control_response": (messages.ControlResponse, ClaudeCodec._on_control_response),
            "control_request": (messages.ControlRequest, ClaudeCodec._on_control_request),
            "control_cancel_request": (messages.ControlCancelled, ClaudeCodec._on_control_cancelled),
            "assistant": (messages.Assistant, ClaudeCodec._on_assistant),
            "user": (messages.User, ClaudeCodec._on_user),
            "result": (messages.Result, ClaudeCodec._on_result),
            "system/api_retry": (messages.ApiRetry, ClaudeCodec._on_api_retry),
            "system/status": (messages.Status, ClaudeCodec._on_status),
            "system/compact_boundary": (MessageHead, ClaudeCodec._on_compact_boundary),
            "system/task_started": (messages.Task, ClaudeCodec._on_task_started),
            "system/task_notification": (messages.Task, ClaudeCodec._on_task_ended),
        }
    )
)
"""Type and handler of each kind of message: a message is decoded as the type; other kinds are ignored."""

_AWAITED: Final = ("control_response", "result")
"""Kinds of messages that the conversation waits for: without such a message it cannot go on."""
