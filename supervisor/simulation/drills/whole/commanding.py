"""Commands: whoever repeats an id gets the first answer, before and after a crash, while that answer is remembered.

A notebook of facts stands for the journal; the model is a list of what took effect, the newest last (docs/work.md,
docs/cli.md: a command with an id takes effect once).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import anyio

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans.task_control import Answer, Verb
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.simulation.drills.desk import Desk
from supervisor.work.commands import Command, CommandReused, Commands, Effect, digest_of

__all__ = ["COMMANDING"]

KEPT: Final = 4
STEPS: Final = 160
EFFECTS: Final[Mapping[Verb, tuple[str, ...]]] = {
    Verb.APPROVE: ("approved", "approval_granted", "approval_denied"),
    Verb.REJECT: ("rejected", "approval_denied"),
    Verb.RESET: ("reopened", "manual_reset"),
    Verb.REQUEUE: ("requeued",),
    Verb.UNCLAIM: ("unclaimed",),
    Verb.CANCEL: ("cancelled",),
    Verb.SPLIT: ("split",),
    Verb.BLOCK: ("blocked",),
    Verb.UNBLOCK: ("unblocked",),
}
"""What each command is for, by the table of tasks and that of runs (spec 000 and 002)."""


class Notebook:
    """Every record, in order."""

    def __init__(self) -> None:
        self.records: list[LifecycleEvent] = []

    def note(self, entity_id: str, name: str, cause: Cause, told: dict[str, Any], reason: str) -> LifecycleEvent:
        return self.write(entity_id, name, cause, told, reason, "fact")

    def write(
        self, entity_id: str, name: str, cause: Cause, told: dict[str, Any], reason: str, outcome: str, to: str = ""
    ) -> LifecycleEvent:
        seq = len(self.records) + 1
        one = LifecycleEvent(
            seq=seq,
            timestamp=0.0,
            monotonic_s=0.0,
            entity_type="task",
            entity_id=entity_id,
            entity_seq=seq,
            event=name,
            to_status=to,
            outcome=outcome,
            actor=cause.actor,
            reason=reason,
            cause_id=cause.seq,
            metadata=told,
        )
        self.records.append(one)
        return one


async def once(desk: Desk) -> None:
    """The first answer, as often as the id comes; another wish under it is refused; what was refused may come again."""
    book = Notebook()
    ours, known = Commands(book.note, kept_max=KEPT), dict[str, tuple[Command, Answer]]()
    for step in range(STEPS):
        chance = desk.chance.below(step)
        command = Command(
            verb=chance.choice((Verb.CANCEL, Verb.SPLIT, Verb.BLOCK), "verb"),
            entity_id=chance.choice(("t1", "t2"), "whose"),
            by=chance.choice(("a", "b"), "by"),
            reason="because",
            id=chance.choice((None, "i", "j", "k", "l", "m", "n"), "id"),
            given=chance.choice(("", "g"), "given"),
        )
        refused = chance.happens(0.2, "refused")
        given = await _given(ours, book, command, refused)
        wanted = _wanted(command, refused, known, len(book.records))
        desk.same(f"the answer to {command.verb} of {command.id}", given, wanted)
        if chance.happens(0.1, "crash"):
            ours = Commands(book.note, kept_max=KEPT)
            ours.fold(book.records)
        desk.same("how many are remembered", len(ours._answered) <= KEPT, True)


async def _given(ours: Commands, book: Notebook, command: Command, refused: bool) -> Any:
    async def take(cause: Cause) -> Effect:
        fact = book.records[-1]
        assert (fact.event, fact.seq) == ("Commanded", cause.seq), "the command is on record first"
        if refused:
            raise Refused("no")
        book.write("run", "cancelled", Cause(actor="plan"), {}, "", "refused")  # of no account
        parts = {"subtasks": ("s",)} if command.verb is Verb.SPLIT else {}
        (effect,) = EFFECTS[command.verb]
        book.write(command.entity_id, effect, cause, {**parts}, "", "transition", to=f"after {command.verb}")
        return Effect(f"after {command.verb}", parts.get("subtasks", ()))

    try:
        answer = await ours.once(command, take)
    except CommandReused as error:
        return ("reused", str(error))
    except Refused:
        return ("refused", book.records[-1].event, book.records[-1].cause_id)
    return answer


def _wanted(command: Command, refused: bool, known: dict[str, tuple[Command, Answer]], last: int) -> Any:
    """By the list of what took effect; *last* is the number of records by now."""
    if command.id in known:
        first, answer = known[command.id]
        if (first.verb, first.entity_id, first.given) != (command.verb, command.entity_id, command.given):
            other = " on other things" if first.verb is Verb.BLOCK else " with other subtasks"
            used = f"{first.verb} {first.entity_id}{other if first.given != command.given else ''}"
            words = f"the command id {command.id!r} was given to {used} by {first.by}; give this one another id"
            return ("reused", words)
        return Answer(
            verb=answer.verb,
            entity_id=answer.entity_id,
            state=answer.state,
            seq=answer.seq,
            subtasks=answer.subtasks,
            repeated=True,
        )
    if refused:
        return ("refused", "CommandRefused", last - 1)
    parts = ("s",) if command.verb is Verb.SPLIT else ()
    answer = Answer(
        verb=command.verb, entity_id=command.entity_id, state=f"after {command.verb}", seq=last - 2, subtasks=parts
    )
    if command.id is not None:
        known[command.id] = (command, answer)
        while len(known) > KEPT:
            del known[next(iter(known))]
    return answer


async def together(desk: Desk) -> None:
    """Who repeats what is under way waits for it; if that is refused, it is tried again."""
    book = Notebook()
    for refused in (False, True):
        ours, taken, gate = Commands(book.note), list[int](), anyio.Event()
        answers: list[Any] = []

        async def take(cause: Cause, taken: list[int] = taken, gate: anyio.Event = gate, no: bool = refused) -> Effect:
            taken.append(cause.seq or 0)
            if len(taken) == 1:
                await gate.wait()
                if no:
                    raise Refused("no")
            return Effect("there")

        async def ask(verb: Verb, ours: Commands = ours, answers: list[Any] = answers, take: Any = take) -> None:
            try:
                answers.append(await ours.once(Command(verb=verb, entity_id="t", by="a", id="x"), take))
            except (Refused, CommandReused) as error:
                answers.append(type(error).__name__)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, Verb.CANCEL)
            await anyio.sleep(1.0)
            group.start_soon(ask, Verb.CANCEL)
            group.start_soon(ask, Verb.RESET)
            await anyio.sleep(1.0)
            desk.same("who waits", (len(taken), answers), (1, ["CommandReused"]))
            gate.set()
        shown = [one if isinstance(one, str) else one.repeated for one in answers[1:]]
        desk.same("the answers", (len(taken), shown), (2, ["Refused", False]) if refused else (1, [False, True]))
    ours = Commands(book.note)

    async def done(cause: Cause) -> Effect:
        return Effect("there")

    for name, fits in (("", False), ("x", True), ("x" * 200, True), ("x" * 201, False)):
        try:
            answer = await ours.once(Command(verb=Verb.RESET, entity_id="t", by="a", id=name), done)
            desk.same(f"an id of {len(name)}", (answer.state, answer.repeated, fits), ("there", False, True))
        except ValueError:
            desk.same(f"an id of {len(name)}", fits, False)
    for unknown in (LookupError, ValueError, Refused):

        async def fail(cause: Cause, error: Any = unknown) -> Effect:
            raise error("no")

        await desk.raises(f"{unknown}", ours.once(Command(verb=Verb.RESET, entity_id="t", by="a"), fail), unknown)
        desk.same("what is noted of it", book.records[-1].event, "CommandRefused")


async def after_a_crash(desk: Desk) -> None:
    """What a command caused, or what came of its task after it, is its effect, if it is for that; a fact is none."""
    for verb in Verb:
        for event in sorted({one for each in EFFECTS.values() for one in each} | {"closed", "claimed"}):
            for caused, whose in ((True, "run:t"), (False, "t"), (False, "other")):
                book = Notebook()
                fact = book.note("t", "Commanded", Cause(actor="a"), _told(verb, "x"), "why")
                cause = Cause(fact.seq if caused else None, None, "a")
                for other in ("AccessRefused", "CommandNoted", "DeadLettered"):  # say nothing of commands
                    book.note(whose, other, Cause(fact.seq, None, "a"), {}, "")
                book.write(whose, event, cause, {"subtasks": ["s"]}, "", "transition", to="there")
                mine = event in EFFECTS[verb] and (caused or whose == "t")
                ours = Commands(book.note)
                ours.fold(book.records)
                answer = await ours.once(_again(verb), _never)
                wanted = ("there", fact.seq, ("s",), True) if mine else ("anew", 6, (), False)
                shown = (answer.state, answer.seq, tuple(answer.subtasks), answer.repeated)
                desk.same(f"{event} after {verb}", shown, wanted)
    book = Notebook()
    first = book.note("t", "Commanded", Cause(actor="a"), _told(Verb.CANCEL, "x"), "why")
    book.note("t", "CommandRefused", Cause(first.seq, None, "a"), {"command": "cancel"}, "no")
    second = book.note("t", "Commanded", Cause(actor="b"), _told(Verb.CANCEL, "y"), "why")
    book.write("t", "cancelled", Cause(None, None, "plan"), {}, "", "transition", to="CANCELLED")
    book.write("t", "cancelled", Cause(second.seq, None, "plan"), {}, "", "transition", to="twice")
    ours = Commands(book.note)
    ours.fold(book.records)
    answers = [await ours.once(_again(Verb.CANCEL, name), _never) for name in ("x", "y")]
    states = [(one.state, one.repeated) for one in answers]
    desk.same("what was refused, and what was not", states, [("anew", False), ("CANCELLED", True)])
    desk.same("what stands for a value", len(digest_of({"a": 1})), 16)
    desk.same("the same value", digest_of({"a": 1, "b": 2}), digest_of({"b": 2, "a": 1}))
    desk.same("another value", digest_of([1]) != digest_of([2]), True)


def _told(verb: Verb, name: str) -> dict[str, Any]:
    return {"command": verb.value, "command_id": name, "given": "g"}


def _again(verb: Verb, name: str = "x") -> Command:
    return Command(verb=verb, entity_id="t", by="c", id=name, given="g")


async def _never(cause: Cause) -> Effect:
    return Effect("anew")


COMMANDING: Final[tuple[Any, ...]] = (once, together, after_a_crash)
