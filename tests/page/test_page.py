"""The page in a real browser: what is seen is what happens, and what is pressed happens."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnostics.tree_view import _git_status
from supervisor.diagnostics.visual_state import visual_state
from tests.page.page_kit import DEADLINE_S, PLAN, Watched, browser, daemon_in, needs_browser
from tests.support import running_program

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
AXE = Path(__file__).parent / "axe" / "axe.min.js"
HOSTILE = "<img src=x onerror=window.hurt=1>\u202e\u001b[31m<script>window.hurt=1</script>"


@pytest.fixture(autouse=True)
def _browser_there() -> None:
    needs_browser()


def drawn(watched: Watched) -> None:
    """Wait until the page has drawn what was set: until the frame after the next one begins."""
    watched.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def accessible(watched: Watched) -> list[str]:
    """Return what axe finds on the page as it is, with the places."""
    watched.page.evaluate(AXE.read_text() + "; undefined")
    found = watched.page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((done) => done.violations)")
    return [f"{one['id']}: {[node['target'] for node in one['nodes'][:3]]}" for one in found]


def test_a_run_is_watched_and_steered(tmp_path: Path) -> None:
    """The tree appears; one tool call is aborted by its button after its dry run; a permission is answered; why is
    read; the daemon is killed and started again, and the page goes on without a lost record."""
    with daemon_in(tmp_path) as daemon, browser() as new_page:
        watched = new_page()
        page = watched.page
        page.goto(daemon.link())
        watched.until("page.stream.status === 'live'")
        assert "#" not in page.url, "the secret has left the address bar"
        daemon.submit(PLAN)
        watched.until("[...page.live.sessions.keys()].includes('load-test/soak')")
        watched.until("page.live.permissions.size === 1")
        assert "payment" in page.locator(".tree").inner_text()

        # A tool call is aborted.
        page.locator(".row", has_text="load-test").first.click()
        watched.until("page.live.openCalls(page.live.sessions.get('load-test/burst')).some((one) => one.pid)")
        page.locator(".row", has_text="burst").first.click()
        page.get_by_role("button", name="Abort call… load-test/burst:t1:c1").click()
        dialog = page.get_by_role("dialog")
        end = dialog.get_by_role("button", name="End 1 tool call")
        end.wait_for()
        assert "load-test/burst:t1:c1" in dialog.locator(".ends").inner_text()
        assert accessible(watched) == []
        end.click()
        dialog.locator(".receipt").wait_for()
        assert dialog.locator(".survivors").inner_text().startswith("0 survivors")
        dialog.get_by_role("button", name="Close").last.click()
        aborts = [one for one in daemon.records() if one["event"] == "AbortRecord"]
        assert [(one["metadata"]["target"], one["metadata"]["actor"]) for one in aborts] == [
            ("load-test/burst:t1:c1", "page")
        ]

        # A permission is answered, and an approval.
        page.get_by_role("button", name="Allow: edit: config/gateway.toml").click()
        watched.until("page.live.permissions.size === 0")
        page.get_by_role("button", name="Approve: the result of docs").click()
        watched.until("page.live.tasks.get('r1#docs').state === 'CLOSED'")

        # Why.
        page.locator(".row", has_text="survey").first.click()
        page.locator(".sentence", has_text="survey").wait_for()
        assert accessible(watched) == []

        # The daemon is killed.
        daemon.kill()
        page.locator(".status[data-status=lost]").wait_for()
        assert page.locator(".frame[data-lost=true]").count() == 1
        daemon.start()
        watched.until("page.stream.status === 'live'")
        last = daemon.records()[-1]["seq"]
        watched.until(f"page.stream.seq >= {last}")
        seen = page.evaluate("page.history.map((one) => one.seq)")
        assert seen == list(range(1, len(seen) + 1)), "every record once, in order"
        assert watched.errors == []


def test_the_link_is_good_for_one_time(tmp_path: Path) -> None:
    """A link that was opened before is refused with what to do; without the cookie nothing can be read, and other
    origins of this host may not command."""
    with daemon_in(tmp_path) as daemon:
        link = daemon.link()
        with browser() as new_page:
            first = new_page()
            first.page.goto(link)
            first.until("page.stream.status === 'live'")
            cookie = first.page.context.cookies()[0]
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
            bare = first.page.context.request.get(link.split("#")[0] + "api/v1/tree")
            assert bare.status == 403, "the cookie alone is not enough: the browser must say that the page asks"
        with browser() as new_page:
            second = new_page()
            second.page.goto(link)
            second.page.locator(".gate").wait_for()
            assert "run `supervisor ui`" in second.page.locator(".gate").inner_text()


def test_tabs_share_one_stream_and_hidden_ones_have_none(tmp_path: Path) -> None:
    """Of eight tabs one has the stream, and all show the same; a tab that is closed hands the stream on."""
    with daemon_in(tmp_path) as daemon, browser() as new_page:
        tabs = [new_page()]
        tabs[0].page.goto(daemon.link())
        tabs[0].until("page.stream.status === 'live'")
        address = tabs[0].page.url
        for _ in range(7):
            tabs.append(new_page())
            tabs[-1].page.goto(address)
            tabs[-1].until("page.stream.status === 'live'")
        daemon.submit(PLAN)
        for one in tabs:
            one.until("page.live.permissions.size === 1")
        assert sum(one.page.evaluate("page.stream.isLeader") for one in tabs) == 1
        leader = next(one for one in tabs if one.page.evaluate("page.stream.isLeader"))
        tabs.remove(leader)
        leader.page.close()
        daemon.run("answer", "payment:t1:p1", "deny")
        for one in tabs:
            one.until("page.live.permissions.size === 0")
        # Hidden: the stream is closed; seen again: nothing is missing.
        hidden = next(one for one in tabs if one.page.evaluate("page.stream.isLeader"))
        hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))"  # noqa: E501
        hidden.page.evaluate(hide % "true")
        hidden.until("!page.stream.isLeader && page.stream.stop === null")
        daemon.run("approve", "r1#docs")
        hidden.page.evaluate(hide % "false")
        hidden.until("page.live.tasks.get('r1#docs').state === 'CLOSED'")


def test_what_an_agent_says_is_text(tmp_path: Path) -> None:
    """Markup, scripts, escapes and direction overrides in titles, output and permissions make no element, and run
    nothing; a line of a megabyte is cut."""
    prompt = f"@say {HOSTILE}\n@longline 1000000\n@ask edit: {HOSTILE}\n@run sleep 600"
    plan = f"""
