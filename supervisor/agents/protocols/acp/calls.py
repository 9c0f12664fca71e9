"""The tool calls of an agent: each is opened once and closed once, whatever the agent repeats.

A call belongs to the turn it was opened in. Of its arguments and its result digests are kept: the last that the agent
told of each, and all that a command of ours wrote for it. Nothing here reads or writes messages.
"""

from __future__ import annotations

import hashlib

from supervisor.ports import ToolClosed, ToolOpened

__all__ = ["CLOSED_MAX", "ToolCallTable"]

CLOSED_MAX = 20_000
"""Calls that are over and known by their ids: a late word about one of them opens none. Twice what a turn may have."""


class _CallDigests:
    """What is known of a call's arguments and result, as digests."""

    __slots__ = ("answered", "asked", "wrote")

    def __init__(self) -> None:
        self.asked = self.answered = ""
        self.wrote: hashlib.blake2b | None = None
        """What a command of ours wrote, and how it ended."""

    @property
    def result(self) -> str:
        return self.answered + (self.wrote.hexdigest() if self.wrote is not None else "")


class ToolCallTable:
    """The tool calls of a turn: which are open, which were, and which a command of ours serves."""

    def __init__(self) -> None:
        self._served: dict[str, bool] = {}
        self._told: dict[str, _CallDigests] = {}
        self._closed: dict[str, None] = {}
        self._only_asked: dict[str, None] = {}

    def asked_for(self, call_id: str, title: str, kind: str, parent: str = "") -> list[ToolOpened]:
        """The agent asks whether it may make *call_id*; that opens it too, where it is the first word about it."""
        opened = self.opened(call_id, title, kind, parent)
        self._only_asked.update(dict.fromkeys(one.call_id for one in opened))
        return opened

    def opened(self, call_id: str, title: str, kind: str, parent: str = "") -> list[ToolOpened]:
        """The agent speaks of *call_id*; only the first word about it opens it. It is made within *parent*, if open."""
        self._only_asked.pop(call_id, None)
        if call_id in self._served or call_id in self._closed:
            return []
        self._served[call_id] = False
        return [ToolOpened(call_id, title, kind, parent if parent in self._served else "")]

    def closed(self, call_id: str, outcome: str) -> list[ToolClosed]:
        """*call_id* is over; only the first word counts."""
        if self._served.pop(call_id, None) is None:
            return []
        told = self._told.get(call_id, _NOTHING)
        self._close(call_id)
        return [ToolClosed(call_id, outcome, told.asked, told.result)]

    def tell(self, call_id: str, *, asked: bytes = b"", answered: bytes = b"") -> None:
        """The agent tells the arguments, or the result, of a call that is open."""
        if call_id in self._served and (asked or answered):
            told = self._told.setdefault(call_id, _CallDigests())
            told.asked = _digest(asked) if asked else told.asked
            told.answered = _digest(answered) if answered else told.answered

    def wrote(self, call_id: str, data: bytes) -> None:
        """A command of ours wrote that for a call, or ended so."""
        if call_id in self._served:
            told = self._told.setdefault(call_id, _CallDigests())
            told.wrote = told.wrote or hashlib.blake2b(digest_size=8)
            told.wrote.update(data)

    def close_untold(self) -> list[ToolClosed]:
        """The turn is over: of calls that the agent has asked for, and said nothing more of, nobody knows what came."""
        return [one for call_id in list(self._only_asked) for one in self.closed(call_id, "unknown")]

    def close_all(self, outcome: str) -> list[ToolClosed]:
        """Whatever is open ends with *outcome*, oldest first."""
        return [one for call_id in list(self._served) for one in self.closed(call_id, outcome)]

    def forget(self) -> None:
        """A new turn begins: a call that the last one left open cannot come back in it."""
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
        """The call that a new command serves: the one it names, or the only one that none serves yet."""
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
