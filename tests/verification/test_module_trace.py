"""Tests of the module trace: entries from outside are counted; imports, resumptions and the kernel are not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import CoroutineType
from typing import Any

from tests.verification.module_trace import ModuleTrace

ROOT = Path(__file__).parents[2]


def module(path: str, source: str, **names: Any) -> dict[str, Any]:
    """Run *source* as if the text were the file *path* of the project; return the names that it defines."""
    exec(compile(source, str(ROOT / path), "exec"), names)
    return names


def traced(work: Callable[[], object]) -> dict[str, int]:
    """Call *work* under a trace; return the counts."""
    trace = ModuleTrace()
    with trace.installed(), trace.recorded():
        work()
    return trace.entries


def test_a_module_is_entered_when_another_one_calls_it() -> None:
    """A call within a module is not counted as an entry; a call from another module is. Modules are listed in the order
    of their first call."""
    inner = module("supervisor/inner.py", "def helper(): pass\ndef inner(): helper(); helper()")
    outer = module("supervisor/a/outer.py", "def outer(): inner(); inner()", inner=inner["inner"])
    assert list(traced(outer["outer"]).items()) == [("supervisor.a.outer", 1), ("supervisor.inner", 2)]


def test_a_call_through_the_standard_library_is_no_entry() -> None:
    """A function that ``sorted`` calls counts as called by the module that called ``sorted``: within the same module
    that is no entry."""
    one = module("supervisor/one.py", "def key(x): return x\ndef one(): sorted([2, 1], key=key)")
    assert traced(one["one"]) == {"supervisor.one": 1}


def test_kernel_tables_and_other_code_are_not_counted() -> None:
    """Calls in modules of ``actors`` and ``supervisor.lifecycles`` are not counted."""
    kernel = module(
        "actors/kernel.py",
        "def kernel(): table()",
        table=module("supervisor/lifecycles/table.py", "def table(): pass")["table"],
    )
    assert traced(kernel["kernel"]) == {}


def test_what_runs_during_an_import_is_not_counted() -> None:
    """A function that is called while a module is imported, as a decorator is, is not counted."""
    tool = module("supervisor/tool.py", "def tool(): pass")
    assert traced(lambda: module("supervisor/late.py", "tool()\nclass C: tool()", tool=tool["tool"])) == {}


def test_a_coroutine_that_resumes_is_not_entered_again() -> None:
    """The first step of a coroutine is counted as an entry; later steps are not."""
    source = "class Pause:\n    def __await__(self): yield\nasync def wait():\n    await Pause()\n    await Pause()"
    names = module("supervisor/waits.py", source)

    def run(coroutine: CoroutineType[Any, Any, None]) -> None:
        for _ in range(2):
            coroutine.send(None)
        coroutine.close()

    assert traced(lambda: run(names["wait"]())) == {"supervisor.waits": 1}


def test_threads_that_start_under_the_trace_are_traced() -> None:
    """Functions in a thread that starts under the trace are counted, since the journal commits in a thread."""
    names = module("supervisor/threaded.py", "def work(): pass")

    def run() -> None:
        thread = threading.Thread(target=names["work"])
        thread.start()
        thread.join()

    assert traced(run) == {"supervisor.threaded": 1}


def test_nothing_is_counted_outside_of_a_record() -> None:
    """A trace that is installed but not recording counts calls, and no entries of modules."""
    names = module("supervisor/quiet.py", "def quiet(): pass")
    trace = ModuleTrace()
    with trace.installed():
        names["quiet"]()
    assert (trace.entries, trace.calls) == ({}, 1)
