"""Tasks that would wait for each other for ever: the command that would make them wait is refused, with the path."""

from __future__ import annotations

from field_kit import Running, Scratch, until

from supervisor.journal.reader import JournalReader

PLAN = """
    agents: {sh: {adapter: command, command: [sh]}}
    tasks:
      - {id: a, agent: sh, prompt: &work "while [ ! -f go ]; do sleep 0.02; done"}
      - {id: b, agent: sh, prompt: *work}
      - {id: c, agent: sh, prompt: *work}
      - {id: after_c, agent: sh, prompt: "true", when: {task: c}}
      - id: whole
        agent: sh
        depends_on: [b]
        subtasks: [{id: part, prompt: "true"}]
    max_sessions: 3
"""


def started(scratch: Scratch) -> Running:
    """Start the plan, and wait until the tasks a, b and c are in progress."""
    scratch.plan(PLAN)
    run = scratch.start("run", "plan.yaml")

    def working() -> bool:
        if not (scratch.path / ".sdd/runtime/journal.db").exists() or "c: begins" not in run.out:
            return False
        with JournalReader(scratch.path / ".sdd/runtime/journal.db") as reader:
            states = {row.id: row.state for row in reader.entities()}
        return all(states[f"r1#{name}"] == "IN_PROGRESS" for name in "abc")

    until(working)
    return run


def test_a_block_that_closes_a_circle_is_refused_with_its_path(scratch: Scratch) -> None:
    """Blocks, ``when``, ``depends_on`` and subtasks are edges of one graph: a block that would close a circle over any
    of them is refused, and the run comes to its end."""
    run = started(scratch)
    assert scratch.run("task", "block", "a", "--on", "b").status == 0
    for task, on, path in (
        ("b", "a", "a waits for b"),
        ("c", "after_c", "after_c waits for c"),
        ("b", "part", "part waits for b"),
        ("b", "whole", "whole waits for b"),
    ):
        refused = scratch.run("task", "block", task, "--on", on)
        words = f"task {task!r} cannot wait for {on!r}, which waits for it ({path}); name something else"
        assert (refused.status, words in refused.err) == (2, True), refused.text
    assert scratch.run("task", "block", "c", "--on", "a").status == 0
    longer = scratch.run("task", "block", "b", "--on", "c")
    assert "(c waits for a, a waits for b)" in longer.err
    scratch.write("go", "")
    done = run.wait()
    assert done.status == 0, done.text


def test_a_split_that_closes_a_circle_is_refused(scratch: Scratch) -> None:
    """A subtask that depends on a task which is blocked on the task to be split is refused, and nothing has changed."""
    run = started(scratch)
    assert scratch.run("task", "block", "a", "--on", "b").status == 0
    parts = scratch.write("parts.yaml", "- {id: b1, prompt: 'true', depends_on: [a]}")
    refused = scratch.run("task", "split", "b", "--from", str(parts))
    assert (refused.status, "'b' cannot wait for 'a', which waits for it (a waits for b)" in refused.err) == (2, True)
    scratch.write("go", "")
    done = run.wait()
    assert (done.status, "b1" in done.out) == (0, False), done.text
