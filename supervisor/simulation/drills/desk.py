"""What a drill works with: a system, its seed's numbers, and somebody who compares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from actors import ActorSystem
from supervisor.simulation.keyed_random import Chance

__all__ = ["Desk", "Drill", "hearing"]

Drill = Callable[["Desk"], Awaitable[None]]
ROUNDING_S = 1e-6


class _Hearer:
    """All of a logger that its users need."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **told: object) -> None:
        self.heard.append((event, told))

    warning = error = info


@contextmanager
def hearing(module: ModuleType) -> Iterator[list[tuple[str, dict[str, object]]]]:
    """What *module* tells its log meanwhile: every supervisor's, and the run's own is at work beside the drill."""
    hearer, names = _Hearer(), vars(module)
    before, names["_log"] = names["_log"], hearer
    try:
        yield hearer.heard
    finally:
        names["_log"] = before


class Desk:
    """One drill's own."""

    def __init__(
        self,
        say: Callable[[str, str, str], None],
        name: str,
        system: ActorSystem,
        chance: Chance,
        now: Callable[[], float],
        grain_s: float,
    ) -> None:
        self.system, self.chance = system, chance
        self.say, self._name, self._now, self._grain_s = say, name, now, grain_s
        self._began_s = now()

    def since(self) -> float:
        """Seconds since the drill, or its last :meth:`again`, began."""
        return self._now() - self._began_s

    def again(self) -> None:
        """Count the seconds from here."""
        self._began_s = self._now()

    def same(self, what: str, given: Any, wanted: Any) -> None:
        """It is exactly that."""
        if given != wanted:
            self.say("kernel", self._name, f"{what}: {given!r}, not {wanted!r}")

    def at(self, what: str, wanted_s: float, timers: int = 1, given_s: float | None = None) -> None:
        """It is now (or was then) that many seconds since the beginning, after so many timers one after the other."""
        given_s = self.since() if given_s is None else given_s
        if not -ROUNDING_S <= given_s - wanted_s <= timers * self._grain_s + ROUNDING_S:
            self.say("kernel", self._name, f"{what}: after {given_s:.6f} s, not after {wanted_s:.6f} s")

    def refused(self, what: str, wish: Callable[[], object], *errors: type[Exception]) -> None:
        """Wishing for it is one of these errors."""
        with suppress(*errors):
            self.same(what, wish(), "refused")

    async def raises(self, what: str, waited: Awaitable[Any], *errors: type[BaseException]) -> BaseException | None:
        """Waiting for it ends in one of these errors; that one."""
        try:
            answer = await waited
        except errors as error:
            return error
        self.say("kernel", self._name, f"{what}: {answer!r}, and no error")
        return None
