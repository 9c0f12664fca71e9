"""Conformance suite of the process port: each case is written once, and runs on the real and on the simulated host.

After each case no process is left, and on the real host no descriptor. A case waits for events of real processes, not
for a time; simulated processes run in virtual time, with five seeds.
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

from supervisor.policies.call_processes import AgentPrograms, ProcessSeen, processes_of_turn
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
"""Seconds of one clock tick, the precision of the start times that the kernel reports."""
CHILD = Fork((Ready(), Hang()))
DEAF = Fork((IgnoreTerm(), Ready(), Hang()))
DAEMON = (Fork((Fork((IgnoreTerm(), Ready(), Hang()), new_session=True), Exit(0))), Reap())
"""Steps that start a daemon: forked twice, in a session of its own, and ignoring SIGTERM."""
LONG_S = 120.0
"""Number of seconds that is longer than any case takes."""


@pytest.fixture(
    params=[(port, backend) for port in (SimulatedPort, RealPort) for backend in ("asyncio", "trio")],
    ids=lambda param: f"{param[0].__name__.removesuffix('Port').lower()}-{param[1]}",
)
def port(request: pytest.FixtureRequest) -> Port:
    """Provide the simulated and the real host in turn, each on both event loop backends."""
    kind, backend = request.param
    made: Port = kind(backend)
    return made


def contract(case: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Decorate a case: the test runs the case in the world of its port."""

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
    """Read the output of *process* until it contains *words*, in any number of pieces."""
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
    """Programs exit with different statuses: each status is reported unchanged by ``wait_exit`` and in the report, and
    ``ended_by`` is ``exit``."""

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
    """A program is ended by a signal: its status is the negative number of the signal, and ``ended_by`` is ``exit``."""

    async def one(number: int) -> None:
        async with spawn(port, Die(number)) as process:
            assert fate(await process.wait_ended()) == (-number, "exit", 0, 0)

    async with anyio.create_task_group() as group:
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT):
            group.start_soon(one, number)


@contract
async def test_output_is_there_after_the_end(port: Port) -> None:
    """A program writes and then exits: the output can still be read after the exit, followed by the end of output."""
    async with spawn(port, Say(b"last "), Complain(b"why"), Say(b"words"), Exit(3)) as process:
        assert (await process.wait_ended()).status == 3
        assert await all_output(process) == b"last words"
        errors = b""
        while chunk := await process.receive_err():
            errors += chunk
        assert errors == b"why"


@contract
async def test_output_may_end_before_the_program(port: Port) -> None:
    """A program closes its output and goes on: the reader gets the end of output, and the later exit status is
    reported."""
    async with spawn(port, Say(b"bye"), CloseOutput(), ReadLine(), Exit(5)) as process:
        assert await all_output(process) == b"bye"
        await process.send(b"go\n")
        assert await process.wait_exit() == 5


@contract
async def test_a_child_that_holds_the_output_does_not_hold_the_reader(port: Port) -> None:
    """Children of an exited program still hold its output open: the reader gets the end of output all the same,
    whatever session the children are in."""
    holders = [Fork((IgnoreTerm(), Ready(), Hang()), keeps_output=True, new_session=new) for new in (False, True)]
    async with spawn(port, *holders, Say(b"last words"), Exit(3)) as process:
        assert await all_output(process) == b"last words"
        assert await process.wait_exit() == 3
        assert fate(await process.wait_ended()) == (3, "exit", 2, 0)


@contract
async def test_a_child_keeps_the_output_open(port: Port) -> None:
    """A program closes its output, which its child has inherited: the reader gets the child's output, and the end of
    output when the child ends."""
    child = Fork((Ready(), Dribble(b"child", every_s=0.001)), keeps_output=True)
    async with spawn(port, child, CloseOutput(), ReadLine()) as process:
        assert await all_output(process) == b"child"


