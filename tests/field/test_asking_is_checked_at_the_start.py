"""Permissions that a plan sets, checked in the agent's own answers when it starts: an agent that reports that it acts
without asking, or of which nobody can tell, is given no prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from field_kit import Scratch

from supervisor.agents.protocols.acp.codec import AcpCodec
from supervisor.agents.protocols.claude.codec import ClaudeCodec
from supervisor.agents.protocols.codec_base import Conversation
from supervisor.agents.protocols.codex.codec import CodexCodec
from supervisor.plans import AgentConfig
from supervisor.ports import Malformed, Out, Ready, Send

AGENT = """
    import json, sys
    from pathlib import Path

    Path("launches").open("a").write("launched\\n")
    for message in map(json.loads, sys.stdin):
        if answer := answer_to(message):
            print(json.dumps(answer), flush=True)
        elif "prompt" in json.dumps(message):
            Path("prompted").touch()
"""
"""Program that answers by ``answer_to``, counts its launches, and leaves a file when it is given a prompt."""

CODEX_ACP = """
    def answer_to(message):
        modes = [{"id": "read-only"}, {"id": "agent"}]
        answers = {
            "initialize": {"protocolVersion": 1, "agentInfo": {"name": "@agentclientprotocol/codex-acp"}},
            "session/new": {"sessionId": "s", "modes": {"currentModeId": "agent", "availableModes": modes}},
        }
        if message["method"] in answers:
            return {"jsonrpc": "2.0", "id": message["id"], "result": answers[message["method"]]}
"""
CLAUDE = """
    def answer_to(message):
        rules = [{"behavior": "allow", "rule": "Bash", "source": "cliArg"}]
        answers = {"list_permission_rules": {"state": {"rules": rules}}, "get_settings": {"effective": {}}}
        if message["type"] == "control_request":
            said = answers.get(message["request"]["subtype"], {"mode": "default"})
            response = {"subtype": "success", "request_id": message["request_id"], "response": said}
            return {"type": "control_response", "response": response}
"""
CODEX = """
    def answer_to(message):
        thread = {"thread": {"id": "t"}, "approvalPolicy": "on-request", "sandbox": {"type": "workspaceWrite"}}
        if message["method"] in ("initialize", "thread/start"):
            return {"id": message["id"], "result": thread}
"""


@pytest.mark.parametrize(
    ("adapter", "answers", "why"),
    [
        ("acp", CODEX_ACP, "it is in the mode 'agent'; say mode: read-only"),
        ("claude", CLAUDE, "a rule allows 'Bash' (cliArg)"),
        ("codex", CODEX, "its sandbox is 'workspaceWrite'"),
    ],
)
@pytest.mark.parametrize("wanted", ["deny", "ask"])
def test_an_agent_that_does_not_ask_is_given_no_prompt(
    scratch: Scratch, adapter: str, answers: str, why: str, wanted: str
) -> None:
    """A script starts an agent in another way than the plan can see (as codex-acp 2.6.0, which ignores all options, as
    `claude --allowedTools Bash`, as a codex that writes): its task fails with the reason and the way out, after one
    launch and without a prompt."""
    scratch.write("start.py", answers)
    with (scratch.path / "start.py").open("a") as file:
        file.write(AGENT.replace("\n    ", "\n"))
    scratch.plan(f"""
        agents:
          a: {{adapter: {adapter}, command: [python3, start.py], permissions: {wanted}}}
        tasks: [{{id: t, agent: a, prompt: go}}]
    """)
    assert scratch.run("plan", "check", "plan.yaml").status == 0
    done = scratch.run("run", "plan.yaml")
    assert done.status == 1, done.text
    assert why in done.text
    assert "`unguarded: true`" in done.text
    assert (scratch.path / "launches").read_text() == "launched\n"
    assert not (scratch.path / "prompted").exists()


def test_plan_check_says_what_it_cannot_see(scratch: Scratch) -> None:
    """`plan check` accepts an ACP agent that is in no catalogue, and says that its permissions hold only if it asks."""
    scratch.plan("""
        agents: {a: {adapter: acp, command: [sh], permissions: deny}}
        tasks: [{id: t, agent: a, prompt: go}]
    """)
    checked = scratch.run("plan", "check", "plan.yaml")
    assert checked.status == 0
    assert "agents.a.permissions: hold if it asks" in checked.out


# ------------------------------------------------------------------------------------------------ each protocol
def options(**entry: Any) -> Any:
    """Return the options that the codec of an agent gets: *entry* is the agent's entry in a plan that denies."""
    return AgentConfig.model_validate({"permissions": "deny", **entry}).agent_options


