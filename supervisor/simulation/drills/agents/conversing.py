"""Conversing: what an agent says line by line, and all that has to come of it, by the pages of the protocol.

The agents of a run are well brought up: they ask once, read whole files, and end what they have begun. Here each scene
is a conversation whose every answer is known beforehand (docs/agents.md, docs/agents-acp.md, docs/model-trouble.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from supervisor.agents.protocols.acp.calls import ToolCalls
from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.lifecycles.types import CancelMode, ModelProblem
from supervisor.ports import (
    CallKept,
    ChildAsked,
    CloseInput,
    Compaction,
    FileAsked,
    Heard,
    Malformed,
    ModelTrouble,
    PermissionAsked,
    Send,
    TerminalKilled,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    Usage,
    Wishes,
)
from supervisor.simulation.drills.desk import Desk

__all__ = ["CONVERSING", "Talk"]

QUEUES: Final[dict[str, Any]] = {"_meta": {"claudeCode": {"promptQueueing": True}}}
EXTENDS: Final[dict[str, Any]] = {"_meta": {"supervisor": {"steer": True, "endCalls": True}}}
OPTIONS: Final = [
    {"optionId": "y", "name": "Yes", "kind": "allow_once"},
    {"optionId": "n", "name": "No", "kind": "reject_once"},
]
KINDS: Final = (("y", "allow_once"), ("n", "reject_once"))


class Talk:
    """A codec, and its agent. What comes of a line is told as values; what is sent, as the messages."""

    def __init__(self, desk: Desk, *, ready: bool = True, silent: bool = False, **can: Any) -> None:
        self.desk = desk
        self.codec = AcpCodec(2_000, wishes=Wishes(), silent=silent)
        self.asked = 0
        if ready:
            self.codec.start("/w")
            self.answer({"protocolVersion": 1, "agentCapabilities": can})
            self.answer({"sessionId": "s"})

    def line(self, *messages: Any) -> list[Any]:
        """What comes of these lines."""
        text = "".join(
            one if isinstance(one, str) else f"{json.dumps({'jsonrpc': '2.0', **one})}\n" for one in messages
        )
        return told(self.codec.feed(text.encode()))

    def answer(self, result: Any = None, *, error: Any = None, number: int | None = None) -> list[Any]:
        """The next of our requests, or that one, is answered."""
        self.asked = self.asked + 1 if number is None else self.asked
        one = {"error": error} if error is not None else {"result": result}
        return self.line({"id": self.asked if number is None else number, **one})

    def update(self, what: str, session: str = "s", **fields: Any) -> list[Any]:
        return self.line(
            {"method": "session/update", "params": {"sessionId": session, "update": {"sessionUpdate": what, **fields}}}
        )

    def wish(self, rpc_id: Any, method: str, **params: Any) -> list[Any]:
        """The agent asks for something."""
        return self.line({"id": rpc_id, "method": method, "params": {"sessionId": "s", **params}})

    def prompt(self, text: str = "do it") -> list[Any]:
        return told(self.codec.prompt(text))

    def same(self, what: str, given: Sequence[Any], *wanted: Any) -> None:
        self.desk.same(what, list(given), list(wanted))


def told(outs: Sequence[Any] | None) -> list[Any]:
    """What is sent as the object that it is, without the envelope; all else as it is."""
    found: list[Any] = []
    for one in outs or ():
        if isinstance(one, Send):
            message = json.loads(one.data)
            whole = one.data.endswith(b"\n") and one.data.count(b"\n") == 1 and message.pop("jsonrpc") == "2.0"
            found.append(message if whole else one.data)
        else:
            found.append(one)
    return found


def request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"id": number, "method": method, "params": params}


def asking(number: int, text: str = "do it") -> dict[str, Any]:
    return request(number, "session/prompt", sessionId="s", prompt=[{"type": "text", "text": text}])


def result(rpc_id: Any, **value: Any) -> dict[str, Any]:
    return {"id": rpc_id, "result": value}


def code_of(outs: Sequence[Any]) -> list[tuple[Any, int]]:
    """Whom an error answers, and its code."""
    return [(one["id"], one["error"]["code"]) for one in outs if isinstance(one, dict) and "error" in one]


def said(kind: str, text: str) -> dict[str, Any]:
    return {"content": {"type": kind, "text": text}}


# ----------------------------------------------------------------------------------------------------------- one turn
async def turns(desk: Desk) -> None:
    """Words, thoughts, a plan, a mode: each once, where it is new; the answer to the prompt ends the turn."""
    talk = Talk(desk)
    talk.same("a prompt", talk.prompt(), asking(3))
    talk.asked = 2
    talk.same("words", talk.update("agent_message_chunk", **said("text", "hello")), Text("message", "hello"))
    talk.same("a thought", talk.update("agent_thought_chunk", **said("text", "hm")), Text("thought", "hm"))
    for nothing in (said("text", ""), said("image", "x"), {"content": {"type": "image", "data": "x"}}):
        talk.same(f"{nothing}", talk.update("agent_message_chunk", **nothing))
    talk.same("words of another session", talk.update("agent_message_chunk", "other", **said("text", "no")))
    talk.same("what nobody reads", talk.update("available_commands_update", availableCommands=[]))
    steps = [("a", "completed"), ("b", "in_progress"), ("c", "pending"), ("d", None)]
    entries = [{"content": name, "status": status} for name, status in steps]
    plan = Text("plan", "[x] a\n[>] b\n[ ] c\n[ ] d\n")
    talk.same("a plan", talk.update("plan", entries=entries), plan)
    talk.same("the same plan", talk.update("plan", entries=entries))
    talk.same("no plan", talk.update("plan", entries=[]))
    talk.same("a plan again", talk.update("plan", entries=entries), plan)
    for mode, news in (("code", 1), ("code", 0), ("ask", 1)):
        words = [Text("log", f"the agent is in the mode {mode!r}\n")] * news
        talk.same("a mode", talk.update("current_mode_update", currentModeId=mode), *words)
    talk.same("no answer", talk.line({"id": 99, "result": {}}, {"id": "x", "result": {}}, "\n", " \n"))
    talk.same("no notification of ours", talk.line({"method": "some/thing", "params": {"x": 1}}))
    talk.same("the end", talk.answer({"stopReason": "end_turn"}), TurnEnded("end_turn"))
    talk.same("the same answer", talk.answer({"stopReason": "end_turn"}, number=3))
    talk.same("another prompt", talk.prompt("more"), asking(4, "more"))
    talk.same("the plan of another turn", talk.update("plan", entries=entries), plan)
    unknown = code_of(talk.wish(9, "no/such"))
    desk.same("what nobody knows", unknown, [(9, -32601)])
    await desk.raises("a prompt during a turn", _later(talk.prompt), RuntimeError)
    await desk.raises("a prompt before it is open", _later(Talk(desk, ready=False).prompt), RuntimeError)


async def _later(act: Callable[[], Any]) -> Any:
    return act()


async def last_words(desk: Desk) -> None:
    """What a turn's last word means: a good end is believed where something was said, done or used."""
    for reason in ("refusal", "max_tokens", "max_turn_requests", "cancelled"):
        talk = Talk(desk)
        talk.prompt()
        stop = "max_turns" if reason == "max_turn_requests" else reason
        talk.same(reason, talk.answer({"stopReason": reason}), TurnEnded(stop))
    talk = Talk(desk)
    talk.prompt()
    strange = talk.answer({"stopReason": "tired"})
    desk.same("a reason of its own", [(one.stop, one.problem) for one in strange], [("error", None)])
    usage = {"inputTokens": 5, "outputTokens": 1}
    cut: dict[str, Any] = {"quota": {"model_usage": [], "token_count": {}}}
    for text, silent, heard, end, problem in (
        ("x", False, False, {}, "unknown"),
        ("x", True, False, {}, None),
        ("/compact", False, False, {}, None),
        ("x", False, True, {}, None),
        ("x", False, False, {"usage": usage}, None),
        ("x", False, False, {"usage": {"inputTokens": 0}}, "unknown"),
        ("x", False, False, {"_meta": {"usage": usage}}, None),
        ("x", False, True, {"_meta": cut}, "connection"),
        ("x", False, True, {"_meta": {"quota": {"model_usage": [{}], "token_count": {}}}}, None),
        ("x", False, True, {"_meta": {"quota": {"model_usage": [], "token_count": {"total_tokens": 4}}}}, None),
        ("x", False, True, {"_meta": {"quota": 3}}, None),
        ("x", False, True, {"_meta": 3}, None),
    ):
        talk = Talk(desk, silent=silent)
        talk.prompt(text)
        if heard:
            talk.update("agent_message_chunk", **said("text", "done"))
        ended = [one for one in talk.answer({"stopReason": "end_turn", **end}) if isinstance(one, TurnEnded)]
        shown = [(one.stop, one.problem and one.problem.value) for one in ended]
        desk.same(f"{text}, {silent}, {heard}, {end}", shown, [("error" if problem else "end_turn", problem)])
    for count, what in enumerate(("tool_call", "plan", "compaction_update", "usage_update", "session_info_update")):
        talk = Talk(desk)
        talk.prompt()
        fields: dict[str, Any] = {"toolCallId": "c", "compactionId": "z", "status": "in_progress", "used": 1, "size": 2}
        talk.update(what, entries=[{"content": "a"}], _meta={"modelTrouble": {}}, **fields)
        stops = [one.stop for one in talk.answer({"stopReason": "end_turn"}) if isinstance(one, TurnEnded)]
        desk.same(f"an end after {what}", stops, ["end_turn" if count < 3 else "error"])
    talk = Talk(desk)
    talk.prompt()
    talk.wish(1, "no/such")
    talk.same("an end after a wish", talk.answer({"stopReason": "end_turn"}), TurnEnded("end_turn"))
    for words, stop, problem in (
        ("[API Error: 429 Too Many Requests]", "end_turn", ModelProblem.RATE_LIMIT),
        ("Error: API error (status 503)", "refusal", ModelProblem.OVERLOADED),
    ):
        talk = Talk(desk)
        talk.prompt()
        talk.update("agent_message_chunk", **said("text", words))
        given = [(one.stop, one.error, one.problem) for one in talk.answer({"stopReason": stop})]
        desk.same(words, [given[0][:2], given[0][2] is not None], [("error", words), True])
        desk.same("its name", given[0][2] in (problem, ModelProblem.UNKNOWN, ModelProblem.SERVER), True)
    talk = Talk(desk)
    talk.prompt()
    failed = talk.answer(error={"code": 529, "message": "overloaded"})
    talk.same("an error", failed, TurnEnded("error", "overloaded", ModelProblem.OVERLOADED, 529))
    talk.prompt("again")
    talk.asked = 3
    reasoned = talk.answer(error={"code": -32603, "message": "no", "data": "x" * 400})
    short = f'no ("{"x" * 299}...)'
    talk.same("an error with its reason", reasoned, TurnEnded("error", short))
    for depth, status in ((0, 503), (3, 503), (4, None)):
        data: Any = {"httpStatusCode": 503}
        for _ in range(depth):
            data = {"x": data}
        talk = Talk(desk)
        talk.prompt()
        given = [one.status for one in talk.answer(error={"code": -32603, "message": "no", "data": data})]
        desk.same(f"a status, {depth} deep", given, [status])


