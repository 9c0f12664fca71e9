"""Names: who is found under which word. An entry belongs to one incarnation of an actor and ends with it, before
anybody hears of that end.
"""

from __future__ import annotations

from actors.errors import NameTaken

__all__ = ["Registry"]


class Registry:
    """The names of one system, by actor id."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, name: str, actor_id: str) -> None:
        """Let *actor_id* be found under *name*; once more is no error.

        Raises:
            NameTaken: another actor has the name.
        """
        if self._names.setdefault(name, actor_id) != actor_id:
            raise NameTaken(name, "name")

    def remove(self, name: str, actor_id: str) -> None:
        """Give up a name; one that is not the actor's stays."""
        if self._names.get(name) == actor_id:
            del self._names[name]

    def find(self, name: str) -> str | None:
        return self._names.get(name)
