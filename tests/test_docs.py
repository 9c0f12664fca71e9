"""Tests of the pages in docs/: examples run as printed, plans are valid, no page written by hand is too long, and terms
are those of the glossary."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import supervisor
from supervisor.plans import load_plan
from tests.field.field_kit import until
from tests.support import run_command

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EMBEDDING = re.findall(r"```python\n(.*?)```", (DOCS / "tutorial/embedding.md").read_text(encoding="utf-8"), re.DOTALL)
PLANS = re.findall(r"```yaml\n(.*?)```", (DOCS / "tutorial/first-plan.md").read_text(encoding="utf-8"), re.DOTALL)
WORDS_MAX = 2_500


@pytest.mark.parametrize(
    ("example", "printed"),
    [
        (EMBEDDING[0], ["run the unit tests: done", "ended with 0 survivors"]),
        (EMBEDDING[1], ["write completed", "check completed"]),
        (EMBEDDING[3], ["reason: 5 is of type int; give a str", "False failed", "nothing alive has the id 's'"]),
        (EMBEDDING[4], ["failed NameError NameError: name 'answer' is not defined (example.py, line 6)"]),
    ],
    ids=["function", "plan", "errors", "failing function"],
)
def test_the_examples_of_embedding_run_as_printed(example: str, printed: list[str], tmp_path: Path) -> None:
    """Each example program of the tutorial about embedding prints the lines that the page shows; where a function
    fails, standard error has its traceback once."""
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout.replace(f"{tmp_path}/", "").splitlines()) == (0, printed)
    fails = "return answer" in example
    assert ran.stderr.count("Traceback") == ran.stderr.count(f'File "{script}", line 6') == int(fails)
    if "exit 3" not in example:
        assert fails or not ran.stderr


@contextmanager
def running(program: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program in the directory *cwd* until the block is left."""
    with subprocess.Popen([sys.executable, "-c", program], cwd=cwd, stdout=subprocess.PIPE, text=True) as host:
        try:
            yield host
        finally:
            host.kill()


def test_the_reader_of_the_tutorial_decides_about_a_plan(tmp_path: Path) -> None:
    """The program of the tutorial about decisions ends as the page says when its task is approved from a terminal."""
    with running(EMBEDDING[2], tmp_path) as host:
        until(lambda: run_command("approve", "deploy", "--state-dir", "sd", cwd=tmp_path).status == 0)
        *_, outcomes, reason = host.communicate(timeout=60)[0].splitlines()
    assert outcomes == "{'deploy': 'completed', 'announce': 'aborted'}"
    assert reason == "rejected by me: nothing to announce"


def test_a_host_that_waits_for_a_stop_ends_with_it(tmp_path: Path) -> None:
    """The program on the page about steering that waits for a stop ends when `supervisor stop` is typed beside it."""
    page = (DOCS / "how-to/embed.md").read_text(encoding="utf-8")
    [example] = [one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "stopping.wait" in one]
    with running(example, tmp_path) as host:
        until(lambda: run_command("stop", "--state-dir", ".sdd", cwd=tmp_path).status == 0)
        assert host.communicate(timeout=60)[0] == "no new work is accepted\n"
    assert host.returncode == 0


def test_the_first_plan_of_the_tutorial_completes(tmp_path: Path) -> None:
    """`supervisor run plan.yaml` with the first plan of the tutorial completes in an empty directory."""
    (tmp_path / "plan.yaml").write_text(PLANS[0], encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "supervisor", "run", "plan.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
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
    listed = re.findall(r"^\.\. (?:auto\w+|py:type):: (\w+)$", page, re.MULTILINE)
    assert sorted([*listed, "__version__"]) == sorted(supervisor.__all__)


def test_no_page_is_long() -> None:
    """A page has at most 2,500 words; only the specification and the generated pages may be longer."""
    words = {
        str(page.relative_to(DOCS)): len(page.read_text(encoding="utf-8").split())
        for page in DOCS.rglob("*.md")
        if page.parent.name not in ("spec", "machines")
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
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name not in ("spec", "machines")]
    found = {
        (page.name, word)
        for page in [*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        for word in replaced.findall(page.read_text(encoding="utf-8"))
    }
    assert found == set()
