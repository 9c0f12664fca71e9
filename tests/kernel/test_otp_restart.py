"""OTP's supervisor cases: every restart type against every way to end, and what comes of it for the others."""

from __future__ import annotations

import pytest
from kernel_kit import blocked, both
from otp_kit import EXITS, Boom, Family, kinds, supervised

from actors import (
    ActorStopped,
    Crashed,
    Down,
    Intensity,
    KernelEvent,
    Killed,
    Normal,
    RestartLimitExceeded,
    Shutdown,
    StartFailed,
    Strategy,
)
from actors.restart import Restart, wanted

RETURNS = {
    ("permanent", "normal"): True,
    ("permanent", "shutdown"): True,
    ("permanent", "crash"): True,
    ("permanent", "killed"): True,
    ("transient", "normal"): False,
    ("transient", "shutdown"): False,
    ("transient", "crash"): True,
    ("transient", "killed"): True,
    ("temporary", "normal"): False,
    ("temporary", "shutdown"): False,
    ("temporary", "crash"): False,
    ("temporary", "killed"): False,
}
"""OTP's table: is a child of this type started again after an end of that kind?"""
TYPES = ("permanent", "transient", "temporary")
STRATEGIES = tuple(Strategy)


@both
@kinds
@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("restart", TYPES)
async def test_restart_type_by_exit(restart: str, how: str, kind: str) -> None:
    """A child comes back, or not, as OTP's table says; a temporary one is forgotten, a transient one kept
    (permanent_normal, transient_normal, temporary_normal, permanent_shutdown, transient_shutdown, temporary_shutdown,
    permanent_abnormal, transient_abnormal, temporary_abnormal)."""
    family = Family(kind)
    async with supervised(family.spec("a", restart), family.spec("b")) as house:
        ref = house.child("a")
        await house.end("a", how)
        if RETURNS[restart, how]:
            assert await house.states() == {"a": "running", "b": "running"}
            assert await ref.ask("again", timeout_s=20) == ("a", 2, "again")
        else:
            left = {} if restart == "temporary" else {"a": "down"}
            assert await house.states() == {**left, "b": "running"}
            with pytest.raises(ActorStopped):
                ref.tell("again")
        assert await house.child("b").ask("still", timeout_s=20) == ("b", 1, "still")


@both
@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("restart", TYPES)
async def test_strategy_by_restart_type_by_exit(restart: str, strategy: Strategy, how: str) -> None:
    """The middle one of three ends: who is stopped and started with it is the strategy's; that nobody is where it does
    not come back is its restart type's (one_for_one, one_for_all, rest_for_one)."""
    family = Family()
    specs = [family.spec("a"), family.spec("b", restart), family.spec("c")]
    async with supervised(*specs, strategy=strategy) as house:
        family.news()
        await house.end("b", how)
        ended = [] if how == "killed" else ["-b"]
        if not RETURNS[restart, how]:
            expected = ended
        elif strategy is Strategy.ONE_FOR_ONE:
            expected = [*ended, "+b"]
        elif strategy is Strategy.REST_FOR_ONE:
            expected = [*ended, "-c", "+b", "+c"]
        else:
            expected = [*ended, "-c", "-a", "+a", "+b", "+c"]
        assert family.log == expected


@both
@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
@pytest.mark.parametrize("restart", TYPES)
async def test_bystanders_by_restart_type(strategy: Strategy, restart: str) -> None:
    """A child that is taken down for another's sake comes back, unless it is temporary: then it is forgotten
    (temporary_bystander)."""
    family = Family()
    async with supervised(family.spec("a"), family.spec("b", restart), strategy=strategy) as house:
        family.news()
        await house.end("a", "crash")
        if restart == "temporary":
            assert family.log == ["-a", "-b", "+a"]
            assert await house.states() == {"a": "running"}
        else:
            assert family.log == ["-a", "-b", "+a", "+b"]
            assert await house.states() == {"a": "running", "b": "running"}


@both
@kinds
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_restart_that_fails_is_tried_again(strategy: Strategy, kind: str) -> None:
    """A failed restart is a failure like any other: tried again, and counted (one_for_all_other_child_fails_restart,
    rest_for_one_other_child_fails_restart)."""
    family = Family(kind)
    async with supervised(*family.specs("a", "b"), strategy=strategy) as house:
        family.news()
        family.fails["b"] = 3
        await house.end("b", "crash")
        assert family.log.count("!b") == 3
        infos = {info.id: info for info in await house.children()}
        assert (infos["b"].state, infos["b"].restarts) == ("running", 4)
        assert house.child("b").incarnation == 5


