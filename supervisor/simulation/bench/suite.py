"""Suites of benchmarks: which policies are compared under which scenarios, as a TOML file, and the digests beside it.

A file is checked before anything runs, and what is wrong is told with its place. Only this module reads or writes such
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from supervisor.simulation.toml_text import tables_of

__all__ = [
    "BadSuite",
    "Digests",
    "Overrides",
    "Place",
    "Suite",
    "Under",
    "digests_of",
    "load_suite",
    "parse_policy",
    "with_policies",
]

Overrides = dict[str, Any]


class BadSuite(Exception):
    """A suite, or a policy, that cannot be run; the message says which, why, and what would be right."""


class Under(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a scenario compares: policies by name. ``intensity`` scales how often its faults strike, over 1 too.

    ``load`` is laid over the scenario's, and ``operators`` stands for its: a policy shows on a few customers, and more
    seeds say more than more customers do.
    """

    policies: tuple[str, ...]
    intensity: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    load: dict[str, Any] = {}
    operators: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Policies by name: settings, laid over those of a scenario; and scenarios by name (or ``FILE.toml``).

    ``usd_per_million_tokens`` turns wasted tokens into money. Faults strike for ``heal_after_s`` virtual seconds after
    the last customer came, whatever the scenarios say: most of the work should meet them.
    """

    name: str
    about: str = ""
    usd_per_million_tokens: Annotated[float, msgspec.Meta(ge=0)]
    heal_after_s: Annotated[float, msgspec.Meta(ge=0)]
    scenarios: dict[str, Under]
    policies: dict[str, Overrides]


class Digests(NamedTuple):
    """What the files of a suite are, for some seeds, wherever it runs."""

    first_seed: int
    seeds: int
    by_file: Mapping[str, str]

    def text(self) -> str:
        """As it is kept beside a suite."""
        lines = [f"{digest}  {name}" for name, digest in self.by_file.items()]
        return "\n".join([f"seeds {self.first_seed} {self.seeds}", *lines, ""])


def digests_of(first_seed: int, seeds: int, files: Mapping[str, str]) -> Digests:
    """Those of *files*."""
    by_file = {name: blake2b(text.encode(), digest_size=16).hexdigest() for name, text in files.items()}
    return Digests(first_seed, seeds, by_file)


class Place(NamedTuple):
    """Where a suite is, and its digests: files, or what a package holds."""

    suite: Any
    digests: Any

    def read_digests(self) -> Digests:
        """Those that were kept.

        Raises:
            BadSuite: there are none, or they make no sense.
        """
        try:
            head, *lines = self.digests.read_text(encoding="utf-8").splitlines()
            _, first_seed, seeds = head.split()
            by_file = {name: digest for digest, name in (line.split() for line in lines)}
            return Digests(int(first_seed), int(seeds), by_file)
        except FileNotFoundError:
            raise BadSuite(f"{self.digests}: there are no digests yet; make them with --write-digests") from None
        except (OSError, ValueError) as error:
            raise BadSuite(f"{self.digests}: {error}; make it anew with --write-digests") from None

    def write_digests(self, digests: Digests) -> None:
        """Keep them.

        Raises:
            BadSuite: they cannot be written.
        """
        try:
            Path(str(self.digests)).write_text(digests.text(), encoding="utf-8")
        except OSError as error:
            raise BadSuite(f"{self.digests}: cannot be written: {error}") from None


def load_suite(name: str) -> tuple[Suite, Place]:
    """A suite that comes with the program, or, where *name* ends in ``.toml``, one of a file.

    Raises:
        BadSuite: there is none, or it cannot be used.
    """
    place = _place(name)
    try:
        text = place.suite.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError) and not name.endswith(".toml"):
            known = ", ".join(_library())
            raise BadSuite(f"no suite is named {name!r}; there is {known}, or give a FILE.toml") from None
        raise BadSuite(f"{name}: cannot be read: {error}") from None
    return _parsed(f"suite {name}", text), place


def _folder() -> Any:
    return resources.files("supervisor.simulation.bench") / "suites"


def _library() -> list[str]:
    return sorted(one.name.removesuffix(".toml") for one in _folder().iterdir() if one.name.endswith(".toml"))


def _place(name: str) -> Place:
    if name.endswith(".toml"):
        return Place(Path(name), Path(name).with_suffix(".digests"))
    return Place(_folder() / f"{name}.toml", _folder() / f"{name}.digests")


def _parsed(where: str, text: str) -> Suite:
    try:
        suite = msgspec.convert(tables_of(text), Suite)
    except ValueError as error:
        raise BadSuite(f"{where}: {error}") from None
    if not suite.scenarios or not all(under.policies for under in suite.scenarios.values()):
        raise BadSuite(f"{where}: scenarios: give at least one, and each the names of its policies")
    for scenario, under in suite.scenarios.items():
        if unknown := [one for one in under.policies if one not in suite.policies]:
            known = ", ".join(suite.policies)
            raise BadSuite(f"{where}: scenarios.{scenario}: {unknown[0]!r} is no policy of it; there are {known}")
    return suite


def parse_policy(words: str) -> tuple[str, Overrides]:
    """``NAME=limits.restarts_max=9,policy.ladder.request_s=1``: a policy from the command line.

    Raises:
        BadSuite: it is none.
    """
    name, _, table = words.partition("=")
    if not name or not table:
        raise BadSuite(f"--policy {words!r}: write NAME=KEY=VALUE,..., for example mine=limits.restarts_max=9")
    try:
        return name, tables_of(f"it = {{ {table} }}")["it"]
    except ValueError as error:
        raise BadSuite(f"--policy {name}: {table!r} is not KEY=VALUE,... of settings: {error}") from None


def with_policies(suite: Suite, policies: Mapping[str, Overrides]) -> Suite:
    """The suite with more policies, compared in every scenario; one of a name that is there takes its place."""
    scenarios = {
        name: msgspec.structs.replace(under, policies=tuple(dict.fromkeys((*under.policies, *policies))))
        for name, under in suite.scenarios.items()
    }
    return msgspec.structs.replace(suite, scenarios=scenarios, policies={**suite.policies, **policies})
