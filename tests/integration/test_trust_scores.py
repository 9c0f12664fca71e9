"""Trust levels (``access``) in runs of plans: changes of the level, merged and refused work, and the records of
both."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from pydantic import ValidationError

from supervisor.embedding.runtime import open_supervisor
from supervisor.journal.reader import JournalReader
from supervisor.journal.statedir import StateDir
from supervisor.lifecycles.types import LifecycleEvent
from supervisor.plans import AccessConfig, AgentConfig, Plan, Settings
from supervisor.runtime.journal_writer import Cause
from supervisor.work.completion_pipeline import CompletionPipeline
from supervisor.work.plan_handle import run_plan
from supervisor.work.results import PlanResult
from tests.support import quick_settings, run_command, states_of

pytestmark = [pytest.mark.anyio, pytest.mark.one_backend]

BOUNDS = quick_settings(max_total_errors=1, max_consecutive_errors=1)


# ---------------------------------------------------------------------------------------------------- a plan's way
def plan_of(*tasks: dict[str, Any], access: dict[str, Any] | None = None, **agents: AgentConfig) -> Plan:
    shell = AgentConfig(adapter="command", command=("sh", "-c", "{prompt}"))
    return Plan.model_validate(
        {
            "agents": {"sh": shell, **agents},
            "tasks": [{"agent": "sh", "max_retries": 0, **one} for one in tasks],
            "workspace": "worktree",
            "max_sessions": 1,
            "access": access or {},
            "limits": BOUNDS.limits,
            "policy": BOUNDS.policy,
        }
    )


async def carried_out(plan: Plan, where: Path) -> tuple[PlanResult, dict[str, str]]:
    """Run the plan; return its result, and the trust level of each agent that has a level."""
    async with open_supervisor(where / ".sdd", agents=plan.agents, settings=plan.settings, workdir=where) as sup:
        result = await run_plan(sup, plan)
        return result, {name: one.level.value for name, one in sup.core.trust.standings.items()}


def facts(where: Path, name: str) -> list[LifecycleEvent]:
    with JournalReader(StateDir(where / ".sdd").journal) as reader:
        return [one for one in reader.events() if one.event == name]


def states(where: Path, task_id: str) -> list[str]:
    with JournalReader(StateDir(where / ".sdd").journal) as reader:
        return states_of(list(reader.events()), f"r1#{task_id}")


async def test_a_new_agent_earns_its_first_success_by_reading(repository: Path) -> None:
    """An untrusted agent is probationary after a task that only reads, and a small change of its next task is
    merged."""
    chain = [{"id": "look", "prompt": "cat a.txt"}, {"id": "write", "prompt": "echo b > b.txt", "depends_on": ["look"]}]
    result, levels = await carried_out(plan_of(*chain), repository)
    assert result.ok
    assert (repository / "b.txt").exists()
    assert levels == {"sh": "probationary"}
    told = [one.reason for one in facts(repository, "Standing")]
    assert told[0] == "success of sh, untrusted before and probationary now"


async def test_work_beyond_the_rights_is_not_merged(repository: Path) -> None:
    """Changes beyond an agent's rights are not merged but recorded as a violation; the work stays on its branch."""
    result, levels = await carried_out(plan_of({"id": "bold", "prompt": "echo b > b.txt"}), repository)
    why = "it changed b.txt, and an agent that is untrusted may not write"
    assert result.tasks["bold"].error == f"not merged: {why}; its work is on the branch supervisor/bold"
    assert states(repository, "bold")[-2:] == ["DONE", "FAILED"]
    assert levels == {"sh": "untrusted"}
    (refused,) = facts(repository, "AccessRefused")
    assert (refused.entity_id, refused.reason) == ("r1#bold", why)
    assert facts(repository, "Standing")[0].metadata["what"] == "violation"
    assert not (repository / "b.txt").exists()


