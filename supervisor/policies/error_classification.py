"""Error classification: the category of the error that ended an attempt, and a signature to recognise the same error.

The category comes from one table, read from top to bottom: the first rule whose pattern matches decides. A model
problem that the agent reports in a structure, and any other structured reason, take precedence over the error text, and
the text over an exit status, which agents are known to report wrongly. Only *permanent* rules out another attempt, so a
rule says *permanent* only if another attempt would meet the very same problem; an error without a rule is *unknown*,
and is retried until the same signature has come back too often.

A signature is the error without its variable parts: numbers, ids, paths, quoted values, times. Pure.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from supervisor.lifecycles.task_run import ErrorCategory
from supervisor.lifecycles.types import AbortReason, InvalidArgument, ModelFailure, ModelProblem, TransitionReason

SIGNATURE_CHARS_MAX: Final = 200
"""Longest signature; a longer signature is cut to its beginning and end, which distinguish errors best."""
READ_CHARS_MAX: Final = 8192
"""Number of characters of an error that are read, half from its beginning and half from its end, so that a very long
error costs little."""

TRANSIENT, PERMANENT, UNKNOWN = ErrorCategory.TRANSIENT, ErrorCategory.PERMANENT, ErrorCategory.UNKNOWN


class Failure(NamedTuple):
    """A classified error.

    ``provider``: the provider of the model failed or refused, whatever the task was; the provider breaker counts such
    failures. ``why`` is the reason for the category, for people. ``met``: the model error monitor recorded the error
    when it happened. ``wait_s``: the seconds that the error asks to wait, 0 if it names none.
    """

    category: ErrorCategory
    signature: str
    provider: bool
    why: str
    met: bool = False
    wait_s: float = 0.0

    @property
    def passes(self) -> bool:
        """Whether the provider is to blame, and may work again later: the run waits, and is not charged."""
        return self.provider and self.category is ErrorCategory.TRANSIENT


class ErrorRule(NamedTuple):
    """A rule of the table: errors that match ``pattern`` (a regular expression, in any case) have the rule's category;
    ``problem`` is the model problem that the pattern proves, or ``None``."""

    category: ErrorCategory
    provider: bool
    why: str
    pattern: str
    problem: ModelProblem | None

    def matches(self, text: str) -> bool:
        return _compiled(self.pattern).search(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a compiled pattern. Most processes classify no error, so none is compiled at import."""
    return re.compile(pattern, re.IGNORECASE)


def _row(
    category: ErrorCategory, why: str, *words: str, provider: bool = False, problem: ModelProblem | None = None
) -> ErrorRule:
    return ErrorRule(category, provider, why, "|".join(words), problem)


def _http(codes: str) -> str:
    """Return a pattern for HTTP statuses where the text marks them as statuses: ``status code 503``, ``API Error:
    529``, ``Error: 429 {``."""
    named = rf"(?:\bhttp[/\d.]*|\bstatus(?:[ _]?code)?|\bapi error|\berror code)\W{{0,4}}(?:{codes})\b"
    return rf"{named}|\b(?:{codes})\s+\{{"