@contract
async def test_who_was_killed_before_does_not_count(port: Port) -> None:
    """An orphan is killed by another process while the main process runs: the orphan is not counted in ``killed``."""
    orphan = Fork((Fork((Die(signal.SIGKILL),), new_session=True), Exit(0)))
    async with spawn(port, orphan, Reap(), UP, ReadLine(), Exit(4)) as process:
        await up(process)
        await port.orphans_dead(process)  # what it held ends before it does
        await process.send(b"go\n")
        assert fate(await process.wait_ended()) == (4, "exit", 0, 0)


@contract
async def test_zombies_are_nothing(port: Port) -> None:
    """A program exits without having waited for its ended children: the children are reaped, and not counted in
    ``killed``."""
    dead = [Fork((Exit(0),)), Fork((Die(signal.SIGTERM),))]
    async with spawn(port, *dead, UP, ReadLine(), Exit(4)) as process:
        await up(process)
        await process.send(b"go\n")
        assert fate(await process.wait_ended()) == (4, "exit", 0, 0)


@contract
async def test_an_exit_takes_all_along(port: Port) -> None:
    """A main process exits and leaves children and a daemon behind: all of them are killed and counted in
    ``killed``."""
    async with spawn(port, *DAEMON, CHILD, DEAF, UP, ReadLine(), Exit(3)) as process:
        await up(process)
        await process.send(b"go\n")
        assert await process.wait_exit() == 3
        assert fate(await process.wait_ended()) == (3, "exit", 3, 0)


@contract
async def test_list_processes_gives_start_times_and_sessions(port: Port) -> None:
    """``list_processes`` returns every descendant with start time and session; ``signal_processes`` kills only the
    process that was given with its correct start time."""
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
    """Processes that were started before the turn, and servers, are not among the processes of the turn: they get no
    signal, and are not waited for."""
    before, after = (Fork((Ready(), Hang())) for _ in range(2))
    steps = (before, UP, ReadLine(), after, Say(b"more\n"), ReadLine(), Exit(3))
    async with spawn(port, *steps) as process:

        async def of_turn(since: int, servers: Sequence[str] = ()) -> tuple[ProcessSeen, ...]:
            agent = AgentPrograms(process.pid, servers)
            return processes_of_turn(await process.list_processes() or (), since, agent)

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
    """The context of a program that hangs is left: the program is terminated by SIGTERM."""
    async with spawn(port, UP, Hang(), terminate_s=LONG_S) as process:
        await up(process)
    assert fate(await process.wait_ended()) == (-15, "terminate", 0, 0)


@contract
async def test_leaving_closes_the_input(port: Port) -> None:
    """The context is left of a program that ignores SIGTERM but exits at the end of its input: the program exits by
    itself, and its unread output is dropped."""
    async with spawn(port, IgnoreTerm(), UP, Say(b"unread"), ReadAll(), Exit(6), terminate_s=LONG_S) as process:
        await up(process, b"up\n")
    report = await process.wait_ended()
    assert (report.status, report.killed, report.survivors) == (6, 0, 0)
    assert (await process.receive(), await process.receive_err()) == (b"", b"")


@contract
async def test_leaving_kills_who_ignores_it(port: Port) -> None:
    """The context of a program that ignores SIGTERM is left: the program is killed after ``terminate_s``."""
    async with spawn(port, IgnoreTerm(), UP, Hang(), terminate_s=0.05) as process:
        await up(process)
    assert fate(await process.wait_ended()) == (-9, "kill", 0, 0)


@contract
async def test_leaving_ends_a_daemon(port: Port) -> None:
    """A main process ends by SIGTERM, but its daemon ignores SIGTERM: leaving the context kills the daemon too."""
    async with spawn(port, *DAEMON, UP, Hang(), terminate_s=LONG_S) as process:
        await up(process)
    assert fate(await process.wait_ended()) == (-15, "terminate", 1, 0)


@contract
async def test_a_kill_kills_all(port: Port) -> None:
    """``kill`` ends the whole process tree; the report counts in ``killed`` only descendants, not the main process."""
    async with spawn(port, *DAEMON, CHILD, DEAF, UP, Hang()) as process:
        await up(process)
        process.kill()
        assert await process.wait_exit() == -9
        assert fate(await process.wait_ended()) == (-9, "kill", 3, 0)


