"""Simulated operators, who disturb a run from outside, by requests that a host may make at any moment.

Each such request is a fault like any other: the request has a name, and a shrunk run has only the requests that matter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import msgspec

from actors import one_shot_event
from actors.waiter import current_backend
from supervisor.host.api import Supervisor
from supervisor.host.handle import Session
from supervisor.lifecycles.session import Session as SessionState
from supervisor.lifecycles.turn import Turn
from supervisor.lifecycles.types import AbortPolicy, AbortScope, CancelMode, DeliveryPoint, LifecycleEvent, StageBudgets
from supervisor.simulation.checkers import AbortRequested, AbortReturned, PermissionAnswered, SupervisorInspected
from supervisor.simulation.cost import OutcomeCounts
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.request_log import RequestLog
from supervisor.simulation.world import World

SessionAct = Callable[[str, KeyedRandom, str], Awaitable[None]]
"""Function that acts on a session, given the session's id, the random draws of the occasion, and the place that names
the occasion in the fault plan."""
CHANGES: Final = ("born", "transition")


class Trigger(NamedTuple):
    """Condition: an entity of *kind* enters *state*. ``child``: only in a child session; ``littered``: only while the
    clean-up after an earlier turn of the session is still under way."""

    kind: str
    state: str
    child: bool = False
    littered: bool = False

    def matches(self, record: LifecycleEvent, sup: Supervisor) -> bool:
        """Whether *record*, which was written just now, fulfils the condition."""
        if (record.entity_type, record.to_status) != (self.kind, self.state) or record.outcome not in CHANGES:
            return False
        session_id = session_of(record.entity_id)
        if self.child and "/" not in session_id:
            return False
        return not self.littered or sum(one.startswith(f"{session_id}:t") for one in sup.core.registry.entities) > 1


URGENT_MOMENTS: Final = (
    (Trigger("turn", Turn.RUNNING.value), DeliveryPoint.TOOL_BOUNDARY),  # with its last call, a turn may end
    (Trigger("turn", Turn.COMPACTING.value), DeliveryPoint.TOOL_BOUNDARY),
    (Trigger("session", SessionState.RUNNING.value, littered=True), DeliveryPoint.NOW),
)
"""Moments at which an operator sends an urgent message, each with the delivery point of the message."""


def session_of(entity_id: str) -> str:
    """Return the id of the session that a turn or a tool call belongs to; for a session, the session's own id."""
    return entity_id.partition(":")[0]


PATIENCE_S = (None, None, None, None, 0.0, 0.5, 3.0)
"""Deadlines of aborts in seconds, one of which is drawn; mostly ``None``, so that the stage budgets of the abort policy
apply."""
WATCH_MAX_S = 20.0
"""The longest time for which an operator waits for a state, in seconds."""
STEERED = (Trigger("turn", Turn.TOOL_USE.value), Trigger("turn", Turn.VERIFYING.value))
"""Moments for an urgent message to an agent that takes messages within a turn: while the agent works, or when the turn
can take no message any more but the session does not know this yet."""
SOON_S = (0.0, 0.0002, 0.0005, 0.0005, 0.5)
"""Seconds from an urgent message to the operator's next action, one of which is drawn: before the message is on record,
at that moment, or later."""
RARE = (
    *(SessionState.INTERRUPTING, SessionState.SESSION_COMPLETE, SessionState.COOLING_DOWN) * 2,
    SessionState.BUILDING_PROMPT,
)
"""States that few sessions enter, and for which operators therefore wait more often."""


async def wait_for(sup: Supervisor, moment: Trigger, patience_s: float) -> str | None:
    """Wait until a record fulfils the condition *moment*, and return the session of the record; ``None`` if no such
    record comes within *patience_s* seconds, or before the supervisor ends."""
    with anyio.move_on_after(patience_s):
        async with sup.subscribe() as records:
            async for record in records:
                if moment.matches(record, sup):
                    return session_of(record.entity_id)
    return None


