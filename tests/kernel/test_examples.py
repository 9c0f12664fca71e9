"""Examples of the kernel: they run on both backends, print the expected text, and import only the kernel."""

from __future__ import annotations

import ast
import pathlib
import runpy

import anyio
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "kernel"
ERROR = "crashed: ZeroDivisionError('division by zero')"
SAYS = {
    "supervised_counter": f"""\
1/1: 1.0
1/2: 1.5
1/0: actor 'app/counter' is restarting ({ERROR}); the message may have been handled in part
1/4: 0.25
incarnation 2
asked behind a crash: 0.125
incarnation 3, dead letters: 1
the supervisor: 'app' gave up on 'counter': more than 2 restarts within 60 s; the last end: {ERROR}
actor 'app/counter' has stopped: {ERROR}
""",
}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("name", SAYS)
def test_an_example_says(name: str, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example prints its expected output."""
    anyio.run(runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"], backend=backend)
    assert capsys.readouterr().out == SAYS[name]


@pytest.mark.parametrize("name", SAYS)
def test_an_example_needs_only_the_kernel(name: str) -> None:
    """Each example imports ``actors`` itself, but none of its modules, nor the supervisor."""
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert imported <= {"__future__", "sys", "anyio", "actors"}


def test_every_example_is_tested() -> None:
    """Every file in the folder of examples has an expected output, and is therefore tested."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)
