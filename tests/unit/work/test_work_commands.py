"""Tests of commands with an id: carried out once, repeatable after a refusal, remembered after a restart, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from supervisor.lifecycles.task import TASK
from supervisor.lifecycles.task_run import RUN
from supervisor.lifecycles.types import LifecycleEvent, Verb
from supervisor.lifecycles.workstream import WORKSTREAM
from supervisor.plans.task_control import CommandResult
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.work.commands import EFFECTS, ID_MAX, Command, CommandEffect, CommandLog, CommandReused, digest_of

pytestmark = pytest.mark.anyio


class Log:
    """Records in a list, and a simple table: each task can be moved once, and is refused after that."""

    def __init__(self) -> None:
        self.records: list[LifecycleEvent] = []
        self.moved: set[str] = set()

    def note(self, entity_id: str, name: str, cause: Cause, metadata: dict[str, Any], reason: str) -> LifecycleEvent:
        return self.record(entity_id, name, "fact", cause, metadata, reason=reason)

    async def move(self, entity_id: str, cause: Cause, event: str = "approved", **metadata: Any) -> CommandEffect:
        if entity_id in self.moved:
            self.record(entity_id, event, "refused", cause, {})
            raise Refused(f"{entity_id}: approved in OPEN")
        self.moved.add(entity_id)
        self.record(entity_id, event, "transition", cause, metadata, to_status="OPEN")
        return CommandEffect("OPEN", tuple(metadata.get("subtasks", ())))

    def record(
        self, entity_id: str, event: str, outcome: str, cause: Cause, metadata: dict[str, Any], **more: Any
    ) -> LifecycleEvent:
        seq = len(self.records) + 1
        record = LifecycleEvent(
            seq=seq,
            timestamp=0.0,
            monotonic_s=0.0,
            entity_type="task",
            entity_id=entity_id,
            entity_seq=seq,
            event=event,
            outcome=outcome,
            actor=cause.actor,
            cause_id=cause.seq,
            metadata=metadata,
            **more,
        )
        self.records.append(record)
        return record

    def facts(self) -> Iterator[LifecycleEvent]:
        return (one for one in self.records if one.event == "Commanded")


def command(task: str = "t", *, id: str | None = "c1", verb: Verb = Verb.APPROVE, **more: Any) -> Command:
    return Command(verb=verb, entity_id=f"task:{task}", by="operator:me", id=id, **more)


async def given(commands: CommandLog, log: Log, asked: Command, **metadata: Any) -> CommandResult:
    return await commands.once(asked, lambda cause: log.move(asked.entity_id, cause, **metadata))


async def test_a_command_is_the_root_of_what_it_does() -> None:
    """A command is recorded as a fact without a cause, with giver and reason; the fact is the cause of the
    transition."""
    log = Log()
    answer = await given(CommandLog(log.note), log, command(reason="looks good"))
    fact, moved = log.records
    assert (fact.event, fact.actor, fact.cause_id, fact.reason) == ("Commanded", "operator:me", None, "looks good")
    assert fact.metadata == {"command": "approve", "command_id": "c1", "given": ""}
    assert (moved.cause_id, moved.actor) == (fact.seq, "operator:me")
    assert answer == CommandResult(verb=Verb.APPROVE, entity_id="task:t", state="OPEN", seq=fact.seq)


async def test_a_repetition_gets_the_first_answer() -> None:
    """A repeated command does nothing and records nothing; its reply is the first reply, marked as repeated."""
    log = Log()
    commands = CommandLog(log.note)
    first = await given(commands, log, command())
    again = await given(commands, log, command(reason="once more"))
    assert (again.seq, again.state, again.repeated, first.repeated) == (first.seq, first.state, True, False)
    assert len(log.records) == 2


async def test_without_an_id_every_command_counts() -> None:
    """A command without an id is carried out each time that it is given."""
    log = Log()
    commands = CommandLog(log.note)
    await given(commands, log, command(id=None))
    with pytest.raises(Refused):
        await given(commands, log, command(id=None))
    assert len(list(log.facts())) == 2


async def test_a_refused_command_is_not_burned() -> None:
    """A refused command may be given again with the same id, and then takes effect."""
    log = Log()
    commands = CommandLog(log.note)
    log.moved.add("task:t")
    with pytest.raises(Refused):
        await given(commands, log, command())
    log.moved.clear()
    answer = await given(commands, log, command())
    assert (answer.state, answer.repeated) == ("OPEN", False)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (command("other"), "the command id 'c1' was given to approve task:t by operator:me; give this one another id"),
        (command(verb=Verb.CANCEL), "was given to approve task:t by operator:me"),
        (command(given="0123"), "was given to approve task:t with other subtasks by operator:me"),
    ],
)
async def test_an_id_belongs_to_one_command(other: Command, words: str) -> None:
    """Another verb, task or set of subtasks with a known id is an error that names the first command, and has no
    effect."""
    log = Log()
    commands = CommandLog(log.note)
    await given(commands, log, command())
    with pytest.raises(CommandReused, match=words):
        await given(commands, log, other)
    assert len(log.records) == 2


@pytest.mark.parametrize("command_id", ["", "x" * (ID_MAX + 1)])
async def test_an_id_has_a_length(command_id: str) -> None:
    """A command id that is empty or too long is an error, and nothing is recorded."""
    log = Log()
    with pytest.raises(ValueError, match=f"has {len(command_id)} characters; give 1 to 200"):
        await given(CommandLog(log.note), log, command(id=command_id))
    assert log.records == []
    assert await given(CommandLog(log.note), log, command(id="x" * ID_MAX))


async def test_two_at_once_are_one() -> None:
    """A repetition that comes while the first command is under way waits for it, and returns the same reply."""
    log = Log()
    commands, may, answers = CommandLog(log.note), anyio.Event(), list[CommandResult]()

    async def slowly(cause: Cause) -> CommandEffect:
        await may.wait()
        return await log.move("task:t", cause)

    async def ask() -> None:
        answers.append(await commands.once(command(), slowly))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(CommandReused):
            await given(commands, log, command("other"))
        may.set()
    assert sorted(one.repeated for one in answers) == [False, True]
    assert len(list(log.facts())) == 1


async def test_when_the_first_of_two_is_refused_the_second_is_tried() -> None:
    """A caller that waited for the same command, which was then refused, carries the command out itself."""
    log = Log()
    commands, may, ends = CommandLog(log.note), anyio.Event(), list[str]()

    async def refused_first(cause: Cause) -> CommandEffect:
        if len(list(log.facts())) == 1:
            await may.wait()
            raise Refused("not yet")
        return await log.move("task:t", cause)

    async def ask() -> None:
        try:
            ends.append((await commands.once(command(), refused_first)).state)
        except Refused as refusal:
            ends.append(str(refusal))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        may.set()
    assert sorted(ends) == ["OPEN", "not yet"]


# ---------------------------------------------------------------------------------------------------- after a start
async def test_what_took_effect_is_known_after_a_restart() -> None:
    """After a restart, a repetition of a command returns the same reply, subtasks included, and does nothing."""
    log = Log()
    split = command(verb=Verb.SPLIT, given=digest_of([{"id": "a"}]))
    first = await given(CommandLog(log.note), log, split, event="split", subtasks=["task:a", "task:b"])
    later = CommandLog(log.note)
    later.fold(log.records)
    again = await given(later, log, split)
    assert (again.subtasks, again.seq, again.state, again.verb) == (
        ("task:a", "task:b"),
        first.seq,
        first.state,
        Verb.SPLIT,
    )
    assert again.repeated
    with pytest.raises(CommandReused):
        await given(later, log, command())


async def test_what_was_refused_or_cut_off_is_not_known_after_a_restart() -> None:
    """A command without a transition, because of a refusal or a crash, may be given again after a restart."""
    log = Log()
    log.moved.add("task:t")
    with pytest.raises(Refused):
        await given(CommandLog(log.note), log, command())
    log.note("task:u", "Commanded", Cause(actor="operator:me"), {"command": "approve", "command_id": "c2"}, "")
    log.record("task:t", "approved", "transition", Cause(), {}, to_status="OPEN")
    log.moved.clear()
    later = CommandLog(log.note)
    later.fold(log.records)
    assert not (await given(later, log, command())).repeated
    assert not (await given(later, log, command("u", id="c2"))).repeated


async def test_records_that_follow_are_no_second_answer() -> None:
    """If a command caused several transitions, its reply after a restart is that of the first."""
    log = Log()
    first = await given(CommandLog(log.note), log, command())
    fact = next(log.facts())
    log.record("task:t", "approval_granted", "transition", Cause(fact.seq), {}, to_status="CLOSED")
    later = CommandLog(log.note)
    later.fold(log.records)
    assert (await given(later, log, command())).state == first.state


async def test_what_comes_of_a_task_by_another_way_is_the_effect_too() -> None:
    """A cancellation recorded with another cause still counts as the effect of an earlier cancel command; other events
    do not."""
    log = Log()
    cancel = command(verb=Verb.CANCEL)
    log.note("task:t", "Commanded", Cause(actor="operator:me"), {"command": "cancel", "command_id": "c1"}, "")
    log.record("task:t", "started", "transition", Cause(99), {}, to_status="IN_PROGRESS")
    log.record("task:u", "cancelled", "transition", Cause(99), {}, to_status="CANCELLED")
    early, later = CommandLog(log.note), CommandLog(log.note)
    early.fold(log.records)
    log.record("task:t", "cancelled", "transition", Cause(99), {}, to_status="CANCELLED")
    later.fold(log.records)
    assert (await given(later, log, cancel)).state == "CANCELLED"
    assert (await given(early, log, cancel, event="cancelled")).repeated is False


async def test_a_refusal_is_on_record() -> None:
    """The recorded refusal of a command has the command as its cause, and the reason."""
    log = Log()
    log.moved.add("task:t")
    with pytest.raises(Refused):
        await given(CommandLog(log.note), log, command())
    fact, _, refused = log.records
    assert (refused.event, refused.cause_id, refused.reason) == (
        "CommandRefused",
        fact.seq,
        "task:t: approved in OPEN",
    )


def test_each_verb_has_events_that_are_its_effect() -> None:
    """Every verb has events that are its effect, and every such event is in a table."""
    known = {*TASK.events, *RUN.events, *WORKSTREAM.events}
    assert set(EFFECTS) == set(Verb)
    assert set().union(*EFFECTS.values()) <= known


async def test_commands_without_an_id_leave_nothing_behind() -> None:
    """After a restart, commands without an id are not remembered, and later commands with an id are."""
    log = Log()
    commands = CommandLog(log.note)
    await given(commands, log, command(id=None))
    await given(commands, log, command("u"))
    later = CommandLog(log.note)
    later.fold(log.records)
    assert (await given(later, log, command("u"))).repeated


async def test_the_oldest_answers_are_forgotten_first() -> None:
    """If there are too many replies, the oldest is forgotten, and the newest are remembered."""
    log = Log()
    commands = CommandLog(log.note, kept_max=2)
    for number in range(3):
        await given(commands, log, command(f"t{number}", id=f"c{number}"))
    assert (await given(commands, log, command("t1", id="c1"))).repeated
    assert (await given(commands, log, command("t2", id="c2"))).repeated
    with pytest.raises(Refused):
        await given(commands, log, command("t0", id="c0"))


def test_a_digest_stands_for_what_was_given() -> None:
    """Equal data have equal digests, whatever the order of keys; different data have different digests."""
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 1, "b": 3})
    assert len(digest_of([])) == 16
