"""Supervisors: actors that start children from specs, and start them again, by OTP's rules.

A supervisor holds specs and windows and decides nothing else; who is started again, with whom and how often is in
:mod:`actors.restart`. It never waits: a delay is a timer of its own and a failed start is a message to it, so that a
stop can overtake both. Too many restarts end it as :class:`RestartLimitExceeded`, which is never a clean end, so that
its own supervisor acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from actors.actor import SHUTDOWN_S, Actor, Context, Killed, Shutdown, is_clean
from actors.backoff import Backoff, Uniform
from actors.cell import Cell
from actors.errors import ActorError, InvalidOption, NameTaken, NoSuchActor, StartFailed, WrongMessage
from actors.mailbox import DEFAULT_LIMITS, Lane, Limits
from actors.parking import RAISED, as_error
from actors.place import Phase
from actors.ref import DEFERRED, Ref, Reply
from actors.restart import (
    AutoShutdown,
    Intensity,
    Restart,
    Strategy,
    add_restart,
    affected,
    ends_supervisor,
    wanted,
)

__all__ = [
    "BRUTAL_KILL",
    "ChildActive",
    "ChildInfo",
    "ChildSpec",
    "CountChildren",
    "DeleteChild",
    "Pool",
    "RestartChild",
    "RestartLimitExceeded",
    "StartChild",
    "StopChild",
    "Supervisor",
    "WhichChildren",
]

BRUTAL_KILL = 0.0
"""As ``shutdown_s``: the child gets no time to clean up."""
PER_SUPERVISOR = Intensity(10, 60.0)
PER_CHILD = Intensity(3, 60.0)


class ChildSpec(NamedTuple):
    """How a child is started, and when again.

    Args:
        id: its name below its supervisor; the actor's id is ``<supervisor>/<id>``.
        start: makes the behaviour of an incarnation.
        restart: ``permanent``, ``transient`` (not after a clean end) or ``temporary`` (never).
        significant: its end by itself may end the supervisor, by ``auto_shutdown``.
        shutdown_s: what it and all below it get to end, in seconds; :data:`BRUTAL_KILL` for none.
        redeliver: how often a message in hand at a crash goes to the next incarnation, if it is ``idempotent``.
        limits: the bounds of its mailbox, which it keeps over restarts.
        name: what it is registered under, in every incarnation.
    """

    id: str
    start: Callable[[], Actor]
    restart: Restart = Restart.PERMANENT
    significant: bool = False
    shutdown_s: float = SHUTDOWN_S
    redeliver: int = 0
    limits: Limits = DEFAULT_LIMITS
    name: str = ""

    def checked(self, auto_shutdown: AutoShutdown) -> ChildSpec:
        """This spec, with its restart type as a :class:`Restart`.

        Raises:
            InvalidOption: a field has a value that it cannot have, here or at all.
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
        if not isinstance(self.redeliver, int) or self.redeliver < 0:
            raise InvalidOption(whose, "redeliver", self.redeliver, "give 0 or more")
        if not isinstance(self.limits, Limits):
            raise InvalidOption(whose, "limits", self.limits, "give Limits(capacity, ...)")
        if not isinstance(self.name, str):
            raise InvalidOption(whose, "name", self.name, "give a name, or '' for none")
        if self.significant and self.restart == Restart.PERMANENT:
            raise InvalidOption(whose, "significant", True, "a permanent child never ends by itself; make it transient")
        if self.significant and auto_shutdown == AutoShutdown.NEVER:
            raise InvalidOption(whose, "significant", True, "give its supervisor an auto_shutdown other than never")
        self.limits.checked(self.id)
        return self._replace(restart=Restart(self.restart))


# ---------------------------------------------------------------------------------------------- what it can be asked
class StartChild(NamedTuple):
    """Ask a supervisor to start one child more; the answer is its :class:`~actors.ref.Ref`.

    A pool takes the arguments of its factory instead of a spec. Fails with :class:`NameTaken`, :class:`StartFailed`
    or :class:`InvalidOption`; then there is no such child.
    """

    spec: ChildSpec | None = None
    args: tuple[Any, ...] = ()


