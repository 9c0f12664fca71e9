"""Overflow: what a full mailbox does with one message more, for each policy, lane and way to send; nothing is lost
unseen, and whoever waits for room is served in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import anyio
import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kernel_kit import Script, blocked, both, note, running, virtual

from actors import (
    ActorStopped,
    ActorSystem,
    AskTimeout,
    Coalesce,
    Context,
    DeadLetter,
    InvalidOption,
    Lane,
    Limits,
    MailboxFull,
    MessageDropped,
    Overflow,
    Ref,
    WrongMessage,
)
from actors.mailbox import URGENT_RUN_MAX, Envelope, Mailbox

WAITS = [Overflow.BLOCK, Coalesce(lambda message: None)]
DROPS = [Overflow.DROP_OLDEST, Overflow.DROP_NEWEST]
COUNTED = [Lane.URGENT, Lane.NORMAL]


class Keyed(NamedTuple):
    """A message with a key and a size."""

    key: Any
    value: Any
    size: int = 1


KEYED = Coalesce(lambda message: message.key)


def named(value: object) -> str:
    """The id of a test, the same in every process: a policy of a key is a function, which prints as its address."""
    return "Coalesce" if isinstance(value, Coalesce) else str(value)


BY_SIZE = partial(Limits, size_of=lambda message: message.size)


def watched(system: ActorSystem) -> list[tuple[Any, str]]:
    """The dead letters of a system from now on."""
    letters: list[tuple[Any, str]] = []

    def hear(event: object) -> None:
        if isinstance(event, DeadLetter):
            letters.append((event.message, event.why))

    system.on_event = hear
    return letters


async def held(system: ActorSystem, limits: Limits, log: list[Any] | None = None) -> Ref:
    """An actor that handles nothing until it is resumed."""
    ref = system.spawn(note([] if log is None else log), "a", limits=limits)
    await system.suspend("a", timeout_s=1)
    return ref


async def in_order(group: anyio.abc.TaskGroup, *calls: Callable[[], Awaitable[Any]]) -> None:
    """Start each call when the one before it waits."""
    for call in calls:
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()


# ---------------------------------------------------------------------- each policy, lane and way to send
@both
@pytest.mark.parametrize("lane", COUNTED)
@pytest.mark.parametrize("policy", [*WAITS, Overflow.REJECT], ids=named)
async def test_tell_to_a_full_mailbox_is_refused_where_nothing_may_be_dropped(policy: Any, lane: Lane) -> None:
    """Tell never waits: the error names the bound, and nothing of what was there is lost."""
    async with running() as system:
        heard: list[Any] = []
        ref = await held(system, Limits(2, overflow=policy), heard)
        ref.tell(1, lane=lane)
        ref.tell(2, lane=lane)
        with pytest.raises(MailboxFull, match=r"'a' is full \(2 messages\)"):
            ref.tell(3, lane=lane)
        system.resume("a")
        await system.idle()
        assert heard == [1, 2]
        assert system.dead_letters == 0


@both
@pytest.mark.parametrize("lane", COUNTED)
@pytest.mark.parametrize("policy", WAITS, ids=named)
async def test_send_and_ask_wait_for_room_in_order(policy: Any, lane: Lane) -> None:
    """Senders and askers get in as they came, each as soon as there is room for it."""
    async with running() as system:
        heard: list[Any] = []
        ref = await held(system, Limits(1, overflow=policy), heard)
        ref.tell(0)
        async with anyio.create_task_group() as group:
            await in_order(
                group,
                partial(ref.send, 1, timeout_s=30, lane=lane),
                partial(ref.ask, 2, timeout_s=30, lane=lane),
                partial(ref.send, 3, timeout_s=30, lane=lane),
                partial(ref.ask, 4, timeout_s=30, lane=lane),
            )
            assert heard == []
            system.resume("a")
        await system.idle()
        assert heard == [0, 1, 2, 3, 4]


@virtual
@pytest.mark.parametrize("way", ["send", "ask"])
@pytest.mark.parametrize("policy", WAITS, ids=named)
async def test_waiting_for_room_has_an_end(autojump_clock: trio.abc.Clock, policy: Any, way: str) -> None:
    """Without room by the deadline it is MailboxFull, at that time, and the message is not handled later."""
    async with running() as system:
        heard: list[Any] = []
        ref = await held(system, Limits(1, overflow=policy), heard)
        ref.tell(0)
        start = trio.current_time()
        with pytest.raises(MailboxFull, match="wait with"):
            await getattr(ref, way)(1, timeout_s=2)
        assert trio.current_time() - start == pytest.approx(2)
        system.resume("a")
        await system.idle()
        assert heard == [0]


@both
@pytest.mark.parametrize("lane", COUNTED)
@pytest.mark.parametrize("way", ["send", "ask"])
async def test_reject_refuses_those_who_would_wait_too(way: str, lane: Lane) -> None:
    """For senders from outside: refused at once, and the error does not advise to wait."""
    async with running() as system:
        ref = await held(system, Limits(1, overflow=Overflow.REJECT))
        ref.tell(0)
        with pytest.raises(MailboxFull, match="send less often, or give it a larger capacity"):
            await getattr(ref, way)(1, timeout_s=1000, lane=lane)


@both
@pytest.mark.parametrize("lane", COUNTED)
@pytest.mark.parametrize("way", ["tell", "send"])
async def test_drop_oldest_keeps_the_newest(way: str, lane: Lane) -> None:
    """What has waited longest goes, one dead letter each; the sender never waits."""
    async with running() as system:
        heard: list[Any] = []
        ref, letters = await held(system, Limits(2, overflow=Overflow.DROP_OLDEST), heard), watched(system)
        for n in range(5):
            if way == "tell":
                ref.tell(n, lane=lane)
            else:
                await ref.send(n, timeout_s=30, lane=lane)
        assert letters == [(0, "dropped_oldest"), (1, "dropped_oldest"), (2, "dropped_oldest")]
        assert system.dead_letters == 3
        system.resume("a")
        await system.idle()
        assert heard == [3, 4]


@both
@pytest.mark.parametrize("way", ["tell", "send"])
async def test_drop_newest_keeps_the_oldest(way: str) -> None:
    """What comes too late goes, one dead letter each; the sender never waits."""
    async with running() as system:
        heard: list[Any] = []
        ref, letters = await held(system, Limits(2, overflow=Overflow.DROP_NEWEST), heard), watched(system)
        for n in range(4):
            if way == "tell":
                ref.tell(n)
            else:
                await ref.send(n, timeout_s=30)
        assert letters == [(2, "dropped_newest"), (3, "dropped_newest")]
        system.resume("a")
        await system.idle()
        assert heard == [0, 1]


@both
@pytest.mark.parametrize("policy", DROPS, ids=named)
async def test_an_ask_that_is_dropped_is_told_so_at_once(policy: Overflow) -> None:
    """Whichever ask goes, its asker hears which policy gave it up, and not a time-out."""
    async with running() as system:
        ref, letters = await held(system, Limits(1, overflow=policy)), watched(system)
        errors: list[str] = []

        async def ask(n: int) -> None:
            with pytest.raises((MessageDropped, ActorStopped)) as caught:
                await ref.ask(n, timeout_s=1000)
            errors.append(f"{n} {getattr(caught.value, 'why', 'stopped')}")

        async with anyio.create_task_group() as group:
            await in_order(group, partial(ask, 1), partial(ask, 2))
            lost = 1 if policy is Overflow.DROP_OLDEST else 2
            assert errors == [f"{lost} {policy.value[:4]}ped_{policy.value[5:]}"]
            assert letters == [(lost, errors[0].split()[1])]
            system.stop("a")


@both
async def test_coalesce_replaces_in_place() -> None:
    """The newest of each key is handled, where the first one stood; those without a key are all kept."""
    async with running() as system:
        heard: list[Any] = []
        ref, letters = await held(system, Limits(4, overflow=KEYED), heard), watched(system)
        for n, key in enumerate(["x", "y", "x", None, "y", None, "x"]):
            ref.tell(Keyed(key, n))
        with pytest.raises(MailboxFull):
            ref.tell(Keyed("z", 7))
        await ref.send(Keyed("y", 8), timeout_s=30)
        system.resume("a")
        await system.idle()
        assert [one.value for one in heard] == [6, 8, 3, 5]
        assert [(one.value, why) for one, why in letters] == [(n, "coalesced") for n in (0, 1, 2, 4)]
        ref.tell(Keyed("x", 9))
        await system.idle()
        assert heard[-1].value == 9


@both
async def test_a_coalesced_ask_is_told_so_and_the_newer_one_is_answered() -> None:
    """An ask whose place another takes is not left waiting."""
    async with running() as system:
        ref = system.spawn(Script(lambda ctx, message: message.value), "a", limits=Limits(overflow=KEYED))
        await system.suspend("a", timeout_s=1)
        got: list[Any] = []

        async def ask(n: int) -> None:
            try:
                got.append(await ref.ask(Keyed("k", n), timeout_s=1000))
            except MessageDropped as dropped:
                got.append(dropped.why)

        async with anyio.create_task_group() as group:
            await in_order(group, partial(ask, 1), partial(ask, 2))
            assert got == ["coalesced"]
            system.resume("a")
        assert got == ["coalesced", 2]


@both
@pytest.mark.parametrize("policy", [*Overflow, KEYED], ids=named)
async def test_a_key_of_the_sender_replaces_under_every_policy(policy: Any) -> None:
    """tell(key=...) replaces within its lane only, and needs no room for it."""
    async with running() as system:
        heard: list[Any] = []
        ref = await held(system, Limits(2, overflow=policy), heard)
        letters = watched(system)
        ref.tell(Keyed(None, 1), key="k")
        ref.tell(Keyed(None, 2), key="k", lane=Lane.URGENT)
        ref.tell(Keyed(None, 3), key="k")
        assert [(one.value, why) for one, why in letters] == [(1, "coalesced")]
        system.resume("a")
        await system.idle()
        assert [one.value for one in heard] == [2, 3]


# ---------------------------------------------------------------------- CONTROL
@both
@pytest.mark.parametrize("policy", [*Overflow, KEYED], ids=named)
async def test_control_is_never_dropped(policy: Any) -> None:
    """However full the mailbox is, and by whatever policy, each CONTROL message without a key is handled."""
    async with running() as system:
        heard: list[Any] = []
        ref = await held(system, Limits(1, 1, overflow=policy), heard)
        ref.tell(Keyed(None, "work"))
        for n in range(500):
            ref.tell(n, lane=Lane.CONTROL)
        await ref.send(500, timeout_s=0, lane=Lane.CONTROL)
        assert system.dead_letters == 0
        system.resume("a")
        await system.idle()
        assert heard == [*range(501), Keyed(None, "work")]


@both
async def test_control_is_coalesced_by_key() -> None:
    """Of each key one is kept, the newest, in the place of the first; a key that was handled is new again."""
    async with running() as system:
        heard: list[Any] = []
        ref, letters = await held(system, Limits(1), heard), watched(system)
        for n in range(1000):
            ref.tell(n, lane=Lane.CONTROL, key=n % 3)
        assert (await system.stats("a", timeout_s=1)).queued["control"] == 3
        system.resume("a")
        await system.idle()
        assert heard == [999, 997, 998]
        assert Counter(why for _, why in letters) == {"coalesced": 997}
        ref.tell("again", lane=Lane.CONTROL, key=0)
        await system.idle()
        assert heard[-1] == "again"


# ---------------------------------------------------------------------- why
@both
async def test_a_drop_says_its_own_reason_and_not_that_of_the_newcomer() -> None:
    """A message with a key that makes others go is no reason to call those coalesced."""
    async with running() as system:
        ref, letters = await held(system, Limits(1, overflow=Overflow.DROP_OLDEST)), watched(system)
        ref.tell("old")
        ref.tell("new", key="k")
        assert letters == [("old", "dropped_oldest")]


@virtual
async def test_an_actors_own_timer_is_not_dropped_for_another_message(autojump_clock: trio.abc.Clock) -> None:
    """It always gets in, and stays in; what comes then is dropped itself."""
    async with running() as system:
        heard: list[Any] = []
        ref, letters = await held(system, Limits(1, overflow=Overflow.DROP_OLDEST), heard), watched(system)
        context = system.context("a")
        assert context is not None
        context.set_timer("t", 1, "tick")
        await trio.sleep(2)
        ref.tell("more", lane=Lane.URGENT)
        assert letters == [("more", "dropped_newest")]
        system.resume("a")
        await system.idle()
        assert heard == ["tick"]


@virtual
async def test_timers_are_not_coalesced_with_what_others_send(autojump_clock: trio.abc.Clock) -> None:
    """A timer has a key of its own within its actor; the policy's function never sees its message."""
    async with running() as system:
        heard: list[Any] = []
        ref = await held(system, Limits(8, overflow=KEYED, size_of=lambda message: message.size), heard)
        context = system.context("a")
        assert context is not None
        ref.tell(Keyed("k", 1), lane=Lane.URGENT)
        context.set_timer("t", 1, "tick, without a key and a size")
        await trio.sleep(2)
        system.resume("a")
        await system.idle()
        assert heard == [Keyed("k", 1), "tick, without a key and a size"]
        assert system.inspect("a").stats.timers == 0


