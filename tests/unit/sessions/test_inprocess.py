"""Agents that are async functions in the host's program: tools, errors, child sessions, and functions that do not
stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import supervisor
from supervisor import Session, Supervisor, open_supervisor, run_plan
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import AbortScope, InvalidArgument, Kind
from supervisor.plans.plan import Plan
from supervisor.ports import JournalError
from supervisor.sessions.inprocess import AgentTurn, ToolAborted
from tests.support import (
    DEADLINE_S,
    data_of,
    no_leaks,
    quick_settings,
    send_prompt,
    states_of,
    stdout_of,
    supervising,
    wait_for_record,
)

pytestmark = pytest.mark.anyio

STRICT = {"request_s": 0.1, "cancel_s": 0.1, "terminate_s": 0.1, "kill_s": 0.1}
"""Budgets of the termination stages: less than half a second together."""


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with no_leaks():
        yield


def shorten_slack(sup: Supervisor) -> None:
    """Reduce the extra time for a loaded machine, so that a function that does not stop is abandoned soon."""
    sup.core.background.slack_s = 0.2
    sup.core.aborts.slack_s = 1.0
    sup.core.session_services.cleanup_s = 0.2


class Stubborn:
    """Agent or tool function that shields itself from every cancellation until ``let_go`` is set."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.let_go = anyio.Event()
        self.over = anyio.Event()

    async def work(self, *_: object) -> str:
        with anyio.CancelScope(shield=True):
            self.begun.set()
            await self.let_go.wait()
            self.over.set()
        return "at last"


# ---------------------------------------------------------------------------------------------------- turns
async def test_a_function_is_an_agent(tmp_path: Path) -> None:
    """The texts and the return value of an agent function are the turn's text; a tool call returns the tool's value;
    turn, session and agent pass through the states of the specification."""

    async def agent(turn: AgentTurn) -> str:
        turn.say(f"{turn.session_id} {turn.turn_id}: ")

        async def double(number: int) -> int:
            await anyio.lowlevel.checkpoint()
            return 2 * number

        return f"{turn.prompt} {await turn.call('double', double, 21)}"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        assert (await session.run("the answer is"))[:3] == ("completed", "", "s s:t1: the answer is 42")
        assert (await session.run("again")).text == "s s:t2: again 42"
    events = run.events()
    assert states_of(events, "s")[:5] == ["Initializing", "BuildingPrompt", "Spawning", "Running", "SessionComplete"]
    assert states_of(events, "s:t1") == [
        *("IDLE", "CLAIMING", "SPAWNING", "RUNNING", "TOOL_USE", "RUNNING", "VERIFYING", "COMPLETING", "REAPED")
    ]
    assert states_of(events, "s:a1") == ["starting", "working", "idle", "working", "idle", "dead"]


async def test_parallel_calls_of_a_function(tmp_path: Path) -> None:
    """Five parallel tool calls are one TOOL_USE state, from the begin of the first call to the end of the last."""

    async def agent(turn: AgentTurn) -> str:
        both = anyio.Event()
        waiting = 0

        async def meet() -> None:
            nonlocal waiting
            waiting += 1
            if waiting == 5:
                both.set()
            await both.wait()

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(turn.call, f"meet {number}", meet)
        return "met"

    async with supervising(tmp_path) as run:
        assert (await (await run.sup.start_session("s", agent=agent)).run("")).text == "met"
    assert states_of(run.events(), "s:t1").count("TOOL_USE") == 1
    assert len(run.transitions("tool_completed", "s:t1")) == 5


async def test_an_error_of_a_function_fails_its_turn(tmp_path: Path) -> None:
    """An exception of an agent function is the reason of the failed turn; the session counts the error and tries
    again."""
    tried = 0

    async def agent(turn: AgentTurn) -> str:
        nonlocal tried
        tried += 1
        await anyio.lowlevel.checkpoint()
        if tried < 3:
            raise RuntimeError(f"not yet ({tried})")
        return "now"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        assert (await session.run("")).text == "now"
        assert data_of(run.row("s")).total_errors == 2
    assert [one.reason.partition(f" ({__file__}, line ")[0] for one in run.transitions("task_failed")] == [
        "RuntimeError: not yet (1)",
        "RuntimeError: not yet (2)",
    ]


