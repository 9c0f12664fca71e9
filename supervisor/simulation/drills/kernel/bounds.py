"""Mailboxes: the order of lanes, the bounds, every overflow policy, keys, and waiting for room."""

from __future__ import annotations

from typing import Any

import anyio

from actors import Coalesce, Context, Lane, Limits, MailboxFull, Overflow
from supervisor.simulation.drills.desk import Desk

__all__ = ["BOUNDS"]

URGENT_RUN = 32
QUANTUM = 16
FRONT_RUN = 32
Queued = list[tuple[Lane, str]]


class Recorder:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def receive(self, ctx: Context, message: Any) -> None:
        self.heard.append(message)


class Slow(Recorder):
    """Takes a second for each message."""

    async def receive(self, ctx: Context, message: Any) -> None:  # type: ignore[override]
        self.heard.append(message)
        await anyio.sleep(1.0)


def in_order(queued: Queued) -> list[str]:
    """As they are heard: CONTROL, then URGENT with one NORMAL after every 32, then NORMAL."""
    control, urgent, normal = ([text for lane, text in queued if lane is one] for one in Lane)
    heard, run = control, 0
    while urgent or normal:
        if urgent and (run < URGENT_RUN or not normal):
            heard.append(urgent.pop(0))
            run += 1
        else:
            heard.append(normal.pop(0))
            run = 0
    return heard


async def lanes(desk: Desk) -> None:
    """A burst over all lanes is heard in the order of its lanes."""
    recorder = Recorder()
    ref = desk.system.spawn(recorder, "r", capacity=500)
    await desk.system.suspend("r", timeout_s=1.0)
    queued: Queued = []
    for number in range(desk.chance.integer(120, 200, "many")):
        lane = desk.chance.choice((Lane.CONTROL, Lane.URGENT, Lane.URGENT, Lane.NORMAL, Lane.NORMAL), "lane", number)
        queued.append((lane, f"{number}"))
        ref.tell(f"{number}", lane=lane)
    desk.system.resume("r")
    await desk.system.idle()
    desk.same("what was heard", recorder.heard, in_order(queued))


# ------------------------------------------------------------------------------------------------------ the policies
class Model:
    """A mailbox as its page describes it."""

    def __init__(self, capacity: int, capacity_bytes: int, overflow: Any) -> None:
        self.capacity, self.capacity_bytes, self.overflow = capacity, capacity_bytes, overflow
        self.queued: Queued = []
        self.dropped = 0

    def room(self, size: int, without: int = 0) -> bool:
        bound = [text for lane, text in self.queued if lane is not Lane.CONTROL]
        return len(bound) < self.capacity and sum(map(len, bound)) - without + size <= self.capacity_bytes

    def put(self, lane: Lane, text: str) -> bool:
        """``False``: it is refused."""
        if lane is Lane.CONTROL or (self.overflow.__class__ is Coalesce and self._replaced(lane, text)):
            if lane is Lane.CONTROL:
                self.queued.append((lane, text))
            return True
        if self.room(len(text)):
            self.queued.append((lane, text))
            return True
        if len(text) > self.capacity_bytes or self.overflow not in (Overflow.DROP_OLDEST, Overflow.DROP_NEWEST):
            return False
        if self.overflow is Overflow.DROP_OLDEST and self._made_room(lane, len(text)):
            self.queued.append((lane, text))
        else:
            self.dropped += 1
        return True

    def _replaced(self, lane: Lane, text: str) -> bool:
        for number, (its_lane, queued) in enumerate(self.queued):
            if its_lane is lane and queued[0] == text[0]:
                total = sum(len(one) for one_lane, one in self.queued if one_lane is not Lane.CONTROL)
                if total - len(queued) + len(text) > self.capacity_bytes:
                    return False
                self.queued[number] = (lane, text)
                self.dropped += 1
                return True
        return False

    def _made_room(self, lane: Lane, size: int) -> bool:
        """The oldest go, those of the lesser lane first; nobody goes where that would not be enough."""
        order = (Lane.NORMAL, Lane.URGENT) if lane is Lane.URGENT else (Lane.NORMAL,)
        mine = [one for which in order for one in self.queued if one[0] is which]
        kept = [one for one in self.queued if one[0] is not Lane.CONTROL and one not in mine]
        if len(kept) >= self.capacity or sum(len(text) for _, text in kept) + size > self.capacity_bytes:
            return False
        while not self.room(size):
            self.queued.remove(mine.pop(0))
            self.dropped += 1
        return True


