"""The link to a program: a codec's bytes and words on one side, the session's entities on the other.

It begins what goes over the wire to it, reads what it says, and deals with one word of that after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import anyio

from actors import ActorStopped
from supervisor.aborts.tool_calls import ToolCallTerminations
from supervisor.lifecycles.events import (
    AgentExited,
    AgentLaunched,
    AgentNamed,
    AgentReady,
    AgentStarted,
    MessageHeard,
)
from supervisor.lifecycles.types import AbortReason, Exit, ModelProblem, ToolOutcome, TransitionReason, Verdict
from supervisor.policies.abort_plan import PlannedProcess
from supervisor.policies.budgets import Amounts
from supervisor.policies.call_processes import ProcessSeen
from supervisor.policies.permissions import PermissionRequest
from supervisor.policies.turn_outcome import abort_reason_of
from supervisor.policies.turn_processes import processes_of_turn
from supervisor.ports import (
    AgentFiles,
    CallNotEnded,
    ChildAsked,
    CloseInput,
    Codec,
    Compaction,
    ConversationNamed,
    FileAsked,
    FileRefused,
    Launch,
    Malformed,
    ModelErrorReported,
    Out,
    PermissionAsked,
    Process,
    ProcessReport,
    Ready,
    SpawnError,
    SpawnShortage,
    SteeringAccepted,
    TerminalKilled,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    Usage,
)
from supervisor.ports.input_limits import CALLS_MAX, CHILDREN_MAX, OPEN_CALLS_MAX, UNREAD_BYTES_MAX, UNREAD_S
from supervisor.runtime.agent_io import AgentIO
from supervisor.runtime.availability import RetryingProcessHost, outlast_shortage
from supervisor.runtime.entity_registry import EntityRegistry
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import LiveSession, Outcome
from supervisor.runtime.one_shot_event import OneShotEvent
from supervisor.sessions.agent_connection import AgentConnection, Delegate
from supervisor.sessions.compaction_tracker import CompactionTracker
from supervisor.sessions.permission_requests import PermissionRequests
from supervisor.sessions.terminals import Terminals

__all__ = ["MUTE_S", "ProcessConnection"]

_SIGNS = (ToolOpened, ToolClosed, PermissionAsked, TerminalOpened, ChildAsked, Compaction, ModelErrorReported)
"""What only an agent says that works, or tries to, at what it was asked for."""
PATIENCE_S = 20.0
"""How long a launch waits for descriptors by itself, before its session makes it anew: each time is some records."""
MUTE_S = 2.0
"""How long an agent may take to exit after it has closed its output."""
LAST_WORDS_CHARS = 4096
"""The end of standard error that is kept to find its last line in."""
_NOT_COMPACTED = Verdict(
    exit=Exit.ERROR,
    error="the agent could not compact its context",
    transition_reason=TransitionReason.COMPACTION_FAILED,
    abort_reason=AbortReason.COMPACT_FAILURE,
)


class ProcessConnection(AgentConnection):
    """A link to a program."""

    def __init__(
        self,
        registry: EntityRegistry,
        session: LiveSession,
        agent_id: str,
        incarnation: int,
        *,
        codec: Codec,
        host: RetryingProcessHost,
        launch: Launch,
        delegate: Delegate,
        files: AgentFiles,
        resume_id: str | None = None,
        interrupted: bool = False,
    ) -> None:
        super().__init__(registry, session, agent_id, incarnation)
        self._codec = codec
        self._host = host
        self._launch = launch
        self._delegate = delegate
        self._files = files
        self._resume_id, self._interrupted = resume_id, interrupted
        self._conversation: str | None = None
        """What the agent calls the conversation, where it can be loaded by that."""
        self._steered: deque[str] = deque()
        """The messages that it was told in this turn, and has not taken up."""
        self._agent_io = AgentIO()
        self._asking = PermissionRequests(registry, session, launch.cwd, codec, self._agent_io)
        self._terminals = Terminals(registry, session, host, launch, codec, self._agent_io, self._asking)
        self._ends = ToolCallTerminations(
            registry, session, agent_id, self._calls, self._aborting, codec.end_call, self._agent_io
        )
        self._cut_short: str | None = None
        """A call that was open when the turn was interrupted."""
        self._stopped: dict[str, tuple[str, str]] = {}
        """The calls that the agent says it has stopped, while others of an interrupted turn are open."""
        self._compacting = CompactionTracker(registry, session)
        self._given, self._killed = OneShotEvent(), OneShotEvent()
        self._since: int | None = None
        """When it was given its first prompt (the process's clock): what was born before is the agent's own."""
        self._is_unknown = False
        """Its shim was lost: nobody can tell what it has left running."""
        self._complaint = ""
        self._complained = OneShotEvent()

    # ------------------------------------------------------------------ commands: never wait
    @property
    def reusable(self) -> bool:
        return super().reusable and not self._codec.one_shot

    def start_turn(self, turn_id: str, incarnation: int, prompt: str) -> None:
        self._asking.begin_turn()
        self._steered.clear()
        if self._begin(turn_id, incarnation):
            self._ends.begin_turn()
            self._cut_short = None
            self._stopped.clear()
            if self._since is None and self._agent_io.process is not None:
                self._since = self._agent_io.process.clock()
            self._agent_io.put(self._codec.prompt(prompt))
            self._given.set()

    def steer(self, message_id: str, incarnation: int, text: str) -> None:
        working = self.turn_id is not None and incarnation == self._incarnation and self._intent is None
        outs = self._codec.steer(text) if working and not self._agent_io.full else None
        if outs is None:
            why = _unread(self._agent_io.unread_bytes) if self._agent_io.full else "the agent does not take it now"
            self._not_steered(message_id, incarnation, why)
        else:
            self._steered.append(message_id)
            self._agent_io.put(outs)

    def interrupt(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None:
        if self._note_intent(turn_id, intent, abort_id):
            self._cut_short = next((tool for call, tool in self._calls.items() if not self.runs_call(call)), None)
            self._agent_io.put(self._codec.interrupt())
            self._asking.withdraw(turn_id, f"its turn is interrupted: {intent.error}", self.session.cause)

    def close_when_idle(self) -> None:
        self._finishing = True
        if self._codec.one_shot and not self._given.is_set():
            self.kill(Verdict(exit=Exit.ERROR, error="its prompt was taken back"))
        elif self.turn_id is None:
            self._agent_io.put(self._codec.close())
            self._agent_io.put([CloseInput()])

    def kill(self, intent: Verdict) -> None:
        self._intent = self._intent or intent
        self._dying = True
        self._given.set()
        self._killed.set()
        if self._agent_io.process is not None:
            self._agent_io.process.kill()
        self._terminals.kill()

    def terminate_call(self, call_id: str, kept: Callable[[str], None]) -> str:
        return self._ends.terminate(call_id, kept)

    def runs_call(self, call_id: str) -> bool:
        return self._terminals.serves(self._calls.get(call_id))

    def processes(self) -> tuple[PlannedProcess, ...]:
        agent = self._agent_io.process
        alive = () if agent is None else (PlannedProcess(owner=self.agent_id, pid=agent.pid),)
        return (*alive, *self._terminals.processes())

    async def processes_of_turn(self) -> tuple[ProcessSeen, ...] | None:
        process = self._agent_io.process
        if process is None and self._is_unknown:
            return None
        if process is None or self._since is None:
            return ()
        seen = await process.list_processes()
        return None if seen is None else processes_of_turn(seen, process.pid, self._since, self.session.profile.servers)

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        if (process := self._agent_io.process) is not None:
            process.signal_processes(found, number)

    async def wait_process_exit(self, pid: int) -> None:
        if (process := self._agent_io.process) is not None:
            await process.wait_gone(pid)

    # ------------------------------------------------------------------ the process
    async def run(self) -> None:
        exited = AgentExited(reason="it was cancelled before it started", ended_by="kill")
        process: Process | None = None
        try:
            ladder, quirks = self.session.policy.ladder, self.session.profile.quirks
            terminate_s = 0.0 if quirks.needs_kill else ladder.terminate_s
            async with self._host.spawn(
                self._launch,
                terminate_s=terminate_s,
                kill_s=ladder.kill_s,
                patience_s=self._patience_s(),
                until=self._killed,
            ) as process:
                self._agent_io.process = process
                await self._converse(process)
        except SpawnShortage as error:
            exited = AgentExited(reason=str(error), ended_by="exit")
            self._report_put_off(error)
        except SpawnError as error:
            exited = AgentExited(reason=str(error), ended_by="exit")
            self._report_not_started(Verdict(exit=Exit.ERROR, error=str(error)))
        finally:
            if process is not None:
                with anyio.CancelScope(shield=True):
                    exited = self._fate(await process.wait_ended())
                self._agent_io.process = None
            self._compacting.finish()
            self._report_end(exited)

    def _patience_s(self) -> float:
        """How long the launch waits for descriptors: the session's deadline for a launch must not end that wait, since
        it would be charged. Its session goes on to wait in its own way."""
        limits = self.registry.entity(self.session.session_id).data.limits
        return min(PATIENCE_S, float(limits.spawn_deadline_s) / 3)

    def _report_put_off(self, error: SpawnShortage) -> None:
        """The launch is made anew, charged to nobody; the next agent takes up the conversation that this one had."""
        self.session.resume_id, self.session.interrupted = self._resume_id, self._interrupted
        words = f"waits for {error.lacks}: {error}"
        verdict = Verdict(exit=Exit.ERROR, error=words, transition_reason=TransitionReason.SHORTAGE)
        self._report_not_started(verdict)

    def _fate(self, report: ProcessReport) -> AgentExited:
        self.session.record_process(self.agent_id, report)
        if report.survivors == 0:
            self._ends.note_processes_gone()
        intent = self._intent
        intended = intent.abort_reason if intent is not None else None
        if intended is None and report.ended_by != "exit":
            intended = AbortReason.SHUTDOWN_SIGNAL
        reason = abort_reason_of(report.status, intended=intended)
        return AgentExited(
            status=report.status,
            ended_by=report.ended_by,
            killed=report.killed,
            survivors=report.survivors,
            reason=intent.error if intent is not None else "",
            abort_reason=reason,
            abort_id=self._abort_id,
        )

    async def _converse(self, process: Process) -> None:
        if self._dying:
            process.kill()
        self._tell(self.agent_id, AgentStarted(pid=process.pid))
        launched = AgentLaunched(incarnation=self._incarnation, agent_id=self.agent_id)
        await self._report(self.session.session_id, launched)
        async with anyio.create_task_group() as group:
            self._agent_io.open(group, process, self._hear)
            group.start_soon(self._read_errors, process)
            try:
                await self._hear_out(process)
            finally:
                self._agent_io.close()

    async def _hear_out(self, process: Process) -> None:
        """All that it says, up to its end."""
        self._agent_io.enqueue(self._codec.start(self._launch.cwd, self._resume_id))
        await self._agent_io.process_received()
        if self._codec.one_shot:
            # It may be done before its turn is: what it says belongs to the turn, so it is heard from then on.
            await self._given.wait()
        await self._read(process)
        status = await self._exit(process)
        report = await process.wait_ended()
        self.outlived, self._is_unknown = report.outlived, report.survivors < 0
        self._gone, self._agent_io.process = True, None
        if report.survivors == 0:
            await self._close_stopped()
        await self._complained.wait()
        self._agent_io.enqueue(self._codec.exited(status))
        await self._agent_io.process_received()
        self._conclude("error", "", status)

    async def _read(self, process: Process) -> None:
        while data := await process.receive():
            self.session.report_progress()
            self._ends.note_output(process.written_between)
            for part in self._parts(data):
                if not await self._room():
                    break
                self._agent_io.enqueue(self._codec.feed(part))
                if self._agent_io.full:
                    await self._agent_io.process_received()
            await self._agent_io.process_received()
        self._agent_io.put(self._codec.feed(b""))

    def _parts(self, data: bytes) -> Iterable[bytes]:
        """*data* line by line, where lines may ask for something: a codec replies to some of them by itself, and one
        line may ask for megabytes."""
        return (data,) if self._codec.one_shot else _lines(data)

    async def _room(self) -> bool:
        """Wait while more waits for the agent than may; return ``False`` if it is being killed, and is not heard any
        more. The replies of one that goes on asking and reads none would fill the memory, so its conversation ends."""
        if self._codec.one_shot:  # it was given its prompt, and is replied to nothing
            return True
        while self._agent_io.full and not self._gone:
            if self._dying:
                return False
            taken = self._agent_io.taken_bytes
            with self.registry.system.timers.limit(UNREAD_S):
                await self._agent_io.wait_taken()
            if taken == self._agent_io.taken_bytes and not (self._dying or self._gone):
                why = f"the agent does not read what it is sent: {_unread(self._agent_io.unread_bytes)}"
                self._malformed(f"{why}, and it took none of them in {UNREAD_S:g} s")
        return True

    async def _exit(self, process: Process) -> int | None:
        """Its exit status. Who speaks a protocol, has closed its output and stays can never answer: it is ended."""
        if not self._codec.one_shot:
            with self.registry.system.timers.limit(MUTE_S):
                return await process.wait_exit()
            if not (self._dying or self._finishing):
                self._malformed("the agent closed its output and did not exit")
        return await process.wait_exit()

    async def _read_errors(self, process: Process) -> None:
        said = ""  # a line may come in pieces
        while data := await process.receive_err():
            self.session.report_progress()
            text = data.decode(errors="replace")
            self.registry.write_transcript(self.session, "stderr", text)
            said = f"{said}{text}"[-LAST_WORDS_CHARS:]
            self._complaint = next((line for line in reversed(said.splitlines()) if line.strip()), "")[:300]
        self._complained.set()

    # ------------------------------------------------------------------ what it says
    async def _hear(self, out: Out) -> None:
        if not await self._room():
            return
        if self.turn_id is not None and self.session.monitor is not None:
            self.session.monitor.model.observe(out)
            if self._intent is None and _is_sign(out):
                self.session.progressed = True
        match out:
            case Ready():
                await self._ready(out)
            case ConversationNamed(resume_id):
                await self._named_itself(resume_id)
            case SteeringAccepted():
                self._heard_message()
            case Text(kind, text):
                self._hear_text(kind, text)
            case ToolOpened(call_id, title, tool_kind, parent):
                if self.turn_id is not None and (why := self._too_many_calls()):
                    self._malformed(why)
                else:
                    await self._open_call(call_id, title, tool_kind, parent)
            case ToolClosed(call_id, outcome, asked, answered):
                await self._close_call(call_id, ToolOutcome(outcome), asked=asked, answered=answered)
            case TerminalOpened():
                self._terminals.open(out, self._calls.get(out.call_id))
            case TerminalKilled(terminal_id):
                self._terminals.kill_terminal(terminal_id)
            case PermissionAsked():
                if why := self._asking.handle_request(out, self.turn_id, self.session.cause):
                    self._malformed(why)
            case FileAsked():
                await self._serve_file(out)
            case ChildAsked():
                self._serve_child(out)
            case Usage():
                self._hear_usage(out)
            case Compaction():
                await self._compact(out)
            case ModelErrorReported():
                self.registry.write_transcript(self.session, "log", f"its model failed ({out.problem}): {out.words}\n")
            case CallNotEnded(call_id, why):
                self._ends.give_up(call_id, why)
            case TurnEnded():
                await self._turn_ended(out)
            case Malformed(why):
                self._malformed(why)
            case _:
                raise AssertionError(f"bytes are the writer's business: {type(out).__name__}")

    def _too_many_calls(self) -> str:
        """Why its turn takes no further call; nothing, where it does."""
        if len(self._calls) >= OPEN_CALLS_MAX:
            return f"the agent has {len(self._calls)} tool calls open; the most is {OPEN_CALLS_MAX}"
        over = self._numbers >= CALLS_MAX
        return f"the agent made {CALLS_MAX} tool calls in one turn; that is the most" if over else ""

    async def _ready(self, ready: Ready) -> None:
        """Its name for the conversation is durable before its first prompt can be given: so it can be loaded again."""
        self._conversation = ready.resume_id
        self.steers = ready.steers
        if ready.resume_id is not None:
            named = AgentReady(resume_id=ready.resume_id, info=ready.info)
            await self._report(self.agent_id, named)
            self.is_ready = True
            self.report_started(self._incarnation)
        else:
            self._report_ready(ready.info)

    async def _named_itself(self, resume_id: str) -> None:
        """The conversation is there, under that name; after a program that serves one prompt, the next takes it up."""
        if resume_id != self._conversation:
            self._conversation = resume_id
            await self._report(self.agent_id, AgentNamed(resume_id=resume_id))
        if self._codec.one_shot:
            self.session.resume_id = resume_id

    def _heard_message(self) -> None:
        """It has taken up the oldest of what it was told; after its turn that means nothing any more."""
        if self._steered and self.turn_id is not None:
            heard = MessageHeard(incarnation=self._incarnation, message_id=self._steered.popleft())
            self._tell(self.session.session_id, heard)

    def _hear_text(self, kind: str, text: str) -> None:
        if kind == "message":
            self.session.append_text(text)
        self.registry.write_transcript(self.session, kind, text)

    def _hear_usage(self, usage: Usage) -> None:
        """Also after the end of a turn: an agent says with its last word what that turn has used."""
        if self.session.monitor is not None:
            amounts = Amounts(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cost_usd=usage.cost_usd,
                cached_tokens=usage.cached_tokens,
                requests=usage.requests,
            )
            self.session.monitor.record_usage(amounts, usage.used)

    async def _compact(self, compaction: Compaction) -> None:
        if self.turn_id is None:
            await self._compacting.update_after_turn(
                self._concluded if self._succeeded else None, active=compaction.active
            )
        elif compaction.failed:
            self.interrupt(self.turn_id, _NOT_COMPACTED, None)
        else:
            await self._compacting.update(self.turn_id, active=compaction.active)

    async def _open_call(self, call_id: str, title: str, tool_kind: str, parent: str = "") -> str | None:
        self._ends.note_opened(call_id)
        return await super()._open_call(call_id, title, tool_kind, parent)

    async def _close_call(
        self, call_id: str, outcome: ToolOutcome, reason: str = "", *, asked: str = "", answered: str = ""
    ) -> None:
        """A call has no result before what it has left running has ended, where it was aborted. In an interrupted turn
        that can be told only when all calls have stopped."""
        if self._intent is not None and outcome is ToolOutcome.FAILED and call_id in self._own_calls():
            self._stopped[call_id] = (asked, answered)
        else:
            if self._intent is None and not await self._ends.before_result(call_id):
                outcome = ToolOutcome.UNKNOWN
            await super()._close_call(call_id, outcome, reason, asked=asked, answered=answered)
            if not self._calls and self._intent is None:
                self._ends.note_all_closed()
        if all(one in self._stopped for one in self._own_calls()):
            await self._close_stopped()

    def _own_calls(self) -> list[str]:
        """The open calls that the agent runs by itself."""
        return [one for one in self._calls if not self.runs_call(one)]

    async def _close_stopped(self) -> None:
        """The agent says that it has stopped these calls: that is believed where none of their processes is left."""
        stopped, self._stopped = self._stopped, {}
        first = next((self._calls[one] for one in stopped if one in self._calls), None)
        if first is not None:
            outcome = ToolOutcome.FAILED if await self._ends.before_end(first) else ToolOutcome.UNKNOWN
            for call_id, (asked, answered) in stopped.items():
                await super()._close_call(call_id, outcome, asked=asked, answered=answered)

    def _conclude(
        self,
        stop: str,
        error: str,
        status: int | None = None,
        *,
        problem: ModelProblem | None = None,
        http_status: int | None = None,
    ) -> None:
        if self.turn_id is not None:
            self._asking.withdraw(self.turn_id, "its turn is over", self.session.cause)
        super()._conclude(stop, error, status, problem=problem, http_status=http_status)

    async def _turn_ended(self, ended: TurnEnded) -> None:
        if self._cut_short is not None:  # an agent may say that it has stopped, and leave running what it ran
            await self._ends.before_end(self._cut_short)
        await self._close_stopped()
        await self._compact(Compaction(active=False))
        error = ended.error
        if ended.stop == "error" and self._gone and self._complaint:
            error = f"{error}; its last words: {self._complaint}"
        if ended.stop == "cancelled" and self._numbers and self.session.profile.quirks.cancel_leaves_tool:
            self._end_with_its_tools()
        self._conclude(ended.stop, error, problem=ended.problem, http_status=ended.status)
        if self._finishing:
            self.close_when_idle()

    def _end_with_its_tools(self) -> None:
        """It answered a cancel, and what its calls had started goes on: that ends with the agent. The next one takes up
        the conversation, where it can be loaded."""
        self.session.resume_id = self._conversation
        words = "a cancel leaves its tools running: it was ended with them"
        self.kill(Verdict(exit=Exit.ERROR, error=words, abort_reason=AbortReason.SHUTDOWN_SIGNAL))

    def _malformed(self, why: str) -> None:
        """It broke its protocol: nothing it says can be believed any more."""
        verdict = Verdict(exit=Exit.ERROR, error=why, abort_reason=AbortReason.UNKNOWN)
        if self.turn_id is not None:
            self._conclude("error", why)
        elif not self.is_ready:
            self._report_not_started(verdict)
        self.kill(verdict)

    def answer_permission(self, turn_id: str, request_id: str, option: str | None) -> None:
        if turn_id == self.turn_id:
            self._asking.answer(request_id, option)

    async def _serve_file(self, asked: FileAsked) -> None:
        """Read or write a file of its workspace for the agent. It says nothing else meanwhile that is heard, but where
        a human is asked first."""
        kind, tool = ("read", "fs/read_text_file") if asked.text is None else ("edit", "fs/write_text_file")
        wish = PermissionRequest(title=f"{tool} {asked.path}", kind=kind, tool=tool, paths=(asked.path,))

        def answered(why: str) -> None:
            ctx = self.registry.system.context(self.agent_id)
            if ctx is not None:
                with suppress(ActorStopped):  # nobody is there any more to be told
                    self.session.start(ctx, self._do_with_file, asked, why)

        why = self._asking.decide_service(wish, asked.text or "", self.turn_id, self.session.cause, answered)
        if why is not None:
            await self._do_with_file(asked, why)

    async def _do_with_file(self, asked: FileAsked, why: str) -> None:
        """Read or write it, or say *why* not."""
        text = ""
        try:
            if why:
                raise FileRefused(why)
            text = await outlast_shortage(partial(self._with_file, asked.path, asked.text), self._killed)
        except OSError as error:
            why = str(error)
            if isinstance(error, FileRefused):
                self.registry.record_turn_fact(self.session, "FileRefused", {"path": asked.path, "why": why})
        self._agent_io.put(self._codec.file_answered(asked.request_id, text, why))

    async def _with_file(self, path: str, text: str | None) -> str:
        if text is None:
            return await self._files.read(path, self._launch.cwd)
        await self._files.write(path, text, self._launch.cwd)
        return ""

    def _serve_child(self, asked: ChildAsked) -> None:
        """Start a sub-agent: it may be another agent of the plan, which may do what this one may not."""
        wish = PermissionRequest(
            title=f"{asked.agent or self.session.profile.name} {asked.name}", tool="_supervisor/session/run"
        )
        start = partial(self._start_child, asked)
        why = self._asking.decide_service(wish, asked.prompt, self.turn_id, self.session.cause, start)
        if why is not None:
            start(why)

    def _start_child(self, asked: ChildAsked, why: str) -> None:
        call_id = asked.call_id or ""
        started_by = self._named.get(call_id)

        def answer(outcome: Outcome) -> None:
            if started_by is not None:
                self._causes[started_by] = outcome.seq
            self._agent_io.put(
                self._codec.child_ended(asked.request_id, outcome.outcome, outcome.text or outcome.error)
            )

        if not why and len(self.session.children) >= CHILDREN_MAX:
            why = f"{self.session.session_id} has {len(self.session.children)} child sessions; wait until one has ended"
        if why:
            self.registry.record_turn_fact(
                self.session, "ChildRefused", {"child": asked.name, "agent": asked.agent, "why": why}
            )
            answer(Outcome("failed", why, ""))
            return
        cause = Cause(self._causes.get(started_by or ""), None, self.session.session_id)
        once = self._delegated(call_id, answer)
        self._delegate(self.session, asked.name, asked.prompt, asked.agent, started_by, once, cause, asked.mode)


def _lines(data: bytes) -> Iterable[bytes]:
    """The lines of *data* with their newlines, and what stands behind the last one."""
    at = 0
    while end := data.find(b"\n", at) + 1:
        yield data[at:end]
        at = end
    if at < len(data):
        yield data[at:]


def _unread(count: int) -> str:
    return f"{count} bytes wait for it; the most is {UNREAD_BYTES_MAX}"


def _is_sign(out: Out) -> bool:
    """Whether it shows that the agent is at what it was asked for; a log tells of anything."""
    return out.kind != "log" if isinstance(out, Text) else isinstance(out, _SIGNS)
