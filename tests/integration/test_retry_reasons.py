"""The second prompt of a task: each test makes the first attempt fail in one way, and compares the second prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.embedding.runtime import open_supervisor
from supervisor.plans import AgentConfig, Plan
from supervisor.plans.lifecycle import RetryBudgetConfig
from supervisor.sessions.inprocess import AgentTurn
from supervisor.work.plan_handle import run_plan
from tests.integration.test_task_commands import running_plan
from tests.support import Run, quick_settings, supervising

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

BOUNDS = quick_settings()
NO_DELAY: dict[str, Any] = {"base_retry_delay": 0, "max_retry_delay": 0}
AGAIN = "Write a.txt\n\nThis is another attempt, for the reason that is quoted here:\n"
FAILS = {"command": ["sh", "-c", "echo 'test_a: expected 1'; echo 'got 2'; exit 2"]}
"""An acceptance test that fails always, and prints two lines."""


def plan_of(recorded: Path, first: str, then: str = "true", **more: Any) -> Plan:
    """Return a plan with the task ``t``. Its agent records its prompts as the files 0, 1, ... in *recorded*; it does
    *first* after the first prompt, and *then* after each later one."""
    recorded.mkdir(exist_ok=True)
    script = f"n=$(ls {recorded} | wc -l); cat > {recorded}/$n; if [ $n = 0 ]; then {first}; else {then}; fi"
    worker = AgentConfig(adapter="command", command=("sh", "-c", script), explain_retries=True)
    agents = {"worker": worker, **more.pop("agents", {})}
    settings = {"limits": BOUNDS.limits, "policy": BOUNDS.policy, "task_lifecycle": NO_DELAY}
    for name in ("workspace", "explain_retries"):
        if name in more:
            settings[name] = more.pop(name)
    task = {"id": "t", "agent": "worker", "prompt": "Write a.txt", "max_retries": 1, **more}
    return Plan.model_validate({"agents": agents, "tasks": [task], **settings})


def prompts(recorded: Path) -> list[str]:
    """Return the recorded prompts, oldest first."""
    return [path.read_text() for path in sorted(recorded.iterdir(), key=lambda path: int(path.name))]


async def second_prompt(tmp_path: Path, first: str, then: str = "true", **more: Any) -> str:
    """Carry out a plan, and return the second prompt; the first prompt is the task's own."""
    recorded = tmp_path / "prompts"
    plan = plan_of(recorded, first, then, **more)
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        await run_plan(run.sup, plan)
    before, after, *_ = prompts(recorded)
    assert before == "Write a.txt"
    return after


# ---------------------------------------------------------------------------------- another attempt in the same run
async def test_an_exit_status(tmp_path: Path) -> None:
    """The next attempt is given the exit status, and the last words on standard error."""
    told = await second_prompt(tmp_path, "echo 'no such key' >&2; exit 3")
    assert told == AGAIN + "> exit status 3; its last words: no such key"


async def test_a_time_out(tmp_path: Path) -> None:
    """The next attempt is told that the time of the last one was over."""
    told = await second_prompt(tmp_path, "exec sleep 1000", timeout_s=0.3)
    assert told == AGAIN + "> the turn took longer than 0.3 s (timeout_s of the task)"


async def test_a_completion_check(tmp_path: Path) -> None:
    """An agent that stopped too early is told what is missing."""
    told = await second_prompt(tmp_path, "true", "touch a.txt", completion=[{"glob_exists": "a.txt"}])
    assert told == AGAIN + "> not complete: nothing is at a.txt"


async def test_an_exception(tmp_path: Path) -> None:
    """The next attempt of an in-process agent is given the exception of the last one, with file and line."""
    told: list[str] = []

    async def agent(turn: AgentTurn) -> str:
        told.append(turn.prompt)
        if len(told) == 1:
            raise RuntimeError("the page has no table")
        return "done"

    async with supervising(tmp_path, settings=BOUNDS) as run:
        session = await run.sup.start_session("s", agent=agent)
        await session.run("Write a.txt")
    line = agent.__code__.co_firstlineno + 3
    assert told[1] == AGAIN + f"> RuntimeError: the page has no table ({__file__}, line {line})"


# ------------------------------------------------------------------------------------------------ another claim
async def test_a_failed_test(tmp_path: Path) -> None:
    """The next claim is given the command that failed, and its whole output."""
    title = "command sh -c echo 'test_a: expected 1'; echo 'got 2'; exit 2"
    told = await second_prompt(tmp_path, "true", acceptance=[FAILS])
    assert told == AGAIN + f"> not accepted: {title}: exited with 2: got 2\n> test_a: expected 1\n> got 2"


