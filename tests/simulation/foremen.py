"""The foremen of a simulated run, for those who have them do something at a moment of their own."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.simulation import host as hosts
from supervisor.simulation.works.foreman import Foreman

__all__ = ["Foremen"]


class Foremen:
    """Whoever intrudes on a run and knows its foremen: the last one belongs to the plan that was begun last."""

    def __init__(self) -> None:
        self.foremen: list[Foreman] = []

    def listen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hear of every foreman from now on."""
        monkeypatch.setattr(hosts, "Foreman", self._appoint)

    def _appoint(self, *given: Any) -> Foreman:
        self.foremen.append(Foreman(*given))
        return self.foremen[-1]
