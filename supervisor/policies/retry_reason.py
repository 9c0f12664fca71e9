"""Reason of a retry: the part of a prompt that tells an agent why its task or request is tried again.

Theory of operation
-------------------
A failure is recorded in two places. An attempt that failed leaves its error with the request (``Request.reason``) or
with the task run (``TaskRunData``); a claim whose result was not accepted leaves its findings with the task
(``TaskData.failure``). Both are durable data without secrets, so that a takeover does not lose them. ``join_reasons``
makes one text of them, which becomes the ``reason`` of the next request. ``quote_reason`` puts the text into the
prompt, each line quoted, since the text comes from programs, reviewers and other agents, and must not pass for a part
of the task. Example::

    Write a.txt

    This is another attempt, for the reason that is quoted here:
    > not accepted: command make check: exited with 2: no rule
    > make: *** no rule to make target 'check'

An agent may repeat its prompt in its error: the words after its name on the command line, a failed request, the last
line that it wrote. That error would quote the reason in the prompt, which may quote the reason before, and no error
would be equal to the one before. So an error and findings are recorded without the reasons that they quote
(``without_quoted_reasons``), and the last line of a program that only repeats a line of its reason does not count
(``quoted_lines``).

A prompt that may be executed as a program (``may_execute_prompt``) gets no reason, unless the plan says that the agent
only reads its prompt: a shell would execute the text of a failed test. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import dropwhile
from pathlib import PurePath
from typing import Final

from supervisor.policies.redaction import printable

REASON_CHARS_MAX: Final = 4_000
"""Number of characters of a longest reason (rule 47 of the specification)."""
LEFT_OUT: Final = "\n[the middle is left out]\n"
"""Text in place of the middle of a longer reason."""
LINE_SLACK: Final = 200
"""Number of characters by which a cut moves to the end of a line."""
HEADING: Final = "This is another attempt, for the reason that is quoted here:"
"""First line of the part of a prompt with the reason."""

_BLANK: Final = " \t\r\n>"
_QUOTED: Final = {
    quote: re.compile(
        r"(?:\r?\n[ \t]*>[^\n]*)+"
        rf"|(?:(?:\\{{1,4}}r)?\\{{1,4}}n[ \t]*>(?:[^\\\n{quote}]|\\(?!\\{{0,3}}[rn])[\"']?)*)+"
    )
    for quote in ("", "'", '"')
}
"""Pattern of the quoted lines after ``HEADING``, by the quote around an escaped text: real lines, or lines in an
escaped text, which end with its quote."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VARIES: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\b\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?", "<time>"),
        (r"(?<![\w:.])\d?\d:\d\d(?::\d\d(?:[.,]\d+)?)?\b(?!:)", "<time>"),  # not the line and column of a file
        (r"\b\d+(?:\.\d+)? ?(?:ms|us|ns|secs?|seconds?|min|minutes?|hours?|s|m|h)\b", "<time>"),
        (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b0x[0-9a-fA-F]+\b", "<id>"),
        (r"\bpid \d+", "<id>"),
        (r"(?<![\w.])/(?:[\w.~+@-]+/)+", "/"),
        (r"\s+", " "),
    )
)
"""Patterns of the parts of a finding that differ from run to run, with their replacements: times, ids, and the
directory of a file, which has the name of the session where each session has a worktree."""

