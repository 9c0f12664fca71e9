"""Tests of the pages in docs/: examples run as printed, plans are valid, no page written by hand is too long, and terms
are those of the glossary."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import supervisor
from supervisor.plans import load_plan
from tests.field.field_kit import until
from tests.snippets import DOCS, ROOT, snippets
from tests.support import run_command, running_program

PLANS = [one.text for one in snippets("yaml", "tutorial/first-plan")]
WORDS_MAX = 2_500


def test_a_function_that_fails_is_told_once(tmp_path: Path) -> None:
    """The example of the tutorial whose function fails prints the line that the page shows; standard error has the
    traceback once."""
    (example,) = [one.text for one in snippets("python", "tutorial/embedding") if "# not defined" in one.text]
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    printed = "failed NameError NameError: name 'answer' is not defined (example.py, line 6)\n"
    assert (ran.returncode, ran.stdout.replace(f"{tmp_path}/", "")) == (0, printed)
    assert ran.stderr.count("Traceback") == ran.stderr.count(f'File "{script}", line 6') == 1


def test_a_host_that_waits_for_a_stop_ends_with_it(tmp_path: Path) -> None:
    """The program on the page about steering that waits for a stop ends when `supervisor stop` is typed beside it."""
    [example] = [one.text for one in snippets("python", "how-to/embed") if "stopping.wait" in one.text]
    with running_program([sys.executable, "-c", example], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as host:
        try:
            until(lambda: "draining" in run_command("stop", "--state-dir", ".sdd", cwd=tmp_path).out)
            assert host.communicate(timeout=120)[0] == "no new work is accepted\n"
        finally:
            host.kill()
    assert host.returncode == 0


def test_the_first_plan_of_the_tutorial_completes(tmp_path: Path) -> None:
    """`supervisor run plan.yaml` with the first plan of the tutorial completes in an empty directory."""
    (tmp_path / "plan.yaml").write_text(PLANS[0], encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "supervisor", "run", "plan.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "greeting.txt").read_text() == "hello\n"


def test_the_second_plan_of_the_tutorial_is_a_plan(tmp_path: Path) -> None:
    """The second plan of the tutorial, whose tool call the reader aborts, is a valid plan."""
    plan = tmp_path / "long.yaml"
    plan.write_text(PLANS[1], encoding="utf-8")
    assert [task.id for task in load_plan(plan).tasks] == ["wait"]


def test_the_reference_lists_the_api() -> None:
    """The page of the API has an entry for each name that can be imported from `supervisor`."""
    page = (DOCS / "reference/api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\.\. (?:auto\w+|py:type|py:data):: (\w+)$", page, re.MULTILINE)
    assert sorted([*listed, "__version__"]) == sorted(supervisor.__all__)


def test_no_page_is_long() -> None:
    """A page has at most 2,500 words; only the specification and the generated pages may be longer."""
    words = {
        str(page.relative_to(DOCS)): len(page.read_text(encoding="utf-8").split())
        for page in DOCS.rglob("*.md")
        if page.parent.name not in ("spec", "machines", "http-api") and page.name != "agents-measured.md"
    }
    assert len(words) > 20
    assert {page: count for page, count in words.items() if count > WORDS_MAX} == {}


def test_every_path_on_a_page_exists() -> None:
    """Every Python file, and every path in tests/, that a page names exists, relative to the root or to
    `supervisor/`."""
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    named = re.compile(r"`([\w./-]+/[\w-]+\.py|tests/[\w./-]+)`")
    found = {(page.name, path) for page in pages for path in named.findall(page.read_text(encoding="utf-8"))}
    assert len(found) > 50
    assert (
        sorted(one for one in found if not any((base / one[1]).exists() for base in (ROOT, ROOT / "supervisor"))) == []
    )


def test_pages_use_the_words_of_the_glossary() -> None:
    """No page contains a word that the glossary has replaced by another term."""
    replaced = re.compile(
        r"\b(wardens?|keepers?|ledger|aborter|overseer|dossier|lifeline|heirs?|parked)\b", re.IGNORECASE
    )
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name not in ("spec", "machines", "http-api")]
    found = {
        (page.name, word)
        for page in [*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        for word in replaced.findall(page.read_text(encoding="utf-8"))
    }
    assert found == set()
