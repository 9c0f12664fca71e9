"""The corpus: what malformed inputs are made of, and what once broke something, is taken by those it is for."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import CORPUS, TARGETS

CASES = [(name, path.name) for name in TARGETS for path in sorted((CORPUS / name).iterdir())]


@pytest.mark.parametrize(("target", "name"), CASES, ids=[f"{target}-{name}" for target, name in CASES])
def test_it_is_taken(target: str, name: str) -> None:
    """Nothing but its declared errors comes of an input of the corpus."""
    with TARGETS[target].opened() as take:
        take((CORPUS / target / name).read_bytes())


def test_every_target_has_inputs() -> None:
    """There is no folder without a target, and none without a good input."""
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert all(any(not path.name.startswith("broke-") for path in (CORPUS / name).iterdir()) for name in TARGETS)
