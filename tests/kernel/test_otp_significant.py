"""OTP's supervisor cases: significant children, whose end by itself may be their supervisor's."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_kit import blocked, both, virtual
from otp_kit import EXITS, Family, kinds, supervised

from actors import AutoShutdown, Backoff, InvalidOption, Shutdown, StartChild, StopChild, Strategy

NEVER, ANY, ALL = AutoShutdown.NEVER, AutoShutdown.ANY_SIGNIFICANT, AutoShutdown.ALL_SIGNIFICANT
ENDS = {
    ("transient", "normal"): True,
    ("transient", "shutdown"): True,
    ("transient", "crash"): False,
    ("transient", "killed"): False,
    ("temporary", "normal"): True,
    ("temporary", "shutdown"): True,
    ("temporary", "crash"): True,
    ("temporary", "killed"): True,
}
"""Is this end of a significant child one that it does not come back from?"""


@both
@kinds
@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("restart", ["transient", "temporary"])
async def test_any_significant(restart: str, how: str, kind: str) -> None:
    """With any_significant the first significant child that ends for good ends its supervisor, in order and cleanly
    (significant_upgrade_child, any_significant_*)."""
    family = Family(kind)
    specs = [family.spec("a"), family.spec("s", restart, significant=True), family.spec("c")]
    async with supervised(*specs, auto_shutdown=ANY) as house:
        family.news()
        await house.end("s", how)
        if ENDS[restart, how]:
            assert isinstance(house.reason, Shutdown)
            assert "its significant child 's' has ended" in str(house.reason)
            assert family.log[-2:] == ["-c", "-a"]
        else:
            assert (await house.states())["s"] == "running"


@both
@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("restart", ["transient", "temporary"])
async def test_all_significant(restart: str, how: str) -> None:
    """With all_significant the last one does (all_significant_*)."""
    family = Family()
    specs = [family.spec(name, restart, significant=True) for name in ("s", "t")]
    async with supervised(family.spec("a"), *specs, auto_shutdown=ALL) as house:
        await house.end("s", how)
        assert house.downs == []
        await house.end("t", how)
        if ENDS[restart, how]:
            assert isinstance(house.reason, Shutdown)
        else:
            assert house.downs == []


@both
@pytest.mark.parametrize("auto", [ANY, ALL])
@pytest.mark.parametrize("how", EXITS)
async def test_the_others_do_not_count(auto: AutoShutdown, how: str) -> None:
    """The end of a child that is not significant is nothing to its supervisor."""
    family = Family()
    specs = [family.spec("a", "temporary"), family.spec("s", "transient", significant=True)]
    async with supervised(*specs, auto_shutdown=auto) as house:
        await house.end("a", how)
        assert await house.states() == {"s": "running"}


@both
@pytest.mark.parametrize("auto", [ANY, ALL])
@pytest.mark.parametrize("restart", ["transient", "temporary"])
async def test_a_significant_child_that_is_stopped(auto: AutoShutdown, restart: str) -> None:
    """StopChild is not an end by itself: the supervisor goes on without (significant children and terminate_child)."""
    family = Family()
    async with supervised(family.spec("a"), family.spec("s", restart, significant=True), auto_shutdown=auto) as house:
        await house.ask(StopChild("s"))
        await blocked(house.system)
        assert (await house.states())["a"] == "running"


@both
@pytest.mark.parametrize("auto", [ANY, ALL])
async def test_a_significant_child_that_goes_with_its_group(auto: AutoShutdown) -> None:
    """Nor is it one to be taken down with a sibling, also where it does not come back."""
    family = Family()
    specs = [family.spec("a"), family.spec("s", "temporary", significant=True)]
    async with supervised(*specs, auto_shutdown=auto, strategy=Strategy.ONE_FOR_ALL) as house:
        await house.end("a", "crash")
        assert await house.states() == {"a": "running"}


@virtual
async def test_one_that_waits_for_its_restart_is_not_gone(autojump_clock: Any) -> None:
    """With all_significant a child that will be started again still counts."""
    family = Family()
    specs = [family.spec(name, "transient", significant=True) for name in ("s", "t")]
    async with supervised(*specs, auto_shutdown=ALL, backoff=Backoff(9.0, 1.0, 9.0)) as house:
        await house.end("s", "crash")
        await house.end("t", "normal")
        assert await house.states() == {"s": "restarting", "t": "down"}


@both
async def test_the_last_one_that_was_stopped_does_not_count() -> None:
    """With all_significant, one that was stopped on request is not waited for."""
    family = Family()
    specs = [family.spec(name, "transient", significant=True) for name in ("s", "t")]
    async with supervised(*specs, auto_shutdown=ALL) as house:
        await house.ask(StopChild("s"))
        await house.end("t", "normal")
        assert isinstance(house.reason, Shutdown)


@both
@pytest.mark.parametrize(("restart", "comes_back"), [("permanent", True), ("transient", False), ("temporary", False)])
async def test_an_auto_shutdown_is_a_clean_end(restart: str, comes_back: bool) -> None:
    """Above, it looks like any supervisor that was shut down: only a permanent one comes back."""
    family = Family()
    inner = family.nested("inner", family.spec("s", "transient", significant=True), restart=restart, auto_shutdown=ANY)
    async with supervised(family.spec("a"), inner) as house:
        await house.end("inner/s", "normal")
        states = await house.states()
        assert states.get("inner") == ("running" if comes_back else None if restart == "temporary" else "down")


@both
async def test_significance_goes_up() -> None:
    """A significant supervisor that ends by itself ends the one above, if that wants it."""
    family = Family()
    inner = family.nested(
        "inner", family.spec("s", "transient", significant=True), restart="transient", auto_shutdown=ANY
    )._replace(significant=True)
    async with supervised(family.spec("a"), inner, auto_shutdown=ALL) as house:
        await house.end("inner/s", "normal")
        assert isinstance(house.reason, Shutdown)
        assert len(house.system) == 0


@both
@pytest.mark.parametrize("auto", list(AutoShutdown))
async def test_a_significant_child_on_request(auto: AutoShutdown) -> None:
    """A supervisor that never shuts down takes no significant child (child_specs)."""
    family = Family()
    async with supervised(auto_shutdown=auto) as house:
        request = StartChild(family.spec("s", "temporary", significant=True))
        if auto is NEVER:
            with pytest.raises(InvalidOption, match="auto_shutdown other than never"):
                await house.ask(request)
        else:
            await house.ask(request)
            await house.end("s", "crash")
            assert isinstance(house.reason, Shutdown)
