"""Fixtures and options for all tests: every test that uses anyio runs on asyncio and on trio."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from supervisor.diagnostics.validate import validate_lines
from tests.support import git

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Under nohup it would be ignored in every program that a test starts and hangs up; a handler is not inherited.
    signal.signal(signal.SIGHUP, lambda number, frame: None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # In the background of a shell it is ignored here, and in every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("COLUMNS", "LINES"):
    # Processes of pytest-xdist have them; a program whose output goes to a pipe would fit its tables to that width.
    os.environ.pop(name, None)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Return the name of the event loop: each test runs on asyncio and on trio."""
    return str(request.param)


@pytest.fixture(scope="session")
def repository_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the git repository of which the fixture ``repository`` makes copies."""
    where = tmp_path_factory.mktemp("template")
    (where / "a.txt").write_text("first\n")
    git(where, "init", "--quiet", "--initial-branch=main")
    git(where, "add", "--all")
    git(where, "commit", "--quiet", "--message", "first")
    return where


@pytest.fixture
def repository(tmp_path: Path, repository_template: Path) -> Path:
    """Create a git repository with one commit of ``a.txt`` on the branch ``main``."""
    return Path(shutil.copytree(repository_template, tmp_path / "repository", symlinks=True))


WHOLE = [Path(__file__).parent / name for name in ("field", "integration", "cli")]
"""Directories whose tests run whole supervisors."""


@pytest.fixture(autouse=True)
def valid_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test of a whole supervisor, check each ``transitions.jsonl`` in the test's directory."""
    yield
    directory = request.node.funcargs.get("tmp_path")
    if directory is None or not any(one in request.path.parents for one in WHOLE):
        return
    for depth in ("*", "*/*", "*/*/*"):
        for log in directory.glob(f"{depth}/transitions.jsonl"):
            with log.open("rb") as lines:
                found = validate_lines(lines, problems_max=3).problems
            assert found == [], f"{log}: {found}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options that set the size of the large tests."""
    parser.addoption(
        "--sessions", type=int, default=1_000, help="sessions in tests/integration/test_scale.py, in hundreds"
    )
    parser.addoption("--runs", type=int, default=1, help="seeds in tests/integration/test_why_everywhere.py")
    parser.addoption("--levels", type=int, default=1_200, help="levels in tests/integration/test_scale.py")
    parser.addoption("--both-backends", action="store_true", help="run tests marked one_backend on asyncio and on trio")
    parser.addoption(
        "--share", type=int, help="run a sixth only of the tests in DEAR: number of the commit, or any number"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker ``one_backend`` of this test suite."""
    config.addinivalue_line("markers", "one_backend: takes long; runs on asyncio or on trio, by its name")


DEAR = [
    Path(__file__).parent / name
    for name in (
        "field",
        "integration",
        "cli",
        "simulation",
        "verification",
        "unit/workspaces",
        "unit/control/http",
        "unit/processes",
        "test_benchmarks.py",
    )
]
"""Files and directories whose tests start programs, or simulate whole runs: four fifths of the time of the suite."""

SHARES = 6
"""Number of commits in a row that together run each test in ``DEAR``."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect one of the two backends for each test marked ``one_backend``; with ``--share`` also five
    sixths of the tests in ``DEAR``.

    Most of the time of these tests is used by the programs that they start. The backend follows from the test's name,
    so that half of the tests of a file run on trio; ``make nightly`` runs all of them on both. The sixth that runs
    follows from the test's name and the number of the commit, so that six commits in a row run each test.
    """
    share, both = config.getoption("--share"), config.getoption("--both-backends")
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        callspec = getattr(item, "callspec", None)
        params = callspec.params if callspec is not None else {}
        backend = params.get("anyio_backend", params.get("backend"))
        number = crc32(item.nodeid.replace("trio", "").replace("asyncio", "").encode())
        runs = both or not item.get_closest_marker("one_backend") or backend in (None, ("asyncio", "trio")[number % 2])
        if share is not None and any(one in (item.path, *item.path.parents) for one in DEAR):
            runs = runs and number // 2 % SHARES == share % SHARES
        (kept if runs else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
