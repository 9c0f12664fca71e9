"""Helpers for tests that run whole sessions: wait for a record or a process, and check the records of every run.

Nothing here sleeps: a test waits for a durable record, for the end of a process (by its pidfd), or for the end of file
of a pipe that processes hold open. At the end of its block ``supervising`` checks the journal of the run: every
transition is legal, every record names its cause, every entity has ended, and no effect is pending.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.agents.codecs import scripted_command
from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute
from supervisor.diagnostics.event_replay import KINDS
from supervisor.diagnostics.invariants import RecordChecker
from supervisor.embedding.runtime import open_supervisor
from supervisor.host.api import Supervisor
from supervisor.host.handle import Session, TurnResult
from supervisor.journal.memory import MemoryJournal, MemoryStore
from supervisor.lifecycles import MACHINES
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import AgentConfig, LimitsConfig, PolicyConfig, Settings, StageBudgetsConfig
from supervisor.ports import Append, EntityRow
from supervisor.processes import shim

DEADLINE_S = 120.0
"""Seconds after which a test gives up and fails. No test waits until this time has passed."""

T = TypeVar("T")

DATA: Mapping[str, type[msgspec.Struct]] = {name: kind.data for name, kind in KINDS.items()}

AGENTS: Mapping[str, AgentConfig] = {"scripted": AgentConfig(adapter="scripted")}

_FIRST_LINE = ("sh", "-c", 'eval "$(printf %s "$0" | sed -n 1p)"', "{prompt}")
FIRST_LINE = AgentConfig(adapter="command", command=_FIRST_LINE, explain_retries=True)
"""Agent that reads its prompt, and executes the first line: unlike ``sh -c {prompt}``, it can be given a reason for a
retry, and so another claim of its task."""


def quick_settings(
    *, ladder: Mapping[str, float] | None = None, policy: Mapping[str, bool] | None = None, **limits: Any
) -> Settings:
    """Return settings with short deadlines, for agents that misbehave; *limits* are limits of a session.

    The first termination stage stays long, so that an agent that ends in order has enough time on a loaded machine.
    """
    rungs = {"request_s": 10.0, "cancel_s": 1.0, "terminate_s": 0.1, "kill_s": 1.0, **(ladder or {})}
    bounds = {"backoff_base_ms": 1, "backoff_cap_ms": 4, **limits}
    return Settings(
        drain_s=DEADLINE_S,
        policy=PolicyConfig(ladder=StageBudgetsConfig(**rungs), **(policy or {})),
        limits=LimitsConfig(**bounds),
    )


# ---------------------------------------------------------------------------------------------------- running
class Run:
    """Supervisor of a test, and its journal, which can be read even after the supervisor has ended."""

    def __init__(self, sup: Supervisor, store: MemoryStore) -> None:
        self.sup = sup
        self.store = store

    def events(self, entity_id: str | None = None) -> list[LifecycleEvent]:
        """Return the durable records, in order: those of one entity, or all."""
        log = self.store.log if entity_id is None else self.store.logs[entity_id]
        return log.after(0, 1_000_000)

    def transitions(self, event: str, entity_id: str | None = None) -> list[LifecycleEvent]:
        """Return the durable records of transitions by the event of that name."""
        return [one for one in self.events(entity_id) if one.event == event and one.outcome == "transition"]

    def row(self, entity_id: str) -> EntityRow:
        return self.store.entities[entity_id]

    @property
    def disk(self) -> FrozenJournal:
        """Journal of the run, if the run was started with a FrozenJournal."""
        assert isinstance(self.sup.core.journal, FrozenJournal)
        return self.sup.core.journal


@asynccontextmanager
async def supervising(
    workdir: Path,
    *,
    settings: Settings | None = None,
    agents: Mapping[str, AgentConfig] = AGENTS,
    journal: Callable[[MemoryStore], MemoryJournal] = MemoryJournal,
    freeze_at: str = "",
    refused: bool = False,
    within_s: float = 2 * DEADLINE_S,
    plugins: Sequence[object] = (),
) -> AsyncIterator[Run]:
    """Run a supervisor with its journal in memory, and check the records when the supervisor has ended.

    *freeze_at*: the journal is frozen from the first record of that event on. *refused*: the test itself sends events
    that a machine refuses.
    """
    store = MemoryStore()
    with anyio.fail_after(within_s):
        async with open_supervisor(
            agents=agents,
            settings=settings or quick_settings(),
            workdir=workdir,
            plugins=plugins,
            journal=FrozenJournal(store, freeze_at) if freeze_at else journal(store),
        ) as sup:
            try:
                yield Run(sup, store)
            finally:
                if isinstance(sup.core.journal, FrozenJournal):
                    sup.core.journal.thaw.set()  # a test that fails while the journal is frozen must not hang
    check_records(store.log.after(0, 1_000_000), store.entities.values(), store.owed.values(), refused=refused)


@asynccontextmanager
async def taking_over(
    left: MemoryStore | MemoryJournal,
    workdir: Path,
    *,
    agents: Mapping[str, AgentConfig] = AGENTS,
    settings: Settings | None = None,
) -> AsyncIterator[Supervisor]:
    """Run a supervisor that takes over the journal of a dead supervisor."""
    journal = MemoryJournal(left) if isinstance(left, MemoryStore) else left
    settings = settings or quick_settings()
    with anyio.fail_after(DEADLINE_S):
        async with open_supervisor(agents=agents, settings=settings, workdir=workdir, journal=journal) as sup:
            yield sup


class FrozenJournal(MemoryJournal):
    """Journal whose appends wait for the event ``thaw``, after a call of ``freeze()`` or from the first record of a
    given event on."""

    def __init__(self, store: MemoryStore, freeze_at: str = "") -> None:
        super().__init__(store)
        self.thaw = anyio.Event()
        self.thaw.set()
        self.frozen = anyio.Event()
        self._freeze_at = freeze_at

    def freeze(self) -> None:
        self.thaw = anyio.Event()

    async def append(self, batch: Sequence[Append]) -> None:
        if self._freeze_at in [one.record.event for one in batch]:
            self._freeze_at = ""
            self.freeze()
        if not self.thaw.is_set():
            self.frozen.set()
            with anyio.CancelScope(shield=True):
                await self.thaw.wait()
        await super().append(batch)


class PendingPrompt:
    """Prompt that was sent by a task of its own, with its result as soon as there is one."""

    def __init__(self) -> None:
        self._answered = anyio.Event()
        self._outcome: TurnResult | BaseException | None = None

    async def run(self, session: Session, prompt: str) -> None:
        try:
            self._outcome = await session.run(prompt)
        except LookupError as error:
            self._outcome = error
        finally:
            self._answered.set()

    @property
    def answered(self) -> bool:
        return self._answered.is_set()

    async def result(self) -> TurnResult:
        with anyio.fail_after(DEADLINE_S):
            await self._answered.wait()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome


def send_prompt(group: TaskGroup, session: Session, prompt: str) -> PendingPrompt:
    """Send a prompt to *session* in a new task, without waiting for the result."""
    asked = PendingPrompt()
    group.start_soon(asked.run, session, prompt)
    return asked


def start_call(group: TaskGroup, call: Callable[..., Awaitable[T]], *args: object, **named: object) -> list[T]:
    """Call an async function in a new task; the result is appended to the returned list."""
    results: list[T] = []

    async def run() -> None:
        results.append(await call(*args, **named))

    group.start_soon(run)
    return results


async def wait_for_record(
    sup: Supervisor, event: str, entity_id: str, *, number: int = 1, outcome: str = "transition"
) -> LifecycleEvent:
    """Wait for the *number*-th durable record with that event and outcome in the log of an entity, and return the
    record."""
    seen = 0
    with anyio.fail_after(DEADLINE_S):
        async with sup.subscribe(0) as records:
            async for record in records:
                if (record.event, record.entity_id, record.outcome) == (event, entity_id, outcome):
                    seen += 1
                    if seen == number:
                        return record
    raise AssertionError(f"the supervisor ended before the {number}. {event} of {entity_id}")


# ---------------------------------------------------------------------------------------------------- records
def states_of(events: Iterable[LifecycleEvent], entity_id: str) -> list[str]:
    """Return the states of an entity, in order."""
    path: list[str] = []
    for one in events:
        changes = one.outcome == "born" or (one.outcome == "transition" and one.from_status != one.to_status)
        if one.entity_id == entity_id and changes:
            path.append(one.to_status)
    return path


def data_of(row: EntityRow) -> Any:
    """Return the decoded data of an entity's row."""
    return msgspec.json.decode(row.data, type=DATA[row.kind])


