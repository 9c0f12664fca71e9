"""Field types of a plan: texts, names, durations, counts, paths, each with its bounds.

A path is relative to the directory of the work and stays inside it. A symbolic link that leads out of the directory is
found later, when the directory is known (``supervisor.plans.loading``).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, Final, Protocol, Self, TypeVar, get_args

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    Strict,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from supervisor.plans.error_texts import FieldErrors, Problem
from supervisor.ports.path_safety import climbs

_PATTERN: Final = frozenset("*?")


def _sound(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character, which cannot be passed to a program; remove it")
    if any("\ud800" <= one <= "\udfff" for one in text):
        raise ValueError("contains half of a surrogate pair, which is not a character; write the whole character")
    return text


def _inside(path: str) -> str:
    """Return the normalized path, such as ``src`` for ``src/.//``; reject a path that leads out of the directory."""
    if not path:
        raise ValueError("is empty; give a path, for example src, or leave it out")
    if why := climbs(path):
        raise ValueError(f"{path!r} {why}; give a path relative to where the task works, for example src/parser.py")
    return posixpath.normpath(path)


def _no_pattern(path: str) -> str:
    if _PATTERN.intersection(path):
        raise ValueError(f"{path!r} is a pattern; name the files, or the directory that holds them")
    return path


Text = Annotated[str, AfterValidator(_sound)]
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
InnerPath = Annotated[Text, AfterValidator(_inside)]
OwnedPath = Annotated[Text, AfterValidator(_no_pattern), AfterValidator(_inside)]
Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Duration = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
"""Seconds, more than 0: nothing can be done in no time."""
Milliseconds = Annotated[int, Strict(), Field(ge=0)]
Count = Annotated[int, Strict(), Field(ge=1)]
Amount = Annotated[int, Strict(), Field(ge=0)]
Whole = Annotated[int, Strict(), Field(ge=-(2**31), lt=2**31)]
Share = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
Percentage = Annotated[float, Strict(), Field(ge=0, le=100, allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]


T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)


class _AsTuple:
    """Marker of a field of type ``Sequence[T]`` that is validated as ``tuple[T, ...]``."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        item: Any = get_args(source)[0]
        return handler(tuple[item, ...])


Several = Annotated[Sequence[T], _AsTuple()]
"""Any number of values: a program may give a list or a tuple, and a tuple is kept."""


class _OrValue:
    """Marker of a field of type ``M | V`` that is validated as the model ``M``. A ``V``, the runtime's value that the
    model makes, is turned into the model first."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        model, value = get_args(source)

        def fields_of(given: object) -> object:
            return msgspec.to_builtins(given) if isinstance(given, value) else given

        return core_schema.no_info_before_validator_function(fields_of, handler(model))


OR_VALUE: Final = _OrValue()


class _MakesValue(Protocol[V_co]):
    def value(self) -> V_co: ...


def value_of(given: _MakesValue[T] | T) -> T:
    """Return the runtime's value of a field that is marked with ``OR_VALUE``."""
    return given.value() if isinstance(given, Model) else given  # type: ignore[return-value, attr-defined]


class Model(BaseModel):
    """Part of a plan: immutable, and unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=False, populate_by_name=True, defer_build=True
    )

    def problems(self) -> Iterator[Problem]:
        """Yield the problems between fields that are valid each by itself."""
        yield from ()

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if found := list(self.problems()):
            raise FieldErrors(found)
        return self


def closest(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return ``did you mean 'build'?`` if *word* is close to a known name, else *otherwise* with the list of known
    names."""
    names = list(known)
    near = get_close_matches(word, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(names) or 'none'}"


PluginNames = Callable[[], Mapping[str, Sequence[str]]]
"""Function that returns the names that plug-ins add, by kind: ``adapters``, ``verifiers``, ``plugins`` (their own
names). Called only if needed."""


def plugin_name(what: str, ours: Sequence[str] = ()) -> AfterValidator:
    """Return a validator for names that are in *ours* or added by plug-ins; plug-ins are known only while a plan file
    is read. Other names are rejected with a list of the known names."""
    return AfterValidator(partial(_check_plugin_name, what=what, ours=ours))


def _check_plugin_name(name: str, info: ValidationInfo, *, what: str, ours: Sequence[str]) -> str:
    if name in ours or info.context is None:
        return name
    more: PluginNames = info.context
    there = [*ours, *more()[what]]
    if name not in there:
        near = get_close_matches(name, there, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        known = f"is not one of {', '.join(there)}" if there else f"is unknown: no {what} are installed"
        raise ValueError(f"{name!r} {known}{guess}")
    return name
