"""Mailboxes from the inside: lanes, bounds, keys and drops, as docs/kernel.md has them, with messages of every kind.

The model is a list of what is queued. What a policy drops, what a key replaces, what is told of a refusal, and what an
actor's own messages are spared, is all found in that list.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import anyio

from actors import Coalesce, Context, Lane, Limits, Mailbox, MailboxFull, Overflow
from actors.mailbox import Envelope
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.keyed_random import Chance

__all__ = ["BOXES"]

STEPS: Final = 160
URGENT_RUN: Final = 32


class Queued:
    """One message, as the model has it."""

    def __init__(self, lane: Lane, message: Any, size: int, key: Any, own: bool, marks: tuple[Any, int]) -> None:
        self.lane, self.message, self.size, self.key, self.own, self.marks = lane, message, size, key, own, marks

    @property
    def counts(self) -> bool:
        return self.lane is not Lane.CONTROL


class Refused(Exception):
    """What a refusal tells: how much there may be, and whether waiting helps."""

    def __init__(self, most: int, passing: bool) -> None:
        self.told = most, passing


class Box:
    """A mailbox by its rules."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.queued: list[Queued] = []
        self.run = 0

    @property
    def bound(self) -> list[Queued]:
        return [one for one in self.queued if one.counts]

    @property
    def bytes(self) -> int:
        return sum(one.size for one in self.bound)

    def fits(self, size: int) -> bool:
        return self.bytes + size <= self.limits.capacity_bytes

    def put(self, new: Queued) -> list[tuple[Any, str]]:
        """What is dropped for it."""
        same = next((one for one in self.queued if _replaces(new, one)), None)
        if same is not None and (not new.counts or self.fits(new.size - same.size)):
            dropped = [(same.message, "coalesced")]
            same.message, same.size, same.marks = new.message, new.size, new.marks
            return dropped
        if not new.counts or new.own:
            self.queued.append(new)
            return []
        if same is None and len(self.bound) < self.limits.capacity and self.fits(new.size):
            self.queued.append(new)
            return []
        return self._overflow(new, in_place=same is not None)

    def _overflow(self, new: Queued, in_place: bool) -> list[tuple[Any, str]]:
        policy, most = self.limits.overflow, self.limits.capacity_bytes
        if new.size > most:
            raise Refused(most, False)
        if policy is Overflow.DROP_NEWEST or (policy is Overflow.DROP_OLDEST and in_place):
            return [(new.message, "dropped_newest")]
        if policy is Overflow.DROP_OLDEST:
            return self._make_room(new)
        full = len(self.bound) >= self.limits.capacity
        raise Refused(self.limits.capacity if full else most, policy is not Overflow.REJECT)

    def _make_room(self, new: Queued) -> list[tuple[Any, str]]:
        lanes = (Lane.NORMAL, Lane.URGENT) if new.lane is Lane.URGENT else (Lane.NORMAL,)
        may_go = [one for lane in lanes for one in self.queued if one.lane is lane and not one.own]
        stay = [one for one in self.bound if one not in may_go]
        if len(stay) >= self.limits.capacity or sum(one.size for one in stay) + new.size > self.limits.capacity_bytes:
            return [(new.message, "dropped_newest")]
        dropped = []
        while len(self.bound) >= self.limits.capacity or not self.fits(new.size):
            self.queued.remove(may_go[0])
            dropped.append((may_go.pop(0).message, "dropped_oldest"))
        self.queued.append(new)
        return dropped

    def take(self) -> Queued | None:
        lanes = {lane: [one for one in self.queued if one.lane is lane] for lane in Lane}
        lane = Lane.CONTROL
        if not lanes[lane]:
            urgent = lanes[Lane.URGENT] and (self.run < URGENT_RUN or not lanes[Lane.NORMAL])
            lane = Lane.URGENT if urgent else Lane.NORMAL
            if not lanes[lane]:
                return None
            self.run = self.run + 1 if urgent else 0
        self.queued.remove(lanes[lane][0])
        return lanes[lane][0]


def _replaces(new: Queued, one: Queued) -> bool:
    return new.key is not None and not new.own and (one.lane, one.key) == (new.lane, new.key)


def _limits(chance: Chance, policy: Any) -> Limits:
    size_of = chance.choice((None, None, lambda message: 7 if isinstance(message, int) else 2), "size_of")
    return Limits(chance.integer(1, 7, "capacity"), chance.integer(10, 60, "bytes"), policy, size_of)


def _size(limits: Limits, message: Any) -> int:
    if limits.size_of is not None:
        return limits.size_of(message)
    return len(message) if isinstance(message, str | bytes) else 0


