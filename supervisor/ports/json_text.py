"""Repair of JSON text from other programs, where JSON leaves open what a text means.

JSON allows the escape of half a surrogate pair, which is no character, and leaves the meaning to the reader. Programs
in JavaScript write such escapes whenever they cut a text within a character. Some programs also write terminal codes, a
byte order mark or NUL characters before a line of JSON. A decoder rejects all of these; a reader of lines of another
program must not lose the line for that reason.
"""

from __future__ import annotations

import re
from typing import Final

_HALF: Final = re.compile(
    r"\\(?:\\|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)
"""Pattern of the escapes that decide whether a surrogate is alone: an escaped backslash, a whole pair, or (in the
group) half a pair. The first two are matched so that no half is found within them."""
_TERMINAL_CODES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-Z\\^-~])")
_CONTROLS: Final = re.compile(r"[\x00-\x1f]")


def decodable(line: str) -> str:
    """Return *line*, which is to be decoded as JSON, with what a decoder needlessly rejects repaired.

    Half a surrogate pair becomes U+FFFD. Terminal codes and a byte order mark are removed, and other control
    characters, which JSON does not allow in a text, become spaces.
    """
    if "\\u" in line:
        line = _HALF.sub(lambda found: r"\ufffd" if found[1] else found[0], line)
    if line.isprintable():  # much faster than a search, and true of nearly every line
        return line
    return _CONTROLS.sub(" ", _TERMINAL_CODES.sub("", line).lstrip("\ufeff"))


def joined_pairs(text: str) -> str:
    """Return *text* with each surrogate pair joined to the character that the pair encodes; other surrogates stay."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
