"""Loop detection: find an agent that repeats a call, or an edit, with nothing new in between.

A call is identified by its name and arguments, an observation by a call and its result. A new observation is progress:
another call, other arguments, or another result of the same call (so polling for a change is no loop). Only repeated
observations since the last progress are counted, each for its call. A call that began before the earlier observation
was answered repeats nothing: calls of one answer of the model run side by side. Text of the agent is no progress. A
call without a reported result cannot be judged and counts as progress, except for an edit, whose arguments say what it
does. Memory is bounded. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec

KNOWN_MAX: Final = 512
"""Number of observations that are remembered: a loop of more calls than this is not noticed."""

EDITS: Final = frozenset({"edit", "delete", "move"})
"""Kinds of calls that change files (the kinds of ACP)."""


PLAIN_MAX: Final = 1024
"""Number of parts of a value that are hashed; a value with more parts, or nested deeper than DEPTH_MAX, has no
digest."""
DEPTH_MAX: Final = 8

_PLAIN: Final = (str, bytes, int, float, bool)


def digest(value: object) -> str:
    """Return a hash of a value made of text, bytes, numbers, lists, tuples and mappings. Return ``""`` for any other
    value, and for ``None``, which is no result."""
    parts: list[bytes] = []
    if value is None or not _into(parts, value):
        return ""
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def _into(parts: list[bytes], value: object, depth: int = 0) -> bool:
    """Append the parts of *value* to *parts*; return ``False`` if *value* cannot be hashed."""
    if len(parts) > PLAIN_MAX or depth > DEPTH_MAX:
        return False
    if isinstance(value, dict | list | tuple):
        parts.append(type(value).__name__.encode())
        inner = [one for pair in value.items() for one in pair] if isinstance(value, dict) else value
        parts.append(str(len(inner)).encode())
        return all(_into(parts, one, depth + 1) for one in inner)
    if value is not None and not isinstance(value, _PLAIN):
        return False
    parts.append(b"b" + value if isinstance(value, bytes) else repr(value).encode(errors="replace"))
    return True


class LoopLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Repetitions of the same call, and of the same edit, that are allowed with nothing new in between; 0 means no
    bound.

    At the limit a message is sent to the agent, once for each prompt; at the next repetition the session is aborted.
    """

    same_call_max: int = 5
    same_edit_max: int = 3


class FinishedCall(NamedTuple):
    """A finished call: its title and kind, and digests of its arguments (``asked``) and result (``answered``); ``""``:
    not reported."""

    title: str
    kind: str
    asked: str
    answered: str


class Repeated(NamedTuple):
    """A repetition that reached the limit: the call, the number of times, and whether the agent was sent a message
    about it before."""

    title: str
    edit: bool
    times: int
    again: bool

    @property
    def words(self) -> str:
        what = "the same edit" if self.edit else "the same call"
        return f"{what}, {self.title!r}, was made {self.times} times with nothing new in between"


class LoopDetector:
    """Counter of the repeated calls of one agent."""

    __slots__ = ("_known", "_limits", "_repeats", "_warned", "taken")

    def __init__(self, limits: LoopLimits) -> None:
        self._limits = limits
        self.taken = 0
        """Number of calls that have finished."""
        self._known: dict[FinishedCall, int] = {}
        """Observations, each with the number of the call that has made it last, apart from calls side by side."""
        self._repeats: dict[tuple[str, str], int] = {}
        self._warned = False

    def begin(self) -> None:
        """Begin a new prompt: the calls of earlier prompts no longer count."""
        self._known.clear()
        self._warned = False

    def take(self, call: FinishedCall, after: int) -> Repeated | None:
        """Record the next finished call, which began when *after* calls had finished (``taken``); return the repetition
        if the call reached the limit, else ``None``."""
        self.taken += 1
        edit = call.kind in EDITS
        judged = bool(call.asked if edit else call.answered)
        if not judged or call not in self._known:
            self._progress(call)
            return None
        if after < self._known[call]:
            return None
        self._known[call] = self.taken
        key = (call.title, call.asked)
        times = self._repeats[key] = self._repeats.get(key, 0) + 1
        most = self._limits.same_edit_max if edit else self._limits.same_call_max
        if not most or times < most:
            return None
        again, self._warned = self._warned, True
        self._repeats.clear()
        return Repeated(call.title, edit, times, again)

    def _progress(self, call: FinishedCall) -> None:
        self._repeats = {(call.title, call.asked): 1}
        self._known[call] = self.taken
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