@both
async def test_in_one_for_all_another_child_fails_to_restart() -> None:
    """Those that were started again already are stopped again, and all are started together
    (one_for_all_other_child_fails_restart)."""
    family = Family()
    async with supervised(*family.specs("a", "b", "c"), strategy=Strategy.ONE_FOR_ALL) as house:
        family.news()
        family.fails["b"] = 1
        await house.end("a", "crash")
        assert family.log == ["-a", "-c", "-b", "+a", "!b", "-b", "-a", "+a", "+b", "+c"]


@both
async def test_in_rest_for_one_another_child_fails_to_restart() -> None:
    """The earlier ones, which are up already, stay; the rest is started from the one that failed
    (rest_for_one_other_child_fails_restart)."""
    family = Family()
    async with supervised(*family.specs("a", "b", "c", "d"), strategy=Strategy.REST_FOR_ONE) as house:
        family.news()
        family.fails["c"] = 1
        await house.end("b", "crash")
        assert family.log == ["-b", "-d", "-c", "+b", "!c", "-c", "+c", "+d"]


@both
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_factory_that_fails_at_the_restart(strategy: Strategy) -> None:
    """A factory that raises, or makes no behaviour, at a restart is tried again like a started that raises."""
    family = Family()
    answers = [family.actor("a"), Boom("no"), None, family.actor("a")]

    def make() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    spec = family.spec("a")._replace(start=make)
    async with supervised(family.spec("z"), spec, family.spec("b"), strategy=strategy) as house:
        await house.end("a", "crash")
        assert await house.states() == {"z": "running", "a": "running", "b": "running"}
        assert house.child("a").incarnation == 4


@both
async def test_a_restart_that_is_done_at_once_does_not_hold_up_its_group() -> None:
    """A transient child that ends cleanly in its second started stays down; those after it start all the same."""
    family = Family()
    specs = [family.spec("a", "transient"), family.spec("b"), family.spec("c")]
    async with supervised(*specs, strategy=Strategy.ONE_FOR_ALL) as house:
        family.on_start["a"] = lambda ctx: ctx.exit()
        await house.end("c", "crash")
        assert await house.states() == {"a": "down", "b": "running", "c": "running"}


@both
async def test_a_child_that_dies_while_its_group_is_taken_down_counts_once() -> None:
    """Of two children that crash together one restart is counted, not two (one_for_all)."""
    family = Family()
    async with supervised(*family.specs("a", "b", "c"), strategy=Strategy.ONE_FOR_ALL) as house:
        family.news()
        for one in ("a", "b"):
            house.system.kill(f"sup/{one}")
        await blocked(house.system)
        assert family.log == ["-c", "+a", "+b", "+c"]
        assert sum(info.restarts for info in await house.children()) == 1


@both
@pytest.mark.parametrize("restart", ["transient", "temporary"])
async def test_a_member_that_is_done_while_its_group_is_taken_down(restart: str) -> None:
    """A member that ends by itself while a younger one takes its time is part of the take-down: a transient one comes
    back with the others, a temporary one does not."""
    family = Family()
    specs = [family.spec("a", restart), family.spec("b"), family.spec("c")]
    async with supervised(*specs, strategy=Strategy.ONE_FOR_ALL) as house:
        family.news()
        context = house.system.context("sup/a")
        assert context is not None
        house.system.kill("sup/b")
        context.exit()
        await blocked(house.system)
        assert family.log[-2:] == ["+b", "+c"]
        expected = {"b": "running", "c": "running"}
        assert await house.states() == ({"a": "running", **expected} if restart == "transient" else expected)


@both
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_nested_supervisor_comes_back_with_its_children(strategy: Strategy) -> None:
    """A supervisor that is started again starts its children again, the first incarnations of new actors (tree)."""
    family = Family()
    inner = family.nested("inner", *family.specs("x", "y"))
    async with supervised(family.spec("a"), inner, strategy=strategy) as house:
        family.news()
        await house.end("inner", "killed")
        if strategy is Strategy.ONE_FOR_ALL:
            assert family.log == ["-a", "+a", "+x", "+y"]
        else:
            assert family.log == ["+x", "+y"]
        assert house.child("inner").incarnation == 2
        assert house.child("inner/x").incarnation == 1


