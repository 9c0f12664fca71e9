"""Bodies of errors and of the list of models, which OpenAI's two APIs (chat completions and responses) share. Pure."""

from __future__ import annotations

from typing import Any, Final

from supervisor.mock_model.answers import Fail
from supervisor.mock_model.dialects.sse import MODEL

CREATED: Final = 1_735_689_600
"""Creation time (Unix time) in all answers of OpenAI's APIs; constant."""
_KINDS: Final[dict[int, tuple[str, str | None, str]]] = {
    400: ("invalid_request_error", None, "Bad request"),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "unsupported_country_region_territory", "Not allowed."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
    413: ("invalid_request_error", None, "Request too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests. Please try again in 1s."),
    500: ("server_error", None, "The server had an error while processing your request. Sorry about that!"),
    503: ("service_unavailable_error", "server_is_overloaded", "Our servers are currently overloaded."),
}
_WHYS: Final[dict[str, tuple[str, str | None, str]]] = {
    "context": (
        "invalid_request_error",
        "context_length_exceeded",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    "quota": (
        "insufficient_quota",
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
    ),
}


def failed(fail: Fail, message: str, field: str) -> dict[str, Any]:
    """Return the body of an error, from the failure, a message (``""`` for the usual text) and the field at fault."""
    usual = (
        "server_error" if fail.status >= 500 else "invalid_request_error",
        None,
        f"stub: status {fail.status}",
    )
    kind, code, words = _WHYS.get(fail.why) or _KINDS.get(fail.status, usual)
    if message:
        code, words = None, message
    return {"error": {"message": words, "type": kind, "param": field or None, "code": code}}


def models() -> dict[str, Any]:
    """Return the body of the list of models. codex reads ``models``; with an empty list there, codex uses its built-in
    list."""
    one = {"id": MODEL, "object": "model", "created": CREATED, "owned_by": "stub"}
    return {"object": "list", "data": [one], "models": []}