def feed(codec: Conversation, **message: Any) -> list[Out]:
    return list(codec.feed(json.dumps(message).encode() + b"\n"))


def refusal(outs: list[Out]) -> str:
    """Return the reason of the refusal among *outs*, which is permanent; ``""`` if the agent is ready."""
    for out in outs:
        if isinstance(out, Malformed):
            assert out.permanent
            return out.why
    assert any(isinstance(out, Ready) for out in outs)
    return ""


def acp(entry: dict[str, Any], name: str, session: dict[str, Any], answers: tuple[dict[str, Any], ...] = ()) -> str:
    """Open a conversation with an ACP agent that calls itself *name*; *session* is its answer to ``session/new``."""
    codec = AcpCodec(agent_options=options(adapter="acp", **entry))
    codec.start("/work")
    feed(codec, jsonrpc="2.0", id=1, result={"protocolVersion": 1, "agentInfo": {"name": name, "version": "1"}})
    outs = feed(codec, jsonrpc="2.0", id=2, result={"sessionId": "s", **session})
    for number, answer in enumerate(answers, 3):
        outs = feed(codec, jsonrpc="2.0", id=number, result=answer)
    return refusal(outs)


def modes(current: str, *others: str) -> dict[str, Any]:
    return {"modes": {"currentModeId": current, "availableModes": [{"id": one} for one in (current, *others)]}}


def mode_option(current: str, *others: str) -> dict[str, Any]:
    choices = [{"value": one} for one in (current, *others)]
    return {"configOptions": [{"id": "mode", "category": "mode", "currentValue": current, "options": choices}]}


SCRIPT: dict[str, Any] = {"command": ("./start",)}
CODEX_BRIDGE: dict[str, Any] = {"known": "codex-acp"}


@pytest.mark.parametrize(
    ("entry", "name", "session", "answers", "why"),
    [
        (SCRIPT, "@agentclientprotocol/claude-agent-acp", modes("auto", "default"), (), "in the mode 'auto'"),
        (SCRIPT, "gemini-cli", modes("yolo"), (), "in the mode 'yolo'"),
        (SCRIPT, "qwen-code", mode_option("auto-edit"), (), "in the mode 'auto-edit'"),
        (SCRIPT, "@mistralai/mistral-vibe", {}, (), "does not report its mode"),
        (SCRIPT, "OpenCode", mode_option("build"), (), "say known: opencode"),
        (CODEX_BRIDGE, "codex-acp", {}, (), "does not let clients choose it"),
        (CODEX_BRIDGE, "codex-acp", mode_option("agent", "read-only"), (mode_option("agent"),), "in the mode 'agent'"),
        # and those that ask
        (CODEX_BRIDGE, "codex-acp", mode_option("agent", "read-only"), (mode_option("read-only"),), ""),
        (CODEX_BRIDGE, "codex-acp", modes("agent", "read-only"), ({},), ""),
        (SCRIPT, "gemini-cli", modes("default"), (), ""),
        (SCRIPT, "my-agent", modes("yolo"), (), ""),  # nobody knows what that means to it
        ({"known": "opencode"}, "OpenCode", mode_option("build"), (), ""),
        ({**SCRIPT, "unguarded": True}, "gemini-cli", modes("yolo"), (), ""),
        ({**SCRIPT, "permissions": "allow"}, "gemini-cli", modes("yolo"), (), ""),
    ],
)
def test_an_acp_agent_is_known_by_its_own_name(
    entry: dict[str, Any], name: str, session: dict[str, Any], answers: tuple[dict[str, Any], ...], why: str
) -> None:
    """The mode that an ACP agent of the catalogue reports counts, whatever program the plan names, also after a change
    of the mode that the agent has accepted."""
    found = acp(entry, name, session, answers)
    assert why in found
    assert bool(why) is bool(found)


