"""Find the tool call that a record is about, by folding the records in order. Pure.

A call starts with a number and a title; later records may name it only by the agent's own id. A record of a call whose
start is not among the records is treated as about no call.
"""

from __future__ import annotations

from supervisor.lifecycles.turn import split_call
from supervisor.lifecycles.types import Kind, LifecycleEvent


class ToolCallIndex:
    """Index of the tool calls in the records processed so far."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._titles: dict[tuple[str, int], str] = {}

    def take(self, event: LifecycleEvent) -> int | None:
        """Process the next record; return the number of the tool call that it is about, or ``None``."""
        if event.entity_type != Kind.TURN:
            return None
        number = self._number(event)
        if number is not None and event.event == "tool_started":
            self._numbers[event.entity_id, str(event.metadata.get("call_id"))] = number
            self._titles[event.entity_id, number] = str(event.metadata.get("title", ""))
        return number

    def _number(self, event: LifecycleEvent) -> int | None:
        turn, number = split_call(str(event.metadata.get("tool", "")))
        if turn == event.entity_id and number is not None:
            return number
        found = event.metadata.get("number")
        if isinstance(found, int):
            return found
        return self._numbers.get((event.entity_id, str(event.metadata.get("call_id"))))

    def label(self, event: LifecycleEvent) -> str:
        """Process the next record; return ``c1 "make test"`` if it is about a tool call, else ``""``."""
        number = self.take(event)
        if number is None:
            return ""
        title = self._titles.get((event.entity_id, number), "")
        return f'c{number} "{title}"' if title else f"c{number}"
