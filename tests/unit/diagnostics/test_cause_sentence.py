"""The sentence of ``why``: what happened to an entity, and the root cause, from made-up chains of causes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from supervisor.diagnostics.causal_trace import RecordList, why
from supervisor.diagnostics.cause_sentence import cause_sentence
from supervisor.lifecycles.types import Kind, LifecycleEvent

_TIME = re.compile(r"\d\d:\d\d:\d\d")


def record(kind: Kind, entity: str, event: str, state: str, **more: Any) -> LifecycleEvent:
    fields = {"seq": 1, "entity_seq": 1, "timestamp": 0.0, "monotonic_s": 0.0, "from_status": "before", **more}
    return LifecycleEvent(entity_type=kind, entity_id=entity, event=event, to_status=state, **fields)


def chain(*records: LifecycleEvent) -> list[LifecycleEvent]:
    """Return the records with numbers, each as the cause of the next one."""
    return [
        type(one)(**{**{name: getattr(one, name) for name in one.__struct_fields__}, "seq": seq, "cause_id": cause})
        for seq, one in enumerate(records, 1)
        for cause in [seq - 1 or None]
    ]


def sentence(entity_id: str, spine: Sequence[LifecycleEvent], missing: Any = None) -> str:
    return _TIME.sub("T", cause_sentence(entity_id, spine, missing))


BORN = record(Kind.WORKSTREAM, "r1", "Born", "planned", outcome="born", from_status="", actor="plan")
TURN_FAILED = record(Kind.TURN, "bad:t1", "task_failed", "FAILED", actor="sh", reason="exit status 3")
BAD_FAILED = record(Kind.TASK, "r1#bad", "failed", "FAILED", actor="plan", reason="exit status 3")
ABORT = record(
    Kind.SESSION,
    "fix",
    "AbortRecord",
    "Running",
    outcome="fact",
    actor="operator:ann",
    reason="too slow",
    metadata={"target": "fix", "scope": "session"},
)
EDGE = record(
    Kind.SESSION,
    "fix",
    "AbortRecord",
    "Running",
    outcome="fact",
    actor="operator:ann",
    metadata={"target": "lead", "policy_edge": "sibling_to_session"},
)


def stopped(session: str, outcome: str, reason: str, actor: str = "plan") -> LifecycleEvent:
    return record(
        Kind.SESSION, session, "OperatorStop", "Stopped", actor=actor, reason=reason, metadata={"outcome": outcome}
    )


CASES = {
    "a failed task": (
        "r1#bad",
        [BORN, TURN_FAILED, BAD_FAILED],
        "task r1#bad failed at T: exit status 3.",
    ),
    "the session of a failed task": (
        "bad",
        [BORN, TURN_FAILED, BAD_FAILED, stopped("bad", "completed", "its task has failed")],
        "session bad failed at T: exit status 3.",
    ),
    "a turn that was put away": (
        "bad:t1",
        [BORN, TURN_FAILED, record(Kind.TURN, "bad:t1", "agent_reaped", "REAPED", actor="bad:t1")],
        "turn bad:t1 failed at T: exit status 3.",
    ),
    "a task that depends on the failed one": (
        "r1#after",
        [
            BORN,
            BAD_FAILED,
            record(
                Kind.TASK,
                "r1#after",
                "cancelled",
                "CANCELLED",
                reason="it depends on bad, which did not complete",
                metadata={"outcome": "blocked"},
            ),
        ],
        "task r1#after was blocked at T: it depends on bad, which did not complete; task r1#bad failed at T: "
        "exit status 3.",
    ),
    "a task that was done after a failure": (
        "r1#bad",
        [BORN, BAD_FAILED, record(Kind.TASK, "r1#bad", "closed", "CLOSED", reason="merged into main as 1a2b")],
        "task r1#bad was completed at T: merged into main as 1a2b.",
    ),
    "an aborted session": (
        "fix",
        [ABORT, stopped("fix", "aborted", "too slow", "operator:ann")],
        "session fix was aborted at T: operator:ann aborted session fix at T: too slow.",
    ),
    "a session that an abort has spread to": (
        "lead",
        [ABORT, EDGE, stopped("lead", "aborted", "too slow", "operator:ann")],
        "session lead was aborted at T: operator:ann aborted session fix at T: too slow; "
        "the abort spread by sibling_to_session.",
    ),
    "a command": (
        "r1#fix",
        [
            record(
                Kind.TASK,
                "r1#fix",
                "Commanded",
                "PLANNED",
                outcome="fact",
                actor="operator:ann",
                reason="no\nnever",
                metadata={"command": "reject"},
            ),
            record(Kind.TASK, "r1#fix", "rejected", "CANCELLED", metadata={"outcome": "rejected"}, reason="no"),
        ],
        "task r1#fix was rejected at T: operator:ann gave the command reject for task r1#fix at T: no.",
    ),
    "a stop": (
        "fix",
        [stopped("fix", "aborted", "stopped at once", "signal:SIGINT")],
        "session fix was aborted at T: signal:SIGINT stopped session fix at T: stopped at once.",
    ),
    "a session that works": (
        "fix",
        [BORN, record(Kind.SESSION, "fix", "SessionStarted", "Running", actor="sh")],
        "session fix is Running since T: SessionStarted by sh.",
    ),
    "a run": (
        "r1",
        [BORN, record(Kind.WORKSTREAM, "r1", "settled_with_failures", "failed", metadata={"failed": 2})],
        "run r1 failed at T: 2 of its tasks failed.",
    ),
    "an open call": (
        "fix:t1:c1",
        [BORN, record(Kind.TURN, "fix:t1", "tool_started", "TOOL_USE", actor="sh")],
        "tool call fix:t1:c1 is open since T: tool_started by sh.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_names_the_root_cause(case: str) -> None:
    """The sentence says what happened, and the decision or the failure at the root, each reason once."""
    entity_id, records, expected = CASES[case]
    assert sentence(entity_id, chain(*records)) == expected


def test_a_missing_cause_is_said() -> None:
    """If the journal lacks the first causes, the sentence says so, and guesses no root."""
    said = sentence("fix", [stopped("fix", "completed", "its task is completed")], 7)
    lacks = "the journal does not hold record 7, which caused the first one"
    assert said == f"session fix was completed at T: its task is completed; {lacks}."


def test_a_session_has_the_word_of_its_task() -> None:
    """A session that the budget has ended, and whose task has failed, has failed: every view has the word of the
    task."""
    claimed = record(Kind.TASK, "r1#fix", "claimed", "CLAIMED", metadata={"by": "fix"})
    spent = stopped("fix", "aborted", "the budget is spent", "budget")
    failed = record(Kind.TASK, "r1#fix", "failed", "FAILED", reason="the budget is spent")
    assert why(RecordList(chain(BORN, claimed, spent)), "fix").sentence.startswith("session fix was aborted at ")
    assert why(RecordList(chain(BORN, claimed, spent, failed)), "fix").sentence.startswith("session fix failed at ")


DELIVERED = record(Kind.TRIGGER, "@push", "delivery_accepted", "running", metadata={"delivery": "7:d1"})
SETTLED = record(Kind.WORKSTREAM, "r1", "settled_with_failures", "failed", metadata={"failed": 1})
CANCELLED = record(Kind.TASK, "r1#after", "cancelled", "CANCELLED", reason="no")
TAKEN_OVER = record(Kind.JOB, "r1#bad:job", "scheduler_assigned", "running", actor="plan")


@pytest.mark.parametrize(
    ("entity_id", "logs", "expected"),
    [
        (
            "r1",
            [chain(DELIVERED, BORN, BAD_FAILED, SETTLED)],
            "run r1 failed at T: 1 of its tasks failed; task r1#bad failed at T: exit status 3; trigger @push started "
            "it at T for delivery 7:d1.",
        ),
        (
            "r1#after",
            [chain(DELIVERED, BORN, BAD_FAILED, CANCELLED)],
            "task r1#after was cancelled at T: no; task r1#bad failed at T: exit status 3.",
        ),
        (
            "r1",
            [chain(DELIVERED, BORN), chain(TAKEN_OVER, SETTLED)],
            "run r1 failed at T: 1 of its tasks failed; scheduler_assigned of job r1#bad:job by plan at T; trigger "
            "@push started it at T for delivery 7:d1.",
        ),
        (
            "@push",
            [chain(DELIVERED, BORN, record(Kind.TRIGGER, "@push", "run_ended", "waiting", actor="triggers"))],
            "trigger @push is waiting since T: run_ended by triggers.",
        ),
    ],
)
def test_a_run_that_a_trigger_has_started(entity_id: str, logs: Sequence[list[LifecycleEvent]], expected: str) -> None:
    """The sentence about a run names the delivery that has started it, also if the causes of its end begin with a
    takeover; the sentences about its tasks and about the trigger are as without it."""
    records = [
        replace(one, seq=one.seq + base, cause_id=one.cause_id and one.cause_id + base)
        for base, log in zip((0, 10), logs, strict=False)
        for one in log
    ]
    found = why(RecordList(records), entity_id)
    assert _TIME.sub("T", found.sentence) == expected
    if entity_id == "r1":
        assert [one.metadata.get("delivery") for one in found.records].count("7:d1") == 1
