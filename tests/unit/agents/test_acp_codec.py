"""Codec for ACP, driven by bytes alone: every message of the protocol, and every way to break it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.agent_catalogue.line_rules import UsageScope
from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.lifecycles.types import ModelProblem
from supervisor.policies.context_window import ContextUse
from supervisor.ports import (
    THIS_CONVERSATION,
    CallNotEnded,
    ChildRequested,
    CloseInput,
    Compaction,
    Malformed,
    MessageAccepted,
    Out,
    PermissionNeeded,
    Ready,
    Send,
    StrayLine,
    TerminalKilled,
    TerminalOpened,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
    TurnEnding,
    Usage,
)
from supervisor.ports.input_limits import STRAY_LINES_MAX

HELLO = {
    "protocolVersion": 1,
    "agentCapabilities": {"loadSession": False, "sessionCapabilities": {"close": {}}},
    "agentInfo": {"name": "robot", "title": "The Robot", "version": "2.1"},
    "authMethods": [],
}


LOADS = {**HELLO, "agentCapabilities": {"loadSession": True}}


def said(*messages: Any) -> bytes:
    """Return the bytes that an agent writes to send *messages*."""
    return b"".join(json.dumps({"jsonrpc": "2.0", **one}).encode() + b"\n" for one in messages)


def sent(outs: list[Out]) -> list[dict[str, Any]]:
    """Return the messages among *outs* that go to the agent; each is one compact line."""
    messages = []
    for out in outs:
        if isinstance(out, Send):
            assert out.data.endswith(b"\n")
            assert out.data.count(b"\n") == 1
            message = json.loads(out.data)
            assert message.pop("jsonrpc") == "2.0"
            messages.append(message)
    return messages


def told(outs: list[Out]) -> list[Out]:
    """Return the objects among *outs* that are reports to the supervisor, not messages to the agent."""
    return [out for out in outs if not isinstance(out, Send)]


class Conversation:
    """Codec with an open session, and methods that play the agent's part of the conversation."""

    def __init__(self, hello: dict[str, Any] = HELLO, *, silent: bool = True, usage_scope: UsageScope = "turn") -> None:
        self.codec = AcpCodec(silent=silent, usage_scope=usage_scope)
        self.codec.start("/work")
        self.feed({"id": 1, "result": hello})
        self.ready = self.feed({"id": 2, "result": {"sessionId": "s"}})
        self.prompt_id = 0

    def feed(self, *messages: Any) -> list[Out]:
        return self.codec.feed(said(*messages))

    def prompt(self, text: str = "work") -> list[Out]:
        outs = self.codec.prompt(text)
        self.prompt_id = sent(outs)[0]["id"]
        return outs

    def update(self, what: str, /, **fields: Any) -> list[Out]:
        return self.feed(update(what, **fields))

    def request(self, rpc_id: Any, method: str, **params: Any) -> list[Out]:
        return self.feed({"id": rpc_id, "method": method, "params": {"sessionId": "s", **params}})

    def answer(self, **answer: Any) -> list[Out]:
        return self.feed({"id": self.prompt_id, **answer})


def update(what: str, /, session: str = "s", **fields: Any) -> dict[str, Any]:
    params = {"sessionId": session, "update": {"sessionUpdate": what, **fields}}
    return {"method": "session/update", "params": params}


@pytest.fixture
def talk() -> Conversation:
    """Return a conversation with a session and a prompt in progress."""
    conversation = Conversation()
    conversation.prompt()
    return conversation


# ------------------------------------------------------------------------------------------------ opening
def test_start_says_who_we_are_and_what_we_offer() -> None:
    """The ``initialize`` request offers protocol version 1, files, terminals and child sessions."""
    (hello,) = sent(AcpCodec().start("/work"))
    assert (hello["id"], hello["method"]) == (1, "initialize")
    assert hello["params"]["protocolVersion"] == 1
    offered = hello["params"]["clientCapabilities"]
    assert offered["fs"] == {"readTextFile": True, "writeTextFile": True}
    assert offered["terminal"] is True
    assert offered["session"] == {"compaction": {}}
    assert offered["_meta"] == {"supervisor": {"sessions": True}}
    assert set(hello["params"]["clientInfo"]) == {"name", "version"}


def test_the_answer_to_initialize_opens_a_session_in_the_directory() -> None:
    """After the response to ``initialize`` the codec sends ``session/new`` with the working directory and no MCP
    servers."""
    codec = AcpCodec()
    codec.start("/work")
    outs = codec.feed(said({"id": 1, "result": HELLO}))
    assert told(outs) == []
    assert sent(outs) == [{"id": 2, "method": "session/new", "params": {"cwd": "/work", "mcpServers": []}}]


def test_the_answer_to_session_new_makes_it_ready() -> None:
    """Ready carries the agent's name and version, and the session's id if the agent can load the session again."""
    assert Conversation().ready == [Ready(None, "robot 2.1")]
    assert Conversation(LOADS).ready == [Ready("s", "robot 2.1")]


def loading(hello: dict[str, Any] = HELLO) -> tuple[AcpCodec, list[Out]]:
    """Return a codec that is to load the session ``old``, and its reaction to the response to ``initialize``."""
    codec = AcpCodec()
    codec.start("/work", "old")
    return codec, codec.feed(said({"id": 1, "result": hello}))


def test_a_session_is_loaded_by_its_id() -> None:
    """To load a session the codec sends ``session/load`` instead of ``session/new``, and later prompts name the old
    id."""
    codec, outs = loading(LOADS)
    params = {"sessionId": "old", "cwd": "/work", "mcpServers": []}
    assert sent(outs) == [{"id": 2, "method": "session/load", "params": params}]
    assert codec.feed(said({"id": 2, "result": None})) == [Ready("old", "robot 2.1")]
    assert sent(codec.prompt("go on"))[0]["params"]["sessionId"] == "old"


def test_what_is_replayed_while_a_session_loads_is_no_news() -> None:
    """Updates before the response to ``session/load`` are ignored, updates after it are reported."""
    codec, _ = loading(LOADS)
    chunk = update("agent_message_chunk", session="old", content={"type": "text", "text": "long ago"})
    call = update("tool_call", session="old", toolCallId="c", title="make", status="pending")
    assert codec.feed(said(chunk, call)) == []
    assert codec.feed(said({"id": 2, "result": {}}, chunk)) == [Ready("old", "robot 2.1"), Text("message", "long ago")]


def test_a_session_that_cannot_be_loaded_is_begun_anew() -> None:
    """If ``session/load`` fails, the log has the reason and the codec sends ``session/new``."""
    codec, _ = loading(LOADS)
    outs = codec.feed(said({"id": 2, "error": {"code": -32602, "message": "no such session"}}))
    (why,) = told(outs)
    assert isinstance(why, Text)
    assert "no such session" in why.text
    assert [one["method"] for one in sent(outs)] == ["session/new"]
    assert codec.feed(said({"id": 3, "result": {"sessionId": "new"}})) == [Ready("new", "robot 2.1")]


def test_an_agent_that_loads_nothing_any_more_begins_anew() -> None:
    """If the agent no longer offers to load sessions, the codec sends ``session/new`` instead of ``session/load``."""
    _, outs = loading(HELLO)
    assert [one["method"] for one in sent(outs)] == ["session/new"]
    assert any(isinstance(out, Text) for out in outs)


def test_who_has_to_log_in_first_is_told_so_at_a_load() -> None:
    """A ``session/load`` that fails for lack of authentication is an error; no new conversation is begun."""
    codec, _ = loading(LOADS)
    (end,) = codec.feed(said({"id": 2, "error": {"code": -32000, "message": "log in"}}))
    assert isinstance(end, Malformed)


@pytest.mark.parametrize(
    ("hello", "info"),
    [
        ({"protocolVersion": 1}, ""),
        ({"protocolVersion": 1, "agentInfo": None, "agentCapabilities": None}, ""),
        ({"protocolVersion": 1, "agentInfo": {"name": "robot"}}, "robot"),
    ],
)
def test_an_agent_may_say_little_about_itself(hello: dict[str, Any], info: str) -> None:
    """An agent may omit its name, version and capabilities in the response to ``initialize``."""
    assert Conversation(hello).ready == [Ready(None, info)]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (
            {"protocolVersion": 2},
            "the agent speaks ACP version 2; this supervisor speaks version 1:"
            " install a version of the agent that speaks ACP 1",
        ),
        ({}, "the answer to initialize: Object missing required field `protocolVersion`"),
        ({"protocolVersion": "1"}, "the answer to initialize: Expected `int`, got `str` - at `$.protocolVersion`"),
        (None, "the answer to initialize: Expected `object`, got `null`"),
    ],
)
def test_a_wrong_answer_to_initialize_is_named(result: Any, why: str) -> None:
    """A response to ``initialize`` with another protocol version is an error that names the version to install; an
    error about a missing or wrong field names the field."""
    codec = AcpCodec()
    codec.start("/work")
    [malformed] = codec.feed(said({"id": 1, "result": result}))
    assert malformed == Malformed(why, permanent="install a version" in why)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(
    ("error", "why"),
    [
        ({"code": -32603, "message": "boom"}, "the agent refused to open a session: boom (code -32603)"),
        (
            {"code": -32603, "message": "Internal error", "data": {"details": "no disk"}},
            'the agent refused to open a session: Internal error ({"details": "no disk"}) (code -32603)',
        ),
        (
            {"code": -32000, "message": "Authentication required"},
            "the agent needs authentication: Authentication required:"
            " log in with the agent's own program, then start it again",
        ),
    ],
)
def test_a_refused_opening_is_named(step: int, error: dict[str, Any], why: str) -> None:
    """An error response to ``initialize`` or ``session/new`` ends the conversation; the report has the agent's
    message. A demand for a login is permanent: another launch would get it, too."""
    codec = AcpCodec()
    codec.start("/work")
    if step == 2:
        codec.feed(said({"id": 1, "result": HELLO}))
    assert codec.feed(said({"id": step, "error": error})) == [Malformed(why, permanent="authentication" in why)]


