"""Triggers of real daemons: requests over HTTP, watched folders, kills, the command line, and files with errors."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.field.field_kit import Running, until
from tests.integration.test_daemon import Place
from tests.support import DEADLINE_S, reap_all

SECRET = "0123456789abcdef0123"
CONFIG = "triggers: true\nagents: {w: {adapter: scripted}}\nhttp: {}\n"
FILE = """
    triggers:
      push:
        webhook:
          {provider: github, secret: {env: HOOK_SECRET}, events: [push], bytes_max: 2000, requests_per_minute: 20}
        only: {ref: [refs/heads/main]}
        values: {message: head.message}
        task: {id: fix, agent: w, prompt: "@run until [ -e go ]; do sleep 0.05; done"}
      inbox:
        watch: {folder: inbox, match: ["*.md"], settle_s: 0.3}
        values: {files: changed}
        plan: plan.yaml
"""
PLAN = """
    agents: {s: {adapter: scripted}}
    tasks: [{id: read, agent: s, prompt: "@run echo made > inbox/by-the-run.md; echo x >> done"}]
"""


class TriggerPlace(Place):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.env["HOOK_SECRET"] = SECRET
        for folder in (self.state.root, self.state.config):
            folder.mkdir(mode=0o700)
        (self.path / "inbox").mkdir()
        self.write("daemon.yaml", CONFIG)
        self.write("plan.yaml", PLAN)
        self.write("sd/config/triggers.yaml", FILE)

    def post(self, document: object, delivery: str = "d1", *, secret: str = SECRET, **headers: str) -> httpx2.Response:
        """Send a delivery of GitHub to the trigger ``push``, signed with *secret*."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        given = {
            "x-hub-signature-256": f"sha256={signature}",
            "x-github-event": "push",
            "x-github-hook-id": "7",
            "x-github-delivery": delivery,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        transport = httpx2.HTTPTransport(uds=str(self.state.http_socket))
        with httpx2.Client(transport=transport, base_url="http://localhost", timeout=DEADLINE_S) as client:
            return client.post("/hooks/push", content=body, headers=given)

    def history(self, name: str) -> list[tuple[str, str]]:
        """Return outcome and the beginning of the reason of each delivery of a trigger."""
        found = json.loads(self.run("triggers", "history", name, "--json").out)
        return [(one["outcome"], one["why"].partition(":")[0]) for one in found]

    def plans(self) -> list[str]:
        return [one["plan"] for one in json.loads(self.run("runs", "--json").out)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TriggerPlace]:
    made = TriggerPlace(tmp_path)
    yield made
    made.close()
    anyio.run(reap_all)


EVENT: dict[str, Any] = {"ref": "refs/heads/main", "head": {"message": "line\n@run touch hacked"}}


def test_every_request_is_answered_and_on_record(place: TriggerPlace) -> None:
    """A genuine delivery starts one run, whose prompt has the values as data; a repeated one, one that overlaps, is not
    meant, forged, malformed, a question or too large starts nothing, has its status and its reason on record."""
    place.serve("daemon.yaml")
    large = {"ref": "x" * 3000}
    found = [
        place.post(EVENT),
        place.post(EVENT),
        place.post(EVENT, "d2"),
        place.post({"ref": "refs/heads/dev"}, "d3"),
        place.post(EVENT, "d4", secret="another secret 01234"),
        place.post(b"no json", "d5"),
        place.post({}, "d6", x_github_event="ping"),
        place.post(large, "d7"),
    ]
    assert [one.status_code for one in found] == [202, 200, 200, 200, 401, 400, 200, 413]
    assert [one.json().get("outcome") for one in found[:4]] == ["accepted", "refused", "refused", "refused"]
    assert found[6].json() == {"pong": True}
    until(lambda: "started" in [outcome for outcome, _ in place.history("push")])
    place.write("go", "")
    until(lambda: place.states().get("@push") == "waiting")
    assert [why for outcome, why in place.history("push") if outcome == "refused"] == [
        "repeated", "overlap", "only", "forged", "malformed", "answered", "refused unread with status 413"
    ]  # fmt: skip
    assert place.plans() == ["push"]
    prompt = place.run("logs", "fix").out
    assert '{"message": "line\\n@run touch hacked"}' in prompt
    assert not (place.path / "hacked").exists()
    assert place.run("validate", "sd").status == 0


