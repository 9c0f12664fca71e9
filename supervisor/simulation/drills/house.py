"""A house of a drill's own: a whole supervisor whose agents are puppets, on doors that do just what they are told.

What an agent says, when its process ends and what its codec is able to do is the drill's word; what the supervisor did
is read from what the puppet was told, and from the journal. A copy of the journal's store at any instant is what a
supervisor that is killed at that instant leaves.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final

import anyio
import msgspec

from supervisor.diagnostics.invariants import RecordChecker
from supervisor.embedding.runtime import Supervisor, supervise
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import Settings
from supervisor.plugins import Plugins
from supervisor.policies.call_processes import ProcessSeen
from supervisor.ports import (
    Append,
    Changes,
    Codec,
    EntityRow,
    FileRefused,
    JournalError,
    Launch,
    Merge,
    Out,
    Place,
    ProcessReport,
    Ready,
    Released,
    Send,
    SpawnError,
    TurnEnded,
)
from supervisor.ports.path_safety import outside
from supervisor.recovery.takeover import Choose
from supervisor.runtime.availability import PatientHost
from supervisor.runtime.dependencies import Parts
from supervisor.runtime.live_session import AgentProfile
from supervisor.simulation.behind import counted
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.owing import Owing
from supervisor.simulation.specified import Specified

__all__ = ["MOMENT_S", "Guests", "House", "Prop", "Puppet", "Rooms", "afresh"]

EPOCH_S: Final = 1_900_000_000.0
MOMENT_S: Final = 0.01
"""Long enough for all that follows at once: virtual time goes on when nobody has anything to do."""
PUPPET: Final = "puppet"


def afresh(one: Any) -> Any:
    """The same words as another object has them: what comes from a disk, or from an agent, was no object of ours."""
    if type(one) is str:
        return one.encode(errors="surrogatepass").decode(errors="surrogatepass")
    if isinstance(one, msgspec.Struct):
        return msgspec.structs.replace(one, **{name: afresh(getattr(one, name)) for name in one.__struct_fields__})
    return one


class _Output:
    """What a process says; ``b""`` at its end."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._over = False
        self._changed = anyio.Event()

    def put(self, data: bytes) -> None:
        self._pieces.append(data)
        self._changed.set()

    def end(self) -> None:
        self._over = True
        self._changed.set()

    async def next(self) -> bytes:
        while not self._pieces:
            if self._over:
                return b""
            self._changed = anyio.Event()
            await self._changed.wait()
        return self._pieces.popleft()


def born(*pids: int, ticks: int = 1_000_000_000) -> tuple[ProcessSeen, ...]:
    """Tools with these pids, each in a session of its own."""
    return tuple([ProcessSeen(pid, 0, pid, ticks, "S", 1) for pid in pids])


