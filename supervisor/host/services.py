"""Services of one supervisor: loops that run beside the sessions, each a child of one ``actors.Supervisor``.

Theory of operation
-------------------
A service is an actor with one task, its loop. The actor crashes when the loop raises, and the kernel's supervisor
starts it again, after a delay, with a new loop:

    :services                 at most ``INTENSITY`` restarts, of all services together
      :services/cleanup       permanent: a loop that returns is started again, too
      :services/plug-ins      permanent
      :services/processes     permanent
      :services/compaction    permanent
      :services/journal       transient: the loop returns when the journal is lost
      :services/control       transient: the loop returns when the supervisor closes

So a bug in a service ends neither the program nor a session, and is never silent: the crash and the restart are both
logged. Data that must survive a crash (queues, open requests) are in an object outside of the loop.

Example: the control server's loop raises. Requests under way have ``CRASH_GRACE_S`` to be answered, then the loop ends;
the log says "an actor crashed" and, at most ``BACKOFF.base_s`` after the loop's end, "a service was started again", and
the socket accepts clients.

More restarts than ``INTENSITY`` mean that restarts do not help. Then :class:`ServiceFailed` ends every session in
order, as a stop does, and leaving the supervisor's block raises it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskStatus

from actors import (
    ActorSystem,
    Backoff,
    ChildSpec,
    Context,
    Down,
    Intensity,
    Lane,
    Ref,
    Restart,
    RestartLimitExceeded,
    StartChild,
    Supervisor,
    TaskFailed,
)
from actors.one_shot_event import OneShotEvent, first_of
from supervisor.ports.logs import get_logger
from supervisor.sessions.shutdown import ServiceFailed, Shutdown

SERVICES: Final = ":services"
"""Actor id of the services' supervisor; no session can have this id."""

INTENSITY: Final = Intensity(5, 60.0)
BACKOFF: Final = Backoff(base_s=0.1, factor=2.0, cap_s=5.0)
START_S: Final = 30.0
"""Seconds within which the services' supervisor starts a child."""
CLOSE_S: Final = 10.0
"""Seconds for loops to return once ``closing`` is set, and again to end when they are cancelled."""

_log = get_logger()

Loop = Callable[[], Coroutine[Any, Any, None]]


class ReadyLoop(Protocol):
    """Protocol of a loop that reports when it is ready, through ``task_status`` as for ``TaskGroup.start``."""

    def __call__(self, *, task_status: TaskStatus[None]) -> Coroutine[Any, Any, None]: ...


class _Service:
    """State of a service over all its incarnations (restarts); also the ``task_status`` of its loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = OneShotEvent()
        self.ended = OneShotEvent()
        self.start_error: Exception | None = None
        """Error of a loop that was never ready. The caller of ``start`` receives the error, and no restart follows."""
        self._restarts = 0

    def started(self, value: None = None) -> None:
        if self.ready.is_set():
            self._restarts += 1
            _log.warning("a service was started again", service=self.name, restarts=self._restarts)
        self.ready.set()


class _LoopReturned:
    """Message that a service's actor sends to itself when its loop has returned."""


class _Incarnation:
    """Behaviour of a service's actor: runs the service's loop once."""

    def __init__(self, service: _Service, loop: ReadyLoop) -> None:
        self._service, self._loop = service, loop

    def started(self, ctx: Context) -> None:
        ctx.start_task(self._run, ctx, name=self._service.name)

    async def _run(self, ctx: Context) -> None:
        try:
            await self._loop(task_status=self._service)
        except Exception as error:
            if self._service.ready.is_set():
                raise
            self._service.start_error = error
        ctx.tell_self(_LoopReturned(), lane=Lane.CONTROL)

    def receive(self, ctx: Context, message: object) -> None:
        if isinstance(message, TaskFailed):
            raise message.error  # a crash of the actor, upon which its supervisor acts
        ctx.exit()


class Services:
    """The services of one supervisor, which ends when services crash too often."""

    def __init__(self, system: ActorSystem, shutdown: Shutdown) -> None:
        self._system = system
        self._shutdown = shutdown
        self._closed_in_order: list[_Service] = []
        self._supervisor: Ref | None = None
        """The kernel supervisor of the services, made with the first service: without services none is needed."""
        self.closing = anyio.Event()
        """Set when the supervisor closes: loops that were passed to :meth:`start` then return."""

    async def add(self, name: str, loop: Loop, *, restart: Restart = Restart.PERMANENT) -> None:
        """Start a service whose loop is ready at once.

        Raises:
            NameTaken: a service with that name exists.
            ActorStopped: the services have ended.
        """

        async def run(*, task_status: TaskStatus[None]) -> None:
            task_status.started()
            await loop()

        await self._start(_Service(name), run, restart)

    async def start(self, name: str, loop: ReadyLoop) -> None:
        """Start a transient service, whose loop returns once ``closing`` is set, and wait until the loop is ready.

        Raises:
            Exception: the loop raised before it was ready; the service does not run.
            NameTaken: a service with that name exists.
            ActorStopped: the services have ended.
        """
        service = _Service(name)
        await self._start(service, loop, Restart.TRANSIENT)
        self._closed_in_order.append(service)
        await first_of(service.ready, service.ended)
        if service.start_error is not None:
            raise service.start_error

    async def _start(self, service: _Service, loop: ReadyLoop, restart: Restart) -> None:
        spec = ChildSpec(service.name, lambda: _Incarnation(service, loop), restart, shutdown_s=CLOSE_S)
        if self._supervisor is None:
            self._supervisor = self._system.spawn(Supervisor(intensity=INTENSITY, backoff=BACKOFF), SERVICES)
            self._system.monitor(SERVICES, self._on_down)
        await self._supervisor.ask(StartChild(spec), timeout_s=START_S)
        self._system.monitor(f"{SERVICES}/{service.name}", lambda down: service.ended.set())

    async def close(self) -> None:
        """Set ``closing`` and wait, at most ``CLOSE_S`` seconds, until the loops that watch ``closing`` have
        returned."""
        self.closing.set()
        with self._system.timers.limit(CLOSE_S, shield=True):
            for service in self._closed_in_order:
                await service.ended.wait()

    def _on_down(self, down: Down) -> None:
        if isinstance(down.reason, RestartLimitExceeded):
            self._shutdown.service_failed(ServiceFailed(down.reason))
