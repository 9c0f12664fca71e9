"""Text files that agents request: a conformance suite of the port, and properties of the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.ports import AgentFiles, FileRefused
from supervisor.ports.input_limits import FILE_BYTES_MAX
from supervisor.simulation.plan_workload.workspace import SimulatedFiles
from supervisor.workspaces.files import DiskFiles

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[DiskFiles, SimulatedFiles])
def files(request: pytest.FixtureRequest) -> AgentFiles:
    made: AgentFiles = request.param()
    return made


async def test_what_was_written_is_read(files: AgentFiles, tmp_path: Path) -> None:
    """A read returns the last text that was written, also in directories that did not exist."""
    path = str(tmp_path / "a" / "b.txt")
    await files.write(path, "first, and long\n", str(tmp_path))
    await files.write(path, "schön\n", str(tmp_path))
    assert await files.read(path, str(tmp_path)) == "schön\n"


async def test_a_file_that_is_not_there_is_an_error(files: AgentFiles, tmp_path: Path) -> None:
    """A missing file is an error that names the path."""
    with pytest.raises(OSError, match="none"):
        await files.read(str(tmp_path / "none.txt"), str(tmp_path))


async def test_a_file_outside_of_the_workspace_is_refused(files: AgentFiles, tmp_path: Path) -> None:
    """A file outside of the workspace is refused, however the path is written."""
    for path in ("/etc/passwd", f"{tmp_path}/../x"):
        with pytest.raises(FileRefused, match="is not within"):
            await files.read(path, str(tmp_path))
        with pytest.raises(FileRefused, match="is not within"):
            await files.write(path, "text", str(tmp_path))


async def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """A pipe without a writer, a directory and a device are refused without waiting."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            await DiskFiles().read(str(path), str(path.parent))
    with pytest.raises(OSError, match="not a regular file"):
        await DiskFiles().write(str(pipe), "text", str(tmp_path))


async def test_a_file_is_bounded_and_text(tmp_path: Path) -> None:
    """A file with one byte too many, or with bytes that are no UTF-8, is an error that says so."""
    long, odd = tmp_path / "long", tmp_path / "odd"
    long.write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    odd.write_bytes(b"\xff")
    with pytest.raises(OSError, match="longer than"):
        await DiskFiles().read(str(long), str(tmp_path))
    with pytest.raises(OSError, match="not UTF-8"):
        await DiskFiles().read(str(odd), str(tmp_path))


async def test_a_written_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    """A script stays executable, the target of a link is written, and nothing else is left beside it."""
    script, link = tmp_path / "run.sh", tmp_path / "link"
    script.write_text("old")
    script.chmod(0o750)
    link.symlink_to(script)
    await DiskFiles().write(str(link), "new", str(tmp_path))
    assert (script.read_text(), script.stat().st_mode & 0o777, link.is_symlink()) == ("new", 0o750, True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "run.sh"]
