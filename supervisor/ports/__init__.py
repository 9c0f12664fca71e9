"""The doors to the world: what the runtime asks of processes, agents, the disk, and the clock.

Protocols and the values that cross them; no implementation. One conformance suite per port runs on every
implementation. A codec is sans-I/O: bytes in, agent events out; commands in, bytes out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from supervisor.lifecycles.types import CancelMode, LifecycleEvent, ModelProblem
from supervisor.policies.call_processes import ProcessSeen

__all__ = [
    "NO_PLACE",
    "SERVER_VARIABLE",
    "Append",
    "CallKept",
    "Caller",
    "Changes",
    "ChildAsked",
    "CloseInput",
    "Codec",
    "Compacted",
    "Compaction",
    "EntityRow",
    "Fenced",
    "FileAsked",
    "FileRefused",
    "Files",
    "Heard",
    "Journal",
    "JournalDamaged",
    "JournalError",
    "JournalLost",
    "JournalUnavailable",
    "Launch",
    "Malformed",
    "McpServer",
    "Merge",
    "ModelTrouble",
    "Named",
    "Origin",
    "Out",
    "PermissionAsked",
    "Place",
    "Process",
    "ProcessHost",
    "ProcessReport",
    "Ready",
    "Released",
    "Retention",
    "Send",
    "Signal",
    "SpawnError",
    "SpawnShortage",
    "TerminalKilled",
    "TerminalOpened",
    "Text",
    "ToolClosed",
    "ToolOpened",
    "TranscriptSink",
    "TurnEnded",
    "Upkeep",
    "Usage",
    "WallClock",
    "Wishes",
    "Workspace",
]


# --------------------------------------------------------------------------------------------------- processes
class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A program to start: its argv, working directory, and whole environment (nothing is inherited).

    ``spare`` descriptors must be left to the supervisor when it is started: those that commands of agents need.
    """

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    spare: int = 0
    session: str = ""
    """Who is behind what the program asks of the supervisor: the session that it works for, if it works for one."""


class Origin(StrEnum):
    """Where a program comes from that asks something of the supervisor."""

    OPERATOR = "operator"
    """Not from the supervisor: a person's terminal, or the program that embeds it."""
    AGENT = "agent"
    """The supervisor started it, or it descends from what the supervisor started."""
    UNTOLD = "untold"
    """Nobody can tell: it had ended when it was looked at."""


class Caller(NamedTuple):
    """A program that asks something of the supervisor, and the session that it was started for (``""``: for none)."""

    origin: Origin
    pid: int
    session: str = ""

    def named(self, said: str) -> str:
        """Who asks, as the records name it. An operator's own word, *said*, counts; that of an agent does not."""
        if self.origin is Origin.OPERATOR:
            return said
        if self.origin is Origin.UNTOLD:
            return "a process that cannot be told"
        return f"agent of {self.session}" if self.session else "a program of the supervisor"


SERVER_VARIABLE: Final = "SUPERVISOR_SERVER"
"""The environment variable that marks a server which an agent keeps from turn to turn, such as an MCP server that the
plan declares; what the server starts has it too."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of a process and of everything it started.

    ``status`` is the main process's exit status in Python's form (negative: signal), ``None`` when it is not known
    (the warden itself died). ``ended_by`` is ``exit`` (by itself), ``terminate`` or ``kill`` (by us).
    ``killed`` counts the descendants that had to be killed, ``survivors`` those that are still there: 0, or -1 when
    nobody can say. In a pid namespace whose warden was lost the kernel kills: ``killed`` is of the main process only.
    ``outlived`` are the descendants that still ran when the main process had exited by itself, and were killed then.
    """

    pid: int
    status: int | None
    ended_by: str
    killed: int
    survivors: int
    took_s: float
    outlived: tuple[ProcessSeen, ...] = ()


class SpawnError(Exception):
    """A program could not be started; the message says which, and why."""


class SpawnShortage(SpawnError):
    """The machine lacks what every program needs to start, such as file descriptors: nothing was started, and the same
    launch may succeed later. ``lacks`` names what."""

    def __init__(self, message: str, lacks: str) -> None:
        super().__init__(message)
        self.lacks = lacks


