"""Permissions that a plan sets for an agent that never requests any: refused before anything starts, unless the plan
says ``unguarded``."""

from __future__ import annotations

import signal

import pytest
from field_kit import Scratch, until
from pydantic import ValidationError

from supervisor import AgentConfig
from supervisor.agent_catalogue import catalogue

PLAN = "agents:\n  a: {entry}\ntasks:\n  - {{id: t, agent: a, prompt: go}}\n"
WRITES = "command: [sh, -c, 'cat > /dev/null; echo here > written.txt']"


@pytest.mark.parametrize("wanted", ["deny", "ask", "{rules: [{then: deny, kind: edit}]}"])
def test_a_command_that_is_denied_everything_is_refused(scratch: Scratch, wanted: str) -> None:
    """`plan check` and `run` refuse a plan that denies or asks for an agent of the adapter ``command`` with exit status
    2 and a hint, and neither starts nor writes anything."""
    scratch.write("plan.yaml", PLAN.format(entry=f"{{adapter: command, {WRITES}, permissions: {wanted}}}"))
    for command in (("plan", "check"), ("run",)):
        done = scratch.run(*command, "plan.yaml")
        assert done.status == 2, done.text
        assert "plan.yaml:2: agents.a.permissions: " in done.err
        assert "adapter: command" in done.err
        assert "`unguarded: true`" in done.err
    assert {path.name for path in scratch.path.iterdir()} == {"plan.yaml"}


def test_an_unguarded_agent_may_act_without_asking(scratch: Scratch) -> None:
    """With `unguarded: true` a plan that denies permissions to a ``command`` agent runs, and `plan check` and the
    run warn that the agent may act without asking."""
    scratch.write("plan.yaml", PLAN.format(entry=f"{{adapter: command, {WRITES}, permissions: deny, unguarded: true}}"))
    checked = scratch.run("plan", "check", "plan.yaml")
    assert checked.status == 0, checked.text
    assert "agents.a.unguarded: it may act without asking" in checked.out
    ran = scratch.run("run", "plan.yaml")
    assert ran.status == 0
    assert ran.err.count("an agent is unguarded: it may act without asking") == 1
    assert (scratch.path / "written.txt").exists()


def test_a_plan_that_says_nothing_of_permissions_is_taken(scratch: Scratch) -> None:
    """A plan without ``permissions`` for a ``command`` agent passes `plan check`; only permissions that the plan writes
    are refused."""
    scratch.write("plan.yaml", PLAN.format(entry=f"{{adapter: command, {WRITES}}}"))
    assert scratch.run("plan", "check", "plan.yaml").status == 0