def test_too_many_requests_are_refused_unread(place: TriggerPlace) -> None:
    """An address that sends more than its share gets 429 before its signature is looked at; other paths need a token
    or the socket as before, and there is no webhook of another name, or of a trigger that is none."""
    place.serve("daemon.yaml")
    statuses = [place.post(EVENT, secret="wrong wrong wrong 01").status_code for _ in range(25)]
    assert statuses[:20] == [401] * 20
    assert 429 in statuses[20:]
    assert place.history("push")[-1][1].startswith("refused unread with status 429")
    transport = httpx2.HTTPTransport(uds=str(place.state.http_socket))
    with httpx2.Client(transport=transport, base_url="http://localhost", timeout=DEADLINE_S) as client:
        for path, status in [("/hooks/none", 404), ("/hooks/inbox", 404), ("/hooks/push/more", 404)]:
            assert client.post(path, content=b"{}").status_code == status
        assert client.get("/hooks/push").status_code == 405

    def of_unknown() -> list[str]:
        history = json.loads(place.run("triggers", "history", "--json").out)
        return [one["why"] for one in history if not one["trigger"]]

    until(lambda: len(of_unknown()) == 3)
    assert of_unknown() == [f"unknown: there is no webhook {name!r}" for name in ("none", "inbox", "push/more")]


