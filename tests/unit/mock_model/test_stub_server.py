"""Model server on a socket, in every API, on asyncio and trio."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import anyio
import msgspec
import pytest
from asking import NAMES, PATHS, Answered, ask, body_of, post

from supervisor.mock_model import Say, Spent
from supervisor.mock_model.connection import BODY_BYTES_MAX
from supervisor.mock_model.hosting import hosted_stub_model
from supervisor.mock_model.server import open_stub_model

pytestmark = pytest.mark.anyio

every_dialect = pytest.mark.parametrize("dialect", NAMES)
either_way = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def _text(dialect: str, answer: Answered, stream: bool) -> str:
    """Return the text of a response, joined from its parts as a client would."""
    parts = answer.events if stream else [answer.body]
    return "".join(_words(dialect, part, stream) for part in parts)


def _words(dialect: str, part: Any, stream: bool) -> str:
    match dialect:
        case "anthropic":
            return part.get("delta", {}).get("text", "") if stream else part["content"][0]["text"]
        case "chat":
            choice = part["choices"][0]
            return choice["delta"].get("content", "") if stream else choice["message"]["content"]
        case "responses":
            if stream:
                return part["delta"] if part["type"] == "response.output_text.delta" else ""
            return part["output"][0]["content"][0]["text"]
        case _:
            return part["candidates"][0]["content"]["parts"][0]["text"]


def _call(dialect: str, answer: Answered, stream: bool) -> tuple[str, dict[str, Any]]:
    """Return the tool call in a response: the tool's name and its arguments."""
    parts = answer.events if stream else [answer.body]
    match dialect:
        case "anthropic" if stream:
            block = next(one["content_block"] for one in parts if one["type"] == "content_block_start")
            given = next(one["delta"]["partial_json"] for one in parts if one["type"] == "content_block_delta")
            return block["name"], json.loads(given)
        case "anthropic":
            return parts[0]["content"][0]["name"], parts[0]["content"][0]["input"]
        case "chat":
            choices = [one["choices"][0]["delta" if stream else "message"] for one in parts]
            call = next(one["tool_calls"][0]["function"] for one in choices if "tool_calls" in one)
            return call["name"], json.loads(call["arguments"])
        case "responses":
            item = parts[-1]["response"]["output"][0] if stream else parts[0]["output"][0]
            return item["name"], json.loads(item["arguments"])
        case _:
            call = parts[0]["candidates"][0]["content"]["parts"][0]["functionCall"]
            return call["name"], call["args"]


def _calls(dialect: str, answer: Answered, stream: bool) -> list[dict[str, Any]]:
    """Return the arguments of all tool calls in a response, put together as a client does."""
    parts = answer.events if stream else [answer.body]
    match dialect:
        case "anthropic" if stream:
            given = {one["index"]: one["delta"]["partial_json"] for one in parts if one["type"].endswith("block_delta")}
            stopped = [one["index"] for one in parts if one["type"] == "content_block_stop"]
            return [json.loads(given[index]) for index in stopped]
        case "anthropic":
            return [block["input"] for block in parts[0]["content"]]
        case "chat":
            choices = [one["choices"][0]["delta" if stream else "message"] for one in parts]
            calls = [call for one in choices for call in one.get("tool_calls", [])]
            return [json.loads(call["function"]["arguments"]) for call in calls]
        case "responses":
            done = [one["item"] for one in parts if one.get("type") == "response.output_item.done"]
            return [json.loads(item["arguments"]) for item in (done if stream else parts[0]["output"])]
        case _:
            found = [part for one in parts for part in one["candidates"][0]["content"]["parts"]]
            return [part["functionCall"]["args"] for part in found if "functionCall" in part]


def _usage(answer: Answered, stream: bool) -> str:
    return json.dumps(answer.events if stream else answer.body)


@every_dialect
@either_way
async def test_it_says_what_the_prompt_says(dialect: str, stream: bool) -> None:
    """A response has the text, the usage and the end marker of its API."""
    async with open_stub_model() as stub:
        answer = await ask(stub.port, dialect, "SAY[[hello there]] USAGE[[1234 567]]", stream=stream)
    assert (answer.status, answer.whole) == (200, True)
    assert _text(dialect, answer, stream) == "hello there"
    assert "1234" in _usage(answer, stream)
    assert "567" in _usage(answer, stream)


@every_dialect
@either_way
async def test_it_calls_the_shell_and_then_is_done(dialect: str, stream: bool) -> None:
    """The first request gets a call of the client's tool, the request with the result gets a text."""
    async with open_stub_model() as stub:
        first = await ask(stub.port, dialect, "RUN[[make test]]", stream=stream)
        second = await ask(stub.port, dialect, "RUN[[make test]]", stream=stream, results=1)
        seen = [(one.results, one.answer) for one in stub.requests]
    assert _call(dialect, first, stream) == ("Bash", {"command": "make test"})
    assert _text(dialect, second, stream) == "stub: done"
    assert seen == [(0, "run"), (1, "say")]


