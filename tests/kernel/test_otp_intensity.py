"""OTP's supervisor cases: how many restarts are too many, per supervisor and per child, at the edges of the windows."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from kernel_kit import blocked, both, virtual
from otp_kit import AT_ONCE, OFTEN, Family, House, kinds, supervised

from actors import Backoff, Intensity, Pool, RestartLimitExceeded, StartChild, StopChild, Strategy, WhichChildren
from actors.restart import add_restart


async def crash(house: House, name: str, times: int = 1) -> None:
    """Crash a child that often, as long as its supervisor lives."""
    for _ in range(times):
        if "sup" in house.system:
            await house.end(name, "crash")


# ---------------------------------------------------------------------- escalation
@both
@kinds
@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("most", [0, 1, 2])
async def test_escalation(strategy: Strategy, most: int, kind: str) -> None:
    """As many restarts as the intensity says are mended, one more ends the supervisor, and all that it has
    (one_for_one_escalation, one_for_all_escalation, rest_for_one_escalation)."""
    family = Family(kind)
    async with supervised(*family.specs("a", "b"), strategy=strategy, intensity=Intensity(most, 60.0)) as house:
        await crash(house, "a", most)
        assert house.downs == []
        family.news()
        await crash(house, "a")
        assert isinstance(house.reason, RestartLimitExceeded)
        assert family.log == ["-a", "-b"]
        assert len(house.system) == 0


@both
async def test_a_pool_escalates() -> None:
    """The members of a pool share its intensity (simple_one_for_one_escalation)."""
    family = Family()
    pool = Pool(lambda: family.actor("m"), intensity=Intensity(1, 60.0), child_intensity=OFTEN, backoff=AT_ONCE)
    async with supervised(supervisor=pool) as house:
        for _ in range(3):
            await house.ask(StartChild())
        await crash(house, "1")
        assert house.downs == []
        await crash(house, "2")
        assert house.gave_up
        assert len(house.system) == 0


@both
async def test_failed_restarts_count() -> None:
    """A child that cannot be started any more ends the supervisor after as many tries as may be
    (hanging_restart_loop)."""
    family = Family()
    async with supervised(family.spec("a"), intensity=Intensity(5, 60.0)) as house:
        family.fails["a"] = 1000
        await crash(house, "a")
        assert house.gave_up
        assert family.log.count("!a") == 5


@both
async def test_a_failed_first_start_does_not_count() -> None:
    """A StartChild that fails is its asker's error, however often (child_adm)."""
    family = Family()
    async with supervised(intensity=Intensity(0, 60.0)) as house:
        family.fails["a"] = 5
        for _ in range(5):
            with pytest.raises(Exception, match="could not be started"):
                await house.ask(StartChild(family.spec("a")))
        await house.ask(StartChild(family.spec("a")))
        assert await house.states() == {"a": "running"}


@both
@pytest.mark.parametrize("restart", ["permanent", "transient"])
async def test_giving_up_is_not_a_clean_end(restart: str) -> None:
    """A supervisor that gave up is started again by its own, also where it is transient: OTP's trap, mended (tree)."""
    family = Family()
    inner = family.nested("inner", family.spec("x"), restart=restart, intensity=Intensity(1, 60.0))
    async with supervised(family.spec("a"), inner) as house:
        family.news()
        await crash(house, "inner/x", 2)
        assert await house.states() == {"a": "running", "inner": "running"}
        assert house.child("inner").incarnation == 2
        assert family.log == ["-x", "+x", "-x", "+x"]


@both
async def test_a_temporary_supervisor_that_gives_up_stays_down() -> None:
    """Its end is not clean, but it was not to come back in any case (tree)."""
    family = Family()
    inner = family.nested("inner", family.spec("x"), restart="temporary", intensity=Intensity(0, 60.0))
    async with supervised(family.spec("a"), inner) as house:
        await crash(house, "inner/x")
        assert await house.states() == {"a": "running"}


@both
async def test_escalation_goes_up_level_by_level() -> None:
    """Restarts multiply down the tree: with one allowed at each of three levels, the eighth ends the top (tree)."""
    family = Family()
    once = Intensity(1, 60.0)
    low = family.nested("low", family.spec("x"), intensity=once)
    mid = family.nested("mid", low, intensity=once)
    async with supervised(mid, intensity=once) as house:
        for number in range(8):
            assert house.downs == [], number
            await crash(house, "mid/low/x")
        assert house.gave_up
        assert family.log.count("+x") == 8


@both
async def test_clean_ends_that_come_back_count_too() -> None:
    """A permanent child that is done at once, again and again, is too much as well (permanent_normal)."""
    family = Family()
    async with supervised(family.spec("a"), intensity=Intensity(3, 60.0)) as house:
        family.on_start["a"] = lambda ctx: ctx.exit()
        await house.end("a", "normal")
        assert house.gave_up
        assert family.log.count("+a") == 4


