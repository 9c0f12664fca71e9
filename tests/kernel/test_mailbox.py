"""The mailbox: three lanes, FIFO in each, bounded; checked for every combination of lane and fill level, and against
a model."""

from __future__ import annotations

from collections import deque
from functools import partial

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kernel_kit import both

from actors.errors import MailboxFull
from actors.mailbox import URGENT_RUN_MAX, Envelope, Lane, Limits, Mailbox
from actors.waiter import current_backend


class Live:
    """Token of a message, as a timer has one."""

    live = True


def filled(*messages: tuple[object, Lane], capacity: int = 256) -> Mailbox:
    box = Mailbox("a", Limits(capacity))
    for message, lane in messages:
        box.put(Envelope(message), lane)
    return box


def emptied(box: Mailbox) -> list[object]:
    return [item.message for item in iter(box.take, None)]


def test_control_then_urgent_then_normal() -> None:
    """A message of a more important lane comes first, in whatever order the messages were put."""
    box = filled(("n", Lane.NORMAL), ("u", Lane.URGENT), ("c", Lane.CONTROL))
    assert emptied(box) == ["c", "u", "n"]


@pytest.mark.parametrize("lane", list(Lane))
def test_fifo_within_a_lane(lane: Lane) -> None:
    """Messages of one lane leave in the order in which they came."""
    assert emptied(filled(*((n, lane) for n in range(100)))) == list(range(100))


def test_one_normal_after_every_32_urgent() -> None:
    """Under a flood of URGENT messages every 33rd message taken is a NORMAL one."""
    box = filled(*((n, Lane.URGENT) for n in range(70)), ("first", Lane.NORMAL), ("second", Lane.NORMAL))
    order = emptied(box)
    assert [order.index("first"), order.index("second")] == [32, 65]
    assert [one for one in order if isinstance(one, int)] == list(range(70))


def test_control_does_not_count_as_urgent() -> None:
    """CONTROL messages in between neither delay nor hasten the turn of NORMAL."""
    box = filled(*((n, Lane.URGENT) for n in range(40)), ("n", Lane.NORMAL))
    taken = [box.take() for _ in range(16)]
    for _ in range(20):
        box.put(Envelope("c"), Lane.CONTROL)
    order = [one.message for one in taken if one] + [one for one in emptied(box) if one != "c"]
    assert order.index("n") == URGENT_RUN_MAX


def test_a_full_mailbox_refuses_and_keeps_what_it_has() -> None:
    """A full mailbox refuses URGENT and NORMAL messages with an error that names the actor, the bound and the
    remedy."""
    box = filled((1, Lane.NORMAL), (2, Lane.URGENT), capacity=2)
    for lane in (Lane.NORMAL, Lane.URGENT):
        with pytest.raises(MailboxFull, match=r"'a' is full \(2 messages\); send less often, ask"):
            box.put(Envelope(3), lane)
    assert emptied(box) == [2, 1]


def test_control_is_never_refused_and_takes_no_room() -> None:
    """Any number of CONTROL messages enters a full mailbox, and none of them uses up capacity."""
    box = filled((1, Lane.NORMAL), capacity=1)
    for n in range(1000):
        box.put(Envelope(n), Lane.CONTROL)
    assert (len(box), box.counted) == (1001, 1)
    assert emptied(box) == [*range(1000), 1]


def test_a_message_with_a_token_is_always_taken() -> None:
    """The message of an actor's own timer enters a full mailbox, and counts from then on."""
    box = filled((1, Lane.NORMAL), capacity=1)
    box.put(Envelope("tick", token=Live()), Lane.URGENT)
    assert box.counted == 2
    assert emptied(box) == ["tick", 1]


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_an_error(capacity: int) -> None:
    """A capacity below one is refused; the error names the value and the bound."""
    with pytest.raises(ValueError, match=rf"'a': capacity is {capacity}; give at least 1"):
        Limits(capacity).checked("a")


def test_drain_takes_all_in_the_order_of_the_lanes() -> None:
    """``drain`` removes all messages in the order of the lanes; then the mailbox accepts messages up to its capacity
    again."""
    box = filled(("n", Lane.NORMAL), ("c", Lane.CONTROL), ("u", Lane.URGENT), capacity=2)
    assert [one.message for one in box.drain()] == ["c", "u", "n"]
    assert (len(box), box.take(), box.drain()) == (0, None, [])
    box.put(Envelope(1), Lane.NORMAL)
    box.put(Envelope(2), Lane.NORMAL)
    with pytest.raises(MailboxFull):
        box.put(Envelope(3), Lane.NORMAL)


