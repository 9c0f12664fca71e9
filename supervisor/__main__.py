"""``supervisor`` and ``python -m supervisor``: the command line of this process."""

from __future__ import annotations

import sys

from supervisor.cli.commands import supervisor
from supervisor.cli.invocation import execute
from supervisor.control.process_setup import free_signals
from supervisor.embedding.import_name import warn_of_clash


def main() -> None:
    """Run the command line of this process."""
    if not hasattr(sys.modules["supervisor"], "__all__"):  # else the import of the package has warned
        warn_of_clash()
    free_signals()
    sys.exit(execute(supervisor, sys.argv[1:]))


if __name__ == "__main__":
    main()
