"""The tool calls of an ACP agent: each is opened once and closed once, whatever the agent repeats.

A call belongs to the turn it was opened in. Nothing here reads or writes messages.
"""

from __future__ import annotations

from supervisor.ports import ToolClosed, ToolOpened

__all__ = ["CLOSED_MAX", "ToolCalls"]

CLOSED_MAX = 20_000
"""Calls that are over and known by their ids: a late word about one of them opens none. Twice what a turn may have."""


class ToolCalls:
    """The tool calls of a turn: which are open, which were, and which a command of ours serves."""

    def __init__(self) -> None:
        self._served: dict[str, bool] = {}
        self._closed: dict[str, None] = {}

    def opened(self, call_id: str, title: str, kind: str) -> list[ToolOpened]:
        """The agent speaks of *call_id*; only the first word about it opens it."""
        if call_id in self._served or call_id in self._closed:
            return []
        self._served[call_id] = False
        return [ToolOpened(call_id, title, kind)]

    def closed(self, call_id: str, outcome: str) -> list[ToolClosed]:
        """*call_id* is over; only the first word counts."""
        if self._served.pop(call_id, None) is None:
            return []
        self._close(call_id)
        return [ToolClosed(call_id, outcome)]

    def close_all(self, outcome: str) -> list[ToolClosed]:
        """Whatever is open ends with *outcome*, oldest first."""
        return [one for call_id in list(self._served) for one in self.closed(call_id, outcome)]

    def forget(self) -> None:
        """A new turn begins: a call that the last one left open cannot come back in it."""
        for call_id in self._served:
            self._close(call_id)
        self._served.clear()

    def _close(self, call_id: str) -> None:
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
