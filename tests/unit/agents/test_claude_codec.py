"""The codec for Claude Code, message by message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.agents.protocols.claude.codec import ClaudeCodec
from supervisor.lifecycles.types import ModelProblem
from supervisor.ports import (
    AgentOptions,
    CallNotEnded,
    Compaction,
    Malformed,
    McpServer,
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

NEW = "12345678-1234-4234-8234-123456789abc"


class Told:
    """Codec with a prompt in progress, and the messages that the codec has written to Claude Code."""

    def __init__(self, agent_options: AgentOptions | None = None) -> None:
        self.codec = ClaudeCodec(agent_options=agent_options or AgentOptions())
        self.argv = self.codec.argv(("claude",), "work", NEW)
        self.sent: list[Any] = []
        self._take(self.codec.start("/work"))
        self.opened = self.answer()

    def _take(self, outs: list[Out]) -> list[Out]:
        self.sent += [json.loads(one.data) for one in outs if isinstance(one, Send)]
        return [one for one in outs if not isinstance(one, Send)]

    def answer(self, **failed: Any) -> list[Out]:
        """Respond to the codec's last control request."""
        response = {"subtype": "success", "request_id": self.sent[-1]["request_id"], **failed}
        return self.says("control_response", response=response)

    def prompt(self) -> Told:
        self._take(self.codec.prompt("work"))
        return self

    def says(self, kind: str, **fields: Any) -> list[Out]:
        name, _, subtype = kind.partition("/")
        message = {"type": name, **({"subtype": subtype} if subtype else {}), **fields}
        return self._take(self.codec.feed(json.dumps(message).encode() + b"\n"))

    def calls(self, call_id: str, tool: str = "Bash", parent: str | None = None) -> list[Out]:
        block = {"type": "tool_use", "id": call_id, "name": tool, "input": {"command": "make"}}
        return self.says("assistant", message={"content": [block]}, parent_tool_use_id=parent)

    def returns(self, call_id: str) -> list[Out]:
        return self.says("user", message={"content": [{"type": "tool_result", "tool_use_id": call_id, "content": "x"}]})

    def asks(self, call_id: str = "c", tool: str = "Bash") -> list[Out]:
        suggested = [{"type": "addRules", "destination": "localSettings"}]
        request = {"subtype": "can_use_tool", "tool_name": tool, "tool_use_id": call_id, "input": {"command": "make"}}
        request["permission_suggestions"] = suggested
        return self.says("control_request", request_id="p", request=request)

    def does(self, outs: list[Out] | None) -> list[Out]:
        assert outs is not None
        return self._take(outs)


def test_the_conversation_has_the_name_that_we_chose() -> None:
    """The conversation id that the supervisor chose is on the command line, and is reported before the first prompt."""
    told = Told()
    assert told.argv[-2:] == ("--session-id", NEW)
    assert told.opened == [Ready(NEW, "claude", steers=True)]


def test_a_conversation_is_loaded_by_its_name() -> None:
    """A resumed conversation keeps its old id, and the uuids of its messages begin with the id of the new process."""
    codec = ClaudeCodec()
    assert codec.argv(("claude",), "work", NEW, "before")[-2:] == ("--resume", "before")
    codec.start("/work", "before")
    ready = {"type": "control_response", "response": {"subtype": "success", "request_id": "supervisor-1"}}
    assert codec.feed(json.dumps(ready).encode() + b"\n") == [Ready("before", "claude", steers=True)]
    (prompt,) = codec.prompt("on")
    assert isinstance(prompt, Send)
    assert json.loads(prompt.data)["uuid"].startswith(NEW[:24])


def test_wishes_are_said() -> None:
    """Model and mode are on the command line; MCP servers are sent in a message, so that their variables are not
    public."""
    told = Told(AgentOptions(model="m", mode="plan", mcp_servers=(McpServer(name="s", command=("serve", "-x")),)))
    assert told.argv[-6:-2] == ("--model", "m", "--permission-mode", "plan")
    assert told.opened == []
    assert told.sent[-1]["request"]["servers"]["s"]["command"] == "serve"
    assert told.answer() == [Ready(NEW, "claude", steers=True)]


