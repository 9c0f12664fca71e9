"""``supervisor`` and ``python -m supervisor``: the command line of this process."""

from __future__ import annotations

import sys

from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute


def main() -> None:
    """Run the command line of this process."""
    sys.exit(execute(supervisor, sys.argv[1:]))


if __name__ == "__main__":
    main()