# ------------------------------------------------------------------------------------------------ the turn
def test_a_prompt_is_one_request() -> None:
    """``session/prompt`` carries the session and the text as one block."""
    (message,) = sent(Conversation().prompt("do it"))
    assert message["method"] == "session/prompt"
    assert message["params"] == {"sessionId": "s", "prompt": [{"type": "text", "text": "do it"}]}


def test_a_prompt_out_of_turn_is_a_mistake_of_ours(talk: Conversation) -> None:
    """``prompt`` before the session is open, or during a turn, raises RuntimeError."""
    with pytest.raises(RuntimeError, match="before the session is open"):
        AcpCodec().prompt("early")
    with pytest.raises(RuntimeError, match="during a turn"):
        talk.codec.prompt("again")


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        ({"result": {"stopReason": "end_turn"}}, TurnEnded("end_turn")),
        ({"result": {"stopReason": "cancelled"}}, TurnEnded("cancelled")),
        ({"result": {"stopReason": "refusal"}}, TurnEnded("refusal")),
        ({"result": {"stopReason": "max_tokens"}}, TurnEnded("max_tokens")),
        ({"result": {"stopReason": "max_turn_requests"}}, TurnEnded("max_turns")),
        (
            {"result": {"stopReason": "tired"}},
            TurnEnded("error", "the agent stopped for an unknown reason, 'tired'"),
        ),
        ({"error": {"code": -32603, "message": "odd"}}, TurnEnded("error", "odd")),
        ({"error": {"code": -32800, "message": "Request cancelled"}}, TurnEnded("error", "Request cancelled")),
        ({"error": {"code": 1, "message": "x", "data": "y" * 400}}, TurnEnded("error", 'x ("' + "y" * 299 + "...)")),
    ],
)
def test_the_answer_to_a_prompt_ends_the_turn(talk: Conversation, answer: dict[str, Any], ended: TurnEnded) -> None:
    """Each stop reason of ACP ends the turn with one reason of ours; an unknown stop reason and an error are
    failures."""
    assert talk.answer(**answer) == [ended]


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"code": -32800, "message": "Request cancelled"}},
        {"error": {"code": -32603, "message": "aborted"}},
        {"result": {"stopReason": "end_turn"}},
        {"result": {"stopReason": "refusal"}},
    ],
)
def test_whatever_answers_a_cancel_is_a_cancel(talk: Conversation, answer: dict[str, Any]) -> None:
    """After an interrupt any response to the prompt, also an error or ``end_turn``, ends the turn as cancelled."""
    talk.codec.interrupt()
    assert talk.answer(**answer) == [TurnEnded("cancelled")]


def test_what_a_cancel_has_cut_off_did_not_complete(talk: Conversation) -> None:
    """A tool call that the agent reports as completed after a cancel, as gemini does, has failed; a call completed
    before the cancel stays completed."""
    talk.update("tool_call", toolCallId="a", title="a")
    assert talk.update("tool_call_update", toolCallId="a", status="completed") == [ToolClosed("a", "completed")]
    talk.update("tool_call", toolCallId="b", title="b")
    talk.codec.interrupt()
    assert talk.update("tool_call_update", toolCallId="b", status="completed") == [ToolClosed("b", "failed")]


def test_an_end_without_an_answer_of_the_model_is_none() -> None:
    """A successful end of a turn that used no tokens, as gemini reports it when every answer of its model was cut off,
    is a failure."""
    talk = Conversation(silent=False)
    talk.prompt()
    talk.update("agent_message_chunk", content={"type": "text", "text": "half an ans"})
    nothing = {"quota": {"token_count": {"input_tokens": 0, "output_tokens": 0}, "model_usage": []}}
    (ended,) = talk.answer(result={"stopReason": "end_turn", "_meta": nothing})
    assert isinstance(ended, TurnEnded)
    assert (ended.stop, ended.problem) == ("error", ModelProblem.CONNECTION)


def test_an_end_after_nothing_is_none() -> None:
    """A successful end of a turn without any text, call or token, as vibe reports it when its model was cut off, is a
    failure, once nothing has come late. The failure says nothing about the provider."""
    talk = Conversation(silent=False)
    talk.prompt()
    talk.update("available_commands_update", availableCommands=[])
    assert talk.answer(result={"stopReason": "end_turn"}) == [TurnEnding()]
    (ended,) = talk.codec.settled()
    assert isinstance(ended, TurnEnded)
    assert (ended.stop, ended.problem) == ("error", None)
    assert talk.codec.settled() == []


def test_an_end_without_a_word_and_an_answer_blames_no_provider() -> None:
    """A successful end without a word is no failure of the provider, even if the agent reports that no model
    answered."""
    talk = Conversation(silent=False)
    talk.prompt()
    nothing = {"quota": {"token_count": {"input_tokens": 0, "output_tokens": 0}, "model_usage": []}}
    (ended,) = talk.answer(result={"stopReason": "end_turn", "_meta": nothing})
    assert isinstance(ended, TurnEnded)
    assert (ended.stop, ended.problem) == ("error", None)


def test_words_after_the_end_belong_to_the_turn() -> None:
    """Text that comes after a result of a turn without text is text of this turn, which has succeeded then."""
    talk = Conversation(silent=False)
    talk.prompt()
    assert talk.answer(result={"stopReason": "end_turn"}) == [TurnEnding()]
    assert talk.codec.steer("too late") is None
    late = talk.update("agent_message_chunk", content={"type": "text", "text": "late"})
    assert [*late, *talk.codec.settled()] == [Text("message", "late"), TurnEnded("end_turn")]


def test_an_exit_while_late_words_are_waited_for_ends_the_turn() -> None:
    """An agent that exits after the result of its turn has ended this turn, whatever its exit status."""
    talk = Conversation(silent=False)
    talk.prompt()
    talk.answer(result={"stopReason": "end_turn"})
    talk.update("agent_message_chunk", content={"type": "text", "text": "late"})
    assert talk.codec.exited(1) == [TurnEnded("end_turn")]


@pytest.mark.parametrize(
    ("update", "usage"),
    [
        (("agent_message_chunk", {"content": {"type": "text", "text": "done"}}), {}),
        (("agent_thought_chunk", {"content": {"type": "text", "text": "hm"}}), {}),
        (("tool_call", {"toolCallId": "c", "status": "completed"}), {}),
        (("usage_update", {"used": 1, "size": 2}), {"usage": {"inputTokens": 7, "outputTokens": 0}}),
    ],
)
def test_an_end_after_anything_is_believed(update: tuple[str, dict[str, Any]], usage: dict[str, Any]) -> None:
    """A successful end of a turn with a text, a thought, a tool call or a token counts as a success."""
    talk = Conversation(silent=False)
    talk.prompt()
    talk.update(update[0], **update[1])
    outs = [*talk.answer(result={"stopReason": "end_turn", **usage}), *talk.codec.settled()]
    assert [one for one in outs if isinstance(one, TurnEnded)] == [TurnEnded("end_turn")]


def test_a_command_of_the_agent_needs_no_model() -> None:
    """A turn whose prompt begins with a slash succeeds without tokens, because the agent executes such a command
    itself."""
    talk = Conversation(silent=False)
    talk.prompt("/memory show")
    nothing = {"quota": {"token_count": {"input_tokens": 0, "output_tokens": 0}, "model_usage": []}}
    assert talk.answer(result={"stopReason": "end_turn", "_meta": nothing}) == [TurnEnding()]
    assert talk.codec.settled() == [TurnEnded("end_turn")]


@pytest.mark.parametrize(
    ("error", "problem", "status"),
    [
        ({"code": 401, "message": '{"error":{"message":"no","code":401}}'}, ModelProblem.AUTH, 401),
        ({"code": 500, "message": "internal"}, ModelProblem.SERVER, 500),
        ({"code": 500, "message": "terminated"}, ModelProblem.CONNECTION, 500),
        ({"code": -32000, "message": "Authentication required"}, ModelProblem.AUTH, None),
        ({"code": -32603, "message": "API Error: 429 {}"}, ModelProblem.RATE_LIMIT, 429),
        ({"code": -32603, "message": "x", "data": {"errorKind": "billing_error"}}, ModelProblem.QUOTA, None),
        (
            {
                "code": -32603,
                "message": "Internal error",
                "data": {
                    "message": "exceeded retry limit",
                    "codex_error_info": {"response_too_many_failed_attempts": {"http_status_code": 429}},
                },
            },
            ModelProblem.RATE_LIMIT,
            429,
        ),
        (
            {"code": -32603, "message": "x", "data": {"message": "unexpected status 401 Unauthorized: no"}},
            ModelProblem.AUTH,
            401,
        ),
        ({"code": -32603, "message": "stream disconnected before completion"}, ModelProblem.CONNECTION, None),
        ({"code": 400, "message": "prompt is too long: 300000 tokens"}, ModelProblem.CONTEXT_LENGTH, 400),
        ({"code": -32603, "message": "the plug-in is broken"}, None, None),
        ({"code": -32603, "message": "x", "data": [[[[1]]]]}, None, None),
    ],
)
def test_an_error_says_what_was_the_matter_with_the_model(
    talk: Conversation, error: dict[str, Any], problem: ModelProblem | None, status: int | None
) -> None:
    """The kind of a model's failure is read from the code, the data or the text of the error response."""
    (ended,) = talk.answer(error=error)
    assert isinstance(ended, TurnEnded)
    assert (ended.stop, ended.problem, ended.status) == ("error", problem, status)