class StopChild(NamedTuple):
    """Ask a supervisor to stop a child; answered when it has ended. Its spec is kept, unless it is temporary."""

    id: str


class RestartChild(NamedTuple):
    """Ask a supervisor to start a child that has ended; the answer is its ref. Fails with :class:`ChildActive`,
    :class:`NoSuchActor` or :class:`StartFailed`."""

    id: str


class DeleteChild(NamedTuple):
    """Ask a supervisor to forget the spec of a child that has ended. Fails with :class:`ChildActive` or
    :class:`NoSuchActor`."""

    id: str


class WhichChildren(NamedTuple):
    """Ask a supervisor for its children: a tuple of :class:`ChildInfo` in the order of their start."""


class CountChildren(NamedTuple):
    """Ask a supervisor how many children it has: ``specs``, ``active``, ``restarting``."""


class ChildInfo(NamedTuple):
    """One child as its supervisor sees it. ``state`` is ``running``, ``restarting``, ``stopping`` or ``down``."""

    id: str
    actor_id: str
    state: str
    restart: Restart
    restarts: int
    next_attempt_s: float | None
    """When it will be started again, on the system's clock, in seconds."""


class ChildActive(ActorError):
    """The child runs, or will be started again by itself: first stop it."""

    def __init__(self, actor_id: str, state: str) -> None:
        self.actor_id, self.state = actor_id, state
        super().__init__(f"child {actor_id!r} is {state}; ask its supervisor to stop it first, with StopChild")


class RestartLimitExceeded(ActorError):
    """More restarts than may be: the supervisor gives up. Never a clean end."""

    def __init__(self, supervisor: str, child: str, intensity: Intensity, reason: object) -> None:
        self.supervisor, self.child, self.intensity, self.reason = supervisor, child, intensity, reason
        super().__init__(
            f"{supervisor!r} gave up on {child!r}: more than {intensity.restarts_max} restarts within "
            f"{intensity.period_s:g} s; the last end: {reason}"
        )


# ------------------------------------------------------------------------------------------- what it tells itself
class _ChildDown(NamedTuple):
    child: Child
    reason: object


class _RestartDue(NamedTuple):
    ids: tuple[str, ...]


class _Owner(Protocol):
    """What a child needs of its supervisor."""

    def hear_down(self, child: Child, reason: object) -> None: ...


class Child:
    """One child of a supervisor: its spec, and what has become of it. It is its actor's ward."""

    def __init__(self, owner: _Owner, spec: ChildSpec, actor_id: str) -> None:
        self.owner = owner
        self.spec = spec
        self.actor_id = actor_id
        self.shutdown_s = spec.shutdown_s
        self.redeliver = spec.redeliver
        self.name = spec.name
        self.cell: Cell | None = None
        self.told = False
        """The supervisor has told it to end: that is no failure."""
        self.due: float | None = None
        self.up_since = 0.0
        self.failures = 0
        self.total_restarts = 0
        self.restarts: tuple[float, ...] = ()
        self.stoppers: list[Reply] = []

    def make(self) -> Actor:
        """A new behaviour.

        Raises:
            InvalidOption: the factory made something else.
        """
        actor = self.spec.start()
        if not callable(getattr(actor, "receive", None)):
            raise InvalidOption(f"child spec {self.spec.id!r}", "start()", actor, "return a behaviour, with a receive")
        return actor

    def returns(self, reason: object) -> bool:
        return not self.told and wanted(self.spec.restart, clean=is_clean(reason))

    def is_down(self, reason: object) -> None:
        self.owner.hear_down(self, reason)

    @property
    def running(self) -> bool:
        return self.cell is not None and self.cell.phase is Phase.LIVE

    @property
    def down(self) -> bool:
        """It runs no more: gone, or waiting for another start."""
        return self.cell is None or self.cell.phase in (Phase.EXITED, Phase.STOPPED)

    @property
    def state(self) -> str:
        if self.running:
            return "running"
        if self.due is not None or (self.cell is not None and self.cell.phase is Phase.EXITED):
            return "restarting"
        return "down" if self.down else "stopping"


