"""Measure the page with made-up sessions: ``python -m tests.page.measure [SESSIONS] [RECORDS_PER_SECOND] [SECONDS]``.

Prints the time of an update (fold, render, layout of the changes, timeline), the time from a key to the frame that has
its effect, the number of elements, and the memory after a collection. Then it gives the page the records of an hour, of
sessions that begin, work and end, and prints the memory after each quarter.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.page.page_kit import browser, daemon_in

QUARTERS = 4
RECORDS = 90_000
"""Records of a quarter of an hour, at 100 a second."""
STEP = 3_000
KEY = """() => new Promise((done) => {
    const begin = performance.now();
    dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begin)));
})"""


def main(sessions: int = 1000, rate: int = 100, seconds: int = 20) -> None:
    with tempfile.TemporaryDirectory() as scratch, daemon_in(Path(scratch)) as daemon, browser() as new_page:
        page = new_page().page
        page.goto(daemon.link())
        page.wait_for_function("() => page.stream.status === 'live'")
        page.evaluate((Path(__file__).parent / "thousand.js").read_text())
        page.evaluate(f"feed({sessions}, {rate})")
        page.wait_for_timeout(3000)
        page.evaluate("page.frames.updates.length = page.frames.draws.length = 0")
        page.wait_for_timeout(seconds * 1000)
        for name in ("updates", "draws"):
            print(name, _summary(page.evaluate(f"page.frames.{name}")))
        keys = []
        for _ in range(40):
            keys.append(page.evaluate(KEY))
            page.wait_for_timeout(70)
        print("keys", _summary(keys))
        print("elements", page.evaluate("document.getElementsByTagName('*').length"))
        session = page.context.new_cdp_session(page)
        print(_memory(page, session))
        page.evaluate("clearInterval(feeding)")
        for _ in range(QUARTERS):
            for _ in range(RECORDS // STEP):
                page.evaluate(f"pour({STEP})")
            print(_memory(page, session))


def _memory(page: Any, session: Any) -> str:
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    known = page.evaluate("page.live.sessions.size")
    return f"memory {used / 1e6:.1f} MB after {page.evaluate('page.live.seq')} records, {known} sessions known"


def _summary(times: list[float]) -> str:
    ordered = sorted(times)
    p95 = ordered[int(len(ordered) * 0.95)]
    return f"median {median(ordered):.1f} ms, 95 % {p95:.1f} ms, longest {ordered[-1]:.1f} ms ({len(ordered)})"


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:]))
