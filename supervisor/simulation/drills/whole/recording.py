"""Recording: the door to the journal, and the disk behind it, held to what docs/design.md and docs/recovery.md promise.

The journal here does what a script says, at known instants: so which records share a commit, what is told before and
after it, when a disk is tried again, and what becomes of everybody who waits, is all known beforehand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import anyio
import msgspec

from supervisor.lifecycles.effects import Bury, EndScope, StorePrompt, Tell, decoded
from supervisor.lifecycles.events import FatalError
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.ports import Append, JournalError, JournalUnavailable
from supervisor.runtime.availability import DiskWatch, Outage, held_bytes
from supervisor.runtime.journal_writer import Cause, Clock, Draft, Ledger, Owed
from supervisor.runtime.one_shot_event import Moment
from supervisor.simulation.drills.desk import Desk

__all__ = ["RECORDING"]

TOGETHER: Final = 128
"""Records that share a commit at most."""
PAUSES_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0)
"""Between two tries of a disk that is down."""
RECORD_BYTES: Final = 2048
HELD_MAX: Final = 64 * 2**20
WALL_S: Final = 1_700_000_000.0
DOWN: Final = ("down", "landed")


class Paper:
    """A journal that does what its script says, a word for each time that it is used; without one it is sound."""

    generation = 1

    def __init__(self, desk: Desk, last_seq: int = 0, commit_s: float = 1.0) -> None:
        self.desk, self.commit_s = desk, commit_s
        self.last_seq = last_seq
        self.script: deque[str] = deque()
        self.kept: list[Append] = []
        self.batches: list[list[int]] = []
        self.tries: list[tuple[float, Any]] = []
        """When the disk was looked at, and what was told of it then."""
        self.disk: DiskWatch | None = None
        self.settled: list[list[str]] = []

    async def append(self, batch: Sequence[Append]) -> None:
        await anyio.sleep(self.commit_s)
        word = self.script.popleft() if self.script else ""
        if word in ("", "landed"):
            self.batches.append([one.record.seq for one in batch])
            self.kept += batch
            self.last_seq = batch[-1].record.seq
        if word in DOWN:
            self.desk.again()
        self._complain(word)

    async def recover(self) -> int:
        self.tries.append((self.desk.since(), self.disk and self.disk.outage))
        word = self.script.popleft() if self.script else ""
        self._complain(word)
        return self.last_seq + {"shrunk": -1, "grown": 3}.get(word, 0)

    async def settle(self, effect_ids: Sequence[str]) -> None:
        self._complain(self.script.popleft() if self.script else "")
        self.settled.append([*effect_ids])

    def _complain(self, word: str) -> None:
        if word in DOWN:
            raise JournalUnavailable(f"it is {word}")
        if word == "broken":
            raise JournalError(word)


class Asker:
    """Who waits for a record."""

    settled = False

    def __init__(self, noted: list[Any]) -> None:
        self.noted = noted

    def resolve(self, value: Any) -> None:
        self.noted.append(("told", value.seq))

    def fail(self, error: BaseException) -> None:
        self.noted.append(("failed", type(error)))


class Book:
    """A ledger on such a journal, and all that comes out of it, in its order."""

    def __init__(self, desk: Desk, paper: Paper) -> None:
        self.desk, self.paper = desk, paper
        self.noted: list[Any] = []
        self.wall = SimpleNamespace(time=lambda: WALL_S)
        self.owed: list[Owed] = []
        self.ledger = Ledger(
            paper,  # type: ignore[arg-type]
            Clock(self.wall),
            perform=self._perform,
            publish=lambda record: self.noted.append(("published", record.seq)),
            failed=lambda error: self.noted.append(("given up", type(error))),
        )
        paper.disk = self.ledger.disk

    def _perform(self, owed: Owed) -> None:
        self.owed.append(owed)
        self.noted.append(("performed", owed.effect_id, owed.seq))
        if isinstance(owed.effect, StorePrompt):
            raise ValueError("no prompt is kept here")

    def record(self, subject: Any = None, **said: Any) -> LifecycleEvent:
        cause = said.pop("cause", Cause())
        return self.ledger.record(subject or thing(), Draft(name="it", outcome="fact", cause=cause, **said))

    def take(self) -> list[Any]:
        """What came since."""
        noted, self.noted[:] = [*self.noted], []
        return noted


def thing(**fields: Any) -> Any:
    """Whom a record is about."""
    known = {"id": "t1", "parent_id": "p", "kind_name": "task", "state_name": "OPEN", "data": {"a": 1}}
    return SimpleNamespace(**{**known, "entity_seq": 4, "epoch": 7, **fields})


async def _open(desk: Desk, drill: Callable[[Book], Any], **paper: Any) -> None:
    async with anyio.create_task_group() as group:
        book = Book(desk, Paper(desk, **paper))
        group.start_soon(book.ledger.run)
        await drill(book)
        group.cancel_scope.cancel()


# ------------------------------------------------------------------------------------------------------------ commits
async def words(desk: Desk) -> None:
    """A record says who, what, when and why; its row and its effects go to the disk with it."""

    async def drill(book: Book) -> None:
        event = FatalError(message="no", at=12.5)
        later, now = Tell(to="s1", event=event), EndScope(abort_id="a", now=True)
        asker, subject = Asker(book.noted), thing()
        book.ledger.settle("9.9")
        book.ledger.settle(None)
        given = book.ledger.record(
            subject,
            Draft(
                name="Fell",
                outcome="transition",
                cause=Cause(3, "2.0", "ann"),
                event=event,
                effects=(later, now, Bury()),
                from_state="UP",
                reason="why",
                transition_reason="retry",
                abort_reason="oom",
                abort_id="abort-1",
                severity="error",
                ended=True,
                reply=asker,
            ),
        )
        desk.same("an effect that does not wait", book.take(), [("performed", None, 6)])
        desk.same("what it is", book.owed, [Owed("t1", None, now, 6, 7)])
        said = {"message": "no"}
        wanted = LifecycleEvent(
            seq=6,
            timestamp=WALL_S,
            monotonic_s=12.5,
            entity_type="task",
            entity_id="t1",
            entity_seq=4,
            event="Fell",
            from_status="UP",
            to_status="OPEN",
            outcome="transition",
            actor="ann",
            reason="why",
            transition_reason="retry",
            abort_reason="oom",
            abort_id="abort-1",
            cause_id=3,
            severity="error",
            metadata=said,
        )
        desk.same("a record", given, wanted)
        desk.same("the newest", (book.ledger.last_seq, book.ledger.clean), (6, False))
        other = book.record(metadata={"b": 2})
        desk.same("a fact", (other.metadata, other.cause_id, other.actor), ({"b": 2}, None, "supervisor"))
        if abs(other.monotonic_s - book.ledger.clock.now()) > 1e-6 or abs(other.monotonic_s - WALL_S) > 10:
            desk.same("when a fact is", other.monotonic_s, book.ledger.clock.now())
        bare = book.record()
        desk.same("a fact without words", (bare.metadata, bare.reason, bare.severity), ({}, "", "info"))
        await anyio.sleep(3.0)
        one, two, three = book.paper.kept
        desk.same("its row", (one.record, one.parent_id, one.state, one.ended), (wanted, "p", "OPEN", True))
        desk.same("its data", msgspec.json.decode(one.data), {"a": 1})
        kept = [(name, decoded(payload, lambda name, fields: FatalError(**fields))) for name, payload in one.owed]
        desk.same("what it owes", kept, [("6.0", later), ("6.2", Bury())])
        desk.same("what is settled with it", one.settled, ("9.9", "2.0"))
        desk.same("what is settled once", (two.settled, two.owed, two.ended, three.settled), ((), (), False, ()))
        done = [("published", 6), ("told", 6), ("performed", "6.0", 6), ("performed", "6.2", 6)]
        desk.same("what follows", book.take(), [*done, ("published", 7), ("published", 8)])
        desk.same("whose effects", book.owed[1:], [Owed("t1", "6.0", later, 6, 7), Owed("t1", "6.2", Bury(), 6, 7)])
        desk.same("it is clean", book.ledger.clean, True)

    await _open(desk, drill, last_seq=5)


async def groups(desk: Desk) -> None:
    """What comes while a commit is on its way shares the next one, 128 at most; who waits hears when all is durable."""

    async def drill(book: Book) -> None:
        ledger, many = book.ledger, desk.chance.integer(129, 300, "many")
        ledger.when_durable(lambda: book.noted.append("at once"))
        desk.same("who waits for nothing", book.take(), ["at once"])
        await anyio.sleep(1.0)
        for number in range(many):
            book.record(effects=(StorePrompt(prompt="x"), Bury()) if number == 2 else ())
            if number == 40:
                ledger.when_durable(lambda: book.noted.append("forty"))
        desk.same("before anything is durable", book.take(), [])
        desk.again()
        await anyio.sleep(1.5)
        first = [("published", seq) for seq in range(1, TOGETHER + 1)]
        first[3:3] = [("performed", "3.0", 3), ("performed", "3.1", 3)]  # type: ignore[list-item]
        first.insert(43, "forty")  # type: ignore[arg-type]
        desk.same("the first commit", book.take(), first)
        for _ in range(5):
            book.record()
        waited: list[float] = []

        async def flush() -> None:
            await ledger.flush()
            waited.append(desk.since())

        async with anyio.create_task_group() as group:
            group.start_soon(flush)
        total = many + 5
        wanted = [[*range(low, min(low + TOGETHER, many + 1))] for low in range(1, many + 1, TOGETHER)]
        rest = [*range(many + 1, total + 1)]
        joined = [one for batch in wanted[2:] for one in batch]
        wanted = [*wanted[:2], *([] if not joined and not rest else [[*joined, *rest]])]
        desk.same("what shares a commit", book.paper.batches, wanted)
        desk.at("who waited for all of it", float(len(wanted)), len(wanted), waited[0])
        desk.same("what became durable", book.take(), [("published", seq) for seq in range(TOGETHER + 1, total + 1)])
        ledger.settle("1.0")
        book.record()
        ledger.settle("2.0")
        await ledger.close()
        desk.same("after its end", (book.paper.batches[-1], book.paper.settled), ([total + 1], [["2.0"]]))
        desk.same("what was settled on the way", book.paper.kept[-1].settled, ("1.0",))
        await ledger.close()
        desk.same("a second end", book.paper.settled, [["2.0"]])

    await _open(desk, drill)


# ------------------------------------------------------------------------------------------------------------ outages
async def outages(desk: Desk) -> None:
    """A disk is tried again after a tenth of a second, then ever more seldom; nothing is lost, or told twice."""

    async def drill(book: Book) -> None:
        ledger, disk = book.ledger, book.ledger.disk
        for number, (landed, fails) in enumerate((("down", 3), ("landed", 0), ("down", 8), ("landed", 2))):
            seq = ledger.last_seq
            book.paper.script.extend([landed, *["down"] * fails])
            downs: list[str] = []
            disk.down.then(lambda downs=downs: downs.append("down"))  # type: ignore[misc]
            desk.same("before", (disk.outage, disk.up.is_set(), disk.outages), (None, True, number))
            for _ in range(3):
                book.record(reply=Asker(book.noted))
            await anyio.sleep(0.5)
            book.record(effects=(EndScope(), Bury()))
            desk.same("an end does not wait", book.take(), [("performed", None, seq + 4)])
            book.paper.tries.clear()
            await disk.down.wait()
            outage = disk.outage
            shown = outage and (outage.since, outage.why, outage.attempts, outage.waiting)
            desk.same("an outage", shown, (WALL_S, f"it is {landed}", 1, 4))
            desk.same("who was told", (downs, disk.up.is_set(), disk.down.is_set()), (["down"], False, True))
            book.record(reply=Asker(book.noted))
            reached = Moment()
            desk.same("who does not wait for a disk", await disk.unless_down(reached), False)
            await disk.up.wait()
            _check_tries(desk, book.paper, fails)
            desk.same("after it", (disk.outage, disk.up.is_set(), disk.down.is_set()), (None, True, False))
            await anyio.sleep(3.0)
            wanted = [[seq + 1, seq + 2, seq + 3], [seq + 4, seq + 5]]
            desk.same("what is kept", book.paper.batches[-2:], wanted)
            told = [(what, one) for one in range(seq + 1, seq + 4) for what in ("published", "told")]
            told += [("published", seq + 4), ("performed", f"{seq + 4}.1", seq + 4)]  # type: ignore[list-item]
            desk.same("what is told", book.take(), [*told, ("published", seq + 5), ("told", seq + 5)])
            reached.set()
            desk.same("who has what he waits for", await disk.unless_down(reached), True)
        desk.same("how many", disk.outages, 4)

    await _open(desk, drill)


def _check_tries(desk: Desk, paper: Paper, fails: int) -> None:
    """It was looked at again and again, at these instants, until it could be written."""
    desk.same("how often it was tried", len(paper.tries), fails + 1)
    for place, (at_s, outage) in enumerate(paper.tries):
        desk.at("a try", sum(PAUSES_S[: place + 1]), place + 1, at_s)
        shown = outage and (outage.attempts, outage.waiting, outage.since)
        desk.same("what is told of it", shown, (place + 1, 4 + bool(place), WALL_S))
        if place and outage is not None:
            desk.same("what the disk says", outage.why, "it is down")


async def losses(desk: Desk) -> None:
    """An error that no waiting mends ends it, once: who waits is told, and nothing more comes out."""
    for script, abandoned, kind in (
        (["broken"], False, JournalError),
        (["down", "shrunk"], False, JournalError),
        (["down", "grown"], False, JournalError),
        (["down", "broken"], False, JournalError),
        (["landed", "down", "down"], True, JournalUnavailable),
    ):

        async def drill(book: Book, script: list[str] = script, abandoned: bool = abandoned, kind: type = kind) -> None:
            ledger = book.ledger
            book.record(reply=Asker(book.noted))
            await anyio.sleep(1.5)
            desk.same("a sound beginning", book.take(), [("published", 1), ("told", 1)])
            ledger.abandon()
            desk.same("a sound disk is not given up", (ledger.error, book.take()), (None, []))
            book.paper.script.extend(script)
            book.record(reply=Asker(book.noted), effects=(Bury(),))
            ledger.when_durable(lambda: book.noted.append("some"))
            book.record()
            await anyio.sleep(0.2)
            for _ in range(3):
                book.record()
            book.record(reply=Asker(book.noted))
            ledger.when_durable(lambda: book.noted.append("all"))
            await anyio.sleep(1.0)
            if abandoned:
                desk.same("it waits for its disk", book.take(), [])
                ledger.abandon()
                ledger.abandon()
            await anyio.sleep(2.0)
            desk.same("what it is", type(ledger.error), kind)
            told = [("failed", kind), ("failed", kind), "some", "all", ("given up", kind)]
            desk.same("who is told", book.take(), told)
            if abandoned:
                desk.same("what is lost", _numbers(str(ledger.error)), [4, 2])
            desk.same("it is over", (ledger.clean, ledger.disk.outage), (True, None))
            book.record(reply=Asker(book.noted), effects=(EndScope(), Bury()))
            desk.same("what comes after", book.take(), [("failed", kind), ("performed", None, 8)])
            ledger.when_durable(lambda: book.noted.append("at once"))
            desk.same("who waits after that", book.take(), ["at once"])
            await desk.raises("who waits for the disk", ledger.flush(), kind)
            await ledger.close()
            await anyio.sleep(9.0)
            desk.same("after all", (book.take(), book.paper.settled), ([], []))

        await _open(desk, drill)


def _numbers(words: str) -> list[int]:
    """What is counted in them."""
    return [int(one) for one in words.replace(",", " ").split() if one.isdecimal()]


async def settling(desk: Desk) -> None:
    """What was performed is settled at the end, also where the disk is down just then, unless that breaks."""
    for script, settled in ((["down", "", ""], [["7.0", "7.1"]]), (["broken"], []), (["down", "", "broken"], [])):

        async def drill(book: Book, script: list[str] = script, settled: list[list[str]] = settled) -> None:
            ledger = book.ledger
            ledger.settle("7.0")
            ledger.settle("7.1")
            book.paper.script.extend(script)
            await ledger.close()
            desk.same("what is settled", (book.paper.settled, ledger.error is None), (settled, bool(settled)))

        await _open(desk, drill)


async def pressing(desk: Desk) -> None:
    """64 MiB may wait in memory for a disk, a record counted as 2 KiB and what is in it; more, and it is given up."""
    record = LifecycleEvent(seq=1, timestamp=0, monotonic_s=0, entity_type="t", entity_id="t", entity_seq=1, event="e")
    small = Append(record=record, parent_id=None, state="s", data=b"12345", owed=(("1.0", b"123"), ("1.1", b"1")))
    desk.same("what a record takes", held_bytes(small), RECORD_BYTES + 9)
    large = msgspec.structs.replace(small, data=bytes(HELD_MAX - RECORD_BYTES), owed=())
    larger = msgspec.structs.replace(large, owed=(("1.0", b"1"),))
    for waits, given_up in (([large], False), ([larger], True), ([large, small], True)):
        disk = DiskWatch(Paper(desk), SimpleNamespace(time=lambda: WALL_S))  # type: ignore[arg-type]
        for number in range(2):
            disk.hold(waits)
            wrote: list[int] = []

            async def write(seq: int, wrote: list[int] = wrote) -> None:
                wrote.append(seq)

            desk.again()
            try:
                await disk.outlast(JournalUnavailable("full"), write)
            except JournalUnavailable as error:
                desk.same("what waited", (_numbers(str(error))[:1], "(64 MiB)" in str(error)), ([len(waits)], True))
            desk.same("what is given up", (not wrote, disk.outages), (given_up, number + 1))
            desk.at("when", 0.0 if given_up else PAUSES_S[0], 1)
            desk.same("after it", (disk.outage, disk.up.is_set()), (None, True))


async def said(desk: Desk) -> None:
    """What is said of an outage counts as one does."""
    for waiting, words in ((0, "0 records wait"), (1, "1 record waits"), (2, "2 records wait")):
        outage = Outage(since=WALL_S, why="full", attempts=1, waiting=waiting)
        desk.same(f"{waiting} of them", f": full; {words} in memory" in outage.words, True)


async def clocks(desk: Desk) -> None:
    """A ledger's clock begins at the wall's time, never before the last record, and follows no jump of the wall."""
    for wall_s, from_s in ((WALL_S, 0.0), (WALL_S, WALL_S + 50.0), (WALL_S, WALL_S - 50.0)):
        wall = SimpleNamespace(time=lambda wall_s=wall_s: wall_s)
        clock = Clock(wall, from_s)
        desk.again()
        for _ in range(2):
            if abs(clock.now() - max(wall_s, from_s) - desk.since()) > 1e-4:
                desk.same("its time", clock.now(), max(wall_s, from_s) + desk.since())
            await anyio.sleep(2.0)
            wall.time = lambda: 0.0


RECORDING = (words, groups, outages, losses, settling, pressing, said, clocks)
