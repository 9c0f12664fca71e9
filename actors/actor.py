"""What an actor is: a behaviour that answers one message at a time, and the words it hears from the kernel.

With a plain ``receive`` an actor is data until it has something to await; what awaits is a task in its scope, started
with ``ctx.start_task``, that reports back by a message. With an ``async def receive`` it owns a task, and reads its
next message when the handler of the last one has returned. Everything else is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import anyio

from actors.mailbox import DEFAULT_LIMITS, Envelope, Lane, Limits
from actors.ref import DEFERRED, Ref
from actors.scopes import Scope

__all__ = [
    "CLEANUP_S",
    "DEFERRED",
    "SHUTDOWN_S",
    "Abandoned",
    "Actor",
    "ActorCrashed",
    "CancelSwallowed",
    "Context",
    "Crashed",
    "DeadLetter",
    "Down",
    "GraceExceeded",
    "KernelEvent",
    "Killed",
    "Linked",
    "Monitor",
    "Normal",
    "Paused",
    "Poisoned",
    "Restarted",
    "Shutdown",
    "TaskFailed",
    "is_clean",
]

SHUTDOWN_S = 5.0
"""How long an actor's tasks may take to end, unless it is spawned with another ``shutdown_s``."""
CLEANUP_S = 5.0
"""The budget of one actor for all its shielded clean-up, in seconds."""


# ----------------------------------------------------------------------------------------------- why an actor ended
class Normal(NamedTuple):
    """It was done, and said so."""

    def __str__(self) -> str:
        return "done"


class Shutdown(NamedTuple):
    """It was stopped in order."""

    cause: object = None

    def __str__(self) -> str:
        return f"shut down ({self.cause})" if self.cause is not None else "shut down"


class Crashed(NamedTuple):
    """Its ``receive``, its factory or its ``started`` raised."""

    error: BaseException

    def __str__(self) -> str:
        return f"crashed: {self.error!r}"


class Killed(NamedTuple):
    """It was ended without being asked, and without time to clean up."""

    cause: object = None

    def __str__(self) -> str:
        return f"killed ({self.cause})" if self.cause is not None else "killed"


class Linked(NamedTuple):
    """An actor that it shares its fate with has ended."""

    id: str
    reason: object

    def __str__(self) -> str:
        first, links = self, 0
        while isinstance(first.reason, Linked):  # a long chain is no recursion
            first, links = first.reason, links + 1
        between = f", and by {links} more to {first.id!r}" if links else ""
        return f"linked to {self.id!r}{between}, which {first.reason}"


def is_clean(reason: object) -> bool:
    """True for an end that a transient actor is not started again after: done, or shut down in order."""
    while isinstance(reason, Linked):
        reason = reason.reason
    return isinstance(reason, Normal | Shutdown)


# ---------------------------------------------------------------------------------------------- what an actor hears
class Monitor:
    """One monitor; ``ctx.demonitor`` takes it back, even where its message is queued already."""

    __slots__ = ("id", "live")

    def __init__(self, actor_id: str) -> None:
        self.id = actor_id
        self.live = True


class Down(NamedTuple):
    """A monitored actor has ended. Sent once per monitor, on the CONTROL lane, even if it was already gone.

    ``incarnation`` is the one that ended, 0 if there was none to monitor.
    """

    id: str
    reason: object
    incarnation: int = 1


class Restarted(NamedTuple):
    """A monitored actor crashed and lives again; only for monitors with ``watch_restarts``."""

    id: str
    reason: object
    incarnation: int


class TaskFailed(NamedTuple):
    """A task of this actor ended with an error. Cancellations are not failures and are not reported.

    Several errors are the first, with the others in its ``suppressed`` attribute.
    """

    name: str
    error: Exception


# ------------------------------------------------------------------------------------ what the system's owner hears
class DeadLetter(NamedTuple):
    """A message that nobody has handled, or that was in hand at a crash, and why.

    ``why`` is ``stopped``, ``crashed``, ``dropped_oldest``, ``dropped_newest`` or ``coalesced``.
    """

    actor_id: str
    message: Any
    why: str = "stopped"
    attempts: int = 0