class Process(Protocol):
    """A running program under its warden. ``signal``, ``terminate`` and ``kill`` never wait and never raise."""

    @property
    def pid(self) -> int: ...

    async def receive(self) -> bytes:
        """The next bytes of its standard output, at most 64 KiB; ``b""`` at the end."""
        ...

    async def receive_err(self) -> bytes:
        """The next bytes of its standard error; ``b""`` at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """Write all of *data* to its standard input; a closed input drops it silently (the exit tells why)."""
        ...

    def close_input(self) -> None:
        """End of its standard input."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the main process only."""
        ...

    def terminate(self) -> None:
        """SIGTERM, then SIGCONT, to the whole tree."""
        ...

    def kill(self) -> None:
        """SIGKILL the whole tree until nothing is left."""
        ...

    def clock(self) -> int:
        """Now, in the ticks in which the births of processes are told."""
        ...

    @property
    def written_between(self) -> tuple[int, int]:
        """The ticks between which the bytes that were received last were written, the second one included."""
        ...

    async def look(self) -> tuple[ProcessSeen, ...] | None:
        """The main process and all its descendants, parents before their children: a snapshot. Nothing after the end of
        the main process: then all of them are being ended. ``None`` where the platform cannot tell."""
        ...

    def strike(self, found: Iterable[ProcessSeen], number: int) -> None:
        """Send the signal *number* to these descendants, to each only if it is still the process that was seen."""
        ...

    async def wait_gone(self, pid: int) -> None:
        """Wait until the descendant *pid* (of :meth:`look`) has ended; it may return early, so look again."""
        ...

    async def wait_exit(self) -> int | None:
        """The exit status of the main process (Python's form), ``None`` when the warden was lost."""
        ...

    async def wait_ended(self) -> ProcessReport:
        """Its fate, once the whole tree is gone and reaped."""
        ...


class ProcessHost(Protocol):
    """Starts programs, each under a warden of its own."""

    def spawn(
        self, launch: Launch, *, terminate_s: float = 2.0, kill_s: float = 1.0
    ) -> AbstractAsyncContextManager[Process]:
        """Start *launch*. Leaving the context ends the whole tree (terminate, then kill) under a bounded shield.

        Raises:
            SpawnError: the program is missing, not executable, or the working directory does not exist.
            SpawnShortage: descriptors, processes or memory have run out.
        """
        ...


# --------------------------------------------------------------------------------------------------- agents
class Send(msgspec.Struct, frozen=True):
    """Write these bytes to the agent's standard input."""

    data: bytes


class CloseInput(msgspec.Struct, frozen=True):
    """End of the agent's standard input."""


class Signal(msgspec.Struct, frozen=True):
    """Send this signal to the agent's main process (agents without an in-band cancel)."""

    number: int


class Ready(msgspec.Struct, frozen=True):
    """The agent can take prompts. ``resume_id`` is its own name for the conversation, where it can be loaded again;
    ``steers``: it can be told something within a turn (:meth:`Codec.steer`)."""

    resume_id: str | None = None
    info: str = ""
    steers: bool = False


class Heard(msgspec.Struct, frozen=True):
    """The agent works on what it was told within the turn (:meth:`Codec.steer`): on the oldest that it had not yet."""


class Named(msgspec.Struct, frozen=True):
    """The agent says its own name for the conversation, once that is under way: it can be loaded again by that."""

    resume_id: str


class Text(msgspec.Struct, frozen=True):
    """Something the agent said (``message``), thought (``thought``) or logged (``log``)."""

    kind: str
    text: str


class ToolOpened(msgspec.Struct, frozen=True):
    """The agent began a tool call. ``parent`` is the open call that it is made within: a sub-agent of the agent's own
    is a call of kind ``agent``, and its calls have it as their parent."""

    call_id: str
    title: str
    tool_kind: str = "other"
    parent: str = ""


class ToolClosed(msgspec.Struct, frozen=True):
    """A tool call returned: ``completed``, ``failed``, or ``unknown`` where the agent never told. ``asked`` and
    ``answered`` are digests of its arguments and of what came of it; ``""``: not told."""

    call_id: str
    outcome: str
    asked: str = ""
    answered: str = ""


class CallKept(msgspec.Struct, frozen=True):
    """The agent did not end a call that ``Codec.end_call`` asked it to end; *why* says what stood in the way."""

    call_id: str
    why: str