def test_only_webhooks_need_no_token(place: TriggerPlace) -> None:
    """Over TCP a webhook is reached without a token and under any host name; every other path is not."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = int(one.getsockname()[1])
    place.write("daemon.yaml", f"{CONFIG.replace('http: {}', '')}http: {{listen: '127.0.0.1:{port}', token_file: t}}")
    place.serve("daemon.yaml")
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as client:
        forged = client.post("/hooks/push", content=b"{}", headers={"host": "hooks.example"})
        assert forged.json()["error"]["message"].startswith("the signature or the token is wrong")
        for path in ("/api/v1/runs", "/api/v1/sessions"):
            assert client.get(path).json()["error"]["message"].startswith("Authorization: the token is missing")


def test_a_delivery_starts_a_run_once_across_a_kill(place: TriggerPlace) -> None:
    """A daemon that is killed while the run of a delivery goes on is followed by one that goes on with the run, and to
    which the same delivery is a repeated one."""
    daemon = place.serve("daemon.yaml")
    assert place.post(EVENT).status_code == 202
    until(lambda: "started" in [outcome for outcome, _ in place.history("push")])
    daemon.process.kill()
    daemon.wait()
    place.serve("daemon.yaml")
    assert place.post(EVENT).json()["reason"].startswith("repeated")
    place.write("go", "")
    until(lambda: place.states().get("@push") == "waiting")
    assert place.post(EVENT).json()["reason"].startswith("repeated")
    assert [outcome for outcome, _ in place.history("push")] == ["accepted", "started", "refused", "ended", "refused"]
    assert place.plans() == ["push"]
    assert place.run("validate", "sd").status == 0
    why = place.run("why", "r1").out
    assert why.startswith("run r1 was completed at ")
    assert "trigger @push started it at " in why
    assert why.endswith(" for delivery 7:d1.\n")
    assert "trigger @push" not in place.run("why", "r1#fix").out
    assert "delivery_accepted" in place.run("why", "r1", "-v").out


def test_a_watch_fires_for_others_and_not_for_its_own_run(place: TriggerPlace) -> None:
    """A file that somebody puts into the folder starts the plan, once; what the plan writes there starts nothing, and
    neither do the files of the daemon. The next file of somebody starts it again."""
    place.serve("daemon.yaml")
    done = place.path / "done"
    for number in (1, 2):
        place.write(f"new-{number}", "x").rename(place.path / "inbox" / f"{number}.md")
        until(lambda number=number: done.exists() and done.read_text().count("x") == number)  # type: ignore[misc]
        until(lambda: place.states().get("@inbox") == "waiting")
    until(lambda: (place.path / "inbox" / "by-the-run.md").exists())
    ended = [outcome for outcome, _ in place.history("inbox")]
    assert ended == ["accepted", "started", "ended"] * 2
    logs = [place.run("logs", name).out for name in ("r1#read", "r2#read")]
    assert ['["1.md"]' in logs[0].replace("\\", ""), '["2.md"]' in logs[1].replace("\\", "")] == [True, True]


def test_a_merge_into_the_watched_folder_starts_nothing(place: TriggerPlace) -> None:
    """A plan that works in a worktree, and whose work is merged into the watched folder of the checkout, is started
    once for each file that somebody puts there: neither what it writes nor the merge starts it again."""
    place.write("daemon.yaml", "workspace: worktree\n" + CONFIG)
    writes = "echo made > inbox/merged.md; cat inbox/*.md >> inbox/all.md; echo x >> $PLACE/done"
    place.write(
        "plan.yaml",
        f"""
        workspace: worktree
        agents: {{s: {{adapter: scripted}}}}
        tasks: [{{id: read, agent: s, prompt: "@run {writes.replace("$PLACE", str(place.path))}"}}]
        """,
    )
    place.write("inbox/kept.md", "kept")
    place.write(".gitignore", "/sd/\n/done\n/daemon.yaml\n/new-*\n")
    for arguments in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "base")):
        place.git(*arguments)
    place.serve("daemon.yaml")
    for number in (1, 2):
        place.write(f"new-{number}", "x").rename(place.path / "inbox" / f"{number}.md")
        until(lambda number=number: [one for one, _ in place.history("inbox")].count("ended") == number)  # type: ignore[misc]
    assert [outcome for outcome, _ in place.history("inbox")] == ["accepted", "started", "ended"] * 2
    logs = [place.run("logs", name).out.replace("\\", "") for name in ("r1#read", "r2#read")]
    assert ['["1.md"]' in logs[0], '["2.md"]' in logs[1]] == [True, True]
    assert (place.path / "done").read_text() == "x\n" * 2
    assert place.git("show", "main:inbox/merged.md").strip() == "made"
    assert (place.path / "inbox" / "merged.md").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "triggers: {t: {schedule: {cron: '* * * * * *'}, plan: plan.yaml}}",
            "has 6 fields; give five",
        ),
        ("triggers: {t: {schedule: {every_s: 60}, plan: none.yaml}}", "t.plan: "),
        ("triggers: {t: {watch: {folder: sd}, plan: plan.yaml}}", "belongs to the supervisor"),
        ("triggers: {t: {webhook: {provider: slack, secret: {env: NONE}}, plan: plan.yaml}}", "NONE is not set"),
        ("triggers: {t: {plan: plan.yaml}}", "t: has no source; give one of schedule, webhook and watch"),
        ("triggers", "'triggers' is text; give a mapping of keys to values"),
    ],
)
def test_a_file_with_an_error(place: TriggerPlace, text: str, message: str) -> None:
    """A file with an error is refused at the start with exit status 2, line, field and fix."""
    place.write("sd/config/triggers.yaml", text)
    error = place.fails("serve", "daemon.yaml")
    assert re.search(r"triggers\.yaml:1: (triggers\.t|'triggers' is)", error)
    assert message in error


def test_a_reload_keeps_the_last_good_file(place: TriggerPlace) -> None:
    """A file that has become bad changes nothing, also if the configuration is good; the next good one is used."""
    place.serve("daemon.yaml")
    place.write("sd/config/triggers.yaml", "triggers: {push: 3}")
    assert "triggers.push: 3 is a number; give a trigger" in place.fails("reload")
    assert place.post(EVENT).status_code == 202
    place.write("sd/config/triggers.yaml", "triggers: {t: {schedule: {every_s: 6000}, plan: plan.yaml}}")
    assert "triggers t are new or changed; triggers push, inbox are gone" in place.run("reload").out
    assert place.post(EVENT, "d2").status_code == 404
    until(lambda: "@unknown" in place.states())
    assert {one: state for one, state in place.states().items() if one.startswith("@")} == {
        "@push": "closed", "@inbox": "closed", "@t": "waiting", "@unknown": "waiting"
    }  # fmt: skip


def test_who_may_write_the_file(place: TriggerPlace) -> None:
    """Triggers are read only if the configuration says so. A file that other users may write is refused; that agents,
    which run as this user, can write it is said at the start."""
    place.write("daemon.yaml", "agents: {w: {adapter: scripted}}")
    assert "triggers.yaml is not read" in _said(place.serve("daemon.yaml"), place)
    place.write("daemon.yaml", CONFIG)
    assert f"can write {place.state.triggers}: a change takes effect at a reload" in _said(
        place.serve("daemon.yaml"), place
    )
    place.state.triggers.chmod(0o666)
    assert "other users may write" in place.fails("serve", "daemon.yaml")


def _said(daemon: Running, place: TriggerPlace) -> str:
    return place.stop(daemon).err


def test_an_agent_starts_nothing_by_a_webhook(place: TriggerPlace) -> None:
    """A program that the supervisor has started is refused at a webhook, although it has the secret; that is on
    record."""
    body = json.dumps(EVENT)
    signature = hmac.new(SECRET.encode(), body.encode(), hashlib.sha256).hexdigest()
    headers = f"-H x-hub-signature-256:sha256={signature} -H x-github-event:push -H x-github-hook-id:7"
    place.write("body.json", body)
    curl = f"curl -s -o reply --unix-socket {place.state.http_socket} {headers} -H x-github-delivery:d1"
    place.write(
        "agent.yaml",
        f"agents: {{s: {{adapter: scripted}}}}\n"
        f"tasks: [{{id: a, agent: s, prompt: '@run {curl} --data-binary @body.json http://localhost/hooks/push'}}]",
    )
    if subprocess.run(["which", "curl"], capture_output=True).returncode:
        pytest.skip("needs curl")
    place.serve("daemon.yaml")
    place.run("wait", place.submit("agent.yaml"))
    assert "webhooks are for senders outside" in (place.path / "reply").read_text()
    assert place.history("push")[-1] == ("refused", "refused unread with status 403")
    assert "push" not in place.plans()


def test_the_commands(place: TriggerPlace) -> None:
    """``list`` shows the triggers before and while a daemon runs, ``next`` the times with their offsets, and ``test``
    what an event would start, or why nothing; nothing is started by them."""
    place.write(
        "sd/config/triggers.yaml",
        f"""{FILE}
      nightly: {{schedule: {{cron: "30 2 * * *", timezone: Europe/Berlin}}, plan: plan.yaml}}
