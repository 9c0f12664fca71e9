"""Tests of properties that only simulated processes have: faults, names, the table of processes, and the death of the
supervisor."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from supervisor.ports import Launch, SpawnError
from supervisor.processes import exit_wait
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import OsProcess, Program
from supervisor.simulation.machine.processes import ProcessEvent, SimulatedProcesses
from tests.unit.processes.contract.ports import program_for as scripted
from tests.unit.processes.contract.ports import run_virtually
from tests.unit.processes.contract.scripts import (
    CloseOutput,
    Dribble,
    Exit,
    Flood,
    Fork,
    Hang,
    IgnoreTerm,
    ReadLine,
    Ready,
    Reap,
    Say,
    Step,
    argv_of,
)

CHILD = Fork((Ready(), Hang()))
DAEMON = (Fork((Fork((IgnoreTerm(), Ready(), Hang()), new_session=True), Exit(0))), Reap())


@asynccontextmanager
async def world(
    *strikes: str, seed: int = 0, program: Program | None = None
) -> AsyncIterator[tuple[SimulatedProcesses, list[ProcessEvent]]]:
    """Provide a host in which exactly the faults *strikes* happen, and the list of events that it reports; every launch
    runs a script, or *program* if given."""
    events: list[ProcessEvent] = []
    random = KeyedRandom(seed)
    program_for: Callable[[Launch], Program] = scripted if program is None else lambda launch: program
    async with anyio.create_task_group() as group:
        faults = FaultPlan(random, only=strikes)
        yield SimulatedProcesses(group, program_for, faults=faults, random=random, observe=events.append), events


def launch(*steps: Step, name: str = "it") -> Launch:
    return Launch(argv=argv_of(*steps), cwd="/", env={"SIMULATED_NAME": name})


def named(*argv: str) -> Launch:
    return Launch(argv=argv, cwd="/", env={"SIMULATED_NAME": "it"})


def whats(events: list[ProcessEvent]) -> list[tuple[str, str]]:
    return [(event.what, event.detail) for event in events]


# ----------------------------------------------------------------------------------------------------------- faults
def test_each_spawn_error_in_its_words(anyio_backend: str) -> None:
    """Each of the four simulated spawn errors has the same text as on the real host, and leaves no process."""
    words: set[str] = set()

    async def one(seed: int) -> None:
        async with world("process.spawn_error@it#1", seed=seed) as (host, events):
            with pytest.raises(SpawnError) as caught:
                async with host.spawn(named("tool")):
                    pytest.fail("it started")
            assert (host.kernel.table, events) == ({}, [])
        words.add(str(caught.value))

    async def many() -> None:
        for seed in range(40):
            await one(seed)

    run_virtually(anyio_backend, many)
    assert words == {
        "cannot start 'tool': it is not an executable file; chmod +x it, or put its interpreter first in argv",
        "cannot start 'tool': its process could not be made (Resource temporarily unavailable); "
        "raise the limit, or run fewer",
        "cannot start 'tool': no shim for it ([Errno 24] Too many open files)",
        "cannot start 'tool': there is no such program on PATH '/simulated/bin'; install it, extend PATH in env, or "
        "name its full path in argv[0]",
    }


def test_a_fault_is_for_one_launch(anyio_backend: str) -> None:
    """Launches of one name are numbered: a fault for the first launch does not affect the second."""

    async def case() -> None:
        async with world("process.spawn_error@it#1") as (host, events):
            with pytest.raises(SpawnError):
                async with host.spawn(launch()):
                    pytest.fail("it started")
            async with host.spawn(launch(Exit(7))) as process:
                assert await process.wait_exit() == 7
            assert {event.owner for event in events} == {"it#2"}

    run_virtually(anyio_backend, case)


def test_a_shim_is_lost(anyio_backend: str) -> None:
    """The shim is lost by a fault: the main process dies, and the fork server ends all other processes."""

    async def case() -> None:
        async with world("process.warden_lost@it#1", seed=2) as (host, _):
            async with host.spawn(launch(CHILD, *DAEMON, Hang())) as process:
                report = await process.wait_ended()
                assert (report.status, report.ended_by, report.survivors) == (None, "exit", 0)
            assert host.kernel.table == {}

    run_virtually(anyio_backend, case)


def test_a_lost_shim_and_a_kill(anyio_backend: str) -> None:
    """A program was ordered to be killed before its shim was lost: the report says ``kill``, whatever was ordered after
    the kill."""

    async def case() -> None:
        async with world() as (host, _):
            async with host.spawn(launch(Hang())) as process:
                await anyio.sleep(1.0)
                process.kill()
                process.terminate()
                process.shim.lose()
                report = await process.wait_ended()
                assert (report.status, report.ended_by, report.survivors) == (None, "kill", 0)

    run_virtually(anyio_backend, case)


def test_a_shim_is_lost_at_the_start(anyio_backend: str) -> None:
    """The shim is lost before it starts the program: ``spawn`` raises a SpawnError with the text of the real host."""

    async def case() -> None:
        async with world("process.warden_lost@it#1", seed=3) as (host, events):
            with pytest.raises(SpawnError, match="its shim ended first: it said nothing"):
                async with host.spawn(launch(Hang())):
                    pytest.fail("it started")
            assert (host.kernel.table, events) == ({}, [])

    run_virtually(anyio_backend, case)


def test_a_supervisor_that_dies_at_a_start(anyio_backend: str) -> None:
    """The supervisor dies before the shim has started the program: nothing is started, and the SpawnError has the text
    of the real host."""

    async def refused(host: SimulatedProcesses) -> None:
        with pytest.raises(SpawnError, match="its shim ended first: it said nothing"):
            async with host.spawn(launch(Hang())):
                pytest.fail("it started")

    async def case() -> None:
        async with world() as (host, events):
            async with anyio.create_task_group() as group:
                group.start_soon(refused, host)
                await anyio.sleep(0.0005)  # no shim is as fast as that
                host.crash()
            assert (host.kernel.table, events) == ({}, [])

    run_virtually(anyio_backend, case)


# ------------------------------------------------------------------------------------------------------- what is seen
def test_everything_is_observed(anyio_backend: str) -> None:
    """Starts, signals, exits and reaping are reported as events in order, with the name of the launch."""

    async def case() -> None:
        async with world() as (host, events):
            async with host.spawn(launch(IgnoreTerm(), CHILD, Say(b"up"), Hang()), terminate_s=1.0) as process:
                await process.receive()
            main, child = process.pid, process.pid + 1
        assert [(event.what, event.pid, event.detail) for event in events] == [
            ("spawned", main, "it#1"),
            ("spawned", child, "it#1/0"),
            ("signalled", main, "SIGTERM"),
            ("signalled", child, "SIGTERM"),
            ("killed", main, "by its warden"),
            ("exited", main, "-9"),
            ("killed", child, "by its warden"),
            ("exited", child, "-9"),
            ("reaped", main, "-9"),
            ("reaped", child, "-9"),
        ]
        assert {event.owner for event in events} == {"it#1"}

    run_virtually(anyio_backend, case)


def test_zombies_and_orphans_are_seen(anyio_backend: str) -> None:
    """Running processes, orphans and zombies are in the table of processes, by name."""

    async def case() -> None:
        async with world() as (host, _):
            async with host.spawn(launch(Fork((Exit(0),)), *DAEMON[:1], Reap(), Say(b"up"), Hang())) as process:
                await process.receive()
                seen = {one.name: one.status is not None for one in host.kernel.table.values()}
                assert seen == {"it#1": False, "it#1/1": True, "it#1/1/0": False}
                assert {one.launch.cwd for one in host.kernel.table.values()} == {"/"}
            assert host.kernel.table == {}

    run_virtually(anyio_backend, case)


def test_a_name_falls_back_to_the_command() -> None:
    """A launch without a name in its environment is named after its directory and argv."""

    async def case() -> None:
        async with world(program=say_name) as (host, _):
            for number in (1, 2):
                async with host.spawn(Launch(argv=("tool", "now"), cwd="/tmp", env={})) as process:
                    heard = b""
                    while chunk := await process.receive():
                        heard += chunk
                assert heard == b"/tmp$ tool now#%d" % number

    async def say_name(inside: OsProcess) -> int:
        await inside.write(inside.name.encode())
        return 0

    run_virtually("asyncio", case)


def test_the_same_seed_is_the_same_run() -> None:
    """Interleaving, times and pieces of output depend only on the seed: equal seeds give equal runs, different seeds
    give different runs."""
    stories: list[tuple[list[ProcessEvent], list[bytes]]] = []

    async def case(seed: int) -> None:
        pieces: list[bytes] = []
        async with world(seed=seed) as (host, events):
            async with host.spawn(launch(Flood(100_000), Dribble(b"word", 0.5), *DAEMON)) as process:
                while chunk := await process.receive():
                    pieces.append(chunk)
        stories.append((events, pieces))

    for seed in (1, 1, 2):
        run_virtually("asyncio", lambda seed=seed: case(seed))
    assert stories[0] == stories[1] != stories[2]
    assert b"".join(stories[0][1]) == b"x" * 100_000 + b"word0\n"


def test_output_is_cut_for_some() -> None:
    """Over ten seeds, the output of some programs arrives whole, of others in pieces."""
    sizes: set[bool] = set()

    async def case(seed: int) -> None:
        async with world(seed=seed) as (host, _):
            async with host.spawn(launch(Say(b"x" * 1000), CloseOutput(), ReadLine())) as process:
                sizes.add(len(await process.receive()) == 1000)

    for seed in range(10):
        run_virtually("asyncio", lambda seed=seed: case(seed))
    assert sizes == {True, False}


# -------------------------------------------------------------------------------------------------- a supervisor's end
def test_a_crash_leaves_nothing(anyio_backend: str) -> None:
    """The supervisor dies: every shim kills its process tree, daemons too, within moments, and no pipe is left open."""

    async def case() -> None:
        async with world() as (host, events), anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(
                    live, host, launch(*DAEMON, IgnoreTerm(), ReadLine(), Flood(1), Hang(), name=str(number))
                )
            await anyio.sleep(1.0)
            assert len(host.kernel.table) == 6
            host.crash()
            await anyio.sleep(0.2)
            assert host.kernel.table == {}
            assert len([event for event in events if event.what == "reaped"]) == 9
            assert ("exited", f"-{signal.SIGPIPE:d}") in whats(events)

    async def live(host: SimulatedProcesses, wanted: Launch) -> None:
        async with host.spawn(wanted) as process:
            assert (await process.wait_ended()).survivors == 0

    run_virtually(anyio_backend, case)


@pytest.mark.parametrize("killed", [False, True], ids=["left", "killed"])
def test_what_is_not_done_in_time_is_abandoned(
    killed: bool, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shim does not finish in time: it is reported as abandoned, continues alone, and its processes end all the same.

    After a kill, leaving the context does not wait for ``terminate_s``.
    """
    monkeypatch.setattr(exit_wait, "KILL_EXTRA_S", 0.0)

    async def case() -> None:
        async with world() as (host, events):
            async with host.spawn(launch(Hang()), terminate_s=1e5 if killed else 0.0, kill_s=0.0) as process:
                if killed:
                    process.kill()
            report = await process.wait_ended()
            assert (report.status, report.ended_by, report.survivors) == (None, "kill", -1)
            assert whats(events) == [("spawned", "it#1"), ("abandoned", "")]
            await anyio.sleep(1.0)
            assert host.kernel.table == {}
            assert await process.wait_ended() == report

    run_virtually(anyio_backend, case)


