"""Tasks of one actor: the runner, which owns the actor's cancel scope and task group, and the record of each task.

A runner is itself one task. It opens the actor's task group inside the group of its *home*'s runner (the actor's
parent, or an ancestor chosen when the actor was spawned), so that cancel scopes nest as actors do. It is made with the
actor's first task, and executes that task itself, which saves one task. Tasks that outlive their actor's end are
abandoned: their runners keep running, and no other runner waits for them.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Coroutine
from types import CoroutineType, FrameType
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from actors.ref import CALL, Call, Reply
from actors.scopes import Scope
from actors.waiter import Backend, Waiter, as_error, is_cancellation

Start = tuple[Callable[..., Coroutine[Any, Any, Any]], tuple[Any, ...]]


class TaskRecord:
    """Record of a running task of an actor."""

    __slots__ = ("clean_up_s", "coroutine", "name", "reported")

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, Any], clean_up_s: float) -> None:
        self.name = name
        self.coroutine = coroutine
        self.clean_up_s = clean_up_s
        """Seconds that the task may take to end after its cancellation before that is reported."""
        self.reported = False
        """The task swallowed its cancellation, and that was reported."""


class RunnerOwner(Protocol):
    """Protocol of the part of an actor that its runner needs."""

    id: str

    @property
    def scope(self) -> Scope: ...

    @property
    def backend(self) -> Backend: ...

    @property
    def tasks(self) -> dict[TaskRecord, None]: ...

    def task_failed(self, name: str, error: Exception) -> None: ...

    def advance(self) -> None: ...

    def cancel_system(self) -> None: ...


class TaskRunner:
    """Task that owns an actor's cancel scope and task group, and runs the actor's other tasks."""

    __slots__ = (
        "_children",
        "_first",
        "_group",
        "_home",
        "_own",
        "_pending",
        "_waiter",
        "closing",
        "ended",
        "open",
    )

    def __init__(self, home: TaskRunner | None) -> None:
        self.open = True
        """Tasks can be started. The end of the actor, or the cancellation of a scope around it, closes the runner."""
        self.closing = False
        self.ended = False
        self._home = home
        self._children = 0
        """Runners whose home this runner is, and that are not over."""
        self._own = 0
        """Tasks of the actor that have not ended."""
        self._waiter: Waiter | None = None
        self._group: TaskGroup | None = None
        self._first: Start | None = None
        self._pending: list[Start] = []
        """Tasks and runners that were started before the group was open."""
        if home is not None:
            home._children += 1

    def start_task(
        self,
        owner: RunnerOwner,
        fn: Callable[..., Coroutine[Any, Any, None]],
        args: tuple[Any, ...],
        name: str,
        reply: Reply | None,
        clean_up_s: float,
    ) -> None:
        """Run ``fn(*args)`` for *owner*; if *reply* is withdrawn before it is answered, cancel the task."""
        self._own += 1
        if self._group is None and self._first is None:
            self._first = self._run_task, (owner, fn, args, name, reply, clean_up_s)
        else:
            self.start(self._run_task, owner, fn, args, name, reply, clean_up_s)

    def start(self, fn: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        if self._group is None:
            self._pending.append((fn, args))
        else:
            self._group.start_soon(fn, *args)

    async def _run_task(
        self,
        owner: RunnerOwner,
        fn: Callable[..., Coroutine[Any, Any, None]],
        args: tuple[Any, ...],
        name: str,
        reply: Reply | None,
        clean_up_s: float,
    ) -> None:
        try:
            try:
                record = TaskRecord(name, fn(*args), clean_up_s)
            except Exception as error:  # such as wrong arguments
                return owner.task_failed(name, error)
            tasks = owner.tasks
            tasks[record] = None
            CALL.set(Call(owner.id, reply.deadline if reply is not None and not reply.settled else None))
            try:
                if reply is None or reply.answered or reply.detached:
                    await record.coroutine
                else:
                    with anyio.CancelScope() as scope:
                        reply.on_withdrawal(scope.cancel)
                        await record.coroutine
            except* Exception as errors:
                owner.task_failed(record.name, first_error(errors))
            finally:
                del tasks[record]
                if not tasks:
                    owner.advance()
        except CancelledError as error:
            if is_cancellation(error):
                raise
            owner.task_failed(name, as_error(error))
        finally:
            self._own -= 1

    @property
    def over(self) -> bool:
        """Whether no task is left in this runner that a cancellation would reach, and none will start: all tasks have
        ended, or were abandoned in inner runners. The runner itself, once closed, ends within a few steps of the event
        loop."""
        return self.ended or (self._own == 0 and self._children == 0)

    def close(self) -> None:
        """Start no more tasks, and end when the last task has ended."""
        self.closing = True
        if self._waiter is not None:
            self._waiter.wake()

    def leave_home(self) -> None:
        """Let the outer runners end without waiting for this runner."""
        home, self._home = self._home, None
        if home is not None:
            home._children -= 1

    async def run(self, owner: RunnerOwner) -> None:
        """Run the tasks of *owner*. The runner keeps no reference to *owner*, so that an ended actor is freed."""
        try:
            async with anyio.create_task_group() as group:
                owner.scope.open(group.cancel_scope)
                self._group = group
                for fn, args in self._pending:
                    group.start_soon(fn, *args)
                self._pending.clear()
                await self._until_closed(owner)
        except BaseExceptionGroup:  # no error of a task, which is reported to the actor: such as a Ctrl-C
            owner.cancel_system()
            raise
        finally:
            self.ended = True
            self._group = None
            self.leave_home()
            owner.advance()

    async def _until_closed(self, owner: RunnerOwner) -> None:
        """Run the first task, then wait for :meth:`close`. After that, or after a cancellation, no task starts."""
        try:
            if self._first is not None:
                (fn, args), self._first = self._first, None
                await fn(*args)
            if not self.closing:
                self._waiter = owner.backend.new_waiter()
                await self._waiter.wait()
        finally:
            self.open = False


def first_error(errors: BaseExceptionGroup[Exception] | Exception) -> Exception:
    """Return the first error in a group; the others are in its ``suppressed`` attribute, in order."""
    first, *others = _leaves(errors)
    if others:
        first.suppressed = (*getattr(first, "suppressed", ()), *others)  # type: ignore[attr-defined]
    return first


def _leaves(error: BaseException) -> list[Exception]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error] if isinstance(error, Exception) else []


def stack_of(coroutine: Coroutine[Any, Any, Any]) -> tuple[str, ...]:
    """Return the stack of a suspended coroutine, outermost call first: ``file:line in function``."""
    lines: list[str] = []
    awaited: Any = coroutine
    while isinstance(awaited, CoroutineType):
        frame: FrameType | None = awaited.cr_frame
        if frame is not None:
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}")
        awaited = awaited.cr_await
    return tuple(lines)
