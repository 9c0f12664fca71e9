"""A trace of modules counts entries from outside; imports, resumptions and the kernel are not counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import CoroutineType
from typing import Any

from tests.verification.module_trace import ModuleTrace

ROOT = Path(__file__).parents[2]


def module(path: str, source: str, **names: Any) -> dict[str, Any]:
    """Run *source* as if it stood in the file *path* of the project; return its names."""
    exec(compile(source, str(ROOT / path), "exec"), names)
    return names


def traced(work: Callable[[], object]) -> dict[str, int]:
    """Call *work* under a trace; return the counts."""
    trace = ModuleTrace()
    with trace.installed(), trace.recorded():
        work()
    return trace.entries


def test_a_module_is_entered_when_another_one_calls_it() -> None:
    """A call within a module is no entry; a call from another module is, and the order is that of the first call."""
    inner = module("supervisor/inner.py", "def helper(): pass\ndef inner(): helper(); helper()")
    outer = module("supervisor/a/outer.py", "def outer(): inner(); inner()", inner=inner["inner"])
    assert list(traced(outer["outer"]).items()) == [("supervisor.a.outer", 1), ("supervisor.inner", 2)]


def test_a_call_through_the_standard_library_is_no_entry() -> None:
    """A function that is passed to ``sorted`` is called by its own module."""
    one = module("supervisor/one.py", "def key(x): return x\ndef one(): sorted([2, 1], key=key)")
    assert traced(one["one"]) == {"supervisor.one": 1}


def test_kernel_tables_and_other_code_are_not_counted() -> None:
    """Only modules of ``supervisor`` outside of ``lifecycles`` are counted."""
    kernel = module(
        "actors/kernel.py",
        "def kernel(): table()",
        table=module("supervisor/lifecycles/table.py", "def table(): pass")["table"],
    )
    assert traced(kernel["kernel"]) == {}


def test_what_runs_during_an_import_is_not_counted() -> None:
    """A decorator that runs while a module is imported does not belong to a walk."""
    tool = module("supervisor/tool.py", "def tool(): pass")
    assert traced(lambda: module("supervisor/late.py", "tool()\nclass C: tool()", tool=tool["tool"])) == {}


def test_a_coroutine_that_resumes_is_not_entered_again() -> None:
    """The first step of a coroutine is an entry, the later ones are not."""
    source = "class Pause:\n    def __await__(self): yield\nasync def wait():\n    await Pause()\n    await Pause()"
    names = module("supervisor/waits.py", source)

    def run(coroutine: CoroutineType[Any, Any, None]) -> None:
        for _ in range(2):
            coroutine.send(None)
        coroutine.close()

    assert traced(lambda: run(names["wait"]())) == {"supervisor.waits": 1}


def test_threads_that_start_under_the_trace_are_traced() -> None:
    """The journal commits in a thread, which a walk passes too."""
    names = module("supervisor/threaded.py", "def work(): pass")

    def run() -> None:
        thread = threading.Thread(target=names["work"])
        thread.start()
        thread.join()

    assert traced(run) == {"supervisor.threaded": 1}


def test_nothing_is_counted_outside_of_a_record() -> None:
    """A trace that is installed and not recording counts calls, and no module."""
    names = module("supervisor/quiet.py", "def quiet(): pass")
    trace = ModuleTrace()
    with trace.installed():
        names["quiet"]()
    assert (trace.entries, trace.calls) == ({}, 1)