agents: {{a: {{adapter: scripted, permissions: ask}}}}
tasks:
  - id: bad
    agent: a
    prompt: {json.dumps(prompt)}
"""
    with daemon_in(tmp_path) as daemon, browser() as new_page:
        watched = new_page()
        watched.page.goto(daemon.link())
        daemon.submit(plan)
        watched.until("page.live.permissions.size === 1")
        watched.page.locator(".row", has_text="bad").first.click()
        watched.page.locator(".permission .said").wait_for()
        watched.page.locator(".output span").first.wait_for()
        assert watched.page.evaluate("window.hurt") is None
        assert watched.page.locator("img, #app script").count() == 0
        assert "<img src=x" in watched.page.locator(".permission .said").inner_text()
        assert "\u202e" not in watched.page.locator("body").inner_text()
        assert watched.page.evaluate("document.body.innerText.length") < 200_000
        assert accessible(watched) == []
        assert watched.errors == []


def test_a_journal_is_scrubbed_through_time(tmp_path: Path) -> None:
    """The page of a supervisor that has ended shows its journal, at every moment; nothing can be commanded."""
    with daemon_in(tmp_path) as daemon:
        daemon.submit(PLAN)
        daemon.until("PermissionRequested")
        count = len(daemon.records())
    command = [sys.executable, "-m", "supervisor", "ui", "--no-browser"]
    options = {"cwd": tmp_path, "stdout": subprocess.PIPE, "text": True}
    with running_program(command, **options) as served, browser() as new_page:
        try:
            assert served.stdout is not None
            watched = new_page()
            watched.page.goto(served.stdout.readline().strip())
            watched.until(f"page.stream.status === 'journal' && page.live.seq >= {count}")
            first = watched.page.evaluate("page.history[0].timestamp")
            watched.page.evaluate(f"page.seek({first} + 0.01)")
            watched.until("page.model.sessions.size === 0 && page.model.runs.size === 1")
            watched.page.evaluate("page.seek(page.live.at)")
            watched.until("page.model.sessions.size >= 5")
            assert watched.page.get_by_role("button", name="Allow: edit: config/gateway.toml").is_disabled()
            watched.page.evaluate(f"page.seek({first} + 0.01); page.setSpeed(1000); page.playing = true")
            watched.until("!page.playing && page.at === null && page.model.sessions.size >= 5")
            assert watched.errors == []
            served.send_signal(signal.SIGINT)
            assert served.wait(DEADLINE_S) == 130
        finally:
            served.kill()


def test_what_the_tree_has_shown_goes_on(tmp_path: Path) -> None:
    """An agent and a call that the page knows from the tree alone, since their records are too old, take the records to
    come; the record of the call's start adds no second call."""
    seeded = """() => {
        const model = new page.live.constructor();
        const call = {kind: 'tool', id: 's:t1:c1', state: 'open', note: 'ls', children: []};
        const agent = {kind: 'agent', id: 's:a1', state: 'working', children: []};
        const turn = {kind: 'turn', id: 's:t1', state: 'TOOL_USE', children: [call]};
        model.seed([{kind: 'session', id: 's', state: 'Running', children: [agent, turn]}], 100);
        const record = (seq, type, id, event, to, metadata) => model.apply({seq, timestamp: 100 + seq,
            entity_type: type, entity_id: id, event, from_status: '', to_status: to, outcome: 'transition', metadata});
        record(1, 'agent', 's:a1', 'task_finished', 'idle', {});
        record(2, 'turn', 's:t1', 'tool_started', 'TOOL_USE', {number: 1, call_id: 'x', title: 'ls'});
        record(3, 'turn', 's:t1', 'tool_completed', 'RUNNING', {call_id: 'x', outcome: 'completed'});
        const session = model.sessions.get('s');
        return [session.agents[0].state, session.turns[0].calls.map((one) => one.outcome)];
    }"""
    with daemon_in(tmp_path) as daemon, browser() as new_page:
        watched = new_page()
        watched.page.goto(daemon.link())
        watched.until("page.stream.status === 'live'")
        assert watched.page.evaluate(seeded) == ["idle", ["completed"]]


