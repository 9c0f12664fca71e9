"""A person who is not looking is told: by a command, or by a request to a web address."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from field_kit import Scratch, until

TASKS = """
    agents: {sh: {adapter: command, command: ["true"]}}
    tasks: [{id: ask, agent: sh, prompt: "", approval: before}]
"""


def told(scratch: Scratch) -> list[dict[str, Any]]:
    """Return the notices of which the command has told."""
    path = scratch.path / "told.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def web_server(statuses: list[int]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve a web address that answers with *statuses*, the last one for ever; yield the address, and the notices that
    it gets."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            notice = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append({**notice, "token": self.headers["X-Token"]})
            self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/hook", got
        finally:
            server.shutdown()
            thread.join()


def test_a_command_is_told_that_a_task_waits_and_that_the_run_has_ended(scratch: Scratch) -> None:
    """The command gets one line of JSON for each notice: that the task waits for an approval, with the command that
    gives it, and, before the supervisor is gone, that the run has ended."""
    scratch.plan(
        TASKS
        + """
    notify: [{command: [sh, -c, "cat >> told.jsonl"]}]
    """
    )
    run = scratch.start("run", "plan.yaml")
    until(lambda: told(scratch))
    [waits] = told(scratch)
    assert (waits["kind"], waits["state"]) == ("approval", "PLANNED")
    assert "waits for an approval before it begins" in waits["text"]
    program, *args = waits["command"].split()
    assert program == "supervisor"
    assert scratch.run(*args).status == 0
    assert run.wait().status == 0
    assert [one["kind"] for one in told(scratch)] == ["approval", "run"]
    assert told(scratch)[1]["state"] == "completed"


def test_a_receiver_that_fails_holds_nobody_up_and_is_told_again(scratch: Scratch) -> None:
    """A web address that answers with an error gets the same notice again; a command beside it is told meanwhile. A
    redirect is no acceptance. The plan's own header is sent, and is in no log."""
    with web_server([503, 302, 204]) as (url, got):
        scratch.plan(
            TASKS
            + f"""
    notify:
      - {{url: "{url}", kinds: [approval], headers: {{X-Token: very-secret-value}}}}
      - {{command: [sh, -c, "cat >> told.jsonl"], kinds: [approval]}}
        """
        )
        run = scratch.start("run", "plan.yaml")
        until(lambda: len(got) == 3)
        assert len({one["id"] for one in got}) == 1
        assert {one["token"] for one in got} == {"very-secret-value"}
        until(lambda: told(scratch))
        run.process.send_signal(signal.SIGINT)
        run.wait()
    assert len(told(scratch)) == 1
    assert "a notice was not accepted" in run.err
    assert "very-secret-value" not in run.out + run.err


def test_what_was_not_told_before_a_kill_is_told_by_the_next_supervisor(scratch: Scratch) -> None:
    """A supervisor is killed while the command that it tells is under way. The next supervisor tells the same notice
    again, with the same id, and tells no other twice."""
    scratch.plan(
        TASKS
        + """
    notify: [{command: [sh, -c, "cat >> told.jsonl; test -e accepts || sleep 1000"]}]
    """
    )
    first = scratch.start("run", "plan.yaml")
    until(lambda: told(scratch))
    first.kill()
    scratch.write("accepts", "")
    second = scratch.start("run", "plan.yaml")
    until(lambda: len(told(scratch)) == 2)
    assert scratch.run("approve", "ask").status == 0
    assert second.wait().status == 0
    assert [one["kind"] for one in told(scratch)] == ["approval", "approval", "run"]
    assert told(scratch)[0] == told(scratch)[1]


def test_a_receiver_that_cannot_be_is_refused(scratch: Scratch) -> None:
    """Neither a command nor a web address, both, another scheme, an unknown kind: one sentence each, exit status 2."""
    for notify, complaint in (
        ("{}", "give either a command or a url"),
        ("{command: ['true'], url: 'https://x.invalid'}", "give either a command or a url"),
        ("{url: 'ftp://x.invalid'}", "no web address"),
        ("{command: ['true'], headers: {A: b}}", "are for a url only"),
        ("{command: ['true'], kinds: [everything]}", "everything"),
    ):
        scratch.plan(
            TASKS
            + f"""
    notify: [{notify}]
        """
        )
        checked = scratch.run("plan", "check", "plan.yaml")
        assert checked.status == 2, notify
        assert complaint in checked.text, notify
