"""Plug-ins: the events and questions that they get, the isolation of their errors, and their discovery."""

from __future__ import annotations

import json
import re
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from supervisor.agents.codecs import adapters
from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.agents.protocols.command import CommandCodec
from supervisor.lifecycles.types import AbortScope, LifecycleEvent
from supervisor.plans import AcceptanceConfig, AgentConfig, BadPlan, Plan, TaskConfig
from supervisor.plans.acceptance import AcceptanceTest
from supervisor.plugins import FailedAttempt, Plugins, UnknownPlugin, Verification, Verifier, WorkItem, hookimpl
from supervisor.plugins.reading import load_plan
from supervisor.plugins.worker import Answer, PluginThread
from supervisor.ports import Codec, Out
from supervisor.work.plan_handle import run_plan
from supervisor.work.results import PlanResult
from tests.support import DEADLINE_S, Run, data_of, no_leaks, quick_settings, states_of, stdout_of, supervising

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

EXAMPLE = Path(__file__).parents[3] / "examples" / "plugin"
BOUNDS = quick_settings(max_total_errors=1, max_consecutive_errors=1)
AGENTS = {
    "sh": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}")),
    "scripted": AgentConfig(adapter="scripted"),
}


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_leaks():
        yield


def plan_of(*tasks: TaskConfig, agents: Mapping[str, AgentConfig] = AGENTS) -> Plan:
    return Plan(agents=agents, tasks=tasks, limits=BOUNDS.limits, policy=BOUNDS.policy)


def task(name: str, prompt: str, agent: str = "sh", acceptance: Sequence[AcceptanceConfig] = ()) -> TaskConfig:
    return TaskConfig(id=name, agent=agent, prompt=prompt, acceptance=tuple(acceptance), max_retries=0)


async def carried_out(workdir: Path, plan: Plan, *plugins: object) -> tuple[PlanResult, Run]:
    async with supervising(workdir, settings=plan.settings, agents=plan.agents, plugins=plugins) as run:
        result = await run_plan(run.sup, plan)
    return result, run


class Listener:
    """Plug-in that stores the events it gets."""

    def __init__(self) -> None:
        self.told: dict[str, list[LifecycleEvent]] = {}
        self.threads: set[int] = set()

    def keep(self, kind: str, event: LifecycleEvent) -> None:
        self.told.setdefault(kind, []).append(event)
        self.threads.add(threading.get_ident())
        event.metadata["spoilt"] = True

    @hookimpl
    def supervisor_task_event(self, event: LifecycleEvent) -> None:
        self.keep("task", event)

    @hookimpl
    def supervisor_agent_event(self, event: LifecycleEvent) -> None:
        self.keep("agent", event)

    @hookimpl
    def supervisor_session_event(self, event: LifecycleEvent) -> None:
        self.keep("session", event)

    @hookimpl
    def supervisor_turn_event(self, event: LifecycleEvent) -> None:
        self.keep("turn", event)

    @hookimpl
    def supervisor_abort_event(self, event: LifecycleEvent) -> None:
        self.keep("abort", event)


class Broken(Listener):
    """Plug-in that raises an error at each event, also SystemExit."""

    def keep(self, kind: str, event: LifecycleEvent) -> None:
        super().keep(kind, event)
        if kind == "session":
            raise SystemExit(3)
        raise RuntimeError(f"no {kind} today")


# ---------------------------------------------------------------------------------------------------- what is told
async def test_every_record_is_told_in_order_once(tmp_path: Path) -> None:
    """A plug-in gets each record once and in order, by the kind of the entity, in one thread of its own; a change of
    the event does not reach the journal."""
    listener = Listener()
    result, run = await carried_out(tmp_path, plan_of(task("t", "@run true", "scripted")), listener)
    assert result.ok
    for kind in ("task", "agent", "session", "turn"):
        there = [one.seq for one in run.events() if one.entity_type == kind]
        assert [one.seq for one in listener.told[kind]] == there
    assert len(listener.threads) == 1
    assert threading.get_ident() not in listener.threads
    assert not any("spoilt" in one.metadata for one in run.events())


