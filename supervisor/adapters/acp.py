"""The adapter for agents that speak the Agent Client Protocol, version 1, over their standard streams.

We are the client: we ask for a session and give it prompts; the agent tells what it does, and asks us to run commands,
to permit things, and to start sub-agents. Each request of the agent is answered once. The first thing that breaks the
protocol ends the conversation: it is named, and from then on nothing is read or answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw

import supervisor.adapters.acp_messages as wire
from supervisor.adapters.acp_calls import ToolCalls
from supervisor.adapters.acp_messages import Message, RpcError, RpcId, WireError
from supervisor.adapters.acp_telling import Meter, told_of
from supervisor.adapters.acp_terminals import METHODS, Terminals
from supervisor.adapters.exit_status import exit_words
from supervisor.adapters.framing import LINE_BYTES_MAX, Lines
from supervisor.ports import (
    ChildAsked,
    CloseInput,
    Compaction,
    Malformed,
    Out,
    PermissionAsked,
    Ready,
    Send,
    Text,
    TurnEnded,
)

__all__ = ["AcpCodec"]

_CLIENT: Final = {"name": "supervisor-runtime", "version": "0.1.0"}
_CAPABILITIES: Final = {
    "fs": {"readTextFile": False, "writeTextFile": False},
    "terminal": True,
    "session": {"compaction": {}},
    "_meta": {"supervisor": {"sessions": True}},
}
_STOPS: Final = {
    "end_turn": "end_turn",
    "cancelled": "cancelled",
    "refusal": "refusal",
    "max_tokens": "max_tokens",
    "max_turn_requests": "max_turns",
}
_TOOL_ENDS: Final = {"completed": "completed", "failed": "failed", "cancelled": "failed"}
_COMPACTION_ENDS: Final = {"completed": False, "failed": True, "cancelled": True}

_OnResult = Callable[[Raw], list[Out]]
_OnError = Callable[[RpcError], list[Out]]


class AcpCodec:
    """One conversation: one agent process, one session, one prompt at a time.

    ``prompt`` raises RuntimeError before :class:`Ready` and while a turn is under way: ACP has no way to say it then.
    """

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._lines = Lines(line_bytes_max)
        self._replies: dict[int, tuple[_OnResult, _OnError]] = {}
        self._requests = 0
        self._session: str | None = None
        self._loading: str | None = None
        """The conversation that is being loaded: what the agent tells of it meanwhile has been heard before."""
        self._loads = self._closable = False
        self._info = ""
        self._prompted = False
        self._cancelling = False
        self._over = False
        self._calls = ToolCalls()
        self._meter = Meter()
        self._compacting: dict[str, None] = {}
        self._terminals = Terminals(self._calls)
        self._permissions: dict[str, tuple[RpcId, tuple[str, ...]]] = {}
        self._children: dict[str, RpcId] = {}
        self._named = 0

    # ------------------------------------------------------------------------------------------ what we ask for
    @property
    def one_shot(self) -> bool:
        return False

    def argv(self, command: Sequence[str], prompt: str) -> tuple[str, ...]:
        return tuple(command)

    def start(self, cwd: str, resume_id: str | None = None) -> list[Out]:
        hello = {"protocolVersion": wire.PROTOCOL_VERSION, "clientCapabilities": _CAPABILITIES, "clientInfo": _CLIENT}
        on_result: _OnResult = lambda result: self._initialized(result, cwd, resume_id)  # noqa: E731
        return [self._ask("initialize", hello, on_result, self._not_ready)]

    def prompt(self, text: str) -> list[Out]:
        if self._over:
            return []
        if self._session is None or self._prompted:
            raise RuntimeError(f"acp: prompt {'during a turn' if self._prompted else 'before the session is open'}")
        self._prompted, self._cancelling = True, False
        self._calls.forget()
        self._meter.begin()
        self._compacting.clear()
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        return [self._ask("session/prompt", params, self._turn_answered, self._turn_failed)]

    def interrupt(self) -> list[Out]:
        if self._over or not self._prompted:
            return []
        self._cancelling = True
        unanswered = [one for request_id in list(self._permissions) for one in self.permission(request_id, None)]
        return [wire.notification("session/cancel", {"sessionId": self._session}), *unanswered]

    def close(self) -> list[Out]:
        if self._over or self._session is None or not self._closable:
            return [CloseInput()]
        params = {"sessionId": self._session}
        return [self._ask("session/close", params, lambda _: [], lambda _: []), CloseInput()]

    # ------------------------------------------------------------------------------------------ what we are told
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
        if self._session is None:
            return [Malformed(f"the agent {exit_words(status)} before it was ready{half}")]
        if self._prompted:
            return [TurnEnded("error", f"the agent {exit_words(status)} in the middle of a turn{half}")]
        return []

    def permission(self, request_id: str, option_id: str | None) -> list[Out]:
        """Answer once; a request that a cancel has answered already is left alone.

        Raises:
            ValueError: the agent did not offer *option_id*.
        """
        if self._over or request_id not in self._permissions:
            return []
        rpc_id, offered = self._permissions[request_id]
        if option_id is not None and option_id not in offered:
            raise ValueError(f"acp: permission option {option_id!r} was not offered; choose of: {', '.join(offered)}")
        del self._permissions[request_id]
        return [_permission_answer(rpc_id, option_id)]

    def terminal_output(self, terminal_id: str, data: bytes) -> list[Out]:
        self._terminals.output(terminal_id, data)
        return []

    def terminal_exited(self, terminal_id: str, status: int | None) -> list[Out]:
        return [] if self._over else self._terminals.exited(terminal_id, status)

    def child_ended(self, request_id: str, outcome: str, text: str) -> list[Out]:
        if self._over or request_id not in self._children:
            return []
        return [wire.result(self._children.pop(request_id), {"outcome": outcome, "text": text})]

    # ------------------------------------------------------------------------------------------ messages
    def _line(self, line: str) -> list[Out]:
        if not line.strip():
            return []
        try:
            return self._message(wire.read(line, Message, "the agent wrote a line"))
        except WireError as error:
            return self._end(str(error))

    def _message(self, message: Message) -> list[Out]:
        if isinstance(message.method, str):
            if message.id is UNSET:
                return self._update(message.params) if message.method == "session/update" else []
            return self._request(message.id, message.method, message.params)
        if message.id is UNSET or (message.error is None and message.result is UNSET):
            raise WireError("the agent wrote a line that is neither a request, a notification nor a response")
        return self._response(message)

    def _response(self, message: Message) -> list[Out]:
        if not isinstance(message.id, int) or message.id not in self._replies:
            return []
        on_result, on_error = self._replies.pop(message.id)
        if message.error is not None:
            return on_error(message.error)
        return on_result(message.result if isinstance(message.result, Raw) else Raw(b"null"))

    def _request(self, rpc_id: RpcId, method: str, params: Raw) -> list[Out]:
        if method in METHODS:
            return self._terminals.request(rpc_id, method, wire.read(params, wire.TerminalNamed, method).terminal_id)
        match method:
            case "session/request_permission":
                return self._permission_asked(rpc_id, wire.read(params, wire.PermissionRequest, method))
            case "terminal/create":
                asked = wire.read(params, wire.TerminalCreate, method)
                return self._terminals.create(rpc_id, self._name("terminal"), asked)
            case "_supervisor/session/run":
                return self._child_asked(rpc_id, wire.read(params, wire.ChildRun, method))
            case _:
                return [wire.error(rpc_id, wire.METHOD_NOT_FOUND, f"method not found: {method}")]

    # ------------------------------------------------------------------------------------------ opening
    def _initialized(self, result: Raw, cwd: str, resume_id: str | None) -> list[Out]:
        agent = wire.read(result, wire.Initialized, "the answer to initialize")
        if agent.protocol_version != wire.PROTOCOL_VERSION:
            theirs, ours = agent.protocol_version, wire.PROTOCOL_VERSION
            what = f"the agent speaks ACP version {theirs}; this supervisor speaks version {ours}"
            return self._end(f"{what}: install a version of the agent that speaks ACP {ours}")
        self._loads, self._closable, self._info = agent.loads, agent.closable, agent.info
        if resume_id is None:
            return [self._new(cwd)]
        if not self._loads:
            return [*_not_loaded("the agent cannot load conversations any more"), self._new(cwd)]
        self._loading = resume_id
        params = {"sessionId": resume_id, "cwd": cwd, "mcpServers": []}
        return [self._ask("session/load", params, self._loaded, lambda error: self._load_failed(error, cwd))]

    def _new(self, cwd: str) -> Send:
        return self._ask("session/new", {"cwd": cwd, "mcpServers": []}, self._opened, self._not_ready)

    def _opened(self, result: Raw) -> list[Out]:
        return self._begin(wire.read(result, wire.SessionOpened, "the answer to session/new").session_id)

    def _begin(self, session: str) -> list[Out]:
        self._session, self._loading = session, None
        return [Ready(session if self._loads else None, self._info)]

    def _loaded(self, result: Raw) -> list[Out]:
        assert self._loading is not None, "nothing else asks for it"
        return self._begin(self._loading)

    def _load_failed(self, error: RpcError, cwd: str) -> list[Out]:
        """The conversation is lost: the work goes on in a new one."""
        if error.code == wire.AUTHENTICATION_NEEDED:
            return self._not_ready(error)
        self._calls.forget()
        return [*_not_loaded(f"{error.text} (code {error.code})"), self._new(cwd)]

    def _not_ready(self, error: RpcError) -> list[Out]:
        if error.code == wire.AUTHENTICATION_NEEDED:
            fix = "log in with the agent's own program, then start it again"
            return self._end(f"the agent needs authentication: {error.text}: {fix}")
        return self._end(f"the agent refused to open a session: {error.text} (code {error.code})")

    # ------------------------------------------------------------------------------------------ the turn
    def _turn_answered(self, result: Raw) -> list[Out]:
        answer = wire.read(result, wire.Prompted, "the answer to session/prompt")
        reason, used = answer.stop_reason, self._meter.at_end(answer)  # what it used is heard after its end
        if reason not in _STOPS:
            return [*self._turn_ended("error", f"the agent stopped for an unknown reason, {reason!r}"), *used]
        return [*self._turn_ended(_STOPS[reason]), *used]

    def _turn_failed(self, error: RpcError) -> list[Out]:
        cancelled = self._cancelling and error.code == wire.CANCELLED
        return self._turn_ended("cancelled") if cancelled else self._turn_ended("error", error.text)

    def _turn_ended(self, stop: str, error: str = "") -> list[Out]:
        self._prompted = False
        # The protocol makes it the client's duty to close what a cancel left unfinished: most agents do not.
        unfinished = self._calls.close_all("failed") if stop == "cancelled" else []
        return [*unfinished, TurnEnded(stop, error)]

    # ------------------------------------------------------------------------------------------ session/update
    def _update(self, params: Raw) -> list[Out]:
        update = wire.read(params, wire.SessionUpdate, "session/update")
        if self._session not in (None, update.session_id):
            return []
        name = wire.read(update.update, wire.UpdateName, "session/update").session_update
        if update.session_id == self._loading:
            if name == "usage_update":  # what it has cost by now was counted then
                self._meter.update(wire.read(update.update, wire.UsageUpdate, name))
            return []
        match name:
            case "agent_message_chunk":
                return _text("message", wire.read(update.update, wire.Chunk, name))
            case "agent_thought_chunk":
                return _text("thought", wire.read(update.update, wire.Chunk, name))
            case "tool_call" | "tool_call_update":
                return self._tool(wire.read(update.update, wire.ToolUpdate, name))
            case "usage_update":
                return [self._meter.update(wire.read(update.update, wire.UsageUpdate, name))]
            case "compaction_update":
                return self._compaction(wire.read(update.update, wire.CompactionUpdate, name))
            case _:
                return []  # plans, modes, commands: nothing that the supervisor decides by

    def _tool(self, tool: wire.ToolUpdate) -> list[Out]:
        outs: list[Out] = [
            *self._calls.opened(tool.tool_call_id, tool.title or tool.tool_call_id, tool.kind or "other")
        ]
        asked, answered = told_of(tool)
        self._calls.tell(tool.tool_call_id, asked=asked, answered=answered)
        if tool.status in _TOOL_ENDS:
            outs += self._calls.closed(tool.tool_call_id, _TOOL_ENDS[tool.status])
        return outs

    def _compaction(self, update: wire.CompactionUpdate) -> list[Out]:
        running = update.compaction_id in self._compacting
        if update.status == "in_progress" and not running:
            self._compacting[update.compaction_id] = None
            return [Compaction(True)]
        if update.status in _COMPACTION_ENDS and running:
            del self._compacting[update.compaction_id]
            return [Compaction(False, failed=_COMPACTION_ENDS[update.status])]
        return []

    # ------------------------------------------------------------------------------------------ its requests
    def _permission_asked(self, rpc_id: RpcId, asked: wire.PermissionRequest) -> list[Out]:
        if self._cancelling:
            return [_permission_answer(rpc_id, None)]
        request_id = self._name("permission")
        self._permissions[request_id] = (rpc_id, tuple(one.option_id for one in asked.options))
        options = tuple((one.option_id, one.kind) for one in asked.options)
        call = asked.tool_call
        return [PermissionAsked(request_id, call.title or call.tool_call_id, options, call.kind or "other")]

    def _child_asked(self, rpc_id: RpcId, child: wire.ChildRun) -> list[Out]:
        request_id = self._name("child")
        self._children[request_id] = rpc_id
        call_id = child.tool_call_id if self._calls.is_open(child.tool_call_id) else None
        return [ChildAsked(request_id, child.name, child.prompt, child.agent, call_id, child.cancel_mode)]

    # ------------------------------------------------------------------------------------------ small parts
    def _ask(self, method: str, params: dict[str, Any], on_result: _OnResult, on_error: _OnError) -> Send:
        self._requests += 1
        self._replies[self._requests] = (on_result, on_error)
        return wire.request(self._requests, method, params)

    def _name(self, kind: str) -> str:
        self._named += 1
        return f"{kind}-{self._named}"

    def _end(self, why: str) -> list[Out]:
        self._over = True
        return [Malformed(why)]


def _not_loaded(why: str) -> list[Out]:
    return [Text("log", f"the conversation could not be loaded, a new one is begun: {why}\n")]


def _permission_answer(rpc_id: RpcId, option_id: str | None) -> Send:
    if option_id is None:
        return wire.result(rpc_id, {"outcome": {"outcome": "cancelled"}})
    return wire.result(rpc_id, {"outcome": {"outcome": "selected", "optionId": option_id}})


def _text(kind: str, chunk: wire.Chunk) -> list[Out]:
    return [Text(kind, chunk.content.text)] if chunk.content.type == "text" and chunk.content.text else []
