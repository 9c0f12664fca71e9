"""Failures: what an attempt's error amounts to, and whom the trouble of a provider keeps waiting.

Expectations come from docs/model-trouble.md, docs/work.md ("What fails is charged once", "A provider's trouble is
nobody's") and spec 002; the errors are those that agents, providers and programs print. Breakers are those of
:mod:`supervisor.simulation.drills.kernel.circuits`, one for each provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from actors.machine import IllegalTransition
from supervisor.lifecycles.types import AbortReason, ModelFailure, ModelProblem, TransitionReason
from supervisor.policies.error_classification import (
    Failure,
    classify,
    problem_of,
    problem_of_status,
    signature_of,
    spoken_failure,
)
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.kernel.circuits import Model
from supervisor.simulation.keyed_random import Chance
from supervisor.work.providers import Providers, Turned, provider_key

__all__ = ["FAILING"]

AGAIN, NEVER, WHO_KNOWS = "transient", "permanent", "unknown"
KINDS: Final[Mapping[str, tuple[str, bool, str | None]]] = {
    "prompt is too long: 200001 tokens > 200000 maximum": (NEVER, False, "context_length"),
    "request failed: http 413": (NEVER, False, "context_length"),
    "429 {insufficient_quota}": (NEVER, True, "quota"),
    "status 402": (NEVER, True, "quota"),
    "Overloaded": (AGAIN, True, "overloaded"),
    "API Error: 529 {": (AGAIN, True, "overloaded"),
    "status code 403: too many requests": (AGAIN, True, "rate_limit"),
    "Error: 429 {": (AGAIN, True, "rate_limit"),
    "invalid x-api-key": (NEVER, True, "auth"),
    "status code 401": (NEVER, True, "auth"),
    "permission_error": (NEVER, True, "auth"),
    "status: 403": (NEVER, True, "auth"),
    "the model gpt-9 does not exist": (NEVER, False, "not_found"),
    "status 404": (NEVER, False, "not_found"),
    "Internal Server Error": (AGAIN, True, "server"),
    "status code 503": (AGAIN, True, "server"),
    "SyntaxError: Unexpected token < in JSON at position 0": (AGAIN, True, "server"),
    "read ECONNRESET": (AGAIN, True, "connection"),
    "fatal: unable to create .git/index.lock": (AGAIN, False, None),
    "try again later": (AGAIN, False, None),
    "open: Permission denied": (NEVER, False, None),
    "sh: claude: command not found": (NEVER, False, None),
    "ModuleNotFoundError: No module named x": (NEVER, False, None),
    "error: unrecognized argument --x": (NEVER, False, None),
    "it is Tuesday": (WHO_KNOWS, False, None),
    "": (WHO_KNOWS, False, None),
    "it took 503 steps": (WHO_KNOWS, False, None),
}
PROBLEMS: Final[Mapping[str, tuple[str, bool]]] = {
    "auth": (NEVER, True),
    "rate_limit": (AGAIN, True),
    "overloaded": (AGAIN, True),
    "server": (AGAIN, True),
    "context_length": (NEVER, False),
    "quota": (NEVER, True),
    "not_found": (NEVER, False),
    "connection": (AGAIN, True),
    "refused": (WHO_KNOWS, False),
    "unknown": (AGAIN, True),
}
BY_STATUS: Final = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "not_found",
    413: "context_length",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}
MEANT: Final = {
    "prompt_too_long": (NEVER, False),
    "provider_413": (NEVER, False),
    "provider_529": (AGAIN, True),
    "permission_denied": (NEVER, False),
    "orphan_recovered": (AGAIN, False),
    "shortage": (AGAIN, False),
}
"""Reasons for a transition that say by themselves of which kind an error is."""
ON_PURPOSE: Final = ("user_interrupt", "shutdown_signal", "sibling_aborted", "parent_aborted")
ENDED: Final = {"provider_error": (AGAIN, True), "permission_denied": (NEVER, False)}
"""What a reason for an abort means where no words say more."""
STATUSES: Final = {75: AGAIN, 126: NEVER, 127: NEVER}
"""Those of sysexits.h and of shells."""
WORDS: Final = "Overloaded"
PAGE: Final = 8192
"""Characters of an error that are looked at."""
LONGEST: Final = 200
"""Characters of a signature."""


def _shown(failure: Failure) -> tuple[str, bool]:
    return failure.category.value, failure.provider


async def kinds(desk: Desk) -> None:
    """What is tried again, and whose trouble it is: by structure, by reasons, by words, by status, in this order."""
    for words, (category, provider, problem) in KINDS.items():
        desk.same(f"the kind of {words!r}", _shown(classify(words)), (category, provider))
        desk.same(f"the problem in {words!r}", problem_of(words), problem)
        desk.same(f"{words!r} was not met", classify(words).met, False)
    for problem, wanted in PROBLEMS.items():
        failure = classify("try again later", model=ModelFailure(problem=ModelProblem(problem)))
        desk.same(f"the kind of {problem}", (*_shown(failure), failure.met), (*wanted, True))
    for one in TransitionReason:
        wanted = MEANT.get(one.value, KINDS[WORDS][:2])
        given = classify(WORDS, transition_reason=one, abort_reason=AbortReason.PERMISSION_DENIED, exit_status=126)
        desk.same(f"the kind of {one}", _shown(given), wanted)
    for reason in AbortReason:
        meant = reason.value in ON_PURPOSE
        told = (WHO_KNOWS, False) if meant else KINDS[WORDS][:2]
        desk.same(f"words of {reason}", _shown(classify(WORDS, abort_reason=reason, exit_status=126)), told)
        wordless = (WHO_KNOWS, False) if meant else ENDED.get(reason.value, (AGAIN, False))
        desk.same(f"{reason} without words", _shown(classify("x", abort_reason=reason, exit_status=75)), wordless)
    for status in (*range(-70, 0), *range(140), None):
        wanted = (STATUSES.get(status, WHO_KNOWS) if status is not None else WHO_KNOWS, False)
        desk.same(f"exit status {status}", _shown(classify("x", exit_status=status)), wanted)


async def statuses(desk: Desk) -> None:
    """What an HTTP status says of a model, and which words are believed against it."""
    for status in range(100, 620):
        wanted = BY_STATUS.get(status, "server" if status >= 500 else None)
        desk.same(f"HTTP {status}", problem_of_status(status), wanted)
        said = None if status < 400 else wanted or "unknown"
        desk.same(f"HTTP {status} without words", problem_of("", status), said)
        desk.same(f"HTTP {status} with words that say nothing", problem_of("no", status), said)
    desk.same("no status", (problem_of_status(None), problem_of("")), (None, None))
    for words, told, problem in (
        ("insufficient_quota", 429, "quota"),
        (WORDS, 429, "overloaded"),
        ("invalid api key", 429, "rate_limit"),
        ("credit balance is too low", 403, "quota"),
        ("too many requests", 401, "rate_limit"),
        (WORDS, 401, "auth"),
        (WORDS, 500, "overloaded"),
        ("rate limit", 502, "rate_limit"),
        ("insufficient_quota", 500, "server"),
        ("rate limit", 503, "rate_limit"),
        ("insufficient_quota", 503, "overloaded"),
        ("prompt is too long", 400, "context_length"),
        ("invalid api key", 400, "auth"),
        ("prompt is too long", 404, "not_found"),
        (WORDS, 399, "overloaded"),
        (WORDS, None, "overloaded"),
    ):
        desk.same(f"{words!r} with HTTP {told}", problem_of(words, told), problem)


async def signatures(desk: Desk) -> None:
    """The same error is one without what differs from one time to the next; a flood costs no more than a page."""
    for some, other, alike in (
        ("failed after 3.5 s at 12:01:07", "failed after 17 s at 13:44:00", True),
        ("cannot read /tmp/a/b.txt", "cannot read /var/c.txt", True),
        ("job 1f3a9c2d11 is gone", "job 77ab00cd42 is gone", True),
        ("exit status 1", "exit status 2", False),
        ("Connection  refused", "connection refused", True),
        ("no such thing", "no such person", False),
        ('{"type":"rate_error"}', '{"type":"other_error"}', False),
    ):
        desk.same(f"{some!r} and {other!r}", signature_of(some) == signature_of(other), alike)
    desk.same("an error without words", signature_of(" \n"), "")
    long = " ".join(chr(97 + number % 26) * 3 for number in range(100))
    for length in (LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST):
        given, half = signature_of(long[:length].strip()), LONGEST // 2 - 1
        said = long[:length].strip()
        desk.same(
            f"the signature of {length}", given, said if len(said) <= LONGEST else f"{said[:half]}…{said[-half:]}"
        )
    for length in (PAGE, PAGE + 1, PAGE + 2):
        for place in (0, PAGE // 2 - len(WORDS), PAGE // 2 - len(WORDS) + 1, length // 2, length - PAGE // 2 - 1):
            filled = "x" * place + WORDS + "x" * (length - place - len(WORDS))
            seen = length <= PAGE or place + len(WORDS) <= PAGE // 2 or place >= length - PAGE // 2
            desk.same(f"{place} of {length}", problem_of(filled), "overloaded" if seen else None)
        filled = "x" * (length - PAGE // 2) + WORDS + "x" * (PAGE // 2 - len(WORDS))
        desk.same(f"the last half of {length}", problem_of(filled), "overloaded")
    wordless = (
        (classify("", transition_reason=TransitionReason.RETRY, abort_reason=AbortReason.OOM), "retry"),
        (classify("", abort_reason=AbortReason.OOM, exit_status=3), "oom"),
        (classify("", exit_status=3), "exit status 3"),
        (classify("", exit_status=0), "exit status 0"),
        (classify(""), "no words"),
        (classify("Ha", exit_status=3), "ha"),
    )
    desk.same("what stands for no words", [one.signature for one, _ in wordless], [wanted for _, wanted in wordless])
    spoken = ("[API Error: 500]", "  API Error: no answer", "api error")
    desk.same("an error in place of an answer", [spoken_failure(one) for one in spoken], [True] * 3)
    answers = ("", "done", "there was an API Error", "API Errors are rare")
    desk.same("an answer", [spoken_failure(one) for one in answers], [False] * 4)


# --------------------------------------------------------------------------------------------------------- providers
KEYS: Final = ("", "a:x", "a:y", "b:x")
STEPS: Final = 400
PAUSES: Final = ((0.0, 0.0, 0.5, 1.0), (15.0, 30.0, 60.0))
"""Within a rush, and between two of them: five failures of one provider are to come within a minute, and not always."""
RUSH: Final = 40
"""Steps of one."""


async def providers(desk: Desk) -> None:
    """One breaker for each provider, which hears of its own trouble alone: five within a minute, and then a minute."""
    desk.same("what a provider is called", provider_key("acp", "claude"), "acp:claude")
    ours, models, now_s = Providers(), dict[str, Model](), 40.0
    for step in range(STEPS):
        chance = desk.chance.below(step)
        now_s += chance.choice(PAUSES[step % RUSH == 0], "pause")
        _step(desk, ours, models, chance, now_s)
        gate = ours.gate(now_s)
        wanted = {one: one not in models or models[one].allows(now_s) for one in KEYS}
        desk.same("who may ask", {one: gate(one) for one in KEYS}, wanted)
        opened_s = [one.opened_s for one in models.values() if one.opened_s is not None and not one.trying]
        later_s = [one + 60.0 for one in opened_s if one + 60.0 > now_s]
        desk.same("when the first may ask again", ours.free_at_s(now_s), min(later_s, default=None))


def _step(desk: Desk, ours: Providers, models: dict[str, Model], chance: Chance, now_s: float) -> None:
    """Somebody asks a provider, or has an answer of it."""
    key, who = chance.choice(KEYS, "whom"), chance.choice("pqr", "who")
    model, act = models.get(key), chance.choice(("launch", "well", "fails", "fails", "fails", "meets", "stops"), "act")
    before = model.state if model is not None else "closed"
    turned: Turned | None = None
    if act == "launch":
        if model is None and key:
            model = models[key] = Model(5, 60.0, 60.0)
        if model is not None and not model.allows(now_s):
            with suppress(IllegalTransition):
                desk.same("a launch while nobody may", ours.launched(key, who, now_s), "refused")
            return
        turned = ours.launched(key, who, now_s)
        if model is not None:
            model.launched(who, now_s)
    elif act == "stops":
        ours.withdrawn(key, who, now_s)
        if model is not None:
            model.withdrawn(who, now_s)
    elif act == "meets":
        turned = ours.troubled(key, who, now_s, "why")
        if model is not None:
            model.failed(who, now_s)
    else:
        failure = None if act == "well" else _failure(chance)
        turned = ours.ended(key, who, now_s, failure)
        if model is not None:
            _hear(model, who, now_s, failure)
    after = model.state if model is not None else "closed"
    told = turned and (turned.key, turned.state.value, bool(turned.why))
    desk.same(f"what has turned by {act}", told, (key, after, True) if after != before else None)
    if turned is not None and after == "open" and model is not None:
        desk.same("when it lets somebody ask", turned.free_at_s, (model.opened_s or 0.0) + 60.0)


def _failure(chance: Chance) -> Failure:
    """One that is the provider's, one that was met, and one that is neither."""
    words, met = chance.choice((WORDS, WORDS, "it is Tuesday"), "words"), chance.happens(0.2, "met")
    return classify(words)._replace(met=met)


def _hear(model: Model, who: str, now_s: float, failure: Failure | None) -> None:
    if failure is None:
        model.answered(who, now_s)
    elif not failure.provider:
        model.withdrawn(who, now_s)
    elif not failure.met:
        model.failed(who, now_s)


FAILING: Final[tuple[Any, ...]] = (kinds, statuses, signatures, providers)