@both
async def test_ends_that_do_not_come_back_do_not_count() -> None:
    """Temporary children may crash as often as they like (temporary_abnormal)."""
    family = Family()
    async with supervised(intensity=Intensity(0, 60.0), child_intensity=Intensity(0, 60.0)) as house:
        for _ in range(5):
            await house.ask(StartChild(family.spec("t", "temporary")))
            await crash(house, "t")
        assert await house.states() == {}


@both
async def test_the_child_that_is_too_much_is_named() -> None:
    """The window of one child ends the supervisor although the supervisor's own has room."""
    family = Family()
    async with supervised(*family.specs("a", "b"), child_intensity=Intensity(1, 60.0)) as house:
        await crash(house, "a")
        await crash(house, "b")
        assert house.downs == []
        await crash(house, "b")
        assert isinstance(house.reason, RestartLimitExceeded)
        assert house.reason.child == "b"


# ---------------------------------------------------------------------- the windows
@virtual
@pytest.mark.parametrize("which", ["intensity", "child_intensity"])
@pytest.mark.parametrize(("gap_s", "too_many"), [(0.0, True), (2.5, True), (5.0, True), (5.01, False), (60.0, False)])
async def test_the_window_slides(autojump_clock: trio.abc.Clock, which: str, gap_s: float, too_many: bool) -> None:
    """Two restarts within ten seconds may be. A third after 2 * gap: one that is ten seconds old counts, an older one
    does not."""
    family = Family()
    async with supervised(family.spec("a"), **{which: Intensity(2, 10.0)}) as house:
        await crash(house, "a")
        for _ in range(2):
            await trio.sleep(gap_s)
            await crash(house, "a")
        assert house.gave_up is too_many


@virtual
async def test_a_slow_crasher_lives_for_ever(autojump_clock: trio.abc.Clock) -> None:
    """One crash per period is never too much."""
    family = Family()
    async with supervised(family.spec("a"), intensity=Intensity(1, 10.0)) as house:
        for _ in range(50):
            await crash(house, "a")
            await trio.sleep(10.01)
        assert house.child("a").incarnation == 51


@virtual
async def test_the_supervisors_window_is_over_all_children(autojump_clock: trio.abc.Clock) -> None:
    """Five children that crash once each are five restarts of their supervisor."""
    family = Family()
    names = ("a", "b", "c", "d", "e")
    async with supervised(*family.specs(*names), intensity=Intensity(4, 10.0)) as house:
        for name in names[:4]:
            await crash(house, name)
            await trio.sleep(1)
        assert house.downs == []
        await crash(house, "e")
        assert house.gave_up


@virtual
async def test_a_stopped_child_begins_with_what_it_had(autojump_clock: trio.abc.Clock) -> None:
    """StopChild and RestartChild wash nothing clean: the window is that of the spec."""
    from actors import RestartChild

    family = Family()
    async with supervised(family.spec("a"), child_intensity=Intensity(1, 10.0)) as house:
        await crash(house, "a")
        await house.ask(StopChild("a"))
        await house.ask(RestartChild("a"))
        await crash(house, "a")
        assert house.gave_up


# ---------------------------------------------------------------------- delays
@virtual
async def test_a_restart_waits_for_its_delay(autojump_clock: trio.abc.Clock) -> None:
    """The delay is drawn from the full range below the ceiling; until it is over the child is restarting, and says
    when it will be tried."""
    family = Family()
    async with supervised(family.spec("a"), backoff=Backoff(8.0, 2.0, 60.0)) as house:
        await crash(house, "a")
        (info,) = await house.children()
        assert info.state == "restarting"
        assert info.next_attempt_s is not None
        assert 0 < info.next_attempt_s - trio.current_time() <= 8
        await trio.sleep(info.next_attempt_s - trio.current_time())
        await blocked(house.system)
        assert await house.states() == {"a": "running"}


@virtual
async def test_delays_grow_and_are_reset_by_a_stable_life(autojump_clock: trio.abc.Clock) -> None:
    """Each failure in a row doubles the ceiling; after twice the cap, and at least two minutes, of life it is as at
    first."""
    family = Family()
    ceilings = [1.0, 2.0, 4.0, 8.0, 8.0]
    async with supervised(family.spec("a"), backoff=Backoff(1.0, 2.0, 8.0)) as house:

        async def delay() -> float:
            await crash(house, "a")
            ((_, _, state, _, _, at),) = await house.children()
            delay_s = (at or trio.current_time()) - trio.current_time() if state == "restarting" else 0.0
            await trio.sleep(delay_s)
            await blocked(house.system)
            return delay_s

        assert all([await delay() <= ceiling for ceiling in ceilings])
        await trio.sleep(121)  # it may live again a rounding error later than that was slept for
        assert await delay() <= 1.0


