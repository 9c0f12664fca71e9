"""Cells of the table of results: each is a requirement on every agent, with the function that checks it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
import msgspec

from supervisor import AbortScope, LifecycleEvent, Session, Settings, Supervisor, TurnResult, open_supervisor
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.mock_model.server import StubModel
from supervisor.processes.shim import descendants, send
from tests.real_agents.place import Broken, Place

ROOT = Path(__file__).parent.parent.parent
GRACE_S = 10.0
LADDER = {"ladder": {"request_s": 3.0, "cancel_s": 2.0, "terminate_s": 2.0, "kill_s": 1.0}}
"""Budgets of the termination stages, shorter than the default, since each cell waits for the stages."""
GONE_S = 10.0
"""Seconds for which processes of a cell may still be alive after the supervisor has ended."""
ONE_TRY = {"max_consecutive_errors": 1, "max_total_errors": 1, "grace_s": GRACE_S, "spawn_deadline_s": 60}


class Cell(NamedTuple):
    """Column of the table of results: its title, and a function that returns a text for the table or raises Broken."""

    title: str
    look: Callable[[Place, StubModel], Awaitable[str]]


@asynccontextmanager
async def _supervised(place: Place, **settings: object) -> AsyncIterator[Supervisor]:
    chosen = Settings.model_validate({"limits": ONE_TRY, "policy": LADDER, **settings})
    async with open_supervisor(place.state, agents={"it": place.config()}, settings=chosen, workdir=place.work) as sup:
        yield sup


def _records(place: Place) -> list[LifecycleEvent]:
    with JournalReader(StateDir(place.state).journal) as journal:
        return list(journal.events())


def _begun(place: Place) -> bool:
    """Return whether the start of a tool call is recorded."""
    return any(one.event == "tool_started" for one in _records(place))


def _ended_well(result: TurnResult, words: str = "") -> None:
    if not result.ok:
        raise Broken(f"the turn {result.outcome}: {result.error}")
    if words not in result.text:
        raise Broken(f"it said {result.text[-200:]!r}, and not {words!r}")


async def _none_left(place: Place) -> None:
    """Check that no process of a cell is alive after its supervisor has ended."""
    await place.until(lambda: not place.processes(), "processes are left", GONE_S)


# ------------------------------------------------------------------------------------------------- at work
async def _turn(place: Place, stub: StubModel) -> str:
    """Check that a turn in which the agent calls its own tool completes, and return the duration."""
    async with _supervised(place) as sup:
        session = await sup.start_session("turn", agent="it")
        began_s = time.perf_counter()
        result = await session.run("RUN[[echo made > made.txt]] SAY[[all done]]")
        took_s = time.perf_counter() - began_s
    _ended_well(result, "all done")
    if not (place.work / "made.txt").exists():
        raise Broken("the tool did not run: there is no made.txt")
    if not _begun(place):
        raise Broken("the call is not in the journal")
    if not any(seen.results for seen in stub.requests):
        raise Broken("the tool's result never came to the model")
    await _none_left(place)
    return f"{took_s:.1f} s"


@asynccontextmanager
async def _at_a_tool(place: Place) -> AsyncIterator[tuple[Session, Callable[[], Awaitable[TurnResult]]]]:
    """Run a session whose tool hangs; yield the session and a function that waits for the result of the turn."""
    results: list[TurnResult] = []
    ended = anyio.Event()

    async def run() -> None:
        results.append(await session.run(f"RUN[[{place.once}]]"))
        ended.set()

    async def result() -> TurnResult:
        await ended.wait()
        return results[0]

    async with _supervised(place) as sup, anyio.create_task_group() as group:
        session = await sup.start_session("tool", agent="it")
        group.start_soon(run)
        await place.until(lambda: bool(place.sleepers()), "the tool runs")
        await place.until(lambda: _begun(place), "the call is known")
        yield session, result


async def _interrupt(place: Place, stub: StubModel) -> str:
    """Check that an urgent message ends the turn and the hanging tool within the grace period, and that the agent acts
    on the message."""
    async with _at_a_tool(place) as (session, result):
        began_s = time.perf_counter()
        await session.send("SAY[[heard you]]", urgent=True)
        answer = await result()
        took_s = time.perf_counter() - began_s
        _ended_well(answer, "heard you")
        await place.until(lambda: not place.sleepers(), "the tool is still there", 2.0)
    if took_s > GRACE_S:
        raise Broken(f"it took {took_s:.1f} s, and the grace is {GRACE_S:g} s")
    await _none_left(place)
    return f"{took_s:.1f} s"


async def _abort_tool(place: Place, stub: StubModel) -> str:
    """Check that an abort of a call ends the processes of the call, but not the session."""
    async with _at_a_tool(place) as (session, result):
        receipt = await session.abort(AbortScope.TOOL, reason="this call")
        if receipt.already_ended or receipt.survivors:
            raise Broken(f"the receipt says {receipt}")
        await place.until(lambda: not place.sleepers(), "the tool is still there", 2.0)
        await result()
        _ended_well(await session.run("SAY[[still here]]"), "still here")
    await _none_left(place)
    went_on = any(one.event == "task_completed" and one.entity_id == "tool:t1" for one in _records(place))
    return "turn went on" if went_on else "turn interrupted"


# ------------------------------------------------------------------------------------------------- model trouble
async def _silent(place: Place, stub: StubModel) -> str:
    """Check that a turn whose model sends nothing ends at the supervisor's time-out."""
    async with _supervised(place, limits={**ONE_TRY, "turn_timeout_s": 5}) as sup:
        session = await sup.start_session("silent", agent="it")
        result = await session.run("HANG")
    if result.ok:
        raise Broken(f"the turn {result.outcome}: {result.text[-200:]!r}")
    reasons = {str(one.abort_reason) for one in _records(place) if one.abort_reason}
    if "timeout" not in reasons:
        raise Broken(f"the reasons are {sorted(reasons)}, not timeout; the turn: {result.error}")
    await _none_left(place)
    return "timeout"


