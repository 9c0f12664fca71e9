"""Codec for codex, driven by bytes alone: cases that no recorded conversation has, and every way to break the
protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.agents.protocols.codex.codec import CodexCodec
from supervisor.agents.protocols.codex.updates import Problem, problem_of
from supervisor.lifecycles.types import ModelProblem
from supervisor.ports import (
    CallNotEnded,
    Compaction,
    Malformed,
    ModelErrorReported,
    Out,
    PermissionNeeded,
    Ready,
    Send,
    StrayLine,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    TurnEnding,
    Usage,
)

COMMAND = {"type": "commandExecution", "id": "c", "command": "make", "cwd": "/work", "status": "inProgress"}


def said(*messages: Any) -> bytes:
    """Return *messages* as the bytes that codex would write."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in messages)


def sent(outs: list[Out] | None) -> list[dict[str, Any]]:
    """Return the messages among *outs* that go to codex; each is one line without the ``jsonrpc`` member."""
    messages = [json.loads(out.data) for out in outs or () if isinstance(out, Send)]
    assert all("jsonrpc" not in one for one in messages)
    return messages


def asked(outs: list[Out] | None) -> list[str]:
    """Return the methods of the requests to codex among *outs*."""
    return [one["method"] for one in sent(outs)]


def told(outs: list[Out]) -> list[Out]:
    """Return the objects among *outs* that are reports to the supervisor, not messages to codex."""
    return [out for out in outs if not isinstance(out, Send)]


class Conversation:
    """Codec with turn ``u`` in progress in thread ``t``, and methods that play codex's part of the conversation."""

    def __init__(self, *, named: bool = True) -> None:
        self.codec = CodexCodec()
        self.codec.start("/work")
        self.feed({"id": 1, "result": {}})
        self.ready = self.feed({"id": 2, "result": {"thread": {"id": "t", "cliVersion": "1.2"}}})
        self.codec.prompt("work")
        if named:
            self.feed({"id": 3, "result": {"turn": {"id": "u", "status": "inProgress"}}})

    def feed(self, *messages: Any) -> list[Out]:
        return self.codec.feed(said(*messages))

    def hear(self, method: str, thread: str = "t", turn_id: str = "u", **params: Any) -> list[Out]:
        return self.feed({"method": method, "params": {"threadId": thread, "turnId": turn_id, **params}})

    def answer(self, outs: list[Out] | None, **answer: Any) -> list[Out]:
        """Respond to the last request among *outs*."""
        return self.feed({"id": sent(outs)[-1]["id"], **answer})

    def over(self, status: str = "completed", **more: Any) -> list[Out]:
        return self.hear("turn/completed", turn={"id": "u", "status": status, **more})


# ------------------------------------------------------------------------------------------------------------ opening
def test_a_thread_is_named_before_its_first_prompt() -> None:
    """The codec's Ready report has the id of the new thread, and codex's version."""
    assert told(Conversation().ready) == [Ready("t", "codex 1.2", steers=True)]


def test_a_thread_is_loaded_again() -> None:
    """A thread is resumed without its history; the total that codex reports of the loaded thread is no request."""
    codec = CodexCodec()
    codec.start("/work", "old")
    resume = sent(codec.feed(said({"id": 1, "result": {}})))[1]
    assert resume["method"] == "thread/resume"
    assert resume["params"] == {"threadId": "old", "cwd": "/work", "excludeTurns": True}
    ready = codec.feed(said({"id": 2, "result": {"thread": {"id": "old"}}}))
    assert ready == [Ready("old", "codex", steers=True)]
    used = {"inputTokens": 100, "outputTokens": 10}
    usage = {"threadId": "old", "turnId": "x", "tokenUsage": {"total": used, "last": used}}
    [before] = codec.feed(said({"method": "thread/tokenUsage/updated", "params": usage}))
    assert isinstance(before, Usage)
    assert (before.input_tokens, before.output_tokens, before.requests, before.total_of) == (100, 10, 0, "old")
    assert codec.feed(said({"method": "thread/tokenUsage/updated", "params": usage})) == []
    codec.prompt("go on")
    usage["tokenUsage"] = {"total": {"inputTokens": 107, "outputTokens": 11}, "last": {"totalTokens": 8}}
    [more] = codec.feed(said({"method": "thread/tokenUsage/updated", "params": usage}))
    assert isinstance(more, Usage)
    assert (more.input_tokens, more.output_tokens, more.requests, more.total_of) == (107, 11, 1, "old")


def test_a_thread_that_is_lost_is_begun_anew() -> None:
    """A thread that codex cannot resume is replaced by a new thread, and the log has the reason."""
    codec = CodexCodec()
    codec.start("/work", "old")
    codec.feed(said({"id": 1, "result": {}}))
    outs = codec.feed(said({"id": 2, "error": {"code": -32600, "message": "no rollout found"}}))
    [log] = told(outs)
    assert isinstance(log, Text)
    assert "no rollout found" in log.text
    assert asked(outs) == ["thread/start"]


