"""What is alive now: the entities, and the work that goes on for each session.

The journal says what happened; the tree says what there is to talk to. It decides nothing: it finds, tells, asks and
counts. Every task that works for a session is counted, so that the end of the last one is an event and not a guess.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any, NamedTuple, Protocol

import anyio
import msgspec

from actors import ActorStopped, ActorSystem, Context, Lane
from actors.machine import Event
from supervisor.abort import ProcessFate, TreeNode
from supervisor.entity import Entity, Lifecycle
from supervisor.ledger import Cause, Ledger
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.session import SESSION, Session
from supervisor.ports import EntityRow, TranscriptSink
from supervisor.vocabulary import AbortPolicy, Kind, LifecycleEvent, Rung, Verdict

__all__ = ["END_S", "AgentFunction", "AgentProfile", "EndReport", "Link", "NoSuchEntity", "Outcome", "Tree", "Work"]

POST_S = 600.0
"""How long anything may wait for a record to become durable; the disk's own trouble is reported long before."""

END_S = 60.0
"""What the kernel gives an entity's tasks to end before it counts them no more: longer than any ladder."""

TEXT_MAX = 64 * 1024
"""Characters of an agent's last answer that are kept in memory for whoever asked for it."""

AgentFunction = Callable[[Any], Awaitable[Any]]
"""An in-process agent: it is given its turn (``supervisor.adapters.inprocess.AgentTurn``) and works on it."""


class NoSuchEntity(LookupError):
    """Nothing alive has that id."""

    def __init__(self, entity_id: str) -> None:
        self.entity_id = entity_id
        super().__init__(f"nothing alive has the id {entity_id!r}; `supervisor tree` shows the ids")


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How to have an agent: a program and the adapter that it speaks to, or a function."""

    name: str
    adapter: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    directory: str = "."
    permissions: str = "allow"
    function: AgentFunction | None = None


class Outcome(NamedTuple):
    """How a request ended: ``completed``, ``failed`` or ``aborted``; ``seq`` is the record that settled it."""

    outcome: str
    error: str
    text: str
    seq: int | None = None


class EndReport(NamedTuple):
    """How a session's scope was joined."""

    rung: Rung
    took_s: float
    killed_at: float
    survivors: int


class Link(Protocol):
    """The live connection to one agent: what a session's hands hold while the agent is there."""

    agent_id: str
    turn_id: str | None
    ended: anyio.Event
    is_ready: bool

    @property
    def reusable(self) -> bool:
        """True if it is ready and idle, and will stay."""
        ...

    async def run(self) -> None:
        """Have the agent, from its start to its end. Reports everything to the entities."""
        ...

    async def free(self) -> None:
        """Wait until it works on no turn."""
        ...

    def give(self, turn_id: str, incarnation: int, prompt: str) -> None:
        """Begin a turn. Its end is reported exactly once, whatever happens."""
        ...

    def interrupt(self, turn_id: str, intent: Verdict, abort_id: str | None) -> None:
        """Ask it, within its protocol, to stop that turn; *intent* is why."""
        ...

    def abandon_call(self, call_id: str) -> bool:
        """Expect no result of that call any more; ``True`` if we run its work and can end it by its scope."""
        ...

    def report_started(self, incarnation: int) -> None:
        """Say that it is ready for the prompt of this incarnation (an agent that was idle)."""
        ...

    def finish(self) -> None:
        """Let it end by itself as soon as it is idle."""
        ...

    def kill(self, intent: Verdict) -> None:
        """End it and everything it started, now."""
        ...