async def test_an_abort_is_told_of(tmp_path: Path) -> None:
    """A plug-in gets the record of an abort as an abort event and as an event of the session."""
    listener = Listener()
    async with supervising(tmp_path, plugins=[listener]) as run:
        await run.sup.start_session("s", agent="scripted")
        await run.sup.abort("s", AbortScope.SESSION, reason="enough")
    assert [one.reason for one in listener.told["abort"]] == ["enough"]
    assert listener.told["abort"][0] in listener.told["session"]


async def test_a_plugin_that_fails_changes_nothing(tmp_path: Path) -> None:
    """A failing plug-in changes no record; its failures are counted, and the next plug-in gets every event."""
    plan = plan_of(task("good", "true"), task("bad", "exit 3"))
    alone, without = await carried_out(tmp_path, plan)
    broken, listener = Broken(), Listener()
    result, run = await carried_out(tmp_path, plan, broken, listener)
    assert {one.id: one.outcome for one in result.tasks.values()} == {
        one.id: one.outcome for one in alone.tasks.values()
    }
    for entity in ("r1#good", "r1#bad", "good", "bad"):
        assert states_of(run.events(), entity) == states_of(without.events(), entity)
    counts = {one.name: one.counts for one in run.sup.core.plugins.reports()}
    assert counts["Broken"].failed == counts["Broken"].calls > 0
    assert counts["Listener"].failed == 0
    assert listener.told.keys() == broken.told.keys() == {"task", "agent", "session", "turn"}


async def test_a_plugin_that_blocks_holds_nobody_up(tmp_path: Path) -> None:
    """A run ends although a call of a plug-in still blocks; later events for that plug-in are dropped."""
    gate = threading.Event()

    class Stuck:
        @hookimpl
        def supervisor_session_event(self) -> None:
            gate.wait(DEADLINE_S)

    try:
        result, run = await carried_out(tmp_path, plan_of(task("t", "true")), Stuck())
        assert result.ok
        assert not gate.is_set()
        (report,) = run.sup.core.plugins.reports()
        assert report.counts.calls == 1
        assert report.counts.dropped == len([one for one in run.events() if one.entity_type == "session"]) - 1
    finally:
        gate.set()


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    """Calls beyond the size of a plug-in's queue are dropped and counted; the queued ones are made in order."""
    gate, begun, heard = threading.Event(), threading.Event(), list[int]()
    thread = PluginThread("slow", queue_max=3)
    thread.send("wait", lambda: (begun.set(), gate.wait(DEADLINE_S)))
    assert begun.wait(DEADLINE_S)
    for number in range(5):
        thread.send("hear", lambda number=number: heard.append(number))  # type: ignore[misc]
    gate.set()
    thread.stop()
    assert thread.join(DEADLINE_S)
    assert heard == [0, 1, 2]
    assert (thread.counts.dropped, thread.counts.calls) == (2, 4)


def test_who_is_late_is_asked_nothing_until_it_returns() -> None:
    """While a call of a plug-in is late, questions to the plug-in are answered with ``None`` at once; afterwards they
    are put again."""
    gate, begun, done = threading.Event(), threading.Event(), threading.Event()
    thread = PluginThread("late", limit_s=0.0)
    thread.send("wait", lambda: (begun.set(), gate.wait(DEADLINE_S)))
    assert begun.wait(DEADLINE_S)
    assert thread.answer("more", lambda: 1) is None
    assert thread.counts.late == 1
    gate.set()
    thread.send("after", done.set)
    assert done.wait(DEADLINE_S)
    answer = thread.answer("more", lambda: 2, DEADLINE_S)
    assert answer is not None
    assert answer.value == 2
    thread.stop()
    assert thread.join(DEADLINE_S)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_is_replaced() -> None:
    """An internal error ends a plug-in's thread and loses the call in progress; a new thread makes the queued calls."""
    gate, begun, heard = threading.Event(), threading.Event(), threading.Event()
    thread = PluginThread("died", limit_s=DEADLINE_S)
    thread.send("wait", lambda: (begun.set(), gate.wait(DEADLINE_S)))
    assert begun.wait(DEADLINE_S)
    lost = thread.ask("answered elsewhere", lambda: 1)
    assert lost is not None
    lost.set_result(Answer(None))  # the thread cannot answer it any more, and dies of that
    thread.send("hear", heard.set)
    thread.replace_dead()  # lives, and is left alone
    gate.set()
    died = [one for one in threading.enumerate() if one.name == "supervisor plug-in died"]
    for one in died:
        one.join(DEADLINE_S)
    assert not heard.is_set()
    thread.replace_dead()
    assert heard.wait(DEADLINE_S)
    thread.stop()
    assert thread.join(DEADLINE_S)


