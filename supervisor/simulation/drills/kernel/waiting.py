"""Waiting for room: drawn senders with messages of any size before an actor that takes a second for each.

The model knows but this: whoever has waited longest is served first, if there is room for his; nobody is overtaken; who
gives up lets the next one try.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import anyio

from actors import Coalesce, Context, Lane, Limits, Mailbox, MailboxFull, Ref
from actors.mailbox import Envelope
from actors.parking import current_backend
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.keyed_random import Chance

__all__ = ["WAITING", "draw_senders"]

SENDERS: Final = 14
ARRIVES_S: Final = 0.4
"""After each full second; the actor takes its next message at full ones, and who gives up does so in between."""
GIVES_UP_S: Final = 0.3


class Sender(NamedTuple):
    """When he comes (seconds), for how long he waits, and what he sends."""

    at_s: float
    patience_s: float
    text: str

    @property
    def until_s(self) -> float:
        return self.at_s + self.patience_s


class Taker:
    """Takes a second for each message."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def receive(self, ctx: Context, message: Any) -> None:
        self.heard.append(message)
        await anyio.sleep(1.0)


def foreseen(senders: list[Sender], queued: list[str], most: int, most_bytes: int) -> tuple[list[str], list[str]]:
    """What is heard, in its order, and who is refused: worked out by hand, second by second."""
    queue, heard, refused, waiting = [*queued], [], [], list[Sender]()

    def room(text: str) -> bool:
        return len(queue) < most and sum(map(len, queue)) + len(text) <= most_bytes

    def serve() -> None:
        while waiting and room(waiting[0].text):
            queue.append(waiting.pop(0).text)

    moments = [(one.at_s, "comes", one) for one in senders]
    moments += [(one.until_s, "gives up", one) for one in senders]
    moments += [(float(second), "takes", senders[0]) for second in range(1, 80)]
    for _, what, one in sorted(moments, key=lambda moment: moment[0]):
        if what == "takes" and queue:
            heard.append(queue.pop(0))
        elif what == "comes":
            waiting.append(one)
            if len(one.text) > most_bytes:
                refused.append(waiting.pop().text)
        elif what == "gives up" and one in waiting:
            waiting.remove(one)
            refused.append(one.text)
        serve()
    return heard, refused


async def senders(desk: Desk) -> None:
    """Everybody is served in turn, or refused at his time."""
    for number in range(6):
        chance = desk.chance.below(number)
        most, most_bytes = chance.integer(1, 4, "most"), chance.integer(12, 40, "bytes")
        taker, name = Taker(), f"t{number}"
        ref = desk.system.spawn(taker, name, limits=Limits(most, most_bytes))
        queued = [f"q{place}" for place in range(most + 1)]
        told = draw_senders(chance)
        heard, refused = foreseen(told, queued[1:], most, most_bytes)
        full = await _send_all(ref, queued, told)
        await anyio.sleep(60.0)
        desk.same("what was heard", taker.heard, [queued[0], *heard[: len(taker.heard)]])
        desk.same("how much was heard", len(taker.heard), len(heard) + 1)
        desk.same("who was refused", sorted(full), sorted(refused))
        desk.system.stop(name)
        await desk.system.join(name)


def draw_senders(chance: Chance) -> list[Sender]:
    """Nobody gives up in the second in which another one does: of the two either might be the first."""
    told, taken = list[Sender](), set[int]()
    for place in range(SENDERS):
        second = place + chance.integer(0, 9, "patience", place)
        second = next(one for one in range(second, second + SENDERS) if one not in taken)
        taken.add(second)
        text = f"{place:02d}".ljust(chance.choice((2, 2, 9, 25, 44), "size", place), ".")
        told.append(Sender(place + ARRIVES_S, second - place + GIVES_UP_S, text))
    return told


async def _send_all(ref: Ref, queued: list[str], told: list[Sender]) -> list[str]:
    """Fill it at once, and have them come; those that were refused."""
    refused: list[str] = []
    ref.tell(queued[0])
    await anyio.sleep(0.0)

    async def send(one: Sender) -> None:
        await anyio.sleep(one.at_s)
        try:
            await ref.send(one.text, timeout_s=one.patience_s)
        except MailboxFull:
            refused.append(one.text)

    async with anyio.create_task_group() as group:
        for one in told:
            group.start_soon(send, one)
        await anyio.sleep(0.1)
        for text in queued[1:]:
            ref.tell(text)
    return refused


# ------------------------------------------------------------------------------------------------------ who may try
async def replaces(desk: Desk) -> None:
    """Who waits with a key that is queued by then replaces that message, and waits no longer."""
    taker, came = Taker(), dict[str, float]()
    ref = desk.system.spawn(taker, "r", limits=Limits(1, 100, Coalesce(lambda message: message[0])))
    ref.tell("x")
    await anyio.sleep(0.0)

    async def send(text: str) -> None:
        await ref.send(text, timeout_s=9.0)
        came[text] = desk.since()

    desk.again()
    async with anyio.create_task_group() as group:
        await anyio.sleep(0.1)
        ref.tell("y")
        for text in ("a1", "a2", "a3", "b1", "b2"):
            group.start_soon(send, text)
            await anyio.sleep(0.1)
    for text, wanted_s in (("a1", 1.0), ("a2", 1.0), ("a3", 1.0), ("b1", 2.0), ("b2", 2.0)):
        desk.at(f"{text} is in", wanted_s, 2, came[text])
    await anyio.sleep(3.0)
    desk.same("what was heard", taker.heard, ["x", "y", "a3", "b2"])


async def in_vain(desk: Desk) -> None:
    """Where the first who waits gives up, the next one tries if there may be room: not while it is full by number, or
    fuller than that by what an actor has sent itself."""
    for capacity in (1, 3, 300):
        for beyond in (-1, 0, 1, 2):
            await _gives_up(desk, capacity, beyond)


async def _gives_up(desk: Desk, capacity: int, beyond: int) -> None:
    box, tried = Mailbox("b", Limits(capacity, 1)), list[int]()
    for _ in range(capacity + beyond):
        box.put(Envelope(0, token=SimpleNamespace(live=True)), Lane.URGENT)

    def put(who: int) -> None:
        tried.append(who)
        raise box.full(0)

    async def wait(scope: anyio.CancelScope, who: int) -> None:
        with scope:
            await box.room(current_backend(), partial(put, who))

    scopes = [anyio.CancelScope() for _ in range(3)]
    async with anyio.create_task_group() as group:
        for who, scope in enumerate(scopes):
            group.start_soon(wait, scope, who)
            await anyio.sleep(0.1)
        scopes[0].cancel()
        await anyio.sleep(0.1)
        desk.same(f"who tries at {beyond} beyond {capacity}", tried, [1] if beyond < 0 else [])
        group.cancel_scope.cancel()


WAITING = (senders, replaces, in_vain)
