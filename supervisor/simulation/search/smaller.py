"""Smaller scenarios: a seed's draws written down, the steps that make a scenario smaller, and small scenarios of other
seeds.

Each step removes a part of the scenario or makes a value plainer; no step adds anything, so steps can be tried in any
order. No function here runs a scenario.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.engine import Schedule
from supervisor.simulation.scenario import AGENTS, AgentsConfig, DrawnScenario, FaultsConfig, Scenario, WorldConfig

Path = tuple[str, ...]

SIZES: Final = (
    {"customers": 1, "turns": 2, "tasks": 3, "operators": 3},
    {"customers": 2, "turns": 3, "tasks": 3, "operators": 4},
    {"customers": 1, "turns": 2, "tasks": 3, "operators": 3},
    {"customers": 5, "turns": 3, "tasks": 3, "operators": 4},
)
"""Largest sizes of a run of another seed, one entry for each seed in turn; such a run takes hundredths of a second, or
a tenth. One customer with several operators meets most races with the fewest faults."""

ASYNCIO: Final = tuple(one for one in Schedule if one is not Schedule.TRIO)
"""Schedules for runs of other seeds, without ``trio``, since runs on trio cannot be made plainer."""

REDUCIBLE: Final[Mapping[Path, int]] = {
    ("world", "operators"): 0,
    ("load", "customers"): 1,
    ("load", "turns"): 1,
    ("load", "tasks"): 1,
    ("load", "sessions_max"): 1,
    ("world", "crashes_max"): 0,
    ("load", "hours"): 0,
    ("settings", "limits", "max_consecutive_errors"): 1,
    ("settings", "limits", "max_total_errors"): 1,
    ("settings", "limits", "restarts_max"): 1,
}
"""Fields of a scenario whose value can be made smaller, and the smallest sensible value of each."""

PLAINER: Final[Mapping[Path, Any]] = {
    ("world", "schedules"): (Schedule.FIFO,),
    ("world", "grain_s"): 0.0,
    ("world", "pieces"): 0.0,
    ("load", "plans"): 0.0,
    ("load", "crossing"): 0.0,
}
"""The plainest value of each field, for a run that is easy to follow."""


# ------------------------------------------------------------------------------------------------------- as it was
def pinned(scenario: Scenario, drawn: DrawnScenario, only: Sequence[str]) -> Scenario:
    """Return a scenario with every draw of a seed written down, and with exactly the strikes *only*; the values of the
    load stay open."""
    return Scenario(
        name=scenario.name,
        about=scenario.about,
        load=drawn.load,
        agents=AgentsConfig(**dict(zip(AGENTS, drawn.weights, strict=True)), asks=drawn.asks, shape=_shape(drawn)),
        faults=FaultsConfig(only=tuple(only)),
        world=WorldConfig(
            schedules=(drawn.schedule,),
            seed=drawn.seed,
            **{name: getattr(drawn, name) for name in WorldConfig.model_fields if name not in ("schedules", "seed")},
        ),
        settings=drawn.settings.model_dump(mode="json", exclude_unset=True),
    )


def _shape(drawn: DrawnScenario) -> dict[str, Any]:
    """Return the fields of the drawn agent shape that differ from the default shape."""
    shape, usual = (json.loads(msgspec.json.encode(one)) for one in (drawn.shape, AgentShape()))
    return {name: value for name, value in shape.items() if value != usual[name]}


def other_seed(scenario: Scenario, kinds: Sequence[str], seed: int) -> Scenario:
    """Return the scenario with another seed and little work, in which faults of these kinds strike at random."""
    load, world, size = scenario.load, scenario.world, SIZES[seed % len(SIZES)]
    few = {name: [1, min(size[name], _most(getattr(load, name)))] for name in ("customers", "turns", "tasks")}
    most = min(size["operators"], _most(world.operators))
    operators = [min(1, most), most]
    return scenario.model_copy(
        update={
            "load": load.model_copy(update=few),
            "faults": scenario.faults.model_copy(update={"kinds": tuple(kinds), "only": None}),
            "world": world.model_copy(update={"seed": seed, "operators": operators, "schedules": ASYNCIO}),
        }
    )


# ------------------------------------------------------------------------------------------------------------- steps
def with_strikes(scenario: Scenario, only: Sequence[str]) -> Scenario:
    """Return the scenario with exactly the strikes *only*."""
    return _changed(scenario, ("faults", "only"), tuple(only))


def less(scenario: Scenario, path: Path) -> Iterator[Scenario]:
    """Yield the scenario with smaller values at *path*, the smallest first; nothing if no smaller value exists."""
    value, least = _value(scenario, path), REDUCIBLE[path]
    if value is not None:
        most = _most(value)
        options = dict.fromkeys(one for one in (least, int(most) // 2, int(most) - 1) if least <= one < most)
        yield from (_changed(scenario, path, one) for one in options)


def plainer(scenario: Scenario, path: Path) -> Scenario | None:
    """Return the scenario with the plainest value at *path*; ``None`` if the scenario has this value already."""
    plain = PLAINER[path]
    return None if _value(scenario, path) == plain else _changed(scenario, path, plain)


def _most(value: Any) -> Any:
    """Return the largest number that may be drawn for a value: the high end of a range, the largest option of a
    choice."""
    if isinstance(value, dict):
        return max(map(_most, value["any"]))
    return max(value) if isinstance(value, list) else value


def _value(scenario: Scenario, path: Path) -> Any:
    """Return the value at *path*, or ``None``, since settings contain only the values that were set."""
    value: Any = getattr(scenario, path[0])
    for name in path[1:]:
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def _changed(scenario: Scenario, path: Path, value: Any) -> Scenario:
    part = getattr(scenario, path[0])
    if isinstance(part, Mapping):
        return scenario.model_copy(update={path[0]: _within(part, path[1:], value)})
    return scenario.model_copy(update={path[0]: part.model_copy(update={path[1]: value})})


def _within(table: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    name, *rest = path
    return {**table, name: _within(table[name], tuple(rest), value) if rest else value}
