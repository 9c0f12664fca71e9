"""In-process agent: an agent that is an async function of the embedding program.

The function receives an :class:`AgentTurn`, with which it can write text, call tools and delegate work. The function
runs in the turn's cancel scope, and every tool call in a scope of its own, so that an abort reaches exactly its target.
A return value ends the turn successfully: a text, or ``None``. If the function swallows a cancellation, the termination
goes on to its next stage.

An exception, ``SystemExit`` included, fails the turn. The exception is logged and written to the transcript with its
traceback, and kept for ``TurnResult.exception``; the error of the turn names the file and the line. A programming error
(``policies.error_classification.PROGRAMMING_ERRORS``) is permanent: neither the session nor a task run tries again. Any
other ``BaseException``, such as Ctrl-C or an exception of a test framework, propagates to the embedding program and
stops the supervisor.
"""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import anyio

from actors import ActorStopped
from actors.one_shot_event import OneShotEvent
from actors.waiter import RAISED, as_error, is_cancellation
from supervisor.lifecycles.events import AgentExited, AgentLaunched, ToolCompleted
from supervisor.lifecycles.types import CancelMode, InvalidArgument, ToolOutcome, Verdict, choice_of
from supervisor.plans.tasks import TaskConfig
from supervisor.policies.argument_checks import check_items, check_type
from supervisor.policies.budgets import COUNT_MAX, Amounts
from supervisor.policies.error_classification import is_programming_error
from supervisor.policies.loop_detection import digest
from supervisor.ports import Outcome
from supervisor.ports.agent_profile import AgentFunction
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.agent_connection import AgentConnection, ConnectionPhase, Delegate
from supervisor.sessions.live_session import LiveSession
from supervisor.sessions.registry import SessionRegistry

if TYPE_CHECKING:
    from supervisor.plans.task_control import CommandResult

T = TypeVar("T")
_log = get_logger()

_NO_CALL = "its turn accepts no calls any more"

_OWN = (*RAISED, SystemExit)
"""Exceptions of an agent's function that end only the turn. They include ``SystemExit``: an agent that exits does not
end the host."""


def _as_error(error: BaseException) -> Exception:
    return RuntimeError(f"it exited with {error.code!r}") if isinstance(error, SystemExit) else as_error(error)


def _words(error: BaseException) -> str:
    """Return the text of an exception, even if the exception's ``__str__`` fails."""
    try:
        return str(error)
    except Exception as fault:
        return f"(its __str__ raised {type(fault).__name__})"


_PACKAGE: Final = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
"""Directories of code that is not the agent's own: Python's library and installed packages. Each ends with a separator,
so that ``supervisor_demo.py`` beside ``supervisor`` is the agent's own."""


def _describe(raised: BaseException, function: AgentFunction) -> str:
    """Return type and text of an exception, with the file and line: of the innermost frame that is the agent's own
    code, or, if there is none, of *function*."""
    error: BaseException = raised
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = [place for place in frames if not place[0].startswith(_PACKAGE)]
    own = [place for place in frames if not place[0].startswith((*_LIBRARIES, "<frozen"))]
    code = getattr(inspect.unwrap(function), "__code__", None)
    defined = [(code.co_filename, code.co_firstlineno)] if code is not None else []
    defined = [
        place for place in defined if not place[0].startswith(_PACKAGE)
    ]  # records must not hold a checkout's path
    at = "".join(f" ({file}, line {line})" for file, line in (own or defined or frames)[-1:])
    words = _words(_as_error(error))
    return f"{type(error).__name__}: {words}{at}" if words else f"{type(error).__name__}{at}"


def _trace(raised: BaseException) -> str:
    """Return the traceback of an exception, without the frames of this package, which say nothing about the agent."""
    trace = traceback.TracebackException.from_exception(raised)
    pending: list[traceback.TracebackException | None] = [trace]
    while pending:
        if (one := pending.pop()) is not None:
            one.stack = traceback.StackSummary.from_list(
                frame for frame in one.stack if not frame.filename.startswith(_PACKAGE)
            )
            pending += [one.__cause__, one.__context__, *(one.exceptions or ())]
    return "".join(trace.format())