def test_every_view_is_accessible_in_both_themes_and_on_a_narrow_screen(tmp_path: Path) -> None:
    """axe finds nothing on sessions, plan, runs, details and help: light, dark, narrow; and keys reach everything."""
    with daemon_in(tmp_path) as daemon:
        daemon.submit(PLAN)
        for options in ({"color_scheme": "light"}, {"color_scheme": "dark", "viewport": {"width": 380, "height": 800}}):
            with browser(**options) as new_page:
                watched = new_page()
                page = watched.page
                page.goto(daemon.link())
                watched.until("page.live.permissions.size === 1 && page.ui.selected !== null")
                for view in ("sessions", "plan", "runs"):
                    page.evaluate(f"page.set({{view: '{view}', tab: '{'tree' if view == 'sessions' else view}'}})")
                    drawn(watched)
                    assert accessible(watched) == [], (view, options)
                page.evaluate("page.set({view: 'sessions', tab: 'details'})")
                drawn(watched)
                assert accessible(watched) == [], options
                page.evaluate("page.set({tab: 'tree'})")
                for key, expected in (
                    ("?", "document.querySelector('dialog.help[open]') !== null"),
                    ("Escape", "page.ui.dialog === null"),
                    ("g", "page.ui.selected === 'r1'"),
                    ("j", "page.ui.selected !== 'r1'"),
                    ("p", "page.ui.view === 'plan'"),
                    ("s", "page.ui.view === 'sessions'"),
                    ("n", "page.ui.selected === 'payment'"),
                    ("a", "document.querySelector('dialog.abort[open]') !== null"),
                    ("Escape", "page.ui.dialog === null"),
                    ("H", "page.rows().length === 1"),
                    ("L", "page.rows().length > 4"),
                ):
                    page.keyboard.press(key)
                    watched.until(expected)
                assert watched.errors == []