# ---------------------------------------------------------------------- bytes
@both
async def test_bytes_bound_text_without_a_function() -> None:
    """str and bytes have their length as a size; everything else has none."""
    async with running() as system:
        ref = await held(system, Limits(100, 10))
        ref.tell("12345")
        ref.tell(b"12345")
        ref.tell({"no": "size"})
        with pytest.raises(MailboxFull, match=r"'a' is full \(10 bytes\)"):
            ref.tell("1")
        assert (await system.stats("a", timeout_s=1)).queued_bytes == 10
        system.resume("a")
        await system.idle()
        assert (await system.stats("a", timeout_s=1)).queued_bytes == 0


@both
@pytest.mark.parametrize("way", ["tell", "send", "ask"])
@pytest.mark.parametrize("policy", [*Overflow, KEYED], ids=named)
async def test_a_message_larger_than_the_whole_capacity_is_refused_at_once(policy: Any, way: str) -> None:
    """No waiting and no dropping would ever make room for it, and the error says so."""
    async with running() as system:
        ref = await held(system, BY_SIZE(10, 100, policy))
        ref.tell(Keyed("k", 1))
        with pytest.raises(MailboxFull, match="a message of 101 bytes never fits") as caught:
            if way == "tell":
                ref.tell(Keyed("k", 2, 101))
            else:
                await getattr(ref, way)(Keyed("k", 2, 101), timeout_s=1000)
        assert not caught.value.passing
        assert system.dead_letters == 0
        assert (await system.stats("a", timeout_s=1)).queued_bytes == 1


