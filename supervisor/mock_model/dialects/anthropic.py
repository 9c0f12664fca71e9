"""Anthropic's Messages API: ``POST /v1/messages``, as in its public reference. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from supervisor.mock_model.answers import Fail, Spent
from supervisor.mock_model.dialects.sse import MODEL, Dialect, Event, Streamed, needs_list, needs_word
from supervisor.mock_model.request import ModelAnswer, ModelRequest, Tool, flat, mapping, objects, script_in_force, word

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_MESSAGES: Final = {
    401: "invalid x-api-key",
    413: "Request exceeds the maximum size",
    429: "This request would exceed the rate limit for your organization",
    500: "Internal server error",
    529: "Overloaded",
}
_WHYS: Final = {
    "context": "prompt is too long: 250000 tokens > 200000 maximum",
    "quota": "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing.",
}


def _read_request(path: str, body: dict[str, Any]) -> ModelRequest:
    model = needs_word(body, "model")
    messages = needs_list(body, "messages")
    script = script_in_force(_user_texts(objects(messages)))
    return ModelRequest(
        dialect="anthropic",
        model=model,
        stream=body.get("stream") is True,
        text=script.text,
        prompts=script.prompts,
        results=script.results,
        messages=len(messages),
        tools=tuple(
            Tool(word(tool.get("name")), mapping(tool.get("input_schema"))) for tool in objects(body.get("tools"))
        ),
        schema=_form(body),
    )


def _user_texts(messages: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    for message in messages:
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            yield content, 0
        for block in objects(content):
            yield flat([block]) if block.get("type") == "text" else "", int(block.get("type") == "tool_result")


def _form(body: dict[str, Any]) -> dict[str, Any] | None:
    wanted = mapping(mapping(body.get("output_config")).get("format")) or mapping(body.get("output_format"))
    return mapping(wanted.get("schema")) or None


def _usage(spent: Spent) -> dict[str, int]:
    return {
        "input_tokens": spent.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": spent.output_tokens,
    }


def _message(
    request: ModelRequest, answer: ModelAnswer, serial: str, content: list[dict[str, Any]], stop: str | None
) -> dict[str, Any]:
    return {
        "id": f"msg_{serial}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": _usage(answer.spent),
    }


def _blocks(answer: ModelAnswer, serial: str) -> list[dict[str, Any]]:
    if not answer.calls:
        return [{"type": "text", "text": answer.text}]
    return [
        {"type": "tool_use", "id": f"toolu_{serial}_{number}", "name": one.tool.name, "input": one.arguments}
        for number, one in enumerate(answer.calls)
    ]


def _stop(answer: ModelAnswer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def _whole(request: ModelRequest, answer: ModelAnswer, serial: str) -> dict[str, Any]:
    return _message(request, answer, serial, _blocks(answer, serial), _stop(answer))


def _event(kind: str, **fields: Any) -> Event:
    return Event({"type": kind, **fields}, kind)


def _streamed(request: ModelRequest, answer: ModelAnswer, serial: str) -> Streamed:
    empty: dict[str, Any] = {"input": {}} if answer.calls else {"text": ""}
    blocks = [{**block, **empty} for block in _blocks(answer, serial)]
    if answer.calls:
        deltas = [[{"type": "input_json_delta", "partial_json": json.dumps(one.arguments)}] for one in answer.calls]
    else:
        deltas = [[{"type": "text_delta", "text": piece} for piece in answer.pieces]]
    pieces: list[tuple[Event, ...]] = []
    for index, (block, given) in enumerate(zip(blocks, deltas, strict=True)):
        if index:  # the first begins with the opening, the last ends with the closing
            pieces.append(
                (
                    _event("content_block_stop", index=index - 1),
                    _event("content_block_start", index=index, content_block=block),
                )
            )
        pieces += [(_event("content_block_delta", index=index, delta=delta),) for delta in given]
    return Streamed(
        (
            _event("message_start", message=_message(request, answer, serial, [], None)),
            _event("content_block_start", index=0, content_block=blocks[0]),
        ),
        tuple(pieces),
        (
            _event("content_block_stop", index=len(blocks) - 1),
            _event(
                "message_delta",
                delta={"stop_reason": _stop(answer), "stop_sequence": None},
                usage={"output_tokens": answer.spent.output_tokens},
            ),
            _event("message_stop"),
        ),
    )


def _failed(fail: Fail, message: str, field: str) -> dict[str, Any]:
    kind = _TYPES.get(fail.status, "invalid_request_error" if fail.status < 500 else "api_error")
    if fail.why == "quota":
        kind = "billing_error" if fail.status == 402 else "invalid_request_error"
    message = f"{field}: {message}" if field else message
    words = message or _WHYS.get(fail.why) or _MESSAGES.get(fail.status) or f"stub: status {fail.status}"
    return {"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_stub"}


def _models() -> dict[str, Any]:
    one = {"type": "model", "id": MODEL, "display_name": "Stub", "created_at": "2025-01-01T00:00:00Z"}
    return {"data": [one], "has_more": False, "first_id": MODEL, "last_id": MODEL}


ANTHROPIC: Final = Dialect("anthropic", _read_request, _whole, _streamed, _failed, _models)