# ------------------------------------------------------------------------------------------------------------ calls
async def tool_calls(desk: Desk) -> None:
    """Each is opened by the first word and closed by the last, with what was asked and what came of it."""
    talk = Talk(desk)
    talk.prompt()
    first = talk.update("tool_call", toolCallId="a", title="ls", kind="execute", rawInput={"c": "ls"})
    talk.same("a call", first, ToolOpened("a", "ls", "execute"))
    talk.same("it goes on", talk.update("tool_call_update", toolCallId="a", status="in_progress", rawOutput={}))
    sub = talk.update("tool_call", toolCallId="b", _meta={"claudeCode": {"toolName": "Task"}})
    talk.same("a sub-agent", sub, ToolOpened("b", "b", "agent"))
    inner = talk.update("tool_call", toolCallId="c", title="in", _meta={"claudeCode": {"parentToolUseId": "b"}})
    talk.same("a call within", inner, ToolOpened("c", "in", "other", "b"))
    lone = talk.update("tool_call", toolCallId="d", title="in", _meta={"claudeCode": {"parentToolUseId": "none"}})
    talk.same("a call within nothing", lone, ToolOpened("d", "in", "other"))
    for number, meta in enumerate((None, 3, {"claudeCode": 3}, {"claudeCode": {"toolName": 3}})):
        odd = talk.update("tool_call", toolCallId=f"e{number}", title="t", kind="read", _meta=meta)
        talk.same(f"a call with {meta}", odd, ToolOpened(f"e{number}", "t", "read"))
    over = talk.update("tool_call_update", toolCallId="a", status="completed", rawOutput="ok")
    told_of = [(one.call_id, one.outcome, bool(one.asked), bool(one.answered)) for one in over]
    desk.same("its end", told_of, [("a", "completed", True, True)])
    talk.same("its end again", talk.update("tool_call_update", toolCallId="a", status="failed"))
    talk.same("a late word", talk.update("tool_call", toolCallId="a", title="ls"))
    for call, status, outcome in (
        ("b", "failed", "failed"),
        ("c", "cancelled", "failed"),
        ("f", "completed", "completed"),
    ):
        given = talk.update("tool_call_update", toolCallId=call, status=status)
        opened = [ToolOpened("f", "f")] if call == "f" else []
        talk.same(status, given, *opened, ToolClosed(call, outcome))
    talk.same("the end leaves them open", talk.answer({"stopReason": "end_turn"}), TurnEnded("end_turn"))
    talk.prompt("more")
    talk.same("one of the last turn", talk.update("tool_call_update", toolCallId="d", status="completed"))
    talk.update("tool_call", toolCallId="g", title="g")
    cancel = {"method": "session/cancel", "params": {"sessionId": "s"}}
    talk.same("an interrupt", told(talk.codec.interrupt()), cancel)
    late = talk.update("tool_call", toolCallId="h", title="h", status="completed")
    talk.same("done, it says", late, ToolOpened("h", "h"), ToolClosed("h", "failed"))
    ended = talk.answer({"stopReason": "end_turn"}, number=4)
    talk.same("cancelled", ended, ToolClosed("g", "failed"), TurnEnded("cancelled"))
    talk.same("nothing to interrupt", told(talk.codec.interrupt()))
    _digests(desk)