# ------------------------------------------------------------------------------------------------------- opinions
class Opinions:
    """Plug-in that returns the given results from its hooks; a result that is an exception is raised."""

    def __init__(self, **said: Any) -> None:
        self.said = said

    def _say(self, what: str) -> Any:
        if isinstance(said := self.said.get(what), Exception):
            raise said
        return said

    @hookimpl
    def supervisor_priority(self, item: WorkItem) -> Any:
        return self._say("priority")

    @hookimpl
    def supervisor_escalate(self, attempt: FailedAttempt) -> Any:
        return self._say("escalate")

    @hookimpl
    def supervisor_judge_retry(self) -> Any:
        return self._say("retry")


async def opinions_of(*plugins: object) -> tuple[int, str | None, bool | None]:
    item = WorkItem(id="t", agent="a", priority=5)
    attempt = FailedAttempt(task_id="t", agent="a", attempt=1, error="it broke", agents=("a", "b"))
    asked = Plugins.load((), plugins)
    try:
        return await asked.priority(item), await asked.escalation(attempt), await asked.retry(attempt)
    finally:
        await asked.close()


async def test_the_first_opinion_is_heard() -> None:
    """The first result of a hook that is not ``None`` counts; the plug-in that was given last is called first."""
    assert await opinions_of() == (5, None, None)
    assert await opinions_of(Opinions(priority=9, retry=False)) == (9, None, False)
    first, second = Opinions(escalate="b"), Opinions(escalate="a", priority=1)
    assert await opinions_of(first, second) == (1, "a", None)


@pytest.mark.parametrize("wrong", [RuntimeError("no"), "many", [], 1.5])
async def test_an_answer_that_is_none_is_no_opinion(wrong: object) -> None:
    """A result of a wrong type, an unknown agent or an exception is ignored, and the result of the next plug-in
    counts."""
    other = Opinions(priority=7, escalate="b", retry=True)
    assert await opinions_of(other, Opinions(priority=wrong, escalate=wrong, retry=wrong)) == (7, "b", True)
    assert await opinions_of(Opinions(priority=wrong, escalate="nobody", retry=wrong)) == (5, None, None)


async def test_opinions_reach_the_plan(tmp_path: Path) -> None:
    """A plug-in can change a task's priority, or give a failed task to another agent; each decision is a record."""
    agents = {"late": AGENTS["sh"], "sh": AgentConfig(adapter="command", command=("false",))}
    tasks = tuple(
        TaskConfig(id=name, agent=agent, prompt=f"echo {name} >> order", max_retries=1)
        for name, agent in (("one", "late"), ("three", "late"), ("four", "late"), ("two", "late"), ("hard", "sh"))
    )
    plan = Plan(agents=agents, tasks=tasks, limits=BOUNDS.limits, policy=BOUNDS.policy, max_sessions=1)

    class Chooses:
        @hookimpl
        def supervisor_priority(self, item: WorkItem) -> int | None:
            return 7 if item.id == "two" else None

        @hookimpl
        def supervisor_escalate(self, attempt: FailedAttempt) -> str | None:
            return "late" if attempt.agent == "sh" else None

        @hookimpl
        def supervisor_judge_retry(self, attempt: FailedAttempt) -> bool | None:
            return False

    result, run = await carried_out(tmp_path, plan, Chooses())
    assert result.ok
    # Who is in the backlog first may be claimed before the next one is in it; the others are there by the second claim.
    assert "two" in (tmp_path / "order").read_text().split()[:2]
    facts = {(one.event, one.entity_id): one.metadata for one in run.events() if one.outcome == "fact"}
    assert facts["Ranked", "r1#two"] == {"priority": 7, "planned": 0}
    assert facts["Escalated", "r1#hard"] == {"agent": "late", "planned": "sh"}
    assert data_of(run.row("r1#hard")).claims == 2


