"""Whole sessions with real agents: prompts, messages, interrupts, errors and deadlines, on asyncio and trio.

Assertions are about the journal and about processes, never about durations, except that a delay was long enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from supervisor import AgentTurn
from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.memory import MemoryStore
from supervisor.lifecycles.types import NoSuchEntity
from supervisor.plans import AgentConfig
from supervisor.runtime.entity import Refused
from tests.support import (
    FrozenJournal,
    Gate,
    agent_pids,
    data_of,
    quick_settings,
    send_prompt,
    states_of,
    supervising,
    wait_for_exit,
    wait_for_record,
)

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]


@pytest.fixture
def gate(tmp_path: Path, nothing_left: None) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.close()


# ---------------------------------------------------------------------------------------------------- prompts
async def test_a_turn_passes_through_the_states_of_the_spec(tmp_path: Path) -> None:
    """In a prompt with a tool call, session, turn and agent pass through the states of their specs, in order."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        assert (await session.run("@think hm\n@say hello\n@run echo done"))[:3] == ("completed", "", "hello\ndone\n")
        assert session.state == "SessionComplete"
        assert run.sup.core.registry.state_of("s:a1") == "idle"
    events = run.events()
    assert states_of(events, "s") == [
        *("Initializing", "BuildingPrompt", "Spawning", "Running", "SessionComplete", "Stopped")
    ]
    assert states_of(events, "s:t1") == [
        *("IDLE", "CLAIMING", "SPAWNING", "RUNNING", "TOOL_USE", "RUNNING", "VERIFYING", "COMPLETING", "REAPED")
    ]
    assert states_of(events, "s:a1") == ["starting", "working", "idle", "dead"]


async def test_prompts_of_a_session_share_an_agent(tmp_path: Path) -> None:
    """Each prompt of a session is a turn of its own, counted by session_seq; all turns use the same agent process."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        for number in range(3):
            assert (await session.run(f"@say {number}")).text == f"{number}\n"
            assert data_of(run.row("s")).session_seq == number + 1
        assert data_of(run.row("s")).incarnation == 3
    assert len(agent_pids(run.events(), "s")) == 1
    assert states_of(run.events(), "s:a1") == ["starting", *["working", "idle"] * 3, "dead"]
    assert [one.metadata["seq"] for one in run.transitions("SessionStarted", "s")] == [1, 2, 3]


async def test_prompts_queue_up(tmp_path: Path) -> None:
    """Prompts that are sent during a turn are handled one after the other, each with its own result."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        first = send_prompt(group, session, "@wait go\n@say first")
        await wait_for_record(run.sup, "SessionStarted", "s")
        others = [send_prompt(group, session, f"@say {name}") for name in ("second", "third")]
        await wait_for_record(run.sup, "TurnRequested", "s", number=3)
        assert not first.answered
        (tmp_path / "go").touch()
        texts = [(await one.result()).text for one in (first, *others)]
        assert texts == ["first\n", "second\n", "third\n"]
    claimed = [one.entity_id for one in run.transitions("task_claimed")]
    assert claimed == ["s:t1", "s:t2", "s:t3"]


async def test_a_prompt_to_a_closed_session_is_refused(tmp_path: Path) -> None:
    """After its end a session refuses prompts, messages and child sessions."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        await session.close()
        for attempt in (session.run("@say hi"), session.send("hi"), session.start_child("kid")):
            with pytest.raises((NoSuchEntity, Refused)):
                await attempt
        await session.close()
    assert run.row("s").state == "Stopped"


async def test_a_command_is_an_agent(tmp_path: Path) -> None:
    """With the adapter ``command`` the output of a program is the result, its exit status decides success, and each
    prompt starts another process."""
    agents = {"sh": AgentConfig(adapter="command", command=("sh", "-c", "read line; echo got $line; exit $line"))}
    async with supervising(tmp_path, agents=agents, settings=quick_settings(max_total_errors=1)) as run:
        session = await run.sup.start_session("s", agent="sh")
        assert (await session.run("0"))[:3] == ("completed", "", "got 0\n")
        assert (await session.run("0"))[:3] == ("completed", "", "got 0\n")
        failed = await session.run("7")
        assert failed.outcome == "failed"
        assert "exit status 7" in failed.error
    assert len(set(agent_pids(run.events(), "s"))) == 3
    [exited] = run.transitions("agent_exited", "s:a3")
    assert exited.metadata["status"] == 7


# ---------------------------------------------------------------------------------------------------- messages
async def test_a_message_waits_for_the_next_prompt(tmp_path: Path) -> None:
    """A normal message that is sent during a turn does not change that turn, and is part of the next prompt only."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        first = send_prompt(group, session, "@wait go\n@say first")
        await wait_for_record(run.sup, "SessionStarted", "s")
        await session.send("@say and the message", sender="ann")
        assert session.state == "Running"
        (tmp_path / "go").touch()
        assert (await first.result()).text == "first\n"
        assert (await session.run("@say second")).text == "second\nand the message\n"
        assert (await session.run("@say third")).text == "third\n"
    prompts = [one.metadata["prompt"] for one in run.transitions("PromptReady", "s")]
    assert prompts[1] == "@say second\n\nMessage from ann:\n@say and the message"