@both
@pytest.mark.parametrize(("how", "expected"), [("take", ["first"]), ("drain", ["first", "second"])])
async def test_room_comes_with_a_take_and_with_a_drain(how: str, expected: list[str]) -> None:
    """A message that is taken wakes the sender that has waited longest; a drain wakes all waiting senders."""
    box, woken = filled((1, Lane.NORMAL), (2, Lane.NORMAL), capacity=2), []

    async def wait(name: str) -> None:
        await box.room(current_backend(), partial(box.put, Envelope(name), Lane.NORMAL, in_turn=True))
        woken.append(name)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for name in ("first", "second"):
                group.start_soon(wait, name)
                await anyio.wait_all_tasks_blocked()
            assert woken == []
            getattr(box, how)()
            await anyio.wait_all_tasks_blocked()
            assert sorted(woken) == expected
            box.drain()


@both
async def test_a_waiter_that_is_cancelled_as_it_wakes_hands_its_turn_on() -> None:
    """If a sender is cancelled as it wakes for room, the next sender is woken instead."""
    box, woken = filled((1, Lane.NORMAL), capacity=1), []

    async def wait(name: str) -> None:
        await box.room(current_backend(), partial(box.put, Envelope(name), Lane.NORMAL, in_turn=True))
        woken.append(name)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as inner:
                    inner.start_soon(wait, "first")
                    await anyio.wait_all_tasks_blocked()
                    group.start_soon(wait, "second")
                    await anyio.wait_all_tasks_blocked()
                    scope.cancel()
                    box.take()
            await anyio.wait_all_tasks_blocked()
    assert woken == ["second"]


@both
async def test_taking_a_control_message_makes_no_room() -> None:
    """Taking a CONTROL message does not wake a sender that waits for room, since the message did not count."""
    box = filled((1, Lane.NORMAL), ("c", Lane.CONTROL), capacity=1)
    woken = anyio.Event()

    async def wait() -> None:
        await box.room(current_backend(), lambda: None)
        woken.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            box.take()
            await anyio.wait_all_tasks_blocked()
            assert not woken.is_set()
            box.take()
    assert woken.is_set()


class Model(RuleBasedStateMachine):
    """Model with three plain queues: after any operations, the mailbox and the model agree."""

    def __init__(self) -> None:
        super().__init__()
        self.box = Mailbox("m", Limits(40))
        self.queues: dict[Lane, deque[int]] = {lane: deque() for lane in Lane}
        self.run = 0
        self.serial = 0

    def counted(self) -> int:
        return len(self.queues[Lane.URGENT]) + len(self.queues[Lane.NORMAL])

    def expected(self) -> Lane:
        """Return the lane whose turn it is, by the documented rule and not by the mailbox's code."""
        if self.queues[Lane.CONTROL]:
            return Lane.CONTROL
        owed = self.run >= 32 and self.queues[Lane.NORMAL]
        return Lane.URGENT if self.queues[Lane.URGENT] and not owed else Lane.NORMAL

    @rule(lane=st.sampled_from(Lane), times=st.integers(1, 45), token=st.booleans())
    def put(self, lane: Lane, times: int, token: bool) -> None:
        for _ in range(times):
            self.serial += 1
            envelope = Envelope(self.serial, token=Live() if token else None)
            if lane is Lane.CONTROL or token or self.counted() < 40:
                self.box.put(envelope, lane)
                self.queues[lane].append(self.serial)
            else:
                with pytest.raises(MailboxFull):
                    self.box.put(envelope, lane)

    @rule(times=st.integers(1, 40))
    def take(self, times: int) -> None:
        for _ in range(times):
            if not any(self.queues.values()):
                assert self.box.take() is None
                return
            lane = self.expected()
            envelope = self.box.take()
            assert envelope is not None
            assert envelope.message == self.queues[lane].popleft()
            if lane is not Lane.CONTROL:
                self.run = self.run + 1 if lane is Lane.URGENT else 0

    @precondition(lambda self: self.serial % 5 == 0)
    @rule()
    def drain(self) -> None:
        assert [one.message for one in self.box.drain()] == [n for lane in Lane for n in self.queues[lane]]
        self.queues = {lane: deque() for lane in Lane}

    @invariant()
    def same_size(self) -> None:
        assert (len(self.box), self.box.counted) == (sum(map(len, self.queues.values())), self.counted())


TestMailboxAgainstModel = Model.TestCase
TestMailboxAgainstModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
