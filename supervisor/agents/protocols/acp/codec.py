"""Codec for agents that use the Agent Client Protocol, version 1, on standard input and output.

Theory of operation
-------------------
The supervisor is the client. It opens a session and sends prompts; the agent reports its actions (``session/update``)
and sends requests to the supervisor: run a command, read or write a file, grant a permission, start a child session.
Every request of the agent gets one response. A line that is no message costs nothing
(:mod:`supervisor.agents.protocols.codec_base`).

A turn may consist of several prompts: an agent that queues prompts receives a message within the turn as another
prompt, and the turn ends when the last prompt is answered. Example::

    -> session/prompt 1            turn begins, one prompt is open
    -> session/prompt 2            steer(): two prompts are open
    <- result of 1 (end_turn)      MessageAccepted: the agent begins to work on the second prompt
    <- result of 2 (end_turn)      TurnEnded("end_turn")

Two rules correct the results of agents, because agents report more success than there is:

* After a cancel the turn is cancelled and its open calls failed, whatever the agent reports afterwards. Agents answer a
  cancel with ``end_turn`` and report calls that they cut off as completed.
* A turn that ends well without any text, call or token is a failure: agents end a turn like this when their model
  failed. The turn is over only when the agent has been silent for a moment, since some agents send the last words, or
  the end of a call, after the result (``TurnEnding``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from supervisor.agent_catalogue.line_rules import UsageScope
from supervisor.agents.protocols.acp import messages
from supervisor.agents.protocols.acp.errors import problem_of
from supervisor.agents.protocols.acp.handshake import Handshake, HandshakeRequest, HandshakeSteps
from supervisor.agents.protocols.acp.messages import Message
from supervisor.agents.protocols.acp.terminals import METHODS, AcpTerminals
from supervisor.agents.protocols.codec_base import COST_MAX, Conversation, ToolCallTable
from supervisor.agents.protocols.json_rpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    JsonRpcMessage,
    OutgoingRequests,
    RpcError,
    RpcId,
    id_in_use,
    read,
)
from supervisor.lifecycles.types import ModelProblem
from supervisor.policies.context_window import ContextUse
from supervisor.ports import (
    THIS_CONVERSATION,
    AgentOptions,
    CallNotEnded,
    ChildRequested,
    CloseInput,
    Compaction,
    FileRequested,
    MessageAccepted,
    Out,
    PermissionNeeded,
    Ready,
    Send,
    Text,
    ToolOpened,
    TurnEnded,
    Usage,
)
from supervisor.ports.input_limits import LINE_BYTES_MAX

_STOPS: Final = {
    "end_turn": "end_turn",
    "cancelled": "cancelled",
    "refusal": "refusal",
    "max_tokens": "max_tokens",
    "max_turn_requests": "max_turns",
}
_TOOL_ENDS: Final = {"completed": "completed", "failed": "failed", "cancelled": "failed"}
_COMPACTION_ENDS: Final = {"completed": False, "failed": True, "cancelled": True}
_PLAN_MARKS: Final = {"completed": "x", "in_progress": ">"}
_AGENTS: Final = ("Task", "Agent")
"""Names of the tool that starts a sub-agent in Claude's ACP bridge."""
_QUEUED_MAX: Final = 16
"""Number of prompts that may wait in the agent while the agent works on another prompt."""

_NO_OPTIONS: Final = AgentOptions()
_CUT_OFF: Final = "the agent reported success, but no answer of its model was complete: it counted no token"
_SILENT: Final = "the agent reported success, but no text, tool call or token: its model may not have answered"

_OnAnswer = Callable[[Raw | RpcError], list[Out]]


class _FileRequest(NamedTuple):
    rpc_id: RpcId
    lines: tuple[int, int | None] | None
    """Index of the first line to read, from 0, and the number of lines; ``None`` for a write."""


class _OpenPermission(NamedTuple):
    rpc_id: RpcId
    options: dict[str, str]
    """Kind of each option that the agent offered, by the option's id."""
    call_id: str
    opened: bool
    """True if the permission request was the first message about its tool call."""


