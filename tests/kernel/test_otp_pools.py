"""OTP's supervisor cases for ``simple_one_for_one``: pools of like children, started as they are asked for."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_kit import Echo, blocked, both
from otp_kit import AT_ONCE, EXITS, OFTEN, Family, House, kinds, supervised

from actors import (
    AutoShutdown,
    ChildActive,
    ChildSpec,
    CountChildren,
    DeleteChild,
    InvalidOption,
    NoSuchActor,
    Pool,
    Restart,
    RestartChild,
    Shutdown,
    StartChild,
    StartFailed,
    StopChild,
)


def pool_of(family: Family, restart: str = "permanent", **options: Any) -> Pool:
    """A pool whose members are named after the argument they are asked for with."""
    template = ChildSpec("member", Echo, Restart(restart), significant="auto_shutdown" in options)
    options = {"intensity": OFTEN, "child_intensity": OFTEN, "backoff": AT_ONCE, **options}
    return Pool(family.actor, template, **options)


async def fill(house: House, *names: str) -> None:
    for name in names:
        await house.ask(StartChild(args=(name,)))


@both
@kinds
async def test_members_are_started_with_their_arguments(kind: str) -> None:
    """Each has its own arguments, and a number as its id (simple_one_for_one, simple_one_for_one_extra)."""
    family = Family(kind)
    async with supervised(supervisor=pool_of(family)) as house:
        await fill(house, "a", "b")
        assert [info.id for info in await house.children()] == ["1", "2"]
        assert await house.child("2").ask("who", timeout_s=20) == ("b", 1, "who")
        assert family.log == ["+a", "+b"]


@both
@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
async def test_members_by_restart_type_by_exit(restart: str, how: str) -> None:
    """One that comes back has its arguments again; one that does not is forgotten, also where it is transient
    (simple_one_for_one, temporary_normal)."""
    family = Family()
    clean = how in ("normal", "shutdown")
    returns = restart == "permanent" or (restart == "transient" and not clean)
    async with supervised(supervisor=pool_of(family, restart)) as house:
        await fill(house, "a", "b", "c")
        await house.end("2", how)
        assert list(await house.states()) == (["1", "2", "3"] if returns else ["1", "3"])
        if returns:
            assert await house.child("2").ask("who", timeout_s=20) == ("b", 2, "who")
        assert await house.child("1").ask("who", timeout_s=20) == ("a", 1, "who")


@both
async def test_numbers_are_not_used_again() -> None:
    """A new member is nobody's successor."""
    family = Family()
    async with supervised(supervisor=pool_of(family, "temporary")) as house:
        await fill(house, "a", "b")
        await house.end("2", "normal")
        await fill(house, "c")
        assert list(await house.states()) == ["1", "3"]


@both
async def test_count_children_of_a_pool() -> None:
    """A pool counts its members (count_children)."""
    family = Family()
    async with supervised(supervisor=pool_of(family)) as house:
        await fill(house, "a", "b", "c")
        await house.ask(StopChild("1"))
        assert await house.ask(CountChildren()) == {"specs": 2, "active": 2, "restarting": 0}


@both
@kinds
async def test_a_member_that_fails_to_start(kind: str) -> None:
    """The asker has the error, and the pool goes on (child_adm_simple, simple_one_for_one_extra)."""
    family = Family(kind)
    async with supervised(supervisor=pool_of(family)) as house:
        family.fails["a"] = 1
        with pytest.raises(StartFailed, match="'sup/1' could not be started"):
            await fill(house, "a")
        await blocked(house.system)
        await fill(house, "b")
        assert list(await house.states()) == ["2"]


@both
async def test_wrong_arguments_are_a_failed_start() -> None:
    """What the factory cannot take is the asker's error (extra_return)."""
    async with supervised(supervisor=pool_of(Family())) as house:
        with pytest.raises(StartFailed, match="TypeError"):
            await house.ask(StartChild(args=("a", "b", "c")))
        assert house.downs == []


@both
async def test_a_pool_takes_no_specs() -> None:
    """Its children are all alike (child_adm_simple)."""
    async with supervised(supervisor=pool_of(Family())) as house:
        for spec in (ChildSpec("x", Echo), "x"):
            with pytest.raises(InvalidOption, match="give the arguments of its factory"):
                await house.ask(StartChild(spec))  # type: ignore[arg-type]
        assert house.downs == []


@both
async def test_a_stopped_member_is_forgotten() -> None:
    """There is no spec to restart or to delete (child_adm_simple)."""
    family = Family()
    async with supervised(supervisor=pool_of(family)) as house:
        await fill(house, "a", "b")
        await house.ask(StopChild("1"))
        assert family.log == ["+a", "+b", "-a"]
        for request in (StopChild("1"), RestartChild("1"), DeleteChild("1"), StopChild("x")):
            with pytest.raises(NoSuchActor):
                await house.ask(request)
        for request in (RestartChild("2"), DeleteChild("2")):
            with pytest.raises(ChildActive):
                await house.ask(request)
        assert await house.states() == {"2": "running"}


@both
async def test_a_failing_member_takes_nobody_along() -> None:
    """Restarts that fail are its own, until they are too many (hanging_restart_loop_simple)."""
    family = Family()
    async with supervised(supervisor=pool_of(family)) as house:
        await fill(house, "a", "b")
        family.fails["a"] = 5
        await house.end("1", "crash")
        assert house.child("1").incarnation == 7
        assert house.child("2").incarnation == 1


@both
@pytest.mark.parametrize("auto", [AutoShutdown.ANY_SIGNIFICANT, AutoShutdown.ALL_SIGNIFICANT])
async def test_a_pool_of_significant_members(auto: AutoShutdown) -> None:
    """The pool ends with its first member, or with its last."""
    family = Family()
    async with supervised(supervisor=pool_of(family, "temporary", auto_shutdown=auto)) as house:
        await fill(house, "a", "b")
        await house.end("1", "crash")
        if auto is AutoShutdown.ALL_SIGNIFICANT:
            assert house.downs == []
            await house.end("2", "normal")
        assert isinstance(house.reason, Shutdown)


@both
async def test_a_pool_that_comes_back_is_empty() -> None:
    """Members that were asked for die with the incarnation of their pool (simple_one_for_one)."""
    family = Family()
    spec = ChildSpec("pool", lambda: pool_of(family))
    async with supervised(spec) as house:
        await house.child("pool").ask(StartChild(args=("a",)), timeout_s=20)
        await house.end("pool", "killed")
        assert house.system.children("sup/pool") == ()
        await house.child("pool").ask(StartChild(args=("b",)), timeout_s=20)
        assert house.system.children("sup/pool") == ("sup/pool/1",)


@both
async def test_a_pool_of_many() -> None:
    """A thousand members come and go (scale_start_stop_many_children)."""
    family = Family()
    async with supervised(supervisor=pool_of(family)) as house:
        await fill(house, *(f"m{number}" for number in range(1000)))
        assert (await house.ask(CountChildren()))["active"] == 1000
    assert sum(one.startswith("-") for one in family.log) == 1000
