"""Redaction: keep secrets out of the journal, the transcripts and the logs, by known value and by pattern.

The value of an environment variable whose name marks it as a secret becomes ``$NAME`` wherever it occurs; a text that
looks like a key of a well-known kind becomes ``[redacted]``. The agent gets the redacted prompt, too: it finds the
value in its environment, under the name that the prompt gives.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from operator import itemgetter
from typing import Any, Final, TypeVar, get_args

import msgspec

VALUE_CHARS_MIN: Final = 8
"""Length of the shortest value that is redacted: a shorter value would be found in ordinary words."""
TAIL_CHARS: Final = 256
"""Number of characters at the end of a long piece that are searched for the beginning of a secret, which keeps long
output cheap."""
SECRETS_MAX: Final = 256
"""Largest number of secret values that are kept beside those in use: each text is searched for each of them."""
HELD_CHARS_MAX: Final = 4096
"""Length of the longest run without a space that is held back; a longer run is searched in pieces."""
KEY_CHARS_MAX: Final = 32 * 1024
"""Length of the longest private key: RSA of 16,384 bits has 13,000 characters. A longer text without an end line is no
key."""
MARK_CHARS_MAX: Final = 64
"""Length of the longest first or last line of a private key."""

_NAMES: Final = re.compile(
    r"(?i)(^|[_-])(api[_-]?key|access[_-]?key|private[_-]?key|key|token|secret|passw(or)?d|passphrase|credentials?|auth"
    r"|authorization|cookie)([_-]|$)"
)
"""Pattern of the names of variables and headers that hold secrets."""
_SCHEME: Final = re.compile(r"(?:Bearer|Basic|Token) +(\S+)")
"""Pattern of a header's value that begins with an authentication scheme; the group is the secret."""
_KEY_STARTS: Final = r"(?<![A-Za-z0-9]sk-)|(?<=\\[bfnrt]sk-)"
"""Pattern behind the ``sk-`` of a key that continues no word: "task-", "desk-" and "risk-" begin many names. In a line
of JSON a newline before the key is the letter of an escape."""
_KEY_MIXED: Final = r"(?=[a-z0-9_-]{0,60}[A-Z])(?=[A-Za-z_-]{0,60}[0-9])"
"""Pattern of random characters: names within a word are written in small letters."""
_LOOKS: Final = re.compile(
    "|".join(
        (
            rf"sk-(?:{_KEY_STARTS}|{_KEY_MIXED})[A-Za-z0-9_-]{{20,}}",  # OpenAI, Anthropic
            r"gh[pousr]_[A-Za-z0-9]{36,}",  # GitHub
            r"github_pat_[A-Za-z0-9_]{22,}",
            r"glpat-[A-Za-z0-9_-]{20,}",  # GitLab
            r"(?:AKIA|ASIA)[0-9A-Z]{16}",  # AWS
            r"xox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
            r"AIza[0-9A-Za-z_-]{35}",  # Google
            r"npm_[A-Za-z0-9]{36}",
            r"pypi-[A-Za-z0-9_-]{40,}",
            r"(?<=://)[^\s/:@\"'$]*:[^\s/@\"'$]+(?=@)",  # the user and password of an address
            r"(?<=Bearer )[A-Za-z0-9._~+/-]{20,}=*",  # the header of a request
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        )
    )
)
_WEB_TOKEN: Final = re.compile(
    r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{13,}+\.(?=(eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+))"
)
"""A run of characters that may contain the header of a JSON Web Token, followed by the rest of a token (the group). The
header itself begins at an ``eyJ`` of the run. A pattern of the whole token would be tried at each ``eyJ``, each time up
to the end of the run; the lookbehind and the possessive repeats do that once per run."""
_WEB_TOKEN_BEGINS: Final = "eyJ"
_HEADER_CHARS_MIN: Final = 10
"""Length of the shortest header of a token, without its ``eyJ``."""
_KEY_BEGINS: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_ENDS: Final = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
_KEY_MAY_BEGIN: Final = re.compile(r"-(?:-(?:-(?:-(?:-(?:B(?:E(?:G(?:I(?:N(?: [A-Z ]*-{0,4})?)?)?)?)?)?)?)?)?)?\Z")
"""Pattern of a text that ends within the first line of a private key. That line has spaces in it, so it is no single
run."""
_BEGINNINGS: Final = (
    *("sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "AKIA", "ASIA", "xox", "AIza", "npm_"),
    *("pypi-", "eyJ", "://", "Bearer"),
)
_MARKS: Final = (*_BEGINNINGS, "-----BEGIN ")
"""Substrings of which each secret pattern contains at least one: a text without any, as nearly all are, is not
searched."""
_BEARER_BEGINS: Final = re.compile(r"Bearer \S*\Z")
"""Pattern of a text that ends with a ``Bearer`` scheme: the secret comes after the space."""
TRUSTED_FIELDS: Final = frozenset(
    {
        *(
            "abort_id",
            "agent_id",
            "call_id",
            "message_id",
            "request_id",
            "resume_id",
            "task_id",
            "turn_id",
            "worker_id",
        ),
        *("by", "dependency", "depends_on", "on", "subtask", "subtasks", "waiting_for"),
        *("abort_reason", "capabilities", "decision", "ended_by", "kind", "option", "outcome", "phase", "rung"),
        *("stopped", "transition_reason"),
    }
)
"""Fields of events that are not redacted: ids, and values of the runtime's own enums. Every other field may hold text
from outside, so a new field is redacted until it is listed here."""
_SILENT: Final = (int, float, bool, type(None), Enum)
"""Types that can hold no text."""

E = TypeVar("E", bound=msgspec.Struct)


def encodable(text: str) -> str:
    """Escape what UTF-8 cannot encode: lone surrogates, as ``os.fsdecode`` makes of a Latin-1 name."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class _Escapes(dict[int, str]):
    """Table for ``str.translate`` that escapes each character on which a terminal would act, as JSON does. Entries are
    added as characters occur."""

    _ACTED_ON: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
    """Unicode categories that are escaped: control, format (bidirectional marks among them), lone surrogates, line and
    paragraph separators."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        acted_on = unicodedata.category(char) in self._ACTED_ON
        self[code] = json.dumps(char)[1:-1].replace("\x7f", "\\u007f") if acted_on else char
        return self[code]


_IN_ONE_LINE: Final = _Escapes()
_IN_LINES: Final = _Escapes({ord(char): char for char in "\n\t"})


def printable(text: str, *, lines: bool = False) -> str:
    """Return *text* with every character on which a terminal would act escaped as in JSON: ``\\u001b``.

    All output of the program goes through this function, since an agent, a file or a program may have put anything into
    it: a window title, the clipboard (OSC 52), a cleared screen, letters from right to left. JSON stays the same JSON.

    Args:
        lines: keep newlines and tabs.
    """
    return text if text.isascii() and text.isprintable() else text.translate(_IN_LINES if lines else _IN_ONE_LINE)


def is_secret_name(name: str) -> bool:
    """Return whether a variable of that name holds a secret: ``OPENAI_API_KEY`` does, ``KEYBOARD`` does not."""
    return _NAMES.search(name) is not None


class KnownSecrets:
    """Secret values among the variables and headers that were added: those in use, and of the others the newest *most*,
    since a supervisor that runs for months may be given new ones each day."""

    def __init__(self, most: int = SECRETS_MAX) -> None:
        self._most = most
        self._found: dict[tuple[str, str], None] = {}
        """Names and values, those that were added last at the end."""

    def add(self, environments: Iterable[Mapping[str, str]]) -> bool:
        """Add what is a secret by its name; return whether any was unknown."""
        added = [one for environment in environments for one in environment.items() if is_secret_name(one[0])]
        is_new = not self._found.keys() >= set(added)
        for one in added:
            self._found.pop(one, None)
            self._found[one] = None
        return is_new

    def drop_oldest(self, in_use: Iterable[Mapping[str, str]] = ()) -> None:
        """Drop the values that were added longest ago, if there are too many that are not *in_use*."""
        if len(self._found) > self._most:
            used = {one for environment in in_use for one in environment.items()}
            unused = [one for one in self._found if one not in used]
            for one in unused[: max(0, len(unused) - self._most)]:
                del self._found[one]

    @property
    def redactor(self) -> Redactor:
        """Replacer of these values."""
        return Redactor({name: value} for name, value in self._found)


class Redactor:
    """Replacer of secrets in texts and events.

    Args:
        environments: the environments of agents; the values whose names mark them as secrets are redacted.
    """

    def __init__(self, environments: Iterable[Mapping[str, str]] = ()) -> None:
        self._names: dict[str, str] = {}
        for environment in environments:
            for name, value in environment.items():
                if is_secret_name(name):
                    self._learn(name, value)
        self._marks = (*self._names, *_MARKS)
        self._beginnings = _by_first_char((*self._names, *_BEGINNINGS))
        self._spaced = [value for value in self._names if any(map(str.isspace, value))]

    def _learn(self, name: str, value: str) -> None:
        """Add a secret value, and the part of it that follows the name of an authentication scheme."""
        follows = _SCHEME.fullmatch(value)
        for secret in (value, follows[1] if follows is not None else ""):
            if len(secret) >= VALUE_CHARS_MIN:
                self._names.setdefault(secret, name)
                self._names.setdefault(encodable(secret), name)  # a program may have escaped it before

    def text(self, text: str) -> str:
        """Return *text* with secrets replaced and with characters escaped that the journal cannot hold."""
        if len(text) >= VALUE_CHARS_MIN:
            for mark in self._marks:
                if mark in text:
                    return encodable(self._clean(text))
        return encodable(text)

    def _clean(self, text: str) -> str:
        """Return *text* with each secret replaced; where two begin at the same place, a known value takes
        precedence."""
        known, tokens = _KnownValues(text, self._names), _WebTokens(text)
        kept: list[str] = []
        at = 0
        value, looks, token = known.after(0), _LOOKS.search(text), tokens.after(0)
        while value is not None or looks is not None or token is not None:
            choices = [(*value, f"${self._names[text[value[0] : value[1]]]}")] if value is not None else []
            choices += [(*looks.span(), "[redacted]")] if looks is not None else []
            choices += [(*token, "[redacted]")] if token is not None else []
            begin, end, instead = min(choices, key=itemgetter(0))  # of equal ones the first
            kept += (text[at:begin], instead)
            at = end
            # What was found further on stays found: each part of the text is searched once.
            if value is not None and value[0] < at:
                value = known.after(at)
            if looks is not None and looks.start() < at:
                looks = _LOOKS.search(text, at)
            if token is not None and token[0] < at:
                token = tokens.after(at)
        return "".join((*kept, text[at:]))

    def event(self, event: E) -> E:
        """Return *event* with redacted texts; *event* itself if nothing changes."""
        changes = {}
        for name in _fields_of(type(event)):
            value = getattr(event, name)
            clean = self.value(value)
            if clean is not value and clean != value:
                changes[name] = clean
        return msgspec.structs.replace(event, **changes) if changes else event

    def value(self, value: Any) -> Any:
        """Return *value* with every text in it redacted."""
        match value:
            case str():
                return value if isinstance(value, Enum) else self.text(value)
            case msgspec.Struct():
                return self.event(value)
            case dict():
                return {key: self.value(one) for key, one in value.items()}
            case list() | tuple():
                return type(value)(self.value(one) for one in value)
            case _:
                return value

    def held_back(self, text: str) -> int:
        """Return how many characters at the end of *text* may be the beginning of a secret."""
        run = text[-HELD_CHARS_MAX:].rsplit(None, 1)[-1] if text and not text[-1].isspace() else ""
        known = self._beginnings
        starts = (at for at, char in enumerate(run) if char in known and self._may_begin(run[at:]))
        held = len(run) - next(starts, len(run))
        for value in self._spaced:
            held = max(held, _overlap(text, value))
        for begins, chars_max in ((_KEY_MAY_BEGIN, MARK_CHARS_MAX), (_BEARER_BEGINS, HELD_CHARS_MAX)):
            begun = begins.search(text, max(0, len(text) - chars_max))
            if begun is not None:
                held = max(held, len(text) - begun.start())
        return held

    def _may_begin(self, run: str) -> bool:
        known = self._beginnings[run[0]]
        return any(one.startswith(run) or (run.startswith(one) and one not in self._names) for one in known)


class _KnownValues:
    """Finder of the *values* in one text, from its beginning to its end; of values that begin at the same place it
    finds the longest. A pattern of all values would have to be compiled for each set of values, and Python keeps
    hundreds of patterns."""

    def __init__(self, text: str, values: Iterable[str]) -> None:
        self._text = text
        self._next = {value: begin for value in values if (begin := text.find(value)) >= 0}

    def after(self, at: int) -> tuple[int, int] | None:
        """Return begin and end of the first value that begins at *at* or later; *at* must not decrease between
        calls."""
        for value, begin in list(self._next.items()):
            if begin < at:
                self._next[value] = self._text.find(value, at)
                if self._next[value] < 0:
                    del self._next[value]
        found = min(((begin, -len(value)) for value, begin in self._next.items()), default=None)
        return None if found is None else (found[0], found[0] - found[1])


class _WebTokens:
    """Finder of the JSON Web Tokens of one text, from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._runs = _WEB_TOKEN.finditer(text) if f".{_WEB_TOKEN_BEGINS}" in text else iter(())
        self._run = next(self._runs, None)

    def after(self, at: int) -> tuple[int, int] | None:
        """Return begin and end of the first token that begins at *at* or later; *at* must not decrease between
        calls."""
        while self._run is not None:
            last = self._run.end() - 1 - _HEADER_CHARS_MIN  # where an ``eyJ`` must have ended
            begin = self._text.find(_WEB_TOKEN_BEGINS, max(at, self._run.start()), last)
            if begin >= 0:
                return begin, self._run.end(1)
            self._run = next(self._runs, None)
        return None


def _by_first_char(beginnings: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in beginnings:
        found.setdefault(one[0], []).append(one)
    return found


def _overlap(text: str, value: str) -> int:
    """Return how many characters at the end of *text* are the first ones of *value*, but not all of them."""
    return next((size for size in range(min(len(value) - 1, len(text)), 0, -1) if text.endswith(value[:size])), 0)


class StreamRedactor:
    """Redactor for a stream of text that arrives in pieces; also finds a secret that lies in two pieces.

    Nothing of a private key is passed on: the text after its first line is dropped, until the key's last line, or until
    the text is too long to be a key.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        self._key_chars: int | None = None
        """Characters of the current private key so far; ``None`` outside of a key."""

    @property
    def in_key(self) -> bool:
        """Whether a private key has begun and not ended."""
        return self._key_chars is not None

    def feed(self, text: str) -> str:
        """Add *text*; return the text that can be passed on now. Works by positions, so that a text with many keys is
        not copied for each."""
        text, said, at = self._held + text, list[str](), 0
        self._held = ""
        while at < len(text):
            if self._key_chars is not None:
                at = self._after_key(text, at)
                continue
            begun = _KEY_BEGINS.search(text, at)
            if begun is None:
                said.append(self._outside(text[at:]))
                break
            said += (self._redactor.text(text[at : begun.start()]), "[redacted]")
            at, self._key_chars = begun.end(), 0
        return "".join(said)

    def _outside(self, text: str) -> str:
        held = self._redactor.held_back(text if len(text) < HELD_CHARS_MAX else text[-TAIL_CHARS:])
        whole, self._held = text[: len(text) - held], text[len(text) - held :]
        return self._redactor.text(whole)

    def _after_key(self, text: str, at: int) -> int:
        """Return the position after the key that has begun before *at*. The end of *text* is held back if the last line
        of the key may have begun in it."""
        assert self._key_chars is not None, "a key has begun"
        left = KEY_CHARS_MAX - self._key_chars
        ends = _KEY_ENDS.search(text, at, at + left + MARK_CHARS_MAX)
        if ends is not None and ends.start() <= at + left:
            self._key_chars = None
            return ends.end()
        if len(text) - at > left + MARK_CHARS_MAX:
            self._key_chars = None
            return at + left
        keep = min(len(text) - at, MARK_CHARS_MAX)
        self._key_chars += len(text) - at - keep
        self._held = text[len(text) - keep :]
        return len(text)

    def end(self) -> str:
        """End the stream; return the text that was held back. A private key that has begun continues in the next
        text."""
        held, self._held = self._held, ""
        return "" if self.in_key else self._redactor.text(held)


@cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of *kind* that may hold text from outside, directly or nested."""
    fields = msgspec.structs.fields(kind)
    return tuple(one.name for one in fields if one.name not in TRUSTED_FIELDS and not _is_silent(one.type))


def _is_silent(annotation: Any) -> bool:
    return all(isinstance(one, type) and issubclass(one, _SILENT) for one in get_args(annotation) or (annotation,))
