"""A simulated agent that speaks ACP version 1 over its pipes: whole sessions of prompts, tools and sub-agents.

The agent writes plain JSON and shares no code with the supervisor's codec, so that a mistake in the agent or the codec
is not hidden by the same mistake on the other side. Each turn follows a turn plan; the fault plan is queried with the
name of the turn (``s1:a2:t3``) or of the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
import msgspec

from actors.one_shot_event import OneShotEvent
from supervisor.simulation.agents.output import Output
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.agents.trouble import Trouble, side_by_side
from supervisor.simulation.agents.turn_plan import (
    Delegation,
    Spend,
    StepPlan,
    ToolPlan,
    TurnPlan,
    depth_of,
    plan_turn,
    said,
)
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import OsProcess, Program

CONTEXT_TOKENS: Final = 200_000
LOSES: Final = 0.1
"""Share of the conversations that the agent cannot load again."""
ENDS_CALLS: Final = 0.3
"""Share of the agents that can end a single tool call that the agent runs itself."""
ASKS_FIRST: Final = 0.3
"""Share of the agents that request permission before they announce a tool call."""
ASKS_AGAIN: Final = 0.2
"""Share of the agents that request permission once more after a tool call, to keep the call's result."""
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_STOPS: Final = ("refusal", "max_tokens", "max_turn_requests")
_OPTIONS: Final = [{"optionId": one, "name": one, "kind": one} for one in ("allow_once", "reject_once")]
_FLOOD_CHARS: Final = 8 * 1024

_FEW: Final = (1, 4)
_PASSES: Final = ("overloaded", "rate_limit", "server_error", "connection", "unknown")
_STAYS: Final = ("authentication_failed", "billing_error", "not_found", "context_length")
_MODEL_TROUBLE: Final = {
    "agent.model_retries": (_PASSES, _FEW),
    "agent.model_down": (_PASSES, (30, 200)),
    "agent.model_denied": (_STAYS, (30, 200)),
}
"""Errors of the model for each kind of fault, and the range of the number of tries that an agent makes if nobody stops
the agent."""

_Answer = dict[str, Any]
"""Result part of a JSON-RPC response: ``{"result": ...}`` or ``{"error": ...}``."""


def acp_agent(shape: AgentShape, random: KeyedRandom, faults: FaultPlan, spend: Spend) -> Program:
    """Return the program of an ACP agent; the names of the agent's draws and faults begin with the process name."""
    return lambda inside: _Agent(inside, shape, random, faults, spend).run()


class _Over(Exception):
    """Exception that ends the agent's turn with this response to the prompt."""

    def __init__(self, answer: _Answer) -> None:
        self.answer = answer


class _Request:
    """Request of the agent to the client. If the task that waits for the response is cancelled, *instead* is called
    with the response."""

    def __init__(self) -> None:
        self.answered = OneShotEvent()
        self.answer: _Answer = {}
        self.instead: Callable[[_Answer], None] | None = None


