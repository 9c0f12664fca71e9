"""Desks: where permissions wait for a human, and where a model is watched, by themselves before a tree that only notes.

Operators of a run answer what they find, and models fail as they do; here every answer comes at every wrong moment too
(docs/permissions.md, docs/model-trouble.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import anyio

from actors import Context
from supervisor.lifecycles.effects import AskPermission
from supervisor.lifecycles.turn import Permission, TurnData
from supervisor.lifecycles.types import Exit, ModelFailure, ModelProblem, Verdict
from supervisor.policies.model_errors import ModelLimits
from supervisor.policies.permissions import Choice, Decision, OpenPermission, Wish
from supervisor.ports import Compaction, ModelTrouble, Text, ToolOpened, Usage
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.sessions.approval_queue import PermissionDesk
from supervisor.sessions.model_error_monitor import ModelWatch
from supervisor.simulation.drills.desk import Desk

__all__ = ["DESKS"]

TURN: Final = "s:t1"
WITHIN_S: Final = 30.0
ALL: Final = (("y", "allow_once"), ("Y", "allow_always"), ("n", "reject_once"), ("N", "reject_always"))
ONCE: Final = (("y", "allow_once"), ("n", "reject_once"))


class Tree:
    """Stands in for the tree: who is there, and what was posted or told to whom."""

    def __init__(self, desk: Desk) -> None:
        self.system = desk.system
        self.entities: dict[str, Any] = {}
        self.told: list[tuple[str, Any, Cause]] = []
        self.outcome, self.takes_s = "transition", 0.0

    async def post(self, entity_id: str, event: Any, *, cause: Cause) -> Any:
        await anyio.sleep(self.takes_s)
        self.told.append((entity_id, event, cause))
        return SimpleNamespace(outcome=self.outcome)

    def tell(self, entity_id: str, event: Any, *, cause: Cause) -> None:
        self.told.append((entity_id, event, cause))

    @property
    def said(self) -> list[tuple[Any, ...]]:
        """What was told to the turn, as what it decides."""
        return [
            (to, one.number, one.decision, one.option, one.kind, one.by, one.why, one.always)
            for to, one, _ in self.told
        ]


class Waits:
    """In whose scope the program is asked."""

    def receive(self, ctx: Context, message: Any) -> None:
        return None


class Bureau:
    """A desk of permissions with its tree, and one session's work."""

    def __init__(self, desk: Desk, asks: Callable[[OpenPermission], Awaitable[bool | None]] | None = None) -> None:
        self.desk, self.tree = desk, Tree(desk)
        if "home" not in desk.system:
            desk.system.spawn(Waits(), "home")
        tree: Any = self.tree
        home: Any = lambda: desk.system.context("home")  # noqa: E731  a place, not a function
        self.ours = PermissionDesk(tree, home, asks)
        profile = SimpleNamespace(name="robot")
        self.work: Any = SimpleNamespace(session_id="s", profile=profile, settled=dict[Any, Any]())

    def open(self, *numbers: int, options: tuple[tuple[str, str], ...] = ONCE, within_s: float = WITHIN_S) -> None:
        for number in numbers:
            wish = Permission(
                number=number,
                request_id=f"r{number}",
                title=f"t{number}",
                tool_kind="edit",
                tool="bash",
                detail="rm",
                paths=("a",),
                options=options,
                asked=True,
            )
            turn = self.tree.entities.setdefault(TURN, SimpleNamespace(data=TurnData(id=TURN, session_id="s")))
            asking = (*turn.data.asking, wish)
            turn.data = TurnData(id=TURN, session_id="s", asking=asking)
            self.ours.open(self.work, TURN, AskPermission(number=number, within_s=within_s), Cause(7))

    def gone(self, number: int) -> None:
        """Its turn has heard the answer."""
        turn = self.tree.entities[TURN]
        turn.data = TurnData(
            id=TURN, session_id="s", asking=tuple(one for one in turn.data.asking if one.number != number)
        )
        self.ours.close(TURN, number)

    async def answer(self, number: int | str, allow: bool = True, *, always: bool = False, by: str = "ann") -> Any:
        """What is answered, or why it is refused."""
        name = f"{TURN}:p{number}" if isinstance(number, int) else number
        try:
            return await self.ours.answer(name, allow=allow, always=always, because="so", by=by)
        except Refused as error:
            return str(error)

    @property
    def open_ids(self) -> list[str]:
        return [one.id for one in self.ours.listed()]


