"""Output of ``supervisor machines``, which the reference pages in the repository must equal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from actors.machine_views import as_json, markdown, mermaid, table
from supervisor.cli.machines import FORMATS, reference_pages, render
from supervisor.lifecycles import MACHINES

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference" / "machines"
COMMAND = "make machines"


def test_the_committed_pages_are_current() -> None:
    """The pages in docs/reference/machines/ equal those that are generated from the tables; on a difference the test
    names the command that writes the pages."""
    committed = {page.name: page.read_text(encoding="utf-8") for page in PAGES.iterdir()}
    assert committed == reference_pages(), f"docs/reference/machines/ is stale; run: {COMMAND}"


def test_the_module_writes_the_pages(tmp_path: Path) -> None:
    """The module's command writes exactly the reference pages into the given directory, whatever the hash seed."""
    subprocess.run(
        [sys.executable, "-m", "supervisor.cli.machines", str(tmp_path)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "4711"},
        check=True,
        timeout=120,
    )
    assert {page.name: page.read_text(encoding="utf-8") for page in tmp_path.iterdir()} == reference_pages()


def test_there_is_a_page_for_every_machine() -> None:
    """Every machine has a page with its diagram and its rules, to which the index links; each page names the command
    that writes it."""
    pages = reference_pages()
    assert list(pages) == ["index.md", *(f"{name}.md" for name in MACHINES)]
    for name, machine in MACHINES.items():
        page = pages[f"{name}.md"]
        assert page.startswith(f"# {name}\n")
        assert COMMAND in page
        assert mermaid(machine) in page
        assert markdown(machine) in page
        assert f"[{name}]({name}.md)" in pages["index.md"]


def test_json_of_all_machines() -> None:
    """Without a name ``machines`` prints every machine as JSON, in the order of MACHINES."""
    assert json.loads(render([], "json")) == {name: as_json(one) for name, one in MACHINES.items()}
    assert list(json.loads(render([], "json"))) == list(MACHINES)


def test_json_of_one_machine() -> None:
    """With one name ``machines`` prints a JSON object with that machine as its only key."""
    assert json.loads(render(["task"], "json")) == {"task": as_json(MACHINES["task"])}


def test_texts_of_some_machines() -> None:
    """In other formats ``machines`` prints exactly the named machines, in the order of the names."""
    assert render(["worker", "job"], "table") == f"{table(MACHINES['worker'])}\n{table(MACHINES['job'])}"
    assert render(["worker"], "mermaid") == f"%% worker\n{mermaid(MACHINES['worker'])}"
    assert render(["worker"], "markdown") == f"## worker\n\n{markdown(MACHINES['worker'])}"


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_ends_its_last_line(format: str) -> None:
    """In every format the output of ``machines`` ends in exactly one newline."""
    text = render([], format)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_unknown_machine_lists_the_known() -> None:
    """An unknown machine is refused with an error that lists the known machines."""
    with pytest.raises(ValueError) as caught:
        render(["task", "taks"], "table")
    assert str(caught.value) == f"machine 'taks' is unknown; use one of: {', '.join(MACHINES)}"


def test_unknown_format_lists_the_known() -> None:
    """An unknown format is refused with an error that lists the known formats."""
    with pytest.raises(ValueError, match="format 'yaml' is unknown; use one of: table, mermaid, markdown, json"):
        render([], "yaml")
