"""Workers: the slots of each worker for tasks, and the check of whether each worker is alive.

Every worker is an entity with a log. The heartbeat of a worker of this process is sent by an asynchronous task of the
worker's actor; for a worker that runs elsewhere the host calls ``beat``. The pool checks each worker at fixed
intervals, by the clock that stands still while the process is suspended, so that a pause of the process does not count
as silence. A worker without a heartbeat for too many checks is **lost**: its tasks are taken away at once
(``on_lost``). A lost worker whose heartbeat comes again returns without tasks, and only after all tasks that it held
were released (``done``); if it stays silent, it is shut down and replaced by another worker.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeAlias

import anyio
import msgspec

from actors import Lane
from actors.one_shot_event import OneShotEvent
from actors.timers import Timer
from supervisor.host.supervision import SupervisorCore
from supervisor.lifecycles.entity_types import WORKER_KIND
from supervisor.lifecycles.types import SUPERVISOR_ENDED, Kind, NoSuchEntity
from supervisor.lifecycles.worker import (
    EVERY,
    HealthCheckRecovered,
    HealthCheckTimeout,
    MaxTimeoutExceeded,
    RegistrationComplete,
    ShutdownRequested,
    SupervisorLost,
    TaskAssigned,
    TaskCompleted,
    Worker,
    WorkerData,
    WorkerEvent,
)
from supervisor.plans.agents import WorkerConfig
from supervisor.ports.logs import get_logger
from supervisor.runtime.entity import Entity, Refused
from supervisor.runtime.journal_writer import Cause

ACTOR = "pool"
LOCAL = "local"
"""Name of the worker of a plan that names no worker: this worker has every capability."""

_log = get_logger()


Heartbeat: TypeAlias = "Callable[[WorkerPool, str, float], Coroutine[Any, Any, None]]"
"""Function that calls ``WorkerPool.beat`` for the worker of that id, every so many seconds, until ``beat`` returns
false."""


class FreeWorker(NamedTuple):
    """A worker that can take one more task. ``capabilities`` ``None`` stands for every capability."""

    id: str
    capabilities: frozenset[str] | None


class _WorkerSpec(NamedTuple):
    """Registration of a worker. Its replacement is registered with the same values."""

    name: str
    config: WorkerConfig
    everything: bool

    @property
    def capabilities(self) -> frozenset[str] | None:
        return None if self.everything else self.config.provides

    @property
    def spelled(self) -> tuple[str, ...]:
        """Capabilities in the form that is recorded in the worker's log."""
        return (EVERY,) if self.everything else tuple(sorted(self.config.provides))


class _Worker:
    """The pool's own data of one worker; the worker's entity is updated from them."""

    def __init__(self, spec: _WorkerSpec, entity: Entity, now_s: float) -> None:
        self.spec, self.entity = spec, entity
        self.config, self.slots = spec.config, spec.config.slots
        self.id = entity.id
        self.seq = entity.born_seq
        self.held: dict[str, bool] = {}
        """Names of the worker's tasks, each with whether ``TaskAssigned`` was recorded for the task."""
        self.lost: set[str] = set()
        """Tasks that the worker held when it was lost, until each of them is released."""
        self.is_lost = False
        self.draining = self.drain_requested = self.ending = False
        self.active = 0
        """Number of tasks for which ``TaskAssigned`` was recorded, but not ``TaskCompleted``."""
        self.returning: OneShotEvent | None = None
        """Set when the return of the lost worker is recorded; ``None`` while no return is under way."""
        self.beat_s = self.looked_s = now_s
        """Times of the worker's last heartbeat and of its last check, in seconds of the timers' clock."""
        self.last_heartbeat_at: float | None = None
        """Time of the last heartbeat by the journal's clock; ``None`` before the first."""
        self.missed = 0
        self.timer: Timer | None = None
        self.registered = OneShotEvent()
        self.over = OneShotEvent()

    @property
    def has_slot(self) -> bool:
        gone = self.over.is_set() or self.is_lost or self.draining or self.ending or self.entity.data.draining
        return self.registered.is_set() and not gone and len(self.held) < self.slots


