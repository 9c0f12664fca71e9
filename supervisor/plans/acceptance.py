"""Acceptance tests: conditions that a task's work must meet before the task is closed (the five kinds of spec 002, and
verifiers of plug-ins).

Each test examines the directory in which the work was done: a file exists, a module can be imported, a program (unit
tests, a linter, any command) exits with 0, or a plug-in's verifier accepts the directory. The tests run one after the
other, each within its own time-out, up to the first that fails. No test is repeated, because validation is
deterministic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import anyio
import anyio.to_thread
import msgspec

from supervisor.policies.retry_reason import without_colours
from supervisor.ports import Launch, ProcessHost
from supervisor.ports.helper_programs import CompletedCommand, run_command
from supervisor.ports.path_safety import absent

ARGV: Final = ("unit_tests", "lint", "command")
"""Kinds of tests that run a program of the user."""

KINDS: Final = ("file_exists", "python_import", "javascript_import", *ARGV, "verifier")

TIMEOUT_S = 30.0
"""Default time-out of a test in seconds (spec 002, ``validation_timeout``)."""

PYTHON_IMPORT = "import importlib, sys; sys.path.insert(0, ''); importlib.import_module(sys.argv[1])"
JAVASCRIPT_IMPORT = "import(process.argv[1]).catch(error => { console.error(String(error)); process.exit(1) })"


class AcceptanceTest(msgspec.Struct, frozen=True, kw_only=True):
    """Test. *kind* is one of ``KINDS``; *words* are the path, the module, the argv, or the name of the verifier, which
    gets *options*."""

    kind: str
    words: tuple[str, ...]
    timeout_s: float = TIMEOUT_S
    options: Mapping[str, Any] = {}

    @property
    def title(self) -> str:
        return f"{self.kind} {' '.join(self.words)}"


Verify = Callable[[AcceptanceTest, str, Mapping[str, str]], Awaitable[str]]
"""Function that runs a verifier on a directory with the environment of the work, and returns the reason why the
verifier rejects the directory, or ``""``."""


class AcceptanceResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one test: ``problem`` is empty if the test passed, ``output`` is the output of its program."""

    test: AcceptanceTest
    problem: str
    output: str
    took_s: float

    @property
    def passed(self) -> bool:
        return not self.problem

    @property
    def rejection(self) -> Rejection | None:
        """The rejection of the work by this test; ``None`` if the test passed."""
        return None if self.passed else Rejection(f"{self.test.title}: {self.problem}", self.output)


class Rejection(NamedTuple):
    """Rejection of work by its acceptance tests: the *problem* in one line, and the *output* of the failed test."""

    problem: str
    output: str = ""


async def run_acceptance_tests(
    host: ProcessHost,
    tests: Sequence[AcceptanceTest],
    directory: str,
    env: Mapping[str, str],
    verify: Verify,
    redact: Callable[[str], str],
) -> list[AcceptanceResult]:
    """Run *tests* in *directory* up to the first that fails; return the results. All tests passed if the last result
    passed. *redact* replaces the secrets in the line of the output that a problem quotes."""
    done: list[AcceptanceResult] = []
    for test in tests:
        done.append(await _checked(host, test, directory, dict(env), verify, redact))
        if not done[-1].passed:
            break
    return done


async def _checked(
    host: ProcessHost,
    test: AcceptanceTest,
    directory: str,
    env: dict[str, str],
    verify: Verify,
    redact: Callable[[str], str],
) -> AcceptanceResult:
    if test.kind == "verifier":
        began = anyio.current_time()
        problem = await verify(test, directory, env)
        return AcceptanceResult(test=test, problem=problem, output="", took_s=round(anyio.current_time() - began, 6))
    if test.kind == "file_exists":
        problem = await anyio.to_thread.run_sync(absent, directory, test.words[0])
        return AcceptanceResult(test=test, problem=problem, output="", took_s=0.0)
    launch = Launch(argv=_argv(test), cwd=directory, env=env)
    ran = await run_command(host, launch, timeout_s=test.timeout_s)
    return AcceptanceResult(test=test, problem=_problem(ran, redact), output=ran.output, took_s=ran.took_s)


def program_of(test: AcceptanceTest) -> str | None:
    """Return the program that a test runs; ``None`` if it runs none."""
    return None if test.kind in ("file_exists", "verifier") else _argv(test)[0]


def _argv(test: AcceptanceTest) -> tuple[str, ...]:
    match test.kind:
        case "python_import":
            return ("python3", "-c", PYTHON_IMPORT, *test.words)
        case "javascript_import":
            return ("node", "--input-type=module", "-e", JAVASCRIPT_IMPORT, *test.words)
        case _:
            return test.words


def _problem(ran: CompletedCommand, redact: Callable[[str], str]) -> str:
    if ran.problem:
        return ran.problem
    if ran.status == 0:
        return ""
    how = f"exited with {ran.status}" if ran.status is None or ran.status >= 0 else f"was ended by signal {-ran.status}"
    last = redact(without_colours(ran.output.strip().rpartition("\n")[2]))  # cut afterwards: half a secret is not found
    return f"{how}: {last[:200]}" if last else how
