"""Agent without a model: a program that uses ACP version 1 on standard input and output and executes its prompt.

A line of the prompt that starts with ``@`` is a step, any other line is ignored. The steps have real effects: tool
calls, client terminals, sub-agents, permissions, and every kind of misbehaviour that ``STEPS`` names. The program
serves demonstrations and tests. It runs alone and isolated, so it imports only the standard library.

Environment variables:

* ``SCRIPTED_STEERS`` (path of a file in the working directory): accept messages within a turn, between two steps, and
  write one line per message to the file.
* ``SCRIPTED_MEMORY`` (a directory): store conversations in the directory and load them again; a prompt that was
  interrupted continues after the last completed step.
* ``SCRIPTED_COMPACTS``: offer the command ``/compact``, after which 1,000 tokens of the context are used.
* ``SCRIPTED_ENDS_CALLS``: end a call on request, by killing the process of the call but not that process's children.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

_URGENT: Final = "Urgent message"
"""Beginning of a line that marks an urgent message: only the instructions after the last such line count."""

_FLOOD_BYTES: Final = 16 * 1024
_POLL_S: Final = 0.01
_CONTEXT_TOKENS: Final = 200_000
_COMPACTED_TOKENS: Final = 1_000
_COMPACT: Final = "/compact"


# ---------------------------------------------------------------------------------------------------- the script
class Step(NamedTuple):
    """Step of a script: a line that starts with ``@``. The fields are the line's number from 1, its word, the rest of
    the line, and the lines indented below it."""

    line: int
    word: str
    rest: str
    block: str


class BadScript(Exception):
    """Exception: a step cannot be understood or done; the message names the line."""


class RequestRefused(Exception):
    """Exception: the client answered a request of this agent with an error."""


class ModelFailed(Exception):
    """Exception: the simulated model has failed for good; ``data`` describes the failure as agents with a model do."""

    def __init__(self, kind: str, status: int) -> None:
        self.data = {"errorKind": kind, "status": status}
        super().__init__(f"the model failed: {kind}")


class Stop(Exception):
    """Exception that ends the turn; its text is the stop reason."""


def parse(text: str) -> list[Step]:
    """Return the steps of *text*. Only the step ``@agent`` includes the lines that are indented below it.

    Raises:
        BadScript: a step has an unknown word.
    """
    lines = text.splitlines()
    steps: list[Step] = []
    at = 0
    while at < len(lines):
        line, number = lines[at].strip(), at + 1
        at += 1
        if not line.startswith("@"):
            continue
        word, _, rest = line[1:].partition(" ")
        if word not in STEPS:
            raise BadScript(f"line {number}: unknown step @{word}; known steps: {' '.join('@' + one for one in STEPS)}")
        end = _block_end(lines, at) if word == "agent" else at
        steps.append(Step(number, word, rest.strip(), "\n".join(lines[at:end])))
        at = end
    return steps


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block_end(lines: list[str], start: int) -> int:
    """Return the end of the block of lines that are indented below line *start* - 1. Blank lines belong to the block
    only if the block continues after them."""
    own, end = _indent(lines[start - 1]), start
    for at in range(start, len(lines)):
        if lines[at].strip():
            if _indent(lines[at]) <= own:
                break
            end = at + 1
    return end


def urgent_part(text: str) -> tuple[str, str] | None:
    """Return the last urgent message of *text* as one line, and the lines after the message's first line; ``None`` if
    *text* has no urgent message."""
    lines = text.splitlines()
    for at in reversed(range(len(lines))):
        if lines[at].startswith(_URGENT):
            head = lines[at][len(_URGENT) :]
            said = [head.partition(":")[2] or head, *lines[at + 1 :]]
            return " ".join(" ".join(said).split()), "\n" * (at + 1) + "\n".join(lines[at + 1 :])
    return None


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip() or "(no output)"


# ---------------------------------------------------------------------------------------------------- the memory
class Conversation:
    """Conversation stored in a file: one line of JSON for each prompt, completed step, text and end of a turn.

    Without a file the conversation is lost when the process ends.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.lines: list[dict[str, Any]] = []
        if path is not None and path.exists():
            whole = path.read_text().rpartition("\n")[0]  # a kill may have cut the last line
            self.lines = [json.loads(line) for line in whole.splitlines()]

    def keep(self, **what: Any) -> None:
        self.lines.append(what)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(what) + "\n")

    @property
    def prompts(self) -> int:
        return sum("prompt" in line for line in self.lines)

    def done(self, steps: list[Step]) -> int:
        """Return the number of step groups that were completed before the last prompt was interrupted; 0 if that prompt
        had other steps or was not interrupted."""
        begun = [at for at, line in enumerate(self.lines) if "prompt" in line]
        last = self.lines[begun[-1] :] if begun else []
        if not last or any("over" in line for line in last) or last[0]["prompt"] != _texts(steps):
            return 0
        return sum("done" in line for line in last) + int(last[0]["from"])