def test_a_thread_that_somebody_writes_is_not_lost() -> None:
    """A thread that another process has open is not replaced: the launch fails, and the next one tries it again."""
    codec = CodexCodec()
    codec.start("/work", "old")
    codec.feed(said({"id": 1, "result": {}}))
    outs = codec.feed(said({"id": 2, "error": {"code": -32600, "message": "thread old already has an active writer"}}))
    [end] = told(outs)
    assert isinstance(end, Malformed)
    assert (end.held, end.permanent) == (True, False)
    assert asked(outs) == []


def test_a_refusal_to_open_ends_it() -> None:
    """If codex refuses to open a new thread, the codec reports Malformed with the reason."""
    codec = CodexCodec()
    codec.start("/work")
    codec.feed(said({"id": 1, "result": {}}))
    [end] = codec.feed(said({"id": 2, "error": {"code": -32600, "message": "not here"}}))
    assert end == Malformed("the agent refused to open a thread: not here (code -32600)")


# ------------------------------------------------------------------------------------------------------------- turns
def test_an_interrupt_waits_for_the_name_of_the_turn() -> None:
    """An interrupt before codex has reported the id of the turn is sent as soon as the id arrives."""
    one = Conversation(named=False)
    assert one.codec.interrupt() == []
    assert asked(one.feed({"id": 3, "result": {"turn": {"id": "u", "status": "inProgress"}}})) == ["turn/interrupt"]


def test_an_interrupted_turn_is_over_when_its_commands_are() -> None:
    """After an interrupt the codec makes codex end the commands that the turn left running, and then reports the turn's
    end."""
    one = Conversation()
    one.hear("item/started", item=COMMAND)
    assert asked(one.codec.interrupt()) == ["turn/interrupt"]
    cleaning = one.over("interrupted")
    assert asked(cleaning) == ["thread/backgroundTerminals/clean"]
    assert told(cleaning) == []
    assert [type(out) for out in one.answer(cleaning, result={})] == [ToolClosed, TurnEnded]


def test_a_turn_that_leaves_a_command_running_ends_it() -> None:
    """A command that a completed turn left running is ended, and its tool call is reported as failed."""
    one = Conversation()
    one.hear("item/started", item=COMMAND)
    assert one.over() == [TurnEnding()]
    cleaning = one.codec.settled()
    assert asked(cleaning) == ["thread/backgroundTerminals/clean"]
    closed, ended = one.answer(cleaning, error={"code": -32601, "message": "no such method"})
    assert isinstance(closed, ToolClosed)
    assert (closed.outcome, ended) == ("failed", TurnEnded("end_turn"))


def test_a_command_may_end_after_its_turn() -> None:
    """The end of a command that comes after the end of the turn is the command's end, and nothing is ended."""
    one = Conversation()
    one.hear("item/started", item=COMMAND)
    one.over()
    (closed,) = one.hear("item/completed", item={**COMMAND, "status": "completed"})
    assert isinstance(closed, ToolClosed)
    assert (closed.outcome, *one.codec.settled()) == ("completed", TurnEnded("end_turn"))


@pytest.mark.parametrize("status", ["inProgress", "strange"])
def test_an_unknown_end_is_an_error(status: str) -> None:
    """A turn that codex reports as completed with an unknown status has failed."""
    [ended] = Conversation().over(status)
    assert isinstance(ended, TurnEnded)
    assert ended.stop == "error"


def test_a_vague_failure_has_the_reason_that_was_told_before() -> None:
    """A turn that fails with the vague error ``other`` takes its reason from the last retry that codex reported."""
    one = Conversation()
    trouble = {"message": "again", "codexErrorInfo": {"responseStreamDisconnected": {"httpStatusCode": 429}}}
    assert one.hear("error", error=trouble, willRetry=True) == [
        ModelErrorReported(ModelProblem.RATE_LIMIT, 429, attempt=1, words="again")
    ]
    ended = one.over("failed", error={"message": "it failed", "codexErrorInfo": "other"})
    assert ended == [TurnEnded("error", "it failed", ModelProblem.RATE_LIMIT, 429)]


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        ("unauthorized", Problem(ModelProblem.AUTH)),
        ("contextWindowExceeded", Problem(ModelProblem.CONTEXT_LENGTH)),
        ("usageLimitExceeded", Problem(ModelProblem.QUOTA)),
        ("serverOverloaded", Problem(ModelProblem.OVERLOADED)),
        ({"httpConnectionFailed": {"httpStatusCode": 503}}, Problem(ModelProblem.OVERLOADED, 503)),
        ({"httpConnectionFailed": {"httpStatusCode": 502}}, Problem(ModelProblem.SERVER, 502)),
        ({"responseStreamDisconnected": {"httpStatusCode": None}}, Problem(ModelProblem.CONNECTION)),
        ({"responseStreamDisconnected": 7}, Problem(ModelProblem.CONNECTION)),
        ("a word of tomorrow", Problem(ModelProblem.UNKNOWN)),
        ("sandboxError", Problem(None)),
        (None, Problem(None)),
        ({}, Problem(ModelProblem.UNKNOWN)),
        (["unauthorized"], Problem(None)),
    ],
)
def test_what_is_the_matter_with_the_model(info: Any, problem: Problem) -> None:
    """``problem_of`` prefers the HTTP status to the error's name; an error of codex itself is no model problem."""
    assert problem_of(info) == problem