QUEUES = {**HELLO, "agentCapabilities": {"_meta": {"claudeCode": {"promptQueueing": True}}}}


def test_an_agent_that_queues_prompts_is_told_within_the_turn() -> None:
    """An agent that queues prompts gets a steering message as a second prompt; the turn lasts until both are
    answered."""
    talk = Conversation(QUEUES)
    talk.prompt()
    steered = talk.codec.steer("and mind the gap")
    assert steered is not None
    (message,) = sent(steered)
    assert message["params"]["prompt"] == [{"type": "text", "text": "and mind the gap"}]
    assert talk.answer(result={"stopReason": "end_turn"}) == [MessageAccepted()]
    assert talk.feed({"id": message["id"], "result": {"stopReason": "end_turn"}}) == [TurnEnded("end_turn")]


def test_a_prompt_that_is_handed_over_to_the_next_one_need_not_have_said_anything() -> None:
    """A first prompt that ends without tokens, because a queued prompt continues the turn, is no failure."""
    talk = Conversation(QUEUES, silent=False)
    talk.prompt()
    steered = talk.codec.steer("more")
    assert steered is not None
    assert talk.answer(result={"stopReason": "end_turn", "usage": {"inputTokens": 0, "outputTokens": 0}}) == [
        MessageAccepted()
    ]
    talk.update("agent_message_chunk", content={"type": "text", "text": "done"})
    answer = {"id": sent(steered)[0]["id"], "result": {"stopReason": "end_turn"}}
    assert talk.feed(answer) == [TurnEnded("end_turn")]


def test_the_first_failure_among_queued_prompts_is_the_turns() -> None:
    """A turn of several queued prompts fails if one of them failed, even if a later one succeeds."""
    talk = Conversation(QUEUES)
    talk.prompt()
    steered = talk.codec.steer("more")
    assert steered is not None
    assert talk.answer(result={"stopReason": "max_tokens"}) == [MessageAccepted()]
    assert talk.feed({"id": sent(steered)[0]["id"], "result": {"stopReason": "end_turn"}}) == [TurnEnded("max_tokens")]


def test_who_cannot_be_told_within_a_turn_says_so(talk: Conversation) -> None:
    """``steer`` and ``end_call`` return ``None`` if the agent lacks the feature, its turn is being cancelled, or no
    turn is in progress."""
    assert talk.codec.steer("now") is None
    assert talk.codec.end_call("c") is None
    queueing = Conversation(QUEUES)
    assert queueing.codec.steer("now") is None
    queueing.prompt()
    queueing.codec.interrupt()
    assert queueing.codec.steer("now") is None


def test_an_agent_that_does_not_end_its_call_says_why() -> None:
    """If the agent refuses to end an open call, CallNotEnded has the agent's text; a refusal after the call's end is
    ignored."""
    talk = Conversation({**HELLO, "agentCapabilities": {"_meta": {"supervisor": {"endCalls": True}}}})
    talk.prompt()
    talk.update("tool_call", toolCallId="c", title="sleep", status="in_progress")
    asked, asked_again = talk.codec.end_call("c"), talk.codec.end_call("c")
    assert asked is not None
    assert asked_again is not None
    refusal = {"error": {"code": -32000, "message": "it does not stop"}}
    assert talk.feed({"id": sent(asked)[0]["id"], **refusal}) == [CallNotEnded("c", "it does not stop (code -32000)")]
    talk.update("tool_call_update", toolCallId="c", status="completed")
    assert talk.feed({"id": sent(asked_again)[0]["id"], **refusal}) == []


def test_a_second_turn_follows_in_the_same_session(talk: Conversation) -> None:
    """After the end of a turn the same session accepts another prompt, with a new request id."""
    first = talk.prompt_id
    talk.answer(result={"stopReason": "end_turn"})
    talk.prompt("more")
    assert talk.prompt_id != first
    assert talk.answer(result={"stopReason": "end_turn"}) == [TurnEnded("end_turn")]


# ------------------------------------------------------------------------------------------------ updates
@pytest.mark.parametrize(
    ("kind", "fields", "outs"),
    [
        ("agent_message_chunk", {"content": {"type": "text", "text": "hi"}}, [Text("message", "hi")]),
        ("agent_thought_chunk", {"content": {"type": "text", "text": "hm"}}, [Text("thought", "hm")]),
        ("agent_message_chunk", {"content": {"type": "text", "text": ""}}, []),
        ("agent_message_chunk", {"content": {"type": "image", "data": "AAAA"}}, []),
        ("user_message_chunk", {"content": {"type": "text", "text": "echo"}}, []),
        ("plan", {"entries": []}, []),
        (
            "plan",
            {"entries": [{"content": "look", "status": "completed"}, {"content": "mend", "status": "in_progress"}]},
            [Text("plan", "[x] look\n[>] mend\n")],
        ),
        ("current_mode_update", {"currentModeId": "plan"}, [Text("log", "the agent is in the mode 'plan'\n")]),
        ("available_commands_update", {"availableCommands": 3}, []),
        ("something_new", {"field": 1}, []),
        ("usage_update", {"used": 5, "size": 9}, [Usage({"used": 5, "size": 9}, context=ContextUse(5, 9))]),
        (
            "usage_update",
            {"used": 5, "size": 9, "cost": {"amount": 0.25, "currency": "EUR"}},
            [Usage({"used": 5, "size": 9, "cost": {"amount": 0.25, "currency": "EUR"}}, context=ContextUse(5, 9))],
        ),
        ("tool_call", {"toolCallId": "c", "title": "ls", "kind": "execute"}, [ToolOpened("c", "ls", "execute")]),
        ("tool_call", {"toolCallId": "c"}, [ToolOpened("c", "c", "other")]),
        ("tool_call_update", {"toolCallId": "c", "title": "late"}, [ToolOpened("c", "late", "other")]),
        (
            "tool_call",
            {"toolCallId": "c", "title": "ls", "status": "completed"},
            [ToolOpened("c", "ls", "other"), ToolClosed("c", "completed")],
        ),
    ],
)
def test_an_update_has_one_meaning(talk: Conversation, kind: str, fields: dict[str, Any], outs: list[Out]) -> None:
    """Each kind of ``session/update`` reports its texts, tool calls or usage; kinds that the supervisor does not use
    report nothing."""
    assert talk.update(kind, **fields) == outs


@pytest.mark.parametrize(
    ("status", "outcome"), [("completed", "completed"), ("failed", "failed"), ("cancelled", "failed")]
)
def test_a_tool_call_opens_once_and_closes_once(talk: Conversation, status: str, outcome: str) -> None:
    """Repeated, late and contradictory updates of a tool call neither open nor close the call again."""
    assert talk.update("tool_call", toolCallId="c", title="ls", status="pending") == [ToolOpened("c", "ls")]
    assert talk.update("tool_call_update", toolCallId="c", status="in_progress") == []
    assert talk.update("tool_call_update", toolCallId="c", status=status) == [ToolClosed("c", outcome)]
    assert talk.update("tool_call_update", toolCallId="c", status="completed") == []
    assert talk.update("tool_call", toolCallId="c", title="again", status="pending") == []


def test_an_update_of_another_session_is_not_ours(talk: Conversation) -> None:
    """Updates that name another session than the codec's own are ignored."""
    assert talk.feed(update("tool_call", session="other", toolCallId="c", title="ls")) == []


def test_compaction_begins_and_ends_once(talk: Conversation) -> None:
    """Repeated updates of one compaction report one begin and one end; a failed compaction is reported as failed."""
    assert talk.update("compaction_update", compactionId="k", status="in_progress") == [Compaction(True)]
    assert talk.update("compaction_update", compactionId="k", status="in_progress", summary=None) == []
    assert talk.update("compaction_update", compactionId="k", status="completed") == [Compaction(False)]
    assert talk.update("compaction_update", compactionId="k", status="completed") == []
    assert talk.update("compaction_update", compactionId="m", status="in_progress") == [Compaction(True)]
    assert talk.update("compaction_update", compactionId="m", status="failed") == [Compaction(False, failed=True)]


def test_a_compaction_does_not_outlive_its_turn(talk: Conversation) -> None:
    """An update that ends a compaction of an earlier turn is ignored in the next turn."""
    talk.update("compaction_update", compactionId="k", status="in_progress")
    talk.answer(result={"stopReason": "cancelled"})
    talk.prompt()
    assert talk.update("compaction_update", compactionId="k", status="completed") == []


# ------------------------------------------------------------------------------------------------ cancel
CANCEL = {"method": "session/cancel", "params": {"sessionId": "s"}}


def test_an_interrupt_asks_the_agent_to_cancel(talk: Conversation) -> None:
    """An interrupt sends ``session/cancel`` as a notification; the turn continues until the agent responds to the
    prompt."""
    outs = talk.codec.interrupt()
    assert told(outs) == []
    assert sent(outs) == [CANCEL]


def test_an_interrupt_without_a_turn_says_nothing() -> None:
    """Without a prompt an interrupt sends nothing."""
    assert Conversation().codec.interrupt() == []


