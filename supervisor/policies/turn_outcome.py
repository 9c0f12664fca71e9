"""Verdict on a turn, reason of an exit, text of a prompt, severity of a record: four decisions that are made only in
this module.

Pure: facts go in, a value comes out. An exit status alone is never believed: a turn has succeeded only if the agent
reported its end without an error and without an open tool call.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from actors.machine import Effect, Event
from supervisor.lifecycles.effects import LogFatal
from supervisor.lifecycles.events import FatalError, OperatorStop
from supervisor.lifecycles.session_data import Message
from supervisor.lifecycles.types import (
    AbortReason,
    Exit,
    ModelFailure,
    ModelProblem,
    Severity,
    TransitionReason,
    Verdict,
)
from supervisor.policies.error_classification import (
    PERMANENT_STATUSES,
    is_too_large,
    problem_of,
    spoken_failure,
    status_in,
)
from supervisor.policies.retry_reason import quote_reason, without_quoted_reasons
from supervisor.policies.text_patterns import ReportPattern, find_report

STOPS: dict[str, tuple[str, TransitionReason | None, AbortReason | None]] = {
    "max_tokens": ("the model reached its output limit", TransitionReason.MAX_OUTPUT_TOKENS, None),
    "max_turns": ("the agent reached its limit of model requests", TransitionReason.MAX_TURNS, None),
    "refusal": ("the agent refused to go on", None, None),
    "cancelled": ("the agent cancelled the turn, and nobody had asked for that", None, AbortReason.UNKNOWN),
    "denied": (
        "a permission was denied, and the agent ended its turn",
        TransitionReason.PERMISSION_DENIED,
        None,
    ),
    "programming_error": ("the agent has a programming error", TransitionReason.PERMANENT_ERROR, None),
}
"""Meaning of a stop reason of the agent that is not ``end_turn``: error text, transition reason, abort reason.
``programming_error`` is the stop reason of an in-process agent whose function cannot work as it is, ``denied`` that of
an agent of the catalogue whose turns end with a denial."""


MODEL_REASONS: dict[ModelProblem, TransitionReason | None] = {
    ModelProblem.AUTH: TransitionReason.PERMISSION_DENIED,
    ModelProblem.QUOTA: TransitionReason.PERMISSION_DENIED,
    ModelProblem.CONTEXT_LENGTH: TransitionReason.PROMPT_TOO_LONG,
    ModelProblem.OVERLOADED: TransitionReason.PROVIDER_529,
    ModelProblem.RATE_LIMIT: None,
    ModelProblem.SERVER: None,
    ModelProblem.CONNECTION: None,
    ModelProblem.REFUSED: None,
    ModelProblem.NOT_FOUND: None,
    ModelProblem.UNKNOWN: None,
}
"""Transition reason (spec 000) of a model problem. The specification's list has no value for each problem: the others
have no reason but ``provider_error``. (``retry`` is the reason of the retry, and a failed turn may be the last one.)"""


def model_failure_verdict(error: str, model: ModelFailure, status: int | None = None) -> Verdict:
    """Return the verdict on a turn that failed because of its model; *status* is the exit status of the agent, ``None``
    if it has not exited."""
    reason = MODEL_REASONS[model.problem]
    if model.status == 413 or (model.problem is ModelProblem.CONTEXT_LENGTH and is_too_large(error)):
        reason = TransitionReason.PROVIDER_413
    return Verdict(
        exit=Exit.ERROR,
        error=error or f"the agent's model failed: {model.problem}",
        transition_reason=reason,
        abort_reason=None if model.problem is ModelProblem.REFUSED else AbortReason.PROVIDER_ERROR,
        status=status,
        model=model,
    )


def abort_reason_of(status: int | None, *, intended: AbortReason | None = None) -> AbortReason | None:
    """Return the abort reason that an exit status (in Python's form) implies; ``None`` for 0.

    *intended* is the reason for which the supervisor ended the process, recorded before the signal was sent. Only a
    SIGKILL that the supervisor did not send counts as sent by the out-of-memory killer.
    """
    if intended is not None:
        return intended
    match status:
        case 0:
            return None
        case 124:
            return AbortReason.TIMEOUT
        case 126:
            return AbortReason.PERMISSION_DENIED
        case 130 | -2:
            return AbortReason.USER_INTERRUPT
        case 143 | -15:
            return AbortReason.SHUTDOWN_SIGNAL
        case 137 | -9:
            return AbortReason.OOM
        case _:
            return AbortReason.UNKNOWN


def describe_status(status: int | None) -> str:
    """Describe an exit status in words."""
    if status is None:
        return "its exit status is not known"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def decide_verdict(
    stop: str,
    error: str,
    *,
    open_calls: Sequence[str] = (),
    status: int | None = None,
    intent: Verdict | None = None,
    problem: ModelProblem | None = None,
    http_status: int | None = None,
    text: str = "",
    reports: Sequence[ReportPattern] = (),
    last_words: str = "",
) -> Verdict:
    """Decide the verdict on a turn from the agent's claim (*stop*, *error*, *problem*, *http_status*) and known facts.

    *intent* is the reason for which the supervisor asked the agent to stop; that reason explains every end but a
    success that came first. *last_words* is the last output of a process that failed; it becomes part of the error, and
    proves nothing about the model unless it has the form of an agent's report: a failed test prints such texts too.
    *text* is all text of the agent: if the text is an error of the agent's model, or ends with a report of such an
    error (*reports* are the patterns of the agent's reports), the turn is no success, and the report is evidence about
    the model like an error of a protocol. What the agent repeats of the reason in its prompt is left out of the error.
    """
    report = text.strip() if stop == "end_turn" and spoken_failure(text) else find_report(text, reports)
    if report and problem is None and stop in ("end_turn", "refusal", "error"):
        error = f"{error}: {report}" if error and report not in error else error or report
        status_said = http_status or status_in(report)
        stop, problem = "error", problem_of(report, status_said)
        if problem is ModelProblem.UNKNOWN:  # words about a status that names no trouble of the provider, such as 400
            problem = None
        http_status = status_said if problem is not None else None
    error = without_quoted_reasons(error)
    if stop == "end_turn" and not error and not open_calls and problem is None:
        return Verdict(exit=Exit.SUCCESS, status=status)
    if intent is not None:
        return intent
    if problem is None and stop in ("error", "end_turn"):
        problem = problem_of(last_words if spoken_failure(last_words) else error, http_status)
    if last_words:
        error = f"{error}; its last words: {last_words}"
    if problem is not None:
        return model_failure_verdict(error, ModelFailure(problem=problem, status=http_status), status)
    if stop == "end_turn" and not error:
        error = f"the turn ended with open tool calls: {', '.join(open_calls)}"
        return Verdict(exit=Exit.ERROR, error=error, abort_reason=AbortReason.UNKNOWN, status=status)
    if stop in STOPS:
        words, reason, abort_reason = STOPS[stop]
        return Verdict(
            exit=Exit.ERROR, error=error or words, transition_reason=reason, abort_reason=abort_reason, status=status
        )
    return Verdict(
        exit=Exit.ERROR,
        error=error or describe_status(status),
        transition_reason=TransitionReason.PERMANENT_ERROR if status in PERMANENT_STATUSES else None,
        abort_reason=abort_reason_of(status) if status else None,
        status=status,
    )


INTERRUPTED = "Note: you were interrupted, and what you had begun may be done already. Look before you do it again."
"""Note in the first prompt after an interruption, since the agent may have worked on the interrupted prompt already."""
OPEN_CALLS = (
    "Note: you were ended while this was running: {calls}. It may be done in part or as a whole, and what you had begun"
    " before may be done, too. Look first, before you do it again."
)
"""The same note if calls were open, by our own record: what agents tell their model about such a call ranges from
"unknown" over "rejected" to nothing."""
OPEN_CALLS_MAX = 5
"""Number of open calls that the note names."""


GO_ON = (
    "Note: a message came in between, and an answer to it does not end this request. Go on until all of it is done. If"
    " all of it is done already, say so."
)
"""Note in the prompt after a turn that a message interrupted, or that answered one: only a turn without a message ends
a request."""


def build_prompt(
    prompt: str,
    messages: Sequence[Message],
    *,
    reason: str = "",
    again: bool = False,
    open_calls: Sequence[str] = (),
    goes_on: bool = False,
) -> str:
    """Build the text for an agent: the request, then the messages that wait for it, oldest first, urgent ones marked.

    *reason* tells why the request is tried again; ``""``: it is the first attempt, or the agent is not to be given the
    reason. *again*: the agent has received the request already, and was interrupted while it worked on that request, in
    the calls with the titles *open_calls*.
    *goes_on*: a message came since, and the agent is asked to go on with the request.
    """
    parts = [prompt] if prompt else []
    if reason:
        parts.append(quote_reason(reason))
    if prompt and again:
        parts.append(_interruption(open_calls))
    if prompt and goes_on:
        parts.append(GO_ON)
    for message in messages:
        kind = "Urgent message" if message.urgent else "Message"
        parts.append(f"{kind} from {message.sender}:\n{message.text}")
    return "\n\n".join(parts)


def _interruption(open_calls: Sequence[str]) -> str:
    if not open_calls:
        return INTERRUPTED
    named = [f"`{' '.join(title.split())}`" for title in open_calls[:OPEN_CALLS_MAX]]
    more = len(open_calls) - len(named)
    return OPEN_CALLS.format(calls=", ".join(named) + (f" and {more} more" if more else ""))


def severity_of(event: Event, effects: Sequence[Effect] = ()) -> Severity:
    """Return the severity of an event's record (spec 004: a failure that is retried warns, a final one is an error).

    *effects* are those of the event: a session that gives up after too many failures makes the last failure final.
    """
    if isinstance(event, FatalError):
        return Severity.CRITICAL
    if LogFatal in map(type, effects):
        return Severity.ERROR
    if isinstance(event, OperatorStop) and event.abort_id is not None:
        return Severity.WARNING
    if "verdict" in event.__struct_fields__:
        verdict: Verdict = event.verdict  # type: ignore[attr-defined]
        return Severity.INFO if verdict.exit is Exit.SUCCESS else Severity.WARNING
    return Severity.INFO


def aborted_verdict(reason: str, abort_reason: str | None) -> Verdict:
    """Return the verdict of a turn that an abort ends."""
    return Verdict(
        exit=Exit.ERROR,
        error=reason,
        transition_reason=TransitionReason.ABORTED,
        abort_reason=AbortReason(abort_reason) if abort_reason else None,
    )
