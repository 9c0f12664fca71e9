"""OTP's supervisor cases: how a supervisor starts, what it refuses to start with, and what a failed start leaves."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_kit import Echo, blocked, both, running
from otp_kit import AT_ONCE, Boom, Family, kinds, supervised

from actors import (
    AutoShutdown,
    Backoff,
    ChildSpec,
    Context,
    Intensity,
    InvalidOption,
    Limits,
    NameTaken,
    Pool,
    Restart,
    StartFailed,
    Strategy,
    Supervisor,
)


@both
@kinds
async def test_children_are_there_when_spawn_returns(kind: str) -> None:
    """Static children are started in the order of their specs, before the supervisor's spawn returns
    (sup_start_normal)."""
    family = Family(kind)
    async with supervised(*family.specs("a", "b", "c")) as house:
        assert family.log == ["+a", "+b", "+c"]
        assert house.system.children("sup") == ("sup/a", "sup/b", "sup/c")
    assert family.log == ["+a", "+b", "+c", "-c", "-b", "-a"]


@both
async def test_a_supervisor_without_children() -> None:
    """No specs are no error: the supervisor waits for what it is asked (sup_start_normal)."""
    async with supervised() as house:
        assert await house.children() == ()


@both
@kinds
@pytest.mark.parametrize("failing", ["a", "b", "c"])
async def test_a_start_that_fails_in_the_middle(kind: str, failing: str) -> None:
    """Where a child cannot be started, those before it are stopped in reverse, those after it are never started, and
    the supervisor's own start fails with that child's error (sup_start_fail)."""
    family = Family(kind)
    family.fails[failing] = 1
    before = "abc"[: "abc".index(failing)]
    async with running() as system:
        with pytest.raises(StartFailed, match=rf"'sup/{failing}' could not be started: Boom") as caught:
            system.spawn(Supervisor(family.specs("a", "b", "c")), "sup")
        assert isinstance(caught.value.error, Boom)
        await blocked(system)
        assert family.log == [*(f"+{one}" for one in before), f"!{failing}", f"-{failing}"] + [
            f"-{one}" for one in reversed(before)
        ]
        assert len(system) == 0


@both
async def test_a_factory_that_raises() -> None:
    """A factory that raises is a failed start: it never lived (sup_start_error_return)."""

    def broken() -> Echo:
        raise Boom("no")

    async with running() as system:
        with pytest.raises(StartFailed, match="'sup/x' could not be started"):
            system.spawn(Supervisor([ChildSpec("x", broken)]), "sup")
        await blocked(system)
        assert len(system) == 0


@both
@pytest.mark.parametrize("made", [None, 7, "actor"])
async def test_a_factory_that_makes_no_behaviour(made: Any) -> None:
    """What has no receive is refused at the start, with what was made, and not at its first message
    (sup_start_error_return)."""
    async with running() as system:
        with pytest.raises(StartFailed) as caught:
            system.spawn(Supervisor([ChildSpec("x", lambda: made)]), "sup")
        assert isinstance(caught.value.error, InvalidOption)
        await blocked(system)
        assert len(system) == 0


@both
async def test_a_child_that_is_done_at_once() -> None:
    """A child that ends in its own started is no failed start: the others start, and a transient one stays down
    (sup_start_ignore_child)."""
    family = Family()
    family.on_start["a"] = lambda ctx: ctx.exit()
    async with supervised(family.spec("a", "transient"), family.spec("b")) as house:
        await blocked(house.system)
        assert await house.states() == {"a": "down", "b": "running"}


@both
async def test_a_temporary_child_that_is_done_at_once_is_forgotten() -> None:
    """A temporary one leaves nothing behind (sup_start_ignore_temporary_child)."""
    family = Family()
    family.on_start["a"] = lambda ctx: ctx.exit()
    async with supervised(family.spec("a", "temporary"), family.spec("b")) as house:
        await blocked(house.system)
        assert await house.states() == {"b": "running"}


@both
async def test_a_nested_supervisor_that_fails_to_start() -> None:
    """The error of the innermost child comes out, and all that had started are stopped in reverse (tree)."""
    family = Family()
    family.fails["c"] = 1
    async with running() as system:
        with pytest.raises(StartFailed, match="'sup/inner/c' could not be started"):
            system.spawn(Supervisor([family.spec("a"), family.nested("inner", *family.specs("b", "c"))]), "sup")
        await blocked(system)
        assert [one for one in family.log if one.startswith("-")] == ["-c", "-b", "-a"]
        assert len(system) == 0


@both
async def test_a_failed_start_takes_its_own_children_and_tasks_along() -> None:
    """What a started had begun before it raised is ended too."""
    ended: list[str] = []

    class Half:
        def started(self, ctx: Context) -> None:
            ctx.spawn(Echo(), "half/1")
            ctx.spawn(Echo(), "half/2")
            raise Boom("half")

        def receive(self, ctx: Context, message: Any) -> None: ...

    async with running() as system:
        with pytest.raises(StartFailed):
            system.spawn(Supervisor([ChildSpec("half", Half)]), "sup")
        for one in ("half/2", "half/1"):
            system.monitor(one, lambda down: ended.append(down.id))
        await blocked(system)
        assert ended == ["half/2", "half/1"]
        assert len(system) == 0


@both
async def test_a_failed_start_can_be_tried_again() -> None:
    """After a failed start the id is free: the same supervisor may be spawned again, and begins afresh."""
    family = Family()
    family.fails["b"] = 1
    async with running() as system:
        supervisor = Supervisor(family.specs("a", "b"))
        with pytest.raises(StartFailed):
            system.spawn(supervisor, "sup")
        await blocked(system)
        system.spawn(supervisor, "sup")
        assert system.children("sup") == ("sup/a", "sup/b")


@both
async def test_a_name_of_a_spec_is_registered_before_the_first_message() -> None:
    """A child is found under its spec's name when the supervisor has started."""
    family = Family()
    async with supervised(family.spec("a", name="the a")) as house:
        ref = house.system.whereis("the a")
        assert ref is not None
        assert ref.id == "sup/a"


