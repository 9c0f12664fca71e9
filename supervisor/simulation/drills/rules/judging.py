"""Judgements: what a seldom-met case is decided to be, against a second account of the rule that decides it.

Leases, standings, loops and the words of failing models are drawn here more densely than any run of sessions has them.
Every expectation is reckoned by this room's own models, from the documents: docs/work.md, docs/plans.md (access),
docs/budgets.md (loops) and docs/model-trouble.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any, Final

from msgspec.structs import replace

from supervisor.agents.protocols.acp.errors import problem_of, said_problem
from supervisor.agents.protocols.acp.messages import RpcError
from supervisor.lifecycles.types import Exit
from supervisor.policies.access import (
    RIGHTS,
    AccessPolicy,
    Level,
    Standing,
    call_refusal,
    claim_refusal,
    file_refusal,
    narrowed,
    recalled,
    succeeded,
    told,
    transition_refusal,
    violated,
)
from supervisor.policies.loop_detection import LoopLimits, Loops, Seen, digest
from supervisor.policies.turn_outcome import abort_reason_of, build_prompt, describe_status, judge
from supervisor.simulation.drills.desk import Desk
from supervisor.work.leases import Leases, StaleClaim

__all__ = ["JUDGING"]

STEPS: Final = 150


# ------------------------------------------------------------------------------------------------------------ leases
class Held:
    """Leases as their page describes them: what is held, by whom, under which token, until when."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.held: dict[str, tuple[str, int, float, float]] = {}

    def expired(self, now_s: float) -> list[tuple[str, int]]:
        over = sorted((end_s, token, item) for item, (_, token, end_s, _) in self.held.items() if end_s <= now_s)
        for _, _, item in over:
            del self.held[item]
        return [(item, token) for _, token, item in over]


async def leases(desk: Desk) -> None:
    """One holder, tokens that only grow, ends that a renewal moves and nothing shortens, the late known by number."""
    last = desk.chance.integer(0, 9, "last")
    ours, model, now_s = Leases(last), Held(last), 50.0
    for step in range(STEPS):
        chance = desk.chance.below(step)
        now_s += chance.choice((0.0, 1.0, 3.0), "pause")
        item, worker, lease_s = chance.choice("abcd", "item"), chance.choice("xyz", "worker"), 10.0
        standing = model.held.get(item)
        match chance.choice(("grant", "grant", "renew", "check", "drop", "expired", "stale"), "act"):
            case "grant":
                lease_s = chance.choice((4.0, 10.0, inf), "lease")
                _grant(desk, ours, model, (item, worker, now_s, lease_s))
            case "renew" if standing is not None:
                whose, token, end_s, lease_s = standing
                model.held[item] = (whose, token, max(end_s, now_s + lease_s), lease_s)
                given = ours.renew(item, token, now_s)
                desk.same("a renewal", tuple(given), (item, whose, token, model.held[item][2]))
            case "check" if standing is not None:
                desk.same("whose it is", ours.check(item, standing[1]).worker_id, standing[0])
            case "drop":
                dropped, was = ours.drop(item), model.held.pop(item, None)
                desk.same("what is taken away", dropped and dropped.token, was and was[1])
            case "stale":
                _stale(desk, ours, model, item, now_s)
            case _:
                over = [(one.item_id, one.token) for one in ours.expired(now_s)]
                desk.same("what ran out", over, model.expired(now_s))
        held = sorted((token, one) for one, (_, token, _, _) in model.held.items())
        desk.same("all that is held", [(one.token, one.item_id) for one in ours.all()], held)
        mine = sorted(token for whose, token, _, _ in model.held.values() if whose == worker)
        desk.same(f"what {worker} holds", [one.token for one in ours.of(worker)], mine)
    for wrong in (0.0, -1.0):
        desk.refused(f"a lease of {wrong:g} s", partial(ours.grant, "new", "x", 0.0, wrong), ValueError)


def _grant(desk: Desk, ours: Leases, model: Held, wish: tuple[str, str, float, float]) -> None:
    item, worker, now_s, lease_s = wish
    if item in model.held:
        desk.refused("what somebody holds", lambda: ours.grant(*wish), ValueError)
        return
    model.last += 1
    model.held[item] = (worker, model.last, now_s + lease_s, lease_s)
    desk.same("a grant", tuple(ours.grant(*wish)), (item, worker, model.last, now_s + lease_s))