async def policies(desk: Desk) -> None:
    """Each policy refuses, drops and replaces exactly what its page says."""
    for number, policy in enumerate((*Overflow, Coalesce(lambda message: message[0]))):
        chance = desk.chance.below(number)
        model = Model(chance.integer(3, 8, "capacity"), chance.integer(30, 60, "bytes"), policy)
        recorder, before = Recorder(), desk.system.dead_letters
        ref = desk.system.spawn(recorder, f"r{number}", limits=Limits(model.capacity, model.capacity_bytes, policy))
        await desk.system.suspend(f"r{number}", timeout_s=1.0)
        for place in range(60):
            lane = chance.choice((Lane.CONTROL, Lane.URGENT, Lane.NORMAL, Lane.NORMAL), "lane", place)
            text = f"{chance.choice('abcdefgh', 'key', place)}{place:03d}".ljust(
                chance.integer(4, 70, "size", place), "."
            )
            text = text if place % 3 == 0 else text[:9]
            try:
                ref.tell(text, lane=lane)
                taken = True
            except MailboxFull:
                taken = False
            desk.same(f"{policy} takes {text} by {lane.name}", taken, model.put(lane, text))
            if place % 20 == 19:
                stats = await desk.system.stats(f"r{number}", timeout_s=1.0)
                desk.same(f"{policy} has queued", sum(stats.queued.values()), len(model.queued))
                bound = sum(len(one) for its_lane, one in model.queued if its_lane is not Lane.CONTROL)
                desk.same(f"{policy} has bytes", stats.queued_bytes, bound)
        desk.system.resume(f"r{number}")
        await desk.system.idle()
        desk.same(f"{policy} is heard", recorder.heard, in_order(model.queued))
        desk.same(f"{policy} drops", desk.system.dead_letters - before, model.dropped)


async def advice(desk: Desk) -> None:
    """A refusal says how much there may be, and what helps: to wait, where the next room is for who waits; to send less
    often, where nobody does; neither, for what never fits."""
    size, shorter = "x" * 10, "x" * 9
    policies: tuple[tuple[Any, bool], ...] = (
        (Overflow.BLOCK, True),
        (Coalesce(lambda message: None), True),
        (Overflow.REJECT, False),
    )
    for policy, waits in policies:
        for limits, queued, text, most, never in (
            (Limits(1, 99, policy), "a", "b", "1 messages", False),
            (Limits(9, 10, policy), "a", size, "10 bytes", False),
            (Limits(1, 10, policy), size, shorter, "1 messages", False),
            (Limits(9, 9, policy), "a", size, "9 bytes", True),
            (Limits(1, 9, policy), shorter, size, "9 bytes", True),
        ):
            name = f"r{len(desk.system)}"
            ref = desk.system.spawn(Recorder(), name, limits=limits)
            await desk.system.suspend(name, timeout_s=1.0)
            ref.tell(queued)
            try:
                ref.tell(text)
            except MailboxFull as full:
                shown = (f"{full.capacity}" == most.split()[0], f"({most})" in str(full), full.passing)
                desk.same(f"{policy}: how much there may be", shown, (True, True, waits and not never))
                helps = [
                    words in str(full) for words in ("await ref.send(", "less often", "never fits", "larger capacity")
                ]
                desk.same(f"{policy}: what helps", helps, [waits and not never, not waits and not never, never, True])
            else:
                desk.same(f"{policy}: one more than {most}", "taken", "refused")


