"""Graduated access: how trust is earned and lost, and the rights of each level."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.lifecycles.task import TASK
from supervisor.plans import AccessConfig
from supervisor.policies.access import (
    RIGHTS,
    SUCCESSES_NEEDED,
    Level,
    Rights,
    TrustScore,
    after_success,
    after_violation,
    call_refusal,
    claim_refusal,
    decode_scores,
    encode_scores,
    file_refusal,
    intersect_rights,
    transition_refusal,
)

DAY_S = 86_400.0


# ---------------------------------------------------------------------------------------------------- the record
def after(events: str, every_s: float = 1.0, decay_s: float = DAY_S) -> TrustScore:
    """Return the trust score after successes (``+``) and violations (``-``), at even intervals."""
    standing = TrustScore()
    for number, event in enumerate(events):
        change = after_success if event == "+" else after_violation
        standing = change(standing, number * every_s, decay_s)
    return standing


@pytest.mark.parametrize(
    ("events", "level"),
    [
        ("", Level.UNTRUSTED),
        ("+", Level.PROBATIONARY),
        ("++", Level.PROBATIONARY),
        ("+++", Level.TRUSTED),
        ("+" * 9, Level.TRUSTED),
        ("+" * 10, Level.ELEVATED),
        ("+" * 50, Level.ELEVATED),
        ("-", Level.UNTRUSTED),
        ("+++-", Level.PROBATIONARY),
        ("+++--", Level.UNTRUSTED),
        ("+++-" + "+" * 20, Level.PROBATIONARY),
    ],
)
def test_trust_is_earned_and_lost(events: str, level: Level) -> None:
    """Trust levels rise at 1, 3 and 10 successes; a violation lowers the level by one, and until the violation has
    decayed no level is gained."""
    assert after(events).level is level


def test_a_violation_decays() -> None:
    """After a violation has decayed, each success raises the level by one, up to the level of all successes so far."""
    lost = after("+++-")
    assert after_success(lost, 3 + DAY_S - 1, DAY_S).level is Level.PROBATIONARY
    assert after_success(lost, 3 + DAY_S, DAY_S).level is Level.TRUSTED
    twice = after_violation(after("+" * 10 + "-"), 11, DAY_S)
    assert twice.level is Level.PROBATIONARY
    assert after_success(twice, 12 + DAY_S, DAY_S).level is Level.TRUSTED


@given(st.text("+-", max_size=60), st.floats(0.1, 2 * DAY_S))
def test_no_level_without_its_successes(events: str, every_s: float) -> None:
    """After any order of successes and violations the level has the successes that it needs, and the score survives
    encoding."""
    standing = after(events, every_s)
    assert standing.successes == events.count("+") >= SUCCESSES_NEEDED[standing.level]
    assert decode_scores(encode_scores({"a": standing})) == {"a": standing}
    raised = after_success(standing, len(events) * every_s, DAY_S)
    order = list(Level)
    assert order.index(raised.level) - order.index(standing.level) in (0, 1)
    assert not raised.violations or raised.level is standing.level


# ------------------------------------------------------------------------------------------------------ the rights
def test_each_level_may_what_the_one_below_may() -> None:
    """Each trust level has all rights of the level below, and may cause only transitions that the task's table has."""
    rights = [RIGHTS[level] for level in Level]
    for below, above in itertools.pairwise(rights):
        assert below.transitions <= above.transitions
        assert (below.write, below.network, below.files_max) <= (above.write, above.network, above.files_max)
        assert intersect_rights(below, above) == below
    assert rights[-1].transitions <= {rule.on.name() for rule in TASK.rules}