# ------------------------------------------------------------------------------------------------------- adapters
class Louder(CommandCodec):
    """Codec of a plug-in, which fails in the method that ``fails`` names."""

    fails = ""

    def argv(
        self, command: Sequence[str], prompt: str, new_id: str = "", resume_id: str | None = None
    ) -> tuple[str, ...]:
        if self.fails == "argv":
            raise RuntimeError("no command line today")
        return super().argv(("sh", "-c", "{prompt}"), prompt)

    def feed(self, data: bytes) -> list[Out]:
        if self.fails == "feed" and data:
            raise RuntimeError("cannot read this")
        return ["what?"] if self.fails == "words" and data else super().feed(data)  # type: ignore[list-item]


class Adapters:
    """Plug-in with adapters by name, of which the name ``command`` is taken already."""

    def __init__(self, **fails: str) -> None:
        self.made: dict[str, Callable[[], Codec]] = {
            name: type("One", (Louder,), {"fails": how}) for name, how in fails.items()
        }

    @hookimpl
    def supervisor_adapters(self) -> Mapping[str, Callable[[], Codec]]:
        return {"command": AcpCodec, **self.made}


async def test_a_plan_uses_an_adapter_by_name(tmp_path: Path) -> None:
    """A plan can use the adapter of a plug-in; an adapter with the name of a built-in one is ignored and reported."""
    agents = {"loud": AgentConfig(adapter="loud"), **AGENTS}
    plan = plan_of(task("t", "echo hello > said", "loud"), task("ours", "true"), agents=agents)
    result, run = await carried_out(tmp_path, plan, Adapters(loud=""))
    assert result.ok
    assert (tmp_path / "said").read_text() == "hello\n"
    (report,) = run.sup.core.plugins.reports()
    assert report.adapters == ("loud",)
    assert report.problems == ("supervisor_adapters: 'command' is taken already; it is left out",)


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        ("argv", "the adapter bad failed in argv: RuntimeError('no command line today')"),
        ("feed", "the adapter bad failed in feed: RuntimeError('cannot read this')"),
        ("words", "the adapter bad failed in feed: TypeError(\"'what?' is no output of a codec\")"),
    ],
)
async def test_an_adapter_that_fails_fails_its_own_task(tmp_path: Path, fails: str, words: str) -> None:
    """The session of a failing adapter ends with the error; other sessions are not affected."""
    agents = {"bad": AgentConfig(adapter="bad"), **AGENTS}
    plan = plan_of(task("t", "echo hello", "bad"), task("other", "true"), agents=agents)
    result, _ = await carried_out(tmp_path, plan, Adapters(bad=fails))
    assert {one.id: one.outcome for one in result.tasks.values()} == {"t": "failed", "other": "completed"}
    assert words in result.tasks["t"].error


async def test_an_unknown_adapter_is_refused_with_those_there_are(tmp_path: Path) -> None:
    """An unknown adapter is an error before anything is started; the error lists built-in adapters and those of
    plug-ins."""
    with pytest.raises(
        ValueError,
        match=r"^adapter: unknown name 'lout'; use one of: acp, claude, codex, command, scripted, jsonl, loud$",
    ):
        async with supervising(tmp_path, agents={"a": AgentConfig(adapter="lout")}, plugins=[Adapters(loud="")]):
            pass


# ------------------------------------------------------------------------------------------------------ verifiers
class Verifiers:
    """Plug-in with a verifier of the name ``look``."""

    def __init__(self, look: Verifier) -> None:
        self.look = look

    @hookimpl
    def supervisor_verifiers(self) -> Mapping[str, Verifier]:
        return {"look": self.look}


async def verified(directory: Path, look: Verifier, name: str = "look", timeout_s: float = DEADLINE_S) -> str:
    asked = Plugins.load((), [Verifiers(look)])
    try:
        test = AcceptanceTest(kind="verifier", words=(name,), timeout_s=timeout_s, options={"deep": True})
        return await asked.verified(test, str(directory), {"A": "b"})
    finally:
        await asked.close()