@virtual
@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
async def test_a_group_waits_for_one_delay(autojump_clock: trio.abc.Clock, strategy: Strategy) -> None:
    """All of a group are started at one time."""
    family = Family()
    backoff = Backoff(8.0, 1.0, 8.0)
    async with supervised(*family.specs("a", "b", "c"), strategy=strategy, backoff=backoff) as house:
        family.news()
        await crash(house, "a")
        infos = await house.children()
        assert {info.state for info in infos} == {"restarting"}
        assert len({info.next_attempt_s for info in infos}) == 1
        await trio.sleep(8)
        assert family.log == ["-a", "-c", "-b", "+a", "+b", "+c"]


@virtual
@pytest.mark.parametrize("stopped", ["a", "b", "c"])
async def test_a_member_that_is_stopped_during_the_delay(autojump_clock: trio.abc.Clock, stopped: str) -> None:
    """A stop overtakes the restart of one; the rest of the group starts as if nothing had happened."""
    family = Family()
    backoff = Backoff(8.0, 1.0, 8.0)
    async with supervised(*family.specs("a", "b", "c"), strategy=Strategy.ONE_FOR_ALL, backoff=backoff) as house:
        await crash(house, "a")
        await house.ask(StopChild(stopped))
        await trio.sleep(9)
        assert await house.states() == {one: "down" if one == stopped else "running" for one in "abc"}


@virtual
async def test_a_child_that_comes_early_does_not_take_the_groups_delay(autojump_clock: trio.abc.Clock) -> None:
    """One that was stopped and started during the delay, and crashed again, waits for its own time."""
    from actors import RestartChild

    family = Family()
    backoff = Backoff(8.0, 1.0, 8.0)
    async with supervised(*family.specs("a", "b", "c"), strategy=Strategy.REST_FOR_ONE, backoff=backoff) as house:
        await crash(house, "b")
        await house.ask(StopChild("c"))
        await house.ask(RestartChild("c"))
        await crash(house, "c")
        due = {info.id: info.next_attempt_s for info in await house.children()}
        assert due["b"] is not None
        assert due["c"] is not None
        await trio.sleep(min(due["b"], due["c"]) - trio.current_time())
        await blocked(house.system)
        states = await house.states()
        assert {states["b"], states["c"]} == {"running", "restarting"}
        await trio.sleep(8)
        assert set((await house.states()).values()) == {"running"}


@virtual
@pytest.mark.parametrize("how", ["stop", "kill", "StopChild", "supervisor", "system"])
async def test_a_stop_overtakes_a_restart(autojump_clock: trio.abc.Clock, how: str) -> None:
    """Whatever stops a child, or all, during its delay comes first: it is not started again
    (hanging_restart_loop: a failed restart is a message, so that a stop gets in)."""
    family = Family()
    async with supervised(family.spec("a"), backoff=Backoff(1000.0, 1.0, 1000.0)) as house:
        await crash(house, "a")
        family.news()
        match how:
            case "stop":
                house.system.stop("sup/a")
            case "kill":
                house.system.kill("sup/a")
            case "StopChild":
                await house.ask(StopChild("a"))
            case "supervisor":
                house.system.stop("sup")
            case _:
                await house.system.shut_down()
        await house.system.join("sup/a")
        await trio.sleep(2000)
        assert family.log == []
        assert house.system.ref("sup/a") is None


@virtual
async def test_a_stop_gets_in_between_failing_restarts(autojump_clock: trio.abc.Clock) -> None:
    """A child that never starts again keeps nobody from stopping its supervisor (hanging_restart_loop)."""
    family = Family()
    async with supervised(family.spec("a"), family.spec("b"), strategy=Strategy.REST_FOR_ONE) as house:
        family.fails["b"] = 10**9
        house.child("b").tell("crash")
        await house.ask(WhichChildren())
        house.system.stop("sup")
        await house.system.join("sup")
        assert not house.gave_up


# ---------------------------------------------------------------------- the pure function
@given(
    gaps=st.lists(st.floats(0, 100, allow_nan=False), max_size=40),
    most=st.integers(0, 5),
    period_s=st.floats(0.1, 50, allow_nan=False),
)
def test_windows_are_what_counting_says(gaps: list[float], most: int, period_s: float) -> None:
    """The kept restarts are those of the last period, for every history."""
    times, kept, now = [], (), 0.0
    for gap in gaps:
        now += gap
        times.append(now)
        kept = add_restart(kept, now, period_s)
        assert list(kept) == [at for at in times if now - at <= period_s]
        assert Intensity(most, period_s).exceeded(kept) == (len(kept) > most)