class Work:
    """What goes on for one session: its link, its tasks, and what is known of its end."""

    def __init__(
        self,
        *,
        session_id: str,
        root_id: str,
        parent_id: str | None,
        profile: AgentProfile,
        policy: AbortPolicy,
        started_by: str | None,
        transcript: TranscriptSink,
    ) -> None:
        self.session_id = session_id
        self.root_id = root_id
        self.parent_id = parent_id
        self.profile = profile
        self.policy = policy
        self.started_by = started_by
        self.transcript = transcript
        self.directory = profile.directory
        self.link: Link | None = None
        self.launches = 0
        self.requests = 0
        self.because: int | None = None
        """The record that the agent's present doings answer to: its launch, its prompt, or what ends it."""
        self.told = False
        self.prompted = 0
        """The incarnation that was given its prompt last: a failure after that is a crash, not a failed launch."""
        self.crashes: list[float] = []
        self.ending = False
        self.interrupted_for: list[str] = []
        self.running = anyio.Event()
        self.hurried = anyio.Event()
        self.over = anyio.Event()
        self.ended = anyio.Event()
        self.report: EndReport | None = None
        self.fates: list[ProcessFate] = []
        self.text = ""
        self.text_of: str | None = None
        """The request that the text answers."""
        self.said = ""
        """What the agent said to that request in turns that succeeded."""
        self._tasks = 0
        self._quiet = anyio.Event()

    def start(self, ctx: Context, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run ``fn(*args)`` in that actor's scope, counted as work of this session.

        Raises:
            ActorStopped: the actor is stopping, or its scope was cancelled.
        """
        self._tasks += 1
        try:
            ctx.start_task(self._counted, fn, args, name=fn.__qualname__)
        except ActorStopped:
            self._done()
            raise

    async def _counted(self, fn: Callable[..., Coroutine[Any, Any, None]], args: tuple[Any, ...]) -> None:
        try:
            await fn(*args)
        finally:
            self._done()

    def _done(self) -> None:
        self._tasks -= 1
        if self._tasks == 0:
            self._quiet.set()

    async def quiet(self) -> None:
        """Wait until no task works for this session."""
        while self._tasks:
            if self._quiet.is_set():
                self._quiet = anyio.Event()
            await self._quiet.wait()

    def say(self, text: str) -> None:
        """Keep the end of what the agent says in this turn."""
        self.text = (self.text + text)[-TEXT_MAX:]


class Tree:
    """The living entities of one supervisor."""

    def __init__(self, system: ActorSystem, ledger: Ledger) -> None:
        self.system = system
        self.ledger = ledger
        self.entities: dict[str, Entity] = {}
        self.works: dict[str, Work] = {}
        self._burials: dict[str, anyio.Event] = {}

    # ------------------------------------------------------------------ birth and end
    def birth(
        self,
        lifecycle: Lifecycle,
        entity_id: str,
        *,
        parent_id: str | None,
        state: Enum,
        data: Any,
        cause: Cause,
        home: str | None = None,
    ) -> Entity:
        """Bring an entity to life under *parent_id*, with the first record of its log.

        Raises:
            ActorStopped: the parent is ending; nothing is born under it.
        """
        entity = Entity(lifecycle, entity_id, parent_id, state, data, self.ledger)
        if parent_id is None:
            self.system.spawn(entity, entity_id, shutdown_s=END_S)
        else:
            self.system.spawn(entity, entity_id, parent=parent_id, home=home, shutdown_s=END_S)
        self.entities[entity_id] = entity
        self._burials[entity_id] = anyio.Event()
        entity.born(cause)
        return entity

    def adopt(self, entity: Entity) -> None:
        """Take in an entity that an earlier supervisor left in the journal."""
        self.system.spawn(entity, entity.id)
        self.entities[entity.id] = entity

    def bury(self, entity_id: str) -> None:
        """Its last record is durable: it leaves memory."""
        self.entities.pop(entity_id, None)
        self.system.stop(entity_id, "ended")
        work = self.works.pop(entity_id, None)
        if work is not None:
            work.transcript.close()
            work.ended.set()
        if entity_id in self._burials:
            self._burials.pop(entity_id).set()

    async def buried(self, entity_id: str) -> None:
        """Wait until the last record of an entity is durable."""
        if entity_id in self._burials:
            await self._burials[entity_id].wait()

    # ------------------------------------------------------------------ talking
    def tell(self, entity_id: str, event: Event, *, cause: Cause, lane: Lane = Lane.CONTROL) -> bool:
        """Put *event* into the entity's mailbox; ``False`` if it is no more."""
        ref = self.system.ref(entity_id)
        if ref is None or entity_id not in self.entities or not self.hears(entity_id, event):
            return False
        try:
            ref.tell(event, lane=lane, cause=cause)
        except ActorStopped:
            return False
        return True

    def hears(self, entity_id: str, event: Event) -> bool:
        """``False`` if it is a session that is about to end, and *event* comes too late to mean anything to it."""
        work = self.works.get(entity_id)
        ending = work is not None and (work.told or work.ending)
        return not ending or type(event) in SESSION.allowed(Session.STOPPED)

    def end(self, session_id: str, stop: OperatorStop, *, cause: Cause) -> None:
        """Tell a session to end. The first one who says so is heard; after that only who wants it at once."""
        work = self.works.get(session_id)
        if work is not None and (stop.now or not work.told):
            work.told = True
            self.tell(session_id, stop, cause=cause)

    async def post(self, entity_id: str, event: Event, *, cause: Cause, lane: Lane = Lane.NORMAL) -> LifecycleEvent:
        """Send *event*, wait until its record is durable, and return that.

        Raises:
            NoSuchEntity: nothing alive has that id.
            Refused: the entity's table does not allow it now.
            JournalError: the journal could not be written.
        """
        ref = self.system.ref(entity_id)
        if ref is None or entity_id not in self.entities:
            raise NoSuchEntity(entity_id)
        try:
            record: LifecycleEvent = await ref.ask(event, timeout_s=POST_S, lane=lane, cause=cause, detach=True)
        except ActorStopped as error:
            raise NoSuchEntity(entity_id) from error
        return record

    def note(self, entity_id: str, name: str, cause: Cause, metadata: dict[str, Any], **described: Any) -> None:
        """Record a fact about an entity."""
        entity = self.entities.get(entity_id)
        if entity is not None:
            entity.note(name, cause, metadata, **described)

    def cancel_scope(self, actor_id: str, cause: object) -> None:
        """Cancel everything that runs in an actor's scope."""
        ctx = self.system.context(actor_id)
        if ctx is not None:
            ctx.scope.cancel(cause)

    # ------------------------------------------------------------------ looking
    def entity(self, entity_id: str) -> Entity:
        """The living entity of that id.

        Raises:
            NoSuchEntity: there is none.
        """
        entity = self.entities.get(entity_id)
        if entity is None:
            raise NoSuchEntity(entity_id)
        return entity

    def children_of(self, session_id: str) -> list[Work]:
        """The child sessions that are alive, oldest first."""
        return [work for work in self.works.values() if work.parent_id == session_id]

    def nodes(self, *, hurry: bool = False) -> dict[str, TreeNode]:
        """The tree as aborts see it: sessions, open tool calls. Who is ending has ended, but for one to *hurry* it."""
        children: dict[str, list[str]] = {session_id: [] for session_id in self.works}
        for work in self.works.values():
            if work.parent_id in children:
                children[work.parent_id].append(work.session_id)
        tools = [node for entity in self.entities.values() if entity.kind is Kind.TURN for node in _calls(entity)]
        for tool in tools:
            if tool.parent in children:
                children[tool.parent].append(tool.id)
        sessions = (self._node(work, tuple(children[work.session_id]), hurry) for work in self.works.values())
        return {node.id: node for node in (*sessions, *tools)}

    def _node(self, work: Work, children: tuple[str, ...], hurry: bool) -> TreeNode:
        return TreeNode(
            id=work.session_id,
            kind="session",
            parent=work.parent_id if work.parent_id in self.works else None,
            children=children,
            started_by=work.started_by,
            policy=work.policy,
            ended=(work.told or work.ending) and not hurry,
        )

    def rows(self) -> list[EntityRow]:
        """The living entities in the journal's form."""
        return [
            EntityRow(
                kind=one.kind.value,
                id=one.id,
                parent_id=one.parent_id,
                state=str(one.state.value),
                data=msgspec.json.encode(one.data),
                entity_seq=one.entity_seq,
                ended=one.ended,
                born_seq=one.born_seq,
                born_at=one.born_at,
                changed_at=one.changed_at,
            )
            for one in self.entities.values()
        ]


def _calls(turn: Entity) -> list[TreeNode]:
    return [
        TreeNode(id=f"{turn.id}:c{call.number}", kind="tool", parent=turn.data.session_id) for call in turn.data.open
    ]
