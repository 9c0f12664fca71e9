"""Which path is whose: the dialect and the business of a request, by its method, its path and its headers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from supervisor.mock_model.dialects import ANTHROPIC, CHAT, GOOGLE, RESPONSES, Dialect

__all__ = ["Endpoint", "Route", "route"]


class Endpoint(StrEnum):
    """What is wanted: an answer, a count of tokens, the models, a sign of life; or nothing that is here."""

    ANSWER = "answer"
    COUNT = "count"
    MODELS = "models"
    ALIVE = "alive"
    UNKNOWN = "unknown"


class Route(NamedTuple):
    """Whose dialect a request is in, and what it wants."""

    dialect: Dialect
    endpoint: Endpoint


def route(method: str, target: str, headers: Mapping[str, str]) -> Route:
    """Where a request belongs. Prefixes before the known part of a path are nobody's business."""
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
    """By the path; the list of models is at the same one for two of them, so the header of one of them decides."""
    if "/v1beta" in path or "enerateContent" in path or path.endswith(":countTokens"):
        return GOOGLE
    if "/messages" in path or "anthropic-version" in headers:
        return ANTHROPIC
    return RESPONSES if path.endswith("/responses") else CHAT
