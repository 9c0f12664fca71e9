"""Models of tasks, workers and lifecycles: every key arrives, defaults are the specified ones, contradictions are
errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.lifecycles.worker import WorkerData
from supervisor.plans import (
    AcceptanceConfig,
    AgentConfig,
    BadPlan,
    ConditionConfig,
    Plan,
    TaskConfig,
    TaskLifecycle,
    WorkerConfig,
    load_plan,
)
from supervisor.plans.splitting import with_subtasks
from supervisor.plans.tasks import SUBTASK_LEVELS_MAX, every_task

AGENTS = "agents: {a: {adapter: scripted}, b: {adapter: scripted}}\n"
SCRIPTED = AgentConfig(adapter="scripted")


def loaded(folder: Path, text: str) -> Plan:
    path = folder / "plan.yaml"
    path.write_text(text)
    return load_plan(path)


def refusal(folder: Path, text: str) -> str:
    """Return the error of an invalid plan, without the plan's directory."""
    with pytest.raises(BadPlan) as refused:
        loaded(folder, text)
    return str(refused.value).replace(f"{folder}/", "")


def plan_of(*tasks: TaskConfig, **more: object) -> Plan:
    return Plan.model_validate({"agents": {"a": SCRIPTED, "b": SCRIPTED}, "tasks": tasks, **more})


# -------------------------------------------------------------------------------------------------- what is right
def test_a_plan_without_a_name_is_named_like_its_file(tmp_path: Path) -> None:
    """Two files are two plans; a name in the file counts, and a file name that is no name of a plan does not."""
    text = AGENTS + "tasks: [{id: t, agent: a, prompt: x}]\n"
    names = {}
    for file, lines in (
        ("fix.yaml", text),
        ("build.2.yml", text),
        ("own.yaml", "workstream: release\n" + text),
        ("à b.yaml", text),
    ):
        path = tmp_path / file
        path.write_text(lines)
        names[file] = load_plan(path).workstream
    assert names == {"fix.yaml": "fix", "build.2.yml": "build.2", "own.yaml": "release", "à b.yaml": "plan"}


def test_every_key_of_a_task_arrives(tmp_path: Path) -> None:
    """Every key of a task, a worker and a workstream is in the models."""
    plan = loaded(
        tmp_path,
        AGENTS
        + """
workstream: release
approve_plan: true
workspace: worktree
retry_budget: {share: 0.5, least: 0}
validation: [{command: [make, test]}]
workers:
  one: {slots: 2, roles: [backend], capabilities: [python], heartbeat_s: 1, check_s: 2, misses_max: 4, shutdown_s: 9}
tasks:
  - {id: s, agent: a}
  - id: t
    agent: a
    priority: -3
    role: backend
    capabilities: [python]
    files: [src/parser/, ./README.md]
    critical: true
    when: {task: s, is: failed}
    approval: after
    scope: large
    complexity: high
    max_retries: 0
    fallback_agents: [b]
    may_split: true
    rollback: true
""",
    )
    assert plan.tasks[1] == TaskConfig(
        id="t",
        agent="a",
        priority=-3,
        role="backend",
        capabilities=("python",),
        files=("src/parser", "README.md"),
        critical=True,
        when=ConditionConfig(task="s", outcome="failed"),
        approval="after",
        scope="large",
        complexity="high",
        max_retries=0,
        fallback_agents=("b",),
        may_split=True,
        rollback=True,
    )
    assert plan.tasks[1].needs == {"python", "role:backend"}
    assert plan.workers["one"] == WorkerConfig(
        slots=2, roles=("backend",), capabilities=("python",), heartbeat_s=1, check_s=2, misses_max=4, shutdown_s=9
    )
    assert plan.workers["one"].provides == {"python", "role:backend"}
    assert (plan.workstream, plan.approve_plan) == ("release", True)
    assert (plan.retry_budget.share, plan.retry_budget.least) == (0.5, 0)
    assert plan.validation == (AcceptanceConfig(command=("make", "test")),)


def test_a_task_that_says_nothing_needs_nothing() -> None:
    """By default a task needs no capability, approval or condition, and has three retries."""
    task = TaskConfig(id="t", agent="a")
    assert (task.needs, task.approval, task.when, task.max_retries) == (frozenset(), "none", None, 3)
    assert (task.critical, task.optional, task.may_split, task.rollback) == (False, False, False, False)
    assert (task.priority, task.files, task.subtasks, task.timeout_s, task.scope) == (0, (), (), None, None)


