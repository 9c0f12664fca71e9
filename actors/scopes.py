"""Cancel scope that keeps the causes of its cancellation, in order.

The backends store at most a string as the cause, and lose it in the next outer scope.
"""

from __future__ import annotations

import anyio


class Scope:
    """Cancel scope of a task group, with its causes. A cancellation before the group is open takes effect when the
    group opens."""

    __slots__ = ("_cancel_requested", "_cancel_scope", "causes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.causes: list[object] = []
        self._cancel_scope: anyio.CancelScope | None = None
        self._cancel_requested = False

    def open(self, cancel_scope: anyio.CancelScope) -> None:
        """Set the backend's cancel scope, which the caller has just entered."""
        self._cancel_scope = cancel_scope
        if self._cancel_requested:
            cancel_scope.cancel(reason=self.name)

    @property
    def cancelled(self) -> bool:
        return bool(self.causes)

    @property
    def cause(self) -> object | None:
        """First cause of the cancellation, or ``None``."""
        return self.causes[0] if self.causes else None

    def cancel(self, cause: object) -> None:
        """Cancel all tasks in the scope. A second call only adds its cause."""
        self.close(cause)
        if not self._cancel_requested:
            self._cancel_requested = True
            if self._cancel_scope is not None:
                self._cancel_scope.cancel(reason=self.name)

    def close(self, cause: object) -> None:
        """Mark the scope as cancelled if no task is in it: a real cancel would take longer than the rest of an actor's
        end."""
        self.causes.append(cause)