async def undefined(turn: AgentTurn) -> str:
    return undefined_name  # type: ignore[name-defined]  # noqa: F821


async def number(turn: AgentTurn) -> int:
    return 3


def synchronous(turn: AgentTurn):  # type: ignore[no-untyped-def]
    return "not awaitable"


async def in_a_group(turn: AgentTurn) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(undefined, turn)


@pytest.mark.parametrize(
    ("agent", "error", "line"),
    [
        (undefined, "NameError: name 'undefined_name' is not defined", 1),
        (number, "TypeError: the agent returned 3 (int); return a str, or None after turn.say()", 0),
        (synchronous, "TypeError: synchronous returned 'not awaitable' (str), which cannot be awaited", 0),
        (in_a_group, "NameError: name 'undefined_name' is not defined", None),
    ],
)
async def test_a_programming_error_fails_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, agent: Callable[..., Any], error: str, line: int | None
) -> None:
    """A programming error of an agent function is tried once. The error of the result names file and line; the result
    has the exception, the log one record, and the transcript the traceback. The session accepts another prompt."""
    async with open_supervisor(tmp_path / "sd", settings=quick_settings()) as sup:
        session = await sup.start_session("s", agent=agent)
        result = await session.run("")
        assert (await session.run("again")).error == result.error
    assert "turn=s:t3" not in caplog.text  # each prompt is tried once
    place = "" if line is None else f", line {agent.__code__.co_firstlineno + line})"
    assert result.error.startswith(error)
    assert f" ({__file__}{place}" in result.error
    assert type(result.exception).__name__ in (error.partition(":")[0], "ExceptionGroup")
    assert [one.levelname for one in caplog.records if error in one.message and "turn=s:t1" in one.message] == ["ERROR"]
    transcript = StateDir.open(tmp_path / "sd").transcript("s").read_text()
    assert error in transcript
    assert (f'File "{__file__}"' in transcript) == (error.startswith("NameError"))


async def test_code_beside_the_package_is_the_agents_own(tmp_path: Path) -> None:
    """The traceback of a file whose path begins with the path of the package, such as ``supervisor_demo.py`` beside
    ``supervisor``, is kept."""
    file = f"{Path(supervisor.__file__).parent}_demo.py"
    names: dict[str, Any] = {}
    exec(compile("async def agent(turn):\n    return undefined_name", file, "exec"), names)
    async with open_supervisor(tmp_path / "sd", settings=quick_settings()) as sup:
        session = await sup.start_session("s", agent=names["agent"])
        result = await session.run("")
    assert result.error == f"NameError: name 'undefined_name' is not defined ({file}, line 2)"
    assert f'File "{file}", line 2' in StateDir.open(tmp_path / "sd").transcript("s").read_text()


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        (3, "agent: 3 is neither the name of a configured agent nor an async function"),
        (Stubborn, "agent: <class .*Stubborn'> is neither the name"),
        (lambda: None, r"cannot be called with one argument \(too many positional arguments\)"),
        ("nobody", "agent: no agent is named 'nobody'; known: scripted"),
    ],
)
async def test_no_agent_is_refused_at_the_start(tmp_path: Path, agent: Any, sentence: str) -> None:
    """``start_session`` raises an exception that names the argument for a value that cannot be an agent."""
    async with supervising(tmp_path) as run:
        with pytest.raises((TypeError, ValueError), match=sentence):
            await run.sup.start_session("s", agent=agent)


def test_no_agent_is_refused_in_a_plan() -> None:
    """A plan whose agent is a function of the wrong arity raises a TypeError that names the agent."""
    with pytest.raises(TypeError, match=r"agents\['a'\]: .* cannot be called with one argument"):
        Plan.model_validate({"agents": {"a": lambda: None}, "tasks": [{"id": "t", "agent": "a", "prompt": ""}]})