def test_a_compaction_begins_and_ends_once() -> None:
    """A compaction begins and ends once, however often codex reports it."""
    one = Conversation()
    item = {"type": "contextCompaction", "id": "k"}
    heard = [one.hear(f"item/{word}", item=item) for word in ("started", "started", "completed", "completed")]
    assert heard == [[Compaction(True)], [], [Compaction(False)], []]


def test_messages_are_heard_once_each_on_a_line_of_its_own() -> None:
    """A message is reported once, whether codex sends it in pieces or complete; each begins on a line of its own."""
    one = Conversation()
    one.hear("item/agentMessage/delta", itemId="m", delta="one")
    assert one.hear("item/completed", item={"type": "agentMessage", "id": "m", "text": "one"}) == []
    whole = one.hear("item/completed", item={"type": "agentMessage", "id": "n", "text": "two"})
    assert whole == [Text("message", "\ntwo")]


# ------------------------------------------------------------------------------------------------------ ending a call
def test_a_command_is_ended_alone() -> None:
    """``end_call`` of a command requests the list of commands from codex, and ends the process with that command's
    id."""
    one = Conversation()
    one.hear("item/started", item=COMMAND)
    finding = one.codec.end_call("c")
    assert asked(finding) == ["thread/backgroundTerminals/list"]
    ending = one.answer(finding, result={"data": [{"itemId": "c", "processId": "77"}]})
    assert sent(ending)[0]["params"] == {"threadId": "t", "processId": "77"}
    assert one.answer(ending, result={"terminated": True}) == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"result": {"data": []}}, "it runs no command for it"),
        ({"error": {"code": -32601, "message": "no such method"}}, "no such method"),
    ],
)
def test_a_command_that_codex_does_not_end_is_kept(answer: dict[str, Any], why: str) -> None:
    """If codex does not end a command, the codec reports CallNotEnded with the reason."""
    one = Conversation()
    one.hear("item/started", item=COMMAND)
    assert one.answer(one.codec.end_call("c"), **answer) == [CallNotEnded("c", why)]


def test_a_call_that_waits_for_leave_is_refused() -> None:
    """``end_call`` of a call that waits for a permission declines the permission, and the turn continues."""
    one = Conversation()
    one.hear("item/started", item=COMMAND)
    one.feed({"id": 9, "method": "item/commandExecution/requestApproval", "params": {"itemId": "c"}})
    assert sent(one.codec.end_call("c")) == [{"id": 9, "result": {"decision": "decline"}}]
    assert one.codec.permission("permission-1", "accept") == []


def test_what_is_no_command_cannot_be_ended_alone() -> None:
    """``end_call`` of a call to an MCP tool returns ``None``, because codex can end only commands alone."""
    one = Conversation()
    one.hear(
        "item/started", item={"type": "mcpToolCall", "id": "m", "server": "s", "tool": "t", "status": "inProgress"}
    )
    assert one.codec.end_call("m") is None


# --------------------------------------------------------------------------------------------------------- sub-agents
def test_a_sub_agent_is_a_call_and_its_calls_are_within_it() -> None:
    """A sub-agent's turn is a tool call of kind ``agent`` with the prompt as title; ``end_call`` can end it alone, and
    its own calls are nested in it."""
    one = Conversation()
    spawn = {
        "type": "collabAgentToolCall",
        "id": "s",
        "tool": "spawnAgent",
        "prompt": "look",
        "receiverThreadIds": ["k"],
    }
    one.hear("item/completed", item={**spawn, "status": "completed"})
    started = one.hear("turn/started", thread="k", turn={"id": "v", "status": "inProgress"})
    assert started == [ToolOpened("v", "look", "agent")]
    assert one.hear("item/started", thread="k", turn_id="v", item=COMMAND) == [ToolOpened("c", "make", "execute", "v")]
    assert asked(one.codec.end_call("v")) == ["turn/interrupt", "thread/backgroundTerminals/clean"]
    over = one.hear("turn/completed", thread="k", turn={"id": "v", "status": "interrupted"})
    assert [(out.call_id, out.outcome) for out in over if isinstance(out, ToolClosed)] == [
        ("c", "failed"),
        ("v", "failed"),
    ]


