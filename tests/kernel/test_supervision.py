"""Supervisors: the children that they restart, the delays, and the limit at which they end."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest
import trio
from kernel_kit import Echo, Script, blocked, both, virtual
from supervision_kit import AT_ONCE, EXITS, Boom, Family, supervised

from actors import (
    DEFERRED,
    ActorRestarting,
    Backoff,
    ChildSpec,
    Context,
    Intensity,
    InvalidOption,
    NameTaken,
    NoSuchActor,
    Restart,
    RestartLimitExceeded,
    StartChild,
    StartFailed,
    StopChild,
    Supervisor,
    WhichChildren,
)
from actors.restart import add_restart, wanted

RETURNS = {
    "permanent": {"normal", "shutdown", "crash", "killed"},
    "transient": {"crash", "killed"},
    "temporary": set(),
}
"""Ends after which a child of each restart type is started again (as in OTP)."""


# ---------------------------------------------------------------------- who is started again
@both
@pytest.mark.parametrize("restart", RETURNS)
@pytest.mark.parametrize("how", EXITS)
async def test_a_restart_type_decides_by_the_end(restart: str, how: str) -> None:
    """A permanent child is always restarted, a transient one after an end that was not clean, a temporary one never."""
    family = Family()
    async with supervised(family.spec("a", restart), family.spec("b")) as house:
        family.news()
        await house.end("a", how)
        returned = how in RETURNS[restart]
        assert family.news() == (["-a"] if how != "killed" else []) + (["+a"] if returned else [])
        expected = {"a": "running"} if returned else {} if restart == "temporary" else {"a": "down"}
        assert await house.states() == {**expected, "b": "running"}
        assert not house.downs


@both
async def test_a_child_keeps_its_ref_and_its_mailbox() -> None:
    """Messages queued behind a crash are handled by the next incarnation; the ask that was being handled fails with
    ``ActorRestarting``."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        ref = house.child("a")
        ref.tell("crash")
        assert await ref.ask("behind", timeout_s=20) == ("a", 2, "behind")
        with pytest.raises(ActorRestarting) as caught:
            await ref.ask("crash", timeout_s=20)
        assert caught.value.started
        assert isinstance(caught.value.__cause__, Boom)
        assert ref.incarnation in (2, 3)
        await blocked(house.system)
        assert house.child("a") is ref
        assert ref.incarnation == 3


@both
async def test_a_start_that_fails_is_tried_again() -> None:
    """Each failed start of a child that had lived counts as a restart of its own."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        family.fails["a"] = 2
        await house.end("a", "crash")
        assert family.log == ["+a", "-a", "!a", "-a", "!a", "-a", "+a"]
        (info,) = await house.children()
        assert (info.state, info.restarts) == ("running", 3)


@both
async def test_a_nested_supervisor_comes_back_with_its_children() -> None:
    """A nested supervisor is restarted like any other child; its own children are started anew."""
    family = Family()
    async with supervised(family.nested("inner", *family.specs("x", "y"))) as house:
        family.news()
        await house.end("inner", "killed")
        assert family.log == ["+x", "+y"]  # who is killed has no last word


# ---------------------------------------------------------------------- the first start
@both
@pytest.mark.parametrize("failing", ["a", "b", "c"])
async def test_a_child_that_cannot_start_ends_the_start(failing: str) -> None:
    """If a first child cannot start, the supervisor does not start either, and the children started before are
    ended."""
    family = Family()
    family.fails[failing] = 1
    with pytest.raises(StartFailed):
        async with supervised(*family.specs("a", "b", "c")):
            pass
    assert [one for one in family.log if one.startswith("+")] == [f"+{one}" for one in "abc" if one < failing]


@both
@pytest.mark.parametrize("made", [None, object(), 5])
async def test_a_factory_must_make_a_behaviour(made: Any) -> None:
    """An object without ``receive`` is refused as a behaviour; the error names the child spec and the object."""
    with pytest.raises(StartFailed, match=r"child spec 'a': start\(\) is"):
        async with supervised(ChildSpec("a", lambda: made)):
            pass


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": "a/b"}, "id"),
        ({"start": None}, "start"),
        ({"restart": "often"}, "restart"),
        ({"shutdown_s": -1}, "shutdown_s"),
        ({"limits": None}, "limits"),
    ],
)
def test_a_spec_is_checked(fields: dict[str, Any], field: str) -> None:
    """An invalid value in a child spec is refused before anything is started; the error names the field."""
    with pytest.raises(InvalidOption) as caught:
        Supervisor([ChildSpec(**{"id": "a", "start": Echo, **fields})])
    assert caught.value.field == field


def test_the_bounds_of_a_supervisor_are_checked() -> None:
    """A supervisor refuses an invalid intensity or delay, an object that is no spec, and two children with one id."""
    for bad in (Intensity(-1, 1.0), Intensity(1, 0.0)):
        with pytest.raises(InvalidOption):
            Supervisor(intensity=bad)
    with pytest.raises(InvalidOption):
        Supervisor(backoff=Backoff(base_s=-1.0))
    with pytest.raises(InvalidOption):
        Supervisor(["a"])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match="an id of its own"):
        Supervisor([ChildSpec("a", Echo), ChildSpec("a", Echo)])


# ---------------------------------------------------------------------- requests
@both
async def test_children_are_started_and_stopped_on_request() -> None:
    """A child started on request is the youngest; a stopped child is removed, so that its id is free again."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        ref = await house.ask(StartChild(family.spec("b")))
        assert await ref.ask("hello", timeout_s=20) == ("b", 1, "hello")
        with pytest.raises(NameTaken):
            await house.ask(StartChild(family.spec("b")))
        family.news()
        assert await house.ask(StopChild("b")) is None
        assert family.news() == ["-b"]
        assert await house.states() == {"a": "running"}
        with pytest.raises(NoSuchActor):
            await house.ask(StopChild("b"))
        await house.ask(StartChild(family.spec("b")))
        assert [one.id for one in await house.ask(WhichChildren())] == ["a", "b"]


