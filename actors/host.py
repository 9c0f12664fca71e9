"""The tasks of an actor: the host that owns its scope, and the record of each task.

A host is one task that opens the actor's task group, whose cancel scope is the actor's, inside the group of its home's
host, so that scopes nest as actors do. It exists from the actor's first task on. Tasks that outlive the end of their
actor are abandoned: their hosts stay where they are, and nobody counts them any more.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import CoroutineType, FrameType
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from actors.parking import Backend, Waiter
from actors.scopes import Scope

__all__ = ["Host", "HostOwner", "TaskRecord", "sole", "stack_of"]

Start = tuple[Callable[..., Coroutine[Any, Any, Any]], tuple[Any, ...]]


class TaskRecord:
    """One running task of an actor."""

    __slots__ = ("coroutine", "name", "reported")

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.name = name
        self.coroutine = coroutine
        self.reported = False


class HostOwner(Protocol):
    """What a host needs of its actor."""

    @property
    def scope(self) -> Scope: ...

    @property
    def backend(self) -> Backend: ...

    def advance(self) -> None: ...

    def broken(self) -> None: ...


class Host:
    """The task that owns an actor's scope and task group."""

    __slots__ = (
        "_first",
        "_group",
        "_home",
        "_inner",
        "_own",
        "_parker",
        "_waiting",
        "closing",
        "ended",
        "open",
    )

    def __init__(self, home: Host | None) -> None:
        self.open = True
        self.ended = False
        self._home = home
        self._inner = 0
        self._own = 0
        self.closing = False
        self._parker: Waiter | None = None
        self._group: TaskGroup | None = None
        self._first: Start | None = None
        self._waiting: list[Start] = []
        if home is not None:
            home._inner += 1

    def lead(self, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Run the first task of the actor in the host itself, which saves one; start any other. It says ``done``."""
        self._own += 1
        if self._group is None and self._first is None:
            self._first = fn, args
        else:
            self.start(fn, *args)

    def start(self, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        if self._group is None:
            self._waiting.append((fn, args))
        else:
            self._group.start_soon(fn, *args)

    def done(self) -> None:
        """A task of its actor has ended."""
        self._own -= 1

    @property
    def over(self) -> bool:
        """There is nothing in here, and nothing will be, that a cancellation would reach: all tasks have ended, or were
        abandoned further in. The host itself, once it is closed, needs but some steps more."""
        return self.ended or (self._own == 0 and self._inner == 0)

    def close(self) -> None:
        """Start nothing more, and end with what is there."""
        self.closing = True
        if self._parker is not None:
            self._parker.unpark()

    def leave_home(self) -> None:
        """Whoever is further out need not wait for it any more."""
        home, self._home = self._home, None
        if home is not None:
            home._inner -= 1

    async def run(self, owner: HostOwner) -> None:
        """Its life, for *owner*, who keeps it: so it keeps neither him nor his first task any longer than that."""
        try:
            async with anyio.create_task_group() as group:
                owner.scope.open(group.cancel_scope)
                self._group = group
                for fn, args in self._waiting:
                    group.start_soon(fn, *args)
                self._waiting.clear()
                await self._until_closed(owner)
        except BaseExceptionGroup:  # what is no error of the actor alone, as a Ctrl-C, comes out of its task
            owner.broken()
            raise
        finally:
            self.ended = True
            self._group = None
            self.leave_home()
            owner.advance()

    async def _until_closed(self, owner: HostOwner) -> None:
        """From the end of this on, by a stop or by a cancelled scope further out, nothing more is started here."""
        try:
            if self._first is not None:
                (fn, args), self._first = self._first, None
                await fn(*args)
            if not self.closing:
                self._parker = owner.backend.parker()
                await self._parker.wait()
        finally:
            self.open = False


def sole(errors: BaseExceptionGroup[Exception] | Exception) -> Exception:
    """The error in a group of errors: the first one; the others are in its ``suppressed`` attribute, in order."""
    first, *others = _leaves(errors)
    if others:
        first.suppressed = (*getattr(first, "suppressed", ()), *others)  # type: ignore[attr-defined]
    return first


def _leaves(error: BaseException) -> list[Exception]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error] if isinstance(error, Exception) else []


def stack_of(coroutine: Coroutine[Any, Any, Any]) -> tuple[str, ...]:
    """Where a suspended coroutine is, outermost call first: ``file:line in function``."""
    lines: list[str] = []
    awaited: Any = coroutine
    while isinstance(awaited, CoroutineType):
        frame: FrameType | None = awaited.cr_frame
        if frame is not None:
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}")
        awaited = awaited.cr_await
    return tuple(lines)