def test_refusals() -> None:
    """The text of each refusal names the trust level and the missing right; allowed actions have an empty text."""
    new, proven = RIGHTS[Level.UNTRUSTED], RIGHTS[Level.TRUSTED]
    assert transition_refusal(Level.TRUSTED, proven, "split") == ""
    assert transition_refusal(Level.UNTRUSTED, new, "split") == "an agent that is untrusted may not cause 'split'"
    assert claim_refusal(Level.UNTRUSTED, new, files=(), network=False) == ""
    assert "may not use it" in claim_refusal(Level.UNTRUSTED, new, files=(), network=True)
    assert "may not write" in claim_refusal(Level.UNTRUSTED, new, files=("src",), network=False)
    assert claim_refusal(Level.TRUSTED, proven, files=("src",), network=True) == ""
    assert [call_refusal(new, kind) for kind in ("read", "search", "think", "other")] == [""] * 4
    assert all(call_refusal(new, kind) for kind in ("edit", "delete", "move", "execute", "fetch"))
    assert call_refusal(None, "execute") == call_refusal(proven, "fetch") == ""


@pytest.mark.parametrize(
    ("files", "whole", "words"),
    [
        ([], True, ""),
        (["src/a.py", "src/b/c.py"], True, ""),
        (["src/a.py", "docs/a.md"], True, "docs/a.md, and an agent that is trusted may change src only"),
        (["srcs/a.py"], True, "may change src only"),
        (["src/1", "src/2", "src/3"], True, "it changed 3 files, and an agent that is trusted may change 2"),
        (["src/1"], False, "it changed more than 1 files"),
        ([f"docs/{number}" for number in range(2)], True, "it changed docs/0, docs/1, and an agent"),
    ],
)
def test_files(files: list[str], whole: bool, words: str) -> None:
    """A change is refused for too many files, other directories, or an incomplete list."""
    rights = Rights(transitions=frozenset(), write=True, network=True, files_max=2, directories=("src",))
    found = file_refusal(Level.TRUSTED, rights, files, whole=whole)
    assert words in found
    assert bool(found) is bool(words)


def test_many_files_are_not_all_named() -> None:
    """The refusal of a change names at most three files, and the number of the others."""
    rights = RIGHTS[Level.UNTRUSTED]
    for count, words in ((3, "f0, f1, f2, and"), (4, "f0, f1, f2 and 1 more, and"), (9, "f0, f1, f2 and 6 more, and")):
        found = file_refusal(Level.UNTRUSTED, rights, [f"f{number}" for number in range(count)], whole=True)
        assert found.startswith(f"it changed {words} an agent that is untrusted")


def test_a_directory_is_known_by_its_name_alone() -> None:
    """A configured directory ``-gen`` allows files below it, and no file elsewhere."""
    rights = Rights(transitions=frozenset(), write=True, network=True, files_max=9, directories=("-gen",))
    assert file_refusal(Level.TRUSTED, rights, ["-gen/a"], whole=True) == ""
    assert file_refusal(Level.TRUSTED, rights, ["src/a"], whole=True)


def test_who_is_below_another_has_no_more_rights() -> None:
    """The rights of a child session are the intersection with its parent's; with disjoint directories nothing may be
    written."""

    def in_(*directories: str) -> Rights:
        return Rights(transitions=frozenset(), write=True, network=True, files_max=9, directories=directories)

    for above, own, both in (
        (in_(), in_("src"), in_("src")),
        (in_("src"), in_(), in_("src")),
        (in_("src", "docs"), in_("src/a"), in_("src/a")),
        (in_("src/a"), in_("src"), in_("src/a")),
    ):
        assert intersect_rights(above, own) == both
    apart = intersect_rights(in_("src"), in_("docs"))
    assert apart is not None
    assert not apart.write
    assert intersect_rights(None, None) is None
    assert intersect_rights(None, in_("a")) == intersect_rights(in_("a"), None) == in_("a")


def test_what_a_level_may_can_be_said() -> None:
    """A plan can set fields of a level's rights; the fields that are not set keep their defaults."""
    config = AccessConfig.model_validate({"trusted": {"files_max": 7, "directories": ["src"]}, "untrusted": {}})
    rights = config.value().rights
    assert (rights[Level.TRUSTED].files_max, rights[Level.TRUSTED].directories) == (7, ("src",))
    assert rights[Level.TRUSTED].transitions == RIGHTS[Level.TRUSTED].transitions
    assert {level: rights[level] for level in Level if level is not Level.TRUSTED} == {
        level: RIGHTS[level] for level in Level if level is not Level.TRUSTED
    }