def test_a_task_lifecycle_has_the_names_and_the_defaults_of_the_seed() -> None:
    """``task_lifecycle`` has the keys and values of spec 002, ``probes_max``, and two keys about providers."""
    assert TaskLifecycle().model_dump() == {
        "default_timeout": None,
        "validation_timeout": 30,
        "max_attempts": 5,
        "base_retry_delay": 2,
        "max_retry_delay": 60,
        "jitter_percentage": 25,
        "provider_patience_s": 3600,
        "provider_wait_max_s": 86_400,
        "circuit_breaker": {"enabled": True, "max_error_repeats": 2, "cooldown_period": 60, "probes_max": 1},
        "checkpoint": {"enabled": True, "save_on_states": (TaskRun.COMPLETED, TaskRun.FAILED, TaskRun.CIRCUIT_OPEN)},
        "cleanup_on_cancel": True,
        "save_partial_output": True,
    }


def test_the_defaults_of_a_lifecycle_are_those_of_a_run() -> None:
    """The defaults of ``task_lifecycle`` are those of a task run."""
    assert TaskLifecycle().value() == TaskRunData()


def test_a_lifecycle_becomes_the_limits_of_a_run(tmp_path: Path) -> None:
    """Each key of ``task_lifecycle`` reaches its limit of a task run."""
    block = """task_lifecycle:
  default_timeout: 10
  max_attempts: 7
  base_retry_delay: 3
  max_retry_delay: 4
  jitter_percentage: 50
  circuit_breaker: {max_error_repeats: 1, cooldown_period: 5, probes_max: 0}
"""
    lifecycle = loaded(tmp_path, AGENTS + block + "tasks: [{id: t, agent: a}]").task_lifecycle
    assert lifecycle.value() == TaskRunData(
        timeout_s=10,
        max_attempts=7,
        base_delay_s=3,
        max_delay_s=4,
        jitter=0.5,
        max_error_repeats=1,
        cooldown_s=5,
        probes_max=0,
    )


def test_without_a_circuit_breaker_only_the_attempts_count() -> None:
    """Without a circuit breaker repeated errors do not end a run early, and no probe follows."""
    off = TaskLifecycle.model_validate({"max_attempts": 4, "circuit_breaker": {"enabled": False}}).value()
    assert (off.max_error_repeats, off.probes_max) == (4, 0)


def test_the_defaults_of_a_worker_are_those_of_its_machine() -> None:
    """Defaults of a worker are those of its lifecycle and of spec 004."""
    worker, data = WorkerConfig(), WorkerData()
    assert (worker.slots, worker.misses_max, worker.shutdown_s) == (
        data.max_concurrent_tasks,
        data.misses_max,
        data.shutdown_s,
    )
    assert (worker.heartbeat_s, worker.check_s, worker.provides) == (10, 30, frozenset())


def test_a_test_without_a_time_of_its_own_has_the_one_of_the_lifecycle() -> None:
    """A test's own ``timeout_s`` takes precedence over the caller's."""
    assert AcceptanceConfig(lint=("true",)).value(7.0).timeout_s == 7
    assert AcceptanceConfig(lint=("true",), timeout_s=2).value(7.0).timeout_s == 2
    assert AcceptanceConfig(lint=("true",), timeout_s=0).value(7.0).timeout_s == 0


def test_subtasks_have_the_agent_of_their_parent(tmp_path: Path) -> None:
    """A subtask without an agent has the agent of its parent task, at every depth."""
    plan = loaded(
        tmp_path,
        AGENTS
        + "tasks: [{id: t, agent: b, subtasks: [{id: u, subtasks: [{id: v}]}, {id: w, agent: a}]}, {id: x, agent: a}]",
    )
    placed = list(every_task(plan.tasks))
    assert [(one.task.id, one.task.agent, one.level) for one in placed] == [
        ("t", "b", 0),
        ("u", "b", 1),
        ("v", "b", 2),
        ("w", "a", 1),
        ("x", "a", 0),
    ]
    assert placed[2].path == ("tasks", 0, "subtasks", 0, "subtasks", 0)
    assert placed[2].parent is placed[1]


