"""OTP's supervisor cases: what a running supervisor can be asked, and how it answers what makes no sense."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from kernel_kit import Echo, blocked, both, virtual
from otp_kit import Family, kinds, supervised

from actors import (
    Backoff,
    ChildActive,
    ChildInfo,
    ChildSpec,
    CountChildren,
    DeleteChild,
    InvalidOption,
    NameTaken,
    NoSuchActor,
    Ref,
    Restart,
    RestartChild,
    StartChild,
    StartFailed,
    StopChild,
    Strategy,
    WhichChildren,
    WrongMessage,
)


@both
async def test_which_children_is_in_the_order_of_the_start() -> None:
    """Ids, states and restarts, oldest first; OTP has the youngest first (child_adm)."""
    family = Family()
    async with supervised(*family.specs("b", "a")) as house:
        await house.ask(StartChild(family.spec("c", "temporary")))
        await house.end("a", "crash")
        assert await house.children() == (
            ChildInfo("b", "sup/b", "running", Restart.PERMANENT, 0, None),
            ChildInfo("a", "sup/a", "running", Restart.PERMANENT, 1, None),
            ChildInfo("c", "sup/c", "running", Restart.TEMPORARY, 0, None),
        )


@both
async def test_count_children() -> None:
    """Specs, those that run, those that wait (count_children)."""
    family = Family()
    async with supervised(*family.specs("a", "b", "c")) as house:
        assert await house.ask(CountChildren()) == {"specs": 3, "active": 3, "restarting": 0}
        await house.ask(StopChild("b"))
        assert await house.ask(CountChildren()) == {"specs": 3, "active": 2, "restarting": 0}
        await house.ask(DeleteChild("b"))
        assert await house.ask(CountChildren()) == {"specs": 2, "active": 2, "restarting": 0}


@virtual
async def test_count_restarting_children(autojump_clock: Any) -> None:
    """A child that waits for its restart is counted as such (count_restarting_children)."""
    family = Family()
    async with supervised(*family.specs("a", "b"), backoff=Backoff(9.0, 1.0, 9.0)) as house:
        await house.end("a", "crash")
        assert await house.ask(CountChildren()) == {"specs": 2, "active": 1, "restarting": 1}


@both
@kinds
async def test_the_life_of_a_child_that_is_administered(kind: str) -> None:
    """Started, stopped, started again, stopped and forgotten, each when it is asked for (child_adm)."""
    family = Family(kind)
    async with supervised() as house:
        ref = await house.ask(StartChild(family.spec("a")))
        assert isinstance(ref, Ref)
        assert await ref.ask("hello", timeout_s=20) == ("a", 1, "hello")
        assert await house.ask(StopChild("a")) is None
        assert await house.states() == {"a": "down"}
        assert "sup/a" not in house.system
        again = await house.ask(RestartChild("a"))
        assert await again.ask("hello", timeout_s=20) == ("a", 1, "hello")
        await house.ask(StopChild("a"))
        assert await house.ask(DeleteChild("a")) is None
        assert await house.states() == {}
        assert family.log == ["+a", "-a", "+a", "-a"]


@both
async def test_stop_child_answers_when_the_child_has_ended() -> None:
    """The answer comes after the end of its tasks, and everybody who asked has one (child_adm)."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        cleaning, let_go = anyio.Event(), anyio.Event()
        context = house.system.context("sup/a")
        assert context is not None

        async def work() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with context.cleanup(4):
                    cleaning.set()
                    await let_go.wait()

        context.start_task(work)
        answers: list[str] = []

        async def ask(name: str) -> None:
            await house.ask(StopChild("a"))
            answers.append(name)

        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "one")
            await cleaning.wait()
            group.start_soon(ask, "two")
            await anyio.wait_all_tasks_blocked()
            assert await house.states() == {"a": "stopping"}
            assert answers == []
            let_go.set()
        assert sorted(answers) == ["one", "two"]
        assert await house.states() == {"a": "down"}


@both
async def test_a_stopped_child_stays_down_until_it_is_asked_for() -> None:
    """StopChild is no failure, also of a permanent child: it is not counted and not mended (child_adm)."""
    family = Family()
    async with supervised(family.spec("a"), family.spec("b")) as house:
        await house.ask(StopChild("a"))
        await house.end("b", "crash")
        assert [(info.state, info.restarts) for info in await house.children()] == [("down", 0), ("running", 1)]