async def test_an_urgent_message_interrupts(tmp_path: Path) -> None:
    """An urgent message during a turn leads to Interrupting and a new turn in the same agent process; no error is
    counted."""
    async with supervising(tmp_path) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@hang")
        await wait_for_record(run.sup, "SessionStarted", "s")
        await session.send("stop that", urgent=True)
        assert (await asked.result())[:3] == ("completed", "", "understood: from host: stop that\n")
        assert (data_of(run.row("s")).total_errors, data_of(run.row("s")).inbox) == (0, ())
    events = run.events()
    assert states_of(events, "s") == [
        *("Initializing", "BuildingPrompt", "Spawning", "Running", "Interrupting"),
        *("BuildingPrompt", "Spawning", "Running", "SessionComplete", "Stopped"),
    ]
    assert states_of(events, "s:t1")[-2:] == ["FAILED", "REAPED"]
    [failed] = run.transitions("task_failed", "s:t1")
    assert (failed.abort_reason, failed.transition_reason) == ("user_interrupt", "aborted")
    assert len(agent_pids(events, "s")) == 1


async def test_an_agent_that_ignores_an_interrupt_is_replaced(tmp_path: Path) -> None:
    """An agent that ignores the interrupt for an urgent message is killed after its grace period; a new agent process
    gets the message."""
    async with supervising(tmp_path, settings=quick_settings(grace_s=0.1)) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@deaf\n@run true\n@hang")
        await wait_for_record(run.sup, "tool_completed", "s:t1")
        await session.send("stop that", urgent=True)
        assert (await asked.result()).text == "understood: from host: stop that\n"
        first, second = agent_pids(run.events(), "s")
        await wait_for_exit(first)
        assert run.row("s:a2").state in ("working", "idle")
    assert first != second
    assert len(run.transitions("GraceExceeded", "s")) == 1
    assert data_of(run.row("s")).total_errors == 0


async def test_an_urgent_message_before_the_start_is_latched(tmp_path: Path, gate: Gate) -> None:
    """An urgent message in Spawning waits until the agent is ready, and then interrupts before the prompt is sent."""
    async with supervising(tmp_path, agents={"slow": gate.agent()}) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="slow")
        asked = send_prompt(group, session, "@write wrong x\n@hang")
        await wait_for_record(run.sup, "AgentLaunched", "s")
        await session.send("something else", urgent=True)
        assert session.state == "Spawning"
        assert data_of(run.row("s")).urgent_latched
        gate.open()
        assert (await asked.result()).text == "understood: from host: something else\n"
    assert not (tmp_path / "wrong").exists()
    assert states_of(run.events(), "s")[2:6] == ["Spawning", "Running", "Interrupting", "BuildingPrompt"]
    assert len(agent_pids(run.events(), "s")) == 1


