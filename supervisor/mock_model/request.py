"""Requests and answers independent of a provider's API. Pure.

The functions at the end read any JSON that a client sends: they never raise, and treat values of the wrong type as
missing. :class:`BadRequest` stands for what a provider would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from supervisor.mock_model.answers import Fail, Spent, has_script


class BadRequest(Exception):
    """The provider would answer 400 because of *problem* in *field*."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class Tool(msgspec.Struct, frozen=True):
    """Tool that the client offers, with the JSON schema of its arguments, and its *namespace* if the API has
    namespaces."""

    name: str
    schema: dict[str, Any] = {}
    namespace: str = ""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for an answer. ``text`` is the newest text of the user that contains a script, else the newest text;
    ``results`` counts the tool results after it."""

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
    """JSON schema that the client demands of the text, if any."""


class Call(msgspec.Struct, frozen=True):
    """Call of one of the client's tools."""

    tool: Tool
    arguments: dict[str, Any]


class Ending(StrEnum):
    """End of an answer: complete, silence after its beginning, silence before it, connection cut, or end missing."""

    WHOLE = "whole"
    HANG = "hang"
    MUTE = "mute"
    TORN = "torn"
    UNFINISHED = "unfinished"


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the model: pieces of text with a pause after each, or a call."""

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
    """Return the text with the current script, and the number of results since.

    *said* lists each text of the user, and each count of results, in order. Agents add texts of their own after the
    user's (reminders, settings), so the newest text that contains a script counts.
    """
    text, results, scripted = "", 0, False
    for words, count in said:
        if words and (has_script(words) or not scripted):
            text, results, scripted = words, 0, scripted or has_script(words)
        results += count
    return text, results


# ----------------------------------------------------------------------------------------------- JSON of anybody's
def mapping(value: object) -> dict[str, Any]:
    """Return *value* if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; empty if *value* is not a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def word(value: object) -> str:
    """Return *value* if it is a text, else ``""``."""
    return value if isinstance(value, str) else ""


def flat(content: object) -> str:
    """Return the text of a message's content: a string, or parts with a ``text`` each."""
    if isinstance(content, str):
        return content
    return "\n".join(word(part.get("text")) for part in objects(content))