async def waiting(desk: Desk) -> None:
    """What is open is listed with the time that it has; nobody's answer in time is a denial."""
    bureau = Bureau(desk)
    bureau.open(1)
    await anyio.sleep(10.0)
    bureau.open(2, within_s=15.0)
    first, second = bureau.ours.listed()
    shown = (first.id, first.session, first.agent, first.title, first.kind, first.tool, first.detail, first.options)
    kinds = ("allow_once", "reject_once")
    desk.same("what is open", shown, (f"{TURN}:p1", "s", "robot", "t1", "edit", "bash", "rm", kinds))
    desk.at("what the first has left", 10.0, 1, WITHIN_S - first.left_s)
    desk.at("what the second has left", 0.0, 1, 15.0 - second.left_s)
    await anyio.sleep(14.0)
    desk.same("nobody has answered", bureau.tree.said, [])
    await anyio.sleep(2.0)
    desk.same("what it has left", bureau.ours.listed()[1].left_s, 0.0)
    why = "nobody answered within answer_within_s (15 s)"
    late = (TURN, 2, "deny", "n", "reject_once", "deadline", why, False)
    desk.same("the second is denied", bureau.tree.said, [late])
    desk.same("because of what asked", bureau.tree.told[0][2], Cause(7))
    over = f"{TURN}:p2 is answered already: deny by deadline: {why}"
    desk.same("who comes late", await bureau.answer(2), Choice("y", "allow_once"))
    bureau.gone(2)
    desk.same("who comes later", (await bureau.answer(2)).startswith(f"{TURN}:p2 is answered already: allow by"), True)
    bureau.gone(1)
    bureau.gone(1)
    bureau.open(3, within_s=1.0)
    await anyio.sleep(2.0)
    bureau.gone(3)
    desk.same("late for the third", await bureau.answer(3), over.replace("p2", "p3").replace("15 s", "1 s"))
    await anyio.sleep(30.0)
    desk.same("what was closed rings no more", len(bureau.tree.told), 3)
    desk.same("nothing is open", bureau.open_ids, [])


async def answering(desk: Desk) -> None:
    """The first answer counts; it says what was decided, by an option of the agent's; the others are told of it."""
    bureau = Bureau(desk)
    bureau.open(1, 2, 3)
    for name in (
        "",
        "x",
        f"{TURN}:p9",
        f"{TURN}:px",
        f"{TURN}:p\N{SUPERSCRIPT ONE}",
        "s:t9:p1",
        ":p1",
        f"{TURN}:p-1",
        "p1",
    ):
        desk.same(f"no permission {name!r}", f"no permission {name!r} waits" in str(await bureau.answer(name)), True)
    named = str(await bureau.answer("s:t9:p1"))
    bureau.ours.close(TURN, 3)
    desk.same("what a human is not asked", "no permission" in str(await bureau.answer(3)), True)
    bureau.ours.open(bureau.work, TURN, AskPermission(number=3, within_s=WITHIN_S), Cause())
    desk.same("what became of others", "`supervisor events s:t9`" in named, True)
    desk.same("of nobody", "`supervisor events ID`" in str(await bureau.answer("x")), True)
    bureau.tree.takes_s = 5.0
    found: list[Any] = []

    async def answer(allow: bool, by: str, after_s: float) -> None:
        await anyio.sleep(after_s)
        found.append(await bureau.answer(1, allow, by=by))

    async with anyio.create_task_group() as group:
        group.start_soon(answer, False, "ann", 0.0)
        group.start_soon(answer, True, "bob", 1.0)
    wanted = [f"{TURN}:p1 is answered already: deny by ann", Choice("n", "reject_once")]
    desk.same("two at once", found, wanted)
    said = (TURN, 1, "deny", "n", "reject_once", "ann", "so", False)
    desk.same("what its turn is told", (bureau.tree.said, bureau.tree.told[0][2]), ([said], Cause(actor="ann")))
    bureau.gone(1)
    desk.same("who comes late", await bureau.answer(1), f"{TURN}:p1 is answered already: deny by ann")
    bureau.tree.takes_s = 0.0
    bureau.tree.outcome = "stale"
    desk.same("too late", "no permission" in str(await bureau.answer(2)), True)
    bureau.tree.outcome = "transition"
    desk.same("and not remembered", await bureau.answer(2), Choice("y", "allow_once"))
    bureau.tree.entities[TURN].data = TurnData(id=TURN, session_id="s")
    desk.same("withdrawn", ("no permission" in str(await bureau.answer(3)), bureau.open_ids), (True, []))
    bureau.tree.entities.clear()
    desk.same("without its turn", ("no permission" in str(await bureau.answer(3)), bureau.open_ids), (True, []))
    bureau.ours.open(bureau.work, TURN, AskPermission(number=5, within_s=1.0), Cause())
    await anyio.sleep(40.0)
    desk.same("nobody waits for those", len(bureau.tree.told), 3)


