"""Loop detection: repetitions of the same call, and work that looks similar."""

from __future__ import annotations

import itertools

import pytest

from supervisor.policies.loop_detection import (
    DEPTH_MAX,
    KNOWN_MAX,
    FinishedCall,
    LoopDetector,
    LoopLimits,
    Repeated,
    digest,
)


def call(title: str = "make test", asked: str = "a", answered: str = "r", kind: str = "execute") -> FinishedCall:
    return FinishedCall(title, kind, asked, answered)


def fed(loops: LoopDetector, *calls: FinishedCall) -> list[Repeated]:
    return [found for one in calls if (found := loops.take(one, loops.taken)) is not None]


def test_the_same_call_again_and_again_is_told_once_and_then_ended() -> None:
    """A call repeated to the limit is reported once; repeated as often again, it is reported as ``again``, to be
    ended."""
    loops = LoopDetector(LoopLimits(same_call_max=5))
    assert fed(loops, *[call()] * 4) == []
    assert fed(loops, call()) == [Repeated("make test", False, 5, again=False)]
    assert fed(loops, *[call()] * 3) == []
    assert [one.again for one in fed(loops, *[call()] * 2)] == [True]


def test_a_circle_of_several_calls_is_seen() -> None:
    """The calls A, B, A, B with the same results are reported as a loop."""
    loops = LoopDetector(LoopLimits(same_call_max=5))
    found = fed(loops, *[call("a"), call("b")] * 5)
    assert [one.title for one in found] == ["b"]


def test_polling_for_what_changes_is_none() -> None:
    """The same call with another result each time is no loop, however often the call is made."""
    loops = LoopDetector(LoopLimits())
    assert fed(loops, *[call(answered=f"{number} % done") for number in range(100)]) == []


def test_anything_new_in_between_is_progress() -> None:
    """An edit between two runs of the same failing test resets the count of repetitions."""
    loops = LoopDetector(LoopLimits(same_call_max=3))
    edits = (call("edit", asked=f"try {number}", kind="edit") for number in itertools.count())
    assert fed(loops, *[one for _ in range(20) for one in (call(), call(), next(edits))]) == []


def test_other_arguments_are_another_call() -> None:
    """Calls of the same name and result with different arguments are no loop."""
    loops = LoopDetector(LoopLimits())
    assert fed(loops, *[call("read", asked=f"file {number}", answered="") for number in range(50)]) == []
    assert fed(loops, *[call("read", asked=f"file {number}") for number in range(50)]) == []


def test_what_is_not_told_cannot_be_judged() -> None:
    """A call without a reported result is not counted as a repetition, because the agent may be polling."""
    loops = LoopDetector(LoopLimits())
    assert fed(loops, *[call(answered="")] * 50, *[call(asked="", answered="")] * 50) == []


def test_the_same_edit_needs_no_result() -> None:
    """An edit is compared by its arguments alone, without a result, and has a limit of its own."""
    loops = LoopDetector(LoopLimits(same_edit_max=3, same_call_max=50))
    (found,) = fed(loops, *[call("parser.py", asked="x = 1", answered="", kind="edit")] * 3)
    assert found.words == "the same edit, 'parser.py', was made 3 times with nothing new in between"


def test_a_bound_of_nothing_is_none() -> None:
    """A limit of 0 switches the detection off."""
    loops = LoopDetector(LoopLimits(same_call_max=0, same_edit_max=0))
    assert fed(loops, *[call()] * 50, *[call(kind="edit")] * 50) == []


def test_a_new_prompt_begins_anew() -> None:
    """A new prompt resets the counts, so that the calls of the last prompt may be repeated."""
    loops = LoopDetector(LoopLimits(same_call_max=3))
    for _ in range(10):
        loops.begin()
        assert fed(loops, call(), call()) == []


def test_memory_is_bounded() -> None:
    """The number of remembered calls is bounded, so that a loop of more different calls is not detected."""
    loops = LoopDetector(LoopLimits(same_call_max=2))
    circle = [call(asked=str(number)) for number in range(KNOWN_MAX + 1)]
    assert fed(loops, *circle * 3) == []


@pytest.mark.parametrize("value", [None, object(), [object()], lambda: 1, {"a": {1, 2}}, list(range(9999))])
def test_what_says_nothing_has_no_digest(value: object) -> None:
    """``None``, values without plain parts, and large values have no digest."""
    assert digest(value) == ""


def test_equal_values_have_equal_digests() -> None:
    """``digest`` differs for values of other types or orders, is the same for equal values, and empty for deep
    values."""
    values = [
        "",
        [],
        {},
        "1",
        1,
        1.5,
        True,
        b"1",
        ["a", "b"],
        ["b", "a"],
        ("a", "b"),
        {"a": "b"},
        [["a"], "b"],
        [["a", "b"]],
    ]
    assert len({digest(value) for value in values}) == len(values)
    assert digest({"a": [1, 2]}) == digest({"a": [1, 2]})
    deep: list[object] = ["x"]
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    assert digest(deep) == ""
