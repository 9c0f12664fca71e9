"""Decisions of ``supervisor.policies.turn_outcome``: the reason of an exit, verdict on a turn, text of a prompt."""

from __future__ import annotations

import itertools
import signal

import pytest

from actors.machine import Event
from supervisor.lifecycles.effects import LogFatal, TerminateSession
from supervisor.lifecycles.events import (
    AgentExited,
    BackoffElapsed,
    FatalError,
    OperatorStop,
    SessionExited,
    TaskFailed,
    VerifyRequested,
)
from supervisor.lifecycles.session import Message
from supervisor.lifecycles.types import AbortReason, Exit, Severity, TransitionReason, Verdict
from supervisor.policies.turn_outcome import abort_reason_of, build_prompt, decide_verdict, describe_status, severity_of

# ------------------------------------------------------------------------------------------------ the exit status
REASONS: dict[int | None, AbortReason | None] = {
    0: None,
    124: AbortReason.TIMEOUT,
    126: AbortReason.PERMISSION_DENIED,
    130: AbortReason.USER_INTERRUPT,
    -signal.SIGINT: AbortReason.USER_INTERRUPT,
    143: AbortReason.SHUTDOWN_SIGNAL,
    -signal.SIGTERM: AbortReason.SHUTDOWN_SIGNAL,
    137: AbortReason.OOM,
    -signal.SIGKILL: AbortReason.OOM,
}
"""Abort reasons of the exit statuses in the specification; any other status, or none, is ``unknown``."""


@pytest.mark.parametrize("status", [None, *range(-64, 256)])
def test_reason_of_a_status(status: int | None) -> None:
    """Each exit status in the specification has its abort reason, 0 has none, any other or unknown status is
    ``unknown``."""
    assert abort_reason_of(status) is REASONS.get(status, AbortReason.UNKNOWN)


@pytest.mark.parametrize("intended", AbortReason)
@pytest.mark.parametrize("status", [None, 0, 1, 124, 126, 130, 137, 143, -2, -9, -15])
def test_our_own_intent_explains_the_status(status: int | None, intended: AbortReason) -> None:
    """The reason for which the supervisor ended a process explains the status, so its own SIGKILL is never
    out-of-memory."""
    assert abort_reason_of(status, intended=intended) is intended


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "its exit status is not known"),
        (0, "exit status 0"),
        (137, "exit status 137"),
        (-1, "ended by SIGHUP"),
        (-9, "ended by SIGKILL"),
        (-15, "ended by SIGTERM"),
        (-200, "ended by signal 200"),
    ],
)
def test_a_status_in_words(status: int | None, words: str) -> None:
    """``describe_status`` names an exit status by its number, and a signal by its name if it has one."""
    assert describe_status(status) == words


# ------------------------------------------------------------------------------------------------------ the verdict
INTENT = Verdict(exit=Exit.TIMEOUT, error="we asked it to stop", abort_reason=AbortReason.TIMEOUT)
TOLD = {
    "max_tokens": ("the model reached its output limit", TransitionReason.MAX_OUTPUT_TOKENS, None),
    "max_turns": ("the agent reached its limit of model requests", TransitionReason.MAX_TURNS, None),
    "refusal": ("the agent refused to go on", None, None),
    "cancelled": ("the agent cancelled the turn, and nobody had asked for that", None, AbortReason.UNKNOWN),
}
"""Stop reasons that are not the end of the work: error text, transition reason, abort reason."""
STOPS = ["end_turn", *TOLD, "error", "something new", ""]
STATUS_WORDS = {
    None: ("its exit status is not known", None),
    0: ("exit status 0", None),
    1: ("exit status 1", AbortReason.UNKNOWN),
    124: ("exit status 124", AbortReason.TIMEOUT),
    -9: ("ended by SIGKILL", AbortReason.OOM),
}
Seen = tuple[str, str, tuple[str, ...], int | None, Verdict | None]
ALL_SEEN: list[Seen] = list(
    itertools.product(STOPS, ["", "provider said no"], [(), ("c1",), ("c1", "c2")], STATUS_WORDS, [None, INTENT])
)


def expected(stop: str, error: str, open_calls: tuple[str, ...], status: int | None, intent: Verdict | None) -> Verdict:
    """Return the verdict that the rules demand for this end of a turn."""
    if stop == "end_turn" and not error and not open_calls:
        return Verdict(exit=Exit.SUCCESS, status=status)
    if intent is not None:
        return intent
    words, reason, abort_reason = "", None, None
    if stop in TOLD:
        words, reason, abort_reason = TOLD[stop]
    elif stop == "end_turn" and not error:
        words, abort_reason = f"the turn ended with open tool calls: {', '.join(open_calls)}", AbortReason.UNKNOWN
    else:
        words, abort_reason = STATUS_WORDS[status]
    return Verdict(
        exit=Exit.ERROR, error=error or words, transition_reason=reason, abort_reason=abort_reason, status=status
    )