@every_dialect
@either_way
async def test_it_makes_calls_in_parallel(dialect: str, stream: bool) -> None:
    """A response has a call for each command; the script goes on when all results have come."""
    prompt = "PARALLEL[[make a ;; make b]] SAY[[both]]"
    async with open_stub_model() as stub:
        first = await ask(stub.port, dialect, prompt, stream=stream)
        second = await ask(stub.port, dialect, prompt, stream=stream, results=2)
    assert _calls(dialect, first, stream) == [{"command": "make a"}, {"command": "make b"}]
    assert _text(dialect, second, stream) == "both"


@every_dialect
async def test_it_writes_files_and_leaves_commands_running(dialect: str) -> None:
    """A file is written by the client's own tool, a command of a tool without such a parameter is left by the shell."""
    async with open_stub_model() as stub:
        edit = await ask(stub.port, dialect, "EDIT[[notes.txt two words]]")
        background = await ask(stub.port, dialect, "BACKGROUND[[sleep 1]]")
    assert _calls(dialect, edit, False) == [{"file_path": "notes.txt", "content": "two words"}]
    assert _calls(dialect, background, False) == [{"command": "(sleep 1) >/dev/null 2>&1 &"}]


@every_dialect
async def test_an_answer_is_cut_after_a_number_of_bytes(dialect: str) -> None:
    """The body has exactly the bytes that the script allows."""
    async with open_stub_model() as stub:
        answer = await ask(stub.port, dialect, "DROP[[40]]", stream=True)
    assert (len(answer.text.encode()), answer.whole) == (40, False)


async def test_the_log_knows_the_conversation_and_its_cost() -> None:
    """A logged request has the scripts of the whole conversation, and the usage that its answer reported."""
    said = [{"role": "user", "content": one} for one in ("SAY[[one]]", "no script", "SAY[[two]] USAGE[[5 6]]")]
    async with open_stub_model() as stub:
        await post(stub.port, PATHS["chat"], json.dumps({"model": "m", "messages": said}))
        await ask(stub.port, "chat", "ERR[[500]]")
        well, failed = stub.requests
    assert well.prompts == ("SAY[[one]]", "SAY[[two]] USAGE[[5 6]]")
    assert (well.input_tokens, well.output_tokens) == (5, 6)
    assert (failed.input_tokens, failed.output_tokens) == (0, 0)


@every_dialect
@either_way
async def test_it_starts_a_sub_agent(dialect: str, stream: bool) -> None:
    """A prompt for a sub-agent goes to the tool for sub-agents, with its script."""
    async with open_stub_model() as stub:
        answer = await ask(stub.port, dialect, "AGENT[[RUN<<ls>>]]", stream=stream)
    assert _call(dialect, answer, stream) == ("Task", {"prompt": "RUN[[ls]]"})


async def test_a_call_names_its_namespace() -> None:
    """A tool call names the namespace of the tool, if the tool has one."""
    async with open_stub_model() as stub:
        answer = await ask(stub.port, "responses", "AGENT[[x]]")
    assert answer.body["output"][0]["namespace"] == "collab"


@every_dialect
@either_way
async def test_pieces_come_one_by_one(dialect: str, stream: bool) -> None:
    """A slow response is sent in parts and is complete at the end."""
    async with open_stub_model() as stub:
        answer = await ask(stub.port, dialect, "SLOW[[3 0]]", stream=stream)
    assert _text(dialect, answer, stream) == "slow 0 slow 1 slow 2 "


@every_dialect
@either_way
async def test_an_answer_is_torn(dialect: str, stream: bool) -> None:
    """A torn response begins, and the connection is cut before the end of the response."""
    async with open_stub_model() as stub:
        answer = await ask(stub.port, dialect, "DROP", stream=stream)
    assert (answer.status, answer.whole) == (200, False)
    assert answer.text


@every_dialect
async def test_a_stream_ends_without_its_last_event(dialect: str) -> None:
    """A clean drop closes the connection properly, but without the end of the response."""
    async with open_stub_model() as stub:
        answer = await ask(stub.port, dialect, "DROP[[clean]]", stream=True)
    assert answer.whole
    assert _text(dialect, answer, True) == "stub: this is not the whole"
    assert not any(
        word in answer.text
        for word in ("message_stop", '"finish_reason": "stop"', "response.completed", "finishReason")
    )


