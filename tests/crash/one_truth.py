"""Kill agents of a daemon at random, and compare four accounts of which agents live.

``python -m tests.crash.one_truth --kills N``. After each kill the accounts must come to be the same: the agents
that the event stream has shown to live, those of ``GET /api/v1/tree``, and those of ``GET /api/v1/processes``, whose
processes must be the ones of agents in ``/proc``; after each 25th kill also those of ``supervisor ps --json``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
CONFIG = """
agents: {a: {adapter: scripted}}
max_sessions_total: 20
limits: {backoff_base_ms: 10, backoff_cap_ms: 10, restarts_max: 100000, max_consecutive_errors: 100000, \
max_total_errors: 100000}
"""
SESSIONS = 8
WITHIN_S = 1.0
LONGEST_S = 60.0
EVERY_COMMAND = 25
AGENT = b"supervisor/agents/scripted_agent.py"


class Connection(http.client.HTTPConnection):
    """Connection to the HTTP API on the unix socket *path*."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=LONGEST_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def ask(self, method: str, route: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request and return its reply, decoded from JSON."""
        headers = {"content-type": "application/json"} if body is not None else {}
        self.request(method, f"/api/v1/{route}", json.dumps(body) if body is not None else None, headers)
        with self.getresponse() as reply:
            text = reply.read()
            assert reply.status < 300, text
        return json.loads(text)


class Stream(threading.Thread):
    """Client of the event stream; ``living`` has the ids of the agents that have begun and not ended."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._living: set[str] = set()

    @property
    def living(self) -> set[str]:
        return set(self._living)

    def run(self) -> None:
        connection = Connection(self._path)  # the stream's heartbeats come within the connection's time-out
        connection.request("GET", "/api/v1/events?after=0")
        with connection.getresponse() as reply:
            for line in reply:
                if line.startswith(b"data: ") and b'"entity_type":"agent"' in line:
                    self._take(json.loads(line[6:]))

    def _take(self, record: dict[str, Any]) -> None:
        if record["to_status"] in ("working", "idle"):
            self._living.add(record["entity_id"])
        elif record["to_status"] == "dead":
            self._living.discard(record["entity_id"])


def agents_of(nodes: list[dict[str, Any]]) -> set[str]:
    """Return the ids of the living agents in *nodes* and below them."""
    living = ("working", "idle")
    found = {one["id"] for one in nodes if one["kind"] == "agent" and one["state"] in living and not one["ended"]}
    return found.union(*(agents_of(one["children"]) for one in nodes if "children" in one))


def pids_of_kernel(folder: Path) -> set[int]:
    """Return the processes that run the agent's program in *folder*."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if (entry / "cwd").readlink() == folder and AGENT in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except (OSError, ValueError):  # it has ended, or is no process
            continue
    return found


class Accounts:
    """Accounts of the agents of the daemon on the state directory *state*, from each side."""

    def __init__(self, api: Connection, stream: Stream, state: Path) -> None:
        self._api, self._stream, self._state = api, stream, state
        self.pids: dict[str, int] = {}

    def differences(self, *, command: bool) -> list[str]:
        listed = self._api.ask("GET", "processes")["processes"]
        self.pids = {one["agent"]: one["pid"] for one in listed if one["role"] == "agent"}
        accounts: dict[str, set[Any]] = {
            "stream": self._stream.living,
            "tree": agents_of(self._api.ask("GET", "tree")["nodes"]),
            "processes": set(self.pids),
        }
        if command:
            ps = [sys.executable, "-m", "supervisor", "ps", "--json", "--state-dir", str(self._state)]
            accounts["ps"] = agents_of(json.loads(subprocess.run(ps, check=True, capture_output=True).stdout))
        wrong = [f"{name}: {sorted(found)}" for name, found in accounts.items()]
        kernel = pids_of_kernel(self._state.parent)
        if kernel != set(self.pids.values()):
            return [*wrong, f"/proc: {sorted(kernel)}, listed {self.pids}"]
        return wrong if len(set(map(frozenset, accounts.values()))) > 1 else []


def settle(accounts: Accounts, *, gone: str, command: bool) -> tuple[float, list[str]]:
    """Compare until the accounts are the same and the agent *gone* is in none of them; return the seconds, without the
    last comparison's, and the differences that are left after ``LONGEST_S``."""
    began = time.monotonic()
    while True:
        at = time.monotonic()
        found = accounts.differences(command=command)
        if not found and gone not in accounts.pids:
            return at - began, []
        if at - began > LONGEST_S:
            return at - began, found or [f"{gone} is listed"]


def measure(folder: Path, kills: int, chance: random.Random) -> dict[str, Any]:
    """Kill *kills* agents of a daemon in *folder*; return the times, in seconds, and what did not come to agree."""
    state = folder / "sd"
    (folder / "daemon.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "supervisor", "serve", "daemon.yaml", "--http", "--state-dir", str(state)]
    log = (folder / "log").open("wb")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    daemon = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    took, faults = [], []
    try:
        until = time.monotonic() + LONGEST_S
        while b"serving on" not in (folder / "log").read_bytes():
            assert time.monotonic() < until, (folder / "log").read_text()
            assert daemon.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        api = Connection(state / "runtime" / "http.sock")
        stream = Stream(state / "runtime" / "http.sock")
        stream.start()
        for number in range(SESSIONS):
            api.ask("POST", "sessions", {"name": f"s{number}", "agent": "a", "prompt": "@run sleep 1000"})
        accounts = Accounts(api, stream, state)
        for number in range(kills):
            until = time.monotonic() + LONGEST_S
            while len(accounts.pids) < SESSIONS // 2:  # the others cool down
                assert time.monotonic() < until, f"only {accounts.pids} run"
                accounts.differences(command=False)
            agent = chance.choice(sorted(accounts.pids))
            os.kill(accounts.pids[agent], signal.SIGKILL)
            is_command = number % EVERY_COMMAND == 0
            took_s, left = settle(accounts, gone=agent, command=is_command)
            if not is_command:  # the command itself takes about a second
                took.append(took_s)
            if left:
                faults.append(f"kill {number}, {agent}: {left}")
    finally:
        for _ in range(int(LONGEST_S)):
            daemon.send_signal(signal.SIGTERM)  # the second ends the turns in progress
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(1.0)
                break
        daemon.kill()
        daemon.wait()
        log.close()
    took.sort()
    late = sum(one > WITHIN_S for one in took)
    return {"kills": kills, "median_s": round(took[len(took) // 2], 3), "longest_s": round(took[-1], 3),
            "late": late, "faults": faults}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="one_truth", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="one-truth-") as folder:
        found = measure(Path(folder).resolve(), arguments.kills, random.Random(arguments.seed))
    print(json.dumps(found))
    return 1 if found["faults"] else 0  # not for the late ones: a busy machine is late, too


if __name__ == "__main__":
    sys.exit(main())
