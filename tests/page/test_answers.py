"""Tests of what the page keeps of the supervisor's answers, and of what it says of cost and merges."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.page.page_kit import browser, daemon_in, needs_browser

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

RECORD = """
    let seq = page.live.seq;
    const take = (type, id, event, to, outcome, metadata) => page.take([{
        seq: ++seq, timestamp: Date.now() / 1000, entity_type: type, entity_id: id, event, from_status: "OPEN",
        to_status: to, outcome, reason: metadata.reason || "", metadata }]);
"""
"""Function of JavaScript that gives the page a made-up record."""
RUNS = f"""() => {{ {RECORD}
    for (const [run, usd] of [["r1", 7], ["r2", 0.5]]) {{
        take("workstream", run, "Born", "planned", "born", {{ name: "plan" }});
        take("session", `s-${{run}}`, "Born", "Running", "born", {{}});
        const used = {{ cost_usd: usd }};
        const scopes = [{{ id: run, limits: {{ cost_usd: 2 }}, used }}];
        take("session", `s-${{run}}`, "Usage", "", "fact", {{ used, scopes }});
    }}
}}"""
MANY = f"""() => {{ {RECORD}
    for (let n = 1; n <= 700; n++) {{
        take("workstream", `r${{n}}`, "Born", "planned", "born", {{ name: "plan" }});
        take("task", `r${{n}}#a`, "Born", "OPEN", "born", {{ name: "a" }});
        take("session", `s${{n}}`, "Born", "Running", "born", {{}});
        take("task", `r${{n}}#a`, "claimed", "CLAIMED", "transition", {{ by: `s${{n}}` }});
        take("session", `s${{n}}`, "Usage", "", "fact", {{ used: {{}}, scopes: [{{ id: `r${{n}}`, limits: {{}} }}] }});
        take("session", `s${{n}}`, "Ended", "Stopped", "fact", {{}});
        if (n > 1) take("workstream", `r${{n}}`, "settled", "completed", "transition", {{}});
    }}
}}"""
PLANS = f"""() => {{ {RECORD}
    for (const run of ["r1", "r2"]) take("workstream", run, "Born", "planned", "born", {{ name: "plan" }});
    take("workstream", "r1", "Plan", "planned", "fact", {{ plan: {{ workspace: "worktree", tasks: [] }} }});
    for (const [name, depends_on] of [["last", ["mid"]], ["mid", ["b"]], ["a", []], ["b", []]])
        take("task", `r1#${{name}}`, "Born", "OPEN", "born", {{ name, depends_on }});
    for (const name of ["b", "a"])
        take("task", `r1#${{name}}`, "closed", "CLOSED", "transition", {{ reason: `merged into main as ${{name}}` }});
    page.select("r1#a");
    page.set({{ view: "plan" }});
}}"""


@pytest.fixture(autouse=True)
def _browser_there() -> None:
    needs_browser()


def test_answers_are_kept_with_bounds(tmp_path: Path) -> None:
    """Of the answers, transcripts included, those that were needed last are kept; an error is asked for again within
    seconds, an answer after its time."""
    with daemon_in(tmp_path) as daemon, browser() as new_page:
        watched = new_page()
        watched.page.goto(daemon.link())
        watched.until("page.stream.status === 'live'")
        sizes = """() => {
            for (let i = 0; i < 300; i++) page.remote.transcript(`s${i}`, true);
            for (let i = 0; i < 300; i++) { page.remote.why(`s${i}`, 0); page.remote.transcript("s299", true); }
            return [page.remote.kept.size, page.remote.kept.has("text s299"), page.remote.kept.has("text s0")];
        }"""
        assert watched.page.evaluate(sizes) == [60, True, False]
        due = """(error) => {
            const asked = [];
            page.remote.load = (path) => asked.push(path);
            const entry = page.remote.entry("/a", () => ({}));
            Object.assign(entry, { value: null, error, stamp: 0, tookS: 0, loading: false });
            for (const oldS of [1, 60]) {
                entry.at = performance.now() / 1000 - oldS;
                page.remote.read("/a", 600);
            }
            return asked.length;
        }"""
        assert [watched.page.evaluate(due, error) for error in ("", "the supervisor ends")] == [0, 1]


def test_what_has_ended_is_forgotten(tmp_path: Path) -> None:
    """Of runs that have ended, with their tasks, sessions and budgets, the newest are kept; a run that goes on is kept
    however old it is."""
    with daemon_in(tmp_path) as daemon, browser() as new_page:
        watched = new_page()
        watched.page.goto(daemon.link())
        watched.until("page.stream.status === 'live'")
        watched.page.evaluate(MANY)
        known = """() => {
            const { runs, tasks, scopes, sessions } = page.live;
            const kept = ["r1", "r2", "r700"].map((run) => runs.has(run));
            return [runs.size, tasks.size, scopes.size, ...kept, sessions.size];
        }"""
        assert watched.page.evaluate(known) == [501, 501, 501, True, False, True, 700]
        watched.until("page.rows().length === 501 + 700")
        assert watched.errors == []


def test_the_cost_of_a_run_stands_beside_its_own_budget(tmp_path: Path) -> None:
    """The budget of a run is compared with what this run has used, and the cost of all runs with nothing."""
    with daemon_in(tmp_path) as daemon, browser() as new_page:
        watched = new_page()
        watched.page.goto(daemon.link())
        watched.until("page.stream.status === 'live'")
        watched.page.evaluate(RUNS)
        watched.until("document.querySelector('.totals').innerText.includes('7.50')")
        text = " ".join(watched.page.locator(".totals").inner_text().split())
        assert text.upper() == "COST $7.50 R2 $0.50 OF 2.00"


def test_the_plan_shows_the_order_of_merges(tmp_path: Path) -> None:
    """The view of a plan with worktrees lists what was merged in the order of the merges, and then what is to come, in
    the order of the stages; a plan without has no such list."""
    with daemon_in(tmp_path) as daemon, browser() as new_page:
        watched = new_page()
        watched.page.goto(daemon.link())
        watched.until("page.stream.status === 'live'")
        watched.page.evaluate(PLANS)
        watched.until("document.querySelectorAll('.merges li').length === 4")
        assert watched.texts(".merges li .link") == ["b", "a", "mid", "last"]
        assert "merged into main as b" in watched.texts(".merges li")[0]
        watched.page.evaluate("page.set({ run: 'r2' })")
        watched.until("document.querySelector('.merges') === null")
        assert watched.errors == []