def test_a_reload_that_denies_what_cannot_be_denied_changes_nothing(scratch: Scratch) -> None:
    """A reload of a plan that now denies permissions to a ``command`` agent is refused with the reason, and the run
    goes on unchanged."""
    entry = "{{adapter: command, command: [sh, -c, 'cat > /dev/null; until [ -e go ]; do sleep 0.02; done']{more}}}"
    scratch.write("plan.yaml", PLAN.format(entry=entry.format(more="")))
    run = scratch.start("run", "--json", "plan.yaml")
    until(lambda: "executor_started" in run.out)
    scratch.write("plan.yaml", PLAN.format(entry=entry.format(more=", permissions: deny")))
    run.process.send_signal(signal.SIGHUP)
    until(lambda: "not reloaded, nothing has changed" in run.err)
    assert "agents.a.permissions: 'deny' cannot work" in run.err
    scratch.write("go", "")
    assert run.wait().status == 0


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"known": "pi"}, "adapter: jsonl"),
        ({"known": "gemini", "adapter": "jsonl"}, "adapter: jsonl"),
        ({"known": "aider"}, "adapter: command"),
        ({"adapter": "acp", "command": ("opencode", "acp")}, "OPENCODE_PERMISSION"),
        ({"adapter": "acp", "command": ("npx", "-y", "@agentclientprotocol/claude-agent-acp@0.101.0")}, "'default'"),
        *(
            ({"adapter": "acp", "command": (launcher, "-y", "@agentclientprotocol/claude-agent-acp")}, "'default'")
            for launcher in ("bunx", "pnpx", "uvx", "pipx")
        ),
        ({"known": "codex-acp", "arguments": ("-c", 'approval_policy="never"')}, "approval_policy=never"),
        ({"adapter": "acp", "command": ("codex-acp", "-c", "approval_policy=untrusted")}, "'read-only'"),
        ({"known": "codex-acp", "mode": "agent"}, "say mode: read-only"),
        ({"adapter": "codex", "command": ("codex", "--yolo", "app-server")}, "--yolo"),
        ({"adapter": "claude", "arguments": ("--dangerously-skip-permissions",)}, "--dangerously-skip-permissions"),
        ({"adapter": "claude", "mode": "bypassPermissions"}, "bypassPermissions"),
        ({"known": "gemini", "arguments": ("--approval-mode=yolo",)}, "--approval-mode yolo"),
        ({"known": "qwen", "arguments": ("-y",)}, "-y"),
        ({"adapter": "acp", "command": ("my-agent", "--yolo")}, "--yolo"),
        ({"adapter": "claude", "arguments": ("--allowedTools", "Bash")}, "--allowedTools"),
        ({"adapter": "claude", "command": ("claude", "--allowed-tools=Bash")}, "--allowed-tools"),
        ({"known": "claude", "arguments": ("--settings", '{"permissions": {"allow": ["Bash"]}}')}, "--settings"),
        ({"known": "gemini", "arguments": ("--allowed-tools", "run_shell_command")}, "--allowed-tools"),
        *(  # launchers hide neither flags nor what an agent needs in order to ask
            ({"adapter": "claude", "command": (*launcher, "claude --allowedTools Bash")}, "--allowedTools")
            for launcher in (("env",), ("bash", "-c"), ("nice", "-n", "5"), ("docker", "run", "image"), ("./start",))
        ),
        *(
            ({"adapter": "acp", "command": (*launcher, "opencode", "acp")}, "OPENCODE_PERMISSION")
            for launcher in (("env",), ("nice", "-n", "5"), ("timeout", "1h"), ("sudo", "-u", "me"))
        ),
        ({"adapter": "acp", "command": ("bash", "-c", "exec opencode acp")}, "OPENCODE_PERMISSION"),
        ({"adapter": "acp", "command": ("node", "/lib/node_modules/opencode-ai/bin/run.js", "acp")}, "OPENCODE"),
        ({"adapter": "acp", "command": ("nice", "claude-agent-acp")}, "'default'"),
        ({"adapter": "acp", "command": ("bash", "-c", "gemini --acp -y")}, "-y"),
        *(  # a variable with another value, or that a launcher may not pass on
            ({"known": "opencode", "env": {"OPENCODE_PERMISSION": value}}, "env has")
            for value in ('{"*":"allow"}', '{"*":"ask","bash":"allow"}', "")
        ),
        *(
            ({"known": "opencode", "command": (*launcher, "opencode", "acp")}, "in front of it may change that")
            for launcher in (
                ("env", "-i"),
                ("env", "-u", "OPENCODE_PERMISSION"),
                ("env", 'OPENCODE_PERMISSION={"*":"allow"}'),
                ("bash", "-c", "cd /x &&"),
                ("sudo", "-u", "me"),
                ("docker", "run", "image"),
            )
        ),
        ({"known": "opencode", "command": ("./my-script",)}, "in front of it may change that"),
    ],
)
def test_a_host_is_refused_agents_that_never_ask(entry: dict[str, object], why: str) -> None:
    """``permissions: deny`` is refused for an agent that acts without asking, be it by its adapter, its mode or one of
    its flags; the error names the reason and ``unguarded``."""
    with pytest.raises(ValidationError) as refused:
        AgentConfig.model_validate({**entry, "permissions": "deny"})
    assert why in str(refused.value)
    assert "unguarded: true" in str(refused.value)
    AgentConfig.model_validate({**entry, "permissions": "deny", "unguarded": True})
    AgentConfig.model_validate({**entry, "permissions": "allow"})


@pytest.mark.parametrize(
    "entry",
    [
        {"known": "gemini"},
        {"known": "claude"},
        {"adapter": "codex"},
        {"adapter": "acp", "command": ("my-agent", "-y")},  # nobody knows what that means to it
        {"adapter": "acp", "command": ("npx", "-y", "my-agent")},
        {"adapter": "acp", "command": ("my-agent",), "mode": "auto"},  # nor that
        {"adapter": "scripted"},
        {"known": "opencode", "command": ("nice", "-n", "5", "opencode", "acp")},
        {"known": "opencode", "command": ("env", "TMPDIR=/x", "timeout", "1h", "opencode", "acp")},
        {"known": "opencode", "command": ("bash", "-c", "exec opencode acp")},
        {"known": "claude-agent-acp", "command": ("docker", "run", "image", "claude-agent-acp")},  # its mode is checked
        {"adapter": "claude", "command": ("./start-claude",)},  # as are its mode and its rules
        {"adapter": "acp", "command": ("my-agent", "--model", "gemini", "-y")},
    ],
)
def test_agents_that_ask_are_taken(entry: dict[str, object]) -> None:
    """``permissions: deny`` is accepted for agents that request permissions, and for agents of which it is not known
    whether they do."""
    AgentConfig.model_validate({**entry, "permissions": "deny"})


def test_an_agent_that_is_to_be_asked_is_started_so_that_it_asks() -> None:
    """With ``permissions: deny`` a known agent is started with the flags that make it request permissions, instead of
    those that switch requests off."""
    assert "approval_policy=never" in AgentConfig(known="codex").command
    assert AgentConfig(known="codex-acp", permissions="deny").command == ("codex-acp",)
    assert AgentConfig(known="codex-acp", permissions="deny").mode == "read-only"
    assert AgentConfig(known="opencode", permissions="ask").env["OPENCODE_PERMISSION"] == '{"*":"ask"}'
    assert AgentConfig(known="claude-agent-acp", permissions="deny").mode == "default"


def test_no_way_of_the_catalogue_is_started_so_that_it_never_asks() -> None:
    """Each way to run an agent of the catalogue either accepts `permissions: deny`, or has `asks = false` in its data
    and refuses it."""
    for agent in catalogue().values():
        for way in agent.ways:
            entry = {"known": agent.name, "adapter": way.adapter, "permissions": "deny"}
            if way.asks is False:
                with pytest.raises(ValidationError):
                    AgentConfig.model_validate(entry)
            else:
                AgentConfig.model_validate(entry)
