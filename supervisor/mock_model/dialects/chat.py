"""OpenAI's chat completions: ``POST /v1/chat/completions``, which many other providers speak too. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from supervisor.mock_model.answers import Spent
from supervisor.mock_model.dialects.openai import CREATED, failed, models
from supervisor.mock_model.dialects.sse import Dialect, Event, Streamed, needs_list, needs_word
from supervisor.mock_model.request import Asked, Spoken, Tool, flat, mapping, newest, objects, word

__all__ = ["CHAT"]


def _asked(path: str, body: dict[str, Any]) -> Asked:
    model = needs_word(body, "model", "you must provide a model parameter")
    messages = needs_list(body, "messages", "Missing required parameter: 'messages'.")
    text, results = newest(_said(objects(messages)))
    functions = [mapping(tool.get("function")) for tool in objects(body.get("tools"))]
    wanted = mapping(mapping(body.get("response_format")).get("json_schema"))
    return Asked(
        dialect="chat",
        model=model,
        stream=body.get("stream") is True,
        text=text,
        results=results,
        messages=len(messages),
        tools=tuple(Tool(word(one.get("name")), mapping(one.get("parameters"))) for one in functions),
        schema=mapping(wanted.get("schema")) or None,
    )


def _said(messages: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    for message in messages:
        if message.get("role") == "user":
            yield flat(message.get("content")), 0
        elif message.get("role") == "tool":
            yield "", 1


def _usage(spent: Spent) -> dict[str, int]:
    return {
        "prompt_tokens": spent.input_tokens,
        "completion_tokens": spent.output_tokens,
        "total_tokens": spent.input_tokens + spent.output_tokens,
    }


def _calls(spoken: Spoken, serial: str) -> list[dict[str, Any]]:
    if spoken.call is None:
        return []
    function = {"name": spoken.call.tool.name, "arguments": json.dumps(spoken.call.arguments)}
    return [{"id": f"call_{serial}", "type": "function", "function": function}]


def _stop(spoken: Spoken) -> str:
    return "tool_calls" if spoken.call else "stop"


def _whole(asked: Asked, spoken: Spoken, serial: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if spoken.call else spoken.text}
    if spoken.call:
        message["tool_calls"] = _calls(spoken, serial)
    return {
        "id": f"chatcmpl-{serial}",
        "object": "chat.completion",
        "created": CREATED,
        "model": asked.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _stop(spoken)}],
        "usage": _usage(spoken.spent),
    }


def _chunk(asked: Asked, serial: str, delta: dict[str, Any], stop: str | None = None, **more: Any) -> Event:
    return Event(
        {
            "id": f"chatcmpl-{serial}",
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": asked.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": stop}],
            **more,
        }
    )


def _streamed(asked: Asked, spoken: Spoken, serial: str) -> Streamed:
    """Usage comes with the last chunk, asked for or not: clients that did not ask overlook it."""
    calls = [{"index": index, **call} for index, call in enumerate(_calls(spoken, serial))]
    deltas: list[dict[str, Any]] = [{"tool_calls": calls}] if calls else [{"content": one} for one in spoken.pieces]
    return Streamed(
        (_chunk(asked, serial, {"role": "assistant", "content": ""}),),
        tuple((_chunk(asked, serial, delta),) for delta in deltas),
        (_chunk(asked, serial, {}, _stop(spoken), usage=_usage(spoken.spent)), Event("[DONE]")),
    )


CHAT: Final = Dialect("chat", _asked, _whole, _streamed, failed, models)
