"""Verification: programs that are run for their answer, acceptance tests, reviews, and the janitor that has them made.

Held to spec 002's five kinds, docs/work.md (how a review is read) and the ports: what passes, what does not and why, in
what order, within what time, and what is done about a place that cannot be had.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from supervisor.aborts.tool_calls import end_processes
from supervisor.embedding.runtime import Supervisor
from supervisor.lifecycles.types import AbortScope
from supervisor.plans.acceptance import AcceptanceTest, accepted
from supervisor.plans.tasks import TaskConfig
from supervisor.plans.verification import ReviewConfig
from supervisor.policies.call_processes import CallSpan
from supervisor.ports import Changes, Launch, Merge, Place, Released, Text, TurnEnded
from supervisor.processes.helper_programs import Ran, run_program
from supervisor.runtime.entity import Refused
from supervisor.runtime.journal_writer import Cause
from supervisor.runtime.live_session import NoSuchEntity
from supervisor.simulation.drills.desk import Desk
from supervisor.simulation.drills.house import MOMENT_S, House, Prop, born
from supervisor.work.review import ReviewVerdict, read_verdict, reviewed

__all__ = ["VERIFYING"]

KEPT_BYTES: Final = 64 * 1024
_FAILED: Final = TurnEnded("error", "no")


async def _ran(desk: Desk, act: Callable[[Prop], Awaitable[None]], timeout_s: float = 5.0) -> tuple[Ran, Prop]:
    """How a program ends with which that is done."""
    house, found = House(desk), list[Ran]()
    launch = Launch(argv=("prog", "x"), cwd="/w", env={})

    async def run() -> None:
        found.append(await run_program(house, launch, timeout_s=timeout_s))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.sleep(MOMENT_S)
        await act(house.props[0])
    return found[0], house.props[0]


async def programs(desk: Desk) -> None:
    """The status, the last of what it said, and why there is no status where there is none."""
    for status, problem in ((0, False), (3, False), (-9, False), (None, True)):

        async def says(prop: Prop, status: int | None = status) -> None:
            prop.out.put(b"one\n\n")
            prop.err.put(b"two \n")
            await anyio.sleep(MOMENT_S)
            prop.exit(status)

        desk.again()
        ran, prop = await _ran(desk, says)
        desk.same(f"{status}", (ran.status, ran.ok, bool(ran.problem)), (status, status == 0, problem))
        desk.same("what it said", (ran.stdout, ran.stderr, ran.output), (b"one\n\n", b"two \n", "one\ntwo"))
        desk.same("what was done to it", prop.orders, ["close"])
        desk.same("its time", 2 * MOMENT_S <= ran.took_s <= desk.since() + 1e-6, True)

    async def much(prop: Prop) -> None:
        for number in range(5):
            prop.out.put(bytes([65 + number]) * (KEPT_BYTES // 2))
        prop.err.put(b"")
        await anyio.sleep(MOMENT_S)
        prop.exit(0)

    ran, _ = await _ran(desk, much)
    desk.same("the end of much", ran.stdout, b"D" * (KEPT_BYTES // 2) + b"E" * (KEPT_BYTES // 2))
    desk.again()

    async def hangs(prop: Prop) -> None:
        prop.out.put(b"so far")

    ran, prop = await _ran(desk, hangs, 7.0)
    desk.at("who hangs", 7.0, 3)
    desk.same(
        "who hangs",
        (ran.status, ran.ok, "7 s" in ran.problem, ran.stdout, prop.alive),
        (None, False, True, b"so far", False),
    )
    desk.again()

    async def is_held_open(prop: Prop) -> None:
        prop.exit(0, keeps_output=True)

    ran, _ = await _ran(desk, is_held_open)
    desk.at("whose output is held open", 1.0 + MOMENT_S, 4)
    desk.same("whose output is held open", (ran.status, ran.problem), (0, ""))
    house = House(desk)
    house.cannot_start.add("prog")
    ran = await run_program(house, Launch(argv=("prog",), cwd="/", env={}), timeout_s=1.0)
    desk.same("who cannot be started", (ran.status, ran.problem), (None, "prog cannot be started"))


class Tests:
    """Acceptance tests whose programs end as they are told to."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.verified: list[tuple[str, str]] = []
        self.objection = ""

    async def verify(self, test: AcceptanceTest, directory: str, env: Mapping[str, str]) -> str:
        self.verified.append((test.words[0], directory))
        await anyio.sleep(2.0)
        return self.objection

    def end(self, group: TaskGroup, *endings: tuple[int, bytes, bytes]) -> None:
        """Have the next programs end, one after the other, a second after each was started."""
        group.start_soon(self._end, len(self.house.props), endings)

    async def _end(self, begun: int, endings: tuple[tuple[int, bytes, bytes], ...]) -> None:
        for number, (status, out, err) in enumerate(endings):
            while len(self.house.props) <= begun + number:  # noqa: ASYNC110  a prop has no event for its start
                await anyio.sleep(0.1)
            prop = self.house.props[begun + number]
            for pipe, said in ((prop.out, out), (prop.err, err)):
                if said:
                    pipe.put(said)
            await anyio.sleep(1.0)
            prop.exit(status)


