"""Any history of ends, wishes and failed starts, close upon each other: nobody is stuck, and nobody is lost."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_kit import blocked
from otp_kit import KINDS, Family, House, supervised

from actors import (
    ActorError,
    ActorStopped,
    AskTimeout,
    ChildSpec,
    Context,
    DeleteChild,
    RestartChild,
    StartChild,
    StopChild,
    Strategy,
)

NAMES = ("a", "b", "c", "d")
WISHES = {"StopChild": StopChild, "RestartChild": RestartChild, "DeleteChild": DeleteChild}
STEPS = st.tuples(
    st.sampled_from(["normal", "shutdown", "crash", "killed", "stop", "fails", "late", "StartChild", *WISHES]),
    st.sampled_from(NAMES),
    st.integers(0, 4),
)
HISTORIES = st.lists(STEPS, max_size=25)


class History:
    """Plays steps on a supervisor with four children, and keeps what was asked for."""

    def __init__(self, kind: str, restarts: dict[str, str]) -> None:
        self.family = Family(kind)
        self.restarts = restarts
        self.may_be_down: set[str] = set()
        self.answers: list[Any] = []
        self.asked = 0

    def spec(self, name: str) -> ChildSpec:
        return self.family.spec(name, self.restarts[name])

    async def ask(self, house: House, message: Any) -> None:
        try:
            self.answers.append(await house.ask(message))
        except ActorError as error:
            self.answers.append(error)

    async def step(self, house: House, group: anyio.abc.TaskGroup, what: str, name: str) -> None:
        ref = house.system.ref(f"sup/{name}")
        if what == "fails":
            self.family.fails[name] = 2
        elif what == "StartChild" or what in WISHES:
            self.asked += 1
            self.may_be_down |= {name} if what in ("StopChild", "DeleteChild") else set()
            message = StartChild(self.spec(name)) if what == "StartChild" else WISHES[what](name)
            group.start_soon(self.ask, house, message)
        elif what == "killed":
            self.may_be_down.add(name)  # while it is down, that is its end
            house.system.kill(f"sup/{name}")
        elif what == "stop":
            self.may_be_down.add(name)
            house.system.stop(f"sup/{name}")
        elif ref is not None:
            with suppress(ActorStopped):
                ref.tell(takes_its_time if what == "late" else what)

    async def play(self, house: House, steps: list[tuple[str, str, int]]) -> None:
        async with anyio.create_task_group() as group:
            for what, name, pause in steps:
                await self.step(house, group, what, name)
                for _ in range(pause):
                    await checkpoint()
            self.family.fails.clear()
        await blocked(house.system)


def takes_its_time(ctx: Context) -> None:
    """From now on its end takes a few steps."""

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(1):
                for _ in range(5):
                    await checkpoint()

    ctx.start_task(work)


@settings(max_examples=25, deadline=None)
@given(
    steps=HISTORIES,
    restarts=st.fixed_dictionaries({name: st.sampled_from(["permanent", "transient", "temporary"]) for name in NAMES}),
)
@example(
    steps=[("late", "b", 3), ("normal", "c", 1), *[("normal", "a", n) for n in (1, 3, 2)], ("StopChild", "c", 0)],
    restarts={"a": "permanent", "b": "permanent", "c": "permanent", "d": "temporary"},
)
@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_any_history_settles(
    backend: str, kind: str, strategy: Strategy, restarts: dict[str, str], steps: list[tuple[str, str, int]]
) -> None:
    """Afterwards the supervisor lives, every wish was answered, no child is on its way, and a permanent child is only
    down if somebody asked for it. What runs is what the tree has, and all of it ends in reverse."""

    async def main() -> None:
        history = History(kind, restarts)
        async with supervised(*[history.spec(name) for name in NAMES], strategy=strategy) as house:
            await history.play(house, steps)
            assert house.downs == []
            assert len(history.answers) == history.asked
            assert not any(isinstance(answer, AskTimeout) for answer in history.answers)
            states = await house.states()
            assert set(states.values()) <= {"running", "down"}
            running = [f"sup/{name}" for name, state in states.items() if state == "running"]
            assert sorted(running) == sorted(house.system.children("sup"))
            for name in NAMES:
                if restarts[name] == "permanent" and name not in history.may_be_down:
                    assert states[name] == "running"
                if states.get(name) == "down":
                    assert restarts[name] != "temporary"
            history.family.news()
        assert sorted(history.family.log) == sorted(f"-{one.removeprefix('sup/')}" for one in running)

    anyio.run(main, backend=backend)