def _digests(desk: Desk) -> None:
    """What was asked, and what came of it, is known again, and told apart from anything else."""

    def known(*words: dict[str, Any]) -> tuple[str, str]:
        talk = Talk(desk)
        talk.prompt()
        outs = [out for one in words for out in talk.update("tool_call_update", toolCallId="a", **one)]
        last = next(out for out in outs if isinstance(out, ToolClosed))
        return last.asked, last.answered

    done = {"status": "completed"}
    patch, other = {"content": [{"type": "diff", "path": "p"}]}, {"content": [{"type": "diff", "path": "q"}]}
    blank: tuple[Any, ...] = (None, {}, [], "")
    nothing = [known({one: empty, **done}) for one in ("rawInput", "rawOutput") for empty in blank]
    desk.same("nothing told", set(nothing), {("", "")})
    desk.same("a terminal is no result", known({"content": [{"terminalId": "t"}], **done}), ("", ""))
    asked = [known({"rawInput": one, **done}) for one in ("x", "x", "y")]
    desk.same("what was asked", (asked[0] == asked[1], asked[0] == asked[2], asked[0][1]), (True, False, ""))
    came = [known({"rawOutput": one, **done}) for one in ("x", "x", "y")]
    desk.same("what came", (came[0] == came[1], came[0] == came[2], came[0][0]), (True, False, ""))
    both = known({"rawOutput": "x", **patch, **done})
    desk.same("all that came", (both[1] in ("", came[0][1], known({**patch, **done})[1]), both[0]), (False, ""))
    edit, again = known({"kind": "edit", **patch, **done}), known({"kind": "edit", **other, **done})
    desk.same("an edit is what it does", (edit[0] != "", edit[1], edit[0] != again[0]), (True, "", True))
    plain = known({"kind": "edit", "rawInput": "x", **patch, **done})
    desk.same("an edit that says it", (plain[0], plain[1]), (asked[0][0], known({**patch, **done})[1]))
    last = known({"rawInput": "y", "rawOutput": "y"}, {"rawInput": "x"}, {"rawOutput": "x", **done})
    desk.same("the last word counts", last, (asked[0][0], came[0][1]))
    _known_calls(desk)


