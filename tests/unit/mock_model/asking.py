"""Client of the model server for the tests: requests in every API as plain bytes."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

import anyio.to_thread

WRITTEN = {"file_path": {"type": "string"}, "content": {"type": "string"}}
TOOLS = {"Bash": {"command": {"type": "string"}}, "Task": {"prompt": {"type": "string"}}, "Write": WRITTEN}
PATHS = {
    "anthropic": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "google": "/v1beta/models/stub-model:generateContent",
}
NAMES = list(PATHS)


class Answered(NamedTuple):
    """Response of the model server; ``whole`` is true if the response arrived to its end."""

    status: int
    headers: dict[str, str]
    text: str
    whole: bool

    @property
    def body(self) -> Any:
        return json.loads(self.text)

    @property
    def events(self) -> list[Any]:
        lines = [line[6:] for line in self.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


def body_of(dialect: str, prompt: str, *, stream: bool = False, results: int = 0) -> dict[str, Any]:
    """Return a request with a prompt, the tool calls made since the prompt, and their results."""
    return _BODIES[dialect](prompt, stream, results)


def _schema(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _anthropic(prompt: str, stream: bool, results: int) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
    for number in range(results):
        use = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "RUN[[not this]]"}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    tools = [{"name": name, "input_schema": _schema(fields)} for name, fields in TOOLS.items()]
    return {"model": "m", "max_tokens": 9, "stream": stream, "messages": messages, "tools": tools}


def _chat(prompt: str, stream: bool, results: int) -> dict[str, Any]:
    messages: list[Any] = [{"role": "system", "content": "RUN[[not this]]"}, {"role": "user", "content": prompt}]
    messages += [{"role": "tool", "tool_call_id": f"t{number}", "content": "out"} for number in range(results)]
    functions = [{"name": name, "parameters": _schema(fields)} for name, fields in TOOLS.items()]
    tools = [{"type": "function", "function": one} for one in functions]
    return {"model": "m", "stream": stream, "messages": messages, "tools": tools}


def _responses(prompt: str, stream: bool, results: int) -> dict[str, Any]:
    text = [{"type": "input_text", "text": prompt}]
    items: list[Any] = [{"type": "message", "role": "user", "content": text}]
    items += [{"type": "function_call_output", "call_id": f"t{number}", "output": "x"} for number in range(results)]
    own = ("Bash", "Write")
    tools: list[Any] = [{"type": "function", "name": one, "parameters": _schema(TOOLS[one])} for one in own]
    within = [{"type": "function", "name": "Task", "parameters": _schema(TOOLS["Task"])}]
    tools += [{"type": "namespace", "name": "collab", "tools": within}]
    return {"model": "m", "stream": stream, "input": items, "tools": tools}


def _google(prompt: str, stream: bool, results: int) -> dict[str, Any]:
    contents: list[Any] = [{"role": "user", "parts": [{"text": prompt}]}]
    result = {"functionResponse": {"name": "Bash", "response": {"output": "RUN[[not this]]"}}}
    contents += [{"role": "user", "parts": [result]} for _ in range(results)]
    tools = [{"name": name, "parametersJsonSchema": _schema(fields)} for name, fields in TOOLS.items()]
    return {"contents": contents, "tools": [{"functionDeclarations": tools}]}


_BODIES = {"anthropic": _anthropic, "chat": _chat, "responses": _responses, "google": _google}


async def ask(port: int, dialect: str, prompt: str, *, stream: bool = False, results: int = 0) -> Answered:
    """Send a request to the server in a thread, so that any event loop can wait for the answer."""
    path = PATHS[dialect]
    if stream and dialect == "google":
        path = path.replace(":generate", ":streamGenerate").replace("generateContent", "GenerateContent") + "?alt=sse"
    return await post(port, path, json.dumps(body_of(dialect, prompt, stream=stream, results=results)))


async def post(port: int, path: str, body: str | bytes, method: str = "POST", **headers: str) -> Answered:
    """Send any request to the server and return its response."""
    return await anyio.to_thread.run_sync(_request, port, path, body, method, headers)


def _request(port: int, path: str, body: str | bytes, method: str, headers: dict[str, str]) -> Answered:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, path, body, {"x-api-key": "sk-secret", **headers})
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        try:
            return Answered(response.status, fields, response.read().decode(), True)
        except http.client.IncompleteRead as error:
            return Answered(response.status, fields, error.partial.decode(), False)
    finally:
        connection.close()
