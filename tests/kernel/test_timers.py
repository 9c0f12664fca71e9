"""Timers: they belong to an actor, end with it, and fire in order; a voided timer is never delivered, queued or not."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_kit import Script, both, running, virtual

from actors import ActorStopped, ActorSystem, Context, KernelEvent, Paused, open_system
from actors.timers import GRACE_S, LATE_S
from actors.waiting import within


class Clocked:
    """Actor that calls each function it receives with its context, and records other messages with the time."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, float]] = []

    def receive(self, ctx: Context, message: Any) -> Any:
        if callable(message):
            return message(ctx)
        self.heard.append((message, trio.current_time()))
        return None

    def words(self) -> list[Any]:
        return [word for word, _ in self.heard]


def context_of(system: ActorSystem, actor_id: str) -> Context:
    context = system.context(actor_id)
    assert context is not None
    return context


@virtual
async def test_timers_fire_in_the_order_of_their_deadlines(autojump_clock: trio.abc.Clock) -> None:
    """Each timer fires once, at its time, whatever the order of setting; timers with equal times fire in the order of
    setting."""
    async with running() as system:
        clocked = Clocked()
        system.spawn(clocked, "a")
        context, start = context_of(system, "a"), trio.current_time()
        for key, delay_s in [("c", 3), ("a", 1), ("b", 2), ("b2", 2), ("now", 0)]:
            context.set_timer(key, delay_s, key)
        await trio.sleep(5)
        assert clocked.words() == ["now", "a", "b", "b2", "c"]
        assert [at - start for _, at in clocked.heard] == pytest.approx([0, 1, 2, 2, 3])


@virtual
async def test_an_earlier_timer_set_later_does_not_wait_for_the_first(autojump_clock: trio.abc.Clock) -> None:
    """An earlier timer that is set later wakes the timer service, and fires first."""
    async with running() as system:
        clocked = Clocked()
        system.spawn(clocked, "a")
        context_of(system, "a").set_timer("far", 20, "far")
        await trio.sleep(1)
        context_of(system, "a").set_timer("near", 1, "near")
        await trio.sleep(2)
        assert clocked.words() == ["near"]
        await trio.sleep(20)
        assert clocked.words() == ["near", "far"]


@virtual
async def test_setting_a_key_again_voids_the_timer(autojump_clock: trio.abc.Clock) -> None:
    """Of two timers with one key only the second fires, at its own time."""
    async with running() as system:
        clocked = Clocked()
        system.spawn(clocked, "a")
        context, start = context_of(system, "a"), trio.current_time()
        context.set_timer("k", 1, "first")
        context.set_timer("k", 2, "second")
        await trio.sleep(5)
        assert clocked.words() == ["second"]
        assert clocked.heard[0][1] - start == pytest.approx(2)


@virtual
@pytest.mark.parametrize(("again", "heard"), [(True, ["first", "anew"]), (False, ["first"])])
async def test_a_queued_timer_can_still_be_voided(
    autojump_clock: trio.abc.Clock, again: bool, heard: list[str]
) -> None:
    """A timer message that waits in the mailbox is not delivered if the timer is set again or cancelled meanwhile."""
    async with running() as system:
        words: list[Any] = []

        def receive(ctx: Context, message: Any) -> None:
            words.append(message)
            if message == "first" and again:
                ctx.set_timer("second", 5, "anew")
            elif message == "first":
                ctx.cancel_timer("second")

        system.spawn(Script(receive), "a")
        context = context_of(system, "a")
        context.set_timer("first", 1, "first")
        context.set_timer("second", 1, "second")  # due in the same instant: both are queued before either is handled
        await trio.sleep(10)
        assert words == heard


@virtual
async def test_a_cancelled_timer_is_not_heard(autojump_clock: trio.abc.Clock) -> None:
    """Cancelling voids the timer with that key only; cancelling an unknown or handled timer is no error."""
    async with running() as system:
        clocked = Clocked()
        system.spawn(clocked, "a")
        context = context_of(system, "a")
        context.set_timer("x", 1, "x")
        context.set_timer("y", 1, "y")
        context.cancel_timer("x")
        context.cancel_timer("unknown")
        await trio.sleep(2)
        context.cancel_timer("y")
        assert clocked.words() == ["y"]


