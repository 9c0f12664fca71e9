"""Suites of benchmarks: policies to compare, and scenarios in which to compare the policies, as TOML files. A file with
digests of the results is kept beside each suite.

A suite is checked before anything runs, and each error names a field. Only this module reads or writes these files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from supervisor.plans.source import FieldPath
from supervisor.simulation.toml_fields import is_name, problems
from supervisor.simulation.toml_text import tables_of, text_of

Overrides = dict[str, Any]
HEAD: Final = re.compile(r"seeds ([0-9]{1,9}) ([1-9][0-9]{0,8})")
"""Pattern for the first line of a digests file: the first seed, and the number of seeds."""


class BadSuite(Exception):
    """Error: a suite or a policy cannot be run. The message names the suite or policy, the problem, and the fix."""


class SuiteModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _some(policies: tuple[str, ...]) -> tuple[str, ...]:
    if not policies:
        raise ValueError("[] compares nothing; name some of the suite's policies")
    if twice := [one for number, one in enumerate(policies) if one in policies[:number]]:
        raise ValueError(f"{twice[0]!r} is named twice; name it once")
    return policies


def _apart(scenarios: dict[str, ScenarioComparison]) -> dict[str, ScenarioComparison]:
    """Check that no two scenarios have the same stem, since result files are named by the stem."""
    if not scenarios:
        raise ValueError("{} compares nothing; give at least one, for example [scenarios.quiet]")
    named: dict[str, str] = {}
    for scenario in scenarios:
        other = named.setdefault(stem_of(scenario), scenario)
        if other != scenario:
            words = f"would both be written to {stem_of(scenario)}.svg; give one of the files another name"
            raise ValueError(f"{other!r} and {scenario!r} {words}")
    return scenarios


class ScenarioComparison(SuiteModel):
    """Table ``scenarios.NAME`` of a suite: policies to compare in a scenario. ``intensity`` is a factor for the rates
    of the scenario's faults; the factor may exceed 1.

    ``load`` is merged into the scenario's load, and ``operators`` replaces the scenario's number of operators: the
    effect of a policy is visible with a few customers, and more seeds are more informative than more customers.
    """

    policies: Annotated[tuple[str, ...], AfterValidator(_some)]
    intensity: Annotated[float, Strict(), Field(ge=0, le=100, allow_inf_nan=False)] = 1.0
    load: dict[str, Any] = {}
    operators: Annotated[int, Strict(), Field(ge=0, le=100)] | None = None


class Suite(SuiteModel):
    """Suite of a benchmark: policies by name (settings, merged into the settings of a scenario), and scenarios by name
    (or ``FILE.toml``).

    ``usd_per_million_tokens`` converts wasted tokens into money. Faults may strike until ``heal_after_s`` virtual
    seconds after the last customer arrived, whatever the scenarios set: most of the work should meet faults.
    """

    name: Annotated[str, AfterValidator(is_name)]
    about: str = ""
    usd_per_million_tokens: Annotated[float, Strict(), Field(ge=0, le=1e6, allow_inf_nan=False)]
    heal_after_s: Annotated[float, Strict(), Field(ge=0, le=1e6, allow_inf_nan=False)]
    scenarios: Annotated[dict[str, ScenarioComparison], AfterValidator(_apart)]
    policies: dict[str, Overrides]

    @model_validator(mode="after")
    def _policies_known(self) -> Self:
        for scenario, under in self.scenarios.items():
            if unknown := [one for one in under.policies if one not in self.policies]:
                known = ", ".join(self.policies)
                raise ValueError(f"scenarios.{scenario}.policies: {unknown[0]!r} is not defined; the suite has {known}")
        return self

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the result files: a file with the numbers, and a plot for each scenario."""
        return (f"{self.name}.json", *(f"{stem_of(one)}.svg" for one in self.scenarios))

    def with_policies(self, policies: Mapping[str, Overrides]) -> Suite:
        """Return the suite with more policies, which are compared in every scenario; a policy with an existing name
        replaces the existing policy."""
        scenarios = {
            name: under.model_copy(update={"policies": tuple(dict.fromkeys((*under.policies, *policies)))})
            for name, under in self.scenarios.items()
        }
        return self.model_copy(update={"scenarios": scenarios, "policies": {**self.policies, **policies}})


def stem_of(scenario: str) -> str:
    """Return the name of a scenario in the names of result files, for a scenario of the library or in a file."""
    return Path(scenario).stem


