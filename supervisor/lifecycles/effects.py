"""Effects: actions that a lifecycle table requests from the rest of the supervisor.

Effects are frozen values, compared with ``==`` and written to the journal before they are performed. Exempt effects end
something: they are handed to the journal and performed at once, because an abort never waits for a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from actors.machine import Effect, Event
from supervisor.lifecycles.types import Verdict


class SupervisorEffect(Effect, frozen=True, kw_only=True, tag_field="effect"):
    """An effect of the supervisor's lifecycles. ``exempt`` effects do not wait until their record is durable.

    The tag of a subclass is its name in the journal: it stays when the class is renamed.
    """

    exempt: ClassVar[bool] = False


class SendEvent(SupervisorEffect, frozen=True, kw_only=True, tag="Tell"):
    """Effect: send *event* to the entity whose id is *to*."""

    to: str
    event: Event


class SendEventNow(SendEvent, frozen=True, kw_only=True, tag="TellNow"):
    """Effect: send *event*, which interrupts the receiver. The event does not wait for the disk, so that the receiver
    begins nothing else before it."""

    exempt: ClassVar[bool] = True


class StartTimer(SupervisorEffect, frozen=True, kw_only=True, tag="StartTimer"):
    """Effect: send *event* to the entity itself in *delay_s* seconds. The timer ends with the state, a *lasting* timer
    with the entity."""

    name: str
    delay_s: float
    event: Event
    lasting: bool = False


class OpenTurn(SupervisorEffect, frozen=True, kw_only=True, tag="OpenTurn"):
    """Effect: create a turn and claim it for the request. A turn that repeats a request whose turn ended with its
    supervisor times out at *due_s* (the journal's seconds), like the turn before it, and may be extended until
    *most_s*; other turns (``None``) have the whole time-out."""

    turn_id: str
    request_id: str
    due_s: float | None = None
    most_s: float | None = None


class PrepareWorktree(SupervisorEffect, frozen=True, kw_only=True, tag="PrepareWorktree"):
    """Effect: provide a directory to work in; ``WorktreeReady`` or ``FatalError`` follows."""


class BuildPrompt(SupervisorEffect, frozen=True, kw_only=True, tag="BuildPrompt"):
    """Effect: compose the prompt from the request and the waiting messages; ``PromptReady`` follows."""


class StorePrompt(SupervisorEffect, frozen=True, kw_only=True, tag="StorePrompt"):
    """Effect: write the prompt to the session's transcript."""

    prompt: str


class LaunchAgent(SupervisorEffect, frozen=True, kw_only=True, tag="LaunchAgent"):
    """Effect: provide an agent for this incarnation of the session: the idle agent, or a new one."""

    incarnation: int
    prompt: str


class SendPrompt(SupervisorEffect, frozen=True, kw_only=True, tag="SendPrompt"):
    """Effect: send the prompt to the agent."""

    incarnation: int
    turn_id: str
    prompt: str


class SteerAgent(SupervisorEffect, frozen=True, kw_only=True, tag="SteerAgent"):
    """Effect: send a message to the agent within the running turn; ``MessageTakenUp`` or ``SteerElapsed`` follows."""

    incarnation: int
    message_id: str
    sender: str
    text: str


class CancelSession(SupervisorEffect, frozen=True, kw_only=True, tag="CancelSession"):
    """Effect: send the agent the request, in its protocol, to stop what it is doing."""

    exempt: ClassVar[bool] = True
    reason: str
    abort_id: str | None = None
    abort_reason: str | None = None


class CancelStep(SupervisorEffect, frozen=True, kw_only=True, tag="CancelStep"):
    """Effect: cancel the step under way (a launch, a worktree step, a failed turn) without a message to the agent."""

    exempt: ClassVar[bool] = True


class ForceStopSession(SupervisorEffect, frozen=True, kw_only=True, tag="ForceStopSession"):
    """Effect: kill the agent's process tree now."""

    exempt: ClassVar[bool] = True
    reason: str


class LogFatal(SupervisorEffect, frozen=True, kw_only=True, tag="LogFatal"):
    """Effect: report to the operator that a session gave up."""

    message: str


class TerminateSession(SupervisorEffect, frozen=True, kw_only=True, tag="EndScope"):
    """Effect: end everything below the session, stage by stage, and then send ``Ended``. With *now*, begin at the kill
    stage."""

    exempt: ClassVar[bool] = True
    abort_id: str | None = None
    now: bool = False


class ReplyToRequest(SupervisorEffect, frozen=True, kw_only=True, tag="Answer"):
    """Effect: send the result of a request to its requester: ``completed``, ``failed`` or ``aborted``."""

    request_id: str
    outcome: str
    error: str = ""
    how: Verdict | None = None


class AskPermission(SupervisorEffect, frozen=True, kw_only=True, tag="AskPermission"):
    """Effect: put the agent's permission request to a human; ``PermissionAnswered`` follows within *within_s*
    seconds."""

    number: int
    within_s: float


class AnswerPermission(SupervisorEffect, frozen=True, kw_only=True, tag="AnswerPermission"):
    """Effect: answer the agent's permission request with *option*, one of the options that the agent offered."""

    number: int
    request_id: str
    option: str | None = None


class Verify(SupervisorEffect, frozen=True, kw_only=True, tag="Verify"):
    """Effect: check the agent's claim that the work is finished; ``task_completed`` or ``task_failed`` follows."""


class CleanUp(SupervisorEffect, frozen=True, kw_only=True, tag="CleanUp"):
    """Effect: end the processes that the turn left running; ``agent_reaped`` follows."""


class CancelTool(SupervisorEffect, frozen=True, kw_only=True, tag="CancelTool"):
    """Effect: cancel the cancel scope of one tool call. *number* is the call's number within its turn."""

    exempt: ClassVar[bool] = True
    number: int
    call_id: str
    abort_id: str | None
    reason: str


class SubmitPlan(SupervisorEffect, frozen=True, kw_only=True, tag="SubmitPlan"):
    """Effect: submit the plan of a trigger for the accepted *delivery*; ``RunStarted`` or ``StartFailed`` follows. A
    delivery is submitted once: its id is the key of its run."""

    delivery: str


class FinalizeEntity(SupervisorEffect, frozen=True, kw_only=True, tag="Bury"):
    """Effect: remove the entity's actor from memory, since the entity has ended and the journal has its records."""


EFFECTS: Final[Mapping[str, type[SupervisorEffect]]] = {
    str(one.__struct_config__.tag): one
    for one in (
        ReplyToRequest,
        AnswerPermission,
        AskPermission,
        BuildPrompt,
        FinalizeEntity,
        CancelSession,
        CancelStep,
        CancelTool,
        CleanUp,
        TerminateSession,
        ForceStopSession,
        LaunchAgent,
        LogFatal,
        OpenTurn,
        PrepareWorktree,
        SendPrompt,
        StartTimer,
        SteerAgent,
        StorePrompt,
        SubmitPlan,
        SendEvent,
        SendEventNow,
        Verify,
    )
}
"""Classes of effects by their name in the journal."""

_encode = msgspec.json.Encoder().encode


def encode_effect(effect: Effect) -> bytes:
    """Encode the effect as JSON, the form in which the journal holds an effect that is to be performed."""
    if not isinstance(effect, (SendEvent, StartTimer)):
        return _encode(effect)
    fields = {"effect": type(effect).__struct_config__.tag, **msgspec.structs.asdict(effect)}
    fields["event"] = {"name": type(effect.event).name(), "fields": effect.event}
    return _encode(fields)


def decode_effect(payload: bytes, event_of: Callable[[str, Any], Event]) -> SupervisorEffect:
    """Decode an effect from the journal.

    Args:
        payload: the result of :func:`encode_effect`.
        event_of: builds an event from its name and its fields.

    Raises:
        KeyError, ValueError: *payload* is no effect of this version.
    """
    fields: dict[str, Any] = msgspec.json.decode(payload)
    kind = EFFECTS[fields.pop("effect")]
    if "event" in fields:
        inner = fields["event"]
        fields["event"] = event_of(inner["name"], inner["fields"])
        return kind(**fields)
    return msgspec.json.decode(payload, type=kind)