async def test_what_a_verifier_says(tmp_path: Path) -> None:
    """A verifier accepts by returning ``None``; a text, an error, another result and an unknown verifier reject."""
    seen: list[Verification] = []
    assert await verified(tmp_path, seen.append) == ""
    assert (seen[0].directory, seen[0].options, seen[0].env) == (str(tmp_path), {"deep": True}, {"A": "b"})
    assert await verified(tmp_path, lambda asked: "too short") == "too short"
    assert await verified(tmp_path, lambda asked: [][0]) == "the verifier failed: IndexError('list index out of range')"
    assert "neither text nor None" in await verified(tmp_path, lambda asked: True)  # type: ignore[arg-type, return-value]
    assert await verified(tmp_path, seen.append, "lok") == "no plug-in has a verifier 'lok'; there are: look"


async def test_a_verifier_that_is_late_has_not_accepted(tmp_path: Path) -> None:
    """A verifier that has not returned within the time-out of its test rejects, whatever it returns later."""
    gate = threading.Event()
    late = await verified(tmp_path, lambda asked: str(gate.wait(DEADLINE_S)), timeout_s=0.0)
    gate.set()
    assert late == "it was still running after 0 s"


async def test_a_task_is_verified_by_a_plugin(tmp_path: Path) -> None:
    """An acceptance test of the kind ``verifier`` calls the plug-in's verifier with the options from the plan."""

    def has(asked: Verification) -> str | None:
        wanted = Path(asked.directory, asked.options["file"])
        return None if wanted.exists() else f"no {wanted.name}"

    test = AcceptanceConfig.model_validate({"verifier": "look", "with": {"file": "made"}})
    plan = plan_of(task("good", "touch made", acceptance=[test]))
    result, _ = await carried_out(tmp_path, plan, Verifiers(has))
    assert result.ok
    (tmp_path / "made").unlink()
    result, _ = await carried_out(tmp_path, plan_of(task("bad", "true", acceptance=[test])), Verifiers(has))
    assert result.tasks["bad"].error == "not accepted: verifier look: no made"


# --------------------------------------------------------------------------------------------------- finding them
def test_what_cannot_be_called_as_hooks_are_is_not_used() -> None:
    """A plug-in with a hook that is a wrapper, is async or has an unknown argument is not used, with the reason; an
    unknown hook of a newer version is ignored."""

    class Wrapper:
        @hookimpl(wrapper=True)
        def supervisor_priority(self, item: WorkItem) -> Any:
            return (yield)

    class Async:
        @hookimpl
        async def supervisor_priority(self, item: WorkItem) -> int:
            return 1

    class Curious:
        @hookimpl
        def supervisor_priority(self, item: WorkItem, journal: object) -> int:
            return 1

    class Newer(Listener):
        @hookimpl
        def supervisor_weather_event(self, event: object) -> None: ...

    wrapper, made_async, curious, newer = Plugins.load((), [Wrapper(), Async(), Curious(), Newer()]).reports()
    assert [one.used for one in (wrapper, made_async, curious, newer)] == [False, False, False, True]
    assert "no plug-in may change the results of another one" in wrapper.problems[0]
    assert "hooks are plain functions" in made_async.problems[0]
    assert "journal" in "".join(curious.problems)
    assert newer.problems == ("supervisor_weather_event is no hook of this version; it is left out",)
    assert "supervisor_task_event" in newer.hooks