def test_a_cancelled_turn_closes_what_it_left_open(talk: Conversation) -> None:
    """Open calls close, oldest first, before a cancelled turn ends; later updates of these calls are ignored."""
    talk.update("tool_call", toolCallId="a", title="a")
    talk.update("tool_call", toolCallId="b", title="b")
    talk.update("tool_call_update", toolCallId="a", status="completed")
    talk.update("tool_call", toolCallId="c", title="c")
    talk.codec.interrupt()
    ended = talk.answer(result={"stopReason": "cancelled"})
    assert ended == [ToolClosed("b", "failed"), ToolClosed("c", "failed"), TurnEnded("cancelled")]
    assert talk.update("tool_call_update", toolCallId="b", status="completed") == []


def test_a_turn_that_ends_with_an_open_call_leaves_it_open(talk: Conversation) -> None:
    """``end_turn`` while a tool call is open does not close the call, because the runtime decides about such an end."""
    talk.update("tool_call", toolCallId="a", title="a")
    assert talk.answer(result={"stopReason": "end_turn"}) == [TurnEnding()]
    assert talk.codec.settled() == [TurnEnded("end_turn")]


def test_a_call_may_end_after_its_turn(talk: Conversation) -> None:
    """The end of a call that comes after the turn's result ends the call as the agent reports."""
    talk.update("tool_call", toolCallId="a", title="a")
    talk.answer(result={"stopReason": "end_turn"})
    (closed,) = talk.update("tool_call_update", toolCallId="a", status="completed")
    assert (closed, *talk.codec.settled()) == (ToolClosed("a", "completed"), TurnEnded("end_turn"))


def test_an_interrupt_cuts_off_a_call_that_is_open_after_the_end(talk: Conversation) -> None:
    """An interrupt while the end of a call is waited for sends the agent nothing, and closes the call as failed."""
    talk.update("tool_call", toolCallId="a", title="a")
    talk.answer(result={"stopReason": "end_turn"})
    assert talk.codec.interrupt() == [ToolClosed("a", "failed"), TurnEnded("cancelled")]
    assert talk.codec.settled() == []


def test_a_call_does_not_outlive_its_turn(talk: Conversation) -> None:
    """A tool call that an earlier turn left open does not close in the next turn, and a command of the next turn gets a
    call of its own."""
    talk.update("tool_call", toolCallId="a", title="a")
    talk.answer(result={"stopReason": "end_turn"})
    talk.codec.settled()
    talk.prompt()
    assert talk.update("tool_call_update", toolCallId="a", status="completed") == []
    opened = told(talk.request(1, "terminal/create", command="ls"))
    assert opened[0] == ToolOpened("terminal-1", "ls", "execute")


# ------------------------------------------------------------------------------------------------ permissions
OPTIONS = [
    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]


def test_only_a_newline_ends_a_line_of_a_file(talk: Conversation) -> None:
    """Only a newline ends a line of a file, not a form feed or another line separator of Unicode."""
    talk.request(7, "fs/read_text_file", path="/work/a", line=2, limit=1)
    outs = talk.codec.file_answered("file-1", "a\fa\u2028a\rb\r\nsecond\fline\nthird\n")
    assert sent(outs) == [{"id": 7, "result": {"content": "second\fline\n"}}]


def ask(talk: Conversation, rpc_id: Any = 7, title: str | None = "rm -r /") -> list[Out]:
    call = {"toolCallId": "c", "title": title}
    return talk.request(rpc_id, "session/request_permission", toolCall=call, options=OPTIONS)


@pytest.mark.parametrize("rpc_id", [7, "seven", None])
@pytest.mark.parametrize(
    ("option", "outcome"),
    [("no", {"outcome": "selected", "optionId": "no"}), (None, {"outcome": "cancelled"})],
)
def test_a_permission_is_asked_and_answered(talk: Conversation, rpc_id: Any, option: str | None, outcome: Any) -> None:
    """The response to a permission request has the agent's own request id, whatever the type of the id."""
    offered = (("yes", "allow_once"), ("no", "reject_once"))
    opened, asked = ask(talk, rpc_id)
    assert opened == ToolOpened("c", "rm -r /")
    assert asked == PermissionNeeded("permission-1", "rm -r /", offered)
    answer = talk.codec.permission("permission-1", option)
    assert sent(answer) == [{"id": rpc_id, "result": {"outcome": outcome}}]


@pytest.mark.parametrize(("option", "closed"), [("yes", []), ("no", [ToolClosed("c", "failed")])])
def test_a_request_opens_the_call_that_it_is_the_first_word_about(
    talk: Conversation, option: str, closed: list[Out]
) -> None:
    """A permission request for an unknown tool call opens the call, and a rejection closes it."""
    assert told(ask(talk))[0] == ToolOpened("c", "rm -r /")
    assert told(talk.codec.permission("permission-1", option)) == closed


def test_a_refused_request_leaves_a_call_to_the_agent_that_told_of_it_before(talk: Conversation) -> None:
    """The rejection of a permission does not close a tool call that the agent had opened before."""
    talk.update("tool_call", toolCallId="c", title="rm")
    (asked,) = ask(talk)
    assert isinstance(asked, PermissionNeeded)
    assert told(talk.codec.permission("permission-1", "no")) == []
    assert talk.update("tool_call_update", toolCallId="c", status="failed") == [ToolClosed("c", "failed")]


def test_a_call_that_was_only_asked_for_does_not_stay_open(talk: Conversation) -> None:
    """A tool call known only from a permission that was granted is closed at the turn's end with the outcome
    unknown."""
    ask(talk)
    talk.codec.permission("permission-1", "yes")
    assert talk.answer(result={"stopReason": "end_turn"}) == [TurnEnding()]
    assert talk.codec.settled() == [ToolClosed("c", "unknown"), TurnEnded("end_turn")]


def test_a_request_says_what_it_is_for(talk: Conversation) -> None:
    """PermissionNeeded has the tool's name and kind, the arguments of the call, and the files."""
    call = {
        "toolCallId": "c",
        "title": "Write",
        "kind": "edit",
        "rawInput": {"path": "/work/a"},
        "locations": [{"path": "/work/a"}],
        "_meta": {"claudeCode": {"toolName": "Write"}},
    }
    asked = talk.request(7, "session/request_permission", toolCall=call, options=OPTIONS)[1]
    assert isinstance(asked, PermissionNeeded)
    assert (asked.tool, asked.tool_kind, asked.paths) == ("Write", "edit", ("/work/a",))
    assert json.loads(asked.detail) == {"path": "/work/a"}


def test_a_request_that_the_agent_withdraws_is_answered_so(talk: Conversation) -> None:
    """``$/cancel_request`` of the agent closes the permission request and its tool call; a later answer sends
    nothing."""
    ask(talk)
    withdrawn = talk.feed({"method": "$/cancel_request", "params": {"requestId": 7}})
    assert sent(withdrawn) == [{"id": 7, "error": {"code": -32800, "message": "withdrawn"}}]
    assert told(withdrawn) == [ToolClosed("c", "failed")]
    assert talk.codec.permission("permission-1", "yes") == []


def test_a_permission_without_title_shows_its_call(talk: Conversation) -> None:
    """PermissionNeeded for a call without a title has the call's id as its title."""
    _, asked = ask(talk, title=None)
    assert isinstance(asked, PermissionNeeded)
    assert asked.title == "c"


def test_a_permission_shows_what_it_is_about(talk: Conversation) -> None:
    """PermissionNeeded has the arguments of the call, or else its content, and the paths of its files."""
    cases = (
        ({"rawInput": {"command": "rm -r /"}}, '{"command":"rm -r /"}'),
        ({"content": [{"type": "diff", "path": "a", "newText": "x"}]}, '[{"type":"diff","path":"a","newText":"x"}]'),
        ({}, ""),
    )
    for rpc_id, (told, detail) in enumerate(cases):
        call = {"toolCallId": "c", "locations": [{"path": "/w/a"}, {"path": "b", "line": 3}], **told}
        asked = talk.request(rpc_id, "session/request_permission", toolCall=call, options=OPTIONS)[-1]
        assert isinstance(asked, PermissionNeeded)
        assert (asked.detail.replace(": ", ":").replace(", ", ","), asked.paths) == (detail, ("/w/a", "b"))


# ------------------------------------------------------------------------------------------------ within a turn
STEERS = {**HELLO, "agentCapabilities": {"_meta": {"supervisor": {"steer": True}}}}


def test_an_agent_that_offers_it_is_told_within_its_turn() -> None:
    """A success response to a steering message reports MessageAccepted, an error response reports nothing."""
    talk = Conversation(STEERS)
    assert [one.steers for one in talk.ready if isinstance(one, Ready)] == [True]
    talk.prompt()
    first, second = (sent(list(talk.codec.steer(text) or ()))[0] for text in ("come", "go"))
    assert first["method"] == "_supervisor/session/steer"
    assert first["params"] == {"sessionId": "s", "prompt": [{"type": "text", "text": "come"}]}
    assert talk.feed({"id": first["id"], "result": {}}) == [MessageAccepted()]
    assert talk.feed({"id": second["id"], "error": {"code": -32800, "message": "over"}}) == []


def test_nobody_is_told_within_a_turn_that_is_not_there(talk: Conversation) -> None:
    """``steer`` returns ``None`` without the steering extension, before a prompt, and during a cancel."""
    assert talk.codec.steer("come") is None
    steers = Conversation(STEERS)
    assert steers.codec.steer("come") is None
    steers.prompt()
    steers.codec.interrupt()
    assert steers.codec.steer("come") is None


