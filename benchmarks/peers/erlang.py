"""Peer Erlang/OTP, on one scheduler, since the kernel has one thread. Run as ``python -m benchmarks.peers.erlang tree
100``.

The modules are compiled into a directory of their own for each run: no file is left in the source tree.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import LIMIT_S

SOURCES = Path(__file__).parent / "erl"
PROCESSES_MAX = 500_000


def measure(what: str, count: int) -> str:
    """Run a measurement in Erlang; return the figures as Erlang prints them.

    Raises:
        subprocess.SubprocessError: the modules did not compile, did not run, or did not end in time.
    """
    with tempfile.TemporaryDirectory() as built:
        sources = [str(path) for path in sorted(SOURCES.glob("*.erl"))]
        subprocess.run(["erlc", "-o", built, *sources], check=True, stdout=sys.stderr, timeout=LIMIT_S)
        emulator = ["erl", "+P", str(PROCESSES_MAX), "+S", "1", "-noshell", "-pa", built]
        call = ["-eval", f'bench:main(["{what}", "{count}"]).']
        done = subprocess.run([*emulator, *call], check=True, capture_output=True, text=True, timeout=LIMIT_S)
    return done.stdout


if __name__ == "__main__":
    print(measure(sys.argv[1], int(sys.argv[2])))