def _test(kind: str, *words: str) -> AcceptanceTest:
    return AcceptanceTest(kind=kind, words=words)


async def acceptances(desk: Desk) -> None:
    """One after the other, up to the first that fails; each kind by its own program; why it failed in one line."""
    for endings, problem in (
        ([(0, b"", b"")] * 4, ""),
        ([(0, b"", b""), (2, b"a\nb\n", b"")], "exited with 2: b"),
        ([(0, b"", b""), (0, b"", b""), (-11, b"", b"")], "was ended by signal 11"),
        ([(1, b"x", f"{'y' * 300}\n\n".encode())], f"exited with 1: {'y' * 200}"),
    ):
        tests = Tests(House(desk))
        wanted = [
            _test("unit_tests", "t", "-x"),
            _test("lint", "l"),
            _test("python_import", "m"),
            _test("javascript_import", "j"),
        ]
        async with anyio.create_task_group() as group:
            tests.end(group, *endings)
            done = await accepted(tests.house, wanted, "/w", {"A": "b"}, tests.verify)
        desk.same(
            "how it ended",
            [one.problem for one in done],
            [""] * (len(endings) - bool(problem)) + ([problem] if problem else []),
        )
        desk.same("whether it passed", [one.passed for one in done], [not one.problem for one in done])
        launches = [prop.launch for prop in tests.house.props]
        desk.same("where", [(one.cwd, one.env) for one in launches if one], [("/w", {"A": "b"})] * len(endings))
        began = [(one.argv[0], one.argv[-1]) for one in launches if one]
        desk.same("what was run", began, [("t", "-x"), ("l", "l"), ("python3", "m"), ("node", "j")][: len(endings)])
        desk.same("for how long", all(0.9 < one.took_s < 3.0 for one in done), True)
    for objection in ("", "no"):
        tests = Tests(House(desk))
        tests.objection = objection
        done = await accepted(tests.house, [_test("verifier", "v"), _test("verifier", "w")], "/w", {}, tests.verify)
        told = [(one.problem, one.passed, one.output) for one in done]
        desk.same("a plug-in's verifier", told, [("", True, "")] * 2 if not objection else [("no", False, "")])
        desk.same("for how long", [round(one.took_s) for one in done], [2] * len(done))
        desk.same("who was asked", tests.verified, [("v", "/w"), ("w", "/w")][: len(done)])
    desk.same("how long a test may take", _test("lint", "x").timeout_s, 30.0)
    desk.same("its title", _test("lint", "x", "y").title, "lint x y")


SAID: Final[tuple[tuple[str, bool, tuple[str, ...]], ...]] = (
    ('{"verdict": "approve"}', True, ()),
    ('words\n{"verdict": "approve", "findings": []}\n\n  \n', True, ()),
    ('{"verdict": "approve", "findings": ["small", "  "]}', True, ("small",)),
    ('{"verdict": "reject", "findings": [" bad ", "worse"]}', False, ("bad", "worse")),
)
UNREADABLE: Final = (
    "",
    "it is fine",
    '{"verdict": "approve"}\nand so on',
    '{"verdict": "reject", "findings": []}',
    '{"verdict": "reject", "findings": [" "]}',
    '{"verdict": "maybe", "findings": ["x"]}',
    '{"verdict": "zebra", "findings": ["x"]}',
    '{"verdict": "approve", "more": 1}',
    '["approve"]',
    '{"findings": []}',
)


