"""Requests of one agent to the supervisor: permissions, and commands that the supervisor runs for the agent in
terminals.

Each permission request is sent to the turn once, and answered once. The agent's rights decide first, then a standing
decision of a human for the session, then the policy. No request is open longer than its turn: when its turn is
interrupted or over, an open request is answered with no option chosen.

A *service* is something that the supervisor does for the agent, such as running a command. Whether a service is
permitted is decided in the same way, even if the agent has not requested a permission before. If an earlier permission
covers the service (``permissions.covers``), no human is asked again; a permission that was given for once covers one
service.

A terminal runs in the scope of its tool call, and is killed with its agent. Whatever happens to a terminal, the agent
receives the terminal's output and its end.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import anyio

from actors import ActorStopped
from supervisor.lifecycles.events import PermissionAnswered, PermissionRequested
from supervisor.policies.abort_plan import PlannedProcess
from supervisor.policies.access import call_refusal
from supervisor.policies.call_processes import LiveProcess, ProcessSeen
from supervisor.policies.input_wanted import END_CHARS, wanted_input
from supervisor.policies.permissions import (
    Decision,
    OptionChoice,
    PermissionPolicy,
    PermissionRequest,
    PolicyDecision,
    choose_option,
    covers,
    decide_permission,
    decide_service,
)
from supervisor.policies.stage_deadlines import program_end_s
from supervisor.ports import Codec, Launch, PermissionNeeded, Process, ProcessHost, SpawnError, TerminalOpened
from supervisor.ports.input_limits import PERMISSIONS_MAX, bounded
from supervisor.ports.path_safety import outside
from supervisor.sessions.agent_io import AgentIO
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.registry import SessionRegistry

_ALLOW: Final = "allow"
_CHOICES: Final = ((_ALLOW, "allow_once"), ("deny", "reject_once"))
"""Options that a human can choose when deciding about a service."""

REFUSED = 126
"""Exit status that the agent receives for a command that is not permitted; a shell uses this status for a file that may
not be executed."""
NOT_RUN = 125
"""Exit status that the agent receives for a command whose call is over."""
NOT_STARTED = 127
"""Exit status that the agent receives for a command that cannot be started."""


class _OpenRequest(NamedTuple):
    number: int
    asked: PermissionNeeded
    by_human: bool
    """True if a human decides about the request, not a rule."""


class PermissionRequests:
    """Open permission requests of one connection to an agent.

    Args:
        directory: base of relative paths.
        codec: writes the answer in the agent's protocol.
        agent_io: sends messages to the agent.
    """

    def __init__(
        self, registry: SessionRegistry, session: LiveSession, directory: str, codec: Codec, agent_io: AgentIO
    ) -> None:
        self._registry = registry
        self._session = session
        self._directory = directory
        self._codec, self._agent_io = codec, agent_io
        self._count = 0
        """Number of requests that were sent to the turn so far."""
        self.has_denied = False
        """Whether the last request of the turn that was answered was not allowed."""
        self._open: dict[str, _OpenRequest] = {}
        self._services: dict[str, Callable[[str], None]] = {}
        """Callbacks of the open requests for a service, by request id."""
        self._allowed: dict[str, tuple[PermissionNeeded, bool]] = {}
        """Requests that a human has allowed, by request id, each with a flag: True if allowed for good."""

    def begin_turn(self) -> None:
        """Begin another turn: requests are counted from 1 again, and permissions that were given for once end."""
        self._count, self.has_denied = 0, False
        self._allowed = {key: one for key, one in self._allowed.items() if one[1]}

    def handle_request(self, asked: PermissionNeeded, turn_id: str | None) -> str:
        """Send the request to the turn, which decides the answer. Between turns the policy's answer is given at once.

        Returns:
            Reason why the agent may make no further request; ``""`` if the request was accepted.
        """
        decided = self._decide(PermissionRequest.of(asked), decide_permission)
        choice = choose_option(asked.options, allow=decided.decision is Decision.ALLOW)
        if turn_id is None:
            fact = {"title": asked.title, "option": choice.option, "kind": choice.kind, "by": "policy"}
            self._registry.record_fact(
                self._session.session_id, "PermissionAnswered", self._session.cause, {**fact, "why": decided.why}
            )
            self._reply(asked.request_id, choice.option)
        elif len(self._open) >= PERMISSIONS_MAX:
            return f"the agent waits for {len(self._open)} permissions; the most is {PERMISSIONS_MAX}"
        else:
            self._send_to_turn(asked, turn_id, decided, choice)
        return ""

    def decide_service(
        self, request: PermissionRequest, detail: str, turn_id: str | None, on_answered: Callable[[str], None]
    ) -> str | None:
        """Decide whether a service is done for the agent.

        Returns:
            Reason why the service is not permitted; ``""`` if it is permitted; ``None`` if a human decides:
            *on_answered* will then be called with the reason or ``""``.
        """
        decided = self._decide(request, decide_service)
        if decided.decision is Decision.ALLOW or (decided.decision is Decision.ASK and self._was_allowed(request)):
            return ""
        if decided.decision is Decision.DENY:
            return f"not permitted ({decided.why})"
        if turn_id is None:
            return f"not permitted ({decided.why}, and between turns nobody is asked)"
        if len(self._open) >= PERMISSIONS_MAX:
            return f"not permitted: {len(self._open)} permissions wait for a human already, the most there may be"
        request_id = f"supervisor:{self._count + 1}"
        asked = bounded(
            PermissionNeeded(request_id, request.title, _CHOICES, request.kind, request.tool, detail, request.paths)
        )
        assert isinstance(asked, PermissionNeeded), "its ids are ours, and its path has been bounded"
        self._services[request_id] = on_answered
        self._send_to_turn(asked, turn_id, decided, choose_option(_CHOICES, allow=False))
        return None

    def _decide(
        self,
        request: PermissionRequest,
        by_policy: Callable[[PermissionPolicy, PermissionRequest, str], PolicyDecision],
    ) -> PolicyDecision:
        if why := call_refusal(self._session.rights, request.kind):
            return PolicyDecision(Decision.DENY, why)
        if (settled := self._session.standing_decisions.get(request)) is not None:
            return PolicyDecision(settled, "settled before, for this session")
        return by_policy(self._session.profile.permissions, request, self._directory)

    def _was_allowed(self, request: PermissionRequest) -> bool:
        for request_id, (asked, for_good) in self._allowed.items():
            if covers(PermissionRequest.of(asked), asked.detail, request, self._directory):
                if not for_good and request.kind != "read":
                    del self._allowed[request_id]
                return True
        return False

    def _send_to_turn(
        self, asked: PermissionNeeded, turn_id: str, decided: PolicyDecision, choice: OptionChoice
    ) -> None:
        self._count += 1
        by_human = decided.decision is Decision.ASK
        self._open[asked.request_id] = _OpenRequest(self._count, asked, by_human)
        requested = PermissionRequested(
            number=self._count,
            request_id=asked.request_id,
            title=asked.title,
            tool_kind=asked.tool_kind,
            tool=asked.tool,
            detail=asked.detail,
            paths=asked.paths,
            options=asked.options,
            asked=by_human,
            within_s=self._session.profile.permissions.answer_within_s,
            decision=decided.decision.value,
            option=choice.option,
            kind=choice.kind,
            why=decided.why,
        )
        self._registry.send(turn_id, requested, cause=self._session.cause)

    def answer(self, request_id: str, option: str | None) -> None:
        """Send an answer that was recorded to the agent, unless the request is no longer open."""
        request = self._open.pop(request_id, None)
        if request is not None:
            self._session.note_progress()
            kind = dict(request.asked.options).get(option or "", "")
            self.has_denied = not kind.startswith("allow")
            # A rule has looked at the title, which the agent chooses: only a human's permission covers more.
            if kind.startswith("allow") and request.by_human and request_id not in self._services:
                self._allowed[request_id] = request.asked, kind == "allow_always"
            self._reply(request_id, option)

    def _reply(self, request_id: str, option: str | None) -> None:
        on_answered = self._services.pop(request_id, None)
        if on_answered is None:
            self._agent_io.put(self._codec.permission(request_id, option))
        else:
            on_answered("" if option == _ALLOW else "not permitted: nobody has allowed it, or it was denied")

    def withdraw(self, turn_id: str, why: str) -> None:
        """Withdraw every open request of the turn *turn_id*, for the reason *why*."""
        requests, self._open = self._open, {}
        for request_id, request in requests.items():
            withdrawn = PermissionAnswered(number=request.number, decision="withdrawn", by="supervisor", why=why)
            self._registry.send(turn_id, withdrawn, cause=self._session.cause)
            self._reply(request_id, None)


class Terminals:
    """Terminals of one agent: the commands that the supervisor runs for the agent.

    Args:
        launch: the agent's launch; terminals use the directory and environment of this launch.
        agent_io: sends messages to the agent.
        permissions: decides whether a command is run.
    """

    def __init__(
        self,
        registry: SessionRegistry,
        session: LiveSession,
        host: ProcessHost,
        launch: Launch,
        codec: Codec,
        agent_io: AgentIO,
        permissions: PermissionRequests,
    ) -> None:
        self._registry, self._session = registry, session
        self._permissions = permissions
        self._host, self._launch, self._codec = host, launch, codec
        self._agent_io = agent_io
        self._running: dict[str, Process] = {}
        self._calls: dict[str, str] = {}
        """Actor id of the call that each terminal serves, for terminals that run or are being started."""
        self._ends: dict[str, str] = {}
        """End of the output of each of these terminals."""

    def is_served(self, tool_id: str | None) -> bool:
        """Return whether a terminal runs, or is being started, for the call with the actor id *tool_id*."""
        return tool_id in self._calls.values()

    def processes(self) -> list[PlannedProcess]:
        """Return the processes of the terminals that run, each with the id of its call."""
        return [PlannedProcess(owner=self._calls[one], pid=process.pid) for one, process in self._running.items()]

    async def list_processes(self, agent_id: str) -> list[tuple[ProcessSeen, LiveProcess]] | None:
        """Return the live processes of the terminals that run, as processes of their calls; ``None`` if they cannot be
        listed."""
        found: list[tuple[ProcessSeen, LiveProcess]] = []
        for terminal, process in list(self._running.items()):
            calls, seen = (self._calls[terminal],), await process.list_processes()
            if seen is None:
                return None
            for one in seen:
                if one.alive:
                    live = LiveProcess(
                        pid=one.pid,
                        parent=one.parent,
                        agent=agent_id,
                        role="call",
                        calls=calls,
                        command=one.command,
                        exiting=one.exiting,
                    )
                    found.append((one, live))
        return found

    def kill(self, terminal_id: str | None = None) -> None:
        """Kill the program of one terminal, or with ``None`` of all terminals; a terminal that does not run is
        ignored."""
        for one, process in self._running.items():
            if terminal_id in (None, one):
                process.kill()

    def open(self, asked: TerminalOpened, tool_id: str | None, turn_id: str | None) -> None:
        """Run a command of the agent for the call *tool_id*, as soon as the command is permitted. *tool_id* is ``None``
        if the call does not exist: the command is then not run."""

        def begin(why: str) -> None:
            self._begin(asked, tool_id, why)

        why: str | None = ""
        if asked.cwd:
            why = outside("terminal/create: cwd", asked.cwd, self._launch.cwd)
        if not why:
            request = PermissionRequest(title=_command_line(asked.argv), kind="execute", tool="terminal/create")
            detail = f"in {asked.cwd or self._launch.cwd}: {request.title}"
            why = self._permissions.decide_service(request, detail, turn_id, begin)
        if why is not None:
            begin(why)

    def _begin(self, asked: TerminalOpened, tool_id: str | None, refusal: str) -> None:
        """Run the command, or, if *refusal* is not empty, send *refusal* to the agent as the command's output."""
        if refusal:
            fact = {"argv": list(asked.argv[:1]), "why": refusal}
            self._session.record_turn_fact("TerminalRefused", fact)
            self._agent_io.put(self._codec.terminal_output(asked.terminal_id, f"{refusal}\n".encode()))
            self._agent_io.put(self._codec.terminal_exited(asked.terminal_id, REFUSED))
            return
        ctx = self._registry.system.context(tool_id) if tool_id is not None else None
        try:
            if ctx is None or tool_id is None:
                raise ActorStopped(tool_id or "")
            clean_up_s = program_end_s(self._session.policy.ladder)
            self._session.start(ctx, self._run, asked, tool_id, clean_up_s=clean_up_s)
        except ActorStopped:
            self._agent_io.put(self._codec.terminal_exited(asked.terminal_id, NOT_RUN))

    async def _run(self, asked: TerminalOpened, tool_id: str) -> None:
        env = {**self._launch.env, **asked.env}
        launch = Launch(
            argv=asked.argv,
            cwd=asked.cwd or self._launch.cwd,
            env=env,
            has_input=False,
            session=self._session.session_id,
        )
        ladder = self._session.policy.ladder
        status: int | None = NOT_STARTED
        self._calls[asked.terminal_id] = tool_id
        self._ends[asked.terminal_id] = ""
        try:
            async with self._host.spawn(
                launch,
                terminate_s=ladder.terminate_s,
                kill_s=ladder.kill_s,
                on_exiting=partial(self._session.begin_exiting, tool_id),
            ) as process:
                self._running[asked.terminal_id] = process
                self._session.record_turn_fact("ProcessStarted", {"tool": tool_id, "pid": process.pid})
                async with anyio.create_task_group() as group:
                    group.start_soon(self._pass_output, asked.terminal_id, tool_id, process.receive)
                    group.start_soon(self._pass_output, asked.terminal_id, tool_id, process.receive_err)
                await process.wait_exit()  # the output ends first: leaving the context now would terminate the process
        except SpawnError as error:
            self._agent_io.put(self._codec.terminal_output(asked.terminal_id, f"{error}\n".encode()))
        finally:
            del self._calls[asked.terminal_id]
            self._session.exiting.pop(tool_id, None)  # also of a launch that was cancelled
            started = self._running.pop(asked.terminal_id, None)
            if started is not None:
                with anyio.CancelScope(shield=True):
                    report = await started.wait_ended()
                self._session.record_process(tool_id, report)
                status = report.status
            self._report_input_wanted(asked.terminal_id, tool_id, status)
            self._agent_io.put(self._codec.terminal_exited(asked.terminal_id, status))

    def _report_input_wanted(self, terminal_id: str, tool_id: str, status: int | None) -> None:
        """Record that a command wanted input from a person, if its output shows that, and say so to the agent: it
        cannot know what kind of terminal its command has."""
        if line := wanted_input(self._ends.pop(terminal_id), status):
            self._session.record_turn_fact("InputWanted", {"tool": tool_id, "line": line})
            why = f"\nsupervisor: the command wanted input ({line}); it has none, since nobody can type here\n"
            self._agent_io.put(self._codec.terminal_output(terminal_id, why.encode()))
            self._session.write_transcript(tool_id.rpartition(":")[2], why)

    async def _pass_output(self, terminal_id: str, tool_id: str, receive: Callable[[], Awaitable[bytes]]) -> None:
        while data := await receive():
            self._session.note_progress()
            self._agent_io.put(self._codec.terminal_output(terminal_id, data))
            text = data.decode(errors="replace")
            self._ends[terminal_id] = f"{self._ends[terminal_id]}{text}"[-END_CHARS:]
            self._session.write_transcript(tool_id.rpartition(":")[2], text)


def _command_line(argv: Sequence[str]) -> str:
    """Return the command line as a person would type it; for ``sh -c LINE``, only LINE."""
    is_shell = len(argv) == 3 and argv[1] == "-c" and argv[0].rpartition("/")[2] in ("sh", "bash")
    return argv[2] if is_shell else shlex.join(argv)