class Operators:
    """Simulated operators of one supervisor. *customers* is the number of customers, from which the names of sessions
    follow."""

    def __init__(
        self,
        sup: Supervisor,
        world: World,
        random: KeyedRandom,
        tally: OutcomeCounts,
        requests: RequestLog,
        customers: int,
    ) -> None:
        self._sup = sup
        self._world = world
        self._oracle, self._faults = world.oracle, world.faults
        self._random = random
        self._tally = tally
        self._requests = requests
        self._customers = customers
        self._going = one_shot_event.OneShotEvent()
        self._backend = current_backend()
        self._seen_seq = 0

    def stop(self) -> None:
        """Make all operators stop, since all customers are done."""
        self._going.set()

    async def operate(self, number: int) -> None:
        """Act as one operator, until faults stop or all customers are done. The operator waits for the end of each
        request before the next one."""
        random, wishes = self._random.below("operator", self._world.lives, number), 0
        while not (self._faults.healed or self._going.is_set()):
            wishes += 1
            await self._pause(self._world.drawn.pause_s * random.unit("wait", wishes) ** 2)
            self._inspect(wishes)
            await self._act(random.below(wishes), f"{self._world.lives}.{number}.{wishes}")

    async def _pause(self, seconds: float) -> None:
        """Wait for *seconds* seconds, or until the operators are to stop."""
        waiter = self._backend.new_waiter()
        self._going.then(waiter.wake)
        try:
            await self._backend.wait_until(waiter, self._backend.now() + seconds)
        finally:
            self._going.forget(waiter.wake)

    def _inspect(self, number: int) -> None:
        """Let the checkers inspect the supervisor, if anything was recorded since the last inspection. Also check that
        the supervisor reports an outage or a failure while its disk refuses writes."""
        if self._world.journal.refuses and self._sup.outage is None and self._sup.failure is None:
            self._oracle.violated("degraded", "run", "its disk refuses to be written, and it says nothing of that")
        if self._sup.core.journal_writer.last_seq == self._seen_seq:
            return
        self._seen_seq = self._sup.core.journal_writer.last_seq
        self._oracle.observe(SupervisorInspected(self._sup, number))

    async def _act(self, random: KeyedRandom, place: str) -> None:
        for kind, act in (
            ("host.abort_tool", partial(self._abort_some, AbortScope.TOOL)),
            ("host.abort_sibling", partial(self._abort_some, AbortScope.SIBLING)),
            ("host.abort_session", partial(self._abort_some, AbortScope.SESSION)),
            ("host.urgent", partial(self._on_session, self._interrupt)),
            ("host.tells", self._steer),
            ("host.message", partial(self._on_session, self._leave_message)),
            ("host.prompt", partial(self._on_session, self._prompt)),
            ("host.delegates", partial(self._on_session, self._delegate)),
            ("host.closes", partial(self._on_session, self._close)),
            ("host.late", self._address_ended_session),
            ("host.answers", self._answer),
            ("host.flood", partial(self._on_session, self._flood)),
            ("host.drains", self._drain),
            ("host.lies_in_wait", self._act_on_state),
        ):
            if self._faults.strikes(kind, place):
                await act(random, place)

    async def _on_session(self, act: SessionAct, random: KeyedRandom, place: str) -> None:
        target = self._pick(random, AbortScope.SESSION)
        if target is not None:
            await act(target, random, place)

    def targets(self, scope: AbortScope) -> list[str]:
        """Return the ids of the nodes that an abort of this scope can target now."""
        return sorted(self._alive(scope))

    def _alive(self, scope: AbortScope) -> Iterator[str]:
        """Yield the ids of live tool calls, of live sessions with a parent (for siblings), or of live sessions. Most
        nodes are skipped by their ids alone, since a large host has many nodes, and making a node is expensive."""
        nodes = self._sup.core.registry.abort_tree()
        for one in nodes:
            is_call = session_of(one) != one
            if is_call != (scope is AbortScope.TOOL):
                continue
            if scope is not AbortScope.SIBLING or ("/" in one and nodes[one].parent is not None):
                yield one

    def _pick(self, random: KeyedRandom, scope: AbortScope) -> str | None:
        """Draw a node that an abort of this scope can target: first a state, then a session or call in it, so that a
        rare state is drawn as often as a common state."""
        groups: dict[str, list[str]] = {}
        for one in self._alive(scope):
            entity = self._sup.core.registry.entities.get(session_of(one))
            groups.setdefault(entity.state_name if entity is not None else "", []).append(one)
        if not groups:
            return None
        return random.choice(sorted(groups[random.choice(sorted(groups), "state")]), "target")

    async def _abort_some(self, scope: AbortScope, random: KeyedRandom, place: str) -> None:
        """Abort one tool call (or all calls of a session), siblings, or a session, according to *scope*; perhaps abort
        again before the first abort has ended."""
        target = self._pick(random, scope)
        if target is None:
            return
        if scope is AbortScope.TOOL and random.happens(0.1, "all"):
            target = session_of(target)
        async with anyio.create_task_group() as group:
            within_s = random.choice(PATIENCE_S, "within")
            group.start_soon(self.abort, target, scope, random.happens(0.15, "at once"), within_s)
            if self._faults.strikes("host.abort_again", place):
                await anyio.sleep(random.unit("again") * random.choice((0.0, 0.1, 1.0, 20.0), "how soon"))
                again, of = self._again(random, target, scope)
                group.start_soon(self.abort, again, of, random.happens(0.5, "now"))

    def _again(self, random: KeyedRandom, target: str, scope: AbortScope) -> tuple[str, AbortScope]:
        """Draw the target and the scope of the second abort: the same target or one of its calls, with the same or
        another scope."""
        calls = [one for one in self._sup.core.registry.abort_tree() if one.startswith(f"{target}:")]
        other = random.choice((scope, *AbortScope), "of")
        if other is AbortScope.TOOL and calls:
            return random.choice(sorted(calls), "call"), other
        return target, scope if other is AbortScope.TOOL else other

    async def abort(self, target: str, scope: AbortScope, now: bool = False, within_s: float | None = None) -> None:
        """Abort *target*, and pass the abort receipt to the oracle, which checks it."""
        world, oracle = self._world, self._oracle
        asked = AbortRequested(target, scope, "an operator", world.now(), world.wall.time())
        oracle.observe(asked)
        with self._requests.record(f"abort {scope} {target}{' now' if now else ''}") as said:
            there = target in self._sup.core.registry.abort_tree(hurry=now)
            plan = self._sup.plan_abort(target, scope, now=now) if there else None
            how: dict[str, Any] = {"reason": asked.reason, "actor": "operator", "now": now, "within_s": within_s}
            receipt = await self._sup.abort(target, scope, plan_id=plan.id if plan is not None else None, **how)
            said.append(f"{receipt.abort_id} ended {[one.id for one in receipt.nodes]}")
            self._tally.reached.append(sum(one.kind == "session" for one in receipt.nodes))
            oracle.receipt_came(receipt, asked.at_s, within_s, plan)
            oracle.observe(AbortReturned(asked, plan, receipt, world.now(), world.wall.time()))

    async def _interrupt(self, target: str, random: KeyedRandom, place: str) -> None:
        point = random.choice((None, *DeliveryPoint), "point")
        for _ in range(2 if self._faults.strikes("host.duplicate", place) else 1):
            await self._send(target, urgent=True, at=point)

    async def _send(self, target: str, *, urgent: bool, at: DeliveryPoint | None = None) -> None:
        with self._requests.record(f"send {target}") as said:
            outage = self._sup.outage
            message_id = await Session(self._sup.core, target).send("listen", urgent=urgent, at=at, sender="operator")
            said.append(message_id)
            self._oracle.acknowledged(message_id, outage)

    async def _leave_message(self, target: str, random: KeyedRandom, place: str) -> None:
        await self._send(target, urgent=False)

    async def _prompt(self, target: str, random: KeyedRandom, place: str) -> None:
        with self._requests.record(f"prompt {target}") as said:
            result = await Session(self._sup.core, target).run(f"prompt {place}")
            said.append(f"{result.outcome}: {result.error}")
            self._oracle.replies.prompt_answered(target, result.outcome, result.error, result.seq)

    async def _delegate(self, target: str, random: KeyedRandom, place: str) -> None:
        """Start a child session of *target* with a drawn abort policy, and send a prompt to the child session."""
        mode = random.choice(tuple(CancelMode), "mode")
        with self._requests.record(f"start child of {target}, {mode}") as said:
            policy, outage = self._other_policy(random), self._sup.outage
            with self._oracle.starting(target):
                child = await self._sup.start_session("guest", parent=target, policy=policy, cancel_mode=mode)
                self._oracle.set_policy(child.id, policy)
            said.append(child.id)
            self._oracle.acknowledged(child.id, outage)
            result = await child.run(f"prompt {place}")
            self._oracle.replies.prompt_answered(child.id, result.outcome, result.error, result.seq)

    def _other_policy(self, random: KeyedRandom) -> AbortPolicy:
        """Draw an abort policy for a child session that may differ from the parent's policy, so that a mix-up of the
        two policies would show."""
        sibling, session = random.happens(0.5, "tool_to_sibling"), random.happens(0.5, "sibling_to_session")
        ladder, brisk = self._world.drawn.settings.abort_policy.ladder, random.choice((1.0, 0.5, 0.25), "brisk")
        ladder = StageBudgets(**{name: brisk * value for name, value in msgspec.structs.asdict(ladder).items()})
        return AbortPolicy(tool_to_sibling=sibling, sibling_to_session=session, ladder=ladder)

    async def _close(self, target: str, random: KeyedRandom, place: str) -> None:
        with self._requests.record(f"close {target}") as said:
            await self._sup.core.aborts.close_session(target, reason="enough of it")
            said.append("closed")
            self._oracle.replies.close_answered(target)

    async def _address_ended_session(self, random: KeyedRandom, place: str) -> None:
        """Send requests to a session that may have ended, or never existed."""
        target = f"c{random.integer(0, self._customers, 'who')}"
        await self.abort(target, AbortScope.SESSION, False)
        await self._send(target, urgent=random.happens(0.5, "urgent"))

    async def _answer(self, random: KeyedRandom, place: str) -> None:
        """Answer an open permission request, by one operator or by two at once."""
        waiting = self._sup.permissions()
        if waiting:
            one = random.choice([one.id for one in waiting], "permission")
            async with anyio.create_task_group() as group:
                for number in range(2 if self._faults.strikes("host.duplicate", place) else 1):
                    allow, always = random.happens(0.5, "allow", number), random.happens(0.2, "always", number)
                    group.start_soon(self._answer_one, one, allow, always)

    async def _answer_one(self, permission_id: str, allow: bool, always: bool) -> None:
        with self._requests.record(f"answer {permission_id}") as said:
            choice = await self._sup.answer(permission_id, allow=allow, always=always, by="operator")
            said.append(f"{choice.option}")
            self._oracle.observe(PermissionAnswered(permission_id, choice.option))

    async def _flood(self, target: str, random: KeyedRandom, place: str) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(random.integer(20, 150, "many")):
                group.start_soon(partial(self._send, target, urgent=False))

    async def _act_on_state(self, random: KeyedRandom, place: str) -> None:
        """Wait until a session enters a drawn state, which is mostly short, and send an urgent message or abort at that
        moment."""
        patience_s = random.between(1.0, WATCH_MAX_S, "patience")
        if random.happens(0.4, "urgent"):
            moment, at = random.choice(URGENT_MOMENTS, "moment")
            target = await wait_for(self._sup, moment, patience_s)
            if target is not None and not self._faults.healed:
                await self._send(target, urgent=True, at=at)
            return
        scope, state = random.choice(tuple(AbortScope), "scope"), random.choice((*SessionState, *RARE), "state")
        interrupts = state is SessionState.INTERRUPTING and random.happens(0.7, "interrupts")
        first = SessionState.RUNNING if interrupts else state
        moment = Trigger("session", first.value, child=scope is AbortScope.SIBLING)
        target = await wait_for(self._sup, moment, patience_s)
        if target is not None and interrupts and not self._faults.healed:
            await self._send(target, urgent=True)
        if target is not None and not self._faults.healed:
            calls = [one for one in self.targets(AbortScope.TOOL) if session_of(one) == target]
            aimed = random.choice(calls, "call") if calls and scope is AbortScope.TOOL else target
            await self.abort(aimed, scope, random.happens(0.5, "at once"))

    async def _steer(self, random: KeyedRandom, place: str) -> None:
        """Send an urgent message while a turn is under way; an agent that takes messages within a turn receives the
        message. Perhaps send another message or abort just after, so that the turn may be over when the first message
        is on record."""
        target = await wait_for(
            self._sup, random.choice(STEERED, "moment"), random.between(1.0, WATCH_MAX_S, "patience")
        )
        if target is None or self._faults.healed:
            return
        async with anyio.create_task_group() as group:
            group.start_soon(partial(self._send, target, urgent=True))
            then = random.choice(("", "more", "end", "end"), "then")
            await anyio.sleep(random.choice(SOON_S, "how soon"))
            if then == "more":
                await self._send(target, urgent=True)
            elif then == "end":
                await self.abort(target, AbortScope.SESSION)

    async def _drain(self, random: KeyedRandom, place: str) -> None:
        with self._requests.record("stop") as said:
            now = random.happens(0.3, "now")
            self._world.request_stop(now=now)
            await self._sup.stop(now=now, actor="operator")
            if random.happens(0.5, "again"):
                await anyio.sleep(random.between(0.0, 5.0, "how soon"))
                self._world.request_stop(now=True)
                await self._sup.stop(actor="operator")
            said.append("stopping")
