"""Run one process of an agent with its codec, under a shim as in the runtime, and record every report of the agent.

The driver grants permissions, reads and writes files of the agent's directory, and runs the commands that the agent
requests, each command under a shim too. Every wait is bounded.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import anyio.abc

from supervisor.agents.codecs import codec_for
from supervisor.agents.probe.sandbox import Sandbox
from supervisor.ports import (
    AgentOptions,
    CloseInput,
    Codec,
    ConversationNamed,
    FileRequested,
    Launch,
    Malformed,
    Out,
    PermissionNeeded,
    Process,
    ProcessHost,
    Ready,
    Send,
    Signal,
    SpawnError,
    TerminalKilled,
    TerminalOpened,
    Text,
    TurnEnded,
    TurnEnding,
)
from supervisor.ports.input_limits import QUIET_S
from supervisor.workspaces.files import DiskFiles

READY_S: Final = 60.0
SETTLE_S: Final = 3.0
"""Seconds that processes left by an agent have to end without being killed."""
LOOK_S: Final = 0.05


ERRORS_MAX: Final = 4_000
"""Number of bytes of the agent's standard error that are kept."""
WORDS_MAX: Final = 200
"""Number of characters of the agent's last words."""


class Operator(Enum):
    """Operator of a probe, who answers what the agent asks: the kind of the option that the operator chooses. Without
    such an option, and if nobody answers, the request is cancelled."""

    ALLOWS = "allow_once"
    DENIES = "reject_once"
    NOBODY = ""


class NoResponse(Exception):
    """Exception: the agent did not send the report that the probe waited for; the message says what happened
    instead."""


class ExitReport(NamedTuple):
    """Exit status of an agent's program, and the command lines of the processes that the program left running."""

    status: int
    commands: list[str]


