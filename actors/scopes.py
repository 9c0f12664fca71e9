"""A cancel scope that knows why it was cancelled.

The backends keep at most a string, and lose it at the next level: the cause is ours, and kept here. The first cause
wins; later ones are appended.
"""

from __future__ import annotations

import anyio

__all__ = ["Scope"]


class Scope:
    """The causes of one cancel scope: that of a task group, once it is open. What was cancelled before that is then
    cancelled at once."""

    __slots__ = ("_cancel_scope", "_told", "causes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.causes: list[object] = []
        self._cancel_scope: anyio.CancelScope | None = None
        self._told = False

    def open(self, cancel_scope: anyio.CancelScope) -> None:
        """This is what is to be cancelled: whoever says so has just entered it."""
        self._cancel_scope = cancel_scope
        if self._told:
            cancel_scope.cancel(reason=self.name)

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
            if self._cancel_scope is not None:
                self._cancel_scope.cancel(reason=self.name)

    def close(self, cause: object) -> None:
        """It counts as cancelled from now on, for that cause. For who knows that nothing is inside: a cancel costs more
        than all the rest of an end."""
        self.causes.append(cause)
