"""Crash test of the example workstream: kill ``supervisor run examples/workstream.yaml`` at random moments, run it
again, and check the result.

``python -m tests.crash.workstream --cycles N``. A cycle consists of a fresh repository, one to three kills, and a run
to the end, during which a person approves the waiting task. Then the merged result must pass its tests, the repository
must be clean, and the journal and the log must be valid.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from supervisor.diagnostics.validate import validate_lines
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from tests.support import check_records

ROOT = Path(__file__).parent.parent.parent
PLAN = ROOT / "examples" / "workstream.yaml"
LONGEST_S = 180.0
"""Seconds after which a run counts as hung."""
UNTIL_KILLED_S = (0.3, 9.0)


def cycle(folder: Path, chance: random.Random) -> list[str]:
    """Run one cycle, and return the faults that were found."""
    subprocess.run(["sh", ROOT / "examples" / "workstream.sh", "calculator"], cwd=folder, check=True)
    repository = folder / "calculator"
    for _ in range(chance.randint(1, 3)):
        if run(repository, chance.uniform(*UNTIL_KILLED_S)) is not None:
            break  # it was over before that
    status = run(repository, LONGEST_S)
    wrong = (
        [] if status == 0 else [f"the last run ended with {status}: {(repository.parent / 'said').read_text()[-2000:]}"]
    )
    return wrong + check(repository)


def run(repository: Path, kill_after_s: float) -> int | None:
    """Run the plan until the run ends or is killed after *kill_after_s* seconds; return the exit status, or ``None``
    after a kill."""
    with (
        (repository.parent / "said").open("ab") as said,
        subprocess.Popen(
            [sys.executable, "-m", "supervisor", "run", PLAN], cwd=repository, stdout=said, stderr=said
        ) as process,
    ):
        until = time.monotonic() + kill_after_s
        while process.poll() is None and time.monotonic() < until:
            subprocess.run(
                [sys.executable, "-m", "supervisor", "approve", "manual"],
                cwd=repository,
                capture_output=True,
                check=False,
            )
        if process.poll() is not None:
            return process.returncode
        process.kill()
        return None


def check(repository: Path) -> list[str]:
    """Check the merged result, the repository, the journal and the log; return the faults."""
    wrong = []
    tests = subprocess.run(
        [sys.executable, "-m", "unittest", "discover", "-q"], cwd=repository, capture_output=True, check=False
    )
    if tests.returncode:
        wrong.append(f"the merged result fails its tests: {tests.stderr.decode()[-500:]}")
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=repository, capture_output=True, text=True, check=True
    )
    if status.stdout:
        wrong.append(f"the repository is not clean: {status.stdout}")
    state = StateDir(repository / ".sdd")
    with JournalReader(state.journal) as journal:
        try:
            check_records(list(journal.events()), journal.entities(), [], refused=True)
        except AssertionError as error:
            wrong.append(f"the journal: {str(error)[:500]}")
    lines = state.transitions.read_bytes().splitlines(keepends=True)
    return wrong + [f"the log: {problem}" for problem in validate_lines(lines).problems]


def main() -> int:
    parser = argparse.ArgumentParser(prog="workstream", description=__doc__)
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance, faults, began = random.Random(arguments.seed), 0, time.monotonic()
    for number in range(arguments.cycles):
        with tempfile.TemporaryDirectory(prefix="workstream-") as folder:
            for words in cycle(Path(folder), chance):
                faults += 1
                print(f"cycle {number}: {words}")
    print(json.dumps({"cycles": arguments.cycles, "faults": faults, "seconds": round(time.monotonic() - began, 1)}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