def _known_calls(desk: Desk) -> None:
    """Calls that are over are known for long, and which one a command serves is never guessed."""
    ours = ToolCalls()
    for number in range(20_001):
        ours.opened(f"c{number}", "t", "read")
        ours.closed(f"c{number}", "completed")
    shown = [bool(ours.opened(f"c{number}", "t", "read")) for number in (1, 20_000, 0)]
    desk.same("calls that are known to be over", shown, [False, False, True])
    ours = ToolCalls()
    desk.same("no call to serve", (ours.serve(None), ours.serve("a"), ours.is_open(None)), (None, None, False))
    ours.opened("a", "t", "execute")
    desk.same("the only one", (ours.serve(None), ours.serve(None), ours.serve("a")), ("a", None, "a"))
    ours.opened("b", "t", "execute")
    ours.opened("c", "t", "execute")
    desk.same(
        "one of two", (ours.serve(None), ours.serve("x"), ours.serve("c"), ours.serve(None)), (None, None, "c", "b")
    )
    desk.same("all of them", [one.call_id for one in ours.close_all("failed")], ["a", "b", "c"])
    ours.wrote("a", b"x")
    ours.tell("a", asked=b"x")
    desk.same("over", (ours.closed("a", "failed"), ours.is_open("a"), ours.close_untold()), ([], False, []))
    first, second = ToolCalls(), ToolCalls()
    for one, parts in ((first, (b"ab", b"c")), (second, (b"a", b"bc"))):
        one.opened("a", "t", "execute")
        for part in parts:
            one.wrote("a", part)
    desk.same("what was written", first.closed("a", "completed"), second.closed("a", "completed"))


# ------------------------------------------------------------------------------------------------------ permissions
async def permissions(desk: Desk) -> None:
    """Asked once, answered once: by an option of the agent's own, or a cancel; what is not made is closed."""
    talk = Talk(desk)
    talk.prompt()
    call = {"toolCallId": "a", "title": "rm", "kind": "edit", "rawInput": {"p": 1}, "locations": [{"path": "/w/x"}]}
    given = talk.wish(7, "session/request_permission", toolCall=call, options=OPTIONS)
    asked = PermissionAsked("permission-1", "rm", KINDS, "edit", detail='{"p": 1}', paths=("/w/x",))
    talk.same("a permission", given, ToolOpened("a", "rm", "edit"), asked)
    await desk.raises("no such option", _later(lambda: talk.codec.permission("permission-1", "x")), ValueError)
    talk.same("allowed", told(talk.codec.permission("permission-1", "y")), _chosen(7, "y"))
    talk.same("answered already", told(talk.codec.permission("permission-1", "n")))
    again = talk.wish(8, "session/request_permission", toolCall={"toolCallId": "a"}, options=OPTIONS)
    talk.same("of an open call", again, PermissionAsked("permission-2", "a", KINDS))
    talk.same("denied", told(talk.codec.permission("permission-2", "n")), _chosen(8, "n"))
    for rpc_id, option in ((9, "n"), ("ten", None)):
        name = f"c{rpc_id}"
        opened = talk.wish(rpc_id, "session/request_permission", toolCall={"toolCallId": name}, options=OPTIONS)
        desk.same("a first word", opened[0], ToolOpened(name, name))
        answer = _chosen(rpc_id, option) if option else _cancelled(rpc_id)
        number = 3 if rpc_id == 9 else 4
        ended = told(talk.codec.permission(f"permission-{number}", option))
        talk.same("of a first word", ended, answer, ToolClosed(name, "failed"))
    talk.wish("eleven", "session/request_permission", toolCall={"toolCallId": "w"}, options=OPTIONS)
    talk.wish(2**40, "session/request_permission", toolCall={"toolCallId": "a"}, options=OPTIONS)
    withdrawn = talk.line({"method": "$/cancel_request", "params": {"requestId": "eleven"}})
    desk.same("withdrawn", (code_of(withdrawn), withdrawn[1:]), ([("eleven", -32800)], [ToolClosed("w", "failed")]))
    talk.same("withdrawn already", talk.line({"method": "$/cancel_request", "params": {"requestId": "eleven"}}))
    desk.same("too late", told(talk.codec.permission("permission-5", "y")), [])
    second = talk.line({"method": "$/cancel_request", "params": {"requestId": 2**40}})
    desk.same("withdrawn, of an open call", (code_of(second), second[1:]), ([(2**40, -32800)], []))
    talk.wish(13, "session/request_permission", toolCall={"toolCallId": "v"}, options=OPTIONS)
    talk.wish(14, "session/request_permission", toolCall={"toolCallId": "a"}, options=OPTIONS)
    stopped = told(talk.codec.interrupt())
    desk.same("an interrupt answers", stopped[1:], [_cancelled(13), ToolClosed("v", "failed"), _cancelled(14)])
    late = talk.wish(15, "session/request_permission", toolCall={"toolCallId": "u"}, options=OPTIONS)
    talk.same("while it is cancelled", late, _cancelled(15))
    ended = talk.answer({"stopReason": "cancelled"})
    talk.same("the end", ended, ToolClosed("a", "failed"), TurnEnded("cancelled"))
    talk.prompt("more")
    talk.wish(16, "session/request_permission", toolCall={"toolCallId": "z"}, options=OPTIONS)
    talk.codec.permission("permission-9", "y")
    talk.update("tool_call", toolCallId="told", title="t")
    untold = talk.answer({"stopReason": "end_turn"})
    talk.same("allowed, and no word more", untold, ToolClosed("z", "unknown"), TurnEnded("end_turn"))
    content = {"toolCallId": "q", "content": [{"type": "diff"}], "_meta": {"claudeCode": {"toolName": "Bash"}}}
    talk.prompt("and")
    shown = talk.wish(17, "session/request_permission", toolCall=content, options=[])[1]
    desk.same("what a human sees", (shown.detail, shown.tool, shown.options), ('[{"type": "diff"}]', "Bash", ()))