# ------------------------------------------------------------------------------------------------------------- leave
def test_leave_is_given_for_what_was_asked() -> None:
    """Permissions for a turn or a session are granted exactly as codex requested them, or not at all."""
    one = Conversation()
    wanted = {"network": {"enabled": True}}
    ask = {"method": "item/permissions/requestApproval", "params": {"itemId": "p", "permissions": wanted}}
    for number, (option, result) in enumerate(
        [
            ("accept", {"permissions": wanted, "scope": "turn"}),
            ("acceptForSession", {"permissions": wanted, "scope": "session"}),
            ("decline", {"permissions": {}, "scope": "turn"}),
            (None, {"permissions": {}, "scope": "turn"}),
        ],
        start=1,
    ):
        [question] = one.feed({"id": number, **ask})
        assert isinstance(question, PermissionNeeded)
        assert sent(one.codec.permission(question.request_id, option)) == [{"id": number, "result": result}]


def test_an_option_that_was_not_offered_is_refused() -> None:
    """An answer with an option that was not offered raises ValueError; the error lists the options."""
    one = Conversation()
    one.feed({"id": 9, "method": "item/fileChange/requestApproval", "params": {"itemId": "c"}})
    with pytest.raises(ValueError, match="use one of: accept, acceptForSession, decline"):
        one.codec.permission("permission-1", "yes")


def test_an_interrupt_answers_what_is_open() -> None:
    """An interrupt cancels the open approval requests, and a later approval request of the turn is cancelled at
    once."""
    one = Conversation()
    ask = {"method": "item/fileChange/requestApproval", "params": {"itemId": "c"}}
    one.feed({"id": 8, **ask})
    assert sent(one.codec.interrupt())[1] == {"id": 8, "result": {"decision": "cancel"}}
    assert sent(one.feed({"id": 9, **ask})) == [{"id": 9, "result": {"decision": "cancel"}}]


def test_what_codex_takes_back_needs_no_answer() -> None:
    """An approval request that codex has resolved by itself gets no response."""
    one = Conversation()
    one.feed({"id": 8, "method": "item/fileChange/requestApproval", "params": {"itemId": "c"}})
    one.hear("serverRequest/resolved", requestId=8)
    assert one.codec.permission("permission-1", "accept") == []


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("item/tool/requestUserInput", {"result": {"answers": {}}}),
        ("mcpServer/elicitation/request", {"result": {"action": "decline"}}),
        ("attestation/generate", {"error": {"code": -32601, "message": "method not found: attestation/generate"}}),
    ],
)
def test_other_requests_are_answered_too(method: str, answer: dict[str, Any]) -> None:
    """A request of codex for user input is answered with nothing, an elicitation is declined, another gets an error."""
    assert sent(Conversation().feed({"id": 9, "method": method, "params": {}})) == [{"id": 9, **answer}]


# --------------------------------------------------------------------------------------------------------- what breaks
@pytest.mark.parametrize(
    "message",
    [
        {"method": "item/started", "params": {"threadId": "t", "turnId": "u", "item": {"type": "commandExecution"}}},
        {
            "method": "thread/tokenUsage/updated",
            "params": {"threadId": "t", "turnId": "u", "tokenUsage": {"total": -1}},
        },
        {"id": 9},
        [],
    ],
)
def test_what_is_no_message_costs_nothing(message: Any) -> None:
    """A line that is no message, or a notification that cannot be read, is reported, and the turn goes on."""
    one = Conversation()
    assert [type(out) for out in one.feed(message)] == [StrayLine]
    assert one.over() == [TurnEnding()]


def test_an_end_that_cannot_be_read_fails_the_turn() -> None:
    """An end of a turn that cannot be read fails the turn with the name of the field."""
    (ended,) = Conversation().feed({"method": "turn/completed", "params": {"threadId": "t"}})
    assert isinstance(ended, TurnEnded)
    assert (ended.stop, "`turn`" in ended.error) == ("error", True)


def test_what_we_do_not_know_is_passed_over() -> None:
    """Unknown notifications and items are ignored."""
    one = Conversation()
    assert one.feed({"method": "tomorrow/happened", "params": {"what": 1}}) == []
    assert one.hear("item/started", item={"type": "thoughtBubble", "id": "b", "status": 7, "text": None}) == []


def test_an_exit_in_a_turn_is_its_end() -> None:
    """An exit of codex during a turn, with any status, ends the turn with an error."""
    [ended] = Conversation().codec.exited(0)
    assert ended == TurnEnded("error", "the agent exited with status 0 in the middle of a turn")