class Supervisor:
    """The behaviour of a supervisor. Spawn it like any other actor; its children are there when ``spawn`` returns.

    Args:
        specs: the static children, started in this order and stopped in reverse.
        strategy: who is started again with a child that has ended.
        intensity: how many restarts, of all children together, are not too many.
        child_intensity: the same for each child.
        backoff: the delay before a restart, drawn from the system's seed.
        auto_shutdown: whether it ends with its significant children.

    Raises:
        InvalidOption: a value that cannot be, or two children with one id.
    """

    stops_together = False
    traps_exits = True
    """Links end nobody here: a supervisor absorbs."""

    def __init__(
        self,
        specs: Iterable[ChildSpec] = (),
        *,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        intensity: Intensity = PER_SUPERVISOR,
        child_intensity: Intensity = PER_CHILD,
        backoff: Backoff = Backoff(),  # noqa: B008  an immutable value
        auto_shutdown: AutoShutdown = AutoShutdown.NEVER,
    ) -> None:
        whose = "supervisor"
        if strategy not in list(Strategy):
            raise InvalidOption(whose, "strategy", strategy, f"give one of: {', '.join(Strategy)}")
        if auto_shutdown not in list(AutoShutdown):
            raise InvalidOption(whose, "auto_shutdown", auto_shutdown, f"give one of: {', '.join(AutoShutdown)}")
        self._strategy = Strategy(strategy)
        self._intensity = intensity.checked(whose, "intensity")
        self._child_intensity = child_intensity.checked(whose, "child_intensity")
        self._backoff = backoff.checked(whose)
        self._auto_shutdown = AutoShutdown(auto_shutdown)
        self._specs = [_checked(spec, self._auto_shutdown) for spec in specs]
        _check_ids(self._specs)
        self._children: dict[str, Child] = {}
        self._restarts: tuple[float, ...] = ()
        self._group: list[str] = []
        """Children that are being taken down, or wait for one of them, to be started again together; oldest first."""
        self._ctx: Cell

    # ------------------------------------------------------------------ its life
    def started(self, ctx: Context) -> None:
        """Start the static children in order. If one cannot be started, neither can the supervisor."""
        assert isinstance(ctx, Cell)
        self._ctx = ctx
        self._children.clear()
        self._restarts, self._group = (), []
        for spec in self._specs:
            self._add(spec)

    def get_state(self) -> object:
        return {"strategy": self._strategy.value, "restarts": len(self._restarts), "children": self._infos()}

    def receive(self, ctx: Context, message: Any) -> Any:
        match message:
            case _ChildDown(child, reason):
                return self._child_down(child, reason)
            case _RestartDue(ids):
                return self._restart_due(ids)
            case StartChild(spec, args):
                return self._start_child(spec, args)
            case StopChild(id=child_id):
                return self._stop_child(child_id)
            case RestartChild(id=child_id):
                return self._restart_child(child_id)
            case DeleteChild(id=child_id):
                return self._delete_child(child_id)
            case WhichChildren():
                return self._infos()
            case CountChildren():
                return self._counts()
            case _:
                return self._refuse(WrongMessage(self._ctx.id, message, _REQUESTS))

    def hear_down(self, child: Child, reason: object) -> None:
        """From the child's own end, in the middle of anything: a message to oneself."""
        if self._ctx.phase is Phase.LIVE:
            self._ctx.tell_self(_ChildDown(child, reason), lane=Lane.CONTROL)

    # ------------------------------------------------------------------ children
    def _add(self, spec: ChildSpec) -> Ref:
        if spec.id in self._children:
            raise NameTaken(spec.id, "child id")
        actor_id = f"{self._ctx.id}/{spec.id}"
        child = Child(self, spec, actor_id)
        try:
            actor = child.make()
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
        self._ctx.spawn_ward(actor, child.actor_id, spec.limits, spec.shutdown_s, child)
        cell = self._ctx.system.cell(child.actor_id)
        assert isinstance(cell, Cell)
        child.cell, child.told, child.due, child.up_since = cell, False, None, self._now()
        return child.cell.ref

    def _now(self) -> float:
        return self._ctx.backend.now()

    def _known(self, child_id: str) -> Child:
        child = self._children.get(child_id)
        if child is None:
            raise NoSuchActor(f"{self._ctx.id}/{child_id}")
        return child

    # ------------------------------------------------------------------ a child is down
    def _child_down(self, child: Child, reason: object) -> None:
        if self._children.get(child.spec.id) is not child or child.cell is None or not child.down:
            return  # it was deleted, or lives again already
        if child.due is not None and child.cell.phase is Phase.EXITED:
            return  # its group was quicker than this message: it will be started with the others
        if child.spec.id in self._group:
            self._next_down()
        elif child.cell.phase is Phase.EXITED and not child.told:
            self._restart(child, reason)
        else:
            self._gone(child, reason)
            if self._group:  # it was taken out of it
                self._next_down()

    def _gone(self, child: Child, reason: object) -> None:
        """It will not be started again by itself."""
        by_itself = not child.told
        child.cell = child.due = None
        for stopper in child.stoppers:
            stopper.resolve(None)
        child.stoppers.clear()
        if child.spec.restart is Restart.TEMPORARY:
            self._children.pop(child.spec.id)
        left = sum(1 for one in self._children.values() if one.spec.significant and self._expected(one))
        if by_itself and ends_supervisor(
            self._auto_shutdown, significant=child.spec.significant, significant_left=left
        ):
            self._ctx.begin_stop(Shutdown(f"its significant child {child.spec.id!r} has ended"))

    def _expected(self, child: Child) -> bool:
        """It runs, or will again."""
        if child.due is not None or child.spec.id in self._group:
            return True
        return child.cell is not None and not child.told

    def _restart(self, child: Child, reason: object) -> None:
        """Start it again, with whom the strategy says, unless that was once too often."""
        now = self._now()
        if now - child.up_since >= self._backoff.stable_s:
            child.failures = 0
        child.failures += 1
        child.total_restarts += 1
        child.restarts = add_restart(child.restarts, now, self._child_intensity.period_s)
        self._restarts = add_restart(self._restarts, now, self._intensity.period_s)
        for intensity, restarts in ((self._child_intensity, child.restarts), (self._intensity, self._restarts)):
            if intensity.exceeded(restarts):
                given_up = RestartLimitExceeded(self._ctx.id, child.spec.id, intensity, reason)
                self._ctx.fail(given_up)
                return
        together = affected(self._strategy, tuple(self._children), child.spec.id)
        if len(together) == 1 and not self._group:
            self._delay(together)
        else:
            self._take_down(together)

    def _delay(self, ids: Sequence[str]) -> None:
        failures = max(self._children[one].failures for one in ids)
        rng: Uniform = self._ctx.system.rng(self._ctx.id, ids[0], failures, len(self._restarts))
        delay_s = self._backoff.delay_s(failures, rng)
        for one in ids:
            self._children[one].due = self._now() + delay_s
        self._ctx.set_timer(f"restart {ids[0]}", delay_s, _RestartDue(tuple(ids)))

    def _restart_due(self, ids: Sequence[str]) -> None:
        """Start those that are due, in order. Where one fails, those after it wait for what becomes of it."""
        due = [one for one in ids if self._is_due(one)]
        for position, one in enumerate(due):
            child = self._children[one]
            child.due, child.told, child.up_since = None, False, self._now()
            failed = self._start_again(child)
            if failed is None:
                continue
            self._group = due[position + 1 :]
            for later in self._group:
                self._children[later].due = None
            if child.cell is None:
                self._restart(child, failed)
            return

    def _is_due(self, child_id: str) -> bool:
        """It is to be started now, unless it was stopped meanwhile, or deleted, or waits for a later time."""
        child = self._children.get(child_id)
        return child is not None and not child.running and child.due is not None and child.due <= self._now()

    def _start_again(self, child: Child) -> StartFailed | None:
        """Its next incarnation, or the error; a cell that could not be revived also says so by a message."""
        if child.cell is not None and child.cell.phase is Phase.EXITED:
            return child.cell.revive()
        try:
            self._spawn(child, child.make())
        except Exception as error:
            child.cell = None
            return error if isinstance(error, StartFailed) else StartFailed(child.actor_id, error)
        return None

    # ------------------------------------------------------------------ taking a group down
    def _take_down(self, ids: Sequence[str]) -> None:
        """End those of the group that still run, the youngest first, one after the other; then start all again."""
        members = {*self._group, *(one for one in ids if not self._being_stopped(self._children[one]))}
        self._group = [one for one in self._children if one in members]
        for one in self._group:
            self._ctx.cancel_timer(f"restart {one}")
            self._children[one].due = None
        self._next_down()

    def _being_stopped(self, child: Child) -> bool:
        """On request: it will not come back with others."""
        known_down = child.cell is None or child.due is not None
        return child.told and not known_down and child.spec.id not in self._group

    def _next_down(self) -> None:
        """One more of the group; after the last, start again those that are wanted. Whoever ends by itself meanwhile
        is one of them: the restart was counted when it began."""
        self._group = [one for one in self._group if one in self._children]
        for one in reversed(self._group):
            child = self._children[one]
            if child.down:
                continue
            if not child.told:
                child.told = True
                assert child.cell is not None
                why = Shutdown("its group is started again")
                end = why if child.shutdown_s > 0 else Killed(why.cause)
                child.cell.end_to_return(end, self._now() + child.shutdown_s)
            return
        group, self._group = self._group, []
        for child in [self._children[one] for one in group]:
            if child.spec.restart is Restart.TEMPORARY:
                self._let_go(child)
        if ids := [one for one in group if one in self._children]:
            self._delay(ids)

    def _let_go(self, child: Child) -> None:
        """A temporary child was taken down with others, and is not started again with them."""
        child.told = True
        assert child.cell is not None
        child.cell.finish()
        self._gone(child, None)

    # ------------------------------------------------------------------ what it is asked
    def _start_child(self, spec: ChildSpec | None, args: tuple[Any, ...]) -> Any:
        try:
            if args:
                whose = f"StartChild of {self._ctx.id!r}"
                raise InvalidOption(whose, "args", args, "give a ChildSpec; only a Pool takes arguments")
            return self._add(_checked(spec, self._auto_shutdown))
        except ActorError as error:
            return self._refuse(error)

    def _refuse(self, error: ActorError) -> Any:
        """A wrong wish is the asker's error, and not the supervisor's end."""
        envelope = self._ctx.envelope
        if envelope is not None and envelope.reply is not None:
            envelope.reply.fail(error)
        return DEFERRED

    def _stop_child(self, child_id: str) -> Any:
        child = self._children.get(child_id)
        if child is None:
            return self._refuse(NoSuchActor(f"{self._ctx.id}/{child_id}"))
        child.due, child.told = None, True  # its timer may be that of a group, which goes on
        if child_id in self._group:
            self._group.remove(child_id)
        if child.cell is None:
            return None
        if child.cell.phase is Phase.STOPPED:
            return self._gone(child, None)
        envelope = self._ctx.envelope
        if envelope is not None and isinstance(envelope.reply, Reply):
            child.stoppers.append(envelope.reply)
        child.cell.end_with_parent(Shutdown("its supervisor was told to stop it"), float("inf"))
        return DEFERRED

    def _restart_child(self, child_id: str) -> Any:
        try:
            child = self._idle(child_id)
            return self._spawn(child, child.make())
        except ActorError as error:
            return self._refuse(error)
        except Exception as error:
            return self._refuse(StartFailed(f"{self._ctx.id}/{child_id}", error))

    def _delete_child(self, child_id: str) -> Any:
        try:
            self._idle(child_id)
        except ActorError as error:
            return self._refuse(error)
        del self._children[child_id]
        return None

    def _idle(self, child_id: str) -> Child:
        """A child that does not run and is not about to.

        Raises:
            NoSuchActor: there is no such child.
            ChildActive: it runs, or will again.
        """
        child = self._known(child_id)
        if child.cell is not None or child.due is not None or child_id in self._group:
            raise ChildActive(child.actor_id, child.state)
        return child

    def _infos(self) -> tuple[ChildInfo, ...]:
        return tuple(
            ChildInfo(one.spec.id, one.actor_id, one.state, one.spec.restart, one.total_restarts, one.due)
            for one in self._children.values()
        )

    def _counts(self) -> dict[str, int]:
        states = [one.state for one in self._children.values()]
        return {"specs": len(states), "active": states.count("running"), "restarting": states.count("restarting")}