class AcpPermissionRequests:
    """Unanswered permission requests of one conversation, by the ids that this codec gave the requests. Each request
    gets one response: an option that the agent offered, or a cancel.

    A request may be the first message about a tool call. Such a request opens the call. If the request is not granted,
    the call is closed again, because some agents report nothing more of a call that they did not make.
    """

    def __init__(self, calls: ToolCallTable) -> None:
        self._calls = calls
        self._open: dict[str, _OpenPermission] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._open))

    def open(self, rpc_id: RpcId, request_id: str, asked: messages.PermissionRequest) -> list[Out]:
        call = asked.tool_call
        title, kind = call.title or call.tool_call_id, call.kind or "other"
        opened = self._calls.open_requested(call.tool_call_id, title, kind, call.parent)
        options = {one.option_id: one.kind for one in asked.options}
        self._open[request_id] = _OpenPermission(rpc_id, options, call.tool_call_id, bool(opened))
        choices = tuple(options.items())
        return [*opened, PermissionNeeded(request_id, title, choices, kind, call.tool, call.detail, call.paths)]

    def answer(self, request_id: str, option_id: str | None) -> list[Out]:
        """Answer a request; an answer to a request that was answered before is ignored.

        Raises:
            ValueError: the agent did not offer *option_id*.
        """
        if request_id not in self._open:
            return []
        options = self._open[request_id].options
        if option_id is not None and option_id not in options:
            raise ValueError(f"acp: permission option {option_id!r} was not offered; use one of: {', '.join(options)}")
        one = self._open.pop(request_id)
        if option_id is None:
            response = cancelled(one.rpc_id)
        else:
            response = messages.result(one.rpc_id, {"outcome": {"outcome": "selected", "optionId": option_id}})
        granted = option_id is not None and options[option_id].startswith("allow")
        return [response] if granted else [response, *self._close_call(one)]

    def waits(self, rpc_id: RpcId) -> bool:
        """Return whether the request *rpc_id* of the agent has no response yet."""
        return any(one.rpc_id == rpc_id for one in self._open.values())

    def withdraw(self, rpc_id: RpcId) -> list[Out]:
        """Close a request that the agent has cancelled; a later answer to the request has no effect."""
        for request_id, one in self._open.items():
            if one.rpc_id == rpc_id:
                del self._open[request_id]
                return [messages.error(rpc_id, messages.CANCELLED, "withdrawn"), *self._close_call(one)]
        return []

    def _close_call(self, one: _OpenPermission) -> Sequence[Out]:
        """End the call of a request that was not granted, if the request has opened the call."""
        return self._calls.close(one.call_id, "failed") if one.opened else ()


def cancelled(rpc_id: RpcId) -> Send:
    """Return the response to a permission request of a turn that is being cancelled: the outcome ``cancelled``."""
    return messages.result(rpc_id, {"outcome": {"outcome": "cancelled"}})


