"""Every effect there is: what a decision can ask the world to do.

Effects are frozen values, compared with ``==`` and written to the journal before they are performed. The exempt ones
end things: they are handed to the journal first and performed at once, because an abort never waits for a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from actors.machine import Effect, Event
from supervisor.lifecycles.types import Verdict

__all__ = [
    "EFFECTS",
    "AnswerPermission",
    "AskPermission",
    "BuildPrompt",
    "CancelSession",
    "CancelStep",
    "CancelTool",
    "CleanUp",
    "FinalizeEntity",
    "ForceStopSession",
    "LaunchAgent",
    "LogFatal",
    "OpenTurn",
    "PrepareWorktree",
    "ReplyToRequest",
    "SendEvent",
    "SendEventNow",
    "SendPrompt",
    "StartTimer",
    "SteerAgent",
    "StorePrompt",
    "SupervisorEffect",
    "TerminateSession",
    "Verify",
    "decode_effect",
    "encode_effect",
]


class SupervisorEffect(Effect, frozen=True, kw_only=True, tag_field="effect"):
    """An effect of this supervisor. ``exempt`` effects do not wait until their record is durable.

    The tag of a subclass is its name in the journal: it stays when the class is renamed.
    """

    exempt: ClassVar[bool] = False


class SendEvent(SupervisorEffect, frozen=True, kw_only=True, tag="Tell"):
    """Send *event* to the entity *to* (an id)."""

    to: str
    event: Event


class SendEventNow(SendEvent, frozen=True, kw_only=True, tag="TellNow"):
    """A word that interrupts: it does not wait for a disk, so that nothing else is begun before it is heard."""

    exempt: ClassVar[bool] = True


class StartTimer(SupervisorEffect, frozen=True, kw_only=True, tag="StartTimer"):
    """Send *event* to oneself in *delay_s* seconds. It dies with the state, a *lasting* one with the entity."""

    name: str
    delay_s: float
    event: Event
    lasting: bool = False


class OpenTurn(SupervisorEffect, frozen=True, kw_only=True, tag="OpenTurn"):
    """A turn is born, and claimed for the request. One that asks again what ended with its supervisor times out at
    *due_s* (the journal's seconds), like the turn before it, and that may be extended until *most_s*; others (``None``)
    have the whole time-out."""

    turn_id: str
    request_id: str
    due_s: float | None = None
    most_s: float | None = None


class PrepareWorktree(SupervisorEffect, frozen=True, kw_only=True, tag="PrepareWorktree"):
    """Have a directory to work in; answered by ``WorktreeReady`` or ``FatalError``."""


class BuildPrompt(SupervisorEffect, frozen=True, kw_only=True, tag="BuildPrompt"):
    """Put the request and the messages that wait into one text; answered by ``PromptReady``."""


class StorePrompt(SupervisorEffect, frozen=True, kw_only=True, tag="StorePrompt"):
    """Keep the prompt where a person finds it: the session's transcript."""

    prompt: str


class LaunchAgent(SupervisorEffect, frozen=True, kw_only=True, tag="LaunchAgent"):
    """Have an agent ready for this incarnation: the one that is idle, or a new one."""

    incarnation: int
    prompt: str


class SendPrompt(SupervisorEffect, frozen=True, kw_only=True, tag="SendPrompt"):
    """Give the prompt to the agent that is ready."""

    incarnation: int
    turn_id: str
    prompt: str


class SteerAgent(SupervisorEffect, frozen=True, kw_only=True, tag="SteerAgent"):
    """Tell the agent something within the turn that runs; answered by ``MessageHeard``, or ``SteerElapsed``."""

    incarnation: int
    message_id: str
    sender: str
    text: str


class CancelSession(SupervisorEffect, frozen=True, kw_only=True, tag="CancelSession"):
    """Ask the agent, within its protocol, to stop what it is doing."""

    exempt: ClassVar[bool] = True
    reason: str
    abort_id: str | None = None
    abort_reason: str | None = None


class CancelStep(SupervisorEffect, frozen=True, kw_only=True, tag="CancelStep"):
    """Give up what is under way without a word to the agent: a launch, a worktree step, a turn that has failed."""

    exempt: ClassVar[bool] = True


class ForceStopSession(SupervisorEffect, frozen=True, kw_only=True, tag="ForceStopSession"):
    """End the agent's process tree now."""

    exempt: ClassVar[bool] = True
    reason: str


class LogFatal(SupervisorEffect, frozen=True, kw_only=True, tag="LogFatal"):
    """Tell the operator that a session gave up."""

    message: str


class TerminateSession(SupervisorEffect, frozen=True, kw_only=True, tag="EndScope"):
    """Join everything below the session under the ladder, then say ``Ended``. *now* starts at the kill rung."""

    exempt: ClassVar[bool] = True
    abort_id: str | None = None
    now: bool = False


class ReplyToRequest(SupervisorEffect, frozen=True, kw_only=True, tag="Answer"):
    """Tell whoever made the request how it ended: ``completed``, ``failed`` or ``aborted``."""

    request_id: str
    outcome: str
    error: str = ""
    how: Verdict | None = None


class AskPermission(SupervisorEffect, frozen=True, kw_only=True, tag="AskPermission"):
    """Have a human asked whether the agent may; answered by ``PermissionAnswered``, within *within_s* seconds."""

    number: int
    within_s: float


class AnswerPermission(SupervisorEffect, frozen=True, kw_only=True, tag="AnswerPermission"):
    """Tell the agent what it may: *option* is the one of its options that was chosen."""

    number: int
    request_id: str
    option: str | None = None


class Verify(SupervisorEffect, frozen=True, kw_only=True, tag="Verify"):
    """Check the agent's claim; answered by ``task_completed`` or ``task_failed``."""


class CleanUp(SupervisorEffect, frozen=True, kw_only=True, tag="CleanUp"):
    """End what the turn left behind; answered by ``agent_reaped``."""


class CancelTool(SupervisorEffect, frozen=True, kw_only=True, tag="CancelTool"):
    """End one tool call's scope. *number* is the call's number within its turn."""

    exempt: ClassVar[bool] = True
    number: int
    call_id: str
    abort_id: str | None
    reason: str


class FinalizeEntity(SupervisorEffect, frozen=True, kw_only=True, tag="Bury"):
    """The entity has ended for good: its actor leaves memory, the journal has it."""


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
        SendEvent,
        SendEventNow,
        Verify,
    )
}
"""By the name that the journal has for them."""

_encode = msgspec.json.Encoder().encode


def encode_effect(effect: Effect) -> bytes:
    """The effect as JSON, as it stands in the journal while it is owed."""
    if not isinstance(effect, (SendEvent, StartTimer)):
        return _encode(effect)
    fields = {"effect": type(effect).__struct_config__.tag, **msgspec.structs.asdict(effect)}
    fields["event"] = {"name": type(effect.event).name(), "fields": effect.event}
    return _encode(fields)


def decode_effect(payload: bytes, event_of: Callable[[str, Any], Event]) -> SupervisorEffect:
    """The effect that stands in the journal.

    Args:
        payload: what :func:`encode_effect` made of it.
        event_of: makes an event of its name and its fields.

    Raises:
        KeyError, ValueError: it is no effect of this version.
    """
    fields: dict[str, Any] = msgspec.json.decode(payload)
    kind = EFFECTS[fields.pop("effect")]
    if "event" in fields:
        told = fields["event"]
        fields["event"] = event_of(told["name"], told["fields"])
        return kind(**fields)
    return msgspec.json.decode(payload, type=kind)
