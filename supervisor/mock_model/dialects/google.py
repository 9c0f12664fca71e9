"""Google's ``POST /v1beta/models/MODEL:generateContent`` and ``:streamGenerateContent``, streamed as events. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from supervisor.mock_model.answers import NO_TIME, Fail, Spent
from supervisor.mock_model.dialects.sse import MODEL, Dialect, Event, Streamed, needs_list
from supervisor.mock_model.request import ModelAnswer, ModelRequest, Tool, mapping, objects, script_in_force, word

_STATUSES: Final = {
    400: ("INVALID_ARGUMENT", "Request contains an invalid argument."),
    401: ("UNAUTHENTICATED", "Request had invalid authentication credentials."),
    403: ("PERMISSION_DENIED", "The caller does not have permission."),
    404: ("NOT_FOUND", "The model is not found for API version v1beta."),
    413: ("INVALID_ARGUMENT", "Request payload size exceeds the limit."),
    429: ("RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."),
    500: ("INTERNAL", "An internal error has occurred."),
    503: ("UNAVAILABLE", "The model is overloaded. Please try again later."),
    504: ("DEADLINE_EXCEEDED", "The request timed out."),
}
_WHYS: Final = {
    "context": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "quota": "You exceeded your current quota, please check your plan and billing details.",
}
_INFO: Final = "type.googleapis.com/google.rpc."


def _read_request(path: str, body: dict[str, Any]) -> ModelRequest:
    contents = needs_list(body, "contents", "contents is not specified")
    script = script_in_force(_user_texts(objects(contents)))
    config = mapping(body.get("generationConfig"))
    model, _, verb = path.rpartition("/")[2].partition(":")
    return ModelRequest(
        dialect="google",
        model=model,
        stream=verb.startswith("stream"),
        text=script.text,
        prompts=script.prompts,
        results=script.results,
        messages=len(contents),
        tools=tuple(_tools(objects(body.get("tools")))),
        schema=mapping(config.get("responseJsonSchema") or config.get("responseSchema")) or None,
    )


def _user_texts(contents: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    for content in contents:
        if content.get("role", "user") != "model":
            for part in objects(content.get("parts")):
                yield word(part.get("text")), int("functionResponse" in part)


def _tools(tools: list[dict[str, Any]]) -> Iterator[Tool]:
    for tool in tools:
        for one in objects(tool.get("functionDeclarations")):
            yield Tool(word(one.get("name")), mapping(one.get("parametersJsonSchema") or one.get("parameters")))


def _usage(spent: Spent) -> dict[str, int]:
    return {
        "promptTokenCount": spent.input_tokens,
        "candidatesTokenCount": spent.output_tokens,
        "totalTokenCount": spent.input_tokens + spent.output_tokens,
    }


def _candidate(parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0, **more}], "modelVersion": MODEL}


def _parts(answer: ModelAnswer, serial: str) -> list[dict[str, Any]]:
    if not answer.calls:
        return [{"text": answer.text}]
    return [
        {"functionCall": {"id": f"fc_{serial}_{number}", "name": one.tool.name, "args": one.arguments}}
        for number, one in enumerate(answer.calls)
    ]


def _whole(request: ModelRequest, answer: ModelAnswer, serial: str) -> dict[str, Any]:
    parts = _parts(answer, serial)
    return {**_candidate(parts, finishReason="STOP"), "usageMetadata": _usage(answer.spent)}


def _streamed(request: ModelRequest, answer: ModelAnswer, serial: str) -> Streamed:
    """Return the answer as a stream: without an opening; the last event contains the reason for the end and the
    usage."""
    groups = [_parts(answer, serial)] if answer.calls else [[{"text": piece}] for piece in answer.pieces]
    last = {**_candidate([{"text": ""}], finishReason="STOP"), "usageMetadata": _usage(answer.spent)}
    return Streamed((), tuple((Event(_candidate(parts)),) for parts in groups), (Event(last),))


def _failed(fail: Fail, message: str, field: str) -> dict[str, Any]:
    status, words = _STATUSES.get(fail.status, ("UNKNOWN", f"stub: status {fail.status}"))
    error: dict[str, Any] = {
        "code": fail.status,
        "message": message or _WHYS.get(fail.why, words),
        "status": status,
    }
    if fail.status == 429 and fail.retry_after_s != NO_TIME:
        wait_s = 1.0 if fail.retry_after_s is None else fail.retry_after_s
        error["details"] = [{"@type": f"{_INFO}RetryInfo", "retryDelay": f"{wait_s:g}s"}]
    if field:
        broken = [{"field": field, "description": message}]
        error["details"] = [{"@type": f"{_INFO}BadRequest", "fieldViolations": broken}]
    return {"error": error}


def _models() -> dict[str, Any]:
    methods = ["generateContent", "countTokens"]
    limits = {"inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536}
    one = {"name": f"models/{MODEL}", "displayName": "Stub", "supportedGenerationMethods": methods, **limits}
    return {"models": [one]}


GOOGLE: Final = Dialect("google", _read_request, _whole, _streamed, _failed, _models)