class WorkerPool:
    """The workers of one plan run.

    Args:
        sup: the supervisor whose journal receives the workers' records.
        workers: the workers of the plan, by name; if empty, there is ``local``, which has every capability.
        slots: number of tasks that ``local`` takes at once; each named worker has its own number.
        heartbeat: function that sends the heartbeats of a worker, in the cancel scope of the worker's actor.
        on_lost: called with a lost worker and the tasks that it held; each task must be released by ``done``.
        on_free: called when a worker has a free slot again although no task was released.
    """

    def __init__(
        self,
        sup: SupervisorCore,
        workers: Mapping[str, WorkerConfig],
        slots: int,
        *,
        heartbeat: Heartbeat | None = None,
        on_lost: Callable[[str, list[str]], None] = lambda worker_id, tasks: None,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        self._sup, self._registry, self._timers = sup, sup.registry, sup.timers
        self._on_lost, self._on_free = on_lost, on_free
        self._named = dict(workers)
        self._slots: float = inf if workers else slots
        self._heartbeat = heartbeat or _beat_on
        self._parent_id = ""
        self._workers: dict[str, _Worker] = {}
        self._free: dict[str, None] = {}
        """Ids of the workers with a free slot; the worker that received a task most recently is last."""
        self._left: list[Entity] = []
        """Workers of an earlier supervisor that this pool still has to shut down."""
        self._ended_left: set[str] = set()
        self._ending_left: list[OneShotEvent] = []
        self._stopped = False

    # ------------------------------------------------------------------ beginning and end
    async def start(self, parent_id: str, cause: Cause) -> None:
        """Register every worker; *parent_id* is the workstream that the workers work for.

        Raises:
            JournalError: the journal could not be written.
        """
        self._parent_id = parent_id
        for entity in [one for one in self._registry.entities.values() if self._is_left(one)]:
            self._take_left(entity)
        for name, config in self._named.items():
            self._hire(_WorkerSpec(name, config, everything=False), cause)
        if not self._named:
            self._hire(_local(int(self._slots)), cause)
        workers = [*self._workers.values()]
        for worker in workers:
            await worker.registered.wait()
        self._free = {worker.id: None for worker in workers if worker.has_slot}  # as the plan has them

    async def stop(self) -> None:
        """Shut every worker down, and wait until that is recorded. Tasks still held count as over."""
        self._stopped = True
        for worker in [*self._workers.values()]:
            await worker.registered.wait()
            if worker.returning is not None:
                await worker.returning.wait()
            self._end(worker)
        self.end_left()
        for over in [*[worker.over for worker in self._workers.values()], *self._ending_left]:
            await over.wait()

    def stop_waiting(self) -> None:
        """Shut down the workers that a cancelled ``stop`` did not shut down: the records are written when the journal
        can be written."""
        for worker in [*self._workers.values()]:
            self._end(worker)
        self.end_left()

    def _end(self, worker: _Worker) -> None:
        self._let_all_go(worker)
        if not worker.ending:
            worker.ending = True
            self._record(worker, ShutdownRequested(reason="nothing is left to do"))

    def end_left(self) -> None:
        """Shut down the workers of earlier supervisors, whose tasks have been taken over: they hold no job any more."""
        left, self._left = self._left, []
        self._ended_left |= {one.id for one in left}
        self._ending_left += [self._end_left(entity) for entity in left]

    @property
    def left(self) -> set[str]:
        """Ids of the workers of earlier supervisors, which this pool shuts down."""
        return self._ended_left | {one.id for one in self._left}

    def _is_left(self, entity: Entity) -> bool:
        return entity.kind is Kind.WORKER and entity.parent_id == self._parent_id

    def _take_left(self, entity: Entity) -> None:
        """Keep a worker of an earlier supervisor, to end it when it holds no task any more."""
        self._left.append(entity)
        self._sup.recovered_work.work.discard(entity.id)

    def _end_left(self, entity: Entity) -> OneShotEvent:
        over = self._remove_at_its_end(entity)
        cause = Cause(entity.born_seq, None, ACTOR)
        self._registry.send(entity.id, SupervisorLost(reason=SUPERVISOR_ENDED), cause=cause, lane=Lane.NORMAL)
        return over

    def _let_all_go(self, worker: _Worker) -> None:
        """Count the tasks that the worker still holds as completed."""
        if worker.timer is not None:
            self._timers.cancel(worker.timer)
        for name, told in [*worker.held.items()]:
            del worker.held[name]
            if told:
                worker.active -= 1
                self._record(worker, TaskCompleted(task_id=name, active_tasks=worker.active))

    # ------------------------------------------------------------------ who there is
    def _hire(self, spec: _WorkerSpec, cause: Cause) -> None:
        slots, config = spec.config.slots, spec.config
        data = WorkerData(
            max_concurrent_tasks=slots,
            misses_max=config.misses_max,
            shutdown_s=config.shutdown_s,
            workstream=self._parent_id or "",
        )
        entity = self._registry.create_entity(
            WORKER_KIND,
            self._sup.registry.names.new(f"worker:{spec.name}"),
            parent_id=self._parent_id,
            state=Worker.INITIALIZING,
            data=data,
            cause=cause,
            contained=False,
        )
        worker = self._workers[entity.id] = _Worker(spec, entity, self._timers.now())
        worker.over = self._remove_at_its_end(entity)
        worker.over.then(lambda: self._forget(worker))
        ctx = self._registry.system.context(entity.id)
        assert ctx is not None, "it was born just now"
        ctx.start_task(self._live, worker, name="heartbeat")

    async def _live(self, worker: _Worker) -> None:
        """Register the worker, then send its heartbeats. The worker has no slot before its registration is recorded."""
        spec = worker.spec
        try:
            registered = RegistrationComplete(capabilities=spec.spelled, max_concurrent_tasks=worker.slots)
            await self._post(worker, registered)
        finally:
            worker.registered.set()
        worker.beat_s = worker.looked_s = self._timers.now()
        self._look_later(worker)
        self._offer(worker)
        self._shut_down(worker)
        self._on_free()
        await self._heartbeat(self, worker.id, spec.config.heartbeat_s)

    def _remove_at_its_end(self, entity: Entity) -> OneShotEvent:
        """Return an asynchronous event that is set when the worker is removed from memory: after its last record is
        durable, or can never be."""
        over = OneShotEvent()
        entity.on_ended = lambda: self._sup.journal_writer.when_durable(partial(self._registry.remove, entity.id))
        entity.on_buried = over.set
        return over

    def _forget(self, worker: _Worker) -> None:
        self._workers.pop(worker.id, None)
        self._free.pop(worker.id, None)
        if worker.timer is not None:
            self._timers.cancel(worker.timer)

    def resize(self, workers: Mapping[str, WorkerConfig], slots: int) -> None:
        """Change the workers to *workers*, or the slots of ``local`` to *slots* where the plan names none.

        A worker that is new or changed is registered. A worker that is not wanted any more takes no new task, and
        finishes its tasks.
        """
        self._named, self._slots = dict(workers), inf if workers else slots
        wanted = {_WorkerSpec(name, config, everything=False) for name, config in workers.items()}
        staying = [one for one in self._workers.values() if not (one.draining or one.ending)]
        for worker in staying:
            if worker.spec not in wanted and (workers or not worker.spec.everything):
                self.drain(worker.id)
        more = wanted - {worker.spec for worker in staying}
        if not workers:
            missing = slots - sum(worker.slots for worker in staying if worker.spec.everything)
            more = {_local(missing)} if missing > 0 else set()
        for spec in sorted(more, key=lambda one: one.name):
            self._hire(spec, Cause(actor=ACTOR))

    @property
    def ids(self) -> list[str]:
        """Ids of the workers, sorted."""
        return sorted(self._workers)

    # ------------------------------------------------------------------ slots
    def free(self) -> list[FreeWorker]:
        """Return the workers that can take one more task, each once; the worker that received a task most recently is
        last."""
        left = self._slots - sum(len(worker.held) for worker in self._workers.values()) if not self._named else inf
        return [FreeWorker(one, self._workers[one].spec.capabilities) for one in self._free] if left > 0 else []

    @property
    def free_slots(self) -> int:
        """Number of tasks that the workers can take, all together."""
        return sum(self._workers[one].slots - len(self._workers[one].held) for one in self._free)

    def reserve(self, worker_id: str, name: str) -> None:
        """Reserve a slot of that worker for the task *name*.

        Raises:
            LookupError: the worker has no free slot; ``free`` returns the workers with one.
        """
        if worker_id not in self._free:
            raise LookupError(f"worker {worker_id!r} has no slot for {name!r}; claim for those that `free` names")
        worker = self._workers[worker_id]
        worker.held[name] = False
        del self._free[worker_id]
        self._offer(worker)

    def assign(self, worker_id: str, name: str, cause: Cause, needs: Iterable[str] = ()) -> None:
        """Record that the worker has the task for which a slot was reserved; do nothing if the worker was lost
        meanwhile. The caller waits for the journal."""
        worker = self._workers.get(worker_id)
        if worker is None or name not in worker.held:
            return
        worker.held[name] = True
        worker.active += 1
        assigned = TaskAssigned(task_id=name, capabilities=tuple(sorted(needs)), active_tasks=worker.active)
        self._record(worker, assigned, cause)
        self._shut_down(worker)

    async def done(self, worker_id: str, name: str, cause: Cause) -> None:
        """Free the slot of the task *name*, however the task ended, or count the task as released by a lost worker."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        if name in worker.lost:
            worker.lost.discard(name)
            self._take_back(worker)
            return
        if worker.held.pop(name, False):  # before that is on record: a worker is told to end, or lost, meanwhile
            worker.active -= 1
            await self._post(worker, TaskCompleted(task_id=name, active_tasks=worker.active), cause)
        self._offer(worker)
        self._take_back(worker)
        self._shut_down(worker)

    def _offer(self, worker: _Worker) -> None:
        if worker.has_slot and not self._stopped:
            self._free.setdefault(worker.id)

    # ------------------------------------------------------------------ draining
    def drain(self, worker_id: str) -> None:
        """Give the worker no new task, and shut the worker down when it holds no task any more.

        Raises:
            NoSuchEntity: there is no such worker.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            raise NoSuchEntity(worker_id)
        worker.draining = True
        self._free.pop(worker_id, None)
        self._shut_down(worker)

    def _shut_down(self, worker: _Worker) -> None:
        """Record ``ShutdownRequested`` for a draining worker: once at the begin of the drain, and again when the worker
        holds no task."""
        wanted = worker.draining or worker.entity.data.draining
        if not wanted or worker.is_lost or worker.ending or self._stopped or not worker.registered.is_set():
            return
        if not worker.held:
            worker.ending = True
            self._record(worker, ShutdownRequested(reason="drained"))
        elif all(worker.held.values()) and not worker.drain_requested:
            worker.drain_requested = True
            self._record(worker, ShutdownRequested(reason="told to drain"))

    # ------------------------------------------------------------------ health
    def beat(self, worker_id: str) -> bool:
        """Register a heartbeat of the worker. Return false if the worker was shut down and needs no more heartbeats."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return False
        # Reset here: a beat at the instant of a check does not count for the next one.
        worker.beat_s, worker.missed = self._timers.now(), 0
        worker.last_heartbeat_at = round(self._sup.journal_writer.clock.now(), 3)
        self._take_back(worker)
        return True

    async def pause(self, seconds: float) -> None:
        """Wait for *seconds* by the clock that stands still while the process is suspended."""
        with self._timers.limit(seconds):
            await anyio.sleep_forever()

    def _look_later(self, worker: _Worker) -> None:
        if self._stopped:
            return
        worker.timer = self._timers.set("look", None, worker.config.check_s, lambda _: self._look(worker))

    def _look(self, worker: _Worker) -> None:
        """Check whether the worker has sent a heartbeat since the last check: declare it lost, shut it down, or
        go on."""
        now_s = self._timers.now()
        worker.missed += worker.beat_s <= worker.looked_s
        worker.looked_s = now_s
        self._look_later(worker)
        silent_s = now_s - worker.beat_s
        if not worker.is_lost and worker.missed >= worker.config.misses_max:
            self._lose(worker)
        elif (
            worker.is_lost
            and silent_s >= worker.config.shutdown_s
            and not (worker.lost or worker.ending or worker.returning)
        ):
            self._give_up(worker, silent_s)

    def _lose(self, worker: _Worker) -> None:
        worker.is_lost = True
        worker.lost, worker.held, worker.active = set(worker.held), {}, 0
        self._free.pop(worker.id, None)
        _log.warning("a worker is lost", worker=worker.id, tasks=sorted(worker.lost))
        self._record(worker, HealthCheckTimeout(missed=worker.missed))
        self._on_lost(worker.id, sorted(worker.lost))

    def _take_back(self, worker: _Worker) -> None:
        """Begin the return of a lost worker whose heartbeat has come again, after all tasks that it held were
        released."""
        if not worker.is_lost or worker.returning or worker.lost or worker.ending or self._stopped:
            return
        ctx = self._registry.system.context(worker.id)
        if worker.beat_s > worker.looked_s and ctx is not None:
            worker.returning = OneShotEvent()
            ctx.start_task(self._return, worker, worker.returning, name="return")

    async def _return(self, worker: _Worker, on_record: OneShotEvent) -> None:
        """Record the return of a lost worker, and only then offer the worker's slots."""
        try:
            await self._post(worker, HealthCheckRecovered())
        finally:
            on_record.set()
        worker.is_lost, worker.returning, worker.missed = False, None, 0
        self._shut_down(worker)
        self._offer(worker)
        self._on_free()

    def _give_up(self, worker: _Worker, silent_s: float) -> None:
        """Shut down a lost worker that stays silent, and register a replacement: the plan may have no other worker."""
        worker.ending = True
        _log.warning("a worker is given up", worker=worker.id, silent_s=silent_s)
        self._record(worker, MaxTimeoutExceeded(silent_s=silent_s))
        if not worker.draining:
            self._hire(worker.spec, Cause(worker.seq, None, ACTOR))
        self._on_free()

    # ------------------------------------------------------------------ records
    def _record(self, worker: _Worker, event: WorkerEvent, cause: Cause | None = None) -> None:
        """Append the worker's next record, without waiting for the journal."""
        event = msgspec.structs.replace(event, last_heartbeat_at=worker.last_heartbeat_at)
        try:
            worker.seq = self._registry.apply((worker.id, event), cause=cause or Cause(worker.seq, None, ACTOR)).seq
        except (NoSuchEntity, Refused) as error:  # the task goes on: the pool counts the slots by itself
            _log.error("the record of a worker could not be made", worker=worker.id, error=str(error))

    async def _post(self, worker: _Worker, event: WorkerEvent, cause: Cause | None = None) -> None:
        """Append the worker's next record, and wait until it is durable, even if the caller is cancelled."""
        self._record(worker, event, cause)
        with anyio.CancelScope(shield=True):
            await self._sup.journal_writer.flush()


async def _beat_on(pool: WorkerPool, worker_id: str, heartbeat_s: float) -> None:
    while pool.beat(worker_id):
        await pool.pause(heartbeat_s)


def _local(slots: int) -> _WorkerSpec:
    return _WorkerSpec(LOCAL, WorkerConfig(slots=slots), everything=True)
