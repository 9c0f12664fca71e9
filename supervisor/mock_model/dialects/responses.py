"""OpenAI's Responses API: ``POST /v1/responses``. Tools may be in namespaces; a call names the tool and the namespace.
Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from supervisor.mock_model.answers import Spent
from supervisor.mock_model.dialects.openai import CREATED, failed, models
from supervisor.mock_model.dialects.sse import Dialect, Event, Streamed, needs_word
from supervisor.mock_model.request import (
    BadRequest,
    ModelAnswer,
    ModelRequest,
    Tool,
    flat,
    mapping,
    objects,
    script_in_force,
    word,
)


def _read_request(path: str, body: dict[str, Any]) -> ModelRequest:
    model = needs_word(body, "model", "Missing required parameter: 'model'.")
    given = body.get("input")
    if not isinstance(given, str | list):
        raise BadRequest("input", "Missing required parameter: 'input'.")
    script = script_in_force(_user_texts(given))
    wanted = mapping(mapping(body.get("text")).get("format"))
    return ModelRequest(
        dialect="responses",
        model=model,
        stream=body.get("stream") is True,
        text=script.text,
        prompts=script.prompts,
        results=script.results,
        messages=len(given) if isinstance(given, list) else 1,
        tools=tuple(_tools(objects(body.get("tools")))),
        schema=mapping(wanted.get("schema")) or None,
    )


def _user_texts(given: str | list[Any]) -> Iterator[tuple[str, int]]:
    if isinstance(given, str):
        yield given, 0
        return
    for item in objects(given):
        kind = word(item.get("type")) or "message"
        if kind == "message" and item.get("role") == "user":
            yield flat(item.get("content")), 0
        elif kind.endswith("_call_output"):
            yield "", 1


def _tools(tools: list[dict[str, Any]], namespace: str = "") -> Iterator[Tool]:
    for tool in tools:
        if tool.get("type") == "namespace" and not namespace:
            yield from _tools(objects(tool.get("tools")), word(tool.get("name")))
        elif tool.get("type", "function") == "function":
            yield Tool(word(tool.get("name")), mapping(tool.get("parameters")), namespace)


def _usage(spent: Spent) -> dict[str, Any]:
    return {
        "input_tokens": spent.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": spent.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.input_tokens + spent.output_tokens,
    }


def _items(answer: ModelAnswer, serial: str) -> list[dict[str, Any]]:
    if not answer.calls:
        text = {"type": "output_text", "text": answer.text, "annotations": []}
        message = {"type": "message", "id": f"msg_{serial}", "role": "assistant", "status": "completed"}
        return [{**message, "content": [text]}]
    return [
        {
            "type": "function_call",
            "id": f"fc_{serial}_{number}",
            "call_id": f"call_{serial}_{number}",
            "name": one.tool.name,
            **({"namespace": one.tool.namespace} if one.tool.namespace else {}),
            "arguments": json.dumps(one.arguments),
            "status": "completed",
        }
        for number, one in enumerate(answer.calls)
    ]


def _response(request: ModelRequest, serial: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"resp_{serial}",
        "object": "response",
        "created_at": CREATED,
        "status": "in_progress",
        "error": None,
        "model": request.model,
        "output": [],
        **more,
    }


def _whole(request: ModelRequest, answer: ModelAnswer, serial: str) -> dict[str, Any]:
    done = _items(answer, serial)
    return _response(request, serial, status="completed", output=done, usage=_usage(answer.spent))


def _event(kind: str, **fields: Any) -> Event:
    return Event({"type": kind, **fields}, kind)


def _streamed(request: ModelRequest, answer: ModelAnswer, serial: str) -> Streamed:
    items = _items(answer, serial)
    empty: dict[str, Any] = {"arguments": ""} if answer.calls else {"content": []}
    pieces: list[tuple[Event, ...]] = []
    for index, item in enumerate(items):
        about = {"item_id": item["id"], "output_index": index}
        if index:  # the first begins with the opening, the last ends with the closing
            pieces.append(
                (
                    _event("response.output_item.done", output_index=index - 1, item=items[index - 1]),
                    _begun(item, empty, index),
                )
            )
        if answer.calls:
            arguments = item["arguments"]
            pieces.append((_event("response.function_call_arguments.done", **about, arguments=arguments),))
        else:
            delta = {**about, "content_index": 0}
            pieces += [(_event("response.output_text.delta", **delta, delta=piece),) for piece in answer.pieces]
    return Streamed(
        (_event("response.created", response=_response(request, serial)), _begun(items[0], empty, 0)),
        tuple(pieces),
        (
            _event("response.output_item.done", output_index=len(items) - 1, item=items[-1]),
            _event("response.completed", response=_whole(request, answer, serial)),
        ),
    )


def _begun(item: dict[str, Any], empty: dict[str, Any], index: int) -> Event:
    return _event("response.output_item.added", output_index=index, item={**item, **empty, "status": "in_progress"})


RESPONSES: Final = Dialect("responses", _read_request, _whole, _streamed, failed, models)