class Prop:
    """A process that does what it is told to (``supervisor.ports.Process``)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.launch: Launch | None = None
        self.rungs_s: tuple[float, float] = (0.0, 0.0)
        """What its start was given to terminate and to kill it."""
        self.orders: list[Any] = []
        """What was done to it, in order."""
        self.stubborn = False
        """It cannot be killed: only the drill ends it."""
        self.children: list[tuple[ProcessSeen, ...] | None] = []
        """What each look finds below it."""
        self.looks = 0
        self.struck: list[tuple[int, ...]] = []
        """The pids of each strike."""
        self.out, self.err = _Output(), _Output()
        self._status: int | None = None
        self._ended_by, self._killed, self._survivors = "exit", 0, 0
        self._exited, self._over = anyio.Event(), anyio.Event()

    # ------------------------------------------------------------------ the drill's
    def exit(
        self,
        status: int | None,
        *,
        ended_by: str = "exit",
        killed: int = 0,
        survivors: int = 0,
        keeps_output: bool = False,
    ) -> None:
        """It ends, and so does its output, unless somebody else holds that open."""
        if not self._exited.is_set():
            self._status, self._ended_by, self._killed, self._survivors = status, ended_by, killed, survivors
            if not keeps_output:
                self.out.end()
                self.err.end()
            self._exited.set()
            self._over.set()

    @property
    def alive(self) -> bool:
        return not self._exited.is_set()

    # ------------------------------------------------------------------ the supervisor's
    async def receive(self) -> bytes:
        return await self.out.next()

    async def receive_err(self) -> bytes:
        return await self.err.next()

    async def send(self, data: bytes) -> None:
        self.orders.append(data)

    def close_input(self) -> None:
        self.orders.append("close")

    def signal(self, number: int) -> None:
        self.orders.append(number)

    def terminate(self) -> None:
        self.orders.append("terminate")
        if not self.stubborn:
            self.exit(-15, ended_by="terminate")

    def kill(self) -> None:
        self.orders.append("kill")
        if not self.stubborn:
            self.exit(-9, ended_by="kill")

    async def leave(self) -> None:
        """Nobody wants it any more: it is ended, however its scope was left."""
        if self.stubborn:
            with anyio.CancelScope(shield=True):
                await self._exited.wait()
        else:
            self.exit(-15, ended_by="terminate")

    def clock(self) -> int:
        return int(anyio.current_time() * 100)

    @property
    def written_between(self) -> tuple[int, int]:
        return self.clock(), self.clock()

    async def look(self) -> tuple[ProcessSeen, ...] | None:
        self.looks += 1
        return self.children.pop(0) if self.children else ()

    def strike(self, found: Iterable[ProcessSeen], number: int) -> None:
        self.struck.append(tuple(one.pid for one in found))

    async def wait_gone(self, pid: int) -> None:
        return

    async def wait_exit(self) -> int | None:
        await self._exited.wait()
        return self._status

    async def wait_ended(self) -> ProcessReport:
        await self._over.wait()
        return ProcessReport(
            pid=self.pid,
            status=self._status,
            ended_by=self._ended_by,
            killed=self._killed,
            survivors=self._survivors,
            took_s=0.0,
        )


class Puppet(Prop):
    """An agent and its codec at once: it says what it is told to say, and notes all that it is asked."""

    def __init__(self, house: House, pid: int) -> None:
        super().__init__(pid)
        self._house = house
        self._said: deque[Sequence[Out]] = deque()
        self.told: list[tuple[Any, ...]] = []
        """What its codec was called with, in order, but for its output."""
        self.one_shot = house.one_shot

    # ------------------------------------------------------------------ the drill's
    def says(self, *outs: Out) -> None:
        self._said.append(outs)
        self.out.put(b".")

    def heard(self, *names: str) -> list[tuple[Any, ...]]:
        """What it was told of these kinds."""
        return [one for one in self.told if one[0] in names]

    def close_input(self) -> None:
        super().close_input()
        if not self.stubborn:
            self.exit(0)

    # ------------------------------------------------------------------ its codec's
    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        self.told.append(("argv", tuple(command), prompt, resume_id))
        return (PUPPET, str(self.pid))

    def start(self, cwd: str, resume_id: str | None = None) -> Iterable[Out]:
        self.told.append(("start", cwd, resume_id))
        return self._house.ready(self)

    def prompt(self, text: str) -> Iterable[Out]:
        self.told.append(("prompt", text))
        return [Send(f"prompt {text}".encode()), *self._house.answers(self, text)]

    def steer(self, text: str) -> Iterable[Out] | None:
        self.told.append(("steer", text))
        return [Send(b"steer")] if self._house.steers else None

    def interrupt(self) -> Iterable[Out]:
        self.told.append(("interrupt",))
        return self._house.stops(self)

    def end_call(self, call_id: str) -> Iterable[Out] | None:
        self.told.append(("end_call", call_id))
        return [Send(b"end_call")] if self._house.ends_calls else None

    def close(self) -> Iterable[Out]:
        self.told.append(("close",))
        return ()

    def feed(self, data: bytes) -> Iterable[Out]:
        return [afresh(out) for _ in data for out in self._said.popleft()]

    def exited(self, status: int | None) -> Iterable[Out]:
        self.told.append(("exited", status))
        return [TurnEnded("error", "it is gone")] if self._house.last_word else ()

    def permission(self, request_id: str, option_id: str | None) -> Iterable[Out]:
        self.told.append(("permission", request_id, option_id))
        return ()

    def terminal_output(self, terminal_id: str, data: bytes) -> Iterable[Out]:
        self.told.append(("output", terminal_id, data))
        return ()

    def terminal_exited(self, terminal_id: str, status: int | None) -> Iterable[Out]:
        self.told.append(("terminal", terminal_id, status))
        return ()

    def file_answered(self, request_id: str, text: str, why: str = "") -> Iterable[Out]:
        self.told.append(("file", request_id, text, why))
        return ()

    def child_ended(self, request_id: str, outcome: str, text: str) -> Iterable[Out]:
        self.told.append(("child", request_id, outcome, text))
        return ()


class Rooms:
    """Where sessions work (``supervisor.ports.Workspace``): it notes what is asked, and can fail."""

    def __init__(self) -> None:
        self.temporary = False
        self.noted: list[tuple[Any, ...]] = []
        self.done: list[str] = []
        """What was done to its end."""
        self.fails: dict[str, str] = {}
        """What cannot be done, and why."""
        self.takes_s: dict[str, float] = {}
        self.merged = Merge(outcome="nothing")
        self.changed: list[Changes | None] = []
        self.rest: list[str] = []
        self.released = Released()

    async def _do(self, what: str, *more: Any) -> None:
        self.noted.append((what, *more))
        await anyio.sleep(self.takes_s.get(what, 0.0))
        if what in self.fails:
            raise OSError(self.fails[what])
        self.done.append(what)

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        await self._do("prepare", session_id, directory, root_id)
        return f"{directory}/{session_id}"

    async def commit(self, session_id: str, message: str) -> str:
        await self._do("commit", session_id)
        return "judged" if self.temporary else ""

    async def merge(self, session_id: str, message: str, commit: str = "") -> Merge:
        await self._do("merge", session_id, message)
        return self.merged

    async def changes(self, session_id: str, message: str, commit: str = "") -> Changes | None:
        await self._do("changes", session_id)
        return self.changed.pop(0) if self.changed else None

    async def begin(self, session_id: str, place: Place) -> None:
        await self._do("begin", session_id, place)

    async def save(self, session_id: str, place: Place, message: str) -> str:
        await self._do("save", session_id, place)
        return "saved"

    async def roll_back(self, session_id: str, place: Place, message: str) -> str:
        await self._do("roll_back", session_id, place)
        return "before"

    async def accept(self, place: Place) -> None:
        await self._do("accept", place)

    async def forget(self, place: Place) -> None:
        await self._do("forget", place)

    async def left(self) -> list[str]:
        await self._do("left")
        return self.rest

    async def put_away(self, session_id: str, message: str) -> Released:
        await self._do("put_away", session_id)
        return self.released


class _Files:
    """The files that agents ask for."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    async def read(self, path: str, workspace: str) -> str:
        if why := outside("path", path, workspace):
            raise FileRefused(why)
        if path not in self.texts:
            raise FileNotFoundError(path)
        return self.texts[path]

    async def write(self, path: str, text: str, workspace: str) -> None:
        if why := outside("path", path, workspace):
            raise FileRefused(why)
        self.texts[path] = text


