"""Wording: what people are told, the words that nobody has said, and the edges of what is remembered.

A figure that is told wrongly decides nothing, and misleads whoever reads it. So the words that hold figures are written
down here a second time; so is what records, verdicts and events say where nobody has said anything.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from supervisor.agents.protocols.command import CommandCodec
from supervisor.agents.protocols.exit_status import exit_words, signal_name
from supervisor.agents.protocols.framing import Lines
from supervisor.agents.protocols.json_rpc import Asked, RpcError, WireError, Writer, read
from supervisor.lifecycles import MACHINES
from supervisor.lifecycles.session import Message
from supervisor.lifecycles.types import (
    AbortPolicy,
    CancelMode,
    DeliveryPoint,
    Exit,
    Ladder,
    LifecycleEvent,
    ModelFailure,
    ModelProblem,
    UnknownWord,
    Verdict,
)
from supervisor.policies.access import (
    AccessPolicy,
    Level,
    Rights,
    Standing,
    claim_refusal,
    file_refusal,
    transition_refusal,
)
from supervisor.policies.budgets import Amounts, Budget, Scope, Spent
from supervisor.policies.loop_detection import LoopLimits, Loops, Repeated, Seen, digest
from supervisor.policies.model_errors import ModelLimits, ModelRecord
from supervisor.policies.permissions import Decision, PermissionPolicy, PermissionRule, Wish, ruling
from supervisor.policies.turn_outcome import build_prompt, judge, severity_of
from supervisor.policies.usage import UsageBooks
from supervisor.ports import CloseInput, Malformed, Ready, Send, Signal, Text, TurnEnded
from supervisor.simulation.drills.desk import Desk

__all__ = ["WORDING"]


# --------------------------------------------------------------------------------------------------- what nobody said
SAID_OTHERWISE: Final[Mapping[tuple[str, str], Any]] = {
    ("retry_decided", "jitter"): 1.0,
    ("skipped", "final"): True,
    ("skipped", "cause"): "dependency_failed",
    ("execution_failed", "charged"): True,
    ("execution_failed", "category"): "unknown",
    ("execution_timed_out", "error"): "execution timed out",
    ("execution_timed_out", "signature"): "timeout",
    ("worker_lost", "error"): "worker lost",
    ("tool_started", "tool_kind"): "other",
    ("PermissionRequested", "tool_kind"): "other",
    ("PermissionRequested", "decision"): "deny",
    ("UrgentMessage", "point"): "now",
    ("OperatorStop", "outcome"): "aborted",
}
"""What an event says where nobody has said it, and it is not nothing."""
NOTHING: Final = (None, False, 0, "", ())
RECORD: Final = LifecycleEvent(
    seq=1, timestamp=0.0, monotonic_s=0.0, entity_type="", entity_id="", entity_seq=1, event="e"
)


async def unsaid(desk: Desk) -> None:
    """What nobody has said is nothing; but for what the pages say."""
    for table in MACHINES.values():
        for name, kind in table.events.items():
            for field in msgspec.structs.fields(kind):
                if field.required or field.default is msgspec.NODEFAULT or isinstance(field.default, Verdict):
                    continue
                given = msgspec.to_builtins(field.default)
                wanted = SAID_OTHERWISE.get((name, field.name))
                said = given == wanted if wanted is not None else given in NOTHING
                desk.same(f"{name}: {field.name}: {given!r}", said, True)
    record: Any = msgspec.to_builtins(msgspec.structs.replace(RECORD))
    shown = {field.encode_name: getattr(RECORD, field.name) for field in msgspec.structs.fields(LifecycleEvent)}
    desk.same("a record", (shown["outcome"], shown["severity"], shown["cause_id"]), ("transition", "info", None))
    desk.same("only what is said is written", sorted(record), sorted(REQUIRED))
    desk.same("a verdict", msgspec.to_builtins(Verdict(exit=Exit.SUCCESS)), VERDICT)
    failure = ModelFailure(problem=ModelProblem.AUTH)
    desk.same("a model's failure", (failure.status, failure.attempts, failure.final), (None, 0, False))
    ladder = Ladder()
    rungs = (ladder.request_s, ladder.cancel_s, ladder.terminate_s, ladder.kill_s, ladder.total_s)
    desk.same("a ladder", rungs, (10.0, 5.0, 2.0, 1.0, 18.0))
    policy = AbortPolicy()
    desk.same("what an abort may cross", (policy.tool_to_sibling, policy.sibling_to_session), (False, False))
    desk.same("used", set(msgspec.structs.astuple(Amounts())), {0})
    desk.same("no limits", Budget().limits, {})
    desk.same("a standing", msgspec.structs.astuple(Standing()), (Level.UNTRUSTED, 0, ()))
    desk.same("loops", msgspec.structs.astuple(LoopLimits()), (5, 3))
    limits = ModelLimits()
    bounds = (limits.retries_max, limits.fruitless_max, limits.requests_max, limits.within_s)
    desk.same("a model's limits", (bounds, sorted(limits.at_once)), ((10, 20, 300, 60.0), sorted(PERMANENT)))
    permissions = PermissionPolicy()
    desk.same("permissions", (permissions.default, permissions.answer_within_s), (Decision.ALLOW, 300.0))
    for strict in (Ladder, AbortPolicy, Budget):
        with suppress(msgspec.ValidationError):
            desk.same(f"{strict} of anything", msgspec.convert({"anything": 1}, strict), "refused")
    for mode in CancelMode:
        desk.same("a mode by its name", CancelMode.named(mode.value), mode)
    try:
        desk.same("no mode", CancelMode.named("soon"), "refused")
    except UnknownWord as error:
        told = "cancel_mode: 'soon' is unknown; expected wait_completed, wait_requested, try or abandon"
        desk.same("no mode", (str(error), error.field, error.given), (told, "cancel_mode", "soon"))


REQUIRED: Final = ("entity_id", "entity_seq", "entity_type", "event", "monotonic_s", "seq", "timestamp")
PERMANENT: Final = ("auth", "context_length", "not_found", "quota")
VERDICT: Final = {
    "exit": "Success",
    "error": "",
    "transition_reason": None,
    "abort_reason": None,
    "status": None,
    "model": None,
}


# ------------------------------------------------------------------------------------------------------------- words
async def words(desk: Desk) -> None:
    """One of something, two of something, and how many more."""
    for amounts, told in (
        (Amounts(turns=1, tool_calls=1, requests=1), "1 turn, 1 tool call, 1 model request"),
        (Amounts(turns=2, tool_calls=2, requests=2), "2 turns, 2 tool calls, 2 model requests"),
        (Amounts(input_tokens=3, output_tokens=4), "7 tokens"),
        (Amounts(output_tokens=4, cached_tokens=1), "4 tokens (1 cached)"),
        (Amounts(cost_usd=1.23456, wall_s=12.3456), "1.235 USD, 12.35 s of turns"),
    ):
        desk.same("amounts", amounts.words, told)
    for spent, told in (
        (Spent("x", "tokens", 5, 7), "the budget of x is spent: tokens: limit 5, used 7"),
        (Spent("x", "cost_usd", 0.5, 0.1234564, 0.25), "cost_usd: limit 0.5, used 0.123456, 0.25 held by others"),
        (Spent("x", "wall_s", 1.0, 0.30000004, 1e-10), "wall_s: limit 1, used 0.3"),
        (Spent("x", "wall_s", 2e-7, 6e-7, 0.0), "wall_s: limit 0, used 1e-06"),
    ):
        desk.same("what is spent", spent.words.endswith(told), True)
        desk.same("held by others", "held" in spent.words, "held" in told)
    told_amounts = Amounts(cost_usd=0.1234564, wall_s=0.9999996, turns=1).told
    desk.same("on record", told_amounts, {"cost_usd": 0.123456, "wall_s": 1.0, "turns": 1})
    top = Scope("t", "all", Budget(tokens=5), None)
    low = Scope("l", "one", Budget(turns=2), top)
    top.count(Amounts(input_tokens=1))
    chain = [{"id": "t", "title": "all", "limits": {"tokens": 5}, "used": {"input_tokens": 1}}]
    desk.same("a chain", low.told, [{"id": "l", "title": "one", "limits": {"turns": 2}, "used": {}}, *chain])
    for repeated, told in (
        (Repeated("ls", False, 5, False), "the same call, 'ls', was made 5 times with nothing new in between"),
        (Repeated("ls", True, 3, True), "the same edit, 'ls', was made 3 times with nothing new in between"),
    ):
        desk.same("what is repeated", repeated.words, told)
    for rule, told in (
        (PermissionRule(then=Decision.DENY), "rule: deny "),
        (PermissionRule(then=Decision.ASK, kinds=("a", "b"), path="x"), "rule: ask kind a or b, path x"),
        (PermissionRule(then=Decision.ALLOW, title="t", tool="l"), "rule: allow title t, tool l"),
    ):
        desk.same("a rule", rule.words, told)
    desk.same("no rule", ruling(PermissionPolicy(), Wish(title="x"), "/w").why, "default: allow")
    _refusals(desk)


def _refusals(desk: Desk) -> None:
    """Why an agent may not; the first three of what it changed, and how many more."""
    none = Rights(transitions=frozenset(), write=False, network=False, files_max=0)
    some = Rights(
        transitions=frozenset(("claimed",)), write=True, network=False, files_max=5, directories=("src", "doc/")
    )
    level = Level.PROBATIONARY
    for count, told in ((1, "f0"), (3, "f0, f1, f2"), (4, "f0, f1, f2 and 1 more"), (9, "f0, f1, f2 and 6 more")):
        why = file_refusal(level, none, [f"f{number}" for number in range(count)], whole=True)
        desk.same("changed", why, f"it changed {told}, and an agent that is probationary may not write")
    for files, whole, told in (
        (6, True, "it changed 6 files, and an agent that is probationary may change 5"),
        (2, False, "it changed more than 2 files, and an agent that is probationary may change 5"),
        (5, True, ""),
    ):
        desk.same("too many", file_refusal(level, some, [f"src/{one}" for one in range(files)], whole=whole), told)
    for path, may in (
        ("src/a", True),
        ("src", True),
        ("doc/x", True),
        ("a", False),
        ("source/x", False),
        ("documents", False),
    ):
        why = file_refusal(level, some, ["src/a", path], whole=True)
        told = f"it changed {path}, and an agent that is probationary may change src, doc/ only"
        desk.same(f"{path}", why, "" if may else told)
    dot = msgspec.structs.replace(some, directories=(".",))
    desk.same("everywhere", file_refusal(level, dot, ["x/y"], whole=True), "")
    desk.same("no claim", claim_refusal(level, none, files=(), network=False) != "", True)
    desk.same(
        "why not", transition_refusal(level, none, "split"), "an agent that is probationary may not cause 'split'"
    )
    policy = AccessPolicy(decay_s=1.0)
    desk.same("known to nobody", policy.first("x"), Standing())


# ------------------------------------------------------------------------------------------------- what is remembered
async def memories(desk: Desk) -> None:
    """So much is remembered, and so much of each; so deep and so long a value is known."""
    for known, times in ((512, 2), (513, None)):
        ours = Loops(LoopLimits(same_call_max=2))
        calls = [Seen(f"c{number}", "read", "x", "y") for number in range(known)]
        for call in calls:
            ours.take(call)
        for call in calls[:1] * 2:
            ours.take(call)
        last = ours.take(calls[0])
        first = ours.take(calls[0])
        told = [one.times for one in (last, first) if one is not None]
        desk.same(f"a circle of {known}", bool(told), True)
        again = Loops(LoopLimits(same_call_max=1))
        for call in calls:
            again.take(call)
        desk.same(f"the first of {known}", again.take(calls[0]) is not None, times is not None)
    for items, is_known in ((1023, True), (1024, False)):
        desk.same(f"{items} items", digest(list(range(items))) != "", is_known)
    for depth, is_known in ((8, True), (9, False)):
        value: Any = 1
        for _ in range(depth):
            value = [value]
        desk.same(f"{depth} deep", digest(value) != "", is_known)
    somethings: tuple[Any, ...] = ([None], [[]], (0,), 0, False, 0.0)
    for empty in somethings:
        desk.same(f"{empty!r} is something", digest(empty) != "", True)
    record = ModelRecord(ModelLimits())
    for many, new in ((64, False), (65, True)):
        record.turn_opened()
        for number in range(many):
            record.said(f"words {number}")
        record.in_a_row = 1
        record.said("words 0")
        desk.same(f"the first of {many} words", record.in_a_row == 0, new)
    record.turn_opened()
    for length, new in ((255, True), (256, False), (300, False)):
        record.said("x" * 256)
        record.in_a_row = 1
        record.said("x" * length)
        desk.same(f"{length} characters", record.in_a_row == 0, new)
        record.turn_opened()
    record.in_a_row = 2
    record.said("  \n")
    desk.same("no words", record.in_a_row, 2)
    _reasons(desk)


def _reasons(desk: Desk) -> None:
    """Why a turn ends by its model, in words with their figures, and by which problem."""
    record = ModelRecord(ModelLimits(retries_max=1, fruitless_max=2, requests_max=3, within_s=9.0))
    first = record.troubled(ModelProblem.SERVER, 500, "no", 0.0)
    second = record.troubled(ModelProblem.SERVER, 502, "", 1.0)
    desk.same("the first", first, (1, None))
    why = second.verdict.error if second.verdict else ""
    desk.same("the second", why, "the agent's model failed 2 times in a row (server), the most is 1")
    record.turn_opened()
    record.progressed()
    asked = [record.requested(1, 10.0), record.requested(1, 10.0), record.requested(1, 10.0)]
    desk.same("in vain", [one and one.error.rpartition(": ")[2] for one in asked], [None, None, VAIN.format(3, 2)])
    model = asked[2].model if asked[2] else None
    desk.same("by nothing that is known", model and (model.problem, model.status), (ModelProblem.UNKNOWN, None))
    record.turn_opened()
    record.troubled(ModelProblem.OVERLOADED, 529, "", 20.0)
    fast = record.requested(3, 20.0)
    desk.same("too fast", fast and fast.error.endswith("more than 3 requests within 9 s"), True)
    desk.same(
        "by the last", fast and fast.model and (fast.model.problem, fast.model.status), (ModelProblem.OVERLOADED, 529)
    )
    told = record.troubled(ModelProblem.QUOTA, None, "pay", 30.0).verdict
    at_once = "the agent's model fails, and no further try mends that (quota): pay"
    desk.same("at once", told and told.error, at_once)
    slow = ModelRecord(ModelLimits(requests_max=2, within_s=5.0, fruitless_max=0))
    given = [slow.requested(1, at_s) is not None for at_s in (0.0, 2.0, 5.5, 7.0, 7.2)]
    desk.same("just slow enough", given, [False, False, False, True, True])
    many = ModelRecord(ModelLimits(requests_max=0, fruitless_max=0))
    desk.same("without a bound", many.requested(10**6, 0.0), None)


VAIN: Final = "{} requests with nothing new in between; the most is {}"


# --------------------------------------------------------------------------------------------------------------- usage
def _records() -> Iterator[tuple[str, str, str, str, Mapping[str, Any]]]:
    yield "workstream", "w", "Born", "born", {}
    for task in ("w/t1", "w/t2"):
        yield "task", task, "Born", "born", {"workstream": "w"}
    yield "task", "alone", "Born", "born", {"workstream": ""}
    yield "session", "s", "Born", "born", {}
    yield "session", "s/kid", "Born", "born", {}
    yield "session", "s/kid/kid", "Born", "born", {}
    for deep in ("s/~/known", "s/~/known/kid", "s/~/lost"):
        yield "session", deep, "Born", "born", {}
        yield "session", deep, "Usage", "fact", {"turn": f"{deep}:t1", "used": {"input_tokens": 10_000}}
    yield "turn", "x/y", "Born", "born", {"workstream": "w"}
    yield "task", "w/t1", "claimed", "transition", {"by": "s"}
    yield "task", "w/t2", "claimed", "refused", {"by": "s"}
    yield "task", "w/t2", "claimed", "transition", {"by": ""}
    yield "task", "w/t2", "unclaimed", "transition", {"by": "s"}
    yield "task", "w/t2", "Usage", "refused", {"by": "s", "turn": "x", "used": {"turns": 9}}
    yield "task", "w/t2", "zz", "transition", {"by": "s"}
    yield "task", "w/t2", "ZZZ", "fact", {"workstream": "another"}
    yield "task", "w/t2", "AAA", "fact", {"turn": "x", "used": {"turns": 9}}
    yield "session", "s", "Usage", "fact", {"turn": "s:t1", "used": {"input_tokens": 5}}
    yield "session", "s", "Usage", "fact", {"turn": "s:t2", "used": {"input_tokens": 7, "turns": 1}}
    yield "session", "s", "Usage", "fact", {"turn": "s:t1", "used": {"input_tokens": 8, "turns": 1}}
    yield "session", "s/kid/kid", "Usage", "fact", {"turn": "k:t1", "used": {"input_tokens": 100}}
    yield "task", "w/t2", "claimed", "transition", {"by": "other"}
    yield "session", "other", "Usage", "fact", {"turn": "o:t1", "used": {"input_tokens": 1_000}}


async def usages(desk: Desk) -> None:
    """Sums of what was said, for turns, sessions and those above them; a session's words are totals."""
    books = UsageBooks(
        (
            msgspec.structs.replace(
                RECORD, entity_type=kind, entity_id=whose, event=event, outcome=outcome, metadata=dict(metadata)
            )
            for kind, whose, event, outcome, metadata in _records()
        ),
        {"s/~/known": "s/kid/kid"}.get,
    )
    tokens = {whose: amounts.input_tokens for whose, amounts in books.sums().items()}
    turns = {"s:t1": 6, "s:t2": 2, "k:t1": 100, "o:t1": 1_000}
    deep = {"s/~/known": 20_000, "s/~/known/kid": 10_000, "s/~/lost": 10_000}
    turns |= {f"{session}:t1": 10_000 for session in deep}
    sessions = {"s": 30_108, "s/kid": 20_100, "s/kid/kid": 20_100, **deep, "other": 1_000}
    desk.same("sums", tokens, {**turns, **sessions, "w/t1": 30_108, "w/t2": 1_000, "w": 31_108})
    desk.same("turns", {whose: amounts.turns for whose, amounts in books.sums().items() if amounts.turns}, TURNS)


