"""Helpers for tests of the page: a daemon as a process of its own, and a browser.

The browser is Debian's Chromium. Where there is none, or no Playwright, the tests are skipped, and the reason says so.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60.0
CHROMIUM = shutil.which("chromium")
PLAN = """
max_sessions: 8
agents:
  coder: {adapter: scripted}
  careful: {adapter: scripted, permissions: ask}
tasks:
  - id: survey
    agent: coder
    prompt: |
      @say reading the sources
      @use 42000 1500 0.11
      @run ls
  - id: payment
    agent: careful
    depends_on: [survey]
    prompt: |
      @use 61000 2100 0.18
      @ask edit: config/gateway.toml
      @pause 600
  - id: load-test
    agent: coder
    depends_on: [survey]
    prompt: |
      @use 20000 800 0.05
      @agent burst
        @run echo burst; sleep 600
      @agent soak
        @deaf
        @run echo soak; sleep 600
      @run sleep 600
  - id: docs
    agent: coder
    depends_on: [survey]
    approval: after
    prompt: |
      @use 9000 900 0.04
      @run sleep 0.2
  - {id: release, agent: coder, depends_on: [payment, load-test, docs], approval: before, prompt: "@run ls"}
"""


def needs_browser() -> Any:
    """Return the module of Playwright; skip the test if it or Chromium is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no Playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on PATH: apt-get install chromium")
    return playwright


class Daemon:
    """Daemon on a state directory below *where*, as a process of its own."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the daemon, and wait until it serves."""
        log = self.where / "log"  # a pipe that nobody reads would block the daemon in the end
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", "serve"],
                cwd=self.where, stderr=out, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
            )  # fmt: skip
        deadline_s = time.monotonic() + DEADLINE_S
        while "serving on" not in log.read_text():
            assert self.process.poll() is None, f"the daemon has ended: {log.read_text()}"
            assert time.monotonic() < deadline_s, f"the daemon does not serve: {log.read_text()}"
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the daemon with SIGKILL, as the kernel does when memory runs out."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
            self.process = None

    def end(self) -> None:
        """End the daemon, and what it has started."""
        try:
            if self.process is not None:
                self.run("stop", "--now")
                self.process.wait(DEADLINE_S)
        finally:
            self.kill()

    def run(self, *arguments: str) -> str:
        """Run a command of the supervisor to its end, and return its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", "supervisor", *arguments],
            cwd=self.where, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, plan: str) -> str:
        """Submit a plan, and return the id of its run."""
        (self.where / "plan.yaml").write_text(plan)
        return self.run("submit", "plan.yaml").strip()

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run("events", "--json").splitlines()]

    def until(self, event: str) -> None:
        """Wait until a record of that event is in the journal."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not any(one["event"] == event for one in self.records()):
            assert time.monotonic() < deadline_s, f"no {event} has come"

    def link(self) -> str:
        """Return a new link to the page."""
        return str(json.loads(self.run("ui", "--json"))["url"])


@contextmanager
def daemon_in(where: Path) -> Iterator[Daemon]:
    daemon = Daemon(where)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.end()


class Watched:
    """A page of the browser, and the errors that it has had."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        page.set_default_timeout(DEADLINE_S * 1000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda one: self.errors.append(one.text) if _is_error(one) else None)

    def until(self, expression: str) -> None:
        """Wait until an expression of JavaScript is true; ``page`` is the page's own object."""
        try:
            self.page.wait_for_function(f"() => {expression}", timeout=DEADLINE_S * 1000)
        except Exception as error:
            seen = self.page.evaluate("JSON.stringify([page.ui, page.stream.status, page.live.seq])")
            raise AssertionError(f"{expression} has not become true; {seen}, errors: {self.errors}") from error

    def texts(self, selector: str) -> list[str]:
        return [str(one) for one in self.page.locator(selector).all_inner_texts()]


def _is_error(message: Any) -> bool:
    """Return whether a message of the console is an error of the page: failed requests while no daemon runs are not."""
    return message.type == "error" and "Failed to load resource" not in message.text


@contextmanager
def browser(**options: Any) -> Iterator[Callable[..., Watched]]:
    """Run a browser; yield a function that opens a page in it, which shares cookies with the others."""
    playwright = needs_browser()
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = chromium.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        try:
            yield lambda: Watched(context.new_page())
        finally:
            context.close()
            chromium.close()