@both
async def test_two_children_with_one_name() -> None:
    """The second start fails, and says which name was taken."""
    family = Family()
    async with running() as system:
        with pytest.raises(StartFailed) as caught:
            system.spawn(Supervisor([family.spec("a", name="n"), family.spec("b", name="n")]), "sup")
        assert isinstance(caught.value.error, NameTaken)
        await blocked(system)
        assert system.whereis("n") is None


# ---------------------------------------------------------------------- what cannot be
BAD_SPECS: dict[str, tuple[ChildSpec, str]] = {
    "no id": (ChildSpec("", Echo), "id"),
    "id with a slash": (ChildSpec("a/b", Echo), "id"),
    "id that is no name": (ChildSpec(7, Echo), "id"),  # type: ignore[arg-type]
    "start not callable": (ChildSpec("a", Echo()), "start"),  # type: ignore[arg-type]
    "unknown restart": (ChildSpec("a", Echo, "sometimes"), "restart"),  # type: ignore[arg-type]
    "negative shutdown": (ChildSpec("a", Echo, shutdown_s=-1), "shutdown_s"),
    "shutdown that is nan": (ChildSpec("a", Echo, shutdown_s=float("nan")), "shutdown_s"),
    "shutdown that is a word": (ChildSpec("a", Echo, shutdown_s="long"), "shutdown_s"),  # type: ignore[arg-type]
    "negative redeliver": (ChildSpec("a", Echo, redeliver=-1), "redeliver"),
    "redeliver that is none": (ChildSpec("a", Echo, redeliver=None), "redeliver"),  # type: ignore[arg-type]
    "limits that are none": (ChildSpec("a", Echo, limits=None), "limits"),  # type: ignore[arg-type]
    "no capacity": (ChildSpec("a", Echo, limits=Limits(0)), "capacity"),
    "name that is none": (ChildSpec("a", Echo, name=None), "name"),  # type: ignore[arg-type]
    "significant permanent": (ChildSpec("a", Echo, significant=True), "significant"),
    "significant without auto_shutdown": (ChildSpec("a", Echo, Restart.TRANSIENT, significant=True), "significant"),
}


