"""An actor's place: who it is, where it stands in the tree, what it is known by, and what it shares its fate with.

What most actors never need (timers, tasks, links, a stash) is in :class:`Rare`, built with its first use: an idle actor
is data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from inspect import CO_COROUTINE
from math import inf
from typing import Any, Final, Protocol

from actors.actor import CLEANUP_S, SHUTDOWN_S, Actor, Down, KernelEvent, Killed, Monitor, Restarted, Shutdown
from actors.backoff import Uniform
from actors.dispatch import Dispatcher
from actors.errors import ActorStopped, NoSuchActor
from actors.host import Host, HostOwner, TaskRecord, Worker
from actors.mailbox import DEFAULT_LIMITS, Envelope, Lane, Limits, Mailbox
from actors.parking import Backend
from actors.ref import Ref
from actors.registry import Registry
from actors.scopes import Scope
from actors.timers import Timer, TimerService
from actors.waits import WaitGraph

__all__ = ["ASIDE", "NOTHING", "Phase", "Place", "Rare", "Surroundings", "Ward", "is_async"]


class _Nothing(Enum):
    NOTHING = "no message in hand"
    ASIDE = "the message that was in hand is in the stash, and its handler goes on"


NOTHING: Final = _Nothing.NOTHING
ASIDE: Final = _Nothing.ASIDE


class Phase(Enum):
    """Where an actor is: it reads; it ends; it has ended and may come back; it is gone."""

    LIVE = "live"
    STOPPING = "stopping"
    EXITED = "exited"
    STOPPED = "stopped"


class Ward(Protocol):
    """What an actor knows of its supervisor: whether it may come back, and whom to tell when it is down."""

    shutdown_s: float
    redeliver: int
    name: str

    def returns(self, reason: object) -> bool: ...

    def make(self) -> Actor: ...

    def is_down(self, reason: object) -> None: ...


class Surroundings(Protocol):
    """What an actor needs of its system."""

    dispatcher: Dispatcher
    timers: TimerService
    registry: Registry
    waits: WaitGraph

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
        ward: Ward | None = ...,
    ) -> Ref: ...

    def monitor(self, actor_id: str, hear: Callable[[Down], None], *, key: object = None) -> None: ...

    def rng(self, *stream: object) -> Uniform: ...

    def forget(self, actor_id: str) -> None: ...

    def report(self, event: KernelEvent) -> None: ...

    def start_host(self, run: Callable[[HostOwner], Coroutine[Any, Any, None]], owner: HostOwner) -> None: ...

    def break_off(self) -> None: ...


class Rare:
    """What most actors never need."""

    __slots__ = (
        "asks",
        "between",
        "cleanup_left_s",
        "hears_restarts",
        "label",
        "links",
        "look",
        "monitors",
        "names",
        "scope",
        "since",
        "stash",
        "stop_by",
        "suspended",
        "tasks",
        "timers",
        "told_all",
        "trace",
        "watchers",
        "worker",
    )

    def __init__(self) -> None:
        self.asks: list[Envelope] = []
        """Asks whose answer was deferred; now and then the settled ones are swept out."""
        self.between: list[Callable[[], None]] = []
        """To be done before the next message is handled."""
        self.cleanup_left_s = CLEANUP_S
        self.hears_restarts: dict[object, Callable[[Restarted], None]] = {}
        self.label = ""
        self.links: list[Place] = []
        self.look: Timer | None = None
        self.monitors: dict[Monitor, None] = {}
        """Its own that have not been heard yet: an incarnation hears nothing that an earlier one wanted to hear."""
        self.names: list[str] = []
        self.scope: Scope | None = None
        self.since: float | None = None
        """Since when the message in hand is being handled, by an async handler."""
        self.stash: list[Any] = []
        self.stop_by: float = inf
        self.suspended = False
        self.tasks: dict[TaskRecord, None] = {}
        self.timers: dict[str, Timer] = {}
        self.told_all = False
        """The children of this pool have been told to end."""
        self.trace: deque[tuple[float, str, str]] | None = None
        self.watchers: dict[object, Callable[[Down], None]] = {}
        """Who hears of its end, by what they can be taken back with."""
        self.worker: Worker | None = None


class Place(ABC):
    """Who an actor is, and where."""

    __slots__ = (
        "_asked",
        "_rare",
        "_ref",
        "accepts",
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
        "held",
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
        system: Surroundings,
        actor: Actor,
        actor_id: str,
        parent: Place | None,
        home: Place | None,
        limits: Limits = DEFAULT_LIMITS,
        shutdown_s: float = SHUTDOWN_S,
        ward: Ward | None = None,
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
        self.held: bool
        """It has a worker, or is suspended: the dispatcher does not drain it."""
        self.going: bool
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
        self._rare: Rare | None = None
        self._meet(actor)

    def _meet(self, actor: Actor) -> None:
        """Look once at how this behaviour wants to be used."""
        self.accepts: tuple[type, ...] | None = getattr(actor, "accepts", None)
        self.held = is_async(type(actor))
        self.going = not self.held

    @property
    def ref(self) -> Ref:
        if self._ref is None:
            self._ref = self._make_ref()
        return self._ref

    @property
    def rare(self) -> Rare:
        if self._rare is None:
            self._rare = Rare()
        return self._rare

    @property
    def rare_or_none(self) -> Rare | None:
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
    def label(self) -> str:
        return self._rare.label if self._rare is not None else ""

    @label.setter
    def label(self, label: str) -> None:
        self.rare.label = label

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

    def spawn_ward(self, actor: Actor, actor_id: str, limits: Limits, shutdown_s: float, ward: Ward) -> Ref:
        """Start a child that may be started again: *ward* decides."""
        return self.system.spawn(actor, actor_id, parent=self.id, limits=limits, shutdown_s=shutdown_s, ward=ward)

    def monitor(self, actor_id: str, *, watch_restarts: bool = False) -> Monitor:
        monitor = Monitor(actor_id)
        cell = self.system.cell(actor_id)
        if watch_restarts and cell is not None:
            cell.rare.hears_restarts[monitor] = lambda restarted: self._hear(restarted, monitor)
        self.rare.monitors[monitor] = None
        self.system.monitor(actor_id, lambda down: self._hear(down, monitor), key=monitor)
        return monitor

    def demonitor(self, monitor: Monitor) -> None:
        monitor.live = False
        self._unwatch(monitor)

    def _unwatch(self, monitor: Monitor) -> None:
        """Leave nothing behind at an actor that may live for long."""
        self.rare.monitors.pop(monitor, None)
        target = self.system.cell(monitor.id)
        if target is not None and target.rare_or_none is not None:
            target.rare.watchers.pop(monitor, None)
            target.rare.hears_restarts.pop(monitor, None)

    def _hear(self, news: Down | Restarted, monitor: Monitor) -> None:
        if self.phase is Phase.LIVE and monitor.live:
            self.deliver(Envelope(news, token=monitor), Lane.CONTROL)

    def link(self, actor_id: str) -> None:
        """Share one fate with another actor.

        Raises:
            NoSuchActor: it does not live, so its fate is known already.
        """
        other = self.system.cell(actor_id)
        if other is None or other.phase is not Phase.LIVE:
            raise NoSuchActor(actor_id)
        if other is not self and other not in self.rare.links:
            self.rare.links.append(other)
            other.rare.links.append(self)

    def unlink(self, actor_id: str) -> None:
        for other in [one for one in self.rare.links if one.id == actor_id]:
            self.rare.links.remove(other)
            other.rare.links.remove(self)

    def register(self, name: str) -> None:
        """Be found under *name*.

        Raises:
            ActorStopped: this incarnation has ended, and would never give the name up.
            NameTaken: another actor has it.
        """
        if self.phase is Phase.EXITED or self.phase is Phase.STOPPED:
            raise ActorStopped(self.id, self.reason)
        self.system.registry.add(name, self.id)
        if name not in self.rare.names:
            self.rare.names.append(name)

    def unregister(self, name: str) -> None:
        self.system.registry.remove(name, self.id)
        if name in self.rare.names:
            self.rare.names.remove(name)


_ASYNC: dict[type, bool] = {}


def is_async(kind: type) -> bool:
    """Does this behaviour have an ``async def receive``?"""
    known = _ASYNC.get(kind)
    if known is None:
        code = getattr(getattr(kind, "receive", None), "__code__", None)
        known = _ASYNC[kind] = bool(code is not None and code.co_flags & CO_COROUTINE)
    return known
