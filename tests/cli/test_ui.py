"""The command ``supervisor ui``: no link is printed that leads to a page which cannot be read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from supervisor.cli import submit
from supervisor.control.error_messages import NotRunning
from supervisor.control.http import journal_page
from supervisor.control.ping import Unreachable
from supervisor.journal.statedir import StateDir
from supervisor.ports import JournalDamaged
from tests.support import stderr_of, stdout_of
from tests.unit.journal.test_journal_growth import kept_journal


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    """Fixture: a state directory whose journal has an archive, and a page that ends when its link is printed."""
    made = StateDir.open(tmp_path / "state")
    shutil.move(kept_journal(tmp_path), made.journal)
    stdout_of("journal", "compact", "--keep-s", 0, "--state-dir", made.root)

    async def serve(open_reader: object, state: object, announce: Callable[[str], None]) -> None:
        announce("http://127.0.0.1:1/#secret")

    monkeypatch.setattr(journal_page, "serve_journal", serve)
    return made


def change(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE events SET reason = 'no' WHERE seq = (SELECT max(seq) FROM events)")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "is not there: .* has records in it; put the file back"),
        (lambda path: path.write_text("no archive"), "journal-000001.db"),
        (change, "journal-000001.db: it is not as it was archived; put the file back that was archived"),
    ],
)
def test_no_link_to_a_page_that_cannot_be_read(state: StateDir, damage: Callable[[Path], Any], message: str) -> None:
    """The page of a journal reads its archives, too: if one is missing or another file, the command says so instead of
    printing a link."""
    assert stdout_of("ui", state.root, "--no-browser") == "http://127.0.0.1:1/#secret"
    [archive] = state.archive.glob("*.db")
    damage(archive)
    with pytest.raises(JournalDamaged, match=message):
        stdout_of("ui", state.root, "--no-browser")


@pytest.mark.parametrize("holder", [{"daemon": True}, {"starting": True}])
def test_a_supervisor_that_is_starting_is_waited_for(
    state: StateDir, monkeypatch: pytest.MonkeyPatch, holder: dict[str, bool]
) -> None:
    """While a daemon, or the supervisor of a run, has no socket, the link is asked for again, and the wait is said
    once. A supervisor that has none and is not starting is an error, and one that is gone leaves its journal."""
    monkeypatch.setattr(submit, "LOOK_AGAIN_S", 0.0)
    errors: list[Exception] = [Unreachable("failed", "no socket"), Unreachable("failed", "no socket")]

    def send(*arguments: Any) -> dict[str, Any]:
        if errors:
            raise errors.pop(0)
        return {"url": "http://127.0.0.1:2/#live"}

    monkeypatch.setattr(submit, "send_request", send)
    with state.lock(**holder):
        assert stderr_of("ui", state.root).count("is starting or ending: waiting for it") == 1
        assert stdout_of("ui", state.root, "--no-browser") == "http://127.0.0.1:2/#live"
        errors += [Unreachable("failed", "no socket"), NotRunning(state.control_socket)]
        assert stdout_of("ui", state.root, "--no-browser") == "http://127.0.0.1:1/#secret"
    with state.lock():
        errors.append(Unreachable("failed", "no socket"))
        with pytest.raises(Unreachable, match="no socket"):
            stdout_of("ui", state.root)
