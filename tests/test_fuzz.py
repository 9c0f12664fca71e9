"""Tests of the fuzz targets with the inputs of the corpus: good inputs, and inputs that once broke a target."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import CORPUS, TARGETS

CASES = [(name, path.name) for name in TARGETS for path in sorted((CORPUS / name).iterdir())]


@pytest.mark.parametrize(("target", "name"), CASES, ids=[f"{target}-{name}" for target, name in CASES])
def test_a_corpus_input_breaks_no_target(target: str, name: str) -> None:
    """A fuzz target, given an input of the corpus, raises no error except those that the target declares."""
    with TARGETS[target].opened() as take:
        take((CORPUS / target / name).read_bytes())


def test_every_target_has_inputs() -> None:
    """Every fuzz target has a folder in the corpus with at least one good input, and every folder belongs to a
    target."""
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert all(any(not path.name.startswith("broke-") for path in (CORPUS / name).iterdir()) for name in TARGETS)