async def test_an_urgent_message_at_the_very_start_is_not_lost(tmp_path: Path) -> None:
    """An urgent message at any moment of a session's start is delivered, and no grace period is exceeded."""
    async with supervising(tmp_path) as run:

        async def one(number: int) -> None:
            session = await run.sup.start_session(f"s{number}", agent=echo)
            async with anyio.create_task_group() as group:
                asked = send_prompt(group, session, "work")
                await wait_for_record(run.sup, "agent_ready", f"s{number}:a1")
                for _ in range(number):
                    await anyio.lowlevel.checkpoint()
                await session.send("a word", urgent=True)
                result = await asked.result()
                assert result.outcome == "completed"
                if "a word" not in result.text:  # it came after the end
                    assert "a word" in (await session.run("again")).text

        async def echo(turn: object) -> str:
            await anyio.lowlevel.checkpoint()
            return turn.prompt  # type: ignore[attr-defined]

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(one, number)
    assert run.transitions("GraceExceeded") == []


async def test_an_urgent_message_overtakes_a_slow_disk(tmp_path: Path) -> None:
    """When an urgent message comes while the start of the turn is written to the disk, the prompt without the message
    is not sent."""

    async with supervising(tmp_path, freeze_at="SessionStarted") as run, anyio.create_task_group() as group:
        disk = run.disk
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@write wrong x\n@hang")
        await disk.frozen.wait()
        assert session.state == "Running"
        group.start_soon(partial(session.send, "something else", urgent=True))
        while session.state == "Running":
            await anyio.lowlevel.checkpoint()
        disk.thaw.set()
        assert (await asked.result()).text == "understood: from host: something else\n"
        assert data_of(run.row("s")).total_errors == 0
    assert not (tmp_path / "wrong").exists()
    assert run.transitions("GraceExceeded") == []
    assert states_of(run.events(), "s:a1") == ["starting", "working", "idle", "working", "idle", "dead"]


async def test_a_message_that_comes_too_late_for_a_prompt_is_in_the_next(tmp_path: Path) -> None:
    """A message that comes while a prompt is written to the disk is part of the next prompt."""

    async with supervising(tmp_path, freeze_at="PromptReady") as run, anyio.create_task_group() as group:
        disk = run.disk
        session = await run.sup.start_session("s", agent="scripted")
        first = send_prompt(group, session, "@say first")
        await disk.frozen.wait()
        group.start_soon(session.send, "@say late")
        while not run.sup.core.registry.entity("s").data.inbox:
            await anyio.lowlevel.checkpoint()
        disk.thaw.set()
        assert (await first.result()).text == "first\n"
        assert (await session.run("@say second")).text == "second\nlate\n"


async def test_an_urgent_message_at_rest_waits(tmp_path: Path) -> None:
    """An urgent message that is sent between two prompts is part of the next prompt, and interrupts nothing."""
    async with supervising(tmp_path) as run:
        session = await run.sup.start_session("s", agent="scripted")
        await session.run("@say one")
        await session.send("mind the step", urgent=True)
        assert session.state == "SessionComplete"
        assert (await session.run("@say two")).text == "understood: from host: mind the step\n"
    assert "Interrupting" not in states_of(run.events(), "s")


# ---------------------------------------------------------------------------------------------------- errors
async def test_a_crash_is_counted_and_retried(tmp_path: Path) -> None:
    """A crash of the agent counts as an error; after the backoff a new process completes the prompt, and the count of
    consecutive errors is reset."""
    async with supervising(tmp_path, settings=quick_settings(backoff_base_ms=40, backoff_cap_ms=1000)) as run:
        session = await run.sup.start_session("s", agent="scripted")
        assert (await session.run("@crash-once crashed 3\n@say fine"))[:3] == ("completed", "", "fine\n")
        data = data_of(run.row("s"))
        assert (data.consecutive_errors, data.total_errors, data.session_seq) == (0, 1, 1)
    events = run.events()
    assert states_of(events, "s") == [
        *("Initializing", "BuildingPrompt", "Spawning", "Running", "CoolingDown"),
        *("BuildingPrompt", "Spawning", "Running", "SessionComplete", "Stopped"),
    ]
    [failed, _], [elapsed] = run.transitions("SessionExited", "s"), run.transitions("BackoffElapsed", "s")
    assert failed.reason == "the agent exited with status 3 in the middle of a turn"
    assert elapsed.monotonic_s - failed.monotonic_s >= 0.04
    assert [one.metadata["status"] for one in run.transitions("agent_exited", "s:a1")] == [3]
    assert len(set(agent_pids(events, "s"))) == 2


