"""The guard: while a simulation runs, a use of the real world is an error, and the run fails even if the program
swallows the error.

Operations that the interpreter audits (sockets, processes, files opened for writing; PEP 578) are refused by an audit
hook, which cannot be removed and has an effect only while a guard is active. Operations that the interpreter does not
audit, or only a newer CPython does (clocks, random numbers, threads, waits for descriptors), are replaced meanwhile.
The guard applies only to the thread that activated the guard; under a guard no second thread can be started.

Some uses stay unseen, because they are C code that calls no Python: ``datetime.now()``, ``utcnow()`` and ``today()``,
``from time import time`` in a module that was imported before, the waits of an object that was made before (a lock, a
poll object), and an extension module that opens files itself (apsw). Other values that differ between two machines, or
moments, also stay unseen (the process id, the environment, the order of a directory, the contents of ``/proc``, and the
times of a file).
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import os
import random
import select
import selectors
import signal
import sys
import sysconfig
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, cast

from supervisor.simulation.engine.errors import SimulationEscape, code_place

REFUSED = (
    *("socket.", "subprocess.", "shutil.", "tempfile.", "urllib.", "sqlite3.", "pty.", "webbrowser.", "syslog."),
    *("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.kill", "os.putenv", "os.unsetenv"),
    *("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.utime"),
    *("os.chmod", "os.chown", "os.chdir", "os.setxattr", "os.removexattr", "os.lockf", "fcntl."),
    *("_thread.start", "signal.pthread_kill"),
)
"""Prefixes of the audit events that are refused. Reading files is allowed, since a late import reads a module."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ENTROPY = frozenset({"/dev/random", "/dev/urandom", "/dev/hwrng"})

CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
NOW_WITHOUT_ARGUMENT = ("localtime", "gmtime", "ctime", "asctime")
SHARED_RANDOM = tuple(
    name for name in random.__all__ if isinstance(getattr(getattr(random, name), "__self__", None), random.Random)
)
"""Functions of the module ``random`` that share one generator, seeded by the system."""

WAITING = ("select", "poll", "epoll", "devpoll", "kqueue")
"""Functions that wait for descriptors or for time; each machine has some of them."""
SELECTORS = ("SelectSelector", "PollSelector", "EpollSelector", "DevpollSelector", "KqueueSelector")
"""Names of selector classes, which imported the functions in ``WAITING`` before a guard could replace them."""

LOGGER = "supervisor"
"""Name of the logger that is silent under the guard, since a log record reads the clock."""