class _Agent:
    """Simulated ACP agent process with its conversation."""

    def __init__(
        self, inside: OsProcess, shape: AgentShape, random: KeyedRandom, faults: FaultPlan, spend: Spend
    ) -> None:
        self.shape = shape
        self.spend = spend
        self.place = inside.name
        self.session = inside.name
        """Id of the conversation: the name of the agent's process, or the id of a conversation that was loaded."""
        self.random = random.below("agent", inside.name)
        self.trouble = Trouble(inside, faults, inside.name)
        self.tokens = 0
        self._inside = inside
        self._out = Output(inside)
        self._group = anyio.create_task_group()
        self._requests: dict[int, _Request] = {}
        self._asked = 0
        self._turns = 0
        self._depth = 0
        self._working: anyio.CancelScope | None = None
        self.running: dict[str, anyio.CancelScope] = {}
        """Cancel scopes of the tool calls that the agent runs itself, not in a terminal of the client; by call."""
        self._cancelled = False
        self._idle = OneShotEvent()
        self._idle.set()
        self.late_words = 0
        """Number of messages that were sent after the end of a turn."""
        self.going_on = 0
        """Number of turns that are over, but about which the agent still sends messages."""
        self._told: list[Any] = []
        """Ids of the requests to take a message within this turn that have no response yet."""
        self._fate: Callable[[], Awaitable[int]] | None = None

    # -------------------------------------------------------------------------------------------------- the process
    async def run(self) -> int:
        usual_s = self.random.between(*self.shape.start_s, "start")
        status = await self.trouble.at_start(usual_s, self.shape.slow_start_s)
        if status is None:
            status = await self._serve()
        return self.trouble.at_exit(status)

    async def _serve(self) -> int:
        self._out.dribbles = self.trouble.strikes("process.dribble", self.place)
        async with self._group as group:
            group.start_soon(self._out.run)
            group.start_soon(self._read)
        return 0 if self._fate is None else await self._fate()

    async def meet(self, fate: Callable[[], Awaitable[int]]) -> None:
        """Stop all tasks of the agent and carry out *fate*."""
        self._fate = fate
        self._group.cancel_scope.cancel()
        await anyio.sleep_forever()

    async def _read(self) -> None:
        while (line := await self._inside.read_line()).endswith(b"\n"):  # the last one may have been cut short
            self._hear(_decode(line))
        self._cancel()
        await self._idle.wait()
        await self._out.drained()
        self._group.cancel_scope.cancel()

    # ----------------------------------------------------------------------------------------------------- messages
    def put(self, message: dict[str, Any]) -> bytes:
        """Send *message*; return the line that was sent."""
        line = self.line(message)
        self.put_raw(line)
        return line

    def put_raw(self, data: bytes) -> None:
        self._out.put(data)

    def line(self, message: dict[str, Any]) -> bytes:
        return _encode({"jsonrpc": "2.0", **message}) + b"\n"

    def update(self, what: str, **fields: Any) -> dict[str, Any]:
        """Return the message for an update of the session."""
        update = {"sessionUpdate": what, **fields}
        return {"method": "session/update", "params": {"sessionId": self.session, "update": update}}

    def post(self, method: str, params: dict[str, Any]) -> _Request:
        """Send a request to the client; return the request without waiting for the response."""
        asked = _Request()
        self._asked += 1
        self._requests[self._asked] = asked
        self.put({"id": self._asked, "method": method, "params": {"sessionId": self.session, **params}})
        return asked

    async def ask(self, method: str, params: dict[str, Any]) -> _Answer:
        """Send a request to the client, and return the response."""
        asked = self.post(method, params)
        await asked.answered.wait()
        return asked.answer

    def _hear(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case None:
                self._answered(self._requests.pop(message["id"]), message)
            case "session/cancel":
                self._cancel()
            case "session/prompt":
                self._begin(message["id"], message["params"]["prompt"][0]["text"])
            case "_supervisor/session/steer" if self._working is not None:
                self._told.append(message["id"])
            case "_supervisor/tool_call/end":
                self._end_call(message["id"], message["params"]["toolCallId"])
            case "session/load":
                self.put({"id": message["id"], **self._load(message["params"]["sessionId"])})
            case method:
                self.put({"id": message["id"], **self._reply(method)})

    def _end_call(self, rpc_id: Any, call: str) -> None:
        """End one tool call that the agent runs itself, at the client's request; no other call ends."""
        scope = self.running.get(call)
        if scope is None:
            self.put({"id": rpc_id, "error": {"code": -32602, "message": f"{call} is none of ours"}})
        elif not self.trouble.strikes("process.ignores_cancel", call):
            self.put({"id": rpc_id, "result": {}})
            self._group.start_soon(self._react, scope, call)

    def _answered(self, asked: _Request, answer: _Answer) -> None:
        asked.answer = answer
        asked.answered.set()
        if asked.instead is not None:
            asked.instead(answer)

    def _reply(self, method: str) -> _Answer:
        match method:
            case "initialize":
                closes: dict[str, Any] = {"close": {}} if self.random.happens(0.5, "closes") else {}
                info = {"name": "simulated", "version": "1"}
                ours = {"endCalls": self.random.happens(ENDS_CALLS, "ends calls")}
                if self.shape.steers and self.random.happens(self.shape.steers, "steers"):
                    ours["steer"] = True
                can: dict[str, Any] = {
                    "_meta": {"supervisor": ours},
                    "loadSession": self.random.happens(self.shape.loads, "loads"),
                    "sessionCapabilities": closes,
                }
                return {"result": {"protocolVersion": 1, "agentCapabilities": can, "agentInfo": info}}
            case "session/new":
                return {"result": {"sessionId": self.place}}
            case "session/close":
                self._cancel()
                return {"result": {}}
            case _:
                return {"error": {"code": -32601, "message": f"method not found: {method}"}}

    def _load(self, session: str) -> _Answer:
        """Load a conversation: replay some messages, and continue the conversation. Some conversations are lost."""
        if self.random.happens(LOSES, "load"):
            return {"error": {"code": -32602, "message": f"there is no session {session}"}}
        self.session = session
        self.put(self.update("agent_message_chunk", content=_text("as I said before")))
        for status in ("in_progress", "completed"):
            call = {"toolCallId": f"{session}:before", "title": "done long ago", "kind": "execute", "status": status}
            self.put(self.update("tool_call" if status == "in_progress" else "tool_call_update", **call))
        return {"result": None}

    # -------------------------------------------------------------------------------------------------------- turns
    def _begin(self, rpc_id: Any, prompt: str) -> None:
        self._turns += 1
        self._depth = max(self._depth, depth_of(prompt))
        self._working, self._cancelled, self._idle = anyio.CancelScope(), False, OneShotEvent()
        plan = plan_turn(self.shape, self.random, f"{self.place}:t{self._turns}", self._depth)
        self._group.start_soon(self._play, rpc_id, plan, self._working)

    async def _play(self, rpc_id: Any, plan: TurnPlan, scope: anyio.CancelScope) -> None:
        answer: _Answer = {"result": {"stopReason": "cancelled"}}
        with scope:
            answer = await _Turn(self, plan).play()
        self._working = None
        self.take_up({"error": {"code": -32800, "message": "the turn is over"}})
        line = self.put({"id": rpc_id, **answer})
        if self.trouble.strikes("agent.duplicate", plan.place):
            self.put_raw(line)
        self._idle.set()
        self.going_on += 1
        if self.trouble.strikes("agent.compacts", f"{plan.place}:after"):
            await self.compact(f"{plan.place}:after")
        if self.trouble.strikes("agent.late", plan.place):
            await self._talk_on(plan)
        self.going_on -= 1

    async def _talk_on(self, plan: TurnPlan) -> None:
        for at in ("at once", "later"):
            self.late_words += 1
            self.put(self.update("agent_message_chunk", content=_text(f"{plan.place}: one more thing, {at}")))
            self.put(self.update("tool_call_update", toolCallId=f"{plan.place}:c1", status="completed"))
            await anyio.sleep(self.random.between(0.0, 30.0, plan.place, "late", at))

    async def compact(self, place: str) -> None:
        """Compact the context. If the agent announces no end of the compaction, the compaction ends with the turn."""
        random = self.random.below(place, "compaction")
        self.put(self.update("compaction_update", compactionId=place, status="in_progress"))
        await anyio.sleep(random.between(1.0, 30.0, "seconds"))
        status = random.choice(("completed", "completed", "failed", "cancelled", ""), "status")
        if status:
            self.put(self.update("compaction_update", compactionId=place, status=status))

    def _cancel(self) -> None:
        """React to a cancel: stop the turn after a drawn time, unless the fault ``process.ignores_cancel`` strikes."""
        place, first = f"{self.place}:t{self._turns}", not self._cancelled
        self._cancelled = True
        if self._working is not None and first and not self.trouble.strikes("process.ignores_cancel", place):
            self._group.start_soon(self._react, self._working, place)

    async def _react(self, scope: anyio.CancelScope, place: str) -> None:
        await anyio.sleep(self.random.between(*self.shape.cancel_s, place, "cancel"))
        scope.cancel()

    def take_up(self, answer: _Answer) -> None:
        """Respond to all requests to take a message within this turn."""
        told, self._told = self._told, []
        for rpc_id in told:
            self.put({"id": rpc_id, **answer})

    # ------------------------------------------------------------------------------------------------------ terminals
    async def created(self, params: dict[str, Any]) -> _Answer:
        """Create a terminal, and return the response. If a cancellation comes first, the terminal is ended and released
        once it exists."""
        asked = self.post("terminal/create", params)
        try:
            await asked.answered.wait()
        except anyio.get_cancelled_exc_class():
            asked.instead = self._drop
            if asked.answered.is_set():
                self._drop(asked.answer)
            raise
        return asked.answer

    def _drop(self, created: _Answer) -> None:
        if "result" in created:
            self.drop(created["result"]["terminalId"])

    def drop(self, terminal: str) -> None:
        """End a terminal's command, and release the terminal."""
        self.post("terminal/kill", {"terminalId": terminal})
        self.post("terminal/release", {"terminalId": terminal})


class _Turn:
    """Turn of the ACP agent: the work on one prompt, by a turn plan."""

    def __init__(self, agent: _Agent, plan: TurnPlan) -> None:
        self._agent = agent
        self._plan = plan
        self._trouble = agent.trouble

    async def play(self) -> _Answer:
        """Carry out the turn plan; return the response to the prompt."""
        try:
            for at, step in enumerate(self._plan.steps):
                await self._step(at, step)
        except _Over as over:
            return over.answer
        if self._trouble.strikes("agent.open_call", self._plan.place):
            self._tell("tool_call", toolCallId=f"{self._plan.place}:open", title="left open", status="in_progress")
        self._agent.tokens += self._plan.tokens
        used = {"inputTokens": self._plan.tokens, "outputTokens": len(self._plan.steps), "requests": 1}
        self._tell("usage_update", used=self._agent.tokens, size=CONTEXT_TOKENS, _meta={"usage": used})
        return {"result": {"stopReason": "end_turn"}}

    async def _step(self, at: int, step: StepPlan) -> None:
        await anyio.sleep(step.think_s)
        self._agent.take_up({"result": {}})
        self._agent.spend(self._plan.tokens_of(at))
        if at == self._plan.strike_at:
            await self._meet_trouble(self._plan.place)
        if self._trouble.strikes("agent.compacts", f"{self._plan.place}:s{at}"):
            await self._agent.compact(f"{self._plan.place}:s{at}")
        self._tell("agent_message_chunk", content=_text(said(self._plan.place, step.chars)))
        for part in step.parts():
            await side_by_side(self._do, part)

    async def _do(self, one: ToolPlan | Delegation) -> None:
        await (self._delegate(one) if isinstance(one, Delegation) else self._tool(one))

    async def _meet_trouble(self, place: str) -> None:
        fate = self._trouble.fate(place)
        if fate is not None:
            await self._agent.meet(fate)
        line = self._agent.line(self._agent.update("agent_message_chunk", content=_text(said(place, _FLOOD_CHARS))))
        for data in self._trouble.outbursts(place, line):
            self._agent.put_raw(data)
        if self._trouble.strikes("agent.provider_hangs", place):
            await anyio.sleep_forever()
        await self._meet_model_trouble(place)
        if self._trouble.strikes("agent.provider_error", place):
            raise _Over({"error": {"code": -32603, "message": "the model's provider answered 529: overloaded"}})
        if self._trouble.strikes("agent.refuses", place):
            stop = self._agent.random.choice(_STOPS, place, "stop")
            raise _Over({"result": {"stopReason": stop}})

    async def _meet_model_trouble(self, place: str) -> None:
        """If such faults strike, report errors of the model, or model requests without a result, in ``_meta``, as some
        agents do."""
        for kind, (errors, tries) in _MODEL_TROUBLE.items():
            if self._trouble.strikes(kind, place):
                how = self._agent.random.below(place, kind)
                await self._try_again(how, how.choice(errors, "error"), how.integer(*tries, "tries"))
        if not self._agent.going_on and self._trouble.strikes("agent.asks_in_vain", place):
            await self._ask_in_vain(self._agent.random.below(place, "vain"))

    async def _try_again(self, how: KeyedRandom, error: str, tries: int) -> None:
        """Report failed tries of the model, one after the other. Attempts are counted from the last message, including
        late messages of an earlier turn."""
        attempt, late = 0, self._agent.late_words
        for number in range(1, tries + 1):
            wait_ms = how.integer(50, 4_000, "wait", number)
            attempt, late = attempt + 1 if late == self._agent.late_words else 1, self._agent.late_words
            told = {"errorKind": error, "attempt": attempt, "retryMs": wait_ms}
            self._tell("session_info_update", _meta={"modelTrouble": told})
            await anyio.sleep(wait_ms / 1000)
        if tries > _FEW[1]:
            raise _Over({"error": {"code": -32603, "message": "the model fails", "data": {"errorKind": error}}})

    async def _ask_in_vain(self, how: KeyedRandom) -> None:
        pause_s = how.between(0.02, 1.0, "pause")
        for requests in range(1, how.integer(5, 300, "requests")):
            self._tell("usage_update", used=0, size=CONTEXT_TOKENS, _meta={"usage": {"requests": requests}})
            await anyio.sleep(pause_s)

    # -------------------------------------------------------------------------------------------------- what is told
    def _tell(self, what: str, **fields: Any) -> None:
        self._agent.put(self._agent.update(what, **fields))

    def _open(self, call: str, title: str, kind: str, within: str = "") -> None:
        inner: dict[str, Any] = {"_meta": {"claudeCode": {"parentToolUseId": within}}} if within else {}
        self._tell("tool_call", toolCallId=call, title=title, kind=kind, status="pending", **inner)

    def _close(self, call: str, *, done: bool) -> None:
        line = self._agent.put(
            self._agent.update("tool_call_update", toolCallId=call, status="completed" if done else "failed")
        )
        if self._trouble.strikes("agent.duplicate", call):
            self._agent.put_raw(line)

    # --------------------------------------------------------------------------------------------------------- tools
    async def _tool(self, tool: ToolPlan, within: str = "") -> None:
        if tool.inner:
            await self._sub_agent(tool)
            return
        first = tool.asks and self._agent.random.happens(ASKS_FIRST, "asks first")
        if first and not await self._permitted(tool.place):
            return
        self._open(tool.place, f"{tool.way} tool", "execute", within)
        may = first or not tool.asks or await self._permitted(tool.place)
        self._close(tool.place, done=may and await self._run(tool) == 0)
        if tool.asks and self._agent.random.happens(ASKS_AGAIN, "asks again"):
            await self._permitted(tool.place)

    async def _sub_agent(self, tool: ToolPlan) -> None:
        """Run a sub-agent of the agent itself: one tool call that contains the sub-agent's tool calls."""
        self._open(tool.place, "a sub-agent", "agent")
        await side_by_side(partial(self._tool, within=tool.place), tool.inner)
        self._close(tool.place, done=True)

    async def _permitted(self, call: str) -> bool:
        asked = {"toolCall": {"toolCallId": call, "title": "may I?"}, "options": _OPTIONS}
        answer = await self._agent.ask("session/request_permission", asked)
        return bool(answer.get("result", {}).get("outcome", {}).get("optionId") == "allow_once")

    async def _run(self, tool: ToolPlan) -> int:
        match tool.way:
            case "own":
                return await self._by_us(self._trouble.work, tool)
            case "process":
                return await self._by_us(self._trouble.in_process, tool)
            case "terminal":
                return await self._in_terminal(tool)

    async def _by_us(self, work: Callable[[str, float], Awaitable[int]], tool: ToolPlan) -> int:
        status = 1
        with anyio.CancelScope() as scope:
            self._agent.running[tool.place] = scope
            status = await work(tool.place, tool.seconds)
        self._agent.running.pop(tool.place, None)
        return status

    async def _in_terminal(self, tool: ToolPlan) -> int:
        created = await self._agent.created(_command(tool))
        if "error" in created:
            return 1
        terminal = {"terminalId": created["result"]["terminalId"]}
        try:
            self._tell("tool_call_update", toolCallId=tool.place, status="in_progress")
            ended = await self._agent.ask("terminal/wait_for_exit", terminal)
            await self._agent.ask("terminal/output", terminal)
        except anyio.get_cancelled_exc_class():
            self._agent.drop(terminal["terminalId"])
            raise
        self._agent.post("terminal/release", terminal)
        return 0 if ended["result"]["exitCode"] == 0 else 1

    async def _delegate(self, child: Delegation) -> None:
        self._open(child.place, f"delegate to {child.name}", "other")
        asked: dict[str, Any] = {"name": child.name, "prompt": child.prompt, "cancelMode": child.mode.value}
        if child.agent is not None:
            asked["agent"] = child.agent
        answer = await self._agent.ask("_supervisor/session/run", {**asked, "_meta": {"toolCallId": child.place}})
        self._close(child.place, done=answer.get("result", {}).get("outcome") == "completed")


def _command(tool: ToolPlan) -> dict[str, Any]:
    """Return the parameters of a terminal whose command does the work of *tool*. The process name is passed along;
    otherwise the command would have the name of the agent."""
    return {
        "command": "sim-tool",
        "args": [tool.place, f"{tool.seconds:.6f}"],
        "env": [{"name": "SIMULATED_NAME", "value": tool.place}],
        "_meta": {"toolCallId": tool.place},
    }


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