async def test_too_many_errors_stop_a_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the limit of errors the session stops without another launch, writes one log line, and its prompt fails with
    the reason."""
    async with supervising(tmp_path, settings=quick_settings(max_total_errors=3)) as run:
        session = await run.sup.start_session("s", agent="scripted")
        result = await session.run("@exit 4")
        assert result.outcome == "failed"
        assert result.error.startswith("too many errors (1 in a row, 3 in all): the agent exited with status 4")
        with pytest.raises(NoSuchEntity):
            await session.run("@say hi")
    assert [one.message.count("session=s ") for one in caplog.records if "session gave up" in one.message] == [1]
    assert len(agent_pids(run.events(), "s")) == 3
    data = data_of(run.row("s"))
    assert (data.total_errors, data.outcome, run.row("s").state) == (3, "failed", "Stopped")


async def test_an_agent_that_keeps_failing_is_given_up(tmp_path: Path) -> None:
    """A session with more failures after a start than ``restarts_max`` allows within a period ends."""
    async with supervising(tmp_path, settings=quick_settings(restarts_max=1)) as run:
        session = await run.sup.start_session("s", agent="scripted")
        result = await session.run("@exit 4")
    assert result.outcome == "failed"
    assert result.error.startswith("restart limit exceeded (2 failures within 60 s): the agent exited with status 4")
    assert len(agent_pids(run.events(), "s")) == 2


async def test_a_drain_does_not_wait_for_a_backoff(tmp_path: Path) -> None:
    """When the supervisor is stopped, a session in its backoff ends at once, and its prompt fails with the last
    error."""
    settings = quick_settings(backoff_base_ms=60_000, backoff_cap_ms=60_000)
    async with supervising(tmp_path, settings=settings) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent="scripted")
        asked = send_prompt(group, session, "@exit 4")
        await wait_for_record(run.sup, "SessionExited", "s")
        await run.sup.stop(actor="test")
        result = await asked.result()
    assert result.outcome == "failed"
    assert result.error.startswith("no further try while draining: the agent exited with status 4")
    assert len(agent_pids(run.events(), "s")) == 1


async def test_errors_in_a_row_stop_a_session(tmp_path: Path) -> None:
    """An agent that exits before it is ready is started max_consecutive_errors times, with growing delays."""
    agents = {"dud": AgentConfig(adapter="acp", command=("false",))}
    settings = quick_settings(max_consecutive_errors=3, backoff_base_ms=10, backoff_cap_ms=1000)
    async with supervising(tmp_path, agents=agents, settings=settings) as run:
        session = await run.sup.start_session("s", agent="dud")
        result = await session.run("hello")
        assert result.outcome == "failed"
        assert "(3 in a row, 3 in all): the agent exited with status 1 before it was ready" in result.error
    failed, elapsed = run.transitions("SessionExited", "s"), run.transitions("BackoffElapsed", "s")
    waits_s = [after.monotonic_s - before.monotonic_s for before, after in zip(failed, elapsed, strict=False)]
    assert [wait_s >= least_s for wait_s, least_s in zip(waits_s, (0.01, 0.02), strict=True)] == [True, True]


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    """An agent whose program does not exist fails its session at once with an error that names the program; no process
    is started."""
    agents = {"ghost": AgentConfig(adapter="command", command=("/no/such/program",))}
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="ghost")
        result = await session.run("hello")
        assert result.outcome == "failed"
        fix = "there is no such file; install it, or correct argv[0]"
        assert result.error == f"cannot start '/no/such/program': {fix}"
    assert agent_pids(run.events(), "s") == []
    assert states_of(run.events(), "s") == ["Initializing", "BuildingPrompt", "Spawning", "Stopped"]
    assert states_of(run.events(), "s:a1") == ["starting", "dead"]
    assert states_of(run.events(), "s:t1") == ["IDLE", "CLAIMING", "FAILED", "REAPED"]


async def test_an_agent_that_refuses_the_protocol_is_launched_once(tmp_path: Path) -> None:
    """An agent that does not know the handshake of its protocol fails its session at once: another launch would not
    know it either."""
    agents = {"echo": AgentConfig(adapter="acp", command=("cat",))}
    async with supervising(tmp_path, agents=agents) as run:
        result = await (await run.sup.start_session("s", agent="echo")).run("hello")
    assert result.error == "the agent refused to open a session: method not found: initialize (code -32601)"
    assert len(agent_pids(run.events(), "s")) == 1


@pytest.mark.parametrize(
    ("adapter", "error"),
    [
        ("acp", "the agent exited with status 127 before it was ready; its last words: "),
        ("command", "exit status 127; its last words: "),
    ],
)
async def test_a_program_missing_behind_a_shell_is_not_tried_again(tmp_path: Path, adapter: str, error: str) -> None:
    """An agent that exits with status 127 (no such program) is launched once; the error has its last line."""
    agents = {"ghost": AgentConfig(adapter=adapter, command=("sh", "-c", "no_such_program"))}
    async with supervising(tmp_path, agents=agents) as run:
        result = await (await run.sup.start_session("s", agent="ghost")).run("hello")
    assert result.error.startswith(error)
    assert "no_such_program" in result.error
    assert len(agent_pids(run.events(), "s")) == 1


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """An agent whose directory does not exist fails its session with an error that names the directory, without a
    retry."""
    agents = {"lost": AgentConfig(adapter="command", command=("true",), cwd="/no/such/directory")}
    async with supervising(tmp_path, agents=agents) as run:
        session = await run.sup.start_session("s", agent="lost")
        result = await session.run("hello")
        assert result.outcome == "failed"
        assert "/no/such/directory" in result.error
    assert states_of(run.events(), "s") == ["Initializing", "Stopped"]


async def test_an_agent_that_is_not_ready_in_time_is_replaced(tmp_path: Path) -> None:
    """An agent that is not ready by the spawn deadline is killed, an error is counted, and another process is
    started."""
    agents = {"mute": AgentConfig(adapter="acp", command=("sleep", "1000"))}
    settings = quick_settings(spawn_deadline_s=2.0, max_consecutive_errors=2)
    async with supervising(tmp_path, agents=agents, settings=settings) as run:
        session = await run.sup.start_session("s", agent="mute")
        result = await session.run("hello")
        assert "(2 in a row, 2 in all): the agent was not ready in time" in result.error
        pids = agent_pids(run.events(), "s")
        await wait_for_exit(*pids)
    assert len(set(pids)) == 2
    assert [one.metadata["verdict"]["exit"] for one in run.transitions("SessionExited", "s")] == ["Timeout"] * 2


async def test_a_turn_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    """An agent that stops when its turn times out is prompted again in the same process."""
    settings = quick_settings(turn_timeout_s=0.2, max_total_errors=2)
    async with supervising(tmp_path, settings=settings) as run:
        session = await run.sup.start_session("s", agent="scripted")
        result = await session.run("@hang")
        assert (result.outcome, "(1 in a row, 2 in all)" in result.error) == ("failed", True)
        assert "longer than 0.2 s" in result.error
    assert [one.abort_reason for one in run.transitions("task_failed")] == ["timeout"] * 2
    assert len(agent_pids(run.events(), "s")) == 1


async def test_a_deaf_agent_that_takes_too_long_is_replaced(tmp_path: Path) -> None:
    """An agent that does not stop when its turn times out is killed, and the next attempt runs in a new process."""
    settings = quick_settings(turn_timeout_s=0.5, grace_s=0.1, ladder={"request_s": 0.1})
    async with supervising(tmp_path, settings=settings) as run:
        session = await run.sup.start_session("s", agent="scripted")
        prompt = "@run test -e tried && echo again || touch tried\n@deaf\n@wait never"
        async with anyio.create_task_group() as group:
            asked = send_prompt(group, session, prompt)
            await wait_for_record(run.sup, "task_failed", "s:t1")
            first = agent_pids(run.events(), "s")[0]
            await wait_for_exit(first)
            (tmp_path / "never").touch()
            assert (await asked.result()).text == "again\n"
    assert len(set(agent_pids(run.events(), "s"))) == 2


async def test_a_session_whose_actor_crashes_ends_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A crash of a session's actor by a bug of the runtime ends the session: its prompt fails, its agent's process
    ends, other sessions go on."""
    agents = {"scripted": AgentConfig(adapter="scripted")}
    # Not `supervising`: that would rightly complain that the session's log has no last record.
    async with (
        open_supervisor(agents=agents, settings=quick_settings(), workdir=tmp_path) as sup,
        anyio.create_task_group() as group,
    ):
        broken = await sup.start_session("broken", agent="scripted")
        other = await sup.start_session("other", agent="scripted")
        asked = send_prompt(group, broken, "@hang")
        await wait_for_record(sup, "SessionStarted", "broken")
        sup.core.registry.entity("broken").data = SimpleNamespace(inbox=(), ended=False, current=None)
        with pytest.raises(TypeError):
            await broken.send("hello")
        result = await asked.result()
        assert result.outcome == "failed"
        assert result.error.startswith("the session's actor crashed: TypeError")
        await broken.close()
        assert (await other.run("@say hi")).text == "hi\n"
        pids = agent_pids(await sup.core.journal.events(), "broken")
    assert len(pids) == 1
    await wait_for_exit(*pids)
    assert [one.message.count("actor=broken ") for one in caplog.records if "an actor crashed" in one.message] == [1]


