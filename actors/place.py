"""An actor's place: its id, its parent and children in the tree, and its mailbox.

What most actors never need (timers, tasks, watchers) is in :class:`LazyFields`, built with its first use: an idle actor
is data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from math import inf
from typing import Any, Final, Protocol

from actors.actor import SHUTDOWN_S, Actor, Down, KernelEvent, Killed, Shutdown
from actors.backoff import Uniform
from actors.dispatch import Dispatcher
from actors.host import Host, HostOwner, TaskRecord
from actors.mailbox import DEFAULT_LIMITS, Envelope, Lane, Limits, Mailbox
from actors.parking import Backend
from actors.ref import Ref
from actors.scopes import Scope
from actors.timers import Timer, TimerService

__all__ = ["NOTHING", "LazyFields", "Phase", "Place", "RestartHook", "SystemServices"]


class _Nothing(Enum):
    NOTHING = "no message in hand"


NOTHING: Final = _Nothing.NOTHING


class Phase(Enum):
    """Where an actor is: it reads; it ends; it has ended and may come back; it is gone."""

    LIVE = "live"
    STOPPING = "stopping"
    EXITED = "exited"
    STOPPED = "stopped"


class RestartHook(Protocol):
    """What an actor knows of its supervisor: whether it may come back, and whom to tell when it is down."""

    shutdown_s: float

    def returns(self, reason: object) -> bool: ...

    def make(self) -> Actor: ...

    def is_down(self, reason: object) -> None: ...


class SystemServices(Protocol):
    """What an actor needs of its system."""

    dispatcher: Dispatcher
    timers: TimerService

    def cell(self, actor_id: str) -> Place | None: ...

    def spawn(
        self,
        actor: Actor,
        actor_id: str,
        *,
        parent: str,
        capacity: int = ...,
        limits: Limits | None = ...,
        home: str | None = ...,
        shutdown_s: float = ...,
        ward: RestartHook | None = ...,
    ) -> Ref: ...

    def rng(self, *stream: object) -> Uniform: ...

    def forget(self, actor_id: str) -> None: ...

    def report(self, event: KernelEvent) -> None: ...

    def start_host(self, run: Callable[[HostOwner], Coroutine[Any, Any, None]], owner: HostOwner) -> None: ...

    def break_off(self) -> None: ...


class LazyFields:
    """What most actors never need."""

    __slots__ = (
        "asks",
        "look",
        "scope",
        "stop_by",
        "tasks",
        "timers",
        "watchers",
    )

    def __init__(self) -> None:
        self.asks: list[Envelope] = []
        """Asks whose answer was deferred; now and then the settled ones are swept out."""
        self.look: Timer | None = None
        self.scope: Scope | None = None
        self.stop_by: float = inf
        self.tasks: dict[TaskRecord, None] = {}
        self.timers: dict[str, Timer] = {}
        self.watchers: dict[object, Callable[[Down], None]] = {}
        """Who hears of its end, by what they can be taken back with."""


class Place(ABC):
    """Who an actor is, and where."""

    __slots__ = (
        "_asked",
        "_rare",
        "_ref",
        "actor",
        "below",
        "box",
        "capacity",
        "current",
        "dispatcher",
        "fast",
        "front",
        "going",
        "handled",
        "home",
        "host",
        "id",
        "incarnation",
        "late_replies",
        "limits",
        "parent",
        "phase",
        "queued",
        "reason",
        "returning",
        "shutdown_s",
        "system",
        "ward",
    )

    def __init__(
        self,
        system: SystemServices,
        actor: Actor,
        actor_id: str,
        parent: Place | None,
        home: Place | None,
        limits: Limits = DEFAULT_LIMITS,
        shutdown_s: float = SHUTDOWN_S,
        ward: RestartHook | None = None,
    ) -> None:
        self.system = system
        self.dispatcher = system.dispatcher
        self.actor = actor
        self.id = actor_id
        self.parent = parent
        self.home = home
        self.limits = limits
        self.shutdown_s = shutdown_s
        self.ward = ward
        self.incarnation = 1
        self.box: Mailbox | None = None
        self._ref: Ref | None = None
        self.below: dict[str, Place] | None = None
        self.phase: Phase = Phase.LIVE
        self.reason: object = None
        self.returning = False
        """It ends, and may be started again: its mailbox stays open."""
        self.queued = False
        self.front = False
        self.going = True
        """It lives, and the dispatcher drains it."""
        self.capacity = limits.capacity
        self.fast: deque[Any] | None = None
        """The NORMAL lane, while a message that needs no envelope can go straight into it."""
        self.handled = 0
        self.late_replies = 0
        self.current: Any = NOTHING
        """The message in hand, plain or in its envelope."""
        self._asked: tuple[float, bool, Any] | Envelope | None = None
        """The message in hand is an ask that was never queued: its time, whether it is detached, its cause; then the
        envelope that was made of them."""
        self.host: Host | None = None
        self._rare: LazyFields | None = None

    @property
    def ref(self) -> Ref:
        if self._ref is None:
            self._ref = self._make_ref()
        return self._ref

    @property
    def rare(self) -> LazyFields:
        if self._rare is None:
            self._rare = LazyFields()
        return self._rare

    @property
    def rare_or_none(self) -> LazyFields | None:
        return self._rare

    @property
    def backend(self) -> Backend:
        return self.dispatcher.backend

    @property
    def mailbox(self) -> Mailbox:
        if self.box is None:
            self.box = Mailbox(self.id, self.limits)
        return self.box

    # ------------------------------------------------------------------ what the later rooms do
    @abstractmethod
    def _make_ref(self) -> Ref: ...

    @abstractmethod
    def deliver(self, envelope: Envelope, lane: Lane, *, in_turn: bool = False) -> None: ...

    @abstractmethod
    def open_host(self) -> Host:
        """The host of its tasks, made with the first of them."""
        ...

    @abstractmethod
    def begin_stop(self, reason: object, *, stop_by: float = inf, returning: bool | None = None) -> None: ...

    @abstractmethod
    def end_with_parent(self, reason: Shutdown | Killed, stop_by: float) -> None: ...

    @abstractmethod
    def hasten(self, stop_by: float, *, give_up: bool) -> None: ...

    @abstractmethod
    def may_return(self, reason: object) -> bool: ...

    @abstractmethod
    def advance(self) -> None: ...

    @abstractmethod
    def step_down(self) -> None: ...

    @abstractmethod
    def stop(self, cause: object = None) -> None: ...

    @abstractmethod
    def exit(self) -> None: ...

    # ------------------------------------------------------------------ the tree
    @property
    def children(self) -> Sequence[str]:
        """The ids of the living children, oldest first."""
        return tuple(self.below or ())

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
        return self.system.spawn(
            actor, actor_id, parent=self.id, capacity=capacity, limits=limits, home=home, shutdown_s=shutdown_s
        )

    def spawn_ward(self, actor: Actor, actor_id: str, limits: Limits, shutdown_s: float, ward: RestartHook) -> Ref:
        """Start a child that may be started again: *ward* decides."""
        return self.system.spawn(actor, actor_id, parent=self.id, limits=limits, shutdown_s=shutdown_s, ward=ward)
