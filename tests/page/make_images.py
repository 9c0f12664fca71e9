"""Make the pictures of the page: run a plan with scripted agents, and take pictures of it in Chromium.

    make page-images          # needs chromium on PATH, and Playwright

Writes page-light.png, page-dark.png, page-abort.png and page-plan.png into docs/images.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.page.page_kit import browser, daemon_in

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"

PLAN = r"""
workstream: checkout-rewrite
max_sessions: 12
budget: {cost_usd: 4.0, tokens: 900000}
agents:
  coder: {adapter: scripted}
  careful: {adapter: scripted, permissions: ask}
tasks:
  - id: survey
    agent: coder
    prompt: |
      @use 42000 1500 0.11
      @run sleep 1; echo "the sources of the checkout"
      @run sleep 2; grep -rn gateway . | head
  - id: prices
    agent: coder
    depends_on: [survey]
    prompt: |
      @use 51000 2500 0.21
      @agent taxes
        @use 9000 800 0.08
        @run sleep 3; echo "rounding rules found"
      @agent discounts
        @use 8000 700 0.07
        @run sleep 5; python3 -m unittest -q
      @run sleep 1; git status --short
  - id: payment
    agent: careful
    depends_on: [survey]
    prompt: |
      @say the gateway needs a longer timeout
      @use 61000 2100 0.18
      @ask edit: config/gateway.toml
      @pause 600
  - id: load-test
    agent: coder
    depends_on: [survey]
    prompt: |
      @say three workers against the sandbox
      @use 20000 800 0.05
      @agent burst
        @run echo "burst: 200 requests"; sleep 600
      @agent soak
        @deaf
        @run echo "soak: waiting for the gateway"; trap '' TERM; sleep 600
      @run sleep 600
  - id: docs
    agent: coder
    depends_on: [survey]
    approval: after
    prompt: |
      @use 9000 900 0.04
      @run sleep 2; echo "manual written"
  - id: mails
    agent: coder
    depends_on: [survey]
    prompt: |
      @use 7000 400 0.03
      @run sleep 4; echo "three templates"
  - {id: switch-over, agent: coder, depends_on: [payment, load-test], prompt: "@run ls"}
  - {id: release, agent: coder, depends_on: [switch-over, docs, prices, mails], approval: before, prompt: "@run ls"}
"""
ENDED = "['survey', 'prices', 'mails', 'docs'].every((id) => page.live.sessions.get(id)?.ended)"
PICTURES = (
    ("page-light", "light", "page.select('payment'); page.set({span: 45})"),
    ("page-dark", "dark", "page.select('load-test/soak'); page.set({span: 45})"),
    ("page-abort", "light", "page.select('load-test'); page.set({dialog: 'abort', span: 45})"),
    ("page-plan", "light", "page.set({view: 'plan'}); page.select('r1#docs')"),
)


def main() -> None:
    with ExitStack() as stack:
        where = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "checkout"
        where.mkdir()
        daemon = stack.enter_context(daemon_in(where))
        daemon.submit(PLAN)
        for name, theme, script in PICTURES:
            with browser(color_scheme=theme, viewport={"width": 1260, "height": 680}) as new_page:
                watched = new_page()
                watched.page.goto(daemon.link())
                watched.until(f"page.stream.status === 'live' && page.live.permissions.size === 1 && {ENDED}")
                watched.page.evaluate(script)
                watched.page.wait_for_timeout(3000)
                watched.page.screenshot(path=IMAGES / f"{name}.png")
                print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