async def lasting(desk: Desk) -> None:
    """For good where that is offered, else once and then by ourselves; never more than is offered."""
    for options, allow, choice, settled in (
        (ALL, True, Choice("Y", "allow_always"), None),
        (ALL, False, Choice("N", "reject_always"), None),
        (ONCE, True, Choice("y", "allow_once"), Decision.ALLOW),
        (ONCE, False, Choice("n", "reject_once"), Decision.DENY),
        ((), False, Choice(None, None), Decision.DENY),
    ):
        bureau = Bureau(desk)
        bureau.open(1, options=options)
        desk.same(f"for good: {options}, {allow}", await bureau.answer(1, allow, always=True), choice)
        wish = Wish(title="t1", kind="edit", tool="bash", paths=("a",))
        desk.same("what holds from now on", bureau.work.settled, {} if settled is None else {wish: settled})
        said = (TURN, 1, "allow" if allow else "deny", *choice, "ann", "so", True)
        desk.same("what is on record", bureau.tree.said, [said])
        bureau.gone(1)
    once = Bureau(desk)
    once.open(1)
    await once.answer(1)
    desk.same("once is once", once.work.settled, {})
    once.gone(1)
    refusals: tuple[tuple[tuple[tuple[str, str], ...], str, str], ...] = (
        ((("N", "reject_always"),), "allowing it (it offers: reject_always)", "deny it"),
        ((), "allowing it (it offers: nothing)", "deny it"),
        (ALL[1:3], "allowing it once (it offers: allow_always, reject_once)", "answer for good, or deny it"),
        (ALL[2:], "allowing it (it offers: reject_once, reject_always)", "deny it"),
        ((("a", "abstain"), ("z", "zap")), "allowing it (it offers: abstain, zap)", "deny it"),
        ((("z", "zap"), *ALL[1:2]), "allowing it once (it offers: zap, allow_always)", "answer for good, or deny it"),
    )
    for offered, what, fix in refusals:
        bureau = Bureau(desk)
        bureau.open(1, options=offered)
        told = f"{TURN}:p1: the agent does not offer {what}; {fix}"
        desk.same("what is not offered", await bureau.answer(1), told)
        desk.same("it is still open", (bureau.open_ids, bureau.tree.told), ([f"{TURN}:p1"], []))
        bureau.gone(1)
    many = Bureau(desk)
    many.open(*range(1, 258))
    for number in range(1, 258):
        await many.answer(number)
        many.gone(number)
    shown = ["is answered already" in str(await many.answer(number)) for number in (1, 2, 257)]
    desk.same("answers that are remembered", shown, [False, True, True])


