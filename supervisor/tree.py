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
from supervisor.abort import PlannedProcess, ProcessFate, TreeNode
from supervisor.abort_state import AbortState, Joined, merged, same_abort
from supervisor.entity import Entity, Lifecycle
from supervisor.ledger import Cause, Ledger
from supervisor.lifecycles.events import OperatorStop
from supervisor.lifecycles.session import SESSION, Session
from supervisor.ports import EntityRow, TranscriptSink
from supervisor.vocabulary import AbortPolicy, CancelMode, Kind, LifecycleEvent, Rung, Verdict

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
        mode: CancelMode = CancelMode.WAIT_COMPLETED,
    ) -> None:
        self.session_id = session_id
        self.root_id = root_id
        self.parent_id = parent_id
        self.profile = profile
        self.policy = policy
        self.started_by = started_by
        self.mode = mode
        """What the end of its parent means to it."""
        self.transcript = transcript
        self.directory = profile.directory
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
        self.interrupted_for: list[str] = []
        self.running = anyio.Event()
        self.heard = anyio.Event()
        """It knows that it is to end."""
        self.hurried = anyio.Event()
        self.pressed = anyio.Event()
        """Its end has become more urgent since; a new event each time."""
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

    def press(self) -> None:
        """Whoever climbs its ladder looks again at how urgent that is."""
        self.pressed.set()
        self.pressed = anyio.Event()

    def hurry(self) -> None:
        """Its ladder goes on at the kill rung."""
        self.hurried.set()
        self.press()

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
        if stop.now and not work.hurried.is_set():
            self.tell(session_id, stop, cause=cause)
        elif before is not None and not same_abort(before, stop.abort_id):
            self._note_joined(work, before, stop, cause)
        if joined is Joined.RAISED:
            work.press()
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
        left, heir = child.parent_id, self._surviving(child.parent_id)
        child.parent_id = heir
        entity = self.entities.get(child.session_id)
        if entity is not None and not entity.ended:
            entity.parent_id = heir
            told = {"left": left, "parent": heir, "mode": child.mode.value}
            entity.note("Adopted", cause, told, abort_id=abort_id, reason=f"its parent {left} ended")

    def _surviving(self, session_id: str | None) -> str | None:
        while session_id is not None:
            work = self.works.get(session_id)
            if work is None:
                return None
            if not (work.told or work.ending):
                return session_id
            session_id = work.parent_id
        return None

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
        return [work for work in self.works.values() if work.parent_id == session_id]

    def nodes(self, *, hurry: bool = False) -> dict[str, TreeNode]:
        """The tree as aborts see it: sessions, open tool calls. Who is ending has ended, but for one to *hurry* it."""
        children: dict[str, list[str]] = {session_id: [] for session_id in self.works}
        for work in self.works.values():
            if work.parent_id in children:
                children[work.parent_id].append(work.session_id)
        turns = [entity for entity in self.entities.values() if entity.kind is Kind.TURN and entity.data.open]
        tools = [node for turn in turns for node in self._calls(turn, hurry)]
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
            mode=work.mode,
            ended=(work.told or work.ending) and not hurry,
            processes=work.link.processes() if work.link is not None else (),
        )

    def _calls(self, turn: Entity, hurry: bool) -> list[TreeNode]:
        """A turn's open calls. One whose work is over has ended, though its record may still be on its way; one whose
        session is ending ends with it."""
        work = self.works.get(turn.data.session_id)
        link = work.link if work is not None else None
        ending = work is None or ((work.told or work.ending) and not hurry)
        owned = link.processes() if link is not None else ()
        return [
            TreeNode(
                id=(tool_id := f"{turn.id}:c{call.number}"),
                kind="tool",
                parent=turn.data.session_id,
                ended=ending or link is None or link.has_returned(turn.id, call.call_id),
                processes=tuple(one for one in owned if one.owner == tool_id),
            )
            for call in turn.data.open
        ]

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
