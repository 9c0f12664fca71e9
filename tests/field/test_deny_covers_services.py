"""Permissions of services: a command or a file write that the supervisor carries out for an agent needs a
permission."""

from __future__ import annotations

import json
from typing import Any

import pytest
from field_kit import Running, Scratch, until

from supervisor.policies.permissions import (
    Decision,
    PermissionPolicy,
    PermissionRequest,
    PermissionRule,
    covers,
    decide_service,
    detail_text,
)

SERVICES = """
    def run(line):
        terminal = agent.call("terminal/create", command="sh", args=["-c", line])["result"]["terminalId"]
        status = agent.call("terminal/wait_for_exit", terminalId=terminal)["result"]["exitCode"]
        return [status, agent.call("terminal/output", terminalId=terminal)["result"]["output"]]

    def write(path):
        return agent.call("fs/write_text_file", path=os.path.abspath(path), content="written")

    def read(path):
        return agent.call("fs/read_text_file", path=os.path.abspath(path))

    def may(title, **call):
        options = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
        call = {"toolCallId": title, "title": title, **call}
        return agent.call("session/request_permission", toolCall=call, options=options)["result"]["outcome"]

    told = [%s]
    Path("told.new").write_text(json.dumps(told))
    os.rename("told.new", "told")
    return "done"
"""


def start(scratch: Scratch, services: str, permissions: str) -> Running:
    """Start a run of a plan whose agent requests *services*, with the given permissions."""
    scratch.acp_agent(SERVICES % services)
    scratch.write("kept.txt", "kept")
    scratch.plan(f"""
        agents:
          a: {{adapter: acp, command: [python3, agent.py], permissions: {permissions}}}
        tasks: [{{id: t, agent: a, prompt: go}}]
    """)
    return scratch.start("run", "plan.yaml")


def told(scratch: Scratch, run: Running) -> list[Any]:
    """Wait for the end of the run, and return the replies that the agent got."""
    run.wait()
    assert (scratch.path / "told").exists(), run.err
    answers: list[Any] = json.loads((scratch.path / "told").read_text())
    return answers


def waits(scratch: Scratch, *, after: str = "") -> dict[str, str]:
    """Wait for a permission request other than *after*, and return the request."""

    def found() -> list[dict[str, str]]:
        shown = scratch.run("permissions", "--json")
        waiting = json.loads(shown.out) if shown.status == 0 else []  # until the supervisor is there
        return [one for one in waiting if one["id"] != after]

    return until(found)[0]


def test_deny_covers_commands_and_writes(scratch: Scratch) -> None:
    """With ``permissions: deny`` a requested command is not run and a file not written, both on record; reading is
    allowed."""
    ran, written, seen = told(scratch, start(scratch, 'run("touch ran"), write("written"), read("kept.txt")', "deny"))
    assert ran == [126, "not permitted (default: deny)\n"]
    assert written["error"]["message"] == "not permitted (default: deny)"
    assert seen["result"]["content"] == "kept"
    assert not (scratch.path / "ran").exists()
    assert not (scratch.path / "written").exists()
    noted = [one["event"] for one in scratch.records("t:t1") if one["event"].endswith("Refused")]
    assert noted == ["TerminalRefused", "FileRefused"]


def test_a_rule_decides_about_a_service(scratch: Scratch) -> None:
    """Permission rules match the command line or the path of a service; a rule can deny reading, too."""
    rules = "{rules: [{then: deny, title: 'git push*'}, {then: deny, kind: read, path: '*.txt'}]}"
    run = start(scratch, 'run("git push -f"), run("echo hello"), read("kept.txt"), write("new.txt")', rules)
    pushed, echoed, seen, written = told(scratch, run)
    assert pushed == [126, "not permitted (rule: deny title git push*)\n"]
    assert echoed == [0, "hello\n"]
    assert "rule: deny kind read" in seen["error"]["message"]
    assert written["result"] == {}


def test_a_human_is_asked_about_a_service(scratch: Scratch) -> None:
    """With ``permissions: ask`` a command and a file write wait for an operator, who sees the whole command; allowed,
    the command runs; denied, nothing is written."""
    run = start(scratch, 'run("touch ran"), write("written")', "{default: ask, answer_within_s: 15}")
    first = waits(scratch)
    assert (first["title"], first["kind"]) == ("touch ran", "execute")
    assert scratch.run("answer", first["id"], "allow").status == 0
    second = waits(scratch, after=first["id"])
    assert second["title"].startswith("fs/write_text_file ")
    assert scratch.run("answer", second["id"], "deny").status == 0
    ran, written = told(scratch, run)
    assert ran == [0, ""]
    assert (scratch.path / "ran").exists()
    assert "not permitted" in written["error"]["message"]
    assert not (scratch.path / "written").exists()


def test_a_service_is_denied_at_the_deadline(scratch: Scratch) -> None:
    """A command that waits for a permission is denied when ``answer_within_s`` is over, and the turn goes on."""
    run = start(scratch, 'run("touch ran")', "{default: ask, answer_within_s: 0.2}")
    assert told(scratch, run)[0][0] == 126
    assert not (scratch.path / "ran").exists()