def _chosen(rpc_id: Any, option: str) -> dict[str, Any]:
    return result(rpc_id, outcome={"outcome": "selected", "optionId": option})


def _cancelled(rpc_id: Any) -> dict[str, Any]:
    return result(rpc_id, outcome={"outcome": "cancelled"})


# ---------------------------------------------------------------------------------------------- terminals and files
async def terminals(desk: Desk) -> None:
    """A command serves the call that it names, or evidently serves, else one of its own; each request is answered."""
    talk = Talk(desk)
    talk.prompt()
    codec, cut = talk.codec, {"outputByteLimit": 4}
    made = talk.wish(1, "terminal/create", command="make", args=["all"], cwd="/w", env=[{"name": "A", "value": "b"}])
    own = TerminalOpened("terminal-1", "terminal-1", ("make", "all"), "/w", {"A": "b"})
    talk.same("a call of its own", made, ToolOpened("terminal-1", "make all", "execute"), _made(1, 1), own)
    talk.update("tool_call", toolCallId="a", title="t", kind="execute")
    served = talk.wish(2, "terminal/create", command="ls | wc", **cut)
    shell = TerminalOpened("terminal-2", "a", ("/bin/sh", "-c", "ls | wc"), None, {})
    talk.same("the only call", served, _made(2, 2), shell)
    talk.update("tool_call", toolCallId="b", title="t", kind="execute")
    talk.update("tool_call", toolCallId="c", title="t", kind="execute")
    meta = {"_meta": {"toolCallId": "c"}}
    named = talk.wish(3, "terminal/create", command="a b", args=["x y"], **meta)
    talk.same("the call that it names", named, _made(3, 3), TerminalOpened("terminal-3", "c", ("a b", "x y"), None, {}))
    for number, odd in ((4, {"_meta": {"toolCallId": 3}}), (5, {"_meta": None}), (6, {"args": []})):
        given = talk.wish(number, "terminal/create", command="true", **odd)
        calls_of = [one.call_id for one in given if isinstance(one, TerminalOpened)]
        desk.same(f"{odd}", calls_of, ["b" if number == 4 else f"terminal-{number}"])
    codec.terminal_output("terminal-2", b"abcdef")
    codec.terminal_output("terminal-99", b"abcdef")
    running = talk.wish(20, "terminal/output", terminalId="terminal-2")
    talk.same("its output", running, result(20, output="cdef", truncated=True))
    talk.same("waits", talk.wish(21, "terminal/wait_for_exit", terminalId="terminal-2"))
    talk.same("waits, too", talk.wish(22, "terminal/wait_for_exit", terminalId="terminal-2"))
    gone = talk.line({"method": "$/cancel_request", "params": {"requestId": 21}})
    desk.same("waits no more", code_of(gone), [(21, -32800)])
    status = {"exitCode": None, "signal": "SIGTERM"}
    talk.same("it ends", told(codec.terminal_exited("terminal-2", -15)), result(22, **status))
    talk.same("it ends again", told(codec.terminal_exited("terminal-2", 0)))
    talk.same("nobody's end", told(codec.terminal_exited("terminal-99", 0)))
    talk.same(
        "waits for what is over", talk.wish(23, "terminal/wait_for_exit", terminalId="terminal-2"), result(23, **status)
    )
    over = result(24, output="cdef", truncated=True, exitStatus=status)
    talk.same("its output, then", talk.wish(24, "terminal/output", terminalId="terminal-2"), over)
    talk.same("a kill of what is over", talk.wish(25, "terminal/kill", terminalId="terminal-2"), result(25))
    talk.same(
        "a kill", talk.wish(26, "terminal/kill", terminalId="terminal-1"), TerminalKilled("terminal-1"), result(26)
    )
    talk.same("its release", talk.wish(27, "terminal/release", terminalId="terminal-2"), result(27))
    killed = talk.wish(28, "terminal/release", terminalId="terminal-3")
    talk.same("a release is a kill", killed, TerminalKilled("terminal-3"), result(28))
    for number, name in ((29, "terminal-2"), (30, "terminal-3"), (31, "none")):
        desk.same(f"{name} is gone", code_of(talk.wish(number, "terminal/output", terminalId=name)), [(number, -32602)])
    talk.same("the end of what was released", told(codec.terminal_exited("terminal-3", 0)))
    ended = told(codec.terminal_exited("terminal-1", 0))
    desk.same(
        "a call of its own ends with it", [(one.call_id, one.outcome) for one in ended], [("terminal-1", "completed")]
    )
    failed = told(codec.terminal_exited("terminal-5", None))
    desk.same("and badly", [(one.call_id, one.outcome) for one in failed], [("terminal-5", "failed")])
    _many_terminals(desk)


def _made(rpc_id: int, number: int) -> dict[str, Any]:
    return result(rpc_id, terminalId=f"terminal-{number}")


