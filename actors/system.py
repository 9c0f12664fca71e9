"""Actor system: the tree of all actors, their lookup by id, and the end of the system.

The system's own tasks are shielded from the caller's cancellation, so that the end is always orderly. The end is
bounded by each actor's ``shutdown_s``, and by deadlines that the caller sets.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from inspect import iscoroutinefunction
from math import inf
from typing import Any

import anyio
from anyio.abc import TaskGroup

from actors.actor import (
    SHUTDOWN_S,
    Actor,
    ActorCrashed,
    Context,
    Crashed,
    DeadLetter,
    Down,
    KernelEvent,
    Killed,
    Paused,
    Shutdown,
)
from actors.cell import ActorCell
from actors.dispatch import Dispatcher
from actors.errors import ActorStopped, InvalidOption, NameTaken, NoSuchActor, StartFailed
from actors.inspection import Inspection, inspection_of
from actors.mailbox import DEFAULT_LIMITS, Limits
from actors.message_loop import Phase, RestartHook
from actors.ref import Ref
from actors.task_runner import RunnerOwner
from actors.timers import TimerService
from actors.waiter import current_backend

ROOT = "."


@cache
def _is_async(behaviour: type) -> bool:
    return iscoroutinefunction(getattr(behaviour, "receive", None))


class _Root:
    """Behaviour of the root actor, which ignores messages."""

    def receive(self, ctx: Context, message: Any) -> None:
        return None


class ActorSystem:
    """Tree of actors with its dispatcher. Made by :func:`open_system`.

    ``on_event`` is called with each :data:`~actors.actor.KernelEvent`; it may be replaced, and must not raise.
    ``counts`` holds the number of events by name. ``seed`` determines every random delay.
    """

    def __init__(self, group: TaskGroup, seed: int | None = None) -> None:
        backend = current_backend()
        self.group = group
        self.seed = random.SystemRandom().getrandbits(64) if seed is None else seed
        self.dispatcher = Dispatcher(backend)
        self.timers = TimerService(backend, lambda late_s: self.report(Paused(late_s)))
        self.counts: dict[str, int] = {}
        self.on_event: Callable[[KernelEvent], None] = lambda event: None
        self._cells: dict[str, ActorCell] = {}
        self._root = ActorCell(self, _Root(), ROOT, None, None)
        self._cells[ROOT] = self._root

    def __len__(self) -> int:
        return len(self._cells) - (ROOT in self._cells)

    def __contains__(self, actor_id: str) -> bool:
        return actor_id in self._cells

    @property
    def broken(self) -> bool:
        """Whether an error in one of the system's tasks ends the whole system: a hook that raised, a Ctrl-C. Every
        actor is being cancelled and no timer fires any more, so a wait for an actor would be in vain."""
        return self.group.cancel_scope.cancel_called

    def cancel_all(self) -> None:
        """Cancel every actor at once. Without this call, a propagating error would cancel the actors level by level,
        and actors not yet cancelled would handle the ends of others."""
        self.group.cancel_scope.cancel()

    @property
    def dead_letters(self) -> int:
        """Number of messages that no actor has handled, or that were being handled at a crash."""
        return self.counts.get(DeadLetter.__name__, 0)

    @property
    def crashes(self) -> int:
        return self.counts.get(ActorCrashed.__name__, 0)

    # ------------------------------------------------------------------ start
    def spawn(
        self,
        actor: Actor,
        actor_id: str,
        *,
        parent: str = ROOT,
        capacity: int = DEFAULT_LIMITS.capacity,
        limits: Limits | None = None,
        home: str | None = None,
        shutdown_s: float = SHUTDOWN_S,
        restart_hook: RestartHook | None = None,
    ) -> Ref:
        """Start *actor* as the youngest child of *parent*.

        Args:
            actor: behaviour of the new actor.
            actor_id: id, unique among live actors.
            parent: parent of the new actor; by default the root.
            capacity: URGENT and NORMAL messages that the mailbox may hold; short for *limits*.
            limits: all bounds of the mailbox.
            home: ancestor inside whose scope the actor's tasks run; by default the parent. If the tree is deeper than
                task groups may nest, name a common ancestor as the home of all actors.
            shutdown_s: seconds that the actor's tasks may take to end before they are abandoned.
            restart_hook: (for supervisors) decides about restarts.

        Raises:
            ActorStopped: the parent is stopping.
            InvalidOption: *home* is not an ancestor, so it could end first; a bound is invalid; or ``receive`` is a
                coroutine function.
            NameTaken: a live actor has that id.
            StartFailed: ``started`` raised.
        """
        if actor_id in self._cells:
            raise NameTaken(actor_id)
        if _is_async(type(actor)):
            fix = "make it a plain function, and start a task for what awaits"
            raise InvalidOption(f"actor {actor_id!r}", "receive", actor, fix)
        above = self._live(parent)
        if limits is None:
            limits = DEFAULT_LIMITS if capacity == DEFAULT_LIMITS.capacity else Limits(capacity)
        if limits is not DEFAULT_LIMITS:
            limits.checked(actor_id)
        if not shutdown_s >= 0:
            raise InvalidOption(f"actor {actor_id!r}", "shutdown_s", shutdown_s, "give seconds >= 0")
        at_home = above if home is None else self._home(home, above)
        cell = ActorCell(self, actor, actor_id, above, at_home, limits, shutdown_s, restart_hook)
        if above.cells is None:
            above.cells = {}
        self._cells[actor_id] = above.cells[actor_id] = cell
        if not cell.begin() and isinstance(cell.reason, StartFailed):
            cell.take_end_step()
            raise cell.reason
        return cell.ref

    def _home(self, actor_id: str, parent: ActorCell) -> ActorCell:
        cell = self._live(actor_id)
        if parent.home is cell:
            return cell
        above: ActorCell | None = parent
        while above is not cell:
            if above is None:
                fix = f"name an ancestor of the children of {parent.id!r}, or omit it"
                raise InvalidOption("spawn", "home", actor_id, fix)
            above = above.parent
        return cell

    def _live(self, actor_id: str) -> ActorCell:
        cell = self._cells.get(actor_id)
        if cell is None:
            raise ActorStopped(actor_id)
        if cell.phase is not Phase.LIVE:
            raise ActorStopped(actor_id, cell.reason)
        return cell

    # ------------------------------------------------------------------ lookup
    def ref(self, actor_id: str) -> Ref | None:
        """Return the ref of a live actor; ``None`` if there is no such actor."""
        cell = self._cells.get(actor_id)
        return cell.ref if cell is not None else None

    def context(self, actor_id: str) -> Context | None:
        """Return the context of a live actor, for code that performs the actor's effects; ``None`` if there is no such
        actor."""
        return self._cells.get(actor_id)

    def cell(self, actor_id: str) -> ActorCell | None:
        return self._cells.get(actor_id)

    def children(self, actor_id: str = ROOT) -> Sequence[str]:
        cell = self._cells.get(actor_id)
        return cell.children if cell is not None else ()

    def monitor(self, actor_id: str, on_down: Callable[[Down], None]) -> None:
        """Call *on_down* once when the actor has ended; at once, and without a reason, if there is no such actor."""
        self._watch(actor_id, on_down, object())

    def _watch(self, actor_id: str, on_down: Callable[[Down], None], key: object) -> None:
        cell = self._cells.get(actor_id)
        if cell is None:
            on_down(Down(actor_id, None, 0))
        else:
            cell.lazy.watchers[key] = on_down

    # ------------------------------------------------------------------ ends
    def stop(self, actor_id: str, cause: object = None, *, grace_s: float = inf) -> None:
        """Begin the orderly end of an actor and of all actors below it, which share one deadline, *grace_s* from now.
        It is no error if the actor has ended. A supervisor may restart the actor: send :class:`StopChild` to the
        supervisor to prevent that.

        Raises:
            InvalidOption: *grace_s* is negative.
        """
        if not grace_s >= 0:
            raise InvalidOption(f"stop of {actor_id!r}", "grace_s", grace_s, "give seconds >= 0")
        cell = self._cells.get(actor_id)
        if cell is not None:
            cell.begin_stop(Shutdown(cause), stop_by=self.timers.now() + grace_s)

    def kill(self, actor_id: str, cause: object = None) -> None:
        """End an actor and all below it now: ``stopped`` is not called, and tasks that do not end are abandoned."""
        cell = self._cells.get(actor_id)
        if cell is not None:
            cell.begin_stop(Killed(cause), stop_by=self.timers.now())

    async def join(self, actor_id: str) -> None:
        """Wait until the actor has ended for good."""
        gone = self.dispatcher.backend.new_waiter()
        self._watch(actor_id, lambda down: gone.wake(), gone)
        try:
            await gone.wait()
        finally:
            cell = self._cells.get(actor_id)
            if cell is not None and cell.lazy_or_none is not None:
                cell.lazy.watchers.pop(gone, None)

    async def idle(self) -> None:
        """Wait until no actor has anything to do. Running tasks and pending timers are not waited for."""
        await self.dispatcher.idle()

    async def shut_down(self, cause: object = None) -> None:
        """Stop every actor in order and wait for the end."""
        self.stop(ROOT, cause)
        await self.join(ROOT)

    # ------------------------------------------------------------------ inspection
    def inspect(self, actor_id: str) -> Inspection:
        """Return phase, tasks, stacks and counters of an actor.

        Raises:
            NoSuchActor: no living actor has that id.
        """
        cell = self._cells.get(actor_id)
        if cell is None:
            raise NoSuchActor(actor_id)
        return inspection_of(cell)

    # ------------------------------------------------------------------ for cells
    def rng(self, *stream: object) -> random.Random:
        """Return a random stream that depends only on the system's seed and on the name *stream*."""
        return random.Random(":".join(map(str, (self.seed, *stream))))

    def remove(self, actor_id: str) -> None:
        del self._cells[actor_id]

    def report(self, event: KernelEvent) -> None:
        name = type(event).__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        self.on_event(event)

    def start_runner(self, run: Callable[[RunnerOwner], Coroutine[Any, Any, None]], owner: RunnerOwner) -> None:
        self.group.start_soon(run, owner)

    async def dispatch(self) -> None:
        """Run the actors, for ever. If the dispatcher fails, end all actors, so that no ask waits for a reply in
        vain."""
        try:
            await self.dispatcher.run()
        except BaseException as error:  # a cancellation if another task of the system has failed
            reason = Crashed(error) if isinstance(error, Exception) else Killed("its system broke")
            self.on_event = lambda event: None  # if it has raised, that error propagates already
            for cell in [*reversed(self._cells.values())]:
                with suppress(Exception):  # a monitor that raises must not keep the other asks waiting
                    cell.begin_stop(reason, restarting=False)
                    cell.finish()
            raise