@pytest.mark.parametrize("case", BAD_SPECS)
def test_bad_child_specs(case: str) -> None:
    """A spec that cannot be is refused when the supervisor is made, and the error names the field
    (child_specs, sup_start_map_faulty_specs)."""
    spec, field = BAD_SPECS[case]
    with pytest.raises(InvalidOption) as caught:
        Supervisor([spec])
    assert caught.value.field == field
    assert repr(caught.value.value) in str(caught.value)


@pytest.mark.parametrize("value", [None, "a", ("a", Echo), {"id": "a"}])
def test_what_is_no_spec(value: Any) -> None:
    """Something else than a ChildSpec is refused by name (child_specs)."""
    with pytest.raises(InvalidOption, match="give a ChildSpec"):
        Supervisor([value])


def test_duplicate_ids() -> None:
    """Two children of one id are refused (child_specs, duplicate_child_name)."""
    with pytest.raises(InvalidOption, match="'a'; give each child an id of its own"):
        Supervisor([ChildSpec("a", Echo), ChildSpec("b", Echo), ChildSpec("a", Echo)])


BAD_FLAGS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown strategy": ({"strategy": "one_for_some"}, "strategy"),
    "unknown auto_shutdown": ({"auto_shutdown": "sometimes"}, "auto_shutdown"),
    "negative intensity": ({"intensity": Intensity(-1, 1)}, "intensity.restarts_max"),
    "no period": ({"intensity": Intensity(1, 0)}, "intensity.period_s"),
    "negative period": ({"child_intensity": Intensity(1, -1)}, "child_intensity.period_s"),
    "negative child intensity": ({"child_intensity": Intensity(-1, 1)}, "child_intensity.restarts_max"),
    "negative delay": ({"backoff": Backoff(-1.0)}, "backoff.base_s"),
    "cap below base": ({"backoff": Backoff(2.0, 2.0, 1.0)}, "backoff.cap_s"),
    "shrinking delay": ({"backoff": Backoff(1.0, 0.5, 2.0)}, "backoff.factor"),
}


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_bad_flags(case: str) -> None:
    """Flags that cannot be are refused when the supervisor is made, and the error names the field
    (sup_flags, sup_start_map_faulty_specs)."""
    flags, field = BAD_FLAGS[case]
    with pytest.raises(InvalidOption) as caught:
        Supervisor([], **flags)
    assert caught.value.field == field


def test_words_are_as_good_as_members() -> None:
    """Strategy, restart type and auto_shutdown may be given as OTP's words (sup_start_map)."""
    spec = ChildSpec("a", Echo, "transient", significant=True)  # type: ignore[arg-type]
    Supervisor([spec], strategy="rest_for_one", auto_shutdown="any_significant")  # type: ignore[arg-type]
    assert (Strategy("rest_for_one"), AutoShutdown("any_significant")) == (
        Strategy.REST_FOR_ONE,
        AutoShutdown.ANY_SIGNIFICANT,
    )


@both
async def test_a_temporary_child_given_by_word_is_forgotten() -> None:
    """The word temporary means the same as the member, also when the child ends (child_specs_map)."""
    family = Family()
    spec = ChildSpec("a", lambda: family.actor("a"), "temporary")  # type: ignore[arg-type]
    async with supervised(spec) as house:
        await house.end("a", "normal")
        assert await house.children() == ()


def test_a_pool_needs_a_factory() -> None:
    """A pool of nothing is refused when it is made (sup_start_map_simple)."""
    with pytest.raises(InvalidOption, match="start"):
        Pool(Echo())  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="redeliver"):
        Pool(Echo, ChildSpec("x", Echo, redeliver=-1))
    with pytest.raises(InvalidOption, match=r"backoff\.base_s"):
        Pool(Echo, backoff=AT_ONCE._replace(base_s=-1))
