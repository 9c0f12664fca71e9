"""Actors that do what a drill wants of them."""

from __future__ import annotations

from typing import Any

from actors import Context, Ref
from supervisor.simulation.drills.desk import Desk

__all__ = ["Does", "DoesLater", "ref_of"]


class Does:
    """Does what it is told to with its context, and notes everything else."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def receive(self, ctx: Context, message: Any) -> Any:
        if callable(message):
            return message(ctx)
        self.heard.append(message)
        return None


class DoesLater(Does):
    """The same, by an async handler, which waits where it is given something to wait for."""

    async def receive(self, ctx: Context, message: Any) -> Any:
        given = super().receive(ctx, message)
        return await given if hasattr(given, "__await__") else given


def ref_of(desk: Desk, name: str) -> Ref:
    """Who has that name."""
    ref = desk.system.ref(name)
    assert ref is not None, name
    return ref
