"""Commands that are typed when the work is over, or before it has begun: each says what there is to see."""

from __future__ import annotations

from pathlib import Path

import pytest
from field_kit import Scratch, until

from supervisor import AgentTurn, open_supervisor
from supervisor.cli.rendering import inspected_text, ps_text
from supervisor.diagnostics.tree_view import ps
from supervisor.diagnostics.visual_state import Inspected
from supervisor.lifecycles.types import Ending, TerminationStage


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    """Fixture: a directory whose only run has failed."""
    scratch = Scratch(tmp_path_factory.mktemp("over"))
    scratch.plan("""
        agents: {a: {adapter: command, command: [sh, -c, "echo oh no; exit 126"]}}
        tasks: [{id: fix, agent: a, prompt: "", max_retries: 0}]
    """)
    assert scratch.run("run", "plan.yaml").status == 1
    return scratch


@pytest.mark.parametrize(
    "command",
    [("send", "fix", "hello"), ("inspect", "fix"), ("session", "close", "fix"), ("attach", "fix")],
    ids=" ".join,
)
def test_a_command_to_a_session_that_has_ended_names_its_output_and_its_end(
    over: Scratch, command: tuple[str, ...]
) -> None:
    """The word for the end, `logs` and `why` are the advice, and not the start of another supervisor."""
    said = over.run(*command)
    assert said.status == 2
    assert "session fix has ended (failed)" in said.err
    assert "`supervisor logs fix` shows what its agent wrote" in said.err
    assert "`supervisor why fix` explains its end" in said.err
    assert "start one" not in said.err


def test_a_command_about_a_task_that_has_ended_says_how_it_is_done_again(over: Scratch) -> None:
    """`retry` and `task cancel` after the end of the run name the task's end, and the run that does what was left."""
    for command in (("retry", "fix"), ("task", "cancel", "r1#fix")):
        said = over.run(*command)
        assert said.status == 2
        assert "task r1#fix has ended (failed)" in said.err
        assert "`supervisor run PLAN.yaml --resume` does what was left" in said.err


@pytest.mark.parametrize("command", [("send", "fux", "hello"), ("inspect", "fux")], ids=" ".join)
def test_a_misspelt_id_is_corrected_without_a_supervisor(over: Scratch, command: tuple[str, ...]) -> None:
    """An id that nothing has is told as such, with the ids near to it."""
    assert "nothing has the id 'fux'; did you mean fix" in over.run(*command).err


def test_an_abort_of_calls_where_none_is_open_says_so(scratch: Scratch) -> None:
    """`abort ID --scope tool` of a session without an open call ends nothing, and says why, in plan and receipt."""
    scratch.plan("""
        agents: {a: {adapter: scripted}}
        tasks: [{id: t, agent: a, prompt: "@say up\\n@wait go"}]
    """)
    run = scratch.start("run", "plan.yaml")
    until(lambda: "t| up" in run.out)
    for options in (("--dry-run",), ()):
        said = scratch.run("abort", "t", "--scope", "tool", *options)
        assert said.status == 0
        assert "since no tool call is open there" in said.out, said.text
    scratch.write("go", "")
    assert run.wait().status == 0


def test_a_killed_supervisor_is_no_failure_of_its_sessions(scratch: Scratch) -> None:
    """The run after a kill -9 goes on without an error: its sessions have ended with their supervisor, and have not
    given up."""
    scratch.plan("""
        agents:
          a: {adapter: command, command: [sh, -c, "test -e second || { touch second; echo up; exec sleep 600; }"]}
        tasks: [{id: t, agent: a, prompt: ""}]
    """)
    first = scratch.start("run", "plan.yaml")
    until(lambda: "t| up" in first.out)
    first.kill()
    assert "stopped with the last one" in scratch.run("send", "t", "hello").err
    second = scratch.run("run", "plan.yaml")
    assert second.status == 0, second.text
    assert "gave up" not in second.text
    assert "ERROR" not in second.text
    assert "t: session ended with its supervisor" in second.out


@pytest.mark.anyio
async def test_a_session_that_waits_for_its_first_prompt_is_idle(tmp_path: Path) -> None:
    """A session that a program has started and not prompted yet says what it waits for, besides its state."""

    async def echo(turn: AgentTurn) -> str:
        return turn.prompt

    async with open_supervisor(tmp_path / "state") as sup:
        session = await sup.start_session("helper", agent=echo)
        assert [node.note for node in sup.tree()] == ["idle, waits for its first prompt"]
        assert "idle, waits for its first prompt" in ps_text(ps(sup.core.registry.rows(), now=0.0))
        await session.run("hello")
        assert "first prompt" not in sup.tree()[0].note


def test_a_session_that_is_being_ended_is_not_called_stopped() -> None:
    """`inspect` names the stage of a session whose state is Stopped already, and whose end is not complete."""
    seen = Inspected(id="t", kind="session", state="Stopped", ending=Ending(stage=TerminationStage.REQUEST))
    assert inspected_text(seen).splitlines()[0] == "session t: is being ended, stage request"