async def test_trust_is_restored_from_the_journal(repository: Path) -> None:
    """A later supervisor restores trust levels and open violations from the journal, separately for each agent."""
    first = plan_of({"id": "one", "prompt": "true"}, {"id": "two", "prompt": "true"}, {"id": "three", "prompt": "true"})
    assert (await carried_out(first, repository))[1] == {"sh": "trusted"}
    many = {"id": "many", "prompt": "for n in $(seq 21); do echo $n > $n.txt; done"}
    result, levels = await carried_out(plan_of(many), repository)
    assert "it changed 21 files, and an agent that is trusted may change 20" in result.tasks["many"].error
    assert levels == {"sh": "probationary"}
    again = plan_of({"id": "four", "prompt": "true"}, other=AgentConfig(adapter="command", command=("true",)))
    result, levels = await carried_out(again, repository)
    assert result.ok
    assert levels == {"sh": "probationary"}  # the violation is open


async def test_a_level_falls_where_people_look(repository: Path) -> None:
    """An agent that has become trusted, and then changes more files than its level allows, is probationary, and
    `agents levels` shows level, record, rights, and the violation with its reason; also under the next supervisor."""
    three = plan_of(*({"id": name, "prompt": "true"} for name in ("one", "two", "three")))
    many = plan_of({"id": "many", "prompt": "for n in $(seq 21); do echo $n > $n.txt; done"})
    tables: list[list[str]] = []
    for plan in (three, many, None):
        used = plan or many
        where, state_dir = repository, repository / ".sdd"
        async with open_supervisor(state_dir, agents=used.agents, settings=used.settings, workdir=where) as sup:
            if plan is not None:
                await run_plan(sup, plan)
            show = partial(run_command, "agents", "levels", "--state-dir", state_dir)
            tables.append((await anyio.to_thread.run_sync(show)).out.splitlines())
    rises, falls, later = (" ".join(lines[1].split()) for lines in tables)
    assert rises == "sh trusted 3 0 yes yes 20 any yes success of sh, probationary before and trusted now"
    why = "it changed 21 files, and an agent that is trusted may change 20"
    assert falls == f"sh probationary 3 1 yes no 5 any no violation of sh, trusted before and probationary now: {why}"
    assert later == falls


@pytest.mark.parametrize(
    ("prompt", "level", "what"), [("true", "probationary", "success"), ("echo b > b.txt", "untrusted", "violation")]
)
async def test_a_late_merge_changes_trust(
    repository: Path, monkeypatch: pytest.MonkeyPatch, prompt: str, level: str, what: str
) -> None:
    """A resumed run that merges the work of an earlier run records a success, and the trust level changes, also for
    later supervisors; work beyond the rights is not merged but recorded as a violation, and the task is done again."""

    async def breaks(*_: object) -> None:
        raise RuntimeError

    plan = plan_of({"id": "t", "prompt": prompt})
    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(CompletionPipeline, "merge", breaks)
        await carried_out(plan, repository)
    async with open_supervisor(
        repository / ".sdd", agents=plan.agents, settings=plan.settings, workdir=repository
    ) as sup:
        result = await run_plan(sup, plan, resume=True)
    assert result.ok is (what == "success")
    standing = facts(repository, "Standing")[0]
    assert (standing.entity_id, standing.metadata["what"]) == ("r2", what)
    assert standing.metadata["task"] == "r1#t"
    assert not (repository / "b.txt").exists()
    refused = [(one.entity_id, one.metadata.get("task")) for one in facts(repository, "AccessRefused")]
    assert refused == ([("r2", "r1#t"), ("r2#t", None)] if what == "violation" else [])
    async with open_supervisor(
        repository / ".sdd", agents=plan.agents, settings=plan.settings, workdir=repository
    ) as sup:
        assert {name: one.level.value for name, one in sup.core.trust.standings.items()} == {"sh": level}
        if what == "success":
            sup.core.trust.success("sh", "r1#t", Cause(actor="host"))  # the task was counted
            assert sup.core.trust.level("sh").value == level


async def test_the_network_needs_trust(repository: Path) -> None:
    """A task or agent that declares the use of the network is refused, on record, if the trust level is too low; with a
    high enough initial level the task runs."""
    net = {"id": "net", "prompt": "true", "network": True}
    result, _ = await carried_out(plan_of(net), repository)
    assert result.tasks["net"].error.endswith("the network is declared, and an agent that is untrusted may not use it")
    assert states(repository, "net") == ["OPEN", "CANCELLED"]
    (refused,) = facts(repository, "AccessRefused")
    assert refused.metadata == {"agent": "sh", "transition": "claimed", "level": "untrusted"}
    web = AgentConfig(adapter="command", command=("true",), network=True)
    result, _ = await carried_out(plan_of({"id": "web", "agent": "web"}, web=web), repository)
    assert not result.ok
    result, _ = await carried_out(plan_of({**net, "id": "known"}, access={"initial": {"sh": "trusted"}}), repository)
    assert result.ok