def test_an_order_after_the_death_is_late(anyio_backend: str) -> None:
    """A process was dead before the terminate order, and its shim had not noticed yet: ``ended_by`` is ``exit``."""

    async def case() -> None:
        async with world() as (host, events):
            async with host.spawn(launch(ReadLine(), Exit(3))) as process:
                await process.send(b"go\n")
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                assert whats(events)[-1] == ("exited", "3")
                process.terminate()
                assert (await process.wait_ended()).ended_by == "exit"

    run_virtually(anyio_backend, case)


def test_an_end_takes_as_long_as_it_was_ordered(anyio_backend: str) -> None:
    """``took_s`` is the time since the first order to end, in virtual seconds."""

    async def case() -> None:
        async with world() as (host, _):
            async with host.spawn(launch(IgnoreTerm(), Say(b"up"), Hang())) as process:
                await process.receive()
                process.terminate()
                await anyio.sleep(7.0)
                process.kill()
                assert 6.9 < (await process.wait_ended()).took_s < 7.1

    run_virtually(anyio_backend, case)


# ------------------------------------------------------------------------------------------------------ programs
def test_a_handler_for_sigterm(anyio_backend: str) -> None:
    """A simulated program catches the cancellation that stands for SIGTERM: it may continue for a while, and choose its
    exit status."""

    async def polite(inside: OsProcess) -> int:
        try:
            await inside.write(b"up")
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.5)
                await inside.write(b"bye")
            return 143
        return 0

    async def case() -> None:
        async with world(program=polite) as (host, _):
            async with host.spawn(named("tool")) as process:
                await process.receive()
                process.terminate()
                assert await process.wait_exit() == 143

    run_virtually(anyio_backend, case)