def agent_pids(events: Iterable[LifecycleEvent], session_id: str) -> list[int]:
    """Return the process ids of a session's agents, oldest first."""
    return [
        one.metadata["pid"]
        for one in events
        if one.event == "process_started" and one.entity_id.rpartition(":")[0] == session_id
    ]


# ------------------------------------------------------------------------------------------------------ invariants
def check_records(
    events: list[LifecycleEvent],
    rows: Iterable[EntityRow],
    owed: Iterable[tuple[str, str, bytes]],
    *,
    refused: bool = False,
) -> None:
    """Assert that the records, rows and pending effects of a run that has ended in order satisfy the invariants of the
    journal."""
    assert [one.seq for one in events] == list(range(1, len(events) + 1))
    if not refused:
        refusals = [f"{one.entity_id}: {one.reason}" for one in events if one.outcome == "refused"]
        assert not refusals, refusals
    for one in events:
        check_cause(one)
    logs: dict[str, list[LifecycleEvent]] = {}
    for one in events:
        logs.setdefault(one.entity_id, []).append(one)
    for row in rows:
        check_entity(row, logs[row.id])
    left = list(owed)
    assert not left, left
    checker = RecordChecker()
    broken = [violation for one in events for violation in checker.check(one)] + checker.finish(quiescent=False)
    assert not broken, broken