async def _await_result(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Call an async function of the embedding program.

    Raises:
        TypeError: the result of the call cannot be awaited.
    """
    result = function(*args)
    if not inspect.isawaitable(result):
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise TypeError(f"{name} returned {_brief(result)}, which cannot be awaited; define it as 'async def'")
    return await result


def _brief(value: object) -> str:
    """Return a bounded text with the value and its type; ``repr`` of a value may fail."""
    try:
        return f"{repr(value)[:100]} ({type(value).__name__})"
    except Exception:
        return f"a value of type {type(value).__name__}"


class ToolAborted(Exception):
    """Exception: the tool call was aborted, for ``reason``; the turn continues."""

    def __init__(self, title: str, reason: str) -> None:
        self.title, self.reason = title, reason
        super().__init__(f"the call {title!r} was aborted: {reason}")


class _Call:
    """Result of one call, passed from the tool's task to the agent's task. ``settled`` is set when the call is done or
    aborted.

    Whether a call is done or aborted is decided at one point without an await. A call that is aborted before its
    function has returned stays aborted, even if the function is shielded and returns later; a call that has returned
    cannot be aborted.
    """

    def __init__(self) -> None:
        self.done = OneShotEvent()
        self.settled = OneShotEvent()
        self.value: Any = None
        self.error: Exception | None = None
        self.finished = False
        self.aborted = False
        self.reason = ""

    def finish(self, value: Any, error: Exception | None) -> None:
        if not self.aborted:
            self.value, self.error, self.finished = value, error, True

    def abort(self, reason: str) -> None:
        self.aborted = not self.finished
        self.reason = self.reason or reason
        self.settled.set()


_AROUND: ContextVar[tuple[FunctionConnection | None, str]] = ContextVar("_AROUND", default=(None, ""))
"""The connection, and the name of the call, whose function runs in the current task."""


class AgentTurn:
    """Prompt that an in-process agent works on, and the operations that the agent may use during the turn."""

    def __init__(self, connection: FunctionConnection, turn_id: str, prompt: str) -> None:
        self._connection = connection
        self.turn_id = turn_id
        self.prompt = prompt

    def __repr__(self) -> str:
        return f"<AgentTurn {self.turn_id!r}>"

    @property
    def session_id(self) -> str:
        return self._connection.session.session_id

    def say(self, text: str) -> None:
        """Add *text* to the agent's text of this turn and to the transcript."""
        check_type("text", text, str)
        self._connection.speak(text)

    def used(self, *, input_tokens: int = 0, output_tokens: int = 0, cost_usd: float = 0.0) -> None:
        """Report additional usage, in tokens and US dollars; this usage counts in every budget of the session.

        Raises:
            InvalidArgument: an amount is negative or not a number.
        """
        said = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cost_usd": cost_usd}
        for name, amount in said.items():
            check_type(name, amount, int, float)
            if not 0 <= amount < COUNT_MAX:
                raise InvalidArgument(
                    f"used: {name}: {amount!r} is not an amount; give a number of 0 or more, used since the last call"
                )
        amounts = Amounts(input_tokens=int(input_tokens), output_tokens=int(output_tokens), cost_usd=float(cost_usd))
        self._connection.use(self.turn_id, amounts)

    def heartbeat(self) -> None:
        """Report a sign of life when nothing else reports progress: a session without progress for long counts as
        stalled."""
        self._connection.session.note_progress()

    async def call(self, title: str, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run ``fn(*args)`` as a tool call, in a scope of its own and with a durable record before it starts.

        Raises:
            ToolAborted: an abort ended this call; the turn continues.
            TypeError: *title* is not a str, or *fn* is not an async function.
            Exception: the exception that *fn* raised.
        """
        check_type("title", title, str)
        if not callable(fn):
            check_type("fn", fn, "an async function; its arguments follow it")
        value: T = await self._connection.call(title, fn, args)
        return value

    async def delegate(
        self,
        name: str,
        prompt: str,
        *,
        agent: str | AgentFunction | None = None,
        cancel_mode: CancelMode | str = CancelMode.WAIT_COMPLETED,
    ) -> Outcome:
        """Run *prompt* in a child session and return the child's outcome.

        Args:
            agent: name of a configured agent, or an async function; by default the agent of this session.
            cancel_mode: the effect that the end of this session has on the child.

        Raises:
            ToolAborted: the call was aborted before the child started.
            InvalidArgument: there is no such agent or cancel mode, or *name* has characters that ids may not have.
            TypeError: an argument has a wrong type.
        """
        check_type("name", name, str)
        check_type("prompt", prompt, str)
        return await self._connection.hand_over(name, prompt, agent, choice_of(CancelMode, "cancel_mode", cancel_mode))

    async def split(self, subtasks: Sequence[TaskConfig], *, reason: str = "") -> CommandResult:
        """Split this session's task into *subtasks*; the task is completed when all subtasks are completed and this
        turn has ended.

        Raises:
            Refused: the plan does not let this session split a task, or its task cannot be split now.
            BadPlan: the subtasks are not valid.
        """
        check_items("subtasks", subtasks, TaskConfig)
        check_type("reason", reason, str)
        own = self._connection.session.assigned_task
        if own is None or own.split is None:
            known = (
                "set may_split: true for the task in the plan; with access: configured, its agent must be trusted, too"
            )
            raise Refused(f"session {self.session_id!r} has no task that it may split; {known}")
        answer: CommandResult = await own.split(own.name, subtasks, by=f"agent of {own.name}", reason=reason)
        return answer

    async def block(self, on: Sequence[str], *, reason: str = "") -> NoReturn:
        """Release this session's task until everything named in *on* is available: other tasks of the plan, or
        conditions that a person will confirm. The call ends this turn; another session continues with the task later.

        Raises:
            Refused: this session works on no task, or its task cannot wait for that.
        """
        check_items("on", on, str)
        check_type("reason", reason, str)
        own = self._connection.session.assigned_task
        if own is None:
            raise Refused(f"session {self.session_id!r} works on no task of a plan; only such a session can block")
        await own.block(own.name, on, by=f"agent of {own.name}", reason=reason)
        await anyio.sleep_forever()  # its session is being ended
        raise AssertionError("it was ended")


class FunctionConnection(AgentConnection):
    """Connection between a session and an in-process agent: an async function."""

    def __init__(
        self,
        registry: SessionRegistry,
        session: LiveSession,
        agent_id: str,
        incarnation: int,
        *,
        function: AgentFunction,
        delegate: Delegate,
    ) -> None:
        super().__init__(registry, session, agent_id, incarnation)
        self._function = function
        self._delegate = delegate
        self._stop = OneShotEvent()
        self._scope: anyio.CancelScope | None = None
        self._made = 0
        self._results: dict[str, _Call] = {}

    async def run(self) -> None:
        exited = AgentExited(ended_by="kill", reason="it was cancelled")
        try:
            launched = AgentLaunched(incarnation=self._incarnation, agent_id=self.agent_id)
            await self._report(self.session.session_id, launched)
            self._report_ready("in-process")
            await self._stop.wait()
            # A function may clean up after its cancellation, but one that swallows it is abandoned.
            with self.registry.system.timers.limit(self.session.policy.ladder.cancel_s):
                await self.wait_turn_over()
            exited = AgentExited(status=0, ended_by="exit")
        finally:
            self._report_end(exited)

    # ------------------------------------------------------------------ commands
    def start_turn(self, turn_id: str, incarnation: int, prompt: str) -> None:
        if not self._begin(turn_id, incarnation):
            return
        ctx = self.registry.system.context(turn_id)
        try:
            if ctx is None:
                raise ActorStopped(turn_id)
            self.session.start(ctx, self._run_turn, AgentTurn(self, turn_id, prompt))
        except ActorStopped as error:
            self._conclude("error", str(error))

    def interrupt(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None:
        if self._note_intent(turn_id, intent, abort_id) and self._scope is not None:
            self._scope.cancel()

    def close_when_idle(self) -> None:
        self._advance(ConnectionPhase.CLOSING)
        if self.turn_id is None:
            self._stop.set()

    def kill(self, intent: Verdict) -> None:
        self._intent = self._intent or intent
        self._killed.set()
        self._stop.set()
        if self._scope is not None:
            self._scope.cancel()

    def runs_call(self, call_id: str) -> bool:
        return True

    def has_returned(self, turn_id: str, call_id: str) -> bool:
        call = self._results.get(call_id)
        return super().has_returned(turn_id, call_id) or (call is not None and call.finished)

    def abandon_call(self, call_id: str, reason: str) -> None:
        super().abandon_call(call_id, reason)
        if call_id in self._results:
            self._results[call_id].abort(reason)

    # ------------------------------------------------------------------ the turn
    async def _run_turn(self, turn: AgentTurn) -> None:
        stop, error = "cancelled", ""
        try:
            with anyio.CancelScope() as self._scope:
                if not self._killed.is_set() and self._intent is None:
                    result = await _await_result(self._function, turn)
                    if not isinstance(result, str | None):
                        raise TypeError(f"the agent returned {_brief(result)}; return a str, or None after turn.say()")
                    if result:
                        self.speak(result)
                    stop = "end_turn"
        except _OWN as raised:
            if is_cancellation(raised):
                raise
            stop = "programming_error" if is_programming_error(raised) else "error"
            error = self._note_exception(raised, turn.turn_id)
        finally:
            self._scope = None
            self._conclude(stop, error)
            if self._phase is ConnectionPhase.CLOSING:
                self._stop.set()

    def _note_exception(self, raised: BaseException, turn_id: str) -> str:
        """Keep an exception of the function for the result of the prompt, write its traceback to log and transcript,
        and return the error of the turn."""
        self.session.answer.exception = raised
        error, trace = _describe(raised, self._function), _trace(raised)
        self.session.write_transcript("exception", trace)
        # The abort that ends a call or a turn is the reason of what the function raises then.
        log = _log.info if self._intent is not None or isinstance(raised, ToolAborted) else _log.error
        name = self.session.profile.name
        log("an in-process agent failed", turn=turn_id, agent=name, error=error, exception=trace.rstrip())
        return error

    def use(self, turn_id: str, amounts: Amounts) -> None:
        self.session.note_progress()
        if self.session.monitor is not None:
            self.session.monitor.record_usage(amounts, {"turn": turn_id, **amounts.as_record})

    def speak(self, text: str) -> None:
        self.session.note_progress()
        self.session.answer.append(text)
        self.session.write_transcript("message", text)

    async def call(self, title: str, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> Any:
        self.session.note_progress()
        self._made += 1
        call_id = f"call-{self._made}"
        call = self._results[call_id] = _Call()  # an abort may come before the call's function is started
        try:
            tool_id = await self._open_call(call_id, title, "other", self._call_around())
            ctx = self.registry.system.context(tool_id) if tool_id is not None else None
            if ctx is None:
                raise ToolAborted(title, call.reason or _NO_CALL)
            self.session.start(ctx, self._run_call, call_id, call, fn, args)
            await self._returned(call)
        except ActorStopped:
            raise ToolAborted(title, call.reason or _NO_CALL) from None
        except anyio.get_cancelled_exc_class():
            self._give_up(call_id)
            raise
        finally:
            del self._results[call_id]
        if not call.finished:
            raise ToolAborted(title, call.reason)
        outcome = ToolOutcome.FAILED if call.error else ToolOutcome.COMPLETED
        error = _words(call.error) if call.error is not None else ""
        answered = digest(repr(call.error) if call.error is not None else call.value)
        await self._close_call(call_id, outcome, error, asked=digest(args), answered=answered)
        if call.error is not None:
            raise call.error
        return call.value

    def _give_up(self, call_id: str) -> None:
        """Report the one result of a call that the agent no longer waits for: aborted."""
        if self.turn_id is not None and self._calls.pop(call_id, None) is not None:
            reason = "the agent gave it up" if self._intent is None else self._intent.error
            gone = ToolCompleted(call_id=call_id, outcome=ToolOutcome.ABORTED, reason=reason, abort_id=self._abort_id)
            self._send(self.turn_id, gone)

    async def _returned(self, call: _Call) -> None:
        """Wait for the result of a call. After an abort, the tool may clean up for ``cancel_s`` seconds before the
        agent continues."""
        await call.settled.wait()
        if call.done.is_set():
            return
        with self.registry.system.timers.limit(self.session.policy.ladder.cancel_s):
            await call.done.wait()

    def _call_around(self) -> str:
        """Return the name of the call of this agent in whose function the caller runs; ``""`` if it runs in none. Tasks
        that the function starts belong to the call, too. What is called within ends with the call."""
        connection, call_id = _AROUND.get()
        return call_id if connection is self and call_id in self._calls else ""

    async def _run_call(
        self, call_id: str, call: _Call, fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...]
    ) -> None:
        _AROUND.set((self, call_id))  # in the context of the call's own task
        try:
            call.finish(await _await_result(fn, *args), None)
        except _OWN as error:
            if is_cancellation(error):
                raise
            call.finish(None, _as_error(error))
        finally:
            call.done.set()
            call.settled.set()

    async def hand_over(self, name: str, prompt: str, agent: str | AgentFunction | None, mode: CancelMode) -> Outcome:
        self._made += 1
        call_id = f"call-{self._made}"
        tool_id = await self._open_call(call_id, f"delegate to {name}", "think", self._call_around())
        if tool_id is None:
            raise ToolAborted(f"delegate to {name}", _NO_CALL)
        call = self._results[call_id] = _Call()
        outcomes: list[Outcome] = []

        def answer(outcome: Outcome) -> None:
            outcomes.append(outcome)
            call.finish(outcome, None)
            call.done.set()

        cause = Cause(self._causes.get(tool_id), None, self.session.session_id)
        once = self._register_delegation(call_id, answer)
        try:
            self._delegate(self.session, name, prompt, agent, tool_id, once, cause, mode)
            await call.done.wait()
        except (TypeError, InvalidArgument) as error:
            await self._close_call(call_id, ToolOutcome.FAILED, str(error))
            raise
        except anyio.get_cancelled_exc_class():
            self._give_up(call_id)
            raise
        finally:
            del self._results[call_id]
        if call.aborted:
            return outcomes[0]._replace(outcome="aborted")
        self._causes[tool_id] = outcomes[0].seq
        done = outcomes[0].outcome == "completed"
        await self._close_call(call_id, ToolOutcome.COMPLETED if done else ToolOutcome.FAILED)
        return outcomes[0]
