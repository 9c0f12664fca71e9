"""Success that is none: an agent whose answer is an error, or that did nothing, has not completed its task."""

from __future__ import annotations

from typing import Any

import pytest
from field_kit import Finished, Scratch

from supervisor.workspaces import recent_changes
from supervisor.workspaces.recent_changes import changed_since

NOTHING = "nothing was done"
BY = "{adapter: acp, command: [python3, -B, agent.py]}"
"""Agent of most plans: without ``-B`` Python would write its bytecode into the working directory, which is a change."""


def task_of(done: Finished, name: str = "t") -> dict[str, Any]:
    """Return the result of the task *name* from the output of ``run --json``."""
    return next(task for task in done.json()["tasks"] if task["id"] == name)


def attempts(scratch: Scratch) -> list[dict[str, Any]]:
    """Return the verdicts of the failed turns."""
    return [one["metadata"]["verdict"] for one in scratch.records() if one["event"] == "task_failed"]


# ------------------------------------------------------------------------------------------------ an answer is an error
def test_half_the_work_of_an_answer_that_is_an_error_is_not_merged(scratch: Scratch) -> None:
    """An agent over ACP makes a call, then answers with the words of its failed model and ends its turn well: the task
    has failed for good, since there is no such model; its half work is not merged, and the next task does not run."""
    scratch.acp_agent("""
        agent.tool_call("1")
        Path("half.txt").write_text("half")
        agent.tool_ended("1")
        return "Error: Model 'm' not found on provider at http://127.0.0.1 (HTTP 404).\\n  Check the model."
    """)
    scratch.plan(f"""
        workspace: worktree
        agents:
          copilot: {{known: copilot, command: [python3, {scratch.path}/agent.py]}}
        tasks:
          - {{id: t, agent: copilot, prompt: work}}
          - {{id: u, agent: copilot, prompt: work, depends_on: [t]}}
    """)
    scratch.repository()
    done = scratch.run("run", "plan.yaml", "--json")
    assert done.status == 1, done.text
    assert (task_of(done)["outcome"], task_of(done, "u")["outcome"]) == ("failed", "blocked")
    assert "half.txt" not in scratch.git("ls-tree", "--name-only", "main")
    assert [(one["model"]["problem"], one["model"]["status"]) for one in attempts(scratch)] == [("not_found", 404)]


def test_a_program_that_exits_with_0_after_a_failed_model_has_failed(scratch: Scratch) -> None:
    """The output of a known agent that runs as a command ends with the error of its model: the login is wrong, so that
    no second attempt is made, although the program exits with status 0."""
    said = "litellm.AuthenticationError: AuthenticationError: Incorrect\\nAPI key provided.\\nCheck your API key."
    scratch.write("aider", f'#!/bin/sh\nprintf "Aider v0.86.2\\n\\n{said}\\n"\n').chmod(0o755)
    scratch.plan("""
        agents: {a: {known: aider, command: [./aider, "{prompt}"]}}
        tasks: [{id: t, agent: a, prompt: work}]
    """)
    done = scratch.run("run", "plan.yaml", "--json")
    assert (done.status, task_of(done)["outcome"]) == (1, "failed"), done.text
    assert [one["model"]["problem"] for one in attempts(scratch)] == ["auth"]


def test_a_user_names_the_last_words_of_an_agent_of_his_own(scratch: Scratch) -> None:
    """``quirks.error_reports`` of a plan has the same effect for an agent that is in no catalogue; another success of
    the same agent still is one."""
    scratch.acp_agent('return "All done." if "well" in text else "FAILED: the model said 401"')
    scratch.plan("""
        agents:
          mine:
            adapter: acp
            command: [python3, agent.py]
            quirks: {error_reports: [{pattern: "FAILED: the model said *"}]}
        task_lifecycle: {base_retry_delay: 0.1, max_attempts: 1, circuit_breaker: {enabled: false}}
        tasks: [{id: t, agent: mine, prompt: badly, max_retries: 0}, {id: u, agent: mine, prompt: well}]
    """)
    done = scratch.run("run", "plan.yaml", "--json")
    assert (task_of(done)["outcome"], task_of(done, "u")["outcome"]) == ("failed", "completed"), done.text
    assert "FAILED: the model said 401" in task_of(done)["error"]