def check_cause(record: LifecycleEvent) -> None:
    """Assert that a record has an older record as its cause, or names the operator or program that requested
    the event."""
    if record.cause_id is None:
        assert record.actor not in ("", "supervisor"), f"nothing explains {record}"
    else:
        assert 0 < record.cause_id < record.seq, f"the cause comes after {record}"


def check_entity(row: EntityRow, events: list[LifecycleEvent]) -> None:
    """Assert that an entity's log has no gap, is legal, leads to the state of the entity's row, and ends in a final
    state."""
    machine = MACHINES[row.kind]
    born, *rest = events
    assert [one.entity_seq for one in events] == list(range(1, len(events) + 1))
    assert born.outcome == "born"
    states = {str(state.value): state for state in machine.states}
    state, data = states[born.to_status], msgspec.convert(born.metadata, DATA[row.kind])
    assert state in machine.initial
    for one in rest:
        if one.outcome != "transition":
            assert one.to_status == str(state.value), one
            continue
        event = msgspec.convert({**one.metadata, "at": one.monotonic_s}, machine.events[one.event])
        assert one.from_status == str(state.value), one
        state, data, _, _ = machine.step(state, data, event)
        assert one.to_status == str(state.value), one
    folded = (str(state.value), msgspec.json.encode(data))
    assert (row.state, row.data) == folded, (row, folded)
    # An operator could retry a failed task, so neither its log nor that of its task run is final.
    rests = {("task", "FAILED"), ("run", "CIRCUIT_OPEN")}
    assert row.ended or (row.kind, row.state) in rests, f"{row.id} is left in {row.state}"