class AcpUsageMeter:
    """Usage that the agent reports in one conversation.

    Cost is reported as a total of the conversation. Tokens are reported either in the response to a prompt (still a
    draft of the protocol) or in ``_meta.usage`` of an update, with the scope that the agent's quirks name: by default
    as a total of the turn, which is turned into the difference to the total before, and adds nothing if it is smaller.
    ``used`` and ``size`` of an update say how full the context is, and count for no budget.
    """

    def __init__(self, scope: UsageScope) -> None:
        self._scope = scope
        self._used = messages.TurnUsage()

    def begin(self) -> None:
        """Begin another turn, whose token totals count from zero, unless they are those of the process."""
        if self._scope != "process":
            self._used = messages.TurnUsage()

    def update(self, update: messages.UsageUpdate) -> list[Usage]:
        """Return the usage that a ``usage_update`` reports: the cost and the tokens separately, since their scopes
        differ."""
        said: dict[str, Any] = {"used": update.used, "size": update.size}
        context = ContextUse(update.used, update.size)
        tokens = self._tokens(update.turn_used)
        if (cost := update.cost) is None:
            with_context = [msgspec.structs.replace(one, used={**said, **one.used}, context=context) for one in tokens]
            return with_context or [Usage(said, context=context)]
        said["cost"] = {"amount": cost.amount, "currency": cost.currency}
        if cost.currency != "USD" or not 0 <= cost.amount <= COST_MAX:
            return [Usage(said, context=context), *tokens]
        return [Usage(said, cost_usd=cost.amount, total_of=THIS_CONVERSATION, context=context), *tokens]

    def at_end(self, answer: messages.PromptResponse) -> list[Usage]:
        """Return the usage that the response to a prompt adds to the earlier updates of the turn."""
        return [used for used in self._tokens(answer.used) if used.input_tokens or used.output_tokens or used.requests]

    def _tokens(self, used: messages.TurnUsage | None) -> list[Usage]:
        if used is None:
            return []
        said = {name: amount for name, amount in used._asdict().items() if amount or name.endswith("put_tokens")}
        if self._scope == "conversation":
            return [
                Usage(said, used.input_tokens, used.output_tokens, 0.0, used.cached_tokens, total_of=THIS_CONVERSATION)
            ]
        before = messages.TurnUsage()
        if self._scope in ("turn", "process"):
            before, self._used = self._used, messages.TurnUsage(*map(max, used, self._used))
            used = self._used
        into, out, cached, requests = (now - then for now, then in zip(used, before, strict=True))
        return [Usage(said, into, out, 0.0, cached, requests)]


