"""Supervisors: actors that start children from specs, and start them again, by OTP's rules (``one_for_one``).

A supervisor never waits: a delay is one of its timers and a failed start is a message to it, so that a stop can
overtake both. Too many restarts end the supervisor as :class:`RestartLimitExceeded`, which is never a clean end, so
that its own supervisor acts. For example, with ``Intensity(10, 60.0)`` a child that raises in each incarnation is
started again ten times, after growing delays; its next end ends the supervisor.

A child keeps its ref and its mailbox over restarts: queued messages are handled by the next incarnation. Only the
message that is being handled at a crash is lost; if it is an ask, the ask fails with
:class:`~actors.errors.ActorRestarting`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from actors.actor import SHUTDOWN_S, Actor, Context, Shutdown, is_clean
from actors.backoff import Backoff, Uniform
from actors.cell import ActorCell
from actors.errors import ActorError, InvalidOption, NameTaken, NoSuchActor, StartFailed
from actors.mailbox import DEFAULT_LIMITS, Lane, Limits
from actors.message_loop import Phase
from actors.ref import DEFERRED, Ref, Reply
from actors.restart import Intensity, Restart, add_restart, wanted
from actors.waiter import RAISED, as_error

BRUTAL_KILL = 0.0
"""Value of ``shutdown_s`` that gives the child no time to clean up."""


class ChildSpec(NamedTuple):
    """Specification of a child.

    Args:
        id: name of the child below its supervisor; the actor's id is ``<supervisor>/<id>``.
        start: function that returns the behaviour of an incarnation.
        restart: ``permanent``, ``transient`` (not after a clean end) or ``temporary`` (never).
        shutdown_s: seconds in which the child and all actors below it may end; :data:`BRUTAL_KILL` for no time.
        limits: bounds of the mailbox, which the child keeps over restarts.
    """

    id: str
    start: Callable[[], Actor]
    restart: Restart = Restart.PERMANENT
    shutdown_s: float = SHUTDOWN_S
    limits: Limits = DEFAULT_LIMITS

    def checked(self) -> ChildSpec:
        """Return this spec, with its restart type as a :class:`Restart`.

        Raises:
            InvalidOption: a field has an invalid value.
        """
        whose = f"child spec {self.id!r}"
        if not isinstance(self.id, str) or not self.id or "/" in self.id:
            raise InvalidOption("child spec", "id", self.id, "give a name without '/'")
        if not callable(self.start):
            raise InvalidOption(whose, "start", self.start, "give a function that makes the behaviour")
        if self.restart not in list(Restart):
            raise InvalidOption(whose, "restart", self.restart, f"give one of: {', '.join(Restart)}")
        if not isinstance(self.shutdown_s, int | float) or not self.shutdown_s >= 0:
            raise InvalidOption(whose, "shutdown_s", self.shutdown_s, "give seconds >= 0, or BRUTAL_KILL")
        if not isinstance(self.limits, Limits):
            raise InvalidOption(whose, "limits", self.limits, "give Limits(capacity, ...)")
        self.limits.checked(self.id)
        return self._replace(restart=Restart(self.restart))


# ---------------------------------------------------------------------------------------------------------- requests
class StartChild(NamedTuple):
    """Request to start a child; the reply is the child's :class:`~actors.ref.Ref`.

    Fails with :class:`NameTaken`, :class:`StartFailed` or :class:`InvalidOption`; then the child is not added.
    """

    spec: ChildSpec


class StopChild(NamedTuple):
    """Request to stop a child and remove it; the reply comes when the child has ended. Fails with
    :class:`NoSuchActor`."""

    id: str


class WhichChildren(NamedTuple):
    """Request for a tuple of :class:`ChildInfo`, in the order in which the children were added."""


class ChildInfo(NamedTuple):
    """Information on a child. ``state`` is ``running``, ``restarting``, ``stopping`` or ``down``."""

    id: str
    actor_id: str
    state: str
    restart: Restart
    restarts: int
    next_attempt_s: float | None
    """Time of the next start, on the system's clock, in seconds."""


class RestartLimitExceeded(ActorError):
    """Error: the supervisor ended because of too many restarts. Never a clean end."""

    def __init__(self, supervisor: str, child: str, intensity: Intensity, reason: object) -> None:
        self.supervisor, self.child, self.intensity, self.reason = supervisor, child, intensity, reason
        super().__init__(
            f"{supervisor!r} gave up on {child!r}: more than {intensity.restarts_max} restarts within "
            f"{intensity.period_s:g} s; the last end: {reason}"
        )