@both
async def test_one_supervisor_object_may_live_twice() -> None:
    """A factory that returns the same supervisor every time works: each start begins afresh."""
    family = Family()
    inner = family.nested("inner", *family.specs("x", "y")).start()
    spec = family.spec("inner")._replace(start=lambda: inner)
    async with supervised(spec) as house:
        await house.end("inner", "killed")
        assert house.system.children("sup/inner") == ("sup/inner/x", "sup/inner/y")


@both
async def test_a_tree_restarts_where_it_was_hurt() -> None:
    """A crash two levels down is mended by its own supervisor; nobody else notices (tree)."""
    family = Family()
    left = family.nested("left", *family.specs("a", "b"), strategy=Strategy.ONE_FOR_ALL)
    right = family.nested("right", *family.specs("c", "d"))
    async with supervised(left, right, strategy=Strategy.ONE_FOR_ALL) as house:
        family.news()
        await house.end("left/b", "crash")
        assert family.log == ["-b", "-a", "+a", "+b"]
        family.news()
        await house.end("right/c", "crash")
        assert family.log == ["-c", "+c"]


@both
async def test_links_do_not_end_a_supervisor() -> None:
    """A supervisor absorbs the end of whatever it is linked to (child_unlink)."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        context = house.system.context("sup")
        assert context is not None
        context.link("sup/a")
        await house.end("a", "crash")
        assert house.downs == []
        assert await house.states() == {"a": "running"}


@both
@pytest.mark.parametrize(("how", "returns"), [("crash", True), ("killed", True), ("shutdown", False)])
async def test_linked_siblings_end_together_and_come_back_by_the_reason(how: str, returns: bool) -> None:
    """A transient child that ends with the one it is linked to comes back where that one's end was not clean."""
    family = Family()
    async with supervised(family.spec("a", "transient"), family.spec("b", "transient")) as house:
        await house.child("a").ask(lambda ctx: ctx.link("sup/b"), timeout_s=20)
        await house.end("a", how)
        state = "running" if returns else "down"
        assert await house.states() == {"a": state, "b": state}


@both
async def test_every_end_has_its_reason() -> None:
    """Whoever monitors a child for good hears why it ended: done, shut down, crashed, killed."""
    family = Family()
    reasons: dict[str, object] = {}
    names = dict(zip(EXITS, "abcd", strict=True))
    async with supervised(*[family.spec(one, "temporary") for one in names.values()]) as house:
        for how, name in names.items():
            house.system.monitor(f"sup/{name}", lambda down: reasons.update({down.id[-1]: down.reason}))
            await house.end(name, how)
    assert reasons["a"] == Normal()
    assert reasons["b"] == Shutdown("enough")
    assert isinstance(reasons["c"], Crashed)
    assert reasons["d"] == Killed()


@both
async def test_giving_up_is_told_with_the_cause() -> None:
    """RestartLimitExceeded names the supervisor, the child, the window and the last end; the child's Down has its own
    reason."""
    family = Family()
    async with supervised(family.spec("a"), child_intensity=(limit := Intensity(0, 5))) as house:
        downs: list[Down] = []
        events: list[KernelEvent] = []
        house.system.on_event = events.append
        house.system.monitor("sup/a", downs.append)
        await house.end("a", "crash")
        error = house.reason
        assert isinstance(error, RestartLimitExceeded)
        assert (error.supervisor, error.child, error.intensity) == ("sup", "a", limit)
        assert "more than 0 restarts within 5 s; the last end: crashed: Boom('a')" in str(error)
        assert len(downs) == 1
        assert isinstance(downs[0].reason, Crashed)
        assert error in [getattr(event, "error", None) for event in events]


@both
async def test_a_failed_restart_is_the_reason_of_giving_up() -> None:
    """Where the last failure was a start, the error says that."""
    family = Family()
    limit = Intensity(1, 5)
    async with supervised(family.spec("a"), child_intensity=limit) as house:
        family.fails["a"] = 9
        await house.end("a", "crash")
        error = house.reason
        assert isinstance(error, RestartLimitExceeded)
        assert isinstance(error.reason, StartFailed)
        assert family.fails["a"] == 8


@pytest.mark.parametrize(("restart", "how"), RETURNS)
def test_the_table_is_what_the_kernel_computes(restart: str, how: str) -> None:
    """OTP's table and the function of data that the supervisor asks are the same."""
    clean = how in ("normal", "shutdown")
    assert wanted(Restart(restart), clean=clean) is RETURNS[restart, how]