class _Transcript:
    """What stands in a session's transcript: who, and what."""

    def __init__(self, lines: list[tuple[str, str]]) -> None:
        self._lines = lines

    def write(self, source: str, text: str, *, at: float) -> None:
        self._lines.append((source, text))

    def close(self) -> None:
        self._lines.append(("", "closed"))


class _Wall:
    """The wall's clock; somebody may have set it."""

    def __init__(self, off_s: float) -> None:
        self._off_s = off_s

    def time(self) -> float:
        return anyio.current_time() + EPOCH_S + self._off_s


class Guests(Plugins):
    """No plug-ins, but an adapter of their kind: puppets'."""

    def __init__(self, made: Callable[[], Codec]) -> None:
        super().__init__()
        self._made = made

    @property
    def adapters(self) -> dict[str, Callable[[], Codec]]:
        return {PUPPET: self._made}


class _Disk(MemoryJournal):
    """A disk that fails, or takes its time, when its house says so."""

    def __init__(self, house: House, store: MemoryStore, say: Callable[[str, str, str], None]) -> None:
        super().__init__(store)
        self._house = house
        self._owing = Owing(say, store.owed)

    def _writable(self) -> MemoryStore:
        if self._house.disk_fails is not None:
            raise self._house.disk_fails
        return super()._writable()

    async def entities(self, *, live_only: bool = False, ids: Sequence[str] | None = None) -> list[EntityRow]:
        """As from a real one: no text is the very object that was written."""
        return [afresh(row) for row in await super().entities(live_only=live_only, ids=ids)]

    async def append(self, batch: Sequence[Append]) -> None:
        if self._house.commit_s:
            await anyio.sleep(self._house.commit_s)
        if self._house.cuts is None:
            await super().append(batch)
            self._hear(batch)
            return
        for one in batch:  # each might have been a commit of its own
            await super().append([one])
            self._hear([one])
            if self._house.cut_at(self._house.store.last_seq):
                self._house.cuts.append(copy.deepcopy(self._house.store))

    def _hear(self, batch: Sequence[Append]) -> None:
        for one in batch:
            self._owing.wrote(one)


