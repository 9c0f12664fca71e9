"""Decisions that are one place's business each: the verdict on a turn, the reason of an exit, the text of a prompt.

Pure: what was seen goes in, a value comes out. An exit code is never believed on its own: success is a terminal
event of the agent, without an error and without an open tool call.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from actors.machine import Effect, Event
from supervisor.lifecycles.effects import LogFatal
from supervisor.lifecycles.events import FatalError, OperatorStop
from supervisor.lifecycles.session import Message
from supervisor.lifecycles.types import (
    AbortReason,
    Exit,
    ModelFailure,
    ModelProblem,
    Severity,
    TransitionReason,
    Verdict,
)
from supervisor.policies.error_classification import problem_of, spoken_failure

__all__ = [
    "INTERRUPTED",
    "abort_reason_of",
    "build_prompt",
    "decide_verdict",
    "describe_status",
    "model_failure_verdict",
    "severity_of",
]

STOPS: dict[str, tuple[str, TransitionReason | None, AbortReason | None]] = {
    "max_tokens": ("the model reached its output limit", TransitionReason.MAX_OUTPUT_TOKENS, None),
    "max_turns": ("the agent reached its limit of model requests", TransitionReason.MAX_TURNS, None),
    "refusal": ("the agent refused to go on", TransitionReason.STOP_HOOK_BLOCKED, None),
    "cancelled": ("the turn was cancelled", TransitionReason.ABORTED, AbortReason.USER_INTERRUPT),
}
"""What an agent's word on its turn means where it is not the end of the work."""


MODEL_REASONS: dict[ModelProblem, TransitionReason | None] = {
    ModelProblem.AUTH: TransitionReason.PERMISSION_DENIED,
    ModelProblem.QUOTA: TransitionReason.PERMISSION_DENIED,
    ModelProblem.CONTEXT_LENGTH: TransitionReason.PROMPT_TOO_LONG,
    ModelProblem.OVERLOADED: TransitionReason.PROVIDER_529,
    ModelProblem.RATE_LIMIT: TransitionReason.RETRY,
    ModelProblem.SERVER: TransitionReason.RETRY,
    ModelProblem.CONNECTION: TransitionReason.RETRY,
    ModelProblem.REFUSED: TransitionReason.STOP_HOOK_BLOCKED,
    ModelProblem.NOT_FOUND: None,
    ModelProblem.UNKNOWN: TransitionReason.RETRY,
}
"""A problem of the model in the closed vocabulary of the specification, which has no word for every one of them: what
may pass is ``retry``, and who asks for a model that is not there has no reason but ``provider_error``."""


def model_failure_verdict(error: str, model: ModelFailure, status: int | None = None) -> Verdict:
    """The verdict on a turn that its model made fail; *status* is the agent's exit status, where it has exited."""
    reason = MODEL_REASONS[model.problem]
    if model.status == 413:
        reason = TransitionReason.PROVIDER_413
    return Verdict(
        exit=Exit.ERROR,
        error=error or f"the agent's model failed: {model.problem}",
        transition_reason=reason,
        abort_reason=AbortReason.PROVIDER_ERROR,
        status=status,
        model=model,
    )


def abort_reason_of(status: int | None, *, intended: AbortReason | None = None) -> AbortReason | None:
    """The reason behind an exit status in Python's form; ``None`` for 0.

    *intended* is what we sent the process away for, noted before the signal: only a SIGKILL that was not ours is
    taken for the out-of-memory killer.
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
    """An exit status in words."""
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
) -> Verdict:
    """The verdict on a turn from the agent's claim (*stop*, *error*, *problem*, *http_status*) and what we know.

    *intent* is why we asked it to stop; it explains every end but a success that came first. *text* is all that the
    agent said: where that is an error of its model, it is none of its successes.
    """
    if stop == "end_turn" and not error and problem is None and spoken_failure(text):
        error = text.strip()
    if stop == "end_turn" and not error and not open_calls and problem is None:
        return Verdict(exit=Exit.SUCCESS, status=status)
    if intent is not None:
        return intent
    if problem is None and stop in ("error", "end_turn"):
        problem = problem_of(error, http_status)
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
    abort_reason = abort_reason_of(status) if status else None
    return Verdict(exit=Exit.ERROR, error=error or describe_status(status), abort_reason=abort_reason, status=status)


INTERRUPTED = "Note: you were interrupted, and what you had begun may be done already. Look before you do it again."
"""What an agent is told that goes on in a conversation whose last prompt it may have worked on."""


def build_prompt(prompt: str, messages: Sequence[Message], *, again: bool = False) -> str:
    """The text an agent gets: the request, then the messages that waited for it, oldest first, urgent ones named so.

    *again*: the agent knows the request already, and was interrupted at it.
    """
    parts = [prompt] if prompt else []
    if prompt and again:
        parts.append(INTERRUPTED)
    for message in messages:
        kind = "Urgent message" if message.urgent else "Message"
        parts.append(f"{kind} from {message.sender}:\n{message.text}")
    return "\n\n".join(parts)


def severity_of(event: Event, effects: Sequence[Effect] = ()) -> Severity:
    """How loud the record of an event is (spec 004: a failure that is retried warns, one that is final is an error).

    *effects* is what the event led to: giving up after too many failures makes the last of them final.
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