def test_a_human_is_not_asked_twice(scratch: Scratch) -> None:
    """A command that an operator allowed when the agent requested the permission runs without another request; a
    different command under the same permission waits for an operator."""
    services = 'may("`ls`", kind="execute", rawInput={"command": "touch ran"}), run("touch ran"), run("touch more")'
    run = start(scratch, services, "{default: ask, answer_within_s: 15}")
    first = waits(scratch)
    assert scratch.run("answer", first["id"], "allow").status == 0
    second = waits(scratch, after=first["id"])
    assert second["title"] == "touch more"
    assert (scratch.path / "ran").exists()
    assert scratch.run("answer", second["id"], "deny").status == 0
    assert [answer[0] for answer in told(scratch, run)[1:]] == [0, 126]


def test_what_a_rule_allowed_covers_no_other_command(scratch: Scratch) -> None:
    """A permission allowed by a rule for the agent's title does not cover another command that is hidden in the
    request's arguments: that command waits for a human."""
    services = 'may("ls", kind="execute", rawInput={"command": "ls", "note": "touch ran"}), run("touch ran")'
    rules = "{default: ask, answer_within_s: 0.2, rules: [{then: allow, title: 'ls*'}]}"
    asked, ran = told(scratch, start(scratch, services, rules))
    assert asked["optionId"] == "allow_once"
    assert ran[0] == 126
    assert not (scratch.path / "ran").exists()


def test_an_agent_that_may_nothing_starts_no_other_agent(scratch: Scratch) -> None:
    """An agent with ``permissions: deny`` may not start a child session, whose agent may have more rights; the reply
    says why, and the refusal is recorded."""
    scratch.acp_agent("""
        asked = {"name": "kid", "agent": "b", "prompt": "go"}
        Path("told").write_text(json.dumps(agent.call("_supervisor/session/run", **asked)))
        return "done"
    """)
    scratch.plan("""
        agents:
          a: {adapter: acp, command: [python3, agent.py], permissions: deny}
          b: {adapter: command, command: [touch, ran]}
        tasks: [{id: t, agent: a, prompt: go}]
    """)
    scratch.run("run", "plan.yaml")
    answer = json.loads((scratch.path / "told").read_text())["result"]
    assert answer == {"outcome": "failed", "text": "not permitted (default: deny)"}
    assert not (scratch.path / "ran").exists()
    assert [one["event"] for one in scratch.records("t:t1") if one["event"].endswith("Refused")] == ["ChildRefused"]


EDIT = PermissionRequest(title="edit a", kind="edit", paths=("a", "/w/b"))


@pytest.mark.parametrize(
    ("allowed", "wanted", "covered"),
    [
        (EDIT, PermissionRequest(title="", kind="edit", paths=("/w/a",)), True),
        (EDIT, PermissionRequest(title="", kind="read", paths=("/w/b",)), True),
        (EDIT, PermissionRequest(title="", kind="edit", paths=("/w/c",)), False),
        (
            PermissionRequest(title="", kind="read", paths=("a",)),
            PermissionRequest(title="", kind="edit", paths=("/w/a",)),
            False,
        ),
        (PermissionRequest(title="rm x", kind="execute"), PermissionRequest(title="rm x", kind="execute"), True),
        (PermissionRequest(title="rm x", kind="read"), PermissionRequest(title="rm x", kind="execute"), False),
        (PermissionRequest(title="say", kind="execute"), PermissionRequest(title="rm", kind="execute"), False),
    ],
)
def test_what_a_permission_covers(allowed: PermissionRequest, wanted: PermissionRequest, covered: bool) -> None:
    """A permission covers the same command line, or the same files; a permission to edit covers reading, but not the
    other way round."""
    assert covers(allowed, r'{"text": "say \"rm\""}', wanted, "/w") is covered


def test_a_question_in_words_covers_the_command_that_it_shows() -> None:
    """An agent that asks by words, and then has the supervisor run the command in its directory, is not asked twice;
    a command of which the words show a part only is."""
    words = '[{"type":"content","content":{"type":"text","text":"Requesting approval to Running: echo x > p"}}]'
    asked = PermissionRequest(title="Bash")
    for line, covered in [("cd '/w' && echo x > p", True), ("echo x > p", True), ("echo x", False), ("x > p", False)]:
        assert covers(asked, words, PermissionRequest(title=line, kind="execute"), "/w") is covered


def test_details_are_shown_as_text() -> None:
    """The arguments of a call are shown as lines, not as JSON; other text is shown as it is."""
    assert detail_text('{"command":"echo \\"hi\\"","n":1}') == 'command: echo "hi"\nn: 1'
    assert detail_text('[{"type":"content","content":{"type":"text","text":"Run: ls"}}]') == "Run: ls"
    assert detail_text("in /w: ls") == "in /w: ls"


def test_the_default_is_not_about_reading() -> None:
    """A read that no rule matches is allowed, whatever the default of the permission policy."""
    rule = PermissionRule(then=Decision.DENY, path="secret/*")
    policy = PermissionPolicy(default=Decision.ASK, rules=(rule,))
    kinds = [("read", "a"), ("read", "secret/a"), ("edit", "a")]
    found = [
        decide_service(policy, PermissionRequest(title="", kind=kind, paths=(path,)), "/w").decision
        for kind, path in kinds
    ]
    assert found == [Decision.ALLOW, Decision.DENY, Decision.ASK]
