"""Decisions of ``supervisor.policies.turn_outcome``: the reason of an exit, verdict on a turn, text of a prompt."""

from __future__ import annotations

import itertools
import signal

import pytest

from actors.machine import Event
from supervisor.agent_catalogue import known_agent
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
from supervisor.lifecycles.session_data import Message
from supervisor.lifecycles.types import AbortReason, Exit, ModelProblem, Severity, TransitionReason, Verdict
from supervisor.lifecycles.types import ModelProblem as P
from supervisor.policies.text_patterns import COMMON, ReportPattern, find_report
from supervisor.policies.turn_outcome import abort_reason_of, build_prompt, decide_verdict, describe_status, severity_of

# ------------------------------------------------------------------------------------------------ the last words
AIDER_AGAIN = "litellm.InternalServerError: InternalServerError: sorry\nRetrying in 0.2 seconds...\n\n"
"""Output of aider about a request that it repeats."""
REPORTS = [
    ("copilot", "end_turn", "Info: Retrying...Error: Model 'm' not found on provider at x (HTTP 404).", P.NOT_FOUND),
    ("copilot", "end_turn", "half\nError: Authentication failed with provider at x (HTTP 403).\n  Check it.", P.AUTH),
    ("copilot", "end_turn", "Error: Failed to get response from the AI model; retried 5 times (total retry wait time:"
     " 5 seconds) Last error: 429 Rate limit reached", P.RATE_LIMIT),
    ("copilot", "end_turn", "Error: Failed to get response from the AI model; retried 5 times Last error: 500 The"
     " server had an error", P.SERVER),
    ("copilot", "end_turn", "I have begunError: Authentication failed with provider at x (HTTP 403).", P.AUTH),
    ("aider", "end_turn", "Aider v0.86.2\n\nlitellm.AuthenticationError: AuthenticationError: Incorrect \nAPI key"
     " provided.\nThe API provider is not able to authenticate you.", P.AUTH),
    ("aider", "end_turn", f"{AIDER_AGAIN}litellm.RateLimitError: RateLimitError: slow down", P.RATE_LIMIT),
    ("mini", "error", "Exit:\nlitellm.AuthenticationError: AuthenticationError: Incorrect\nAPI key", P.AUTH),
    ("vibe", "refusal", "Error: API error from x (model: y): Invalid API key. Please", P.AUTH),
    ("vibe", "refusal", "Error: API error: status code: 529", P.OVERLOADED),
    ("vibe", "refusal", "Error: Rate limits exceeded. Please wait a moment before trying again.", P.RATE_LIMIT),
    ("qwen", "end_turn", "I have begun.\n[API Error: 401 no]", P.AUTH),
]  # fmt: skip
"""Last words of real agents: agent, the stop that its protocol reports, its text, and the problem of its model."""


def reports_of(agent: str) -> tuple[ReportPattern, ...]:
    return (*known_agent(agent).variant().quirks.reports, COMMON)


@pytest.mark.parametrize(("agent", "stop", "text", "problem"), REPORTS)
def test_an_answer_that_reports_a_failed_model_is_no_success(
    agent: str, stop: str, text: str, problem: ModelProblem
) -> None:
    """Words by which an agent reports that its model failed are a failure of the model, with the problem that the
    words name, whatever stop the agent reports beside them."""
    verdict = decide_verdict(stop, "exit status 1" if stop == "error" else "", text=text, reports=reports_of(agent))
    assert verdict.exit is Exit.ERROR
    assert verdict.model is not None
    assert verdict.model.problem is problem
    assert verdict.abort_reason is AbortReason.PROVIDER_ERROR


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ("copilot", "Error: 400 Bad request"),
        ("copilot", "Error: Failed to get response from the AI model; Last error: unexpected EOF"),
        ("mini", "Exit:\nRepeatedFormatError\nSaved trajectory to '/x'"),
        ("mini", "Exit:\nLimitsExceeded\nSaved trajectory to '/x'"),
    ],
)
def test_a_report_that_names_no_trouble_of_the_provider_is_an_error_of_the_attempt(agent: str, text: str) -> None:
    """A report without a known problem fails the turn, and proves nothing about the provider."""
    verdict = decide_verdict("end_turn", "", text=text, reports=reports_of(agent))
    assert (verdict.exit, verdict.model) == (Exit.ERROR, None)
    assert " ".join(text.split()) == verdict.error


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ("copilot", "I have mended it: the message was Error: 42 tests failed"),
        ("aider", f"{AIDER_AGAIN}hello\nTokens: 583 sent, 1 received."),
        ("aider", "The log says\nlitellm.AuthenticationError: no key\nTokens: 583 sent, 9 received."),
        ("mini", "Exit:\n\nSaved trajectory to '/x'"),
        ("mini", "RepeatedFormatError is a class\nExit:\ndone\nSaved trajectory to '/x'"),
        ("vibe", "I would rather not"),
        ("qwen", "I saw [API Error: 429] in the log"),
        ("claude", "Error: API error is what I saw"),
        ("copilot", "It printed Error: 400 Bad Request before; now all tests pass"),
        ("copilot", "It printed `Error: 400 Bad Request` before; now all tests pass"),
        ("copilot", "Mended.\nrequests.exceptions.HTTPError: 400 Client Error is caught now"),
        ("aider", 'The line was "litellm.Timeout: too slow", and I have set a longer time'),
    ],
)
def test_an_answer_about_errors_is_an_answer(agent: str, text: str) -> None:
    """A text that mentions errors, or an error after which the agent went on, is no report."""
    assert decide_verdict("end_turn", "", text=text, reports=reports_of(agent)).exit is Exit.SUCCESS


@pytest.mark.parametrize("text", ["1 failed\n[API Error: 529 overloaded]", "API Error: 529"])
def test_the_output_of_a_command_that_fails_proves_nothing_about_a_model(text: str) -> None:
    """A command of the user has no patterns: a test that fails may print such words (rule 33)."""
    assert decide_verdict("error", "exit status 1", status=1, text=text).model is None


def test_a_report_is_found_in_a_text_without_end() -> None:
    """A long text in which the beginning of a report occurs again and again takes no time, and only its end counts."""
    pattern = ReportPattern("Error: *", ("* went on*",))
    assert find_report("Error: x went on " * 100_000, (pattern,)) == ""
    assert find_report("Error: x went on " * 100_000 + "\nError: y", (pattern,)) == "Error: y"


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


def test_the_note_names_the_calls_that_were_open() -> None:
    """The note after an interruption names the calls of our own record, in one line each, and at most five."""
    whole = build_prompt("do it", [], again=True, open_calls=["make\n  test"])
    assert whole.startswith("do it\n\nNote: you were ended while this was running: `make test`. It may be done in part")
    many = build_prompt("do it", [], again=True, open_calls=[f"c{number}" for number in range(7)])
    assert "`c3`, `c4` and 2 more. It" in many
