"""Owned paths: no two holders have paths that overlap.

Pure. A path owns everything below it: ``src`` overlaps ``src/a.py`` and is overlapped by it, and the root (``.``)
overlaps everything. Paths are relative to one root and compared as they are spelled; nothing looks at a disk. Every
operation costs the number of parts of the paths that it is given, however many are held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def spelled(paths: Sequence[str]) -> tuple[str, ...]:
    """Return *paths* in a canonical spelling, sorted, without any path that lies below another of the paths.

    Raises:
        ValueError: a path is absolute, or leads out of the root.
    """
    kept: list[str] = []
    for path in sorted({_one_spelling(path) for path in paths}):
        if not any(above in kept for above in _above(path)):
            kept.append(path)
    return tuple(kept)


def _one_spelling(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise ValueError(f"files: {path!r} leads out of the workspace; give a path relative to it, without '..'")
    return "/".join(parts)


def _above(path: str) -> Iterator[str]:
    """Yield the directories above *path*, the nearest first, the root last."""
    while path:
        path = path.rpartition("/")[0]
        yield path


class OwnedPaths:
    """Paths and their holders. Every path given must be in the canonical spelling (``spelled``)."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}
        self._below: dict[str, dict[str, str]] = {}

    def blocker(self, paths: Sequence[str]) -> str | None:
        """Return one holder of a path that overlaps *paths*, or ``None``: the same holder, as long as the same paths
        are held."""
        return next(self._blockers(paths), None)

    def blockers(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return every holder of a path that overlaps *paths*, each once."""
        return tuple(dict.fromkeys(self._blockers(paths)))

    def take(self, owner: str, paths: Sequence[str]) -> None:
        """Give *paths*, which overlap no held path, to *owner*."""
        for path in paths:
            self._held[path] = owner
            for above in _above(path):
                self._below.setdefault(above, {})[path] = owner

    def give_back(self, paths: Sequence[str]) -> None:
        """Free *paths*, so that another owner can take them."""
        for path in paths:
            del self._held[path]
            for above in _above(path):
                below = self._below[above]
                del below[path]
                if not below:
                    del self._below[above]

    def _blockers(self, paths: Sequence[str]) -> Iterator[str]:
        for path in paths:
            for one in (path, *_above(path)):
                if one in self._held:
                    yield self._held[one]
            yield from self._below.get(path, {}).values()
