"""IdAllocator: no id is given twice, and the memory for that stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.runtime.entity_registry import IdAllocator


def test_a_name_that_was_used_gets_a_number() -> None:
    """A name that is taken gets the next free number, and a number that is taken already is skipped."""
    names = IdAllocator({"lead", "lead-3"})
    assert [names.new("lead") for _ in range(3)] == ["lead-2", "lead-4", "lead-5"]


def test_a_numbered_name_can_be_asked_for_and_is_new_again() -> None:
    """An id that was allocated with a number is taken under that name."""
    names = IdAllocator({"a"})
    assert [names.new("a"), names.new("a-2"), names.new("a-02"), names.new("a-3")] == ["a-2", "a-2-2", "a-02", "a-3"]


@given(st.lists(st.sampled_from(["a", "a-2", "a-3", "a-2-2", "b", "a-"]), max_size=40))
def test_no_id_is_given_twice(wanted: list[str]) -> None:
    """In any order of requests the allocator returns each id once."""
    names = IdAllocator({"a-4"})
    given_ids = [names.new(one) for one in wanted]
    assert len({*given_ids, "a-4"}) == len(given_ids) + 1


def test_numbered_names_cost_one_number() -> None:
    """A thousand ids of one name are remembered as two entries."""
    names = IdAllocator()
    for _ in range(1000):
        names.new("churn")
    assert len(names) == 2


def test_what_was_below_a_session_is_forgotten_with_it() -> None:
    """``drop_below`` drops the ids below a session, because the session's own id stays taken."""
    names = IdAllocator({"lead/docs"})
    assert names.new("lead/docs", below="lead") == "lead/docs-2"
    assert names.new("lead/docs", below="lead") == "lead/docs-3"
    kept = len(names)
    names.drop_below("lead")
    assert len(names) == kept - 1


def test_a_number_follows_the_highest_that_was_used() -> None:
    """``number`` never gives a number again, also where lower ones are free; other ids with the prefix do not count."""
    names = IdAllocator({"r1", "r4", "r1#fix", "r9x", "r", "run-7"})
    kept = len(names)
    assert [names.number("r") for _ in range(2)] == ["r5", "r6"]
    assert IdAllocator().number("r") == "r1"
    assert len(names) == kept  # only the highest number is stored
