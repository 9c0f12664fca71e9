"""What a model refused, in our words: the field, the value, and what would be right. Pure.

Every kind of refusal that the plan's models can make has words of its own here; another one keeps the model's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ValidationError

from supervisor.plan_source import FieldPath, Source

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["Problem", "Problems", "complaints"]

Problem = tuple[FieldPath, str]
"""A field, and what is wrong with it."""

ModelAt = Callable[[FieldPath], type[BaseModel] | None]

_WANTED: Final = {
    "agents": "a mapping of names to agents, for example {helper: {adapter: scripted}}",
    "tasks": "a list of tasks, for example [{id: hello, agent: helper, prompt: '@say hello'}]",
    "adapter": "one of command, acp, scripted",
    "id": "a name of its own, for example build",
    "agent": "the name of one of the agents",
    "command": "the argv as a list, for example [git, status]",
    "depends_on": "a list of task ids, for example [build]",
    "inherit_env": "a list of names of variables, for example [PATH, HOME]",
    "env": "a mapping of variables to their values, for example {LANG: C}",
    "acceptance": "a list of tests, for example [{unit_tests: [pytest, -q]}]",
    "unit_tests": "the argv as a list, for example [pytest, -q]",
    "lint": "the argv as a list, for example [ruff, check]",
    "policy": "a mapping, for example {tool_to_sibling: true}",
    "ladder": "a mapping, for example {request_s: 5}",
    "limits": "a mapping, for example {turn_timeout_s: 600}",
}


class Problems(ValueError):
    """What a model found wrong across its fields, by their paths within it."""

    def __init__(self, found: Iterable[Problem]) -> None:
        self.found = tuple(found)
        super().__init__("; ".join(words for _, words in self.found))


def complaints(error: ValidationError, source: Source, model_at: ModelAt) -> Iterator[Problem]:
    """Each refusal as a problem of the plan that *source* holds."""
    for one in error.errors(include_url=False):
        path: FieldPath = one["loc"]
        cause = one.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            yield from (((*path, *inner), words) for inner, words in cause.found)
        elif path and path[-1] == "[key]":
            yield path[:-1], _bad_name(path[-2])
        elif one["type"] != "too_short" or not one["input"]:  # a list of bad items is not a short one
            yield path, _words(one, path, source, model_at)


def _words(one: ErrorDetails, path: FieldPath, source: Source, model_at: ModelAt) -> str:
    field, given, context = str(path[-1]) if path else "", one["input"], one.get("ctx", {})
    match one["type"]:
        case "extra_forbidden":
            return f"unknown key; {_known_keys(field, model_at(path[:-1]))}"
        case "missing":
            return f"missing; give {_wanted(path)}"
        case "literal_error":
            return f"{_shown(given)} is not one of {_choices(context['expected'])}{_guess(given, context['expected'])}"
        case "greater_than_equal":
            return _too_small(field, given)
        case "finite_number":
            return f"{given} is not a length of time; give seconds >= 0"
        case "string_pattern_mismatch":
            return _bad_name(given)
        case "too_short":
            return f"is empty; give {_wanted(path)}"
        case "string_type":
            return _not_text(given, source.written(path))
        case "value_error":
            return str(context["error"])
        case "int_type" | "float_type" | "int_from_float" | "bool_type":
            return f"{_shown(given)} is {_kind(given)}; give {_number(field, one['type'])}"
        case "tuple_type" | "dict_type" | "mapping_type" | "model_type" | "model_attributes_type":
            return f"{_shown(given)} is {_kind(given)}; give {_wanted(path)}"
        case _:
            return f"{_shown(given)}: {one['msg']}"


def _known_keys(key: str, model: type[BaseModel] | None) -> str:
    fields = model.model_fields if model else {}
    known = sorted(fields, key=lambda name: not fields[name].is_required())
    near = get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"the keys here are {', '.join(known)}"


def _wanted(path: FieldPath) -> str:
    field = next((part for part in reversed(path) if isinstance(part, str)), "")
    if field == "tasks" and isinstance(path[-1], int):
        return "a task, for example {id: hello, agent: helper, prompt: '@say hello'}"
    if len(path) == 2 and path[0] == "agents":
        return "an agent, for example {adapter: scripted}"
    return _WANTED.get(field, "a value")


def _choices(expected: str) -> str:
    return expected.replace("'", "").replace(" or ", ", ")


def _guess(given: Any, expected: str) -> str:
    near = get_close_matches(given, _choices(expected).split(", "), n=1) if isinstance(given, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _too_small(field: str, given: Any) -> str:
    if field.endswith("_s"):
        return f"{given} is negative; give seconds >= 0"
    if field.endswith("_ms"):
        return f"{given} is negative; give milliseconds >= 0"
    return f"{given} is too small; give 1 or more"


def _number(field: str, kind: str) -> str:
    if kind == "bool_type":
        return "true or false"
    if field.endswith("_s"):
        return "seconds >= 0, for example 2.5"
    return "milliseconds >= 0, for example 500" if field.endswith("_ms") else "a whole number, for example 3"


def _not_text(given: Any, written: str | None) -> str:
    if isinstance(given, dict | list) or written is None:
        return f"{_shown(given)} is {_kind(given)}; give text"
    if written == "":
        return "has no value; give text, or '' for none"
    return f"{written} is read as {_kind(given)}; quote it to make it text: {written!r}"


def _bad_name(given: object) -> str:
    rule = "it must begin with a letter or a digit and have at most 64 letters, digits and _ . -"
    return f"{given!r} cannot be a name: {rule}"


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(given: Any) -> str:
    match given:
        case None:
            return "no value"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(given).__name__}"