_SHELLS: Final = frozenset(
    {
        *("sh", "ash", "bash", "csh", "dash", "elvish", "fish", "hush", "ksh", "mksh", "nu", "osh", "rbash"),
        *("tcsh", "yash", "zsh"),
    }
)
_SCRIPT_RUNNERS: Final = _SHELLS | frozenset(
    {
        *("python", "pypy", "perl", "ruby", "node", "nodejs", "bun", "lua", "luajit", "php", "Rscript"),
        *("julia", "tclsh", "pwsh", "powershell", "xonsh", "groovy", "elixir"),
    }
)
"""Names, without a version, of interpreters that execute a script file if one is their first argument, and else their
standard input or the argument of an option."""
_EXECUTORS: Final = frozenset(
    {
        *("env", "su", "sudo", "doas", "runuser", "setpriv", "chroot", "unshare", "nsenter", "flock"),
        *("busybox", "toybox", "xargs", "parallel", "watch", "script", "expect", "ssh", "rsh", "mosh"),
        *("sshpass", "docker", "podman", "nerdctl", "kubectl", "oc", "lxc", "machinectl", "systemd-run"),
        *("tmux", "screen", "at", "batch", "crontab", "ipython", "bpython", "ptpython", "deno", "tsx"),
        *("ts-node", "R", "octave", "ghci", "scala", "clojure", "clj", "bb", "jshell", "erl", "iex", "guile"),
        *("racket", "sbcl", "ocaml", "swift", "osascript", "wish", "awk", "gawk", "mawk", "nawk", "sed", "ed"),
        *("ex", "vi", "vim", "nvim", "emacs", "make", "gmake", "just", "gdb", "bc", "dc", "jq", "psql"),
        *("mysql", "mariadb", "sqlite", "sqlplus", "duckdb", "mongo", "mongosh", "redis-cli", "cypher-shell"),
        *("cmd", "nix", "nix-shell", "uv", "npm"),
    }
)
"""Names, without a version, of other programs that may execute their input, or start a program that does."""
_VERSION: Final = re.compile(r"(?<![\d.])-?[\d.]*(?:\.exe)?$")
_SHELL_FLAGS: Final = re.compile(r"-[euxv]+")
_FLAGS: Final = re.compile(r"-[uBvw]+")
_TAKES_PROGRAM: Final = re.compile(r"-\w*[ce]=?|--(?:call|command|eval|exec|execute)=?")
"""Option whose argument is a program, also of a program that is not listed."""
_EXECUTING_MODULES: Final = frozenset(
    {
        *("code", "asyncio", "timeit", "pdb", "profile", "cProfile", "trace", "runpy", "sqlite3", "IPython"),
        *("bpython", "ptpython", "xonsh"),
    }
)
"""Modules of Python that execute their input."""


def without_colours(text: str) -> str:
    """Return *text* without the control sequences that colour it. They are removed before secrets are redacted, since
    the parts of a secret on both sides of a colour are joined then."""
    return _COLOURS.sub("", text)


def bounded(text: str, chars_max: int = REASON_CHARS_MAX) -> str:
    """Return *text*, cut to its beginning and its end if it has more than *chars_max* characters. A cut is made between
    two lines where a line ends nearby."""
    if len(text) <= chars_max:
        return text
    half = (chars_max - len(LEFT_OUT)) // 2
    head, tail = text[:half], text[-half:]
    if (at := head.rfind("\n")) >= half - LINE_SLACK:
        head = head[:at]
    if 0 <= (at := tail.find("\n")) < LINE_SLACK:
        tail = tail[at + 1 :]
    return f"{head}{LEFT_OUT}{tail}"


def join_reasons(*reasons: str) -> str:
    """Return the *reasons*, oldest first, as one text of at most ``REASON_CHARS_MAX`` characters. A reason that is
    empty, or contained in another, is left out; times, ids and directories do not count, and of equal reasons the
    newest stays."""
    given = {_essence(one): one.strip() for one in reasons if one.strip()}
    told = [one for essence, one in given.items() if not any(essence in other for other in given if other != essence)]
    return bounded("\n\n".join(told))


def make_findings(summary: str, details: str, redact: Callable[[str], str]) -> str:
    """Return the text of findings, ready to be recorded: the *summary*, and then the *details*, such as the output of a
    failed test, in lines that no terminal acts on, with secrets replaced by *redact*.

    The text is cut after the secrets are replaced, since half a secret is not found.
    """
    given = without_quoted_reasons(without_colours(f"{summary}\n{details.strip()}"))
    clean = redact(given.replace("\r\n", "\n").strip())
    return bounded(printable(clean, lines=True))


def quote_reason(reason: str) -> str:
    """Return the part of a prompt with the *reason* of the retry, each of its lines quoted."""
    lines = printable(without_colours(bounded(reason)), lines=True).split("\n")
    return "\n".join([HEADING, *(f"> {line}".rstrip() for line in lines)])


