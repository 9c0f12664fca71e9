"""The terminals of an agent: commands that it has us run, each in the scope of the call that it is for.

They are ours: what is killed with an agent are its terminals, too, and whatever becomes of one, the agent hears of its
output and of its end.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Sequence

import anyio

from actors import ActorStopped
from supervisor.policies.abort_plan import PlannedProcess
from supervisor.policies.permissions import PermissionRequest
from supervisor.ports import Codec, Launch, Process, ProcessHost, SpawnError, TerminalOpened
from supervisor.ports.path_safety import outside
from supervisor.runtime.agent_io import AgentIO
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.live_session import LiveSession
from supervisor.sessions.permission_requests import PermissionRequests

__all__ = ["Terminals"]

REFUSED = 126
"""The status of a command that we do not run: a shell says it of what may not be executed."""
NOT_RUN = 125
"""That of one whose call is over."""
NOT_STARTED = 127
"""That of one that cannot be started."""


class Terminals:
    """The terminals of one agent.

    Args:
        launch: of the agent: its terminals have its directory and environment.
        wire: takes what is for the agent.
        asking: decides whether a command is run.
    """

    def __init__(
        self,
        registry: EntityRegistry,
        session: LiveSession,
        host: ProcessHost,
        launch: Launch,
        codec: Codec,
        agent_io: AgentIO,
        asking: PermissionRequests,
    ) -> None:
        self._registry, self._session = registry, session
        self._asking = asking
        self._host, self._launch, self._codec = host, launch, codec
        self._agent_io = agent_io
        self._running: dict[str, Process] = {}
        self._serving: dict[str, str] = {}
        """By terminal: the call that it is for."""

    def serves(self, tool_id: str | None) -> bool:
        """Whether one runs, or is being started, for that call."""
        return tool_id in self._serving.values()

    def processes(self) -> list[PlannedProcess]:
        """Those that run, and whose they are."""
        if not self._running:
            return []
        return [PlannedProcess(owner=self._serving[one], pid=process.pid) for one, process in self._running.items()]

    def kill(self) -> None:
        """End them all, at once."""
        for process in self._running.values():
            process.kill()

    def kill_terminal(self, terminal_id: str) -> None:
        """End that one, at once; nothing if it does not run."""
        process = self._running.get(terminal_id)
        if process is not None:
            process.kill()

    def open(self, asked: TerminalOpened, tool_id: str | None) -> None:
        """The agent has a command for that call; ``None`` if there is no such call. It is run once it is permitted."""
        if asked.cwd and (stray := outside("terminal/create: cwd", asked.cwd, self._launch.cwd)):
            self._begin(asked, tool_id, stray)
            return
        turn_id = self._session.connection.turn_id if self._session.connection is not None else None
        wish = PermissionRequest(title=_line(asked.argv), kind="execute", tool="terminal/create")
        detail = f"in {asked.cwd or self._launch.cwd}: {wish.title}"
        why = self._asking.decide_service(
            wish, detail, turn_id, self._session.cause, lambda why: self._begin(asked, tool_id, why)
        )
        if why is not None:
            self._begin(asked, tool_id, why)

    def _begin(self, asked: TerminalOpened, tool_id: str | None, why: str) -> None:
        """Run it, or tell the agent *why* not, as the output of a command that was not run."""
        if why:
            self._registry.record_turn_fact(
                self._session, "TerminalRefused", {"argv": list(asked.argv[:1]), "why": why}
            )
            self._agent_io.put(self._codec.terminal_output(asked.terminal_id, f"{why}\n".encode()))
            self._agent_io.put(self._codec.terminal_exited(asked.terminal_id, REFUSED))
            return
        ctx = self._registry.system.context(tool_id) if tool_id is not None else None
        if ctx is None or tool_id is None:
            self._agent_io.put(self._codec.terminal_exited(asked.terminal_id, NOT_RUN))
            return
        try:
            self._session.start(ctx, self._run, asked, tool_id)
        except ActorStopped:
            self._agent_io.put(self._codec.terminal_exited(asked.terminal_id, NOT_RUN))

    async def _run(self, asked: TerminalOpened, tool_id: str) -> None:
        env = {**self._launch.env, **asked.env}
        launch = Launch(argv=asked.argv, cwd=asked.cwd or self._launch.cwd, env=env, session=self._session.session_id)
        ladder = self._session.policy.ladder
        status: int | None = NOT_STARTED
        self._serving[asked.terminal_id] = tool_id
        try:
            async with self._host.spawn(launch, terminate_s=ladder.terminate_s, kill_s=ladder.kill_s) as process:
                self._running[asked.terminal_id] = process
                self._registry.record_turn_fact(self._session, "ProcessStarted", {"tool": tool_id, "pid": process.pid})
                async with anyio.create_task_group() as group:
                    group.start_soon(self._pump, asked.terminal_id, tool_id, process.receive)
                    group.start_soon(self._pump, asked.terminal_id, tool_id, process.receive_err)
                await process.wait_exit()  # its output ends before it does: it would be terminated in between
        except SpawnError as error:
            self._agent_io.put(self._codec.terminal_output(asked.terminal_id, f"{error}\n".encode()))
        finally:
            del self._serving[asked.terminal_id]
            started = self._running.pop(asked.terminal_id, None)
            if started is not None:
                with anyio.CancelScope(shield=True):
                    report = await started.wait_ended()
                self._session.record_process(tool_id, report)
                status = report.status
            self._agent_io.put(self._codec.terminal_exited(asked.terminal_id, status))

    async def _pump(self, terminal_id: str, tool_id: str, receive: Callable[[], Awaitable[bytes]]) -> None:
        while True:
            data = await receive()
            if not data:
                return
            self._session.progressed = True
            self._agent_io.put(self._codec.terminal_output(terminal_id, data))
            self._registry.write_transcript(self._session, tool_id.rpartition(":")[2], data.decode(errors="replace"))


def _line(argv: Sequence[str]) -> str:
    """The command as a person types it; of a shell that is given a whole line, that line."""
    is_shell = len(argv) == 3 and argv[1] == "-c" and argv[0].rpartition("/")[2] in ("sh", "bash")
    return argv[2] if is_shell else shlex.join(argv)
