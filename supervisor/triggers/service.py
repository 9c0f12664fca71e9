"""Service of the triggers of a daemon: takes deliveries, submits plans, and notes the ends of their runs.

Theory of operation
-------------------
Each trigger is an entity whose log has every delivery with what it started, or why nothing (``lifecycles.trigger``)::

    occurrence, request, changed files -> decide -> delivery_accepted --effect SubmitPlan--> run_started -> run_ended
                                                 -> delivery_queued (until the run has ended)
                                                 -> delivery_refused

A delivery is decided in one step, with nothing awaited in between: of two that come together the second is found
repeated, or overlapping. The id of a delivery is the idempotency key of its run, and the data of the entity has the
accepted deliveries that have no run yet: a daemon that is killed between the two submits nothing twice, and its
successor forgets nothing.

Refused deliveries are on record up to ``REFUSALS_PER_HOUR`` for each trigger, and counted beyond: whoever can reach the
port must not be able to fill the disk. Requests to names that no webhook has are in the log of a trigger without a
name. Of refused occurrences of a schedule one a minute is on record, since a record also says up to when occurrences
are decided: so a daemon that is killed leaves a minute of them, at most, to the next one.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from actors.machine import Effect, Event
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.effects import SubmitPlan
from supervisor.lifecycles.entity_types import TRIGGER_KIND
from supervisor.lifecycles.trigger import (
    HOUR_S,
    TRIGGER_PREFIX,
    DefinitionChanged,
    Delivery,
    DeliveryAccepted,
    DeliveryEvent,
    DeliveryQueued,
    DeliveryRefused,
    RunEnded,
    RunStarted,
    StartFailed,
    Trigger,
    TriggerClosed,
    TriggerData,
    decide,
)
from supervisor.lifecycles.types import Kind, LifecycleEvent, RecordId
from supervisor.plans import Plan
from supervisor.plans.daemon_control import HookLimits, HookReply, PlanRequest, SubmittedPlan
from supervisor.plans.source import BadPlan
from supervisor.ports import EntityRow
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Entity, Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.journal_state import entity_of, records_of
from supervisor.triggers.definitions import Definition, compose, load_definitions, unsafe_agent, writable_by_agents
from supervisor.triggers.event_values import take_values, why_not_meant
from supervisor.triggers.schedule import LOOK_BACK_S, find_due, local_text, occurrence_id
from supervisor.triggers.signatures import Forged, Malformed, Provider, Received, receive
from supervisor.triggers.watches import TooManyFiles, Watch, notices, scan

LOOK_S: Final = 30.0
"""Seconds after which schedules are looked at anew, since the wall clock may have been set."""
REFUSALS_PER_HOUR: Final = 60
NO_NAME: Final = ""
"""Name of the trigger whose log has the requests to webhooks that are not there; no trigger of a file has it."""
_NAME_CHARS_MAX: Final = 100
RECORDS_MAX: Final = 10_000
"""Number of records after which the log of a trigger is continued in a new one, so that the old one can be archived."""
CAUSE: Final = Cause(actor="triggers")
WATCH_LOST: Final = "WatchLost"
WATCH_FOUND: Final = "WatchFound"

_log = get_logger()


class PlanTaker(Protocol):
    """Daemon, as its triggers use it."""

    ending: anyio.Event
    """Set when the daemon takes no plan any more."""

    def read_request(self, request: PlanRequest) -> Plan:
        """Read the plan of a request; raises BadPlan."""
        ...

    async def submit(self, request: PlanRequest, cause: RecordId | None) -> SubmittedPlan:
        """Begin a run that follows from the record *cause*; raises as ``DaemonControl.submit``."""
        ...

    def run_of(self, key: str) -> str:
        """Return the id of the run that was submitted with *key*; ``""`` if there is none."""
        ...

    async def wait_ended(self, run: str) -> None:
        """Wait until a run has ended, its merges included."""
        ...


class TriggerEntity(Entity):
    """Entity of a trigger; its one effect is performed by the service."""

    service: TriggerService

    def perform(self, effect: Effect, cause: Cause) -> None:
        assert isinstance(effect, SubmitPlan)
        self.service.start_submitting(self, effect.delivery, cause)


class TriggerService:
    """The triggers of one daemon.

    Args:
        path: the file with the definitions.
        directory: the working directory of the daemon.
        state_root: the state directory, which no watch sees.
        daemon: the daemon, which takes the plans.

    Raises:
        BadPlan: the file is missing or has an error.
    """

    def __init__(self, path: Path, directory: Path, state_root: Path, daemon: PlanTaker) -> None:
        self._path, self._directory, self._root, self._daemon = path, directory, state_root.resolve(), daemon
        self._definitions = load_definitions(path, directory)
        self._entities: dict[str, TriggerEntity] = {}
        """Entities by the names of the triggers."""
        self._watches: dict[str, Watch] = {}
        self._refusals: dict[str, list[float]] = {}
        """Times of the refusals of the last hour that are on record, by name."""
        self._unrecorded: dict[str, int] = {}
        self._decided: dict[str, float] = {}
        """Times up to which occurrences are decided, where the record of that is still to come, by name."""
        self._reloaded = anyio.Event()
        """Set when the definitions have changed; then another one takes its place."""
        self._begun = anyio.Event()

    # ------------------------------------------------------------------ the beginning
    def restore(self, core: SupervisorCore, rows: Sequence[EntityRow]) -> None:
        """Take over the triggers that an earlier daemon left."""
        self._core = core
        for row in rows:
            if row.kind == Kind.TRIGGER and not row.ended:
                found = entity_of(row, core.journal_writer)
                entity = self._entity(row.id, found.state, found.data)
                entity.continue_log(row)
                core.registry.restore_entity(entity)
                self._entities[entity.data.name] = entity

    def _entity(self, entity_id: str, state: Any, data: TriggerData) -> TriggerEntity:
        made = TriggerEntity(TRIGGER_KIND, entity_id, None, state, data, self._core.journal_writer)
        made.service = self
        return made

    async def begin(self, group: TaskGroup) -> None:
        """Go on with what was left, and take deliveries from now on. *group* lasts as long as the daemon."""
        self._group = group
        self._define()
        if reason := writable_by_agents(self._path):
            _log.warning("agents can write the triggers", why=reason)
        for entity in self._entities.values():
            accepted = await self._accepted(entity) if entity.data.starting else {}
            for delivery in entity.data.starting:
                self.start_submitting(entity, delivery.id, CAUSE._replace(seq=accepted.get(delivery.id)))
            for started in entity.data.running:
                group.start_soon(self._follow, entity, started.delivery, started.run, CAUSE)
            self._take_queued(entity, CAUSE)
        await self._begin_watches()
        await self._core.services.add("schedules", self._run_schedules)
        await self._core.services.add("watches", self._run_watches)
        self._begun.set()

    async def _accepted(self, entity: TriggerEntity) -> dict[str, RecordId]:
        """Return the records of the deliveries that were accepted, by their ids."""
        records = await records_of(self._core.journal, entity.id)
        named = [one for one in records if one.event == DeliveryAccepted.spelled]
        return {str(one.metadata["delivery"]): one.seq for one in named}

    def load(self) -> dict[str, Definition]:
        """Read the definitions again, for :meth:`use`.

        Raises:
            BadPlan: the file is missing or has an error; those that were read before stay in force.
        """
        return load_definitions(self._path, self._directory)

    async def use(self, definitions: dict[str, Definition]) -> str:
        """Put *definitions* in the place of the present ones, and return a phrase about what is different."""
        had, self._definitions = self._definitions, definitions
        self._define()
        await self._begin_watches()
        self._reloaded.set()
        self._reloaded = anyio.Event()
        new = [name for name, one in definitions.items() if name not in had or had[name].digest != one.digest]
        gone = [name for name in had if name not in definitions]
        parts = [f"triggers {', '.join(new)} are new or changed"] if new else []
        return "; ".join([*parts, *([f"triggers {', '.join(gone)} are gone"] if gone else [])])

    def _define(self) -> None:
        """Bring the entities in line with the definitions."""
        now = math.floor(self._core.journal_writer.clock.wall.time())
        for name, one in self._definitions.items():
            config, entity = one.config, self._entities.get(name)
            fields: dict[str, Any] = {"source": one.source_text, "definition": one.digest, "overlap": config.overlap}
            fields["starts_per_hour"] = config.starts_per_hour
            if entity is None:
                self._open(TriggerData(name=name, decided_s=now, **fields))
            elif entity.data.definition != one.digest:
                is_same = entity.data.source == one.source_text
                self._decided.pop(name, None)
                self._apply(entity, DefinitionChanged(decided_s=None if is_same else now, **fields))
        for name in [name for name in self._entities if name != NO_NAME and name not in self._definitions]:
            self._close(self._entities.pop(name), "the trigger is gone from the file")

    def _open(self, data: TriggerData) -> None:
        entity_id = self._core.registry.names.new(f"{TRIGGER_PREFIX}{data.name or 'unknown'}")
        self._entities[data.name] = entity = self._entity(entity_id, Trigger.WAITING, data)
        self._core.registry.add_entity(entity, cause=CAUSE)

    def _close(self, entity: TriggerEntity, reason: str) -> None:
        self._apply(entity, TriggerClosed(reason=reason))
        self._core.registry.remove(entity.id)

    def _apply(self, entity: TriggerEntity, event: Event, cause: Cause = CAUSE) -> LifecycleEvent:
        return self._core.registry.apply((entity.id, event), cause=cause)

    def _is_there(self, entity: TriggerEntity) -> bool:
        """Return whether the trigger is still defined, and its log is not continued in another one."""
        return self._entities.get(entity.data.name) is entity

    # ------------------------------------------------------------------ deliveries
    def _decide(
        self, entity: TriggerEntity, delivery: Delivery, decided_s: float | None = None
    ) -> DeliveryEvent | None:
        """Decide about a genuine delivery, and record that; ``None`` if the daemon ends, so that the next one decides
        about an occurrence."""
        if self._daemon.ending.is_set():
            return None
        event = decide(entity.data, delivery, self._core.journal_writer.clock.now(), decided_s)
        if isinstance(event, DeliveryRefused):
            self._refuse(entity, delivery.id, event.reason, decided_s)
        else:
            self._apply(entity, event)
        return event

    def _refuse(self, entity: TriggerEntity, delivery: str, reason: str, decided_s: float | None = None) -> None:
        """Record that a delivery starts nothing, or count it if many were recorded within the hour. *decided_s*: it is
        an occurrence of a schedule."""
        name, now = entity.data.name, self._core.journal_writer.clock.now()
        self._refusals[name] = recent = [one for one in self._refusals.get(name, ()) if now - one < HOUR_S]
        is_one_too_many = (
            len(recent) >= REFUSALS_PER_HOUR
            if decided_s is None
            else bool(recent) and now - recent[-1] < HOUR_S / REFUSALS_PER_HOUR
        )
        if is_one_too_many:
            self._unrecorded[name] = self._unrecorded.get(name, 0) + 1
            if decided_s is not None:
                self._decided[name] = decided_s
            return
        recent.append(now)
        unrecorded = self._unrecorded.pop(name, 0)
        self._apply(
            entity, DeliveryRefused(delivery=delivery, reason=reason, unrecorded=unrecorded, decided_s=decided_s)
        )
        self._continue_log(entity)

    def start_submitting(self, entity: TriggerEntity, delivery: str, cause: Cause) -> None:
        """Submit the plan of an accepted delivery, in a task."""
        self._group.start_soon(self._submit, entity, delivery, cause)

    async def _submit(self, entity: TriggerEntity, delivery: str, cause: Cause) -> None:
        name = entity.data.name
        values = next((one.values for one in entity.data.starting if one.id == delivery), None)
        definition = self._definitions.get(name)
        if values is None or definition is None:
            return
        key = f"trigger:{name}:{delivery}"
        try:
            request = await anyio.to_thread.run_sync(self.read_plan, definition, values, key)
            run = self._daemon.run_of(key) or (await self._daemon.submit(request, cause.seq)).run
        except (BadPlan, Refused, ValueError, OSError) as error:
            if self._daemon.ending.is_set() or not self._is_there(entity):
                return  # the next daemon submits it
            _log.warning("a trigger has started nothing", trigger=name, delivery=delivery, why=str(error))
            record = self._apply(entity, StartFailed(delivery=delivery, error=str(error)), cause)
            self._take_queued(entity, Cause(record.seq, None, CAUSE.actor))
            return
        if self._is_there(entity):
            record = self._apply(entity, RunStarted(delivery=delivery, run=run), cause)
            _log.info("a trigger has started a run", trigger=name, delivery=delivery, run=run)
            await self._follow(entity, delivery, run, Cause(record.seq, None, CAUSE.actor))

    def read_plan(self, definition: Definition, values: Mapping[str, str], key: str) -> PlanRequest:
        """Return the request for the run of a delivery with *values*; it waits for the disk.

        Raises:
            BadPlan: the plan has an error, or one of its agents must not be given values.
        """
        text, path = compose(definition, self._directory, values)
        by, directory = f"trigger {definition.name}", str(self._directory)
        request = PlanRequest(text=text, source=by, path=path, directory=directory, key=key, by=by)
        if values and (reason := unsafe_agent(self._daemon.read_request(request))):
            raise BadPlan(f"{self._path}: triggers.{definition.name}.{reason}")
        return request

    async def _follow(self, entity: TriggerEntity, delivery: str, run: str, cause: Cause) -> None:
        """Wait for the end of a run, and take the next delivery that waits."""
        await self._daemon.wait_ended(run)
        if self._daemon.ending.is_set() or not self._is_there(entity):
            return
        if (watch := self._watches.get(entity.data.name)) is not None:
            # Before the end is on record: what is there now may be the run's, and what comes after it is somebody's.
            watch.begin(await self._scan(entity.data.name, watch))
            if not self._is_there(entity):  # a reload has come meanwhile
                return
        record = self._apply(entity, RunEnded(delivery=delivery, run=run), cause)
        self._take_queued(entity, Cause(record.seq, None, CAUSE.actor))

    def _take_queued(self, entity: TriggerEntity, cause: Cause) -> None:
        now = self._core.journal_writer.clock.now()
        while entity.data.is_free and entity.data.queue:
            self._apply(entity, decide(entity.data, entity.data.queue[0], now), cause)
        self._continue_log(entity)

    def _continue_log(self, entity: TriggerEntity) -> None:
        """Continue a log that is long in a new one, if nothing goes on."""
        if entity.data.is_free and entity.entity_seq >= RECORDS_MAX:
            self._close(entity, "the log is continued in a new one")
            self._open(entity.data)

    # ------------------------------------------------------------------ schedules
    async def _run_schedules(self) -> None:
        """Fire the schedules, without end."""
        while True:
            now, wait_s = self._core.journal_writer.clock.wall.time(), LOOK_S
            for name, definition in self._definitions.items():
                if definition.config.schedule is not None and not self._daemon.ending.is_set():
                    self._fire_due(name, definition, now)
                    # An interval counts from its last occurrence, so the next one is not simply after now.
                    decided_s = max(self._decided_s(name), now - LOOK_BACK_S)
                    following = next(definition.config.schedule.value().after(decided_s), now + LOOK_S)
                    wait_s = min(wait_s, max(following - now, 0.0))
            with anyio.move_on_after(wait_s):
                await self._reloaded.wait()

    def _decided_s(self, name: str) -> float:
        """Return the Unix time up to which the occurrences of a schedule are decided."""
        data: TriggerData = self._entities[name].data
        return max(data.decided_s, self._decided.get(name, 0.0))

    def _fire_due(self, name: str, definition: Definition, now: float) -> None:
        config = definition.config.schedule
        assert config is not None, "the caller has looked"
        schedule = config.value()
        due = find_due(schedule, config.missed, self._decided_s(name), now)
        if (skipped := due.skipped) is not None:
            first, last = occurrence_id(skipped.first), occurrence_id(skipped.last)
            reason = f"missed: {skipped.number} occurrences from {first} to {last} came too late to be fired"
            self._refuse(self._entities[name], last, reason, skipped.last)
        for at in due.starts:
            document = {"occurrence": occurrence_id(at), "local": local_text(at, schedule)}
            delivery = Delivery(id=occurrence_id(at), values=take_values(document, definition.config.values))
            self._decide(self._entities[name], delivery, at)  # each time: the log may be continued in a new entity

    # ------------------------------------------------------------------ watches
    async def _begin_watches(self) -> None:
        """Remember what is in the watched folders; a watch that goes on keeps what it knows."""
        watches: dict[str, Watch] = {}  # the watches in use stay findable until all are there: a run may end meanwhile
        for name, one in self._definitions.items():
            if (config := one.config.watch) is not None:
                folder = (self._directory / config.folder).resolve()
                watch = self._watches.get(name)
                if watch is None or watch.config != config:
                    watch = Watch(config, folder)
                    watch.begin(await self._scan(name, watch))
                watches[name] = watch
        self._watches = watches

    async def _run_watches(self) -> None:
        """Look at the watched folders, without end."""
        while True:
            reloaded = self._reloaded
            folders = [watch.folder for watch in self._watches.values()]
            if not folders:
                await reloaded.wait()
            async with aclosing(notices(folders)) as found:
                async for paths in found:
                    for name, watch in list(self._watches.items()):
                        if any(Path(path).is_relative_to(watch.folder) for path in paths):
                            watch.notice()
                        if watch.wants_scan(anyio.current_time()):
                            await self._look(name, watch)
                    if reloaded.is_set():
                        break

    async def _look(self, name: str, watch: Watch) -> None:
        entity = self._entities.get(name)
        if entity is None or not entity.data.is_free:
            return  # the end of the run looks
        snapshot, was_lost = await self._scan(name, watch), watch.is_lost
        if not self._is_there(entity) or self._watches.get(name) is not watch:  # a reload has come meanwhile
            return
        changed = watch.compare(snapshot, anyio.current_time())
        if watch.is_lost is not was_lost:
            fact = WATCH_LOST if watch.is_lost else WATCH_FOUND
            entity.record_fact(fact, CAUSE, {"folder": str(watch.folder)})
        if changed:
            now = self._core.journal_writer.clock.wall.time()
            document = {"changed": list(changed), "count": len(changed)}
            values = take_values(document, self._definitions[name].config.values)
            self._decide(entity, Delivery(id=f"{occurrence_id(now)}+{now % 1:.3f}", values=values))

    async def _scan(self, name: str, watch: Watch) -> Any:
        try:
            return await anyio.to_thread.run_sync(partial(scan, watch.folder, watch.config.match, self._root))
        except (TooManyFiles, OSError) as error:
            if not watch.is_lost:  # said once, and not at every scan
                _log.error("a folder cannot be watched", trigger=name, why=str(error))
            return None

    # ------------------------------------------------------------------ webhooks
    def limits(self, name: str) -> HookLimits | None:
        """Implement ``Hooks.limits``."""
        definition = self._definitions.get(name)
        if definition is None or (hook := definition.config.webhook) is None:
            return None
        return HookLimits(bytes_max=hook.bytes_max, requests_per_minute=hook.requests_per_minute)

    def note_refused(self, name: str, reason: str) -> None:
        """Implement ``Hooks.note_refused``."""
        if (entity := self._entities.get(name)) is not None and self._begun.is_set():
            self._refuse(entity, "", reason)

    def note_unknown(self, name: str) -> None:
        """Implement ``Hooks.note_unknown``."""
        if not self._begun.is_set():
            return
        if NO_NAME not in self._entities:
            self._open(TriggerData(name=NO_NAME, source="requests to webhooks that are not there"))
        self._refuse(self._entities[NO_NAME], "", f"unknown: there is no webhook {name[:_NAME_CHARS_MAX]!a}")

    async def deliver(self, name: str, headers: Mapping[str, str], body: bytes) -> HookReply:
        """Implement ``Hooks.deliver``."""
        await self._begun.wait()
        definition, entity = self._definitions.get(name), self._entities.get(name)
        if definition is None or entity is None or (hook := definition.config.webhook) is None:
            return self._unknown(name)
        self._core.registry.check_disk("a delivery")
        now = self._core.journal_writer.clock.wall.time()
        found: Received | Forged | Malformed
        try:
            found = await anyio.to_thread.run_sync(receive, hook.provider, definition.secret, headers, body, now)
        except (Forged, Malformed) as error:
            found = error
        # A reload may have come meanwhile, or the log may be continued in a new entity.
        definition, entity = self._definitions.get(name), self._entities.get(name)
        if definition is None or entity is None or definition.config.webhook is None:
            return self._unknown(name)
        if isinstance(found, Forged):
            self._refuse(entity, "", f"forged: {found}")
            return _reply(401, "forged", "the signature or the token is wrong; see the history of the trigger")
        if isinstance(found, Malformed):
            self._refuse(entity, "", f"malformed: {found}")
            return _reply(400, "malformed", str(found))
        if found.reply is not None:
            self._refuse(entity, found.delivery, f"answered: {found.event} of {hook.provider.value} starts nothing")
            return HookReply(status=200, body=found.reply)
        return await self._decide_request(entity, definition, found)

    def _unknown(self, name: str) -> HookReply:
        self.note_unknown(name)
        return _reply(404, "unknown", "there is no webhook of that name")

    async def _decide_request(self, entity: TriggerEntity, definition: Definition, found: Received) -> HookReply:
        config = definition.config
        assert config.webhook is not None, "the caller has looked"
        if reason := why_not_meant(found.document, found.event, config.webhook.events, config.only):
            self._refuse(entity, found.delivery, reason)
            return _reply(200, "refused", reason, config.webhook.provider)
        values = take_values(found.document, config.values)
        event = self._decide(entity, Delivery(id=found.delivery or secrets.token_hex(8), values=values))
        # The sender forgets a delivery that was taken: so the reply waits for the disk.
        if event is None or not await self._core.journal_writer.durable():
            return _reply(503, "busy", "the daemon ends; deliver it again")
        match event:
            case DeliveryAccepted():
                return _reply(202, "accepted", "a run begins", config.webhook.provider)
            case DeliveryQueued():
                return _reply(202, "queued", "a run begins when the present one has ended", config.webhook.provider)
            case _:
                assert isinstance(event, DeliveryRefused)
                return _reply(200, "refused", event.reason, config.webhook.provider)


def _reply(status: int, outcome: str, reason: str, provider: Provider | None = None) -> HookReply:
    if provider is Provider.DISCORD and status < 300:  # an answer that only who gave the command sees
        content = f"{outcome}: {reason}"
        return HookReply(status=200, body={"type": 4, "data": {"content": content, "flags": 64}})
    return HookReply(status=status, body={"outcome": outcome, "reason": reason})
