"""Two requests of an agent with one id: the responses could not be told apart, so the second request is refused, and no
decision about one action is ever the answer to another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from field_kit import Scratch, until

from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.agents.protocols.claude.codec import ClaudeCodec
from supervisor.agents.protocols.codec_base import Conversation
from supervisor.agents.protocols.codex.codec import CodexCodec
from supervisor.ports import ChildRequested, FileRequested, Out, PermissionNeeded, RequestRefused, Send, TerminalOpened

ASKS_TWICE = """
    replies = []
    agent.receive = replies.append

    def ask(title):
        options = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
        call = {"toolCallId": title, "title": title}
        params = {"sessionId": agent.conversation, "toolCall": call, "options": options}
        agent.send(id=7, method="session/request_permission", params=params)

    ask("read the notes")
    ask("delete the notes")
    while len(replies) < 2:
        time.sleep(0.01)
    Path("told").write_text(json.dumps(replies))
    return "done"
"""


def test_the_answer_to_one_request_is_not_the_answer_to_another(scratch: Scratch) -> None:
    """An agent asks for a second permission, which a rule denies, with the id of a first one that waits for an
    operator: the second request is an error (-32600) and a record, and the operator's "allow" answers the first
    request only."""
    scratch.acp_agent(ASKS_TWICE)
    scratch.plan("""
        agents:
          a:
            adapter: acp
            command: [python3, agent.py]
            permissions: {default: ask, rules: [{then: deny, title: "delete*"}]}
        tasks: [{id: t, agent: a, prompt: go}]
    """)
    run = scratch.start("run", "plan.yaml")

    def waits() -> list[dict[str, str]]:
        shown = scratch.run("permissions", "--json")
        found: list[dict[str, str]] = json.loads(shown.out) if shown.status == 0 else []
        return found

    [asked] = until(waits)
    assert asked["title"] == "read the notes"
    assert scratch.run("answer", asked["id"], "allow").status == 0
    run.wait()
    first, second = json.loads((scratch.path / "told").read_text())
    assert first["error"]["code"] == -32600
    assert second["result"]["outcome"] == {"outcome": "selected", "optionId": "allow_once"}
    [record] = [one for one in scratch.records("t:t1") if one["event"] == "RequestRefused"]
    assert record["metadata"]["request"] == "session/request_permission"
    assert [one["event"] for one in scratch.records("t:t1")].count("PermissionRequested") == 1


# ------------------------------------------------------------------------------------------------ each protocol
PERMISSION = {"toolCall": {"toolCallId": "c"}, "options": [{"optionId": "yes", "kind": "allow_once"}]}
WAITING = [
    ("session/request_permission", PERMISSION),
    ("fs/read_text_file", {"path": "/work/a"}),
    ("fs/write_text_file", {"path": "/work/a", "content": "x"}),
    ("terminal/wait_for_exit", {"terminalId": "terminal-1"}),
    ("_supervisor/session/run", {"name": "kid", "prompt": "go"}),
]
"""Requests of an ACP agent that have no response until somebody has decided, or something has ended."""


def feed(codec: Conversation, **message: Any) -> tuple[list[dict[str, Any]], list[Out]]:
    """Pass a message of the agent to *codec*; return the messages for the agent, and the reports."""
    outs = codec.feed(json.dumps(message).encode() + b"\n")
    sent = [json.loads(out.data) for out in outs if isinstance(out, Send)]
    return sent, [out for out in outs if not isinstance(out, Send)]


def acp_in_turn() -> AcpCodec:
    """Return an ACP codec in a turn, with one terminal that runs."""
    codec = AcpCodec(silent=True)
    codec.start("/work")
    feed(codec, jsonrpc="2.0", id=1, result={"protocolVersion": 1})
    feed(codec, jsonrpc="2.0", id=2, result={"sessionId": "s"})
    codec.prompt("work")
    feed(codec, jsonrpc="2.0", id="first", method="terminal/create", params={"command": "make"})
    return codec


@pytest.mark.parametrize(("method", "params"), WAITING)
@pytest.mark.parametrize("rpc_id", [7, "7", None])
def test_an_id_is_refused_as_long_as_it_waits(method: str, params: dict[str, Any], rpc_id: Any) -> None:
    """Each further request with the id of a waiting request of an ACP agent, of any kind, is answered -32600 and
    reported, and starts nothing; a number, a text and null are ids alike."""
    codec = acp_in_turn()
    feed(codec, jsonrpc="2.0", id=rpc_id, method=method, params=params)
    for again, more in (*WAITING, ("terminal/create", {"command": "rm"}), ("unknown/method", {})):
        sent, told = feed(codec, jsonrpc="2.0", id=rpc_id, method=again, params=more)
        assert [(one["id"], one["error"]["code"]) for one in sent] == [(rpc_id, -32600)]
        assert [type(one) for one in told] == [RequestRefused]


def test_a_number_and_a_text_are_two_ids() -> None:
    """The ids 7 and "7" may both wait: each request gets its own answer, with its own type of id."""
    codec = acp_in_turn()
    for rpc_id in (7, "7"):
        _, told = feed(codec, jsonrpc="2.0", id=rpc_id, method="session/request_permission", params=PERMISSION)
        assert isinstance(told[-1], PermissionNeeded)
    answers = [json.loads(out.data) for n in (3, 2) for out in codec.permission(f"permission-{n}", None)[:1]]
    assert [one["id"] for one in answers] == ["7", 7]


def test_an_id_may_be_used_again_after_its_answer() -> None:
    """A request whose predecessor with the same id has been answered, or withdrawn by the agent, is a new request."""
    codec = acp_in_turn()
    feed(codec, jsonrpc="2.0", id=7, method="session/request_permission", params=PERMISSION)
    codec.permission("permission-2", "yes")
    _, told = feed(codec, jsonrpc="2.0", id=7, method="fs/read_text_file", params={"path": "/work/a"})
    assert [type(one) for one in told] == [FileRequested]
    codec.file_answered("file-3", "text")
    _, told = feed(codec, jsonrpc="2.0", id=7, method="session/request_permission", params=PERMISSION)
    feed(codec, jsonrpc="2.0", method="$/cancel_request", params={"requestId": 7})
    _, told = feed(codec, jsonrpc="2.0", id=7, method="_supervisor/session/run", params={"name": "k", "prompt": "go"})
    assert [type(one) for one in told] == [ChildRequested]
    codec.child_ended("child-5", "completed", "")
    _, told = feed(codec, jsonrpc="2.0", id=7, method="terminal/create", params={"command": "make"})
    assert isinstance(told[-1], TerminalOpened)


def test_codex_may_not_use_the_id_of_an_open_approval() -> None:
    """A second approval request of codex with an open id is an error; the answer to the first one is unchanged."""
    codec = CodexCodec()
    codec.start("/work")
    feed(codec, id=1, result={})
    feed(codec, id=2, result={"thread": {"id": "t"}})
    codec.prompt("work")
    ask = "item/commandExecution/requestApproval"
    _, [first] = feed(codec, id=0, method=ask, params={"itemId": "a", "command": "ls"})
    assert isinstance(first, PermissionNeeded)
    for method in (ask, "item/fileChange/requestApproval", "item/tool/requestUserInput", "unknown"):
        sent, told = feed(codec, id=0, method=method, params={"itemId": "b", "command": "rm"})
        assert (sent[0]["id"], sent[0]["error"]["code"]) == (0, -32600)
        assert [type(one) for one in told] == [RequestRefused]
    [answer] = codec.permission(first.request_id, "decline")
    assert json.loads(answer.data) == {"id": 0, "result": {"decision": "decline"}}
    _, [again] = feed(codec, id=0, method=ask, params={"itemId": "c", "command": "ls"})
    assert isinstance(again, PermissionNeeded)


def test_claude_may_not_use_the_id_of_an_open_request() -> None:
    """A second permission request of Claude Code with an open id is an error; the answer to the first one returns the
    first call's input, not the second's."""
    codec = ClaudeCodec()
    codec.start("/work")
    feed(codec, type="control_response", response={"subtype": "success", "request_id": "supervisor-1"})
    codec.prompt("work")
    wanted = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "ls"}}
    feed(codec, type="control_request", request_id="p", request=wanted)
    for request in ({**wanted, "input": {"command": "rm"}}, {"subtype": "hook_callback"}):
        sent, told = feed(codec, type="control_request", request_id="p", request=request)
        assert [one["response"]["subtype"] for one in sent] == ["error"]
        assert told == [RequestRefused(request["subtype"], "its id 'p' is that of a request without a response")]
    [answer] = codec.permission("p", "allow")
    assert json.loads(answer.data)["response"]["response"]["updatedInput"] == {"command": "ls"}
