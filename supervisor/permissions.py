"""What becomes of it when an agent asks whether it may: a policy allows, denies, or has a human asked.

Pure. The first rule that fits decides; where none does, the policy's default. What an agent is trusted with
(``supervisor.access``) stands before all of this. What nobody answers in time is denied.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from glob import escape
from typing import Final, NamedTuple

import msgspec

__all__ = [
    "ANSWER_WITHIN_S",
    "Choice",
    "Decision",
    "OpenPermission",
    "PermissionPolicy",
    "PermissionRule",
    "Wish",
    "choice_of",
    "ruling",
]

ANSWER_WITHIN_S: Final = 300.0
"""How long a human has by default; as long as a turn."""


class Decision(StrEnum):
    """What a policy says of a wish."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent asks for: *kind* in the words of ACP, *tool* its name for the tool, *paths* the files it names."""

    title: str
    kind: str = "other"
    tool: str = ""
    paths: tuple[str, ...] = ()


class PermissionRule(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided about the wishes that fit everything that is given here; *title*, *tool* and *path* are patterns
    (``*``, ``?``, ``[...]``), in which ``*`` also stands for ``/``."""

    then: Decision
    kinds: tuple[str, ...] = ()
    title: str = ""
    tool: str = ""
    path: str = ""

    @property
    def words(self) -> str:
        """The rule as a record names it."""
        given = [f"kind {' or '.join(self.kinds)}"] if self.kinds else []
        given += [f"{name} {value}" for name in ("title", "tool", "path") if (value := getattr(self, name))]
        return f"rule: {self.then} {', '.join(given)}"


class PermissionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Rules in their order, and what holds where none fits. A human has *answer_within_s* to answer."""

    default: Decision = Decision.ALLOW
    rules: tuple[PermissionRule, ...] = ()
    answer_within_s: float = ANSWER_WITHIN_S


class Ruling(NamedTuple):
    """What is decided, and by what."""

    decision: Decision
    why: str


class Choice(NamedTuple):
    """The option that says what was decided; ``None``: the agent offers none that does, and is told *cancelled*."""

    option: str | None
    kind: str | None


class OpenPermission(msgspec.Struct, frozen=True, kw_only=True):
    """A permission that a human is to answer: who asks, for what, and for how long it can still be answered."""

    id: str
    session: str
    agent: str
    title: str
    kind: str
    tool: str
    detail: str
    options: tuple[str, ...]
    """The kinds of answers that the agent offers."""
    left_s: float


def ruling(policy: PermissionPolicy, wish: Wish, directory: str) -> Ruling:
    """What *policy* says of *wish*; relative paths of its rules are meant in *directory*."""
    for rule in policy.rules:
        if _fits(rule, wish, directory):
            return Ruling(rule.then, rule.words)
    return Ruling(policy.default, f"default: {policy.default}")


def _fits(rule: PermissionRule, wish: Wish, directory: str) -> bool:
    return (
        (not rule.kinds or wish.kind in rule.kinds)
        and (not rule.title or fnmatchcase(wish.title, rule.title))
        and (not rule.tool or fnmatchcase(wish.tool, rule.tool))
        and (not rule.path or _fits_paths(rule, wish.paths, directory))
    )


def _fits_paths(rule: PermissionRule, paths: Sequence[str], directory: str) -> bool:
    """To be allowed, every path must fit; one is enough to be denied, or asked about. Who names none fits nothing."""
    pattern = _led(escape(directory), rule.path)
    fits = [fnmatchcase(_led(directory, path), pattern) for path in paths]
    return bool(fits) and (all(fits) if rule.then is Decision.ALLOW else any(fits))


def _led(directory: str, path: str) -> str:
    """Where *path* leads from *directory*; of two slashes at its beginning, which POSIX keeps apart, one is left."""
    led = posixpath.normpath(posixpath.join(directory, path))
    return led[1:] if led.startswith("//") else led


def choice_of(options: Sequence[tuple[str, str]], *, allow: bool, always: bool = False) -> Choice:
    """The option, of (id, kind), that says so.

    More is never granted than was decided: ``allow_once`` is not said by ``allow_always``. Less may be: where nothing
    is rejected once, it is rejected for good.
    """
    once, for_good = ("allow_once", "allow_always") if allow else ("reject_once", "reject_always")
    kinds = (for_good, once) if always else (once,) if allow else (once, for_good)
    for wanted in kinds:
        for option, kind in options:
            if kind == wanted:
                return Choice(option, kind)
    return Choice(None, None)
