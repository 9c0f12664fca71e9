"""Effects: which ones are performed before their record is durable, their equality, and their form in the journal."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from supervisor.lifecycles import effects
from supervisor.lifecycles.effects import (
    AnswerPermission,
    AskPermission,
    BuildPrompt,
    CancelSession,
    CancelStep,
    CancelTool,
    CleanUp,
    FinalizeEntity,
    ForceStopSession,
    LaunchAgent,
    LogFatal,
    OpenTurn,
    PrepareWorktree,
    ReplyToRequest,
    SendEvent,
    SendEventNow,
    SendPrompt,
    StartTimer,
    SteerAgent,
    StorePrompt,
    SubmitPlan,
    SupervisorEffect,
    TerminateSession,
    Verify,
    decode_effect,
    encode_effect,
)
from supervisor.lifecycles.events import BackoffElapsed, TaskFailed
from supervisor.lifecycles.types import AbortReason, Exit, Verdict

FAILED = TaskFailed(
    at=2.5,
    verdict=Verdict(exit=Exit.TIMEOUT, error="slów", abort_reason=AbortReason.TIMEOUT, status=-9),
    abort_id="x1",
)
VERDICT = {
    "exit": "Timeout",
    "error": "slów",
    "transition_reason": None,
    "abort_reason": "timeout",
    "status": -9,
    "model": None,
}

# One of each, and what the journal has of it beside its name.
JOURNALLED: list[tuple[SupervisorEffect, dict[str, Any]]] = [
    (
        SendEvent(to="s:t1", event=FAILED),
        {
            "to": "s:t1",
            "event": {
                "name": "task_failed",
                "fields": {"at": 2.5, "verdict": VERDICT, "abort_id": "x1", "stopped": []},
            },
        },
    ),
    (
        SendEventNow(to="s", event=BackoffElapsed()),
        {"to": "s", "event": {"name": "BackoffElapsed", "fields": {"at": 0.0}}},
    ),
    (
        StartTimer(name="backoff", delay_s=2.0, event=BackoffElapsed()),
        {
            "name": "backoff",
            "delay_s": 2.0,
            "lasting": False,
            "event": {"name": "BackoffElapsed", "fields": {"at": 0.0}},
        },
    ),
    (
        OpenTurn(turn_id="s:t1", request_id="r1"),
        {"turn_id": "s:t1", "request_id": "r1", "due_s": None, "most_s": None},
    ),
    (PrepareWorktree(), {}),
    (BuildPrompt(), {}),
    (StorePrompt(prompt="P"), {"prompt": "P"}),
    (LaunchAgent(incarnation=1, prompt="P"), {"incarnation": 1, "prompt": "P"}),
    (SendPrompt(incarnation=1, turn_id="s:t1", prompt="P"), {"incarnation": 1, "turn_id": "s:t1", "prompt": "P"}),
    (
        CancelSession(reason="enough", abort_id="x1", abort_reason="timeout"),
        {"reason": "enough", "abort_id": "x1", "abort_reason": "timeout"},
    ),
    (CancelStep(), {}),
    (ForceStopSession(reason="late"), {"reason": "late"}),
    (LogFatal(message="boom"), {"message": "boom"}),
    (TerminateSession(), {"abort_id": None, "now": False}),
    (
        ReplyToRequest(request_id="r1", outcome="failed", error="bad"),
        {"request_id": "r1", "outcome": "failed", "error": "bad", "how": None},
    ),
    (AskPermission(number=1, within_s=60.0), {"number": 1, "within_s": 60.0}),
    (
        AnswerPermission(number=1, request_id="q1", option="yes"),
        {"number": 1, "request_id": "q1", "option": "yes"},
    ),
    (
        SteerAgent(incarnation=1, message_id="m1", sender="ann", text="come"),
        {"incarnation": 1, "message_id": "m1", "sender": "ann", "text": "come"},
    ),
    (SubmitPlan(delivery="7:1"), {"delivery": "7:1"}),
    (Verify(), {}),
    (CleanUp(), {}),
    (
        CancelTool(number=2, call_id="c2", abort_id=None, reason="enough"),
        {"number": 2, "call_id": "c2", "abort_id": None, "reason": "enough"},
    ),
    (FinalizeEntity(), {}),
]
KINDS = [type(one) for one, _ in JOURNALLED]


def test_every_effect_is_tested() -> None:
    """The list JOURNALLED in this file has every effect class of the module."""
    defined = {one for one in vars(effects).values() if isinstance(one, type) and issubclass(one, SupervisorEffect)}
    assert defined == {SupervisorEffect, *KINDS}


def test_only_what_ends_things_is_exempt() -> None:
    """Only effects that end something, and the event that leads to an interrupt, are performed before their record is
    durable."""
    exempt = {one for one in KINDS if one.exempt}
    assert exempt == {CancelSession, CancelStep, ForceStopSession, TerminateSession, CancelTool, SendEventNow}


@pytest.mark.parametrize(("effect", "fields"), JOURNALLED, ids=[one.__name__ for one in KINDS])
def test_encoded(effect: SupervisorEffect, fields: dict[str, Any]) -> None:
    """An effect is encoded with its name and all its fields; an event within an effect has its own name and fields."""
    assert json.loads(encode_effect(effect)) == {"effect": type(effect).__struct_config__.tag, **fields}
    assert encode_effect(effect) == encode_effect(effect)


@pytest.mark.parametrize("effect", [one for one, _ in JOURNALLED], ids=[one.__name__ for one in KINDS])
def test_what_is_encoded_can_be_had_again(effect: SupervisorEffect) -> None:
    """An effect that is decoded from the journal equals the encoded one, with an event of the right class."""
    events = {
        type(one.event).name(): type(one.event) for one, _ in JOURNALLED if isinstance(one, SendEvent | StartTimer)
    }
    assert decode_effect(encode_effect(effect), lambda name, fields: msgspec.convert(fields, events[name])) == effect


@pytest.mark.parametrize("effect", [one for one, _ in JOURNALLED], ids=[one.__name__ for one in KINDS])
def test_effects_are_values(effect: SupervisorEffect) -> None:
    """An effect equals an effect of the same class and fields only, and cannot be changed."""
    same = type(effect)(**{name: getattr(effect, name) for name in effect.__struct_fields__})
    assert same == effect
    assert [other for other, _ in JOURNALLED if other == effect] == [effect]
    with pytest.raises(AttributeError):
        effect.anything = 1  # type: ignore[attr-defined]
    for name in effect.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(effect, name, None)
