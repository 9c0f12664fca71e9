"""What a host holds of one session: a handle that only passes its wishes on."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from supervisor.lifecycles.types import AbortScope, CancelMode, DeliveryPoint
from supervisor.policies.abort_plan import Receipt
from supervisor.policies.budgets import Amounts, Budget
from supervisor.runtime.live_session import AgentFunction

__all__ = ["Session", "SupervisorApi", "TurnResult"]


class TurnResult(NamedTuple):
    """How a prompt ended: ``completed``, ``failed`` or ``aborted``, why, and the end of what the agent said.

    ``seq`` is the number of the journal's record that settled it (``None``: nothing could be written). Who is told
    twice, by two supervisors with a kill between them, knows it by this number.
    """

    outcome: str
    error: str
    text: str
    seq: int | None = None

    @property
    def ok(self) -> bool:
        return self.outcome == "completed"


class SupervisorApi(Protocol):
    """What a handle needs of its supervisor."""

    def state_of(self, entity_id: str) -> str: ...

    def left_of(self, session_id: str) -> Budget: ...

    def used_by(self, session_id: str) -> Amounts: ...

    async def request(self, session_id: str, prompt: str) -> TurnResult: ...

    async def result_of(self, session_id: str) -> TurnResult | None: ...

    async def send(
        self, session_id: str, text: str, *, urgent: bool, at: DeliveryPoint | str | None = None, sender: str
    ) -> str: ...

    async def start_session(
        self,
        name: str,
        *,
        agent: str | AgentFunction | None = ...,
        parent: str | None = ...,
        cancel_mode: CancelMode | str = ...,
        budget: Budget | None = ...,
    ) -> Session: ...

    async def abort(self, target: str, scope: AbortScope | str, *, reason: str = ..., actor: str = ...) -> Receipt: ...

    async def close_session(self, session_id: str, *, reason: str) -> None: ...


class Session:
    """A handle on one session. It stays valid after the session has ended; then it only answers so."""

    def __init__(self, supervisor: SupervisorApi, session_id: str) -> None:
        self._supervisor = supervisor
        self.id = session_id

    @property
    def state(self) -> str:
        """The session's state, in the specification's spelling."""
        return self._supervisor.state_of(self.id)

    @property
    def budget(self) -> Budget:
        """What it may still use, by its own budget and by every one above; ``None`` where nothing bounds it.

        Raises:
            NoSuchEntity: the session has ended.
        """
        return self._supervisor.left_of(self.id)

    @property
    def used(self) -> Amounts:
        """What its agents have used so far, as far as they say so; without those of child sessions.

        Raises:
            NoSuchEntity: the session has ended.
        """
        return self._supervisor.used_by(self.id)

    async def run(self, prompt: str) -> TurnResult:
        """Have the agent work on *prompt*; how that ended. Prompts of one session queue up.

        Cancelling this call does not abort the turn: use :meth:`abort`. A prompt that the session has not heard of by
        then is withdrawn.

        Raises:
            NoSuchEntity: the session has ended.
            Refused: it ends, or the journal cannot be written now (as :class:`Degraded`).
        """
        return await self._supervisor.request(self.id, prompt)

    async def result(self) -> TurnResult | None:
        """How the prompt ends that it works on, or the last of those that wait: also one that was asked of an earlier
        supervisor. ``None`` if it has none."""
        return await self._supervisor.result_of(self.id)

    async def send(
        self, text: str, *, urgent: bool = False, at: DeliveryPoint | str | None = None, sender: str = "host"
    ) -> str:
        """Leave a message for the next prompt; an urgent one does not wait that long. The message's id.

        Args:
            text: what the agent is told.
            urgent: it interrupts the turn that runs.
            at: when an urgent one does: ``now`` (the default), at the ``tool_boundary`` (as soon as no tool call is
                open), or not at all, but in a turn of its own right at the ``turn_end``; whoever waits for the turn
                that ran is answered after that one. After a turn that has failed for good it waits for the next prompt.
            sender: who says it.

        Raises:
            ValueError: *at* is none of these, or is given for a message that is not urgent.
            NoSuchEntity: the session has ended.
        """
        return await self._supervisor.send(self.id, text, urgent=urgent, at=at, sender=sender)

    async def start_child(
        self,
        name: str,
        *,
        agent: str | AgentFunction | None = None,
        cancel_mode: CancelMode | str = CancelMode.WAIT_COMPLETED,
        budget: Budget | None = None,
    ) -> Session:
        """Start a child session. It ends before this one does, unless its cancel mode says otherwise. Its *budget*
        lies in that of this one."""
        return await self._supervisor.start_session(
            name, agent=agent, parent=self.id, cancel_mode=cancel_mode, budget=budget
        )

    async def abort(self, scope: AbortScope | str = AbortScope.SESSION, *, reason: str = "the host said so") -> Receipt:
        """End it, and what the scope reaches."""
        return await self._supervisor.abort(self.id, scope, reason=reason, actor="host")

    async def close(self, reason: str = "no more work") -> None:
        """End it in order, and wait until everything below it has ended."""
        await self._supervisor.close_session(self.id, reason=reason)