class House:
    """One supervisor after the other, on one journal.

    Every record that is written in it is held to all that is said of records (``supervisor.diagnostics.invariants``),
    and every step to the specification, as those of a run are.

    Args:
        store: what an earlier one left.
    """

    def __init__(self, desk: Desk, store: MemoryStore | None = None) -> None:
        self._desk = desk
        self.store = MemoryStore() if store is None else store
        self.puppets: list[Puppet] = []
        self.props: list[Prop] = []
        self.rooms = Rooms()
        self.files = _Files()
        self.transcripts: dict[str, list[tuple[str, str]]] = {}
        self.cannot_start: set[str] = set()
        """Commands, and numbers of puppets, that cannot be started."""
        self.one_shot = self.steers = self.ends_calls = self.last_word = False
        self.ready: Callable[[Puppet], Iterable[Out]] = lambda puppet: [Ready("its-name", "a puppet")]
        self.answers: Callable[[Puppet, str], Iterable[Out]] = lambda puppet, text: ()
        self.stops: Callable[[Puppet], Iterable[Out]] = lambda puppet: [TurnEnded("cancelled")]
        self.disk_fails: JournalError | None = None
        """What it answers to whoever writes, as long as it does."""
        self.commit_s = 0.0
        """How long a commit takes."""
        self.wall_off_s = 0.0
        """By how much the wall's clock was set on."""
        self.judged = True
        self.cuts: list[MemoryStore] | None = None
        """The journal as it was after each commit, where that is wanted."""
        self.cut_at: Callable[[int], bool] = lambda seq: True
        """After which records it is wanted."""
        self.journal: MemoryJournal
        self._pids = 100

    @asynccontextmanager
    async def open(
        self,
        settings: Settings | None = None,
        agents: Mapping[str, AgentProfile] = MappingProxyType({}),
        choose: Choose | None = None,
        **parts: Any,
    ) -> AsyncIterator[Supervisor]:
        self.journal = _Disk(self, self.store, self._desk.say)
        doors = Parts(
            journal=self.journal,
            processes=PatientHost(self, _Wall(self.wall_off_s)),
            workspace=self.rooms,
            files=self.files,
            wall=_Wall(self.wall_off_s),
            transcript_of=lambda one: _Transcript(self.transcripts.setdefault(one, [])),
            seed=7,
        )
        profiles = {PUPPET: AgentProfile(name=PUPPET, adapter=PUPPET, directory="/house"), **agents}
        async with supervise(doors._replace(**parts), profiles, settings or Settings(), choose, self.guests()) as sup:
            yield sup
            self._check_kept(sup)
        self._desk.same("what is still counted when it has closed", counted(sup, self.store.entities), [])
        if self.judged:
            self._judge()

    def _check_kept(self, sup: Supervisor) -> None:
        """Who has ended is kept by nobody."""
        for work in sup.tree.works.values():
            kept = {*work.turns} - {*sup.tree.entities} | {*work.children} - {*sup.tree.works}
            self._desk.same(f"who has ended, and is kept by {work.session_id}", kept, set())

    def _judge(self) -> None:
        say = self._desk.say
        specified = Specified(say)
        checker = RecordChecker(on_step=specified.stepped)
        for record in self.store.log.after(0, sys.maxsize):
            if record.outcome == "born":
                specified.born(record)
            elif record.outcome in ("stale", "refused"):
                specified.denied(record)
            for one in checker.take(record):
                say(one.invariant, one.entity_id, one.message)

    def guests(self) -> Plugins:
        """The plug-ins of its supervisor: none but puppets' adapter."""
        return Guests(self._made)

    def left(self) -> House:
        """The house after a kill of its supervisor, at this instant: nobody is at work in it."""
        return House(self._desk, copy.deepcopy(self.store))

    def _made(self) -> Puppet:
        self._pids += 1
        self.puppets.append(Puppet(self, self._pids))
        return self.puppets[-1]

    @asynccontextmanager
    async def spawn(self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0) -> AsyncIterator[Prop]:
        """``supervisor.ports.ProcessHost``: a puppet takes its place, any other program is a prop."""
        if launch.argv[0] in self.cannot_start:
            raise SpawnError(f"{launch.argv[0]} cannot be started")
        if launch.argv[0] == PUPPET:
            process: Prop = next(one for one in self.puppets if str(one.pid) == launch.argv[1])
        else:
            self._pids += 1
            process = Prop(self._pids)
            self.props.append(process)
        process.launch, process.rungs_s = launch, (terminate_s, kill_s)
        try:
            yield process
        finally:
            if process.alive:
                process.orders.append("left")
                await process.leave()

    async def log(self, entity_id: str) -> list[LifecycleEvent]:
        return await self.journal.events(entity_id=entity_id)

    async def events(self, entity_id: str, *names: str) -> list[LifecycleEvent]:
        """The records of it that have one of these names."""
        return [one for one in await self.log(entity_id) if one.event in names]
