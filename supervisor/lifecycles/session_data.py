"""Data of an agent session: counters, prompts that wait for a result, and messages that wait for a prompt."""

from __future__ import annotations

import msgspec

from supervisor.lifecycles.types import AbortReason, DeliveryPoint, Ending, SessionLimits


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt whose requester waits for the result. With *once*, the requester, a task, verifies the work and decides
    about another attempt. *reason* tells why the prompt is sent again; ``""`` the first time. *goes_on*: the last turn
    of the request has answered a message, which is no word on the request, so that the agent is asked to go on (rule
    49)."""

    id: str
    prompt: str
    reason: str = ""
    once: bool = False
    timeout_s: float | None = None
    hard_cap_s: float | None = None
    timeout_source: str = ""
    goes_on: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for the next prompt."""

    id: str
    sender: str
    text: str
    urgent: bool
    point: DeliveryPoint = DeliveryPoint.NOW
    blamed: AbortReason = AbortReason.USER_INTERRUPT
    """Abort reason of a turn that is interrupted for the message."""
    steer: bool = False
    """Whether the agent can be sent the message within the running turn."""
    told: bool = False
    """Whether the agent was sent the message within the running turn."""

    @property
    def interrupts(self) -> bool:
        """Whether a turn whose prompt does not include the message is interrupted for it."""
        return self.urgent and self.point is not DeliveryPoint.TURN_END

    @property
    def opens_turn(self) -> bool:
        """Whether the message needs a turn of its own after the running turn: it was to wait for the end of the turn,
        or was sent within the turn and not taken up."""
        return self.urgent and (self.point is DeliveryPoint.TURN_END or self.told)


class SessionData(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Data of a session.

    ``one_shot``: each prompt is a new run of the agent's program, which remembers nothing, so that the agent is never
    asked to go on. The first ``offered`` messages of ``inbox`` are in the current prompt, or were taken up since.
    ``spent``: the turn of a request that is tried once, or whose error is permanent, has failed, and no request has
    come since. ``cooled``: the backoff after such a failure is over, too. ``due_s`` is the time at which the next turn
    times out (the journal's seconds) if that turn continues the attempt of the turn before, or repeats a request whose
    turn ended with its supervisor; ``most_s`` is the time until which ``due_s`` may be extended. ``None``: the turn has
    its own time-out. ``ending`` is the present stage of the termination. ``verifying`` is the turn whose work the task
    of the session verifies: its request was replied to, and the turn is not over; ``""`` if there is none.
    """

    id: str
    agent: str
    limits: SessionLimits = SessionLimits()
    one_shot: bool = False
    incarnation: int = 0
    concluded: int = 0
    session_seq: int = 1
    turn_seq: int = 0
    turn_id: str = ""
    consecutive_errors: int = 0
    total_errors: int = 0
    current: Request | None = None
    queue: tuple[Request, ...] = ()
    inbox: tuple[Message, ...] = ()
    offered: int = 0
    urgent_latched: bool = False
    prompt: str = ""
    last_error: str = ""
    outcome: str = ""
    abort_id: str | None = None
    ended: bool = False
    spent: bool = False
    cooled: bool = False
    due_s: float | None = None
    most_s: float | None = None
    ending: Ending | None = None
    verifying: str = ""