TABLE: Final[tuple[ErrorRule, ...]] = (
    _row(
        PERMANENT,
        "the prompt does not fit into the model's context; it will not the next time either",
        r"(?:prompt|input) is too long",
        r"prompt too long",
        r"prompt_too_long",
        r"maximum context length",
        r"context_length_exceeded",
        r"context (?:length|window) (?:was |is )?exceeded",
        r"exceeds? the (?:model'?s )?context (?:length|window)",
        r"input token count.{0,60}exceeds",
        r"exceed(?:s|ed) (?:the|this|your) model'?s context",
        r"request_too_large",
        _http("413"),
        problem=ModelProblem.CONTEXT_LENGTH,
    ),
    _row(
        PERMANENT,
        "the account has nothing left to spend; waiting brings no money",
        r"insufficient[_ ]quota",
        r"exceeded your current quota",
        r"credit balance is too low",
        r"out of credits",
        r"payment required",
        _http("402"),
        provider=True,
        problem=ModelProblem.QUOTA,
    ),
    _row(
        TRANSIENT,
        "the provider is overloaded",
        r"overloaded",
        r"at capacity",
        r"high demand",
        _http("529"),
        provider=True,
        problem=ModelProblem.OVERLOADED,
    ),
    _row(
        TRANSIENT,
        "the provider limits how much is asked for in a time",
        r"rate[ _-]?limit",
        r"too many requests",
        r"resource(?: has been |[_ ])exhausted",
        r"quota exceeded",
        r"usage limit reached",
        r"hit your (?:\w+ )?limit",
        r"throttl(?:ed|ing)",
        _http("429"),
        provider=True,
        problem=ModelProblem.RATE_LIMIT,
    ),
    _row(
        PERMANENT,
        "the provider does not know who asks; somebody must log in, or correct the key",
        r"authentication[_ ](?:error|failed|required|needed)",
        r"needs? authentication",
        r"not authenticated",
        r"(?:invalid|incorrect|missing|no) (?:x-)?api[ _-]?key",
        r"api[ _-]?key (?:is )?(?:not valid|invalid|not found|missing)",
        r"unauthori[sz]ed",
        r"not logged in",
        r"please run /login",
        r"token (?:has |is )?expired",
        _http("401"),
        provider=True,
        problem=ModelProblem.AUTH,
    ),
    _row(
        PERMANENT,
        "the provider forbids it to this account",
        r"permission_error",
        r"\bforbidden\b",
        _http("403"),
        provider=True,
        problem=ModelProblem.AUTH,
    ),
    _row(
        PERMANENT,
        "the provider has no such model, or nothing at that address",
        r"not_found_error",
        r"model_not_found",
        r"model\b.{0,80}(?:does not exist|not found|is not supported|not available)",
        _http("404"),
        problem=ModelProblem.NOT_FOUND,
    ),
    _row(
        TRANSIENT,
        "the provider's servers failed",
        r"internal[ _]server[ _]error",
        r"\bapi_error\b",
        r"\bserver_error\b",
        r"bad gateway",
        r"service[ _]unavailable",
        r"gateway time-?out",
        _http(r"5\d\d|408|425"),
        provider=True,
        problem=ModelProblem.SERVER,
    ),
    _row(
        TRANSIENT,
        "an answer came that is no JSON: a gateway's page, or half an answer",
        r"unexpected (?:token|end)\b.{0,120}\bjson",
        r"not valid json",
        provider=True,
        problem=ModelProblem.SERVER,
    ),
    _row(
        TRANSIENT,
        "the network failed",
        r"\b(?:econnreset|econnrefused|econnaborted|etimedout|enotfound|eai_again|ehostunreach|enetunreach)\b",
        r"connection (?:was )?(?:reset|refused|aborted|closed|lost|error|timed out|dropped)",
        r"connect(?:ion)?error",
        r"socket hang up",
        r"network (?:error|is unreachable|timeout|connection lost)",
        r"fetch failed",
        r"failure in name resolution",
        r"name or service not known",
        r"could not resolve host",
        r"stream (?:was )?(?:disconnected|closed|ended|interrupted)",
        r"(?:request|read|connect|handshake) (?:operation )?timed out",
        r"deadline exceeded",
        r"(?:server|remote end) (?:closed|disconnected)",
        r"other side closed",
        r"und_err_socket",
        provider=True,
        problem=ModelProblem.CONNECTION,
    ),
    _row(
        TRANSIENT,
        "what it needs is taken, or not there for the moment",
        r"temporar(?:ily|y (?:failure|error|outage))",
        r"try again (?:later|in\b)",
        r"\b(?:eagain|ebusy|emfile|enfile)\b",
        r"(?:device or )?resource busy",
        r"text file busy",
        r"database is locked",
        r"index\.lock",
        r"too many open files",
    ),
    _row(
        PERMANENT,
        "it may not do what it has to do",
        r"permission[ _]denied",
        r"operation not permitted",
        r"access (?:is )?denied",
        r"\b(?:eacces|eperm|erofs)\b",
        r"read-only file system",
    ),
    _row(
        PERMANENT,
        "there is no such program, or it is none",
        r"no such program",
        r"command not found",
        r"cannot start .{0,300}there is no such file",
        r"is not an executable file",
        r"no program of this machine",
        r"interpreter named in its #! line",
        r"the working directory .{0,300}(?:does not exist|is not a directory)",
        r"(?:spawn|exec|can't open file|cannot execute)\b.{0,300}(?:\benoent\b|no such file or directory)",
        r"exec format error",
    ),
    _row(
        PERMANENT,
        "something that it depends on is not installed",
        r"modulenotfounderror",
        r"no module named",
        r"importerror",
        r"cannot find (?:module|package)",
        r"err_module_not_found",
        r"no matching distribution",
        r"could not resolve dependenc",
        r"missing dependenc",
        r"error while loading shared libraries",
    ),
    _row(
        PERMANENT,
        "what it was given does not parse",
        r"syntax ?error",
        r"indentationerror",
        r"invalid syntax",
        r"unexpected token",
        r"(?:unexpected|unrecognized) (?:argument|option)",
        r"(?:unknown|invalid|no such) option",
    ),
)
"""Rules, the precise rules before the general ones, and the texts of providers before the texts of the machine: a 429
for an empty account is no rate limit, a 403 for too many requests is a rate limit, and a SyntaxError that quotes a
gateway's page is an error of the gateway.

Sources of the patterns: those of spec 002; of the HTTP errors that the model providers document; of what nine agents
print when a model fails; of the shells, Python, node and the kernel; and of this runtime's own refusals.
"""

