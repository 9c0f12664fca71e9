"""Event streams and reads of the HTTP API: readers that follow, stall or leave; aborts beside them; the tree.

The supervisor runs in a process of its own, on each backend; clients run in this process. Four measurements:

* *readers* follow the stream from the first record to the last, while *stalled* clients never read and others leave
  without a word: each reader must get every record once. Every 20th reader cuts its connection every 50 records and
  goes on from its last number.
* then the supervisor is stopped while all streams are open: seconds until it is closed (aim: 3);
* the latency of aborts of a session, as the supervisor measures it, with the readers and without, in turns (aim: 1.1x);
* ``GET /api/v1/tree`` with many live sessions, and ``supervisor ps --json`` on the same state directory (aim: 0.1x).

Run: ``python -m benchmarks.http [--readers N] [--records N] [--sessions N] [--short]``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import anyio

from benchmarks.harness import BACKENDS, options
from supervisor import AbortScope, AgentTurn, Supervisor, open_supervisor
from supervisor.control.operations import begin_prompt

CUT: Final = 50
"""Number of records after which a reader cuts its connection."""
WAIT_S: Final = 900.0
STOP_AIM_S: Final = 3.0
ABORT_AIM: Final = 1.1
TREE_AIM: Final = 0.1


class Load(NamedTuple):
    """Numbers of readers, clients that stall, clients that leave, records, aborts for each figure, live sessions, and
    rounds."""

    readers: int = 200
    stalled: int = 10
    left: int = 10
    records: int = 10_000
    aborts: int = 40
    sessions: int = 2_000
    rounds: int = 5


SHORT: Final = Load(readers=4, stalled=1, left=1, records=200, aborts=2, sessions=5, rounds=1)


# ---------------------------------------------------------------------------------------------------- the server
class Agent:
    """Agent that hangs in a call if the prompt says so; ``hangs`` is set then."""

    def __init__(self) -> None:
        self.hangs = anyio.Event()

    async def work(self, turn: AgentTurn) -> str:
        if turn.prompt == "hang":
            await turn.call("hang", self._hang)
        return turn.prompt

    async def _hang(self) -> None:
        self.hangs.set()
        await anyio.sleep_forever()


async def serve(state_dir: str) -> None:
    """Serve the API, and carry out commands from standard input: a line of JSON for each, and for each reply."""
    async with open_supervisor(state_dir, http=True) as sup:
        print(json.dumps({"ready": True}), flush=True)
        lines = anyio.wrap_file(sys.stdin)
        async for line in lines:
            command, *numbers = line.split()
            print(json.dumps(await COMMANDS[command](sup, *map(int, numbers))), flush=True)
            if command == "stop":
                break
    print(json.dumps({"closed": True}), flush=True)


async def make_records(sup: Supervisor, count: int) -> int:
    """Make at least *count* records; return the number of the last one."""
    session = await sup.start_session("busy", agent=Agent().work)
    while sup.core.journal.last_seq < count:
        await session.run("work")
    return sup.core.journal.last_seq


async def measure_aborts(sup: Supervisor, count: int) -> list[float]:
    """Abort *count* sessions, one after the other, each in a call, with a pause between; return the seconds of each."""
    took = []
    for number in range(count):
        agent = Agent()
        session = await sup.start_session(f"a{number}", agent=agent.work)
        begin_prompt(sup, session.id, "hang", actor="benchmark")
        await agent.hangs.wait()
        await anyio.sleep(0.25)  # until no reader is behind
        began = perf_counter()
        receipt = await sup.abort(session.id, AbortScope.SESSION, reason="benchmark")
        took.append(perf_counter() - began)
        assert receipt.survivors == 0
    return took


async def start_sessions(sup: Supervisor, count: int) -> int:
    for number in range(count):
        await sup.start_session(f"s{number}", agent=Agent().work)
    return len(sup.sessions())


async def stop(sup: Supervisor) -> bool:
    await sup.stop(now=True)
    return True


COMMANDS: Final[dict[str, Any]] = {
    "records": make_records,
    "aborts": measure_aborts,
    "sessions": start_sessions,
    "stop": stop,
}


class Server:
    """A supervisor in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], state_dir: Path) -> None:
        self._process, self.state_dir = process, state_dir
        self.socket = str(state_dir / "runtime" / "http.sock")

    async def ask(self, *arguments: object) -> Any:
        return await asyncio.to_thread(self.ask_now, *arguments)

    def ask_now(self, *arguments: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, arguments)) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    async def stop(self) -> float:
        """Stop the supervisor; return the seconds until nothing of it is left but the interpreter, whose end takes as
        long as this program has objects. (A daemon ends its process at once.)"""
        began = perf_counter()
        await self.ask("stop")
        assert self._process.stdout is not None
        assert json.loads(await asyncio.to_thread(self._process.stdout.readline))["closed"]
        took_s = perf_counter() - began
        await asyncio.to_thread(self._process.wait, WAIT_S)
        return took_s


