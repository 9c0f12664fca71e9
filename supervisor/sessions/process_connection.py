"""Connection to an agent that is a program: process and codec on one side, the session's entities on the other.

Theory of operation
-------------------
A line of agent output passes these stations, in one direction:

    process.receive -> codec.feed -> AgentIO (order) -> _process -> event of the turn, session or agent entity -> record

* ``run`` holds the process from spawn to exit. The process context is left in every case, also by a cancellation, and
  then sends SIGTERM and SIGKILL by its own budgets; ``AgentExited`` is reported after the last process has ended.
* ``_process`` processes one message at a time, and awaits the durable record of a tool call before the next message. So
  an agent is read no faster than its calls are recorded, and no call runs that is not on record.
* Commands (``start_turn``, ``interrupt``, ``close_when_idle``, ``kill``) never wait. Their bytes are sent by AgentIO.
* A turn ends when the codec reports its end, or when the process has exited and the output was read to the end. The
  output comes first: an agent may report "done" and exit at once, and has then succeeded.
* Between an agent's report and the end of the turn late messages are waited for (``agent_io.ReportedEnd``): they
  belong to the turn. A program that serves one prompt, has reported its result and does not exit is ended; its
  result counts.
* An agent that has been idle for long is ended, if the next agent can load its conversation (spec 000: an idle agent is
  reclaimed). The name of the conversation is on record first, for the next supervisor.
* A terminated call, or an interrupted turn with an open call, gets a result only after the processes of these calls
  were killed or named (``sessions.tool_calls``).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import anyio
import msgspec

from actors import ActorStopped
from actors.one_shot_event import OneShotEvent
from actors.timers import Timer
from supervisor.agent_catalogue.measured import untried_version
from supervisor.lifecycles.events import (
    AgentExited,
    AgentLaunched,
    AgentNamed,
    AgentReady,
    AgentStarted,
    MessageTakenUp,
)
from supervisor.lifecycles.types import (
    AbortReason,
    Exit,
    InvalidArgument,
    ModelProblem,
    ToolOutcome,
    TransitionReason,
    Verdict,
)
from supervisor.policies.abort_plan import PlannedProcess
from supervisor.policies.budgets import Amounts
from supervisor.policies.call_processes import LiveProcess, ProcessSeen, describe_processes, processes_of_turn
from supervisor.policies.error_classification import PERMANENT_STATUSES, STATUSES, is_held, is_refused_option
from supervisor.policies.output_novelty import OutputNovelty
from supervisor.policies.permissions import PermissionRequest
from supervisor.policies.retry_reason import quoted_lines
from supervisor.policies.stage_deadlines import program_end_s
from supervisor.policies.turn_outcome import abort_reason_of
from supervisor.ports import (
    THIS_CONVERSATION,
    AgentFiles,
    CallNotEnded,
    ChildRequested,
    CloseInput,
    Codec,
    Compaction,
    ConversationNamed,
    FileRefused,
    FileRequested,
    InvalidLaunch,
    Launch,
    Malformed,
    MessageAccepted,
    ModelErrorReported,
    Out,
    Outcome,
    PermissionNeeded,
    Process,
    ProcessReport,
    Ready,
    RequestRefused,
    SpawnError,
    SpawnShortage,
    StrayLine,
    TerminalKilled,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    TurnEnding,
    Usage,
)
from supervisor.ports.input_limits import (
    CALLS_MAX,
    CHILDREN_MAX,
    OPEN_CALLS_MAX,
    QUIET_S,
    STRAY_CHARS_MAX,
    STRAYS_RECORDED_MAX,
    UNREAD_BYTES_MAX,
    UNREAD_S,
)
from supervisor.ports.logs import get_logger
from supervisor.ports.shortages import outlast_shortage
from supervisor.runtime.availability import RetryingProcessHost
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.agent_connection import AgentConnection, ConnectionPhase, Delegate
from supervisor.sessions.agent_io import AgentIO, ReportedEnd
from supervisor.sessions.agent_requests import PermissionRequests, Terminals
from supervisor.sessions.compaction_tracker import CompactionTracker
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.registry import SessionRegistry
from supervisor.sessions.tool_calls import ToolCallTerminations

_log = get_logger()

_WORK = (ToolOpened, ToolClosed, PermissionNeeded, TerminalOpened, ChildRequested, Compaction, ModelErrorReported)
"""Messages which show that an agent works on its prompt, or tries to."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
"""Number of clock ticks in a second, in which births of processes are measured."""
PATIENCE_S = 20.0
"""Seconds that a launch waits for file descriptors before the session begins another launch: each launch costs
records."""
STAYS_S = 1.0
"""Seconds that an agent without a turn has to exit after the end of its input; then it is sent SIGTERM."""
MUTE_S = 2.0
"""Seconds that an agent has to exit after it has closed its output."""
ERROR_CHARS = 4096
"""Number of characters at the end of standard error that are stored in order to find the last line."""
_NOT_COMPACTED = Verdict(
    exit=Exit.ERROR,
    error="the agent could not compact its context",
    transition_reason=TransitionReason.COMPACTION_FAILED,
    abort_reason=AbortReason.COMPACT_FAILURE,
)


