"""What an actor is: a behaviour that answers one message at a time, and the words it hears from the kernel.

``receive`` is synchronous: an actor is data until it has something to await, and what awaits is a task in its scope,
started with ``ctx.start_task``, that reports back by a message.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from actors.mailbox import Envelope, Lane
from actors.ref import Ref
from actors.scopes import Scope

__all__ = ["DEFERRED", "Actor", "Context", "Crashed", "Deferred", "Down", "Shutdown", "TaskFailed"]


class Deferred(Enum):
    """The type of :data:`DEFERRED`."""

    DEFERRED = "the answer comes later"


DEFERRED: Final = Deferred.DEFERRED
"""Returned by ``receive``: the envelope's reply will be settled later, by somebody who kept it."""


class Shutdown(NamedTuple):
    """An actor was stopped in order."""

    cause: object = None

    def __str__(self) -> str:
        return f"shut down ({self.cause})" if self.cause is not None else "shut down"


class Crashed(NamedTuple):
    """Its ``receive`` raised."""

    error: BaseException

    def __str__(self) -> str:
        return f"crashed: {self.error!r}"


class Down(NamedTuple):
    """A monitored actor has ended. Sent once per monitor, on the CONTROL lane, even if it was already gone."""

    id: str
    reason: object


class TaskFailed(NamedTuple):
    """A task of this actor ended with an error. Cancellations are not failures and are not reported."""

    name: str
    error: Exception


class Context(Protocol):
    """What an actor may do, besides answering."""

    @property
    def id(self) -> str: ...

    @property
    def ref(self) -> Ref: ...

    @property
    def scope(self) -> Scope: ...

    @property
    def envelope(self) -> Envelope | None:
        """The message being handled, as it came."""
        ...

    @property
    def children(self) -> Sequence[str]: ...

    def spawn(self, actor: Actor, actor_id: str, *, capacity: int = 256, home: str | None = None) -> Ref: ...

    def start_task(self, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any, name: str = "") -> None: ...

    def set_timer(self, key: str, delay_s: float, message: Any, *, cause: Any = None) -> None: ...

    def cancel_timer(self, key: str) -> None: ...

    def monitor(self, actor_id: str) -> None: ...

    def tell_self(self, message: Any, *, lane: Lane = Lane.NORMAL) -> None: ...

    def stop(self, cause: object = None) -> None: ...


class Actor(Protocol):
    """A behaviour. It must not block, and must not keep the context beyond its own life."""

    def receive(self, ctx: Context, message: Any) -> Any:
        """Handle one message; what it returns answers an ask. An exception ends the actor as :class:`Crashed`."""
        ...
