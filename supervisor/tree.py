"""What is alive now: the entities, and the work that goes on for each session.

The journal says what happened; the tree says what there is to talk to. It decides nothing: it finds, tells, asks and
counts. Every task that works for a session is counted, so that the end of the last one is an event and not a guess.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
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
from supervisor.moments import Moment
from supervisor.ports import EntityRow, TranscriptSink
from supervisor.vocabulary import AbortPolicy, Kind, LifecycleEvent, Rung, Verdict

__all__ = ["AgentFunction", "AgentProfile", "EndReport", "Link", "NoSuchEntity", "Outcome", "Tree", "Work"]

POST_S = 600.0
"""How long anything may wait for a record to become durable; the disk's own trouble is reported long before."""

TEXT_MAX = 64 * 1024
"""Characters of an agent's last answer that are kept in memory for whoever asked for it."""

HEARD_LAST = frozenset(SESSION.allowed(Session.STOPPED))
"""What still means something to a session that is ending."""

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
    """What goes on for one session: its link, its tasks, its children, and what is known of its end."""

    def __init__(
        self,
        tree: Tree,
        *,
        session_id: str,
        parent: Work | None,
        profile: AgentProfile,
        policy: AbortPolicy,
        started_by: str | None,
        transcript: TranscriptSink,
    ) -> None:
        self._tree = tree
        self.session_id = session_id
        self.parent = parent
        self.root_id: str = parent.root_id if parent is not None else session_id
        self.profile = profile
        self.policy = policy
        self.started_by = started_by
        self.transcript = transcript
        self.directory = profile.directory
        self.children: dict[str, Work] = {}
        """The child sessions that are alive, oldest first."""
        self.turns: dict[str, Entity] = {}
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
        self.hurried = False
        self.interrupted_for: list[str] = []
        self.running = Moment()
        self.over = Moment()
        self.ended = Moment()
        self.report: EndReport | None = None
        self.fates: list[ProcessFate] = []
        self.text = ""
        self.text_of: str | None = None
        """The request that the text answers."""
        self.busy = 0
        """The tasks that work for it, and the children that are not over."""
        self.unrecorded = 0
        """The entities below it that its last record waits for."""
        self._rest: Moment | None = None

    @property
    def parent_id(self) -> str | None:
        return self.parent.session_id if self.parent is not None else None

    def start(self, ctx: Context, fn: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run ``fn(*args)`` in that actor's scope, counted as work of this session.

        Raises:
            ActorStopped: the actor is stopping, or its scope was cancelled.
        """
        self.busy += 1
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
        self.busy -= 1
        if self.busy == 0:
            if self._rest is not None:
                self._rest.set()
            self._tree.on_rest(self)

    async def quiet(self) -> None:
        """Wait until nothing works for this session."""
        while self.busy:
            if self._rest is None or self._rest.is_set():
                self._rest = Moment()
            await self._rest.wait()

    def join(self) -> None:
        """It is there: its parent is not quiet before it is over."""
        if self.parent is not None:
            self.parent.children[self.session_id] = self
            self.parent.busy += 1

    def leave(self) -> None:
        """Everything of it has ended."""
        if not self.over.is_set():
            self.over.set()
            if self.parent is not None:
                self.parent._done()

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
        self.on_rest: Callable[[Work], None] = lambda work: None
        """Called when nothing works for a session any more."""
        self.on_recorded: Callable[[Work], None] = lambda work: None
        """Called when everything below a session has its last record."""

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
            self.system.spawn(entity, entity_id)
        else:
            self.system.spawn(entity, entity_id, parent=parent_id, home=home)
        self.entities[entity_id] = entity
        above = self.works.get(parent_id) if parent_id is not None else None
        if above is not None:
            self._count_in(above, entity)
        entity.born(cause)
        return entity

    def _count_in(self, above: Work, entity: Entity) -> None:
        """A session's last record comes after those of what is below it; a child session's need not be durable."""
        above.unrecorded += 1
        if entity.kind is Kind.TURN:
            above.turns[entity.id] = entity
        if entity.kind is Kind.SESSION:
            entity.on_ended = lambda: self._count_out(above)
        else:
            entity.on_buried = lambda: self._count_out(above)

    def _count_out(self, above: Work) -> None:
        above.unrecorded -= 1
        if above.unrecorded == 0 and above.over.is_set():
            self.on_recorded(above)

    def admit(self, work: Work) -> None:
        """A session is about to be born."""
        self.works[work.session_id] = work
        work.join()

    def dismiss(self, work: Work) -> None:
        """It has ended, or was not born."""
        del self.works[work.session_id]
        work.leave()
        if work.parent is not None:
            del work.parent.children[work.session_id]

    def adopt(self, entity: Entity) -> None:
        """Take in an entity that an earlier supervisor left in the journal."""
        self.system.spawn(entity, entity.id)
        self.entities[entity.id] = entity

    def bury(self, entity_id: str) -> None:
        """Its last record is durable: it leaves memory."""
        entity = self.entities.pop(entity_id, None)
        self.system.stop(entity_id, "ended")
        work = self.works.get(entity_id)
        if work is not None:
            self.dismiss(work)
            work.transcript.close()
            work.ended.set()
        if entity is not None:
            self.lose(entity)

    def lose(self, entity: Entity) -> None:
        """Nothing more will be heard of it: its session does not wait for its last record."""
        above = self.works.get(entity.parent_id) if entity.parent_id is not None else None
        if above is not None:
            above.turns.pop(entity.id, None)
        entity.leave()

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
        return not ending or type(event) in HEARD_LAST

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
            record: LifecycleEvent = await ref.ask(event, timeout_s=POST_S, lane=lane, cause=cause)
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
        work = self.works.get(session_id)
        return list(work.children.values()) if work is not None else []

    def nodes(self, *, hurry: bool = False) -> Mapping[str, TreeNode]:
        """The tree as aborts see it: sessions, open tool calls. Who is ending has ended, but for one to *hurry* it.

        A view, made as it is read: it is good until something is awaited.
        """
        return _Nodes(self, hurry)

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


class _Nodes(Mapping[str, TreeNode]):
    """The nodes of a tree by their ids. What is not asked for is not made."""

    def __init__(self, tree: Tree, hurry: bool) -> None:
        self._tree = tree
        self._hurry = hurry
        self._made: dict[str, TreeNode] = {}

    def __getitem__(self, node_id: str) -> TreeNode:
        node = self._made.get(node_id)
        if node is None:
            work = self._tree.works.get(node_id)
            node = self._made[node_id] = self._session(work) if work is not None else self._call(node_id)
        return node

    def __iter__(self) -> Iterator[str]:
        yield from self._tree.works
        for work in self._tree.works.values():
            yield from _calls(work)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _session(self, work: Work) -> TreeNode:
        return TreeNode(
            id=work.session_id,
            kind="session",
            parent=work.parent_id if work.parent_id in self._tree.works else None,
            children=(*work.children, *_calls(work)),
            started_by=work.started_by,
            policy=work.policy,
            ended=(work.told or work.ending) and not self._hurry,
        )

    def _call(self, node_id: str) -> TreeNode:
        turn = self._tree.entities.get(node_id.rpartition(":c")[0])
        work = self._tree.works.get(turn.parent_id or "") if turn is not None else None
        if work is None or node_id not in _calls(work):
            raise KeyError(node_id)
        return TreeNode(id=node_id, kind="tool", parent=work.session_id)


def _calls(work: Work) -> list[str]:
    """The ids of a session's open calls."""
    if not work.turns:
        return []
    return [f"{turn.id}:c{call.number}" for turn in work.turns.values() for call in turn.data.open]
