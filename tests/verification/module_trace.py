"""Trace of the modules of ``supervisor`` in which functions run, and how often each is entered from outside.

Modules of ``actors`` and ``supervisor.lifecycles`` are not counted: they are the kernel and the tables that every walk
uses. Functions that run while a module is imported are not counted either: imports happen once for each process and do
not belong to a walk. A module is *entered from outside* when one of its functions is called by another module; a
coroutine that resumes is not entered again. Threads that start while a trace is installed are traced too.

``python -m tests.verification.module_trace FILE ARGUMENT...`` runs the command line ``supervisor ARGUMENT...`` under a
trace, writes the counts to FILE as JSON, and exits with the status of the command.
"""

from __future__ import annotations

import dis
import inspect
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[2]
_NOT_COUNTED: Final = ("actors", "supervisor.lifecycles")
_RESUME: Final = dis.opmap["RESUME"]
_AT_START: Final = 0
"""Low bits of the argument of RESUME where a function starts; otherwise a coroutine or a generator resumes there."""


class ModuleTrace:
    """Profiler that counts, for each module, the entries from outside; modules are listed in the order of their first
    call."""

    def __init__(self) -> None:
        self.entries: dict[str, int] = {}
        self.recording = False
        self.calls = 0
        """Number of calls of the project's functions so far, recorded or not: while the number does not change, nothing
        runs."""

        self._modules: dict[str, str | None] = {}
        self._starts: dict[tuple[CodeType, int], bool] = {}
        self._threads = threading.local()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Profile this thread, and threads that start within the block."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Count the functions that run within the block, in each thread that is profiled."""
        self.recording = True
        try:
            yield
        finally:
            self.recording = False

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code.co_name == "<module>":
            self._threads.imports = getattr(self._threads, "imports", 0) + (1 if event == "call" else -1)
        elif event == "call" and (module := self._module_of(code)) is not None:
            self.calls += 1
            counted = self.recording and not module.startswith(_NOT_COUNTED) and code.co_flags & inspect.CO_OPTIMIZED
            if counted and not getattr(self._threads, "imports", 0):
                entered = self._is_start(code, frame.f_lasti) and self._caller_of(frame) != module
                self.entries[module] = self.entries.get(module, 0) + entered

    def _caller_of(self, frame: FrameType) -> str | None:
        """Return the module of the nearest caller that belongs to the project; ``None`` if only the event loop or a
        thread called."""
        caller = frame.f_back
        while caller is not None and (module := self._module_of(caller.f_code)) is None:
            caller = caller.f_back
        return None if caller is None else module

    def _is_start(self, code: CodeType, instruction: int) -> bool:
        key = (code, instruction)
        if key not in self._starts:
            operation, argument = code.co_code[instruction : instruction + 2]
            self._starts[key] = operation == _RESUME and argument & 3 == _AT_START
        return self._starts[key]

    def _module_of(self, code: CodeType) -> str | None:
        name = code.co_filename
        if name not in self._modules:
            path = Path(name)
            inside = path.is_absolute() and path.is_relative_to(_ROOT)
            parts = path.relative_to(_ROOT).with_suffix("").parts if inside else ()
            if parts and parts[-1] == "__init__":
                parts = parts[:-1]
            self._modules[name] = ".".join(parts) if parts and parts[0] in ("actors", "supervisor") else None
        return self._modules[name]


def _main() -> None:
    from supervisor.__main__ import main

    target, sys.argv = sys.argv[1], ["supervisor", *sys.argv[2:]]
    trace = ModuleTrace()
    try:
        with trace.installed(), trace.recorded():
            main()
    finally:
        Path(target).write_text(json.dumps(trace.entries), encoding="utf-8")


if __name__ == "__main__":
    _main()