@both
async def test_a_message_too_large_does_not_hold_up_those_behind_it() -> None:
    """It waits behind the others for its turn, is refused then, and the next one gets in."""
    async with running() as system:
        heard: list[Any] = []
        ref = await held(system, BY_SIZE(1, 100), heard)
        ref.tell(Keyed(None, 0))
        refused: list[int] = []

        async def too_large() -> None:
            with pytest.raises(MailboxFull, match="never fits"):
                await ref.send(Keyed(None, -1, 101), timeout_s=1000)
            refused.append(101)

        async with anyio.create_task_group() as group:
            await in_order(
                group,
                partial(ref.send, Keyed(None, 1), timeout_s=1000),
                too_large,
                partial(ref.send, Keyed(None, 2), timeout_s=1000),
            )
            system.resume("a")
        await system.idle()
        assert [one.value for one in heard] == [0, 1, 2]
        assert refused == [101]


@both
async def test_a_wrong_message_among_the_waiters_does_not_hold_up_those_behind_it() -> None:
    """Room that somebody cannot use goes to the next one."""

    class Picky:
        accepts = (int,)

        def receive(self, ctx: Context, message: int) -> None:
            heard.append(message)

    heard: list[int] = []
    async with running() as system:
        ref = system.spawn(Picky(), "a", capacity=1)
        await system.suspend("a", timeout_s=1)
        ref.tell(0)

        async def wrong() -> None:
            with pytest.raises(WrongMessage, match="does not take a str; it accepts: int"):
                await ref.send("one", timeout_s=1000)

        async with anyio.create_task_group() as group:
            sends = [partial(ref.send, n, timeout_s=1000) for n in (1, 2)]
            await in_order(group, sends[0], wrong, sends[1])
            system.resume("a")
        await system.idle()
    assert heard == [0, 1, 2]


