"""Waiting for room: drawn senders with messages of any size before an actor that takes a second for each.

The model knows but this: whoever has waited longest is served first, if there is room for his; nobody is overtaken; who
gives up lets the next one try.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import anyio

from actors import Context, Limits, MailboxFull, Ref
from supervisor.simulation.chance import Chance
from supervisor.simulation.drills.desk import Desk

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


WAITING = (senders,)
