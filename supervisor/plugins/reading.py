"""Reading of plans that name adapters or verifiers of plug-ins; the plug-ins are loaded only if the plan needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from supervisor import plans
from supervisor.plans import Plan
from supervisor.plans.agents import ADAPTERS
from supervisor.plugins.loading import installed as find
from supervisor.plugins.running import Plugins
from supervisor.policies.argument_checks import check_items, check_type


def load_plan(
    path: Path | str,
    *,
    plugins: Sequence[object] = (),
    installed: bool = True,
    instead: Mapping[str, str] = MappingProxyType({}),
    content: bytes | None = None,
    **given: Any,
) -> Plan:
    """Read and check a plan. Relative paths of programs and directories are relative to the directory of the plan file.

    Args:
        path: path of the plan file.
        plugins: plug-ins of the embedding program, beside the installed plug-ins.
        installed: whether installed plug-ins are used; the plan may choose among them.
        instead: agents of the catalogue that replace agents of the plan.
        content: text of the plan, if it is not to be read from *path*, which then only names it.
        given: the other parameters of :func:`supervisor.plans.load_plan`.

    Raises:
        TypeError: an argument has a wrong type.
        BadPlan: the file is missing, or the plan is invalid; the message has one line for every problem.
    """
    check_type("path", path, str, Path)
    check_items("plugins", plugins, object)
    plan = plans.load_plan(Path(path), partial(_added, plugins, installed), instead, content, **given)
    return plan if installed else plan.model_copy(update={"plugins": ()})


def _added(given: Sequence[object], installed: bool, names: Sequence[str] | None) -> Mapping[str, Sequence[str]]:
    there = list(find() if installed else ())
    chosen = there if names is None else [name for name in names if name in there]
    found = Plugins.load(chosen, given, reserved=ADAPTERS)
    found.dismiss()
    return {"adapters": list(found.adapters), "verifiers": list(found.verifiers), "plugins": there}
