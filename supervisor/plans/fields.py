"""What the fields of a plan are made of: texts, names, lengths of time, counts, paths. Every bound is checked here.

A path is written relative to wherever the work is done, and what it means stays within that; one that leads out by a
link is found where the directory is known (``supervisor.plans.loading``).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationInfo, model_validator

from supervisor.plans.error_texts import Problem, Problems
from supervisor.ports.path_safety import climbs

__all__ = [
    "Amount",
    "Count",
    "Duration",
    "Flag",
    "InnerPath",
    "Milliseconds",
    "Model",
    "Name",
    "OwnedPath",
    "Percentage",
    "PluginNames",
    "Seconds",
    "Share",
    "Text",
    "Whole",
    "closest",
    "plugin_name",
]

_PATTERN: Final = frozenset("*?")


def _sound(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character, which no program can be given; remove it")
    if any("\ud800" <= one <= "\udfff" for one in text):
        raise ValueError("holds half of a surrogate pair, which is no text; write the whole character")
    return text


def _inside(path: str) -> str:
    """The path without detours: ``src/./a/`` is ``src/a``."""
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
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
InnerPath = Annotated[Text, AfterValidator(_inside)]
OwnedPath = Annotated[Text, AfterValidator(_no_pattern), AfterValidator(_inside)]
Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Duration = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
"""Seconds, more than none: what may take no time at all cannot be done."""
Milliseconds = Annotated[int, Strict(), Field(ge=0)]
Count = Annotated[int, Strict(), Field(ge=1)]
Amount = Annotated[int, Strict(), Field(ge=0)]
Whole = Annotated[int, Strict(), Field(ge=-(2**31), lt=2**31)]
Share = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False)]
Percentage = Annotated[float, Strict(), Field(ge=0, le=100, allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]


class Model(BaseModel):
    """A part of a plan: no key but its own, and nothing of it changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False, populate_by_name=True)

    def problems(self) -> Iterator[Problem]:
        """Yield each problem between fields that are valid one by one."""
        yield from ()

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if found := list(self.problems()):
            raise Problems(found)
        return self


def closest(word: str, known: Iterable[str], otherwise: str) -> str:
    """``did you mean 'build'?``, or the list of what there is."""
    names = list(known)
    near = get_close_matches(word, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise} {', '.join(names) or 'none'}"


PluginNames = Callable[[], Mapping[str, Sequence[str]]]
"""The names that plug-ins add, by what they are names of: ``adapters``, ``verifiers``, ``plugins`` (their own).
Called only if one is needed."""


def plugin_name(what: str, ours: Sequence[str] = ()) -> AfterValidator:
    """A name that is one of *ours*, or one of the plug-ins' where those are known: while a plan is read from a file.
    What is neither is refused; the message lists those there are."""
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