TURNS: Final = {"s:t2": 1, "s": 1, "w/t1": 1, "w": 1}


# ------------------------------------------------------------------------------------------------------------ adapters
async def commands(desk: Desk) -> None:
    """A program: where its prompt stands, what it writes, and what its status says of the turn."""
    for command, argv, stands in (
        (("a", "-p", "{prompt}"), ("a", "-p", "do it"), True),
        (("a", "x{prompt}y{prompt}"), ("a", "xdo ity" + "do it"), True),
        (("a", "-p"), ("a", "-p"), False),
    ):
        codec: Any = CommandCodec()
        desk.same("a command", codec.argv(command, "do it"), argv)
        desk.same("its start", [*codec.start("/w")], [Ready()])
        given = [CloseInput()] if stands else [Send(b"do it"), CloseInput()]
        desk.same("its prompt", [*codec.prompt("do it")], given)
        desk.same("told", (codec.steer("x"), [*codec.close()], codec.one_shot), (None, [], True))
    for status, stop, told in (
        (0, "end_turn", ""),
        (1, "error", "exit status 1"),
        (137, "error", "exit status 137"),
        (-9, "error", "ended by signal SIGKILL"),
        (None, "error", "its exit status is not known: the process that watched over it was lost"),
    ):
        desk.same(f"status {status}", CommandCodec().exited(status), [TurnEnded(stop, told)])
        codec = CommandCodec()
        desk.same("an interrupt", codec.interrupt(), [Signal(signal.SIGINT)])
        desk.same("its end then", codec.exited(status), [TurnEnded("cancelled")])
    codec = CommandCodec()
    heard = [*codec.feed(b"a\xe2\x82"), *codec.feed(b"\xac\xff"), *codec.feed(b"\xe2"), *codec.exited(0)]
    texts = [Text("message", one) for one in ("a", "€\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}")]
    desk.same("its output", heard, [*texts, TurnEnded("end_turn")])
    shown = [signal_name(one) for one in (9, 15, 99)], [exit_words(one) for one in (None, -15, 0, 4)]
    ends = [
        "ended, and its exit status is not known",
        "was ended by SIGTERM",
        "exited with status 0",
        "exited with status 4",
    ]
    desk.same("statuses", shown, (["SIGKILL", "SIGTERM", "SIG99"], ends))