async def verdicts(desk: Desk) -> None:
    """A verdict is the last line and nothing else; what rejects says why; silence approves of nothing."""
    for said, approved, findings in SAID:
        given = read_verdict(said, "s")
        desk.same(
            f"{said!r}",
            (given.approved, given.findings, given.problem, given.session_id),
            (approved, findings, "", "s"),
        )
        desk.same(f"the words of {said!r}", given.words == "", approved)
        desk.same("are its findings", all(one in given.words for one in findings) or approved, True)
    for said in UNREADABLE:
        given = read_verdict(said, "s")
        desk.same(
            f"{said!r}", (given.approved, bool(given.problem), given.findings, given.session_id), (False, True, (), "s")
        )
        desk.same("says so", given.words, f"not reviewed: {given.problem}")
        for verdict, why in (("reject", "without a finding"), ("maybe", "'maybe' is no verdict"), ("zebra", "'zebra'")):
            if f'"{verdict}"' in said:
                desk.same(f"why {said!r} is none", why in given.problem, True)
    many = [f"{number} {'x' * 600}" for number in range(60)]
    found = read_verdict(f'{{"verdict": "reject", "findings": {str(many).replace(chr(39), chr(34))}}}').findings
    desk.same("findings that are kept", (len(found), {len(one) for one in found}), (50, {500}))
    desk.same("the first ones", [one.partition(" ")[0] for one in found], [str(number) for number in range(50)])


async def reviews(desk: Desk) -> None:
    """A reviewer is a child in the same place; what cannot be read is asked for twice; what it changed is no review."""
    fine, bad, none = '{"verdict": "approve"}', '{"verdict": "reject", "findings": ["it is red"]}', "no verdict"
    for answers, changed, approved, words, tries in (
        ([fine], False, True, "", 1),
        ([bad], False, False, "it is red", 1),
        ([none, fine], False, True, "", 2),
        ([none, none], False, False, "try 2 of 2", 2),
        ([fine], True, False, "changed", 1),
        (["", bad], False, False, "it is red", 2),
    ):
        house = House(desk)
        commits = ["c1", "c2" if changed else "c1"]
        house.rooms.changed = [
            Changes(base="b" * 20, commit=one * 10, files=("f",), diff="the diff") for one in commits
        ]
        queue = list(answers)

        def answer(puppet: Any, text: str, queue: list[str] = queue) -> Any:
            return (
                [Text("message", queue.pop(0)), TurnEnded("end_turn")] if text != "do it" else [TurnEnded("end_turn")]
            )

        house.answers = answer
        async with house.open() as sup:
            session = await sup.start_session("s", agent="puppet", directory="/here")
            await session.run("do it")
            earlier = await session.start_child("review")
            review = ReviewConfig(agent="puppet", prompt="be strict", timeout_s=9.0)
            task = TaskConfig(id="t", agent="puppet", prompt="what was asked")
            verdict = await reviewed(sup, "s", review, task, Cause(actor="me"))
            what = f"a review that says {answers}"
            desk.same(what, (verdict.approved, words in verdict.words, not verdict.words), (approved, True, approved))
            prompts = [one[1] for puppet in house.puppets for one in puppet.heard("prompt") if one[1] != "do it"]
            desk.same(f"{what}: tries", len(prompts), tries)
            told = [
                all(word in one for word in ("what was asked", "the diff", "be strict", "b" * 12)) for one in prompts
            ]
            desk.same(f"{what}: what it is asked", told, [True] * tries)
            again = [("An earlier review" in one, "(try 1 of 2)" in one) for one in prompts]
            desk.same(f"{what}: again", again, [(False, False), (True, True)][:tries])
            where = [row for row in house.rooms.noted if row[0] == "prepare" and row[1] != "s"]
            names = [f"s/review-{number + 2}" for number in range(tries)]
            desk.same(f"{what}: where", where, [("prepare", one, "/here", "s") for one in names])
            desk.same(f"{what}: whose verdict", verdict.session_id, names[-1])
            desk.same(f"{what}: who is left", [one.id for one in sup.sessions()], ["s"])
            await sup.ledger.flush()
            noted = await house.events("s", "Reviewed")
            fact = [(one.metadata["agent"], one.metadata["approved"], one.reason) for one in noted]
            desk.same(f"{what}: on record", fact, [("puppet", approved, verdict.words or "approved")])
            desk.same(f"{what}: an earlier one", earlier.id in sup.tree.works, False)
            await _not_reviewed(desk, house, sup, review, task)
            house.rooms.fails["changes"] = "no git"
            await desk.raises("what cannot be looked at", reviewed(sup, "s", review, task, Cause(actor="me")), Refused)
            house.rooms.fails.clear()
            await session.close()
            await desk.raises("who has ended", reviewed(sup, "s", review, task, Cause(actor="me")), NoSuchEntity)