async def programs(desk: Desk) -> None:
    """The embedding program is asked, and has a say as long as nobody else has had one."""
    asked: list[Any] = []

    async def ask(wish: OpenPermission) -> bool | None:
        asked.append((wish.id, round(wish.left_s, 6) == WITHIN_S))
        try:
            await anyio.sleep(3.0)
        except BaseException:
            asked.append("cancelled")
            raise
        if wish.id.endswith("4"):
            raise ValueError("no idea")
        return {"1": True, "2": False}.get(wish.id[-1])

    bureau = Bureau(desk, ask)
    bureau.open(1, 2, 3, 4, 5)
    await anyio.sleep(1.0)
    desk.same("who is asked", sorted(asked), [(f"{TURN}:p{number}", True) for number in range(1, 6)])
    bureau.gone(5)
    await anyio.sleep(5.0)
    yes = (TURN, 1, "allow", "y", "allow_once", "host", "", False)
    no = (TURN, 2, "deny", "n", "reject_once", "host", "", False)
    broke = (TURN, 4, "deny", "n", "reject_once", "host", "asking failed: ValueError('no idea')", False)
    desk.same("what it says", sorted(bureau.tree.said), [yes, no, broke])
    desk.same("who is asked no more", asked[5:], ["cancelled"])
    causes = sorted((cause.actor, cause.seq or 0) for _, _, cause in bureau.tree.told)
    desk.same("by whom", causes, sorted([("host", 0), ("host", 0), (Cause(7).actor, 7)]))
    for number in (1, 2, 4):
        bureau.gone(number)
    await anyio.sleep(WITHIN_S)
    desk.same("who says nothing leaves it to others", [one[1] for one in bureau.tree.said][3:], [3])
    bureau.gone(3)
    bureau.open(6)
    bureau.tree.entities.clear()
    await anyio.sleep(5.0)
    desk.same("what is withdrawn at once", len(bureau.tree.told), 4)
    bureau.ours.close(TURN, 6)
    strict = Bureau(desk, ask)
    strict.open(1, options=())
    await anyio.sleep(5.0)
    why = f"{TURN}:p1: the agent does not offer allowing it (it offers: nothing); deny it"
    desk.same("what cannot be said is denied", strict.tree.said, [(TURN, 1, "deny", None, None, "host", why, False)])
    strict.gone(1)


# ---------------------------------------------------------------------------------------------------------- the model
class Watched:
    """A watch with its tree; what it notes, and whom it tells."""

    def __init__(self, desk: Desk, **limits: Any) -> None:
        self.tree = Tree(desk)
        self.noted: list[tuple[str, dict[str, Any], str]] = []
        self.heard: list[ModelFailure] = []
        tree: Any = self.tree
        self.ours = ModelWatch(tree, ModelLimits(**limits), self._note, self.heard.append)
        self.ours.turn_began(TURN)

    def _note(self, name: str, told: dict[str, Any], reason: str) -> int:
        self.noted.append((name, told, reason))
        return 100 + len(self.noted)

    def hear(self, out: Any, times: int = 1) -> None:
        for _ in range(times):
            self.ours.hear(out)

    @property
    def ended(self) -> list[tuple[str, str, Any, Any]]:
        """The turns that were failed: by which problem, and because of which record."""
        return [(to, one.verdict.model.problem.value, cause.seq, cause.actor) for to, one, cause in self.tree.told]


SERVER: Final = ModelTrouble(ModelProblem.SERVER, 500)