""",
    )
    listed = json.loads(place.run("triggers", "list", "--json").out)
    assert [(one["name"], one["source"], one["state"]) for one in listed] == [
        ("push", "webhook github", "not in a daemon yet"),
        ("inbox", "watch inbox", "not in a daemon yet"),
        ("nightly", "cron 30 2 * * * Europe/Berlin", "not in a daemon yet"),
    ]
    times = place.run("triggers", "next", "nightly").out.splitlines()
    assert len(times) == 10
    assert all(one[10:].startswith((" 02:30:00+0", " 03:00:00+02:00  ")) and one.endswith(":00Z") for one in times)
    assert "only a schedule has times" in place.fails("triggers", "next", "push")
    assert "'nigtly' is no trigger; the triggers are push, inbox, nightly" in place.fails("triggers", "next", "nigtly")
    place.write("event.json", json.dumps(EVENT))
    tried = ("triggers", "test", "push", "--event", "event.json", "--config", "daemon.yaml")
    done = place.run(*tried, "--event-name", "push")
    assert (done.status, "starts task fix" in done.out, '{"message": "line' in done.out) == (0, True, True)
    done = place.run(*tried, "--event-name", "issues")
    assert (done.status, done.out) == (1, "refused: events: 'issues' is none of push\n")
    assert "--event: plan.yaml is not JSON" in place.fails("triggers", "test", "push", "--event", "plan.yaml")
    place.serve("daemon.yaml")
    until(lambda: "waiting" in place.run("triggers", "list").out)
    assert "webhook github" in place.run("ps").out
    assert "trigger @push is waiting since" in place.run("why", "@push").out
