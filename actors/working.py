"""How an actor works: tasks in its scope, shielded clean-up on a budget, and the worker of an async handler.

Whatever awaits is a task in the actor's own cancel scope, which is made with the first of them.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from actors.actor import ActorCrashed, DeadLetter, Killed, TaskFailed
from actors.errors import ActorStopped, InvalidOption
from actors.host import TASK, Host, TaskRecord, Worker, sole
from actors.mailbox import Envelope, Lane
from actors.parking import RAISED, as_error, is_cancellation
from actors.place import NOTHING, Phase, is_async
from actors.reading import Reader, is_idempotent
from actors.ref import CALL, Call, Reply
from actors.scopes import Scope

__all__ = ["Workplace"]


class Workplace(Reader):
    """An actor that has tasks."""

    __slots__ = ()

    # ------------------------------------------------------------------ tasks
    @property
    def scope(self) -> Scope:
        rare = self.rare
        if rare.scope is None:
            rare.scope = Scope(self.id)
        return rare.scope

    def start_task(self, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any, name: str = "") -> None:
        """Run ``fn(*args)`` in this actor's scope.

        Raises:
            ActorStopped: the actor is stopping, or its scope was cancelled.
        """
        if self.phase is not Phase.LIVE or self.scope.cancelled:
            raise ActorStopped(self.id, self.reason or self.scope.cause)
        envelope = self.envelope if type(self._asked) is tuple else self.current
        reply = envelope.reply if type(envelope) is Envelope and isinstance(envelope.reply, Reply) else None
        host = self.open_host()
        host.lead(self._run_task, host, fn, args, name or getattr(fn, "__qualname__", type(fn).__name__), reply)

    async def _run_task(
        self,
        host: Host,
        fn: Callable[..., Coroutine[Any, Any, None]],
        args: tuple[Any, ...],
        name: str,
        reply: Reply | None,
    ) -> None:
        try:
            await self._run_one(fn, args, name, reply)
        except CancelledError as error:
            if is_cancellation(error):
                raise
            self._task_failed(name, as_error(error))
        finally:
            host.done()

    async def _run_one(
        self, fn: Callable[..., Coroutine[Any, Any, None]], args: tuple[Any, ...], name: str, reply: Reply | None
    ) -> None:
        try:
            record = TaskRecord(name, fn(*args))
        except Exception as error:
            return self._task_failed(name, error)
        tasks = self.rare.tasks
        tasks[record] = None
        TASK.set(record)
        CALL.set(Call(self.id, reply.deadline if reply is not None and not reply.settled else None, blocking=False))
        try:
            if reply is None or reply.answered or reply.detached:
                await record.coroutine
            else:
                with anyio.CancelScope() as scope:
                    reply.on_withdrawal(scope.cancel)
                    await record.coroutine
        except* Exception as errors:
            self._task_failed(record.name, sole(errors))
        finally:
            del tasks[record]
            if not tasks:
                self.advance()

    def _task_failed(self, name: str, error: Exception) -> None:
        if self.phase is Phase.LIVE:
            self.deliver(Envelope(TaskFailed(name, error)), Lane.CONTROL)
        else:
            self.system.report(ActorCrashed(self.id, error))

    def open_host(self) -> Host:
        if self.scope.cancelled:
            raise ActorStopped(self.id, self.scope.cause)
        if self.host is None:
            home = self.home.open_host() if self.home is not None else None
            self.host = Host(home)
            if home is None:
                self.system.start_host(self.host.run, self)
            else:
                home.start(self.host.run, self)
        elif not self.host.open:
            raise ActorStopped(self.id, "the scope it lived in was cancelled")
        return self.host

    @contextmanager
    def cleanup(self, budget_s: float) -> Iterator[anyio.CancelScope]:
        """A shielded block for clean-up, of at most *budget_s* seconds, out of the one budget of this actor."""
        if not budget_s >= 0:
            raise InvalidOption(f"cleanup in {self.id!r}", "budget_s", budget_s, "give seconds >= 0")
        rare, task, began = self.rare, TASK.get(), self.system.timers.now()
        nested = task is not None and len(task.shields) > 0
        left_s = 0.0 if isinstance(self.reason, Killed) else rare.cleanup_left_s
        with self.system.timers.limit(min(budget_s, left_s), shield=not nested) as scope:
            if task is not None:
                task.shields.append(scope)
            try:
                yield scope
            finally:
                if task is not None and scope in task.shields:
                    task.shields.remove(scope)
                if not nested:
                    rare.cleanup_left_s -= self.system.timers.now() - began

    # ------------------------------------------------------------------ an async handler
    def wake_worker(self) -> int:
        """See that somebody reads the mailbox of an actor with an async handler."""
        if self._rare is not None and self._rare.suspended:
            return 0
        if self.phase is not Phase.LIVE or not self.has_message():
            return 0
        rare = self.rare
        if rare.worker is None:
            rare.worker = Worker(self)
            try:
                self.start_task(self._work, rare.worker, name="receive")
            except ActorStopped:
                self.begin_stop(Killed(self.scope.cause))
        else:
            rare.worker.wake()
        return 1

    async def _work(self, worker: Worker) -> None:
        """The worker's life. Without it nothing is read, so its end, other than by a stop, is the actor's."""
        try:
            await worker.run()
        finally:
            if not worker.retired:
                self.begin_stop(Killed(self.scope.cause))

    def has_message(self) -> bool:
        suspended = self._rare is not None and self._rare.suspended
        return self.box is not None and len(self.box) > 0 and self.phase is Phase.LIVE and not suspended

    async def serve_next(self, worker: Worker) -> None:
        """Have the async handler handle the next message, to its end."""
        item = self.mailbox.take()
        if item is None or (type(item) is Envelope and not self.due(item)):
            return
        self.handled += 1
        self.current = item
        self.rare.since = self.backend.now()
        self.traced("handled", item)
        try:
            await self._serve(item, worker)
        except BaseException:
            if not worker.retired:
                self._interrupted()
            raise
        finally:
            if not worker.retired:
                self.current = NOTHING
                for then in self.rare.between:
                    then()
                self.rare.between.clear()

    async def _serve(self, item: Any, worker: Worker) -> None:
        message, reply = (item.message, item.reply) if type(item) is Envelope else (item, None)
        CALL.set(Call(self.id, reply.deadline if isinstance(reply, Reply) else None, blocking=True))
        try:
            if isinstance(reply, Reply) and not reply.detached:
                with anyio.CancelScope() as scope:
                    reply.on_withdrawal(scope.cancel)
                    answer = await self.actor.receive(self, message)
                    if not worker.retired:
                        self.answer(answer)
            else:
                answer = await self.actor.receive(self, message)
                if not worker.retired:
                    self.answer(answer)
        except RAISED as error:
            if is_cancellation(error):
                raise
            failed = sole(as_error(error))
            if worker.retired:
                self.system.report(ActorCrashed(self.id, failed))
            else:
                self.crash(failed)

    def broken(self) -> None:
        """Something came out of one of its tasks that ends the whole system."""
        self.system.break_off()

    def abandon_work(self) -> None:
        """A handler that swallows its cancellation is left behind: what it does from now on is nothing to the actor."""
        if self._rare is not None and self._rare.worker is not None:
            self._rare.worker.retired = True
        if self.current is not NOTHING:
            self._interrupted()
            self.current = NOTHING

    def _interrupted(self) -> None:
        """The handler was cancelled with a message in hand: it is handled again, or nobody has; an asker hears of the
        end when it comes."""
        envelope = self.envelope
        if envelope is None:
            return
        if envelope.reply is not None:
            if not envelope.reply.settled:
                self.defer(envelope)
        elif self.returning and self.ward is not None and self.ward.redeliver and is_idempotent(envelope):
            self.mailbox.put_back([envelope])
        else:
            self.system.report(DeadLetter(self.id, envelope.message, "stopped", envelope.attempts))

    # ------------------------------------------------------------------ under observation
    def suspend(self) -> None:
        """Handle nothing more for now."""
        self.rare.suspended = self.held = True
        self.going = False

    def resume(self) -> None:
        """Go on with what has come meanwhile."""
        self.rare.suspended = False
        self.held = is_async(type(self.actor))
        self.going = self.phase is Phase.LIVE and not self.held
        if self.phase is Phase.LIVE and self.box is not None and len(self.box):
            self.dispatcher.make_runnable(self, first=bool(self.box.control))