async def keys(desk: Desk) -> None:
    """A key replaces the message that has it, in its place and in its lane, CONTROL included."""
    recorder = Recorder()
    ref = desk.system.spawn(recorder, "r")
    await desk.system.suspend("r", timeout_s=1.0)
    for lane in Lane:
        for text, key in (("a", "k"), ("b", None), ("c", "k"), ("d", "other"), ("e", "other")):
            ref.tell(f"{text}{lane.value}", lane=lane, key=key)
    desk.system.resume("r")
    await desk.system.idle()
    desk.same("what was heard", recorder.heard, [f"{text}{lane.value}" for lane in Lane for text in "cbe"])
    recorder.heard.clear()
    await desk.system.suspend("r", timeout_s=1.0)
    for number, name in ((1, None), (2, "k"), (3, "k"), (4, None), (5, "other")):
        ref.tell(number, key=name)
    desk.system.resume("r")
    await desk.system.idle()
    desk.same("what was heard, of no size", recorder.heard, [1, 3, 4, 5])


async def sizeless(desk: Desk) -> None:
    """What has no size makes no room for what has one: nobody is dropped in vain."""
    recorder = Recorder()
    ref = desk.system.spawn(recorder, "r", limits=Limits(10, 4, Overflow.DROP_OLDEST))
    await desk.system.suspend("r", timeout_s=1.0)
    for number in range(3):
        ref.tell(number)
    ref.tell("four", lane=Lane.URGENT)
    ref.tell("x")
    desk.same("dropped", desk.system.dead_letters, 1)
    desk.system.resume("r")
    await desk.system.idle()
    desk.same("what was heard", recorder.heard, ["four", 0, 1, 2])


async def room(desk: Desk) -> None:
    """Who waits for room has it in the order of arrival; whose time is up is refused at that instant."""
    slow, told = Slow(), []
    ref = desk.system.spawn(slow, "slow", capacity=1)
    ref.tell("0")
    await anyio.sleep(0.1)
    ref.tell("1")
    desk.again()

    async def send(text: str, after_s: float, timeout_s: float) -> None:
        await anyio.sleep(after_s)
        try:
            await ref.send(text, timeout_s=timeout_s)
            told.append((text, "in"))
        except MailboxFull:
            told.append((text, "full"))
            desk.at(f"{text} is refused", after_s + timeout_s, 2)

    async with anyio.create_task_group() as group:
        for text, after_s, timeout_s in (("2", 0.1, 20.0), ("3", 0.3, 20.0), ("4", 0.5, 0.8), ("5", 0.7, 20.0)):
            group.start_soon(send, text, after_s, timeout_s)
        await anyio.sleep(0.2)
        try:
            ref.tell("x")
            desk.same("a tell while somebody waits", "taken", "refused")
        except MailboxFull:
            pass
    await anyio.sleep(5.0)
    desk.same("what was heard", slow.heard, ["0", "1", "2", "3", "5"])
    desk.same("who got in", sorted(told), [("2", "in"), ("3", "in"), ("4", "full"), ("5", "in")])


class Restless:
    """Tells itself more with every message, until somebody else has had a turn."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.handled, self.over = lane, 0, False

    def receive(self, ctx: Context, message: Any) -> None:
        self.handled += 1
        if not self.over:
            ctx.tell_self(message, lane=self.lane)


async def turns(desk: Desk) -> None:
    """Who has much to do lets the others go on: after 16 messages, or, with CONTROL ones, after 32 such turns."""
    for lane, most in ((Lane.NORMAL, QUANTUM), (Lane.URGENT, QUANTUM), (Lane.CONTROL, FRONT_RUN * QUANTUM)):
        restless = Restless(lane)
        seen: list[int] = []

        class Other:
            def receive(self, ctx: Context, message: Any, of: Restless = restless, seen: list[int] = seen) -> None:
                seen.append(of.handled)
                of.over = True

        one, other = desk.system.spawn(restless, f"a{lane}"), desk.system.spawn(Other(), f"b{lane}")
        one.tell("go", lane=lane)
        other.tell("go")
        await desk.system.idle()
        desk.same(f"turns for {lane.name}", seen, [most])


BOUNDS = (lanes, policies, sizeless, advice, keys, room, turns)
