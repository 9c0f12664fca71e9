"""Shell completion of ids and task names, read from the journal of the state directory; no supervisor is asked.

``_SUPERVISOR_COMPLETE=bash_source supervisor`` (or ``zsh_source``, ``fish_source``) prints the script that switches
completion on; the script calls ``supervisor`` again for each completion.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from supervisor.cli.options import DEFAULT, STATE_DIR

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def complete_ids(*kinds: str, living: bool = False) -> Completer:
    """Return the completion function for an argument that takes the id of an entity of one of *kinds* (any kind if none
    is given; ``tool`` and ``permission`` are open calls and waiting requests). If *kinds* are given, a task is
    completed by its name in the plan, and by its id after ``RUN#``. *living*: leave out what has ended."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            found = list(_ids(_state_dir(context), kinds, living, by_name="#" not in incomplete))
        except Exception:  # a completion has no place for an error message
            return []
        given = [one for value in context.params.values() if isinstance(value, tuple) for one in value]
        return [one for one in dict.fromkeys(found) if one.startswith(incomplete) and one not in given]

    return complete


def _state_dir(context: click.Context) -> Path:
    return Path(context.params.get("state_dir") or os.environ.get(STATE_DIR) or DEFAULT)


def _ids(state_dir: Path, kinds: Sequence[str], living: bool, *, by_name: bool) -> Iterator[str]:
    from supervisor.diagnostics.outcomes import data_of
    from supervisor.diagnostics.tree_view import tree
    from supervisor.embedding.journals import open_reader
    from supervisor.lifecycles.types import Kind

    with open_reader(state_dir) as reader:
        rows = reader.entities(live_only=living)
    tasks = [row for row in rows if row.kind == Kind.TASK and kinds and by_name]
    names = {row.id: str(data_of(row).get("name") or row.id) for row in tasks}
    nodes = list(tree(rows))
    for node in nodes:
        nodes += node.children
        if not kinds or node.kind in kinds:
            yield names.get(node.id, node.id)