def _stale(desk: Desk, ours: Leases, model: Held, item: str, now_s: float) -> None:
    """A token that is not the one that stands."""
    wrong = model.held[item][1] - 1 if item in model.held else 10_000
    for act in (partial(ours.check, item, wrong), partial(ours.renew, item, wrong, now_s)):
        try:
            desk.same("a stale token", act(), "refused")
        except StaleClaim as error:
            holder = error.holder.token if error.holder else None
            known = model.held[item][1] if item in model.held else None
            desk.same("who a stale token is told of", (error.token, holder), (wrong, known))


# --------------------------------------------------------------------------------------------------------- standings
NEEDED: Final = (0, 1, 3, 10)
MAY: Final[Sequence[tuple[str, bool, bool, int]]] = (
    ("claimed started completed closed", False, False, 0),
    ("claimed started completed closed blocked", True, False, 5),
    ("claimed started completed closed blocked split", True, True, 20),
    ("claimed started completed closed blocked split recovered", True, True, 100),
)
"""What each level may cause, whether it may write, use the network, and how many files it may change."""


async def standings(desk: Desk) -> None:
    """A level up with a success, where it has enough and nothing is open; a level down with each violation."""
    order, decay_s = tuple(Level), 20.0
    standing, level, good, bad = Standing(), 0, 0, list[float]()
    now_s = 0.0
    for step in range(STEPS):
        chance = desk.chance.below(step)
        now_s += chance.choice((1.0, 5.0, 20.0), "pause")
        bad = [one for one in bad if now_s - one < decay_s]
        if chance.happens(0.75, "well"):
            standing, good = succeeded(standing, now_s, decay_s), good + 1
            if not bad and level < 3 and good >= NEEDED[level + 1]:
                level += 1
        else:
            standing, level = violated(standing, now_s, decay_s), max(0, level - 1)
            bad.append(now_s)
        shown = (standing.level, standing.successes, standing.violations)
        desk.same("a standing", shown, (order[level], good, (*bad,)))
    kept = {"a": standing}
    desk.same("what is kept of it", recalled(told(kept)), kept)
    policy = AccessPolicy(decay_s=1.0, initial={"known": Level.TRUSTED})
    first = [policy.first(one).level for one in ("known", "new")]
    desk.same("how they begin", first, [Level.TRUSTED, Level.UNTRUSTED])


async def rights(desk: Desk) -> None:
    """What each level may cause, write and fetch, and how many files it may change; below another no more than it."""
    for level, (words, write, network, most) in zip(Level, MAY, strict=True):
        mine = RIGHTS[level]
        for one in ("claimed", "started", "completed", "closed", "blocked", "split", "recovered", "cancelled"):
            desk.same(f"{level}: {one}", transition_refusal(level, mine, one) == "", one in words.split())
        for kind in ("edit", "delete", "move", "execute", "switch_mode", "fetch", "read", "search", "think", "other"):
            may = network if kind == "fetch" else write or kind in ("read", "search", "think", "other")
            desk.same(f"{level}: {kind}", call_refusal(mine, kind) == "", may)
            desk.same("nobody judged", call_refusal(None, kind), "")
        for files, online in (((), False), (("a",), False), ((), True)):
            may = (write or not files) and (network or not online)
            desk.same(f"{level}: {files} {online}", claim_refusal(level, mine, files=files, network=online) == "", may)
        for count in (0, 1, most, most + 1):
            paths = [f"src/{number}" for number in range(count)]
            may = count == 0 or (write and count <= most)
            desk.same(f"{level}: {count} files", file_refusal(level, mine, paths, whole=True) == "", may)
        desk.same(f"{level}: who knows how many files", file_refusal(level, mine, ["a"], whole=False) == "", False)
    _narrow(desk)


