"""The actor system: the tree, the dispatcher that runs it, and the tasks that actors own.

An actor without tasks is data in a run queue: the dispatcher drains mailboxes fairly, one at a time, in batches. An
actor with tasks has a host: one task that enters and leaves the actor's cancel scope and task group, inside the
group of its home actor. A parent ends only after its children have; a stop goes through them in reverse order.
The system's own tasks are shielded from the caller's cancellation, so that an end is always orderly; it is bounded
by whoever closes the system.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

import anyio
from anyio.abc import TaskGroup

from actors.actor import DEFERRED, Actor, Context, Crashed, Down, Shutdown, TaskFailed
from actors.errors import ActorStopped, NameTaken
from actors.mailbox import Envelope, Lane, Mailbox, ReplyPort
from actors.ref import Ref, Reply
from actors.scopes import Scope
from actors.timers import Timer, TimerService

__all__ = ["ActorSystem", "DeadLetter", "open_system"]

QUANTUM = 16
"""Messages one actor may handle before the next one's turn, and before the clock is read again."""
BATCH = 256
"""Messages handled between two checkpoints, so that tasks and aborts get the loop."""
BATCH_S = 0.005
"""Seconds between two checkpoints, whichever comes first."""
FRONT_RUN_MAX = 32
"""After this many turns in a row for actors with a CONTROL message, one goes to an actor without."""

ROOT = "."


class Phase(Enum):
    LIVE = "live"
    STOPPING = "stopping"
    STOPPED = "stopped"


_LIVE, _STOPPING, _STOPPED = Phase.LIVE, Phase.STOPPING, Phase.STOPPED
_CONTROL = Lane.CONTROL  # bound once: looking up an enum's member takes as long as queueing a message


class DeadLetter:
    """A message that nobody read: its actor stopped first."""

    __slots__ = ("actor_id", "message")

    def __init__(self, actor_id: str, message: Any) -> None:
        self.actor_id, self.message = actor_id, message


