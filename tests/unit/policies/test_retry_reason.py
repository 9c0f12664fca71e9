"""Tests of reasons of retries: what is kept of a long text, which findings are the same, which prompts are programs."""

from __future__ import annotations

import pytest

from supervisor.policies.retry_reason import (
    REASON_CHARS_MAX,
    bounded,
    findings_differ,
    join_reasons,
    make_findings,
    may_execute_prompt,
    quote_reason,
)


def test_every_line_is_quoted() -> None:
    """A line of a reason cannot pass for a line of the task: each is quoted, and colours are dropped."""
    assert quote_reason("one\n\n\x1b[31mred\x1b[0m\x07").splitlines()[1:] == ["> one", ">", "> red\\u0007"]


def test_a_long_text_is_cut_at_lines() -> None:
    """Of a long text the first and the last lines are kept, whole."""
    lines = [f"line {number}" for number in range(2000)]
    kept = bounded("\n".join(lines)).split("\n")
    assert len("\n".join(kept)) <= REASON_CHARS_MAX
    assert (kept[0], kept[-1]) == ("line 0", "line 1999")
    assert set(kept) - set(lines) == {"[the middle is left out]"}


def test_a_text_without_lines_is_cut_too() -> None:
    """A long text of one line keeps its first and last characters."""
    kept = bounded("a" * 5000 + "b" * 5000)
    assert (len(kept), kept[0], kept[-1]) == (REASON_CHARS_MAX, "a", "b")


def test_a_reason_is_told_once() -> None:
    """Empty reasons, and reasons that another one contains, are left out; the rest keeps its order."""
    assert join_reasons("not accepted: x\noutput", "", "not accepted: x", "lost") == "not accepted: x\noutput\n\nlost"
    assert join_reasons("", " ") == ""


def test_findings_without_output_are_their_summary() -> None:
    """Output that consists of white space adds nothing to the findings."""
    assert make_findings("not merged: in conflict", " \r\n", str) == "not merged: in conflict"


@pytest.mark.parametrize(
    ("findings", "before", "differ"),
    [
        ("", "", False),
        ("", "a.txt is empty", False),
        ("a.txt is empty", "", True),
        ("a.txt is empty", "a.txt is empty", False),
        ("expected 3, got 4", "expected 3, got 5", True),
        ("1 failed in 0.03s", "1 failed in 12.7s", False),
        ("at 2026-11-27T10:00:00Z and 10:00:01.5", "at 2026-11-28T11:30:00Z and 11:30:02.25", False),
        ("/sd/work/t-2/a.py:3: bad", "/sd/work/t-3/a.py:3: bad", False),
        ("/sd/work/t-2/a.py:3: bad", "/sd/work/t-2/b.py:3: bad", True),
        ("a.py:12:34: bad", "a.py:15:20: bad", True),
        ("object at 0x7f01 (pid 12)", "object at 0x7f02 (pid 99)", False),
    ],
)
def test_times_ids_and_directories_make_no_difference(findings: str, before: str, differ: bool) -> None:
    """Findings are the same where only times, ids and directories are not."""
    assert findings_differ(findings, before) is differ


@pytest.mark.parametrize(
    "command",
    [
        "sh -c {prompt}",
        "/bin/bash -lc {prompt}",
        "env A=1 sh",
        "bash -s",
        "python3 -",
        "python3 -X dev -c {prompt}",
        "node --input-type=module -e {prompt}",
        "docker exec -i box sh",
        "ssh host {prompt}",
        "ssh host",
        "ssh host claude -p {prompt}",
        "su u -c {prompt}",
        "env A=1 agent {prompt}",
        "bash -o pipefail",
        "bash -eo pipefail",
        "bash -s x",
        "bash /dev/stdin",
        "bash --rcfile /x.sh -c {prompt}",
        "python3 -W ignore",
        "python3.12 -m timeit {prompt}",
        "ash -c {prompt}",
        "fish --command={prompt}",
        "lua5.4 -e {prompt}",
        "psql -c {prompt}",
        "unknown -e {prompt}",
        "sh agent.sh bash -c {prompt}",
        "sh -c agent {prompt}",
        "{prompt}",
    ],
)
def test_prompts_that_are_programs(command: str) -> None:
    """A program may execute the prompt: as the argument of an option, or from standard input."""
    assert may_execute_prompt(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "",
        "claude -p {prompt}",
        "sh agent.sh",
        "bash -eu ./agent {prompt}",
        "python3 -u agent.py",
        "python3 agent.py -c {prompt}",
        "python3 -m aider -c {prompt}",
        "git hash-object -- {prompt}",
        "codex exec {prompt}",
    ],
)
def test_prompts_that_are_read(command: str) -> None:
    """A program reads the prompt, also where an interpreter runs that program."""
    assert not may_execute_prompt(command.split())
