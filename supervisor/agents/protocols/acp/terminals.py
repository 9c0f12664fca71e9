"""Commands ("terminals") that the supervisor runs for an ACP agent: their output, their end, and the requests that wait
for their end.

Each request about a command gets one response. The stored output is valid UTF-8 and never longer than its limit; excess
output is cut off at the front, at a character boundary. A command that the agent has released is removed from the table
when the command has ended.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Any, Final

from supervisor.agents.protocols.acp import messages
from supervisor.agents.protocols.codec_base import ToolCallTable, signal_name
from supervisor.agents.protocols.json_rpc import INVALID_PARAMS, RpcId
from supervisor.ports import Out, TerminalKilled, TerminalOpened
from supervisor.ports.input_limits import TERMINALS_BYTES_MAX, TERMINALS_MAX

OUTPUT_BYTES: Final = 1024 * 1024
"""Number of output bytes that are stored for a command if the agent sets no limit."""

OUTPUT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Largest number of output bytes that are stored for a command, whatever limit the agent sets."""

_SHELL_LINE: Final = re.compile(r"[\s;&|<>()$`\"'*?\[\]{}~#]")
"""Characters that do not occur in a program's name: a command that contains one of them needs a shell."""

WAITING_MAX: Final = 64
"""Number of requests that may wait for the end of one command."""


class AcpTerminals:
    """All commands of one conversation, by the ids that this codec gave the commands."""

    def __init__(self, calls: ToolCallTable) -> None:
        self._calls = calls
        self._known: dict[str, AcpTerminal] = {}

    def create(self, rpc_id: RpcId, terminal_id: str, asked: messages.TerminalCreate) -> list[Out]:
        """Start a command for an agent's tool call: the call that the request names, or the only call that the command
        can serve, or else a new call, which ends with the command."""
        if len(self._known) >= TERMINALS_MAX:
            why = f"terminal/create: there are {len(self._known)} terminals, the most there may be; release some first"
            return [messages.error(rpc_id, INVALID_PARAMS, why)]
        argv = _argv(asked)
        outs: list[Out] = []
        call_id = self._calls.serve(asked.tool_call_id)
        implicit = call_id is None
        if call_id is None:
            call_id = terminal_id
            outs += self._calls.open(call_id, " ".join(argv), "execute")
            self._calls.serve(call_id)
        self._calls.record_digests(call_id, asked="\0".join((*argv, asked.cwd or "")).encode(errors="replace"))
        self._known[terminal_id] = AcpTerminal(limit_bytes=asked.output_byte_limit, implicit=implicit, call_id=call_id)
        env = {one.name: one.value for one in asked.env or ()}
        opened = TerminalOpened(terminal_id, call_id, argv, asked.cwd, env)
        return [*outs, messages.result(rpc_id, {"terminalId": terminal_id}), opened]

    def request(self, rpc_id: RpcId, method: str, terminal_id: str) -> list[Out]:
        """Answer a request of one of :data:`METHODS` about an existing command."""
        terminal = self._known.get(terminal_id)
        if terminal is None or terminal.released:
            why = f"{method}: terminalId: there is no terminal {terminal_id!r}"
            return [messages.error(rpc_id, INVALID_PARAMS, why)]
        return METHODS[method](self, rpc_id, terminal_id, terminal)

    def output(self, terminal_id: str, data: bytes) -> None:
        """Record output of a command; drop old output if all commands together exceed their limit."""
        if terminal_id in self._known:
            self._known[terminal_id].add(data)
            excess = sum(one.kept_bytes for one in self._known.values()) - TERMINALS_BYTES_MAX
            if excess > 0:
                self._known[terminal_id].cut(excess)
            self._calls.add_output(self._known[terminal_id].call_id, data)

    def exited(self, terminal_id: str, status: int | None) -> list[Out]:
        """Record the end of a command: answer the requests that wait for this end, and close the call if the call was
        opened only for the command."""
        terminal = self._known.get(terminal_id)
        if terminal is None or not terminal.running:
            return []
        terminal.exit(status)
        self._calls.add_output(terminal.call_id, f"\0{status}".encode())
        answers: list[Out] = [messages.result(rpc_id, terminal.exit_status()) for rpc_id in terminal.waiting]
        terminal.waiting.clear()
        if terminal.released:
            del self._known[terminal_id]
        if terminal.implicit:
            answers += self._calls.close(terminal_id, "completed" if status == 0 else "failed")
        return answers

    def waits(self, rpc_id: RpcId) -> bool:
        """Return whether the request *rpc_id* waits for the end of a command."""
        return any(rpc_id in terminal.waiting for terminal in self._known.values())

    def withdraw(self, rpc_id: RpcId) -> list[Out]:
        """Answer a request that the agent has cancelled; the command continues."""
        for terminal in self._known.values():
            if rpc_id in terminal.waiting:
                terminal.waiting.remove(rpc_id)
                return [messages.error(rpc_id, messages.CANCELLED, "withdrawn")]
        return []

    def _output(self, rpc_id: RpcId, terminal_id: str, terminal: AcpTerminal) -> list[Out]:
        return [messages.result(rpc_id, terminal.output())]

    def _wait(self, rpc_id: RpcId, terminal_id: str, terminal: AcpTerminal) -> list[Out]:
        if not terminal.running:
            return [messages.result(rpc_id, terminal.exit_status())]
        if len(terminal.waiting) >= WAITING_MAX:
            why = f"terminal/wait_for_exit: {WAITING_MAX} requests wait for {terminal_id!r} already, the most"
            return [messages.error(rpc_id, INVALID_PARAMS, why)]
        terminal.waiting.append(rpc_id)
        return []

    def _kill(self, rpc_id: RpcId, terminal_id: str, terminal: AcpTerminal) -> list[Out]:
        return [*([TerminalKilled(terminal_id)] if terminal.running else []), messages.result(rpc_id, {})]

    def _release(self, rpc_id: RpcId, terminal_id: str, terminal: AcpTerminal) -> list[Out]:
        terminal.release()
        if not terminal.running:
            del self._known[terminal_id]
        return self._kill(rpc_id, terminal_id, terminal)