async def _not_reviewed(desk: Desk, house: House, sup: Supervisor, review: ReviewConfig, task: TaskConfig) -> None:
    """A reviewer that fails, or is aborted, or takes too long, has approved of nothing, whatever it said."""
    fine = Text("message", '{"verdict": "approve"}')
    for how in ("fails", "is aborted", "takes too long"):
        says = [fine, *([_FAILED] if how == "fails" else [])]
        house.answers = lambda puppet, text, says=says: says  # type: ignore[misc]
        found: list[ReviewVerdict] = []

        async def ask(found: list[ReviewVerdict] = found) -> None:
            found.append(await reviewed(sup, "s", review, task, Cause(actor="me")))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            for _ in range(2):
                await anyio.sleep(1.0)
                reviewers = [one.id for one in sup.sessions() if one.id != "s"]
                if how == "is aborted" and reviewers:
                    await sup.abort(reviewers[0], AbortScope.SESSION, now=True)
        told = [(one.approved, one.problem != "", one.findings) for one in found]
        desk.same(f"a reviewer that {how}", told, [(False, True, ())])
        desk.same(f"a reviewer that {how}: is over", [one.id for one in sup.sessions()], ["s"])


async def janitors(desk: Desk) -> None:
    """Tests run where the session worked, and end with it; places are put away once, when they may be; what fails is
    refused, or left."""
    house = House(desk)
    house.rooms.temporary = True
    house.rooms.rest = ["gone", "s"]
    tests, place = [_test("lint", "l"), _test("command", "c")], Place(owner="t")
    async with house.open() as sup, anyio.create_task_group() as group:
        janitor, rooms, ends = sup.janitor, house.rooms, Tests(house)
        await anyio.sleep(MOMENT_S)
        desk.same(
            "what was left is cleared away",
            [one for one in rooms.noted if one[0] != "left"],
            [("put_away", "gone"), ("put_away", "s")],
        )
        session = await sup.start_session("s", agent="puppet")
        for endings, wanted in (
            ([(0, b"fine", b""), (0, b"", b"")], ""),
            ([(3, b"out", b"err")], "lint l: exited with 3: err"),
        ):
            ends.end(group, *endings)
            desk.same("a check", await janitor.check("s", tests), wanted)
        acceptance = "".join(text for source, text in house.transcripts["s"] if source == "acceptance")
        desk.same(
            "in its transcript", [one in acceptance for one in ("fine\nlint l: passed\n", "out\nerr\n")], [True, True]
        )
        desk.same("no tests", await janitor.check("s", []), "")
        await desk.raises("of who is not there", janitor.check("nobody", tests), Refused)
        desk.same("no tests of the whole", await janitor.inspect("p", [], "d", anyio.Event()), "")
        ends.end(group, (0, b"", b""), (1, b"", b"oh"))
        desk.same("the whole", await janitor.inspect("p", tests, "d", anyio.Event()), "command c: exited with 1: oh")
        looked = [one for one in rooms.noted if one[1:2] == ("p",)]
        desk.same("where", looked, [("prepare", "p", "d", "p"), ("put_away", "p")])
        enough, told = anyio.Event(), list[str]()

        async def look() -> None:
            told.append(await janitor.inspect("q", tests, "d", enough))

        group.start_soon(look)
        await anyio.sleep(1.0)
        enough.set()
        await anyio.sleep(1.0)
        desk.same("one that is stopped", ([bool(one) for one in told], house.props[-1].alive), ([True], False))
        failed: list[object] = []

        async def check() -> None:
            failed.append(await desk.raises("whose session ends", janitor.check("s", tests), Refused))

        group.start_soon(check)
        await anyio.sleep(1.0)
        group.start_soon(session.close)
        await anyio.sleep(1.0)
        desk.same("a check of who ends", (len(failed), house.props[-1].alive), (1, False))
        desk.same("its place", [one for one in rooms.noted if one == ("put_away", "s")], [("put_away", "s")] * 2)
        await _places(desk, house, sup.janitor, place)
        await janitor.rest()
    house = House(desk)
    async with house.open() as sup:
        desk.same("in place", (sup.janitor.in_place, house.rooms.noted), (True, []))
        await (await sup.start_session("s", agent="puppet")).close()
        desk.same("nothing is put away", [one for one in house.rooms.noted if one[0] == "put_away"], [])