@both
async def test_a_large_one_that_goes_lets_several_small_ones_in() -> None:
    """All that fit get in at once, in order, and not one for each message that goes."""
    async with running() as system:
        ref = await held(system, BY_SIZE(100, 100))
        context = system.context("a")
        assert context is not None
        box = context.mailbox  # type: ignore[attr-defined]
        ref.tell(Keyed(None, 0, 100))
        async with anyio.create_task_group() as group:
            await in_order(group, *(partial(ref.send, Keyed(None, n, 30), timeout_s=1000) for n in range(1, 5)))
            assert box.take().message.value == 0
            await anyio.wait_all_tasks_blocked()
            assert [one.value for one in box.peek(10)] == [1, 2, 3]
            system.resume("a")
            context.tell_self(Keyed(None, 5, 0))


@both
async def test_the_first_in_line_keeps_its_place_until_there_is_room_enough() -> None:
    """A large message is not starved by the small ones behind it."""
    async with running() as system:
        ref = await held(system, BY_SIZE(100, 100))
        context = system.context("a")
        assert context is not None
        box = context.mailbox  # type: ignore[attr-defined]
        for n in range(4):
            ref.tell(Keyed(None, n, 25))
        async with anyio.create_task_group() as group:
            await in_order(
                group,
                partial(ref.send, Keyed(None, "large", 60), timeout_s=1000),
                partial(ref.send, Keyed(None, "small", 5), timeout_s=1000),
            )
            for n in range(2):
                assert box.take().message.value == n
                await anyio.wait_all_tasks_blocked()
                assert len(box) == 3 - n
            box.take()
            await anyio.wait_all_tasks_blocked()
            assert [one.value for one in box.peek(10)] == [3, "large", "small"]