async def models(desk: Desk) -> None:
    """Troubles go on record, each once, so many of a turn; the turn that has had enough of them fails, once."""
    watch = Watched(desk, retries_max=2, fruitless_max=0, requests_max=0)
    watch.hear(ModelTrouble(ModelProblem.SERVER, 500, 3, 0.0, "no"))
    watch.hear(ModelTrouble(ModelProblem.OVERLOADED))
    full = {
        "turn": TURN,
        "problem": "server",
        "status": 500,
        "attempt": 3,
        "retry_s": 0.0,
        "words": "no",
        "in_a_row": 1,
    }
    bare = {"turn": TURN, "problem": "overloaded", "in_a_row": 2}
    desk.same("on record", watch.noted, [("ModelTrouble", full, ""), ("ModelTrouble", bare, "")])
    desk.same("not yet", watch.ended, [])
    watch.hear(SERVER, 2)
    watch.hear(Usage({}, requests=5))
    desk.same("enough", watch.ended, [(TURN, "server", 103, "model")])
    heard = [(one.problem.value, one.status) for one in watch.heard]
    desk.same("who wants to hear of it", heard, [("server", 500), ("overloaded", None), ("server", 500)])
    watch.ours.turn_began("s:t2")
    watch.hear(SERVER)
    desk.same("at once in the next", watch.ended[1:], [("s:t2", "server", 104, "model")])
    for out, news in (
        (Text("message", "a"), True),
        (Text("thought", "b"), True),
        (Text("log", "c"), False),
        (Text("message", " "), False),
        (ToolOpened("a", "a"), True),
        (Compaction(True), True),
        (Usage({}), False),
    ):
        watch = Watched(desk, retries_max=2, fruitless_max=0, requests_max=0)
        watch.hear(SERVER, 2)
        watch.hear(out)
        watch.hear(SERVER)
        desk.same(f"after {out}", watch.ended == [], news)
    many = Watched(desk, retries_max=0, fruitless_max=0, requests_max=0)
    many.hear(SERVER, 40)
    desk.same("on record, and heard of", (len(many.noted), len(many.heard)), (32, 40))
    many.ours.turn_began("s:t2")
    many.hear(SERVER)
    desk.same("of another turn", len(many.noted), 33)
    late = Watched(desk, retries_max=33, fruitless_max=0, requests_max=0)
    late.hear(SERVER, 34)
    desk.same("because of the last on record", late.ended, [(TURN, "server", 132, "model")])
    _counts(desk)
    _judged(desk)


def _counts(desk: Desk) -> None:
    """Requests where they are told, else reports; so many in a time only where they are told."""
    for usages, limits, ends in (
        ([Usage({})] * 3, {"fruitless_max": 3}, False),
        ([Usage({})] * 4, {"fruitless_max": 3}, True),
        ([Usage({}, requests=4)], {"fruitless_max": 3}, True),
        ([Usage({}, requests=1), Usage({}), Usage({}), Usage({}), Usage({})], {"fruitless_max": 3}, False),
        ([Usage({}, requests=1), Usage({}, requests=2), Usage({}, requests=1)], {"fruitless_max": 3}, True),
        ([Usage({}, requests=-1)] * 3, {"fruitless_max": 3}, False),  # less than none is no count
        ([Usage({}, requests=-1)] * 4, {"fruitless_max": 3}, True),
        ([Usage({})] * 9, {"fruitless_max": 0, "requests_max": 3}, False),
        ([Usage({}, requests=3)], {"fruitless_max": 0, "requests_max": 3}, False),
        ([Usage({}, requests=4)], {"fruitless_max": 0, "requests_max": 3}, True),
    ):
        watch = Watched(desk, **limits)
        for one in usages:
            watch.hear(one)
        desk.same(f"{usages} of {limits}", watch.ended, [(TURN, "unknown", 101, "model")] if ends else [])
        noted = [(name, told, reason != "") for name, told, reason in watch.noted]
        desk.same("on record", noted, [("ModelAskedInVain", {"turn": TURN}, True)] if ends else [])
        watch.hear(Usage({}, requests=99))
        desk.same("once", len(watch.noted), int(ends or max(limits.values()) < 99))


def _judged(desk: Desk) -> None:
    """An agent's own end counts as a failure of its model where it says so."""
    watch = Watched(desk, retries_max=1)
    plain = Verdict(exit=Exit.SUCCESS)
    desk.same("nothing of the model's", (watch.ours.judged(plain), watch.heard), (plain, []))
    failure = ModelFailure(problem=ModelProblem.SERVER, status=500)
    finals = []
    for _ in range(2):
        model = watch.ours.judged(Verdict(exit=Exit.ERROR, error="no", model=failure)).model
        finals.append(model and model.final)
    desk.same("the second is the last", (finals, watch.heard), ([False, True], [failure, failure]))


DESKS = (waiting, answering, lasting, programs, models)