# ---------------------------------------------------------------------------------------------- the same fact, twice
def test_the_page_classifies_as_the_supervisor_does(tmp_path: Path) -> None:
    """The page and the supervisor give each agent the same visual state, for every combination of facts."""
    cases: list[dict[str, Any]] = [
        {"state": state, "status": status, "pid": pid, "woken": woken, "silent": silent, "heartbeat": heartbeat}
        for state in ("starting", "working", "idle", "dead", "odd")
        for status in ("", "merging", "pushing", "waiting", "done", "killed", "running", "odd")
        for pid in (None, 7)
        for woken in (False, True)
        for silent in (0.0, 59.9, 60.0, 299.9, 300.0, 600.0)
        for heartbeat in (False, True)
    ]
    titles = (
        "git push", "cd x && git -C y push", "git -c a.b=c commit -m x", "git log", "/usr/bin/git merge a",
        "digit push", "git; push",
    )  # fmt: skip
    wanted = [
        visual_state(
            one["state"], spawned_at=1000.0 - one["silent"], now=1000.0, pid=one["pid"], status=one["status"],
            last_heartbeat_at=990.0 if one["heartbeat"] else None, woken=one["woken"],
        ).value
        for one in cases
    ]  # fmt: skip
    with daemon_in(tmp_path) as daemon, browser() as new_page:
        watched = new_page()
        watched.page.goto(daemon.link())
        watched.until("page.stream.status === 'live'")
        script = """async ([cases, titles]) => {
            const build = document.querySelector('meta[name=build]').content;
            const { visualState, gitStatus } = await import(`/page/${build}/visual.js`);
            const states = cases.map((one) => visualState(one.state, {
                spawnedAt: 1000 - one.silent, now: 1000, pid: one.pid, status: one.status,
                heartbeatAt: one.heartbeat ? 990 : null, woken: one.woken }));
            return [states, titles.map(gitStatus)];
        }"""
        states, statuses = watched.page.evaluate(script, [cases, list(titles)])
    assert states == wanted
    assert statuses == [_git_status(one) for one in titles]


def test_a_thousand_sessions_are_a_few_elements(tmp_path: Path) -> None:
    """With 1,000 living sessions only the rows in sight are elements, and the last row is reached by its key."""
    with daemon_in(tmp_path) as daemon, browser() as new_page:
        watched = new_page()
        watched.page.goto(daemon.link())
        watched.until("page.stream.status === 'live'")
        watched.page.evaluate((Path(__file__).parent / "thousand.js").read_text())
        watched.page.evaluate("feed(1000, 100)")
        watched.until("page.live.sessions.size === 1000 && page.frames.updates.length >= 20")
        assert watched.page.locator(".row").count() < 80
        assert watched.page.evaluate("document.getElementsByTagName('*').length") < 1500
        watched.page.keyboard.press("G")
        watched.until("page.ui.selected === page.rows().at(-1).node.id")
        watched.page.locator('.row[aria-selected="true"]').wait_for()
        assert watched.errors == []