async def frames(desk: Desk) -> None:
    """A line of just the most is one; one of a byte more is named once, wherever it is cut, and then all goes on."""
    for chunks, told in (
        ((b"12345\n",), ["12345"]),
        ((b"1234\n", b"5\n"), ["1234", "5"]),
        ((b"1\n2\n",), ["1", "2"]),
        ((b"123", b"45\n"), ["12345"]),
        ((b"123456\n",), [None]),
        ((b"123", b"456", b"7\n1\n"), [None, "1"]),
        ((b"123456", b"\n1\n"), [None, "1"]),
        ((b"12345", b"6\n\n"), [None, ""]),
        ((b"\xff\n1\n",), [None, "1"]),
        ((b"1234567890\n1\n",), [None, "1"]),
    ):
        lines = Lines(5)
        given = [one for chunk in chunks for one in lines.feed(chunk)]
        desk.same(f"{chunks}", [None if isinstance(one, Malformed) else one for one in given], told)
        desk.same("nothing is left", (lines.unfinished, lines.end()), (False, []))
    why = Lines(5).feed(b"1234567")[0]
    desk.same("too long", "longer than 5 bytes" in getattr(why, "why", ""), True)
    why = Lines(50).feed(b"ab\xffd\n")[0]
    desk.same("no text", "byte 0xff at position 2" in getattr(why, "why", ""), True)