async def _places(desk: Desk, house: House, janitor: Any, place: Place) -> None:
    """What cannot be done is refused, or left; what takes too long is given up."""
    rooms = house.rooms
    rooms.merged, rooms.released = Merge(outcome="merged", commit="c"), Released(branch="b")
    desk.same("in a place of its own", janitor.in_place, False)
    desk.same("a merge", await janitor.merge("s", "m"), rooms.merged)
    desk.same("saved", await janitor.save("s", place, "m"), "saved")
    desk.same("taken back", await janitor.roll_back("s", place, "m"), "before")
    desk.same("put away", await janitor.put_away("s", "m"), rooms.released)
    rooms.fails = dict.fromkeys(
        ("merge", "changes", "begin", "save", "roll_back", "accept", "forget", "put_away", "prepare"), "no"
    )
    desk.same("a merge that fails", await janitor.merge("s", "m"), Merge(outcome="refused", why="no"))
    for what, wish, args in (
        ("changes", janitor.changes, ("s", "m")),
        ("a beginning", janitor.begin, (place,)),
        ("a checkpoint", janitor.save, ("s", place, "m")),
        ("a rollback", janitor.roll_back, ("s", place, "m")),
    ):
        error = await desk.raises(what, wish(*args), Refused)
        desk.same(f"why there is no {what}", "no" in str(error), True)
    for drop in (janitor.accept, janitor.forget):
        desk.same("what is only dropped", await drop(place), None)
    desk.same("what is left", await janitor.put_away("s", "m"), Released(problem="no"))
    desk.same("a look that fails", "no" in await janitor.inspect("x", [_test("lint", "l")], "d", anyio.Event()), True)
    rooms.fails, rooms.takes_s = {}, dict.fromkeys(("save", "put_away", "forget"), 59.0)
    desk.same(
        "in time", (await janitor.save("s", place, "m"), await janitor.put_away("s", "m")), ("saved", rooms.released)
    )
    rooms.takes_s = dict.fromkeys(("save", "roll_back", "forget", "accept", "put_away"), 5.0)
    for done, wish in (
        ("save", lambda: janitor.save("s", place, "m")),
        ("roll_back", lambda: janitor.roll_back("s", place, "m")),
        ("accept", lambda: janitor.accept(place)),
        ("forget", lambda: janitor.forget(place)),
        ("put_away", lambda: janitor.put_away("s", "m")),
    ):
        before = rooms.done.count(done)
        with anyio.move_on_after(1.0):
            await wish()
        desk.same(f"{done}: what was begun is done to its end", rooms.done.count(done), before + 1)
    rooms.takes_s = dict.fromkeys(("save", "put_away", "forget"), 1000.0)
    desk.again()
    await desk.raises("what takes too long", janitor.save("s", place, "m"), Refused)
    desk.same("and is left", await janitor.put_away("s", "m"), Released(problem="it was not put away within 60 s"))
    desk.at("what takes too long", 120.0, 3)


async def strikes(desk: Desk) -> None:
    """Killed again and again until nothing is found, for a second at most; who is still there then is told."""
    prop, span = Prop(1), CallSpan(0, 0)
    prop.children = [born(1, 2, 3), born(3, 4), ()]
    given = await end_processes(prop, span, desk.system.timers)
    desk.same("its end", (given.killed, given.left, prop.struck), ((2, 3, 4), (), [(2, 3), (3, 4)]))
    given = await end_processes(Prop(2), span, desk.system.timers)
    desk.same("where nothing is", (given.killed, given.left, given.may_live), ((), (), ()))
    prop = Prop(3)
    prop.children = [None]
    given = await end_processes(prop, span, desk.system.timers)
    desk.same("where nothing can be seen", (given.killed, given.left, given.may_live), ((), (), (0,)))
    prop = Prop(4)
    prop.children = [born(9)] * 10_000
    desk.again()
    given = await end_processes(prop, span, desk.system.timers)
    desk.at("who forks on", 1.0, 2)
    desk.same("who forks on", (given.killed, given.left), ((9,), (9,)))


VERIFYING = (programs, acceptances, verdicts, reviews, janitors, strikes)