def _texts(steps: list[Step]) -> list[str]:
    return [f"{step.word} {step.rest} {step.block}" for step in steps]


# ---------------------------------------------------------------------------------------------------- the connection
class Agent:
    """This agent's side of the connection: requests in both directions, and at most one turn per session."""

    def __init__(self) -> None:
        self.directories: dict[str, str] = {}
        self.memories: dict[str, Conversation] = {}
        self._folder = os.environ.get("SCRIPTED_MEMORY")
        self._ends_calls = "SCRIPTED_ENDS_CALLS" in os.environ
        self._compacts = "SCRIPTED_COMPACTS" in os.environ
        self.processes: dict[str, asyncio.Future[int]] = {}
        """Future process id of each call whose command the agent runs itself; set once the process was started."""
        self.cost_usd = 0.0
        self.turns: dict[str, asyncio.Task[str]] = {}
        self.steered: dict[str, list[tuple[Any, str]]] = {}
        """Messages within the turn that a session has not processed yet: the id of the request, and the text."""
        self.deaf = False
        self.ended = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._requests = 0
        self._names = 0
        self._held = bytearray()

    async def run(self) -> None:
        """Serve requests until the end of standard input."""
        asyncio.get_running_loop().add_reader(0, self._readable)
        await self.ended.wait()

    def write(self, data: bytes) -> None:
        """Write all of *data* to standard output. If the client no longer reads, the agent ends, unless the agent is
        deaf."""
        try:
            while data:
                data = data[os.write(1, data) :]
        except BrokenPipeError:
            self._end_of_input()

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")

    def post(self, method: str, params: dict[str, Any]) -> asyncio.Future[Any]:
        """Send a request; return a future for the request's result."""
        self._requests += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._requests] = answer
        self.send({"id": self._requests, "method": method, "params": params})
        return answer

    def name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}-{self._names}"

    def _readable(self) -> None:
        data = os.read(0, 65536)
        if not data:
            asyncio.get_running_loop().remove_reader(0)
            self._end_of_input()
        self._held += data
        *lines, rest = self._held.split(b"\n") if b"\n" in data else [self._held]
        self._held = rest
        for line in lines:
            self._message(json.loads(line))

    def _end_of_input(self) -> None:
        if not self.deaf:
            self.ended.set()

    def _message(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            self._answered(message)
        elif "id" in message:
            self._request(message["id"], message["method"], message.get("params") or {})
        elif message["method"] == "session/cancel":
            self._cancel(message["params"]["sessionId"])

    def _answered(self, message: dict[str, Any]) -> None:
        answer = self._waiting.pop(message["id"], None)
        if answer is None or answer.done():
            return
        if "error" in message:
            answer.set_exception(RequestRefused(message["error"]["message"]))
        else:
            answer.set_result(message["result"])

    def _request(self, rpc_id: Any, method: str, params: dict[str, Any]) -> None:
        match method:
            case "initialize":
                self.send({"id": rpc_id, "result": self._hello()})
            case "session/new":
                session = self.name("session" if self._folder is None else f"session-{uuid.uuid4().hex}")
                self._open(session, params["cwd"])
                self.send({"id": rpc_id, "result": {"sessionId": session}})
                self._offer_commands(session)
            case "session/load":
                self._load(rpc_id, params["sessionId"], params["cwd"])
            case "session/prompt":
                self._prompt(rpc_id, params["sessionId"], params["prompt"])
            case "_supervisor/session/steer" if params["sessionId"] in self.turns:
                self.steered.setdefault(params["sessionId"], []).append((rpc_id, _text_of(params["prompt"])))
                with Path(self.directories[params["sessionId"]], os.environ["SCRIPTED_STEERS"]).open("a") as came:
                    came.write(f"{rpc_id}\n")
            case "session/close":
                self._cancel(params["sessionId"])
                self.send({"id": rpc_id, "result": {}})
            case "_supervisor/tool_call/end" if self._ends_calls:
                self._end_call(rpc_id, params["toolCallId"])
            case _:
                self.send({"id": rpc_id, "error": {"code": -32601, "message": f"method not found: {method}"}})

    def _open(self, session: str, cwd: str) -> None:
        self.directories[session] = cwd
        self.memories[session] = Conversation(None if self._folder is None else Path(self._folder, session))

    def _load(self, rpc_id: Any, session: str, cwd: str) -> None:
        """Load a stored conversation: send its texts again, as the protocol requires, so that the conversation can
        continue."""
        if self._folder is None or not Path(self._folder, session).is_file() or "/" in session:
            self.send({"id": rpc_id, "error": {"code": -32602, "message": f"session/load: no session {session!r}"}})
            return
        self._open(session, cwd)
        for line in self.memories[session].lines:
            if "said" in line:
                chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": line["said"]}}
                self.send({"method": "session/update", "params": {"sessionId": session, "update": chunk}})
        self.send({"id": rpc_id, "result": None})
        self._offer_commands(session)

    def _offer_commands(self, session: str) -> None:
        if self._compacts:
            offered = [{"name": _COMPACT[1:], "description": "compact the context"}]
            update = {"sessionUpdate": "available_commands_update", "availableCommands": offered}
            self.send({"method": "session/update", "params": {"sessionId": session, "update": update}})

    def _hello(self) -> dict[str, Any]:
        capabilities: dict[str, Any] = {"loadSession": self._folder is not None, "sessionCapabilities": {"close": {}}}
        ours = {"endCalls": self._ends_calls, "steer": "SCRIPTED_STEERS" in os.environ}
        if any(ours.values()):
            capabilities["_meta"] = {"supervisor": ours}
        info = {"name": "scripted", "version": "1"}
        return {"protocolVersion": 1, "agentCapabilities": capabilities, "agentInfo": info, "authMethods": []}

    def _prompt(self, rpc_id: Any, session: str, blocks: list[dict[str, Any]]) -> None:
        if session in self.turns or session not in self.directories:
            why = "a turn is under way" if session in self.turns else "there is no such session"
            self.send({"id": rpc_id, "error": {"code": -32600, "message": f"session/prompt: {session}: {why}"}})
            return
        text = _text_of(blocks)
        turn = Turn(self, session, Path(self.directories[session]))
        if self._compacts and text == _COMPACT:
            turn.update("usage_update", used=_COMPACTED_TOKENS, size=_CONTEXT_TOKENS)
        playing = self.turns[session] = asyncio.ensure_future(turn.play(text))
        playing.add_done_callback(lambda played: self._played(rpc_id, session, played, turn))

    def _played(self, rpc_id: Any, session: str, played: asyncio.Task[str], turn: Turn) -> None:
        """Answer the prompt when its turn is over. This is a callback and not the end of the turn's task, because a
        cancel may reach a task before the task begins."""
        del self.turns[session]
        for unheard, _ in self.steered.pop(session, ()):
            self.send({"id": unheard, "error": {"code": -32800, "message": "its turn is over"}})
        usage = {"usage": turn.usage} if any(turn.tokens) else {}
        if played.cancelled():
            self.send({"id": rpc_id, "result": {"stopReason": "cancelled", **usage}})
        elif isinstance(error := played.exception(), ModelFailed):
            self.send({"id": rpc_id, "error": {"code": -32603, "message": str(error), "data": error.data}})
        elif error is not None:
            why = str(error) if isinstance(error, BadScript) else f"the scripted agent failed: {error!r}"
            self.send({"id": rpc_id, "error": {"code": -32603, "message": why}})
        else:
            self.send({"id": rpc_id, "result": {"stopReason": played.result(), **usage}})

    def _end_call(self, rpc_id: Any, call: str) -> None:
        if call not in self.processes:
            self.send({"id": rpc_id, "error": {"code": -32602, "message": f"no command of mine serves {call}"}})
        elif not self.deaf:
            self.processes[call].add_done_callback(_kill)
            self.send({"id": rpc_id, "result": {}})

    def _cancel(self, session: str) -> None:
        if session in self.turns and not self.deaf:
            self.turns[session].cancel()


def _text_of(blocks: list[dict[str, Any]]) -> str:
    return "\n".join(block["text"] for block in blocks if block["type"] == "text")


# ---------------------------------------------------------------------------------------------------- the steps
class Turn:
    """Execution of one prompt in one session."""

    def __init__(self, agent: Agent, session: str, cwd: Path) -> None:
        self.agent = agent
        self.session = session
        self.cwd = cwd
        self.memory = agent.memories[session]
        self.tokens = (0, 0)
        """Input and output tokens that this turn has used so far."""

    @property
    def usage(self) -> dict[str, int]:
        into, out = self.tokens
        return {"inputTokens": into, "outputTokens": out, "totalTokens": into + out}

    async def play(self, text: str) -> str:
        """Execute the steps of *text* in order; return the stop reason."""
        urgent = urgent_part(text)
        steps = parse(urgent[1] if urgent else text)
        if not steps:
            self.say(f"understood: {urgent[0]}" if urgent else "nothing to do")
        done = self.memory.done(steps)
        self.memory.keep(**{"prompt": _texts(steps), "from": done})
        if done:
            self.say(f"going on after {done} of {len(list(_groups(steps)))}")
        try:
            for group in list(_groups(steps))[done:]:
                await _all(self._step(step) for step in group)
                self.memory.keep(done=group[0].line)
                self._take_up()
        except Stop as stop:
            return self._over(str(stop))
        except BadScript:
            self._over("failed")
            raise
        return self._over("end_turn")

    def _take_up(self) -> None:
        """Answer the messages that arrived within the turn since the last step."""
        for rpc_id, text in self.agent.steered.pop(self.session, ()):
            urgent = urgent_part(text)
            self.say(f"understood within the turn: {urgent[0] if urgent else text}")
            self.agent.send({"id": rpc_id, "result": {}})

    def _over(self, stop: str) -> str:
        self.memory.keep(over=stop)
        return stop

    async def _step(self, step: Step) -> None:
        try:
            await STEPS[step.word](self, step)
        except (OSError, ValueError, RequestRefused) as error:
            raise BadScript(f"line {step.line}: @{step.word} {step.rest}: {error}") from error

    # ---------------------------------------------------------------------------- what the client is told
    def update(self, what: str, /, **fields: Any) -> None:
        update = {"sessionUpdate": what, **fields}
        self.agent.send({"method": "session/update", "params": {"sessionId": self.session, "update": update}})

    def say(self, text: str) -> None:
        self.memory.keep(said=text + "\n")
        self.update("agent_message_chunk", content={"type": "text", "text": text + "\n"})

    def tool(self, title: str, kind: str) -> str:
        call = self.agent.name("call")
        self.update("tool_call", toolCallId=call, title=title, kind=kind, status="pending")
        return call

    def progress(self, call: str, status: str, **fields: Any) -> None:
        self.update("tool_call_update", toolCallId=call, status=status, **fields)

    async def ask(self, method: str, **params: Any) -> Any:
        return await self.agent.post(method, {"sessionId": self.session, **params})

    # ---------------------------------------------------------------------------- tools
    async def in_terminal(self, command: str) -> str:
        """Make a tool call whose command the client runs in a terminal; return a text about the result."""
        call = self.tool(command, "execute")
        try:
            code, output = await self._terminal(call, command)
        except RequestRefused as error:
            self.progress(call, "failed")
            return f"the command could not run: {error}"
        return self._finished(call, code, output)

    async def _terminal(self, call: str, command: str) -> tuple[int | str, str]:
        shell = {"command": "sh", "args": ["-c", command], "cwd": str(self.cwd), "_meta": {"toolCallId": call}}
        terminal = await self._created(self.agent.post("terminal/create", {"sessionId": self.session, **shell}))
        try:
            self.progress(call, "in_progress", content=[{"type": "terminal", "terminalId": terminal}])
            ended = await self.ask("terminal/wait_for_exit", terminalId=terminal)
            output = (await self.ask("terminal/output", terminalId=terminal))["output"]
        except asyncio.CancelledError:
            self._drop(terminal)
            raise
        await self.ask("terminal/release", terminalId=terminal)
        code = ended.get("exitCode")
        return (ended.get("signal") or "unknown") if code is None else code, output

    async def _created(self, answer: asyncio.Future[Any]) -> str:
        """Return the id of a requested terminal. If a cancel arrives before the client's response, the terminal is
        dropped when the response arrives."""
        try:
            return str((await asyncio.shield(answer))["terminalId"])
        except asyncio.CancelledError:
            answer.add_done_callback(self._created_late)
            raise

    def _created_late(self, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._drop(answer.result()["terminalId"])

    def _drop(self, terminal: str) -> None:
        for method in ("terminal/kill", "terminal/release"):
            self.agent.post(method, {"sessionId": self.session, "terminalId": terminal})

    async def locally(self, command: str) -> str:
        """Make a tool call whose command the agent runs itself; return a text about the result."""
        call = self.tool(command, "execute")
        started = self.agent.processes[call] = asyncio.get_running_loop().create_future()
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", command),
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.set_result(process.pid)
        self.progress(call, "in_progress")
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        finally:
            del self.agent.processes[call]
        return self._finished(call, process.returncode or 0, output.decode(errors="replace"))

    def _finished(self, call: str, code: int | str, output: str) -> str:
        self.progress(call, "completed" if code == 0 else "failed")
        return _first_line(output) if code == 0 else f"the command failed ({code}): {_first_line(output)}"

    async def child(self, step: Step) -> None:
        """Make a tool call that is a child session, which the client runs; report the child's outcome as text."""
        name, _, agent = step.rest.partition(" ")
        call = self.tool(f"agent {name}", "other")
        self.progress(call, "in_progress")
        params = {"name": name, "prompt": step.block, "_meta": {"toolCallId": call}}
        try:
            answer = await self.agent.post("_supervisor/session/run", {**params, **({"agent": agent} if agent else {})})
        except RequestRefused as error:
            answer = {"outcome": "failed", "text": str(error)}
        self.progress(call, "completed" if answer["outcome"] == "completed" else "failed")
        self.say(f"{name} {answer['outcome']}: {_first_line(answer['text'])}")


def _kill(started: asyncio.Future[int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(started.result(), signal.SIGKILL)


def _groups(steps: list[Step]) -> Iterator[list[Step]]:
    """Yield the steps in groups: adjacent ``@agent`` steps as one group, every other step alone."""
    group: list[Step] = []
    for step in steps:
        if group and not (step.word == "agent" == group[-1].word):
            yield group
            group = []
        group.append(step)
    if group:
        yield group


async def _all(work: Iterator[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run *work* concurrently. A cancel is passed on to every part, and the function waits until all parts have
    ended."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _think(turn: Turn, step: Step) -> None:
    turn.update("agent_thought_chunk", content={"type": "text", "text": step.rest + "\n"})


async def _pause(turn: Turn, step: Step) -> None:
    """Step ``@pause``: wait for a number of seconds, as a model would."""
    await asyncio.sleep(float(step.rest))


async def _inside(turn: Turn, step: Step) -> None:
    """Step ``@inside``: make a tool call that has no process and never ends."""
    turn.progress(turn.tool(step.rest, "other"), "in_progress")
    await asyncio.Event().wait()


async def _say(turn: Turn, step: Step) -> None:
    turn.say(step.rest)


async def _write(turn: Turn, step: Step) -> None:
    path, _, text = step.rest.partition(" ")
    target = turn.cwd / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text.replace("\\n", "\n"))


async def _open(turn: Turn, step: Step) -> None:
    """Step ``@open a.txt``: request the client to read the file, and report the file's content."""
    path = str(turn.cwd / step.rest)
    try:
        turn.say((await turn.ask("fs/read_text_file", path=path))["content"])
    except RequestRefused as error:
        turn.say(f"it could not be read: {error}")


async def _save(turn: Turn, step: Step) -> None:
    """Step ``@save a.txt text``: request the client to write *text* to the file."""
    path, _, text = step.rest.partition(" ")
    try:
        await turn.ask("fs/write_text_file", path=str(turn.cwd / path), content=text)
    except RequestRefused as error:
        turn.say(f"it could not be written: {error}")


async def _run(turn: Turn, step: Step) -> None:
    turn.say(await turn.in_terminal(step.rest))


async def _tools(turn: Turn, step: Step) -> None:
    count, _, command = step.rest.partition(" ")
    for said in await _all(turn.in_terminal(command) for _ in range(int(count))):
        turn.say(said)


async def _local(turn: Turn, step: Step) -> None:
    turn.say(await turn.locally(step.rest))


async def _agent(turn: Turn, step: Step) -> None:
    await turn.child(step)


async def _ask(turn: Turn, step: Step) -> None:
    """Step ``@ask edit: a.txt``: request a permission for a call of kind ``edit``; end the turn if the permission is
    not granted."""
    first = step.rest.partition(": ")[0]
    kind = first if first in ("read", "edit", "delete", "move", "execute", "fetch") else "other"
    call = {"toolCallId": turn.agent.name("call"), "title": step.rest, "kind": kind, "status": "pending"}
    options = [
        {"optionId": kind, "name": kind.replace("_", " "), "kind": kind} for kind in ("allow_once", "reject_once")
    ]
    answer = (await turn.ask("session/request_permission", toolCall=call, options=options))["outcome"]
    if answer.get("optionId") != "allow_once":
        turn.say(f"refused: {step.rest}")
        raise Stop("end_turn")


async def _fail(turn: Turn, step: Step) -> None:
    raise BadScript(step.rest or "failed")


async def _refuse(turn: Turn, step: Step) -> None:
    raise Stop("refusal")


async def _exit(turn: Turn, step: Step) -> None:
    os._exit(int(step.rest))


async def _crash_once(turn: Turn, step: Step) -> None:
    path, _, code = step.rest.partition(" ")
    if not (turn.cwd / path).exists():
        (turn.cwd / path).touch()
        os._exit(int(code))


async def _hang(turn: Turn, step: Step) -> None:
    await asyncio.Event().wait()


async def _deaf(turn: Turn, step: Step) -> None:
    turn.agent.deaf = True
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


async def _daemon(turn: Turn, step: Step) -> None:
    """Step ``@daemon``: leave a daemon running. A shell in a session of its own starts a child and ends, so that the
    child has no parent."""
    script = "trap '' TERM; sleep 86400 >/dev/null & echo $!"
    done = subprocess.run(  # noqa: ASYNC221  a shell that ends at once
        ["sh", "-c", script], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
    )
    turn.say(f"daemon {done.stdout.decode().strip()}")


async def _flood(turn: Turn, step: Step) -> None:
    left = int(step.rest)
    while left > 0:
        part = min(left, _FLOOD_BYTES)
        turn.update("agent_message_chunk", content={"type": "text", "text": "x" * part})
        left -= part
        await asyncio.sleep(0)


async def _garbage(turn: Turn, step: Step) -> None:
    turn.agent.write(b"this is not JSON\n")


async def _utf8(turn: Turn, step: Step) -> None:
    turn.agent.write(b'{"jsonrpc":"2.0","method":"session/update","params":"\xff\xfe"}\n')


async def _longline(turn: Turn, step: Step) -> None:
    turn.update("agent_message_chunk", content={"type": "text", "text": "x" * int(step.rest)})


async def _halfline(turn: Turn, step: Step) -> None:
    turn.agent.write(b'{"jsonrpc":"2.0","method":"session/upd')
    os._exit(0)


async def _wait(turn: Turn, step: Step) -> None:
    while not (turn.cwd / step.rest).exists():  # noqa: ASYNC110  another program makes it
        await asyncio.sleep(_POLL_S)


async def _compact(turn: Turn, step: Step) -> None:
    compaction = turn.agent.name("compaction")
    for status in ("in_progress", "completed"):
        turn.update("compaction_update", compactionId=compaction, status=status)


async def _recall(turn: Turn, step: Step) -> None:
    turn.say(f"prompts so far: {turn.memory.prompts}")


async def _usage(turn: Turn, step: Step) -> None:
    turn.update("usage_update", used=int(step.rest), size=_CONTEXT_TOKENS)


async def _use(turn: Turn, step: Step) -> None:
    """Step ``@use``: add input tokens, output tokens and US dollars, and report the totals of the turn and of the
    process."""
    into, out, cost_usd = [*step.rest.split(), "0", "0"][:3]
    turn.tokens = (turn.tokens[0] + int(into), turn.tokens[1] + int(out))
    turn.agent.cost_usd += float(cost_usd)
    turn.update(
        "usage_update",
        used=sum(turn.tokens),
        size=_CONTEXT_TOKENS,
        cost={"amount": turn.agent.cost_usd, "currency": "USD"},
        _meta={"usage": turn.usage},
    )


async def _trouble(turn: Turn, step: Step) -> None:
    """Step ``@trouble KIND STATUS TIMES``: report that many failing model requests, each with an announced retry."""
    kind, status, times = step.rest.split()
    for attempt in range(1, int(times) + 1):
        told = {
            "errorKind": kind,
            "status": int(status),
            "attempt": attempt,
            "retryMs": 10,
            "message": f"it says {kind}",
        }
        turn.update("session_info_update", _meta={"modelTrouble": told})
        await asyncio.sleep(_POLL_S)


async def _model_fails(turn: Turn, step: Step) -> None:
    kind, status = step.rest.split()
    raise ModelFailed(kind, int(status))


async def _vain(turn: Turn, step: Step) -> None:
    """Step ``@vain``: report the given number of model requests that give no result."""
    for _ in range(int(step.rest)):
        turn.update("usage_update", used=sum(turn.tokens), size=_CONTEXT_TOKENS)
        await asyncio.sleep(0)


STEPS: Final[dict[str, Callable[[Turn, Step], Awaitable[None]]]] = {
    "think": _think,
    "pause": _pause,
    "inside": _inside,
    "say": _say,
    "write": _write,
    "open": _open,
    "save": _save,
    "run": _run,
    "tools": _tools,
    "local": _local,
    "agent": _agent,
    "ask": _ask,
    "fail": _fail,
    "refuse": _refuse,
    "exit": _exit,
    "crash-once": _crash_once,
    "hang": _hang,
    "deaf": _deaf,
    "daemon": _daemon,
    "flood": _flood,
    "garbage": _garbage,
    "utf8": _utf8,
    "longline": _longline,
    "halfline": _halfline,
    "wait": _wait,
    "compact": _compact,
    "recall": _recall,
    "usage": _usage,
    "use": _use,
    "trouble": _trouble,
    "model-fails": _model_fails,
    "vain": _vain,
}
"""Functions of the steps, by the step's word; this table is the script language."""


def main() -> None:
    """Serve one client until the end of standard input. SIGINT ends the agent without a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.set_blocking(1, True)
    asyncio.run(Agent().run())


if __name__ == "__main__":
    main()