@contract
async def test_terminate_then_kill(port: Port) -> None:
    """``kill`` after a ``terminate`` without effect: ``ended_by`` is ``kill``, and leaving the context does not wait
    for ``terminate_s``."""
    async with spawn(port, IgnoreTerm(), UP, Hang(), terminate_s=1e5) as process:
        await up(process)
        process.terminate()
        process.kill()
    assert fate(await process.wait_ended()) == (-9, "kill", 0, 0)


@contract
async def test_terminate_reaches_the_whole_tree(port: Port) -> None:
    """``terminate`` sends SIGTERM to every process of the tree; a child that ignores SIGTERM is killed when the main
    process ends."""
    async with spawn(port, CHILD, IgnoreTerm(), CHILD, UP, Reap(), ReadLine(), Exit(4)) as process:
        await up(process)
        process.terminate()
        await up(process, b"-15\n")
        await process.send(b"go\n")
        assert fate(await process.wait_ended()) == (4, "terminate", 1, 0)


@contract
async def test_an_order_that_comes_too_late(port: Port) -> None:
    """Orders after the end of a program, and signal numbers that do not exist, neither raise nor change the report."""
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
async def test_a_signal_is_for_the_process_group(port: Port, number: int) -> None:
    """A signal ends the main process and the members of its process group, as Ctrl-C does in a terminal, and
    ``ended_by`` is ``exit``, as for a signal that another program sends."""
    async with spawn(port, CHILD, UP, Hang(), terminate_s=LONG_S) as process:
        await up(process)
        process.signal(number)
        report = await process.wait_ended()
        assert fate(report) in [(-number, "exit", 0, 0), (-number, "exit", int(number == signal.SIGKILL), 0)]


@contract
async def test_after_an_interrupt_the_others_are_terminated(port: Port) -> None:
    """A main process ends by SIGINT. A daemon does not get that signal: it ends by SIGTERM; a daemon that ignores
    SIGTERM is killed at once, since waiting does not help."""
    daemon = Fork((Ready(), Hang()), new_session=True)
    async with spawn(port, *DAEMON, daemon, UP, Hang(), terminate_s=LONG_S) as process:
        await up(process)
        process.signal(signal.SIGINT)
        assert fate(await process.wait_ended()) == (-2, "exit", 1, 0)


@contract
async def test_deaf_to_sigterm_is_not_deaf_to_others(port: Port) -> None:
    """A program that ignores SIGTERM receives SIGINT: the program ends by SIGINT."""
    async with spawn(port, IgnoreTerm(), UP, Hang()) as process:
        await up(process)
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)
        assert fate(await process.wait_ended()) == (-2, "exit", 0, 0)


@contract
async def test_some_signals_are_nothing(port: Port) -> None:
    """Signals that are ignored by default have no effect: the program ends only by SIGUSR2, which is sent last."""
    async with spawn(port, UP, Hang()) as process:
        await up(process)
        for number in (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGUSR2):
            process.signal(number)
        assert await process.wait_exit() == -signal.SIGUSR2


@contract
async def test_a_lost_shim_takes_its_program_along(port: Port) -> None:
    """The shim of a program is lost: the program dies, and everything that it had started, daemons too, is ended and
    counted."""
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
    """A program echoes its input: every byte comes back in order, and the program exits at the end of its input."""
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
    """The input of a program is closed at once: the program reads end of file, and data that is sent afterwards is
    dropped."""
    async with spawn(port, ReadAll()) as process:
        process.close_input()
        await process.send(b"late")
        assert await all_output(process) == b"0\n"
        assert await process.wait_exit() == 0


