"""Output of a command that wanted input from a person, and had none: its standard input is empty, and it has no
terminal. Pure.

Some programs say so (``EOFError``, "a terminal is required"). Others print a question, and end in the same line: a text
for people ends with a newline, a question waits behind its last character. A program that only reads, such as ``cat``,
shows nothing.
"""

from __future__ import annotations

from typing import Final

END_CHARS: Final = 2000
"""Number of characters at the end of the output that are searched."""
LINE_CHARS: Final = 200
"""Largest number of characters of the line that is quoted."""

_SAID: Final = (
    "eoferror",  # Python's input()
    "eof when reading a line",
    "a terminal is required to read the password",  # sudo
    "no tty present and no askpass program",  # sudo, before 1.9
    "the input device is not a tty",  # docker run -it
    "terminal prompts disabled",  # git
    "could not read username for",  # git
    "could not read password for",  # git
    "host key verification failed",  # ssh
    "cannot prompt for input in non-interactive",  # PowerShell, pip, gh, vercel
    "prompts can not be meaningfully answered in",  # npm init and create-* programs
    "stdin is not a terminal",  # tmux, codex
    "stdin: is not a tty",
    "non-interactive terminal",
)
_CHOICES: Final = ("[y/n", "(y/n", "[yes/no", "(yes/no")
"""Choices in a question. A program may end the line of such a question itself, as apt does: ``[Y/n] Abort.``"""


def wanted_input(output: str, status: int | None) -> str:
    """Return the line with which a command that has failed with *status* asked for input, or said that it had none;
    ``""`` if its *output* shows no such line, or it succeeded, or a signal ended it."""
    if status is None or status <= 0:
        return ""
    end = output[-END_CHARS:]
    lines = [line.strip() for line in end.splitlines() if line.strip()]
    said = [line for line in lines if any(words in line.lower() for words in _SAID)]
    asked = [line for line in lines[-2:] if any(words in line.lower() for words in _CHOICES)]
    question = lines[-1] if lines and not end.endswith("\n") and lines[-1].endswith(("?", ":")) else ""
    return (question or (said[-1:] or asked[-1:] or [""])[0])[:LINE_CHARS]