async def test_functions_of_every_form_are_agents(tmp_path: Path) -> None:
    """A partial function, a method, an object with ``__call__`` and a function that returns a coroutine are agents."""

    class Agent:
        async def __call__(self, turn: AgentTurn) -> str:
            return f"called for {turn.prompt}"

        async def method(self, turn: AgentTurn) -> str:
            return f"called for {turn.prompt}"

    async def two(word: str, turn: AgentTurn) -> str:
        return f"{word} for {turn.prompt}"

    made = Agent()
    async with supervising(tmp_path) as run:
        for agent in (made, made.method, partial(two, "called"), lambda turn: made(turn)):
            session = await run.sup.start_session("s", agent=agent)
            assert (await session.run("it")).text == "called for it"


async def test_a_programming_error_fails_the_task_of_a_plan(tmp_path: Path) -> None:
    """A programming error of an in-process agent fails its task at once: there is one launch, and the result names file
    and line."""
    task = {"id": "t", "agent": "a", "prompt": ""}
    plan = Plan.model_validate({"agents": {"a": undefined}, "tasks": [task]})
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        result = await run_plan(run.sup, plan)
    assert (result.tasks["t"].outcome, result.tasks["t"].launches) == ("failed", 1)
    assert result.tasks["t"].error.startswith(f"NameError: name 'undefined_name' is not defined ({__file__}, line ")
    assert len(run.transitions("task_failed")) == 1


async def test_an_error_of_a_tool_is_the_functions(tmp_path: Path) -> None:
    """A tool's exception is raised in the agent function, which may continue; the tool call has the outcome failed."""

    async def broken() -> None:
        await anyio.lowlevel.checkpoint()
        raise KeyError("no such thing")

    async def agent(turn: AgentTurn) -> str:
        with pytest.raises(KeyError, match="no such thing"):
            await turn.call("broken", broken)
        return "so what"

    async with supervising(tmp_path) as run:
        assert (await (await run.sup.start_session("s", agent=agent)).run("")).text == "so what"
    [completed] = run.transitions("tool_completed")
    assert (completed.metadata["outcome"], "no such thing" in completed.reason) == ("failed", True)


@pytest.mark.parametrize("where", ["turn", "tool"])
async def test_a_function_that_exits_ends_itself_alone(tmp_path: Path, where: str) -> None:
    """``sys.exit`` in an agent function or a tool fails that turn or call, but ends neither other sessions nor the
    host."""

    async def leave() -> None:
        sys.exit(3)

    async def agent(turn: AgentTurn) -> str:
        if turn.prompt == "stay":
            return "here"
        await (leave() if where == "turn" else turn.call("a tool", leave))
        return "not reached"

    settings = quick_settings(max_total_errors=1, max_consecutive_errors=1)
    async with supervising(tmp_path, settings=settings) as run:
        other = await run.sup.start_session("other", agent=agent)
        session = await run.sup.start_session("s", agent=agent)
        result = await session.run("leave")
        assert (await other.run("stay")).text == "here"
    assert result.outcome == "failed"
    assert isinstance(result.exception, SystemExit if where == "turn" else RuntimeError)
    assert ("SystemExit: it exited with 3" if where == "turn" else "RuntimeError: it exited with 3") in result.error


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("where", ["turn", "tool"])
async def test_an_error_that_cannot_be_said_is_one_all_the_same(tmp_path: Path, where: str) -> None:
    """An exception whose ``__str__`` raises an error itself is reported by its type."""

    async def fail() -> None:
        raise Mute

    async def agent(turn: AgentTurn) -> None:
        await (fail() if where == "turn" else turn.call("a tool", fail))

    async with supervising(tmp_path, settings=quick_settings(max_total_errors=1, max_consecutive_errors=1)) as run:
        result = await (await run.sup.start_session("s", agent=agent)).run("")
    assert f"Mute: (its __str__ raised RuntimeError) ({__file__}, line " in result.error


async def test_a_title_is_text(tmp_path: Path) -> None:
    """A tool call whose title is not a str raises TypeError, before the call is recorded."""

    async def agent(turn: AgentTurn) -> str:
        titles: list[Any] = [5, ["a"], None]
        for title in titles:
            with pytest.raises(TypeError, match=r"title: .* is of type \w+; give a str"):
                await turn.call(title, anyio.sleep, 0)
        return "so what"

    async with supervising(tmp_path) as run:
        assert (await (await run.sup.start_session("s", agent=agent)).run("")).text == "so what"
    assert run.transitions("tool_started") == []