def test_two_of_one_name() -> None:
    """Two plug-ins of one name are both used, under different names."""
    assert [one.name for one in Plugins.load((), [Listener(), Listener()]).reports()] == ["Listener", "Listener-2"]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs the example plug-in: its package and its entry points as pip writes them."""

    def install(**more: str) -> None:
        project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
        points = {**project["entry-points"]["supervisor.plugins"], **more}
        info = tmp_path / "site" / f"supervisor_tidy-{project['version']}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[supervisor.plugins]", *lines, ""]))
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.syspath_prepend(EXAMPLE)

    return install


async def test_the_example_is_found_by_its_entry_point(tmp_path: Path, example: Callable[..., None]) -> None:
    """An installed plug-in is found by its entry point: its hooks get the run's events, and a plan can use its
    verifier."""
    example()
    work = tmp_path / "work"
    work.mkdir()
    test = AcceptanceConfig.model_validate({"verifier": "no_marks", "with": {"suffix": ".txt"}})
    marked = task("marked", "echo '<<<<<<< ours' > marked.txt", acceptance=[test])
    plan = plan_of(
        task("good", "echo fine > good.md", acceptance=[test]),
        marked.model_copy(update={"depends_on": ("good",)}),  # both are done in the same place
    )
    import supervisor_tidy  # type: ignore[import-not-found, unused-ignore]

    supervisor_tidy.SEEN.clear()
    async with supervising(work, settings=plan.settings.model_copy(update={"max_sessions": 1}), agents=AGENTS) as run:
        result = await run_plan(run.sup, plan.model_copy(update={"max_sessions": 1}))
        (report,) = run.sup.core.plugins.reports()
    assert result.tasks["good"].outcome == "completed"
    assert result.tasks["marked"].error == ("not accepted: verifier no_marks: marked.txt holds the marks of a conflict")
    assert (report.name, report.version, report.source) == ("tidy", "1.0.0", "supervisor-tidy (supervisor_tidy)")
    assert supervisor_tidy.SEEN["task: DONE -> CLOSED"] == 1
    assert supervisor_tidy.SEEN["session: ended"] == 2


def test_one_that_cannot_be_imported_is_told_of(example: Callable[..., None]) -> None:
    """A plug-in that cannot be imported is reported, and the others are used; a chosen name that is not installed is an
    error that lists the installed ones."""
    example(gone="no_such_package.at_all")
    gone, tidy = Plugins.load(None).reports()
    assert (gone.name, gone.used, tidy.used) == ("gone", False, True)
    assert "No module named 'no_such_package'" in gone.problems[0]
    assert [one.name for one in Plugins.load(["tidy"]).reports()] == ["tidy"]
    with pytest.raises(UnknownPlugin, match=r"^no plug-in 'tidi' is installed; installed: gone, tidy$"):
        Plugins.load(["tidi"])


def test_a_plan_names_what_plugins_add(tmp_path: Path, example: Callable[..., None]) -> None:
    """A verifier or adapter that is not built in is looked up in the plug-ins that the plan chooses; the error for an
    unknown name lists the known names."""
    example()
    plan = tmp_path / "plan.yaml"
    text = (
        "agents: {a: {adapter: scripted}}\ntasks: [{id: t, agent: a, acceptance: [{verifier: no_marks, with: {x: 1}}]}]"
    )
    plan.write_text(text)
    assert load_plan(plan).tasks[0].acceptance[0].value().options == {"x": 1}
    for refused, words in {
        text.replace("no_marks", "no_mark"): "'no_mark' is not one of no_marks; did you mean 'no_marks'?",
        text.replace("scripted", "nix"): "'nix' is not one of command, acp, claude, codex, jsonl, scripted",
        f"plugins: []\n{text}": "'no_marks' is unknown: no verifiers are installed",
        f"plugins: [tidi]\n{text}": "plugins[0]: 'tidi' is not one of tidy; did you mean 'tidy'?",
        text.replace("verifier: no_marks", "lint: [a]"): "with: is for a verifier; remove it, or name the verifier",
    }.items():
        plan.write_text(refused)
        with pytest.raises(BadPlan, match=re.escape(words)):
            load_plan(plan)
    plan.write_text(text)
    with pytest.raises(BadPlan, match="no verifiers are installed"):
        load_plan(plan, installed=False)


def test_they_are_listed(example: Callable[..., None]) -> None:
    """``plugins`` lists the plug-ins with version, hooks and problems, as text and as JSON."""
    example(gone="no_such_package")
    told = stdout_of("plugins")
    assert "tidy 1.0.0, from supervisor-tidy (supervisor_tidy)\n  hooks: supervisor_abort_event, " in told
    assert "  verifiers: no_marks" in told
    assert "gone 1.0.0, from supervisor-tidy (no_such_package): NOT USED\n  problem: its import failed: " in told
    assert {one["name"]: one["used"] for one in json.loads(stdout_of("plugins", "--json"))} == {
        "gone": False,
        "tidy": True,
    }


def test_none_are_listed() -> None:
    """``plugins`` without an installed plug-in prints one sentence."""
    assert stdout_of("plugins") == "no plug-in is installed"


def test_every_name_of_ours_is_reserved() -> None:
    """A plug-in cannot replace a built-in adapter."""
    taken = dict.fromkeys(adapters(), AcpCodec)
    plugin = Adapters()
    plugin.made = taken  # type: ignore[assignment]
    assert Plugins.load((), [plugin], reserved=adapters()).adapters == {}