async def boxes(desk: Desk) -> None:
    """Whatever is put in, taken, put back and looked at: it is what the list says, and counts what the list does."""
    for number, policy in enumerate((*Overflow, Coalesce(_initial)) * 2):
        chance = desk.chance.below(number)
        limits = _limits(chance, policy)
        box, model = Mailbox("b", limits), Box(limits)
        taken: list[tuple[Any, Queued]] = []
        for step in range(STEPS):
            _step(desk, chance.below(step), box, model, taken)
            count = [sum(one.lane is lane for one in model.queued) for lane in Lane]
            shown = (len(box), box.counted, box.bytes, box.pressing, box.awaited)
            desk.same("its counts", shown, (sum(count), count[1] + count[2], model.bytes, count[0] + count[1], False))
            desk.same("its lanes", box.lengths(), dict(zip(("control", "urgent", "normal"), count, strict=True)))
            inside = [one.message for lane in Lane for one in model.queued if one.lane is lane]
            most = chance.integer(0, 4, "most", step)
            desk.same("a look into it", box.peek(most), inside[:most])
        left = [one.message for lane in Lane for one in model.queued if one.lane is lane]
        desk.same("what is left in it", [one.message for one in box.drain()], left)
        desk.same("an empty one", (len(box), box.bytes, box.pressing, box.take(), box.drain()), (0, 0, 0, None, []))


def _initial(message: Any) -> Any:
    return message[:1] if isinstance(message, str) else None


def _step(desk: Desk, chance: Chance, box: Mailbox, model: Box, taken: list[tuple[Any, Queued]]) -> None:
    match chance.choice(("put", "put", "put", "take", "take", "back"), "act"):
        case "put":
            _put(desk, chance, box, model)
        case "take":
            given, wanted = box.take(), model.take()
            shown = given and (given.message, given.cause, given.attempts)
            desk.same("what is taken", shown, wanted and (wanted.message, *wanted.marks))
            if wanted is not None:
                taken.append((given, wanted))
        case _ if taken:
            items = taken[-chance.integer(1, 3, "many") :]
            del taken[-len(items) :]
            box.put_back([item for item, _ in items])
            for _, one in reversed(items):
                one.lane, one.key = Lane.NORMAL, None
                model.queued.insert(0, one)


def _put(desk: Desk, chance: Chance, box: Mailbox, model: Box) -> None:
    lane = chance.choice((Lane.CONTROL, Lane.URGENT, Lane.URGENT, Lane.NORMAL, Lane.NORMAL), "lane")
    text = chance.choice("abcdef", "text") * chance.choice((1, 2, 9, 20, 70), "long")
    message = chance.choice((text, text, text.encode(), chance.integer(0, 99, "int")), "kind")
    own = lane is Lane.URGENT and chance.happens(0.3, "own")
    key = chance.choice((None, None, "k", "l"), "key") if not own else None
    token = SimpleNamespace(live=True) if own else None
    marks = (chance.integer(0, 99, "cause"), chance.integer(0, 3, "attempts"))
    envelope = Envelope(message, cause=marks[0], token=token, key=key)
    envelope.attempts = marks[1]
    if key is None and isinstance(model.limits.overflow, Coalesce) and not own and lane is not Lane.CONTROL:
        key = _initial(message)
    size = 0 if own or lane is Lane.CONTROL else _size(model.limits, message)
    try:
        wanted: Any = model.put(Queued(lane, message, size, key, own, marks))
    except Refused as refused:
        wanted = refused.told
    try:
        given: Any = [(one.envelope.message, one.why) for one in box.put(envelope, lane)]
    except MailboxFull as full:
        given = full.capacity, full.passing
    desk.same(f"{message!r} by {lane.name} for {key} with {model.limits}", given, wanted)


# -------------------------------------------------------------------------------------------------------- in an actor
class Keeper:
    """Puts everything aside until it is opened; then it notes what it hears."""

    def __init__(self) -> None:
        self.open = False
        self.full = 0
        self.heard: list[Any] = []

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "open":
            self.open = True
            ctx.unstash_all()
        elif self.open:
            self.heard.append(message)
        else:
            try:
                ctx.stash()
            except MailboxFull as full:
                self.full += full.capacity
        return None


async def crowds(desk: Desk) -> None:
    """Plain messages fill a mailbox by their number; what was put aside, and timers, get in beyond, and then count."""
    for number, kinds in enumerate((("plain",), ("plain", "text"), ("text", "urgent"), ("plain", "urgent", "text"))):
        chance = desk.chance.below(number)
        most, name, keeper = (400 if number == 0 else chance.integer(2, 5, "most")), f"k{number}", Keeper()
        ref = desk.system.spawn(keeper, name, capacity=most)
        for place in range(most + 1):
            ref.tell(place)
            await desk.system.idle()
        desk.same("aside", (await desk.system.stats(name, timeout_s=1.0)).stashed, most)
        desk.same("what cannot be put aside", keeper.full, most)
        wanted: list[Any] = [*range(most)]
        await desk.system.suspend(name, timeout_s=1.0)
        await _fill(desk, chance, name, kinds, most, wanted)
        keeper.open = True
        context: Any = desk.system.context(name)
        context.unstash_all()
        desk.same("aside no more", (await desk.system.stats(name, timeout_s=1.0)).stashed, 0)
        for message in (7, "seven"):
            try:
                ref.tell(message)
                desk.same("a message beyond the bound", "taken", "refused")
            except MailboxFull:
                pass
        desk.system.resume(name)
        await desk.system.idle()
        desk.same("what was heard", keeper.heard, wanted)
        await desk.system.suspend(name, timeout_s=1.0)
        keeper.heard.clear()
        again = await _fill(desk, chance, name, ("plain",), most, [])
        desk.system.resume(name)
        await desk.system.idle()
        desk.same("what was heard again", keeper.heard, again)