def _many_terminals(desk: Desk) -> None:
    talk = Talk(desk)
    talk.prompt()
    for number in range(256):
        talk.wish(number, "terminal/create", command="true")
    desk.same("one too many", code_of(talk.wish(300, "terminal/create", command="true")), [(300, -32602)])
    name = {"terminalId": "terminal-1"}
    desk.same(
        "who waits", [code_of(talk.wish(number, "terminal/wait_for_exit", **name)) for number in range(64)], [[]] * 64
    )
    desk.same("one too many waits", code_of(talk.wish(64, "terminal/wait_for_exit", **name)), [(64, -32602)])
    answers = told(talk.codec.terminal_exited("terminal-1", 3))
    desk.same("all are told", [one["id"] for one in answers if isinstance(one, dict)], list(range(64)))
    desk.same("how", answers[0]["result"], {"exitCode": 3, "signal": None})
    talk.wish(65, "terminal/wait_for_exit", terminalId="terminal-2")
    answers = told(talk.codec.terminal_exited("terminal-2", 0))
    desk.same("well", answers[0]["result"], {"exitCode": 0, "signal": None})
    talk.wish(400, "terminal/release", **name)
    desk.same("room again", code_of(talk.wish(401, "terminal/create", command="true")), [])
    for command, shell in (
        ("a;b", True),
        ("a b", True),
        ("$x", True),
        ("x*", True),
        ("~/x", True),
        ("a-b_c.d/e", False),
    ):
        one = Talk(desk)
        one.prompt()
        opened = [out for out in one.wish(1, "terminal/create", command=command) if isinstance(out, TerminalOpened)]
        desk.same(command, opened[0].argv, ("/bin/sh", "-c", command) if shell else (command,))
    wrote: list[ToolClosed] = []
    for parts, status in (((b"ab", b"c"), 0), ((b"abc",), 0), ((b"abc",), 1), ((b"abd",), 0)):
        one = Talk(desk)
        one.prompt()
        one.wish(1, "terminal/create", command="true", args=["x"], cwd="/w")
        for part in parts:
            one.codec.terminal_output("terminal-1", part)
        wrote += [out for out in one.codec.terminal_exited("terminal-1", status) if isinstance(out, ToolClosed)]
    desk.same("what it wrote, and how it ended", len({one.answered for one in wrote}), 3)
    desk.same("however it was cut", (wrote[0], wrote[0].asked != ""), (wrote[1], True))


async def files(desk: Desk) -> None:
    """Whole, or the lines that were asked for; written; or why not. A child is asked for, and its end is told."""
    text = "a\nb\nc\nd"
    numbered = [*enumerate(text.splitlines(keepends=True), 1)]
    counted = [(line, limit) for line in range(1, 7) for limit in range(6)]
    for line, limit, wanted in (
        (None, None, text),
        (1, None, text),
        (0, None, text),
        (2, None, "b\nc\nd"),
        (None, 2, "a\nb\n"),
        (9, 9, ""),
        *(
            (line, limit, "".join(one for n, one in numbered if n in range(line, line + limit)))
            for line, limit in counted
        ),
    ):
        talk = Talk(desk)
        talk.prompt()
        asked = {name: one for name, one in (("line", line), ("limit", limit)) if one is not None}
        given = talk.wish(5, "fs/read_text_file", path="/w/x", **asked)
        talk.same("a read", given, FileAsked("file-1", "/w/x"))
        talk.same(f"{asked}", told(talk.codec.file_answered("file-1", text)), result(5, content=wanted))
        talk.same("answered already", told(talk.codec.file_answered("file-1", text)))
    talk = Talk(desk)
    talk.prompt()
    talk.same("a write", talk.wish(6, "fs/write_text_file", path="/w/x", content="c"), FileAsked("file-1", "/w/x", "c"))
    talk.same("it is written", told(talk.codec.file_answered("file-1", "")), result(6))
    talk.wish(7, "fs/write_text_file", path="/w/x", content="c")
    desk.same("it is not", code_of(told(talk.codec.file_answered("file-2", "", "no"))), [(7, -32602)])
    talk.update("tool_call", toolCallId="a", title="t")
    for number, call in ((8, "a"), (9, "none")):
        child = {"name": "kid", "prompt": "p", "agent": "x", "cancelMode": "abandon", "_meta": {"toolCallId": call}}
        given = talk.wish(number, "_supervisor/session/run", **child)
        name = f"child-{number - 5}"
        wanted_call = "a" if call == "a" else None
        talk.same("a child", given, ChildAsked(name, "kid", "p", "x", wanted_call, CancelMode.ABANDON))
        ended = told(talk.codec.child_ended(name, "completed", "done"))
        talk.same("its end", ended, result(number, outcome="completed", text="done"))
        talk.same("its end again", told(talk.codec.child_ended(name, "completed", "done")))
    for path in ("x", "", "/a\0b"):
        one = Talk(desk)
        one.prompt()
        broken = one.wish(1, "fs/read_text_file", path=path)
        desk.same(f"a path {path!r}", [type(out) for out in broken], [Malformed])


# --------------------------------------------------------------------------------------------------- within the turn
async def steering(desk: Desk) -> None:
    """Told within the turn where the agent has a way for it; a turn of several prompts ends with the last."""
    plain = Talk(desk)
    plain.prompt()
    desk.same("no way", (plain.codec.steer("x"), plain.codec.end_call("a")), (None, None))
    talk = Talk(desk, **EXTENDS)
    desk.same("no turn", talk.codec.steer("x"), None)
    talk.prompt()
    params = {"sessionId": "s", "prompt": [{"type": "text", "text": "hi"}]}
    talk.same("told", told(talk.codec.steer("hi")), request(4, "_supervisor/session/steer", **params))
    talk.same("taken up", talk.answer({}, number=4), Heard())
    talk.codec.steer("hi")
    talk.same("not taken up", talk.answer(error={"code": 1, "message": "no"}, number=5))
    desk.same("no call to end", talk.codec.end_call("a"), None)
    talk.update("tool_call", toolCallId="a", title="t")
    ending = request(6, "_supervisor/tool_call/end", sessionId="s", toolCallId="a")
    talk.same("an end of a call", told(talk.codec.end_call("a")), ending)
    talk.same("it will end", talk.answer({}, number=6))
    talk.codec.end_call("a")
    kept = talk.answer(error={"code": -32602, "message": "no"}, number=7)
    talk.same("it will not", kept, CallKept("a", "no (code -32602)"))
    talk.codec.end_call("a")
    talk.update("tool_call_update", toolCallId="a", status="completed")
    talk.same("it has, meanwhile", talk.answer(error={"code": 1, "message": "no"}, number=8))
    talk.codec.interrupt()
    desk.same("nobody is told while it is cancelled", talk.codec.steer("x"), None)
    _queue(desk)