class Poisoned(NamedTuple):
    """A message that has crashed its actor at each of *attempts* deliveries; it is not tried again."""

    actor_id: str
    message: Any
    attempts: int


class ActorCrashed(NamedTuple):
    """An actor's handler raised, or a task of one that is stopping did."""

    actor_id: str
    error: BaseException


class CancelSwallowed(NamedTuple):
    """A task still runs although it was cancelled ``after_s`` seconds ago, and cleans up nothing that it said."""

    actor_id: str
    task: str
    after_s: float
    stack: tuple[str, ...]


class GraceExceeded(NamedTuple):
    """A rung of an actor's end took all its time; the next one follows."""

    actor_id: str
    rung: str
    budget_s: float


class Abandoned(NamedTuple):
    """An actor's tasks have outlived its end: they are in quarantine, and nobody waits for them."""

    actor_id: str
    tasks: tuple[str, ...]


class Paused(NamedTuple):
    """Nobody ran for at least ``late_s`` seconds: the process was stopped, or its loop was blocked. No timer has
    counted that time."""

    late_s: float


KernelEvent = DeadLetter | Poisoned | ActorCrashed | CancelSwallowed | GraceExceeded | Abandoned | Paused


# -------------------------------------------------------------------------------------------------------- behaviour
class Context(Protocol):
    """What an actor may do, besides answering."""

    label: str
    """A word for people; need not be unique."""

    @property
    def id(self) -> str: ...

    @property
    def ref(self) -> Ref: ...

    @property
    def incarnation(self) -> int:
        """How often this actor was started: 1 before its first restart."""
        ...

    @property
    def scope(self) -> Scope: ...

    @property
    def envelope(self) -> Envelope | None:
        """The message being handled, as it came."""
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
        """Run ``fn(*args)`` in this actor's scope. Where it is started while an ask is handled, and that is deferred,
        it is cancelled with the asker."""
        ...

    def set_timer(self, key: str, delay_s: float, message: Any, *, cause: Any = None) -> None: ...

    def cancel_timer(self, key: str) -> None: ...

    def read_timer(self, key: str) -> float | None:
        """The seconds until that timer of this actor rings; ``None``: none of that key runs."""
        ...

    def monitor(self, actor_id: str, *, watch_restarts: bool = False) -> Monitor: ...

    def demonitor(self, monitor: Monitor) -> None: ...

    def link(self, actor_id: str) -> None:
        """Share one fate: whichever ends first, other than by being done, ends the other."""
        ...

    def unlink(self, actor_id: str) -> None: ...

    def register(self, name: str) -> None:
        """Be found under *name*, until this incarnation ends."""
        ...

    def unregister(self, name: str) -> None: ...

    def stash(self) -> None:
        """Put the message in hand aside; its answer, if it is an ask, comes later too."""
        ...

    def unstash_all(self) -> None:
        """Handle what was put aside next, in the order in which it came."""
        ...

    def cleanup(self, budget_s: float) -> AbstractContextManager[anyio.CancelScope]:
        """A shielded block for clean-up, of at most *budget_s* seconds, out of the actor's one budget."""
        ...

    def tell_self(self, message: Any, *, lane: Lane = Lane.NORMAL) -> None: ...

    def stop(self, cause: object = None) -> None:
        """End in order, as :class:`Shutdown`."""
        ...

    def exit(self) -> None:
        """End in order, as :class:`Normal`: the work is done."""
        ...


class Actor(Protocol):
    """A behaviour. It must not block, and must not keep the context beyond its own life.

    It may also have ``started(ctx)``, called before its first message, and ``stopped(ctx, reason)``, called when its
    children and tasks have ended; an ``accepts`` tuple of message types, others are refused at the sender; and
    ``get_state()``, what introspection shows instead of its attributes.
    """

    def receive(self, ctx: Context, message: Any) -> Any:
        """Handle one message; what it returns answers an ask. An exception ends the actor as :class:`Crashed`."""
        ...
