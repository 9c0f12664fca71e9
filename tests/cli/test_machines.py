"""What ``supervisor machines`` prints, and that the committed reference page is what the tables say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from actors.machine_views import as_json, markdown, mermaid, table
from supervisor.cli.machines import FORMATS, reference_page, render
from supervisor.lifecycles import MACHINES

ROOT = Path(__file__).parents[2]
COMMAND = "python -m supervisor.cli.machines > docs/machines.md"


def test_committed_page_is_current() -> None:
    """docs/machines.md is what the tables say now; a difference names the command that writes it again."""
    page = ROOT / "docs" / "machines.md"
    assert page.is_file(), f"docs/machines.md is missing; run: {COMMAND}"
    assert page.read_text(encoding="utf-8") == reference_page(), f"docs/machines.md is stale; run: {COMMAND}"


def test_module_prints_the_page() -> None:
    """The command that the page and this file name prints exactly the page, whatever the hash seed."""
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.cli.machines"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "4711", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.decode() == reference_page()


def test_page_holds_every_machine() -> None:
    """Every machine has its heading, its link, its diagram and its rules on the page, which says how it is made."""
    page = reference_page()
    assert COMMAND in page
    for name, machine in MACHINES.items():
        assert f"\n## {name}\n" in page
        assert f"[{name}](#{name})" in page
        assert mermaid(machine) in page
        assert markdown(machine) in page


def test_json_of_all_machines() -> None:
    """Without a name every machine is there, in the house's order, as its own table says."""
    assert json.loads(render([], "json")) == {name: as_json(one) for name, one in MACHINES.items()}
    assert list(json.loads(render([], "json"))) == list(MACHINES)


def test_json_of_one_machine() -> None:
    """With one name the object has that one key."""
    assert json.loads(render(["task"], "json")) == {"task": as_json(MACHINES["task"])}


def test_texts_of_some_machines() -> None:
    """The other formats hold the views of exactly the machines that were named, in that order."""
    assert render(["worker", "job"], "table") == f"{table(MACHINES['worker'])}\n{table(MACHINES['job'])}"
    assert render(["worker"], "mermaid") == f"%% worker\n{mermaid(MACHINES['worker'])}"
    assert render(["worker"], "markdown") == f"## worker\n\n{markdown(MACHINES['worker'])}"


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_ends_its_last_line(format: str) -> None:
    """Whatever the format, the output of all machines is text that ends in one newline."""
    text = render([], format)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_unknown_machine_lists_the_known() -> None:
    """A name that is no machine is refused with the names that are."""
    with pytest.raises(ValueError) as caught:
        render(["task", "taks"], "table")
    assert str(caught.value) == f"machine 'taks' is unknown; use one of: {', '.join(MACHINES)}"


def test_unknown_format_lists_the_known() -> None:
    """A format that is none is refused with those that are."""
    with pytest.raises(ValueError, match="format 'yaml' is unknown; use one of: table, mermaid, markdown, json"):
        render([], "yaml")
