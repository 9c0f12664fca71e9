"""Which ids were used: a name that was used before gets a number, and what is remembered for that stays small.

No two entities of a journal share an id. Names of root sessions are kept for as long as the supervisor runs; those that
it numbered itself only as a number. Below a session they are kept as long as it lives: nothing is born under one that
has ended, and its own id is not given again.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["IdAllocator"]


class IdAllocator:
    """The ids of one journal. *taken* are those that it has already."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}
        """The last number that was given to a name which was taken: all below it are."""
        self._below: dict[str, IdAllocator] = {}

    def __len__(self) -> int:
        """How much is remembered."""
        return len(self._taken) + len(self._numbers) + sum(map(len, self._below.values()))

    def __contains__(self, name: str) -> bool:
        """Whether that id was used, by anybody but those below a session of this supervisor."""
        base, dash, number = name.rpartition("-")
        counted = dash and number.isdecimal() and number == str(int(number))
        return name in self._taken or (bool(counted) and 2 <= int(number) <= self._numbers.get(base, 1))

    def new(self, wanted: str, *, below: str | None = None) -> str:
        """The id itself, or with the first number that makes it new. *below*: the session that it does not outlive."""
        if below is None:
            return self._new(wanted, self)
        return self._below.setdefault(below, IdAllocator())._new(wanted, self)

    def drop_below(self, session_id: str) -> None:
        """That session has ended, and all below it: nothing is born there any more."""
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