class Outcome(BaseException):
    """Stand-in for an exception that a test framework raises to end a test."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Outcome])
@pytest.mark.parametrize("where", ["turn", "tool"])
async def test_what_is_the_hosts_ends_the_supervisor(tmp_path: Path, where: str, error: type[BaseException]) -> None:
    """A BaseException raised in an agent or a tool, such as KeyboardInterrupt, leaves ``open_supervisor``; the waiting
    request is answered with failed, and the next supervisor recovers."""

    async def leave() -> None:
        raise error

    async def agent(turn: AgentTurn) -> None:
        await (leave() if where == "turn" else turn.call("a tool", leave))

    answers = list[str]()

    async def wait(session: Session) -> None:
        answers.append((await session.run("leave")).outcome)

    caught = list[BaseException]()
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as group:
            try:
                async with open_supervisor(tmp_path / "state", workdir=tmp_path) as sup:
                    group.start_soon(wait, await sup.start_session("s", agent=agent))
                    await anyio.sleep_forever()
            except BaseExceptionGroup as broken:
                caught += [*all_of(broken)]
        assert answers == ["failed"]
        assert [type(one) for one in caught if not isinstance(one, JournalError)] == [error]
        async with open_supervisor(tmp_path / "state", workdir=tmp_path):
            pass
    with JournalReader(StateDir.open(tmp_path / "state").journal) as reader:
        assert [(row.id, row.state) for row in reader.entities() if row.kind == Kind.SESSION] == [("s", "Stopped")]
    assert ": valid (" in stdout_of("validate", tmp_path / "state")


def all_of(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        yield from all_of(one) if isinstance(one, BaseExceptionGroup) else (one,)


async def test_what_utf_8_cannot_hold_is_escaped(tmp_path: Path) -> None:
    """Names with surrogates, which ``os.fsdecode`` returns for Latin-1 file names, are recorded escaped in errors,
    titles, reasons and actors."""
    name, escaped = os.fsdecode(b"caf\xe9"), r"caf\udce9"

    async def broken() -> None:
        await anyio.lowlevel.checkpoint()
        raise LookupError(f"no tool {name}")

    async def agent(turn: AgentTurn) -> str:
        with pytest.raises(LookupError):
            await turn.call(f"title {name}", broken)
        if turn.turn_id == "s:t1":
            raise LookupError(f"no turn {name}")
        return f"answer {name}"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        await session.send("a message", sender=f"sender {name}")
        assert (await session.run("")).text == f"answer {name}"
        await run.sup.abort("s", "session", reason=f"reason {name}", actor=f"actor {name}")
    records = str([msgspec.to_builtins(one) for one in run.events()]).replace("\\\\", "\\")
    assert [
        word for word in ("tool", "title", "turn", "sender", "reason", "actor") if f"{word} {escaped}" not in records
    ] == []


async def test_an_aborted_tool_is_told_to_the_function(tmp_path: Path) -> None:
    """A TOOL abort of a call cancels only that call: its agent function gets the exception ToolAborted and continues,
    and the call has the outcome aborted."""
    cleaned: list[str] = []
    begun = anyio.Event()

    async def forever(name: str) -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            cleaned.append(name)

    async def agent(turn: AgentTurn) -> str:
        with pytest.raises(ToolAborted, match="the call 'wait' was aborted"):
            await turn.call("wait", forever, "first")
        return "so be it"

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "")
        await begun.wait()
        receipt = await run.sup.abort("s:t1:c1", AbortScope.TOOL, reason="enough")
        assert (await asked.result()).text == "so be it"
    assert cleaned == ["first"]
    assert [(node.id, node.outcome, node.rung) for node in receipt.nodes] == [("s:t1:c1", "ended", "cancel")]
    assert [one.metadata["outcome"] for one in run.transitions("tool_completed")] == ["aborted"]


async def test_an_urgent_message_cancels_a_function(tmp_path: Path) -> None:
    """An urgent message cancels the agent function and its tool calls, and the prompt of the next turn has the
    message."""
    cancelled: list[str] = []
    begun = anyio.Event()

    async def forever() -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            cancelled.append("tool")

    async def agent(turn: AgentTurn) -> str:
        if "quick" in turn.prompt:
            return turn.prompt
        try:
            await turn.call("forever", forever)
        finally:
            cancelled.append("agent")
        return "never"

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "dig")
        await begun.wait()
        await session.send("quick, come", urgent=True, sender="ann")
        assert (await asked.result()).text == "dig\n\nUrgent message from ann:\nquick, come"
    assert sorted(cancelled) == ["agent", "tool"]
    assert states_of(run.events(), "s:a1") == ["starting", "working", "idle", "working", "idle", "dead"]
    assert data_of(run.row("s")).total_errors == 0


async def test_a_time_out_cancels_a_function(tmp_path: Path) -> None:
    """A turn of an agent function that exceeds ``turn_timeout_s`` is cancelled; after the second one the session
    fails."""

    async def agent(turn: AgentTurn) -> None:
        await anyio.sleep_forever()

    async with supervising(tmp_path, settings=quick_settings(turn_timeout_s=0.1, max_total_errors=2)) as run:
        session = await run.sup.start_session("s", agent=agent)
        result = await session.run("")
        assert (result.outcome, "turn_timeout_s" in result.error) == ("failed", True)
    assert len(run.transitions("task_failed")) == 2


# ---------------------------------------------------------------------------------------------------- who will not stop
async def test_a_function_that_swallows_its_cancellation_is_abandoned(tmp_path: Path) -> None:
    """A function that ignores its cancellation is abandoned: the receipt says so, the request for the turn ends as
    aborted, and other sessions continue."""
    stubborn = Stubborn()

    async def polite(turn: AgentTurn) -> str:
        await anyio.lowlevel.checkpoint()
        return "fine"

    async with supervising(tmp_path, settings=quick_settings(ladder=STRICT)) as run, anyio.create_task_group() as group:
        shorten_slack(run.sup)
        session = await run.sup.start_session("s", agent=stubborn.work)
        asked = send_prompt(group, session, "")
        await stubborn.begun.wait()
        receipt = await session.abort(reason="enough")
        assert [(node.id, node.outcome, node.rung) for node in receipt.nodes] == [("s", "abandoned", "abandon")]
        assert (await asked.result())[:3] == ("aborted", "enough", "")
        other = await run.sup.start_session("other", agent=polite)
        assert (await other.run("")).text == "fine"
        assert not stubborn.over.is_set()
        stubborn.let_go.set()
    assert stubborn.over.is_set()
    [ended] = run.transitions("Ended", "s")
    assert ended.metadata["rung"] == "abandon"


async def test_a_function_that_swallows_an_interrupt_is_replaced(tmp_path: Path) -> None:
    """An agent function ignores an urgent message's interrupt: after the grace period the session continues with a new
    agent, and the old function's result is ignored."""
    stubborn = Stubborn()

    async def agent(turn: AgentTurn) -> str:
        return turn.prompt if "come" in turn.prompt else await stubborn.work()

    settings = quick_settings(grace_s=0.1, ladder=STRICT)
    async with supervising(tmp_path, settings=settings) as run, anyio.create_task_group() as group:
        shorten_slack(run.sup)
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "dig")
        await stubborn.begun.wait()
        await session.send("come", urgent=True)
        assert "come" in (await asked.result()).text
        assert run.sup.core.registry.state_of("s:a2") == "idle"
        stubborn.let_go.set()
        await stubborn.over.wait()
        assert session.state == "SessionComplete"
    assert len(run.transitions("GraceExceeded")) == 1