@both
async def test_a_large_one_that_gives_up_lets_the_small_one_behind_it_in() -> None:
    """There was room for it all the time."""
    async with running() as system:
        ref = await held(system, BY_SIZE(100, 100))
        ref.tell(Keyed(None, 0, 60))
        async with anyio.create_task_group() as group, anyio.create_task_group() as leaving:
            await in_order(leaving, partial(ref.send, Keyed(None, "large", 50), timeout_s=1000))
            await in_order(group, partial(ref.send, Keyed(None, "small", 10), timeout_s=1000))
            leaving.cancel_scope.cancel()
        assert [one.value for one in await system.peek("a", timeout_s=1)] == [0, "small"]


@both
async def test_a_smaller_replacement_makes_room() -> None:
    """Where a message shrinks in its place, whoever waits for bytes may try."""
    async with running() as system:
        ref = await held(system, BY_SIZE(100, 100))
        ref.tell(Keyed(None, 0, 90), key="k")
        async with anyio.create_task_group() as group:
            await in_order(group, partial(ref.send, Keyed(None, 1, 50), timeout_s=1000))
            ref.tell(Keyed(None, 2, 10), key="k")
        assert [one.value for one in await system.peek("a", timeout_s=1)] == [2, 1]


@both
@pytest.mark.parametrize(
    ("policy", "why"), [(Overflow.BLOCK, None), (Overflow.DROP_NEWEST, "dropped_newest"), (KEYED, None)], ids=named
)
async def test_a_replacement_must_fit_too(policy: Any, why: str | None) -> None:
    """Taking another's place is no way around the bound in bytes; what was there stays."""
    async with running() as system:
        ref, letters = await held(system, BY_SIZE(10, 100, policy)), watched(system)
        ref.tell(Keyed("k", 0, 50), key="k")
        ref.tell(Keyed("other", 1, 40), key="other")
        if why is None:
            with pytest.raises(MailboxFull, match="100 bytes"):
                ref.tell(Keyed("k", 2, 70), key="k")
            assert letters == []
        else:
            ref.tell(Keyed("k", 2, 70), key="k")
            assert letters == [(Keyed("k", 2, 70), why)]
        assert [one.value for one in await system.peek("a", timeout_s=1)] == [0, 1]


