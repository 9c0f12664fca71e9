"""Scenarios: descriptions of the hosts, agents, operators and faults of a simulated run, as TOML files.

A number may be a range ``[low, high]``, and a value a choice ``{ any = [...] }``, where a field allows open values
(``within``; settings and shapes allow choices of anything): each seed draws a value. A file is checked as a whole
before anything runs, and every problem is reported with its field. Only the loaders read files.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from supervisor.lifecycles import MACHINES
from supervisor.plans import Settings
from supervisor.plans.fields import Flag, closest
from supervisor.plans.loading import model_at
from supervisor.plans.source import FieldPath
from supervisor.simulation.agents.profile import AgentShape, shape_of
from supervisor.simulation.engine import Schedule
from supervisor.simulation.faults import FAULTS
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.launching import PIECES
from supervisor.simulation.ranges import drawn, outcomes, within
from supervisor.simulation.toml_fields import THE_KEYS, is_name, problems
from supervisor.simulation.toml_text import tables_of, text_of

AGENTS = ("acp", "command", "inprocess", "jsonl")
"""Names of the simulated agents: the adapters with which agents are run."""


class BadScenario(Exception):
    """Error: a scenario cannot be run. The message names the fields, the problem of each field, and the fix."""


def _ways(value: tuple[Schedule, ...]) -> tuple[Schedule, ...]:
    if not value:
        raise ValueError(f"[] is empty; name some of {', '.join(Schedule)}, or leave the field out")
    return value


def _moments(value: tuple[str, ...]) -> tuple[str, ...]:
    known = [f"{name} {state.value}" for name, machine in MACHINES.items() for state in machine.states]
    for one in value:
        if one not in known:
            raise ValueError(f"{one!r} is not a state; write KIND STATE, for example {NARROW[0]!r}")
    if not value:
        raise ValueError(f"[] is empty; name some, for example {NARROW[0]!r}, or leave the field out")
    return value


def _kinds(value: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in value:
        if not any(fnmatchcase(kind, pattern) for kind in FAULTS):
            raise ValueError(f"{pattern!r} fits no kind; the kinds are {', '.join(FAULTS)}")
    return value


def _rates(value: dict[str, float]) -> dict[str, float]:
    for kind in value:
        if kind not in FAULTS:
            raise ValueError(f"there is no kind {kind!r}; the kinds are {', '.join(FAULTS)}")
    return value


def _strike(value: str) -> str:
    kind, at, place = value.partition("@")
    if not at or not place:
        raise ValueError(f"{value!r} names no place; write KIND@PLACE, as `supervisor simulate shrink --save` does")
    if kind not in FAULTS:
        raise ValueError(f"{value!r}: there is no kind {kind!r}; the kinds are {', '.join(FAULTS)}")
    return value


HOUR_S = 3600.0
NARROW = (
    "session Interrupting",
    "session Spawning",
    "task CLAIMED",
    "run FAILED",
    "run HALF_OPEN",
    "run TIMEOUT",
    "workstream planned",
)
"""States (``KIND STATE``) that are so short that a kill at a random time rarely meets them."""
Seconds = Annotated[Any, within(0, 1e6)]
Grain = Annotated[Any, within(0, 0.5)]
"""Type of the field for the grain of timers, in seconds. Coarser timers would change the order of events beyond what
invariants allow: at one second the first invariants are violated."""
Horizon = Annotated[Any, within(1, 1e6)]
Count = Annotated[Any, within(0, 1e6, whole=True)]
Some = Annotated[Any, within(1, 1e6, whole=True)]
Share = Annotated[Any, within(0, 1)]
Weight = Annotated[float, Strict(), Field(ge=0, le=1)]
"""Type of a field for a share from 0 to 1 that is not drawn: neither a range nor a choice."""


class ScenarioModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


# --------------------------------------------------------------------------------------------------------- models
class LoadConfig(ScenarioModel):
    """Table ``load`` of a scenario: the work of a run.

    ``customers`` arrive one after the other, ``arrival_s`` seconds apart. Each customer wants ``turns`` prompts of one
    session, ``pause_s`` seconds apart or spread over ``hours``, and starts another session when a session is lost,
    ``sessions_max`` sessions in all. A share ``plans`` of the customers has a plan of ``tasks`` tasks instead, with
    dependencies only; a share ``scoped`` of these tasks is small. A share ``works`` of the customers has plans that use
    everything a plan can say; a share ``saves`` of these plans has checkpoints, and is resumed if work was left.
    ``crossing``: probability that a customer's abort policy lets aborts cross a level that the settings close.
    """

    customers: Some = [2, 6]
    turns: Some = [1, 4]
    arrival_s: Seconds = [0.0, 5.0]
    pause_s: Seconds = [0.0, 10.0]
    sessions_max: Some = 3
    hours: Annotated[float, Strict(), Field(ge=0, le=10_000)] = 0.0
    plans: Share = 0.1
    scoped: Weight = 0.0
    works: Weight = 0.0
    saves: Weight = 0.0
    tasks: Some = [1, 4]
    crossing: Weight = 0.3


class AgentsConfig(ScenarioModel):
    """Table ``agents`` of a scenario: the weight of each adapter, and the shape (the usual behaviour) of agents.
    *asks*: share of the agents whose permission requests a person has to answer."""

    acp: Weight = 0.4
    command: Weight = 0.3
    inprocess: Weight = 0.3
    jsonl: Weight = 0.0
    asks: Weight = 0.0
    shape: dict[str, Any] = {}

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not sum(self.weights):
            raise ValueError("acp, command, inprocess and jsonl are all 0, so nobody works; give one of them a weight")
        return self

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the adapters, in the order of ``AGENTS``."""
        return tuple(getattr(self, name) for name in AGENTS)


