"""Conformance tests that the codec of every adapter passes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.agent_catalogue import known_agent
from supervisor.agents.codecs import MakeCodec, adapters, codec_for
from supervisor.ports import (
    CloseInput,
    Codec,
    Malformed,
    Out,
    Ready,
    Send,
    Signal,
    Text,
    ToolClosed,
    ToolOpened,
    TurnEnded,
)

NAMES = adapters()

Messages = tuple[dict[str, Any], ...]

ACP: Messages = ({"id": 1, "result": {"protocolVersion": 1}}, {"id": 2, "result": {"sessionId": "s"}})
CODEX: Messages = ({"id": 1, "result": {"userAgent": "x"}}, {"id": 2, "result": {"thread": {"id": "s"}}})
CLAUDE: Messages = (
    {"type": "control_response", "response": {"subtype": "success", "request_id": "supervisor-1", "response": {}}},
)
HANDSHAKE: Mapping[str, Messages] = {
    "acp": ACP,
    "scripted": ACP,
    "claude": CLAUDE,
    "codex": CODEX,
    "command": (),
    "jsonl": (),
}
"""Messages that an agent sends before it is ready, by adapter; a plain command sends none."""

BEGUN: Mapping[str, Messages] = {"codex": ({"id": 3, "result": {"turn": {"id": "u", "status": "inProgress"}}},)}
"""Messages that an agent sends after the prompt, by adapter."""

ids = st.sampled_from(["c", "d", "terminal-1", "terminal-2"])
texts = st.sampled_from(["", "text", "schön", "\N{GRINNING FACE}"])
statuses = st.sampled_from(["pending", "in_progress", "completed", "failed"])
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.lists(texts, max_size=1)


def update(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for a ``session/update`` message of this kind."""
    body = st.fixed_dictionaries({"sessionUpdate": st.just(kind), **fields})
    return st.builds(lambda one: {"method": "session/update", "params": {"sessionId": "s", "update": one}}, body)


