"""Tool calls of one agent: each call is opened once and closed once, whatever the agent repeats.

A call belongs to the turn in which it was opened. Digests of its arguments and result are kept: the last that the agent
reported of each, and everything that a command run by us wrote for the call. Nothing here reads or writes messages.
"""

from __future__ import annotations

import hashlib

from supervisor.ports import ToolClosed, ToolOpened

__all__ = ["CLOSED_MAX", "ToolCallTable"]

CLOSED_MAX = 20_000
"""Closed calls whose ids are remembered, so that a late message about a closed call does not open it again: twice the
calls that a turn may have."""


class _CallDigests:
    """Digests of a call's arguments and result."""

    __slots__ = ("answered", "asked", "wrote")

    def __init__(self) -> None:
        self.asked = self.answered = ""
        self.wrote: hashlib.blake2b | None = None
        """Digest of the output and the exit status of the command that we ran for the call."""

    @property
    def result(self) -> str:
        return self.answered + (self.wrote.hexdigest() if self.wrote is not None else "")


class ToolCallTable:
    """Tool calls of a turn: the open ones, the closed ones, and those that a command run by us serves."""

    def __init__(self) -> None:
        self._served: dict[str, bool] = {}
        self._told: dict[str, _CallDigests] = {}
        self._closed: dict[str, None] = {}
        self._only_asked: dict[str, None] = {}

    def asked_for(self, call_id: str, title: str, kind: str, parent: str = "") -> list[ToolOpened]:
        """Record a permission request for *call_id*, which opens the call unless it is known."""
        opened = self.opened(call_id, title, kind, parent)
        self._only_asked.update(dict.fromkeys(one.call_id for one in opened))
        return opened

    def opened(self, call_id: str, title: str, kind: str, parent: str = "") -> list[ToolOpened]:
        """Open *call_id* unless it is known; *parent* is the call around it and counts only while that call is open."""
        self._only_asked.pop(call_id, None)
        if call_id in self._served or call_id in self._closed:
            return []
        self._served[call_id] = False
        return [ToolOpened(call_id, title, kind, parent if parent in self._served else "")]

    def closed(self, call_id: str, outcome: str) -> list[ToolClosed]:
        """Close *call_id*; a second close has no effect."""
        if self._served.pop(call_id, None) is None:
            return []
        told = self._told.get(call_id, _NOTHING)
        self._close(call_id)
        return [ToolClosed(call_id, outcome, told.asked, told.result)]

    def tell(self, call_id: str, *, asked: bytes = b"", answered: bytes = b"") -> None:
        """Record the arguments or the result that the agent reports of an open call."""
        if call_id in self._served and (asked or answered):
            told = self._told.setdefault(call_id, _CallDigests())
            told.asked = _digest(asked) if asked else told.asked
            told.answered = _digest(answered) if answered else told.answered

    def wrote(self, call_id: str, data: bytes) -> None:
        """Add output or an exit status, as bytes, of the command that we run for an open call."""
        if call_id in self._served:
            told = self._told.setdefault(call_id, _CallDigests())
            told.wrote = told.wrote or hashlib.blake2b(digest_size=8)
            told.wrote.update(data)

    def close_untold(self) -> list[ToolClosed]:
        """Close, at the end of a turn, the calls that were only requested: nobody knows what became of them."""
        return [one for call_id in list(self._only_asked) for one in self.closed(call_id, "unknown")]

    def close_all(self, outcome: str) -> list[ToolClosed]:
        """Close all open calls with *outcome*, oldest first."""
        return [one for call_id in list(self._served) for one in self.closed(call_id, outcome)]

    def forget(self) -> None:
        """Begin a new turn: calls that the previous turn left open count as closed."""
        for call_id in self._served:
            self._close(call_id)
        self._served.clear()

    def _close(self, call_id: str) -> None:
        self._told.pop(call_id, None)
        self._only_asked.pop(call_id, None)
        self._closed[call_id] = None
        if len(self._closed) > CLOSED_MAX:
            del self._closed[next(iter(self._closed))]

    def is_open(self, call_id: str | None) -> bool:
        return call_id in self._served

    def serve(self, wanted: str | None) -> str | None:
        """Return the call that a new command serves: *wanted*, if open, else the only open call that no command serves
        yet."""
        call_id = wanted if wanted is not None and wanted in self._served else self._only_unserved()
        if call_id is not None:
            self._served[call_id] = True
        return call_id

    def _only_unserved(self) -> str | None:
        unserved = [call_id for call_id, served in self._served.items() if not served]
        return unserved[0] if len(unserved) == 1 else None


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


_NOTHING = _CallDigests()
