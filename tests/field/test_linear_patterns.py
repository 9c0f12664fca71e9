"""Linear time of every function that reads text of agents: one line of an agent must not hold up the supervisor.

A quadratic pattern needs two minutes for a line of 2 MB, and every session waits meanwhile. The inputs are generated
from each pattern itself (see ``linear.py``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from field_kit import Scratch, until
from linear import attacks, dynamic_patterns, growth, patterns

from supervisor.mock_model.answers import answers_in, spent_in
from supervisor.mock_model.request import script_in_force
from supervisor.policies.error_classification import classify
from supervisor.policies.redaction import Redactor, StreamRedactor, printable
from supervisor.ports.input_limits import LineBuffer

QUADRATIC = r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"
"""Pattern of a JSON Web Token with quadratic time, which once froze the supervisor."""
REDACTOR = Redactor([{"A_TOKEN": "hunter2-hunter2", "B_KEY": "two words of a secret"}])
# The pattern of the secrets is made at run time, so that it is nowhere else to be had.
PATTERNS = patterns()


def worst(pattern: str, flags: int = 0) -> str:
    search = re.compile(pattern, flags).search
    return next(filter(None, (growth(search, attack) for attack in attacks(pattern, flags))), "")


@pytest.mark.parametrize(("pattern", "flags"), PATTERNS, ids=list(PATTERNS.values()))
def test_every_pattern_of_the_product_is_linear(pattern: str, flags: int) -> None:
    """A search with each regular expression of the product takes at most 2.5 times as long in an input of twice the
    size, whichever part of the pattern the input repeats; three doublings in a row count."""
    assert worst(pattern, flags) == ""


def test_no_pattern_escapes_this_test() -> None:
    """Inside of functions every pattern is a literal, so that the tests find it, apart from two known places, which
    make patterns of a table at import."""
    assert dynamic_patterns() == ["error_classification.py: _compiled", "errors.py: _table"]


@pytest.mark.parametrize("pattern", [QUADRATIC, r"(?:a+)+$", r"(?:a|a)*b", r"\s*\s*x", r"'(.+)' is", r"\bx.*y.*z"])
def test_a_pattern_that_is_not_linear_is_found(pattern: str) -> None:
    """The kit finds that a quadratic, a cubic or an exponential pattern is not linear, among them the one that froze
    the supervisor."""
    assert worst(pattern) != ""


def feed_in_pieces(text: str) -> None:
    stream = StreamRedactor(REDACTOR)
    for at in range(0, len(text), 4_096):
        stream.feed(text[at : at + 4_096])


@pytest.mark.parametrize(
    "reads",
    [
        REDACTOR.text,
        lambda text: StreamRedactor(REDACTOR).feed(text),
        feed_in_pieces,
        lambda text: classify(text),
        answers_in,
        spent_in,
        lambda text: script_in_force((part, 0) for part in (text, *text.split(" "))),
        lambda text: LineBuffer().feed(text.encode()),
        printable,
    ],
    ids=["redactor", "stream", "stream in pieces", "failures", "answers", "usage", "newest", "lines", "printable"],
)
def test_what_reads_text_of_agents_is_linear(reads: Callable[[str], object]) -> None:
    """Each function of the product that reads text of agents takes linear time on inputs that are hard for the patterns
    of the redactor and of the stub agent."""
    key = "-----BEGIN PRIVATE KEY-----"
    bodies = [
        "eyJ",
        "eyJ" + "a" * 32,
        "sk-",
        "://",
        "://a:",
        "Bearer ",
        "RUN[[x",
        "RUN[[x]] ",
        "HANG ",
        "two words of ",
        "a\n",
    ]
    bodies += [key, f"{key}-----END PRIVATE KEY-----", "-----BEGIN ", "-----END ", "]", "\x1b[", "\u202e", "1.", "./"]
    hard = [("", body, tail) for body in bodies for tail in ("", ".eyJ" + "x" * 9)]
    assert [found for attack in hard if (found := growth(reads, attack))] == []


def test_a_line_of_2_mb_is_redacted_in_the_time_of_a_few_plain_searches() -> None:
    """A line of 2 MB with the beginnings of many tokens, with and without an end that looks like the end of a token, is
    redacted in less than 30 times the time of a plain search."""
    plain = re.compile("|".join("abcdefgh"), re.IGNORECASE)
    for line in ("eyJ" * 700_000, "eyJ" * 700_000 + ".eyJ" + "x" * 9):
        began = time.thread_time()
        plain.search("z" * len(line))
        searched = time.thread_time()
        assert REDACTOR.text(line) == line
        assert time.thread_time() - searched < 30 * (searched - began)


def test_one_line_of_an_agent_holds_nobody_else(scratch: Scratch) -> None:
    """While a line of 2 MB that looks like the beginnings of many tokens is redacted, another session can be
    aborted."""
    scratch.write("agent.py", 'import time\nprint("eyJ" * 700_000, flush=True)\nopen("printed", "w")\ntime.sleep(600)')
    scratch.plan("""
        agents:
          talker: {adapter: command, command: [python3, agent.py]}
          other: {adapter: command, command: [sleep, "600"]}
        policy: {ladder: {request_s: 0.5, cancel_s: 0.5, terminate_s: 0.5, kill_s: 0.5}}
        tasks:
          - {id: talker, agent: talker, prompt: ""}
          - {id: other, agent: other, prompt: ""}
    """)
    scratch.start("run", "plan.yaml")
    until(lambda: (scratch.path / "printed").exists())
    aborted = scratch.run("abort", "other", "--scope", "session", "--now", within_s=30)
    assert aborted.status == 0, aborted.text