def test_a_permission_is_answered_once(talk: Conversation) -> None:
    """A second answer to a permission request, and an answer to an unknown one, send nothing."""
    ask(talk)
    assert len(talk.codec.permission("permission-1", "yes")) == 1
    assert talk.codec.permission("permission-1", "yes") == []
    assert talk.codec.permission("permission-9", "yes") == []


def test_an_option_that_was_not_offered_is_refused(talk: Conversation) -> None:
    """An answer with an option that the agent did not offer raises ValueError; the error lists the options, and the
    request stays open."""
    ask(talk)
    with pytest.raises(ValueError, match=r"'maybe' was not offered; use one of: yes, no"):
        talk.codec.permission("permission-1", "maybe")
    assert len(talk.codec.permission("permission-1", "yes")) == 1


def test_an_interrupt_answers_every_open_permission(talk: Conversation) -> None:
    """An interrupt answers every open permission request with ``cancelled`` once; a later request of the turn is
    answered so at once."""
    cancelled = {"outcome": {"outcome": "cancelled"}}
    ask(talk, 7)
    ask(talk, 8)
    expected = [CANCEL, {"id": 7, "result": cancelled}, {"id": 8, "result": cancelled}]
    assert sent(talk.codec.interrupt()) == expected
    assert talk.codec.permission("permission-1", "yes") == []
    late = ask(talk, 9)
    assert told(late) == []
    assert sent(late) == [{"id": 9, "result": cancelled}]


# ------------------------------------------------------------------------------------------------ terminals
def open_terminal(talk: Conversation, **params: Any) -> str:
    """Start a command for the call ``c``, and return the id of its terminal."""
    talk.update("tool_call", toolCallId="c", title="ls")
    (answer,) = sent(talk.request(1, "terminal/create", **{"command": "ls", **params}))
    return str(answer["result"]["terminalId"])


def test_a_terminal_is_opened_and_answered_at_once(talk: Conversation) -> None:
    """``terminal/create`` is answered at once, and reports the command, its directory and its environment as
    requested."""
    talk.update("tool_call", toolCallId="c", title="ls")
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": ""}]
    meta = {"toolCallId": "c"}
    outs = talk.request(5, "terminal/create", command="ls", args=["-l", ""], env=env, cwd="/tmp", _meta=meta)
    assert sent(outs) == [{"id": 5, "result": {"terminalId": "terminal-1"}}]
    assert told(outs) == [TerminalOpened("terminal-1", "c", ("ls", "-l", ""), "/tmp", {"A": "1", "B": ""})]


@pytest.mark.parametrize(
    ("calls", "meta", "serves"),
    [
        (["a"], None, "a"),
        (["a"], {"toolCallId": "a"}, "a"),
        (["a", "b"], {"toolCallId": "a"}, "a"),
        (["a"], {"toolCallId": "unknown"}, "a"),
        (["a"], {"toolCallId": 5}, "a"),
        (["a", "b"], {"toolCallId": "unknown"}, "terminal-1"),
        (["a", "b"], None, "terminal-1"),
        ([], None, "terminal-1"),
    ],
)
def test_a_terminal_serves_a_call(talk: Conversation, calls: list[str], meta: Any, serves: str) -> None:
    """A terminal belongs to the open call that the request names, else to the only call without a terminal, else to a
    new call of its own."""
    for call in calls:
        talk.update("tool_call", toolCallId=call, title=call)
    (*before, opened) = told(talk.request(1, "terminal/create", command="ls", args=["-l"], _meta=meta))
    assert isinstance(opened, TerminalOpened)
    assert opened.call_id == serves
    assert before == ([] if serves == "a" else [ToolOpened("terminal-1", "ls -l", "execute")])


def test_a_call_that_has_a_terminal_gets_no_second_one_by_guess(talk: Conversation) -> None:
    """A command without a named call goes to the one open call without a terminal; if every call has a terminal, the
    command gets a call of its own."""
    served = []
    for call in ("a", "b"):
        talk.update("tool_call", toolCallId=call, title=call)
        served.append(told(talk.request(1, "terminal/create", command="ls"))[-1])
    served.append(told(talk.request(1, "terminal/create", command="ls"))[-1])
    assert [one.call_id for one in served if isinstance(one, TerminalOpened)] == ["a", "b", "terminal-3"]


@pytest.mark.parametrize(("status", "outcome"), [(0, "completed"), (1, "failed"), (-9, "failed"), (None, "failed")])
def test_a_call_of_its_own_ends_with_its_command(talk: Conversation, status: int | None, outcome: str) -> None:
    """A tool call that the codec opened for a command is closed once, at the exit of the command."""
    talk.request(1, "terminal/create", command="ls")
    (closed,) = talk.codec.terminal_exited("terminal-1", status)
    assert isinstance(closed, ToolClosed)
    assert (closed.call_id, closed.outcome) == ("terminal-1", outcome)
    assert talk.codec.terminal_exited("terminal-1", status) == []


def test_a_call_of_its_own_is_closed_by_a_cancel_once(talk: Conversation) -> None:
    """The exit of a command after a cancelled turn does not close its call a second time."""
    talk.request(1, "terminal/create", command="ls")
    talk.codec.interrupt()
    ended = talk.answer(result={"stopReason": "cancelled"})
    assert [type(one) for one in ended] == [ToolClosed, TurnEnded]
    assert (ended[0].call_id, ended[0].outcome) == ("terminal-1", "failed")  # type: ignore[union-attr]
    assert talk.codec.terminal_exited("terminal-1", -9) == []


def test_an_announced_call_is_closed_by_the_agent_only(talk: Conversation) -> None:
    """The exit of a command does not close a call that the agent opened."""
    terminal = open_terminal(talk)
    assert talk.codec.terminal_exited(terminal, 0) == []
    (closed,) = talk.update("tool_call_update", toolCallId="c", status="completed")
    assert isinstance(closed, ToolClosed)
    assert (closed.call_id, closed.outcome) == ("c", "completed")


def output_of(talk: Conversation, terminal: str) -> Any:
    (answer,) = sent(talk.request(2, "terminal/output", terminalId=terminal))
    return answer["result"]


def test_output_is_answered_at_any_time(talk: Conversation) -> None:
    """``terminal/output`` returns the output so far; the exit status is included only after the command has ended."""
    terminal = open_terminal(talk)
    assert output_of(talk, terminal) == {"output": "", "truncated": False}
    talk.codec.terminal_output(terminal, b"sch\xc3")
    assert output_of(talk, terminal) == {"output": "sch", "truncated": False}
    talk.codec.terminal_output(terminal, b"\xb6n\xff\xc3")
    talk.codec.terminal_exited(terminal, 3)
    ended = {"exitCode": 3, "signal": None}
    assert output_of(talk, terminal) == {"output": "schön\ufffd\ufffd", "truncated": False, "exitStatus": ended}


@pytest.mark.parametrize(
    ("limit", "data", "kept", "truncated"),
    [
        (4, b"abcd", "abcd", False),
        (4, b"abcdef", "cdef", True),
        (4, "aäöü".encode(), "öü", True),
        (3, "äöü".encode(), "ü", True),
        (1, "ü".encode(), "", True),
        (0, b"a", "", True),
        (4, b"\xff\xff", "\ufffd", True),
    ],
)
def test_output_is_cut_at_the_front_between_characters(
    talk: Conversation, limit: int, data: bytes, kept: str, truncated: bool
) -> None:
    """Stored output of a terminal is valid UTF-8 within its limit, however it arrived: the oldest characters are
    dropped."""
    terminal = open_terminal(talk, outputByteLimit=limit)
    for at in range(len(data)):
        talk.codec.terminal_output(terminal, data[at : at + 1])
    assert output_of(talk, terminal) == {"output": kept, "truncated": truncated}


@pytest.mark.parametrize(("limit", "kept"), [(None, 1024 * 1024), (10**12, 8 * 1024 * 1024)])
def test_output_has_a_limit_of_ours(talk: Conversation, limit: int | None, kept: int) -> None:
    """The limit of stored terminal output is 1 MiB if the agent names none, and 8 MiB at most."""
    terminal = open_terminal(talk, outputByteLimit=limit)
    talk.codec.terminal_output(terminal, b"x" * (kept + 1))
    answer = output_of(talk, terminal)
    assert len(answer["output"]) == kept
    assert answer["truncated"] is True


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (0, {"exitCode": 0, "signal": None}),
        (127, {"exitCode": 127, "signal": None}),
        (-15, {"exitCode": None, "signal": "SIGTERM"}),
        (None, {"exitCode": None, "signal": None}),
    ],
)
def test_waiting_for_the_exit_is_answered_at_the_exit(talk: Conversation, status: int | None, answer: Any) -> None:
    """``terminal/wait_for_exit`` is answered at the exit of the command, or at once if the command has ended."""
    terminal = open_terminal(talk)
    assert talk.request(3, "terminal/wait_for_exit", terminalId=terminal) == []
    assert talk.request("four", "terminal/wait_for_exit", terminalId=terminal) == []
    ended = sent(talk.codec.terminal_exited(terminal, status))
    assert ended == [{"id": 3, "result": answer}, {"id": "four", "result": answer}]
    late = sent(talk.request(5, "terminal/wait_for_exit", terminalId=terminal))
    assert late == [{"id": 5, "result": answer}]