async def test_a_tool_that_swallows_its_cancellation_is_abandoned(tmp_path: Path) -> None:
    """A tool that ignores its cancellation is abandoned: its agent continues, and the turn is recorded as degraded."""
    stubborn = Stubborn()

    async def agent(turn: AgentTurn) -> str:
        with pytest.raises(ToolAborted):
            await turn.call("stubborn", stubborn.work)
        return "without it"

    async with supervising(tmp_path, settings=quick_settings(ladder=STRICT)) as run, anyio.create_task_group() as group:
        shorten_slack(run.sup)
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "")
        await stubborn.begun.wait()
        receipt = await run.sup.abort("s:t1:c1", AbortScope.TOOL, reason="enough")
        assert [(node.id, node.outcome) for node in receipt.nodes] == [("s:t1:c1", "abandoned")]
        assert (await asked.result()).text == "without it"
        stubborn.let_go.set()
    [reaped] = run.transitions("agent_reaped", "s:t1")
    assert reaped.metadata["degraded"]


async def test_a_block_that_is_left_waits_for_who_cleans_up(tmp_path: Path) -> None:
    """When an exception leaves the supervisor's block, a running agent function gets the time to clean up."""
    cleaned: list[str] = []
    at_work = anyio.Event()

    async def agent(turn: AgentTurn) -> None:
        try:
            at_work.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                cleaned.append("cleaned")

    async with anyio.create_task_group() as group:
        with pytest.raises(ZeroDivisionError):
            async with supervising(tmp_path) as run:
                session = await run.sup.start_session("s", agent=agent)
                asked = send_prompt(group, session, "")
                await at_work.wait()
                raise ZeroDivisionError
        assert cleaned == ["cleaned"]
        assert (await asked.result()).outcome == "aborted"