async def _fill(
    desk: Desk, chance: Chance, name: str, kinds: tuple[str, ...], most: int, wanted: list[Any]
) -> list[Any]:
    """Tell it as much as it takes; what it hears of that, after *wanted*."""
    ref, urgent, normal = desk.system.ref(name), list[Any](), list[Any]()
    assert ref is not None
    for place in range(most + 2):
        kind = chance.choice(kinds, "kind", place)
        message = place if kind == "plain" else f"{place}"
        try:
            ref.tell(message, lane=Lane.URGENT if kind == "urgent" else Lane.NORMAL)
            (urgent if kind == "urgent" else normal).append(message)
        except MailboxFull as full:
            desk.same("when it is full", (place >= most, full.capacity), (True, most))
    desk.same("how much it takes", len(urgent) + len(normal), most)
    wanted[:0] = urgent
    wanted += normal
    return wanted


class Texts(str):
    """Text, and more than that."""


async def sizes(desk: Desk) -> None:
    """Text counts by its length, of whatever class it is; what is neither text nor bytes has no size."""
    for kind in (str, Texts, lambda text: text.encode()):
        name = f"s{len(desk.system)}"
        ref = desk.system.spawn(Keeper(), name, limits=Limits(50, 30))
        await desk.system.suspend(name, timeout_s=1.0)
        ref.tell(1)
        taken = 0
        for _ in range(5):
            try:
                ref.tell(kind("0123456789"))
                taken += 1
            except MailboxFull:
                pass
            ref.tell(2)
        stats = await desk.system.stats(name, timeout_s=1.0)
        desk.same("what is queued", (taken, stats.queued_bytes, stats.queued["normal"]), (3, 30, 9))


async def waiters(desk: Desk) -> None:
    """Hundreds who wait for room are woken one for each message that goes, however many go at once; nobody is woken
    where no room was made. Each gets in, in the order in which they came."""
    many = desk.chance.integer(260, 300, "many")
    box, came, tried, served = Mailbox("w", Limits(many + 1, 10_000)), list[int](), list[int](), list[int]()
    backend = desk.system.dispatcher.backend

    def put(number: int, size: int = 0) -> None:
        tried.append(number)
        box.put(Envelope("x" * size, key=number if size else None), Lane.NORMAL, in_turn=True)

    async def wait(number: int) -> None:
        came.append(number)
        await box.room(backend, lambda: put(number))
        served.append(number)

    put(-1, 9)
    for _ in range(many):
        put(-1)
    async with anyio.create_task_group() as group:
        for number in range(many):
            group.start_soon(wait, number)
        await anyio.sleep(0.1)
        tried.clear()
        for size, tries in ((9, 0), (10, 0), (8, 1)):
            put(-1, size)  # in the place of what is queued; it is full all the same
            await anyio.sleep(0.1)
            desk.same(f"who tries now that one has {size} bytes", tried, [-1, *came[:tries]])
            tried.clear()
        for _ in range(many + 1):
            desk.same("that one goes", box.take() is not None, True)
        await anyio.sleep(0.1)
    desk.same("who gets in, each by one try", (served, tried, len(came)), (came, came, many))
    desk.same("what is left in it", (len(box), box.awaited, box.pressing), (many, False, 0))


# ------------------------------------------------------------------------------------------------------- what it takes
class Bound(int):
    """A capacity that counts how often something is compared with it."""

    looks = 0

    def __gt__(self, other: int) -> bool:
        self.looks += 1
        return super().__gt__(other)


async def looks(desk: Desk) -> None:
    """Whoever takes the place of the oldest has it found at the head: no matter how many are queued behind that."""
    for lane, before in ((Lane.NORMAL, Lane.NORMAL), (Lane.URGENT, Lane.NORMAL), (Lane.URGENT, Lane.URGENT)):
        for size, gone in ((2, 1), (4, 2), (0, 1)):
            counts = []
            for many in (10, 400):
                most = Bound(many)
                box = Mailbox("b", Limits(most, 2 * many, Overflow.DROP_OLDEST))
                for number in range(many):
                    box.put(Envelope(f"{number % 90 + 10}"), before)
                most.looks = 0
                dropped = [one.envelope.message for one in box.put(Envelope("x" * size), lane)]
                desk.same(f"what goes for {size} bytes", dropped, ["10", "11"][:gone])
                counts.append(most.looks)
            desk.same(f"looks at the bound before {size} bytes by {lane.name}", counts[1], counts[0])


BOXES = (boxes, crowds, sizes, waiters, looks)
