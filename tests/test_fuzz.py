"""Corpus of the fuzz targets: good inputs, and inputs that once broke something."""

from __future__ import annotations

import pytest

from tests.fuzz.targets import CORPUS, TARGETS

CASES = [(name, path.name) for name in TARGETS for path in sorted((CORPUS / name).iterdir())]


@pytest.mark.parametrize(("target", "name"), CASES, ids=[f"{target}-{name}" for target, name in CASES])
def test_a_corpus_input_breaks_no_target(target: str, name: str) -> None:
    """An input of the corpus raises nothing but the declared errors of its target."""
    with TARGETS[target].opened() as take:
        take((CORPUS / target / name).read_bytes())


def test_every_target_has_inputs() -> None:
    """Every target has a folder with a good input, and every folder has a target."""
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert all(any(not path.name.startswith("broke-") for path in (CORPUS / name).iterdir()) for name in TARGETS)
