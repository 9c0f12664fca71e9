"""Copies of the files that a task owns in a plain directory: a copy is made completely or not at all, and so restored.

The name of a copy contains a hash of its content, so that equal contents are stored once; a copy gets its name only
when all of its files are on the disk. Symbolic links are copied as links, and nothing behind a link is touched.
Restoring a copy removes the present files at these paths, which the caller has copied before. A repository (``.git``)
and the state directory are neither copied nor removed, wherever they are, so that no commit and no record is lost.
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

_MAKING: Final = ".making-"
"""Prefix of the name of a directory that is not a complete copy yet, or is being removed."""
_CHUNK: Final = 1024 * 1024


class FileCopies:
    """The copies of files below *root*. Every method blocks, so call it in a thread.

    Every method raises OSError if the disk fails, and then leaves the earlier state.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def make(self, directory: Path, files: Sequence[str], name: str) -> str:
        """Make a copy of *files* below *directory*; return its name.

        A *name* that ends with a hyphen is completed with a hash of the content; another *name* is used as it is, and a
        copy of that name is left unchanged.

        Raises:
            OSError: a file is reached through a link, or is neither file, directory nor link.
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
            return self._publish(making, whole)
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def _publish(self, making: Path, name: str) -> str:
        """Rename the finished copy to *name*, unless a copy of that name exists."""
        if not self.has(name):
            _sync_below(making)
            making.rename(self._root / name)
            _sync(self._root)
        return name

    def has(self, name: str) -> bool:
        """Return whether a copy named *name* exists."""
        return (self._root / name).is_dir()

    def restore(self, name: str, directory: Path, files: Sequence[str]) -> None:
        """Restore *files* below *directory* from the copy *name*; remove the files that the copy does not have.

        Raises:
            FileNotFoundError: the copy does not exist.
        """
        if not self.has(name):
            raise FileNotFoundError(f"there is no copy {name} in {self._root}")
        for file in files:
            here, kept = _inside(directory, file), self._root / name / "files" / file
            self._remove(here)
            self._copy(kept, here, hashlib.sha256())

    def drop(self, name: str) -> None:
        """Remove the copy *name*. The copy is renamed first, so that a half-removed one is never taken for a copy."""
        aside = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self._root))
        (self._root / name).rename(aside / "gone")
        shutil.rmtree(aside, ignore_errors=True)

    def drop_all(self, beginning: str) -> None:
        """Remove every copy whose name begins with *beginning*."""
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
        """Copy *source* with everything in it; do nothing if it does not exist."""
        if not os.path.lexists(source):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        for one in self._walk(source):
            name = one.relative_to(source)
            digest.update(os.fsencode(f"{source.name}/{name}\0"))
            _copy_one(one, target / name, digest)

    def _walk(self, source: Path) -> Iterator[Path]:
        """Yield *source* and everything in it, directories before their content, in a fixed order."""
        pending = [source]
        while pending:
            one = pending.pop()
            yield one
            if one.is_dir() and not one.is_symlink():
                pending += sorted((inner for inner in one.iterdir() if not self._is_spared(inner)), reverse=True)


def _inside(directory: Path, file: str) -> Path:
    """Return the path of *file* below *directory*; raise an error if the path leads through a link, which may lead
    anywhere."""
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
    """Sync the directories below *root* to the disk; the files are on the disk already."""
    for one in [root, *(Path(above) / name for above, names, _ in os.walk(root) for name in names)]:
        if not one.is_symlink():
            _sync(one)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