def test_a_subtask_may_wait_for_any_other_task() -> None:
    """Subtasks may depend on each other and on other tasks, and other tasks on them."""
    inner = (TaskConfig(id="p1", agent="a", depends_on=("o",)), TaskConfig(id="p2", agent="a", depends_on=("p1",)))
    tasks = (
        TaskConfig(id="o", agent="a"),
        TaskConfig(id="p", agent="a", subtasks=inner),
        TaskConfig(id="q", agent="a", depends_on=("p2", "p")),
    )
    assert plan_of(*tasks).tasks == tasks


def test_subtasks_go_as_deep_as_is_allowed() -> None:
    """The deepest allowed level of subtasks is valid, and the next one is one error."""

    def nested(levels: int) -> TaskConfig:
        task = TaskConfig(id=f"t{levels}", agent="a")
        for level in reversed(range(levels)):
            task = TaskConfig(id=f"t{level}", agent="a", subtasks=(task,))
        return task

    assert plan_of(nested(SUBTASK_LEVELS_MAX))
    with pytest.raises(ValidationError) as refused:
        plan_of(nested(SUBTASK_LEVELS_MAX + 3))
    assert str(refused.value).count("deeper than") == 1


def test_without_workers_every_need_is_met() -> None:
    """A plan without workers has one worker that can do everything."""
    assert plan_of(TaskConfig(id="t", agent="a", role="anything", capabilities=("flying",)))


def test_what_a_task_owns_may_be_everything() -> None:
    """A task may own the whole workspace."""
    assert TaskConfig(id="t", agent="a", files=(".", "a/../b")).files == (".", "b")


# -------------------------------------------------------------------------------------------------- what is wrong
def tasks(*lines: str) -> str:
    return AGENTS + "tasks:\n" + "".join(f" - {line}\n" for line in lines)


WORKERS = "workers: {one: {roles: [backend], capabilities: [go]}, two: {capabilities: [python]}}\n"