@pytest.mark.parametrize("method", ["terminal/kill", "terminal/release"])
def test_kill_and_release_end_a_running_command(talk: Conversation, method: str) -> None:
    """``terminal/kill`` and ``terminal/release`` end a running command, and are answered at once."""
    terminal = open_terminal(talk)
    outs = talk.request(3, method, terminalId=terminal)
    assert told(outs) == [TerminalKilled(terminal)]
    assert sent(outs) == [{"id": 3, "result": {}}]


@pytest.mark.parametrize("method", ["terminal/kill", "terminal/release"])
def test_kill_and_release_of_an_ended_command_kill_nothing(talk: Conversation, method: str) -> None:
    """``terminal/kill`` and ``terminal/release`` do not kill a command that has ended."""
    terminal = open_terminal(talk)
    talk.codec.terminal_exited(terminal, 0)
    assert told(talk.request(3, method, terminalId=terminal)) == []


def test_who_waits_for_a_released_command_is_still_answered(talk: Conversation) -> None:
    """``terminal/release`` does not drop the requests that wait for the exit: they are answered at the exit."""
    terminal = open_terminal(talk)
    talk.request(3, "terminal/wait_for_exit", terminalId=terminal)
    talk.request(4, "terminal/release", terminalId=terminal)
    talk.codec.terminal_output(terminal, b"late")
    ended = sent(talk.codec.terminal_exited(terminal, -9))
    assert ended == [{"id": 3, "result": {"exitCode": None, "signal": "SIGKILL"}}]


@pytest.mark.parametrize("method", ["output", "wait_for_exit", "kill", "release"])
@pytest.mark.parametrize("running", [True, False])
def test_a_terminal_that_is_not_there_is_an_error_to_the_agent(talk: Conversation, method: str, running: bool) -> None:
    """A request that names a released or unknown terminal gets an error response, and the conversation continues."""
    terminal = open_terminal(talk)
    if not running:
        talk.codec.terminal_exited(terminal, 0)
    talk.request(3, "terminal/release", terminalId=terminal)
    for name in (terminal, "unknown"):
        (answer,) = sent(talk.request(4, f"terminal/{method}", terminalId=name))
        why = f"terminal/{method}: terminalId: there is no terminal '{name}'"
        assert answer == {"id": 4, "error": {"code": -32602, "message": why}}


def test_news_of_an_unknown_terminal_mean_nothing(talk: Conversation) -> None:
    """Output and exit of a terminal that the codec does not know are ignored."""
    assert talk.codec.terminal_output("terminal-9", b"x") == []
    assert talk.codec.terminal_exited("terminal-9", 0) == []


# ------------------------------------------------------------------------------------------------ child sessions
def test_a_child_session_is_asked_for_and_answered(talk: Conversation) -> None:
    """``_supervisor/session/run`` requests a child session with name, prompt, agent and tool call, and is answered at
    the child's end, once."""
    talk.update("tool_call", toolCallId="c", title="agent scout")
    run = {"name": "scout", "prompt": "look", "agent": "fast", "_meta": {"toolCallId": "c"}}
    outs = talk.request(5, "_supervisor/session/run", **run)
    assert outs == [ChildRequested("child-1", "scout", "look", "fast", "c")]
    answer = talk.codec.child_ended("child-1", "completed", "found it")
    assert sent(answer) == [{"id": 5, "result": {"outcome": "completed", "text": "found it"}}]
    assert talk.codec.child_ended("child-1", "completed", "found it") == []


def test_a_child_session_need_not_serve_a_call(talk: Conversation) -> None:
    """A child session that is requested without an open tool call belongs to the turn."""
    for rpc_id, meta in enumerate((None, {"toolCallId": "unknown"})):
        (asked,) = talk.request(rpc_id, "_supervisor/session/run", name="scout", prompt="look", _meta=meta)
        assert isinstance(asked, ChildRequested)
        assert (asked.agent, asked.call_id) == (None, None)


# ------------------------------------------------------------------------------------------------ what is not for us
@pytest.mark.parametrize("method", ["session/elicitation", "_vendor/thing"])
def test_an_unknown_request_is_refused_by_name(talk: Conversation, method: str) -> None:
    """A request with an unknown method gets the error of JSON-RPC, and the turn continues."""
    (answer,) = sent(talk.request(5, method))
    assert answer == {"id": 5, "error": {"code": -32601, "message": f"method not found: {method}"}}


@pytest.mark.parametrize(
    "message",
    [
        {"method": "$/cancel_request", "params": {"requestId": 3}},
        {"method": "_vendor/notice", "params": {"x": 1}},
        {"method": "no_params"},
        {"id": 99, "result": {}},
        {"id": "one", "result": {}},
        {"id": None, "error": {"code": -32700, "message": "Parse error"}},
    ],
)
def test_unknown_notifications_and_answers_are_ignored(talk: Conversation, message: dict[str, Any]) -> None:
    """Unknown notifications, and responses that belong to no request, are ignored."""
    assert talk.feed(message) == []


def test_a_second_answer_to_the_same_request_is_ignored(talk: Conversation) -> None:
    """A second response to a prompt does not end the turn again."""
    assert talk.answer(result={"stopReason": "end_turn"}) == [TurnEnded("end_turn")]
    assert talk.answer(result={"stopReason": "end_turn"}) == []


def test_blank_lines_are_no_messages(talk: Conversation) -> None:
    """Empty lines and carriage returns between messages are ignored."""
    chunk = said(update("agent_message_chunk", content={"type": "text", "text": "hi"})).replace(b"\n", b"\r\n")
    assert talk.codec.feed(b"\n\r\n" + chunk + b"  \n") == [Text("message", "hi")]


# ------------------------------------------------------------------------------------------------ stray lines
TERMINAL = '{"jsonrpc":"2.0","id":1,"method":"terminal/create","params":'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hello", "the agent wrote a line that is not JSON: 'hello'"),
        ("y" * 100, "not JSON: '" + "y" * 80 + "...'"),
        ("{", "that is not JSON"),
        ("NaN", "that is not JSON"),
        ('{"jsonrpc":"2.0","id":1,"result":"\\ud800"', "that is not JSON"),
        ("5", "Expected `object`, got `int`"),
        ("[]", "Expected `object`, got `array`"),
        ("null", "Expected `object`, got `null`"),
        ('{"jsonrpc":"2.0","id":5,"result":' + "[" * 100_000, "nested too deeply"),
        ("{}", "missing required field `jsonrpc`"),
        ('{"jsonrpc":"1.0","method":"x"}', "$.jsonrpc"),
        ('{"jsonrpc":"2.0"}', "neither a request, a notification nor a response"),
        ('{"jsonrpc":"2.0","id":"x"}', "neither a request, a notification nor a response"),
        ('{"jsonrpc":"2.0","id":1.5,"method":"x"}', "$.id"),
        ('{"jsonrpc":"2.0","id":true,"method":"x"}', "$.id"),
        (f'{{"jsonrpc":"2.0","id":{10**30},"method":"x"}}', "$.id"),
        ('{"jsonrpc":"2.0","id":5,"method":6}', "$.method"),
        ('{"jsonrpc":"2.0","method":"session/update"}', "session/update: Object missing required field `sessionId`"),
        ('{"jsonrpc":"2.0","method":"session/update","params":[]}', "session/update: Expected `object`, got `array`"),
        ('{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{}}}', "`sessionUpdate`"),
        (
            '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":'
            '{"sessionUpdate":"tool_call","toolCallId":5}}}',
            "tool_call: Expected `str`, got `int` - at `$.toolCallId`",
        ),
        (
            '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":'
            '{"sessionUpdate":"usage_update","used":-1,"size":1}}}',
            "usage_update: Expected `int` >= 0 - at `$.used`",
        ),
    ],
)
def test_a_line_that_is_no_message_costs_nothing(talk: Conversation, line: str, why: str) -> None:
    """A line that is no message, or a notification that cannot be read, is reported with the reason, and the messages
    after it are read, in the same chunk too."""
    more = said(update("agent_message_chunk", content={"type": "text", "text": "hi"}))
    stray, text = talk.codec.feed(line.encode() + b"\n" + more)
    assert isinstance(stray, StrayLine)
    assert (stray.line, text) == (line, Text("message", "hi"))
    assert why in stray.why
    assert talk.answer(result={"stopReason": "end_turn"}) == [TurnEnded("end_turn")]


@pytest.mark.parametrize(
    "before", [b"\xef\xbb\xbf", b"\x1b[?25h\x1b]0;title\x07", b"\x00\x00", b"\r", b"\x1b(B\x1b[0m "]
)
def test_codes_before_a_message_are_passed_over(talk: Conversation, before: bytes) -> None:
    """A message after a byte order mark, codes for a terminal or NUL bytes is read."""
    message = said(update("agent_message_chunk", content={"type": "text", "text": "hi"}))
    assert talk.codec.feed(before + message.replace(b"\n", b"\r\n")) == [Text("message", "hi")]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb"cut \ud83d", "cut \ufffd"),
        (rb"\uDE00\ud83d", "\ufffd\ufffd"),
        (rb"\ud83d\ud83d\uDE00", "\ufffd\U0001f600"),
        (rb"a path C:\\ud83d", "a path C:\\ud83d"),
        (b"cut \xf0\x9f", "cut \ufffd"),
        (b"a\x00b\tc", "a b c"),
    ],
)
def test_half_a_character_is_replaced(talk: Conversation, written: bytes, read: str) -> None:
    """Half a surrogate pair, a byte that is no UTF-8, and a control character in a text are replaced; the text of a
    whole pair and of an escaped backslash is kept."""
    message = said(update("agent_message_chunk", content={"type": "text", "text": "WORDS"})).replace(b"WORDS", written)
    assert talk.codec.feed(message) == [Text("message", read)]