class FaultsConfig(ScenarioModel):
    """Table ``faults`` of a scenario: patterns of the kinds that may strike (``process.*``), the intensity, and, in a
    shrunk scenario, the exact strikes (*only*). *rates* fixes the rates of some kinds (per opportunity, before the
    intensity); each seed draws the rates of the other kinds."""

    kinds: Annotated[tuple[str, ...], AfterValidator(_kinds)] = ("*",)
    intensity: Share = 1.0
    rates: Annotated[dict[str, Weight], AfterValidator(_rates)] = {}
    only: tuple[Annotated[str, AfterValidator(_strike)], ...] | None = None


LISTS = frozenset(("schedules", "crashes_at", "cancels_at", "seed"))
"""Fields of the table ``world`` that are not drawn with the numbers of the table."""


class WorldConfig(ScenarioModel):
    """Table ``world`` of a scenario: the machine and the operators of a run.

    ``schedules`` are the orders of steps, one of which is drawn. Faults stop ``heal_after_s`` after the last customer
    arrived, or after the load's hours; ``horizon_s`` bounds the virtual time of the run, without the load's hours and
    sleeps of the machine. ``crashes_max`` bounds the kills of the supervisor; ``crashes_at`` are states (``KIND
    STATE``), at one of which each supervisor may be killed; ``cancels_at`` are states of tasks and task runs at which
    an operator cancels. ``pieces`` is the share of output streams that arrive cut into arbitrary pieces. Timers are
    rounded up to multiples of ``grain_s``, at most half a second, 0 for exact timers. A commit that no fault strikes
    takes ``commit_s`` seconds. ``archive``: ended work is preserved in files. ``pause_s`` is an operator's longest
    pause between two requests; the mean pause is a third of the longest.
    """

    schedules: Annotated[tuple[Schedule, ...], AfterValidator(_ways)] = tuple(Schedule)
    grain_s: Grain = {"any": [0.0, 0.0, 0.001, 0.1]}
    heal_after_s: Seconds = [20.0, 120.0]
    quiet_s: Seconds = 3600.0
    horizon_s: Horizon = 20_000.0
    crashes_max: Count = 2
    crashes_at: Annotated[tuple[str, ...], AfterValidator(_moments)] = NARROW
    cancels_at: Annotated[tuple[str, ...], AfterValidator(_moments)] | None = None
    operators: Count = [0, 6]
    pause_s: Seconds = 12.0
    pieces: Share = PIECES
    commit_s: Seconds = 0.0005
    archive: Flag = False
    seed: Annotated[int, Strict(), Field(ge=0)] | None = None


class WeightedProfile(ScenarioModel):
    """Table ``leans.NAME`` of a scenario: changes to the scenario's other tables for a *share* of the seeds, so that
    rare conditions are usual in the runs of these seeds. A nested table (a shape, limits) is merged, not replaced."""

    share: Weight
    about: str = ""
    load: dict[str, Any] = {}
    agents: dict[str, Any] = {}
    faults: dict[str, Any] = {}
    world: dict[str, Any] = {}
    settings: dict[str, Any] = {}


