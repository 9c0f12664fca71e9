"""Loops: an agent that makes the same call, or the same edit, again and again, with nothing new in between.

A call is known by its name and its arguments, an observation by a call and what came of it. An observation that was not
made before is progress: another call, other arguments, or another result of the same call (so polling for what changes
is none of this). Only observations that were made before count, each for its call, since the last progress. Words of
the agent are no progress. A call of which no result is told cannot be judged, and counts as progress; but for an edit,
whose arguments say what it does. Memory is bounded. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec

__all__ = [
    "DEPTH_MAX",
    "EDITS",
    "KNOWN_MAX",
    "PLAIN_MAX",
    "FinishedCall",
    "LoopDetector",
    "LoopLimits",
    "Repeated",
    "digest",
]

KNOWN_MAX: Final = 512
"""Observations that are remembered: a circle of more calls than this is not noticed."""

EDITS: Final = frozenset({"edit", "delete", "move"})
"""Kinds of calls that change files (the kinds of ACP)."""


PLAIN_MAX: Final = 1024
"""Parts of a value that are looked at: what has more, or is nested deeper than DEPTH_MAX, is not known."""
DEPTH_MAX: Final = 8

_PLAIN: Final = (str, bytes, int, float, bool)


def digest(value: object) -> str:
    """What a value is known by: a text, bytes, a number, or a list, tuple or mapping of such; ``""`` for anything else,
    for nothing, and for what is empty: that says nothing of what came of a call."""
    parts: list[bytes] = []
    if not _into(parts, value) or value in (None, (), [], {}, "", b""):
        return ""
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def _into(parts: list[bytes], value: object, depth: int = 0) -> bool:
    """Add what *value* is known by; ``False`` if it cannot be known."""
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
    """How often the same call, and the same edit, may be made with nothing new in between; 0: no bound.

    At the limit the agent is told so, once for each prompt; when it is reached again, the session is aborted.
    """

    same_call_max: int = 5
    same_edit_max: int = 3


class FinishedCall(NamedTuple):
    """A call that is over: its title and kind, and digests of its arguments and of its result; ``""``: not told."""

    title: str
    kind: str
    asked: str
    answered: str


class Repeated(NamedTuple):
    """What is repeated, how often, and whether the agent had been told already."""

    title: str
    edit: bool
    times: int
    again: bool

    @property
    def words(self) -> str:
        what = "the same edit" if self.edit else "the same call"
        return f"{what}, {self.title!r}, was made {self.times} times with nothing new in between"


class LoopDetector:
    """Watches the calls of one agent."""

    __slots__ = ("_known", "_limits", "_repeats", "_warned")

    def __init__(self, limits: LoopLimits) -> None:
        self._limits = limits
        self._known: dict[FinishedCall, None] = {}
        self._repeats: dict[tuple[str, str], int] = {}
        self._warned = False

    def begin(self) -> None:
        """A new prompt: what was asked before is no measure of it."""
        self._known.clear()
        self._repeats.clear()
        self._warned = False

    def take(self, call: FinishedCall) -> Repeated | None:
        """The next call that is over; what is repeated too often, if something is."""
        edit = call.kind in EDITS
        judged = bool(call.asked if edit else call.answered)
        if not judged or call not in self._known:
            self._progress(call)
            return None
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
        self._known[call] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