async def requests(desk: Desk) -> None:
    """Ours are numbered from 1, each is answered once, by a result or an error; a line of another shape is named."""
    asked, heard = Asked(Writer({"v": "1"})), list[Any]()

    def well(raw: msgspec.Raw) -> list[Any]:
        heard.append(bytes(raw))
        return []

    def badly(error: RpcError) -> list[Any]:
        heard.append(error.text)
        return []

    for number in (1, 2, 3):
        line = asked.ask("m", {"n": number}, well, badly)
        wanted = b'{"v":"1","id":%d,"method":"m","params":{"n":%d}}\n' % (number, number)
        desk.same("a request", line.data, wanted)
    bad: Any = read('{"code": -5, "message": "no", "data": {"a": 1}}', RpcError, "x")
    asked.answered(2, msgspec.UNSET, bad)
    asked.answered(1, msgspec.Raw(b"7"), None)
    asked.answered(1, msgspec.Raw(b"8"), None)
    asked.answered("3", msgspec.Raw(b"8"), None)
    asked.answered(None, msgspec.Raw(b"8"), None)
    asked.answered(3, msgspec.UNSET, read('{"code": 1, "message": "so"}', RpcError, "x"))
    desk.same("what was heard", heard, ['no ({"a": 1})', b"7", "so"])
    for rpc_id, result in ((msgspec.UNSET, msgspec.Raw(b"1")), (1, msgspec.UNSET), (msgspec.UNSET, msgspec.UNSET)):
        with suppress(WireError):
            desk.same("no answer", asked.answered(rpc_id, result, None), "refused")
    for text, told in (
        ("{", "x that is not JSON: '{', "),
        ("y" * 90, f"x that is not JSON: '{'y' * 80}...', "),
        (msgspec.Raw(b"{"), "x that is not JSON: Input"),
        ('{"code": "a", "message": "b"}', "x: "),
    ):
        try:
            desk.same("no message", read(text, RpcError, "x"), "refused")
        except WireError as error:
            desk.same("why", str(error).startswith(told), True)
    for code, fits in ((2**63 - 1, True), (2**63, False), (-(2**63), True), (-(2**63) - 1, False)):
        try:
            desk.same(f"{code}", read(f'{{"code": {code}, "message": ""}}', RpcError, "x").code == code, fits)
        except WireError:
            desk.same(f"{code} is refused", fits, False)


