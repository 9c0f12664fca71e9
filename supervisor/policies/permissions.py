"""Permission policy: a request of an agent is allowed, denied, or put to a human.

Pure. The first rule that matches decides; without a match the policy's default does. The trust level of an agent
(``supervisor.policies.access``) is checked before all of this. A request that is not answered in time is denied.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, Final, NamedTuple, Protocol, Self

import msgspec

ANSWER_WITHIN_S: Final = 300.0
"""Seconds that a human has to answer, by default; as long as the default time-out of a turn."""


class Decision(StrEnum):
    """Decision about a permission request."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class RequestedPermission(Protocol):
    """Permission that an agent has requested: ``ports.PermissionNeeded``, or ``lifecycles.turn.Permission``."""

    @property
    def title(self) -> str: ...

    @property
    def tool_kind(self) -> str: ...

    @property
    def tool(self) -> str: ...

    @property
    def paths(self) -> tuple[str, ...]: ...


CALL_KINDS: Final = (
    *("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"),
    "agent",
)
"""Kinds of tool calls: those of ACP, and ``agent``, a call that starts a sub-agent."""


class PermissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A permission request of an agent: *kind* in ACP's kinds, *tool* the agent's name of the tool, *paths* the files
    that the request names."""

    title: str
    kind: str = "other"
    tool: str = ""
    paths: tuple[str, ...] = ()

    @classmethod
    def of(cls, asked: RequestedPermission) -> Self:
        """Return the request of *asked*, which is also the key of a standing decision about such requests."""
        return cls(title=asked.title, kind=asked.tool_kind, tool=asked.tool, paths=asked.paths)


class PermissionRule(msgspec.Struct, frozen=True, kw_only=True):
    """Decision for the requests that match every given field; *title*, *tool* and *path* are patterns (``*``, ``?``,
    ``[...]``), in which ``*`` also matches ``/``."""

    then: Decision
    kinds: tuple[str, ...] = ()
    title: str = ""
    tool: str = ""
    path: str = ""

    @property
    def words(self) -> str:
        """The rule as text for a record."""
        given = [f"kind {' or '.join(self.kinds)}"] if self.kinds else []
        given += [f"{name} {value}" for name in ("title", "tool", "path") if (value := getattr(self, name))]
        return f"rule: {self.then} {', '.join(given)}"


class PermissionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Rules in order of precedence, and the default. A human has *answer_within_s* seconds to answer."""

    default: Decision = Decision.ALLOW
    rules: tuple[PermissionRule, ...] = ()
    answer_within_s: float = ANSWER_WITHIN_S


class PolicyDecision(NamedTuple):
    """A decision, and the rule or default that made it."""

    decision: Decision
    why: str


class OptionChoice(NamedTuple):
    """The agent's option that expresses a decision; ``None`` if the agent offers no such option: then the agent is sent
    *cancelled*."""

    option: str | None
    kind: str | None


class OpenPermission(msgspec.Struct, frozen=True, kw_only=True):
    """A permission request that waits for a human: session, agent, subject, and the seconds left to answer."""

    id: str
    session: str
    agent: str
    title: str
    kind: str
    tool: str
    detail: str
    options: tuple[str, ...]
    """The kinds of options that the agent offers."""
    left_s: float


def decide_permission(policy: PermissionPolicy, request: PermissionRequest, directory: str) -> PolicyDecision:
    """Decide *request* by *policy*; relative paths of the rules are resolved in *directory*."""
    return _by_rule(policy, request, directory) or PolicyDecision(policy.default, f"default: {policy.default}")


def decide_service(policy: PermissionPolicy, request: PermissionRequest, directory: str) -> PolicyDecision:
    """Decide by *policy* whether the supervisor does something for an agent: run a command, write a file, read a file.

    Reading is decided by the rules alone. The policy's default is for actions for which agents request a permission,
    and no agent does so before it reads: otherwise a human would have to answer for each file.
    """
    if request.kind == "read":
        return _by_rule(policy, request, directory) or PolicyDecision(Decision.ALLOW, "no rule fits")
    return decide_permission(policy, request, directory)