class AcpCodec(Conversation):
    """Conversation with one agent process: one session, and one prompt at a time besides the prompts that the agent
    queues.

    With *silent* a turn without text, calls and tokens is a success: a scripted agent need not report anything.
    *usage_scope* is the scope of the tokens that the agent reports.

    ``prompt`` raises RuntimeError before :class:`Ready` and during a turn: at these times ACP has no way to send a
    prompt.
    """

    def __init__(
        self,
        line_bytes_max: int = LINE_BYTES_MAX,
        *,
        agent_options: AgentOptions = _NO_OPTIONS,
        silent: bool = False,
        usage_scope: UsageScope = "turn",
    ) -> None:
        super().__init__(line_bytes_max)
        self._agent_options = agent_options
        self._opening = Handshake("/", None, agent_options)
        self._requests = OutgoingRequests(messages.JSON_RPC)
        self._session: str | None = None
        self._prompts = 0
        """Number of unanswered prompts: the current prompt, and the prompts that the agent has queued after it."""
        self._ended: TurnEnded | None = None
        """Failure of an earlier prompt of this turn, stored while later prompts of the turn are unanswered."""
        self._silent = silent
        self._has_answer = self._has_activity = self._needs_no_model = False
        """``_has_answer``: this turn has reported a message or a call. ``_has_activity``: it has reported an answer, a
        thought, a compaction, a request or tokens. ``_needs_no_model``: it may end without a model's answer (a command
        of the agent, or a silent script)."""
        self._cancelling = False
        self._mode = self._plan = ""
        self._calls = ToolCallTable()
        self._meter = AcpUsageMeter(usage_scope)
        self._compacting: dict[str, None] = {}
        self._compacts = ""
        """Prompt that makes the agent compact its context; ``""`` if it has no such command."""
        self._is_compacting = False
        """True while the agent carries out that prompt."""
        self._terminals = AcpTerminals(self._calls)
        self._permissions = AcpPermissionRequests(self._calls)
        self._children: dict[str, RpcId] = {}
        self._files: dict[str, _FileRequest] = {}
        self._named = 0

    # ------------------------------------------------------------------------------------------ our requests
    def start(self, cwd: str, resume_id: str | None = None) -> list[Out]:
        self._opening = Handshake(cwd, resume_id, self._agent_options)
        script = self._opening.script()
        return self._open(script, next(script))

    def prompt(self, text: str) -> list[Out]:
        if self._over:
            return []
        self._begin_turn(text)
        return [self._send_prompt(text)]

    def compact_and_prompt(self, text: str) -> list[Out] | None:
        if self._over or not self._compacts:
            return None
        self._begin_turn(text)
        self._is_compacting, self._prompts = True, 1

        def answered(answer: Raw | RpcError) -> list[Out]:
            self._is_compacting = False
            response = (
                read(answer, messages.PromptResponse, "the answer to session/prompt")
                if isinstance(answer, Raw)
                else None
            )
            used = self._meter.at_end(response) if response is not None else []
            self._meter.begin()
            # An agent that could not compact may still have room for the prompt, or compact by itself.
            is_compacted = response is not None and _STOPS.get(response.stop_reason) == "end_turn"
            over = Compaction(False, failed=not is_compacted, goes_on=True)
            if self._cancelling:
                return [over, *used, *self._prompt_ended(TurnEnded("cancelled"))]
            self._prompts = 0
            return [over, *used, self._send_prompt(text)]

        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": self._compacts}]}
        return [Compaction(True), self._ask("session/prompt", params, answered)]

    def _begin_turn(self, text: str) -> None:
        if self._session is None or self._prompts:
            raise RuntimeError(f"acp: prompt {'during a turn' if self._prompts else 'before the session is open'}")
        self._cancelling, self._ended = False, None
        self._plan = ""
        self._has_answer = self._has_activity = False
        self._needs_no_model = self._silent or text.startswith("/")  # a command of the agent
        self._calls.begin_turn()
        self._meter.begin()
        self._compacting.clear()

    def steer(self, text: str) -> list[Out] | None:
        """Send *text* within the turn, either by the agent's steering extension or as a queued prompt; a queued prompt
        extends the turn until this prompt is answered too. Return ``None`` if the agent supports neither way, or if no
        turn can receive the text now."""
        takes = not self._cancelling and 0 < self._prompts <= _QUEUED_MAX
        if self._over or not takes or self._is_compacting or not self._opening.agent.takes_up:
            return None
        if not self._opening.agent.steers:
            return [self._send_prompt(text)]
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}

        def answered(answer: Raw | RpcError) -> list[Out]:
            return [MessageAccepted()] if isinstance(answer, Raw) else []  # the caller's time-out handles an error

        return [self._ask("_supervisor/session/steer", params, answered)]

    def end_call(self, call_id: str) -> list[Out] | None:
        """Send the agent a request to end one of the agent's own calls; return ``None`` if the agent does not support
        this request, an extension of the protocol. (A command that the supervisor runs for a call is ended by the
        supervisor itself.)"""
        if self._over or not self._calls.is_open(call_id) or not self._opening.agent.ends_calls:
            return None
        params = {"sessionId": self._session, "toolCallId": call_id}

        def answered(answer: Raw | RpcError) -> list[Out]:
            if isinstance(answer, Raw) or not self._calls.is_open(call_id):  # the end is reported by an update
                return []
            return [CallNotEnded(call_id, f"{answer.text} (code {answer.code})")]

        return [self._ask("_supervisor/tool_call/end", params, answered)]

    def interrupt(self) -> list[Out]:
        if self._ending is not None:
            return self._cut_ending(has_open_calls=bool(self._calls))
        if self._over or not self._prompts:
            return []
        self._cancelling = True
        unanswered = [one for request_id in self._permissions for one in self._permissions.answer(request_id, None)]
        return [messages.notification("session/cancel", {"sessionId": self._session}), *unanswered]

    def close(self) -> list[Out]:
        if self._over or self._session is None or not self._opening.agent.closable:
            return [CloseInput()]
        return [self._ask("session/close", {"sessionId": self._session}, lambda _: []), CloseInput()]

    # ------------------------------------------------------------------------------------------ answers to the agent
    def permission(self, request_id: str, option_id: str | None) -> list[Out]:
        """Answer a permission request once; an answer to a request that a cancel has already answered is ignored.

        Raises:
            ValueError: the agent did not offer *option_id*.
        """
        return [] if self._over else self._permissions.answer(request_id, option_id)

    def terminal_output(self, terminal_id: str, data: bytes) -> list[Out]:
        self._terminals.output(terminal_id, data)
        return []

    def terminal_exited(self, terminal_id: str, status: int | None) -> list[Out]:
        return [] if self._over else self._terminals.exited(terminal_id, status)

    def file_answered(self, request_id: str, text: str, why: str = "") -> list[Out]:
        wanted = self._files.pop(request_id, None)
        if self._over or wanted is None:
            return []
        if why:
            return [messages.error(wanted.rpc_id, INVALID_PARAMS, why)]
        return [messages.result(wanted.rpc_id, {} if wanted.lines is None else {"content": _part(text, *wanted.lines)})]

    def child_ended(self, request_id: str, outcome: str, text: str) -> list[Out]:
        if self._over or request_id not in self._children:
            return []
        return [messages.result(self._children.pop(request_id), {"outcome": outcome, "text": text})]

    # ------------------------------------------------------------------------------------------ messages
    @property
    def _is_ready(self) -> bool:
        return self._session is not None

    @property
    def _in_turn(self) -> bool:
        return self._prompts > 0

    def _on_line(self, line: str) -> list[Out]:
        return self._requests.receive(line, Message, self._notified, self._request)

    def _notified(self, method: str, params: Raw) -> list[Out]:
        match method:
            case "session/update":
                return self._update(params)
            case "$/cancel_request":
                rpc_id = read(params, messages.RequestCancelled, method).request_id
                return self._permissions.withdraw(rpc_id) or self._terminals.withdraw(rpc_id)
            case _:
                return []

    def _request(self, rpc_id: RpcId, method: str, params: Raw) -> list[Out]:
        if self._is_unanswered(rpc_id):
            refused = id_in_use(rpc_id, method)
            return [messages.error(rpc_id, INVALID_REQUEST, refused.why), refused]
        self._has_activity = True
        if method in METHODS:
            return self._terminals.request(rpc_id, method, read(params, messages.TerminalReference, method).terminal_id)
        match method:
            case "session/request_permission":
                request = read(params, messages.PermissionRequest, method)
                return (
                    [cancelled(rpc_id)]
                    if self._cancelling
                    else self._permissions.open(rpc_id, self._name("permission"), request)
                )
            case "terminal/create":
                asked = read(params, messages.TerminalCreate, method)
                return self._terminals.create(rpc_id, self._name("terminal"), asked)
            case "fs/read_text_file":
                wanted = read(params, messages.FileRead, method)
                return self._file(rpc_id, wanted.path, None, (max(0, (wanted.line or 1) - 1), wanted.limit))
            case "fs/write_text_file":
                given = read(params, messages.FileWrite, method)
                return self._file(rpc_id, given.path, given.content, None)
            case "_supervisor/session/run":
                return self._child_asked(rpc_id, read(params, messages.ChildRun, method))
            case _:
                return [messages.error(rpc_id, METHOD_NOT_FOUND, f"method not found: {method}")]

    # ------------------------------------------------------------------------------------------ opening
    def _open(self, script: HandshakeSteps[str], request: HandshakeRequest) -> list[Out]:
        return [self._ask(request.method, request.params, lambda answer: self._opened(script, answer))]

    def _opened(self, script: HandshakeSteps[str], answer: Raw | RpcError) -> list[Out]:
        """Continue the handshake with the response to the last request of the handshake; report ``Ready`` when the
        handshake is complete."""
        lost = self._opening.lost
        try:
            outs = self._open(script, script.send(answer))
        except StopIteration as done:
            self._session = done.value
            agent = self._opening.agent
            outs = [Ready(self._session if agent.reopens else None, agent.info, agent.takes_up)]
        if self._opening.lost in ("", lost):
            return outs
        self._calls.begin_turn()
        why = f"the conversation could not be loaded, a new one was started: {self._opening.lost}\n"
        return [Text("log", why), *outs]

    # ------------------------------------------------------------------------------------------ the turn
    def _send_prompt(self, text: str) -> Send:
        self._prompts += 1
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        return self._ask("session/prompt", params, self._prompt_answered)

    def _prompt_answered(self, answer: Raw | RpcError) -> list[Out]:
        if isinstance(answer, RpcError):
            problem, status = problem_of(answer)
            return self._prompt_ended(TurnEnded("error", answer.text, problem, status))
        response = read(answer, messages.PromptResponse, "the answer to session/prompt")
        used = self._meter.at_end(response)  # reported after the turn's end
        self._meter.begin()
        self._has_activity = self._has_activity or any(response.used or ())
        return [*self._prompt_ended(self._end_of(response)), *used]

    def _end_of(self, response: messages.PromptResponse) -> TurnEnded:
        """Return the end of the turn that the agent's response to a prompt describes, for a turn that was not
        cancelled."""
        if response.stop_reason not in _STOPS:
            return TurnEnded("error", f"the agent stopped for an unknown reason, {response.stop_reason!r}")
        is_last = response.stop_reason == "end_turn" and self._prompts == 1
        if is_last and response.unanswered and not self._needs_no_model:
            # Its answer was cut only if there was one: a success without a word says nothing about the provider.
            return TurnEnded("error", _CUT_OFF, ModelProblem.CONNECTION if self._has_answer else None)
        return TurnEnded(_STOPS[response.stop_reason])

    def _prompt_ended(self, ended: TurnEnded) -> list[Out]:
        """Count an answered prompt. The turn ends when its last prompt is answered; the first failure among the turn's
        prompts is the result of the turn."""
        self._prompts -= 1
        if self._ended is None and ended.stop != "end_turn":
            self._ended = ended
        if self._prompts:
            return [MessageAccepted()]
        ended = TurnEnded("cancelled") if self._cancelling else self._ended or ended
        return self._end_reported(ended, is_complete=(self._has_answer or self._silent) and not self._calls)

    def _turn_over(self, ended: TurnEnded) -> list[Out]:
        if ended.stop == "end_turn" and not (self._has_activity or self._needs_no_model):
            ended = TurnEnded("error", _SILENT)
        # The protocol makes it the client's duty to close what a cancel left unfinished: most agents do not.
        unfinished = self._calls.close_all("failed") if ended.stop == "cancelled" else self._calls.close_unreported()
        return [*unfinished, ended]

    # ------------------------------------------------------------------------------------------ session/update
    def _update(self, params: Raw) -> list[Out]:
        update = read(params, messages.SessionUpdate, "session/update")
        if self._session not in (None, update.session_id):
            return []
        name = read(update.update, messages.UpdateName, "session/update").session_update
        if update.session_id == self._opening.loading:
            return []
        if name not in _UPDATES:
            return []  # titles, settings: no decision of the supervisor needs them
        kind, handle = _UPDATES[name]
        outs = handle(self, read(update.update, kind, name))
        if self._is_compacting:  # what it says meanwhile is no answer to the prompt
            return [Text("log", one.text) if isinstance(one, Text) else one for one in outs]
        self._has_activity = self._has_activity or any(isinstance(one, Text | ToolOpened | Compaction) for one in outs)
        self._has_answer = self._has_answer or any(
            isinstance(one, ToolOpened) or (isinstance(one, Text) and one.kind == "message") for one in outs
        )
        return outs

    def _tool(self, tool: messages.ToolUpdate) -> list[Out]:
        kind = "agent" if tool.tool in _AGENTS else tool.kind or "other"
        outs: list[Out] = [*self._calls.open(tool.tool_call_id, tool.title or tool.tool_call_id, kind, tool.parent)]
        asked, answered = tool.arguments_and_result
        self._calls.record_digests(tool.tool_call_id, asked=asked, answered=answered)
        if tool.has_empty_result:
            self._calls.record_empty_result(tool.tool_call_id)
        if tool.status in _TOOL_ENDS:
            outs += self._calls.close(tool.tool_call_id, "failed" if self._cancelling else _TOOL_ENDS[tool.status])
        return outs

    def _compaction(self, update: messages.CompactionUpdate) -> list[Out]:
        running = update.compaction_id in self._compacting
        if update.status == "in_progress" and not running:
            self._compacting[update.compaction_id] = None
            return [Compaction(True)]
        if update.status in _COMPACTION_ENDS and running:
            del self._compacting[update.compaction_id]
            return [Compaction(False, failed=_COMPACTION_ENDS[update.status])]
        return []

    def _commands(self, commands: messages.CommandsUpdate) -> list[Out]:
        self._compacts = commands.compacts
        return []

    def _planned(self, plan: messages.PlanUpdate) -> list[Out]:
        """Report the agent's plan as text whenever the agent's plan changes."""
        marked = [f"[{_PLAN_MARKS.get(one.status or '', ' ')}] {one.content}\n" for one in plan.entries]
        before, self._plan = self._plan, "".join(marked)
        return [Text("plan", self._plan)] if self._plan not in ("", before) else []

    def _mode_changed(self, mode: messages.ModeUpdate) -> list[Out]:
        before, self._mode = self._mode, mode.current_mode_id
        return [Text("log", f"the agent is in the mode {self._mode!r}\n")] if self._mode != before else []

    # ------------------------------------------------------------------------------------------ requests of the agent
    def _file(self, rpc_id: RpcId, path: str, text: str | None, lines: tuple[int, int | None] | None) -> list[Out]:
        request_id = self._name("file")
        self._files[request_id] = _FileRequest(rpc_id, lines)
        return [FileRequested(request_id, path, text)]

    def _child_asked(self, rpc_id: RpcId, child: messages.ChildRun) -> list[Out]:
        request_id = self._name("child")
        self._children[request_id] = rpc_id
        call_id = child.tool_call_id if self._calls.is_open(child.tool_call_id) else None
        return [ChildRequested(request_id, child.name, child.prompt, child.agent, call_id, child.cancel_mode)]

    def _is_unanswered(self, rpc_id: RpcId) -> bool:
        """Return whether an earlier request of the agent with this id has no response yet. The number 1 and the text
        "1" are two ids."""
        return (
            self._permissions.waits(rpc_id)
            or self._terminals.waits(rpc_id)
            or rpc_id in self._children.values()
            or any(one.rpc_id == rpc_id for one in self._files.values())
        )

    # ------------------------------------------------------------------------------------------ small parts
    def _ask(self, method: str, params: dict[str, Any], answered: _OnAnswer) -> Send:
        return self._requests.send(method, params, answered, answered)

    def _name(self, kind: str) -> str:
        self._named += 1
        return f"{kind}-{self._named}"


