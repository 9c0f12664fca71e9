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
from supervisor.abort import PlannedProcess, ProcessFate, TreeNode
from supervisor.abort_state import AbortState, Joined, merged, same_abort
from supervisor.entity import Entity, Lifecycle
from supervisor.ledger import Cause, Ledger
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.session import SESSION, Session
from supervisor.moments import Moment
from supervisor.ports import EntityRow, TranscriptSink
from supervisor.vocabulary import AbortPolicy, CancelMode, Kind, LifecycleEvent, Rung, Verdict

__all__ = ["END_S", "AgentFunction", "AgentProfile", "EndReport", "Link", "NoSuchEntity", "Outcome", "Tree", "Work"]

POST_S = 600.0
"""How long anything may wait for a record to become durable; the disk's own trouble is reported long before."""

END_S = 60.0
"""What the kernel gives an entity's tasks to end before it counts them no more: longer than any ladder."""

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

    def runs(self, call_id: str) -> bool:
        """True if we run that call's work, and can end it by its scope."""
        ...

    def has_returned(self, turn_id: str, call_id: str) -> bool:
        """True if that call's work is over, so that an abort of it comes too late."""
        ...

    def abandon_call(self, call_id: str) -> None:
        """Expect no result of that call any more."""
        ...

    def abort_own_call(self, call_id: str, reason: str, abort_id: str) -> None:
        """The agent runs that call by itself and is about to be interrupted: its result will be that of this abort."""
        ...

    def let_go(self, call_id: str, outcome: Outcome) -> None:
        """Answer the delegation that this call is, without waiting for the child session."""
        ...

    def processes(self) -> tuple[PlannedProcess, ...]:
        """The processes that are known to be alive."""
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
        mode: CancelMode = CancelMode.WAIT_COMPLETED,
    ) -> None:
        self._tree = tree
        self.session_id = session_id
        self.parent = parent
        contained = parent is not None and mode is CancelMode.WAIT_COMPLETED
        self.root_id: str = parent.root_id if parent is not None and contained else session_id
        self.profile = profile
        self.policy = policy
        self.started_by = started_by
        self.mode = mode
        """What the end of its parent means to it."""
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
        self.asked: AbortState | None = None
        """What it was told, all who said so merged."""
        self.prompted = 0
        """The incarnation that was given its prompt last: a failure after that is a crash, not a failed launch."""
        self.crashes: list[float] = []
        self.ending = False
        self.hurried = False
        self.interrupted_for: list[str] = []
        self.running = Moment()
        self.heard = Moment()
        """It knows that it is to end."""
        self.over = Moment()
        self.ended = Moment()
        self.report: EndReport | None = None
        self.fates: list[ProcessFate] = []
        self.text = ""
        self.text_of: str | None = None
        """The request that the text answers."""
        self.said = ""
        """What the agent said to that request in turns that succeeded."""
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

    def move(self, heir: Work | None) -> None:
        """Belong to *heir* from now on, or to nobody: its parent waits for it no more."""
        left, self.parent = self.parent, heir
        if left is not None:
            left.children.pop(self.session_id, None)
        over = self.over.is_set()
        if heir is not None:
            heir.children[self.session_id] = self
            heir.busy += not over
        if left is not None and not over:
            left._done()

    def wait_for(self, moment: Moment) -> None:
        """It is not quiet before that has come."""
        if not moment.is_set():
            self.busy += 1
            moment.then(self._done)

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
        self.on_pressed: Callable[[Work], None] = lambda work: None
        """Called when the end of a session has become more urgent."""

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
        contained: bool = True,
    ) -> Entity:
        """Bring an entity to life under *parent_id*, with the first record of its log. One that is not *contained*
        belongs to its parent, but its scope does not: it may outlive it.

        Raises:
            ActorStopped: the parent is ending; nothing is born under it.
        """
        entity = Entity(lifecycle, entity_id, parent_id, state, data, self.ledger)
        if parent_id is None or not contained:
            self.system.spawn(entity, entity_id, shutdown_s=END_S)
        else:
            self.system.spawn(entity, entity_id, parent=parent_id, home=home, shutdown_s=END_S)
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

    def end(self, session_id: str, stop: OperatorStop, *, cause: Cause, within_s: float | None = None) -> Joined:
        """Tell a session to end, *within_s* if that is sooner than its ladder. Await-free: from here on it is ending.

        The first one who says so is heard; after that only who wants it at once. Every further abort is recorded.
        """
        work = self.works.get(session_id)
        if work is None:
            return Joined.JOINED
        wish, before = self._wish(work, stop, within_s), work.asked
        work.asked, joined = merged(before, wish)
        if joined is Joined.BEGAN and not work.told:
            work.told = True
            self.tell(session_id, stop, cause=cause)
            return joined
        if stop.now and not work.hurried:
            self.tell(session_id, stop, cause=cause)
        elif before is not None and not same_abort(before, stop.abort_id):
            self._note_joined(work, before, stop, cause)
        if joined is Joined.RAISED:
            self.on_pressed(work)
        return joined

    def _wish(self, work: Work, stop: OperatorStop, within_s: float | None) -> AbortState:
        ladder = work.policy.ladder
        bound_s = ladder.kill_s if stop.now else ladder.total_s
        return AbortState(
            abort_id=stop.abort_id,
            reason=stop.reason,
            abort_reason=stop.abort_reason,
            severity=Rung.KILL if stop.now else Rung.REQUEST,
            deadline=anyio.current_time() + (bound_s if within_s is None else min(bound_s, within_s)),
        )

    def _note_joined(self, work: Work, first: AbortState, stop: OperatorStop, cause: Cause) -> None:
        entity = self.entities.get(work.session_id)
        if entity is None or entity.ended:
            return
        told = {"joined": first.abort_id, "first_reason": first.reason}
        entity.note("AbortJoined", cause, told, abort_id=stop.abort_id, reason=stop.reason)

    def rehome(self, child: Work, cause: Cause, abort_id: str | None) -> None:
        """Its parent ends and it may live on: it belongs to the nearest ancestor that does not end, or to nobody."""
        left, heir = child.parent_id, self._surviving(child.parent)
        entity = self.entities.get(child.session_id)
        if entity is not None:
            entity.move(heir.session_id if heir is not None else None)
            if heir is not None:
                self._count_in(heir, entity)
        child.move(heir)
        if entity is not None and not entity.ended:
            told = {"left": left, "parent": child.parent_id, "mode": child.mode.value}
            entity.note("Adopted", cause, told, abort_id=abort_id, reason=f"its parent {left} ended")

    def _surviving(self, work: Work | None) -> Work | None:
        while work is not None and (work.told or work.ending):
            work = work.parent
        return work

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
    def is_open(self, tool_id: str) -> bool:
        """True if that tool call has no result yet."""
        turn_id, _, number = tool_id.rpartition(":c")
        turn = self.entities.get(turn_id)
        return turn is not None and any(str(call.number) == number for call in turn.data.open)

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
            mode=work.mode,
            ended=(work.told or work.ending) and not self._hurry,
            processes=work.link.processes() if work.link is not None else (),
        )

    def _call(self, node_id: str) -> TreeNode:
        """An open call. One whose work is over has ended, though its record may still be on its way; one whose session
        is ending ends with it."""
        turn_id, _, number = node_id.rpartition(":c")
        turn = self._tree.entities.get(turn_id)
        work = self._tree.works.get(turn.parent_id or "") if turn is not None else None
        call = next((one for one in turn.data.open if str(one.number) == number), None) if turn is not None else None
        if work is None or call is None or turn_id not in work.turns:
            raise KeyError(node_id)
        link = work.link
        ending = (work.told or work.ending) and not self._hurry
        return TreeNode(
            id=node_id,
            kind="tool",
            parent=work.session_id,
            ended=ending or link is None or link.has_returned(turn_id, call.call_id),
            processes=tuple(one for one in link.processes() if one.owner == node_id) if link is not None else (),
        )


def _calls(work: Work) -> list[str]:
    """The ids of a session's open calls."""
    if not work.turns:
        return []
    return [f"{turn.id}:c{call.number}" for turn in work.turns.values() for call in turn.data.open]