class Scenario(ScenarioModel):
    """Scenario as written in the file, before a seed draws the open values. ``settings`` are settings of a plan:
    limits, the abort policy, the drain deadline. ``leans`` are weighted profiles by name; a seed draws one profile, or
    none."""

    name: Annotated[str, AfterValidator(is_name)]
    about: str = ""
    load: LoadConfig = LoadConfig()
    agents: AgentsConfig = AgentsConfig()
    faults: FaultsConfig = FaultsConfig()
    world: WorldConfig = WorldConfig()
    settings: dict[str, Any] = {}
    leans: dict[str, WeightedProfile] = {}

    @model_validator(mode="after")
    def _check_profiles(self) -> Self:
        if sum(profile.share for profile in self.leans.values()) > 1:
            raise ValueError("leans: their shares are more than 1 in all; make some smaller")
        for name, profile in self.leans.items():
            if "seed" in profile.world:  # a profile is drawn from the seed
                raise ValueError(f"leans.{name}: world.seed: a lean has no seed of its own; give the scenario one")
            try:
                self._with_profile(profile)
            except ValidationError as error:
                raise ValueError("; ".join(problems(f"leans.{name}", error, _table_at))) from None
        return self

    def with_drawn_profile(self, seed: int) -> Scenario:
        """Return the scenario merged with the weighted profile that the seed draws, or with no profile."""
        point = KeyedRandom(seed).below("scenario").unit("lean")
        for profile in self.leans.values():
            point -= profile.share
            if point < 0:
                return self._with_profile(profile)
        return self.model_copy(update={"leans": {}})

    def _with_profile(self, profile: WeightedProfile) -> Scenario:
        changes = profile.model_dump(exclude={"share", "about"})
        return Scenario.model_validate(merged(self.model_dump(exclude={"leans"}), changes))

    def check_draws(self, where: str) -> None:
        """Check all shapes and settings that a seed may draw, without a weighted profile and with each profile.

        Raises:
            BadScenario: a shape or setting that may be drawn is not valid; the message begins with *where*.
        """
        self._check_outcomes(where)
        for name, profile in self.leans.items():
            self._with_profile(profile)._check_outcomes(f"{where}: leans.{name}")

    def _check_outcomes(self, where: str) -> None:
        try:
            settings = outcomes(self.settings, "settings")
        except ValueError as error:
            raise BadScenario(f"{where}: {error}") from None
        for one in settings:
            _settings(one, where)
        choices = _choices(self.agents.shape)
        first = {key: options[0] for key, options in choices.items()}
        self._shaped(first, where)
        for key, options in choices.items():
            for one in options:
                self._shaped({**first, key: one}, where)

    def draw(self, seed: int) -> DrawnScenario:
        """Draw the scenario of a seed.

        Raises:
            BadScenario: a drawn shape or setting is not valid.
        """
        return self.with_drawn_profile(seed)._drawn(seed)

    def _drawn(self, seed: int) -> DrawnScenario:
        random, where = KeyedRandom(seed).below("scenario"), f"scenario {self.name}"
        choices = _choices(self.agents.shape)
        shape = self._shaped({key: random.choice(options, "shape", key) for key, options in choices.items()}, where)
        settings = _settings(drawn(self.settings, random, "settings"), where)
        world = drawn(self.world.model_dump(exclude=set(LISTS)), random, "world")
        return DrawnScenario(
            name=self.name,
            seed=seed,
            schedule=random.choice(self.world.schedules, "schedule"),
            settings=settings,
            shape=shape,
            weights=self.agents.weights,
            asks=self.agents.asks,
            kinds=tuple(kind for kind in FAULTS if any(fnmatchcase(kind, one) for one in self.faults.kinds)),
            intensity=drawn(self.faults.intensity, random, "intensity"),
            rates=self.faults.rates,
            only=self.faults.only,
            load=self.load,
            crashes_at=self.world.crashes_at,
            cancels_at=self.world.cancels_at,
            **world,
        )

    def _shaped(self, chosen: Mapping[str, Any], where: str) -> AgentShape:
        shape = {"adapter": "acp", **self.agents.shape, **chosen}
        for key in shape:
            if key not in AgentShape.__struct_fields__:
                words = closest(key, AgentShape.__struct_fields__, THE_KEYS)
                raise BadScenario(f"{where}: agents.shape.{key}: unknown key; {words}")
        try:
            return shape_of(shape)
        except ValueError as error:
            raise BadScenario(f"{where}: agents.shape: {error}") from None


