"""Roles of the tokens of the HTTP API, which the table of operations names, too."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """Rights of the holder of a token, from the least to the most; an agent has less, whatever token it holds
    (``callers``)."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, needed: Role) -> bool:
        """Return whether this role allows what *needed* allows."""
        return list(Role).index(self) >= list(Role).index(needed)