def claude(answers: dict[str, Any], **entry: Any) -> str:
    """Open a conversation with Claude Code, which answers each control request by *answers*; ``None`` is an error."""
    codec = ClaudeCodec(agent_options=options(adapter="claude", **entry))
    outs = list(codec.start("/work"))
    while sent := [json.loads(out.data) for out in outs if isinstance(out, Send)]:
        said = answers.get(sent[-1]["request"]["subtype"])
        success = {"subtype": "success", "response": said} if said is not None else {"subtype": "error", "error": "?"}
        outs = feed(codec, type="control_response", response={"request_id": sent[-1]["request_id"], **success})
    return refusal(outs)


ASKS: dict[str, Any] = {
    "initialize": {},
    "get_settings": {"effective": {"permissions": {"allow": ["Read(/etc/*)"], "deny": ["Bash"]}}},
    "list_permission_rules": {"state": {"rules": [{"behavior": "deny", "rule": "Bash"}]}},
    "set_permission_mode": {"mode": "default"},
}
HOOK = {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "./say-yes"}]}]}}


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({"get_settings": {"effective": {"permissions": {"allow": ["Read", "Bash(make *)"]}}}}, "'Bash(make *)'"),
        ({"get_settings": {"effective": {"sandbox": {"enabled": True}}}}, "all commands in its sandbox"),
        ({"get_settings": {"effective": HOOK}}, "hooks of its settings"),
        ({"get_settings": None}, "does not report its settings"),
        ({"list_permission_rules": {"state": {"rules": [{"behavior": "allow", "rule": "Edit"}]}}}, "'Edit'"),
        ({"set_permission_mode": {"mode": "bypassPermissions"}}, "in the mode 'bypassPermissions'"),
        ({"set_permission_mode": None}, "does not report its permission mode"),
        ({}, ""),
        ({"list_permission_rules": None}, ""),  # 2.1.197 cannot list them, and the plan shows its command line
        ({"get_settings": {"effective": {"sandbox": {"enabled": True, "autoAllowBashIfSandboxed": False}}}}, ""),
    ],
)
def test_claude_reports_mode_rules_and_settings(answers: dict[str, Any], why: str) -> None:
    """Claude Code is refused if its answers show a mode, a rule, a sandbox or a hook by which it acts without asking,
    or if it cannot report its mode or settings; rules that deny, or allow reading, are accepted."""
    found = claude({**ASKS, **answers})
    assert why in found
    assert bool(why) is bool(found)


def test_a_script_around_an_old_claude_cannot_be_checked() -> None:
    """A version that cannot list its rules is refused where a script may have given it some."""
    assert "rules of a command line" in claude({**ASKS, "list_permission_rules": None}, command=("./start",))
    assert claude({**ASKS, "list_permission_rules": None}, command=("nice", "claude")) == ""


def codex(resume_id: str | None = None, **opened: Any) -> str:
    """Open a thread of codex, or load one; *opened* is codex's answer."""
    codec = CodexCodec(agent_options=options(adapter="codex"))
    codec.start("/work", resume_id)
    [_, asked] = [json.loads(out.data) for out in feed(codec, id=1, result={}) if isinstance(out, Send)]
    assert (asked["params"]["sandbox"], asked["params"]["approvalPolicy"]) == ("read-only", "on-request")
    thread = {"approvalPolicy": "on-request", "sandbox": {"type": "readOnly"}, "thread": {"id": "t"}}
    return refusal(feed(codec, id=2, result={**thread, **opened}))


@pytest.mark.parametrize(
    ("opened", "why"),
    [
        ({"sandbox": {"type": "dangerFullAccess"}}, "'dangerFullAccess'"),
        ({"sandbox": {"type": "readOnly", "networkAccess": True}}, "'readOnly' with network"),
        ({"sandbox": None}, "not reported"),
        ({"approvalPolicy": "never"}, "approval policy is 'never'"),
        ({"approvalPolicy": None}, "approval policy is None"),
        ({"approvalsReviewer": "auto_review"}, "reviewed by 'auto_review'"),
        ({"approvalsReviewer": "user"}, ""),
        ({"approvalPolicy": "untrusted", "sandbox": {"type": "readOnly", "networkAccess": False}}, ""),
    ],
)
@pytest.mark.parametrize("resume_id", [None, "t"])
def test_codex_reports_sandbox_and_approvals(opened: dict[str, Any], why: str, resume_id: str | None) -> None:
    """A new thread of codex, and one that is loaded, is asked to be read-only, and is refused unless codex's answer
    says that it is, and that approvals come to the supervisor."""
    found = codex(resume_id, **opened)
    assert why in found
    assert bool(why) is bool(found)