@pytest.mark.parametrize("stop", STOPS)
def test_judge(stop: str) -> None:
    """For every stop reason x error x open calls x exit status x intent the verdict is the expected one."""
    for seen in (one for one in ALL_SEEN if one[0] == stop):
        stop, error, open_calls, status, intent = seen
        verdict = decide_verdict(stop, error, open_calls=open_calls, status=status, intent=intent)
        assert verdict == expected(*seen), seen


def test_judge_was_asked_everything() -> None:
    """The test covers 8 stop reasons x 2 errors x 3 sets of open calls x 5 exit statuses x 2 intents; 10 of 480 are a
    success."""
    verdicts = [
        decide_verdict(stop, error, open_calls=calls, status=at, intent=why) for stop, error, calls, at, why in ALL_SEEN
    ]
    assert len(verdicts) == 8 * 2 * 3 * 5 * 2
    assert sum(one.exit is Exit.SUCCESS for one in verdicts) == 10


@pytest.mark.parametrize(
    ("stop", "error", "open_calls"),
    [("end_turn", "", ("c1",)), ("end_turn", "no", ()), ("error", "", ()), ("", "", ()), ("cancelled", "", ())],
)
def test_exit_code_0_is_no_success(stop: str, error: str, open_calls: tuple[str, ...]) -> None:
    """Exit status 0 is no success unless the agent reported the end of its turn, without an error and open calls."""
    assert decide_verdict(stop, error, open_calls=open_calls, status=0).exit is Exit.ERROR


def test_a_success_that_came_first_stands() -> None:
    """A turn that the agent ended properly before the supervisor could stop the agent is a success."""
    assert decide_verdict("end_turn", "", intent=INTENT) == Verdict(exit=Exit.SUCCESS)


# ------------------------------------------------------------------------------------------------------- the prompt
def test_a_prompt_alone_is_untouched() -> None:
    """A prompt without waiting messages is given to the agent unchanged, white space included."""
    assert build_prompt("  do it\n", []) == "  do it\n"


def test_messages_follow_the_prompt() -> None:
    """Waiting messages follow the request in the prompt, oldest first, each with its sender; urgent ones are marked."""
    messages = [
        Message(id="m1", sender="ann", text="first", urgent=False),
        Message(id="m2", sender="bob", text="second\nline", urgent=True),
    ]
    assert build_prompt("do it", messages) == (
        "do it\n\nMessage from ann:\nfirst\n\nUrgent message from bob:\nsecond\nline"
    )


# ---------------------------------------------------------------------------------------------------- the severity
ERROR = Verdict(exit=Exit.ERROR, error="bad")


@pytest.mark.parametrize(
    ("event", "severity"),
    [
        (FatalError(message="boom"), Severity.CRITICAL),
        (OperatorStop(reason="enough", abort_id="x1"), Severity.WARNING),
        (OperatorStop(reason="no more work"), Severity.INFO),
        (SessionExited(incarnation=1, verdict=ERROR), Severity.WARNING),
        (SessionExited(incarnation=1, verdict=Verdict(exit=Exit.TIMEOUT)), Severity.WARNING),
        (SessionExited(incarnation=1, verdict=Verdict(exit=Exit.SUCCESS)), Severity.INFO),
        (TaskFailed(verdict=ERROR), Severity.WARNING),
        (VerifyRequested(), Severity.INFO),
        (AgentExited(status=0), Severity.INFO),
        (BackoffElapsed(), Severity.INFO),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Event) else str(one),
)
def test_severity(event: Event, severity: Severity) -> None:
    """A fatal error is critical, aborts and failures are warnings, everything else is information."""
    assert severity_of(event) is severity
    assert severity_of(event, (TerminateSession(),)) is severity


def test_a_final_failure_is_an_error() -> None:
    """The failure after which a session gives up has the severity ERROR."""
    event = SessionExited(incarnation=1, verdict=ERROR)
    assert severity_of(event, (LogFatal(message="too many errors"), TerminateSession())) is Severity.ERROR
    fatal = FatalError(message="boom")
    assert severity_of(fatal, (LogFatal(message="boom"),)) is Severity.CRITICAL
