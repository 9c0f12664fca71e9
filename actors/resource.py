"""An actor that owns a context manager: a connection, a process, a client. It is entered and left by one and the same
task, whoever uses what is inside: a scope that is left in another task than it was entered in breaks both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, NamedTuple, TypeVar

import anyio

from actors.actor import DEFERRED, Context, TaskFailed
from actors.mailbox import Lane, ReplyPort

__all__ = ["Resource", "Use"]

T = TypeVar("T")


class Use(NamedTuple):
    """Ask a :class:`Resource` to run ``work(value)`` with what its context manager gave; the answer is the result.

    It runs in a task of the resource's actor, beside others, and is cancelled with its asker or with the actor.
    """

    work: Callable[[Any], Awaitable[Any]]


class _Opened(NamedTuple):
    """The context manager was entered."""


class Resource(Generic[T]):
    """The behaviour that owns what ``open()`` returns, from the actor's start to its end.

    Asks that come before it is open wait for that. A context manager that fails ends the actor with that error, so
    that a supervisor can start it again, with a new one.
    """

    def __init__(self, open: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open = open
        self._value: list[T] = []

    def started(self, ctx: Context) -> None:
        ctx.start_task(self._hold, ctx, name="resource")

    async def _hold(self, ctx: Context) -> None:
        async with self._open() as value:
            self._value.append(value)
            ctx.tell_self(_Opened(), lane=Lane.CONTROL)
            await anyio.sleep_forever()

    def receive(self, ctx: Context, message: Any) -> Any:
        match message:
            case _Opened():
                ctx.unstash_all()
            case TaskFailed(error=error):
                raise error
            case Use(work):
                if not self._value:
                    ctx.stash()
                    return DEFERRED
                envelope = ctx.envelope
                assert envelope is not None
                ctx.start_task(self._use, work, envelope.reply, name="use")
                return DEFERRED
        return None

    async def _use(self, work: Callable[[T], Awaitable[Any]], reply: ReplyPort | None) -> None:
        """What goes wrong in the work is its asker's business, and not the end of the resource."""
        try:
            answer = await work(self._value[0])
        except Exception as error:
            if reply is not None:
                reply.fail(error)
        else:
            if reply is not None:
                reply.resolve(answer)