@contextmanager
def server(backend: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="http-") as folder:
        state_dir = Path(folder) / "sd"
        argv = [sys.executable, "-m", "benchmarks.http", "--serve", str(state_dir), "--backend", backend]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(argv, **pipes, stderr=subprocess.DEVNULL)
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["ready"]
            yield Server(process, state_dir)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


# ---------------------------------------------------------------------------------------------------- clients
async def open_stream(path: str, after: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(path, limit=2**24)
    writer.write(f"GET /api/v1/events?after={after} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


class Reader:
    """Client that follows the events, and notes the numbers of the records; with *cut*, over many connections."""

    def __init__(self, path: str, *, cut: bool) -> None:
        self._path, self._cut = path, cut
        self.seen: list[int] = []
        self.reason = ""

    async def follow(self) -> None:
        """Follow until the last event. A piece of the body may end within a line, so lines are put together again."""
        while not self.reason:
            reader, writer = await open_stream(self._path, self.seen[-1] if self.seen else 0)
            try:
                await self._read(reader)
            finally:
                writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):  # 429: all readers of this process count as one sender
            await asyncio.sleep(1.0)
            return
        rest, count = b"", 0
        while size := int(await reader.readline() or b"0", 16):
            rest += (await reader.readexactly(size + 2))[:-2]
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if line.startswith(b"id: "):
                    self.seen.append(int(line[4:]))
                    count += 1
                elif line.startswith(b'data: {"reason":'):
                    self.reason = json.loads(line[6:])["reason"]
                if self._cut and count == CUT:
                    return


async def wait_for(condition: Any, what: str) -> None:
    began = perf_counter()
    while not condition():
        if perf_counter() - began > WAIT_S:
            raise SystemExit(f"{what}: not within {WAIT_S:g} s")
        await asyncio.sleep(0.05)


# ---------------------------------------------------------------------------------------------------- figures
async def measure_readers(backend: str, load: Load) -> float:
    """Print the figures of the readers; return by what factor the end exceeds its aim."""
    with server(backend) as served:
        readers = [Reader(served.socket, cut=number % 20 == 1) for number in range(load.readers)]
        following = [asyncio.create_task(one.follow()) for one in readers]
        stalled = [await open_stream(served.socket, 0) for _ in range(load.stalled)]
        for number in range(load.left):
            reader, writer = await open_stream(served.socket, 0)
            await reader.read(100 * number + 1)
            writer.transport.abort()
        began = perf_counter()
        last = await served.ask("records", load.records)
        made_s = perf_counter() - began
        await wait_for(lambda: all(one.seen and one.seen[-1] >= last for one in readers), "all records")
        read_s = perf_counter() - began
        end_s = await served.stop()
        await asyncio.gather(*following)
        for _, writer in stalled:
            writer.close()
    wrong = [one for one in readers if one.seen != list(range(1, one.seen[-1] + 1)) or one.seen[-1] < last]
    if wrong or {one.reason for one in readers} != {"stopped"}:
        raise SystemExit(
            f"{len(wrong)} readers missed records, or have them twice; ends: {[one.reason for one in wrong]}"
        )
    rate = load.readers * last / read_s
    print(
        f"{backend:<8} {load.readers} readers, {load.stalled} stalled, {load.left} left: {last:,} records made in "
        f"{made_s:.1f} s, each read once in {read_s:.1f} s ({rate:,.0f} events/s); stop: {end_s:.2f} s"
    )
    return end_s / STOP_AIM_S


async def measure_latency(backend: str, load: Load) -> float:
    """Print the latency of aborts with readers and without; return by what factor the ratio exceeds its aim."""
    alone: list[float] = []
    beside: list[float] = []
    with server(backend) as served:
        for _ in range(load.rounds):
            alone += await served.ask("aborts", load.aborts)
            readers = [Reader(served.socket, cut=False) for _ in range(load.readers)]
            following = [asyncio.create_task(one.follow()) for one in readers]
            await wait_for(lambda found=readers: all(one.seen for one in found), "all readers")  # type: ignore[misc]
            beside += await served.ask("aborts", load.aborts)
            for one in following:
                one.cancel()
            await asyncio.gather(*following, return_exceptions=True)
        await served.stop()
    ratio = statistics.median(beside) / statistics.median(alone)
    print(
        f"{backend:<8} an abort takes {statistics.median(alone) * 1e3:.2f} ms without readers, "
        f"{statistics.median(beside) * 1e3:.2f} ms with {load.readers}: {ratio:.2f}x"
    )
    return ratio / ABORT_AIM


async def measure_tree(backend: str, load: Load) -> float:
    """Print the time of the tree by HTTP and of ``ps`` on the command line; return by what factor the ratio exceeds its
    aim."""
    by_http, by_command = [], []
    with server(backend) as served:
        await served.ask("sessions", load.sessions)
        ps = [sys.executable, "-m", "supervisor", "ps", "--json", "--state-dir", str(served.state_dir)]
        for _ in range(load.rounds):
            by_http.append(await fetch_tree(served.socket, load.sessions))
            began = perf_counter()
            listed = await asyncio.to_thread(subprocess.run, ps, check=True, capture_output=True)
            by_command.append(perf_counter() - began)
            assert listed.stdout.count(b'"session"') >= load.sessions
        await served.stop()
    ratio = statistics.median(by_http) / statistics.median(by_command)
    print(
        f"{backend:<8} {load.sessions:,} live sessions: GET /api/v1/tree {statistics.median(by_http) * 1e3:.0f} ms, "
        f"supervisor ps --json {statistics.median(by_command) * 1e3:.0f} ms: {ratio:.2f}x"
    )
    return ratio / TREE_AIM


async def fetch_tree(path: str, sessions: int) -> float:
    reader, writer = await asyncio.open_unix_connection(path, limit=2**24)
    began = perf_counter()
    writer.write(b"GET /api/v1/tree HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    took_s = perf_counter() - began
    writer.close()
    assert body.count(b'"kind":"session"') == sessions
    return took_s


MEASURED: Final = {"readers": measure_readers, "aborts": measure_latency, "tree": measure_tree}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    for name, number in Load()._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=number, help=f"number of {name} (default {number})")
    parser.add_argument("--only", choices=MEASURED, help="measure only that")
    parser.add_argument("--backend", choices=BACKENDS, help="measure only on that backend")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.serve:
        anyio.run(serve, args.serve, backend=args.backend)
        return
    load = SHORT if args.short else Load(**{name: getattr(args, name) for name in Load._fields})
    missed = []
    for name, measure in MEASURED.items():
        for backend in BACKENDS:
            if args.only in (None, name) and args.backend in (None, backend):
                excess = asyncio.run(measure(backend, load))
                if excess > 1 and not args.short:
                    missed.append(f"{name} on {backend}: {excess:.2f}x the aim")
    if missed:
        raise SystemExit("; ".join(missed))


if __name__ == "__main__":
    main()