class PermissionAsked(msgspec.Struct, frozen=True):
    """The agent may not go on before it is answered with one of ``options`` (option id, kind: ``allow_once``,
    ``allow_always``, ``reject_once``, ``reject_always``).

    ``tool_kind`` is what it asks for, in the words of ACP, ``tool`` its own name for the tool, ``paths`` the files it
    names, and ``detail`` what a human has to see to judge: a command line, a change. What is too long is cut.
    """

    request_id: str
    title: str
    options: tuple[tuple[str, str], ...]
    tool_kind: str = "other"
    tool: str = ""
    detail: str = ""
    paths: tuple[str, ...] = ()


class FileAsked(msgspec.Struct, frozen=True):
    """The agent asks us to write *text* to a file, or to read one (``None``); answered by ``Codec.file_answered``."""

    request_id: str
    path: str
    text: str | None = None


class TerminalOpened(msgspec.Struct, frozen=True):
    """The agent asks us to run a command for it; ``call_id`` is the tool call it serves (never empty)."""

    terminal_id: str
    call_id: str
    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str]


class TerminalKilled(msgspec.Struct, frozen=True):
    """The agent asks us to end that command (kill, or release while it runs)."""

    terminal_id: str


class ChildAsked(msgspec.Struct, frozen=True):
    """The agent asks for a sub-agent: a child session that works on *prompt*; answered by ``Codec.child_ended``."""

    request_id: str
    name: str
    prompt: str
    agent: str | None
    call_id: str | None
    mode: CancelMode = CancelMode.WAIT_COMPLETED


class Usage(msgspec.Struct, frozen=True):
    """What the agent says of what it uses: as it says it, and what that adds to what it has said before.

    ``cached_tokens`` are those of ``input_tokens`` that came from the provider's cache; ``requests`` counts the
    requests to its model that the agent tells of: a step that begins is ``Usage({}, requests=1)``.
    """

    used: dict[str, Any]
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    cached_tokens: int = 0
    requests: int = 0


class ModelTrouble(msgspec.Struct, frozen=True):
    """The agent's model failed or turned it away, and the agent tries again by itself.

    ``status`` is that of HTTP, ``attempt`` the agent's own count of its tries (from 1; 0: not told), ``retry_s`` what
    it waits before the next one, ``words`` what it says about it.
    """

    problem: ModelProblem
    status: int | None = None
    attempt: int = 0
    retry_s: float | None = None
    words: str = ""


class Compaction(msgspec.Struct, frozen=True):
    """Context compaction began (``active``) or ended."""

    active: bool
    failed: bool = False


class TurnEnded(msgspec.Struct, frozen=True):
    """The agent's word on the turn: ``end_turn``, ``cancelled``, ``refusal``, ``max_tokens``, ``max_turns``, ``error``.

    It is a claim: success also needs no open tool call and no error. ``problem``: it ended because of its model,
    ``status`` the HTTP status that the provider answered with, where either is told.
    """

    stop: str
    error: str = ""
    problem: ModelProblem | None = None
    status: int | None = None


class Malformed(msgspec.Struct, frozen=True):
    """The agent broke its protocol; *why* names what was wrong. Its turn fails with that reason."""

    why: str


Out = (
    Send
    | CloseInput
    | Signal
    | Ready
    | Named
    | Heard
    | Text
    | ToolOpened
    | ToolClosed
    | CallKept
    | PermissionAsked
    | FileAsked
    | TerminalOpened
    | TerminalKilled
    | ChildAsked
    | Usage
    | Compaction
    | ModelTrouble
    | TurnEnded
    | Malformed
)
"""Everything a codec answers with: bytes for the agent, or what the agent told us."""


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server of tools that an agent is to use: a program (``command`` and ``env``), or an address (``url`` and
    ``headers``) that is spoken to over ``transport``, ``http`` or ``sse``."""

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    transport: str = "http"
    headers: dict[str, str] = {}


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan wants of an agent beyond its command line, in the agent's own words; empty: as the agent likes.

    ``auth`` is the way to log in, ``options`` are settings of the agent by their ids.
    """

    mode: str = ""
    model: str = ""
    auth: str = ""
    options: dict[str, str] = {}
    mcp_servers: tuple[McpServer, ...] = ()


