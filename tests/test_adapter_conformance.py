"""What every adapter promises, whatever protocol it speaks: the one suite that each name of the catalogue passes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.adapters import adapters, codec_for
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

HANDSHAKE: tuple[dict[str, Any], ...] = (
    {"id": 1, "result": {"protocolVersion": 1}},
    {"id": 2, "result": {"sessionId": "s"}},
)
"""What an agent of a conversation answers before it is ready; a plain command says nothing."""

ids = st.sampled_from(["c", "d", "terminal-1", "terminal-2"])
texts = st.sampled_from(["", "text", "schön", "\N{GRINNING FACE}"])
statuses = st.sampled_from(["pending", "in_progress", "completed", "failed"])
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.lists(texts, max_size=1)


def update(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A ``session/update`` of this kind."""
    body = st.fixed_dictionaries({"sessionUpdate": st.just(kind), **fields})
    return st.builds(lambda one: {"method": "session/update", "params": {"sessionId": "s", "update": one}}, body)


def request(method: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A request of the agent, under any kind of id."""
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
    """*message* with one field, anywhere in it, replaced by *value*."""
    keys = list(message)
    key = keys[at % len(keys)]
    inner = message[key]
    return {**message, key: spoilt(inner, value, at // len(keys)) if isinstance(inner, dict) and inner else value}


def line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n"


conversations = st.lists(proper.map(line), max_size=12).map(b"".join)
endings = st.one_of(
    st.just(b""),
    st.binary(max_size=60),
    st.builds(spoilt, proper, values, st.integers(0, 30)).map(line),
    proper.map(line).map(lambda whole: whole[: len(whole) // 2]),
)
streams = st.builds(bytes.__add__, conversations, endings)
"""Proper conversations that end well, in noise, in a message with one wrong field, or in half a message."""


def opened(name: str) -> Codec:
    """A codec with a prompt under way."""
    codec = codec_for(name)()
    codec.argv(["agent"], "work")
    codec.start("/work")
    if not codec.one_shot:
        for message in HANDSHAKE:
            codec.feed(line(message))
    codec.prompt("work")
    return codec


def joined(outs: Iterable[Out]) -> list[Out]:
    """*outs* with neighbouring texts of a kind made one: how text is cut up means nothing."""
    result: list[Out] = []
    for kind, group in itertools.groupby(outs, lambda out: (type(out), out.kind if isinstance(out, Text) else None)):
        if kind[0] is Text:
            result.append(Text(str(kind[1]), "".join(out.text for out in group if isinstance(out, Text))))
        else:
            result += group
    return result


@pytest.mark.parametrize("name", NAMES)
def test_a_name_makes_a_new_codec_each_time(name: str) -> None:
    """A codec is one conversation: two of the same name share nothing."""
    make = codec_for(name)
    assert make() is not make()


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """The error says what there is."""
    with pytest.raises(ValueError, match=r"^adapter: unknown name 'acpp'; use one of: acp, command, scripted$"):
        codec_for("acpp")


@pytest.mark.parametrize("name", NAMES)
def test_it_becomes_ready_once(name: str) -> None:
    """Exactly one Ready comes out of an opening that goes well."""
    codec = codec_for(name)()
    outs = [*codec.start("/work")]
    if not codec.one_shot:
        for message in HANDSHAKE:
            outs += codec.feed(line(message))
    assert [type(out) for out in outs if not isinstance(out, Send)] == [Ready]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("status", [0, 1, -9, None])
def test_an_exit_during_a_turn_ends_it(name: str, status: int | None) -> None:
    """The last word on the turn is a single TurnEnded; only a one-shot agent may exit with success."""
    codec = opened(name)
    (ended,) = codec.exited(status)
    assert isinstance(ended, TurnEnded)
    assert (ended.stop == "end_turn") == (codec.one_shot and status == 0)
    assert bool(ended.error) == (ended.stop == "error")


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_does_something(name: str) -> None:
    """It is said in the protocol, or by a signal; it never ends the turn by itself."""
    outs = [*opened(name).interrupt()]
    assert outs
    assert all(isinstance(out, Send | Signal) for out in outs)


@pytest.mark.parametrize("name", NAMES)
def test_after_prompt_and_close_the_input_is_closed(name: str) -> None:
    """Every agent comes to the end of its input: with its only prompt, or when it is asked to end."""
    codec = codec_for(name)()
    outs = [*codec.start("/work")]
    if codec.one_shot:
        outs += codec.prompt("work")
    outs += codec.close()
    assert outs.count(CloseInput()) == 1


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(data=streams, cuts=st.lists(st.integers(0, 1500), max_size=8))
def test_arbitrary_bytes_in_arbitrary_chunks_say_the_same(name: str, data: bytes, cuts: list[int]) -> None:
    """No bytes make a codec raise, and how they were cut up changes nothing of what it answers."""
    whole, pieces = opened(name), opened(name)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[start:end] for start, end in itertools.pairwise(edges) if start < end]
    expected = [*(whole.feed(data) if data else ()), *whole.feed(b""), *whole.exited(1)]
    got = [out for chunk in (*chunks, b"") for out in pieces.feed(chunk)] + [*pieces.exited(1)]
    assert joined(got) == joined(expected)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(data=streams)
def test_every_conversation_is_well_formed(name: str, data: bytes) -> None:
    """A call opens once and closes at most once after that; at most one error, and it is the last word."""
    codec = opened(name)
    outs = [*(codec.feed(data) if data else ()), *codec.feed(b""), *codec.exited(1)]
    ids = [out.call_id for out in outs if isinstance(out, ToolOpened)]
    assert len(ids) == len(set(ids))
    for at, out in enumerate(outs):
        if isinstance(out, ToolClosed):
            assert any(isinstance(one, ToolOpened) and one.call_id == out.call_id for one in outs[:at])
    closed = [out.call_id for out in outs if isinstance(out, ToolClosed)]
    assert len(closed) == len(set(closed))
    assert all(out is outs[-1] for out in outs if isinstance(out, Malformed))
    assert all(json.loads(out.data)["jsonrpc"] == "2.0" for out in outs if isinstance(out, Send))
