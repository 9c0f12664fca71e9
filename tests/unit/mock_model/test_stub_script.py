"""Script language of the model server, and the server's answers, without a socket."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.mock_model import (
    Answer,
    Delegate,
    Drop,
    Fail,
    Hang,
    Loop,
    Run,
    Say,
    Slow,
    Spent,
    Use,
    answers_in,
)
from supervisor.mock_model.answers import spent_in
from supervisor.mock_model.dialects import ANTHROPIC, CHAT, GOOGLE, RESPONSES
from supervisor.mock_model.log import KEPT_MAX, RequestLog, path_of
from supervisor.mock_model.matcher import answer_to, reply_to
from supervisor.mock_model.request import BadRequest, Call, ModelAnswer, ModelRequest, Tool, script_in_force
from supervisor.mock_model.routes import Endpoint, route
from supervisor.mock_model.tools import SHELL_TOOLS, find, shell_call


def _asked(text: str, results: int = 0, tools: tuple[Tool, ...] = (), **more: Any) -> ModelRequest:
    return ModelRequest(dialect="chat", model="m", stream=False, text=text, results=results, tools=tools, **more)


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("hello", ()),
        ("RUN[[make test]]", (Run("make test"),)),
        ("please RUN[[a]] and SAY[[b]]", (Run("a"), Say("b"))),
        ("RUN[[if [[ -f x ]]; then y; fi]]", (Run("if [[ -f x "),)),
        ("RUN[[test a[0]]]", (Run("test a[0]"),)),
        ("RUN[[two\nlines]]", (Run("two\nlines"),)),
        ("LOOP[[ls]]", (Loop("ls"),)),
        ("AGENT[[RUN<<ls>>]]", (Delegate("RUN[[ls]]"),)),
        ('TOOL[[read {"path": "x"}]]', (Use("read", {"path": "x"}),)),
        ("TOOL[[read {broken]]", (Use("read", {}),)),
        ("SLOW[[3 0.5]]", (Slow(3, 0.5),)),
        ("SLOW[[x]]", (Slow(5, 1.0),)),
        ("ERR[[529]]", (Fail(529),)),
        ("ERR[[503 2]]", (Fail(503, times=2),)),
        ("ERR[[429 1 30]]", (Fail(429, times=1, retry_after_s=30.0),)),
        ("ERR[[context]]", (Fail(400, "context"),)),
        ("ERR[[200]]", (Fail(500),)),
        ("HANG", (Hang(),)),
        ("HANG[[mute]]", (Hang(mute=True),)),
        ("DROP", (Drop(),)),
        ("DROP[[clean]]", (Drop(clean=True),)),
        ("CHANGE HANGAR DROPS", ()),
        ("USAGE[[1 2]]", ()),
    ],
)
def test_a_prompt_is_read(text: str, answers: tuple[Answer, ...]) -> None:
    """Each instruction of a script makes its answer, in order; other text is ignored."""
    assert answers_in(text) == answers


@given(st.text(alphabet="RUNSAYHGDROPLEWT[]<>{}0123456789.-einf \n", max_size=60))
def test_no_text_is_an_error(text: str) -> None:
    """Any prompt has an answer."""
    asked = _asked(text)
    assert reply_to(asked, answer_to(asked)) is not None


@pytest.mark.parametrize(
    ("text", "results", "failed", "answer"),
    [
        ("hello", 0, 0, Say()),
        ("RUN[[a]]", 0, 0, Run("a")),
        ("RUN[[a]]", 1, 0, Say("stub: done")),
        ("RUN[[a]] RUN[[b]]", 1, 0, Run("b")),
        ("RUN[[a]] HANG", 1, 0, Hang()),
        ("LOOP[[a]]", 7, 0, Loop("a")),
        ("SAY[[x]]", 3, 0, Say("x")),
        ("ERR[[500 2]] SAY[[x]]", 0, 1, Fail(500, times=2)),
        ("ERR[[500 2]] SAY[[x]]", 0, 2, Say("x")),
        ("ERR[[500]] SAY[[x]]", 0, 99, Fail(500)),
    ],
)
def test_a_script_goes_on_with_each_result(text: str, results: int, failed: int, answer: Answer) -> None:
    """A script continues after a tool call's result and after counted failures; an answer that ends the turn is
    repeated."""
    assert answer_to(_asked(text, results), failed) == answer


def test_the_newest_script_counts() -> None:
    """The newest message with a script is executed, even if a later message without a script follows."""
    said = [("RUN[[old]]", 0), ("", 1), ("RUN[[new]]", 0), ("a reminder", 0), ("", 1)]
    assert script_in_force(said)[:2] == ("RUN[[new]]", 1)
    assert script_in_force([("hello", 0), ("again", 0)]) == ("again", 0, ())


def test_usage_is_what_the_prompt_says() -> None:
    """USAGE sets input and output tokens; the default is small."""
    assert spent_in("SAY[[a]] USAGE[[1200 300]]") == Spent(1200, 300)
    assert spent_in("SAY[[a]]") == Spent()


@pytest.mark.parametrize(
    ("name", "field", "form", "arguments"),
    [
        ("Bash", "command", {"type": "string"}, "ls"),
        ("shell", "command", {"type": "array"}, ["bash", "-lc", "ls"]),
        ("run_commands", "commands", {"type": "array"}, ["ls"]),
        ("exec_command", "cmd", {"type": "string"}, "ls"),
    ],
)
def test_every_shell_tool_is_found_and_filled(name: str, field: str, form: dict[str, Any], arguments: Any) -> None:
    """The command of a script is sent to the agent's shell tool in the form that the tool needs."""
    schema = {"properties": {field: form, "timeout_ms": {"type": "number"}}, "required": [field, "timeout_ms"]}
    tool = find([Tool("other"), Tool(name, schema)], SHELL_TOOLS)
    assert tool is not None
    assert shell_call(tool, "ls") == {field: arguments, "timeout_ms": 600_000}


