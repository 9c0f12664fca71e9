"""Loading of plug-ins: installed plug-ins by their entry points, and plug-ins passed by the embedding program.

An entry point of the group ``supervisor.plugins`` names a module, or an object, with hook implementations. A plug-in
that cannot be imported, takes too long, or implements a hook wrongly is reported and not used. Unknown hooks are
reported and left out, so that a plug-in for a newer version works with the hooks of this version.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any, Final

import msgspec
import pluggy

from supervisor.plugins.hooks import PROJECT, Hooks
from supervisor.plugins.worker import Counts, PluginThread
from supervisor.ports.logs import get_logger

GROUP: Final = "supervisor.plugins"
"""Name of the entry point group of plug-ins."""

LOAD_S: Final = 10.0
"""Seconds that the import of a plug-in may take."""

_log = get_logger()


class UnknownPlugin(ValueError):
    """Raised when a named plug-in is not installed; the message lists the installed plug-ins."""


class Impl(msgspec.Struct, frozen=True):
    """A plug-in's implementation of a hook, called with the arguments that the implementation names."""

    hook: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]

    def __call__(self, **given: Any) -> Any:
        return self.function(*[given[name] for name in self.arguments])


class Loaded(msgspec.Struct, kw_only=True):
    """A loaded plug-in: its source (a distribution, or the host), its hooks and its problems."""

    name: str
    version: str
    source: str
    thread: PluginThread
    hooks: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    used: bool = False


class _Found(msgspec.Struct, frozen=True):
    """A plug-in that was found, before its import."""

    name: str
    version: str
    source: str
    load: Callable[[], Any]


def installed() -> dict[str, tuple[EntryPoint, str, str]]:
    """Return entry point, distribution and version of each installed plug-in, by name, without importing a plug-in."""
    return dict(_installed(tuple(sys.path)))


@cache
def _installed(path: tuple[str, ...]) -> tuple[tuple[str, tuple[EntryPoint, str, str]], ...]:
    """Read the entry points, only once for each import path: reading takes milliseconds, and some programs open many
    supervisors."""
    found: dict[str, tuple[EntryPoint, str, str]] = {}
    for one in distributions():
        for point in one.entry_points:
            if point.group == GROUP:
                found.setdefault(point.name, (point, one.metadata["Name"] or "?", one.version))
    return tuple(sorted(found.items()))


def load(
    names: Sequence[str] | None, given: Sequence[object], *, limit_s: float
) -> tuple[pluggy.PluginManager, list[Loaded]]:
    """Load the installed plug-ins of *names* (``None``: all), and the plug-ins *given* by the embedding program.

    Raises:
        UnknownPlugin: one of *names* is not installed.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    loaded = [_loaded(manager, found, limit_s) for found in (*_chosen(names), *_handed_over(given))]
    return manager, loaded


def _chosen(names: Sequence[str] | None) -> Iterator[_Found]:
    there = installed()
    wanted = list(there) if names is None else list(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in there]:
        known = ", ".join(there) or "none"
        raise UnknownPlugin(f"no plug-in {', '.join(map(repr, unknown))} is installed; installed: {known}")
    for name in wanted:
        point, package, version = there[name]
        yield _Found(name, version, f"{package} ({point.value})", point.load)


def _handed_over(given: Sequence[object]) -> Iterator[_Found]:
    for one in given:
        name = str(getattr(one, "__name__", None) or type(one).__qualname__)
        yield _Found(name, str(getattr(one, "__version__", "")), "the host", lambda one=one: one)  # type: ignore[misc]


def _loaded(manager: pluggy.PluginManager, found: _Found, limit_s: float) -> Loaded:
    name = _free(found.name, manager)
    thread = PluginThread(name, limit_s=limit_s)
    one = Loaded(name=name, version=found.version, source=found.source, thread=thread)
    answer = thread.answer("its import", found.load, LOAD_S)
    if answer is None or answer.error is not None:
        why = f"took longer than {LOAD_S:g} s" if answer is None else repr(answer.error)
        return _refused(one, f"its import {'failed: ' if answer else ''}{why}")
    plugin = answer.value
    try:
        manager.register(plugin, name=name)
    except (pluggy.PluginValidationError, ValueError) as error:
        if manager.has_plugin(name):
            manager.unregister(name=name)
        return _refused(one, " ".join(str(error).split()))
    return _examined(manager, plugin, one)


def _examined(manager: pluggy.PluginManager, plugin: object, one: Loaded) -> Loaded:
    """Find the hooks of a registered plug-in; refuse a plug-in with a hook that is a wrapper or async."""
    hooks: list[str] = []
    for caller in manager.get_hookcallers(plugin) or ():
        impl = next(impl for impl in caller.get_hookimpls() if impl.plugin is plugin)
        if caller.spec is None:
            one.problems += (f"{caller.name} is no hook of this version; it is left out",)
        elif impl.wrapper or impl.hookwrapper:
            manager.unregister(plugin)
            return _refused(one, f"{caller.name} is a wrapper: no plug-in may change the results of another one")
        elif inspect.iscoroutinefunction(impl.function):
            manager.unregister(plugin)
            return _refused(one, f"{caller.name} is async: hooks are plain functions, called in a thread")
        else:
            hooks.append(caller.name)
    one.hooks, one.used = tuple(sorted(hooks)), True
    one.thread.counts = Counts()  # its import was no call of a hook
    for problem in one.problems:
        _log.warning("a plug-in has a problem", plugin=one.name, problem=problem)
    return one


def _refused(one: Loaded, why: str) -> Loaded:
    one.problems += (why,)
    one.thread.stop()
    _log.error("a plug-in is not used", plugin=one.name, source=one.source, problem=why)
    return one


def _free(name: str, manager: pluggy.PluginManager) -> str:
    taken: Collection[str] = {name for name, _ in manager.list_name_plugin()}
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free