# ---------------------------------------------------------------------------------------------------- push back
async def test_waiting_messages_have_a_limit(tmp_path: Path) -> None:
    """A message to a session with ``waiting_max`` waiting messages is refused with an error that names the limit; after
    the next prompt there is room again."""
    async with supervising(tmp_path, settings=quick_settings(waiting_max=2)) as run:
        session = await run.sup.start_session("s", agent="scripted")
        await session.send("one")
        await session.send("two", urgent=True)
        for urgent in (False, True):
            with pytest.raises(Refused, match=r"s has 2 messages waiting already \(limits.waiting_max\)"):
                await session.send("three", urgent=urgent)
        assert (await session.run("@say done")).ok
        await session.send("there is room again")
    assert not any(event.outcome == "refused" for event in run.events())


async def test_waiting_prompts_have_a_limit(tmp_path: Path) -> None:
    """A prompt to a session with ``waiting_max`` waiting prompts is refused; the waiting prompts are handled in
    order."""
    begun, go = anyio.Event(), anyio.Event()

    async def agent(turn: AgentTurn) -> str:
        begun.set()
        await go.wait()
        return turn.prompt

    async with supervising(tmp_path, settings=quick_settings(waiting_max=2)) as run, anyio.create_task_group() as group:
        session = await run.sup.start_session("s", agent=agent)
        first = send_prompt(group, session, "first")
        await begun.wait()
        waiting = [send_prompt(group, session, word) for word in ("a", "b")]
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Refused, match=r"s has 2 prompts waiting already"):
            await session.run("c")
        go.set()
        assert [(await one.result()).text for one in (first, *waiting)] == ["first", "a", "b"]