def test_a_program_of_another_protocol_is_ended(talk: Conversation) -> None:
    """More than 1,000 lines in a row that are no messages end the conversation with a reason that quotes the last line;
    a message in between begins the count anew."""
    line, message = b"debug: poll\n", said(update("available_commands_update", availableCommands=[]))
    assert len(talk.codec.feed(line * STRAY_LINES_MAX + message + line * STRAY_LINES_MAX)) == 2 * STRAY_LINES_MAX
    *_, broken = talk.codec.feed(line * 5)
    assert isinstance(broken, Malformed)
    assert broken.why.startswith("the agent wrote 1001 lines in a row that are no messages of its protocol")
    assert "'debug: poll'" in broken.why
    assert talk.codec.feed(message) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"jsonrpc":"2.0","id":3}', "neither a request, a notification nor a response"),
        ('{"jsonrpc":"2.0","id":3,"error":"boom"}', "$.error"),
        ('{"jsonrpc":"2.0","id":3,"result":{"stopReason":7}}', "$.stopReason"),
        ('{"jsonrpc":"2.0","id":3,"result":null}', "the answer to session/prompt: Expected `object`, got `null`"),
    ],
)
def test_a_reply_that_cannot_be_read_ends_the_conversation(talk: Conversation, line: str, why: str) -> None:
    """A reply to a request of the supervisor that cannot be read reports Malformed, whose text names the field, since
    the request would never be answered; later input is ignored."""
    more = said(update("agent_message_chunk", content={"type": "text", "text": "hi"}))
    (broken,) = talk.codec.feed(line.encode() + b"\n" + more)
    assert isinstance(broken, Malformed)
    assert why in broken.why
    assert talk.codec.feed(more) == []
    assert talk.answer(result={"stopReason": "end_turn"}) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (TERMINAL + '{"args":[]}}', "terminal/create: Object missing required field `command`"),
        (TERMINAL + '{"command":""}}', "$.command"),
        (TERMINAL + '{"command":"a\\u0000b"}}', "$.command"),
        (TERMINAL + '{"command":"ls","args":["\\u0000"]}}', "$.args[0]"),
        (TERMINAL + '{"command":"ls","cwd":"relative"}}', "$.cwd"),
        (TERMINAL + '{"command":"ls","env":[{"name":"A=B","value":""}]}}', "$.env[0].name"),
        ('{"jsonrpc":"2.0","id":1,"method":"terminal/kill","params":{}}', "terminal/kill: Object missing"),
        ('{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"options":[]}}', "`toolCall`"),
        ('{"jsonrpc":"2.0","id":1,"method":"_supervisor/session/run","params":{"name":"x"}}', "`prompt`"),
    ],
)
def test_a_request_that_cannot_be_read_is_answered(talk: Conversation, line: str, why: str) -> None:
    """A request of the agent whose parameters cannot be read gets an error that names the field, and the turn goes
    on."""
    ((answer),) = sent(talk.codec.feed(line.encode() + b"\n"))
    assert (answer["id"], answer["error"]["code"]) == (1, -32602)
    assert why in answer["error"]["message"]
    assert talk.answer(result={"stopReason": "end_turn"}) == [TurnEnded("end_turn")]


def test_a_line_that_is_too_long_costs_nothing() -> None:
    """A line longer than the limit is reported, cut, with the limit; the message after it is read."""
    codec = AcpCodec(line_bytes_max=64)
    codec.start("/work")
    (stray,) = codec.feed(b"x" * 65)
    assert isinstance(stray, StrayLine)
    assert "longer than 64 bytes" in stray.why
    assert codec.feed(b"x\n" + said({"id": "unknown", "result": {}})) == []


def test_an_output_may_end_without_a_newline(talk: Conversation) -> None:
    """A message at the end of the output needs no newline; half a message is a line that is no message."""
    message = said(update("agent_message_chunk", content={"type": "text", "text": "hi"}))
    assert talk.codec.feed(b"") == []
    assert talk.codec.feed(message[:-1]) == []
    assert talk.codec.feed(b"") == [Text("message", "hi")]
    assert talk.codec.feed(b'{"jsonrpc"') == []
    assert [type(one) for one in talk.codec.feed(b"")] == [StrayLine]


def test_after_an_error_nothing_is_said_but_the_input_can_be_closed(talk: Conversation) -> None:
    """After a protocol error the codec's methods send nothing, ``close`` still closes the input, and the exit does not
    end the turn a second time."""
    terminal = open_terminal(talk)
    ask(talk)
    talk.request(1, "_supervisor/session/run", name="x", prompt="y")
    talk.answer(result=7)
    assert talk.codec.prompt("more") == []
    assert talk.codec.interrupt() == []
    assert talk.codec.permission("permission-2", None) == []
    assert talk.codec.terminal_exited(terminal, 0) == []
    assert talk.codec.child_ended("child-3", "completed", "") == []
    assert talk.codec.close() == [CloseInput()]
    assert talk.codec.exited(1) == []


# ------------------------------------------------------------------------------------------------ the end
def test_close_closes_the_session_where_the_agent_offers_it() -> None:
    """``close`` sends ``session/close`` before it closes the agent's input, and the response is ignored."""
    talk = Conversation()
    outs = talk.codec.close()
    assert sent(outs) == [{"id": 3, "method": "session/close", "params": {"sessionId": "s"}}]
    assert outs[-1] == CloseInput()
    assert talk.feed({"id": 3, "error": {"code": -32603, "message": "no"}}) == []


@pytest.mark.parametrize(
    "capabilities", [None, {}, {"sessionCapabilities": {}}, {"sessionCapabilities": {"close": None}}]
)
def test_close_without_that_offer_is_the_end_of_the_input(capabilities: Any) -> None:
    """Without the agent's capability for ``session/close``, ``close`` only closes the input."""
    talk = Conversation({"protocolVersion": 1, "agentCapabilities": capabilities})
    assert talk.codec.close() == [CloseInput()]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-9, "was ended by SIGKILL"),
        (None, "ended, and its exit status is not known"),
    ],
)
def test_an_exit_has_words(status: int | None, words: str) -> None:
    """The exit of the agent during a turn ends the turn with an error; an exit before the session is open reports
    Malformed."""
    talk = Conversation()
    talk.prompt()
    assert talk.codec.exited(status) == [TurnEnded("error", f"the agent {words} in the middle of a turn")]
    assert talk.codec.exited(status) == []
    early = AcpCodec()
    early.start("/work")
    assert early.exited(status) == [Malformed(f"the agent {words} before it was ready")]


def test_an_exit_between_turns_is_no_error(talk: Conversation) -> None:
    """The exit of an agent between two turns reports nothing."""
    talk.answer(result={"stopReason": "end_turn"})
    assert talk.codec.exited(0) == []


def test_an_exit_inside_a_message_says_so(talk: Conversation) -> None:
    """An exit after half a message ends the turn, and the error quotes the half message."""
    talk.codec.feed(b'{"jsonrpc"')
    talk.codec.feed(b"")
    why = "the agent exited with status 1 in the middle of a turn; its last line was no message: '{\"jsonrpc\"'"
    ended = TurnEnded("error", why)
    assert talk.codec.exited(1) == [ended]


# ------------------------------------------------------------------------------------------------ use
def use(talk: Conversation, **fields: Any) -> Usage:
    (found,) = talk.update("usage_update", used=1, size=9, **fields)
    assert isinstance(found, Usage)
    return found


def test_cost_is_a_total_of_the_conversation(talk: Conversation) -> None:
    """The cost of a usage update is reported as the conversation's total; a cost that is no possible total, or is in
    another currency, is not counted."""
    costs = [(0.5, "USD"), (0.75, "USD"), (9.0, "EUR"), (-1.0, "USD"), (1e300, "USD")]
    found = [use(talk, cost={"amount": amount, "currency": currency}) for amount, currency in costs]
    assert [one.cost_usd for one in found] == [0.5, 0.75, 0.0, 0.0, 0.0]
    assert [one.total_of for one in found] == [THIS_CONVERSATION, THIS_CONVERSATION, None, None, None]


def test_what_a_loaded_conversation_has_cost_was_counted_before() -> None:
    """The total cost reported while a conversation is loaded is not reported again."""
    talk = Conversation(LOADS)
    talk.codec = AcpCodec()
    talk.codec.start("/work", "old")
    talk.feed({"id": 1, "result": LOADS})
    assert talk.feed(update("usage_update", "old", used=1, size=9, cost={"amount": 2.0, "currency": "USD"})) == []
    talk.feed({"id": 2, "result": None})
    talk.prompt()
    (later,) = talk.feed(update("usage_update", "old", used=1, size=9, cost={"amount": 2.5, "currency": "USD"}))
    assert isinstance(later, Usage)
    assert (later.cost_usd, later.total_of) == (2.5, THIS_CONVERSATION)