# ---------------------------------------------------------------------- waiters
@both
async def test_a_newcomer_does_not_take_the_place_of_one_that_was_just_woken() -> None:
    """Between the moment there is room and the moment the waiter runs, others come: they go behind it."""
    async with running() as system:
        ref = await held(system, Limits(1))
        context = system.context("a")
        assert context is not None
        box = context.mailbox  # type: ignore[attr-defined]
        ref.tell(0)
        async with anyio.create_task_group() as group:
            await in_order(group, partial(ref.send, "first", timeout_s=1000))
            box.take()
            with anyio.move_on_after(0), pytest.raises(MailboxFull):
                await ref.send("newcomer", timeout_s=0)
        assert box.peek(2) == ["first"]


@both
async def test_a_hundred_waiters_get_in_as_they_came() -> None:
    """Also where the backend shuffles its tasks, and where every third of them gives up on the way."""
    heard: list[int] = []
    async with running() as system:
        ref = await held(system, Limits(7), heard)
        for _ in range(7):
            ref.tell(-1)
        async with anyio.create_task_group() as group, anyio.create_task_group() as leaving:
            for n in range(100):
                await in_order(leaving if n % 3 == 0 else group, partial(ref.send, n, timeout_s=1000))
            leaving.cancel_scope.cancel()
            system.resume("a")
        await system.idle()
    assert heard == [-1] * 7 + [n for n in range(100) if n % 3]


@both
async def test_a_stop_tells_all_who_wait_for_room() -> None:
    """Nobody waits for room at the dead, however many there were."""
    async with running() as system:
        ref = await held(system, Limits(1))
        ref.tell(0)
        stopped: list[str] = []

        async def wait(way: str) -> None:
            with pytest.raises(ActorStopped):
                await getattr(ref, way)(1, timeout_s=1000)
            stopped.append(way)

        async with anyio.create_task_group() as group:
            await in_order(group, *(partial(wait, way) for way in ("send", "ask") * 3))
            system.stop("a")
        assert len(stopped) == 6


@both
async def test_an_ask_that_was_cancelled_while_it_waited_for_room_is_not_handled() -> None:
    """It leaves its place to the next one, and no trace."""
    heard: list[Any] = []
    async with running() as system:
        ref = await held(system, Limits(1), heard)
        ref.tell(0)
        async with anyio.create_task_group() as group:
            async with anyio.create_task_group() as leaving:
                await in_order(leaving, partial(ref.ask, "gone", timeout_s=1000))
                await in_order(group, partial(ref.ask, "stays", timeout_s=1000))
                leaving.cancel_scope.cancel()
            await blocked(system)
            system.resume("a")
    assert heard == [0, "stays"]


@virtual
async def test_room_that_comes_at_the_deadline_is_one_end_and_not_two(autojump_clock: trio.abc.Clock) -> None:
    """An ask that gets its room as its time is over is not handled, and says that it had no time."""
    heard: list[Any] = []
    async with running() as system:
        ref = await held(system, Limits(1), heard)
        ref.tell(0)

        async def resume() -> None:
            await trio.sleep(2)
            system.resume("a")

        async with anyio.create_task_group() as group:
            group.start_soon(resume)
            with pytest.raises((MailboxFull, AskTimeout)):
                await ref.ask(1, timeout_s=2)
        await system.idle()
    assert heard == [0]