def test_a_pattern_without_a_beginning_is_refused(scratch: Scratch) -> None:
    """A pattern that would match any answer is refused when the plan is checked, with its field."""
    scratch.plan("""
        agents: {a: {adapter: acp, command: [x], quirks: {error_reports: [{pattern: "*"}]}}}
        tasks: [{id: t, agent: a, prompt: work}]
    """)
    done = scratch.run("plan", "check", "plan.yaml")
    assert done.status == 2, done.text
    assert "agents.a.quirks.error_reports[0].pattern" in done.text
    assert "Traceback" not in done.text


# ------------------------------------------------------------------------------------------------ nothing was done
PLAN = """
    task_lifecycle: {{base_retry_delay: 0.1}}
    {more}
    agents: {{a: {by}}}
    tasks: [{{id: t, agent: a, prompt: work{task}}}]
"""


@pytest.mark.parametrize("workspace", ["directory", "worktree"])
def test_an_attempt_in_which_nothing_was_done_has_failed(scratch: Scratch, workspace: str) -> None:
    """An agent reports a thought, tokens and success, but no call, no change and no answer: each attempt fails with
    that reason, which the next prompt tells, until the same error has come three times."""
    scratch.acp_agent("""
        agent.update(sessionUpdate="agent_thought_chunk", content={"type": "text", "text": "hm"})
        agent.update(sessionUpdate="usage_update", used=1, size=9, _meta={"usage": {"inputTokens": 5}})
        print(text, file=sys.stderr)
    """)
    scratch.plan(
        PLAN.format(more=f"workspace: {workspace}", by=BY.replace("agent.py", f"{scratch.path}/agent.py"), task="")
    )
    scratch.repository()
    done = scratch.run("run", "plan.yaml", "--json")
    assert (done.status, task_of(done)["outcome"]) == (1, "failed"), done.text
    assert NOTHING in task_of(done)["error"]
    prompts = [one["metadata"] for one in scratch.records("t") if one["event"] == "TurnRequested"]
    assert len(prompts) == 3
    assert NOTHING in prompts[1]["reason"]


def test_an_answer_to_a_wake_up_is_no_answer_to_the_task(scratch: Scratch) -> None:
    """An agent is silent, answers the wake-up, and ends the turn in which it was to go on without a word: nothing was
    done."""
    scratch.acp_agent("""
        if "Urgent message" in text:
            return "I am here."
        if "came in between" not in text:
            agent.cancelled.wait()
        agent.update(sessionUpdate="agent_thought_chunk", content={"type": "text", "text": "hm"})
        agent.update(sessionUpdate="usage_update", used=1, size=9, _meta={"usage": {"inputTokens": 5}})
    """)
    more = "liveness: {snapshot_s: 0.2, default: {wake: 2, stop: 1000, kill: 2000}}"
    scratch.plan(PLAN.format(more=more, by=BY, task=", max_retries: 0"))
    done = scratch.run("run", "plan.yaml", "--json")
    assert (done.status, task_of(done)["outcome"]) == (1, "failed"), done.text
    assert NOTHING in task_of(done)["error"]


@pytest.mark.parametrize(
    ("body", "task"),
    [
        ('Path("made.txt").write_text("x")', ""),
        ('Path("old.txt").unlink()', ""),
        ('agent.tool_call("1"); agent.tool_ended("1")', ""),
        ('return "There is nothing to do."', ""),
        ("pass", ", acceptance: [{command: [test, -e, old.txt]}]"),
    ],
    ids=["a new file", "a file less", "a call", "an answer", "its tests pass"],
)
def test_anything_done_is_no_empty_attempt(scratch: Scratch, body: str, task: str) -> None:
    """A change without a word, a call, an answer, or acceptance tests that pass: each of these completes the task."""
    scratch.write("old.txt", "old")
    thought = 'agent.update(sessionUpdate="agent_thought_chunk", content={"type": "text", "text": "hm"})'
    scratch.acp_agent(f"{thought}\n{body}")
    scratch.plan(PLAN.format(more="", by=BY, task=task))
    done = scratch.run("run", "plan.yaml", "--json")
    assert (done.status, task_of(done)["outcome"]) == (0, "completed"), done.text


