"""The SQLite library that journals use. This module opens no journal."""

from __future__ import annotations

import apsw


def sqlite_version() -> str:
    """Return the version of the library, such as ``3.54.1``."""
    return apsw.sqlite_lib_version()
