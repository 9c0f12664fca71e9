"""Interface of a provider's API: a reader of requests, and writers of answers, streams and errors. Pure.

A stream consists of an opening, one group of events for each piece of the answer, and a closing, so that the sender can
pause, stop or cut the stream between any two of these parts. ``serial`` makes the ids in an answer unique.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from supervisor.mock_model.answers import Fail
from supervisor.mock_model.request import BadRequest, ModelAnswer, ModelRequest

MODEL = "stub-model"


class Event(NamedTuple):
    """Server-sent event: the data, which are sent as JSON unless they are a text, and the name, if the API names
    events."""

    data: dict[str, Any] | str
    name: str = ""

    def encoded(self) -> bytes:
        head = f"event: {self.name}\n" if self.name else ""
        data = self.data if isinstance(self.data, str) else json.dumps(self.data)
        return f"{head}data: {data}\n\n".encode()


class Streamed(NamedTuple):
    """Answer of the model as a stream of events."""

    opening: tuple[Event, ...]
    pieces: tuple[tuple[Event, ...], ...]
    closing: tuple[Event, ...]


class Dialect(NamedTuple):
    """API of a model provider, as a set of functions.

    ``read_request`` reads the path and the body of a request, and raises BadRequest for an invalid request. ``failed``
    returns the body of an error in the provider's form, from the failure, a message of the model server (``""`` for the
    provider's usual message) and the field at fault.
    """

    name: str
    read_request: Callable[[str, dict[str, Any]], ModelRequest]
    whole: Callable[[ModelRequest, ModelAnswer, str], dict[str, Any]]
    streamed: Callable[[ModelRequest, ModelAnswer, str], Streamed]
    failed: Callable[[Fail, str, str], dict[str, Any]]
    models: Callable[[], dict[str, Any]]


def needs_list(body: dict[str, Any], field: str, problem: str = "Field required") -> list[Any]:
    """Return the list in *field* of a request's body.

    Raises:
        BadRequest: the field is missing or is not a list.
    """
    value = body.get(field)
    if not isinstance(value, list):
        raise BadRequest(field, problem if value is None else "Input should be a valid list")
    return value


def needs_word(body: dict[str, Any], field: str, problem: str = "Field required") -> str:
    """Return the text in *field* of a request's body.

    Raises:
        BadRequest: the field is missing, is not a text, or is empty.
    """
    value = body.get(field)
    if not isinstance(value, str) or not value:
        raise BadRequest(field, problem if value is None else "Input should be a valid string")
    return value