class _Host:
    """The task that owns an actor's scope and task group; it exists from the actor's first task on."""

    __slots__ = ("_closing", "_first", "_group", "_waiting", "cell", "ended", "open")

    def __init__(self, cell: _Cell) -> None:
        self.cell = cell
        self.open = True
        self.ended = False
        self._closing = anyio.Event()
        self._group: TaskGroup | None = None
        self._first: tuple[Callable[..., Coroutine[Any, Any, Any]], tuple[Any, ...]] | None = None
        self._waiting: list[tuple[Callable[..., Coroutine[Any, Any, Any]], tuple[Any, ...]]] = []

    def lead(self, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Run the first task of the actor in the host itself, which saves one; start any other."""
        if self._group is None and self._first is None:
            self._first = fn, args
        else:
            self.start(fn, *args)

    def start(self, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        if self._group is None:
            self._waiting.append((fn, args))
        else:
            self._group.start_soon(fn, *args)

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    def close(self) -> None:
        self._closing.set()

    async def run(self) -> None:
        try:
            with self.cell.scope.cancel_scope:
                async with anyio.create_task_group() as group:
                    self._group = group
                    for fn, args in self._waiting:
                        group.start_soon(fn, *args)
                    self._waiting.clear()
                    await self._until_closed()
        finally:
            self.ended = True
            self._group = None
            self.cell.advance()

    async def _until_closed(self) -> None:
        """From the end of this on, by a stop or by a cancelled scope further out, nothing more is started here."""
        try:
            if self._first is not None:
                fn, args = self._first
                await fn(*args)
            await self._closing.wait()
        finally:
            self.open = False


class _Cell:
    """One actor as the system holds it. It is the actor's :class:`Context` and its refs' target."""

    __slots__ = (
        "_scope",
        "actor",
        "asks",
        "below",
        "envelope",
        "front",
        "home",
        "host",
        "id",
        "late_replies",
        "mailbox",
        "parent",
        "phase",
        "queued",
        "reason",
        "ref",
        "system",
        "timers",
        "watchers",
    )

    def __init__(
        self, system: ActorSystem, actor: Actor, actor_id: str, parent: _Cell | None, home: _Cell | None, capacity: int
    ) -> None:
        self.system = system
        self.actor = actor
        self.id = actor_id
        self.parent = parent
        self.home = home
        self.mailbox = Mailbox(actor_id, capacity)
        self.ref = Ref(self)
        self.below: dict[str, _Cell] = {}
        self.phase: Phase = _LIVE
        self.reason: object = None
        self.queued = False
        self.front = False
        self.late_replies = 0
        self.envelope: Envelope | None = None
        self.host: _Host | None = None
        self._scope: Scope | None = None
        self.timers: dict[str, Timer] | None = None
        self.watchers: list[Callable[[Down], None]] | None = None
        self.asks: list[Envelope] | None = None
        """Asks whose answer was deferred; now and then the settled ones are swept out."""

    # ------------------------------------------------------------------ messages
    def deliver(self, envelope: Envelope, lane: Lane) -> None:
        if self.phase is not _LIVE:
            raise ActorStopped(self.id, self.reason)
        self.mailbox.put(envelope, lane)
        self.system.make_runnable(self, first=lane is _CONTROL)

    def drain(self, most: int) -> int:
        """Handle up to *most* messages; how many were taken."""
        taken = 0
        while taken < most and self.phase is _LIVE:
            envelope = self.mailbox.take()
            if envelope is None:
                break
            taken += 1
            self._handle(envelope)
        return taken

    def _handle(self, envelope: Envelope) -> None:
        if envelope.token is not None and not self._due(envelope):
            return
        self.envelope = envelope
        try:
            answer = self.actor.receive(self, envelope.message)
        except Exception as error:
            self._crash(envelope, error)
        else:
            if envelope.reply is not None:
                self._answer(envelope, envelope.reply, answer)
        finally:
            self.envelope = None

    def _answer(self, envelope: Envelope, reply: ReplyPort, answer: Any) -> None:
        if answer is DEFERRED:
            self._defer(envelope)
        else:
            reply.resolve(answer)

    def _defer(self, envelope: Envelope) -> None:
        asks = self.asks or []
        if len(asks) & (len(asks) - 1) == 0:
            asks = [one for one in asks if one.reply is not None and not one.reply.settled]
        asks.append(envelope)
        self.asks = asks

    def _crash(self, envelope: Envelope, error: Exception) -> None:
        if envelope.reply is not None:
            envelope.reply.fail(error)
        self.system.crashed(self.id, error)
        self.begin_stop(Crashed(error))

    # ------------------------------------------------------------------ timers
    def set_timer(self, key: str, delay_s: float, message: Any, *, cause: Any = None) -> None:
        self.cancel_timer(key)
        if self.timers is None:
            self.timers = {}
        self.timers[key] = self.system.timers.set(key, (message, cause), delay_s, self._fire)

    def cancel_timer(self, key: str) -> None:
        timer = self.timers.pop(key, None) if self.timers else None
        if timer is not None:
            self.system.timers.cancel(timer)

    def _fire(self, timer: Timer) -> None:
        if self.phase is _LIVE:
            message, cause = timer.message
            self.deliver(Envelope(message, token=timer, cause=cause), Lane.URGENT)

    def _due(self, envelope: Envelope) -> bool:
        timer = envelope.token
        if timer is None or not timer.live:
            return False
        timer.live = False
        if self.timers is not None and isinstance(timer, Timer) and self.timers.get(timer.key) is timer:
            del self.timers[timer.key]
        return True

    def set_deadline(self, reply: Reply, timeout_s: float) -> Timer:
        return self.system.timers.set(self.id, None, max(timeout_s, 0.0), lambda timer: reply.expire(timeout_s))

    def cancel_deadline(self, timer: Timer) -> None:
        self.system.timers.cancel(timer)

    # ------------------------------------------------------------------ tasks
    @property
    def scope(self) -> Scope:
        if self._scope is None:
            self._scope = Scope(self.id)
        return self._scope

    def start_task(self, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any, name: str = "") -> None:
        """Run ``fn(*args)`` in this actor's scope.

        Raises:
            ActorStopped: the actor is stopping, or its scope was cancelled.
        """
        if self.phase is not _LIVE or self.scope.cancelled:
            raise ActorStopped(self.id, self.reason or self.scope.cause)
        self._open_host().lead(self._run_task, fn, args, name)

    async def _run_task(self, fn: Callable[..., Coroutine[Any, Any, None]], args: tuple[Any, ...], name: str) -> None:
        try:
            await fn(*args)
        except* Exception as errors:
            self._task_failed(name or getattr(fn, "__qualname__", type(fn).__name__), _sole(errors))

    def _task_failed(self, name: str, error: Exception) -> None:
        if self.phase is _LIVE:
            self.deliver(Envelope(TaskFailed(name, error)), Lane.CONTROL)
        else:
            self.system.crashed(self.id, error)

    def _open_host(self) -> _Host:
        if self.scope.cancelled:
            raise ActorStopped(self.id, self.scope.cause)
        if self.host is None:
            home = self.home._open_host() if self.home is not None else None
            self.host = _Host(self)
            if home is None:
                self.system.group.start_soon(self.host.run)
            else:
                home.start(self.host.run)
        elif not self.host.open:
            raise ActorStopped(self.id, "the scope it lived in was cancelled")
        return self.host

    # ------------------------------------------------------------------ the tree
    @property
    def children(self) -> Sequence[str]:
        """The ids of the living children, oldest first."""
        return tuple(self.below)

    def spawn(self, actor: Actor, actor_id: str, *, capacity: int = 256, home: str | None = None) -> Ref:
        return self.system.spawn(actor, actor_id, parent=self.id, capacity=capacity, home=home)

    def monitor(self, actor_id: str) -> None:
        self.system.monitor(actor_id, self._hear)

    def _hear(self, down: Down) -> None:
        if self.phase is _LIVE:
            self.deliver(Envelope(down), Lane.CONTROL)

    def tell_self(self, message: Any, *, lane: Lane = Lane.NORMAL) -> None:
        self.deliver(Envelope(message), lane)

    # ------------------------------------------------------------------ the end
    def stop(self, cause: object = None) -> None:
        self.begin_stop(Shutdown(cause))

    def begin_stop(self, reason: object) -> None:
        if self.phase is _LIVE:
            self.phase = _STOPPING
            self.reason = reason
            self.advance()

    def advance(self) -> None:
        """Have the dispatcher look at how far this actor's end has come."""
        self.system.make_advance(self)

    def step_down(self) -> None:
        """One step of an orderly end: what is unread, the youngest child, then the tasks, then the actor itself."""
        if self.phase is not _STOPPING:
            return
        if len(self.mailbox):
            self._bounce(self.mailbox.drain())
        if self.below:
            reason = self.reason if isinstance(self.reason, Shutdown) else Shutdown(self.reason)
            next(reversed(self.below.values())).begin_stop(reason)
        elif self.host is None or self.host.ended:
            self.finish()
        elif not self.host.closing:
            self.scope.cancel(self.reason)
            self.host.close()

    def finish(self) -> None:
        """The end: nothing waits for this actor any more."""
        self.phase = _STOPPED
        for timer in (self.timers or {}).values():
            self.system.timers.cancel(timer)
        self._bounce([*(self.asks or ()), *self.mailbox.drain()])
        self.system.forget(self)
        if self.parent is not None:
            del self.parent.below[self.id]
            if self.parent.phase is _STOPPING:
                self.parent.advance()
        for watcher in self.watchers or ():
            watcher(Down(self.id, self.reason))

    def _bounce(self, envelopes: Sequence[Envelope]) -> None:
        """Nobody will handle these: fail the asks, report the rest."""
        for envelope in envelopes:
            if envelope.reply is None:
                if envelope.token is None:
                    self.system.dead_letter(DeadLetter(self.id, envelope.message))
            elif not envelope.reply.settled:
                envelope.reply.fail(ActorStopped(self.id, self.reason))


def _sole(errors: ExceptionGroup[Exception]) -> Exception:
    """One error that only groups stand around is that error."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class _Root:
    """The behaviour of the root: it has nothing to say."""

    def receive(self, ctx: Context, message: Any) -> None:
        return None


class ActorSystem:
    """A tree of actors and the dispatcher that runs it. Made by :func:`open_system`.

    ``dead_letters`` counts messages that nobody read; ``on_dead_letter`` and ``on_crash`` may be replaced to hear of
    each one.
    """

    def __init__(self, group: TaskGroup) -> None:
        self.group = group
        self.timers = TimerService()
        self.dead_letters = 0
        self.crashes = 0
        self.on_dead_letter: Callable[[DeadLetter], None] = lambda letter: None
        self.on_crash: Callable[[str, BaseException], None] = lambda actor_id, error: None
        self._cells: dict[str, _Cell] = {}
        self._front: deque[_Cell] = deque()
        self._runnable: deque[_Cell] = deque()
        self._advancing: deque[_Cell] = deque()
        self._front_run = 0
        self._wake: anyio.Event | None = None
        self._idle: anyio.Event | None = None
        self._root = _Cell(self, _Root(), ROOT, None, None, 1)
        self._cells[ROOT] = self._root

    def __len__(self) -> int:
        return len(self._cells) - (ROOT in self._cells)

    def __contains__(self, actor_id: str) -> bool:
        return actor_id in self._cells

    def spawn(
        self, actor: Actor, actor_id: str, *, parent: str = ROOT, capacity: int = 256, home: str | None = None
    ) -> Ref:
        """Start *actor* as the youngest child of *parent*. Its tasks will run inside the scope of *home*.

        *home* is an ancestor; by default the parent. Delegation may be deeper than task groups may nest: name a
        common ancestor as the home of them all.

        Raises:
            NameTaken: an actor of that id lives.
            ActorStopped: the parent is stopping; nothing is born under it.
            ValueError: *home* is not an ancestor, so it could end first.
        """
        if actor_id in self._cells:
            raise NameTaken(actor_id)
        above = self._live(parent)
        cell = _Cell(self, actor, actor_id, above, above if home is None else self._home(home, above), capacity)
        self._cells[actor_id] = above.below[actor_id] = cell
        return cell.ref

    def _home(self, actor_id: str, parent: _Cell) -> _Cell:
        cell = self._live(actor_id)
        if parent.home is cell:
            return cell
        above: _Cell | None = parent
        while above is not cell:
            if above is None:
                raise ValueError(f"home {actor_id!r} is no ancestor of a child of {parent.id!r}; name one or omit it")
            above = above.parent
        return cell

    def _live(self, actor_id: str) -> _Cell:
        cell = self._cells.get(actor_id)
        if cell is None:
            raise ActorStopped(actor_id)
        if cell.phase is not _LIVE:
            raise ActorStopped(actor_id, cell.reason)
        return cell

    def ref(self, actor_id: str) -> Ref | None:
        """The actor of that id, if it lives."""
        cell = self._cells.get(actor_id)
        return cell.ref if cell is not None else None

    def context(self, actor_id: str) -> Context | None:
        """The context of an actor, for whoever performs its effects."""
        return self._cells.get(actor_id)

    def children(self, actor_id: str = ROOT) -> Sequence[str]:
        cell = self._cells.get(actor_id)
        return cell.children if cell is not None else ()

    def monitor(self, actor_id: str, hear: Callable[[Down], None]) -> None:
        """Call *hear* once when the actor has ended; at once, and without a reason, if it is already gone."""
        cell = self._cells.get(actor_id)
        if cell is None:
            hear(Down(actor_id, None))
            return
        if cell.watchers is None:
            cell.watchers = []
        cell.watchers.append(hear)

    def stop(self, actor_id: str, cause: object = None) -> None:
        """Begin the orderly end of an actor and of all below it. It is no error if it is already gone."""
        cell = self._cells.get(actor_id)
        if cell is not None:
            cell.begin_stop(Shutdown(cause))

    async def join(self, actor_id: str) -> None:
        """Wait until the actor has ended."""
        gone = anyio.Event()
        self.monitor(actor_id, lambda down: gone.set())
        await gone.wait()

    async def idle(self) -> None:
        """Wait until no actor has anything to do. Tasks and timers that are yet to report are not waited for."""
        await anyio.lowlevel.checkpoint()
        while self._wake is None:
            if self._idle is None:
                self._idle = anyio.Event()
            await self._idle.wait()

    async def shut_down(self, cause: object = None) -> None:
        """Stop every actor in order and wait for it."""
        self.stop(ROOT, cause)
        await self.join(ROOT)

    # ------------------------------------------------------------------ for cells
    def make_runnable(self, cell: _Cell, *, first: bool = False) -> None:
        """Queue an actor for a turn, *first* ahead of those without a CONTROL message; at most once in each queue."""
        if first:
            if not cell.front:
                cell.front = True
                self._front.append(cell)
        elif not cell.queued:
            cell.queued = True
            self._runnable.append(cell)
        if self._wake is not None:
            self._rouse()

    def make_advance(self, cell: _Cell) -> None:
        self._advancing.append(cell)
        if self._wake is not None:
            self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    def _busy(self) -> bool:
        return bool(self._runnable or self._front or self._advancing)

    def forget(self, cell: _Cell) -> None:
        del self._cells[cell.id]

    def dead_letter(self, letter: DeadLetter) -> None:
        self.dead_letters += 1
        self.on_dead_letter(letter)

    def crashed(self, actor_id: str, error: BaseException) -> None:
        self.crashes += 1
        self.on_crash(actor_id, error)

    # ------------------------------------------------------------------ the dispatcher
    async def dispatch(self) -> None:
        """Run the actors, for ever. If this breaks, nobody is left waiting for an actor that will not run again."""
        try:
            await self._dispatch()
        except Exception as error:
            self._abandon(Crashed(error))
            raise

    def _abandon(self, reason: object) -> None:
        for cell in [*reversed(self._cells.values())]:
            cell.begin_stop(reason)
            cell.finish()

    async def _dispatch(self) -> None:
        while True:
            if not self._busy():
                await self._park()
            self._run_batch(anyio.current_time() + BATCH_S)
            if self._busy():
                await anyio.lowlevel.checkpoint()

    def _run_batch(self, until: float) -> None:
        """Take turns until nobody has anything to do, or it is time for a checkpoint."""
        handled, unclocked = 0, 0
        while handled < BATCH and self._busy():
            done = self._turn()
            handled += done
            unclocked += done
            if unclocked >= QUANTUM:
                if anyio.current_time() >= until:
                    return
                unclocked = 0

    def _turn(self) -> int:
        """Let some ends come one step further, then one actor handle some messages; how much was done."""
        steps = 0
        while self._advancing and steps < QUANTUM:
            self._advancing.popleft().step_down()
            steps += 1
        cell = self._next()
        if cell is None:
            return steps
        taken = cell.drain(QUANTUM)
        if cell.phase is _LIVE and len(cell.mailbox):
            self.make_runnable(cell)
        return steps + taken

    def _next(self) -> _Cell | None:
        if self._front and (self._front_run < FRONT_RUN_MAX or not self._runnable):
            self._front_run += 1
            cell = self._front.popleft()
            cell.front = False
            return cell
        self._front_run = 0
        if not self._runnable:
            return None
        cell = self._runnable.popleft()
        cell.queued = False
        return cell

    async def _park(self) -> None:
        self._wake = wake = anyio.Event()
        if self._idle is not None:
            self._idle.set()
            self._idle = None
        await wake.wait()


@asynccontextmanager
async def open_system() -> AsyncIterator[ActorSystem]:
    """Run an actor system. Leaving the block stops every actor in order and waits for it, shielded.

    Whoever needs a bound on that end stops the actors first, under a deadline of its own. An error of the block comes
    out as it is; an error of the system itself (a hook that raised) cancels the block and comes out in a group.
    """
    started: list[ActorSystem] = []
    ready, close, ended = anyio.Event(), anyio.Event(), anyio.Event()
    body: BaseException | None = None
    try:
        async with anyio.create_task_group() as outer:
            outer.start_soon(_serve, started, ready, close, ended)
            with anyio.CancelScope(shield=True):
                await ready.wait()
            try:
                yield started[0]
            except BaseException as error:
                body = error
                raise
            finally:
                close.set()
    except BaseExceptionGroup:
        if body is None or not ended.is_set():
            raise
    if body is not None:
        raise body


async def _serve(started: list[ActorSystem], ready: anyio.Event, close: anyio.Event, ended: anyio.Event) -> None:
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as group:
            system = ActorSystem(group)
            started.append(system)
            group.start_soon(system.dispatch)
            group.start_soon(system.timers.run)
            ready.set()
            await close.wait()
            await system.shut_down("the system closes")
            ended.set()
            group.cancel_scope.cancel()