# ------------------------------------------------------------------------------------------------------- own messages
class _ChildDown(NamedTuple):
    child: Child
    reason: object


class _RestartDue(NamedTuple):
    child: Child


class _Owner(Protocol):
    """Protocol of the part of a supervisor that a child needs."""

    def on_child_down(self, child: Child, reason: object) -> None: ...


class Child:
    """Child of a supervisor: its spec and its state. The object is the :class:`RestartHook` of the child's actor."""

    def __init__(self, owner: _Owner, spec: ChildSpec, actor_id: str) -> None:
        self.owner = owner
        self.spec = spec
        self.actor_id = actor_id
        self.shutdown_s = spec.shutdown_s
        self.cell: ActorCell | None = None
        self.stop_requested = False
        """True if the supervisor has stopped the child, whose end is no failure then."""
        self.due: float | None = None
        self.up_since = 0.0
        self.failures = 0
        self.total_restarts = 0
        self.stoppers: list[Reply] = []

    def make_actor(self) -> Actor:
        """Make a behaviour by the spec's factory.

        Raises:
            InvalidOption: the factory returned an object that is no behaviour.
        """
        actor = self.spec.start()
        if not callable(getattr(actor, "receive", None)):
            raise InvalidOption(f"child spec {self.spec.id!r}", "start()", actor, "return a behaviour, with a receive")
        return actor

    def wants_restart(self, reason: object) -> bool:
        return not self.stop_requested and wanted(self.spec.restart, clean=is_clean(reason))

    def report_down(self, reason: object) -> None:
        self.owner.on_child_down(self, reason)

    @property
    def running(self) -> bool:
        return self.cell is not None and self.cell.phase is Phase.LIVE

    @property
    def down(self) -> bool:
        """Whether the child does not run: it has ended, or waits for its restart."""
        return self.cell is None or self.cell.phase in (Phase.EXITED, Phase.STOPPED)

    @property
    def state(self) -> str:
        if self.running:
            return "running"
        if self.due is not None or (self.cell is not None and self.cell.phase is Phase.EXITED):
            return "restarting"
        return "down" if self.down else "stopping"


