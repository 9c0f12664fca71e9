"""Effects: every request of a lifecycle decision to the outside.

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
    """Send *event* to the entity *to* (an id)."""

    to: str
    event: Event


class SendEventNow(SendEvent, frozen=True, kw_only=True, tag="TellNow"):
    """Send an interrupting event. It does not wait for the disk, so that the receiver begins nothing else before it."""

    exempt: ClassVar[bool] = True


class StartTimer(SupervisorEffect, frozen=True, kw_only=True, tag="StartTimer"):
    """Send *event* to oneself in *delay_s* seconds. The timer ends with the state, a *lasting* one with the entity."""

    name: str
    delay_s: float
    event: Event
    lasting: bool = False


class OpenTurn(SupervisorEffect, frozen=True, kw_only=True, tag="OpenTurn"):
    """Create a turn and claim it for the request. A turn that repeats a request whose turn ended with its supervisor
    times out at *due_s* (the journal's seconds), like the turn before it, which may be extended until *most_s*; other
    turns (``None``) have the whole time-out."""

    turn_id: str
    request_id: str
    due_s: float | None = None
    most_s: float | None = None


class PrepareWorktree(SupervisorEffect, frozen=True, kw_only=True, tag="PrepareWorktree"):
    """Provide a directory to work in; answered by ``WorktreeReady`` or ``FatalError``."""


class BuildPrompt(SupervisorEffect, frozen=True, kw_only=True, tag="BuildPrompt"):
    """Compose the prompt of the request and the waiting messages; answered by ``PromptReady``."""


class StorePrompt(SupervisorEffect, frozen=True, kw_only=True, tag="StorePrompt"):
    """Write the prompt to the session's transcript."""

    prompt: str


class LaunchAgent(SupervisorEffect, frozen=True, kw_only=True, tag="LaunchAgent"):
    """Provide an agent for this incarnation: the idle one, or a new one."""

    incarnation: int
    prompt: str


class SendPrompt(SupervisorEffect, frozen=True, kw_only=True, tag="SendPrompt"):
    """Send the prompt to the agent."""

    incarnation: int
    turn_id: str
    prompt: str


class SteerAgent(SupervisorEffect, frozen=True, kw_only=True, tag="SteerAgent"):
    """Send a message to the agent within the running turn; answered by ``MessageTakenUp``, or ``SteerElapsed``."""

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
    """Cancel the step under way without telling the agent: a launch, a worktree step, a turn that has failed."""

    exempt: ClassVar[bool] = True


class ForceStopSession(SupervisorEffect, frozen=True, kw_only=True, tag="ForceStopSession"):
    """Kill the agent's process tree now."""

    exempt: ClassVar[bool] = True
    reason: str


class LogFatal(SupervisorEffect, frozen=True, kw_only=True, tag="LogFatal"):
    """Tell the operator that a session gave up."""

    message: str


class TerminateSession(SupervisorEffect, frozen=True, kw_only=True, tag="EndScope"):
    """End everything below the session, stage by stage, and then send ``Ended``. *now* starts at the kill stage."""

    exempt: ClassVar[bool] = True
    abort_id: str | None = None
    now: bool = False


class ReplyToRequest(SupervisorEffect, frozen=True, kw_only=True, tag="Answer"):
    """Send the result of a request: ``completed``, ``failed`` or ``aborted``."""

    request_id: str
    outcome: str
    error: str = ""
    how: Verdict | None = None


class AskPermission(SupervisorEffect, frozen=True, kw_only=True, tag="AskPermission"):
    """Put the agent's permission request to a human; answered by ``PermissionAnswered``, within *within_s* seconds."""

    number: int
    within_s: float


class AnswerPermission(SupervisorEffect, frozen=True, kw_only=True, tag="AnswerPermission"):
    """Answer the agent's permission request with *option*, one of its options."""

    number: int
    request_id: str
    option: str | None = None


class Verify(SupervisorEffect, frozen=True, kw_only=True, tag="Verify"):
    """Check the agent's claim; answered by ``task_completed`` or ``task_failed``."""


class CleanUp(SupervisorEffect, frozen=True, kw_only=True, tag="CleanUp"):
    """End the processes that the turn left; answered by ``agent_reaped``."""


class CancelTool(SupervisorEffect, frozen=True, kw_only=True, tag="CancelTool"):
    """Cancel the scope of one tool call. *number* is the call's number within its turn."""

    exempt: ClassVar[bool] = True
    number: int
    call_id: str
    abort_id: str | None
    reason: str


class FinalizeEntity(SupervisorEffect, frozen=True, kw_only=True, tag="Bury"):
    """Remove the entity's actor from memory: the entity has ended, and the journal has its records."""


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
"""Effects by their name in the journal."""

_encode = msgspec.json.Encoder().encode


def encode_effect(effect: Effect) -> bytes:
    """Encode the effect as JSON, the form in which the journal keeps it while it is owed."""
    if not isinstance(effect, (SendEvent, StartTimer)):
        return _encode(effect)
    fields = {"effect": type(effect).__struct_config__.tag, **msgspec.structs.asdict(effect)}
    fields["event"] = {"name": type(effect.event).name(), "fields": effect.event}
    return _encode(fields)


def decode_effect(payload: bytes, event_of: Callable[[str, Any], Event]) -> SupervisorEffect:
    """Decode an effect from the journal.

    Args:
        payload: what :func:`encode_effect` made of it.
        event_of: makes an event of its name and its fields.

    Raises:
        KeyError, ValueError: it is no effect of this version.
    """
    fields: dict[str, Any] = msgspec.json.decode(payload)
    kind = EFFECTS[fields.pop("effect")]
    if "event" in fields:
        inner = fields["event"]
        fields["event"] = event_of(inner["name"], inner["fields"])
        return kind(**fields)
    return msgspec.json.decode(payload, type=kind)
