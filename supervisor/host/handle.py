"""Handle of one session, for embedding programs: every method calls a part of the supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple, Self

from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.types import (
    USUAL_TIME,
    AbortScope,
    CancelMode,
    DeliveryPoint,
    NoSuchEntity,
    RecordId,
    TimeLimit,
)
from supervisor.plans import BudgetConfig
from supervisor.policies.abort_plan import Receipt
from supervisor.policies.argument_checks import check_range, check_type
from supervisor.policies.budgets import Amounts, Budget
from supervisor.ports import Outcome
from supervisor.ports.agent_profile import AgentFunction
from supervisor.runtime.journal_writer import HOST


class TurnResult(NamedTuple):
    """Result of a prompt: ``completed``, ``failed`` or ``aborted``, the error, and the end of the agent's text.

    ``seq`` is the number of the record that decided the result (``None``: nothing could be written). A result that is
    delivered twice, because one supervisor was killed and the next one delivered it again, has the same number both
    times. ``exception`` is the exception, with its traceback, that an in-process agent raised in the last turn;
    ``None`` for other agents, and for a turn of an earlier supervisor.
    """

    outcome: str
    error: str
    text: str
    seq: RecordId | None = None
    exception: BaseException | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        """Return *outcome* as the result that an embedding program gets."""
        return cls(outcome.outcome, outcome.error, outcome.text, outcome.seq, outcome.exception)

    @property
    def ok(self) -> bool:
        """Whether the outcome is ``completed``."""
        return self.outcome == "completed"


class Session:
    """Handle of one session. A method that is called after the session has ended reports that the session has ended."""

    def __init__(self, core: SupervisorCore, session_id: str) -> None:
        self._core = core
        self.id = session_id

    def __repr__(self) -> str:
        try:
            state = self.state
        except NoSuchEntity:
            state = "ended"
        return f"<Session {self.id!r}, {state}>"

    @property
    def state(self) -> str:
        """State of the session, in the specification's spelling.

        Raises:
            NoSuchEntity: the session has ended.
        """
        return self._core.registry.state_of(self.id)

    @property
    def budget(self) -> Budget:
        """Amounts that the session may still use, by its own budget and by every budget above it; ``None`` means no
        bound.

        Raises:
            NoSuchEntity: the session has ended.
        """
        return self._core.monitors.left_of(self.id)

    @property
    def used(self) -> Amounts:
        """Amounts that the session's agents have reported as used, without the amounts of child sessions.

        Raises:
            NoSuchEntity: the session has ended.
        """
        return self._core.monitors.used_by(self.id)

    async def run(self, prompt: str, *, retries: int | None = None, timeout_s: float | None = None) -> TurnResult:
        """Have the agent work on *prompt*, wait, and return the result. Prompts of one session are worked on in order.

        Args:
            retries: number of times that the session tries again after a failed turn or a failed start of the agent,
                0 for a single try; by default as often as ``settings.limits`` allow. After the last failure the
                result is ``failed``, and the session takes the next prompt.
            timeout_s: seconds that each turn for the prompt may take, instead of ``settings.limits.turn_timeout_s``.

        Cancelling this call does not abort the turn: use :meth:`abort`. A prompt that has not reached the session when
        the call is cancelled is withdrawn.

        Raises:
            ValueError: *retries* is negative, or *timeout_s* is no positive number of seconds.
            TypeError: an argument has a wrong type.
            NoSuchEntity: the session has ended.
            Refused: the session is ending, or the supervisor is (a root session gets no prompt then). As
                :class:`Degraded`: the journal cannot be written now.
        """
        check_range("retries", retries, "0 or more", lambda number: number >= 0, int)
        check_range("timeout_s", timeout_s, "seconds, more than 0", lambda seconds: 0 < seconds < inf, int, float)
        limit = USUAL_TIME if timeout_s is None else TimeLimit(float(timeout_s), timeout_source="timeout_s of the call")
        self._core.requests.check_prompt(self.id, prompt)
        return TurnResult.of(await self._core.requests.outcome_of(self.id, prompt, HOST, retries=retries, limit=limit))

    async def result(self) -> TurnResult | None:
        """Wait for the last prompt that the session works on or has in its queue, and return the result; ``None`` if
        there is no such prompt. Prompts that were sent to an earlier supervisor are included."""
        outcome = await self._core.requests.last_outcome(self.id)
        return None if outcome is None else TurnResult.of(outcome)

    async def send(
        self, text: str, *, urgent: bool = False, at: DeliveryPoint | str | None = None, sender: str = "host"
    ) -> str:
        """Send a message to the agent: with the next prompt, or, if *urgent*, by interrupting the running turn. Return
        the message's id.

        Args:
            text: text for the agent.
            urgent: interrupt the running turn.
            at: point at which an urgent message is delivered: ``now`` (the default); ``tool_boundary``, as soon as no
                tool call is open; or ``turn_end``, in an extra turn after the running turn, without an interruption:
                the caller that waits for the running turn gets the result after that extra turn. After a turn that has
                failed for good the message waits for the next prompt.
            sender: name of the sender, for the agent and the records.

        Raises:
            ValueError: *at* is none of these values, or is given for a message that is not urgent.
            TypeError: an argument has a wrong type.
            NoSuchEntity: the session has ended.
            Refused: the session is ending, its queue of messages is full, or it works for a task and may get no further
                prompt. As :class:`Degraded`: the journal cannot be written now.
        """
        check_type("urgent", urgent, bool)
        return await self._core.requests.send(self.id, text, urgent=urgent, at=at, sender=sender)

    async def start_child(
        self,
        name: str,
        *,
        agent: str | AgentFunction | None = None,
        cancel_mode: CancelMode | str = CancelMode.WAIT_COMPLETED,
        budget: Budget | BudgetConfig | Mapping[str, Any] | None = None,
    ) -> Session:
        """Start a child session. The child ends before this session does, unless the child's cancel mode says
        otherwise. The child's *budget* is a part of this session's budget.

        Raises:
            TypeError: an argument has a wrong type.
            ValueError: the name is no session's name, *cancel_mode* is none of the modes, or no agent has that name.
            NoSuchEntity: this session has ended.
            Refused: this session, or the supervisor, is ending. As :class:`Degraded`: the journal cannot be written
                now.
        """
        child_id = await self._core.session_factory.start(
            name, agent=agent, parent=self.id, cancel_mode=cancel_mode, budget=budget
        )
        return Session(self._core, child_id)

    async def abort(
        self,
        scope: AbortScope | str = AbortScope.SESSION,
        *,
        reason: str = "",
        actor: str = "host",
        now: bool = False,
        within_s: float | None = None,
        plan_id: str | None = None,
    ) -> Receipt:
        """Abort the session, and everything else that *scope* reaches; return the receipt. The arguments are those of
        :meth:`Supervisor.abort`. A session that has ended is no error: the receipt says so.

        Raises:
            TypeError: an argument has a wrong type.
            ValueError: *scope* is no abort scope, or *within_s* is negative. As :class:`NoSiblings`: the scope is
                ``sibling``, and the session has no parent.
            Refused: the abort differs from the plan *plan_id* by now; nothing was ended.
        """
        return await self._core.aborts.abort(
            self.id, scope, reason=reason, actor=actor, now=now, within_s=within_s, plan_id=plan_id
        )

    async def close(self, reason: str = "no more work") -> None:
        """Close the session in the regular way, and wait until everything below the session has ended. A session that
        has ended is no error.

        Raises:
            TypeError: *reason* is no text.
            JournalError: the journal was lost meanwhile; nevertheless the session was ended.
        """
        await self._core.aborts.close_session(self.id, reason=reason)