@contract
async def test_two_senders_do_not_mix(port: Port) -> None:
    """Two tasks send large pieces at the same time: each piece arrives whole."""
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
    """A program does not read: ``send`` does not return while the pipe is full, and returns when the program has
    ended."""
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
    """A ``send`` waits for room in the pipe when the input is closed: the ``send`` returns, and the rest of its data is
    dropped."""
    async with spawn(port, UP, Hang()) as process, anyio.create_task_group() as group:
        group.start_soon(process.send, bytes(1_000_000))
        await up(process)
        await anyio.wait_all_tasks_blocked()
        process.close_input()


@contract
async def test_a_flood_waits_for_its_reader(port: Port) -> None:
    """A program writes more than a pipe holds: the program waits for the reader, and no byte is lost."""
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
    """A program writes bytes one at a time: all of them arrive in order."""
    async with spawn(port, Dribble(b"slow but sure", every_s=0.001)) as process:
        assert await all_output(process) == b"slow but sure"
        assert await process.wait_exit() == 0


@contract
async def test_bytes_are_bytes(port: Port) -> None:
    """Output that is not valid text arrives unchanged."""
    odd = b"\xff\xfe\x00\xc3(\r\n\x80" + bytes(range(256))
    async with spawn(port, Say(odd)) as process:
        assert await all_output(process) == odd


@contract
async def test_one_task_receives(port: Port) -> None:
    """A second task calls ``receive`` while another one waits in it: the second task gets a BusyResourceError."""
    async with spawn(port, ReadLine()) as process, anyio.create_task_group() as group:
        group.start_soon(process.receive)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await process.receive()
        process.close_input()


@contract
async def test_leaving_ends_a_receive(port: Port) -> None:
    """The context is left while a task waits in ``receive``: the task receives ``b""``."""
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
    """A program cannot be started: ``spawn`` raises a SpawnError with the reason, and the attempt leaves nothing
    behind."""
    with pytest.raises(SpawnError, match=sentence):
        async with port.host.spawn(Launch(argv=argv, cwd=cwd, env=env)):
            pytest.fail("it started")


@contract
async def test_cancelled_before_it_begins(port: Port) -> None:
    """The scope is cancelled before the start: the program starts nevertheless, and is then terminated."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with spawn(port, Hang(), terminate_s=LONG_S) as process:
            assert process.pid > 0
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert fate(await process.wait_ended()) == (-15, "terminate", 0, 0)


@contract
async def test_cancelled_while_it_begins(port: Port) -> None:
    """The scope is cancelled at different moments of a start: no process is left."""
    for delay_s in (0.0, 0.001, 0.005, 0.02, 0.04):
        with anyio.move_on_after(delay_s) as scope:
            async with spawn(port, *DAEMON, DEAF, Hang(), terminate_s=0.0) as process:
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert (await process.wait_ended()).survivors == 0


@contract
async def test_a_refusal_is_told_to_the_cancelled(port: Port) -> None:
    """A program cannot be started in a scope that is already cancelled: ``spawn`` raises the SpawnError all the
    same."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        with pytest.raises(SpawnError):
            async with port.host.spawn(Launch(argv=("no-such-program",), cwd="/", env=PATH)):
                pytest.fail("it started")


@contract
async def test_cancelled_while_it_runs(port: Port) -> None:
    """The body of the context is cancelled: the process tree ends, daemon included, and the report is available."""
    with anyio.CancelScope() as scope:
        async with spawn(port, *DAEMON, UP, Hang(), terminate_s=LONG_S) as process:
            await up(process)
            scope.cancel()
            await process.wait_exit()
    assert scope.cancelled_caught
    assert fate(await process.wait_ended()) == (-15, "terminate", 1, 0)


@contract
async def test_an_exception_leaves_as_it_is(port: Port) -> None:
    """The body of the context raises: the exception leaves the context unwrapped, and no process is left."""
    with pytest.raises(ZeroDivisionError):
        async with spawn(port, DEAF, UP, Hang()) as process:
            await up(process)
            raise ZeroDivisionError
    assert fate(await process.wait_ended()) == (-15, "terminate", 1, 0)


@contract
async def test_many_at_once(port: Port) -> None:
    """Eight programs start, write and end at the same time: each has its own pid, output and status."""
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