def _text(kind: str, chunk: messages.Chunk) -> list[Out]:
    return [Text(kind, chunk.content.text)] if chunk.content.type == "text" and chunk.content.text else []


def _part(text: str, first: int, count: int | None) -> str:
    """Return *count* lines of *text* from the line with index *first*. Only a newline ends a line, because agents count
    lines this way; a form feed does not."""
    if not first and count is None:
        return text
    lines = StringIO(text, newline="\n").readlines()
    return "".join(lines[first : None if count is None else first + count])


_UPDATES: Final[Mapping[str, tuple[type[JsonRpcMessage], Callable[[AcpCodec, Any], list[Out]]]]] = {
    "agent_message_chunk": (messages.Chunk, lambda _, chunk: _text("message", chunk)),
    "agent_thought_chunk": (messages.Chunk, lambda _, chunk: _text("thought", chunk)),
    "tool_call": (messages.ToolUpdate, AcpCodec._tool),
    "tool_call_update": (messages.ToolUpdate, AcpCodec._tool),
    "usage_update": (messages.UsageUpdate, lambda codec, update: [*codec._meter.update(update)]),
    "session_info_update": (messages.InfoUpdate, lambda _, update: [update.model_error] if update.model_error else []),
    "compaction_update": (messages.CompactionUpdate, AcpCodec._compaction),
    "available_commands_update": (messages.CommandsUpdate, AcpCodec._commands),
    "plan": (messages.PlanUpdate, AcpCodec._planned),
    "current_mode_update": (messages.ModeUpdate, AcpCodec._mode_changed),
}
"""Type and handler of each kind of update: the update is decoded as the type, and the handler translates it."""