# ---------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(-1), "capacity is -1; give at least 1 message"),
        (Limits(1.5), "capacity is 1.5; give at least 1 message"),  # type: ignore[arg-type]
        (Limits(None), "capacity is None; give at least 1 message"),  # type: ignore[arg-type]
        (Limits(1, 0), "capacity_bytes is 0; give at least 1 byte"),
        (Limits(1, 1, "block"), r"overflow is 'block'; give an Overflow \(block, reject, drop_oldest"),  # type: ignore[arg-type]
        (Limits(1, 1, Coalesce("id")), "overflow.key is 'id'; give a function of the message"),  # type: ignore[arg-type]
        (Limits(1, 1, Overflow.BLOCK, 8), "size_of is 8; give a function of the message, or None"),  # type: ignore[arg-type]
    ],
)
@both
async def test_limits_that_are_none_are_named(limits: Limits, says: str) -> None:
    """The error names the mailbox, the field, the value and what it may be; nothing is spawned."""
    async with running() as system:
        with pytest.raises(InvalidOption, match=f"mailbox of 'a': {says}"):
            system.spawn(note([]), "a", limits=limits)
        assert "a" not in system


@both
@pytest.mark.parametrize("lane", ["control", 0, 2, None])
async def test_a_lane_that_is_none_is_named(lane: Any) -> None:
    """A word or a number is not silently some lane."""
    async with running() as system:
        ref = system.spawn(note([]), "a")
        with pytest.raises(InvalidOption, match=r"lane is .*; give one of: Lane.CONTROL, Lane.URGENT, Lane.NORMAL"):
            ref.tell("x", lane=lane)
        assert (await system.stats("a", timeout_s=1)).queued == {"control": 0, "urgent": 0, "normal": 0}


@both
async def test_telling_oneself_on_a_full_mailbox_is_an_error_in_the_handler() -> None:
    """It is raised where it happens, to be caught there, and it never waits."""
    said: list[str] = []

    def receive(ctx: Context, message: Any) -> None:
        if message == "go":
            for n in range(3):
                try:
                    ctx.tell_self(n)
                except MailboxFull as full:
                    said.append(str(full))

    async with running() as system:
        system.spawn(Script(receive), "a", capacity=2).tell("go")
        await system.idle()
    assert len(said) == 1
    assert said[0].startswith("the mailbox of 'a' is full (2 messages)")


# ---------------------------------------------------------------------- against a model
class Item(NamedTuple):
    """A message of the model: its serial number, size, key, and whether a timer has sent it."""

    serial: int
    size: int
    key: Any = None
    own: bool = False


class Live:
    live = True