# ---------------------------------------------------------------------------------------------------- processes
@contextmanager
def running_program(argv: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a program; kill the program if the block fails, and wait for its end.

    A plain ``with subprocess.Popen(...)`` waits for the end of a program that nobody ends after a failed assertion, so
    that the test hangs.

    Parameters:
        argv: program and arguments.
        options: those of ``subprocess.Popen``.
    """
    with subprocess.Popen(argv, **options) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


async def wait_for_exit(*pids: int) -> None:
    """Wait until none of these processes runs any more; a zombie counts as ended."""
    with anyio.fail_after(DEADLINE_S):
        for pid in pids:
            with suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                try:
                    await anyio.wait_readable(pidfd)
                finally:
                    os.close(pidfd)


class HeldPipe:
    """Named pipe that processes open for writing and hold open; by it a test knows which have started, and when all
    have ended.

    In a script: ``@run exec 9>roll; echo tool $$ >&9; ...`` writes a line ``NAME PID``. Child processes inherit the
    descriptor, so end of file comes when every process that ever held the pipe has ended.
    """

    def __init__(self, directory: Path, name: str = "roll") -> None:
        self.path = str(directory / name)
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._unread = b""
        self.seen: list[tuple[str, int]] = []

    async def _read(self) -> bool:
        await anyio.wait_readable(self._fd)
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return True
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            name, pid = line.decode().split()
            self.seen.append((name, int(pid)))
        return bool(data)

    async def here(self, count: int) -> list[int]:
        """Wait until *count* processes have written their line; return the pids of all processes that have."""
        with anyio.fail_after(DEADLINE_S):
            while len(self.seen) < count:
                await self._read()
        return [pid for _, pid in self.seen]

    async def all_gone(self, within_s: float = DEADLINE_S) -> None:
        """Wait for end of file, when no process holds the pipe open any more."""
        with anyio.fail_after(within_s):
            while await self._read():
                pass

    def close(self) -> None:
        os.close(self._fd)


def stdout_of(*words: object) -> str:
    """Run a command line in this process, and return its standard output; an exception of the command is raised."""
    return _printed(words)[0]


def stderr_of(*words: object) -> str:
    """Run a command line in this process, and return its standard error; an exception of the command is raised."""
    return _printed(words)[1]


def _printed(words: tuple[object, ...]) -> tuple[str, str]:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        supervisor.main([str(one) for one in words], prog_name="supervisor", standalone_mode=False)
    return out.getvalue().rstrip("\n"), err.getvalue().rstrip("\n")


class CommandOutput(NamedTuple):
    """Exit status and output of a command line that has run."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[Any]:
        """Lines of standard output, each decoded as JSON."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


def run_command(*words: object, cwd: Path = Path()) -> CommandOutput:
    """Run a command line in this process, since a start of Python would take half a second of CPU time; return exit
    status and output."""
    with chdir(cwd), redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        status = execute(supervisor, [str(one) for one in words])
    return CommandOutput(status, out.getvalue(), err.getvalue())


class Gate:
    """Named pipe at which programs wait, with ``read go < gate``; each call of ``open()`` lets one program go on."""

    def __init__(self, directory: Path, name: str = "gate") -> None:
        self.path = str(directory / name)
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def open(self) -> None:
        os.write(self._fd, b"go\n")

    def close(self) -> None:
        os.close(self._fd)

    def agent(self) -> AgentConfig:
        """Return the configuration of a scripted agent that waits at the gate before its handshake."""
        line = f'read go < {self.path}; exec "$@"'
        return AgentConfig(adapter="acp", command=("sh", "-c", line, "sh", *scripted_command()))


def git(where: Path, *words: str) -> str:
    """Run git with a fixed identity, and return its output."""
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@localhost", "-c", "commit.gpgSign=false")
    done = subprocess.run(["git", *identity, *words], cwd=where, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def open_descriptors() -> set[str]:
    """Return the open descriptors of this process, without the descriptor that the listing itself opens."""
    return {fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}


def reap(pid: int) -> None:
    """Reap a dead child process; a process that is no child of this one is ignored."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


OLDER_CHILDREN: set[int] = set()
"""Children of this process that no test has started, such as ``multiprocessing``'s resource tracker."""


async def reap_all() -> None:
    """Wait for the end of every child of this process, adopted orphans included, and reap it."""
    for pid in set(shim.children(os.getpid())) - OLDER_CHILDREN:
        await wait_for_exit(pid)
        reap(pid)


@contextmanager
def no_leaks() -> Iterator[None]:
    """Assert that the block leaves no process and no open descriptor behind.

    This process is a subreaper during the block: orphans of processes that the block has started become its children.
    """
    ctypes.CDLL(None).prctl(shim.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before, family = open_descriptors(), set(shim.children(os.getpid()))
    OLDER_CHILDREN.update(family)
    try:
        yield
        orphans = set(shim.children(os.getpid())) - family
    finally:
        for pid in set(shim.children(os.getpid())) - family:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        ctypes.CDLL(None).prctl(shim.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert not orphans, f"left behind: {orphans}"
    # A descriptor that an earlier test left to the garbage collector may be closed meanwhile: fewer are no leak.
    assert open_descriptors() <= before