def _table_at(path: FieldPath) -> type[BaseModel]:
    return ScenarioComparison if path[:1] == ("scenarios",) else Suite


class Digests(NamedTuple):
    """Digests of a suite's result files for some seeds; the digests are the same on every machine."""

    first_seed: int
    seeds: int
    by_file: Mapping[str, str]

    def text(self) -> str:
        """Return the text of the digests file."""
        lines = [f"{digest}  {name}" for name, digest in self.by_file.items()]
        return "\n".join([f"seeds {self.first_seed} {self.seeds}", *lines, ""])


def digests_of(first_seed: int, seeds: int, files: Mapping[str, str]) -> Digests:
    """Compute the digests of the result files *files* (name to text)."""
    by_file = {name: blake2b(text.encode(), digest_size=16).hexdigest() for name, text in files.items()}
    return Digests(first_seed, seeds, by_file)


class SuiteFiles(NamedTuple):
    """Locations of a suite's file and of its digests file, on disk or in a package."""

    suite: Any
    digests: Any

    @property
    def digests_file(self) -> Path:
        """Path of the digests file."""
        return Path(str(self.digests))

    def read_digests(self) -> Digests:
        """Read the digests file.

        Raises:
            BadSuite: the digests file does not exist, or is not valid.
        """
        try:
            return _digests(self.digests.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BadSuite(f"{self.digests}: there are no digests yet; make them with --write-digests") from None
        except (OSError, ValueError) as error:
            raise BadSuite(f"{self.digests}: {error}; make it anew with --write-digests") from None

    def write_digests(self, digests: Digests) -> None:
        """Write the digests file.

        Raises:
            BadSuite: the digests file cannot be written.
        """
        try:
            self.digests_file.write_text(digests.text(), encoding="utf-8")
        except OSError as error:
            raise BadSuite(
                f"{self.digests}: cannot be written: {error.strerror}; copy the suite to where you may write"
            ) from None


def _digests(text: str) -> Digests:
    """Parse the text of a digests file; raise ``ValueError`` if the text is not valid."""
    head, *lines = text.splitlines() or [""]
    seeds = HEAD.fullmatch(head)
    if seeds is None:
        raise ValueError(f"its first line is {head!r}, and not of the form 'seeds FIRST COUNT', with 1 seed or more")
    by_file = {}
    for line in lines:
        digest, _, name = line.partition("  ")
        if not name:
            raise ValueError(f"{line!r} is not of the form 'DIGEST  FILE'")
        by_file[name] = digest
    return Digests(int(seeds[1]), int(seeds[2]), by_file)


def load_suite(name: str) -> tuple[Suite, SuiteFiles]:
    """Read a suite of the library, or, if *name* ends in ``.toml``, the suite in the file *name*; also return the
    locations of its files.

    Raises:
        BadSuite: the suite does not exist, or is not valid.
    """
    place, where = _place(name), f"suite {name}"
    try:
        return Suite.model_validate(tables_of(text_of(place.suite))), place
    except ValidationError as error:
        raise BadSuite("\n".join(problems(where, error, _table_at))) from None
    except ValueError as error:
        raise BadSuite(f"{where}: {error}") from None


def _place(name: str) -> SuiteFiles:
    if name.endswith(".toml"):
        return SuiteFiles(Path(name), Path(name).with_suffix(".digests"))
    folder: Any = resources.files("supervisor.simulation.bench") / "suites"
    library = sorted(one.name.removesuffix(".toml") for one in folder.iterdir() if one.name.endswith(".toml"))
    if name not in library:
        raise BadSuite(f"no suite is named {name!r}; there is {', '.join(library)}, or give a FILE.toml")
    return SuiteFiles(folder / f"{name}.toml", folder / f"{name}.digests")


def parse_policy(words: str) -> tuple[str, Overrides]:
    """Parse a policy from the command line: ``NAME=limits.restarts_max=9,policy.ladder.request_s=1``.

    Raises:
        BadSuite: *words* is not of this form.
    """
    name, _, table = words.partition("=")
    if not name or not table:
        raise BadSuite(f"--policy {words!r}: write NAME=KEY=VALUE,..., for example mine=limits.restarts_max=9")
    try:
        return name, tables_of(f"it = {{ {table} }}")["it"]
    except ValueError as error:
        raise BadSuite(f"--policy {name}: {table!r} is not KEY=VALUE,... of settings: {error}") from None
