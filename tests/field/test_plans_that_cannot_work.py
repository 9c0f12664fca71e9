"""Plans that a run could only fail: ``plan check`` names the line, the field and the fix, before an agent is paid."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from field_kit import Scratch

from supervisor import AbortPolicy, Retention, StageBudgets
from supervisor.agent_catalogue import BadData, LineMapping, read_data
from supervisor.plans.loading import ARGUMENT_BYTES_MAX

AGENTS = "agents: {a: {adapter: command, command: [echo, '{prompt}']}, in: {adapter: command, command: [cat]}}\n"
BAD_PLANS = {
    "tasks[0].acceptance[0].lint: no program 'no-such-linter' on PATH": """
        tasks: [{id: t, agent: a, prompt: x, acceptance: [{lint: [no-such-linter, .]}]}]
    """,
    "validation[0].unit_tests: no program 'no-such-tests' on PATH": """
        tasks: [{id: t, agent: a, prompt: x}]
        validation: [{unit_tests: [no-such-tests]}]
    """,
    "3: 1:30 is read as 90 (base 60); write 90, or quote it": """
        tasks: [{id: t, agent: a, prompt: x, timeout_s: 1:30}]
    """,
    "3: 0100 is read as 64 (base 8); write 64, or quote it": """
        tasks: [{id: t, agent: a, prompt: x, timeout_s: 0100}]
    """,
}


@pytest.mark.parametrize("words", BAD_PLANS)
def test_a_fault_is_named_before_the_run(scratch: Scratch, words: str) -> None:
    """A missing program of a test, and a number that is read in another base, are bad input."""
    scratch.plan(AGENTS + textwrap.dedent(BAD_PLANS[words]))
    checked = scratch.run("plan", "check", "plan.yaml")
    assert (checked.status, words in checked.err) == (2, True), checked.text


def test_a_program_that_the_work_may_bring_is_no_fault(scratch: Scratch) -> None:
    """A test may name a file of the work, or a program on a PATH that the work makes: neither is looked up."""
    scratch.plan("""
        agents:
          a: {adapter: command, command: [cat]}
          b: {adapter: command, command: [cat], env: {PATH: "/usr/bin:/bin:/not/made/yet/bin"}}
        tasks:
          - {id: t, agent: a, prompt: x, acceptance: [{command: [./check.sh]}]}
          - {id: u, agent: b, prompt: x, acceptance: [{command: [made-by-the-work]}]}
    """)
    checked = scratch.run("plan", "check", "plan.yaml")
    assert checked.status == 0, checked.text


def test_a_program_that_an_earlier_task_may_install_is_a_warning(scratch: Scratch) -> None:
    """A test of a task that comes after another may use a program that the other installs: the check says so, and does
    not refuse the plan."""
    scratch.plan(f"""
        {AGENTS.strip()}
        tasks:
          - {{id: t, agent: a, prompt: install the linter}}
          - {{id: u, agent: a, prompt: x, depends_on: [t], acceptance: [{{lint: [no-such-linter, .]}}]}}
    """)
    checked = scratch.run("plan", "check", "plan.yaml")
    words = (
        "tasks[1].acceptance[0].lint: no program 'no-such-linter' on PATH, so the test fails unless a task before it"
    )
    assert (checked.status, words in checked.out) == (0, True), checked.text


@pytest.mark.parametrize("agent", ["a", "in"])
def test_a_prompt_must_fit_into_an_argument(scratch: Scratch, agent: str) -> None:
    """A prompt that is an argument of its program has at most 131,071 bytes, as the kernel demands; one that goes to
    standard input has no such limit. The limit counts bytes, not characters."""
    fits, too_long = "é" * (ARGUMENT_BYTES_MAX // 2), "é" * (ARGUMENT_BYTES_MAX // 2 + 1)
    for prompt, is_fault in ((fits, False), (too_long, agent == "a")):
        scratch.plan(f"{AGENTS}tasks: [{{id: t, agent: {agent}, prompt: '{prompt}'}}]\n")
        checked = scratch.run("plan", "check", "plan.yaml")
        assert checked.status == (2 if is_fault else 0), checked.text
        if is_fault:
            assert "tasks[0].prompt: the argument of agent 'a' would have 131072 bytes" in checked.err


def test_a_rule_about_no_kind_of_call_is_a_fault(scratch: Scratch) -> None:
    """A permission rule with an unknown kind would never match: a ``deny`` that does nothing."""
    scratch.plan("""
        agents: {a: {adapter: scripted, permissions: {rules: [{then: deny, kind: [read, exec]}]}}}
        tasks: [{id: t, agent: a, prompt: x}]
    """)
    checked = scratch.run("plan", "check", "plan.yaml")
    assert (checked.status, "'exec' is no kind of a tool call; did you mean 'execute'?" in checked.err) == (2, True)


def test_a_mapping_to_no_kind_of_call_is_a_fault(tmp_path: Path) -> None:
    """``kinds`` of a line mapping name the kinds that permissions know: ``bash = "exec"`` would hide a call."""
    mapping = tmp_path / "mapping.toml"
    rule = '[[rules]]\nwhen = {type = "end"}\nsays = "end"\nstop = "end_turn"\n'
    mapping.write_text(f'[kinds]\nbash = "exec"\n{rule}')
    with pytest.raises(BadData, match="'exec' is no kind of a tool call; give one of read, edit, "):
        read_data(mapping, LineMapping)
    mapping.write_text(f'[kinds]\nbash = "execute"\n{rule}')
    assert read_data(mapping, LineMapping).kinds == {"bash": "execute"}


@pytest.mark.parametrize("given", [-1, -0.001, float("nan"), float("inf")])
def test_no_duration_is_refused_where_it_is_made(given: float) -> None:
    """A stage budget and a retention must be finite and not negative; the error names the field and the value."""
    for field in ("request_s", "cancel_s", "terminate_s", "kill_s"):
        with pytest.raises(ValueError, match=rf"StageBudgets: {field}: {given!r} is no duration; give seconds, 0 or"):
            AbortPolicy(ladder=StageBudgets(**{field: given}))
    with pytest.raises(ValueError, match=r"Retention: keep_s: .* is no duration"):
        Retention(keep_s=given)


def test_a_count_and_a_type_are_refused_where_they_are_made() -> None:
    """A negative count is a ValueError, a text a TypeError."""
    with pytest.raises(ValueError, match="Retention: records_max: -1 is no count; give 0 or more"):
        Retention(records_max=-1)
    with pytest.raises(TypeError, match="StageBudgets: kill_s: '1' is of type str; give seconds"):
        StageBudgets(kill_s="1")  # type: ignore[arg-type]
