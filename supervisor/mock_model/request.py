"""Requests to a model and answers, in a form that is independent of a provider's API. Pure.

The functions at the end of this module read any JSON that a client sends: these functions never raise, and treat values
of the wrong type as missing. :class:`BadRequest` is raised for a request that a provider would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

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
    """Answer of the model: pieces of text with a pause after each piece, or a tool call."""

    pieces: tuple[str, ...] = ()
    call: Call | None = None
    pause_s: float = 0.0
    ending: Ending = Ending.WHOLE
    spent: Spent = Spent()

    @property
    def text(self) -> str:
        return "".join(self.pieces)


Reply = ModelAnswer | Fail


def script_in_force(said: Iterable[tuple[str, int]]) -> tuple[str, int]:
    """Return the text with the current script, and the number of tool results after that text.

    *said* lists each text of the user, and each count of tool results, in order. Agents add texts (reminders, settings)
    after the user's own text, so the newest text that contains a script counts.
    """
    text, results, scripted = "", 0, False
    for words, count in said:
        if words and (has_script(words) or not scripted):
            text, results, scripted = words, 0, scripted or has_script(words)
        results += count
    return text, results


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
