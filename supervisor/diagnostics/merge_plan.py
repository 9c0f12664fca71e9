"""Merge plan of a workstream, as text for people, and the commands that resolve its conflict. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from supervisor.ports import MergePlan

_SHOWN_MAX: Final = 20
"""Number of files of a merge plan that are shown."""


def conflict_fix(plan: MergePlan) -> str:
    """Return the commands with which a person resolves a conflict on the branch, and merges it then."""
    branch, target = shlex.quote(plan.branch), shlex.quote(plan.target)
    resolve = f"git switch {branch} && git merge {target}, resolve and commit, git switch {target}"
    return f"{resolve}, then: supervisor merge {plan.run}"


def merge_plan_text(plan: MergePlan) -> str:
    """Return a merge plan as text for people."""
    return "\n".join(_lines(plan))


def _lines(plan: MergePlan) -> Iterator[str]:
    if plan.is_merged:
        yield f"merge plan of {plan.run}: {plan.target} has all of {plan.branch} already"
    else:
        count = f"{len(plan.files)} file{'' if len(plan.files) == 1 else 's'}"
        changed = f"{count} changed" if plan.whole else f"more than {count} changed"
        yield f"merge plan of {plan.run}: {plan.branch} ({plan.commit[:12]}) into {plan.target}, {changed}"
    if plan.tasks:
        yield f"    with the work of: {', '.join(plan.tasks)}"
    if plan.left_out:
        yield f"    without: {', '.join(plan.left_out)}"
    if plan.behind:
        yield f"    commits of {plan.target} that the branch does not have: {plan.behind}"
    yield from (f"    {one}" for one in plan.files[:_SHOWN_MAX])
    if len(plan.files) > _SHOWN_MAX:
        yield f"    ... and {len(plan.files) - _SHOWN_MAX} more"
    if plan.conflicts:
        yield f"in conflict with {plan.target}: {', '.join(plan.conflicts[:_SHOWN_MAX])}"
        yield f"    {conflict_fix(plan)}"