class Model(RuleBasedStateMachine):
    """Three plain lists beside the mailbox, and the laws in the plainest words."""

    CAPACITY, BYTES = 6, 20

    @initialize(policy=st.sampled_from([*Overflow, Coalesce(lambda item: item.key)]))
    def begin(self, policy: Any) -> None:
        self.policy = policy
        self.box = Mailbox("m", Limits(self.CAPACITY, self.BYTES, policy, lambda item: item.size))
        self.lanes: dict[Lane, list[Item]] = {lane: [] for lane in Lane}
        self.run = self.serial = 0

    def counted(self) -> list[Item]:
        return self.lanes[Lane.URGENT] + self.lanes[Lane.NORMAL]

    def bytes(self) -> int:
        return sum(item.size for item in self.counted() if not item.own)

    def fits(self, item: Item) -> bool:
        return len(self.counted()) < self.CAPACITY and self.bytes() + item.size <= self.BYTES

    def expected(self, item: Item, lane: Lane) -> list[tuple[Item, str]] | None:
        """What is dropped for *item*, after which the lists are as they should be; ``None`` if it is refused."""
        queue = self.lanes[lane]
        twin = [n for n, one in enumerate(queue) if item.key is not None and one.key == item.key]
        if twin and (lane is Lane.CONTROL or self.bytes() - queue[twin[0]].size + item.size <= self.BYTES):
            old, queue[twin[0]] = queue[twin[0]], item
            return [(old, "coalesced")]
        if lane is Lane.CONTROL or item.own or (not twin and self.fits(item)):
            queue.append(item)
            return []
        if item.size > self.BYTES or self.policy not in DROPS:
            return None
        if twin or self.policy is Overflow.DROP_NEWEST:
            return [(item, "dropped_newest")]
        return self.oldest_go(item, lane)

    def oldest_go(self, item: Item, lane: Lane) -> list[tuple[Item, str]]:
        before = {one: [*queue] for one, queue in self.lanes.items()}
        gone: list[tuple[Item, str]] = []
        for one in [Lane.NORMAL, Lane.URGENT] if lane is Lane.URGENT else [Lane.NORMAL]:
            for older in before[one]:
                if not self.fits(item) and not older.own:
                    self.lanes[one].remove(older)
                    gone.append((older, "dropped_oldest"))
        if not self.fits(item):
            self.lanes = before
            return [(item, "dropped_newest")]
        self.lanes[lane].append(item)
        return gone

    @rule(
        lane=st.sampled_from(Lane),
        size=st.integers(0, 12) | st.just(25),
        key=st.none() | st.integers(0, 3),
        times=st.integers(1, 4),
    )
    def put(self, lane: Lane, size: int, key: Any, times: int) -> None:
        for _ in range(times):
            self.serial += 1
            item = Item(self.serial, size if lane is not Lane.CONTROL else 0, key)
            self.check_put(item, Envelope(item, key=key), lane)

    @rule(times=st.integers(1, 3))
    def fire(self, times: int) -> None:
        for _ in range(times):
            self.serial += 1
            item = Item(self.serial, 9, own=True)
            self.check_put(item, Envelope(item, token=Live()), Lane.URGENT)

    def check_put(self, item: Item, envelope: Envelope, lane: Lane) -> None:
        dropped = self.expected(item, lane)
        if dropped is None:
            with pytest.raises(MailboxFull) as caught:
                self.box.put(envelope, lane)
            passing = self.policy is not Overflow.REJECT and item.size <= self.BYTES
            assert caught.value.passing is passing
        else:
            assert [(one.envelope.message, one.why) for one in self.box.put(envelope, lane)] == dropped

    @rule(times=st.integers(1, 5))
    def take(self, times: int) -> None:
        for _ in range(times):
            urgent, normal = self.lanes[Lane.URGENT], self.lanes[Lane.NORMAL]
            owed = bool(normal) and self.run >= URGENT_RUN_MAX
            queue = self.lanes[Lane.CONTROL] or (urgent if urgent and not owed else normal)
            item = self.box.take()
            if not queue:
                assert item is None
                return
            self.run = self.run if queue is self.lanes[Lane.CONTROL] else self.run + 1 if queue is urgent else 0
            assert item.message == queue.pop(0)

    @rule(keys=st.lists(st.none() | st.integers(0, 3), max_size=3))
    def put_back(self, keys: list[Any]) -> None:
        """Unstashed messages are at the head, always taken, and are nobody's to replace."""
        items = []
        for key in keys:
            self.serial += 1
            items.append(Item(self.serial, 0, None))
            envelope = Envelope(items[-1], key=("stashed", key))
            self.box.put_back([envelope])
            self.lanes[Lane.NORMAL].insert(0, items[-1])

    @rule()
    def drain(self) -> None:
        assert [one.message for one in self.box.drain()] == [item for lane in Lane for item in self.lanes[lane]]
        self.lanes = {lane: [] for lane in Lane}

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "box"):
            return
        assert self.box.counted == len(self.counted())
        assert self.box.bytes == self.bytes()
        assert self.box.peek(1000) == [item for lane in Lane for item in self.lanes[lane]]
        assert list(self.box.lengths().values()) == [len(self.lanes[lane]) for lane in Lane]


TestOverflowAgainstModel = Model.TestCase
TestOverflowAgainstModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