@both
async def test_one_for_all_starts_those_that_were_stopped_too() -> None:
    """As in OTP, a child that was stopped is started with its group."""
    family = Family()
    async with supervised(*family.specs("a", "b"), strategy=Strategy.ONE_FOR_ALL) as house:
        await house.ask(StopChild("a"))
        await house.end("b", "crash")
        assert await house.states() == {"a": "running", "b": "running"}


@both
async def test_a_stopped_member_that_cannot_start_again_keeps_nobody_waiting() -> None:
    """In a group, one that had been stopped and now fails to start is tried again with all the others."""
    family = Family()
    async with supervised(*family.specs("a", "b", "c"), strategy=Strategy.ONE_FOR_ALL) as house:
        await house.ask(StopChild("a"))
        family.fails["a"] = 2
        await house.end("b", "crash")
        assert set((await house.states()).values()) == {"running"}


@both
async def test_stopping_a_temporary_child_forgets_it() -> None:
    """There is nothing to restart or delete (child_adm, do_not_save_child_specs_for_temporary_children)."""
    family = Family()
    async with supervised(family.spec("a", "temporary")) as house:
        await house.ask(StopChild("a"))
        assert await house.states() == {}
        for request in (RestartChild("a"), DeleteChild("a"), StopChild("a")):
            with pytest.raises(NoSuchActor, match="'sup/a'"):
                await house.ask(request)


@both
@pytest.mark.parametrize("how", ["normal", "crash", "killed"])
async def test_an_ended_temporary_child_keeps_no_spec(how: str) -> None:
    """Its id can be used again at once (do_not_save_start_parameters_for_temporary_children)."""
    family = Family()
    async with supervised(family.spec("a", "temporary")) as house:
        await house.end("a", how)
        await house.ask(StartChild(family.spec("a", "temporary")))
        assert await house.states() == {"a": "running"}


@both
@pytest.mark.parametrize("state", ["running", "down"])
async def test_a_second_child_of_one_id(state: str) -> None:
    """An id that has a spec is taken, whether its child runs or not (child_adm: already_started, already_present)."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        if state == "down":
            await house.ask(StopChild("a"))
        with pytest.raises(NameTaken, match="child id 'a' already exists"):
            await house.ask(StartChild(family.spec("a")))
        assert await house.states() == {"a": state}


@both
@pytest.mark.parametrize("request_of", [StopChild, RestartChild, DeleteChild])
async def test_a_child_that_nobody_knows(request_of: Any) -> None:
    """The error names the id that was asked for (child_adm: not_found)."""
    async with supervised() as house:
        with pytest.raises(NoSuchActor, match="'sup/x'"):
            await house.ask(request_of("x"))
        assert house.downs == []


@both
@pytest.mark.parametrize("request_of", [RestartChild, DeleteChild])
async def test_a_child_that_runs(request_of: Any) -> None:
    """It must be stopped first (child_adm: running)."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        with pytest.raises(ChildActive, match="child 'sup/a' is running; ask its supervisor to stop it first"):
            await house.ask(request_of("a"))


@virtual
@pytest.mark.parametrize("request_of", [RestartChild, DeleteChild])
async def test_a_child_that_waits_for_its_restart(autojump_clock: Any, request_of: Any) -> None:
    """It must be stopped first, too (child_adm: restarting)."""
    family = Family()
    async with supervised(family.spec("a"), backoff=Backoff(9.0, 1.0, 9.0)) as house:
        await house.end("a", "crash")
        with pytest.raises(ChildActive, match="restarting"):
            await house.ask(request_of("a"))
        await house.ask(StopChild("a"))
        await house.ask(request_of("a"))


@both
async def test_stopping_twice_is_no_error() -> None:
    """A child that is down already is stopped (child_adm)."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        for _ in range(2):
            assert await house.ask(StopChild("a")) is None


@both
@kinds
async def test_a_child_that_fails_to_start(kind: str) -> None:
    """The asker has the error; there is no such child, and nobody else is touched (child_adm, extra_return)."""
    family = Family(kind)
    async with supervised(family.spec("z")) as house:
        family.fails["a"] = 1
        with pytest.raises(StartFailed, match="'sup/a' could not be started"):
            await house.ask(StartChild(family.spec("a")))
        await blocked(house.system)
        assert await house.states() == {"z": "running"}
        await house.ask(StartChild(family.spec("a")))


@both
async def test_a_restart_on_request_that_fails() -> None:
    """The asker has the error; the child stays down, and can be asked for again (child_adm)."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        await house.ask(StopChild("a"))
        family.fails["a"] = 1
        with pytest.raises(StartFailed):
            await house.ask(RestartChild("a"))
        await blocked(house.system)
        assert await house.states() == {"a": "down"}
        await house.ask(RestartChild("a"))
        assert await house.states() == {"a": "running"}


