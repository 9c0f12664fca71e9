"""OpenAI's chat completions: ``POST /v1/chat/completions``, which many other providers offer too. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from supervisor.mock_model.answers import Spent
from supervisor.mock_model.dialects.openai import CREATED, failed, models
from supervisor.mock_model.dialects.sse import Dialect, Event, Streamed, needs_list, needs_word
from supervisor.mock_model.request import ModelAnswer, ModelRequest, Tool, flat, mapping, objects, script_in_force, word


def _read_request(path: str, body: dict[str, Any]) -> ModelRequest:
    model = needs_word(body, "model", "you must provide a model parameter")
    messages = needs_list(body, "messages", "Missing required parameter: 'messages'.")
    script = script_in_force(_user_texts(objects(messages)))
    functions = [mapping(tool.get("function")) for tool in objects(body.get("tools"))]
    wanted = mapping(mapping(body.get("response_format")).get("json_schema"))
    return ModelRequest(
        dialect="chat",
        model=model,
        stream=body.get("stream") is True,
        text=script.text,
        prompts=script.prompts,
        results=script.results,
        messages=len(messages),
        tools=tuple(Tool(word(one.get("name")), mapping(one.get("parameters"))) for one in functions),
        schema=mapping(wanted.get("schema")) or None,
    )


def _user_texts(messages: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
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


def _calls(answer: ModelAnswer, serial: str) -> list[dict[str, Any]]:
    functions = [{"name": one.tool.name, "arguments": json.dumps(one.arguments)} for one in answer.calls]
    return [
        {"id": f"call_{serial}_{number}", "type": "function", "function": function}
        for number, function in enumerate(functions)
    ]


def _stop(answer: ModelAnswer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _whole(request: ModelRequest, answer: ModelAnswer, serial: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if answer.calls else answer.text}
    if answer.calls:
        message["tool_calls"] = _calls(answer, serial)
    return {
        "id": f"chatcmpl-{serial}",
        "object": "chat.completion",
        "created": CREATED,
        "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _stop(answer)}],
        "usage": _usage(answer.spent),
    }


def _chunk(request: ModelRequest, serial: str, delta: dict[str, Any], stop: str | None = None, **more: Any) -> Event:
    return Event(
        {
            "id": f"chatcmpl-{serial}",
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": request.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": stop}],
            **more,
        }
    )


def _streamed(request: ModelRequest, answer: ModelAnswer, serial: str) -> Streamed:
    """Return the answer as a stream. The last chunk contains the usage even if the client did not request the usage:
    such clients ignore the usage."""
    calls = [{"index": index, **call} for index, call in enumerate(_calls(answer, serial))]
    deltas: list[dict[str, Any]] = [{"tool_calls": calls}] if calls else [{"content": one} for one in answer.pieces]
    return Streamed(
        (_chunk(request, serial, {"role": "assistant", "content": ""}),),
        tuple((_chunk(request, serial, delta),) for delta in deltas),
        (_chunk(request, serial, {}, _stop(answer), usage=_usage(answer.spent)), Event("[DONE]")),
    )


CHAT: Final = Dialect("chat", _read_request, _whole, _streamed, failed, models)
