"""Reference page of the HTTP API, made from its OpenAPI document: ``python -m supervisor.control.http.reference FILE``.

A test fails when the page in the repository is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from supervisor.control.http.app import make_routes

_INTRODUCTION: Final = """# HTTP API

Generated from the OpenAPI document by `make http-api`; a running supervisor serves the document at `/openapi.json`.
[Use the HTTP API](../../how-to/http.md) says how to reach it and who may do what; [the event
stream](../../how-to/event-stream.md) has the contract of `/api/v1/events`. Every status above 399 has the body
[ErrorReply](#errorreply).
"""
_TAGS: Final = {"queries": "Queries", "commands": "Commands", "events": "Events", "health": "Health"}

Document = Mapping[str, Any]


def page() -> str:
    """Return the page as Markdown."""
    document = make_routes().openapi()
    schemas = document["components"]["schemas"]
    values = {f"#/components/schemas/{name}": one for name, one in schemas.items() if "enum" in one}
    document = _inlined(document, values)
    lines = [_INTRODUCTION]
    for tag, title in _TAGS.items():
        lines.append(f"## {title}\n")
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if operation["tags"][-1] == tag:
                    lines += _operation(f"{method.upper()} {path}", operation, document)
    lines.append("## Schemas\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        if schema.get("properties") and not name.endswith("Body") and name != "Execution":
            lines += [f"### {name}\n", f"{_text(schema)}\n", *_table("field", _fields(schema))]
    return "\n".join(lines).rstrip() + "\n"


def _inlined(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of the document in which lists of *values* stand in the place of references to them."""
    if isinstance(part, dict):
        return values[part["$ref"]] if part.get("$ref") in values else {k: _inlined(v, values) for k, v in part.items()}
    return [_inlined(one, values) for one in part] if isinstance(part, list) else part


def _operation(title: str, operation: Document, document: Document) -> Iterator[str]:
    yield f"### {title}\n"
    yield f"{_text(operation)}\n"
    given = [
        (one["name"], _type(one["schema"]), one.get("required", False), _text(one))
        for one in operation.get("parameters", ())
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        reference = next(one for one in (body, *body.get("anyOf", ())) if "$ref" in one)["$ref"]
        given += _fields(document["components"]["schemas"][reference.rpartition("/")[2]])
    yield from _table("parameter or field", given)
    for status, reply in operation["responses"].items():
        if int(status) < 400:
            content = reply.get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            yield f"Reply {status}: {_type(schema) if schema else ', '.join(content)}.\n"


def _fields(schema: Document) -> list[tuple[str, str, bool, str]]:
    needed = schema.get("required", ())
    return [(name, _type(one), name in needed, _text(one)) for name, one in schema["properties"].items()]


def _table(title: str, rows: list[tuple[str, str, bool, str]]) -> Iterator[str]:
    if rows:
        yield f"| {title} | type | needed | meaning |\n|---|---|---|---|"
        for name, kind, needed, text in rows:
            yield f"| `{name}` | {kind} | {'yes' if needed else ''} | {text} |".replace("|  |", "| |")
        yield ""


def _text(one: Document) -> str:
    return " ".join(str(one.get("description", "")).split()).replace("|", "\\|")


def _type(schema: Document) -> str:
    """Return a type for people: a link to a schema, a list of values, or the type of JSON."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return str(schema.get("type", "any"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
