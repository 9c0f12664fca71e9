"""Tests of every command about a task in every phase of the task, as ``command_table`` says."""

from __future__ import annotations

import pytest

from tests.simulation.command_table import CELLS, ROWS, Row, check_effect, effective_cells, has_no_effect
from tests.simulation.task_phases import COMMANDS, DELAY_S, PHASES, WORK_S, play

END_S = 5.0
"""Bound for the time of an end on purpose: a workspace is prepared meanwhile, and no test, review or merge is
awaited."""


@pytest.mark.parametrize(("command", "phase", "row"), effective_cells())
def test_a_command_in_a_phase_has_its_answer_and_its_effect(command: str, phase: str, row: Row) -> None:
    """A command in a phase of a task has the answer, the effect on the task's states, and the end that the row says."""
    seen = play(PHASES[phase], [command])
    answer = seen.answers[command]
    if answer == "sent":
        answer = "sent, read" if any("look here" in prompt for prompt in seen.prompts) else "sent, never read"
    assert answer == row.answer
    check_effect(seen, row, phase)
    if command == "retry" and phase != "blocked":
        assert seen.lasted_s < DELAY_S + WORK_S, "the wait was not ended"
    if row.end in ("aborted", "cancelled") and command != "stop":
        assert seen.lasted_s < END_S, "the end waited for something"


@pytest.mark.parametrize("phase", PHASES)
def test_a_command_without_effect_changes_nothing(phase: str) -> None:
    """All commands that a phase refuses, or whose target has ended, given at the same time, are answered with the texts
    of their rows or of the phase, and the task goes on as if they had not been given."""
    nothing = Row("", phase, f"refused: {PHASES[phase].refusal}")
    texts = {name: CELLS.get((name, phase), nothing).answer for name in COMMANDS if has_no_effect(name, phase)}
    seen = play(PHASES[phase], list(texts))
    assert {name: answer[: len(texts[name])] for name, answer in seen.answers.items()} == texts
    check_effect(seen, nothing, phase)


def test_the_table_has_each_cell_once() -> None:
    """The rows name commands and phases that exist, and no cell twice."""
    assert len(CELLS) == sum(len(row.phases.split()) for row in ROWS)
    assert {command for command, _ in CELLS} == set(COMMANDS)
    assert {phase for _, phase in CELLS} == set(PHASES)