def _narrow(desk: Desk) -> None:
    low, high = RIGHTS[Level.PROBATIONARY], RIGHTS[Level.ELEVATED]
    desk.same("nobody is judged", (narrowed(None, None), narrowed(None, low), narrowed(high, None)), (None, low, high))
    for above, own in ((low, high), (high, low)):
        both = narrowed(above, own)
        assert both is not None
        shown = (both.transitions, both.write, both.network, both.files_max)
        desk.same("below another", shown, (low.transitions, True, False, 5))

    def within(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
        both = narrowed(*(replace(high, directories=one) for one in (some, others)))
        assert both is not None
        return both.directories, both.write

    for some, others, shared in (
        ((), (), ()),
        (("src",), (), ("src",)),
        ((), ("src",), ("src",)),
        (("src",), ("src/a", "docs"), ("src/a",)),
        (("src/a",), ("src",), ("src/a",)),
        (("src",), ("srcs",), ()),
        (("src", "docs"), ("docs", "src"), ("src", "docs")),
    ):
        apart = bool(some and others) and not shared
        desk.same(f"{some} within {others}", within(some, others), (shared, not apart))
    inside = replace(high, directories=("src/",))
    for path, may in (("src/a", True), ("srcs/a", False), ("docs", False)):
        desk.same(f"{path} in src/", file_refusal(Level.ELEVATED, inside, [path], whole=True) == "", may)
    odd = replace(high, directories=("-gen",))  # before a dot in the alphabet
    for path, may in (("-gen/a", True), ("src/a", False)):
        desk.same(f"{path} in -gen", file_refusal(Level.ELEVATED, odd, [path], whole=True) == "", may)


# ------------------------------------------------------------------------------------------------------------- loops
class Circling:
    """Calls as docs/budgets.md judges them: an observation that was not made before is progress."""

    def __init__(self, calls_max: int, edits_max: int) -> None:
        self.calls_max, self.edits_max = calls_max, edits_max
        self.begin()

    def begin(self) -> None:
        self.seen: set[Seen] = set()
        self.since: list[tuple[str, str]] = []
        """The calls since the last progress, that one included."""
        self.warned = False

    def take(self, call: Seen) -> tuple[int, bool] | None:
        edit, key = call.kind in ("edit", "delete", "move"), (call.title, call.asked)
        known = call in self.seen and (call.asked if edit else call.answered) != ""
        if not known:
            self.seen.add(call)
            self.since = [key]
            return None
        self.since.append(key)
        times, most = self.since.count(key), self.edits_max if edit else self.calls_max
        if most == 0 or times < most:
            return None
        self.since, again, self.warned = [], self.warned, True
        return times, again


async def loops(desk: Desk) -> None:
    """The same call, or the same edit, so often with nothing new in between; told once, and then again."""
    for number, (calls, edits) in enumerate(((3, 2), (5, 3), (0, 2), (2, 0))):
        ours, model = Loops(LoopLimits(same_call_max=calls, same_edit_max=edits)), Circling(calls, edits)
        chance = desk.chance.below(number)
        for step in range(STEPS):
            kind = chance.choice(("read", "edit", "execute"), "kind", step)
            asked, answered = chance.choice(("", "x"), "asked", step), chance.choice(("", "1"), "answered", step)
            call = Seen(chance.choice("ab", "title", step), kind, asked, answered)
            given = ours.take(call)
            wanted = model.take(call)
            desk.same("what is repeated", given and (given.times, given.again), wanted)
            if given is not None:
                desk.same("and is it an edit", (given.edit, given.title), (kind == "edit", call.title))
            if chance.happens(0.05, "new", step):
                ours.begin()
                model.begin()
    alike = (1, 1.0, True, "1", b"1", [1], (1,), {"1": 1}, [[1]], ["1"])
    desk.same("values that differ", len({digest(one) for one in alike}), len(alike))
    nothing: tuple[Any, ...] = (None, "", b"", [], (), {}, object(), {"a": object()}, list(range(2000)))
    desk.same("values that say nothing", {digest(one) for one in nothing}, {""})
    deep: Any = 1
    for _ in range(12):
        deep = [deep]
    desk.same("a value that is too deep", (digest(deep), digest([[[1]]]) != ""), ("", True))
    desk.same("the same value", digest({"a": [1, "b"]}), digest({"a": [1, "b"]}))


# ---------------------------------------------------------------------------------------------------------- verdicts
BY_STATUS: Final = {
    400: None,
    401: "auth",
    402: "quota",
    403: "auth",
    404: "not_found",
    413: "context_length",
    429: "rate_limit",
    500: "server",
    502: "server",
    503: "overloaded",
    529: "overloaded",
}
BY_WORDS: Final = {
    "the context window is full": "context_length",
    "prompt is too long: 200001 tokens": "context_length",
    "your billing plan does not cover that": "quota",
    "insufficient credits": "quota",
    "terminated": "connection",
    "Overloaded": "overloaded",
    "there is high demand": "overloaded",
    "rate limit reached": "rate_limit",
    "Too many requests": "rate_limit",
    "RESOURCE_EXHAUSTED": "rate_limit",
    "authentication failed": "auth",
    "invalid x-api-key": "auth",
    "model gpt-9 does not exist": "not_found",
    "stream disconnected before completion": "connection",
    "read ECONNRESET": "connection",
    "bad gateway": "server",
    "it is Tuesday": None,
}


def _value(problem: Any) -> Any:
    return None if problem is None else problem.value


async def troubles(desk: Desk) -> None:
    """What an agent's error says of its model: by its status, wherever that stands, and by its words."""
    for status, wanted in BY_STATUS.items():
        for error in (
            RpcError(code=status, message="no"),
            RpcError(code=-32603, message="no", data=f'{{"status": {status}}}'.encode()),  # type: ignore[arg-type]
            RpcError(code=-32603, message="no", data=f'{{"a": {{"b": {{"statusCode": {status}}}}}}}'.encode()),  # type: ignore[arg-type]
            RpcError(code=-32603, message=f"request failed with status {status}"),
        ):
            problem, told_status = problem_of(error)
            desk.same(f"{error}", (_value(problem), told_status), (wanted, status))
        if wanted is not None:
            said = said_problem("end_turn", f"[API Error: status {status}]")
            desk.same(f"words of {status}", said and (_value(said[0]), said[1]), (wanted, status))
    for words, wanted in BY_WORDS.items():
        desk.same(words, _value(problem_of(RpcError(code=-32603, message=words))[0]), wanted)
        if words != "terminated":
            said = said_problem("refusal", f"Error: API error {words}")
            desk.same(f"refusal: {words}", said and _value(said[0]), wanted or "unknown")
    edges = (400, 599)
    desk.same("what is one", [problem_of(RpcError(code=one, message="x"))[1] for one in edges], [*edges])
    no_status = (399, 600, -32603, 0)
    desk.same("what is no status", [problem_of(RpcError(code=one, message="x"))[1] for one in no_status], [None] * 4)
    desk.same("needs a login", _value(problem_of(RpcError(code=-32000, message="x"))[0]), "auth")
    harmless = [(stop, "Error: API error") for stop in ("end_turn", "cancelled")] + [
        ("end_turn", "done"),
        ("refusal", ""),
    ]
    desk.same("what is no problem", [said_problem(*one) for one in harmless], [None] * 4)


REASONS: Final = {
    None: "unknown",
    0: None,
    1: "unknown",
    124: "timeout",
    126: "permission_denied",
    127: "unknown",
    130: "user_interrupt",
    -2: "user_interrupt",
    137: "oom",
    -9: "oom",
    143: "shutdown_signal",
    -15: "shutdown_signal",
}


async def verdicts(desk: Desk) -> None:
    """Success is the agent's word, no error, no open call; a status is never believed alone, and told as it was."""
    for status, reason in REASONS.items():
        desk.same(f"status {status}", _value(abort_reason_of(status)), reason)
    words = {None: "its exit status is not known", 0: "exit status 0", 7: "exit status 7"}
    words |= {-9: "ended by SIGKILL", -15: "ended by SIGTERM", -99: "ended by signal 99"}
    desk.same("statuses in words", {one: describe_status(one) for one in words}, words)
    good = judge("end_turn", "", status=0)
    desk.same("a success", (good.exit, good.status, good.error), (Exit.SUCCESS, 0, ""))
    for stop, error, calls, reason, abort in (
        ("end_turn", "", ("a", "b"), None, "unknown"),
        ("max_tokens", "", (), "max_output_tokens", None),
        ("max_turns", "", (), "max_turns", None),
        ("refusal", "", (), "stop_hook_blocked", None),
        ("cancelled", "", (), "aborted", "user_interrupt"),
    ):
        given = judge(stop, error, open_calls=calls)
        shown = (given.exit, _value(given.transition_reason), _value(given.abort_reason))
        desk.same(f"{stop} {calls}", shown, (Exit.ERROR, reason, abort))
        desk.same(f"{stop} has words", bool(given.error), True)
        said = judge(stop, error, open_calls=calls, text="API Error: 429") if stop != "end_turn" else given
        desk.same(f"{stop}, whatever was said", said, given)
    meant = judge("cancelled", "")
    desk.same("what we meant", judge("error", "x", intent=meant), meant)
    desk.same("a success before what we meant", judge("end_turn", "", intent=meant).exit, Exit.SUCCESS)
    failed = judge("", "", status=-9)
    desk.same("an exit", (failed.exit, failed.status, _value(failed.abort_reason)), (Exit.ERROR, -9, "oom"))
    desk.same("an exit with 0", _value(judge("", "", status=0).abort_reason), None)
    desk.same("a prompt", (build_prompt("do", ()), build_prompt("", ())), ("do", ""))
    desk.same("a prompt again", build_prompt("do", (), again=True).startswith("do\n\nNote: you were interrupted"), True)


JUDGING = (leases, standings, rights, loops, troubles, verdicts)