async def test_limits_count_undurable_requests_once(tmp_path: Path) -> None:
    """While nothing becomes durable, a session accepts exactly ``waiting_max`` prompts and messages and refuses
    more."""
    begun, go = anyio.Event(), anyio.Event()
    journals: list[FrozenJournal] = []

    async def agent(turn: AgentTurn) -> str:
        begun.set()
        await go.wait()
        return "done"

    def slow(store: MemoryStore) -> FrozenJournal:
        journals.append(FrozenJournal(store))
        return journals[-1]

    async with (
        supervising(tmp_path, settings=quick_settings(waiting_max=10), journal=slow) as run,
        anyio.create_task_group() as group,
    ):
        session = await run.sup.start_session("s", agent=agent)
        first = send_prompt(group, session, "first")
        await begun.wait()
        journals[-1].freeze()
        waiting = []
        try:
            for number in range(10):
                waiting.append(send_prompt(group, session, f"prompt {number}"))
                group.start_soon(session.send, f"message {number}")
                await anyio.wait_all_tasks_blocked()
            with pytest.raises(Refused, match="s has 10 prompts waiting already"):
                await session.run("one more")
            with pytest.raises(Refused, match="s has 10 messages waiting already"):
                await session.send("one more")
        finally:
            journals[-1].thaw.set()
            go.set()
        assert all([(await one.result()).ok for one in (first, *waiting)])
