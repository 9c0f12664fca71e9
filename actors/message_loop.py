"""Message loop of an actor: its mailbox, the handling of messages, asks answered in place, crashes and timers.

Theory of operation
-------------------
An idle actor has no task. A sender puts a message into the mailbox and queues the actor with the
:class:`~actors.dispatch.Dispatcher`, which calls :meth:`MessageLoop.drain` for a batch of messages. So one message is
handled at a time, and ``receive`` never runs twice at the same time.

    ref.tell(m)                       deliver -> mailbox -> dispatcher -> drain -> actor.receive(ctx, m)
    ref.ask(m) while the actor idles  answer_in_place -> actor.receive(ctx, m), in the task that asks

Three shortcuts make that cheap; each must behave like the code that it shortens:

* A plain message (no cause, no reply, no size) is queued without an :class:`~actors.mailbox.Envelope`, straight into
  ``fast``. ``fast`` is the NORMAL lane, and is set only while the NORMAL lane's length alone decides about room: no
  URGENT message is queued, no sender waits for room, and there is no ``size_of``. An event that ends this condition
  sets ``fast`` to ``None``.
* An ask of an idle actor (nothing in hand, nothing queued, no sender waiting) is handled in the task that asks, so the
  ask overtakes nothing. Its envelope is made only if the handler looks at it or defers the answer.
* Fields that most actors never need are in :class:`LazyFields`, made with the first use.

:class:`MessageLoop` declares all fields of an actor; :class:`~actors.cell.ActorCell` adds children, tasks and the end.
They are one object. As three (loop, lifecycle, cell) an idle actor takes 128 bytes more than its 455, and start and
stop take a tenth longer, for messages that are no faster (measured 2026-11).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum
from math import inf
from typing import Any, Final, Protocol

from actors.actor import SHUTDOWN_S, Actor, ActorCrashed, Crashed, DeadLetter, Down, KernelEvent
from actors.backoff import Uniform
from actors.dispatch import Dispatcher
from actors.errors import ActorRestarting, ActorStopped
from actors.mailbox import DEFAULT_LIMITS, Envelope, Lane, Limits, Mailbox
from actors.ref import DEFERRED, Ref, Reply
from actors.scopes import Scope
from actors.task_runner import RunnerOwner, TaskRecord, TaskRunner
from actors.timers import Timer, TimerService
from actors.waiter import RAISED, Backend, as_error

_CONTROL, _URGENT, _NORMAL = Lane.CONTROL, Lane.URGENT, Lane.NORMAL


class _Nothing(Enum):
    NOTHING = "no message in hand"


NOTHING: Final = _Nothing.NOTHING


class Phase(Enum):
    """Phase of an actor: it handles messages; it stops; it has ended and will be restarted; it has ended for good."""

    LIVE = "live"
    STOPPING = "stopping"
    EXITED = "exited"
    STOPPED = "stopped"


_LIVE = Phase.LIVE


class RestartHook(Protocol):
    """Part of a supervisor that its child needs: decides whether the child is restarted, and receives the report of its
    end."""

    shutdown_s: float

    def wants_restart(self, reason: object) -> bool: ...

    def make_actor(self) -> Actor: ...

    def report_down(self, reason: object) -> None: ...


class SystemServices(Protocol):
    """Protocol of the part of the actor system that an actor needs."""

    dispatcher: Dispatcher
    timers: TimerService

    def cell(self, actor_id: str) -> MessageLoop | None: ...

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
        restart_hook: RestartHook | None = ...,
    ) -> Ref: ...

    def rng(self, *stream: object) -> Uniform: ...

    def remove(self, actor_id: str) -> None: ...

    def report(self, event: KernelEvent) -> None: ...

    def start_runner(self, run: Callable[[RunnerOwner], Coroutine[Any, Any, None]], owner: RunnerOwner) -> None: ...

    def cancel_all(self) -> None: ...


class LazyFields:
    """Fields of an actor that most actors never need; made with the first use."""

    __slots__ = ("asks", "end_check", "scope", "stop_by", "tasks", "timers", "watchers")

    def __init__(self) -> None:
        self.asks: list[Envelope] = []
        """Asks whose answer was deferred; the settled ones are removed now and then."""
        self.end_check: Timer | None = None
        """Timer of the next look at tasks that were cancelled; its message is the time of the cancellation."""
        self.scope: Scope | None = None
        self.stop_by: float = inf
        self.tasks: dict[TaskRecord, None] = {}
        self.timers: dict[str, Timer] = {}
        self.watchers: dict[object, Callable[[Down], None]] = {}
        """Callbacks of monitors, by the key that removes each."""


class MessageLoop(ABC):
    """Base class of an actor: target of its refs and entry of the dispatcher's queue; also holds the fields of its
    end."""

    __slots__ = (
        "_ask_in_place",
        "_lazy",
        "_ref",
        "actor",
        "box",
        "capacity",
        "cells",
        "current",
        "dispatcher",
        "fast",
        "handled",
        "home",
        "id",
        "incarnation",
        "late_replies",
        "limits",
        "parent",
        "phase",
        "queued",
        "queued_first",
        "reason",
        "restart_hook",
        "restarting",
        "runner",
        "running",
        "shutdown_s",
        "system",
    )

    def __init__(
        self,
        system: SystemServices,
        actor: Actor,
        actor_id: str,
        parent: Any,
        home: Any,
        limits: Limits = DEFAULT_LIMITS,
        shutdown_s: float = SHUTDOWN_S,
        restart_hook: RestartHook | None = None,
    ) -> None:
        self.system = system
        self.dispatcher = system.dispatcher
        self.actor: Any = actor
        """Behaviour of this incarnation; the actor itself is the :class:`~actors.actor.Context` that it is given."""
        self.id = actor_id
        self.parent = parent
        self.home = home
        self.limits = limits
        self.shutdown_s = shutdown_s
        self.restart_hook = restart_hook
        self.incarnation = 1
        self.box: Mailbox | None = None
        self._ref: Ref | None = None
        self.cells: dict[str, Any] | None = None
        """The children, oldest first."""
        self.phase: Phase = Phase.LIVE
        self.reason: object = None
        self.restarting = False
        """The actor stops, and a restart may follow: its mailbox stays open."""
        self.queued = False
        self.queued_first = False
        self.running = True
        """The actor is live, and the dispatcher drains it."""
        self.capacity = limits.capacity
        self.fast: deque[Any] | None = None
        """The NORMAL lane, while a message without an envelope can go straight into it."""
        self.handled = 0
        self.late_replies = 0
        self.current: Any = NOTHING
        """The message in hand, plain or in its envelope."""
        self._ask_in_place: tuple[float, bool, Any] | Envelope | None = None
        """Set while an ask is answered in place: its ``(timeout_s, detach, cause)``, then the envelope made of them."""
        self.runner: TaskRunner | None = None
        self._lazy: LazyFields | None = None

    @property
    def ref(self) -> Ref:
        if self._ref is None:
            self._ref = Ref(self)
        return self._ref

    @property
    def lazy(self) -> LazyFields:
        if self._lazy is None:
            self._lazy = LazyFields()
        return self._lazy

    @property
    def lazy_or_none(self) -> LazyFields | None:
        return self._lazy

    @property
    def backend(self) -> Backend:
        return self.dispatcher.backend

    @property
    def mailbox(self) -> Mailbox:
        if self.box is None:
            self.box = Mailbox(self.id, self.limits)
        return self.box

    @abstractmethod
    def take_end_step(self) -> None: ...

    @abstractmethod
    def begin_stop(self, reason: object, *, stop_by: float = inf, restarting: bool | None = None) -> None: ...

    @abstractmethod
    def may_restart(self, reason: object) -> bool: ...

    # ------------------------------------------------------------------ messages in
    def queue(self) -> None:
        """Queue the actor for a turn, behind the actors that are queued already."""
        self.queued = True
        self.dispatcher.runnable.append(self)
        if self.dispatcher.idle_waiter is not None:
            self.dispatcher.rouse()

    def deliver(self, envelope: Envelope, lane: Lane, *, in_turn: bool = False) -> None:
        """Put a message into the mailbox. *in_turn*: the sender has waited for room, or may go ahead of the senders
        that wait.

        Raises:
            ActorStopped, MailboxFull: the message was not added.
        """
        if self.phase is not _LIVE and not self.restarting:
            raise ActorStopped(self.id, self.reason)
        box = self.box
        (self.mailbox if box is None else box).put(envelope, lane, in_turn=in_turn)
        if lane is _URGENT:
            self.fast = None  # an URGENT message takes room too: the NORMAL lane's length decides no more
        elif lane is _NORMAL and self.fast is None and self.phase is _LIVE:
            box = self.mailbox
            if box.plain and not box.urgent and not box.waiters:
                self.fast = box.normal
        if self.phase is _LIVE:
            if lane is _CONTROL:
                self.dispatcher.make_runnable(self, first=True)
            elif not self.queued:
                self.queue()

    def tell_self(self, message: Any, *, lane: Lane = Lane.NORMAL) -> None:
        self.deliver(Envelope(message), lane, in_turn=True)

    # ------------------------------------------------------------------ messages out
    def has_messages(self) -> bool:
        box = self.box
        return self.running and box is not None and bool(box.normal or box.control or box.urgent)

    def has_control(self) -> bool:
        return self.box is not None and bool(self.box.control)

    def drain(self, most: int) -> int:
        """Handle up to *most* messages; return the number of messages that were taken from the mailbox."""
        box = self.box
        if box is None:
            return 0
        receive, taken = self.actor.receive, 0
        while self.running:
            normal = box.normal
            if box.pressing:
                item = box.take()
                if item is None:
                    break
                self._handle(item)
            elif normal:
                self.current = item = normal.popleft()
                if type(item) is Envelope:
                    box.left(item, _NORMAL)
                    self._handle(item)
                else:
                    try:
                        receive(self, item)
                    except RAISED as error:
                        self.crash(error)
            else:
                break
            taken += 1
            if taken == most:
                break
        if box.urgent_run and not box.urgent:
            box.urgent_run = 0
        self.current = NOTHING
        self.handled += taken
        return taken

    def _handle(self, item: Any) -> None:
        """Handle one message, plain or in an envelope."""
        message = item
        if type(item) is Envelope:
            if (item.token is not None or item.reply is not None) and not self._is_due(item):
                self.handled -= 1  # the message was taken and not handled
                return
            message = item.message
        self.current = item
        try:
            answer = self.actor.receive(self, message)
        except RAISED as error:
            self.crash(error)
        else:
            if type(item) is Envelope and item.reply is not None:
                self._answer(answer)
        finally:
            self.current = NOTHING

    def _answer(self, answer: Any) -> None:
        """Reply to the ask that is being handled, if there is one, with the handler's return value."""
        envelope = self.current
        if type(envelope) is not Envelope or envelope.reply is None:
            return
        if answer is not DEFERRED:
            envelope.reply.resolve(answer)
            return
        asks = self.lazy.asks  # an ask that is never answered fails at the actor's end
        if len(asks) & (len(asks) - 1) == 0:  # sweep at each power of two: constant cost per ask
            asks = self.lazy.asks = [one for one in asks if one.reply is not None and not one.reply.settled]
        asks.append(envelope)

    def _is_due(self, envelope: Envelope) -> bool:
        """Return whether a message is still to be handled: its timer is live, its asker still waits. Marks the timer as
        handled."""
        reply, timer = envelope.reply, envelope.token
        if isinstance(reply, Reply) and not reply.live:
            return False
        if timer is None:
            return True
        if not timer.live:
            return False
        if isinstance(timer, Timer):
            timer.live = False
            self.lazy.timers.pop(timer.key, None)
        return True

    # ------------------------------------------------------------------ asks that are answered in place
    def charge(self) -> bool:
        return self.dispatcher.charge()

    def can_answer_in_place(self) -> bool:
        """Return whether the actor is idle, so that an ask can be handled at once."""
        box = self.box
        return self.running and self.current is NOTHING and (box is None or not (len(box) or box.waiters))

    def answer_in_place(self, message: Any, cause: Any, timeout_s: float, detach: bool) -> Any:
        """Handle an ask in the task that asks; return the reply's value, or the :class:`Reply` that will receive it."""
        self.handled += 1
        self.current = message
        self._ask_in_place = (timeout_s, detach, cause)
        try:
            answer = self.dispatcher.context.copy().run(self.actor.receive, self, message)
            if answer is not DEFERRED and type(self._ask_in_place) is tuple:
                return answer
            envelope = self._envelope_in_place()
            self._answer(answer)
        except RAISED as error:
            envelope = self._envelope_in_place()
            self.crash(error)
        finally:
            self.current, self._ask_in_place = NOTHING, None
        return envelope.reply

    @property
    def envelope(self) -> Envelope | None:
        """Envelope of the message that is being handled. For a plain message an envelope is made at the first
        access."""
        if self.current is NOTHING:
            return None
        if type(self.current) is not Envelope:
            self.current = Envelope(self.current)
        envelope: Envelope = self.current
        if type(self._ask_in_place) is tuple:
            timeout_s, detached, envelope.cause = self._ask_in_place
            envelope.reply = Reply(self, self.backend.now() + timeout_s, detached=detached)
            self._ask_in_place = envelope
        return envelope

    def _envelope_in_place(self) -> Envelope:
        envelope = self._ask_in_place if type(self._ask_in_place) is Envelope else self.envelope
        assert type(envelope) is Envelope
        return envelope

    def set_deadline(self, timeout_s: float, expire: Callable[[], None]) -> Timer:
        return self.system.timers.set(self.id, None, max(timeout_s, 0.0), lambda timer: expire())

    def cancel_deadline(self, timer: Timer) -> None:
        self.system.timers.cancel(timer)

    # ------------------------------------------------------------------ crashes
    def crash(self, error: BaseException) -> None:
        """End this incarnation, since the handler raised. The message that was being handled is lost; if it was an ask,
        the ask fails."""
        error = as_error(error)  # the asker must not take a CancelledError for its own cancellation
        self.system.report(ActorCrashed(self.id, error))
        envelope, reason = self.envelope, Crashed(error)
        restarts = self.may_restart(reason) if self.phase is _LIVE else self.restarting
        if envelope is not None:
            if envelope.reply is None:
                self.system.report(DeadLetter(self.id, envelope.message, "crashed"))
            elif restarts:
                failed = ActorRestarting(self.id, reason, started=True)
                failed.__cause__ = error
                envelope.reply.fail(failed)
            else:
                envelope.reply.fail(error)
        self.current = NOTHING
        self.begin_stop(reason)

    # ------------------------------------------------------------------ timers
    def set_timer(self, key: str, delay_s: float, message: Any, *, cause: Any = None) -> None:
        timer = self.system.timers.set(key, (message, cause), delay_s, self._fire)
        self.cancel_timer(key)
        self.lazy.timers[key] = timer

    def cancel_timer(self, key: str) -> None:
        timer = self._lazy.timers.pop(key, None) if self._lazy is not None else None
        if timer is not None:
            self.system.timers.cancel(timer)

    def read_timer(self, key: str) -> float | None:
        timer = self._lazy.timers.get(key) if self._lazy is not None else None
        return None if timer is None else max(0.0, timer.deadline - self.system.timers.now())

    def _fire(self, timer: Timer) -> None:
        if self.phase is _LIVE:
            message, cause = timer.message
            self.deliver(Envelope(message, token=timer, cause=cause), Lane.URGENT)