def test_a_program_whose_lines_are_not_understood_has_done_nothing(scratch: Scratch) -> None:
    """An agent of JSON lines prints another version's lines: the mapping reads only the end of its turn, and the task
    has failed, instead of being completed with nothing done."""
    scratch.write("mine", """#!/bin/sh\necho '{"type": "reply", "value": "hello"}'\necho '{"type": "end"}'\n""").chmod(
        0o755
    )
    scratch.write("mine.toml", """
        [[rules]]
        when = { type = "text" }
        says = "text"
        text = "value"

        [[rules]]
        when = { type = "end" }
        says = "end"
        stop = "end_turn"
    """)  # fmt: skip
    by = "{adapter: jsonl, command: [./mine], mapping: mine.toml}"
    scratch.plan(PLAN.format(more="", by=by, task=""))
    done = scratch.run("run", "plan.yaml", "--json")
    assert (done.status, task_of(done)["outcome"]) == (1, "failed"), done.text
    assert NOTHING in task_of(done)["error"]


@pytest.mark.parametrize("command", ['["true"]', "[sh, -c, 'exit 0']"])
def test_a_command_that_prints_nothing_is_completed(scratch: Scratch, command: str) -> None:
    """Exit status 0 of a program that is no known agent is the word of its author."""
    scratch.plan(PLAN.format(more="", by=f"{{adapter: command, command: {command}}}", task=""))
    done = scratch.run("run", "plan.yaml", "--json")
    assert (done.status, task_of(done)["outcome"]) == (0, "completed"), done.text


def test_a_silent_known_agent_has_done_nothing(scratch: Scratch) -> None:
    """The same program as a known agent that runs by a command, which prints nothing and changes nothing, has
    failed."""
    scratch.write("mini", "#!/bin/sh\nexit 0\n").chmod(0o755)
    scratch.plan(PLAN.format(more="", by='{known: mini, command: [./mini, "{prompt}"]}', task=""))
    done = scratch.run("run", "plan.yaml", "--json")
    assert (done.status, task_of(done)["outcome"]) == (1, "failed"), done.text
    assert NOTHING in task_of(done)["error"]


def test_a_commit_is_a_change(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit without a changed file counts; files of git that reading commands write do not, and neither does the
    state directory."""
    scratch.write("a.txt", "a")
    scratch.repository()
    state = scratch.path / ".sdd"
    state.mkdir()
    since = newest(scratch) + 2 * recent_changes.CLOCK_S
    monkeypatch.setattr(recent_changes.time, "time", lambda: since + 1)
    scratch.git("status")
    (state / "journal").write_text("x")
    (state / "journal").unlink()
    assert not changed_since(scratch.path, since, state)
    scratch.git("commit", "--allow-empty", "-qm", "empty")
    assert changed_since(scratch.path, since - 1, state)


def test_what_is_unknown_is_a_change(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that was set back, and a directory with too many files, prove nothing: they count as changed."""
    for name in ("a.txt", "b.txt"):
        scratch.write(name, "x")
    since = newest(scratch) + 2 * recent_changes.CLOCK_S
    monkeypatch.setattr(recent_changes.time, "time", lambda: since + 1)
    assert not changed_since(scratch.path, since)
    monkeypatch.setattr(recent_changes.time, "time", lambda: since - 1)
    assert changed_since(scratch.path, since)
    monkeypatch.setattr(recent_changes.time, "time", lambda: since + 1)
    monkeypatch.setattr(recent_changes, "ENTRIES_MAX", 2)
    assert changed_since(scratch.path, since)


def newest(scratch: Scratch) -> float:
    """Return the time of the last change in the scratch directory."""
    return max(one.stat().st_ctime for one in (scratch.path, *scratch.path.rglob("*")))
