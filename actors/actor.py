"""Behaviour of an actor, reasons of its end, and events that the kernel reports.

An actor itself never awaits; code that must await runs as a task in the actor's scope, started with ``ctx.start_task``,
and reports back by a message.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from actors.mailbox import DEFAULT_LIMITS, Envelope, Lane, Limits
from actors.ref import Ref
from actors.scopes import Scope

SHUTDOWN_S = 5.0
"""Seconds that an actor's tasks may take to end, unless the actor is spawned with another ``shutdown_s``."""


# ----------------------------------------------------------------------------------------------- reasons of an end
class Normal(NamedTuple):
    """Reason of an end: the actor ended by itself."""

    def __str__(self) -> str:
        return "done"


class Shutdown(NamedTuple):
    """Reason of an end: the actor was stopped in order."""

    cause: object = None

    def __str__(self) -> str:
        return f"shut down ({self.cause})" if self.cause is not None else "shut down"


class Crashed(NamedTuple):
    """Reason of an end: the actor's ``receive``, factory or ``started`` raised."""

    error: BaseException

    def __str__(self) -> str:
        return f"crashed: {self.error!r}"


class Killed(NamedTuple):
    """Reason of an end: the actor was ended at once, without clean-up."""

    cause: object = None

    def __str__(self) -> str:
        return f"killed ({self.cause})" if self.cause is not None else "killed"


def is_clean(reason: object) -> bool:
    """Return whether *reason* is that of an end after which a transient actor is not restarted: done, or shut down in
    order."""
    return isinstance(reason, Normal | Shutdown)


# ---------------------------------------------------------------------------------------------- messages to an actor
class Down(NamedTuple):
    """Event: a monitored actor has ended; sent once per monitor, even if the actor had ended before.

    ``incarnation`` is the number of the incarnation that ended, 0 if there was no such actor.
    """

    id: str
    reason: object
    incarnation: int = 1


class TaskFailed(NamedTuple):
    """Event: a task of this actor ended with an error. Cancellations are not failures and are not reported.

    If there are several errors, ``error`` is the first, with the others in its ``suppressed`` attribute.
    """

    name: str
    error: Exception


# ------------------------------------------------------------------------------------ events for the system's owner
class DeadLetter(NamedTuple):
    """Event: no actor has handled a message (``why`` is ``stopped``), or the handler of the message raised
    (``crashed``)."""

    actor_id: str
    message: Any
    why: str = "stopped"


class ActorCrashed(NamedTuple):
    """Event: an actor's handler raised, or a task of an actor that is stopping raised."""

    actor_id: str
    error: BaseException


class CancelSwallowed(NamedTuple):
    """Event: a task still runs although it was cancelled ``after_s`` seconds ago."""

    actor_id: str
    task: str
    after_s: float
    stack: tuple[str, ...]


class Abandoned(NamedTuple):
    """Event: tasks of an actor still ran at the deadline of its end (``budget_s``); no actor waits for these tasks any
    more."""

    actor_id: str
    tasks: tuple[str, ...]
    budget_s: float


class Paused(NamedTuple):
    """Event: no task ran for at least ``late_s`` seconds, since the process was stopped or its event loop was blocked.
    No timer has counted that time."""

    late_s: float


KernelEvent = DeadLetter | ActorCrashed | CancelSwallowed | Abandoned | Paused


# -------------------------------------------------------------------------------------------------------- behaviour
class Context(Protocol):
    """Operations of an actor on itself and on the actor system around it."""

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
        """Envelope of the message that is being handled."""
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
        """Start a child actor, which ends before this actor does."""
        ...

    def start_task(
        self, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any, name: str = "", clean_up_s: float = 0.0
    ) -> None:
        """Run ``fn(*args)`` as a task in this actor's scope. If the task is started while an ask with a deferred reply
        is handled, the task is cancelled when the asker is. *clean_up_s* is the number of seconds that the task, once
        cancelled, may take to end before it is reported (``CancelSwallowed``)."""
        ...

    def set_timer(self, key: str, delay_s: float, message: Any, *, cause: Any = None) -> None: ...

    def cancel_timer(self, key: str) -> None: ...

    def read_timer(self, key: str) -> float | None:
        """Return the seconds until the timer with that key fires; ``None`` if no such timer runs."""
        ...

    def tell_self(self, message: Any, *, lane: Lane = Lane.NORMAL) -> None: ...

    def stop(self, cause: object = None) -> None:
        """End this actor in order, with the reason :class:`Shutdown`."""
        ...

    def exit(self) -> None:
        """End this actor in order, with the reason :class:`Normal`: the work is done."""
        ...


class Actor(Protocol):
    """Behaviour of an actor. Its methods must not block, and must not use the context after the actor's end.

    Optional methods: ``started(ctx)``, called before the first message, and ``stopped(ctx, reason)``, called when
    children and tasks have ended.
    """

    def receive(self, ctx: Context, message: Any) -> Any:
        """Handle one message; the return value is the reply to an ask. An exception ends the actor as
        :class:`Crashed`."""
        ...
