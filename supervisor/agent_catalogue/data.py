"""Read data files about agents: TOML, validated by a model; errors name the file, the field and the fix.

A file holds only data (words, paths and arguments); nothing in a file is run or evaluated.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

BYTES_MAX: Final = 256 * 1024
"""Largest size of a data file in bytes; the files of this package have a few kB."""


class BadData(ValueError):
    """Exception: a data file is invalid; the message has one line for each problem, with the file and the field."""


class Data(BaseModel):
    """Base class for parts of a data file: immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def _sound(word: str) -> str:
    if "\0" in word:
        raise ValueError("contains a NUL character, which cannot be passed to a program; remove it")
    return word


Word = Annotated[str, AfterValidator(_sound)]
Words = Annotated[tuple[Word, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]
"""Type of a field with several words; a single word is accepted too."""

Model = TypeVar("Model", bound=Data)


def read_data(path: Path, model: type[Model]) -> Model:
    """Read the file at *path* and validate it as *model*.

    Raises:
        BadData: the file is missing, too big, not TOML, or not valid for the model.
    """
    try:
        if path.exists() and not path.is_file():  # the read of a pipe or a device may last for ever
            raise BadData(f"{path}: is no file; give the path of a file")
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise BadData(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > BYTES_MAX:
        raise BadData(f"{path}: is larger than {BYTES_MAX} bytes, the maximum")
    try:
        return model.model_validate(tomllib.loads(data.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadData(f"{path}: is not TOML: {error}") from None
    except ValidationError as error:
        # a list of bad items is not a short one
        found = [one for one in error.errors(include_url=False) if one["type"] != "too_short" or not one["input"]]
        lines = [f"{path}: {_spelled(one['loc'])}: {_describe(one)}" for one in found]
        raise BadData("\n".join(lines)) from None


def _spelled(path: tuple[int | str, ...]) -> str:
    """Return the path of a field in the form in which a person would write it. After a list index pydantic inserts the
    name of the item's type, which is left out."""
    text = ""
    for place, part in enumerate(path):
        if part == "[key]" or (place and isinstance(path[place - 1], int) and path[place - 2] == "rules"):
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def _describe(one: Any) -> str:
    match one["type"]:
        case "extra_forbidden":
            return "unknown key; remove it (docs/how-to/agents.md lists the keys)"
        case "missing":
            return "missing; add it (docs/how-to/agents.md describes it)"
        case "union_tag_not_found":
            return "says: missing; name the fact that the rule reports, for example text"
        case "union_tag_invalid":
            wanted = one["ctx"]["expected_tags"].replace("'", "")
            return f"says: {one['ctx']['tag']!r} is not one of {wanted}"
        case "value_error":
            return str(one["ctx"]["error"])
        case _:
            text = repr(one["input"])
            return f"{text if len(text) <= 60 else f'{text[:57]}...'}: {one['msg'][:1].lower()}{one['msg'][1:]}"
