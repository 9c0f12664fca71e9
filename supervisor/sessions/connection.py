"""Interfaces of the parts that a session has while its agent is alive: the connection to the agent, and the monitor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles.session_data import Message
from supervisor.lifecycles.types import RecordId, Verdict
from supervisor.policies.abort_plan import PlannedProcess
from supervisor.policies.budgets import Amounts, BudgetScope
from supervisor.policies.call_processes import LiveProcess, ProcessSeen
from supervisor.policies.context_window import ContextUse
from supervisor.policies.liveness import StallProfileName
from supervisor.policies.loop_detection import FinishedCall
from supervisor.policies.usage import ConversationTotals
from supervisor.ports import Out, Outcome


class Connection(Protocol):
    """Live connection to one agent. The session and its turns call the methods; the connection reports events to the
    entities."""

    agent_id: str
    turn_id: str | None
    ended: OneShotEvent
    is_ready: bool
    steers: bool
    """True if the agent can receive a message within a turn."""
    clean_up_s: float
    """Seconds that ``run`` may take to end the agent after its cancellation."""
    outlived: tuple[ProcessSeen, ...]
    """Processes of the agent's turn that were still running when the agent's program had exited by itself; they were
    killed then."""

    @property
    def reusable(self) -> bool:
        """True if the agent is ready and idle, and accepts another turn."""
        ...

    async def run(self) -> None:
        """Run the agent from its start to its end."""
        ...

    async def wait_turn_over(self, turn_id: str | None = None) -> None:
        """Wait until the agent works on no turn; with *turn_id*, only until the agent no longer works on that turn."""
        ...

    def start_turn(self, turn_id: str, incarnation: int, prompt: str) -> None:
        """Begin a turn. The end of the turn is reported exactly once, whatever happens."""
        ...

    def steer(self, message_id: str, incarnation: int, text: str) -> None:
        """Send *text* within the running turn; an event to the session then reports whether the agent accepted the
        text."""
        ...

    def interrupt(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None:
        """Request the agent, in its protocol, to stop work on the turn *turn_id*. *intent* is the verdict of the turn
        if the agent reports no other end."""
        ...

    def answer_permission(self, turn_id: str, request_id: str, option: str | None) -> None:
        """Answer a permission request of the turn *turn_id*; ``None`` means that no option was chosen. A repeated
        answer has no effect."""
        ...

    def runs_call(self, call_id: str) -> bool:
        """Return whether the supervisor runs the work of the call *call_id*, and can end the call by its scope."""
        ...

    def has_returned(self, turn_id: str, call_id: str) -> bool:
        """Return whether the work of the call *call_id* is over, so that an abort comes too late."""
        ...

    def abandon_call(self, call_id: str, reason: str) -> None:
        """Drop the call *call_id*, so that a later result of the call is ignored. An in-process agent is given the
        *reason*."""
        ...

    def abort_own_call(self, call_id: str, reason: str, abort_id: str | None, cause_seq: RecordId | None) -> None:
        """Mark a call whose work the agent runs by itself as aborted: the call then ends with the result of the abort
        whose record has the number *cause_seq*."""
        ...

    def terminate_call(
        self, call_id: str, not_ended: Callable[[str], None], *, now: bool = False, within_s: float | None = None
    ) -> str:
        """Terminate one call whose work the agent runs by itself; the call's turn continues.

        *not_ended* is called once, with the reason, if it turns out that the call cannot be ended alone. With *now* the
        termination begins with the kill; *within_s* bounds the seconds until the termination is given up. A second
        request can only hasten the end.

        Returns:
            Description, for the receipt, of the way in which the call is terminated; ``""`` if it cannot be terminated
            alone.
        """
        ...

    def answer_delegation(self, call_id: str, outcome: Outcome) -> None:
        """Complete the wait for the child session that the call *call_id* started, with *outcome*, while the child
        still runs."""
        ...

    def processes(self) -> tuple[PlannedProcess, ...]:
        """Return the processes of the agent and its terminals that are known to be alive."""
        ...

    async def list_processes(self) -> tuple[LiveProcess, ...] | None:
        """Return the processes of the agent and its terminals that live now, each with the calls that it may belong to;
        ``None`` if they cannot be listed."""
        ...

    async def processes_of_turn(self) -> tuple[ProcessSeen, ...] | None:
        """Return the processes below the agent, except those from before the agent's first prompt and the agent's
        servers; ``None`` if the processes cannot be listed."""
        ...

    def signal_processes(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Send the signal *number* to the processes in *found*."""
        ...

    async def wait_process_exit(self, pid: int) -> None:
        """Wait until the process *pid*, a result of :meth:`processes_of_turn`, has ended. The method may return early:
        the caller must check again."""
        ...

    def report_started(self, incarnation: int) -> None:
        """Report that an agent that was idle is ready for the prompt of the launch with number *incarnation*."""
        ...

    def close_when_idle(self) -> None:
        """Let the agent end by itself as soon as it works on no turn."""
        ...

    def kill(self, intent: Verdict) -> None:
        """Kill the agent and everything that the agent started, at once."""
        ...


