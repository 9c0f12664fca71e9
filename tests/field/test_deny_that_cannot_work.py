"""Permissions that a plan gives to an agent that never asks: refused before anything starts, unless the user knows."""

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
    """`plan check` and `run` refuse it with exit status 2, say what to do, and neither starts nor writes anything."""
    scratch.write("plan.yaml", PLAN.format(entry=f"{{adapter: command, {WRITES}, permissions: {wanted}}}"))
    for command in (("plan", "check"), ("run",)):
        done = scratch.run(*command, "plan.yaml")
        assert done.status == 2, done.text
        assert "plan.yaml:2: agents.a.permissions: " in done.err
        assert "adapter: command" in done.err
        assert "`unguarded: true`" in done.err
    assert {path.name for path in scratch.path.iterdir()} == {"plan.yaml"}


def test_an_unguarded_agent_may_act_without_asking(scratch: Scratch) -> None:
    """With `unguarded: true` the same plan runs, and `plan check` says what that means."""
    scratch.write("plan.yaml", PLAN.format(entry=f"{{adapter: command, {WRITES}, permissions: deny, unguarded: true}}"))
    checked = scratch.run("plan", "check", "plan.yaml")
    assert checked.status == 0, checked.text
    assert "agents.a.unguarded: it may act without asking" in checked.out
    assert scratch.run("run", "plan.yaml").status == 0
    assert (scratch.path / "written.txt").exists()


def test_a_plan_that_says_nothing_of_permissions_is_taken(scratch: Scratch) -> None:
    """Only permissions that the plan writes count: the default asks for nothing that a command could not give."""
    scratch.write("plan.yaml", PLAN.format(entry=f"{{adapter: command, {WRITES}}}"))
    assert scratch.run("plan", "check", "plan.yaml").status == 0


def test_a_reload_that_denies_what_cannot_be_denied_changes_nothing(scratch: Scratch) -> None:
    """A plan that is read again is held to the same: it is refused, and the run goes on as it was."""
    entry = "{{adapter: command, command: [sh, -c, 'cat > /dev/null; until [ -e go ]; do sleep 0.02; done']{more}}}"
    scratch.write("plan.yaml", PLAN.format(entry=entry.format(more="")))
    run = scratch.start("run", "plan.yaml")
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
        ({"adapter": "acp", "command": ("codex-acp", "-c", 'approval_policy="never"')}, "approval_policy=never"),
        ({"adapter": "codex", "command": ("codex", "--yolo", "app-server")}, "--yolo"),
        ({"adapter": "claude", "arguments": ("--dangerously-skip-permissions",)}, "--dangerously-skip-permissions"),
        ({"adapter": "claude", "mode": "bypassPermissions"}, "bypassPermissions"),
        ({"known": "gemini", "arguments": ("--approval-mode=yolo",)}, "--approval-mode yolo"),
        ({"known": "qwen", "arguments": ("-y",)}, "-y"),
        ({"adapter": "acp", "command": ("my-agent", "--yolo")}, "--yolo"),
    ],
)
def test_a_host_is_refused_agents_that_never_ask(entry: dict[str, object], why: str) -> None:
    """An agent's entry that denies is refused where the agent, its way or one of its flags has it act unasked."""
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
    ],
)
def test_agents_that_ask_are_taken(entry: dict[str, object]) -> None:
    """``deny`` is accepted for agents that ask, and for agents that may ask for all that is known."""
    AgentConfig.model_validate({**entry, "permissions": "deny"})


def test_an_agent_that_is_to_be_asked_is_started_so_that_it_asks() -> None:
    """Flags of ours that switch an agent's asking off are not passed when the plan denies; what switches it on is."""
    assert "approval_policy=never" in AgentConfig(known="codex-acp").command
    assert AgentConfig(known="codex-acp", permissions="deny").command == (
        "codex-acp",
        "-c",
        "approval_policy=untrusted",
    )
    assert AgentConfig(known="opencode", permissions="ask").env["OPENCODE_PERMISSION"] == '{"*":"ask"}'
    assert AgentConfig(known="claude-agent-acp", permissions="deny").mode == "default"


def test_no_way_of_the_catalogue_is_started_so_that_it_never_asks() -> None:
    """Each way to have a known agent either passes with `permissions: deny`, or says `asks = false` in its data."""
    for agent in catalogue().values():
        for way in agent.ways:
            entry = {"known": agent.name, "adapter": way.adapter, "permissions": "deny"}
            if way.asks is False:
                with pytest.raises(ValidationError):
                    AgentConfig.model_validate(entry)
            else:
                AgentConfig.model_validate(entry)