MEANT: Final[dict[TransitionReason, tuple[ErrorCategory, bool, str]]] = {
    TransitionReason.PROMPT_TOO_LONG: (PERMANENT, False, "the prompt does not fit into the model's context"),
    TransitionReason.PROVIDER_413: (PERMANENT, False, "the provider found the request too large"),
    TransitionReason.PROVIDER_529: (TRANSIENT, True, "the provider is overloaded"),
    TransitionReason.PERMISSION_DENIED: (PERMANENT, False, "it may not do what it has to do"),
    TransitionReason.ORPHAN_RECOVERED: (TRANSIENT, False, "its supervisor ended, not the work"),
    TransitionReason.SHORTAGE: (TRANSIENT, False, "the machine lacked what a program needs to start"),
}
"""Category, blame and explanation of each transition reason that determines the category by itself; the flag says
whether the provider is to blame."""

PROBLEMS: Final[dict[ModelProblem, tuple[ErrorCategory, bool, str]]] = {
    ModelProblem.AUTH: (PERMANENT, True, "the provider does not let in who asks; somebody must log in"),
    ModelProblem.RATE_LIMIT: (TRANSIENT, True, "the provider limits how much is asked for in a time"),
    ModelProblem.OVERLOADED: (TRANSIENT, True, "the provider is overloaded"),
    ModelProblem.SERVER: (TRANSIENT, True, "the provider's servers failed"),
    ModelProblem.CONTEXT_LENGTH: (PERMANENT, False, "the prompt does not fit into the model's context"),
    ModelProblem.QUOTA: (PERMANENT, True, "the account has nothing left to spend; waiting brings no money"),
    ModelProblem.NOT_FOUND: (PERMANENT, False, "the provider has no such model, or nothing at that address"),
    ModelProblem.CONNECTION: (TRANSIENT, True, "the provider was not reached, or its answer was cut"),
    ModelProblem.REFUSED: (UNKNOWN, False, "the model refused"),
    ModelProblem.UNKNOWN: (TRANSIENT, True, "the provider failed, in words that say no more"),
}
"""Category of each model problem, whether the provider is to blame, and the explanation."""

