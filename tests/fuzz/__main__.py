"""Give every fuzz target its share of malformed inputs; store the inputs that break a target in the corpus, and report
them."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import CORPUS, TARGETS, Take, Target

GROWTH_MAX_MIB = 300
"""MiB by which all inputs together may increase the memory of the process; the largest input has 100 kB."""
FOUND_MAX = 5
"""Number of different failures of a target after which the fuzzer goes on to the next target."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    arguments = parser.parse_args()
    wanted = [TARGETS[name] for name in arguments.target or TARGETS]
    share = sum(target.weight for target in wanted)
    began_s, before_mib = time.monotonic(), _peak_mib()
    counts, found = {}, 0
    for target in wanted:
        inputs = round(arguments.inputs * target.weight / share)
        broken = _fuzz(target, inputs, random.Random(f"{target.name} {arguments.seed}"))
        counts[target.name], found = inputs, found + len(broken)
        for path in broken:
            print(f"{target.name}: broken by {path}")
    grown_mib = _peak_mib() - before_mib
    told = {"inputs": counts, "broken": found, "seconds": round(time.monotonic() - began_s, 1), "grown_mib": grown_mib}
    print(json.dumps(told))
    return 1 if found or grown_mib > GROWTH_MAX_MIB else 0


def _fuzz(target: Target, inputs: int, chance: random.Random) -> list[Path]:
    made = Mutator(target.seeds(), target.words, chance)
    broken: dict[str, Path] = {}
    with target.opened() as take:
        for _ in range(inputs):
            data = made.next()
            why = _tried(take, data)
            if why and why not in broken:
                broken[why] = _keep(target, data)
                print(why, file=sys.stderr)
                if len(broken) >= FOUND_MAX:
                    break
    return list(broken.values())


def _tried(take: Take, data: bytes) -> str:
    """Give a target one input; return the error and the place in the code if the target broke, ``""`` if it did not."""
    try:
        take(data)
    except Exception as error:
        places = traceback.extract_tb(error.__traceback__)[-3:]
        return f"{type(error).__name__}: " + ", ".join(f"{Path(one.filename).name}:{one.lineno}" for one in places)
    return ""


def _keep(target: Target, data: bytes) -> Path:
    path = CORPUS / target.name / f"broke-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
