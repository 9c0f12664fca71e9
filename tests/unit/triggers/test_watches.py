"""Watched folders: changes that settle, replaced files and folders, and notices of the kernel."""

from __future__ import annotations

import os
import shutil
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from watchfiles import awatch

from supervisor.triggers import watches
from supervisor.triggers.definitions import WatchConfig
from supervisor.triggers.watches import RESCAN_S, TooManyFiles, Watch, notices, scan
from tests.support import DEADLINE_S

pytestmark = pytest.mark.anyio
NOWHERE = Path("/nonexistent")


class Folder:
    """Watched folder, with a clock that the test moves."""

    def __init__(self, path: Path, match: tuple[str, ...] = ("*",)) -> None:
        self.path, self.match, self.now = path, match, 100.0
        path.mkdir()
        self.watch = Watch(WatchConfig(folder=str(path), match=match, settle_s=2.0), path)
        self.watch.begin(scan(path, match, NOWHERE))

    def look(self, after_s: float = 0.0) -> tuple[str, ...]:
        """Scan after some time, and return what has changed and settled."""
        self.now += after_s
        return self.watch.compare(scan(self.path, self.match, NOWHERE), self.now)

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "inbox")


def test_a_change_counts_when_it_has_settled(folder: Folder) -> None:
    """A file that is still written, or joined by another, is not taken before nothing has changed for ``settle_s``;
    then all are taken, once."""
    folder.write("a.md", "1")
    assert folder.look() == ()
    folder.write("a.md", "12")
    folder.write("sub/b.md", "1")
    assert (folder.look(1.9), folder.look(1.9)) == ((), ())
    assert folder.look(0.2) == ("a.md", "sub/b.md")
    assert folder.look(10) == ()


def test_what_was_there_at_the_first_scan_is_no_change(tmp_path: Path) -> None:
    """A scan after a first one that has failed is only remembered: its files fire nothing."""
    (tmp_path / "a.md").write_text("1")
    watch = Watch(WatchConfig(folder=str(tmp_path), settle_s=2.0), tmp_path)
    watch.begin(None)
    assert watch.compare(scan(tmp_path, ("*",), NOWHERE), 100.0) == ()
    assert watch.compare(scan(tmp_path, ("*",), NOWHERE), 110.0) == ()


def test_a_replaced_file_is_seen_every_time(folder: Folder) -> None:
    """A file that editors replace by a rename is seen each time, not only the first, with the time of the old one; the
    unfinished file beside it is not."""
    for number in range(3):
        folder.write("a.md.tmp", f"{number}")
        os.utime(folder.path / "a.md.tmp", ns=(1, 1))
        assert folder.look() == ()
        (folder.path / "a.md.tmp").rename(folder.path / "a.md")
        assert folder.look() == ()
        assert folder.look(2) == ("a.md",)


def test_a_folder_that_is_made_again_is_watched_on(folder: Folder) -> None:
    """A folder that goes is said to be lost; what is new when it comes back is seen. What was removed fires nothing."""
    folder.write("a.md", "1")
    folder.look()
    assert folder.look(2) == ("a.md",)
    shutil.rmtree(folder.path)
    assert (folder.look(5), folder.watch.is_lost) == ((), True)
    folder.path.mkdir()
    folder.write("b.md", "1")
    assert (folder.look(1), folder.watch.is_lost) == ((), False)
    assert folder.look(2) == ("b.md",)
    (folder.path / "b.md").unlink()
    assert [folder.look(), folder.look(2), folder.look(2)] == [(), (), ()]


def test_what_is_remembered_does_not_count(folder: Folder) -> None:
    """After ``begin``, as at the end of a run, only later changes count."""
    folder.write("by-the-run.md", "1")
    folder.look()
    folder.watch.begin(scan(folder.path, ("*",), NOWHERE))
    assert folder.look(5) == ()
    folder.write("later.md", "1")
    folder.look()
    assert folder.look(2) == ("later.md",)


def test_scans_are_due(folder: Folder) -> None:
    """A scan is due at a notice, while a change settles, and otherwise every few seconds, for a watch that is deaf."""
    folder.look()
    assert not folder.watch.wants_scan(folder.now + RESCAN_S - 0.1)
    assert folder.watch.wants_scan(folder.now + RESCAN_S)
    folder.watch.notice()
    assert folder.watch.wants_scan(folder.now)
    folder.write("a.md", "1")
    folder.look()
    assert folder.watch.wants_scan(folder.now)


def test_the_files_of_the_supervisor_are_not_seen(tmp_path: Path) -> None:
    """The state directory, wherever it lies, hidden files, ``.git``, unfinished files and what does not match are not
    seen, and links are not followed."""
    for name in (
        ".sdd/runtime/journal.db",
        "state/x.md",
        ".git/index",
        ".a.md.swp",
        "b.md~",
        "c.txt",
        "d.md",
        "e/f.md",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "link").symlink_to("/etc")
    found = scan(tmp_path, ("*.md",), tmp_path / "state")
    assert found is not None
    assert sorted(found) == ["d.md", "e/f.md"]


def test_a_folder_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with too many matching files is an error that says so."""
    monkeypatch.setattr(watches, "FILES_MAX", 2)
    for name in "abc":
        (tmp_path / name).write_text("")
    with pytest.raises(TooManyFiles, match="more than 2 matching files; watch fewer by match"):
        scan(tmp_path, ("*",), NOWHERE)


async def test_notices_of_the_kernel(tmp_path: Path) -> None:
    """A notice comes for a file in the folder, also after the folder was removed and made again."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    with anyio.fail_after(DEADLINE_S):
        async with aclosing(notices([folder])) as found:
            await anext(found)
            for name in ("first", "second"):
                (folder / name).write_text("x")
                while not any(Path(path).name == name for path in await anext(found)):
                    (folder / name).write_text("x")  # the kernel tells nothing of what came before it was asked
                shutil.rmtree(folder)
                await anext(found)
                folder.mkdir()


async def test_a_watch_does_not_hold_up_an_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled task that waits for notices ends at the next timeout of its thread, which is short: ``watchfiles``
    waits five seconds by default."""
    timeouts: list[int] = []

    def recorded(*paths: Path, rust_timeout: int, **options: Any) -> Any:
        timeouts.append(rust_timeout)
        return awatch(*paths, rust_timeout=rust_timeout, **options)

    monkeypatch.setattr(watches, "awatch", recorded)
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as group:
            heard = anyio.Event()

            async def listen() -> None:
                async with aclosing(notices([tmp_path])) as found:
                    async for _ in found:
                        heard.set()

            group.start_soon(listen)
            await heard.wait()
            group.cancel_scope.cancel()
    assert set(timeouts) == {watches.WAKE_MS}
