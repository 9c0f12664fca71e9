"""Cell: the actor system's object for one actor, with its children, its tasks, its end and its restart.

Theory of operation
-------------------
An end consists of steps that the dispatcher takes, each when the step before is complete:

    LIVE --begin_stop--> STOPPING: reject unread messages -> stop the children, youngest first
                                   -> cancel the tasks -> ``stopped(ctx, reason)`` --> STOPPED
                                                                                  \\-> EXITED --restart--> LIVE

Steps are queued and not called, so that a tree of any depth ends without recursion. The deadline ``stop_by`` may only
become earlier. No end takes for ever: a task that still runs 250 ms after its cancellation, or longer if it was started
with more time to clean up, is reported with its stack (``CancelSwallowed``), and at the deadline the actor ends without
its tasks (``Abandoned``).

An actor that its supervisor restarts keeps its cell: its place in the tree, its ref, and its mailbox with all messages
that are queued. Its behaviour, scope, timers and children belong to one incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any

from actors.actor import (
    SHUTDOWN_S,
    Abandoned,
    Actor,
    ActorCrashed,
    CancelSwallowed,
    DeadLetter,
    Down,
    Killed,
    Normal,
    Shutdown,
    TaskFailed,
)
from actors.errors import ActorRestarting, ActorStopped, StartFailed
from actors.mailbox import DEFAULT_LIMITS, Envelope, Lane, Limits
from actors.message_loop import LazyFields, MessageLoop, Phase, RestartHook
from actors.ref import Ref, Reply
from actors.scopes import Scope
from actors.task_runner import TaskRecord, TaskRunner, stack_of
from actors.timers import Timer
from actors.waiter import RAISED, as_error

SWALLOWED_AFTER_S = 0.25
"""Seconds after its cancellation at which a task that still runs is reported."""
KILL_S = 0.25
"""Seconds that a cancelled task has at least before the actor abandons the task, also when the deadline has passed."""

_LIVE, _STOPPING, _EXITED, _STOPPED = Phase.LIVE, Phase.STOPPING, Phase.EXITED, Phase.STOPPED


class ActorCell(MessageLoop):
    """State of one actor: the :class:`~actors.actor.Context` of its behaviour, and the target of its refs."""

    __slots__ = ()

    parent: ActorCell | None
    home: ActorCell | None
    cells: dict[str, ActorCell] | None

    # ------------------------------------------------------------------ the tree
    @property
    def children(self) -> Sequence[str]:
        """The ids of the living children, oldest first."""
        return tuple(self.cells or ())

    def spawn(
        self,
        actor: Actor,
        actor_id: str,
        *,
        capacity: int = DEFAULT_LIMITS.capacity,
        limits: Limits | None = None,
        home: str | None = None,
        shutdown_s: float = SHUTDOWN_S,
        restart_hook: RestartHook | None = None,
    ) -> Ref:
        return self.system.spawn(
            actor,
            actor_id,
            parent=self.id,
            capacity=capacity,
            limits=limits,
            home=home,
            shutdown_s=shutdown_s,
            restart_hook=restart_hook,
        )

    # ------------------------------------------------------------------ tasks
    @property
    def scope(self) -> Scope:
        lazy = self.lazy
        if lazy.scope is None:
            lazy.scope = Scope(self.id)
        return lazy.scope

    @property
    def tasks(self) -> dict[TaskRecord, None]:
        return self.lazy.tasks

    def start_task(
        self, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any, name: str = "", clean_up_s: float = 0.0
    ) -> None:
        """Run ``fn(*args)`` in this actor's scope.

        Raises:
            ActorStopped: the actor is stopping, or its scope was cancelled.
        """
        if self.phase is not _LIVE or self.scope.cancelled:
            raise ActorStopped(self.id, self.reason or self.scope.cause)
        envelope = self.envelope if type(self._ask_in_place) is tuple else self.current
        reply = envelope.reply if type(envelope) is Envelope and isinstance(envelope.reply, Reply) else None
        name = name or getattr(fn, "__qualname__", type(fn).__name__)
        self._open_runner().start_task(self, fn, args, name, reply, clean_up_s)

    def _open_runner(self) -> TaskRunner:
        """Return the runner of the actor's tasks; with the first task, make the runner, and the runners of the actors
        in whose scopes it runs.

        Raises:
            ActorStopped: the actor's scope, or a scope around it, was cancelled.
        """
        if self.scope.cancelled:
            raise ActorStopped(self.id, self.scope.cause)
        if self.runner is None:
            home = self.home._open_runner() if self.home is not None else None
            self.runner = TaskRunner(home)
            if home is None:
                self.system.start_runner(self.runner.run, self)
            else:
                home.start(self.runner.run, self)
        elif not self.runner.open:
            raise ActorStopped(self.id, "the scope around its own was cancelled")
        return self.runner

    def task_failed(self, name: str, error: Exception) -> None:
        """Report an error of a task to the behaviour or, once the actor stops, to the owner of the actor system."""
        if self.phase is _LIVE:
            self.deliver(Envelope(TaskFailed(name, error)), Lane.CONTROL)
        else:
            self.system.report(ActorCrashed(self.id, error))

    def cancel_system(self) -> None:
        """Cancel all actors, because an error that belongs to no actor came out of a task."""
        self.system.cancel_all()

    # ------------------------------------------------------------------ the end
    def stop(self, cause: object = None) -> None:
        self.begin_stop(Shutdown(cause))

    def exit(self) -> None:
        self.begin_stop(Normal())

    def fail(self, error: Exception) -> None:
        """End the actor with *error*, as if its handler had raised *error*."""
        self.system.report(ActorCrashed(self.id, error))
        self.begin_stop(error)

    def begin_stop(self, reason: object, *, stop_by: float = inf, restarting: bool | None = None) -> None:
        """Begin the end of the actor. A second call may only make *stop_by* (absolute, in seconds) earlier, or prevent
        the restart.

        *restarting*: whether the supervisor restarts the actor; by default its restart type and the reason decide.
        """
        if self.phase is _LIVE:
            self.restarting = self.may_restart(reason) if restarting is None else restarting
            self.phase = _STOPPING
            self.fast, self.running = None, False
            self.reason = reason
            if stop_by < inf:
                self.lazy.stop_by = stop_by
            self.advance()
        elif self.phase is not _STOPPED:
            self.shorten_deadline(stop_by, prevent_restart=self.phase is _EXITED or restarting is False)

    def shorten_deadline(self, stop_by: float, *, prevent_restart: bool) -> None:
        if prevent_restart:
            self.restarting = False
            if self.phase is _EXITED:
                self.finish()
                return
            self.advance()
        before = self._lazy.stop_by if self._lazy is not None else inf
        if stop_by < before:
            self.lazy.stop_by = stop_by
            for child in (self.cells or {}).values():
                child.shorten_deadline(stop_by, prevent_restart=False)
            if self.runner is not None and self.runner.closing:
                self.lazy.stop_by = min(before, max(stop_by, self.system.timers.now() + KILL_S))
                self._set_end_check()

    def may_restart(self, reason: object) -> bool:
        return (
            self.restart_hook is not None
            and self.parent is not None
            and self.parent.phase is _LIVE
            and self.restart_hook.wants_restart(reason)
        )

    def advance(self) -> None:
        """Queue the next step of this actor's end with the dispatcher."""
        if self.phase is _STOPPING:
            self.dispatcher.queue_end_step(self)

    def take_end_step(self) -> None:
        """Take one step of the end: reject unread messages, then end the children, then the tasks, then the actor
        itself."""
        if self.phase is not _STOPPING:
            return
        if not self.restarting and self.box is not None and len(self.box):
            self._reject(self.box.drain())
        if self.cells:
            # The youngest first, one after the other: an older child may be needed by a younger one.
            reason = self.reason if isinstance(self.reason, Shutdown | Killed) else Shutdown(self.reason)
            stop_by = self._lazy.stop_by if self._lazy is not None else inf
            next(reversed(self.cells.values())).stop_with_parent(reason, stop_by)
        elif self.runner is None or self.runner.over:
            self._finish_incarnation()
        elif not self.runner.closing:
            self.scope.cancel(self.reason)
            self.runner.close()
            self._set_end_check()

    def stop_with_parent(self, reason: Shutdown | Killed, stop_by: float) -> None:
        """End the actor for good because its parent ends, by the earlier of the parent's deadline and that of the child
        spec's ``shutdown_s``."""
        if self.restart_hook is None:
            self.begin_stop(reason, stop_by=stop_by, restarting=False)
        else:
            shutdown_s = self.restart_hook.shutdown_s
            why = reason if shutdown_s > 0 else Killed(reason.cause)
            self.begin_stop(why, stop_by=min(stop_by, self.system.timers.now() + shutdown_s), restarting=False)

    # ------------------------------------------------------------------ tasks that do not end
    def _set_end_check(self) -> None:
        """Set a timer that checks whether the tasks have ended, and before that reports tasks that ignore their
        cancellation."""
        lazy, now = self.lazy, self.system.timers.now()
        cancelled_at = now
        if lazy.end_check is not None:
            self.system.timers.cancel(lazy.end_check)
            cancelled_at = lazy.end_check.message
        else:
            lazy.stop_by = max(min(lazy.stop_by, now + self.shutdown_s), now + KILL_S)
        delay_s = max(min(SWALLOWED_AFTER_S, lazy.stop_by - now), 0.0)
        lazy.end_check = self.system.timers.set(self.id, cancelled_at, delay_s, self._check_end)

    def _check_end(self, timer: Timer) -> None:
        if self.phase is not _STOPPING or self.runner is None:
            return
        if self.runner.over:
            self.advance()
            return
        now = self.system.timers.now()
        after_s = now - timer.message
        for task in [one for one in self.tasks if not one.reported and after_s >= one.clean_up_s]:
            task.reported = True
            self.system.report(CancelSwallowed(self.id, task.name, after_s, stack_of(task.coroutine)))
        if now < self.lazy.stop_by:
            self._set_end_check()
        else:
            self.system.report(Abandoned(self.id, tuple(task.name for task in self.tasks), self.shutdown_s))
            self._finish_incarnation()

    # ------------------------------------------------------------------ one incarnation is over
    def _finish_incarnation(self) -> None:
        """Call ``stopped`` of the behaviour; then wait for the restart, or end the actor for good."""
        if self.runner is not None:
            if not (self.runner.closing or self.runner.ended):
                self.scope.close(self.reason)
                self.runner.close()
            self.runner.leave_home()
        stopped = getattr(self.actor, "stopped", None)
        if stopped is not None and not isinstance(self.reason, Killed):
            try:
                self.dispatcher.context.copy().run(stopped, self, self.reason)
            except RAISED as error:
                self.system.report(ActorCrashed(self.id, as_error(error)))
        lazy = self._lazy
        if lazy is not None:
            for timer in (*lazy.timers.values(), *((lazy.end_check,) if lazy.end_check is not None else ())):
                self.system.timers.cancel(timer)
            lazy.timers.clear()
            lazy.end_check = None
        hook = self.restart_hook
        if hook is None or not self.restarting or self.parent is None or self.parent.phase is not _LIVE:
            self.finish()
            return
        self.phase = _EXITED
        for envelope in lazy.asks if lazy is not None else ():
            if envelope.reply is not None and not envelope.reply.settled:
                envelope.reply.fail(ActorRestarting(self.id, self.reason, started=True))
        hook.report_down(self.reason)

    def restart(self) -> None:
        """Start the next incarnation. If the factory or ``started`` raises, the incarnation ends at once."""
        assert self.restart_hook is not None
        assert self.phase is _EXITED
        lazy = self._lazy
        self.incarnation += 1
        self.runner, self.reason, self.restarting = None, None, False
        if lazy is not None:
            self._lazy = fresh = LazyFields()
            fresh.watchers = lazy.watchers
        try:
            actor = self.restart_hook.make_actor()
        except RAISED as error:
            failed = StartFailed(self.id, as_error(error))
            self.phase, self.reason, self.restarting = _EXITED, failed, True
            self.restart_hook.report_down(failed)
            return
        self.actor = actor
        self.phase, self.running = _LIVE, True
        self.begin()

    def begin(self) -> bool:
        """Run ``started``; return ``False`` if it raised, in which case the actor ends with that error."""
        started = getattr(self.actor, "started", None)
        if started is not None:
            try:
                started(self)
            except RAISED as error:
                failed = error if isinstance(error, StartFailed) else StartFailed(self.id, as_error(error))
                self.begin_stop(failed, restarting=self.incarnation > 1)
                return False
        if self.box is not None and len(self.box):
            self.dispatcher.make_runnable(self, first=bool(self.box.control))
        return True

    def finish(self) -> None:
        """End the actor for good: fail the asks without a reply, remove the actor from the tree, and notify supervisor,
        parent and monitors."""
        if self.phase is _STOPPED:
            return
        self.phase = _STOPPED
        self.restarting = False
        lazy, box = self._lazy, self.box
        self._ref = None  # breaks a cycle: the actor is freed with its last holder, without the garbage collector
        if lazy is not None:
            asks, lazy.asks = lazy.asks, []
            self._reject(asks)
        if box is not None and (len(box) or box.awaited):
            self._reject(box.drain())
        self.system.remove(self.id)
        parent = self.parent
        if parent is not None:
            assert parent.cells is not None
            del parent.cells[self.id]
            if parent.phase is _STOPPING:
                parent.advance()
            elif parent.phase is _LIVE and self.restart_hook is not None:
                self.restart_hook.report_down(self.reason)
        if lazy is not None:
            for watcher in [*lazy.watchers.values()]:
                watcher(Down(self.id, self.reason, self.incarnation))

    def _reject(self, envelopes: Sequence[Envelope]) -> None:
        """Fail the asks among messages that will not be handled, and report the other messages as dead letters."""
        for envelope in envelopes:
            if envelope.reply is None:
                if envelope.token is None:
                    self.system.report(DeadLetter(self.id, envelope.message))
            elif not envelope.reply.settled:
                envelope.reply.fail(ActorStopped(self.id, self.reason))
