"""Looking at an actor: in-band between two of its messages, or out of band, where it is stuck in one.

Only a handler that is suspended in an ``await`` can keep an actor busy while anybody looks, so whatever is asked of any
other is answered at once. Nothing here changes what it looks at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, TypeVar

from actors.cell import Cell
from actors.errors import AskTimeout, InvalidOption
from actors.host import stack_of
from actors.mailbox import Envelope
from actors.place import ASIDE, NOTHING
from actors.waits import WaitGraph

__all__ = ["Inspection", "Stats", "TaskSeen", "between", "inspection_of", "state_of", "stats_of", "traced"]

TRACE_MAX = 64
"""Messages that a trace remembers."""

T = TypeVar("T")


class Stats(NamedTuple):
    """Counters of one actor. ``queued`` is by lane."""

    handled: int
    queued: Mapping[str, int]
    queued_bytes: int
    late_replies: int
    incarnation: int
    children: int
    tasks: int
    timers: int
    stashed: int


class TaskSeen(NamedTuple):
    """A task of an actor, and where it waits: the outermost call first."""

    name: str
    stack: Sequence[str]
    cleaning: bool


class Inspection(NamedTuple):
    """An actor from outside. ``handling`` is the type of the message in hand, since ``handling_s`` seconds.

    ``waits_for`` are the actors that its handler waits for, ``waited_chain`` the waits that follow from them.
    """

    id: str
    behaviour: str
    label: str
    phase: str
    reason: str
    suspended: bool
    handling: str
    handling_s: float
    waits_for: Sequence[str]
    waited_chain: Sequence[str]
    scope_causes: Sequence[str]
    names: Sequence[str]
    links: Sequence[str]
    children: Sequence[str]
    tasks: Sequence[TaskSeen]
    stats: Stats


async def between(cell: Cell, look: Callable[[], T], timeout_s: float) -> T:
    """Call *look* between two messages of that actor: at once, or when the handler that is suspended has returned.

    What *look* raises is the looker's, and never the actor's.

    Raises:
        AskTimeout: it did not return within *timeout_s* seconds.
        InvalidOption: *timeout_s* is no time.
    """
    if not isinstance(timeout_s, int | float) or not timeout_s < inf:
        whose = f"look at {cell.id!r}"
        raise InvalidOption(whose, "timeout_s", timeout_s, "give a finite number of seconds")
    if cell.current is NOTHING:
        return look()
    found: list[T] = []
    raised: list[Exception] = []
    done = cell.backend.parker()

    def then() -> None:
        try:
            found.append(look())
        except Exception as error:
            raised.append(error)
        done.unpark()

    cell.rare.between.append(then)
    with cell.system.timers.limit(timeout_s):
        await done.wait()
    if raised:
        raise raised[0]
    if not found:
        if then in cell.rare.between:
            cell.rare.between.remove(then)
        raise AskTimeout(cell.id, timeout_s)
    return found[0]


def state_of(cell: Cell) -> object:
    """The actor's ``get_state()``, or its attributes. Whoever keeps a secret has a ``get_state`` that omits it."""
    get_state = getattr(cell.actor, "get_state", None)
    return get_state() if get_state is not None else dict(getattr(cell.actor, "__dict__", {}))


def stats_of(cell: Cell) -> Stats:
    box, rare = cell.box, cell.rare_or_none
    return Stats(
        handled=cell.handled,
        queued=box.lengths() if box is not None else {"control": 0, "urgent": 0, "normal": 0},
        queued_bytes=box.bytes if box is not None else 0,
        late_replies=cell.late_replies,
        incarnation=cell.incarnation,
        children=len(cell.below or ()),
        tasks=len(rare.tasks) if rare is not None else 0,
        timers=len(rare.timers) if rare is not None else 0,
        stashed=len(rare.stash) if rare is not None else 0,
    )


def traced(cell: Cell, *, on: bool) -> Sequence[tuple[float, str, str]]:
    """Turn the trace of an actor on or off; what it has seen so far."""
    rare = cell.rare
    seen = tuple(rare.trace or ())
    if not on:
        rare.trace = None
    elif rare.trace is None:
        rare.trace = deque(maxlen=TRACE_MAX)
    return seen


def inspection_of(cell: Cell, waits: WaitGraph) -> Inspection:
    rare = cell.rare_or_none
    message = cell.current.message if type(cell.current) is Envelope else cell.current
    busy = message is not NOTHING
    kind = "" if not busy or message is ASIDE else type(message).__name__
    scope = rare.scope if rare is not None else None
    return Inspection(
        id=cell.id,
        behaviour=type(cell.actor).__name__,
        label=cell.label,
        phase=cell.phase.value,
        reason="" if cell.reason is None else str(cell.reason),
        suspended=rare is not None and rare.suspended,
        handling=kind,
        handling_s=cell.backend.now() - rare.since if busy and rare is not None and rare.since is not None else 0.0,
        waits_for=waits.waits_of(cell.id),
        waited_chain=_chain(waits, cell.id),
        scope_causes=[str(cause) for cause in scope.causes] if scope is not None else [],
        names=tuple(rare.names) if rare is not None else (),
        links=[other.id for other in rare.links] if rare is not None else [],
        children=cell.children,
        tasks=_tasks(cell),
        stats=stats_of(cell),
    )


def _tasks(cell: Cell) -> list[TaskSeen]:
    rare = cell.rare_or_none
    tasks: Any = rare.tasks if rare is not None else ()
    return [TaskSeen(one.name, stack_of(one.coroutine), bool(one.shields)) for one in tasks]


def _chain(waits: WaitGraph, actor_id: str) -> list[str]:
    """Who waits for whom, from this actor on."""
    chain, here = [actor_id], waits.waits_of(actor_id)
    while here and here[0] not in chain:
        chain.append(here[0])
        here = waits.waits_of(here[0])
    return chain if len(chain) > 1 else []