STATUS_PROBLEMS: Final[dict[int, ModelProblem]] = {
    401: ModelProblem.AUTH,
    402: ModelProblem.QUOTA,
    403: ModelProblem.AUTH,
    404: ModelProblem.NOT_FOUND,
    413: ModelProblem.CONTEXT_LENGTH,
    429: ModelProblem.RATE_LIMIT,
    503: ModelProblem.OVERLOADED,
    529: ModelProblem.OVERLOADED,
}
"""Model problems of the HTTP statuses that Anthropic, OpenAI and Google document."""

DECIDED: Final = frozenset(
    {
        AbortReason.USER_INTERRUPT,
        AbortReason.SHUTDOWN_SIGNAL,
        AbortReason.SIBLING_ABORTED,
        AbortReason.PARENT_ABORTED,
    }
)
"""Abort reasons of a deliberate end: the error text then comes from the requester and is no evidence about the work."""

LIMITS: Final[dict[AbortReason, tuple[ErrorCategory, bool, str]]] = {
    AbortReason.BUDGET_SPENT: (PERMANENT, False, "its budget is used up; only a larger budget lets it go on"),
    AbortReason.LOOP: (UNKNOWN, False, "its agent repeated the same calls without progress"),
}
"""Category of each end by a limit of the runtime, whatever the error text quotes."""

ENDED: Final[dict[AbortReason, tuple[ErrorCategory, bool, str]]] = {
    AbortReason.PROVIDER_ERROR: (TRANSIENT, True, "the provider failed, in words that say no more"),
    AbortReason.PERMISSION_DENIED: (PERMANENT, False, "it may not do what it has to do"),
}
"""Category of each other abort reason, used if no pattern matches the error text."""

STATUSES: Final[dict[int, tuple[ErrorCategory, bool, str]]] = {
    75: (TRANSIENT, False, "the program says that it is temporary (EX_TEMPFAIL)"),
    126: (PERMANENT, False, "the program cannot be executed"),
    127: (PERMANENT, False, "there is no such program"),
}
"""Category of each exit status that has a meaning of its own in shells and sysexits.h."""

PERMANENT_STATUSES: Final = frozenset(status for status, (category, *_) in STATUSES.items() if category is PERMANENT)
"""Exit statuses after which another attempt fails in the same way."""

_HELD: Final = re.compile(
    r"active writer|in use by|already in use|is in use|is locked|lock is held|held by (?:another|process)"
    r"|already (?:open|active|running)|another (?:process|client|instance)",
    re.IGNORECASE,
)


def is_held(text: str) -> bool:
    """Return whether *text*, the reason why a conversation could not be loaded, says that another process uses it: it
    is not lost then."""
    return _HELD.search(text) is not None


_REFUSED_OPTION: Final = re.compile(
    r"(?:unexpected|unrecogni[sz]ed|unknown|invalid|no such|bad|illegal) (?:argument|option|flag|command|subcommand)"
    r"|invalid value .{1,100} for|unknown variant|requires? (?:a value|an argument)",
    re.IGNORECASE,
)


def is_refused_option(last_words: str) -> bool:
    """Return whether *last_words*, the last output of a program that ended before it was ready, say that the program
    does not accept its command line: another launch fails in the same way."""
    return _REFUSED_OPTION.search(last_words) is not None