REFUSED: dict[str, tuple[str, str]] = {
    "critical and optional": (
        tasks("{id: t, agent: a, critical: true, optional: true}"),
        "plan.yaml:3: tasks[0].optional: the task is critical, too: the plan cannot both fail and continue without it",
    ),
    "complexity of nothing": (
        tasks("{id: t, agent: a, complexity: medium}"),
        "plan.yaml:3: tasks[0].complexity: has no effect without scope, from which the time-out is computed",
    ),
    "two time-outs": (
        tasks("{id: t, agent: a, scope: small, timeout_s: 1}"),
        "plan.yaml:3: tasks[0].timeout_s: scope sets the time-out, too; remove one",
    ),
    "no time at all": (
        tasks("{id: t, agent: a, timeout_s: 0}"),
        "plan.yaml:3: tasks[0].timeout_s: 0 is too small; give seconds > 0",
    ),
    "a scope that is none": (
        tasks("{id: t, agent: a, scope: larg}"),
        "plan.yaml:3: tasks[0].scope: 'larg' is not one of small, medium, large, xl; did you mean 'large'?",
    ),
    "a priority beyond bounds": (
        tasks("{id: t, agent: a, priority: 3000000000}"),
        "plan.yaml:3: tasks[0].priority: 3000000000 is too large; give a number below 2147483648",
    ),
    "a half priority": (
        tasks("{id: t, agent: a, priority: 0.5}"),
        "plan.yaml:3: tasks[0].priority: 0.5 is a number; give a whole number",
    ),
    "negative retries": (
        tasks("{id: t, agent: a, max_retries: -1}"),
        "plan.yaml:3: tasks[0].max_retries: -1 is negative; give 0 or more",
    ),
    "a fallback to itself": (
        tasks("{id: t, agent: a, fallback_agents: [a]}"),
        "plan.yaml:3: tasks[0].fallback_agents[0]: 'a' has been tried before; name another agent, or remove it",
    ),
    "a fallback twice": (
        tasks("{id: t, agent: a, fallback_agents: [b, b]}"),
        "plan.yaml:3: tasks[0].fallback_agents[1]: 'b' has been tried before",
    ),
    "a fallback to nobody": (
        tasks("{id: t, agent: a, fallback_agents: [c]}"),
        "plan.yaml:3: tasks[0].fallback_agents[0]: 'c' is not an agent of this plan; the agents are a, b",
    ),
    "no agent": (tasks("{id: t}"), "plan.yaml:3: tasks[0].agent: missing; give the name of one of the agents"),
    "a subtask of another agent": (
        tasks("{id: t, agent: a, subtasks: [{id: u, agent: bb}]}"),
        "plan.yaml:3: tasks[0].subtasks[0].agent: 'bb' is not an agent of this plan; did you mean 'b'?",
    ),
    "a subtask with a key of its own": (
        tasks("{id: t, agent: a, subtasks: [{id: u, promt: x}]}"),
        "plan.yaml:3: tasks[0].subtasks[0].promt: unknown key; did you mean 'prompt'?",
    ),
    "a subtask that is none": (
        tasks("{id: t, agent: a, subtasks: [u]}"),
        "plan.yaml:3: tasks[0].subtasks[0]: 'u' is text; give a task, for example",
    ),
    "an id of a subtask twice": (
        tasks("{id: t, agent: a, subtasks: [{id: u}]}", "{id: u, agent: a}"),
        "plan.yaml:4: tasks[1].id: 'u' is the id of tasks[0].subtasks[0] too; give it another",
    ),
    "a subtask that depends on nothing": (
        tasks("{id: t, agent: a, subtasks: [{id: u, depends_on: [zz]}]}"),
        "plan.yaml:3: tasks[0].subtasks[0].depends_on[0]: 'zz' is not a task of this plan; the tasks are t, u",
    ),
    "a condition on nothing": (
        tasks("{id: t, agent: a, when: {}}"),
        "plan.yaml:3: tasks[0].when: says nothing; give exactly one of task, file_exists",
    ),
    "a condition on two things": (
        tasks("{id: t, agent: a, when: {task: t, file_exists: x}}"),
        "plan.yaml:3: tasks[0].when: says task and file_exists; give exactly one of task, file_exists",
    ),
    "a condition on no task": (
        tasks("{id: t, agent: a, when: {task: tt}}"),
        "plan.yaml:3: tasks[0].when.task: 'tt' is not a task of this plan; did you mean 't'?",
    ),
    "an outcome of a file": (
        tasks("{id: t, agent: a, when: {file_exists: x, is: failed}}"),
        "plan.yaml:3: tasks[0].when.is: is about a task; remove it, or name the task",
    ),
    "a condition spelled wrong": (
        tasks("{id: s, agent: a}", "{id: t, agent: a, when: {task: s, iss: failed}}"),
        "plan.yaml:4: tasks[1].when.iss: unknown key; did you mean 'is'?",
    ),
    "a condition against a dependency": (
        tasks("{id: s, agent: a}", "{id: t, agent: a, depends_on: [s], when: {task: s, is: skipped}}"),
        "plan.yaml:4: tasks[1].when: 's' must complete by depends_on, and be skipped by when; remove one",
    ),
    "a file outside by its name": (
        tasks("{id: t, agent: a, when: {file_exists: a/../../b}}"),
        "plan.yaml:3: tasks[0].when.file_exists: 'a/../../b' leads out of the workspace; give a path relative to",
    ),
    "an accepted file outside": (
        tasks("{id: t, agent: a, acceptance: [{file_exists: /etc/passwd}]}"),
        "plan.yaml:3: tasks[0].acceptance[0].file_exists: '/etc/passwd' is absolute; give a path relative to",
    ),
    "an absolute owned path": (
        tasks("{id: t, agent: a, files: [src, /etc]}"),
        "plan.yaml:3: tasks[0].files[1]: '/etc' is absolute; give a path relative to where the task works",
    ),
    "an owned path above": (
        tasks("{id: t, agent: a, files: [..]}"),
        "plan.yaml:3: tasks[0].files[0]: '..' leads out of the workspace",
    ),
    "an owned pattern": (
        tasks("{id: t, agent: a, files: ['src/*.py']}"),
        "plan.yaml:3: tasks[0].files[0]: 'src/*.py' is a pattern; name the files, or the directory that holds them",
    ),
    "an owned nothing": (
        tasks("{id: t, agent: a, files: ['']}"),
        "plan.yaml:3: tasks[0].files[0]: is empty; give a path, for example src, or leave it out",
    ),
    "a role with a space": (
        tasks("{id: t, agent: a, role: back end}"),
        "plan.yaml:3: tasks[0].role: 'back end' cannot be a name",
    ),
    "a role that nobody has": (
        WORKERS + tasks("{id: t, agent: a, role: backed}"),
        "plan.yaml:4: tasks[0].role: no worker has the role 'backed'; did you mean 'backend'?",
    ),
    "a capability that nobody has": (
        WORKERS + tasks("{id: t, agent: a, capabilities: [python, rust]}"),
        "plan.yaml:4: tasks[0].capabilities[1]: no worker has 'rust'; the capabilities are go, python",
    ),
    "needs that nobody has together": (
        WORKERS + tasks("{id: t, agent: a, role: backend, capabilities: [python]}"),
        "plan.yaml:4: tasks[0].capabilities: no worker has all of python, role:backend; give them to one",
    ),
    "a worker without slots": (
        "workers: {one: {slots: 0}}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: workers.one.slots: 0 is too small; give 1 or more",
    ),
    "a worker that is a number": (
        "workers: {one: 4}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: workers.one: 4 is a number; give a worker, for example {slots: 2}",
    ),
    "a worker's key spelled wrong": (
        "workers: {one: {capability: [x]}}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: workers.one.capability: unknown key; did you mean 'capabilities'?",
    ),
    "rollback of nobody knows what": (
        tasks("{id: t, agent: a, rollback: true}"),
        "plan.yaml:3: tasks[0].rollback: changes of the task cannot be distinguished from others in a shared directory;"
        " give the files that it owns, or set workspace: worktree",
    ),
    "a checkpoint of what has not ended": (
        "task_lifecycle: {checkpoint: {save_on_states: [RETRYING]}}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: task_lifecycle.checkpoint.save_on_states[0]: no attempt ends in RETRYING; use COMPLETED, FAILED,"
        " TIMEOUT, CIRCUIT_OPEN, CANCELLED",
    ),
    "a jitter beyond all": (
        "task_lifecycle: {jitter_percentage: 101}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: task_lifecycle.jitter_percentage: 101 is too large; give a number from 0 to 100",
    ),
    "a time-out as text": (
        "task_lifecycle: {default_timeout: x}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: task_lifecycle.default_timeout: 'x' is text; give seconds >= 0, for example 2.5",
    ),
    "an endless time-out": (
        "task_lifecycle: {validation_timeout: .inf}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: task_lifecycle.validation_timeout: inf is not a length of time; give seconds >= 0",
    ),
    "an unknown key of the lifecycle": (
        "task_lifecycle: {circuit_breaker: {cooldown: 3}}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: task_lifecycle.circuit_breaker.cooldown: unknown key; did you mean 'cooldown_period'?",
    ),
    "a state that is none": (
        "task_lifecycle: {checkpoint: {save_on_states: [COMPLETE]}}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: task_lifecycle.checkpoint.save_on_states[0]: 'COMPLETE' is not one of PENDING, IN_PROGRESS,",
    ),
    "delays that cross": (
        "task_lifecycle: {base_retry_delay: 9, max_retry_delay: 8}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: task_lifecycle.base_retry_delay: 9 is more than max_retry_delay, 8; lower it",
    ),
    "a share of more than all": (
        "retry_budget: {share: 1.5}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: retry_budget.share: 1.5 is too large; give a number from 0 to 1",
    ),
    "a share as text": (
        "retry_budget: {share: all}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: retry_budget.share: 'all' is text; give a number from 0 to 1",
    ),
    "a validation that is no list": (
        "validation: {lint: [x]}\n" + tasks("{id: t, agent: a}"),
        "plan.yaml:1: validation: {'lint': ['x']} is a mapping; give a list of tests",
    ),
    "a circle through a condition": (
        tasks("{id: p, agent: a, when: {task: q}}", "{id: q, agent: a, depends_on: [p]}"),
        "plan.yaml:3: tasks[0].when: is part of a cycle: p -> q -> p; remove one of these dependencies",
    ),
    "a circle through a subtask": (
        tasks("{id: p, agent: a, subtasks: [{id: s, depends_on: [p]}]}"),
        "plan.yaml:3: tasks[0].subtasks[0]: is part of a cycle: p -> s -> p; remove one of these dependencies",
    ),
    "a circle through what a parent waits for": (
        tasks("{id: x, agent: a, depends_on: [s]}", "{id: p, agent: a, depends_on: [x], subtasks: [{id: s}]}"),
        "plan.yaml:3: tasks[0].depends_on: is part of a cycle: x -> s -> x; remove one of these dependencies",
    ),
    "a circle through what a grandparent is wanted for": (
        tasks(
            "{id: x, agent: a, depends_on: [s]}",
            "{id: p, agent: a, when: {task: x}, subtasks: [{id: r, subtasks: [{id: s}]}]}",
        ),
        "plan.yaml:3: tasks[0].depends_on: is part of a cycle: x -> s -> x; remove one of these dependencies",
    ),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_a_mistake_about_work_is_named_with_its_remedy(tmp_path: Path, text: str, expected: str) -> None:
    """Each mistake is one line with file, line, field and fix."""
    told = refusal(tmp_path, text)
    assert told.startswith(expected)
    assert len(told.splitlines()) == 1


def test_equal_delays_are_right() -> None:
    """``base_retry_delay`` may equal ``max_retry_delay``."""
    assert TaskLifecycle(base_retry_delay=5, max_retry_delay=5).value().base_delay_s == 5


def test_a_link_out_of_the_directory_of_its_agent_is_no_owned_path(tmp_path: Path) -> None:
    """An owned path that a link leads out of the agent's directory is an error."""
    (tmp_path / "work").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "work" / "link").symlink_to(tmp_path / "other")
    text = "agents: {a: {adapter: scripted, cwd: work}}\ntasks: [{id: t, agent: a, files: [fine, link/x]}]"
    told = refusal(tmp_path, text)
    assert told.startswith("plan.yaml:2: tasks[0].files[1]: ")
    assert "is not within" in told
    assert loaded(tmp_path, text.replace(", link/x", "")).tasks[0].files == ("fine",)


