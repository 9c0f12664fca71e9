"""Behaviour of an actor, reasons of its end, and events that the kernel reports.

An actor is data until it has something to await; what awaits is a task in the actor's scope, started with
``ctx.start_task``, that reports back by a message.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from actors.mailbox import DEFAULT_LIMITS, Envelope, Lane, Limits
from actors.ref import Ref
from actors.scopes import Scope

SHUTDOWN_S = 5.0
"""Seconds that an actor's tasks have to end, unless it is spawned with another ``shutdown_s``."""


# ----------------------------------------------------------------------------------------------- reasons of an end
class Normal(NamedTuple):
    """The actor ended by itself."""

    def __str__(self) -> str:
        return "done"


class Shutdown(NamedTuple):
    """The actor was stopped in order."""

    cause: object = None

    def __str__(self) -> str:
        return f"shut down ({self.cause})" if self.cause is not None else "shut down"


class Crashed(NamedTuple):
    """The actor's ``receive``, factory or ``started`` raised."""

    error: BaseException

    def __str__(self) -> str:
        return f"crashed: {self.error!r}"


class Killed(NamedTuple):
    """The actor was ended at once, without clean-up."""

    cause: object = None

    def __str__(self) -> str:
        return f"killed ({self.cause})" if self.cause is not None else "killed"


def is_clean(reason: object) -> bool:
    """True for an end after which a transient actor is not restarted: done, or shut down in order."""
    return isinstance(reason, Normal | Shutdown)


# ---------------------------------------------------------------------------------------------- messages to an actor
class Down(NamedTuple):
    """A monitored actor has ended; sent once per monitor, even if the actor had ended before.

    ``incarnation`` is the number of the incarnation that ended, 0 if there was none to monitor.
    """

    id: str
    reason: object
    incarnation: int = 1


class TaskFailed(NamedTuple):
    """A task of this actor ended with an error. Cancellations are not failures and are not reported.

    Several errors are the first, with the others in its ``suppressed`` attribute.
    """

    name: str
    error: Exception


# ------------------------------------------------------------------------------------ events for the system's owner
class DeadLetter(NamedTuple):
    """A message that no actor has handled (``why`` is ``stopped``), or whose handler raised (``crashed``)."""

    actor_id: str
    message: Any
    why: str = "stopped"


class ActorCrashed(NamedTuple):
    """An actor's handler raised, or a task of one that is stopping did."""

    actor_id: str
    error: BaseException


class CancelSwallowed(NamedTuple):
    """A task still runs although it was cancelled ``after_s`` seconds ago."""

    actor_id: str
    task: str
    after_s: float
    stack: tuple[str, ...]


class Abandoned(NamedTuple):
    """Tasks of an actor still ran at the deadline of its end (``budget_s``); no actor waits for them any more."""

    actor_id: str
    tasks: tuple[str, ...]
    budget_s: float


class Paused(NamedTuple):
    """No task ran for at least ``late_s`` seconds: the process was stopped, or its loop was blocked. No timer has
    counted that time."""

    late_s: float


KernelEvent = DeadLetter | ActorCrashed | CancelSwallowed | Abandoned | Paused


# -------------------------------------------------------------------------------------------------------- behaviour
class Context(Protocol):
    """Operations of an actor on itself and on its surroundings."""

    @property
    def id(self) -> str: ...

    @property
    def ref(self) -> Ref: ...

    @property
    def incarnation(self) -> int:
        """Number of the actor's starts: 1 before its first restart."""
        ...

    @property
    def scope(self) -> Scope: ...

    @property
    def envelope(self) -> Envelope | None:
        """Envelope of the message in hand."""
        ...

    @property
    def children(self) -> Sequence[str]: ...

    def spawn(
        self,
        actor: Actor,
        actor_id: str,
        *,
        capacity: int = DEFAULT_LIMITS.capacity,
        limits: Limits | None = None,
        home: str | None = None,
        shutdown_s: float = SHUTDOWN_S,
    ) -> Ref:
        """Start a child, which ends before this actor does."""
        ...

    def start_task(self, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any, name: str = "") -> None:
        """Run ``fn(*args)`` in this actor's scope. A task that is started while an ask is handled whose answer is
        deferred is cancelled with the asker."""
        ...

    def set_timer(self, key: str, delay_s: float, message: Any, *, cause: Any = None) -> None: ...

    def cancel_timer(self, key: str) -> None: ...

    def read_timer(self, key: str) -> float | None:
        """Return the seconds until the timer fires; ``None`` if no timer of that key runs."""
        ...

    def tell_self(self, message: Any, *, lane: Lane = Lane.NORMAL) -> None: ...

    def stop(self, cause: object = None) -> None:
        """End in order, as :class:`Shutdown`."""
        ...

    def exit(self) -> None:
        """End in order, as :class:`Normal`: the work is done."""
        ...


class Actor(Protocol):
    """Behaviour of an actor. It must not block, and must not use the context after the actor's end.

    Optional methods: ``started(ctx)``, called before the first message, and ``stopped(ctx, reason)``, called when
    children and tasks have ended.
    """

    def receive(self, ctx: Context, message: Any) -> Any:
        """Handle one message; the return value answers an ask. An exception ends the actor as :class:`Crashed`."""
        ...
