"""Map a request's method, path and headers to a provider's API and an endpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from supervisor.mock_model.dialects import ANTHROPIC, CHAT, GOOGLE, RESPONSES, Dialect


class Endpoint(StrEnum):
    """Kind of endpoint of a request: an answer of the model, a token count, the list of models, a health check, or an
    unknown path."""

    ANSWER = "answer"
    COUNT = "count"
    MODELS = "models"
    ALIVE = "alive"
    UNKNOWN = "unknown"


class Route(NamedTuple):
    """Provider's API and kind of endpoint of a request."""

    dialect: Dialect
    endpoint: Endpoint


def route(method: str, target: str, headers: Mapping[str, str]) -> Route:
    """Return the route of a request. Prefixes before the known part of a path are ignored."""
    path = target.partition("?")[0].rstrip("/")
    dialect = _dialect(path, headers)
    if method == "POST":
        return Route(dialect, _posted(path))
    if method in ("GET", "HEAD"):
        if "/models" in path:
            return Route(dialect, Endpoint.MODELS)
        return Route(dialect, Endpoint.UNKNOWN if path else Endpoint.ALIVE)
    return Route(dialect, Endpoint.UNKNOWN)


def _posted(path: str) -> Endpoint:
    if path.endswith(("/messages", "/chat/completions", "/responses", ":generateContent", ":streamGenerateContent")):
        return Endpoint.ANSWER
    return Endpoint.COUNT if path.endswith(("/count_tokens", ":countTokens")) else Endpoint.UNKNOWN


def _dialect(path: str, headers: Mapping[str, str]) -> Dialect:
    """Return the API of a request by the path. The list of models has the same path in two APIs; there the header
    ``anthropic-version`` decides."""
    if "/v1beta" in path or "enerateContent" in path or path.endswith(":countTokens"):
        return GOOGLE
    if "/messages" in path or "anthropic-version" in headers:
        return ANTHROPIC
    return RESPONSES if path.endswith("/responses") else CHAT
