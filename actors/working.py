"""Tasks of an actor, in its own cancel scope, which is made with the first of them."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from actors.actor import ActorCrashed, TaskFailed
from actors.errors import ActorStopped
from actors.host import Host, TaskRecord, sole
from actors.mailbox import Envelope, Lane
from actors.parking import as_error, is_cancellation
from actors.place import Phase
from actors.reading import Reader
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
        CALL.set(Call(self.id, reply.deadline if reply is not None and not reply.settled else None))
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

    def broken(self) -> None:
        """Something came out of one of its tasks that ends the whole system."""
        self.system.break_off()