def test_what_a_sub_agent_does_is_within_its_call() -> None:
    """A sub-agent's calls are nested in the call that started it and end with that call, and its text is log text."""
    told = Told().prompt()
    assert told.calls("a", "Agent") == [ToolOpened("a", "Agent", "agent")]
    assert told.calls("b", parent="a") == [ToolOpened("b", "make", "execute", "a")]
    said = told.says("assistant", message={"content": "found it"}, parent_tool_use_id="a")
    assert said == [Text("log", "found it\n")]
    assert [out.call_id for out in told.returns("a") if isinstance(out, ToolClosed)] == ["b", "a"]


def test_a_message_within_the_turn_keeps_it_open_until_it_is_heard() -> None:
    """A result before the model has read a steering message does not end the turn, a result afterwards does."""
    told = Told().prompt()
    assert told.does(told.codec.steer("hurry")) == []
    uuid = told.sent[-1]["uuid"]
    assert told.says("result", subtype="success", terminal_reason="completed") == []
    told.says("user", message={"content": "hurry"}, uuid=uuid, isReplay=True)
    assert told.says("result", subtype="success", terminal_reason="completed") == [TurnEnding()]
    assert told.codec.settled() == [TurnEnded("end_turn")]


def test_an_answer_after_the_result_belongs_to_the_turn() -> None:
    """Text and the result of a call that come after the result of their turn belong to this turn; a message within the
    turn is refused then, since it would begin a turn of its own."""
    told = Told().prompt()
    told.calls("c")
    assert told.says("result", subtype="success") == [TurnEnding()]
    assert told.codec.steer("hurry") is None
    (closed,) = told.says("user", message={"content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]})
    assert isinstance(closed, ToolClosed)
    text = told.says("assistant", message={"content": [{"type": "text", "text": "late"}]})
    assert [*text, *told.codec.settled()] == [Text("message", "late"), TurnEnded("end_turn")]


def test_an_interrupt_after_the_result_cuts_off_what_is_open() -> None:
    """An interrupt after the result of a turn whose call is open closes the call, and sends nothing."""
    told = Told().prompt()
    told.calls("c")
    told.says("result", subtype="success")
    closed, ended = told.codec.interrupt()
    assert isinstance(closed, ToolClosed)
    assert (closed.outcome, ended) == ("failed", TurnEnded("cancelled"))


@pytest.mark.parametrize(
    "line", [b"npm WARN deprecated\n", b"[]\n", b'{"level":30,"msg":"x"}\n', b'{"type":"assistant"}\n']
)
def test_a_line_that_is_no_message_costs_nothing(line: bytes) -> None:
    """A line of another program, or a message that cannot be read, is reported, and the turn goes on."""
    told = Told().prompt()
    assert [type(one) for one in told.codec.feed(line)] == [StrayLine]
    assert told.says("result", subtype="success") == [TurnEnding()]


def test_a_control_request_that_cannot_be_read_is_refused() -> None:
    """A request for a permission without the name of its tool is refused with the name of the field."""
    told = Told().prompt()
    assert told.says("control_request", request_id="r", request={"subtype": "can_use_tool"}) == []
    assert told.sent[-1]["response"]["subtype"] == "error"
    assert "`tool_name`" in told.sent[-1]["response"]["error"]


def test_a_result_that_cannot_be_read_ends_the_conversation() -> None:
    """Without the result of a turn the turn would never end, so one that cannot be read breaks the protocol."""
    told = Told().prompt()
    assert [type(one) for one in told.says("result", subtype="success", is_error=5)] == [Malformed]


def test_an_interrupt_takes_back_what_was_not_heard() -> None:
    """An interrupt cancels steering messages that were not read yet, and denies open permission requests."""
    told = Told().prompt()
    told.asks()
    told.does(told.codec.steer("hurry"))
    told.does(told.codec.interrupt())
    taken, refused, interrupt = told.sent[-3:]
    assert taken["request"]["subtype"] == "cancel_async_message"
    assert refused["response"]["response"]["behavior"] == "deny"
    assert interrupt["request"]["subtype"] == "interrupt"
    ended = told.says("result", subtype="error_during_execution", is_error=True, terminal_reason="aborted_tools")
    assert [out for out in ended if isinstance(out, TurnEnded)] == [TurnEnded("cancelled")]


@pytest.mark.parametrize(
    ("result", "ended"),
    [
        ({"subtype": "success", "is_error": True, "result": "no", "api_error_status": 400}, ("error", "no")),
        ({"subtype": "error_max_turns", "is_error": True}, ("max_turns", "")),
        ({"subtype": "error_max_budget_usd", "errors": ["too dear"]}, ("error", "too dear")),
        ({"subtype": "success", "stop_reason": "max_tokens"}, ("max_tokens", "")),
        ({"subtype": "success", "stop_reason": "refusal"}, ("refusal", "")),
        (
            {"subtype": "success", "terminal_reason": "hook_stopped"},
            ("error", "the agent ended the turn early: hook_stopped"),
        ),
        (
            {"subtype": "success", "stop_reason": "tool_use", "terminal_reason": "completed"},
            ("error", "the agent ended the turn while its model waited for a tool"),
        ),
    ],
)
def test_a_result_that_speaks_of_an_error_is_no_success(result: dict[str, Any], ended: tuple[str, str]) -> None:
    """A result that reports an error is a failure, whatever the subtype of the result."""
    (told,) = Told().prompt().says("result", **result)
    assert isinstance(told, TurnEnded)
    assert (told.stop, told.error) == ended


def test_a_turn_that_it_began_by_itself_is_not_ours() -> None:
    """The result of a turn that Claude Code began by itself does not end the supervisor's turn."""
    told = Told().prompt()
    assert told.says("result", subtype="success", origin={"kind": "task-notification"}) == []
    assert told.says("result", subtype="success") == [TurnEnding()]


def test_a_command_is_ended_alone_once_it_has_a_name() -> None:
    """``end_call`` of a shell command is sent once Claude Code has reported a task id for the command; if Claude Code
    refuses to end it, CallNotEnded is reported."""
    told = Told().prompt()
    told.calls("c")
    before = len(told.sent)
    assert told.does(told.codec.end_call("c")) == []
    assert len(told.sent) == before
    told.says("system/task_started", task_id="t", tool_use_id="c")
    assert told.sent[-1]["request"] == {"subtype": "stop_task", "task_id": "t"}
    assert told.answer(subtype="error", error="gone") == [CallNotEnded("c", "gone")]


def test_a_call_that_waits_for_leave_is_ended_by_a_refusal() -> None:
    """``end_call`` of a call that waits for a permission denies the permission, without interrupting the turn."""
    told = Told().prompt()
    told.asks("c")
    told.does(told.codec.end_call("c"))
    answer = told.sent[-1]["response"]["response"]
    assert (answer["behavior"], answer["interrupt"]) == ("deny", False)


def test_a_call_that_is_no_task_cannot_be_ended_alone() -> None:
    """``end_call`` returns ``None`` for a tool that never runs as a task, and for an unknown call."""
    told = Told().prompt()
    told.calls("c", "Read")
    assert told.codec.end_call("c") is None
    assert told.codec.end_call("never") is None


def test_leave_that_is_given_for_good_is_given_for_the_conversation() -> None:
    """The answer ``allow_always`` holds for the conversation only, and changes no settings file."""
    told = Told().prompt()
    opened, asked = told.asks()
    assert opened == ToolOpened("c", "make", "execute")
    assert isinstance(asked, PermissionNeeded)
    assert (asked.tool, asked.detail, asked.tool_kind) == ("Bash", "make", "execute")
    told.does(told.codec.permission("p", "allow_always"))
    answer = told.sent[-1]["response"]["response"]
    assert answer["updatedInput"] == {"command": "make"}
    assert [one["destination"] for one in answer["updatedPermissions"]] == ["session"]


def test_an_option_that_was_not_offered_is_refused() -> None:
    """An answer with an option that was not offered raises ValueError; the error lists the options."""
    told = Told().prompt()
    told.asks()
    with pytest.raises(ValueError, match=r"'maybe' was not offered; use one of: allow, allow_always, deny$"):
        told.codec.permission("p", "maybe")


def test_a_request_that_was_taken_back_gets_no_answer() -> None:
    """A permission request that Claude Code has withdrawn gets no response."""
    told = Told().prompt()
    told.asks()
    told.says("control_cancel_request", request_id="p")
    assert told.codec.permission("p", "allow") == []


def test_a_question_to_a_person_is_answered_at_once() -> None:
    """A question to the user is denied at once, because no person is there, and no permission is requested."""
    told = Told().prompt()
    assert not any(isinstance(out, PermissionNeeded) for out in told.asks(tool="AskUserQuestion"))
    assert told.sent[-1]["response"]["response"]["behavior"] == "deny"


def test_what_its_model_does_to_it_is_told() -> None:
    """A repeated request to the model is reported with its reason, the number of the try and the delay."""
    told = Told().prompt()
    retry = {"attempt": 2, "retry_delay_ms": 1500, "error_status": 529, "error": "overloaded"}
    assert told.says("system/api_retry", **retry) == [
        ModelErrorReported(ModelProblem.OVERLOADED, 529, 2, 1.5, "overloaded")
    ]
    (unreached,) = told.says("system/api_retry", attempt=3, error_status=None, error="unknown")
    assert isinstance(unreached, ModelErrorReported)
    assert unreached.problem is ModelProblem.CONNECTION


def test_the_model_s_last_word_says_why_a_turn_failed() -> None:
    """An error that is the model's last message is the reason of the failed turn, and is reported as log text."""
    told = Told().prompt()
    assert told.says("assistant", message={"content": "no credit"}, error="billing_error") == [
        Text("log", "no credit\n")
    ]
    (ended,) = told.says("result", subtype="success", is_error=True, result="no credit")
    assert ended == TurnEnded("error", "no credit", ModelProblem.QUOTA)


def test_compaction_begins_and_ends_once() -> None:
    """A compaction is reported to begin and to end once; a failed one ends too, and the turn continues."""
    told = Told().prompt()
    assert told.says("system/status", status="compacting") == [Compaction(True)]
    assert told.says("system/status", status="compacting") == []
    ended = told.says("system/status", status=None, compact_result="failed", compact_error="too short")
    assert ended[0] == Compaction(False, failed=True, goes_on=True)
    assert told.says("system/compact_boundary") == []


def test_what_it_uses_is_counted_once() -> None:
    """Repeated usage of one message counts once; the totals at the turn's end add the cost and only the tokens that
    were not reported before."""
    told = Told().prompt()
    tokens = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 5}
    said = {"message": {"id": "m", "content": [], "usage": tokens}}
    assert told.says("assistant", **said) == [Usage({}, 15, 1, cached_tokens=5, requests=1)]
    assert told.says("assistant", **said) == []
    totals = {"opus": {"inputTokens": 10, "outputTokens": 7, "cacheReadInputTokens": 5}}
    ended = told.says("result", subtype="success", total_cost_usd=0.5, modelUsage=totals)
    assert ended[0] == TurnEnding()
    assert isinstance(ended[1], Usage)
    assert (ended[1].input_tokens, ended[1].output_tokens, ended[1].cost_usd) == (0, 6, 0.5)