class ProbedAgent:
    """Running agent of a probe, with the reports that the agent has sent so far (``said``)."""

    def __init__(
        self,
        process: Process,
        codec: Codec,
        host: ProcessHost,
        sandbox: Sandbox,
        report: Path | None,
        operator: Operator = Operator.ALLOWS,
    ) -> None:
        self.said: list[Out] = []
        self.resume_id: str | None = None
        self.status: int | None = None
        """Exit status of the agent's process; ``None`` while it runs."""
        self._operator = operator
        self._last_errors = b""
        self._process = process
        self._codec = codec
        self._host = host
        self._sandbox = sandbox
        self._report = report
        self._news = anyio.Event()
        self._terminals: dict[str, Process] = {}
        self._group: anyio.abc.TaskGroup | None = None

    # ------------------------------------------------------------------ commands
    async def prompt(self, text: str) -> None:
        await self._take(self._codec.prompt(text))

    async def interrupt(self) -> None:
        await self._take(self._codec.interrupt())

    async def steer(self, text: str) -> bool:
        """Send *text* within the turn; return whether the protocol can do that now."""
        outs = self._codec.steer(text)
        await self._take(outs or ())
        return outs is not None

    async def end_call(self, call_id: str) -> bool:
        """Request the end of one call; return whether the protocol has such a request."""
        outs = self._codec.end_call(call_id)
        await self._take(outs or ())
        return outs is not None

    def kill(self) -> None:
        """Kill the agent and every process that it has started."""
        self._process.kill()

    async def close(self) -> None:
        await self._take([*self._codec.close(), CloseInput()])

    async def close_input(self) -> None:
        """Close the agent's input without sending a message before."""
        self._process.close_input()

    def signal(self, number: int) -> None:
        """Send a signal to the agent's own process only, not to the processes that the agent has started."""
        assert self._report is not None, "it runs where what it leaves is watched"
        os.kill(int(self._report.with_suffix(".pid").read_text()), number)

    # ------------------------------------------------------------------ what it says
    @property
    def text(self) -> str:
        """Text of the agent's answers so far."""
        return "".join(one.text for one in self.said if isinstance(one, Text) and one.kind == "message")

    @property
    def last_words(self) -> str:
        """Last lines that the agent wrote to its standard error, or as log lines, as one line."""
        logged = "".join(one.text for one in self.said if isinstance(one, Text) and one.kind == "log")
        lines = (self._last_errors.decode(errors="replace") or logged).split("\n")
        return " ".join(" ".join(lines).split())[-WORDS_MAX:]

    @property
    def is_one_shot(self) -> bool:
        """Whether the process serves one prompt."""
        return self._codec.one_shot

    async def until(self, reached: Callable[[Out], bool], limit_s: float, seen: int = 0) -> Out:
        """Return the first report, after the first *seen* reports, for which *reached* is true.

        Raises:
            NoResponse: no such report came within *limit_s*, or the agent broke its protocol.
        """
        with anyio.move_on_after(limit_s):
            while True:
                found = next((one for one in self.said[seen:] if reached(one) or isinstance(one, Malformed)), None)
                if isinstance(found, Malformed) and not reached(found):
                    raise NoResponse(found.why)
                if found is not None:
                    return found
                await self._news.wait()
        raise NoResponse(f"nothing came within {limit_s:.0f} s")

    async def ended(self, limit_s: float, seen: int = 0) -> TurnEnded:
        """Wait for the end of the turn, after the first *seen* reports, and return the report of the end."""
        found = await self.until(lambda one: isinstance(one, TurnEnded), limit_s, seen)
        assert isinstance(found, TurnEnded)
        return found

    async def until_exit(self, limit_s: float) -> None:
        """Wait until the agent's process has exited, at most *limit_s*."""
        with anyio.move_on_after(limit_s):
            while self.status is None:  # noqa: ASYNC110 - the reader of its output sets it
                await anyio.sleep(LOOK_S)

    async def left(self, limit_s: float) -> ExitReport | None:
        """Return the exit status of the agent's program and the processes that the program left running; ``None`` if
        the program has not ended in time."""
        assert self._report is not None, "it runs where what it leaves is watched"
        with anyio.move_on_after(limit_s + SETTLE_S):
            while not self._report.exists():  # noqa: ASYNC110 - a file that another process writes
                await anyio.sleep(LOOK_S)
            report = json.loads(self._report.read_text())
            return ExitReport(report["status"], report["left"])
        return None

    # ------------------------------------------------------------------ the process
    async def listen(self, group: anyio.abc.TaskGroup) -> None:
        """Read the agent's output, and pass it to the codec, until the agent's process has exited."""
        self._group = group
        group.start_soon(self._errors)
        while data := await self._process.receive():
            await self._take(self._codec.feed(data))
        await self._take(self._codec.feed(b""))
        self.status = await self._process.wait_exit()
        await self._take(self._codec.exited(self.status))

    async def begin(self, cwd: str, resume_id: str | None) -> None:
        await self._take(self._codec.start(cwd, resume_id))
        await self.until(lambda one: isinstance(one, Ready), READY_S)

    async def _errors(self) -> None:
        while data := await self._process.receive_err():
            self._last_errors = (self._last_errors + data)[-ERRORS_MAX:]

    async def _take(self, outs: Iterable[Out]) -> None:
        for out in outs:
            match out:
                case Send(data):
                    await self._process.send(data)
                case CloseInput():
                    self._process.close_input()
                case Signal(number):
                    self._process.signal(number)
                case PermissionNeeded(request_id=request_id, options=options):
                    answer = next((option for option, kind in options if kind == self._operator.value), None)
                    await self._take(self._codec.permission(request_id, answer))
                case FileRequested(request_id, path, text):
                    await self._take(self._codec.file_answered(request_id, *await self._file(path, text)))
                case TerminalOpened() if self._group is not None:
                    self._group.start_soon(self._terminal, out)
                case TerminalKilled(terminal_id) if terminal_id in self._terminals:
                    self._terminals[terminal_id].kill()
                case Ready(resume_id) | ConversationNamed(resume_id):
                    self.resume_id = resume_id or self.resume_id
                case TurnEnding() if self._group is not None and not self._codec.one_shot:
                    self._group.start_soon(self._settle)
            if not isinstance(out, Send | CloseInput | Signal):
                self.said.append(out)
                self._news.set()
                self._news = anyio.Event()

    async def _settle(self) -> None:
        """End the turn whose end the agent has reported, after the time in which late messages may come."""
        await anyio.sleep(QUIET_S)
        await self._take(self._codec.settled())

    async def _file(self, path: str, text: str | None) -> tuple[str, str]:
        """Read a file of the agent's directory, or write *text* to the file; return the content and the error text."""
        workspace = str(self._sandbox.directory)
        try:
            if text is None:
                return await DiskFiles().read(path, workspace), ""
            await DiskFiles().write(path, text, workspace)
        except OSError as error:
            return "", str(error)
        return "", ""

    async def _terminal(self, asked: TerminalOpened) -> None:
        status: int | None = 127
        launch = Launch(
            argv=asked.argv, cwd=asked.cwd or str(self._sandbox.directory), env={**self._sandbox.env, **asked.env}
        )
        try:
            async with self._host.spawn(launch) as process:
                self._terminals[asked.terminal_id] = process
                while data := await process.receive():
                    self._codec.terminal_output(asked.terminal_id, data)
                status = await process.wait_exit()
        except SpawnError as error:
            self._codec.terminal_output(asked.terminal_id, f"{error}\n".encode())
        await self._take(self._codec.terminal_exited(asked.terminal_id, status))