async def test_a_rejection_by_a_reviewer(tmp_path: Path) -> None:
    """The next claim is given each finding of the reviewer."""
    verdict = '{"verdict": "reject", "findings": ["a.txt is empty", "no test"]}'
    critic = {"critic": AgentConfig(adapter="command", command=("echo", verdict))}
    told = await second_prompt(tmp_path, "true", agents=critic, review={"agent": "critic"})
    assert told == AGAIN + "> rejected by review:\n> - a.txt is empty\n> - no test"


async def test_a_rejection_by_a_person(tmp_path: Path) -> None:
    """The next claim is given the reason that the person gave."""
    recorded = tmp_path / "prompts"
    async with running_plan(tmp_path, plan_of(recorded, "true", approval="after")) as plan:
        await plan.until("approval_requested", "r1#t")
        await plan.commands.reject("t", by="operator:ann", reason="say where it comes from")
        await plan.until("approval_requested", "r1#t", number=2)
        await plan.commands.approve("t", by="operator:ann")
    assert prompts(recorded)[1] == AGAIN + "> denied by operator:ann: say where it comes from"


async def test_a_merge_conflict(repository: Path, tmp_path: Path) -> None:
    """The next claim is given the files in conflict."""
    theirs = f"cd {repository}; echo theirs > a.txt; git -c user.name=x -c user.email=x@y commit -qam theirs"
    plan = plan_of(tmp_path / "prompts", f"echo mine > a.txt; ({theirs})", workspace="worktree")
    settings: dict[str, Any] = {"agents": plan.agents, "settings": plan.settings, "workdir": repository}
    async with open_supervisor(repository / ".sdd", **settings) as sup:
        await run_plan(sup, plan)
    again = "the workspace has this work, with the target merged in: resolve the conflict there"
    assert prompts(tmp_path / "prompts")[1] == f"{AGAIN}> not merged: in conflict with main: a.txt; {again}"


async def test_another_agent_is_told_too(tmp_path: Path) -> None:
    """A claim by another agent is given the error that ended the claim before."""
    command = ("sh", "-c", f"cat > {tmp_path}/prompts/9")
    other = {"other": AgentConfig(adapter="command", command=command, explain_retries=True)}
    recorded = tmp_path / "prompts"
    plan = plan_of(recorded, "exit 127", agents=other, fallback_agents=["other"])
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        await run_plan(run.sup, plan)
    assert prompts(recorded) == ["Write a.txt", AGAIN + "> exit status 127"]


async def test_a_run_that_is_resumed(tmp_path: Path) -> None:
    """A run that a person resumes with ``--resume`` tells the task why it had failed in the run before."""
    plan = plan_of(tmp_path / "prompts", "true", acceptance=[FAILS], max_retries=0)
    for resume in (False, True):
        settings: dict[str, Any] = {"agents": plan.agents, "settings": plan.settings, "workdir": tmp_path}
        async with open_supervisor(tmp_path / ".sdd", **settings) as sup:
            await run_plan(sup, plan, resume=resume)
    assert prompts(tmp_path / "prompts")[1].endswith("\n> test_a: expected 1\n> got 2")


# ------------------------------------------------------------------------------------------- limits of the reasons
async def outcome_of(tmp_path: Path, plan: Plan) -> tuple[str, Run]:
    """Carry out the plan; return the error of its task, and the run."""
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        result = await run_plan(run.sup, plan)
    return result.tasks["t"].error, run


async def test_the_same_findings_give_no_further_claim(tmp_path: Path) -> None:
    """A test that fails twice in the same way, but for the time that it took, ends the task after two of four
    claims."""
    test = {"command": ["sh", "-c", f"echo ran for $(ls {tmp_path}/prompts | wc -l).2 s; exit 1"]}
    error, _ = await outcome_of(tmp_path, plan_of(tmp_path / "prompts", "true", max_retries=3, acceptance=[test]))
    assert error.endswith("(no further try: the findings are those of the claim before)")
    assert len(prompts(tmp_path / "prompts")) == 2


async def test_reasons_can_be_switched_off(tmp_path: Path) -> None:
    """With ``explain_retries: false`` the second prompt is the first, and findings give no claim."""
    assert await second_prompt(tmp_path, "exit 3", explain_retries=False) == "Write a.txt"
    error, _ = await outcome_of(tmp_path, plan_of(tmp_path / "2", "true", acceptance=[FAILS], explain_retries=False))
    assert error.endswith("(no further try: the next prompt may not tell the findings: explain_retries is false)")


