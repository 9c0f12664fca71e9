"""A cancel scope that knows why it was cancelled.

The backends keep at most a string, and lose it at the next level: the cause is ours, and kept here. The first cause
wins; later ones are appended.
"""

from __future__ import annotations

import anyio

__all__ = ["Scope"]


class Scope:
    """One cancel scope with its causes. It is entered and left by the one task that owns it."""

    __slots__ = ("_told", "cancel_scope", "causes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.cancel_scope = anyio.CancelScope()
        self.causes: list[object] = []
        self._told = False

    @property
    def cancelled(self) -> bool:
        return bool(self.causes)

    @property
    def cause(self) -> object | None:
        """The first reason it was cancelled for."""
        return self.causes[0] if self.causes else None

    def cancel(self, cause: object) -> None:
        """Cancel everything inside, now. A repeat only adds its cause."""
        self.close(cause)
        if not self._told:
            self._told = True
            self.cancel_scope.cancel(reason=self.name)

    def close(self, cause: object) -> None:
        """It counts as cancelled from now on, for that cause. For who knows that nothing is inside: a cancel costs more
        than all the rest of an end."""
        self.causes.append(cause)