class Pool(Supervisor):
    """A supervisor of like children, started as they are asked for (OTP's ``simple_one_for_one``).

    They have no order: their end is told to all at once. ``StartChild(args=(...))`` starts one with
    ``start(*args)``; its id is a number.

    Args:
        start: makes the behaviour of a child from the arguments it was asked for with.
        template: the spec of every child; its ``id`` and ``start`` are not used.
    """

    stops_together = True

    def __init__(
        self,
        start: Callable[..., Actor],
        template: ChildSpec | None = None,
        *,
        intensity: Intensity = PER_SUPERVISOR,
        child_intensity: Intensity = PER_CHILD,
        backoff: Backoff = Backoff(),  # noqa: B008  an immutable value
        auto_shutdown: AutoShutdown = AutoShutdown.NEVER,
    ) -> None:
        super().__init__(
            intensity=intensity, child_intensity=child_intensity, backoff=backoff, auto_shutdown=auto_shutdown
        )
        if not callable(start):
            raise InvalidOption("pool", "start", start, "give a function that makes the behaviour")
        self._start = start
        self._template = (template or ChildSpec("child", lambda: start())).checked(self._auto_shutdown)
        self._numbers = 0

    def _start_child(self, spec: ChildSpec | None, args: tuple[Any, ...]) -> Any:
        if spec is not None:
            whose = f"StartChild of the pool {self._ctx.id!r}"
            return self._refuse(InvalidOption(whose, "spec", spec, "give the arguments of its factory"))
        self._numbers += 1
        numbered = self._template._replace(id=str(self._numbers), start=lambda: self._start(*args))
        try:
            return self._add(numbered)
        except ActorError as error:
            return self._refuse(error)

    def _gone(self, child: Child, reason: object) -> None:
        """A member of a pool has no place to come back to."""
        super()._gone(child, reason)
        self._children.pop(child.spec.id, None)


_REQUESTS = (StartChild, StopChild, RestartChild, DeleteChild, WhichChildren, CountChildren)


def _checked(spec: object, auto_shutdown: AutoShutdown) -> ChildSpec:
    if not isinstance(spec, ChildSpec):
        raise InvalidOption("supervisor", "child spec", spec, "give a ChildSpec(id, start, ...)")
    return spec.checked(auto_shutdown)


def _check_ids(specs: Sequence[ChildSpec]) -> None:
    seen: set[str] = set()
    for spec in specs:
        if spec.id in seen:
            raise InvalidOption("supervisor", "specs", spec.id, "give each child an id of its own")
        seen.add(spec.id)
