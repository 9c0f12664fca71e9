"""Meeting: two ends that come at once, or one while another is under way; and how an end reads.

Held to docs/kernel.md: a restart of a group is counted once, whoever else of it falls meanwhile; a temporary child that
goes down with others is as gone as one that ended by itself; who is told to stop stays away, also where it is on its
way to come back.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, Final

import anyio

from actors import (
    Abandoned,
    ActorCrashed,
    ActorStopped,
    AutoShutdown,
    Backoff,
    ChildActive,
    ChildSpec,
    Context,
    Crashed,
    DeadLetter,
    DeleteChild,
    Down,
    Intensity,
    InvalidOption,
    Killed,
    Linked,
    Normal,
    Pool,
    Restart,
    RestartChild,
    Shutdown,
    StartChild,
    StartFailed,
    StopChild,
    Strategy,
    Supervisor,
    WhichChildren,
    WrongMessage,
)
from actors.actor import is_clean
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.kernel.supervising import Member

__all__ = ["MEETING"]

ASK_S: Final = 20.0
OFTEN: Final = Intensity(50, 1000.0)
SOON: Final = Backoff(base_s=0.0, cap_s=0.0)
CLEANS_S: Final = 3.0


class Tidy(Member):
    """One that can have a task, which wants some clean-up."""

    def receive(self, ctx: Context, message: Any) -> Any:
        if message == "work":
            ctx.start_task(self._work, ctx, name="work")
        return super().receive(ctx, message)

    async def _work(self, ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup(CLEANS_S):
                await anyio.sleep(CLEANS_S)


async def _ask(desk: Desk, actor_id: str, wish: Any) -> Any:
    ref = desk.system.ref(actor_id)
    assert ref is not None, actor_id
    return await ref.ask(wish, timeout_s=ASK_S)


def _tell(desk: Desk, actor_id: str, words: str) -> None:
    ref = desk.system.ref(actor_id)
    assert ref is not None, actor_id
    ref.tell(words)


def _spec(child_id: str, noted: list[str], **options: Any) -> ChildSpec:
    return ChildSpec(child_id, lambda: Tidy(child_id, noted), **options)


def _app(names: str, noted: list[str], strategy: Strategy = Strategy.ONE_FOR_ALL) -> Supervisor:
    specs = [_spec(one, noted) for one in names]
    return Supervisor(specs, strategy=strategy, backoff=SOON, intensity=OFTEN, child_intensity=OFTEN)


async def together(desk: Desk) -> None:
    """Some of a group, or all, fall at once: that is one restart of the group, and one more life for each of them."""
    for number, pair in enumerate((*combinations("abc", 2), tuple("abc"))):
        noted: list[str] = []
        top = f"t{number}"
        desk.system.spawn(_app("abc", noted), top)
        noted.clear()
        await desk.system.suspend(top, timeout_s=ASK_S)  # so that it hears of both at once
        for one in pair:
            _tell(desk, f"{top}/{one}", "crash")
        await anyio.sleep(1.0)
        desk.system.resume(top)
        await anyio.sleep(1.0)
        ends, starts = sorted(noted[:3]), noted[3:]
        desk.same(f"{pair} fall at once", (ends, starts), (["-a", "-b", "-c"], ["+a", "+b", "+c"]))
        told = await _ask(desk, top, WhichChildren())
        desk.same("how many restarts that was", sum(one.restarts for one in told), 1)
        lives = [await _ask(desk, f"{top}/{one}", "hello") for one in "abc"]
        desk.same("which of its lives each is in", lives, [2, 2, 2])
        desk.same("who waits for another start", [one.next_attempt_s for one in told], [None] * 3)


async def temporary(desk: Desk) -> None:
    """A temporary child that goes down with its group is gone: who waits for it is told, and its id is free again."""
    noted: list[str] = []
    desk.system.spawn(_app("ab", noted), "g")
    spec = _spec("x", noted, restart=Restart.TEMPORARY)
    await _ask(desk, "g", StartChild(spec))
    ref = desk.system.ref("g/x")
    assert ref is not None
    ends: list[Down] = []
    desk.system.monitor("g/x", ends.append)
    _tell(desk, "g/a", "crash")
    await anyio.sleep(1.0)
    desk.same("who came back", noted[3:], ["-a", "-x", "-b", "+a", "+b"])
    desk.same("it is gone", ("g/x" in desk.system, [type(one.reason) for one in ends]), (False, [Shutdown]))
    await desk.raises("an ask of who is gone", ref.ask("hello", timeout_s=ASK_S), ActorStopped)
    desk.same("another one of that id", (await _ask(desk, "g", StartChild(spec))).id, "g/x")
    desk.same("that is its first life", await _ask(desk, "g/x", "hello"), 1)


async def overtaken(desk: Desk) -> None:
    """Who has crashed, and still cleans up, is told to stop: it ends as soon as that is done, and stays away."""
    noted: list[str] = []
    desk.system.spawn(_app("ab", noted, Strategy.ONE_FOR_ONE), "s")
    ref = desk.system.ref("s/a")
    assert ref is not None
    ends: list[Down] = []
    desk.system.monitor("s/a", ends.append)
    _tell(desk, "s/a", "work")
    await anyio.sleep(1.0)
    desk.again()
    _tell(desk, "s/a", "crash")
    await anyio.sleep(1.0)
    states = [one.state for one in await _ask(desk, "s", WhichChildren())]
    desk.same("while it cleans up", (states, noted), (["stopping", "running"], ["+a", "+b"]))
    await _ask(desk, "s", StopChild("a"))
    desk.at("it has stopped", CLEANS_S, 5)
    desk.same("it is gone", ("s/a" in desk.system, [type(one.reason) for one in ends]), (False, [Crashed]))
    await desk.raises("an ask of who is gone", ref.ask("hello", timeout_s=ASK_S), ActorStopped)
    await anyio.sleep(5.0)
    told = [(one.id, one.state, one.restarts) for one in await _ask(desk, "s", WhichChildren())]
    desk.same("it stays away", (told, noted[2:]), ([("a", "down", 0), ("b", "running", 0)], ["-a"]))
    desk.same("until it is wanted", (await _ask(desk, "s", RestartChild("a"))).id, "s/a")
    desk.same("in a first life", await _ask(desk, "s/a", "hello"), 1)
    top = desk.system.ref("s")
    assert top is not None
    await desk.raises("to forget who runs", top.ask(DeleteChild("a"), timeout_s=ASK_S), ChildActive)


async def words(desk: Desk) -> None:
    """An end reads as what it was, with its cause where there is one; a chain of links is told by its two ends."""
    broke = Crashed(ValueError("no"))
    for reason, wanted in (
        (Normal(), "done"),
        (Shutdown(), "shut down"),
        (Shutdown("enough"), "shut down (enough)"),
        (Shutdown(0), "shut down (0)"),
        (Killed(), "killed"),
        (Killed("late"), "killed (late)"),
        (broke, "crashed: ValueError('no')"),
        (Linked("a", broke), "linked to 'a', which crashed: ValueError('no')"),
        (Linked("a", Linked("b", Killed())), "linked to 'a', and by 1 more to 'b', which killed"),
        (Linked("a", Linked("b", Linked("c", Normal()))), "linked to 'a', and by 2 more to 'c', which done"),
    ):
        desk.same(f"{type(reason).__name__}", str(reason), wanted)

    for reason, clean in ((Normal(), True), (Shutdown(), True), (Killed(), False), (broke, False)):
        told = [is_clean(one) for one in (reason, Linked("a", reason), Linked("a", Linked("b", reason)))]
        desk.same(f"whether it is clean that it {reason}", told, [clean] * 3)


async def dismissed(desk: Desk) -> None:
    """Who is told to stop while its group is taken down is no member any more: the others come back without it."""
    for number, one in enumerate("abc"):
        noted: list[str] = []
        top = f"d{number}"
        specs = [_spec(name, noted, significant=True, restart=Restart.TRANSIENT) for name in "abc"]
        app = Supervisor(
            specs,
            strategy=Strategy.ONE_FOR_ALL,
            backoff=SOON,
            intensity=OFTEN,
            child_intensity=OFTEN,
            auto_shutdown=AutoShutdown.ALL_SIGNIFICANT,
        )
        desk.system.spawn(app, top)
        noted.clear()
        _tell(desk, f"{top}/{one}", "work")  # it takes its time to end
        await anyio.sleep(1.0)
        desk.again()
        _tell(desk, f"{top}/{'b' if one != 'b' else 'a'}", "crash")
        await anyio.sleep(1.0)
        await _ask(desk, top, StopChild(one))
        desk.at(f"{one} has stopped", CLEANS_S, 5)
        await anyio.sleep(1.0)
        left = [each for each in "abc" if each != one]
        desk.same(f"who came back without {one}", noted[3:], [f"+{each}" for each in left])
        states = {each.id: each.state for each in await _ask(desk, top, WhichChildren())}
        desk.same("what they are", states, {each: "running" if each in left else "down" for each in "abc"})


async def unmade(desk: Desk) -> None:
    """A factory that breaks as its group is started again is a failed start: it is tried again, after all of them."""
    noted: list[str] = []
    made: list[str] = []

    def make() -> Member:
        made.append("b")
        if len(made) == 2:
            raise RuntimeError("not yet")
        return Member("b", noted)

    specs = [_spec("a", noted), ChildSpec("b", make, restart=Restart.TRANSIENT), _spec("c", noted)]
    app = Supervisor(specs, strategy=Strategy.ONE_FOR_ALL, backoff=SOON, intensity=OFTEN, child_intensity=OFTEN)
    desk.system.spawn(app, "u")
    desk.system.stop("u/b")  # it ends in order: it is down, and nobody keeps its place
    await anyio.sleep(1.0)
    noted.clear()
    _tell(desk, "u/a", "crash")
    await anyio.sleep(1.0)
    desk.same("what was begun", noted, ["-a", "-c", "+a", "-a", "+a", "+b", "+c"])
    told = {one.id: (one.state, one.restarts) for one in await _ask(desk, "u", WhichChildren())}
    desk.same("what they are", told, {"a": ("running", 1), "b": ("running", 1), "c": ("running", 0)})
    shown: Any = await desk.system.get_state("u", timeout_s=ASK_S)
    desk.same("what it knows", (shown["strategy"], shown["restarts"]), ("one_for_all", 2))


async def refused(desk: Desk) -> None:
    """What a supervisor does not know is its asker's error; so is a child whose name is taken, which is forgotten."""
    noted: list[str] = []
    desk.system.spawn(_app("a", noted), "r")
    ref = desk.system.ref("r")
    assert ref is not None
    await desk.raises("a word", ref.ask("hello", timeout_s=ASK_S), WrongMessage)
    await _ask(desk, "r", StartChild(_spec("b", noted, name="known")))
    await desk.raises("a name", ref.ask(StartChild(_spec("c", noted, name="known")), timeout_s=ASK_S), StartFailed)
    desk.same("who is there", [one.id for one in await _ask(desk, "r", WhichChildren())], ["a", "b"])
    desk.same("who began", [one for one in noted if one[0] == "+"], ["+a", "+b"])
    desk.refused("a pool of nothing", lambda: Pool(None), InvalidOption)  # type: ignore[arg-type]
    for wrong in (float("inf"), "soon"):
        await desk.raises("a look", desk.system.get_state("r", timeout_s=wrong), InvalidOption)  # type: ignore[arg-type]


