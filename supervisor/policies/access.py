"""Graduated access: the trust level of an agent, and what a level permits (rule 22, spec 000).

An agent begins untrusted. A success raises the level by one if the agent has enough successes and no open violation; a
violation lowers the level by one, and stays open until it has decayed. Work that only reads counts as a success too, so
that a new agent can earn its first one. Pure: the time is an argument, in seconds of the caller's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec.structs import replace


class Level(StrEnum):
    """Trust levels of an agent, lowest first."""

    UNTRUSTED = "untrusted"
    PROBATIONARY = "probationary"
    TRUSTED = "trusted"
    ELEVATED = "elevated"


_ORDER: Final = tuple(Level)

SUCCESSES_NEEDED: Final[Mapping[Level, int]] = MappingProxyType(
    {Level.UNTRUSTED: 0, Level.PROBATIONARY: 1, Level.TRUSTED: 3, Level.ELEVATED: 10}
)
"""Number of successes that an agent needs for each level (rule 22)."""

_EVERYBODY: Final = frozenset({"claimed", "started", "completed", "closed"})


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """Rights of a level: the task transitions (by event) that an agent may cause, whether the agent may write (at most
    *files_max* files for each task, only in *directories* if any are named), and whether it may use the network, where
    a task declares that."""

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
"""Rights of each level. The figures come from the source of spec 000; the transitions are ours: an agent must have
shown successes before it may split a task, or before its partial work counts as done without its report."""

WRITING: Final = frozenset({"edit", "delete", "move", "execute", "switch_mode"})
"""Kinds of tool calls that may change files; ``execute`` is among them since a command may do anything."""
FETCHING: Final = frozenset({"fetch"})


class TrustScore(msgspec.Struct, frozen=True, kw_only=True):
    """Trust history of an agent: its level, its successes, and the times of its open violations."""

    level: Level = Level.UNTRUSTED
    successes: int = 0
    violations: tuple[float, ...] = ()


class AccessLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Trust level of an agent now: its successes, its open violations, what the level permits, and the last success or
    violation with its reason; ``""`` if there was none since the agent began."""

    agent: str
    level: Level
    successes: int
    violations: int
    may_write: bool
    may_use_network: bool
    files_max: int
    directories: tuple[str, ...]
    transitions: tuple[str, ...]
    last_change: str = ""


class AccessPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of graduated access: seconds that a violation stays open, the levels that known agents begin with, and
    the rights of each level."""

    decay_s: float
    initial: Mapping[str, Level] = {}
    rights: Mapping[Level, Rights] = RIGHTS

    def first(self, agent: str) -> TrustScore:
        """Return the score that *agent* begins with."""
        return TrustScore(level=self.initial.get(agent, Level.UNTRUSTED))

    def describe(self, agent: str, standing: TrustScore, at: float, last_change: str = "") -> AccessLevel:
        """Return the level of *agent*, whose score is *standing*, at the time *at*; *last_change* describes its last
        success or violation."""
        rights = self.rights[standing.level]
        return AccessLevel(
            agent=agent,
            level=standing.level,
            successes=standing.successes,
            violations=len(_open(standing, at, self.decay_s)),
            may_write=rights.write,
            may_use_network=rights.network,
            files_max=rights.files_max,
            directories=rights.directories,
            transitions=tuple(sorted(rights.transitions)),
            last_change=last_change,
        )


# ------------------------------------------------------------------------------------------------------- the record
def _open(standing: TrustScore, at: float, decay_s: float) -> tuple[float, ...]:
    return tuple(one for one in standing.violations if at - one < decay_s)


def after_success(standing: TrustScore, at: float, decay_s: float) -> TrustScore:
    """Return the score after a task of the agent was closed: at most one level higher."""
    after = replace(standing, successes=standing.successes + 1, violations=_open(standing, at, decay_s))
    position = _ORDER.index(after.level)
    if after.violations or position + 1 == len(_ORDER) or after.successes < SUCCESSES_NEEDED[_ORDER[position + 1]]:
        return after
    return replace(after, level=_ORDER[position + 1])


def after_violation(standing: TrustScore, at: float, decay_s: float) -> TrustScore:
    """Return the score after a violation at the time *at*: one level lower."""
    level = _ORDER[max(0, _ORDER.index(standing.level) - 1)]
    return replace(standing, level=level, violations=(*_open(standing, at, decay_s), at))


def encode_scores(standings: Mapping[str, TrustScore]) -> dict[str, Any]:
    """Encode the scores of all agents as the content of a fact, a record of the journal."""
    fact: dict[str, Any] = msgspec.to_builtins(standings)
    return fact


def decode_scores(fact: Mapping[str, Any]) -> dict[str, TrustScore]:
    """Decode the result of :func:`encode_scores`.

    Raises:
        msgspec.ValidationError: *fact* has another form.
    """
    return msgspec.convert(fact, dict[str, TrustScore])


# ----------------------------------------------------------------------------------------------------- what it may do
def transition_refusal(level: Level, rights: Rights, transition: str) -> str:
    """Return the reason why an agent of that level may not cause *transition*; ``""`` if the agent may."""
    return "" if transition in rights.transitions else f"an agent that is {level} may not cause {transition!r}"


def claim_refusal(level: Level, rights: Rights, *, files: Sequence[str], network: bool) -> str:
    """Return the reason why an agent is not given a task that declares these *files* or the *network*; ``""`` if the
    agent may have it."""
    if why := transition_refusal(level, rights, "claimed"):
        return why
    if network and not rights.network:
        return f"the network is declared, and an agent that is {level} may not use it"
    if files and not rights.write:
        return f"the task owns files, and an agent that is {level} may not write"
    return ""


def call_refusal(rights: Rights | None, kind: str) -> str:
    """Return the reason why a tool call of that *kind* (ACP's kinds) is not permitted; ``""`` if the call is permitted,
    or *rights* is ``None``."""
    if rights is None:
        return ""
    if kind in WRITING and not rights.write:
        return f"{kind}: it may not write"
    return f"{kind}: it may not use the network" if kind in FETCHING and not rights.network else ""


def file_refusal(level: Level, rights: Rights, files: Sequence[str], *, whole: bool) -> str:
    """Return the reason why an agent of that level may not change these *files* (paths in the repository; not *whole*:
    the list is incomplete); ``""`` if the agent may."""
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
    """Return the rights of a session whose parent has the rights *above*: no more than *above* and *own* both grant.
    ``None`` means unrestricted."""
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
    """Return the directories that both lists allow; an empty list allows all directories."""
    if not (some and others):
        return tuple(some or others)
    inner = [one for one in some if _is_in(one, others)]
    return tuple(dict.fromkeys([*inner, *(one for one in others if _is_in(one, some))]))