async def test_a_fallback_that_is_trusted_takes_over(repository: Path) -> None:
    """A fallback agent with the needed trust level works on a task that the first agent may not do."""
    senior = AgentConfig(adapter="command", command=("sh", "-c", "echo done > b.txt"))
    task = {"id": "t", "prompt": "true", "files": ["b.txt"], "fallback_agents": ["senior"]}
    result, levels = await carried_out(
        plan_of(task, access={"initial": {"senior": "elevated"}}, senior=senior), repository
    )
    assert result.ok
    assert (repository / "b.txt").read_text() == "done\n"
    assert levels == {"senior": "elevated"}


async def test_requests_beyond_the_level_are_refused(repository: Path) -> None:
    """Permissions, terminal commands and file writes beyond an agent's trust level are refused, on record, and do not
    count as violations."""
    scripted = AgentConfig(adapter="scripted")
    task = {
        "id": "t",
        "agent": "scripted",
        "prompt": "@run touch b.txt\n@save b.txt x\n@ask edit: b.txt\n@write b.txt x",
    }
    result, levels = await carried_out(plan_of(task, scripted=scripted), repository)
    answered = facts(repository, "PermissionAnswered")
    assert [one.metadata["kind"] for one in answered] == ["reject_once"]
    assert not (repository / "b.txt").exists()
    assert [one.metadata["why"] for one in facts(repository, "FileRefused")] == [
        "not permitted (edit: it may not write)"
    ]
    assert [one.metadata["why"] for one in facts(repository, "TerminalRefused")] == [
        "not permitted (execute: it may not write)"
    ]
    assert result.ok  # it took the answers for what they are
    assert levels == {"scripted": "probationary"}


async def test_without_access_nothing_is_recorded(repository: Path) -> None:
    """Without ``access`` in the plan no work is refused and no trust level recorded."""
    plan = plan_of({"id": "bold", "prompt": "echo b > b.txt", "network": True}).model_copy(update={"access": None})
    result, levels = await carried_out(plan, repository)
    assert result.ok
    assert levels == {}
    assert facts(repository, "Standing") == facts(repository, "AccessRefused") == []


# -------------------------------------------------------------------------------------------------- what is wrong
async def test_access_needs_worktrees(tmp_path: Path) -> None:
    """``access`` without worktrees is refused, since the changes of a task could not be told from other changes."""
    plan = plan_of({"id": "t"})
    with pytest.raises(ValidationError, match="changes of a task are checked in worktrees only"):
        Plan.model_validate({**dict(plan), "workspace": "directory"})
    with pytest.raises(ValueError, match="changes are checked in worktrees only"):
        async with open_supervisor(settings=Settings(access=AccessConfig())):
            pass


def test_levels_are_for_agents_of_the_plan() -> None:
    """An initial trust level for an unknown agent is refused, with the most similar name; an unknown level is refused
    too."""
    with pytest.raises(ValidationError, match="'shh' is not an agent of this plan; did you mean 'sh'"):
        plan_of({"id": "t"}, access={"initial": {"shh": "trusted"}})
    with pytest.raises(ValidationError, match="untrusted"):
        plan_of({"id": "t"}, access={"initial": {"sh": "best"}})


# ------------------------------------------------------------------------------------------------------------ splits
@pytest.mark.parametrize(("level", "told"), [("probationary", "no"), ("trusted", "yes")])
async def test_a_split_needs_trust(repository: Path, level: str, told: str) -> None:
    """A program gets the address for a split only if the plan allows splits and the agent's trust level is high enough;
    else the refusal is recorded."""
    script = 'test -n "$SUPERVISOR_TASK" && echo yes > a.txt || echo no > a.txt'
    plan = plan_of({"id": "t", "prompt": script, "may_split": True}, access={"initial": {"sh": level}})
    result, _ = await carried_out(plan, repository)
    assert result.ok
    assert (repository / "a.txt").read_text() == f"{told}\n"
    refused = facts(repository, "AccessRefused")
    assert [one.metadata["transition"] for one in refused] == ([] if told == "yes" else ["split"])
