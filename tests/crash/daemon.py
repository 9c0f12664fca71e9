"""Crash test of a daemon: kill ``supervisor serve`` at random moments while plans and sessions are submitted and work.

``python -m tests.crash.daemon --kills N``. Three plans are submitted with keys, from directories of their own, and five
sessions are started. After each kill the daemon is started again, and every plan is submitted again with its key, as a
script would that does not know whether its request arrived. Whatever has ended meanwhile is followed by another of its
kind, so that three plans and five sessions are under way at each kill. Every fifth daemon is stopped by SIGTERM
instead. Right before each kill a webhook delivers: the kill comes between the receipt and the start of the run, and
the delivery is sent again until it is acknowledged, and once more. In the end every run must be completed: each task
has one entity and one completed job, the runs are those of the first replies and one for each delivery, and each
session has ended each prompt. No plan is kept that has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import httpx2

from supervisor.control.client import answers_to
from supervisor.control.error_messages import ControlError, NotRunning
from supervisor.control.requests import Prompt, Request, Start, Submit
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from tests.support import check_records

ROOT = Path(__file__).parent.parent.parent
LONGEST_S = 300.0
"""Seconds after which a daemon counts as hung."""
UNTIL_KILLED_S = (0.0, 2.5)
"""Bounds of the time from the submissions to the kill."""
PLANS = ("x", "y", "z")
SESSIONS = 5
WORK = "@run sleep 3"
"""Prompt of a session: longer than until the kill."""
IDLE = "SessionComplete"
"""State of a session that waits for a prompt."""
SECRET = "a-secret-of-the-crash-test"
CONFIG = (
    "agents: {a: {adapter: scripted}}\nrecovery: {sessions: restart}\nmax_sessions_total: 8\ntriggers: true\nhttp: {}\n"
)
TRIGGERS = """
triggers:
  hook:
    webhook: {provider: generic, secret: {env: HOOK_TOKEN}, requests_per_minute: 6000}
    overlap: allow
    starts_per_hour: 1000
    task: {id: hooked, agent: a, prompt: "@say done", max_retries: 1000}
"""
TOKEN = "token-of-the-crash-test"
EVERY_STOPPED = 5


class Account:
    """Replies that the daemons have given: runs by key, and sessions; and the faults that were found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = StateDir(folder / "sd")
        self.runs: dict[str, str] = {}
        self.plans = dict.fromkeys(PLANS, 0)
        """Number of the plan that is under way in each directory."""
        self.sessions: set[str] = set()
        self.deliveries: dict[str, bool] = {}
        """Whether each delivery was acknowledged."""
        self.cut_off: set[str] = set()
        """Deliveries that were accepted, and had no run when the daemon was killed."""
        self.under_way: list[tuple[int, int]] = []
        """Numbers of runs and of sessions at work before each kill."""
        self.faults: list[str] = []


def plan_of(count: int, key: str) -> dict[str, Any]:
    """Return a plan of *count* tasks, each of which appends its name to a file with the *key* in its name."""
    work = 'sleep 0.2; test -n "$API_KEY" && echo {name} >> {name}'
    tasks: list[dict[str, Any]] = []
    for number in range(count):
        name = f"t{number}"
        needed = {"depends_on": [f"t{number - 3}"]} if number % 3 == 2 and number > 3 else {}
        prompt = work.format(name=f"{key}-{name}")
        tasks.append({"id": name, "agent": "w", "prompt": prompt, "max_retries": 1000, **needed})
    return {"agents": {"w": {"adapter": "command", "command": ["sh", "-c", "{prompt}"]}}, "tasks": tasks}


def start(account: Account) -> subprocess.Popen[bytes]:
    """Start a daemon, and wait until it serves."""
    command = [sys.executable, "-m", "supervisor", "serve", str(account.folder / "daemon.yaml")]
    log = account.folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--state-dir", str(account.state.root)],
            cwd=account.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HOOK_TOKEN": TOKEN},
            stdout=out,
            stderr=out,
        )
    until = time.monotonic() + LONGEST_S
    while b"serving on" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            raise AssertionError(f"the daemon does not serve: {log.read_text()[-2000:]}")
        time.sleep(0.01)
    return process