class Codec(Protocol):
    """One conversation with one agent process, without I/O. Every method answers with what to do and what was said.

    A codec never raises for anything an agent sends: it answers :class:`Malformed`.
    """

    @property
    def one_shot(self) -> bool:
        """True if the process serves one prompt and exits (the prompt is known at the launch)."""
        ...

    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        """The command line for a process that will first be given *prompt*.

        *new_id* is a fresh UUID: what a new conversation is to be called, where the agent lets us choose. *resume_id*
        is the conversation that is to be loaded, as for :meth:`start`.
        """
        ...

    def start(self, cwd: str, resume_id: str | None = None) -> Iterable[Out]:
        """The process runs: begin the conversation, or load the one of that name where the agent can."""
        ...

    def prompt(self, text: str) -> Iterable[Out]: ...

    def steer(self, text: str) -> Iterable[Out] | None:
        """Say this to the agent within the turn under way; ``None`` where there is no way to, or not now.

        :class:`Heard` says that the agent has taken it up. What it has not when it is interrupted, or when its turn has
        ended, it must not take up later by itself: it is then told in a prompt.
        """
        ...

    def interrupt(self) -> Iterable[Out]:
        """Ask the agent to stop what it is doing now, within the protocol."""
        ...

    def end_call(self, call_id: str) -> Iterable[Out] | None:
        """Ask the agent to end this one tool call; its turn goes on.

        ``None``: it cannot be asked. :class:`CallKept` says later that it did not.
        """
        ...

    def close(self) -> Iterable[Out]:
        """Ask the agent to end."""
        ...

    def feed(self, data: bytes) -> Iterable[Out]:
        """Bytes of the agent's standard output; ``b""`` is its end."""
        ...

    def exited(self, status: int | None) -> Iterable[Out]:
        """The agent's main process ended, all its output has been fed."""
        ...

    def permission(self, request_id: str, option_id: str | None) -> Iterable[Out]:
        """Answer a :class:`PermissionAsked`; ``None`` is *cancelled*."""
        ...

    def terminal_output(self, terminal_id: str, data: bytes) -> Iterable[Out]: ...

    def terminal_exited(self, terminal_id: str, status: int | None) -> Iterable[Out]:
        """The command of a :class:`TerminalOpened` ended (Python's form of status), or could not start (127)."""
        ...

    def file_answered(self, request_id: str, text: str, why: str = "") -> Iterable[Out]:
        """What a :class:`FileAsked` has read (nothing, where it was to write), or *why* it could not be done."""
        ...

    def child_ended(self, request_id: str, outcome: str, text: str) -> Iterable[Out]:
        """The child session of a :class:`ChildAsked` ended: ``completed``, ``failed`` or ``aborted``."""
        ...


# --------------------------------------------------------------------------------------------------- the journal
class JournalError(Exception):
    """The journal could not answer, and it is no use to ask again: it is another's, damaged, or none."""


class JournalDamaged(JournalError):
    """It is a journal, but not as it was written."""


class JournalLost(JournalError):
    """The journal, or the lock beside it, was deleted or replaced under the supervisor that has it open. What it has
    committed may be nowhere; it ends everything, and writes nothing more into its state directory."""


class JournalUnavailable(JournalError):
    """The disk's own trouble: full, failing, read-only, locked, not to be had. It may pass; of what was being written
    nothing is known until :meth:`Journal.recover` has looked."""


class Fenced(JournalError):
    """Another writer was there first: the entity's version is not the expected one, or the epoch is over."""


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one event changes for one entity, all or nothing.

    ``record.entity_seq`` must be the entity's last one plus 1. ``state`` and ``data`` are the entity after it
    (``data`` encoded as JSON), ``owed`` the effects it now owes as (effect id, JSON), ``settled`` the ids of effects
    that are no longer owed, ``ended`` marks the entity's last record.
    """

    record: LifecycleEvent
    parent_id: str | None
    state: str
    data: bytes
    owed: tuple[tuple[str, bytes], ...] = ()
    settled: tuple[str, ...] = ()
    ended: bool = False


class EntityRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entity as the journal knows it."""

    kind: str
    id: str
    parent_id: str | None
    state: str
    data: bytes
    entity_seq: int
    ended: bool
    born_seq: int
    born_at: float
    changed_at: float


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal keeps of what has ended; the rest goes to the archive. ``None`` is no bound.

    ``keep_s`` is for how long after its last record (a week by default), ``records_max`` how many records the journal
    has at most before the oldest of them go earlier.
    """

    keep_s: float | None = 604_800.0
    records_max: int | None = 1_000_000


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction moved: the archives it made or emptied the journal of, and what the journal has left."""

    archives: tuple[str, ...] = ()
    records: int = 0
    entities: int = 0
    records_left: int = 0
    entities_left: int = 0


