"""Names in journals and in requests of clients: they must not change when a class is renamed."""

from __future__ import annotations

from typing import Any

import pytest

from actors.machine import Machine
from supervisor.control.operations import OPERATIONS
from supervisor.lifecycles import MACHINES
from supervisor.lifecycles.effects import EFFECTS


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_an_event_has_a_name_that_is_not_its_class(machine: Machine[Any, Any]) -> None:
    """Each event class of a table states its own name for records, and inherits none."""
    unnamed = [event.__qualname__ for event in machine.events.values() if not vars(event).get("spelled")]
    assert unnamed == []


def test_effects_keep_their_names() -> None:
    """The names of effects, by which the journal finds effects still to be performed, are unchanged."""
    assert sorted(EFFECTS) == [
        "Answer",
        "AnswerPermission",
        "AskPermission",
        "BuildPrompt",
        "Bury",
        "CancelSession",
        "CancelStep",
        "CancelTool",
        "CleanUp",
        "EndScope",
        "ForceStopSession",
        "LaunchAgent",
        "LogFatal",
        "OpenTurn",
        "PrepareWorktree",
        "SendPrompt",
        "StartTimer",
        "SteerAgent",
        "StorePrompt",
        "SubmitPlan",
        "Tell",
        "TellNow",
        "Verify",
    ]


def test_requests_keep_their_names() -> None:
    """The names of requests, which clients of other versions use, are unchanged."""
    assert sorted(OPERATIONS) == [
        "abort",
        "access_levels",
        "add_tasks",
        "answer",
        "cancel_run",
        "close",
        "compact",
        "follow",
        "inspect",
        "merge_run",
        "page",
        "permissions",
        "ping",
        "processes",
        "prompt",
        "reload",
        "send",
        "split",
        "stalls",
        "start",
        "steer",
        "stop",
        "submit",
    ]
