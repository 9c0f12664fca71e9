"""Tool calls, found by folding the records of their turns in order. Pure.

A call starts with a number and a title; later records may name it only by the agent's own id. A record of a call whose
start is not among the records is treated as about no call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from supervisor.lifecycles.events import PermissionAnswered, PermissionRequested
from supervisor.lifecycles.turn import split_call
from supervisor.lifecycles.types import Kind, LifecycleEvent

_OF_A_PERMISSION: Final = (PermissionRequested.spelled, PermissionAnswered.spelled)
"""Events whose number is that of a permission request."""


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
        if isinstance(found, int) and event.event not in _OF_A_PERMISSION:
            return found
        return self._numbers.get((event.entity_id, str(event.metadata.get("call_id"))))

    def label(self, event: LifecycleEvent) -> str:
        """Process the next record; return ``c1 "make test"`` if it is about a tool call, else ``""``."""
        number = self.take(event)
        if number is None:
            return ""
        title = self._titles.get((event.entity_id, number), "")
        return f'c{number} "{title}"' if title else f"c{number}"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of a turn. ``state`` is ``open``, or the outcome of the call; ``within`` is the id of the call that
    contains this call, ``""`` for none. Times are Unix times."""

    id: str
    turn: str
    title: str
    kind: str
    state: str
    within: str
    reason: str
    began_at: float
    ended_at: float | None


def calls_of(events: Iterable[LifecycleEvent]) -> list[ToolCall]:
    """Return the tool calls that the records *events* show, in the order of their starts."""
    found: dict[tuple[str, str], ToolCall] = {}
    for event in events:
        fact, turn = event.metadata, event.entity_id
        call = found.get((turn, str(fact.get("call_id"))))
        if event.event == "tool_started" and event.outcome == "transition":
            found[turn, str(fact.get("call_id"))] = ToolCall(
                id=f"{turn}:c{fact.get('number')}",
                turn=turn,
                title=str(fact.get("title", "")),
                kind=str(fact.get("tool_kind", "")),
                state="open",
                within=f"{turn}:c{fact['within']}" if fact.get("within") else "",
                reason="",
                began_at=event.timestamp,
                ended_at=None,
            )
        elif event.event == "tool_completed" and call is not None and call.ended_at is None:  # its first result counts
            found[turn, str(fact.get("call_id"))] = msgspec.structs.replace(
                call, state=str(fact.get("outcome")), reason=str(fact.get("reason") or ""), ended_at=event.timestamp
            )
    return list(found.values())