class Supervisor:
    """Behaviour of a supervisor. Spawn it like any other actor; its children run when ``spawn`` returns.

    Args:
        specs: first children, started in this order and stopped in reverse.
        intensity: restarts of all children together, within a period, up to which the supervisor continues.
        backoff: delay before a restart, drawn from the system's seed.

    Raises:
        InvalidOption: an invalid value, or two children with the same id.
    """

    def __init__(
        self,
        specs: Iterable[ChildSpec] = (),
        *,
        intensity: Intensity = Intensity(10, 60.0),  # noqa: B008  an immutable value
        backoff: Backoff = Backoff(),  # noqa: B008
    ) -> None:
        self._intensity = intensity.checked("supervisor", "intensity")
        self._backoff = backoff.checked("supervisor")
        self._specs = [_checked(spec) for spec in specs]
        ids = [spec.id for spec in self._specs]
        for one in ids:
            if ids.count(one) > 1:
                raise InvalidOption("supervisor", "specs", one, "give each child an id of its own")
        self._children: dict[str, Child] = {}
        self._restarts: tuple[float, ...] = ()
        self._ctx: ActorCell

    # ------------------------------------------------------------------ behaviour
    def started(self, ctx: Context) -> None:
        """Start the first children in order. If one cannot be started, the start of the supervisor fails."""
        assert isinstance(ctx, ActorCell)
        self._ctx = ctx
        self._children.clear()
        self._restarts = ()
        for spec in self._specs:
            self._add(spec)

    def receive(self, ctx: Context, message: Any) -> Any:
        match message:
            case _ChildDown(child, reason):
                return self._child_down(child, reason)
            case _RestartDue(child):
                return self._restart_due(child)
            case StartChild(spec):
                return self._start_child(spec)
            case StopChild(child_id):
                return self._stop_child(child_id)
            case WhichChildren():
                return self._infos()
            case _:
                fix = "ask StartChild, StopChild or WhichChildren"
                return self._refuse(InvalidOption(f"supervisor {self._ctx.id!r}", "message", message, fix))

    def on_child_down(self, child: Child, reason: object) -> None:
        """Queue the end of a child as a message to the supervisor, since this method is called within that end, at any
        time."""
        if self._ctx.phase is Phase.LIVE:
            self._ctx.tell_self(_ChildDown(child, reason), lane=Lane.CONTROL)

    # ------------------------------------------------------------------ children
    def _add(self, spec: ChildSpec) -> Ref:
        if spec.id in self._children:
            raise NameTaken(spec.id, "child id")
        actor_id = f"{self._ctx.id}/{spec.id}"
        child = Child(self, spec, actor_id)
        try:
            actor = child.make_actor()
        except RAISED as error:
            raise StartFailed(actor_id, as_error(error)) from error
        self._children[spec.id] = child
        try:
            return self._spawn(child, actor)
        except ActorError:
            self._children.pop(spec.id, None)
            raise

    def _spawn(self, child: Child, actor: Actor) -> Ref:
        spec = child.spec
        self._ctx.spawn(actor, child.actor_id, limits=spec.limits, shutdown_s=spec.shutdown_s, restart_hook=child)
        cell = self._ctx.system.cell(child.actor_id)
        assert isinstance(cell, ActorCell)
        child.cell, child.stop_requested, child.due, child.up_since = cell, False, None, self._now()
        return cell.ref

    def _now(self) -> float:
        return self._ctx.backend.now()

    # ------------------------------------------------------------------ a child is down
    def _child_down(self, child: Child, reason: object) -> None:
        if self._children.get(child.spec.id) is not child or child.cell is None or not child.down:
            return  # the child was removed, or runs again already
        if child.cell.phase is Phase.EXITED and not child.stop_requested:
            self._restart(child, reason)
        else:
            self._gone(child)

    def _gone(self, child: Child) -> None:
        """Record that the child is not restarted, and reply to the requests to stop it."""
        child.cell, child.due = None, None
        for stopper in child.stoppers:
            stopper.resolve(None)
        child.stoppers.clear()
        if child.stop_requested or child.spec.restart is Restart.TEMPORARY:
            self._children.pop(child.spec.id)

    def _restart(self, child: Child, reason: object) -> None:
        """Restart a child after a delay; end the supervisor if that exceeds the intensity."""
        now = self._now()
        if now - child.up_since >= self._backoff.stable_s:
            child.failures = 0
        child.failures += 1
        child.total_restarts += 1
        self._restarts = add_restart(self._restarts, now, self._intensity.period_s)
        if self._intensity.exceeded(self._restarts):
            self._ctx.fail(RestartLimitExceeded(self._ctx.id, child.spec.id, self._intensity, reason))
            return
        rng: Uniform = self._ctx.system.rng(self._ctx.id, child.spec.id, child.failures, len(self._restarts))
        delay_s = self._backoff.delay_s(child.failures, rng)
        child.due = now + delay_s
        self._ctx.set_timer(f"restart {child.spec.id}", delay_s, _RestartDue(child))

    def _restart_due(self, child: Child) -> None:
        """Restart a child, unless it was stopped meanwhile. A failed start is reported by a message."""
        if self._children.get(child.spec.id) is not child or child.running or child.due is None:
            return
        child.due, child.stop_requested, child.up_since = None, False, self._now()
        assert child.cell is not None
        child.cell.restart()

    # ------------------------------------------------------------------ requests
    def _start_child(self, spec: ChildSpec) -> Any:
        try:
            return self._add(_checked(spec))
        except ActorError as error:
            return self._refuse(error)

    def _refuse(self, error: ActorError) -> Any:
        """Fail the ask that is being handled with *error*, which must not end the supervisor."""
        envelope = self._ctx.envelope
        if envelope is not None and envelope.reply is not None:
            envelope.reply.fail(error)
        return DEFERRED

    def _stop_child(self, child_id: str) -> Any:
        child = self._children.get(child_id)
        if child is None:
            return self._refuse(NoSuchActor(f"{self._ctx.id}/{child_id}"))
        child.due, child.stop_requested = None, True
        self._ctx.cancel_timer(f"restart {child_id}")
        if child.cell is None or child.cell.phase is Phase.STOPPED:
            return self._gone(child)
        envelope = self._ctx.envelope
        if envelope is not None and isinstance(envelope.reply, Reply):
            child.stoppers.append(envelope.reply)
        child.cell.stop_with_parent(Shutdown("stopped by its supervisor"), float("inf"))
        return DEFERRED

    def _infos(self) -> tuple[ChildInfo, ...]:
        return tuple(
            ChildInfo(one.spec.id, one.actor_id, one.state, one.spec.restart, one.total_restarts, one.due)
            for one in self._children.values()
        )


def _checked(spec: object) -> ChildSpec:
    if not isinstance(spec, ChildSpec):
        raise InvalidOption("supervisor", "child spec", spec, "give a ChildSpec(id, start, ...)")
    return spec.checked()