def _trouble(prompt: str, *expected: str) -> Callable[[Place, StubModel], Awaitable[str]]:
    async def look(place: Place, stub: StubModel) -> str:
        trouble = {"retries_max": 2}
        async with _supervised(place, model_trouble=trouble) as sup:
            session = await sup.start_session("trouble", agent="it")
            result = await session.run(prompt)
        if result.ok:
            raise Broken(f"it was taken for a success: {result.text[-200:]!r}")
        problems = _problems(_records(place))
        if not problems & set(expected):
            raise Broken(f"the reasons are {sorted(problems) or 'none'}; the turn: {result.error[:300]}")
        await _none_left(place)
        return f"{'/'.join(sorted(problems))}, {len(stub.requests)} requests"

    return look


def _problems(records: list[LifecycleEvent]) -> set[str]:
    """Return the model problems that a journal names as reasons of failed turns."""
    found: set[str] = set()
    for one in records:
        verdict = one.metadata.get("verdict", {})
        if one.event == "task_failed" and one.abort_reason == "provider_error" and verdict.get("model"):
            found.add(verdict["model"]["problem"])
    return found


# ------------------------------------------------------------------------------------------------- ends
async def _killed(place: Place, stub: StubModel) -> str:
    """Kill supervisor and agent while a tool runs, and check that the next supervisor resumes the conversation."""
    await anyio.to_thread.run_sync(_kill_a_host, place)
    before = len(stub.requests)
    async with _supervised(place) as sup:
        sessions = sup.sessions()
        if [one.id for one in sessions] != ["killed"]:
            raise Broken(f"the sessions that go on are {[one.id for one in sessions]}")
        result = await sessions[0].result()
    if result is None:
        raise Broken("its prompt was forgotten")
    _ended_well(result, "gone on")
    after = stub.requests[before:]
    if not any(one.messages > stub.requests[0].messages for one in after):
        raise Broken("the conversation began anew: what was said before is not in it")
    await _none_left(place)
    return "resumed"


def _kill_a_host(place: Place) -> None:
    command = [sys.executable, "-m", "tests.real_agents.host"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as host:
        try:
            _kill_at_its_tool(place, host)
        finally:
            host.kill()


def _kill_at_its_tool(place: Place, host: subprocess.Popen[bytes]) -> None:
    assert host.stdin is not None
    assert host.stdout is not None
    host.stdin.write(msgspec.json.encode(place))
    host.stdin.close()
    said = host.stdout.readline().decode().strip()
    if said != "completed":
        raise Broken(f"the first turn: {said or 'the host ended'}")
    anyio.run(place.until, lambda: bool(place.sleepers()), "the tool runs")
    pids = {host.pid, *descendants(host.pid), *place.processes()}
    send(pids, signal.SIGSTOP)
    send(pids, signal.SIGKILL)


async def _daemon(place: Place, stub: StubModel) -> str:
    """Check that a daemon which a tool starts, in a process session of its own and ignoring signals, does not outlive
    its agent's session.

    A daemon of a command that the supervisor runs for the agent ends with that command.
    """
    deaf = f'trap "" TERM HUP INT; touch up; sleep {place.seconds}'
    daemon = f"(setsid sh -c '{deaf}' >/dev/null 2>&1 </dev/null &); until test -e up; do sleep 0.1; done; echo begun"
    async with _supervised(place) as sup:
        session = await sup.start_session("daemon", agent="it")
        _ended_well(await session.run(f"RUN[[{daemon}]] SAY[[left one]]"), "left one")
        await place.until((place.work / "up").exists, "the daemon was there", 5.0)
        left = bool(place.sleepers())
        await session.close()
        await place.until(lambda: not place.processes(), "processes outlive the session", GONE_S)
    await _none_left(place)
    return "0 left" if left else "0 left, with its command"


CELLS = (
    Cell("turn", _turn),
    Cell("interrupt", _interrupt),
    Cell("tool abort", _abort_tool),
    Cell("silent", _silent),
    Cell("401", _trouble("ERR[[401]]", "auth")),
    Cell("429", _trouble("ERR[[429]]", "rate_limit")),
    Cell("500", _trouble("ERR[[500]]", "server")),
    Cell("cut stream", _trouble("DROP", "connection")),
    Cell("kill -9", _killed),
    Cell("daemon", _daemon),
)
