"""Examples of the documentation: the blocks of code on its pages.

``python -m tests.snippets FOLDER`` writes every Python example to a file, for mypy. A block that runs an event loop or
makes an app is a program; any other block becomes the body of an async function whose arguments are the usual names.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_GENERATED = ("spec", "machines", "http-api")
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name not in _GENERATED)]
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_FRAGMENT = """\
from supervisor import *


async def fragment(sup: Supervisor, session: Session, plan: Plan, agents: dict[str, AgentConfig]) -> None:
"""
_UNTYPED = ("how-to/simulation-pytest", "how-to/stub-model", "how-to/plugins")
"""Pages whose Python has fixtures or hooks without types, as tests and plug-ins are usually written; ``examples/`` has
the same with types."""


class Snippet(NamedTuple):
    """A block of code: the page without its suffix, the number of the block on the page, the language, the text."""

    page: str
    number: int
    language: str
    text: str

    @property
    def is_program(self) -> bool:
        return re.search(r"^(anyio\.run\(|app = )", self.text, re.MULTILINE) is not None


def snippets(language: str, page: str = "") -> list[Snippet]:
    """Return the blocks in *language* of all pages, or of one."""
    return [one for one in _all() if one.language == language and page in ("", one.page)]


def _all() -> Iterator[Snippet]:
    for path in PAGES:
        page = str(path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).with_suffix(""))
        for number, found in enumerate(_BLOCK.finditer(path.read_text(encoding="utf-8"))):
            yield Snippet(page, number, found[2], dedent(found[3]))


def write(folder: Path) -> None:
    """Write each Python example to a file in *folder*, but for those that are wrong on purpose."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    for one in snippets("python"):
        if one.page not in _UNTYPED and "# not defined" not in one.text:
            name = f"{one.page.replace('/', '_').replace('-', '_')}_{one.number}.py".lower()
            text = one.text if one.is_program else _FRAGMENT + indent(one.text, "    ")
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