def _queue(desk: Desk) -> None:
    talk = Talk(desk, **QUEUES)
    talk.prompt()
    for number in range(16):
        talk.same("queued", told(talk.codec.steer("more")), asking(4 + number, "more"))
    desk.same("one too many", talk.codec.steer("more"), None)
    talk.same("the first", talk.answer({"stopReason": "end_turn"}, number=3), Heard())
    talk.same("room for one", told(talk.codec.steer("more")), asking(20, "more"))
    talk.same("one that fails", talk.answer({"stopReason": "refusal"}, number=4), Heard())
    talk.same("another way", talk.answer({"stopReason": "max_tokens"}, number=5), Heard())
    for number in range(6, 20):
        talk.same("the next", talk.answer({"stopReason": "end_turn"}, number=number), Heard())
    talk.update("agent_message_chunk", **said("text", "done"))
    talk.same("the last", talk.answer({"stopReason": "end_turn"}, number=20), TurnEnded("refusal"))
    talk.prompt("anew")
    talk.update("agent_message_chunk", **said("text", "done"))
    talk.same("and no more of it", talk.answer({"stopReason": "end_turn"}, number=21), TurnEnded("end_turn"))


async def compactions(desk: Desk) -> None:
    """One begins and ends, well or not; one that nobody knows does neither."""
    talk = Talk(desk)
    talk.prompt()
    for name, status, news in (
        ("a", "in_progress", [Compaction(True)]),
        ("a", "in_progress", []),
        ("a", "completed", [Compaction(False)]),
        ("a", "completed", []),
        ("b", "failed", []),
        ("b", "in_progress", [Compaction(True)]),
        ("b", "thinking", []),
        ("b", "failed", [Compaction(False, failed=True)]),
        ("c", "in_progress", [Compaction(True)]),
        ("c", "cancelled", [Compaction(False, failed=True)]),
        ("d", "in_progress", [Compaction(True)]),
    ):
        talk.same(f"{name} {status}", talk.update("compaction_update", compactionId=name, status=status), *news)
    talk.answer({"stopReason": "end_turn"})
    talk.prompt("more")
    talk.same("of the last turn", talk.update("compaction_update", compactionId="d", status="completed"))


# ------------------------------------------------------------------------------------------------ what it uses, fails
async def meters(desk: Desk) -> None:
    """Totals become what each adds: money of the conversation, tokens of a turn; what falls adds nothing."""
    talk, cost = Talk(desk), 0.0
    talk.asked = 2
    for turn in range(4):
        talk.prompt()
        before = [0, 0, 0, 0]
        for step in range(8):
            chance = desk.chance.below(turn, step)
            amount = chance.choice(
                (0.0, 0.25, 0.5, 1.0, 2.0, -1.0, 1e9, 2e9) if step == 7 else (0.0, 0.25, 0.5, 1.5), "c"
            )
            currency = chance.choice(("USD", "USD", "EUR"), "currency")
            counts = [chance.integer(0, 40, name) for name in ("in", "out", "cached", "requests")]
            names = ("inputTokens", "outputTokens", "cachedReadTokens", "requests")
            usage = dict(zip(names, counts, strict=True))
            fields: dict[str, Any] = (
                {"cost": {"amount": amount, "currency": currency}} if chance.happens(0.7, "c?") else {}
            )
            fields |= {"_meta": {"usage": usage}} if chance.happens(0.7, "u?") else {}
            (given,) = talk.update("usage_update", used=3, size=9, **fields)
            added, more = 0.0, [0, 0, 0, 0]
            if "cost" in fields and currency == "USD" and 0 <= amount <= 1e9:
                added, cost = max(0.0, amount - cost), max(amount, cost)
            if "_meta" in fields:
                more = [max(now - then, 0) for now, then in zip(counts, before, strict=True)]
                before = [max(now, then) for now, then in zip(counts, before, strict=True)]
            desk.same("what is told", given.used.get("cost", {}).get("amount"), amount if "cost" in fields else None)
            desk.same(f"what {fields} adds", _added(given), (more[0], more[1], added, more[2], more[3]))
        last = {"inputTokens": before[0] + turn, "outputTokens": before[1], "requests": before[3]}
        ended = talk.answer({"stopReason": "end_turn", "usage": last})
        talk.same("heard last", [type(one) for one in ended], *([TurnEnded, Usage] if turn else [TurnEnded]))
        desk.same("the rest", [_added(one) for one in ended[1:]], [(turn, 0, 0.0, 0, 0)] if turn else [])
    for amount, added in ((1e9, 1e9), (1e9 + 0.5, 0.0)):
        talk = Talk(desk)
        talk.prompt()
        (given,) = talk.update("usage_update", used=3, size=9, cost={"amount": amount, "currency": "USD"})
        desk.same(f"a cost of {amount}", given.cost_usd, added)
    talk = Talk(desk)
    for name, wanted in (
        ("outputTokens", (0, 4, 0.0, 0, 0)),
        ("requests", (0, 0, 0.0, 0, 4)),
        ("cachedReadTokens", None),
    ):
        talk.prompt()
        ended = talk.answer({"stopReason": "refusal", "usage": {name: 4}})
        desk.same(f"{name} alone", [_added(one) for one in ended[1:]], [wanted] if wanted else [])


def _added(usage: Usage) -> tuple[float, ...]:
    return usage.input_tokens, usage.output_tokens, usage.cost_usd, usage.cached_tokens, usage.requests