def _settings(value: Mapping[str, Any], where: str) -> Settings:
    try:
        return Settings.model_validate(value)
    except ValidationError as error:
        lines = problems(f"{where}: settings", error, lambda path: model_at(path) if path else Settings)
        raise BadScenario("\n".join(lines)) from None


def merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return *table* with *changes* merged, nested tables included; a choice (``{ any = [...] }``) is replaced as a
    whole, as a value is."""
    return {**table, **{name: _changed(table.get(name), value) for name, value in changes.items()}}


def _changed(before: Any, value: Any) -> Any:
    tables = isinstance(value, Mapping) and isinstance(before, Mapping) and "any" not in {*value, *before}
    return merged(before, value) if tables else value


def _choices(shape: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the choices in a shape, by field: each seed draws an option of each. Ranges are drawn by the agents
    themselves, turn by turn."""
    found: dict[str, list[Any]] = {}
    for key, value in shape.items():
        match value:
            case {"any": [_, *_] as options, **rest} if not rest:
                found[key] = options
    return found


class DrawnScenario(msgspec.Struct, frozen=True, kw_only=True):
    """Scenario with the draws of one seed. Only open values of the load are still open: these are drawn for each
    customer."""

    name: str
    seed: int
    schedule: Schedule
    settings: Settings
    shape: AgentShape
    weights: tuple[float, ...]
    asks: float
    kinds: tuple[str, ...]
    intensity: float
    rates: dict[str, float]
    only: tuple[str, ...] | None
    load: LoadConfig
    grain_s: float
    heal_after_s: float
    quiet_s: float
    horizon_s: float
    crashes_max: int
    crashes_at: tuple[str, ...]
    cancels_at: tuple[str, ...] | None
    operators: int
    pause_s: float
    pieces: float
    commit_s: float
    archive: bool = False

    @property
    def over_s(self) -> float:
        """Virtual time at which everything must have ended: the horizon plus the hours of the load."""
        return self.horizon_s + HOUR_S * self.load.hours


# -------------------------------------------------------------------------------------------------------- loading
TABLES: dict[FieldPath, type[BaseModel]] = {
    (): Scenario,
    ("load",): LoadConfig,
    ("agents",): AgentsConfig,
    ("faults",): FaultsConfig,
    ("world",): WorldConfig,
}


def _table_at(path: FieldPath) -> type[BaseModel] | None:
    return WeightedProfile if path[:1] == ("leans",) else TABLES.get(path)


def parsed(where: str, text: str) -> Scenario:
    """Parse and check a scenario from the text of a file; *where* names the scenario in errors.

    Raises:
        BadScenario: the text is not a valid scenario.
    """
    try:
        scenario = Scenario.model_validate(tables_of(text))
    except ValidationError as error:
        raise BadScenario("\n".join(problems(where, error, _table_at))) from None
    except ValueError as error:
        raise BadScenario(f"{where}: {error}") from None
    scenario.check_draws(where)  # now, not in the middle of a soak
    return scenario


def load(path: Path) -> Scenario:
    """Read a scenario from a file.

    Raises:
        BadScenario: the file cannot be read, or is not a valid scenario.
    """
    try:
        text = text_of(path)
    except ValueError as error:
        raise BadScenario(f"{path}: {error}") from None
    return parsed(str(path), text)


def library() -> dict[str, str]:
    """Return the texts of the scenarios that are part of the package, by name, sorted by name."""
    folder = resources.files("supervisor.simulation") / "scenarios"
    files = sorted((one for one in folder.iterdir() if one.name.endswith(".toml")), key=lambda one: one.name)
    return {one.name.removesuffix(".toml"): one.read_text(encoding="utf-8") for one in files}


def named(name: str) -> Scenario:
    """Read a scenario of the library, or, if *name* ends in ``.toml``, the scenario in the file *name*.

    Raises:
        BadScenario: no such scenario exists, or the scenario is not valid.
    """
    if name.endswith(".toml"):
        return load(Path(name))
    texts = library()
    if name not in texts:
        raise BadScenario(f"no scenario is named {name!r}; there are {', '.join(texts)}, or give a FILE.toml")
    return parsed(f"scenario {name}", texts[name])