@asynccontextmanager
async def start_agent(
    host: ProcessHost,
    sandbox: Sandbox,
    prompt: str,
    *,
    resume_id: str | None = None,
    watched: bool = False,
    operator: Operator | None = None,
    arguments: tuple[str, ...] = (),
) -> AsyncIterator[ProbedAgent]:
    """Start an agent and wait until the agent is ready for *prompt*. Leaving the block kills the agent and everything
    that the agent started.

    Args:
        watched: report which processes the agent's program leaves running.
        operator: what is answered when the agent requests a permission; the agent is then started so that it asks.
            By default it is started in the usual way, and what it asks is allowed.
        arguments: arguments that are added to the agent's command line.

    Raises:
        NoResponse: the agent does not become ready.
        SpawnError: the program cannot be started.
    """
    cwd = str(sandbox.directory)
    report = sandbox.report() if watched else None
    variant, asking = sandbox.variant, sandbox.variant.asking if operator is not None else None
    mode = asking.mode if asking is not None else ""
    options = AgentOptions(guarded=operator is not None, mode=mode, started=sandbox.agent)
    make_codec = codec_for(variant.adapter, mapping=variant.mapping, quirks=variant.quirks, agent_options=options)
    codec = make_codec()
    command = (*sandbox.command_of(asking), *arguments)
    argv = codec.argv(command, prompt, str(uuid.uuid4()), resume_id)
    if report is not None:
        watcher = Path(__file__).with_name("orphan_watch.py")
        argv = (sys.executable, "-I", "-S", str(watcher), str(report), str(SETTLE_S), *argv)
    launch = Launch(argv=argv, cwd=cwd, env={**sandbox.env, **(asking.env if asking is not None else {})})
    async with host.spawn(launch, terminate_s=0.0) as process, anyio.create_task_group() as group:
        agent = ProbedAgent(process, codec, host, sandbox, report, operator or Operator.ALLOWS)
        group.start_soon(agent.listen, group)
        try:
            await agent.begin(cwd, resume_id)
        except NoResponse as error:
            words = f"; its last words: {agent.last_words}" if agent.last_words else ""
            raise NoResponse(f"{error}{words}") from None
        yield agent
        process.kill()
        group.cancel_scope.cancel()


def is_running(marker: str) -> bool:
    """Return whether any process of this machine has the command line *marker*."""
    wanted = marker.encode().split(b" ")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().rstrip(b"\0").split(b"\0") == wanted:
                return True
        except OSError:
            continue
    return False