BAD: dict[str, Any] = {
    "no spec": StartChild(),
    "arguments": StartChild(args=(1,)),
    "spec and arguments": StartChild(ChildSpec("x", Echo), (1,)),
    "something else": StartChild("x"),  # type: ignore[arg-type]
    "bad id": StartChild(ChildSpec("", Echo)),
    "bad start": StartChild(ChildSpec("x", 7)),  # type: ignore[arg-type]
    "bad restart": StartChild(ChildSpec("x", Echo, "often")),  # type: ignore[arg-type]
    "bad shutdown": StartChild(ChildSpec("x", Echo, shutdown_s="5")),  # type: ignore[arg-type]
    "bad redeliver": StartChild(ChildSpec("x", Echo, redeliver="5")),  # type: ignore[arg-type]
    "bad limits": StartChild(ChildSpec("x", Echo, limits=5)),  # type: ignore[arg-type]
    "significant": StartChild(ChildSpec("x", Echo, Restart.TRANSIENT, significant=True)),
}


@both
@pytest.mark.parametrize("case", BAD)
async def test_a_wrong_wish_is_the_askers_error(case: str) -> None:
    """A spec that cannot be ends neither the supervisor nor its children (child_specs, start_child_raises)."""
    family = Family()
    async with supervised(family.spec("z")) as house:
        with pytest.raises(InvalidOption):
            await house.ask(BAD[case])
        house.ref.tell(BAD[case])
        await blocked(house.system)
        assert await house.states() == {"z": "running"}
        assert (house.system.crashes, family.log) == (0, ["+z"])


@both
@pytest.mark.parametrize("message", [None, "hello", 7, ("stop", "a")])
async def test_what_a_supervisor_does_not_know(message: Any) -> None:
    """An ask it does not know fails and says what it takes; a tell is ignored (unknown messages, as in OTP)."""
    async with supervised() as house:
        with pytest.raises(WrongMessage, match="it accepts: StartChild, StopChild"):
            await house.ask(message)
        house.ref.tell(message)
        await blocked(house.system)
        assert house.downs == []


@both
@pytest.mark.parametrize("victim", ["a", "b", "c"])
async def test_a_member_is_stopped_while_its_group_is_taken_down(victim: str) -> None:
    """StopChild takes a member out of a group that is on its way down; the others come back (one_for_all)."""
    family = Family()
    async with supervised(*family.specs("a", "b", "c"), strategy=Strategy.ONE_FOR_ALL) as house:
        cleaning, let_go = anyio.Event(), anyio.Event()
        context = house.system.context("sup/c")
        assert context is not None

        async def work() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                with context.cleanup(4):
                    cleaning.set()
                    await let_go.wait()

        context.start_task(work)
        await anyio.wait_all_tasks_blocked()
        house.child("b").tell("crash")
        await cleaning.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(house.ask, StopChild(victim))
            await anyio.wait_all_tasks_blocked()
            let_go.set()
        await blocked(house.system)
        assert await house.states() == {one: "down" if one == victim else "running" for one in "abc"}


@both
async def test_a_stopped_member_is_deleted_while_its_group_is_taken_down() -> None:
    """The group goes on without it."""
    family = Family()
    async with supervised(*family.specs("a", "b", "c"), strategy=Strategy.ONE_FOR_ALL) as house:
        await house.ask(StopChild("a"))
        house.system.kill("sup/b")
        house.ref.tell(StopChild("a"))
        house.ref.tell(DeleteChild("a"))
        await blocked(house.system)
        assert await house.states() == {"b": "running", "c": "running"}


@both
async def test_get_state_shows_the_children() -> None:
    """A supervisor shows its strategy and its children (get_state)."""
    family = Family()
    async with supervised(family.spec("a"), strategy=Strategy.REST_FOR_ONE) as house:
        state = await house.system.get_state("sup", timeout_s=20)
        assert isinstance(state, dict)
        assert (state["strategy"], state["children"]) == ("rest_for_one", await house.ask(WhichChildren()))


@both
async def test_many_children_start_and_stop() -> None:
    """A thousand children come and go in order (scale_start_stop_many_children)."""
    family = Family()
    names = [str(number) for number in range(1000)]
    async with supervised(*family.specs(*names)) as house:
        assert await house.ask(CountChildren()) == {"specs": 1000, "active": 1000, "restarting": 0}
        house.system.stop("sup")
        await house.system.join("sup")
    assert family.log == [*(f"+{one}" for one in names), *(f"-{one}" for one in reversed(names))]