def test_a_tool_that_is_not_there_is_said_to_be_missing() -> None:
    """If the agent offers no tool that fits the script, the turn ends with a text that lists the tools."""
    reply = reply_to(_asked("RUN[[a]]", tools=(Tool("read"),)), Run("a"))
    assert isinstance(reply, ModelAnswer)
    assert reply.text == "stub: no shell tool among read"
    assert not reply.calls


def test_a_demanded_form_is_kept() -> None:
    """A client that demands JSON of a schema gets an answer that fits the schema."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "who": {"enum": ["user"]}}}
    reply = reply_to(_asked("SAY[[x]]", schema=schema), Say("x"))
    assert isinstance(reply, ModelAnswer)
    assert reply.text == '{"ok": false, "who": "user"}'


def test_a_program_says_what_is_answered() -> None:
    """A program's answers are used in order by the requests that they are for, then prompts decide again."""
    book = RequestLog()
    book.script([Say("first"), Fail(429)], where=lambda asked: bool(asked.tools))
    with_tools = _asked("SAY[[prompt]]", tools=(Tool("bash"),))
    words = [book.reply(one, "/") for one in (_asked("title"), with_tools, with_tools, with_tools)]
    assert [getattr(one, "text", one) for one in words] == ["stub: ok", "first", Fail(429), "prompt"]
    assert book.unused == 0
    assert [one.answer for one in book.requests] == ["say", "say", "fail", "say"]


def test_what_is_kept_is_bounded_and_counted() -> None:
    """Old requests are dropped from the server's memory, but still counted."""
    book = RequestLog()
    for _ in range(KEPT_MAX + 1):
        book.refused("chat", "/", 400, "")
    assert (book.count, len(book.requests), book.requests[0].number) == (KEPT_MAX + 1, KEPT_MAX, 2)


def test_no_key_of_a_query_is_kept() -> None:
    """The log has the names of query parameters, not their values."""
    assert path_of("/v1beta/models/m:generateContent?key=AIza&alt=sse") == "/v1beta/models/m:generateContent?key&alt"


_KEYS = st.sampled_from(
    [
        *("model", "messages", "input", "contents", "role", "content", "parts", "text", "type", "tools", "function"),
        *("parameters", "name", "tool_result", "user", "functionDeclarations", "generationConfig", "format", "enum"),
        *("response_format", "output_config", "schema", "properties", "required", "json_schema", "namespace"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine, making the bodies is slow
@given(st.dictionaries(_KEYS, JSON, max_size=6), st.sampled_from((ANTHROPIC, CHAT, RESPONSES, GOOGLE)))
def test_no_body_breaks_a_dialect(body: dict[str, Any], dialect: Any) -> None:
    """Any JSON object is accepted as a request or reported as a bad request; a request gets an answer."""
    try:
        asked = dialect.read_request("/v1beta/models/m:streamGenerateContent", body)
    except BadRequest:
        return
    call = ModelAnswer(calls=(Call(Tool("t"), {}), Call(Tool("t"), {})))
    for spoken in (call, reply_to(asked, Run("a"))):
        assert isinstance(spoken, ModelAnswer)
        assert dialect.whole(asked, spoken, "1")
        assert dialect.streamed(asked, spoken, "1").closing


@pytest.mark.parametrize(
    ("method", "target", "dialect", "endpoint"),
    [
        ("POST", "/v1/messages?beta=true", "anthropic", Endpoint.ANSWER),
        ("POST", "/v1/messages/count_tokens", "anthropic", Endpoint.COUNT),
        ("POST", "/v1beta/models/m:countTokens", "google", Endpoint.COUNT),
        ("POST", "/openai/v1/chat/completions", "chat", Endpoint.ANSWER),
        ("POST", "/v1/responses", "responses", Endpoint.ANSWER),
        ("POST", "/v1/embeddings", "chat", Endpoint.UNKNOWN),
        ("GET", "/v1/models", "chat", Endpoint.MODELS),
        ("GET", "/v1beta/models", "google", Endpoint.MODELS),
        ("HEAD", "/", "chat", Endpoint.ALIVE),
        ("DELETE", "/v1/messages", "anthropic", Endpoint.UNKNOWN),
    ],
)
def test_a_path_is_somebodys(method: str, target: str, dialect: str, endpoint: Endpoint) -> None:
    """The path of a request selects the API and the endpoint."""
    assert route(method, target, {}).dialect.name == dialect
    assert route(method, target, {}).endpoint is endpoint


def test_the_list_of_models_is_anthropics_for_who_says_so() -> None:
    """A header of the request selects the API whose list of models is returned."""
    assert route("GET", "/v1/models", {"anthropic-version": "2023-06-01"}).dialect.name == "anthropic"
