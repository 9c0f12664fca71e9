"""Reading and parsing of TOML files, with limits: tables that are nested too deeply, and numbers with too many digits,
are refused here and not in the middle of a run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

DEEP: Final = 32
"""The deepest nesting of tables and lists: twice what a scenario needs, and safe for recursive code."""
LONG: Final = 100
"""The most digits of a whole number; the interpreter refuses to read or to print a number of thousands of digits."""


def text_of(path: Path) -> str:
    """Return the text of the file at *path*.

    Raises:
        ValueError: the file cannot be read; the message gives the cause.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}; give the path of a FILE.toml") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot be read: it is not UTF-8 from byte {error.start} on; save it as UTF-8") from None
    except ValueError as error:  # of a NUL, which no path has
        raise ValueError(f"cannot be read: {error}; give the path of a FILE.toml") from None


def tables_of(text: str) -> dict[str, Any]:
    """Parse the text of a TOML file.

    Raises:
        ValueError: the text is not TOML, is nested too deeply, or has too long a number; the message names the problem.
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
