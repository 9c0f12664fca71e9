"""Effects as a disk has them: each is settled once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from supervisor.ports import Append

__all__ = ["Owing"]

Say = Callable[[str, str, str], None]


class Owing:
    """What is durable, and not settled. *say* reports a law that was broken: its name, whose, and the words; *owed* is
    what there was before, by name.

    An effect is settled with the record of whoever was told of it, or when it was performed. One that is settled
    earlier is lost if its supervisor is killed then; so it is settled twice.
    """

    def __init__(self, say: Say, owed: Iterable[str] = ()) -> None:
        self._say = say
        self._owed = set(owed)

    def wrote(self, one: Append) -> None:
        """This is durable."""
        for name in one.settled:
            if name not in self._owed:
                self._say("nothing_lost", one.record.entity_id, f"settles the effect {name}, which nobody owes")
            self._owed.discard(name)
        for name, _ in one.owed:
            self._owed.add(name)