@pytest.mark.parametrize(
    ("scope", "second"),
    [
        ("turn", Usage({"input_tokens": 9, "output_tokens": 3}, 4, 1)),
        ("request", Usage({"input_tokens": 9, "output_tokens": 3}, 9, 3)),
        ("conversation", Usage({"input_tokens": 9, "output_tokens": 3}, 9, 3, total_of=THIS_CONVERSATION)),
    ],
)
def test_tokens_have_the_scope_that_the_quirk_names(scope: UsageScope, second: Usage) -> None:
    """The second of two reports of one turn adds its increase, adds itself, or is the total of the conversation, by the
    scope of the agent's reports; cost and tokens of one update are reported separately."""
    talk = Conversation(usage_scope=scope)
    talk.prompt()
    talk.update("usage_update", used=1, size=9, _meta={"usage": {"inputTokens": 5, "outputTokens": 2}})
    cost = {"amount": 0.5, "currency": "USD"}
    outs = talk.update(
        "usage_update", used=1, size=9, cost=cost, _meta={"usage": {"inputTokens": 9, "outputTokens": 3}}
    )
    money = Usage(
        {"used": 1, "size": 9, "cost": cost}, cost_usd=0.5, total_of=THIS_CONVERSATION, context=ContextUse(1, 9)
    )
    assert outs == [money, second]


def test_tokens_of_a_process_are_counted_over_its_turns() -> None:
    """Totals since the start of the process count what they have grown since the turn before."""
    talk = Conversation(usage_scope="process")
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    talk.prompt()
    (_, first) = talk.answer(result={"stopReason": "end_turn", "usage": usage})
    talk.prompt()
    (_, second) = talk.answer(result={"stopReason": "end_turn", "usage": {**usage, "inputTokens": 14}})
    assert [(one.input_tokens, one.output_tokens) for one in (first, second)] == [(10, 5), (4, 0)]


def test_tokens_are_a_total_of_the_turn(talk: Conversation) -> None:
    """Tokens that a usage update reported are not counted again with the response, and the next turn counts from
    zero."""
    first = use(talk, _meta={"usage": {"inputTokens": 10, "outputTokens": 2}})
    assert (first.input_tokens, first.output_tokens) == (10, 2)
    usage = {"inputTokens": 15, "outputTokens": 5, "totalTokens": 20}
    ended = talk.answer(result={"stopReason": "end_turn", "usage": usage})
    assert ended == [TurnEnded("end_turn"), Usage({"input_tokens": 15, "output_tokens": 5}, 5, 3)]
    talk.prompt()
    ended = talk.answer(result={"stopReason": "end_turn", "_meta": {"usage": usage}})
    assert ended == [TurnEnded("end_turn"), Usage({"input_tokens": 15, "output_tokens": 5}, 15, 5)]


def test_a_total_counts_what_has_no_name_of_its_own(talk: Conversation) -> None:
    """Tokens that only the total contains, such as cache reads, count as input tokens."""
    usage = {"inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 85, "totalTokens": 100}
    (_, used) = talk.answer(result={"stopReason": "end_turn", "usage": usage})
    assert isinstance(used, Usage)
    assert (used.input_tokens, used.output_tokens) == (95, 5)


@pytest.mark.parametrize(
    "usage", [None, 5, "many", [], {}, {"inputTokens": "5"}, {"inputTokens": -5}, {"totalTokens": True}, {"x": 10**30}]
)
def test_a_draft_that_is_not_understood_ends_nothing(talk: Conversation, usage: Any) -> None:
    """A ``usage`` value of an unknown shape is ignored, and the turn ends as usual."""
    assert talk.answer(result={"stopReason": "end_turn", "usage": usage, "_meta": 5}) == [TurnEnded("end_turn")]


# ------------------------------------------------------------------------------------------------ what calls do
def closed(talk: Conversation, call: str, *updates: dict[str, Any]) -> tuple[str, str]:
    """Report a tool call with *updates* and return the digests of its arguments and its result."""
    found: list[Out] = []
    for one in ({"title": "t", "kind": "other"}, *updates, {"status": "completed"}):
        found += talk.update("tool_call_update", toolCallId=call, **one)
    last = found[-1]
    assert isinstance(last, ToolClosed)
    return last.asked, last.answered


def test_equal_calls_have_equal_digests(talk: Conversation) -> None:
    """The digests of a tool call depend on the last reported arguments and result, not on the number of reports."""
    read, text = {"rawInput": {"path": "a.py"}}, {"rawOutput": "text"}
    same = closed(talk, "1", read, text)
    assert all(same)
    assert closed(talk, "2", {"rawInput": {"path": "b"}}, read, {"rawOutput": "t"}, text, text) == same
    assert closed(talk, "3", {"rawInput": {"path": "b.py"}}, text)[0] != same[0]
    assert closed(talk, "4", read, {"rawOutput": "other"})[1] != same[1]
    content = {"content": [{"type": "content", "content": {"type": "text", "text": "hello"}}]}
    assert closed(talk, "5", read, content)[1] not in ("", same[1])


@pytest.mark.parametrize("nothing", [{}, {"rawInput": {}, "rawOutput": None}])
def test_what_is_not_told_has_no_digest(talk: Conversation, nothing: dict[str, Any]) -> None:
    """Missing arguments and results, and empty arguments, have an empty digest."""
    assert closed(talk, "1", nothing) == ("", "")


@pytest.mark.parametrize("empty", [{"rawOutput": ""}, {"content": []}])
def test_an_empty_result_is_a_result(talk: Conversation, empty: dict[str, Any]) -> None:
    """A call that ends with an empty result has the digest of an empty result, so that its repetition is noticed; a
    result that was reported before counts instead."""
    found = closed(talk, "1", empty)[1]
    assert found
    assert closed(talk, "2", empty)[1] == found
    assert closed(talk, "3", {"rawOutput": "text"}, empty)[1] not in ("", found)


def test_the_content_of_an_edit_is_what_it_does(talk: Conversation) -> None:
    """The content of an edit that is reported without arguments counts as the arguments, not as the result."""
    diff = {"kind": "edit", "content": [{"type": "diff", "path": "/a", "oldText": "x", "newText": "y"}]}
    asked, answered = closed(talk, "1", diff)
    assert asked
    assert not answered


def test_a_command_of_ours_is_known_by_what_it_writes(talk: Conversation) -> None:
    """The result digest of a command in a terminal covers its output and exit status, not the name of the terminal."""
    found = []
    for number, (output, status) in enumerate([(b"same", 0), (b"same", 0), (b"other", 0), (b"same", 1)], 1):
        talk.request(number, "terminal/create", command="make", args=["test"])
        talk.codec.terminal_output(f"terminal-{number}", output)
        (one,) = talk.codec.terminal_exited(f"terminal-{number}", status)
        assert isinstance(one, ToolClosed)
        found.append((one.asked, one.answered))
    assert found[0] == found[1]
    assert len(set(found)) == 3
    assert len({asked for asked, _ in found}) == 1


# ------------------------------------------------------------------------------------------------ a full context
def compacting(*commands: object) -> Conversation:
    """Return a conversation with an agent that offers *commands*."""
    talk = Conversation()
    assert talk.update("available_commands_update", availableCommands=[*commands]) == []
    return talk


@pytest.mark.parametrize("commands", [(), ({"name": "review"},), ("compact",), ({"name": 5},)])
def test_an_agent_without_the_command_is_not_asked_to_compact(commands: tuple[object, ...]) -> None:
    """An agent that offers no command that compacts its context, or a list of another shape, cannot compact."""
    assert compacting(*commands).codec.compact_and_prompt("work") is None


@pytest.mark.parametrize("name", ["compact", "compress"])
def test_the_context_is_compacted_before_the_prompt(name: str) -> None:
    """The command is a prompt of its own, whose words are no answer; the prompt follows when it is answered."""
    talk = compacting({"name": "review"}, {"name": name})
    began = talk.codec.compact_and_prompt("work")
    assert began is not None
    assert began[0] == Compaction(True)
    (asked,) = sent(began[1:])
    assert (asked["method"], asked["params"]["prompt"]) == ("session/prompt", [{"type": "text", "text": f"/{name}"}])
    assert talk.codec.steer("soon") is None
    text = {"type": "text", "text": "done"}
    assert talk.update("agent_message_chunk", content=text) == [Text("log", "done")]
    outs = talk.feed({"id": asked["id"], "result": {"stopReason": "end_turn"}})
    assert outs[0] == Compaction(False, goes_on=True)
    (prompt,) = sent(outs[1:])
    assert prompt["params"]["prompt"] == [{"type": "text", "text": "work"}]
    assert talk.update("agent_message_chunk", content=text) == [Text("message", "done")]
    assert talk.feed({"id": prompt["id"], "result": {"stopReason": "end_turn"}})[-1] == TurnEnded("end_turn")


@pytest.mark.parametrize(
    "answer",
    [{"error": {"code": 1, "message": "no"}}, {"result": {"stopReason": "refusal"}}, {"result": {"stopReason": "new"}}],
)
def test_a_compaction_that_fails_does_not_keep_the_prompt_back(answer: dict[str, Any]) -> None:
    """The prompt is sent although the agent could not compact: it may have room for the prompt."""
    talk = compacting({"name": "compact"})
    (asked,) = sent((talk.codec.compact_and_prompt("work") or [])[1:])
    outs = talk.feed({"id": asked["id"], **answer})
    assert outs[0] == Compaction(False, failed=True, goes_on=True)
    assert sent(outs[1:])[0]["params"]["prompt"] == [{"type": "text", "text": "work"}]


def test_a_cancel_ends_the_turn_that_compacts() -> None:
    """A turn that is interrupted while the agent compacts ends without its prompt."""
    talk = compacting({"name": "compact"})
    (asked,) = sent((talk.codec.compact_and_prompt("work") or [])[1:])
    assert sent(talk.codec.interrupt())[0]["method"] == "session/cancel"
    outs = talk.feed({"id": asked["id"], "result": {"stopReason": "cancelled"}})
    assert outs == [Compaction(False, failed=True, goes_on=True), TurnEnded("cancelled")]
