"""Conformance suite of the process port: each case is written once, and runs on the real and on the simulated host.

After each case nothing is left: no process, and of the real ones no descriptor. Real processes are waited for by
facts; simulated ones run in virtual time, with five seeds.
"""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import msgspec
import pytest

from supervisor.policies.call_processes import ProcessSeen, processes_of_turn
from supervisor.ports import Launch, Process, ProcessReport, SpawnError
from tests.unit.processes.contract.ports import Port, RealPort, SimulatedPort
from tests.unit.processes.contract.scripts import (
    CloseOutput,
    Complain,
    Die,
    Dribble,
    Echo,
    Exit,
    Flood,
    Fork,
    Hang,
    IgnoreTerm,
    ReadAll,
    ReadLine,
    Ready,
    Reap,
    Say,
    Step,
    argv_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the whole promise is Linux's")

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
UP = Say(b"up\n")
TICK_S = 0.01
"""Seconds of one clock tick, the precision in which the kernel gives start times."""
CHILD = Fork((Ready(), Hang()))
DEAF = Fork((IgnoreTerm(), Ready(), Hang()))
DAEMON = (Fork((Fork((IgnoreTerm(), Ready(), Hang()), new_session=True), Exit(0))), Reap())
"""A daemon: forked twice, in a session of its own, and deaf to SIGTERM."""
LONG_S = 30.0
"""Seconds, longer than any case takes."""


@pytest.fixture(
    params=[(port, backend) for port in (SimulatedPort, RealPort) for backend in ("asyncio", "trio")],
    ids=lambda param: f"{param[0].__name__.removesuffix('Port').lower()}-{param[1]}",
)
def port(request: pytest.FixtureRequest) -> Port:
    """Each host, on each backend."""
    kind, backend = request.param
    made: Port = kind(backend)
    return made


def contract(case: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Let the port run a case in its own world."""

    @functools.wraps(case)
    def test(port: Port, **parameters: Any) -> None:
        port.run(lambda: case(port, **parameters))

    return test


def spawn(port: Port, *steps: Step, **times_s: float) -> AbstractAsyncContextManager[Process]:
    return port.host.spawn(Launch(argv=argv_of(*steps), cwd="/", env=PATH), **times_s)


async def all_output(process: Process) -> bytes:
    chunks = []
    while chunk := await process.receive():
        chunks.append(chunk)
    return b"".join(chunks)


async def up(process: Process, words: bytes = b"up\n") -> None:
    """Read until the program has written *words*, in whatever pieces."""
    heard = b""
    while words not in heard:
        chunk = await process.receive()
        assert chunk, f"it ended; it said {heard!r}"
        heard += chunk


def fate(report: ProcessReport) -> tuple[int | None, str, int, int]:
    return report.status, report.ended_by, report.killed, report.survivors


# ------------------------------------------------------------------------------------------------------------ exits
@contract
async def test_an_exit_has_its_status(port: Port) -> None:
    """Every exit status is reported unchanged, at once and in the report, and ``ended_by`` is ``exit``."""

    async def one(status: int) -> None:
        async with spawn(port, Exit(status)) as process:
            assert await process.wait_exit() == status
            report = await process.wait_ended()
        assert (report.pid, *fate(report)) == (process.pid, status, "exit", 0, 0)
        assert report.took_s >= 0.0

    async with anyio.create_task_group() as group:
        for status in (0, 1, 124, 125, 126, 127, 128, 137, 143, 255):
            group.start_soon(one, status)


@contract
async def test_a_death_has_its_signal(port: Port) -> None:
    """A program that a signal ends has the negative number of the signal as status, and ``ended_by`` is ``exit``."""

    async def one(number: int) -> None:
        async with spawn(port, Die(number)) as process:
            assert fate(await process.wait_ended()) == (-number, "exit", 0, 0)

    async with anyio.create_task_group() as group:
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT):
            group.start_soon(one, number)


@contract
async def test_output_is_there_after_the_end(port: Port) -> None:
    """Output that was written before the end can be read after the end, and end of output follows it."""
    async with spawn(port, Say(b"last "), Complain(b"why"), Say(b"words"), Exit(3)) as process:
        assert (await process.wait_ended()).status == 3
        assert await all_output(process) == b"last words"
        errors = b""
        while chunk := await process.receive_err():
            errors += chunk
        assert errors == b"why"


@contract
async def test_output_may_end_before_the_program(port: Port) -> None:
    """A program that closes its output lives on, and its status is its own."""
    async with spawn(port, Say(b"bye"), CloseOutput(), ReadLine(), Exit(5)) as process:
        assert await all_output(process) == b"bye"
        await process.send(b"go\n")
        assert await process.wait_exit() == 5


@contract
async def test_a_child_that_holds_the_output_does_not_hold_the_reader(port: Port) -> None:
    """Output that a child has inherited ends with the main process, whatever session the child is in."""
    holders = [Fork((IgnoreTerm(), Ready(), Hang()), keeps_output=True, new_session=new) for new in (False, True)]
    async with spawn(port, *holders, Say(b"last words"), Exit(3)) as process:
        assert await all_output(process) == b"last words"
        assert await process.wait_exit() == 3
        assert fate(await process.wait_ended()) == (3, "exit", 2, 0)


@contract
async def test_a_child_keeps_the_output_open(port: Port) -> None:
    """The output of a program that closed it ends with the child that inherited it."""
    child = Fork((Ready(), Dribble(b"child", every_s=0.001)), keeps_output=True)
    async with spawn(port, child, CloseOutput(), ReadLine()) as process:
        assert await all_output(process) == b"child"


@contract
async def test_who_was_killed_before_does_not_count(port: Port) -> None:
    """An orphan that somebody else killed while the main process lived does not count as killed."""
    orphan = Fork((Fork((Die(signal.SIGKILL),), new_session=True), Exit(0)))
    async with spawn(port, orphan, Reap(), UP, ReadLine(), Exit(4)) as process:
        await up(process)
        await port.orphans_dead(process)  # what it held ends before it does
        await process.send(b"go\n")
        assert fate(await process.wait_ended()) == (4, "exit", 0, 0)


@contract
async def test_zombies_are_nothing(port: Port) -> None:
    """Ended children that were never waited for are reaped with their parent, and do not count as killed."""
    dead = [Fork((Exit(0),)), Fork((Die(signal.SIGTERM),))]
    async with spawn(port, *dead, UP, ReadLine(), Exit(4)) as process:
        await up(process)
        await process.send(b"go\n")
        assert fate(await process.wait_ended()) == (4, "exit", 0, 0)


@contract
async def test_an_exit_takes_all_along(port: Port) -> None:
    """Every kind of process that the main process leaves is killed and counted."""
    async with spawn(port, *DAEMON, CHILD, DEAF, UP, ReadLine(), Exit(3)) as process:
        await up(process)
        await process.send(b"go\n")
        assert await process.wait_exit() == 3
        assert fate(await process.wait_ended()) == (3, "exit", 3, 0)


@contract
async def test_list_processes_gives_start_times_and_sessions(port: Port) -> None:
    """``list_processes`` gives every descendant with start time and session; a signal reaches only the named ones."""
    before, daemon = (Fork((Ready(), Hang()), new_session=True) for _ in range(2))
    beside = Fork((Ready(), Hang()))
    steps = (before, UP, ReadLine(), daemon, beside, Say(b"more\n"), ReadLine(), Exit(3))
    async with spawn(port, *steps) as process:
        await up(process)
        await anyio.sleep(2 * TICK_S)
        since = process.clock()
        await process.send(b"go\n")
        await up(process, b"more\n")
        begin, end = process.written_between
        assert since <= end <= process.clock()
        assert begin <= end
        seen = await process.list_processes()
        assert seen is not None
        assert [one.born >= since for one in seen] == [False, False, True, True]
        assert [one.session == process.pid for one in seen] == [True, False, False, True]
        assert seen[0].pid == process.pid
        assert {one.parent for one in seen[1:]} == {process.pid}
        struck = seen[2]
        process.signal_processes([struck, msgspec.structs.replace(seen[1], born=seen[1].born + 1)], signal.SIGKILL)
        while struck.pid in [one.pid for one in await process.list_processes() or () if one.alive]:
            pass  # what was killed takes its time to die
        await process.send(b"go\n")
        assert fate(await process.wait_ended()) == (3, "exit", 2, 0)
        assert await process.list_processes() == ()


@contract
async def test_a_turn_has_the_processes_born_since_but_for_servers(port: Port) -> None:
    """Processes that began before the turn, and servers, do not belong to the turn: they get no signal and no wait."""
    before, after = (Fork((Ready(), Hang())) for _ in range(2))
    steps = (before, UP, ReadLine(), after, Say(b"more\n"), ReadLine(), Exit(3))
    async with spawn(port, *steps) as process:

        async def of_turn(since: int, servers: Sequence[str] = ()) -> tuple[ProcessSeen, ...]:
            return processes_of_turn(await process.list_processes() or (), process.pid, since, servers)

        await up(process)
        await anyio.sleep(2 * TICK_S)
        since = process.clock()
        assert await of_turn(since) == ()
        await process.send(b"go\n")
        await up(process, b"more\n")
        (found,) = await of_turn(since)
        assert found.command
        assert await of_turn(since, [word.rpartition("/")[2] for word in found.command.split(" ")[:2]]) == ()
        process.signal_processes([found], signal.SIGTERM)
        while await of_turn(since):
            await process.wait_gone(found.pid)
        await process.wait_gone(found.pid)
        assert len(await of_turn(0)) == 1, "what was there before lives on"
        await process.send(b"go\n")
        report = await process.wait_ended()
        assert [fate(report), len(report.outlived)] == [(3, "exit", 1, 0), 1]
        assert await of_turn(0) == ()


# ------------------------------------------------------------------------------------------------------------- ends
@contract
async def test_leaving_terminates(port: Port) -> None:
    """A program that hangs is terminated when its context is left."""
    async with spawn(port, UP, Hang(), terminate_s=LONG_S) as process:
        await up(process)
    assert fate(await process.wait_ended()) == (-15, "terminate", 0, 0)


@contract
async def test_leaving_closes_the_input(port: Port) -> None:
    """A program that ignores SIGTERM but ends with its input ends when its context is left; its output is gone."""
    async with spawn(port, IgnoreTerm(), UP, Say(b"unread"), ReadAll(), Exit(6), terminate_s=LONG_S) as process:
        await up(process, b"up\n")
    report = await process.wait_ended()
    assert (report.status, report.killed, report.survivors) == (6, 0, 0)
    assert (await process.receive(), await process.receive_err()) == (b"", b"")


@contract
async def test_leaving_kills_who_ignores_it(port: Port) -> None:
    """A program that ignores SIGTERM is killed after terminate_s."""
    async with spawn(port, IgnoreTerm(), UP, Hang(), terminate_s=0.05) as process:
        await up(process)
    assert fate(await process.wait_ended()) == (-9, "kill", 0, 0)


@contract
async def test_leaving_ends_a_daemon(port: Port) -> None:
    """A daemon that ignores SIGTERM does not outlive a main process that heeds it."""
    async with spawn(port, *DAEMON, UP, Hang(), terminate_s=LONG_S) as process:
        await up(process)
    assert fate(await process.wait_ended()) == (-15, "terminate", 1, 0)


@contract
async def test_a_kill_kills_all(port: Port) -> None:
    """A kill ends the whole tree and completes with the report; only descendants count as killed."""
    async with spawn(port, *DAEMON, CHILD, DEAF, UP, Hang()) as process:
        await up(process)
        process.kill()
        assert await process.wait_exit() == -9
        assert fate(await process.wait_ended()) == (-9, "kill", 3, 0)


@contract
async def test_terminate_then_kill(port: Port) -> None:
    """After a terminate without effect a kill is reported as a kill, and leaving spends nothing of terminate_s."""
    async with spawn(port, IgnoreTerm(), UP, Hang(), terminate_s=1e5) as process:
        await up(process)
        process.terminate()
        process.kill()
    assert fate(await process.wait_ended()) == (-9, "kill", 0, 0)


@contract
async def test_terminate_reaches_the_whole_tree(port: Port) -> None:
    """SIGTERM goes to every process of the tree; a child that ignores it is killed with the end of the main process."""
    async with spawn(port, CHILD, IgnoreTerm(), CHILD, UP, Reap(), ReadLine(), Exit(4)) as process:
        await up(process)
        process.terminate()
        await up(process, b"-15\n")
        await process.send(b"go\n")
        assert fate(await process.wait_ended()) == (4, "terminate", 1, 0)


@contract
async def test_an_order_that_comes_too_late(port: Port) -> None:
    """Orders after the end, and numbers that are no signals, neither raise nor change the report."""
    async with spawn(port, ReadLine(), Exit(3)) as process:
        process.signal(0)
        process.signal(2**32 + signal.SIGKILL)
        process.close_input()
        report = await process.wait_ended()
        process.terminate()
        process.kill()
    for order in (process.terminate, process.kill, process.close_input, lambda: process.signal(15)):
        order()
    await process.send(b"late")
    assert (await process.receive(), await process.receive_err()) == (b"", b"")
    assert await process.wait_ended() == report
    assert fate(report) == (3, "exit", 0, 0)


@contract
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL])
async def test_a_signal_is_for_the_main_process(port: Port, number: int) -> None:
    """A signal ends the main process only, and ``ended_by`` is ``exit``, as for a signal from outside."""
    async with spawn(port, CHILD, UP, Hang()) as process:
        await up(process)
        process.signal(number)
        assert fate(await process.wait_ended()) == (-number, "exit", 1, 0)


@contract
async def test_deaf_to_sigterm_is_not_deaf_to_others(port: Port) -> None:
    """A program that ignores SIGTERM still ends with SIGINT."""
    async with spawn(port, IgnoreTerm(), UP, Hang()) as process:
        await up(process)
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)
        assert fate(await process.wait_ended()) == (-2, "exit", 0, 0)


@contract
async def test_some_signals_are_nothing(port: Port) -> None:
    """A signal whose default is to be ignored does nothing."""
    async with spawn(port, UP, Hang()) as process:
        await up(process)
        for number in (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGUSR2):
            process.signal(number)
        assert await process.wait_exit() == -signal.SIGUSR2


@contract
async def test_a_lost_shim_takes_its_program_along(port: Port) -> None:
    """When its shim is lost, a program dies, and everything that it had started is ended and counted, daemons too."""
    async with spawn(port, *DAEMON, CHILD, UP, Hang()) as process:
        await up(process)
        port.lose_shim(process)
        assert await process.wait_exit() is None
        report = await process.wait_ended()
        assert (report.status, report.ended_by, report.survivors) == (None, "exit", 0)
        assert report.killed >= 2  # its main process may be among those that its fork server finds dead
        assert await all_output(process) == b""


# ------------------------------------------------------------------------------------------------------------ bytes
@contract
async def test_what_is_sent_comes_back(port: Port) -> None:
    """A program that echoes returns every byte in order, and ends with its input."""
    data = bytes(range(256)) * 2000
    async with spawn(port, Echo(), Exit(6)) as process, anyio.create_task_group() as group:

        async def feed() -> None:
            await process.send(data)
            process.close_input()

        group.start_soon(feed)
        assert await all_output(process) == data
        assert await process.wait_exit() == 6


@contract
async def test_a_closed_input_is_an_end(port: Port) -> None:
    """A program whose input is closed at once reads end of file; what is sent afterwards is dropped."""
    async with spawn(port, ReadAll()) as process:
        process.close_input()
        await process.send(b"late")
        assert await all_output(process) == b"0\n"
        assert await process.wait_exit() == 0


@contract
async def test_two_senders_do_not_mix(port: Port) -> None:
    """A piece that one task sends stays whole, however large it is."""
    async with spawn(port, Echo()) as process, anyio.create_task_group() as group:

        async def feed() -> None:
            async with anyio.create_task_group() as senders:
                senders.start_soon(process.send, b"a" * 150_000)
                senders.start_soon(process.send, b"b" * 150_000)
            process.close_input()

        group.start_soon(feed)
        output = await all_output(process)
    assert output in (b"a" * 150_000 + b"b" * 150_000, b"b" * 150_000 + b"a" * 150_000)


@contract
async def test_a_sender_waits_for_a_reader_that_never_reads(port: Port) -> None:
    """Send does not return while the pipe is full, and returns when the program is gone."""
    sent = anyio.Event()
    async with spawn(port, UP, Hang()) as process, anyio.create_task_group() as group:

        async def feed() -> None:
            await process.send(bytes(1_000_000))
            sent.set()

        group.start_soon(feed)
        await up(process)
        await anyio.wait_all_tasks_blocked()
        assert not sent.is_set()
        process.kill()
        await sent.wait()
        await process.send(b"to nobody")


@contract
async def test_closing_the_input_frees_a_sender(port: Port) -> None:
    """A send that waits for room returns when the input is closed, and the rest of the piece is dropped."""
    async with spawn(port, UP, Hang()) as process, anyio.create_task_group() as group:
        group.start_soon(process.send, bytes(1_000_000))
        await up(process)
        await anyio.wait_all_tasks_blocked()
        process.close_input()


@contract
async def test_a_flood_waits_for_its_reader(port: Port) -> None:
    """A program that writes more than a pipe holds waits for its reader, and nothing is lost."""
    async with spawn(port, Flood(1_000_000), Complain(b"done"), Exit(2)) as process:
        said: list[bytes] = []
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                said.append(await process.receive_err())

            group.start_soon(listen)
            size = len(await process.receive())
            assert 1 <= size <= 65536
            assert not said
            while chunk := await process.receive():
                size += len(chunk)
        assert size == 1_000_000
        assert b"done".startswith(said[0])
        assert await process.wait_exit() == 2


@contract
async def test_a_dribble_arrives(port: Port) -> None:
    """Bytes that are written one at a time arrive as they are written."""
    async with spawn(port, Dribble(b"slow but sure", every_s=0.001)) as process:
        assert await all_output(process) == b"slow but sure"
        assert await process.wait_exit() == 0


@contract
async def test_bytes_are_bytes(port: Port) -> None:
    """Output that is no text arrives unchanged."""
    odd = b"\xff\xfe\x00\xc3(\r\n\x80" + bytes(range(256))
    async with spawn(port, Say(odd)) as process:
        assert await all_output(process) == odd


@contract
async def test_one_task_receives(port: Port) -> None:
    """A second task that receives at the same time gets a BusyResourceError."""
    async with spawn(port, ReadLine()) as process, anyio.create_task_group() as group:
        group.start_soon(process.receive)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await process.receive()
        process.close_input()


@contract
async def test_leaving_ends_a_receive(port: Port) -> None:
    """A receive that waits returns ``b""`` when the context is left."""
    received: list[bytes] = []
    async with anyio.create_task_group() as group:
        async with spawn(port, Hang()) as process:

            async def listen() -> None:
                received.append(await process.receive())

            group.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            assert not received
    assert received == [b""]


# ------------------------------------------------------------------------------------------------------- beginnings
@contract
@pytest.mark.parametrize(
    ("argv", "cwd", "env", "sentence"),
    [
        (("no-such-program",), "/", PATH, "no such program on PATH '/usr/local/bin:/usr/bin:/bin'; install it"),
        (("./no-such-program",), "/", PATH, "there is no such file; install it, or correct argv"),
        (("/etc/passwd",), "/", PATH, "it is not an executable file; chmod"),
        (argv_of(), "/no/such", PATH, "the working directory '/no/such' does not exist; create it"),
        (argv_of(), "/etc/passwd", PATH, "the working directory '/etc/passwd' is not a directory"),
        (("true", "a\0b"), "/", PATH, r"argv\[1\] contains a NUL byte"),
        (("true",), "/\0", PATH, "cwd contains a NUL byte"),
        (("true",), "/", {"A=B": "x"}, "a variable named 'A=B'"),
        (("true",), "/", {"": "x"}, "a variable named ''"),
        ((), "/", PATH, "argv is empty"),
    ],
)
async def test_a_refusal(port: Port, argv: tuple[str, ...], cwd: str, env: dict[str, str], sentence: str) -> None:
    """A program that cannot start is a SpawnError that says why, and nothing is left of the attempt."""
    with pytest.raises(SpawnError, match=sentence):
        async with port.host.spawn(Launch(argv=argv, cwd=cwd, env=env)):
            pytest.fail("it started")


@contract
async def test_cancelled_before_it_begins(port: Port) -> None:
    """A cancellation before the start does not prevent the start: the program starts, and is then terminated."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with spawn(port, Hang(), terminate_s=LONG_S) as process:
            assert process.pid > 0
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert fate(await process.wait_ended()) == (-15, "terminate", 0, 0)


@contract
async def test_cancelled_while_it_begins(port: Port) -> None:
    """A scope that is cancelled at any moment of a start leaves no process."""
    for delay_s in (0.0, 0.001, 0.005, 0.02, 0.04):
        with anyio.move_on_after(delay_s) as scope:
            async with spawn(port, *DAEMON, DEAF, Hang(), terminate_s=0.0) as process:
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert (await process.wait_ended()).survivors == 0


@contract
async def test_a_refusal_is_told_to_the_cancelled(port: Port) -> None:
    """A program that cannot start is a SpawnError, cancelled or not."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(SpawnError):
            async with port.host.spawn(Launch(argv=("no-such-program",), cwd="/", env=PATH)):
                pytest.fail("it started")


@contract
async def test_cancelled_while_it_runs(port: Port) -> None:
    """A cancelled body still ends its tree, and the report is there."""
    with anyio.CancelScope() as scope:
        async with spawn(port, *DAEMON, UP, Hang(), terminate_s=LONG_S) as process:
            await up(process)
            scope.cancel()
            await process.wait_exit()
    assert scope.cancelled_caught
    assert fate(await process.wait_ended()) == (-15, "terminate", 1, 0)


@contract
async def test_an_exception_leaves_as_it_is(port: Port) -> None:
    """An exception of the body leaves unwrapped, and no process is left."""
    with pytest.raises(ZeroDivisionError):
        async with spawn(port, DEAF, UP, Hang()) as process:
            await up(process)
            raise ZeroDivisionError
    assert fate(await process.wait_ended()) == (-15, "terminate", 1, 0)


@contract
async def test_many_at_once(port: Port) -> None:
    """Programs start, write and end side by side, each with its own pid, output and status."""
    pids: set[int] = set()

    async def one(number: int) -> None:
        async with spawn(port, Say(b"%d\n" % number), ReadLine(), Exit(number)) as process:
            await up(process, b"%d\n" % number)
            await process.send(b"go\n")
            assert await process.wait_exit() == number
            assert fate(await process.wait_ended()) == (number, "exit", 0, 0)
            pids.add(process.pid)

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(one, number)
    assert len(pids) == 8
