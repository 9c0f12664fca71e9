"""Tests of execution plans: the stages of tasks and subtasks, and the graph as a diagram."""

from __future__ import annotations

from supervisor.diagnostics.execution_plan import ExecutionPlan, PlannedTask, mermaid, plan_execution


def planned(*tasks: tuple[str, str, str]) -> ExecutionPlan:
    """Return the execution plan of tasks that are given as (name, needs, part of)."""
    return plan_execution(
        "p", "", [PlannedTask(name=name, needs=tuple(needs.split()), part_of=above) for name, needs, above in tasks]
    )


def stages(found: ExecutionPlan) -> list[list[str]]:
    return [[one.name for one in stage] for stage in found.stages]


def test_a_task_is_in_the_stage_after_those_that_it_waits_for() -> None:
    """Tasks that wait for nothing come first, a task that waits for several after the last of them; names of tasks that
    are not in the plan count for nothing."""
    found = planned(("a", "", ""), ("d", "b c", ""), ("b", "a", ""), ("c", "", ""), ("e", "gone", ""))
    assert stages(found) == [["a", "c", "e"], ["b"], ["d"]]
    assert found.edges == (("b", "d"), ("c", "d"), ("a", "b"))
    assert found.as_record == {"stages": stages(found), "edges": [["b", "d"], ["c", "d"], ["a", "b"]]}


def test_subtasks_wait_as_the_tasks_above_them() -> None:
    """The first subtasks wait for what their task waits for, and who waits for the task waits for all of them; a task
    with subtasks is in no stage, also if they have subtasks themselves."""
    found = planned(
        *(("a", "", ""), ("whole", "a", ""), ("one", "", "whole"), ("two", "one", "whole"), ("after", "whole", "")),
        *(("deep", "one", "whole"), ("deepest", "", "deep")),
    )
    assert stages(found) == [["a"], ["one"], ["two", "deepest"], ["after"]]
    assert found.groups == ("whole", "deep")
    assert found.edges == (
        *(("a", "one"), ("one", "two"), ("one", "after"), ("two", "after"), ("deepest", "after")),
        ("one", "deepest"),
    )


def test_a_chain_may_be_long() -> None:
    """Thousands of tasks, each of which waits for the one before, are as many stages."""
    count = 3000
    found = planned(*((f"t{number}", f"t{number - 1}", "") for number in range(count)))
    assert len(found.stages) == count


def test_the_diagram_has_a_box_for_each_stage() -> None:
    """A Mermaid diagram names task, agent and state, and has an arrow for each wait; quotes are escaped."""
    tasks = [PlannedTask(name="a", agent='x"y', state="completed"), PlannedTask(name="b", needs=("a",))]
    assert mermaid(plan_execution("p", "r1", tasks)).splitlines() == [
        "graph LR",
        '  subgraph stage1["stage 1"]',
        '    t0["a (x#quot;y): completed"]',
        "  end",
        '  subgraph stage2["stage 2"]',
        '    t1["b"]',
        "  end",
        "  t0 --> t1",
    ]
