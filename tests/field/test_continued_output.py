"""A run that continues an interrupted run does not print again what agents wrote before."""

from __future__ import annotations

from field_kit import Scratch, until

PLAN = """
    agents: {sh: {adapter: command, command: [sh]}}
    tasks:
      - {id: first, agent: sh, prompt: echo from the first task}
      - id: second
        agent: sh
        prompt: "echo from attempt $(ls | wc -l); touch $$.attempt; [ -f go ] || sleep 600"
        depends_on: [first]
"""


def test_a_continued_run_prints_the_output_of_agents_once(scratch: Scratch) -> None:
    """Neither the output of a task that has ended, nor the first output of the task that is continued, is printed by
    the run after the kill; what its agent writes then is."""
    scratch.plan(PLAN)
    first = scratch.start("run", "plan.yaml")
    until(lambda: "second| from attempt" in first.out)
    assert first.out.count("from the first task") == 1
    attempts = len(list(scratch.path.glob("*.attempt")))
    first.kill()
    scratch.write("go", "")
    done = scratch.run("run", "plan.yaml")
    assert done.status == 0, done.text
    assert "from the first task" not in done.out, done.out
    lines = [line for line in done.out.splitlines() if "| from attempt" in line]
    assert len(lines) == len(list(scratch.path.glob("*.attempt"))) - attempts == 1, done.out


def test_the_next_run_prints_nothing_of_the_run_before(scratch: Scratch) -> None:
    """A run of a plan that was stopped and is resumed prints only what its own agents write."""
    scratch.plan(PLAN)
    first = scratch.start("run", "plan.yaml")
    until(lambda: "second| from attempt" in first.out)
    assert scratch.run("stop", "--now").status == 0
    first.wait()
    scratch.write("go", "")
    done = scratch.run("run", "plan.yaml", "--resume")
    assert done.status == 0, done.text
    assert (done.out.count("from the first task"), done.out.count("| from attempt")) == (0, 1), done.out
