"""Stdio MCP server as a resource of a session: a program run by a shim, which one kernel task starts and ends.

The server is ready when it has answered ``initialize`` in time. As soon as the session of the server is to end, the
server's input is closed, which requests the server to exit; after ``LEAVE_S`` seconds the server is terminated. A
server that ends by itself is started again, within a restart intensity. Each start and end is a fact in the session's
log, and no process of the server survives the session. A request to a server that is not ready, or that ends before
answering, fails with :class:`McpError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import anyio
import msgspec

from actors import Context, Intensity
from actors.one_shot_event import OneShotEvent, first_of
from actors.restart import add_restart
from supervisor.policies.stage_deadlines import program_end_s
from supervisor.ports import InvalidLaunch, Launch, McpServer, Process, ProcessHost, SpawnError
from supervisor.ports.input_limits import UNREAD_BYTES_MAX, LineBuffer
from supervisor.ports.json_text import decodable
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.live_session import LiveSession, SessionPhase
from supervisor.sessions.registry import SessionRegistry

START_S: Final = 30.0
"""Seconds within which a server must have answered ``initialize``: some servers first install themselves."""
LEAVE_S: Final = 2.0
"""Seconds that a server has to exit after its input was closed; then the server and all that it started are ended."""
RESTARTS: Final = Intensity(3, 60.0)
"""Restart intensity: the number of times, within a period, that a server may end by itself; beyond that the server is
given up."""
PROTOCOL: Final = "2025-06-18"
_CLIENT: Final = {"name": "supervisor-runtime", "version": "0.1.0"}


class McpError(Exception):
    """Exception: the server is not ready, ended before it answered, or answered with an error."""


class _PendingRequest:
    """Request to the server whose response has not arrived yet."""

    def __init__(self) -> None:
        self.over = OneShotEvent()
        self.result: Any = None
        self.error = "the server ended before it answered"


class McpResource:
    """MCP server of one session: starts, restarts and ends the server's process, and sends requests to the server.

    Args:
        launch: the command, directory and environment of the program.
        start_s: seconds until the server must be ready.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        host: ProcessHost,
        session: LiveSession,
        server: McpServer,
        launch: Launch,
        start_s: float,
    ) -> None:
        self._registry = registry
        self._host = host
        self._session = session
        self._launch = launch
        self._start_s = start_s
        self.name = server.name
        self.settled = OneShotEvent()
        """Event: set once the server was ready for the first time, or is given up."""
        self.given_up = ""
        """Reason why the server will never be ready again; empty while the server may become ready."""
        self._process: Process | None = None
        self._ready = False
        self._asked: dict[int, _PendingRequest] = {}
        self._requests = 0
        self._unread_bytes = 0
        """Number of bytes of requests that the server has not read yet."""
        self._scope = anyio.CancelScope()

    def begin(self, ctx: Context) -> None:
        """Start the kernel task of the server in the scope of *ctx*, as work of the server's session.

        Raises:
            ActorStopped: the session is ending.
        """
        self._session.start(ctx, self._run, clean_up_s=program_end_s(self._session.policy.ladder))

    def give_up(self, why: str) -> None:
        """End the server before its session ends, for the reason *why*."""
        self.given_up = why
        self._scope.cancel()

    # ------------------------------------------------------------------ asking it
    async def call(self, method: str, params: Mapping[str, Any] | None = None, *, timeout_s: float = 60.0) -> Any:
        """Send a request to the server and return the request's result.

        Raises:
            McpError: the server is not ready, ended before it answered, did not answer in time, or answered with an
                error.
        """
        if not self._ready:
            raise McpError(f"{self.name}: {self.given_up or 'the server is not there now; it is being started'}")
        return await self._ask(method, params, timeout_s)

    async def _ask(self, method: str, params: Mapping[str, Any] | None, timeout_s: float) -> Any:
        self._requests += 1
        number, asked = self._requests, _PendingRequest()
        self._asked[number] = asked
        try:
            with self._registry.system.timers.limit(timeout_s) as limit:
                await self._send({"id": number, "method": method, "params": dict(params or {})})
                await asked.over.wait()
            if limit.cancelled_caught:
                raise McpError(f"{self.name}: {method} was not answered within {timeout_s:g} s")
        finally:
            self._asked.pop(number, None)
        if asked.error:
            raise McpError(f"{self.name}: {method}: {asked.error}")
        return asked.result

    async def _send(self, message: dict[str, Any]) -> None:
        if self._process is None:
            return
        data = msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n"
        if self._unread_bytes and self._unread_bytes + len(data) > UNREAD_BYTES_MAX:
            waiting = f"{self._unread_bytes} bytes wait for it; the most is {UNREAD_BYTES_MAX}"
            raise McpError(f"{self.name}: the server does not read what it is sent: {waiting}")
        self._unread_bytes += len(data)
        try:
            await self._process.send(data)
        finally:
            self._unread_bytes -= len(data)

    # ------------------------------------------------------------------ its one task
    async def _run(self) -> None:
        ends: tuple[float, ...] = ()
        try:
            with self._scope:
                while not self._session.is_terminating:
                    why, is_permanent = await self._hold()
                    if is_permanent:
                        self.given_up = why
                        self._record_fact("McpServerGivenUp", {"why": why})
                        return
                    ends = add_restart(ends, self._registry.journal_writer.clock.now(), RESTARTS.period_s)
                    if RESTARTS.exceeded(ends):
                        self.given_up = f"given up after {len(ends)} ends within {RESTARTS.period_s:g} s: {why}"
                        self._record_fact("McpServerGivenUp", {"why": why})
                        return
        finally:
            self.given_up = self.given_up or "its session has ended"
            self.settled.set()

    async def _hold(self) -> tuple[str, bool]:
        """Start the server, wait until the server ends or its session is to end, then end the server; return the reason
        of the end, and whether every further start fails for it."""
        ladder, why, is_permanent = self._session.policy.ladder, "it was cancelled", False
        try:
            async with self._host.spawn(
                self._launch,
                terminate_s=ladder.terminate_s,
                kill_s=ladder.kill_s,
                on_exiting=partial(self._session.begin_exiting, self._session.session_id),
            ) as process:
                self._process = process
                why = await self._converse(process)
        except SpawnError as error:
            why, is_permanent = str(error), isinstance(error, InvalidLaunch)
        finally:
            self._ready = False
            for asked in self._asked.values():
                asked.over.set()
            process_, self._process = self._process, None
            if process_ is not None:
                with anyio.CancelScope(shield=True):
                    await self._account(process_, why)
            else:
                self._record_fact("McpServerEnded", {"why": why})
        return why, is_permanent

    async def _account(self, process: Process, why: str) -> None:
        report = await process.wait_ended()
        fact = {"why": why, "status": report.status, "killed": report.killed, "survivors": report.survivors}
        self._record_fact("McpServerEnded", fact)
        self._session.record_process(self._session.session_id, report)

    async def _converse(self, process: Process) -> str:
        gone = OneShotEvent()
        async with anyio.create_task_group() as group:
            group.start_soon(self._read, process, gone)
            group.start_soon(self._drain, process)
            why = await self._open() or await self._leave(process, gone)
            group.cancel_scope.cancel()
        return why

    async def _open(self) -> str:
        """Do the handshake with the server in time; return ``""``, or the reason why the handshake failed."""
        hello = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": _CLIENT}
        try:
            await self._ask("initialize", hello, self._start_s)
        except McpError as error:
            return str(error)
        await self._send({"method": "notifications/initialized"})
        self._ready = True
        self._record_fact("McpServerStarted", {"pid": self._process.pid if self._process is not None else None})
        self.settled.set()
        return ""

    async def _leave(self, process: Process, gone: OneShotEvent) -> str:
        """Wait until the server ends by itself or its session is to end; in the latter case close the server's input
        and wait for the exit. Return the reason of the end."""
        await first_of(gone, self._session.reached(SessionPhase.TERMINATING))
        if gone.is_set():
            return "it ended by itself"
        self._ready = False
        process.close_input()
        with self._registry.system.timers.limit(LEAVE_S):
            await process.wait_exit()
        return "its session ends"

    async def _read(self, process: Process, gone: OneShotEvent) -> None:
        """Read the server's responses until its output ends. Requests of the server, and lines that are not messages,
        are ignored."""
        lines = LineBuffer()
        while data := await process.receive():
            for line in lines.feed(data):
                if isinstance(line, str):
                    self._on_line(line)
        for asked in self._asked.values():
            asked.over.set()
        gone.set()

    async def _drain(self, process: Process) -> None:
        while await process.receive_err():
            pass

    def _on_line(self, line: str) -> None:
        try:
            message = msgspec.json.decode(decodable(line))
        except (msgspec.DecodeError, RecursionError):
            return
        if not isinstance(message, dict) or "method" in message or type(message.get("id")) is not int:
            return
        asked = self._asked.get(message["id"])
        if asked is not None:
            error = message.get("error")
            words = error.get("message") if isinstance(error, dict) else None
            asked.result, asked.error = message.get("result"), "" if error is None else str(words)[:2_000]
            asked.over.set()

    def _record_fact(self, name: str, fact: dict[str, Any]) -> None:
        cause = Cause(self._session.cause_seq, None, f"mcp:{self.name}")
        entity = self._registry.entities.get(self._session.session_id)
        if entity is not None and not entity.ended:
            entity.record_fact(name, cause, {"server": self.name, **fact})
