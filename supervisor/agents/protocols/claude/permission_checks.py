"""Checks of Claude Code's own answers: whether it requests a permission before it acts.

Claude Code acts without asking in some of its permission modes, by rules that allow a tool, by a sandbox in which
commands need no permission, and by hooks that answer in the place of a person. All of these may come from its command
line, or from settings of the user, the project or the machine. Pure: each function reads one answer.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from supervisor.agent_catalogue import known_agent
from supervisor.agents.protocols.json_rpc import UNGUARDED, ConfigurationRefused

_READS: Final = ("Read", "Glob", "Grep", "LS", "NotebookRead")
"""Tools that only read, for which Claude Code asks in no case within its directory."""
_HOOKS: Final = ("PreToolUse", "PermissionRequest")
"""Events whose hooks may grant a permission."""
_NO_SETTINGS: Final = "or start it without its own settings (arguments: [--setting-sources, ''])"


class Settings(msgspec.Struct):
    """Answer to ``get_settings``: the settings in force, of all sources."""

    effective: dict[str, Any]


class PermissionRule(msgspec.Struct):
    behavior: str
    rule: str
    source: str = ""


class PermissionState(msgspec.Struct):
    rules: tuple[PermissionRule, ...]


class PermissionRules(msgspec.Struct):
    """Answer to ``list_permission_rules``: rules of settings, of the command line and of the session."""

    state: PermissionState


class PermissionMode(msgspec.Struct):
    """Answer to ``set_permission_mode``."""

    mode: str


def asking_mode(wanted: str, current: str | None) -> str:
    """Return the permission mode that Claude Code is set to: *wanted*, the mode of the plan; without one the *current*
    mode, if Claude Code asks in it, else its usual mode."""
    modes = known_agent("claude").asking_modes
    return wanted or (current if current in modes else modes[0])


def check_mode(mode: str) -> None:
    """Raise ``ConfigurationRefused`` if Claude Code is in a mode in which it acts without asking."""
    if mode not in (modes := known_agent("claude").asking_modes):
        _refuse(f"it is in the mode {mode!r}", f"say mode: {modes[0]}")


def check_settings(settings: Settings) -> None:
    """Raise ``ConfigurationRefused`` if the settings in force let Claude Code act without asking."""
    permissions, sandbox, hooks = (_part(settings.effective, name) for name in ("permissions", "sandbox", "hooks"))
    allowed = permissions.get("allow")
    for rule in allowed if isinstance(allowed, list) else ():
        check_rule(PermissionRule("allow", str(rule), "settings"))
    if sandbox.get("enabled") is True and sandbox.get("autoAllowBashIfSandboxed") is not False:
        why = "its settings allow all commands in its sandbox (sandbox.autoAllowBashIfSandboxed)"
        _refuse(why, f"set this to false, {_NO_SETTINGS}")
    if found := [event for event in _HOOKS if hooks.get(event)]:
        _refuse(f"hooks of its settings may answer for a person ({found[0]})", f"remove them, {_NO_SETTINGS}")


def check_rule(rule: PermissionRule) -> None:
    """Raise ``ConfigurationRefused`` if *rule* allows more than reading."""
    if rule.behavior == "allow" and rule.rule.partition("(")[0] not in _READS:
        fix = "remove its option" if rule.source == "cliArg" else f"remove the rule, {_NO_SETTINGS}"
        _refuse(f"a rule allows {rule.rule!r} ({rule.source})", fix)


def refuse_unverified(what: str) -> None:
    """Raise ``ConfigurationRefused`` because this version of Claude Code does not report *what*."""
    _refuse(f"this version does not report {what}, so that nobody can check it", "install a newer one")


def _part(settings: dict[str, Any], name: str) -> dict[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _refuse(why: str, fix: str) -> None:
    raise ConfigurationRefused(f"the agent may act without asking, {UNGUARDED[0]}: {why}; {fix}, {UNGUARDED[1]}")
