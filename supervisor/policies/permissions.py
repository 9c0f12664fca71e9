"""What becomes of it when an agent asks whether it may: a policy allows, denies, or has a human asked.

Pure. The first rule that fits decides; where none does, the policy's default. What an agent is trusted with
(``supervisor.policies.access``) stands before all of this. What nobody answers in time is denied.
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
    "Decision",
    "OpenPermission",
    "OptionChoice",
    "PermissionPolicy",
    "PermissionRequest",
    "PermissionRule",
    "choose_option",
    "covers",
    "decide_permission",
    "decide_service",
]

ANSWER_WITHIN_S: Final = 300.0
"""How long a human has by default; as long as a turn."""


class Decision(StrEnum):
    """What a policy says of a wish."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class PermissionRequest(msgspec.Struct, frozen=True, kw_only=True):
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


class PolicyDecision(NamedTuple):
    """What is decided, and by what."""

    decision: Decision
    why: str


class OptionChoice(NamedTuple):
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


def decide_permission(policy: PermissionPolicy, wish: PermissionRequest, directory: str) -> PolicyDecision:
    """What *policy* says of *wish*; relative paths of its rules are meant in *directory*."""
    return _by_rule(policy, wish, directory) or PolicyDecision(policy.default, f"default: {policy.default}")


def decide_service(policy: PermissionPolicy, wish: PermissionRequest, directory: str) -> PolicyDecision:
    """What *policy* says of what the supervisor is to do for an agent itself: run a command, write a file, read one.

    Reading is decided by the rules alone. The default is for what agents ask about, and none asks before it reads: a
    human would be asked about each file.
    """
    if wish.kind == "read":
        return _by_rule(policy, wish, directory) or PolicyDecision(Decision.ALLOW, "no rule fits")
    return decide_permission(policy, wish, directory)


def _by_rule(policy: PermissionPolicy, wish: PermissionRequest, directory: str) -> PolicyDecision | None:
    """What the first rule that fits says."""
    fitting = (rule for rule in policy.rules if _fits(rule, wish, directory))
    return next((PolicyDecision(rule.then, rule.words) for rule in fitting), None)


def covers(allowed: PermissionRequest, detail: str, wanted: PermissionRequest, directory: str) -> bool:
    """Whether who was allowed that, and has shown *detail* for it, need not be asked about *wanted* as well: the same
    command line, or files that were named. What an agent calls its wish is its own word; what it has us do is not."""
    if wanted.kind == "execute":
        literal = msgspec.json.encode(wanted.title).decode()  # among the arguments, which are JSON
        return allowed.kind == "execute" and (wanted.title == allowed.title or literal in detail)
    if wanted.kind != "read" and allowed.kind not in ("edit", "delete", "move"):
        return False
    named = {_led(directory, path) for path in allowed.paths}
    return bool(wanted.paths) and all(_led(directory, path) in named for path in wanted.paths)


def _fits(rule: PermissionRule, wish: PermissionRequest, directory: str) -> bool:
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


def choose_option(options: Sequence[tuple[str, str]], *, allow: bool, always: bool = False) -> OptionChoice:
    """The option, of (id, kind), that says so.

    More is never granted than was decided: ``allow_once`` is not said by ``allow_always``. Less may be: where nothing
    is rejected once, it is rejected for good.
    """
    once, for_good = ("allow_once", "allow_always") if allow else ("reject_once", "reject_always")
    kinds = (for_good, once) if always else (once,) if allow else (once, for_good)
    for wanted in kinds:
        for option, kind in options:
            if kind == wanted:
                return OptionChoice(option, kind)
    return OptionChoice(None, None)