def ask(account: Account, asked: Request) -> dict[str, Any]:
    return anyio.run(answers_to, account.state.control_socket, asked)[0]


def submit_all(account: Account, count: int, *, more: bool) -> None:
    """Submit each plan with its key, and start the sessions that no daemon has acknowledged yet. With *more* begin
    another plan where one has ended, and give each session that has nothing to do another prompt."""
    states = states_of(account)
    for folder in PLANS:
        key = f"{folder}{account.plans[folder]}"
        if more and states.get(account.runs.get(key, ""), (False, ""))[0]:
            account.plans[folder] += 1
            key = f"{folder}{account.plans[folder]}"
        directory = str(account.folder / folder)
        asked = Submit(plan=plan_of(count, key), directory=directory, environment={"API_KEY": SECRET}, key=key)
        run = ask(account, asked)["run"]
        if account.runs.setdefault(key, run) != run:
            account.faults.append(f"the key {key} was run {account.runs[key]}, and is {run}")
    while len(account.sessions) < SESSIONS:
        started = ask(account, Start(name=f"s{len(account.sessions)}", agent="a", prompt=WORK))
        account.sessions.add(str(started["session"]))
    for session in sorted(account.sessions) if more else ():
        if states.get(session, (False, ""))[1] == IDLE:
            ask(account, Prompt(id=session, text=WORK))


def states_of(account: Account) -> dict[str, tuple[bool, str]]:
    """Return of each entity whether it has ended, and its state."""
    with JournalReader(account.state.journal) as journal:
        return {row.id: (row.ended, row.state) for row in journal.entities()}