@both
async def test_a_start_on_request_that_fails_leaves_no_child() -> None:
    """If a start on request fails, the asker gets the error, there is no such child, and the supervisor continues."""
    family = Family()
    async with supervised(family.spec("a")) as house:
        family.fails["b"] = 1
        with pytest.raises(StartFailed):
            await house.ask(StartChild(family.spec("b")))
        with pytest.raises(InvalidOption):
            await house.ask(StartChild(None))  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="ask StartChild"):
            await house.ask("anything else")
        assert await house.states() == {"a": "running"}


@virtual
async def test_a_stop_overtakes_a_restart(autojump_clock: trio.abc.Clock) -> None:
    """A stop of a child that waits for its delay removes the child at once, without a restart."""
    family = Family()
    async with supervised(family.spec("a"), backoff=Backoff(1000.0, 1.0, 1000.0)) as house:
        await house.end("a", "crash")
        assert await house.states() == {"a": "restarting"}
        assert await house.ask(StopChild("a")) is None
        await trio.sleep(2000)
        assert family.log == ["+a", "-a"]
        assert await house.states() == {}


# ---------------------------------------------------------------------- delays, and giving up
@virtual
async def test_delays_grow_and_begin_anew_after_a_stable_life(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure in a row doubles the delay; after a life of ``stable_s`` seconds the delays begin anew."""
    monkeypatch.setattr(random.Random, "uniform", lambda self, low, high: high)
    family, starts = Family(), []
    family.on_start["a"] = lambda ctx: starts.append(trio.current_time())
    backoff = Backoff(base_s=1.0, factor=2.0, cap_s=4.0)
    delays = []
    async with supervised(family.spec("a"), backoff=backoff) as house:
        for life_s in (0, 0, 0, 0, 2 * backoff.stable_s):
            await trio.sleep(life_s)
            crashed = trio.current_time()
            house.child("a").tell("crash")
            await trio.sleep(10)
            delays.append(starts[-1] - crashed)
    assert delays == pytest.approx([1.0, 2.0, 4.0, 4.0, 1.0])


@both
@pytest.mark.parametrize("most", [0, 1, 3])
async def test_one_restart_too_many_ends_the_supervisor(most: int) -> None:
    """A restart too many ends the supervisor with an error that names the child, the bound and the last end; other
    children end in order."""
    family = Family()
    async with supervised(*family.specs("a", "b"), intensity=Intensity(most, 60.0)) as house:
        for _ in range(most + 1):
            assert not house.downs
            await house.end("a", "crash")
        reason = house.reason
        assert isinstance(reason, RestartLimitExceeded)
        assert (reason.child, reason.intensity) == ("a", Intensity(most, 60.0))
        assert f"more than {most} restarts within 60 s; the last end: crashed: Boom('a')" in str(reason)
        assert family.log[-1] == "-b"


@both
async def test_failed_starts_count() -> None:
    """If a child that lived once cannot start any more, its failed starts count, and end the supervisor."""
    family = Family()
    async with supervised(family.spec("a"), intensity=Intensity(3, 60.0)) as house:
        family.fails["a"] = 99
        await house.end("a", "crash")
        assert house.gave_up
        assert isinstance(house.reason, RestartLimitExceeded)
        assert isinstance(house.reason.reason, StartFailed)


@both
@pytest.mark.parametrize("restart", ["permanent", "transient"])
async def test_giving_up_goes_up_level_by_level(restart: str) -> None:
    """The end by too many restarts is never clean: the supervisor above restarts that supervisor, until it exceeds its
    own limit."""
    family = Family()
    inner = family.nested("inner", family.spec("x"), restart=restart, intensity=Intensity(1, 60.0))
    async with supervised(inner, intensity=Intensity(1, 60.0)) as house:
        for _ in range(3):
            await house.end("inner/x", "crash")
            assert not house.downs
        await house.end("inner/x", "crash")
        assert house.gave_up
        assert family.log.count("+x") == 4


@virtual
@pytest.mark.parametrize(("gap_s", "gives_up"), [(29.0, True), (31.0, False)])
async def test_the_window_of_an_intensity_slides(autojump_clock: trio.abc.Clock, gap_s: float, gives_up: bool) -> None:
    """Restarts older than the period do not count; those of all children count together."""
    family = Family()
    async with supervised(*family.specs("a", "b"), intensity=Intensity(2, 60.0)) as house:
        for name in ("a", "b", "a", "b")[: 3 if gives_up else 4]:
            house.child(name).tell("crash")
            await trio.sleep(gap_s)
        assert house.gave_up is gives_up


def test_restart_types_and_windows_as_functions() -> None:
    """As functions: the ends after which each restart type restarts, and the restarts within a window."""
    assert [wanted(one, clean=True) for one in Restart] == [True, False, False]
    assert [wanted(one, clean=False) for one in Restart] == [True, True, False]
    assert add_restart((1.0, 2.0, 9.0), 12.0, 10.0) == (2.0, 9.0, 12.0)
    assert [Intensity(2, 10.0).exceeded((1.0,) * count) for count in (2, 3)] == [False, True]


@both
async def test_a_backoff_at_once_is_still_a_message() -> None:
    """Even without a delay, a supervisor handles the messages queued before the restart first."""
    family = Family()
    async with supervised(family.spec("a"), backoff=AT_ONCE) as house:
        house.child("a").tell("crash")
        infos = await house.children()
        assert infos[0].state in ("running", "restarting")
        await blocked(house.system)
        assert family.log == ["+a", "-a", "+a"]


# ---------------------------------------------------------------------- over a restart
@virtual
async def test_all_but_the_mailbox_is_the_new_incarnations_own(autojump_clock: trio.abc.Clock) -> None:
    """Timers, tasks and children end with an incarnation; messages that are queued, or come meanwhile, stay for the
    next."""
    heard: list[Any] = []
    tasks: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            tasks.append("ended")

    def receive(ctx: Context, message: Any) -> Any:
        heard.append((ctx.incarnation, message))
        if message == "set up":
            ctx.start_task(work)
            ctx.set_timer("later", 5.0, "rings")
            ctx.spawn(Echo(), f"{ctx.id}/below")
        if message == "crash":
            raise Boom
        return message

    spec = ChildSpec("a", lambda: Script(receive))
    async with supervised(spec, backoff=Backoff(100.0, 1.0, 100.0)) as house:
        ref = house.child("a")
        scope = house.system.cell("sup/a").scope  # type: ignore[union-attr]
        await ref.ask("set up", timeout_s=1)
        for message in ("crash", "queued"):
            ref.tell(message)
        await blocked(house.system)
        assert tasks == ["ended"]
        assert "sup/a/below" not in house.system
        ref.tell("while it is down")
        await trio.sleep(200)
        assert heard == [(1, "set up"), (1, "crash"), (2, "queued"), (2, "while it is down")]
        assert house.system.cell("sup/a").scope is not scope  # type: ignore[union-attr]


@both
async def test_asks_in_hand_and_deferred_hear_of_the_restart() -> None:
    """At a restart, the ask being handled and the deferred asks fail, with the note that they may have had an effect; a
    told message is a dead letter."""

    def receive(ctx: Context, message: Any) -> Any:
        if message == "crash":
            raise Boom
        return DEFERRED

    async with supervised(ChildSpec("a", lambda: Script(receive))) as house, anyio.create_task_group() as group:
        ref, errors = house.child("a"), []

        async def ask(message: str) -> None:
            with pytest.raises(ActorRestarting) as caught:
                await ref.ask(message, timeout_s=20)
            errors.append(caught.value.started)

        group.start_soon(ask, "deferred")
        await blocked(house.system)
        group.start_soon(ask, "crash")
        await blocked(house.system)
        assert errors == [True, True]
        ref.tell("crash")
        await blocked(house.system)
        assert (house.system.dead_letters, ref.incarnation) == (1, 3)