async def test_a_prompt_that_is_a_program_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing is added to a prompt that a shell executes: the text of an error would be executed with it."""
    plan = plan_of(tmp_path / "prompts", "true", prompt="echo x >> tries; [ $(wc -l < tries) = 2 ]")
    agents = {"worker": AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))}
    error, run = await outcome_of(tmp_path, plan.model_copy(update={"agents": agents}))
    asked = [one.metadata["prompt"] for one in run.events() if one.event == "PromptReady"]
    assert (error, len(asked), len(set(asked))) == ("", 2, 1)


async def test_a_prompt_on_the_input_of_a_shell_stays_as_it_is(tmp_path: Path) -> None:
    """An agent that is a shell is claimed again after a failed test, and does not execute the output of the test."""
    test = {"command": ["sh", "-c", f"echo '; touch {tmp_path}/executed'; exit 1"]}
    plan = plan_of(tmp_path / "prompts", "true", prompt="true", acceptance=[test])
    agents = {"worker": AgentConfig(adapter="command", command=("bash", "-eo", "pipefail"))}
    error, run = await outcome_of(tmp_path, plan.model_copy(update={"agents": agents}))
    assert error.startswith("not accepted: command")
    assert [one.metadata["prompt"] for one in run.events() if one.event == "PromptReady"] == ["true", "true"]
    assert not (tmp_path / "executed").exists()


async def test_no_secret_reaches_a_result(tmp_path: Path) -> None:
    """Errors, findings and output in the results of a plan run are without secrets, also where a secret has colours
    in it or is longer than the quoted line of the output."""
    key = f"sk-ant-api03-{'Qx7' * 70}"
    shown = tmp_path / "shown"
    shown.write_text(f"{key[:30]}\033[0m{key[30:]}\n{'x' * 3900}\n{'y' * 180} {key}")
    test = {"command": ["sh", "-c", f"cat {shown}; exit 1"]}
    plan = plan_of(tmp_path / "prompts", "true", max_retries=0, acceptance=[test])
    plan = plan.model_copy(update={"validation": plan.tasks[0].acceptance})
    async with supervising(tmp_path, settings=plan.settings, agents=plan.agents) as run:
        failed = await run_plan(run.sup, plan)
        task = plan.tasks[0].model_copy(update={"acceptance": ()})
        invalid = await run_plan(run.sup, plan.model_copy(update={"tasks": (task,)}))
    texts = [failed.tasks["t"].error, failed.tasks["t"].findings, invalid.error, invalid.output]
    assert all("[redacted]" in text and "Qx7" not in text for text in texts), texts


async def test_a_long_reason_has_its_ends_and_no_secret(tmp_path: Path) -> None:
    """Of a long output the beginning and the end are told, 4,000 characters in all, and no key in it."""
    key = f"sk-ant-api03-{'Qx7' * 20}"
    test = {"command": ["sh", "-c", f"echo begin {key}; seq 100000 101000; echo the end; exit 1"]}
    told = await second_prompt(tmp_path, "true", acceptance=[test])
    assert key not in told
    assert "\n> begin [redacted]\n> 100000\n" in told
    assert "\n> [the middle is left out]\n" in told
    assert told.endswith("\n> 101000\n> the end")
    quoted = told.removeprefix(AGAIN).splitlines()
    assert 3_900 < len("\n".join(line.removeprefix("> ") for line in quoted)) <= 4_000


async def test_the_retries_of_a_review_use_the_retry_budget(tmp_path: Path) -> None:
    """A reviewer that fails is not launched again when the plan has no retry left."""
    critic = {"critic": AgentConfig(adapter="command", command=("sh", "-c", f"echo >> {tmp_path}/launches; exit 3"))}
    plan = plan_of(tmp_path / "prompts", "true", agents=critic, review={"agent": "critic"}, max_retries=0)
    plan = plan.model_copy(update={"retry_budget": RetryBudgetConfig(share=0, least=1)})
    error, _ = await outcome_of(tmp_path, plan)
    assert "no further try: the workstream's retry budget is spent (1 of 1 retries)" in error
    assert len((tmp_path / "launches").read_text().splitlines()) == 3


async def test_a_commit_that_fails_gives_no_further_claim(repository: Path, tmp_path: Path) -> None:
    """Work that cannot be committed, as on a full disk, gives no findings: no agent is launched again for it."""
    plan = plan_of(tmp_path / "prompts", "rm .git; echo mine > a.txt", workspace="worktree")
    settings: dict[str, Any] = {"agents": plan.agents, "settings": plan.settings, "workdir": repository}
    async with open_supervisor(repository / ".sdd", **settings) as sup:
        result = (await run_plan(sup, plan)).tasks["t"]
    assert result.error.startswith("not committed: ")
    assert (result.findings, len(prompts(tmp_path / "prompts"))) == ("", 1)