def deliver(account: Account, delivery: str) -> None:
    """Send a delivery. That it is repeated acknowledges it, too: then the reply to the first one was lost."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": delivery}
    transport = httpx2.HTTPTransport(uds=str(account.state.http_socket))
    with httpx2.Client(transport=transport, base_url="http://localhost", timeout=LONGEST_S) as client:
        reply = client.post("/hooks/hook", content=b"{}", headers=headers)
    is_repeated = reply.status_code == 200 and reply.json()["reason"].startswith("repeated")
    if account.deliveries.get(delivery) and not is_repeated:
        account.faults.append(f"delivery {delivery} was acknowledged, and is answered by {reply.text}")
    account.deliveries[delivery] = reply.status_code == 202 or is_repeated


def deliver_again(account: Account) -> None:
    """Send the last delivery again, and those that were not acknowledged."""
    last = list(account.deliveries)[-1:]
    for delivery in [one for one, is_known in account.deliveries.items() if not is_known or one in last]:
        deliver(account, delivery)


def deliveries_of(account: Account, event: str) -> Counter[str]:
    """Return how often each delivery has a record of that event."""
    with JournalReader(account.state.journal) as journal:
        return Counter(str(one.metadata["delivery"]) for one in journal.events() if one.event == event)


def note_under_way(account: Account) -> None:
    states = states_of(account)
    runs = sum(not states.get(run, (False, ""))[0] for run in account.runs.values())
    account.under_way.append((runs, sum(states.get(one, (False, ""))[1] != IDLE for one in account.sessions)))


def cycle(folder: Path, count: int, kills: int, chance: random.Random) -> dict[str, Any]:
    """Kill the daemon *kills* times, then let it complete everything; return the figures and the faults."""
    account = Account(folder)
    (folder / "daemon.yaml").write_text(CONFIG)
    account.state.config.mkdir(parents=True, mode=0o700)
    account.state.root.chmod(0o700)
    account.state.triggers.write_text(TRIGGERS)
    for key in PLANS:
        (folder / key).mkdir()
    stopped = 0
    for number in range(kills):
        process = start(account)
        try:
            submit_all(account, count, more=True)
            deliver_again(account)
            time.sleep(chance.uniform(*UNTIL_KILLED_S))
            note_under_way(account)
            deliver(account, f"d{number}")
            time.sleep(chance.choice((0.0, 0.001, 0.01, 0.05)))
            is_stopped = number % EVERY_STOPPED == EVERY_STOPPED - 1
            process.send_signal(signal.SIGTERM if is_stopped else signal.SIGKILL)
            status = process.wait(LONGEST_S)
            stopped += is_stopped
            account.cut_off |= deliveries_of(account, "delivery_accepted").keys() - deliveries_of(
                account, "run_started"
            )
            if is_stopped and status != 0:
                account.faults.append(f"a stop ended with {status}: {(folder / 'log').read_text()[-2000:]}")
        except (ControlError, NotRunning) as error:
            account.faults.append(f"a request failed: {error}")
        finally:
            process.kill()
            process.wait()
    process = start(account)
    try:
        submit_all(account, count, more=False)
        deliver_again(account)
        await_ends(account)
        process.send_signal(signal.SIGTERM)
        process.wait(LONGEST_S)
    finally:
        process.kill()
        process.wait()
    check(account, count)
    return {
        "kills": kills - stopped,
        "stops": stopped,
        "runs": len(account.runs),
        "deliveries": len(account.deliveries),
        "deliveries_cut_off": len(account.cut_off),
        "runs_under_way": [min(one[0] for one in account.under_way), max(one[0] for one in account.under_way)],
        "sessions_under_way": [min(one[1] for one in account.under_way), max(one[1] for one in account.under_way)],
        "faults": account.faults,
    }


def await_ends(account: Account) -> None:
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        states = states_of(account)
        runs = all(states[run][0] for run in account.runs.values()) and states["@hook"][1] == "waiting"
        if runs and all(states[one][0] or states[one][1] == IDLE for one in account.sessions):
            return
        time.sleep(0.2)
    account.faults.append(f"not all has ended: {states}")


def check(account: Account, count: int) -> None:
    """Check the journal, the files of the tasks, and that nothing is kept of runs that have ended."""
    with JournalReader(account.state.journal) as journal:
        rows = [row for row in journal.entities() if row.kind != "trigger"]
        planned = [row for row in rows if row.id.partition(":")[0] not in account.sessions]
        try:
            check_records(list(journal.events()), planned, [], refused=True)
        except AssertionError as error:
            account.faults.append(f"the journal: {str(error)[:500]}")
    started = deliveries_of(account, "run_started")
    if started != dict.fromkeys(account.deliveries, 1) or not all(account.deliveries.values()):
        account.faults.append(f"runs of deliveries: {started}; acknowledged: {account.deliveries}")
    states = {row.id: row.state for row in rows}
    if wrong := {run: states[run] for run in account.runs.values() if states[run] != "completed"}:
        account.faults.append(f"runs that were not completed: {wrong}")
    if (runs := sum(row.kind == "workstream" for row in rows)) != len(account.runs) + len(account.deliveries):
        account.faults.append(f"{runs} runs, {len(account.runs)} plans, and {len(account.deliveries)} deliveries")
    tasks = {row.id for row in rows if row.kind == "task"}
    jobs = Counter(row.parent_id for row in rows if row.kind == "job" and row.state == "completed")
    planned_tasks = len(account.runs) * count + len(account.deliveries)
    if set(jobs) != tasks or set(jobs.values()) != {1} or len(tasks) != planned_tasks:
        account.faults.append(f"tasks with other than one completed job: {[one for one in tasks if jobs[one] != 1]}")
    written = {one.name for folder in PLANS for one in (account.folder / folder).iterdir()}
    if len(written) != len(account.runs) * count:
        account.faults.append(f"{len(written)} files of tasks")
    if left := list(account.state.submissions.iterdir()):
        account.faults.append(f"plans are kept: {left}")
    if b"a-secret-of" in b"".join(one.read_bytes() for one in account.state.root.rglob("*") if one.is_file()):
        account.faults.append("the secret is in the state directory")


def main() -> int:
    parser = argparse.ArgumentParser(prog="daemon", description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="daemon-") as folder:
        found = cycle(Path(folder), arguments.tasks, arguments.kills, random.Random(arguments.seed))
    print(json.dumps({**found, "seconds": round(time.monotonic() - began, 1)}))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
