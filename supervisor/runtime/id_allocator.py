"""Unique ids: a name that was used before gets a number, and little is kept in memory for that.

No two entities of a journal share an id. Names of root sessions are kept while the supervisor runs; of names that were
numbered only the last number. Names below a session are kept while the session lives: nothing is created below a
session that has ended, and the id of that session is not given again.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["IdAllocator"]


class IdAllocator:
    """Ids of one journal. *taken* are the ids that the journal has already."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}
        """Last number given to each name that was taken. All lower numbers are taken too."""
        self._below: dict[str, IdAllocator] = {}

    def __len__(self) -> int:
        """Return the number of names that are kept."""
        return len(self._taken) + len(self._numbers) + sum(map(len, self._below.values()))

    def __contains__(self, name: str) -> bool:
        """Return whether that id was used, except by entities below a session of this supervisor."""
        base, dash, number = name.rpartition("-")
        counted = dash and number.isdecimal() and number == str(int(number))
        return name in self._taken or (bool(counted) and 2 <= int(number) <= self._numbers.get(base, 1))

    def new(self, wanted: str, *, below: str | None = None) -> str:
        """Return *wanted*, or *wanted* with the first number that is free. *below*: the session above the new
        entity."""
        if below is None:
            return self._new(wanted, self)
        return self._below.setdefault(below, IdAllocator())._new(wanted, self)

    def drop_below(self, session_id: str) -> None:
        """Drop the names below a session that has ended."""
        self._below.pop(session_id, None)

    def _new(self, wanted: str, earlier: IdAllocator) -> str:
        number, found = self._numbers.get(wanted, 1), wanted
        while found in self or found in earlier._taken:
            number += 1
            found = f"{wanted}-{number}"
        if number > 1:
            self._numbers[wanted] = number
        else:
            self._taken.add(found)
        return found
