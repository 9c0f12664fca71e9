"""A request of a dialect in words of our own, and an answer before it is put into that dialect's. Pure.

Whatever JSON a client sends is read by the functions at the end: they never raise, and what is not of the right form
is not there. What a provider would refuse is :class:`BadRequest`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from supervisor.mock_model.answers import Fail, Spent, has_script

__all__ = [
    "BadRequest",
    "Call",
    "Ending",
    "ModelAnswer",
    "ModelRequest",
    "Reply",
    "Tool",
    "flat",
    "mapping",
    "objects",
    "script_in_force",
    "word",
]


class BadRequest(Exception):
    """The provider would answer 400: *field* is what is wrong, *problem* why."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class Tool(msgspec.Struct, frozen=True):
    """A tool that the client offers, with the JSON schema of its arguments; *namespace* where the dialect has such."""

    name: str
    schema: dict[str, Any] = {}
    namespace: str = ""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asked: the newest text of its user that is a script (else the newest), and how many results of
    tools came after it."""

    dialect: str
    model: str
    stream: bool
    text: str
    results: int = 0
    messages: int = 0
    """How long the conversation is that came with it: a client that forgot it sends a short one."""
    tools: tuple[Tool, ...] = ()
    schema: dict[str, Any] | None = None
    """The form that the client demands of the text, if any."""


class Call(msgspec.Struct, frozen=True):
    """A call of one of the client's tools."""

    tool: Tool
    arguments: dict[str, Any]


class Ending(StrEnum):
    """How an answer ends: whole, in silence after its beginning, in silence before it, torn, or without its end."""

    WHOLE = "whole"
    HANG = "hang"
    MUTE = "mute"
    TORN = "torn"
    UNFINISHED = "unfinished"


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the model: pieces of text with a pause after each, or a call."""

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
    """The script in force, and the results since: *said* is each text of the user, and each count of results, in order.

    Agents add texts of their own after the user's (reminders, settings), so the newest one that is a script counts.
    """
    text, results, scripted = "", 0, False
    for words, count in said:
        if words and (has_script(words) or not scripted):
            text, results, scripted = words, 0, scripted or has_script(words)
        results += count
    return text, results


# ----------------------------------------------------------------------------------------------- JSON of anybody's
def mapping(value: object) -> dict[str, Any]:
    """*value* if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """The objects in a list; none, if it is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def word(value: object) -> str:
    """*value* if it is a text, else none."""
    return value if isinstance(value, str) else ""


def flat(content: object) -> str:
    """The text of a message's content: a string, or parts with a ``text`` each."""
    if isinstance(content, str):
        return content
    return "\n".join(word(part.get("text")) for part in objects(content))