class Deaf:
    """Its handler does not heed its cancellation; it ends when it is released, badly where that was asked for."""

    def __init__(self) -> None:
        self.released, self.begun = anyio.Event(), 0

    async def receive(self, ctx: Context, message: Any) -> Any:
        self.begun += 1
        with anyio.CancelScope(shield=True):
            await self.released.wait()
        if message == "break":
            raise ValueError("too late")
        return "too late as well"


async def deaf(desk: Desk) -> None:
    """Whose handler does not end is given up: the message in hand is a dead letter, an ask fails, whoever looks is
    answered, and what the handler does from then on is reported, and nothing to anybody."""
    for number, (message, asked) in enumerate((("break", False), ("go on", False), ("break", True), ("go on", True))):
        one, name, told, ended = Deaf(), f"deaf{number}", list[Any](), list[Any]()
        desk.system.on_event = told.append
        ref = desk.system.spawn(one, name, shutdown_s=1.0)
        async with anyio.create_task_group() as group:
            if asked:
                group.start_soon(_answer, desk, ref.ask(message, timeout_s=ASK_S), ended)
            else:
                ref.tell(message)
            await anyio.sleep(1.0)
            ref.tell("queued")
            group.start_soon(_look, desk, name, ended)
            await anyio.sleep(1.0)
            desk.again()
            desk.system.stop(name)
            await desk.system.join(name)
            desk.at("it is given up", 1.0, 10)
        letters = [each.message for each in told if isinstance(each, DeadLetter)]
        desk.same("dead letters", letters, ["queued"] if asked else ["queued", message])
        desk.same("who waited", sorted(ended), ["ActorStopped", "looked"] if asked else ["looked"])
        desk.same("it was given up once", sum(isinstance(each, Abandoned) for each in told), 1)
        told.clear()
        one.released.set()
        await anyio.sleep(1.0)
        broke = [type(each) for each in told if isinstance(each, ActorCrashed)]
        desk.same("what it did then", (broke, one.begun), ([ActorCrashed] if message == "break" else [], 1))


