"""Detect supervisord in the same environment: its package has the import name ``supervisor`` too.

Both packages put their modules into one directory, and both have an ``__init__.py`` there: the package that was
installed last has its own. If supervisord came first, everything works until either package is updated or removed; if
supervisord came last, ``import supervisor`` imports an empty package, and only the command line still works.
"""

from __future__ import annotations

import sys
import warnings
from os.path import dirname, exists, join
from typing import Final

FIX: Final = "install supervisor-runtime in an environment of its own, for example with `python3 -m venv .venv`"


def find_clash() -> str:
    """Return a sentence about supervisord in the directory of this package, and its effect; ``""`` if supervisord is
    not there."""
    if not exists(join(dirname(dirname(__file__)), "supervisord.py")):
        return ""
    if hasattr(sys.modules["supervisor"], "__all__"):
        effect = "updating or removing either package breaks the other"
    else:
        effect = "its __init__.py has replaced that of supervisor-runtime, so `import supervisor` finds no API"
    return f"supervisord is installed here too, under the import name `supervisor`: {effect}"


def warn_of_clash(stacklevel: int = 3) -> None:
    """Warn if supervisord is in the directory of this package: of the import of ``supervisor`` by default. This is a
    warning and no error, since everything may work."""
    if clash := find_clash():
        warnings.warn(f"{clash}; {FIX}", RuntimeWarning, stacklevel=stacklevel)
