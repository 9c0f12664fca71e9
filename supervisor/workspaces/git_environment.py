"""Variables of the supervisor's environment that its git commands have: those by which a user configures git.

Containers and CI name configuration files and settings in the environment (``safe.directory`` by ``GIT_CONFIG_COUNT``),
and a user may have the list of ignored files below ``XDG_CONFIG_HOME``. Variables that lead git to another repository,
index or object store, such as ``GIT_DIR``, are not among them: they may be left from a hook of another repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

_PASSED: Final = re.compile(
    r"""
    PATH | HOME | XDG_CONFIG_HOME | SSH_AUTH_SOCK | GNUPGHOME | GPG_TTY
    | GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+|PARAMETERS)
    | GIT_(EXEC_PATH|CEILING_DIRECTORIES|DISCOVERY_ACROSS_FILESYSTEM|ATTR_NOSYSTEM|LFS_SKIP_SMUDGE)
    | (https?|all|no)_proxy | (HTTPS?|ALL|NO)_PROXY | SSL_CERT_(FILE|DIR) | GIT_SSL_(CAINFO|CAPATH)
    """,
    re.VERBOSE,
)
_ALWAYS: Final = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def git_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of a git command, from those of the supervisor (*environ*)."""
    passed = {name: value for name, value in environ.items() if _PASSED.fullmatch(name)}
    return {"PATH": os.defpath, "HOME": "/", **passed, **_ALWAYS}
