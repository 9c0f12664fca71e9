"""Over a restart, cell by cell: what becomes of everything that an actor has. The table is that of docs/kernel.md.

Each cell is one claim, and runs for an actor with a plain ``receive`` and for one with an ``async`` one.
"""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
import pytest
import trio
from kernel_kit import Script, blocked, both, virtual
from otp_kit import AT_ONCE, OFTEN, Boom, House, kinds, supervised

from actors import (
    DEFERRED,
    ActorCrashed,
    ActorRestarting,
    ActorStopped,
    AskTimeout,
    Backoff,
    ChildSpec,
    Context,
    Crashed,
    DeadLetter,
    Down,
    KernelEvent,
    Lane,
    Limits,
    Linked,
    MailboxFull,
    Poisoned,
    Ref,
    Restarted,
    Shutdown,
    StopChild,
    Strategy,
)

LATER = Backoff(1000.0, 1.0, 1000.0)


class Risky(NamedTuple):
    """A message that crashes its actor as often as the case says; it may be handled twice."""

    name: str
    idempotent: bool = True


class Case:
    """One actor ``sup/a`` whose supervisor starts it again, and everything that is heard of it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.heard: list[tuple[int, Any]] = []
        self.events: list[KernelEvent] = []
        self.crashes_left = 0
        self.house: House
        self.deferred: list[Any] = []

    def actor(self) -> Any:
        case = self

        class Plain:
            def receive(self, ctx: Context, message: Any) -> Any:
                return case.receive(ctx, message)

        class Async:
            async def receive(self, ctx: Context, message: Any) -> Any:
                return case.receive(ctx, message)

        return Plain() if self.kind == "plain" else Async()

    def receive(self, ctx: Context, message: Any) -> Any:
        if callable(message):
            return message(ctx)
        if isinstance(message, Risky) and self.crashes_left > 0:
            self.crashes_left -= 1
            raise Boom(message.name)
        if message == "crash":
            raise Boom("crash")
        if message == "defer":
            self.deferred.append(ctx.envelope)
            return DEFERRED
        if message == "stash" and ctx.incarnation == 1:
            return ctx.stash()
        self.heard.append((ctx.incarnation, message))
        return (ctx.incarnation, message)

    @property
    def ref(self) -> Ref:
        return self.house.child("a")

    @property
    def ctx(self) -> Context:
        context = self.house.system.context("sup/a")
        assert context is not None
        return context

    async def ask(self, message: Any, outcomes: list[Any]) -> None:
        try:
            outcomes.append(await self.ref.ask(message, timeout_s=25))
        except Exception as error:
            outcomes.append(error)

    async def settle(self) -> None:
        await blocked(self.house.system)

    async def crash(self) -> None:
        self.ref.tell("crash")
        await self.settle()

    def letters(self) -> list[DeadLetter]:
        return [event for event in self.events if isinstance(event, DeadLetter)]


Play = Callable[[Case], Awaitable[None]]


class Cell(NamedTuple):
    subject: str
    fate: str
    play: Play
    options: dict[str, Any]
    spec: dict[str, Any]
    virtual: bool


CELLS: list[Cell] = []


def cell(
    subject: str, fate: str, *, later: bool = False, options: Any = None, spec: Any = None
) -> Callable[[Play], Play]:
    """Add a row to the table; *later*: with a delay before the restart, on the virtual clock."""

    def add(play: Play) -> Play:
        CELLS.append(Cell(subject, fate, play, dict(options or {}), dict(spec or {}), later))
        return play

    return add


async def run(one: Cell, kind: str) -> None:
    case = Case(kind)
    spec = ChildSpec("a", case.actor)._replace(**one.spec)
    others = one.options.get("others", ())
    options = {"backoff": LATER if one.virtual else AT_ONCE, "intensity": OFTEN, "child_intensity": OFTEN}
    options.update({key: value for key, value in one.options.items() if key != "others"})
    async with supervised(*others, spec, **options) as house:
        case.house = house
        house.system.on_event = case.events.append
        await one.play(case)


def ids(cells: list[Cell]) -> list[str]:
    return [one.subject for one in cells]


# ---------------------------------------------------------------------- messages
@cell("queued tells", "kept, in order")
async def _(case: Case) -> None:
    case.ref.tell("crash")
    for number in range(5):
        case.ref.tell(number)
    await case.settle()
    assert case.heard == [(2, number) for number in range(5)]


@cell("queued asks", "kept, in order; the next incarnation answers")
async def _(case: Case) -> None:
    outcomes: list[Any] = []
    await case.house.system.suspend("sup/a", timeout_s=20)
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(case.ask, number, outcomes)
            await case.settle()
        case.house.system.kill("sup/a")
    assert case.heard == [(2, 0), (2, 1), (2, 2)]
    assert sorted(outcomes) == case.heard


@cell("the lanes of queued messages", "kept")
async def _(case: Case) -> None:
    case.ref.tell("crash", lane=Lane.CONTROL)
    case.ref.tell("normal")
    case.ref.tell("urgent", lane=Lane.URGENT)
    case.ref.tell("control", lane=Lane.CONTROL)
    await case.settle()
    assert case.heard == [(2, "control"), (2, "urgent"), (2, "normal")]


@cell("the tell in hand", "a dead letter, `crashed`, with the number of attempts")
async def _(case: Case) -> None:
    await case.crash()
    assert [type(event) for event in case.events] == [ActorCrashed, DeadLetter]
    assert case.letters() == [DeadLetter("sup/a", "crash", "crashed", 1)]


@cell(
    "the same, `idempotent`, with `redeliver=n`",
    "handled again, ahead of the queue, up to n times",
    spec={"redeliver": 2},
)
async def _(case: Case) -> None:
    case.crashes_left = 2
    case.ref.tell(Risky("r"))
    case.ref.tell("behind")
    await case.settle()
    assert case.heard == [(3, Risky("r")), (3, "behind")]
    assert case.letters() == []


@cell("the same, after n more crashes", "`Poisoned`, and a dead letter; it is not tried again", spec={"redeliver": 2})
async def _(case: Case) -> None:
    case.crashes_left = 99
    case.ref.tell(Risky("r"))
    case.ref.tell("behind")
    await case.settle()
    assert case.crashes_left == 99 - 3
    assert [event for event in case.events if isinstance(event, Poisoned)] == [Poisoned("sup/a", Risky("r"), 3)]
    assert case.letters() == [DeadLetter("sup/a", Risky("r"), "crashed", 3)]
    assert case.heard == [(4, "behind")]


@cell("the same, not `idempotent`", "a dead letter at once", spec={"redeliver": 2})
async def _(case: Case) -> None:
    case.crashes_left = 99
    case.ref.tell(Risky("r", idempotent=False))
    await case.settle()
    assert case.crashes_left == 98
    assert case.letters() == [DeadLetter("sup/a", Risky("r", idempotent=False), "crashed", 1)]


@cell("the ask in hand", "`ActorRestarting(started=True)`, with the error as its cause")
async def _(case: Case) -> None:
    outcomes: list[Any] = []
    await case.ask("crash", outcomes)
    (error,) = outcomes
    assert isinstance(error, ActorRestarting)
    assert error.started
    assert isinstance(error.__cause__, Boom)
    assert isinstance(error.reason, Crashed)


@cell("the same, `idempotent`, with `redeliver=n`", "answered by the next incarnation", spec={"redeliver": 1})
async def _(case: Case) -> None:
    outcomes: list[Any] = []
    case.crashes_left = 1
    await case.ask(Risky("r"), outcomes)
    assert outcomes == [(2, Risky("r"))]


@cell("deferred asks", "`ActorRestarting(started=True)`; a late answer is dropped")
async def _(case: Case) -> None:
    outcomes: list[Any] = []
    async with anyio.create_task_group() as group:
        group.start_soon(case.ask, "defer", outcomes)
        await case.settle()
        await case.crash()
    (error,) = outcomes
    assert isinstance(error, ActorRestarting)
    assert error.started
    (envelope,) = case.deferred
    envelope.reply.resolve("late")
    assert await case.ref.ask("on", timeout_s=20) == (2, "on")


@cell("the stash", "back at the head of the queue, in order")
async def _(case: Case) -> None:
    outcomes: list[Any] = []
    for number in range(3):
        case.ref.tell(lambda ctx, number=number: stash_once(case, ctx, number))
    await case.settle()
    async with anyio.create_task_group() as group:
        group.start_soon(case.ask, lambda ctx: stash_once(case, ctx, "ask"), outcomes)
        await case.settle()
        case.ref.tell("crash")
        case.ref.tell("behind")
    await case.settle()
    assert case.heard == [(2, 0), (2, 1), (2, 2), (2, "ask"), (2, "behind")]
    assert outcomes == ["ask"]


def stash_once(case: Case, ctx: Context, what: Any) -> Any:
    if ctx.incarnation == 1:
        return ctx.stash()
    case.heard.append((ctx.incarnation, what))
    return what


@cell("a timer's message that was stashed", "kept like any other")
async def _(case: Case) -> None:
    case.ctx.set_timer("t", 0.0, "stash")
    await case.settle()
    await case.crash()
    assert case.heard == [(2, "stash")]


# ---------------------------------------------------------------------- what it has set
@cell("timers that run", "cancelled", later=True)
async def _(case: Case) -> None:
    case.ctx.set_timer("t", 500.0, "tick")
    await case.crash()
    await trio.sleep(3000)
    assert case.ref.incarnation == 2
    assert case.heard == []


@cell("timers whose message is queued", "cancelled: it is never heard, and is no dead letter")
async def _(case: Case) -> None:
    await case.house.system.suspend("sup/a", timeout_s=20)
    case.ctx.set_timer("t", 0.0, "tick")
    await case.settle()
    assert await queued(case) == ["tick"]
    case.house.system.kill("sup/a")
    await case.settle()
    assert case.ref.incarnation == 2
    assert case.heard == []
    assert case.letters() == []


async def queued(case: Case) -> list[Any]:
    from actors.cell import Cell as KernelCell

    assert isinstance(case.ctx, KernelCell)
    return case.ctx.mailbox.peek(10)


@cell("a timer set under the same key after the restart", "the new incarnation's own", later=True)
async def _(case: Case) -> None:
    case.ctx.set_timer("t", 1500.0, "old")
    await case.crash()
    await trio.sleep(1001)
    case.ctx.set_timer("t", 1000.0, "new")
    await trio.sleep(2000)
    assert case.heard == [(2, "new")]


@cell("children", "stopped, the youngest first, with the crash as their cause; not started again")
async def _(case: Case) -> None:
    downs: list[Down] = []
    for name in ("x", "y"):
        case.ctx.spawn(Script(lambda ctx, message: None), name)
        case.house.system.monitor(name, downs.append)
    await case.crash()
    assert [down.id for down in downs] == ["y", "x"]
    assert all(isinstance(down.reason, Shutdown) and isinstance(down.reason.cause, Crashed) for down in downs)
    assert case.ctx.children == ()


@cell("tasks", "cancelled and waited for, before the next incarnation starts")
async def _(case: Case) -> None:
    log: list[Any] = []
    let_go = anyio.Event()

    async def work(ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(4):
                await let_go.wait()
                log.append(ctx.incarnation)

    case.ctx.start_task(work, case.ctx)
    await case.settle()
    await case.crash()
    assert (log, case.ref.incarnation) == ([], 1)
    let_go.set()
    await case.settle()
    assert (log, case.ref.incarnation) == ([1], 2)


@cell("the scope", "a new one")
async def _(case: Case) -> None:
    before = case.ctx.scope
    case.ctx.start_task(anyio.sleep_forever)
    await case.crash()
    assert before.cancelled
    assert case.ctx.scope is not before
    assert not case.ctx.scope.cancelled


# ---------------------------------------------------------------------- what it is known by
@cell("the ref", "the same")
async def _(case: Case) -> None:
    before = case.ref
    await case.crash()
    assert await before.ask("on", timeout_s=20) == (2, "on")
    assert case.ref is before


@cell("the incarnation", "one more")
async def _(case: Case) -> None:
    for incarnation in (1, 2, 3):
        assert case.ref.incarnation == incarnation
        await case.crash()


@cell("the place among its siblings", "the same")
async def _(case: Case) -> None:
    before = case.house.system.children("sup")
    await case.crash()
    assert case.house.system.children("sup") == before


@cell("the label", "kept")
async def _(case: Case) -> None:
    case.ctx.label = "the one"
    await case.crash()
    assert case.ctx.label == "the one"


@cell("names it registered", "gone")
async def _(case: Case) -> None:
    case.ctx.register("mine")
    await case.crash()
    assert case.house.system.whereis("mine") is None


@cell(
    "the name of its spec", "gone while it is down, registered again at its start", spec={"name": "the a"}, later=True
)
async def _(case: Case) -> None:
    assert case.house.system.whereis("the a") is case.ref
    await case.crash()
    assert case.house.system.whereis("the a") is None
    await trio.sleep(1001)
    assert case.house.system.whereis("the a") is case.ref


@cell("the behaviour", "a new one, from the spec's `start`")
async def _(case: Case) -> None:
    from actors.cell import Cell as KernelCell

    assert isinstance(case.ctx, KernelCell)
    before = case.ctx.actor
    await case.crash()
    assert case.ctx.actor is not before


# ---------------------------------------------------------------------- who watches, and whom it watches
@cell("monitors of it", "hear its last end only: one `Down` each")
async def _(case: Case) -> None:
    downs: list[Down] = []
    news: list[Any] = []
    case.house.system.monitor("sup/a", downs.append)
    case.house.system.spawn(Script(lambda ctx, message: watching(ctx, message, news)), "w").tell("watch")
    await case.settle()
    for _ in range(3):
        await case.crash()
    assert (downs, news) == ([], [])
    await case.house.ask(StopChild("a"))
    await case.settle()
    assert len(downs) == 1
    assert (downs[0].id, downs[0].incarnation) == ("sup/a", 4)
    assert news == downs


def watching(ctx: Context, message: Any, news: list[Any], *, restarts: bool = False) -> None:
    if message == "watch":
        ctx.monitor("sup/a", watch_restarts=restarts)
    else:
        news.append(message)


@cell("monitors of it with `watch_restarts`", "hear `Restarted` once per restart too")
async def _(case: Case) -> None:
    news: list[Any] = []
    watcher = case.house.system.spawn(Script(lambda ctx, message: watching(ctx, message, news, restarts=True)), "w")
    watcher.tell("watch")
    await case.settle()
    await case.crash()
    await case.crash()
    assert [(type(one), one.incarnation) for one in news] == [(Restarted, 2), (Restarted, 3)]
    assert all(isinstance(one.reason, Crashed) for one in news)
    await case.house.ask(StopChild("a"))
    await case.settle()
    assert [type(one) for one in news[2:]] == [Down]


@cell("its own monitors", "ended with the incarnation that set them")
async def _(case: Case) -> None:
    case.house.system.spawn(Script(lambda ctx, message: None), "other")
    case.ctx.monitor("other")
    await case.crash()
    case.ctx.monitor("other")
    case.house.system.stop("other")
    await case.settle()
    assert [type(message) for _, message in case.heard] == [Down]


@cell("links", "ended: the linked actor ends, the supervisor does not")
async def _(case: Case) -> None:
    downs: list[Down] = []
    case.house.system.spawn(Script(lambda ctx, message: None), "other")
    case.house.system.monitor("other", downs.append)
    case.ctx.link("other")
    case.ctx.link("sup")
    await case.crash()
    (down,) = downs
    assert isinstance(down.reason, Linked)
    assert down.reason.id == "sup/a"
    assert case.house.downs == []
    await case.crash()
    assert len(downs) == 1


@cell("links, where it ends as `Normal`", "ended, and nobody else is")
async def _(case: Case) -> None:
    downs: list[Down] = []
    case.house.system.spawn(Script(lambda ctx, message: None), "other")
    case.house.system.monitor("other", downs.append)
    case.ctx.link("other")
    case.ref.tell(lambda ctx: ctx.exit())
    await case.settle()
    assert case.ref.incarnation == 2
    await case.crash()
    assert downs == []


# ---------------------------------------------------------------------- while it is down
@cell("messages that come while it is down", "kept, in order", later=True)
async def _(case: Case) -> None:
    outcomes: list[Any] = []
    await case.crash()
    async with anyio.create_task_group() as group:
        group.start_soon(ask_long, case, "ask", outcomes)
        await case.settle()
        case.ref.tell("tell")
        await trio.sleep(1001)
    assert case.heard == [(2, "ask"), (2, "tell")]
    assert outcomes == [(2, "ask")]


async def ask_long(case: Case, message: Any, outcomes: list[Any]) -> None:
    try:
        outcomes.append(await case.ref.ask(message, timeout_s=5000))
    except Exception as error:
        outcomes.append(error)


@cell("the bounds of its mailbox while it is down", "as ever: `MailboxFull`", later=True, spec={"limits": Limits(2)})
async def _(case: Case) -> None:
    await case.crash()
    case.ref.tell(1)
    case.ref.tell(2)
    with pytest.raises(MailboxFull):
        case.ref.tell(3)
    await trio.sleep(1001)
    assert case.heard == [(2, 1), (2, 2)]


@cell("whoever waits for room", "has it when the next incarnation reads", later=True, spec={"limits": Limits(1)})
async def _(case: Case) -> None:
    await case.crash()
    case.ref.tell(1)
    await case.ref.send(2, timeout_s=5000)
    await case.settle()
    assert case.heard == [(2, 1), (2, 2)]


@cell("an ask whose deadline passes while it is down", "`AskTimeout`; it is not handled", later=True)
async def _(case: Case) -> None:
    await case.crash()
    with pytest.raises(AskTimeout):
        await case.ref.ask("late", timeout_s=1)
    await trio.sleep(1001)
    assert case.heard == []


@cell("a stop that comes while it is down", "its end: what waits is bounced, one `Down`", later=True)
async def _(case: Case) -> None:
    downs: list[Down] = []
    outcomes: list[Any] = []
    case.house.system.monitor("sup/a", downs.append)
    ref = case.ref
    await case.crash()
    async with anyio.create_task_group() as group:
        group.start_soon(ask_long, case, "ask", outcomes)
        await case.settle()
        ref.tell("tell")
        await case.house.ask(StopChild("a"))
    await trio.sleep(3000)
    assert [type(one) for one in outcomes] == [ActorStopped]
    assert case.letters()[1:] == [DeadLetter("sup/a", "tell", "stopped", 0)]
    assert len(downs) == 1
    assert case.heard == []
    with pytest.raises(ActorStopped):
        ref.tell("more")


@cell(
    "a crash that is one too many",
    "its end: what waits is bounced, one `Down`",
    options={"intensity": OFTEN._replace(restarts_max=1)},
)
async def _(case: Case) -> None:
    downs: list[Down] = []
    ref = case.ref
    case.house.system.monitor("sup/a", downs.append)
    await case.crash()
    ref.tell("crash")
    ref.tell("behind")
    await case.settle()
    assert case.house.gave_up
    assert len(downs) == 1
    assert case.letters()[-1] == DeadLetter("sup/a", "behind", "stopped", 0)


@cell(
    "all of this, where a sibling's crash is the reason",
    "the same",
    options={"others": [ChildSpec("z", lambda: Script(lambda ctx, message: 1 / 0))], "strategy": Strategy.ONE_FOR_ALL},
)
async def _(case: Case) -> None:
    outcomes: list[Any] = []
    news: list[Any] = []
    case.ctx.register("mine")
    case.ctx.set_timer("t", 1000.0, "tick")
    case.house.system.spawn(Script(lambda ctx, message: watching(ctx, message, news, restarts=True)), "w").tell("watch")
    async with anyio.create_task_group() as group:
        group.start_soon(case.ask, "defer", outcomes)
        await case.settle()
        case.house.child("z").tell("crash")
    await case.settle()
    assert [type(one) for one in outcomes] == [ActorRestarting]
    assert [type(one) for one in news] == [Restarted]
    assert case.house.system.whereis("mine") is None
    assert await case.ref.ask("on", timeout_s=20) == (2, "on")


NOW = [one for one in CELLS if not one.virtual]
THEN = [one for one in CELLS if one.virtual]


@both
@kinds
@pytest.mark.parametrize("one", NOW, ids=ids(NOW))
async def test_over_a_restart(one: Cell, kind: str) -> None:
    """Each row of the table, for both kinds of actors, on both backends."""
    await run(one, kind)


@virtual
@kinds
@pytest.mark.parametrize("one", THEN, ids=ids(THEN))
async def test_over_a_delayed_restart(autojump_clock: trio.abc.Clock, one: Cell, kind: str) -> None:
    """Those rows that take time, on the virtual clock."""
    await run(one, kind)


# ---------------------------------------------------------------------- only with an async handler
@both
@pytest.mark.parametrize("redeliver", [0, 1])
@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_tell_that_is_interrupted(redeliver: int, idempotent: bool) -> None:
    """A handler that is cancelled because its group is started again: its message is handled again where it may be,
    which is no attempt of its own, and is a dead letter otherwise."""
    heard: list[tuple[int, Any]] = []
    events: list[KernelEvent] = []

    class Slow:
        async def receive(self, ctx: Context, message: Any) -> None:
            if ctx.incarnation == 1:
                await anyio.sleep_forever()
            heard.append((ctx.incarnation, message))

    specs = [ChildSpec("z", lambda: Script(lambda ctx, message: None)), ChildSpec("a", Slow, redeliver=redeliver)]
    async with supervised(*specs, strategy=Strategy.ONE_FOR_ALL) as house:
        house.system.on_event = events.append
        message = Risky("r", idempotent)
        house.child("a").tell(message)
        await blocked(house.system)
        house.system.kill("sup/z")
        await blocked(house.system)
        if redeliver and idempotent:
            assert (heard, events) == ([(2, message)], [])
        else:
            assert (heard, events) == ([], [DeadLetter("sup/a", message, "stopped", 0)])


@both
async def test_an_ask_that_is_interrupted() -> None:
    """The asker of a handler that is cancelled by a restart hears ActorRestarting(started=True)."""

    class Slow:
        async def receive(self, ctx: Context, message: Any) -> None:
            await anyio.sleep_forever()

    specs = [ChildSpec("z", lambda: Script(lambda ctx, message: None)), ChildSpec("a", Slow)]
    async with supervised(*specs, strategy=Strategy.ONE_FOR_ALL) as house:
        async with anyio.create_task_group() as group:
            group.start_soon(kill_later, house)
            with pytest.raises(ActorRestarting) as caught:
                await house.child("a").ask("x", timeout_s=25)
        assert caught.value.started


async def kill_later(house: House) -> None:
    await anyio.wait_all_tasks_blocked()
    house.system.kill("sup/z")


# ---------------------------------------------------------------------- the table in the docs
def test_the_docs_have_this_table() -> None:
    """docs/kernel.md says the same, row by row."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "kernel.md").read_text(encoding="utf-8")
    section = page.partition("## Over a restart")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| what |")]
    assert rows == [f"| {one.subject} | {one.fate} |" for one in CELLS]
