"""Errors of the HTTP API: every status above 399 has a body ``{"error": {"code", "message", "field", "fix"}}``.

The kinds of errors are those of the control socket (``operations.error_reply``), so that a refusal has the same text on
the command line and here. Errors of FastAPI and Starlette (a path that does not exist, a parameter that is not valid)
get the same form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from supervisor.control.error_messages import BadInput
from supervisor.control.operations import error_reply
from supervisor.plans.source import BadPlan
from supervisor.ports import JournalError
from supervisor.runtime.entity import Refused

STATUS: Final[Mapping[str, int]] = {"bad": 422, "unknown": 404, "refused": 409, "degraded": 503, "failed": 500}
"""Status of a response by the kind of the error."""
_CODES: Final[Mapping[int, str]] = {
    400: "malformed",
    401: "unauthenticated",
    403: "forbidden",
    404: "unknown",
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
    415: "malformed",
    422: "bad",
    429: "too_many",
    503: "busy",
}
_FIELD: Final = re.compile(r"^([A-Za-z_][A-Za-z_.\[\]0-9-]*): ")
"""Pattern of the field at the beginning of an error message."""
_SHOWN_MAX: Final = 60


class ErrorDetail(BaseModel):
    """Error of a request, and the fix."""

    code: str = Field(description=f"the kind of the error: {', '.join(dict.fromkeys([*_CODES.values(), *STATUS]))}")
    message: str = Field(description="the error as a sentence, with the field, the value and the fix")
    field: str | None = Field(description="the name of the field, parameter or header that is wrong; null for none")
    fix: str | None = Field(description="what to give or to do instead; null if the message says it all")


class ErrorReply(BaseModel):
    """Body of every response with a status above 399."""

    error: ErrorDetail = Field(description="the error")


class Problem(Exception):
    """Raised for a request that is answered with an error: its status, and the parts of the body. By default *code*
    follows from the status, and *field* and *fix* from the message."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str = "",
        field: str | None = None,
        fix: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        found = _FIELD.match(message)
        _, _, advice = message.partition("; ")
        self.status, self.headers = status, dict(headers or {})
        self.body = {
            "code": code or _CODES.get(status, "failed"),
            "message": message,
            "field": field or (found[1] if found else None),
            "fix": fix or advice or None,
        }

    def response(self) -> Response:
        content = msgspec.json.encode({"error": self.body})
        return Response(content, self.status, self.headers, media_type="application/json")


def problem_of(raised: Exception) -> Problem:
    """Return the problem for an exception of an operation or a query; a bug of the supervisor is logged, and has the
    status 500."""
    if isinstance(raised, Problem):
        return raised
    error = error_reply(raised)
    headers = {"Retry-After": "1"} if error["kind"] == "degraded" else {}
    return Problem(STATUS[error["kind"]], error["message"], code=error["kind"], headers=headers)


def add_error_handlers(app: FastAPI) -> None:
    """Make *app* answer every error in the form of this module."""
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    # Named one by one: what only ``Exception`` matches is raised again by Starlette, for the log of the server.
    for kind in (Problem, BadInput, BadPlan, LookupError, ValueError, Refused, JournalError, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    return problem_of(error).response()


async def _answer_http(request: Request, error: Exception) -> Response:
    """Answer an error of the framework itself: no such path, or no such method there."""
    assert isinstance(error, HTTPException)
    path, status = request.scope["path"], error.status_code
    match status:
        case 404:
            message = f"{path!r:.200}: there is no such path; /openapi.json lists the paths"
        case 405:
            message = f"{request.method} is not a method of {path!r:.200}; use {(error.headers or {}).get('Allow')}"
        case _:
            message = str(error.detail or HTTPStatus(status).phrase)
    return Problem(status, message, headers=error.headers).response()


async def _answer_invalid(request: Request, error: Exception) -> Response:
    """Answer a parameter that is not valid, or a body that is no JSON; of several errors the first."""
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = dict(error.errors()[0])
    where, name = first["loc"][0], str(first["loc"][-1])
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", first["msg"])
        return Problem(400, f"the body is not JSON: {why}; send one JSON object").response()
    if where == "body":
        return Problem(422, "the body is missing; send one JSON object", field="body").response()
    wanted = _description(request, name) or first["msg"].lower()
    value = f"{first['input']!r}"
    shown = value if len(value) <= _SHOWN_MAX else f"{value[: _SHOWN_MAX - 3]}..."
    return Problem(422, f"{name}: {shown} is not valid; give {wanted}", field=name).response()


def _description(request: Request, name: str) -> str:
    """Return the description of the parameter *name* of the route that the request has reached."""
    dependant = getattr(request.scope.get("route"), "dependant", None)
    if dependant is None:
        return ""
    parameters = [*dependant.query_params, *dependant.path_params, *dependant.header_params]
    found = next((one for one in parameters if one.alias == name), None)
    return str(found.field_info.description or "") if found is not None else ""