class Journal(Protocol):
    """One log per entity, one writer. ``append`` returns when all of it is durable, or raises and nothing is known."""

    @property
    def generation(self) -> int:
        """Counts the supervisors that have owned this journal, from 1."""
        ...

    @property
    def last_seq(self) -> int: ...

    async def append(self, batch: Sequence[Append]) -> None:
        """Write *batch* in one transaction.

        Raises:
            Fenced: some entity's version is not the expected one; nothing was written.
            JournalUnavailable: the disk failed; the outcome is unknown: all of it is there, or none.
        """
        ...

    async def recover(self) -> int:
        """After an append that failed, look at what the disk itself holds; the number of the last durable record.

        Raises:
            Fenced: another supervisor owns the journal by now.
            JournalUnavailable: the disk cannot be asked yet; look again later.
        """
        ...

    async def check(self) -> None:
        """Look whether it still lies where it was opened. Every write does that, too.

        Raises:
            JournalLost: it was deleted or replaced.
        """
        ...

    async def settle(self, effect_ids: Sequence[str]) -> None:
        """These effects have been performed. That of one which was settled already changes nothing.

        Raises:
            JournalUnavailable: as for an append.
        """
        ...

    async def events(
        self, *, entity_id: str | None = None, after_seq: int = 0, limit: int = 10_000
    ) -> list[LifecycleEvent]: ...

    async def entities(self, *, live_only: bool = False, ids: Sequence[str] | None = None) -> list[EntityRow]:
        """All entities, those that have not ended, or those of *ids*; none that went to an archive."""
        ...

    async def ids(self) -> set[str]:
        """Every id that was ever used, archived ones too, but for those of turns and agents: nobody chooses them."""
        ...

    async def owed(self) -> list[tuple[str, str, bytes]]:
        """The effects that are owed and not settled: (effect id, entity id, JSON), oldest first."""
        ...

    async def close(self) -> None: ...


class Upkeep(Protocol):
    """What keeps a journal small while it is written."""

    async def compact(self, retention: Retention, living: Callable[[], Collection[str]]) -> Compacted:
        """Move what *retention* does not keep, and who is not among the *living* (by id), to the archive.

        Raises:
            JournalError: nothing more was moved; what was begun is finished by the next one.
        """
        ...

    async def preserve(self, name: str, records: Sequence[LifecycleEvent]) -> None:
        """Write a copy of *records* to the archive, a line of JSON each, in a file of that *name*.

        Raises:
            OSError: it cannot be written; there is no such file then, or the one that was there before.
            JournalLost: the state directory is not ours any more.
        """
        ...


