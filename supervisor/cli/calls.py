"""Which tool call a record is about. Pure: a fold of the records, in their order.

A call is born with a number and a title; later records may name it only by the agent's own id for it. A record whose
call was never seen to start is about no known call: nothing is guessed.
"""

from __future__ import annotations

from supervisor.diagnostics.causal_trace import split_call
from supervisor.lifecycles.types import Kind, LifecycleEvent

__all__ = ["ToolCallIndex"]


class ToolCallIndex:
    """What is known of the calls after the records taken so far."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._titles: dict[tuple[str, int], str] = {}

    def take(self, event: LifecycleEvent) -> int | None:
        """The number of the call that *event* is about, if it is about one."""
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
        """``c1 "make test"`` for a record about a call, else nothing."""
        number = self.take(event)
        if number is None:
            return ""
        title = self._titles.get((event.entity_id, number), "")
        return f'c{number} "{title}"' if title else f"c{number}"