def request(method: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for a request of the agent, with any kind of request id."""
    params = st.fixed_dictionaries({"sessionId": st.just("s"), **fields})
    rpc_id = st.integers(-(2**63), 2**63 - 1) | texts | st.none()
    return st.builds(lambda one, rpc: {"id": rpc, "method": method, "params": one}, params, rpc_id)


about_a_terminal = st.sampled_from(["output", "wait_for_exit", "kill", "release"]).flatmap(
    lambda method: request(f"terminal/{method}", terminalId=ids)
)
options = st.lists(st.fixed_dictionaries({"optionId": ids, "kind": texts}), max_size=2)
proper = st.one_of(
    update("tool_call", toolCallId=ids, status=statuses, title=texts),
    update("tool_call_update", toolCallId=ids, status=statuses),
    update("agent_message_chunk", content=st.fixed_dictionaries({"type": st.just("text"), "text": texts})),
    update("compaction_update", compactionId=ids, status=statuses),
    update("usage_update", used=st.integers(0, 9), size=st.integers(0, 9)),
    request("terminal/create", command=ids, args=st.lists(texts, max_size=2), outputByteLimit=st.integers(0, 9)),
    about_a_terminal,
    request("session/request_permission", toolCall=st.fixed_dictionaries({"toolCallId": ids}), options=options),
    request("_supervisor/session/run", name=ids, prompt=texts),
    request("unknown/method"),
    st.sampled_from(["end_turn", "cancelled", "strange"]).map(lambda stop: {"id": 3, "result": {"stopReason": stop}}),
)


def spoilt(message: dict[str, Any], value: Any, at: int) -> dict[str, Any]:
    """Return *message* with one field, anywhere in it, replaced by *value*."""
    keys = list(message)
    key = keys[at % len(keys)]
    inner = message[key]
    return {**message, key: spoilt(inner, value, at // len(keys)) if isinstance(inner, dict) and inner else value}


def of_codex(method: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for a notification of codex about its own thread or the thread of a sub-agent."""
    params = st.fixed_dictionaries({"threadId": st.sampled_from(["s", "sub"]), "turnId": st.just("u"), **fields})
    return params.map(lambda one: {"method": method, "params": one})


items = st.fixed_dictionaries(
    {
        "id": ids,
        "type": st.sampled_from(["commandExecution", "fileChange", "agentMessage", "contextCompaction", "strange"]),
        "status": st.sampled_from(["inProgress", "completed", "failed", "declined"]),
    }
)
turns = st.fixed_dictionaries(
    {"id": st.sampled_from(["u", "v"]), "status": st.sampled_from(["completed", "interrupted", "failed", "strange"])}
)
tokens = st.fixed_dictionaries({"inputTokens": st.integers(0, 9), "outputTokens": st.integers(0, 9)})
proper_codex = st.one_of(
    of_codex("item/started", item=items),
    of_codex("item/completed", item=items),
    of_codex("item/agentMessage/delta", itemId=ids, delta=texts),
    of_codex("thread/tokenUsage/updated", tokenUsage=st.fixed_dictionaries({"total": tokens, "last": tokens})),
    of_codex("turn/started", turn=turns),
    of_codex("turn/completed", turn=turns),
    of_codex("error", willRetry=st.booleans(), error=st.fixed_dictionaries({"message": texts})),
    request("item/commandExecution/requestApproval", itemId=ids, command=texts),
    request("unknown/method"),
    st.integers(3, 8).map(lambda rpc_id: {"id": rpc_id, "result": {}}),
)


def of_claude(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for a message of Claude Code with the type *kind*; ``system/x`` is type ``system``, subtype
    ``x``."""
    name, _, subtype = kind.partition("/")
    named = {"type": name, "subtype": subtype} if subtype else {"type": name}
    return st.fixed_dictionaries(fields).map(lambda one: {**named, **one})


def claude_said(kind: str, *blocks: st.SearchStrategy[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for a Claude Code message made of *blocks*, of the agent or of one of its sub-agents."""
    content = st.lists(st.one_of(*blocks), max_size=3) | texts
    message = st.fixed_dictionaries({"id": ids, "content": content, "usage": claude_tokens})
    return of_claude(kind, message=message, parent_tool_use_id=st.none() | ids, **fields)


def block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


claude_tokens = st.fixed_dictionaries({"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9)})
claude_tools = st.sampled_from(["Bash", "Agent", "Edit", "AskUserQuestion", "strange"])
claude_input = st.fixed_dictionaries({"command": texts, "file_path": texts})
claude_asks = st.fixed_dictionaries(
    {
        "subtype": st.sampled_from(["can_use_tool", "hook_callback"]),
        "tool_name": claude_tools,
        "tool_use_id": ids,
        "input": claude_input,
        "permission_suggestions": st.lists(st.fixed_dictionaries({"type": texts}), max_size=1),
    }
)
proper_claude = st.one_of(
    claude_said(
        "assistant",
        block("tool_use", id=ids, name=claude_tools, input=claude_input),
        block("text", text=texts),
        block("thinking", thinking=texts),
        error=st.none() | st.sampled_from(["rate_limit", "strange"]),
    ),
    claude_said("user", block("tool_result", tool_use_id=ids, content=texts, is_error=st.booleans())),
    of_claude("control_request", request_id=ids, request=claude_asks),
    of_claude("control_cancel_request", request_id=ids),
    of_claude("system/task_started", task_id=ids, tool_use_id=ids),
    of_claude("system/task_notification", task_id=ids, tool_use_id=ids),
    of_claude("system/status", status=st.sampled_from(["compacting", None]), compact_result=st.none() | texts),
    of_claude("system/compact_boundary"),
    of_claude("system/api_retry", attempt=st.integers(0, 9), error_status=st.none() | st.integers(400, 599)),
    of_claude(
        "result",
        subtype=st.sampled_from(["success", "error_during_execution", "error_max_turns"]),
        is_error=st.booleans(),
        result=texts,
        terminal_reason=st.sampled_from([None, "completed", "aborted_tools", "prompt_too_long", "strange"]),
        stop_reason=st.sampled_from([None, "end_turn", "tool_use", "max_tokens"]),
        modelUsage=st.dictionaries(texts, st.fixed_dictionaries({"inputTokens": st.integers(0, 9)}), max_size=2),
    ),
    of_claude("strange"),
)
PROPER = {
    "acp": proper,
    "scripted": proper,
    "claude": proper_claude,
    "codex": proper_codex,
    "command": proper,
    "jsonl": proper,
}


def line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n"


def streams(name: str) -> st.SearchStrategy[bytes]:
    """Return a strategy for the bytes of a conversation that ends properly, in random bytes, in a message with one
    wrong field, or in half a message."""
    one = PROPER[name]
    conversations = st.lists(one.map(line), max_size=12).map(b"".join)
    endings = st.one_of(
        st.just(b""),
        st.binary(max_size=60),
        st.builds(spoilt, one, values, st.integers(0, 30)).map(line),
        one.map(line).map(lambda whole: whole[: len(whole) // 2]),
    )
    return st.builds(bytes.__add__, conversations, endings)


def made(name: str) -> MakeCodec:
    """Return the factory of an adapter's codec; ``jsonl`` uses the mapping of the agent ``pi``."""
    return codec_for(name, mapping=known_agent("pi").variant("jsonl").mapping)


def opened(name: str) -> Codec:
    """Return a codec of that adapter with a prompt in progress."""
    codec = made(name)()
    codec.argv(["agent"], "work")
    codec.start("/work")
    for message in HANDSHAKE[name]:
        codec.feed(line(message))
    codec.prompt("work")
    for message in BEGUN.get(name, ()):
        codec.feed(line(message))
    return codec


def joined(outs: Iterable[Out]) -> list[Out]:
    """Return *outs* with adjacent texts of a kind joined, because the division of texts has no meaning."""
    result: list[Out] = []
    for kind, group in itertools.groupby(outs, lambda out: (type(out), out.kind if isinstance(out, Text) else None)):
        if kind[0] is Text:
            result.append(Text(str(kind[1]), "".join(out.text for out in group if isinstance(out, Text))))
        else:
            result += group
    return result


@pytest.mark.parametrize("name", NAMES)
def test_a_name_makes_a_new_codec_each_time(name: str) -> None:
    """A factory makes a new codec at each call."""
    make = made(name)
    assert make() is not make()


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """An unknown adapter raises ValueError; the error lists the known adapters."""
    with pytest.raises(
        ValueError, match=r"^adapter: unknown name 'acpp'; use one of: acp, claude, codex, command, scripted, jsonl$"
    ):
        codec_for("acpp")


@pytest.mark.parametrize("name", NAMES)
def test_it_becomes_ready_once(name: str) -> None:
    """A successful handshake reports exactly one Ready."""
    codec = made(name)()
    outs = [*codec.start("/work")]
    for message in HANDSHAKE[name]:
        outs += codec.feed(line(message))
    assert [type(out) for out in outs if not isinstance(out, Send)] == [Ready]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("status", [0, 1, -9, None])
def test_an_exit_during_a_turn_ends_it(name: str, status: int | None) -> None:
    """An agent's exit during a turn reports one TurnEnded; only the exit of a plain command can be a success."""
    codec = opened(name)
    (ended,) = codec.exited(status)
    assert isinstance(ended, TurnEnded)
    assert (ended.stop == "end_turn") == (name == "command" and status == 0)
    assert bool(ended.error) == (ended.stop == "error")


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_does_something(name: str) -> None:
    """An interrupt sends a message or a signal, and never ends the turn by itself."""
    outs = [*opened(name).interrupt()]
    assert outs
    assert all(isinstance(out, Send | Signal) for out in outs)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_nobody_knows_cannot_be_ended(name: str) -> None:
    """``end_call`` of an unknown tool call returns ``None`` and sends nothing."""
    assert opened(name).end_call("nothing") is None


@pytest.mark.parametrize("name", NAMES)
def test_after_prompt_and_close_the_input_is_closed(name: str) -> None:
    """Every codec closes the agent's input once: with the prompt if the process serves one prompt, otherwise in
    ``close``."""
    codec = made(name)()
    outs = [*codec.start("/work")]
    if codec.one_shot:
        outs += codec.prompt("work")
    outs += codec.close()
    assert outs.count(CloseInput()) == 1


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(chosen=st.data(), cuts=st.lists(st.integers(0, 1500), max_size=8))
def test_arbitrary_bytes_in_arbitrary_chunks_say_the_same(name: str, chosen: st.DataObject, cuts: list[int]) -> None:
    """No bytes make a codec raise an exception, and the reports do not depend on the division into chunks."""
    data = chosen.draw(streams(name))
    whole, pieces = opened(name), opened(name)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in itertools.pairwise(edges) if start < end]
    expected = [*(whole.feed(data) if data else ()), *whole.feed(b""), *whole.exited(1)]
    got = [out for chunk in (*chunks, b"") for out in pieces.feed(chunk)] + [*pieces.exited(1)]
    assert joined(got) == joined(expected)


def check_nesting(outs: Iterable[Out]) -> None:
    """Assert that each nested tool call opens while its enclosing call is open, and closes before the enclosing
    call."""
    within: dict[str, str] = {}
    for out in outs:
        match out:
            case ToolOpened(call_id, parent=parent):
                assert not parent or parent in within
                within[call_id] = parent
            case ToolClosed(call_id):
                within.pop(call_id, None)
                assert call_id not in within.values()
            case TurnEnded():
                within.clear()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(chosen=st.data())
def test_every_conversation_is_well_formed(name: str, chosen: st.DataObject) -> None:
    """In the reports of any conversation each tool call opens once and closes at most once, a nested call opens while
    its enclosing call is open, and a protocol error is the last report."""
    data = chosen.draw(streams(name))
    codec = opened(name)
    outs = [*(codec.feed(data) if data else ()), *codec.feed(b""), *codec.exited(1)]
    ids = [out.call_id for out in outs if isinstance(out, ToolOpened)]
    assert len(ids) == len(set(ids))
    for at, out in enumerate(outs):
        if isinstance(out, ToolClosed):
            assert any(isinstance(one, ToolOpened) and one.call_id == out.call_id for one in outs[:at])
    closed = [out.call_id for out in outs if isinstance(out, ToolClosed)]
    assert len(closed) == len(set(closed))
    check_nesting(outs)
    assert all(out is outs[-1] for out in outs if isinstance(out, Malformed))
    tagged = name not in ("claude", "codex")
    assert all(("jsonrpc" in json.loads(out.data)) is tagged for out in outs if isinstance(out, Send))