def without_quoted_reasons(text: str) -> str:
    """Return *text* without the parts of prompts with a reason (``quote_reason``) that it repeats, as lines, or in an
    escaped text such as ``'\\n> error'``. The blank lines before such a part go with it."""
    kept, position = list[str](), 0
    while (found := text.find(HEADING, position)) >= 0:
        end = found
        while end > position and (text[end - 1] in _BLANK or text[max(end - 2, position) : end] in ("\\n", "\\r")):
            end -= 1 if text[end - 1] in _BLANK else 2
        kept.append(text[position:end])
        quote = text[max(text.rfind("'", position, end), text.rfind('"', position, end))] if end > position else ""
        position = found + len(HEADING)
        if (quoted := _QUOTED.get(quote, _QUOTED[""]).match(text, position)) is not None:
            position = quoted.end()
    return "".join([*kept, text[position:]])


def quoted_lines(prompt: str) -> frozenset[str]:
    """Return the lines of the part of a *prompt* with the reason of the retry; none if the prompt has no such part."""
    start = prompt.rfind(HEADING)
    quoted = _QUOTED[""].match(prompt, start + len(HEADING)) if start >= 0 else None
    return frozenset() if quoted is None else frozenset([HEADING, *map(str.strip, quoted[0].splitlines())])


def findings_differ(findings: str, before: str) -> bool:
    """Return whether there are *findings*, and they are not the same as the findings *before*: times, ids and
    directories do not count."""
    return bool(findings) and _essence(findings) != _essence(before)


def _essence(findings: str) -> str:
    for pattern, name in _VARIES:
        findings = pattern.sub(name, findings)
    return findings.strip()


def may_execute_prompt(command: Sequence[str], placeholder: str = "{prompt}") -> bool:
    """Return whether this *command* may execute its prompt, as ``sh -c {prompt}`` does, and a ``python3`` that reads
    its standard input.

    A command is trusted not to execute its prompt if no executor (``_SCRIPT_RUNNERS``, ``_EXECUTORS``) is named before
    the prompt, other than one that runs a script file or a module, and if the prompt is not the argument of an option
    that takes a program: ``claude -p {prompt}``, ``sh agent.sh``, ``python3 -m aider -c {prompt}``.
    """
    at = max((number for number, word in enumerate(command) if placeholder in word), default=len(command))
    prefix = command[at].partition(placeholder)[0] if at < len(command) else ""
    words = [part for word in (*command[:at], prefix) for part in word.split()]
    if at < len(command) and not words:
        return True
    scripts = [number for number in range(len(words)) if _runs_script(words[number:])]
    if any(_names_executor(word) and number not in scripts for number, word in enumerate(words)):
        return True
    return at < len(command) and not scripts and _TAKES_PROGRAM.fullmatch(words[-1]) is not None


def _names_executor(word: str) -> bool:
    name = _VERSION.sub("", PurePath(word).name)
    return name in _SCRIPT_RUNNERS or name in _EXECUTORS


def _runs_script(words: Sequence[str]) -> bool:
    """Return whether *words* begin with an interpreter that runs a script file or a module. Before the script only
    options without an argument are accepted: the argument of another option may look like a file."""
    name = _VERSION.sub("", PurePath(words[0]).name)
    if name not in _SCRIPT_RUNNERS:
        return False
    flags = _SHELL_FLAGS if name in _SHELLS else _FLAGS
    rest = [*dropwhile(lambda word: flags.fullmatch(word) is not None, words[1:]), "", ""]
    if rest[0] == "-m" and name in ("python", "pypy"):
        return bool(rest[1]) and rest[1].partition(".")[0] not in _EXECUTING_MODULES
    is_file = "." in rest[0] or "/" in rest[0]
    is_device = not {"dev", "proc"}.isdisjoint(PurePath(rest[0]).parts)
    return is_file and not rest[0].startswith("-") and not is_device and not _names_executor(rest[0])