def test_nothing_survives_sigkill(anyio_backend: str) -> None:
    """A program is killed while its coroutine is shielded and would continue: the program is dead at once, and starts
    no child."""
    after: list[str] = []

    async def stubborn(inside: OsProcess) -> int:
        async with anyio.create_task_group() as group:
            group.start_soon(inside.read)
            with anyio.CancelScope(shield=True):
                await inside.write(b"up")
                await anyio.sleep(5.0)
                after.append("woke")
                inside.fork(stubborn, name="child")
                after.append("forked")
        return 0

    async def case() -> None:
        async with world(program=stubborn) as (host, events):
            async with host.spawn(named("tool")) as process:
                await process.receive()
                process.kill()
                report = await process.wait_ended()
                assert (report.status, report.killed) == (-9, 0)
                assert anyio.current_time() < 1.0
        assert after == ["woke"]
        assert [event.what for event in events] == ["spawned", "killed", "exited", "reaped"]

    run_virtually(anyio_backend, case)


def test_the_dead_write_nothing(anyio_backend: str) -> None:
    """A program is killed while its output waits for room in the pipe: the rest is never written, although a child
    still holds the pipe open."""

    async def child(inside: OsProcess) -> int:
        await anyio.sleep_forever()
        return 0

    async def verbose(inside: OsProcess) -> int:
        inside.fork(child, name="child", keeps_output=True)
        with anyio.CancelScope(shield=True):
            await inside.write(b"x" * 100_000)
        return 0

    async def parent(inside: OsProcess) -> int:
        pid = inside.fork(verbose, name="verbose", keeps_output=True)
        await inside.read_line()
        host.kernel.table[pid].deliver(signal.SIGKILL)
        await inside.read_line()
        return 0

    async def case() -> None:
        nonlocal host
        async with world(program=parent) as (host, _):
            async with host.spawn(named("tool")) as process:
                await anyio.sleep(1.0)
                await process.send(b"kill it\n")
                await anyio.sleep(1.0)
                process.close_input()
                size = 0
                while chunk := await process.receive():
                    size += len(chunk)
        assert size == 65536

    host: SimulatedProcesses
    run_virtually(anyio_backend, case)