# --------------------------------------------------------------------------------------------- split while it runs
def test_a_plan_takes_subtasks_in_as_if_they_had_stood_there() -> None:
    """Added subtasks are below the split task, at any depth, with its agent unless they name another."""
    plan = plan_of(
        TaskConfig(id="o", agent="a"), TaskConfig(id="p", agent="b", subtasks=(TaskConfig(id="q", agent="b"),))
    )
    more = (
        TaskConfig(id="r", subtasks=(TaskConfig(id="s"), TaskConfig(id="t", agent="a"))),
        TaskConfig(id="u", agent="a"),
    )
    split = with_subtasks(plan, {"q": more})
    assert [(one.task.id, one.task.agent, one.level) for one in every_task(split.tasks)] == [
        ("o", "a", 0),
        ("p", "b", 0),
        ("q", "b", 1),
        ("r", "b", 2),
        ("s", "b", 3),
        ("t", "a", 3),
        ("u", "a", 2),
    ]
    assert split.settings == plan.settings
    assert [one.task.id for one in every_task(plan.tasks)] == ["o", "p", "q"]


@pytest.mark.parametrize(
    ("task", "subtasks", "words"),
    [
        ("z", (TaskConfig(id="x"),), "'z' is not a task of this plan"),
        ("p", (TaskConfig(id="o"),), "tasks[1].subtasks[0].id: 'o' is the id of tasks[0] too; give it another"),
        ("p", (TaskConfig(id="x", agent="c"),), "tasks[1].subtasks[0].agent: 'c' is not an agent of this plan"),
        ("p", (TaskConfig(id="x", depends_on=("p",)),), "tasks[1].subtasks[0]: is part of a cycle: p -> x -> p"),
    ],
)
def test_subtasks_must_fit_into_the_plan(task: str, subtasks: tuple[TaskConfig, ...], words: str) -> None:
    """The subtasks of a split are checked by the same rules as a plan."""
    plan = plan_of(TaskConfig(id="o", agent="a"), TaskConfig(id="p", agent="a"))
    with pytest.raises(BadPlan, match=re.escape(words)):
        with_subtasks(plan, {task: subtasks})


def test_subtasks_are_told_all_that_is_wrong() -> None:
    """Every problem of a split is reported on a line of its own."""
    plan = plan_of(TaskConfig(id="p", agent="a"))
    with pytest.raises(BadPlan) as refused:
        with_subtasks(plan, {"p": (TaskConfig(id="p", agent="c"), TaskConfig(id="x", rollback=True))})
    assert len(str(refused.value).splitlines()) == 3
