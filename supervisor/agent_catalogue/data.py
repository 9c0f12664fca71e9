"""Data files about agents: TOML, read whole, checked by a model, and refused with the file, the field and the fix.

What a file says is data: it names words, paths and arguments, and nothing in it is ever run or evaluated.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

__all__ = ["BYTES_MAX", "BadData", "Data", "Word", "Words", "read_data"]

BYTES_MAX: Final = 256 * 1024
"""The most that a data file may have: the longest of ours has a few kB."""


class BadData(ValueError):
    """A data file that says what it may not: one line per problem, each with the file and the field."""


class Data(BaseModel):
    """A part of a data file: no key but its own, and nothing of it changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _sound(word: str) -> str:
    if "\0" in word:
        raise ValueError("holds a NUL character, which no program can be given; remove it")
    return word


def _listed(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


Word = Annotated[str, AfterValidator(_sound)]
Words = Annotated[tuple[Word, ...], BeforeValidator(_listed)]
"""Several words; one of them may stand alone."""

Model = TypeVar("Model", bound=Data)


def read_data(path: Path, model: type[Model]) -> Model:
    """The file at *path* as *model* has it.

    Raises:
        BadData: it is missing, too big, no TOML, or says what the model does not take.
    """
    try:
        return model.model_validate(_parsed(path))
    except ValidationError as error:
        raise BadData("\n".join(f"{path}: {words}" for words in _complaints(error))) from None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise BadData(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > BYTES_MAX:
        raise BadData(f"{path}: is larger than {BYTES_MAX} bytes, the most it may have")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadData(f"{path}: is no TOML: {error}") from None


def _complaints(error: ValidationError) -> list[str]:
    found = [one for one in error.errors(include_url=False) if one["type"] != "too_short" or not one["input"]]
    return [f"{_spelled(one['loc'])}: {_words(one)}" for one in found]  # a list of bad items is not a short one


def _spelled(path: tuple[int | str, ...]) -> str:
    """The path as a person writes it. After the number of an item pydantic says which kind of item it is: left out."""
    text = ""
    for place, part in enumerate(path):
        if part == "[key]" or (place and isinstance(path[place - 1], int) and path[place - 2] == "rules"):
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def _words(one: Any) -> str:
    match one["type"]:
        case "extra_forbidden":
            return "unknown key; remove it, or look at docs/how-to/agents.md for what may stand here"
        case "missing":
            return "missing; docs/how-to/agents.md says what it is"
        case "union_tag_not_found":
            return "says: missing; say what a line means that the rule fits, for example text"
        case "union_tag_invalid":
            wanted = one["ctx"]["expected_tags"].replace("'", "")
            return f"says: {one['ctx']['tag']!r} is not one of {wanted}"
        case "value_error":
            return str(one["ctx"]["error"])
        case _:
            return f"{_shown(one['input'])}: {one['msg'][:1].lower()}{one['msg'][1:]}"


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."