# ---------------------------------------------------------------------------------------------------- children
async def test_a_function_delegates(tmp_path: Path) -> None:
    """``AgentTurn.delegate`` starts a child session with the given prompt and returns the outcome of that session."""

    async def agent(turn: AgentTurn) -> str:
        if turn.prompt != "lead":
            return f"{turn.session_id} did {turn.prompt}"
        outcomes = [await turn.delegate("kid", name) for name in ("this", "that")]
        other = await turn.delegate("other", "it", agent=another)
        return f"{[one.text for one in outcomes]} {other.text}"

    async def another(turn: AgentTurn) -> str:
        return f"another did {turn.prompt}"

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=agent)
        assert (await session.run("lead")).text == "['s/kid did this', 's/kid-2 did that'] another did it"
        assert next(row.id for row in run.sup.core.registry.rows() if row.kind == "session" and not row.ended) == "s"
    assert states_of(run.events(), "s/kid")[-2:] == ["SessionComplete", "Stopped"]
    assert len(run.transitions("tool_completed", "s:t1")) == 3


def no_agent(turn: object) -> str:
    return "not async"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"agent": "nobody"}, "agent: no agent is named 'nobody'; known: scripted"),
        ({"agent": no_agent}, "agent: no_agent is no async function"),
        ({"prompt": 3}, "prompt: 3 is of type int; give a str"),
        ({"prompt": "caf\udce9"}, "prompt: character 3 is half a surrogate pair; give valid Unicode text"),
        ({"name": "a b"}, "name: 'a b' cannot be a session's name"),
        ({"cancel_mode": "never"}, "cancel_mode: 'never' is unknown"),
    ],
)
async def test_a_wrong_argument_of_delegate_is_an_exception(
    tmp_path: Path, arguments: dict[str, Any], sentence: str
) -> None:
    """A wrong argument of ``AgentTurn.delegate`` is an exception in the agent function, which names the argument, and
    starts no child session; the turn fails at once."""

    async def agent(turn: AgentTurn) -> None:
        await turn.delegate(**{"name": "kid", "prompt": "look", **arguments})

    async with supervising(tmp_path) as run:
        result = await (await run.sup.start_session("s", agent=agent)).run("lead")
    assert sentence in result.error
    assert isinstance(result.exception, TypeError | InvalidArgument)
    assert len(run.transitions("task_failed")) == 1
    assert {one.entity_id for one in run.events() if one.entity_type == "session"} == {"s"}


