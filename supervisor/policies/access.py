"""Graduated access: how far an agent is trusted, by its record, and what that lets it cause (rule 22, spec 000).

An agent begins untrusted and rises a level with a success when it has enough of them and no violation is open; a
violation takes a level away and is open until it has decayed. Work that only reads is a success too, so that a new
agent can earn its first. Everything here is pure: the time is an argument, in seconds of the clock that decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec.structs import replace

__all__ = [
    "RIGHTS",
    "SUCCESSES_NEEDED",
    "AccessPolicy",
    "Level",
    "Rights",
    "TrustScore",
    "after_success",
    "after_violation",
    "call_refusal",
    "claim_refusal",
    "decode_scores",
    "encode_scores",
    "file_refusal",
    "intersect_rights",
    "transition_refusal",
]


class Level(StrEnum):
    """How far an agent is trusted, least first."""

    UNTRUSTED = "untrusted"
    PROBATIONARY = "probationary"
    TRUSTED = "trusted"
    ELEVATED = "elevated"


_ORDER: Final = tuple(Level)

SUCCESSES_NEEDED: Final[Mapping[Level, int]] = MappingProxyType(
    {Level.UNTRUSTED: 0, Level.PROBATIONARY: 1, Level.TRUSTED: 3, Level.ELEVATED: 10}
)
"""Successes that a level needs (rule 22)."""

_EVERYBODY: Final = frozenset({"claimed", "started", "completed", "closed"})


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """What a level may cause: transitions of tasks by their event, changes of at most *files_max* files for each task,
    in *directories* where any are named, and the use of the network, where it is declared."""

    transitions: frozenset[str]
    write: bool
    network: bool
    files_max: int
    directories: tuple[str, ...] = ()


RIGHTS: Final[Mapping[Level, Rights]] = MappingProxyType(
    {
        Level.UNTRUSTED: Rights(transitions=_EVERYBODY, write=False, network=False, files_max=0),
        Level.PROBATIONARY: Rights(transitions=_EVERYBODY | {"blocked"}, write=True, network=False, files_max=5),
        Level.TRUSTED: Rights(transitions=_EVERYBODY | {"blocked", "split"}, write=True, network=True, files_max=20),
        Level.ELEVATED: Rights(
            transitions=_EVERYBODY | {"blocked", "split", "recovered"}, write=True, network=True, files_max=100
        ),
    }
)
"""The figures of the origin of spec 000; the transitions are ours: who splits a task, or whose partial work counts as
done without its word, must have shown what it can."""

WRITING: Final = frozenset({"edit", "delete", "move", "execute", "switch_mode"})
"""Kinds of tool calls that may change files: a command may do anything."""
FETCHING: Final = frozenset({"fetch"})


class TrustScore(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's record: its level, its successes so far, and when its open violations happened."""

    level: Level = Level.UNTRUSTED
    successes: int = 0
    violations: tuple[float, ...] = ()


class AccessPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What holds: how long a violation stays open, where known agents begin, and what each level may cause."""

    decay_s: float
    initial: Mapping[str, Level] = {}
    rights: Mapping[Level, Rights] = RIGHTS

    def first(self, agent: str) -> TrustScore:
        """How that agent begins."""
        return TrustScore(level=self.initial.get(agent, Level.UNTRUSTED))


# ------------------------------------------------------------------------------------------------------- the record
def _open(standing: TrustScore, at: float, decay_s: float) -> tuple[float, ...]:
    return tuple(one for one in standing.violations if at - one < decay_s)


def after_success(standing: TrustScore, at: float, decay_s: float) -> TrustScore:
    """After a task that was closed: at most one level up."""
    after = replace(standing, successes=standing.successes + 1, violations=_open(standing, at, decay_s))
    place = _ORDER.index(after.level)
    if after.violations or place + 1 == len(_ORDER) or after.successes < SUCCESSES_NEEDED[_ORDER[place + 1]]:
        return after
    return replace(after, level=_ORDER[place + 1])


def after_violation(standing: TrustScore, at: float, decay_s: float) -> TrustScore:
    """After it did what it may not: a level down."""
    level = _ORDER[max(0, _ORDER.index(standing.level) - 1)]
    return replace(standing, level=level, violations=(*_open(standing, at, decay_s), at))


def encode_scores(standings: Mapping[str, TrustScore]) -> dict[str, Any]:
    """Everybody's record as a fact keeps it."""
    fact: dict[str, Any] = msgspec.to_builtins(standings)
    return fact


def decode_scores(fact: Mapping[str, Any]) -> dict[str, TrustScore]:
    """What :func:`encode_scores` kept.

    Raises:
        msgspec.ValidationError: it is no such fact.
    """
    return msgspec.convert(fact, dict[str, TrustScore])


# ----------------------------------------------------------------------------------------------------- what it may do
def transition_refusal(level: Level, rights: Rights, transition: str) -> str:
    """Why an agent of that level may not cause *transition*; ``""`` where it may."""
    return "" if transition in rights.transitions else f"an agent that is {level} may not cause {transition!r}"


def claim_refusal(level: Level, rights: Rights, *, files: Sequence[str], network: bool) -> str:
    """Why it is not given a task that declares these *files*, or the *network*; ``""`` where it is."""
    if why := transition_refusal(level, rights, "claimed"):
        return why
    if network and not rights.network:
        return f"the network is declared, and an agent that is {level} may not use it"
    if files and not rights.write:
        return f"the task owns files, and an agent that is {level} may not write"
    return ""


def call_refusal(rights: Rights | None, kind: str) -> str:
    """Why a tool call of that *kind* (ACP's words) is not permitted; ``""`` where it is, or nobody is judged."""
    if rights is None:
        return ""
    if kind in WRITING and not rights.write:
        return f"{kind}: it may not write"
    return f"{kind}: it may not use the network" if kind in FETCHING and not rights.network else ""


def file_refusal(level: Level, rights: Rights, files: Sequence[str], *, whole: bool) -> str:
    """Why that level may not change these *files* (paths in the repository; not *whole*: and more); ``""``: it may."""
    if files and not rights.write:
        return f"it changed {_few(files)}, and an agent that is {level} may not write"
    if not whole or len(files) > rights.files_max:
        count = f"{len(files)}" if whole else f"more than {len(files)}"
        return f"it changed {count} files, and an agent that is {level} may change {rights.files_max}"
    stray = [one for one in files if rights.directories and not _is_in(one, rights.directories)]
    if stray:
        return f"it changed {_few(stray)}, and an agent that is {level} may change {', '.join(rights.directories)} only"
    return ""


def _is_in(path: str, directories: Sequence[str]) -> bool:
    return any(path == one or path.startswith(f"{one.rstrip('/')}/") or one == "." for one in directories)


def _few(files: Sequence[str]) -> str:
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return ", ".join(files[:3]) + more


def intersect_rights(above: Rights | None, own: Rights | None) -> Rights | None:
    """What holds of a session below another one: no more than either has. ``None``: nobody is judged."""
    if above is None or own is None:
        return own if above is None else above
    within = _shared(above.directories, own.directories)
    apart = bool(above.directories and own.directories) and not within
    return Rights(
        transitions=above.transitions & own.transitions,
        write=above.write and own.write and not apart,
        network=above.network and own.network,
        files_max=min(above.files_max, own.files_max),
        directories=within,
    )


def _shared(some: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The directories that are in one of both; none named are all that there are."""
    if not (some and others):
        return tuple(some or others)
    inner = [one for one in some if _is_in(one, others)]
    return tuple(dict.fromkeys([*inner, *(one for one in others if _is_in(one, some))]))
