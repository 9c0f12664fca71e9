"""Cost of the scheduler for each task while the backlog grows: the curve must be flat.

A backlog is kept at its size: sixteen tasks are claimed by as many workers, renewed, settled, and sixteen new ones
added, over and over. Tasks have one of five priorities, one of four roles, one of two providers; one in three depends
on another one, one in two owns a file of its own, one in four a file that others own as well. So the claimed tasks
differ, and some claims need files that another task holds. The sizes take turns, round by round; a figure is the median
of its rounds, in processor time. ``python -m benchmarks.scheduler [--most 100000] [--json] [--short]``.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.harness import Stopwatch, options, per_us
from supervisor.work.backlog import Backlog, BacklogItem, Seeker
from supervisor.work.leases import Claim

SIZES = (100, 1_000, 10_000, 100_000)
SHORT = (100, 200)
ROLES = ("backend", "frontend", "docs", "qa")
CAPABILITIES = {number: frozenset({f"role:{role}"}) for number, role in enumerate(ROLES)}
WORKERS = 16
SEEKERS = [Seeker(f"w{number}", CAPABILITIES.get(number)) for number in range(WORKERS)]
CHURNED = 4_000
"""Number of tasks that are added and completed in one round, whatever the size of the backlog."""
ROUNDS = 5
LEASE_S = 60.0


class Cost(NamedTuple):
    """Cost of a round at one size: microseconds for a claim alone, and for all work of the scheduler on one task."""

    backlog: int
    claim_us: float
    task_us: float


def item(number: int) -> BacklogItem:
    """Return task *number*, which is the same in every round and at every size."""
    return BacklogItem(
        id=f"t{number}",
        priority=number * 7 % 5,
        needs=frozenset({f"role:{ROLES[number % 4]}"}),
        files=((f"src/m{number}.py",), (), (f"src/m{number}.py",), (f"docs/{number % 40}.md",))[number // 4 % 4],
        provider=("anthropic", "openai")[number // 2 % 2],
        depends_on=(f"t{number - 1}",) if number % 3 == 2 else (),
    )


def cost(size: int, tasks: int) -> Cost:
    """Measure adding and completing *tasks* tasks in a backlog that stays at *size*."""
    backlog = Backlog()
    for number in range(size):
        backlog.add(item(number))
    coming = [item(number) for number in range(size, size + tasks)]
    claim_s = 0.0
    with Stopwatch() as watch:
        for first in range(0, tasks, WORKERS):
            since = time.process_time()
            claims = claim_each(backlog, float(first))
            claim_s += time.process_time() - since
            for claim in claims:
                backlog.renew(claim.item_id, claim.token, first + 1.0)
            for claim in claims:
                backlog.settle(claim.item_id, completed=True, token=claim.token)
            for one in coming[first : first + WORKERS]:
                backlog.add(one)
    return Cost(size, per_us(claim_s, tasks), per_us(watch.spent_s, tasks))


def claim_each(backlog: Backlog, now_s: float) -> list[Claim]:
    """Claim a task for each worker: four workers have one role each, the others have all roles."""
    found = [backlog.claim([one], now_s=now_s, lease_s=LEASE_S) for one in SEEKERS]
    claims = [one for one in found if one is not None]
    assert len(claims) == WORKERS, "there is work for everyone"
    return claims


def measure_costs(sizes: Sequence[int], *, tasks: int = CHURNED, rounds: int = ROUNDS) -> list[list[Cost]]:
    """Measure all sizes in each round, alternately from the smallest and from the largest; return the costs of every
    round."""
    order = [sizes if number % 2 else sizes[::-1] for number in range(rounds)]
    return [sorted(cost(size, tasks) for size in one) for one in order]


def ratio(rounds: Sequence[Sequence[Cost]]) -> float:
    """Return the cost of a task in the largest backlog divided by that in the smallest: the median of the rounds."""
    return statistics.median(one[-1].task_us / one[0].task_us for one in rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table and the ratio."""
    parser = options(__doc__)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="the largest backlog")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    if args.short:
        rounds = measure_costs(SHORT, tasks=2 * WORKERS, rounds=1)
    else:
        rounds = measure_costs([size for size in SIZES if size <= max(args.most, SIZES[0])])
    rows = [Cost(*map(statistics.median, zip(*column, strict=True))) for column in zip(*rounds, strict=True)]
    if args.json:
        print(json.dumps({"rows": [row._asdict() for row in rows], "ratio": round(ratio(rounds), 3)}))
        return
    print(f"{'backlog':>10}{'claims/s':>12}{'us per claim':>15}{'us per task':>14}")
    for row in rows:
        print(f"{int(row.backlog):>10,}{1e6 / row.claim_us:>12,.0f}{row.claim_us:>15.2f}{row.task_us:>14.2f}")
    print(f"a task costs {ratio(rounds):.2f} times as much with {rows[-1].backlog:,.0f} as with {rows[0].backlog:,.0f}")


if __name__ == "__main__":
    main()