async def test_a_delegated_session_that_is_aborted(tmp_path: Path) -> None:
    """A SESSION abort of the child, or a TOOL abort of the delegating call, ends the call as aborted, and the agent
    function continues."""

    async def agent(turn: AgentTurn) -> str:
        if turn.prompt == "wait":
            await anyio.sleep_forever()
        return " ".join([(await turn.delegate(name, "wait")).outcome for name in ("a", "b")])

    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        asked = send_prompt(group, session, "lead")
        await wait_for_record(run.sup, "SessionStarted", "s/a")
        await run.sup.abort("s/a", AbortScope.SESSION, reason="not a")
        await wait_for_record(run.sup, "SessionStarted", "s/b")
        receipt = await run.sup.abort("s:t1:c2", AbortScope.TOOL, reason="not b")
        assert {node.id: node.outcome for node in receipt.nodes} == {"s/b": "ended", "s:t1:c2": "ended"}
        assert (await asked.result()).text == "aborted aborted"
    [stop] = run.transitions("OperatorStop", "s/b")
    assert (stop.abort_reason, stop.abort_id) == ("parent_aborted", receipt.abort_id)


async def deep(turn: AgentTurn) -> str:
    """Delegate as many levels as the prompt's number says; the last agent waits for ever if a word follows the
    number."""
    depth, _, last = turn.prompt.partition(" ")
    if depth == "0":
        if last:
            await anyio.sleep_forever()
        return "bottom"
    outcome = await turn.delegate("d", f"{int(depth) - 1} {last}".strip())
    return f"{outcome.text}."


async def test_fifty_levels_of_delegation(tmp_path: Path) -> None:
    """Fifty levels of delegation complete, and the text of the deepest agent passes through all of them."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("d", agent=deep)
        assert (await session.run("50")).text == "bottom" + 50 * "."
    assert len([one for one in run.store.entities.values() if one.kind == "session"]) == 51


async def test_an_abort_fifty_levels_deep(tmp_path: Path) -> None:
    """A SESSION abort of the root session ends all fifty levels of child sessions, the deepest first."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("d", agent=deep)
        asked = send_prompt(group, session, "50 wait")
        await wait_for_record(run.sup, "SessionStarted", "/".join(51 * "d"))
        receipt = await session.abort(reason="too deep")
        assert (await asked.result()).outcome == "aborted"
    assert [node.id.count("/") for node in receipt.nodes] == list(range(50, -1, -1))
    assert {node.outcome for node in receipt.nodes} == {"ended"}
    assert [one.entity_id.count("/") for one in run.transitions("Ended")] == list(range(50, -1, -1))


# ------------------------------------------------------------------------------------------- mistakes of the host
async def here(turn: AgentTurn) -> str:
    return "here"


MISTAKES: dict[str, Callable[[Supervisor, Session, Any], Awaitable[Any]]] = {
    "sender": lambda sup, session, value: session.send("x", sender=value),
    "text": lambda sup, session, value: session.send(value),
    "prompt": lambda sup, session, value: session.run(value),
    "reason": lambda sup, session, value: session.abort(reason=value),
    "actor": lambda sup, session, value: sup.abort(session.id, "session", actor=value),
    "plan": lambda sup, session, value: session.abort(plan_id=value),
    "close": lambda sup, session, value: session.close(value),
    "stop": lambda sup, session, value: sup.stop(actor=value),
    "abort_all": lambda sup, session, value: sup.core.shutdown.abort_all(value),
    "name": lambda sup, session, value: sup.start_session(value, agent=here),
    "policy": lambda sup, session, value: sup.start_session("x", agent=here, policy=value),
    "budget": lambda sup, session, value: sup.start_session("x", agent=here, budget=value),
    "within": lambda sup, session, value: sup.start_session("x", agent=here, within=value),
    "cause": lambda sup, session, value: sup.core.session_factory.start("x", agent=here, cause=value),
    "directory": lambda sup, session, value: sup.start_session("x", agent=here, directory=value),
}


@pytest.mark.parametrize("value", [5, b"x"], ids=["number", "bytes"])
@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_value_of_another_type_harms_nobody(tmp_path: Path, mistake: str, value: Any) -> None:
    """An argument of a wrong type raises TypeError in the called function, and the session continues."""

    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent=here)
        wanted = r"give an? \w+( or a mapping of its fields)?$"
        with pytest.raises(TypeError, match=rf"{value!r} is of type {type(value).__name__}; {wanted}"):
            await MISTAKES[mistake](run.sup, session, value)
        assert (await session.run("")).text == "here"
    assert run.sup.failure is None
