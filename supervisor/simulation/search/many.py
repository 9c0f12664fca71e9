"""Map a function over items in several processes, with results in the order of the items.

Each process works on one item at a time, so that the death of a process is recorded as the result of its item and never
causes a hang. Ctrl-C ends the processes and keeps the results so far.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.resource_tracker import ensure_running
from typing import Any, Generic, TypeVar

import msgspec

I = TypeVar("I")  # noqa: E741 - an item
R = TypeVar("R")


class TaskFailed(msgspec.Struct, frozen=True):
    """Result of an item whose task raised an error, or whose process died; *words* is the text of the error."""

    words: str


def map_in_order(
    task: Callable[[I], R], items: Iterable[I], jobs: int, done: Callable[[I, R | TaskFailed], None]
) -> bool:
    """Call ``task(item)`` for each item, and ``done(item, result)`` for each result, in the order of the items.

    Args:
        task: a function of a module (it is imported by name); items and results can be pickled.
        items: taken one by one, as processes become free.
        jobs: number of processes; with 1, all work is done in the current process.

    Returns:
        True when all items are done; false if Ctrl-C came first.
    """
    in_order = _InOrder(done)
    try:
        if jobs == 1:
            for number, item in enumerate(items):
                in_order.take(number, item, _tried(task, item))
        else:
            _share(task, enumerate(items), jobs, in_order)
    except KeyboardInterrupt:
        return False
    return True


class _InOrder(Generic[I, R]):
    """Sorter of results: a result that comes early is held until the results of all earlier items have come."""

    def __init__(self, done: Callable[[I, R | TaskFailed], None]) -> None:
        self._done = done
        self._next = 0
        self._early: dict[int, tuple[I, R | TaskFailed]] = {}

    def take(self, number: int, item: I, result: R | TaskFailed) -> None:
        self._early[number] = item, result
        while self._next in self._early:
            self._done(*self._early.pop(self._next))
            self._next += 1


def _tried(task: Callable[[I], R], item: I) -> R | TaskFailed:
    try:
        return task(item)
    except Exception as error:
        return TaskFailed(f"{type(error).__name__}: {' '.join(str(error).split())}")


# ------------------------------------------------------------------------------------------------------ processes
def _share(task: Callable[[I], R], items: Iterator[tuple[int, I]], jobs: int, in_order: _InOrder[I, R]) -> None:
    workers: list[_Worker] = []
    try:
        while True:
            while len(workers) < jobs and (given := next(items, None)) is not None:
                workers.append(_Worker(task))
                workers[-1].give(given)
            if not workers:
                return
            for pipe in wait([worker.pipe for worker in workers]):
                worker = next(one for one in workers if one.pipe is pipe)
                number, item = worker.given
                result = worker.result()
                given = next(items, None) if worker.process.is_alive() else None
                if given is not None:
                    worker.give(given)
                else:
                    workers.remove(worker)
                    worker.end()
                in_order.take(number, item, result)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """Worker process that works on one item at a time."""

    def __init__(self, task: Callable[[Any], Any]) -> None:
        context = get_context("spawn")  # a fork would inherit the streams and locks of whatever runs here
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(task, theirs), daemon=True)
        ensure_running()  # the tracker of resources, which would otherwise begin within, and end the silence
        with interrupts_blocked():
            self.process.start()
        theirs.close()  # so that its death is the end of the pipe
        self.given: tuple[int, Any]

    def give(self, given: tuple[int, Any]) -> None:
        """Send an item to the worker process. *given* is the number of the item and the item."""
        self.given = given
        with suppress(BrokenPipeError):  # it has died; that is heard like any other end
            self.pipe.send(given[1])

    def result(self) -> Any:
        """Receive the result of the item; ``TaskFailed`` if the worker process died."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return TaskFailed(f"its process died {_of(self.process.exitcode)}")

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C (SIGINT) in processes that are started within the block, from their first instant on and for ever,
    since the parent process handles Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _of(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"of {signal.Signals(-exit_code).name}"
    return f"with exit status {exit_code}"


def _work(task: Callable[[Any], Any], pipe: Connection) -> None:
    """Main function of a worker process: work on items from *pipe* until the pipe ends, as the parent closes it or
    ends."""
    with suppress(EOFError, BrokenPipeError):
        while True:
            pipe.send(_tried(task, pipe.recv()))