@virtual
async def test_a_timer_tells_what_it_has_left(autojump_clock: trio.abc.Clock) -> None:
    """``read_timer`` returns the seconds until the timer fires; ``None`` if it was never set, was cancelled, or has
    fired."""
    async with running() as system:
        system.spawn(Clocked(), "a")
        context = context_of(system, "a")
        context.set_timer("x", 5, "x")
        assert (context.read_timer("x"), context.read_timer("y")) == (5, None)
        await trio.sleep(2)
        assert context.read_timer("x") == 3
        context.set_timer("x", 10, "x again")
        assert context.read_timer("x") == 10
        context.cancel_timer("x")
        assert context.read_timer("x") is None
        context.set_timer("x", 1, "at last")
        await trio.sleep(2)
        assert context.read_timer("x") is None


@virtual
async def test_keys_of_two_actors_do_not_meet(autojump_clock: trio.abc.Clock) -> None:
    """Timers of two actors with the same key are independent."""
    async with running() as system:
        one, two = Clocked(), Clocked()
        system.spawn(one, "one")
        system.spawn(two, "two")
        context_of(system, "one").set_timer("k", 1, "for one")
        context_of(system, "two").set_timer("k", 1, "for two")
        context_of(system, "one").cancel_timer("k")
        await trio.sleep(2)
        assert (one.words(), two.words()) == ([], ["for two"])


@virtual
async def test_timers_die_with_their_actor(autojump_clock: trio.abc.Clock) -> None:
    """After a stop of its actor no timer fires or becomes a dead letter, and the stopped actor can set no task or
    timer."""
    async with running() as system:
        clocked = Clocked()
        letters: list[KernelEvent] = []
        system.on_event = letters.append
        system.spawn(clocked, "a")
        context_of(system, "a").set_timer("k", 1, "k")
        system.stop("a")
        await system.join("a")
        await trio.sleep(2)
        assert (clocked.heard, letters) == ([], [])


@both
async def test_timers_of_the_dead_do_not_pile_up() -> None:
    """After a thousand actors ended with a timer set, only a handful of timers is in the heap."""
    async with running() as system:
        for n in range(1000):
            system.spawn(Script(lambda ctx, message: None), str(n))
            context_of(system, str(n)).set_timer("k", 1000, "k")
            system.stop(str(n))
        await system.idle()
        assert len(system) == 0
        assert len(system.timers) <= 130


@virtual
async def test_a_timer_set_while_stopping_never_fires(autojump_clock: trio.abc.Clock) -> None:
    """A timer that is set in the message that stops the actor never fires."""
    async with running() as system:

        def receive(ctx: Context, message: Any) -> None:
            ctx.stop()
            ctx.set_timer("k", 1, "k")

        ref = system.spawn(Script(receive), "a")
        ref.tell("go")
        await system.join("a")
        await trio.sleep(2)
        assert len(system.timers) == 0
        with pytest.raises(ActorStopped):
            ref.tell("x")


@virtual
async def test_a_timer_is_not_lost_on_a_full_mailbox(autojump_clock: trio.abc.Clock) -> None:
    """A timer is delivered to a mailbox that is full at every checkpoint, ahead of the queued messages."""
    async with running() as system:
        seen: list[Any] = []

        def receive(ctx: Context, message: Any) -> None:
            if message == "tick":
                seen.append(message)
            elif not seen:
                ctx.tell_self("spin")

        ref = system.spawn(Script(receive), "a", capacity=1)
        context_of(system, "a").set_timer("k", 0, "tick")
        ref.tell("spin")
        await system.idle()
        assert seen == ["tick"]