class AcpTerminal:
    """Command that the supervisor runs for the agent: output so far, end, and the requests that wait for the end."""

    def __init__(self, *, limit_bytes: int | None, implicit: bool, call_id: str = "") -> None:
        self.implicit = implicit
        self.call_id = call_id
        self.released = False
        self.running = True
        self.waiting: list[RpcId] = []
        self._limit_bytes = OUTPUT_BYTES if limit_bytes is None else min(limit_bytes, OUTPUT_BYTES_MAX)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._kept = bytearray()
        self._truncated = False
        self._status: int | None = None

    def add(self, data: bytes, *, final: bool = False) -> None:
        """Add output. Invalid UTF-8 is replaced; an incomplete character waits for its remaining bytes."""
        if self.released:
            return
        self._kept += self._decoder.decode(data, final).encode()
        if (excess := len(self._kept) - self._limit_bytes) > 0:
            self.cut(excess)

    @property
    def kept_bytes(self) -> int:
        return len(self._kept)

    def cut(self, count: int) -> None:
        """Drop the first *count* bytes of the stored output, and the rest of a character that this cut splits."""
        self._truncated = True
        del self._kept[: self._boundary(min(count, len(self._kept)))]

    def exit(self, status: int | None) -> None:
        """Record the end of the command with its exit status; ``None`` is an unknown status."""
        self.add(b"", final=True)
        self.running = False
        self._status = status

    def release(self) -> None:
        """Drop the output: the agent has released the command and will not request the output again."""
        self.released = True
        self._kept.clear()

    def output(self) -> dict[str, Any]:
        """Return the result of a ``terminal/output`` request."""
        answer: dict[str, Any] = {"output": self._kept.decode(), "truncated": self._truncated}
        return answer if self.running else {**answer, "exitStatus": self.exit_status()}

    def exit_status(self) -> dict[str, Any]:
        """Return the result of a ``terminal/wait_for_exit`` request."""
        status = self._status
        if status is not None and status < 0:
            return {"exitCode": None, "signal": signal_name(-status)}
        return {"exitCode": status, "signal": None}

    def _boundary(self, at: int) -> int:
        while at < len(self._kept) and self._kept[at] & 0xC0 == 0x80:
            at += 1
        return at


def _argv(asked: messages.TerminalCreate) -> tuple[str, ...]:
    """Return the command line to run. A whole shell line without arguments, which some agents pass as the command, is
    run by a shell."""
    if not asked.args and _SHELL_LINE.search(asked.command):
        return ("/bin/sh", "-c", asked.command)
    return (asked.command, *(asked.args or ()))


METHODS: Final[dict[str, Callable[[AcpTerminals, RpcId, str, AcpTerminal], list[Out]]]] = {
    "terminal/output": AcpTerminals._output,
    "terminal/wait_for_exit": AcpTerminals._wait,
    "terminal/kill": AcpTerminals._kill,
    "terminal/release": AcpTerminals._release,
}
"""Handlers of the requests about an existing command, by method."""