@asynccontextmanager
async def open_system(*, seed: int | None = None) -> AsyncIterator[ActorSystem]:
    """Run an actor system. Leaving the block stops every actor in order and waits for the end, shielded.

    To bound that end, stop the actors first, under a deadline. An error of the block is raised as it is; an error of
    the system itself (a hook that raised) cancels the block and is raised in a group.

    Args:
        seed: seed of random delays; by default a new one each time, in ``system.seed``.
    """
    started: list[ActorSystem] = []
    ready, close, ended = anyio.Event(), anyio.Event(), anyio.Event()
    body: BaseException | None = None
    try:
        async with anyio.create_task_group() as outer:
            outer.start_soon(_serve, started, ready, close, ended, seed)
            try:
                with anyio.CancelScope(shield=True):  # does not stop a Ctrl-C, nor asyncio's own cancel
                    await ready.wait()
                yield started.pop()
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


async def _serve(
    started: list[ActorSystem], ready: anyio.Event, close: anyio.Event, ended: anyio.Event, seed: int | None
) -> None:
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as group:
            system = ActorSystem(group, seed)
            started.append(system)
            group.start_soon(system.dispatch)
            group.start_soon(system.timers.run)
            ready.set()
            await close.wait()
            await system.shut_down("the system closes")
            ended.set()
            group.cancel_scope.cancel()