@both
@pytest.mark.parametrize("how", ["set again", "cancel"])
async def test_voided_timers_do_not_pile_up(how: str) -> None:
    """After twenty thousand timers were set and voided, only a handful is in the heap."""
    async with running() as system:
        system.spawn(Script(lambda ctx, message: None), "a")
        context = context_of(system, "a")
        for _ in range(20_000):
            context.set_timer("k", 1000, "k")
            if how == "cancel":
                context.cancel_timer("k")
        assert len(system.timers) <= 130


@virtual
async def test_fired_timers_do_not_pile_up(autojump_clock: trio.abc.Clock) -> None:
    """A timer that fired and was handled leaves the heap and the actor's keys."""
    async with running() as system:
        clocked = Clocked()
        system.spawn(clocked, "a")
        for n in range(300):
            context_of(system, "a").set_timer(f"k{n}", 1, n)
        await trio.sleep(2)
        assert clocked.words() == list(range(300))
        assert len(system.timers) == 0
        assert not cast(Any, context_of(system, "a")).lazy.timers


@both
@pytest.mark.parametrize("delay_s", [-1, math.nan])
async def test_a_delay_that_is_no_delay_is_an_error(delay_s: float) -> None:
    """A negative delay or NaN is refused with an error that names the key, the value and the rule."""
    async with running() as system:
        system.spawn(Script(lambda ctx, message: None), "a")
        with pytest.raises(ValueError, match=rf"timer 'k': delay_s is {delay_s}; give seconds >= 0"):
            context_of(system, "a").set_timer("k", delay_s, "x")


@both
async def test_a_timer_carries_its_cause() -> None:
    """The cause given with a timer is on the envelope when the timer's message is handled."""
    async with running() as system:
        causes: list[Any] = []
        ended = "the end"

        def receive(ctx: Context, message: Any) -> None:
            assert ctx.envelope is not None
            causes.append((message, ctx.envelope.cause))
            ctx.stop(ended)

        system.spawn(Script(receive), "a")
        context_of(system, "a").set_timer("k", 0, "tick", cause="why")
        await system.join("a")
        assert causes == [("tick", "why")]


@virtual
async def test_a_chain_of_timers_keeps_time(autojump_clock: trio.abc.Clock) -> None:
    """A timer set from the message of the last one fires one delay later, with no drift under virtual time."""
    async with running() as system:
        ticks: list[float] = []

        def receive(ctx: Context, message: Any) -> None:
            ticks.append(trio.current_time())
            if len(ticks) < 50:
                ctx.set_timer("tick", 0.5, "tick")

        start = trio.current_time()
        system.spawn(Script(receive), "a").tell("start")
        await trio.sleep(25)
        assert [at - start for at in ticks] == pytest.approx([0.5 * n for n in range(50)])


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["set", "cancel", "wait"]), st.sampled_from("abc"), st.integers(0, 5)), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS)
def test_any_history_of_set_and_cancel_fires_what_a_plain_dict_says(operations: list[tuple[str, str, int]]) -> None:
    """For every sequence of set, cancel and wait, the delivered messages are those that a dict of deadlines
    predicts."""
    heard: list[tuple[int, float]] = []
    due: dict[str, tuple[float, int]] = {}
    expected: list[tuple[int, float]] = []

    def pass_time(now: float) -> None:
        ready = sorted((at, serial, key) for key, (at, serial) in due.items() if at <= now)
        for at, serial, key in ready:
            expected.append((serial, at))
            del due[key]

    async def main() -> None:
        async with open_system() as system:
            system.spawn(Script(lambda ctx, message: heard.append((message, trio.current_time()))), "a")
            context = context_of(system, "a")
            for serial, (what, key, n) in enumerate(operations):
                if what == "set":
                    context.set_timer(key, n + 0.5, serial)
                    due[key] = (trio.current_time() + n + 0.5, serial)
                elif what == "cancel":
                    context.cancel_timer(key)
                    due.pop(key, None)
                else:
                    await trio.sleep(n)
                    pass_time(trio.current_time())
            await trio.sleep(10)
            pass_time(trio.current_time())

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [serial for serial, _ in heard] == [serial for serial, _ in expected]
    assert [at for _, at in heard] == pytest.approx([at for _, at in expected])