class ModelMonitor(Protocol):
    """Interface of the monitor for errors of an agent's model."""

    def observe(self, out: Out) -> None:
        """Process a message that the agent sent within its turn."""
        ...

    def judge(self, verdict: Verdict) -> Verdict:
        """Return the final verdict of a turn that the agent ended with *verdict*, with regard to the model errors
        before."""
        ...


class Monitor(Protocol):
    """Interface of the monitor of a session: use against budgets, loops, and signs of life."""

    scope: BudgetScope | None
    patience: StallProfileName
    progressed: bool
    """True if the agent has made progress since the monitor last checked."""

    @property
    def model(self) -> ModelMonitor: ...

    @property
    def idle_s(self) -> float:
        """Seconds without a prompt after which an agent is ended that loses nothing by it; 0: never."""
        ...

    @property
    def used(self) -> Amounts:
        """Amounts that the session's agents have used."""
        ...

    def start_request(self) -> None:
        """Reset the counts that begin anew with each request, and with each try of a request."""
        ...

    def turn_opened(self, turn_id: str) -> None:
        """Record that another turn begins, whose agent is not launched yet."""
        ...

    def select_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return those of the waiting *messages* that are to be part of the next prompt."""
        ...

    def complete_prompt(self, prompt: str) -> str:
        """Return the text that is sent to the agent as the prompt: *prompt*, with additions of the monitor."""
        ...

    def turn_began(self) -> None:
        """Record that the agent has received the turn's prompt."""
        ...

    def turn_ended(self) -> None:
        """Record that the agent no longer works on the turn."""
        ...

    @property
    def totals(self) -> ConversationTotals:
        """Last usage totals that the agents have reported of their conversations."""
        ...

    def record_usage(self, amounts: Amounts, report: dict[str, Any], total_of: str | None = None) -> None:
        """Count *amounts* that the agent has used, or, with *total_of*, the part of the conversation's total *amounts*
        that was not counted before; *report* is what the agent wrote."""
        ...

    def record_context(self, context: ContextUse) -> None:
        """Record how full the agent's context is."""
        ...

    @property
    def context_near(self) -> bool:
        """Whether the agent's last report said that its context nears the limit, and it has not compacted since."""
        ...

    def context_compacted(self) -> None:
        """Note that the agent compacts its context now."""
        ...

    def admit_call(self) -> bool:
        """Return whether another tool call may begin, and count this call."""
        ...

    def call_opened(self, call_id: str, kind: str) -> None:
        """Record that the call with that id, of that *kind*, has begun: the agent may have a time limit for it."""
        ...

    def call_closed(self, call_id: str) -> None:
        """Record that the call with that id has ended."""
        ...

    @property
    def finished_calls(self) -> int:
        """Number of tool calls that have ended so far."""
        ...

    def record_call(self, call: FinishedCall, after: int) -> None:
        """Record a tool call that has ended, and began when *after* calls had ended."""
        ...

    def report_progress(self) -> None:
        """Count output of the agent, before its meaning is known, as progress."""
        ...

    def take_progress(self) -> bool:
        """Return whether the agent has made progress since the last call of this method."""
        ...