def test_a_child_is_waited_for_by_its_parent(anyio_backend: str) -> None:
    """``wait_child`` returns a child's status once; it raises ChildProcessError the second time, and for a process that
    is not a child."""
    statuses: list[int] = []

    async def child(inside: OsProcess) -> int:
        await anyio.sleep(1.0)
        return 9

    async def parent(inside: OsProcess) -> int:
        pid = inside.fork(child, name="child")
        statuses.append(await inside.wait_child(pid))
        for stranger in (pid, inside.pid):
            with pytest.raises(ChildProcessError):
                await inside.wait_child(stranger)
        return 0

    async def case() -> None:
        async with world(program=parent) as (host, _):
            async with host.spawn(named("tool")) as process:
                assert await process.wait_exit() == 0

    run_virtually(anyio_backend, case)
    assert statuses == [9]


def test_lines_are_read_whole(anyio_backend: str) -> None:
    """``read_line`` waits for the end of a line, ``read`` returns the rest, and both report the end of the input."""
    heard: list[bytes] = []

    async def reader(inside: OsProcess) -> int:
        for _ in range(2):
            heard.append(await inside.read_line())
        heard.append(await inside.read())
        for _ in range(2):
            heard.append(await inside.read_line())
        return 0

    async def case() -> None:
        async with world(program=reader) as (host, _):
            async with host.spawn(named("tool")) as process:
                for piece in (b"one", b"\ntwo\nthr"):
                    await process.send(piece)
                    await anyio.sleep(1.0)
                await process.send(b"ee")
                process.close_input()
                await process.wait_exit()

    run_virtually(anyio_backend, case)
    assert heard == [b"one\n", b"two\n", b"thr", b"ee", b""]


def test_a_program_knows_its_launch(anyio_backend: str) -> None:
    """A program sees the argv, environment, directory and pid of its launch; a child sees the same, with a pid of its
    own."""
    seen: list[tuple[object, ...]] = []

    async def curious(inside: OsProcess) -> int:
        seen.append((inside.argv, inside.env, inside.cwd, inside.name))
        if "/" not in inside.name:
            pid = inside.fork(curious, name="child")
            assert pid != inside.pid
            await inside.wait_child(pid)
        return inside.pid

    async def case() -> None:
        async with world(program=curious) as (host, _):
            async with host.spawn(named("tool", "x")) as process:
                assert await process.wait_exit() == process.pid & 0xFF

    run_virtually(anyio_backend, case)
    same = (("tool", "x"), {"SIMULATED_NAME": "it"}, "/")
    assert seen == [(*same, "it#1"), (*same, "it#1/child")]
