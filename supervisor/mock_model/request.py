"""Requests to a model and answers, in a form that is independent of a provider's API. Pure.

The functions at the end of this module read any JSON that a client sends: these functions never raise, and treat values
of the wrong type as missing. :class:`BadRequest` is raised for a request that a provider would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from supervisor.mock_model.answers import Fail, Spent, has_script


class BadRequest(Exception):
    """Error: a provider would answer the request with status 400, because of *problem* in *field*."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class Tool(msgspec.Struct, frozen=True):
    """Tool that the client offers to the model, with the JSON schema of the tool's arguments, and the tool's
    *namespace* if the API has namespaces."""

    name: str
    schema: dict[str, Any] = {}
    namespace: str = ""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the model. ``text`` is the newest text of the user that contains a script, else the newest text of the
    user; ``results`` counts the tool results after ``text``."""

    dialect: str
    model: str
    stream: bool
    text: str
    prompts: tuple[str, ...] = ()
    """Texts of the user in the conversation that contain a script, the oldest first."""
    results: int = 0
    messages: int = 0
    """Length of the conversation that came with the request; a client that forgot its conversation sends a short
    one."""
    tools: tuple[Tool, ...] = ()
    schema: dict[str, Any] | None = None
    """JSON schema that the client demands for the text of the answer, if any."""


class Call(msgspec.Struct, frozen=True):
    """Call of one of the client's tools, as the content of an answer."""

    tool: Tool
    arguments: dict[str, Any]


class Ending(StrEnum):
    """Kind of end of an answer: complete, silence after the answer's beginning, silence without a beginning, connection
    cut, or end missing."""

    WHOLE = "whole"
    HANG = "hang"
    MUTE = "mute"
    TORN = "torn"
    UNFINISHED = "unfinished"


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the model: pieces of text with a pause after each piece, or tool calls. ``cut_bytes`` is the number of
    bytes of the body after which a torn answer is cut; ``None``: behind the pieces."""

    pieces: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    cut_bytes: int | None = None
    pause_s: float = 0.0
    ending: Ending = Ending.WHOLE
    spent: Spent = Spent()

    @property
    def text(self) -> str:
        return "".join(self.pieces)


Reply = ModelAnswer | Fail


class ScriptInForce(NamedTuple):
    """Text with the current script, the number of tool results after that text, and all texts with a script."""

    text: str
    results: int
    prompts: tuple[str, ...]


def script_in_force(said: Iterable[tuple[str, int]]) -> ScriptInForce:
    """Return the current script of a conversation.

    *said* lists each text of the user, and each count of tool results, in order. Agents add texts (reminders, settings)
    after the user's own text, so the newest text that contains a script counts.
    """
    text, results = "", 0
    prompts: list[str] = []
    for words, count in said:
        has = bool(words) and has_script(words)
        if has:
            prompts.append(words)
        if has or (words and not prompts):
            text, results = words, 0
        results += count
    return ScriptInForce(text, results, tuple(prompts))


# ----------------------------------------------------------------------------------------------- JSON of anybody's
def mapping(value: object) -> dict[str, Any]:
    """Return *value* if *value* is a JSON object, else an empty object."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """Return the JSON objects in the list *value*; an empty list if *value* is not a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def word(value: object) -> str:
    """Return *value* if *value* is a text, else ``""``."""
    return value if isinstance(value, str) else ""


def flat(content: object) -> str:
    """Return the text of a message's content: a string, or parts with a ``text`` each."""
    if isinstance(content, str):
        return content
    return "\n".join(word(part.get("text")) for part in objects(content))
