"""A resource: one task enters and leaves its context manager, whoever uses what is inside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kernel_kit import DEADLINE_S, both, running

from actors import ActorStopped, Backoff, ChildSpec, Resource, Supervisor, Use


class Connection:
    """What is inside: it may be used until it is closed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.closed = False

    async def query(self, word: str) -> str:
        assert not self.closed
        await anyio.lowlevel.checkpoint()
        return f"{word} from {self.number}"


class Opener:
    """Opens connections, and notes which task entered and left each of them."""

    def __init__(self, *, gate: anyio.Event | None = None) -> None:
        self.opened: list[Connection] = []
        self.entered: list[int] = []
        self.left: list[int] = []
        self._gate = gate

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Connection]:
        if self._gate is not None:
            await self._gate.wait()
        async with anyio.create_task_group():  # breaks if another task leaves it
            connection = Connection(len(self.opened) + 1)
            self.opened.append(connection)
            self.entered.append(anyio.get_current_task().id)
            try:
                yield connection
            finally:
                connection.closed = True
                self.left.append(anyio.get_current_task().id)


def query(word: str) -> Use:
    return Use(lambda connection: connection.query(word))


@both
async def test_one_task_enters_and_leaves_it() -> None:
    """Any number of askers use it; its context manager is entered and left once, by the same task."""
    opener = Opener()
    async with running() as system:
        ref = system.spawn(Resource(opener), "db")
        answers: list[Any] = []

        async def use(n: int) -> None:
            answers.append(await ref.ask(query(str(n)), timeout_s=DEADLINE_S))

        async with anyio.create_task_group() as group:
            for n in range(20):
                group.start_soon(use, n)
        system.stop("db")
        await system.join("db")
    assert sorted(answers) == sorted(f"{n} from 1" for n in range(20))
    assert (len(opener.entered), opener.entered, opener.opened[0].closed) == (1, opener.left, True)


@both
async def test_asks_wait_until_it_is_open() -> None:
    """What is asked before it is open is answered in order once it is."""
    gate = anyio.Event()
    async with running() as system, anyio.create_task_group() as group:
        ref = system.spawn(Resource(Opener(gate=gate)), "db")
        answers: list[Any] = []

        async def use(word: str) -> None:
            answers.append(await ref.ask(query(word), timeout_s=DEADLINE_S))

        group.start_soon(use, "early")
        await anyio.wait_all_tasks_blocked()
        assert answers == []
        gate.set()
        await anyio.wait_all_tasks_blocked()
        assert answers == ["early from 1"]


@both
async def test_an_error_of_the_work_is_the_askers() -> None:
    """Work that raises fails its ask with that error; the resource stays open for others."""

    async def fail(connection: Connection) -> None:
        raise ValueError("bad query")

    async with running() as system:
        ref = system.spawn(Resource(Opener()), "db")
        with pytest.raises(ValueError, match="bad query"):
            await ref.ask(Use(fail), timeout_s=DEADLINE_S)
        assert await ref.ask(query("still"), timeout_s=DEADLINE_S) == "still from 1"


@both
async def test_one_that_breaks_is_opened_again_by_its_supervisor() -> None:
    """A context manager that fails ends the actor; its supervisor starts another, which opens a new one."""

    class Breaking(Opener):
        @asynccontextmanager
        async def __call__(self) -> AsyncIterator[Connection]:
            async with super().__call__() as connection:
                if connection.number == 1:
                    raise ConnectionError("lost")
                yield connection

    opener = Breaking()
    async with running() as system:
        spec = ChildSpec("db", lambda: Resource(opener))
        system.spawn(Supervisor([spec], backoff=Backoff(base_s=0)), "sup")
        ref = system.ref("sup/db")
        assert ref is not None
        assert await ref.ask(query("again"), timeout_s=DEADLINE_S) == "again from 2"
        assert ref.incarnation == 2


@both
async def test_its_users_are_cancelled_with_it() -> None:
    """Who uses it when it is stopped is told that it has stopped."""
    begun = anyio.Event()

    async def hang(connection: Connection) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with running() as system, anyio.create_task_group() as group:
        ref = system.spawn(Resource(Opener()), "db")

        async def use() -> None:
            with pytest.raises(ActorStopped):
                await ref.ask(Use(hang), timeout_s=DEADLINE_S)

        group.start_soon(use)
        await begun.wait()
        system.stop("db")