# --------------------------------------------------------------------------------------------------- where work is done
class Merge(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a session's work: ``merged`` (*commit* is the target now), ``nothing`` to merge, or ``refused``.

    *why* says what stood in the way, or why there is nothing; *files* which ones were in conflict.
    """

    outcome: str
    commit: str = ""
    target: str = ""
    files: tuple[str, ...] = ()
    why: str = ""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What a session changed since it and the target parted: from *base* to *commit*, which holds all of it.

    ``files`` are paths from the top of the repository, at both ends of a rename; ``whole`` is false where there are
    more than can be listed. ``diff`` is a patch as text, ``""`` where it is too long to be shown.
    """

    base: str
    commit: str
    files: tuple[str, ...] = ()
    whole: bool = True
    diff: str = ""


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the place where a session worked: *branch* holds work that is not in the target, *directory* is
    still there. Both are empty where nothing is left; *problem* says why that is not known."""

    branch: str = ""
    directory: str = ""
    problem: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the place where a session works on a task.

    *owner* is the id of that task, *directory* where its agent is configured to work, *files* what of that the task
    owns: paths relative to it. *starts_at* is the checkpoint that the place begins with (``""``: as the workspace has
    it). With *rollback* it can be taken back to its beginning; *kept* leaves it as it is when its session ends.
    """

    owner: str = ""
    directory: str = ""
    files: tuple[str, ...] = ()
    starts_at: str = ""
    rollback: bool = False
    kept: bool = False


NO_PLACE: Final = Place()
"""Nothing is asked of it."""


class Workspace(Protocol):
    """Where sessions work."""

    @property
    def temporary(self) -> bool:
        """True if what it prepares is there for the session alone, and is put away after it."""
        ...

    async def prepare(self, session_id: str, directory: str, *, root_id: str) -> str:
        """Have a directory ready; its path. Asked for again it is the same, with what it holds.

        Args:
            session_id: who works there.
            directory: where its agent is configured to work.
            root_id: the session whose work it takes part in: the same place is right for both.

        Raises:
            OSError: there is none, and none can be had; the message says why.
        """
        ...

    async def commit(self, session_id: str, message: str) -> str:
        """The commit of all that a session has done so far: what is judged, and merged if it passes. ``""`` where its
        work stays in place, or cannot be merged as it is (:meth:`merge` says why).

        Raises:
            OSError: the place where it worked is gone, or nothing can be committed; the message says why.
        """
        ...

    async def merge(self, session_id: str, message: str, commit: str = "") -> Merge:
        """Bring what a session did to where the work is for: *commit*, and nothing later; all that there is, where that
        is ``""``.

        Raises:
            OSError: it cannot be said what became of it; the message says why.
        """
        ...

    async def changes(self, session_id: str, message: str, commit: str = "") -> Changes | None:
        """What a session changed up to *commit*; with ``""`` so far, committed under *message* where it was not.
        ``None`` where nobody can tell, or nothing is to be merged.

        Raises:
            OSError: it cannot be said; the message says why.
        """
        ...

    async def begin(self, session_id: str, place: Place) -> None:
        """Before it is prepared: have the place of a session as *place* says. Asked again it changes nothing.

        Raises:
            OSError: it cannot be had like that, a checkpoint is not there any more, say; the message says why.
        """
        ...

    async def save(self, session_id: str, place: Place, message: str) -> str:
        """The checkpoint that holds what a session has done so far: it is there until :meth:`forget`. ``""`` where the
        work stays in place, or there is none.

        Raises:
            OSError: it cannot be had; nothing of what was done is lost.
        """
        ...

    async def roll_back(self, session_id: str, place: Place, message: str) -> str:
        """Have the place of a session as it was in the beginning, or at ``place.starts_at``; the checkpoint that holds
        what was done there, ``""`` where nothing was.

        Raises:
            OSError: it could not be; nothing of what was done is lost.
        """
        ...

    async def accept(self, place: Place) -> None:
        """What was done there is not taken back any more: others may work there from now on.

        Raises:
            OSError: it could not be said.
        """
        ...

    async def forget(self, place: Place) -> None:
        """The task has come to its end: drop what was saved on the way to it and is not needed any more.

        Raises:
            OSError: it could not be; what is left does no harm.
        """
        ...

    async def left(self) -> list[str]:
        """The sessions whose places were never put away, and are not kept."""
        ...

    async def put_away(self, session_id: str, message: str) -> Released:
        """Nobody works there any more: keep what was done, and remove the rest.

        Raises:
            OSError: it could not be; everything is still there.
        """
        ...


class FileRefused(OSError):
    """The file is not for agents: it is not in the workspace, or the supervisor's own, or git's."""


class Files(Protocol):
    """The text files that an agent asks us for. Whether it may read or write at all is decided before; which files
    there are for an agent that works in *workspace*, here: only what was opened can be judged for good."""

    async def read(self, path: str, workspace: str) -> str:
        """The text of the file at *path*.

        Raises:
            FileRefused: it is not for agents.
            OSError: there is none, it is no regular file, no UTF-8, or longer than ``bounds.FILE_BYTES_MAX``.
        """
        ...

    async def write(self, path: str, text: str, workspace: str) -> None:
        """Make *text* the whole of the file at *path*; it and its directories are made where there are none.

        Raises:
            FileRefused: it is not for agents; nothing was made or changed.
            OSError: it cannot be.
        """
        ...


class TranscriptSink(Protocol):
    """What a session's agent said, for people; never raises."""

    def write(self, source: str, text: str, *, at: float) -> None: ...

    def close(self) -> None: ...


class WallClock(Protocol):
    """Unix time, for people; decisions never use it."""

    def time(self) -> float: ...