class Guard:
    """Active guard, with the escapes to the real world that the guard caught."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.escapes: list[SimulationEscape] = []


_guards: list[Guard] = []
_hooked = False
_refused_events: dict[str, bool] = {}
"""Whether audit events of a name are refused, by name: a cache, since there are many events."""


@contextlib.contextmanager
def hermetic() -> Iterator[Guard]:
    """Activate a guard against the real world for the block.

    Raises:
        SimulationEscape: the guarded code used the real world. The first escape is raised at the end of the block,
            whatever else the code raised or swallowed, except for ``KeyboardInterrupt``.
    """
    global _hooked
    with contextlib.ExitStack() as undo:
        if not _guards:
            if not _hooked:  # a hook cannot be removed: there is one for the process
                _hooked = True
                sys.addaudithook(_hook)
            _silence_logging(undo)
            _set_traps(undo)
        guard = Guard()
        _guards.append(guard)
        undo.callback(_guards.remove, guard)
        try:
            yield guard
        except KeyboardInterrupt:
            guard.escapes.clear()
            raise
        finally:
            if guard.escapes:
                raise guard.escapes[0]


def escape(what: str) -> NoReturn:
    """Record an escape to the real world, and refuse the escape.

    Raises:
        SimulationEscape: always; the message names the caller.
    """
    error = SimulationEscape(f"{what} is not simulated; it was reached from {_caller()}")
    if _guards:
        _guards[-1].escapes.append(error)
    raise error


# ---------------------------------------------------------------------------------------------------- who called
_STDLIB = sysconfig.get_path("stdlib")
_INSTALLED = ("site-packages", "dist-packages")


def _caller() -> str:
    """Return the place of the innermost frame outside of this file and the standard library; else of the innermost
    frame outside of this file."""
    frames, frame = list[FrameType](), cast("FrameType | None", sys._getframe(1))
    while frame is not None:
        frames += [frame] if frame.f_code.co_filename != __file__ else []
        frame = frame.f_back
    own = [one for one in frames if not _is_stdlib(one.f_code.co_filename)]
    return next((code_place(one.f_code, one.f_lineno) for one in (own or frames)), "nowhere")


def _is_stdlib(path: str) -> bool:
    installed = any(part in path for part in _INSTALLED)
    return path.startswith("<frozen") or (path.startswith(_STDLIB) and not installed)


def _guards_this_thread() -> bool:
    return bool(_guards) and _guards[-1].thread == threading.get_ident()


# ------------------------------------------------------------------------------------------------- what is audited
def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _guards:
        return
    if event == "open":
        _check_open(*arguments)
        return
    refused = _refused_events.get(event)
    if refused is None:
        refused = _refused_events[event] = event.startswith(REFUSED)
    if refused and _guards_this_thread():
        escape(f"{event}{arguments[:2]!r}")


def _check_open(path: object, mode: object, flags: object) -> None:
    writes = isinstance(flags, int) and bool(flags & WRITING)
    if (writes or (isinstance(path, str) and path in ENTROPY)) and _guards_this_thread():
        escape(f"open({path!r}, {mode!r})")


# --------------------------------------------------------------------------------------------- what is not audited
def _set_traps(undo: contextlib.ExitStack) -> None:
    for clock in CLOCKS:
        _trap(undo, time, clock)
        _trap(undo, time, f"{clock}_ns")
    for name in ("sleep", "clock_gettime", "clock_gettime_ns"):
        _trap(undo, time, name)
    for name in NOW_WITHOUT_ARGUMENT:
        _trap(undo, time, name, when=_has_no_argument)
    _trap(undo, time, "strftime", when=_has_only_a_format)
    for name in ("urandom", "getrandom", "times", "pipe", "pipe2", "eventfd"):
        _trap(undo, os, name)
    for name in ("uuid1", "uuid4"):
        _trap(undo, uuid, name)
    for name in ("alarm", "setitimer"):
        _trap(undo, signal, name)
    for name in WAITING:
        _trap(undo, select, name)
    for name in SELECTORS:
        if hasattr(selectors, name):
            _trap(undo, getattr(selectors, name), "select")
    for name in ("start_new_thread", "start_new"):
        _trap(undo, _thread, name)
    for name in SHARED_RANDOM:
        _trap(undo, random, name)
    for name in ("random", "getrandbits", "randbytes"):
        _trap(undo, random.SystemRandom, name)
    _trap(undo, random.Random, "seed", when=_is_seeded_by_the_system)
    _trap(undo, threading.Thread, "start")
    _trap(undo, threading.Condition, "wait")


def _trap(undo: contextlib.ExitStack, owner: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Replace ``owner.name``, if it exists on this machine, by a function that refuses calls of the guarded thread."""
    if not hasattr(owner, name):
        return
    inherited = name not in vars(owner)
    original = getattr(owner, name)

    def trap(*args: Any, **kwargs: Any) -> Any:
        if _guards_this_thread() and when(*args, **kwargs):
            escape(f"{owner.__name__}.{name}()")
        return original(*args, **kwargs)

    setattr(owner, name, trap)
    if inherited:
        undo.callback(delattr, owner, name)
    else:
        undo.callback(setattr, owner, name, original)


def _has_no_argument(seconds: object = None) -> bool:
    return seconds is None


def _has_only_a_format(text: object, moment: object = None) -> bool:
    return moment is None


def _is_seeded_by_the_system(self: object, a: object = None, version: int = 2) -> bool:
    return a is None and not isinstance(self, random.SystemRandom)


# ------------------------------------------------------------------------------------------- what would be mistaken
def _silence_logging(undo: contextlib.ExitStack) -> None:
    """Turn off log records, which read the clock, and bytecode files of modules that are imported late."""
    logger = logging.getLogger(LOGGER)
    undo.callback(logger.setLevel, logger.level)
    logger.setLevel(logging.CRITICAL + 1)
    undo.callback(setattr, sys, "dont_write_bytecode", sys.dont_write_bytecode)
    sys.dont_write_bytecode = True


# ------------------------------------------------------------------------------------- an event loop without a world
LOOP_REFUSED = (
    *("run_in_executor", "set_default_executor", "add_reader", "remove_reader", "add_writer", "remove_writer"),
    *("add_signal_handler", "remove_signal_handler", "subprocess_exec", "subprocess_shell"),
    *("connect_read_pipe", "connect_write_pipe", "getaddrinfo", "getnameinfo", "start_tls", "sendfile"),
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server"),
    *("create_datagram_endpoint", "connect_accepted_socket", "sock_recv", "sock_recv_into", "sock_recvfrom"),
    *("sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept", "sock_sendfile"),
)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *_: Any, **__: Any) -> NoReturn:
        escape(f"loop.{name}()")

    refuse.__name__ = name
    return refuse


class SealedLoop(asyncio.AbstractEventLoop):
    """Base class of the simulated event loop, which refuses every method of asyncio that reaches a thread, a socket, a
    process or a signal, at the call."""


for _name in LOOP_REFUSED:
    setattr(SealedLoop, _name, _refusal(_name))