# ---------------------------------------------------------------------------------------------------- pauses
@virtual
async def test_after_a_pause_each_timer_has_what_it_had_left(autojump_clock: trio.testing.MockClock) -> None:
    """The clock of timers stands still during a pause, and for a grace period after: timers then have their time
    left."""
    async with open_system() as system:
        clocked = Clocked()
        system.spawn(clocked, "a")
        context = context_of(system, "a")
        for delay_s in (10, 11, 30):
            context.set_timer(delay_s, delay_s, delay_s)
        await trio.sleep(5)
        autojump_clock.jump(100)
        await trio.sleep(60)
        resumed = 105 + GRACE_S
        assert clocked.heard == [(10, resumed), (11, resumed + 1), (30, resumed + 20)]


@virtual
async def test_what_came_in_during_a_pause_is_heard_before_a_timer(autojump_clock: trio.testing.MockClock) -> None:
    """A message sent as soon as the process runs again after a pause voids a timer that was due in the pause."""
    async with open_system() as system:
        clocked = Clocked()
        ref = system.spawn(clocked, "a")
        context = context_of(system, "a")
        context.set_timer("late", 10, "late")
        await trio.sleep(5)
        autojump_clock.jump(100)
        await trio.sleep(GRACE_S / 2)
        ref.tell(lambda ctx: ctx.cancel_timer("late"))
        await trio.sleep(60)
        assert clocked.words() == []


@virtual
async def test_a_pause_is_told_of_once(autojump_clock: trio.testing.MockClock) -> None:
    """A pause is reported once, with the delay of its detection; a second pause within the grace begins the grace
    anew."""
    events: list[KernelEvent] = []
    async with open_system() as system:
        system.on_event = events.append
        clocked = Clocked()
        system.spawn(clocked, "a")
        context_of(system, "a").set_timer("k", 10, "k")
        await trio.sleep(5)
        autojump_clock.jump(100)
        await trio.sleep(GRACE_S / 2)
        assert events == [Paused(95)]
        autojump_clock.jump(1000)
        await trio.sleep(60)
        assert [type(event) for event in events] == [Paused, Paused]
        assert clocked.heard == [("k", 1105 + GRACE_S / 2 + GRACE_S)]


@virtual
async def test_a_limit_does_not_count_a_pause(autojump_clock: trio.testing.MockClock) -> None:
    """A block with 20 seconds left at a pause still has 20 seconds after it."""
    async with open_system() as system:
        clocked = Clocked()
        system.spawn(clocked, "a")
        context_of(system, "a").set_timer("k", 10, "k")
        began = trio.current_time()
        with system.timers.limit(20) as scope:
            await trio.sleep(5)
            autojump_clock.jump(100)
            await trio.sleep_forever()
        assert scope.cancelled_caught
        assert trio.current_time() - began == pytest.approx(105 + GRACE_S + 10)


@virtual
async def test_what_is_a_little_late_is_no_pause(autojump_clock: trio.testing.MockClock) -> None:
    """Timers that a busy machine delays by fractions of a second fire at once, as they were due, without a pause."""
    async with open_system() as system:
        clocked = Clocked()
        system.spawn(clocked, "a")
        context_of(system, "a").set_timer("k", 10, "k")
        await trio.sleep(9.5)
        autojump_clock.jump(0.5 + LATE_S * 0.9)
        await trio.sleep(60)
        assert clocked.heard == [("k", 10 + LATE_S * 0.9)]


@virtual
async def test_a_wait_that_nobody_could_hear_gets_a_grace(autojump_clock: trio.testing.MockClock) -> None:
    """After a pause, ``within`` grants its wait a grace: an event that comes in the grace counts, a later one does
    not."""
    event = trio.Event()

    async def jumped() -> None:
        await trio.sleep(1)
        autojump_clock.jump(100)
        await trio.sleep(GRACE_S / 2)
        event.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(jumped)
        assert await within(5, event.wait)
    assert not await within(5, trio.Event().wait)
