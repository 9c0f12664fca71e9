"""Repair of JSON from other programs: what a decoder rejects although JSON leaves its meaning open."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.ports.json_text import decodable, joined_pairs


@given(
    st.recursive(st.none() | st.integers(-9, 9) | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=9)
)
def test_sound_json_is_unchanged(value: object) -> None:
    """JSON without half a pair and without raw control characters has the same meaning after the repair, whether its
    characters are escaped or not."""
    for is_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=is_ascii)
        assert msgspec.json.decode(decodable(text)) == value


@given(st.text(st.characters(exclude_categories=())))
def test_every_text_of_a_javascript_program_is_read(text: str) -> None:
    """Every text, with halves of pairs wherever a program has cut it, can be decoded, and only the halves are
    replaced."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert msgspec.json.decode(decodable(json.dumps(text))) == whole


@pytest.mark.parametrize(
    ("text", "joined"),
    [("a\ud83d\ude00b", "a\U0001f600b"), ("cut \ud83d", "cut \ud83d"), ("\ude00\ud83d", "\ude00\ud83d"), ("é", "é")],
)
def test_pairs_are_joined_and_halves_stay(text: str, joined: str) -> None:
    """A pair becomes its character; half a pair stays, so that a check can name it."""
    assert joined_pairs(text) == joined
