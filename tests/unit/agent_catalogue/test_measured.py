"""Measured agents: the results in the catalogue are valid, the page is made from them, and an untried version is
said."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.agent_catalogue import BadData, KnownAgent, catalogue, known_agent
from supervisor.agent_catalogue import measured as module
from supervisor.agent_catalogue.measured import (
    TriedVersions,
    measured_agents,
    tried_versions,
    untried_version,
    version_note,
)
from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute
from tests.real_agents.measured_page import GROUPS, PAGE, page


def test_every_result_belongs_to_a_way_of_an_agent() -> None:
    """Each file is named after its agent, each result has an adapter of that agent, a version, and cases."""
    assert measured_agents()
    for name, found in measured_agents().items():
        assert found.agent == name
        adapters = [way.adapter for way in catalogue()[name].ways]
        assert [one for one in adapters if one in {result.adapter for result in found.results}]
        for result in found.results:
            assert result.adapter in adapters
            assert result.version
            assert result.cases


def test_the_page_is_made_from_the_results() -> None:
    """The page of the documentation is what `make agents` would write now, and has a column for every case."""
    assert PAGE.read_text() == page()
    columns = {case for cases in GROUPS.values() for case in cases}
    full = next(one for one in measured_agents()["claude"].results if one.adapter == "claude")
    assert columns <= {*full.cases, "ends one call"}


def agent(**install: str) -> KnownAgent:
    package = {"client": "npm", "package": "p", **install}
    return KnownAgent.model_validate(
        {"name": "unmeasured", "title": "t", "ways": [{"adapter": "acp", "command": ["x"]}], "install": package}
    )


@pytest.mark.parametrize(
    ("version", "note"),
    [
        ("1.9.0", ""),
        ("1.10.0", ""),
        ("1.10.1", "1.10.1 is newer than 1.10.0, the newest that was tried"),
        ("1.8.9", "1.8.9 is older than 1.9.0, the oldest that was tried"),
        ("", ""),
    ],
)
def test_a_version_outside_of_those_that_were_tried_is_said(version: str, note: str) -> None:
    """A version between the oldest and the newest that was tried is not said; neither is one that nobody knows."""
    known = agent(version="1.10.0", least="1.9.0")
    assert tried_versions(known) == TriedVersions("1.9.0", "1.10.0")
    assert version_note(known, version) == note


def test_an_agent_that_was_not_tried_has_no_versions() -> None:
    """Without a tried version nothing is said about a version."""
    assert version_note(agent(version="1.0.0"), "2.0.0") == ""


def test_an_agent_introduces_itself_with_its_version() -> None:
    """The note is made from the words by which an agent introduces itself; an unknown agent has none."""
    newest = tried_versions(known_agent("codex")).newest
    assert untried_version(f"codex {newest}") == ""
    assert untried_version("codex 999.0.0").startswith("codex 999.0.0 is newer than ")
    assert untried_version("Copilot 0.0.1").startswith("copilot 0.0.1 is older than ")
    assert untried_version("robot 999.0.0") == untried_version("codex") == untried_version("") == ""


def test_a_damaged_result_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no result is an error that names the file and the fix."""
    (tmp_path / "codex.json").write_text('{"agent": "codex"}')
    monkeypatch.setattr(module, "MEASURED", tmp_path)
    with pytest.raises(BadData, match=r"codex\.json: is not the result of a probe: .*`make agents`"):
        measured_agents.__wrapped__()


def test_plan_check_says_an_untried_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan check` accepts a plan whose agent is installed in an untried version, and says so."""
    program = tmp_path / "bin" / "pi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 999.1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    plan = tmp_path / "plan.yaml"
    plan.write_text("agents: {w: {known: pi}}\ntasks: [{id: t, agent: w, prompt: hi}]\n")
    assert execute(supervisor, ("plan", "check", str(plan), "--workdir", str(tmp_path))) == 0
    out, _ = capsys.readouterr()
    assert "agents.w: pi 999.1 is newer than 1.6.0, the newest that was tried; `supervisor agents probe pi`" in out