async def model_troubles(desk: Desk) -> None:
    """A model that fails and is asked again, as agents tell it: what is no status, or no amount, is not told."""
    talk = Talk(desk)
    talk.prompt()
    for tale, wanted in (
        ({}, ModelTrouble(ModelProblem.UNKNOWN)),
        ({"errorKind": "overloaded", "status": 529}, ModelTrouble(ModelProblem.OVERLOADED, 529)),
        ({"errorKind": "rate_limit", "status": 400}, ModelTrouble(ModelProblem.RATE_LIMIT, 400)),
        ({"errorKind": "authentication_failed", "status": 399}, ModelTrouble(ModelProblem.AUTH)),
        ({"errorKind": "billing_error", "status": 600}, ModelTrouble(ModelProblem.QUOTA)),
        ({"errorKind": "server_error", "status": 599}, ModelTrouble(ModelProblem.SERVER, 599)),
        ({"errorKind": "x", "attempt": 3, "retryMs": 500}, ModelTrouble(ModelProblem.UNKNOWN, None, 3, 0.5)),
        ({"attempt": -1, "retryMs": True, "message": 3}, ModelTrouble(ModelProblem.UNKNOWN)),
        ({"attempt": 2**53, "retryMs": 0}, ModelTrouble(ModelProblem.UNKNOWN, None, 2**53, 0.0)),
        ({"attempt": 2**53 + 1, "message": "no"}, ModelTrouble(ModelProblem.UNKNOWN, words="no")),
    ):
        talk.same(f"{tale}", talk.update("session_info_update", _meta={"modelTrouble": tale}), wanted)
    for meta in (None, 3, {}, {"modelTrouble": 3}):
        talk.same(f"{meta}", talk.update("session_info_update", _meta=meta))


# ---------------------------------------------------------------------------------------------------------- the end
def _use_of(used: Any) -> dict[str, Any]:
    return {"sessionId": "s", "update": {"sessionUpdate": "usage_update", "used": used, "size": 2}}


async def farewells(desk: Desk) -> None:
    """What breaks the protocol ends the conversation; who exits has not finished; then nothing is said any more."""
    deep = "[" * 100_000 + "\n"
    breaches: tuple[Any, ...] = (
        "no\n",
        "[]\n",
        '{"jsonrpc":"1.0","id":1,"result":{}}\n',
        {"id": 9},
        {"result": {}},
        {"id": 2**63, "result": {}},
        {"id": -(2**63) - 1, "result": {}},
        {"id": "x" * 257, "result": {}},
        {"method": "session/update", "params": {}},
        {"method": "session/update", "params": {"sessionId": "s", "update": {}}},
        {"id": 3, "result": {}},
        "x" * 2_001,
        deep,
        *({"method": "session/update", "params": _use_of(told_of)} for told_of in (2**63, -1, 0.5)),
    )
    for broken in breaches:
        talk = Talk(desk)
        talk.prompt()
        desk.same(f"{str(broken)[:60]}", [type(one) for one in talk.line(broken)], [Malformed])
        rest = [talk.line("no\n"), talk.codec.exited(1), talk.prompt(), talk.codec.steer("x"), talk.codec.interrupt()]
        rest += [
            talk.codec.end_call("a"),
            talk.codec.permission("permission-1", "y"),
            talk.codec.child_ended("c", "", ""),
        ]
        rest += [talk.codec.file_answered("file-1", ""), talk.codec.terminal_exited("terminal-1", 0)]
        desk.same("after that", [one for one in rest if one], [])
        desk.same("a farewell", talk.codec.close(), [CloseInput()])
    long = Talk(desk)
    long.prompt()
    shown = long.line("no " + "x" * 200 + "\n")[0]
    desk.same("how much of it is shown", "no " + "x" * 77 + "..." in shown.why and "x" * 78 not in shown.why, True)
    most = Talk(desk).line({"method": "session/update", "params": _use_of(2**63 - 1)})
    desk.same("as much as can be counted", [one.used["used"] for one in most], [2**63 - 1])
    for just in ({"id": 2**63 - 1, "result": {}}, {"id": -(2**63), "result": {}}, {"id": "x" * 256, "result": {}}):
        talk = Talk(desk)
        talk.same("an answer to nothing", talk.line(just))
    for status, words in (
        (None, "ended"),
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-9, "was ended by SIGKILL"),
    ):
        for ready, turn in ((False, False), (True, False), (True, True)):
            talk = Talk(desk, ready=ready)
            if turn:
                talk.prompt()
            ended = talk.codec.exited(status)
            kinds = [TurnEnded] if turn else [] if ready else [Malformed]
            desk.same(f"an exit with {status}, {ready}, {turn}", [type(one) for one in ended], kinds)
            why = [getattr(one, "why", "") or one.error for one in ended]  # type: ignore[union-attr]
            desk.same("how it went", [words in one and "half" not in one for one in why], [True] * len(kinds))
    talk = Talk(desk)
    talk.prompt()
    talk.line('{"jsonrpc"')
    desk.same("half a message", "half a message" in talk.codec.exited(0)[0].error, True)  # type: ignore[union-attr]
    half = Talk(desk)
    half.line('{"jsonrpc"')
    desk.same("half a message at the end", [type(one) for one in half.codec.feed(b"")], [Malformed])
    closing = Talk(desk, sessionCapabilities={"close": {}})
    closed = [request(3, "session/close", sessionId="s"), CloseInput()]
    desk.same("a farewell by the protocol", told(closing.codec.close()), closed)
    desk.same("what is said to it", closing.answer({}, number=3), [])
    desk.same("a farewell before it is open", Talk(desk, ready=False).codec.close(), [CloseInput()])


CONVERSING = (
    turns,
    last_words,
    tool_calls,
    permissions,
    terminals,
    files,
    steering,
    compactions,
    meters,
    model_troubles,
    farewells,
)