@every_dialect
@either_way
async def test_it_is_silent_for_as_long_as_it_is_there(dialect: str, stream: bool) -> None:
    """A hanging response begins, and nothing more is sent until the server ends."""
    async with open_stub_model() as stub, await anyio.connect_tcp("127.0.0.1", stub.port) as client:
        path = PATHS[dialect]
        if stream:
            path = path.replace(":generateContent", ":streamGenerateContent")
        body = json.dumps(body_of(dialect, "HANG", stream=stream))
        await client.send(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        assert (await client.receive()).startswith(b"HTTP/1.1 200")
        assert stub.requests[0].answer == "hang"


@every_dialect
async def test_it_can_be_mute(dialect: str) -> None:
    """A mute response: the server sends no byte until it ends."""
    answers: list[bytes] = []

    async def listen(client: anyio.abc.SocketStream) -> None:
        try:
            answers.append(await client.receive())
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            answers.append(b"")

    asked = anyio.Event()
    body = json.dumps(body_of(dialect, "HANG[[mute]]"))
    head = f"POST {PATHS[dialect]} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    async with anyio.create_task_group() as group:
        async with open_stub_model(report=lambda seen: asked.set()) as stub:
            client = await anyio.connect_tcp("127.0.0.1", stub.port)
            await client.send(f"{head}{body}".encode())
            await asked.wait()
            group.start_soon(listen, client)
    await client.aclose()
    assert answers == [b""]


FAILURES = [
    ("anthropic", "ERR[[401]]", 401, {"type": "authentication_error"}),
    ("anthropic", "ERR[[413]]", 413, {"type": "request_too_large"}),
    ("anthropic", "ERR[[429]]", 429, {"type": "rate_limit_error"}),
    ("anthropic", "ERR[[500]]", 500, {"type": "api_error"}),
    ("anthropic", "ERR[[529]]", 529, {"type": "overloaded_error"}),
    (
        "anthropic",
        "ERR[[context]]",
        400,
        {"type": "invalid_request_error", "message": "prompt is too long: 250000 tokens > 200000 maximum"},
    ),
    ("chat", "ERR[[401]]", 401, {"code": "invalid_api_key"}),
    ("chat", "ERR[[429]]", 429, {"code": "rate_limit_exceeded"}),
    ("chat", "ERR[[quota]]", 429, {"type": "insufficient_quota", "code": "insufficient_quota"}),
    ("responses", "ERR[[context]]", 400, {"code": "context_length_exceeded"}),
    ("responses", "ERR[[500]]", 500, {"type": "server_error"}),
    ("google", "ERR[[429]]", 429, {"code": 429, "status": "RESOURCE_EXHAUSTED"}),
    ("google", "ERR[[503]]", 503, {"code": 503, "status": "UNAVAILABLE"}),
]


@pytest.mark.parametrize(("dialect", "prompt", "status", "expected"), FAILURES)
@either_way
async def test_failures_have_the_providers_own_form(
    dialect: str, prompt: str, status: int, expected: dict[str, Any], stream: bool
) -> None:
    """A failure has the status and the provider's form of an error."""
    async with open_stub_model() as stub:
        answer = await ask(stub.port, dialect, prompt, stream=stream)
        assert stub.requests[0].status == status
    assert answer.status == status
    assert answer.body["error"].items() >= expected.items()


@every_dialect
async def test_a_limit_says_when_to_come_again(dialect: str) -> None:
    """Status 429 has a retry-after header, the script's if it has one."""
    async with open_stub_model() as stub:
        usual = await ask(stub.port, dialect, "ERR[[429]]")
        longer = await ask(stub.port, dialect, "ERR[[429 9 30]]")
    assert (usual.headers["retry-after"], longer.headers["retry-after"]) == ("1", "30")


@every_dialect
async def test_half_a_character_is_replaced(dialect: str) -> None:
    """Half a character in a request, as programs in JavaScript write it, becomes U+FFFD in the answer and in the log,
    whose requests can be written as JSON."""
    async with open_stub_model() as stub:
        answer = await ask(stub.port, dialect, "SAY[[cut \ud83d]]")
        assert "cut \ufffd" in msgspec.json.encode(stub.requests[0]).decode()
    assert _text(dialect, answer, False) == "cut \ufffd"


@every_dialect
async def test_it_recovers_after_some_failures(dialect: str) -> None:
    """A failure with a number ends after that many requests."""
    async with open_stub_model() as stub:
        answers = [await ask(stub.port, dialect, "ERR[[503 2]] SAY[[at last]]") for _ in range(3)]
    assert [one.status for one in answers] == [503, 503, 200]
    assert _text(dialect, answers[2], False) == "at last"


@every_dialect
@pytest.mark.parametrize("body", ["", "[", "[]", "null", '"x"', "{}", '{"model": 3}', b"\xff\xfe", "[" * 100_000])
async def test_a_bad_request_is_told_so_in_the_providers_words(dialect: str, body: str | bytes) -> None:
    """A bad request gets the provider's form of an error, and the server continues."""
    async with open_stub_model() as stub:
        answer = await post(stub.port, PATHS[dialect], body)
        good = await ask(stub.port, dialect, "SAY[[fine]]")
        assert stub.requests[0].error
    kind = answer.body["error"].get("status") or answer.body["error"]["type"]
    assert (answer.status, kind.casefold()) == (
        400,
        "invalid_argument" if dialect == "google" else "invalid_request_error",
    )
    assert good.status == 200


async def test_what_is_no_http_is_answered_and_left() -> None:
    """A client that breaks HTTP gets an error, and others are served."""
    async with open_stub_model() as stub:
        async with await anyio.connect_tcp("127.0.0.1", stub.port) as client:
            await client.send(b"\x00\x01 nonsense\r\n\r\n")
            assert (await client.receive()).startswith(b"HTTP/1.1 400")
        assert (await ask(stub.port, "chat", "SAY[[fine]]")).status == 200


async def test_a_body_beyond_the_bound_is_refused() -> None:
    """A request body beyond the limit is not stored, and gets status 413 in the provider's form."""
    async with open_stub_model() as stub, await anyio.connect_tcp("127.0.0.1", stub.port) as client:
        size = BODY_BYTES_MAX + 1
        await client.send(f"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode())
        piece = bytes(1024 * 1024)
        for _ in range(size // len(piece)):
            await client.send(piece)
        await client.send(b"x")
        assert (await client.receive()).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("GET", "/v1beta/models", 200),
        ("HEAD", "/", 200),
        ("POST", "/v1/messages/count_tokens", 200),
        ("POST", "/v1/embeddings", 404),
        ("PUT", "/v1/messages", 404),
    ],
)
async def test_the_other_paths(method: str, path: str, status: int) -> None:
    """Models, token counts and health checks are answered; other paths are 404."""
    async with open_stub_model() as stub:
        assert (await post(stub.port, path, "{}", method)).status == status


async def test_a_connection_serves_many_requests() -> None:
    """A connection serves several requests."""
    body = json.dumps(body_of("chat", "SAY[[a]]"))
    request = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
    async with open_stub_model() as stub, await anyio.connect_tcp("127.0.0.1", stub.port) as client:
        for number in (1, 2, 3):
            await client.send(request)
            answer = b""
            while not answer.endswith(b"}}"):
                answer += await client.receive()
            assert answer.startswith(b"HTTP/1.1 200")
            assert len(stub.requests) == number


async def test_ids_are_never_given_twice() -> None:
    """Ids differ between answers, also of another server."""
    ids: list[str] = []
    for _ in range(2):
        async with open_stub_model() as stub:
            ids += [(await ask(stub.port, "chat", "SAY[[a]]")).body["id"] for _ in range(2)]
    assert len(set(ids)) == 4


async def test_a_program_scripts_it() -> None:
    """A program's answers take precedence over the prompt, with one usage."""
    async with open_stub_model() as stub:
        stub.script([Say("one"), Say("two")], spent=Spent(5, 6))
        answers = [(await ask(stub.port, "chat", "SAY[[prompt]]")).body for _ in range(3)]
    words = [one["choices"][0]["message"]["content"] for one in answers]
    assert words == ["one", "two", "prompt"]
    assert answers[0]["usage"]["total_tokens"] == 11


async def test_what_is_seen_has_no_key() -> None:
    """No logged request holds a key from a header or a query."""
    async with open_stub_model() as stub:
        await post(stub.port, "/v1/messages?key=sk-secret", "{}")
        assert "sk-secret" not in str(stub.requests)


async def test_it_is_served_from_a_thread() -> None:
    """The server in a thread serves a test with any event loop or none."""
    with hosted_stub_model() as stub:
        answer = await ask(stub.port, "google", "SAY[[hi]]", stream=True)
        assert _text("google", answer, True) == "hi"
        assert stub.env["GOOGLE_GEMINI_BASE_URL"] == stub.base_url


def test_the_plugin_costs_nothing_to_those_who_do_not_use_it() -> None:
    """The pytest plug-in imports neither the server nor an event loop."""
    program = (
        "import sys, pytest; before = set(sys.modules)\n"
        "import supervisor.mock_model.pytest_plugin\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new & {'trio', 'anyio', 'asyncio', 'pydantic', 'msgspec', 'h11'}))\n"
    )
    loaded = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout == "\n"