class ProcessConnection(AgentConnection):
    """Connection of a session to an agent that is a program, over the program's standard input and output."""

    def __init__(
        self,
        registry: SessionRegistry,
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
    ) -> None:
        super().__init__(registry, session, agent_id, incarnation)
        self._codec = codec
        self._host = host
        self._launch = launch
        self._delegate = delegate
        self._files = files
        self._resume_id = resume_id
        self.clean_up_s = program_end_s(session.policy.ladder)
        self._conversation: str | None = None
        """Name that the agent gave the conversation, if a later agent can load the conversation by this name."""
        self._steered: deque[str] = deque()
        """Ids of the messages that were sent within this turn and that the agent has not accepted yet."""
        self._agent_io = AgentIO()
        self._permissions = PermissionRequests(registry, session, launch.cwd, codec, self._agent_io)
        self._terminals = Terminals(registry, session, host, launch, codec, self._agent_io, self._permissions)
        self._terminations = ToolCallTerminations(
            registry, session, agent_id, self._calls, self._aborting, codec.end_call, self._agent_io
        )
        self._cut_short: str | None = None
        """Actor id of a call that was open when the turn was interrupted."""
        self._stopped: dict[str, tuple[str, str]] = {}
        """Calls that the agent reports as stopped while other calls of an interrupted turn are still open."""
        self._compacting = CompactionTracker(registry, session)
        self._prompt_given = OneShotEvent()
        self._since: int | None = None
        """Clock tick of the agent's first prompt: processes that were started before belong to the agent itself, not to
        a turn."""
        self._is_unknown = False
        """True if the shim was lost: processes that the agent has left running then cannot be listed."""
        self._exit_status: int | None = None
        """Exit status of the program, once its output was read to the end."""
        self._last_error_line = ""
        self._quoted: frozenset[str] = frozenset()
        """Lines of the prompt that quote the reason of a retry: a program that repeats them has not said them."""
        self._errors_read = OneShotEvent()
        self._reported_end = ReportedEnd(registry.system.timers, self._end_settled)
        self._stayed = ""
        """Reason why the program was ended although its turn had not failed, for the record of its exit."""
        self._kill_timer: Timer | None = None
        """Timer of the next step against a program that was told to end, and has not ended yet."""
        self._idle_timer: Timer | None = None
        """Timer after which an idle agent is ended."""
        self._strays = 0
        """Number of lines that were no messages of the agent's protocol."""

    # ------------------------------------------------------------------ commands: never wait
    @property
    def reusable(self) -> bool:
        return super().reusable and not self._codec.one_shot

    def start_turn(self, turn_id: str, incarnation: int, prompt: str) -> None:
        self._permissions.begin_turn()
        self._steered.clear()
        self._quoted = quoted_lines(prompt)
        if self._begin(turn_id, incarnation):
            self._terminations.begin_turn()
            self._cut_short = None
            self._stopped.clear()
            if self._since is None and self._agent_io.process is not None:
                self._since = self._agent_io.process.clock()
            self._agent_io.put(self._prompted(prompt))
            self._prompt_given.set()

    def _prompted(self, prompt: str) -> Iterable[Out]:
        """Prompt the agent; have it compact its context before, if the context is nearly full and the agent can."""
        monitor = self.session.monitor
        if (
            monitor is not None
            and monitor.context_near
            and (outs := self._codec.compact_and_prompt(prompt)) is not None
        ):
            monitor.context_compacted()
            return outs
        return self._codec.prompt(prompt)

    def steer(self, message_id: str, incarnation: int, text: str) -> None:
        working = self.turn_id is not None and incarnation == self._incarnation and self._intent is None
        outs = self._codec.steer(text) if working and not self._agent_io.full else None
        if outs is None:
            why = _unread(self._agent_io.unread_bytes) if self._agent_io.full else "the agent does not take it now"
            self._report_not_steered(message_id, incarnation, why)
        else:
            self._steered.append(message_id)
            self._agent_io.put(outs)

    def interrupt(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None:
        if self._note_intent(turn_id, intent, abort_id):
            self._cut_short = next((tool for call, tool in self._calls.items() if not self.runs_call(call)), None)
            self._agent_io.put(self._codec.interrupt())
            self._permissions.withdraw(turn_id, f"its turn is interrupted: {intent.error}")

    def close_when_idle(self) -> None:
        self._advance(ConnectionPhase.CLOSING)
        if self._codec.one_shot and not self._prompt_given.is_set():
            self.kill(Verdict(exit=Exit.ERROR, error="its prompt was taken back"))
        elif self.turn_id is None:
            self._agent_io.put(self._codec.close())
            self._agent_io.put([CloseInput()])
            process = self._agent_io.process
            if process is not None and self._kill_timer is None:
                stays_s = min(STAYS_S, self.session.policy.ladder.request_s)
                self._end_later(partial(self._end_stayed, process), stays_s)

    def kill(self, intent: Verdict) -> None:
        self._intent = self._intent or intent
        self._prompt_given.set()
        self._killed.set()
        if self._agent_io.process is not None:
            self._agent_io.process.kill()
        self._terminals.kill()

    def terminate_call(
        self, call_id: str, not_ended: Callable[[str], None], *, now: bool = False, within_s: float | None = None
    ) -> str:
        return self._terminations.terminate(call_id, not_ended, now=now, within_s=within_s)

    def runs_call(self, call_id: str) -> bool:
        return self._terminals.is_served(self._calls.get(call_id))

    def processes(self) -> tuple[PlannedProcess, ...]:
        agent = self._agent_io.process
        alive = () if agent is None else (PlannedProcess(owner=self.agent_id, pid=agent.pid),)
        return (*alive, *self._terminals.processes())

    async def list_processes(self) -> tuple[LiveProcess, ...] | None:
        process = self._agent_io.process
        if process is None:
            return None if self._is_unknown else ()
        own = [one for one in self._calls.values() if not self._terminals.is_served(one)]
        span, programs = self._terminations.span, self.session.profile.programs_of(process.pid)
        seen = await process.list_processes()
        of_terminals = await self._terminals.list_processes(self.agent_id)
        if seen is None or of_terminals is None:
            return None
        found = [*describe_processes(seen, span, programs, self.agent_id, own), *of_terminals]
        now, redact = process.clock(), self.registry.journal_writer.redactor.text
        return tuple(
            msgspec.structs.replace(
                one, command=redact(one.command), age_s=round(max(0, now - process.born) / TICKS_PER_S, 2)
            )
            for process, one in found
        )

    async def processes_of_turn(self) -> tuple[ProcessSeen, ...] | None:
        process = self._agent_io.process
        if process is None and self._is_unknown:
            return None
        if process is None or self._since is None:
            return ()
        seen = await process.list_processes()
        agent = self.session.profile.programs_of(process.pid)
        return None if seen is None else processes_of_turn(seen, self._since, agent)

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
            # The session's deadline for a launch must not end the wait for descriptors, since that would be charged as
            # a failure; after the wait the session waits by its own backoff.
            limits = self.session.data.limits
            patience_s = min(PATIENCE_S, float(limits.spawn_deadline_s) / 3)
            async with self._host.spawn(
                self._launch,
                terminate_s=terminate_s,
                kill_s=ladder.kill_s,
                on_exiting=partial(self.session.begin_exiting, self.agent_id),
                patience_s=patience_s,
                until=self._killed,
            ) as process:
                self._agent_io.process = process
                await self._converse(process)
        except SpawnShortage as error:
            exited = AgentExited(reason=str(error), ended_by="exit")
            # The session launches again, without a failure; the next agent loads the same conversation.
            self.session.resume_id = self._resume_id
            waiting = f"waits for {error.lacks}: {error}"
            verdict = Verdict(exit=Exit.ERROR, error=waiting, transition_reason=TransitionReason.SHORTAGE)
            self._report_not_started(verdict)
        except SpawnError as error:
            exited = AgentExited(reason=str(error), ended_by="exit")
            permanent = TransitionReason.PERMANENT_ERROR if isinstance(error, InvalidLaunch) else None
            self._report_not_started(Verdict(exit=Exit.ERROR, error=str(error), transition_reason=permanent))
        finally:
            self.session.exiting.pop(self.agent_id, None)  # also of a launch that was cancelled
            if process is not None:
                with anyio.CancelScope(shield=True):
                    exited = self._record_exit(await process.wait_ended())
                self._agent_io.process = None
            self._reported_end.cancel()
            for timer in (self._kill_timer, self._idle_timer):
                if timer is not None:
                    self.registry.system.timers.cancel(timer)
            self._compacting.finish()
            self._terminations.finish()
            self._report_end(exited)

    def _record_exit(self, report: ProcessReport) -> AgentExited:
        self.session.record_process(self.agent_id, report)
        if report.survivors == 0:
            self._terminations.note_processes_gone()
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
            reason=intent.error if intent is not None else self._stayed,
            abort_reason=reason,
            abort_id=self._abort_id,
        )

    async def _converse(self, process: Process) -> None:
        if self._killed.is_set():
            process.kill()
        self._send(self.agent_id, AgentStarted(pid=process.pid))
        launched = AgentLaunched(incarnation=self._incarnation, agent_id=self.agent_id)
        await self._report(self.session.session_id, launched)
        async with anyio.create_task_group() as group:
            self._agent_io.open(group, process, self._process)
            group.start_soon(self._read_errors, process)
            try:
                await self._process_output(process)
            finally:
                self._agent_io.close()

    async def _process_output(self, process: Process) -> None:
        """Process all output of the program, up to the program's exit."""
        self._agent_io.enqueue(self._codec.start(self._launch.cwd, self._resume_id))
        await self._agent_io.process_received()
        if self._codec.one_shot:
            # The program may finish before the turn begins. Its output belongs to the turn, and is read from then on.
            await self._prompt_given.wait()
        await self._read(process)
        status = await self._wait_exit(process)
        report = await process.wait_ended()
        self.outlived, self._is_unknown = report.outlived, report.survivors < 0
        self._advance(ConnectionPhase.EXITED)
        self._agent_io.process = None
        if report.survivors == 0:
            await self._close_stopped()
        await self._errors_read.wait()
        self._exit_status = status
        self._agent_io.enqueue(self._codec.exited(status))
        await self._agent_io.process_received()
        self._conclude("error", "", status)

    async def _read(self, process: Process) -> None:
        novelty = OutputNovelty()
        while data := await process.receive():
            if self._codec.one_shot or novelty.take(data):  # the time-out of a one-shot program bounds its silence
                self.session.report_progress()
            if not self._codec.one_shot:
                self._reported_end.note_output()
            self._terminations.note_output(process.written_between)
            # In lines: a codec replies to some lines by itself, and one line may ask for megabytes. A one-shot program
            # gets no reply.
            for part in (data,) if self._codec.one_shot else _lines(data):
                if not await self._wait_for_room():
                    break
                self._agent_io.enqueue(self._codec.feed(part))
                if self._agent_io.full:
                    await self._agent_io.process_received()
            await self._agent_io.process_received()
        self._agent_io.put(self._codec.feed(b""))

    async def _wait_for_room(self) -> bool:
        """Wait while too many bytes wait to be read by the agent. An agent that takes none of them for ``UNREAD_S``
        seconds is killed, because replies to an agent that sends requests and does not read would fill the memory.
        Return ``False`` if the agent is being killed, so that its output is no longer read."""
        if self._codec.one_shot:  # a one-shot program gets no reply
            return True
        while self._agent_io.full and self._phase < ConnectionPhase.EXITED:
            if self._killed.is_set():
                return False
            taken = self._agent_io.taken_bytes
            with self.registry.system.timers.limit(UNREAD_S):
                await self._agent_io.wait_taken()
            ended = self._killed.is_set() or self._phase >= ConnectionPhase.EXITED
            if taken == self._agent_io.taken_bytes and not ended:
                why = f"the agent does not read what it is sent: {_unread(self._agent_io.unread_bytes)}"
                self._malformed(f"{why}, and it took none of them in {UNREAD_S:g} s")
        return True

    async def _wait_exit(self, process: Process) -> int | None:
        """Return the exit status. An agent that has closed its output and does not exit cannot reply any more: it is
        killed. (The kernel closes the output of a process that exits first, and may take seconds for the rest.)"""
        if not self._codec.one_shot:
            with self.registry.system.timers.limit(MUTE_S):
                return await process.wait_exit()
            main: ProcessSeen | None = None
            with self.registry.system.timers.limit(MUTE_S):  # a shim that was stopped gives no reply
                main = next(iter(await process.list_processes() or ()), None)
            is_exiting = main is not None and main.exiting
            if not (is_exiting or self._killed.is_set()) and self._phase is ConnectionPhase.OPEN:
                self._malformed("the agent closed its output and did not exit")
        return await process.wait_exit()

    async def _read_errors(self, process: Process) -> None:
        end = ""  # a line may arrive in pieces
        novelty = OutputNovelty()
        while data := await process.receive_err():
            if self._codec.one_shot or novelty.take(data):
                self.session.report_progress()
            text = data.decode(errors="replace")
            self.session.write_transcript("stderr", text)
            end = f"{end}{text}"[-ERROR_CHARS:]
            lines = (line for line in reversed(end.splitlines()) if line.strip() and line.strip() not in self._quoted)
            self._last_error_line = next(lines, "")[:300]
        self._errors_read.set()

    # ------------------------------------------------------------------ messages of the agent
    async def _process(self, out: Out) -> None:
        if not await self._wait_for_room():
            return
        # A log line may be about anything: it does not show that the agent works on its prompt.
        is_work = out.kind != "log" if isinstance(out, Text) else isinstance(out, _WORK)
        if is_work and self._codec.one_shot:
            self._reported_end.cancel()  # it had not ended: some programs go on after a failure that they report
        if self.turn_id is not None and self.session.monitor is not None:
            self.session.monitor.model.observe(out)
            if self._intent is None and is_work:
                self.session.note_progress()
        match out:
            case Ready():
                await self._on_ready(out)
            case ConversationNamed(resume_id):
                await self._on_named(resume_id)
            case MessageAccepted():
                if self._steered and self.turn_id is not None:  # after the turn that has no effect
                    oldest = self._steered.popleft()
                    self._send(
                        self.session.session_id, MessageTakenUp(incarnation=self._incarnation, message_id=oldest)
                    )
            case Text(kind, text):
                if kind == "message":
                    self.session.answer.append(text)
                self.session.write_transcript(kind, text)
            case ToolOpened(call_id, title, tool_kind, parent):
                if self.turn_id is not None and (why := self._too_many_calls()):
                    self._malformed(why)
                else:
                    await self._open_call(call_id, title, tool_kind, parent)
            case ToolClosed(call_id, outcome, asked, answered):
                await self._close_call(call_id, ToolOutcome(outcome), asked=asked, answered=answered)
            case TerminalOpened():
                self._terminals.open(out, self._calls.get(out.call_id), self.turn_id)
            case TerminalKilled(terminal_id):
                self._terminals.kill(terminal_id)
            case PermissionNeeded():
                if why := self._permissions.handle_request(out, self.turn_id):
                    self._malformed(why)
            case RequestRefused(what, why):
                subject, cause = self.turn_id or self.session.session_id, self.session.cause
                self.registry.record_fact(subject, "RequestRefused", cause, {"request": what, "why": why})
            case FileRequested():
                await self._serve_file(out)
            case ChildRequested():
                self._serve_child(out)
            case Usage():
                self._on_usage(out)
            case Compaction():
                await self._compact(out)
            case ModelErrorReported():
                self.session.write_transcript("log", f"its model failed ({out.problem}): {out.words}\n")
            case CallNotEnded(call_id, why):
                self._terminations.give_up(call_id, why)
            case TurnEnding():
                settle_s = self.session.data.limits.settle_s
                self._reported_end.begin(quiet_s=settle_s if self._codec.one_shot else QUIET_S, within_s=settle_s)
            case TurnEnded():
                await self._on_turn_ended(out)
            case StrayLine(line, why):
                self._on_stray(line, why)
            case Malformed(why, permanent, held):
                if held:  # by a process of the agent before: the next launch loads it
                    self.session.resume_id = self._resume_id
                self._malformed(why, permanent)
            case _:
                raise AssertionError(f"bytes are written by AgentIO: {type(out).__name__}")

    def _too_many_calls(self) -> str:
        """Return the reason why the turn accepts no further tool call; ``""`` if it accepts one."""
        if len(self._calls) >= OPEN_CALLS_MAX:
            return f"the agent has {len(self._calls)} tool calls open; the most is {OPEN_CALLS_MAX}"
        over = self._numbers >= CALLS_MAX
        return f"the agent made {CALLS_MAX} tool calls in one turn; that is the most" if over else ""

    async def _on_ready(self, ready: Ready) -> None:
        """Report that the agent is ready. If the agent names the conversation, this name is durable before the first
        prompt can be sent, so that the next supervisor can load the conversation."""
        self._conversation = ready.resume_id
        self.steers = ready.steers
        if note := untried_version(ready.info):
            _log.warning("agent version not tried", session=self.session.id, agent=note)
        if ready.resume_id is not None:
            named = AgentReady(resume_id=ready.resume_id, info=ready.info)
            await self._report(self.agent_id, named)
            self.is_ready = True
            self.report_started(self._incarnation)
        else:
            self._report_ready(ready.info)

    async def _on_named(self, resume_id: str) -> None:
        """Record the agent's name for the conversation. After a program that serves one prompt, the next program loads
        the conversation by this name."""
        if resume_id != self._conversation:
            if self._conversation is None and self.session.monitor is not None:
                self.session.monitor.totals.rename(self.agent_id, resume_id)
            self._conversation = resume_id
            await self._report(self.agent_id, AgentNamed(resume_id=resume_id))
        if self._codec.one_shot:
            self.session.resume_id = resume_id

    def _on_usage(self, usage: Usage) -> None:
        """Count reported usage, even after the end of a turn: the last message may report usage of that turn."""
        if self.session.monitor is not None:
            amounts = Amounts(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cost_usd=usage.cost_usd,
                cached_tokens=usage.cached_tokens,
                requests=usage.requests,
            )
            if usage.context is not None:
                self.session.monitor.record_context(usage.context)
            total_of = (self._conversation or self.agent_id) if usage.total_of == THIS_CONVERSATION else usage.total_of
            self.session.monitor.record_usage(amounts, usage.used, total_of)

    async def _compact(self, compaction: Compaction) -> None:
        if self.turn_id is None:
            await self._compacting.update_after_turn(
                self._concluded if self._succeeded else None, active=compaction.active
            )
        elif not compaction.failed or compaction.goes_on:
            await self._compacting.update(self.turn_id, active=compaction.active, failed=compaction.failed)
        elif self._intent is None:  # else the compaction was given up because the turn ends
            self.interrupt(self.turn_id, _NOT_COMPACTED, None)

    async def _open_call(self, call_id: str, title: str, tool_kind: str, parent: str = "") -> str | None:
        self._terminations.note_opened(call_id)
        return await super()._open_call(call_id, title, tool_kind, parent)

    async def _close_call(
        self, call_id: str, outcome: ToolOutcome, reason: str = "", *, asked: str = "", answered: str = ""
    ) -> None:
        """End a call. An aborted call gets its result only after the processes that the call has left running have
        ended. In an interrupted turn this can be decided only when all calls have stopped."""
        if self._intent is not None and outcome is ToolOutcome.FAILED and call_id in self._own_calls():
            self._stopped[call_id] = (asked, answered)
        else:
            if self._intent is None and not await self._terminations.before_result(call_id):
                outcome = ToolOutcome.UNKNOWN
            await super()._close_call(call_id, outcome, reason, asked=asked, answered=answered)
            if not self._calls and self._intent is None:
                self._terminations.note_all_closed()
        if all(one in self._stopped for one in self._own_calls()):
            await self._close_stopped()

    def _drop_call(self, call_id: str) -> None:
        super()._drop_call(call_id)
        self._terminations.note_closed(call_id)

    def _own_calls(self) -> list[str]:
        """Return the ids of the open calls whose work the agent runs by itself."""
        return [one for one in self._calls if not self.runs_call(one)]

    async def _close_stopped(self) -> None:
        """End the calls that the agent reports as stopped. The report is accepted if none of the calls' processes is
        left; otherwise the outcome of the calls is ``unknown``."""
        stopped, self._stopped = self._stopped, {}
        first = next((self._calls[one] for one in stopped if one in self._calls), None)
        if first is not None:
            outcome = ToolOutcome.FAILED if await self._terminations.before_end(first) else ToolOutcome.UNKNOWN
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
        last_words: str = "",
    ) -> None:
        if self.turn_id is not None:
            self._permissions.withdraw(self.turn_id, "its turn is over")
        super()._conclude(stop, error, status, problem=problem, http_status=http_status, last_words=last_words)

    def _on_stray(self, line: str, why: str) -> None:
        """Write a line that is no message into the transcript, and record the first of these lines."""
        self.session.write_transcript("log", f"{line}\n")
        self._strays += 1
        if self._strays <= STRAYS_RECORDED_MAX:
            fact = {"line": line[:STRAY_CHARS_MAX], "why": why}
            self.registry.record_fact(self.agent_id, "StrayLine", self.session.cause, fact)

    def _end_settled(self) -> None:
        """End the turn whose end was reported, because nothing more of it has come. A program that serves one prompt,
        and that has not exited by itself, is ended first: its exit ends the turn."""
        process = self._agent_io.process
        self._agent_io.put(self._codec.settled())
        if self._codec.one_shot and process is not None:
            self._stayed = "it had reported its result, and did not exit within limits.settle_s"
            self._terminate(process)

    def _end_stayed(self, process: Process) -> None:
        """End an agent that has nothing to do any more, and stays after the end of its input: whoever waits for the end
        of its session would wait for the whole stage request."""
        self._stayed = self._stayed or "it did not exit at the end of its input"
        self._terminate(process)

    def _terminate(self, process: Process) -> None:
        """End the program by SIGTERM, and by SIGKILL if it does not end in time."""
        process.terminate()
        kill_s = 0.0 if self.session.profile.quirks.needs_kill else self.session.policy.ladder.terminate_s
        self._end_later(process.kill, kill_s)

    def _end_later(self, end: Callable[[], None], delay_s: float) -> None:
        def fire(timer: Timer) -> None:
            self._kill_timer = None  # a timer that has fired must not be cancelled
            end()

        self._kill_timer = self.registry.system.timers.set(None, None, delay_s, fire)

    # ------------------------------------------------------------------ an idle agent
    def report_started(self, incarnation: int) -> None:
        if self._idle_timer is not None:
            self.registry.system.timers.cancel(self._idle_timer)
            self._idle_timer = None
        super().report_started(incarnation)

    def _release(self) -> None:
        super()._release()
        idle_s = self.session.monitor.idle_s if self.session.monitor is not None else 0.0
        if idle_s and self._conversation is not None and self.reusable and self._idle_timer is None:
            self._idle_timer = self.registry.system.timers.set(None, None, idle_s, lambda _: self._reclaim(idle_s))

    def _reclaim(self, idle_s: float) -> None:
        """End an agent that has been idle for *idle_s* seconds. The session's next agent loads the conversation, also
        under the next supervisor."""
        self._idle_timer = None
        process = self._agent_io.process
        if process is None or not self.reusable:
            return
        self._stayed = f"it was idle for {idle_s:g} s (liveness.idle_s)"
        self.session.resume_id = self._conversation
        fact = {"agent": self.agent_id, "resume_id": self._conversation, "idle_s": idle_s}
        self.registry.record_fact(self.session.session_id, "AgentReclaimed", self.session.cause, fact)
        self.close_when_idle()

    async def _on_turn_ended(self, ended: TurnEnded) -> None:
        self._reported_end.cancel()
        if self._cut_short is not None:  # an agent may say that it has stopped, and leave its tools running
            await self._terminations.before_end(self._cut_short)
        await self._close_stopped()
        if self.turn_id is None:
            self._compacting.finish()
        has_exited = ended.stop == "error" and self._phase >= ConnectionPhase.EXITED
        last_words = self._last_error_line if has_exited else ""
        if has_exited and self._intent is None and (self._opened or not self._codec.one_shot):
            self._note_crash()
        if has_exited and self._resume_id is not None and is_held(self._last_error_line):
            self.session.resume_id = self._resume_id  # the conversation is not lost: the next launch loads it
        if ended.stop == "cancelled" and self._numbers and self.session.profile.quirks.cancel_leaves_tool:
            # Its tools still run: they end with the agent. The next agent loads the conversation, if it can.
            self.session.resume_id = self._conversation
            why = "a cancel leaves its tools running: it was ended with them"
            self.kill(Verdict(exit=Exit.ERROR, error=why, abort_reason=AbortReason.SHUTDOWN_SIGNAL))
        # What an agent reports after its compaction has failed is no success.
        stop = "cancelled" if self._intent is _NOT_COMPACTED else ended.stop
        if stop == "end_turn" and self._permissions.has_denied and self.session.profile.quirks.denial_ends_turn:
            stop = "denied"
        # Only a status that says more than the agent's words do, such as 127: there is no such program.
        status = self._exit_status if ended.stop == "error" and self._exit_status in STATUSES else None
        self._conclude(
            stop,
            ended.error,
            status,
            problem=ended.problem,
            http_status=ended.status,
            last_words=last_words,
        )
        if self._phase is ConnectionPhase.CLOSING:
            self.close_when_idle()

    def _note_crash(self) -> None:
        """Record that the agent died in a turn, so that its conversation is continued like after a crash of the
        supervisor: in another process, with a note about the calls that were open.

        An agent that dies, without having done anything, after its conversation was loaded, may die of the
        conversation: the next one begins anew.
        """
        session, calls = self.session, tuple(title for title, *_ in self._opened.values())
        has_worked = bool(self._numbers or session.answer.text != session.answer.said)
        if self._resume_id is None or has_worked or self._codec.one_shot:
            session.resume_id = self._conversation
        session.interrupted, session.open_calls = True, calls
        fact = {"agent": self.agent_id, "resume_id": session.resume_id, "open_calls": [one[:200] for one in calls]}
        self.registry.record_fact(session.session_id, "AgentCrashed", session.cause, fact)

    def _malformed(self, why: str, permanent: bool = False) -> None:
        """Kill an agent that broke its protocol, and fail the agent's turn, or its launch: for good, if the error is
        *permanent* or the exit status says so."""
        verdict = Verdict(exit=Exit.ERROR, error=why, abort_reason=AbortReason.UNKNOWN)
        if self.turn_id is not None:
            self._conclude("error", why)
        elif not self.is_ready:
            last_words = f"; its last words: {self._last_error_line}" if self._last_error_line else ""
            permanent = permanent or self._exit_status in PERMANENT_STATUSES or is_refused_option(last_words)
            reason = TransitionReason.PERMANENT_ERROR if permanent else None
            failed = msgspec.structs.replace(verdict, error=f"{why}{last_words}", transition_reason=reason)
            self._report_not_started(failed)
        self.kill(verdict)

    def answer_permission(self, turn_id: str, request_id: str, option: str | None) -> None:
        if turn_id == self.turn_id:
            self._permissions.answer(request_id, option)

    async def _serve_file(self, asked: FileRequested) -> None:
        """Read or write a file of the workspace for the agent. No other message of the agent is processed meanwhile,
        unless a human has to permit the access first."""
        kind, tool = ("read", "fs/read_text_file") if asked.text is None else ("edit", "fs/write_text_file")
        request = PermissionRequest(title=f"{tool} {asked.path}", kind=kind, tool=tool, paths=(asked.path,))

        def on_answered(why: str) -> None:
            ctx = self.registry.system.context(self.agent_id)
            if ctx is not None:
                with suppress(ActorStopped):  # the agent is gone: no reply is needed
                    self.session.start(ctx, self._do_with_file, asked, why)

        why = self._permissions.decide_service(request, asked.text or "", self.turn_id, on_answered)
        if why is not None:
            await self._do_with_file(asked, why)

    async def _do_with_file(self, asked: FileRequested, why: str) -> None:
        """Read or write the file, and reply to the agent. *why* is the reason of a refusal, ``""`` if the access is
        permitted."""
        text = ""
        try:
            if why:
                raise FileRefused(why)
            if asked.text is None:
                text = await outlast_shortage(partial(self._files.read, asked.path, self._launch.cwd), self._killed)
            else:
                write = partial(self._files.write, asked.path, asked.text, self._launch.cwd)
                await outlast_shortage(write, self._killed)
        except OSError as error:
            why = str(error)
            if isinstance(error, FileRefused):
                self.session.record_turn_fact("FileRefused", {"path": asked.path, "why": why})
        self._agent_io.put(self._codec.file_answered(asked.request_id, text, why))

    def _serve_child(self, asked: ChildRequested) -> None:
        """Start a sub-agent for the agent, if permitted; the sub-agent may be another agent of the plan, with other
        rights than this agent."""
        title = f"{asked.agent or self.session.profile.name} {asked.name}"
        request = PermissionRequest(title=title, tool="_supervisor/session/run")
        start = partial(self._start_child, asked)
        why = self._permissions.decide_service(request, asked.prompt, self.turn_id, start)
        if why is not None:
            start(why)

    def _start_child(self, asked: ChildRequested, why: str) -> None:
        call_id = asked.call_id or ""
        started_by = self._named.get(call_id)

        def answer(outcome: Outcome) -> None:
            if started_by is not None:
                self._causes[started_by] = outcome.seq
            answer_text = outcome.text or outcome.error
            self._agent_io.put(self._codec.child_ended(asked.request_id, outcome.outcome, answer_text))

        if not why and len(self.session.children) >= CHILDREN_MAX:
            why = f"{self.session.session_id} has {len(self.session.children)} child sessions; wait until one has ended"
        if why:
            fact = {"child": asked.name, "agent": asked.agent, "why": why}
            self.session.record_turn_fact("ChildRefused", fact)
            answer(Outcome("failed", why, ""))
            return
        cause = Cause(self._causes.get(started_by or ""), None, self.session.session_id)
        once = self._register_delegation(call_id, answer)
        try:
            self._delegate(self.session, asked.name, asked.prompt, asked.agent, started_by, once, cause, asked.mode)
        except InvalidArgument as error:
            once(Outcome("failed", str(error), ""))


def _lines(data: bytes) -> Iterable[bytes]:
    """Yield the lines of *data* with their newlines, and then the bytes after the last newline."""
    at = 0
    while end := data.find(b"\n", at) + 1:
        yield data[at:end]
        at = end
    if at < len(data):
        yield data[at:]


def _unread(count: int) -> str:
    return f"{count} bytes wait for it; the most is {UNREAD_BYTES_MAX}"
