"""Copies of what a task owns in a plain directory: made whole or not at all, and put back the same way.

A copy is called after what it holds, so that the same is never kept twice, and stands under its name only when all of
it is on the disk. Nothing is followed: a symbolic link is copied as one, and what is reached through one is not
touched. What stands where a copy is put back is removed; whoever wants it has copied it before. A repository (``.git``)
and the state directory are neither copied nor removed, wherever they are: no commit is lost, and no record.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ["Copies"]

_MAKING: Final = ".making-"
"""How a directory is called that is no copy yet, or none any more."""
_CHUNK: Final = 1024 * 1024


class Copies:
    """Those below *root*. Every method blocks: call them in a thread.

    All of them raise OSError where the disk fails; what was there before is there then.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def make(self, directory: Path, files: Sequence[str], name: str) -> str:
        """The name of a copy of *files* below *directory*: *name*, which is left as it is if it is there already; where
        that ends with a hyphen, what they hold is the rest of it.

        Raises:
            OSError: one of them is reached through a link, or is neither file, directory nor link.
        """
        if not name.endswith("-") and self.has(name):
            return name
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self._root))
        try:
            digest = hashlib.sha256()
            for file in files:
                self._copy(_inside(directory, file), making / "files" / file, digest)
            whole = f"{name}{digest.hexdigest()[:16]}" if name.endswith("-") else name
            return self._stand(making, whole)
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def _stand(self, making: Path, name: str) -> str:
        """Give it its name, unless there is such a one already."""
        if not self.has(name):
            _sync_below(making)
            making.rename(self._root / name)
            _sync(self._root)
        return name

    def has(self, name: str) -> bool:
        """Whether there is a copy of that name."""
        return (self._root / name).is_dir()

    def put_back(self, name: str, directory: Path, files: Sequence[str]) -> None:
        """Have *files* below *directory* as the copy has them; those that it has not are not there then.

        Raises:
            FileNotFoundError: there is no such copy.
        """
        if not self.has(name):
            raise FileNotFoundError(f"there is no copy {name} in {self._root}")
        for file in files:
            here, kept = _inside(directory, file), self._root / name / "files" / file
            self._remove(here)
            self._copy(kept, here, hashlib.sha256())

    def drop(self, name: str) -> None:
        """There is no copy of that name any more: at once, and not half of one at any moment."""
        aside = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self._root))
        (self._root / name).rename(aside / "gone")
        shutil.rmtree(aside, ignore_errors=True)

    def drop_all(self, beginning: str) -> None:
        """There is no copy any more whose name begins like that."""
        for one in self._root.glob(f"{beginning}*"):
            self.drop(one.name)

    # ------------------------------------------------------------------ one of the files of a task
    def _is_spared(self, path: Path) -> bool:
        return path.name == ".git" or path == self._root.parent

    def _remove(self, path: Path) -> None:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        for one in path.iterdir():
            if not self._is_spared(one):
                self._remove(one)
        if not any(path.iterdir()):
            path.rmdir()

    def _copy(self, source: Path, target: Path, digest: hashlib._Hash) -> None:
        """What is not there is not copied."""
        if not os.path.lexists(source):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        for one in self._walk(source):
            name = one.relative_to(source)
            digest.update(os.fsencode(f"{source.name}/{name}\0"))
            _copy_one(one, target / name, digest)

    def _walk(self, source: Path) -> Iterator[Path]:
        """It and all that is in it, each directory before what is in it, in one order."""
        pending = [source]
        while pending:
            one = pending.pop()
            yield one
            if one.is_dir() and not one.is_symlink():
                pending += sorted((inner for inner in one.iterdir() if not self._is_spared(inner)), reverse=True)


def _inside(directory: Path, file: str) -> Path:
    """Where *file* is; not through a link, which may lead anywhere."""
    path = directory / file
    for above in path.relative_to(directory).parents:
        if (directory / above).is_symlink() and above != Path():
            raise OSError(f"{directory / above} is a symbolic link: what is behind it is not the task's own")
    return path


def _copy_one(source: Path, target: Path, digest: hashlib._Hash) -> None:
    mode = source.lstat().st_mode
    digest.update(f"{mode:o}\0".encode())
    if stat.S_ISLNK(mode):
        aim = os.readlink(source)
        digest.update(os.fsencode(aim))
        target.symlink_to(aim)
    elif stat.S_ISDIR(mode):
        target.mkdir(exist_ok=True)
        target.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
    elif stat.S_ISREG(mode):
        _copy_bytes(source, target, digest)
        target.chmod(stat.S_IMODE(mode))
    else:
        raise OSError(f"{source} is neither a file, a directory nor a link, and cannot be copied")


def _copy_bytes(source: Path, target: Path, digest: hashlib._Hash) -> None:
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(_CHUNK):
            digest.update(chunk)
            writing.write(chunk)
        writing.flush()
        os.fsync(writing.fileno())


def _sync_below(root: Path) -> None:
    """The directories; the files are on the disk already."""
    for one in [root, *(Path(above) / name for above, names, _ in os.walk(root) for name in names)]:
        if not one.is_symlink():
            _sync(one)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
