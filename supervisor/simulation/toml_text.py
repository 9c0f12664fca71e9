"""The text of a TOML file, as far as whoever reads it can bear: what is nested too deeply, or has a number of too many
digits, is bad input, here and not in the middle of whatever goes through it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

__all__ = ["tables_of", "text_of"]

DEEP: Final = 32
"""So deep may tables and lists stand in each other: nobody needs half of it, and whatever walks through them recurs."""
LONG: Final = 100
"""So many digits may a whole number have; an interpreter refuses to read or to print one of thousands."""


def text_of(path: Path) -> str:
    """The text of the file at *path*.

    Raises:
        ValueError: it cannot be read; the message says why.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}; give the path of a FILE.toml") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot be read: it is no UTF-8 from byte {error.start} on; save it as UTF-8") from None
    except ValueError as error:  # of a NUL, which no path has
        raise ValueError(f"cannot be read: {error}; give the path of a FILE.toml") from None


def tables_of(text: str) -> dict[str, Any]:
    """What that text holds.

    Raises:
        ValueError: it is no TOML, or more than can be read; the message says what is wrong.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # of a number that the interpreter refuses to read
        raise _too_long() from None
    _check(tables, DEEP)
    return tables


def _check(value: Any, left: int) -> None:
    match value:
        case dict() | list() if not left:
            raise _too_deep()
        case dict():
            for one in value.values():
                _check(one, left - 1)
        case list():
            for one in value:
                _check(one, left - 1)
        case int() if abs(value) >= 10**LONG:
            raise _too_long()


def _too_deep() -> ValueError:
    return ValueError(f"tables and lists are nested more than {DEEP} deep; write it flatter")


def _too_long() -> ValueError:
    return ValueError(f"a whole number has more than {LONG} digits; write a smaller one")