def _by_rule(policy: PermissionPolicy, request: PermissionRequest, directory: str) -> PolicyDecision | None:
    """Return the decision of the first rule that matches, or ``None``."""
    fitting = (rule for rule in policy.rules if _fits(rule, request, directory))
    return next((PolicyDecision(rule.then, rule.words) for rule in fitting), None)


def covers(allowed: PermissionRequest, detail: str, wanted: PermissionRequest, directory: str) -> bool:
    """Return whether an allowed request, shown with *detail*, covers *wanted*, so that *wanted* needs no decision. That
    is so if *wanted* is the same command line, or only files that *allowed* named. The title that an agent gives a
    request proves nothing; the commands and files that the supervisor handles are what counts."""
    if wanted.kind == "execute":
        commands = {wanted.title, wanted.title.removeprefix(f"cd {shlex.quote(directory)} && ")}
        commands.add(wanted.title.removeprefix(f"cd '{directory}' && "))
        if allowed.kind == "other":  # an agent may ask by words that contain the whole command
            return any(_shows(detail, command) for command in commands)
        literals = [msgspec.json.encode(command).decode() for command in commands]  # among the arguments, as JSON
        shown = allowed.title in commands or any(literal in detail for literal in literals)
        return allowed.kind == "execute" and (shown or any(_shows(detail, command) for command in commands))
    if wanted.kind != "read" and allowed.kind not in ("edit", "delete", "move"):
        return False
    named = {_led(directory, path) for path in allowed.paths}
    return bool(wanted.paths) and all(_led(directory, path) in named for path in wanted.paths)


def detail_text(detail: str) -> str:
    """Return the details of a request as text for people: an object of JSON as a line ``name: value`` for each value,
    and a list of texts of ACP as these texts."""
    try:
        value = msgspec.json.decode(detail)
    except (msgspec.DecodeError, RecursionError):
        return detail
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_plain(one)}" for name, one in value.items())
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        texts = [_plain(one.get("content", one)) for one in value]
        return "\n".join(texts)
    return detail


def _plain(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _shows(detail: str, command: str) -> bool:
    """Return whether *detail*, as people see it, has the whole *command* at its beginning or behind ``: ``, up to the
    end of a line."""
    return bool(command) and f": {command}\n" in f": {detail_text(detail)}\n"


def _fits(rule: PermissionRule, request: PermissionRequest, directory: str) -> bool:
    return (
        (not rule.kinds or request.kind in rule.kinds)
        and (not rule.title or fnmatchcase(request.title, rule.title))
        and (not rule.tool or fnmatchcase(request.tool, rule.tool))
        and (not rule.path or _fits_paths(rule, request.paths, directory))
    )


def _fits_paths(rule: PermissionRule, paths: Sequence[str], directory: str) -> bool:
    """Return whether the paths match the pattern of the rule. An allow rule matches only if all paths match, another
    rule if one path does. A request without paths matches nothing."""
    pattern = _led(escape(directory), rule.path)
    fits = [fnmatchcase(_led(directory, path), pattern) for path in paths]
    return bool(fits) and (all(fits) if rule.then is Decision.ALLOW else any(fits))


def _led(directory: str, path: str) -> str:
    """Resolve *path* in *directory*. Two leading slashes, which POSIX distinguishes from one, become one."""
    led = posixpath.normpath(posixpath.join(directory, path))
    return led[1:] if led.startswith("//") else led


def choose_option(options: Sequence[tuple[str, str]], *, allow: bool, always: bool = False) -> OptionChoice:
    """Choose from *options*, pairs of (id, kind), the option that expresses the decision.

    Never grants more than was decided: ``allow_once`` is not expressed by ``allow_always``. May grant less: without a
    ``reject_once``, ``reject_always`` is chosen.
    """
    once, for_good = ("allow_once", "allow_always") if allow else ("reject_once", "reject_always")
    kinds = (for_good, once) if always else (once,) if allow else (once, for_good)
    for wanted in kinds:
        for option, kind in options:
            if kind == wanted:
                return OptionChoice(option, kind)
    return OptionChoice(None, None)