PROGRAMMING_ERRORS: Final = (
    AttributeError,
    ImportError,
    InvalidArgument,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
"""Exceptions that an in-process agent raises again with the same prompt until its code is corrected. Other exceptions,
such as ``KeyError`` or ``ValueError``, may come from the data of one attempt: a model's text, a reply of a server."""


def is_programming_error(error: BaseException) -> bool:
    """Return whether *error*, or an exception in the group *error*, is a programming error."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_programming_error, error.exceptions))
    return isinstance(error, PROGRAMMING_ERRORS)


def classify(
    error: str,
    *,
    abort_reason: AbortReason | None = None,
    transition_reason: TransitionReason | None = None,
    exit_status: int | None = None,
    model: ModelFailure | None = None,
) -> Failure:
    """Classify an error from its text (the agent's or the runtime's) and the other facts about the end of the attempt.

    *exit_status* is in Python's form (negative: the signal that ended the process). Never raises; an error without a
    rule is unknown.
    """
    category, provider, why = (
        PROBLEMS[model.problem] if model else _verdict(error, abort_reason, transition_reason, exit_status)
    )
    said = signature_of(error) or _unsaid(abort_reason, transition_reason, exit_status)
    return Failure(category, said, provider, why, met=model is not None, wait_s=wait_of(error) if provider else 0.0)


_WAIT: Final = re.compile(
    r"(?:retry[ _-]?after|(?:re)?try(?: again)? in|wait)\W{1,4}(\d{1,9}(?:\.\d{1,9})?)(?![.,:]?\d)"
    r"(?: ?(?:(?P<ms>ms|milliseconds?)|(?P<s>s|secs?|seconds?)|(?P<m>m|mins?|minutes?)|(?P<h>h|hours?))(?![a-z])"
    r"|(?! ?[a-z]))",
    re.IGNORECASE,
)
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def wait_of(error: str) -> float:
    """Return the seconds that the text of an error asks to wait (``retry-after: 15``, ``try again in 2 minutes``); 0 if
    the text names none.

    A number without a unit counts as seconds, unless a word follows (``wait 5 more requests``). A number of more than 9
    digits is a point in time, and no wait.
    """
    found = _WAIT.search(ends_of(error))
    return float(found[1]) * _UNITS_S[found.lastgroup or "s"] if found else 0.0


def _verdict(
    error: str, abort: AbortReason | None, transition: TransitionReason | None, status: int | None
) -> tuple[ErrorCategory, bool, str]:
    if transition is TransitionReason.PERMANENT_ERROR:
        return STATUSES.get(status or 0, (PERMANENT, False, "the agent has a programming error; correct its function"))
    if transition is not None and transition in MEANT:
        return MEANT[transition]
    if abort is not None and abort in DECIDED:
        return UNKNOWN, False, "somebody ended it on purpose"
    if abort is not None and abort in LIMITS:
        return LIMITS[abort]
    read = ends_of(error)
    for row in TABLE:
        if row.matches(read):
            return row.category, row.provider, row.why
    if abort is not None and abort in ENDED:
        return ENDED[abort]
    return STATUSES.get(status or 0, (UNKNOWN, False, "nothing is known about such an error"))


def problem_of(words: str, status: int | None = None) -> ModelProblem | None:
    """Return the model problem that the text *words* proves, else the one of the HTTP *status*; ``None`` if neither
    names a problem."""
    said = next((row.problem for row in TABLE if row.matches(ends_of(words))), None) if words else None
    if status is None or status < 400:
        return said
    by_status = problem_of_status(status) or ModelProblem.UNKNOWN
    return said if said in MORE_PRECISE.get(by_status, ()) else by_status


_TOO_LARGE: Final = re.compile(rf"request_too_large|{_http('413')}", re.IGNORECASE)


def is_too_large(text: str) -> bool:
    """Return whether *text* says that the provider found the request too large (413)."""
    return _TOO_LARGE.search(ends_of(text)) is not None


def problem_of_status(status: int | None) -> ModelProblem | None:
    """Return the model problem of an HTTP *status*; ``None`` if the status names no problem."""
    if status is None:
        return None
    return STATUS_PROBLEMS.get(status) or (ModelProblem.SERVER if status >= 500 else None)


MORE_PRECISE: Final[dict[ModelProblem, tuple[ModelProblem, ...]]] = {
    ModelProblem.RATE_LIMIT: (ModelProblem.QUOTA, ModelProblem.OVERLOADED),
    ModelProblem.AUTH: (ModelProblem.QUOTA, ModelProblem.RATE_LIMIT),
    ModelProblem.SERVER: (ModelProblem.OVERLOADED, ModelProblem.RATE_LIMIT),
    ModelProblem.OVERLOADED: (ModelProblem.RATE_LIMIT,),
    ModelProblem.UNKNOWN: tuple(ModelProblem),
}
"""Model problems that an error text proves against the HTTP status: OpenAI reports an empty account as 429, Google an
overload as 503, and every provider a too long context as 400."""

_STATUS_SAID: Final = re.compile(r"\b(?:status|code|http|error)\b\W{0,4}(?:code\W{0,3})?([45]\d\d)\b", re.IGNORECASE)


def status_in(report: str) -> int | None:
    """Return the HTTP status that an agent names in its report of a failed model, or ``None``."""
    found = _STATUS_SAID.search(ends_of(report))
    return int(found[1]) if found else None


SPOKEN: Final = re.compile(r"\A\s*\[?API Error\b.{0,4000}\Z", re.IGNORECASE | re.DOTALL)
"""Pattern of the texts that agents (qwen-code 0.15, claude 2.1) give as a normal reply, and report as a success, when
their model fails."""


def spoken_failure(text: str) -> bool:
    """Return whether *text* as a whole is an agent's report that its model failed."""
    return SPOKEN.match(text) is not None


def ends_of(error: str) -> str:
    """Return *error* cut to its beginning and its end, READ_CHARS_MAX characters in all."""
    half = READ_CHARS_MAX // 2
    return error if len(error) <= READ_CHARS_MAX else f"{error[:half]}\n{error[-half:]}"


def _unsaid(abort: AbortReason | None, transition: TransitionReason | None, status: int | None) -> str:
    """Return a signature for an error without text, from its reason or exit status."""
    for reason in (transition, abort):
        if reason is not None:
            return reason.value
    return "no words" if status is None else f"exit status {status}"


DIFFERS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\x1b\[[0-9;]*[a-z]", ""),  # colours
        (r'"([a-z_]*error)"', r"\1"),  # the type of a provider's error is what it is about
        (r'"[^"\n]*"', "<text>"),
        (r"(?<!\w)'[^'\n]*'(?!\w)", "<text>"),
        (r"`[^`\n]*`", "<text>"),
        (r"\bhttps?://[^\s<>\"')]+", "<url>"),
        (r"\b\d{4}-\d\d-\d\d[t ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:z|[+-]\d\d:?\d\d)?", "<time>"),
        (r"\b\d{4}-\d\d-\d\d\b|\b\d?\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[ap]m)?\b", "<time>"),
        (r"\b(?:\d+(?:\.\d+)? ?(?:ms|seconds?|minutes?|hours?|min|s|m|h)\b ?)+", "<time> "),
        (r"\b[a-z]:\\\S+|(?<![\w.~+@<-])(?:[\w.~+@-]*/)+[\w.~+@-]*", "<path>"),
        (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b0x[0-9a-f]+\b", "<id>"),
        (r"\b(?=[a-z_-]{0,64}\d)(?=[\d_-]{0,64}[a-z])\w{7,}\b", "<id>"),
        (r"(?<!status )(?<!code )(?<!errno )(?<![\w.])[-+]?\d+(?:[.,]\d+)*", "<n>"),
        (r"(?<=[a-z_])\d+", "<n>"),
        (r"\s+", " "),
    )
)
"""Patterns of the variable parts of a lower-case error text, with their replacements, in order. A number that is given
as a status, a code or an errno identifies the error, and is not replaced."""


def signature_of(error: str) -> str:
    """Return the signature of an error: its text without the variable parts; empty for an error without text."""
    said = ends_of(error).lower()
    for pattern, name in DIFFERS:
        said = pattern.sub(name, said)
    said = said.strip()
    half = SIGNATURE_CHARS_MAX // 2 - 1
    return said if len(said) <= SIGNATURE_CHARS_MAX else f"{said[:half]}…{said[-half:]}"
