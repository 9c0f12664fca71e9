"""Check that the example host, ``examples/host.py``, prints what its documentation says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_host_steers_its_plan(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples/host.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "announce: rejected",
        "build: completed",
        "deploy: completed",
        "lint: completed",
        "measure: aborted",
        "test: completed",
        "unit-tests: completed",
        "announce ended by plan: rejected by ops: nothing to announce",
    ]