# ------------------------------------------------------------------------------------------------------------ verdicts
async def judgements(desk: Desk) -> None:
    """Who is to blame for the end of a turn, what it is told with, and how loud that is."""
    for problem, status, reason in (
        ("auth", 401, "permission_denied"),
        ("quota", 402, "permission_denied"),
        ("context_length", 400, "prompt_too_long"),
        ("context_length", 413, "provider_413"),
        ("overloaded", 529, "provider_529"),
        ("rate_limit", 429, "retry"),
        ("server", 500, "retry"),
        ("connection", None, "retry"),
        ("refused", None, "stop_hook_blocked"),
        ("not_found", 404, None),
        ("unknown", None, "retry"),
    ):
        given = judge("error", "", problem=ModelProblem(problem), http_status=status, status=3)
        shown = (given.transition_reason and given.transition_reason.value, given.status)
        desk.same(problem, shown, (reason, 3))
        model = given.model
        desk.same("the model's", model and (model.problem.value, model.status, model.final), (problem, status, False))
        desk.same("its words", given.error, f"the agent's model failed: {problem}")
    for stop, error, status, told, abort in (
        ("end_turn", "it broke", None, "it broke", None),
        ("error", "", 124, "exit status 124", "timeout"),
        ("error", "no", 0, "no", None),
        ("tired", "", None, "its exit status is not known", None),
        ("max_tokens", "more", None, "more", None),
        ("max_tokens", "", None, "the model reached its output limit", None),
        ("max_turns", "", None, "the agent reached its limit of model requests", None),
        ("refusal", "", None, "the agent refused to go on", None),
        ("cancelled", "", None, "the turn was cancelled", "user_interrupt"),
    ):
        given = judge(stop, error, status=status)
        abort_reason = given.abort_reason and given.abort_reason.value
        desk.same(f"{stop} {error!r} {status}", (given.exit, given.error, abort_reason), (Exit.ERROR, told, abort))
    failed = judge("end_turn", "", open_calls=("a", "b"))
    desk.same("open calls", failed.error, "the turn ended with open tool calls: a, b")
    spoken = "API Error: 529 overloaded"
    desk.same("spoken", (judge("end_turn", "", text=spoken).exit, judge("end_turn", "", text="done").exit), SPOKEN)
    session = MACHINES["session"].events
    halt: Any = session["OperatorStop"]
    resume: Any = session["BackoffElapsed"]
    loud = [severity_of(one) for one in (halt(reason="x"), halt(reason="x", abort_id="a"), resume())]
    desk.same("how loud", [one.value for one in loud], ["info", "warning", "info"])
    mail = [
        Message(id="1", sender="ann", text="hi", urgent=False),
        Message(id="2", sender="bob", text="come", urgent=True, point=DeliveryPoint.NOW),
    ]
    letters = "Message from ann:\nhi\n\nUrgent message from bob:\ncome"
    desk.same("a prompt with mail", build_prompt("do", mail), f"do\n\n{letters}")
    desk.same("mail alone", build_prompt("", mail, again=True), letters)


SPOKEN: Final = (Exit.ERROR, Exit.SUCCESS)

WORDING = (unsaid, words, memories, usages, commands, frames, requests, judgements)
