"""A permission request has an id that every command knows, and an answer that stays on record."""

from __future__ import annotations

import pytest
from field_kit import Scratch, until

PLAN = """
    agents: {a: {adapter: scripted, permissions: {default: ask, answer_within_s: 600}}}
    tasks: [{id: t, agent: a, prompt: "@ask rm -rf build\\n@say done"}]
"""


@pytest.mark.parametrize(("answer", "word"), [("allow", "was allowed"), ("deny", "was denied")])
def test_a_permission_is_known_by_its_id_before_and_after_the_answer(scratch: Scratch, answer: str, word: str) -> None:
    """`inspect` shows a request that waits, `why` says since when, and afterwards how it was answered and by whom;
    `events` has the request and the answer."""
    scratch.plan(PLAN)
    run = scratch.start("run", "plan.yaml")
    until(lambda: "t:t1:p1" in scratch.run("permissions").out)
    inspected = scratch.run("inspect", "t:t1:p1")
    assert "permission t:t1:p1: waits for a human" in inspected.out, inspected.text
    assert "is waiting for an answer since" in scratch.run("why", "t:t1:p1").out
    assert scratch.run("answer", "t:t1:p1", answer, "--because", "as agreed").status == 0
    run.wait()
    told = scratch.run("why", "t:t1:p1")
    assert word in told.out, told.text
    [asked, answered] = scratch.run("events", "t:t1:p1").out.splitlines()
    assert "number=1  title=rm -rf build" in asked
    assert f"decision={answer}" in answered
    assert "as agreed" in answered
    assert "waits for an answer" in scratch.run("inspect", "t:t1:p1").err


def test_an_unanswered_permission_is_denied_and_says_so(scratch: Scratch) -> None:
    """Nobody answers: the record says that it was denied, and that it was the time that denied it."""
    scratch.plan(PLAN.replace("600", "1"))
    scratch.run("run", "plan.yaml")
    told = scratch.run("why", "t:t1:p1").out
    assert "was denied" in told
    assert "nobody answered" in told
    answered = scratch.run("events", "t:t1:p1").out.splitlines()[-1]
    assert "decision=deny" in answered
    assert "by=deadline" in answered