async def _answer(desk: Desk, waited: Any, ended: list[Any]) -> None:
    ended.append(type(await desk.raises("an ask of who is given up", waited, ActorStopped)).__name__)


async def _look(desk: Desk, name: str, ended: list[Any]) -> None:
    await desk.system.get_state(name, timeout_s=ASK_S)
    ended.append("looked")


class Plain:
    """Does what it is told, in its turn."""

    def receive(self, ctx: Context, message: Any) -> Any:
        return message(ctx)


async def bare(desk: Desk) -> None:
    """Who has set no timer, put nothing aside and knows nobody can be asked for all of that: there is nothing, and to
    take it back does nothing."""
    desk.system.spawn(Plain(), "bare")
    seen = desk.system.inspect("bare")
    held = (seen.stats.tasks, seen.stats.timers, seen.stats.stashed, seen.suspended, seen.handling_s)
    desk.same("what it holds", held, (0, 0, 0, False, 0.0))
    known = ([*seen.names], [*seen.links], [*seen.tasks], [*seen.scope_causes])
    desk.same("whom it knows", known, ([], [], [], []))
    for wish, wanted in (
        (lambda ctx: ctx.read_timer("never"), None),
        (lambda ctx: ctx.cancel_timer("never"), None),
        (lambda ctx: ctx.unstash_all(), None),
        (lambda ctx: ctx.unlink("nobody"), None),
        (lambda ctx: ctx.unregister("nothing"), None),
        (lambda ctx: (ctx.stash(), ctx.stash(), ctx.unstash_all(), 1)[-1], 1),
    ):
        first: list[int] = []

        def once(ctx: Context, wish: Any = wish, first: list[int] = first) -> Any:
            first.append(1)
            return wish(ctx) if len(first) == 1 else 1

        desk.same("what it is told", await _ask(desk, "bare", once), wanted)
    await desk.system.suspend("bare", timeout_s=ASK_S)
    desk.same("it is suspended", desk.system.inspect("bare").suspended, True)
    desk.system.resume("bare")
    desk.same("and goes on", await _ask(desk, "bare", lambda ctx: ctx.incarnation), 1)
    desk.same("its ref reads", repr(desk.system.ref("bare")), "Ref('bare')")


MEETING = (together, temporary, overtaken, words, dismissed, unmade, refused, deaf, bare)
