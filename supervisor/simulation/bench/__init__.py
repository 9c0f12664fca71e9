"""Failure benchmarks: named policies under the same failures, seed by seed, and the cost of each policy.

A suite is a set of scenarios and a set of policies, which are settings merged into the settings of a scenario. Times
are virtual, so the numbers measure decisions, not a machine: the same seeds give the same bytes everywhere, and the
digests beside a suite allow anybody to check this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec
from pydantic import ValidationError

from supervisor.simulation.bench.plots import Panel, figure
from supervisor.simulation.bench.suite import BadSuite, Overrides, ScenarioComparison, Suite, stem_of
from supervisor.simulation.running import simulate
from supervisor.simulation.scenario import BadScenario, DrawnScenario, LoadConfig, Scenario, merged, named
from supervisor.simulation.search.many import TaskFailed, map_in_order
from supervisor.simulation.toml_fields import problems

__all__ = ["METRICS", "Bench", "Metric", "bench", "check", "nearest_rank", "summary_of"]

Sample = tuple[float | None, ...]


class Metric(NamedTuple):
    """Quantity that a benchmark counts. ``of``: the unit of the quantity's sample; ``scale``: the scale of the axis on
    which the quantity is drawn."""

    key: str
    title: str
    unit: str
    of: str
    scale: Any
    decimals: int
    meaning: str


METRICS: Final = (
    Metric(
        "recovery_s",
        "Time to recover",
        "seconds (virtual)",
        "losses",
        "root",
        3,
        "from the loss of a customer's turn to its next completed one; never, where there is none",
    ),
    Metric("lost_prompts", "Work lost", "prompts per run", "runs", "linear", 0, "prompts never completed"),
    Metric("wasted_turns", "Wasted turns", "turns per run", "runs", "linear", 0, "turns launched and not completed"),
    Metric(
        "blast_radius",
        "Blast radius",
        "other sessions ended",
        "aborts and failures",
        "linear",
        0,
        "sessions that ended by an abort of, or the failure of, another one",
    ),
    Metric("wasted_tokens", "Tokens wasted", "tokens per run", "runs", "root", 0, "tokens of turns not completed"),
    Metric("wasted_usd", "Money wasted", "US dollars per run", "runs", "root", 4, "the price of those tokens"),
)


class _RunSpec(NamedTuple):
    """Specification of one run of a benchmark, which is sent to another process."""

    scenario: str
    policy: str
    overrides: Overrides
    under: ScenarioComparison
    heal_after_s: float
    seed: int


class _RunSamples(NamedTuple):
    """Samples of one run of a benchmark, by metric, with the run's digest and problems."""

    digest: str
    samples: dict[str, Sample]
    problems: tuple[str, ...]


class Bench(msgspec.Struct, kw_only=True):
    """Results of a suite: samples and problems by scenario and policy, from *runs* runs."""

    suite: Suite
    first_seed: int
    seeds: int
    runs: int = 0
    samples: dict[tuple[str, str], dict[str, list[float | None]]] = {}
    digests: dict[tuple[str, str], Any] = {}
    problems: list[str] = []
    """Problems of runs, each with the seed of the run; the numbers of a run with a problem mean nothing."""

    def take(self, ask: _RunSpec, told: _RunSamples | TaskFailed) -> None:
        """Add the samples of one run. Runs are added in the order in which they were requested."""
        self.runs += 1
        where = f"{ask.scenario}, {ask.policy}, seed {ask.seed}"
        if isinstance(told, TaskFailed):
            self.problems.append(f"{where}: {told.words}")
            return
        self.problems += [f"{where}: {one}" for one in told.problems]
        cell = ask.scenario, ask.policy
        self.digests.setdefault(cell, blake2b(digest_size=16)).update(told.digest.encode())
        samples = self.samples.setdefault(cell, {metric.key: [] for metric in METRICS})
        for key, values in told.samples.items():
            samples[key] += values

    def summaries(self, scenario: str, policy: str) -> dict[str, SampleSummary]:
        """Return the summaries (percentiles) of all metrics for a scenario and policy, in the order of ``METRICS``."""
        samples = self.samples.get((scenario, policy), {})
        return {one.key: summary_of(samples.get(one.key, ()), one.decimals) for one in METRICS}

    # ------------------------------------------------------------------ what is written
    def files(self) -> dict[str, str]:
        """Return the texts of the result files, by name; the texts must be the same on every machine."""
        text = json.dumps(self.value(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        return dict(zip(self.suite.files, (text, *map(self._drawing, self.suite.scenarios)), strict=True))

    def value(self) -> dict[str, Any]:
        """Return the results as a JSON value. ``runs`` is a digest of every step of every run."""
        return {
            "suite": self.suite.name,
            "first_seed": self.first_seed,
            "seeds": self.seeds,
            "usd_per_million_tokens": self.suite.usd_per_million_tokens,
            "heal_after_s": self.suite.heal_after_s,
            "policies": self.suite.policies,
            "under": {
                stem_of(scenario): {"intensity": under.intensity, "load": under.load, "operators": under.operators}
                for scenario, under in self.suite.scenarios.items()
            },
            "metrics": {one.key: f"{one.meaning} ({one.unit})" for one in METRICS},
            "problems": self.problems,
            "scenarios": {
                stem_of(scenario): {policy: self._cell(scenario, policy) for policy in under.policies}
                for scenario, under in self.suite.scenarios.items()
            },
        }

    def _cell(self, scenario: str, policy: str) -> dict[str, Any]:
        digest = self.digests.get((scenario, policy))
        summaries = self.summaries(scenario, policy).items()
        return {
            "runs": digest.hexdigest() if digest else "",
            **{key: msgspec.to_builtins(summary) for key, summary in summaries},
        }

    def _drawing(self, scenario: str) -> str:
        last = self.first_seed + self.seeds - 1
        subtitle = f"{named(scenario).about} Seeds {self.first_seed} to {last}; further left and higher is better."
        return figure(
            f"{self.suite.name}: {stem_of(scenario)}", subtitle, [self._panel(scenario, one) for one in METRICS]
        )

    def _panel(self, scenario: str, metric: Metric) -> Panel:
        cells = {policy: self.samples.get((scenario, policy), {}) for policy in self.suite.scenarios[scenario].policies}
        samples = {policy: cell.get(metric.key, ()) for policy, cell in cells.items()}
        return Panel(metric.title, metric.unit, samples, metric.scale, metric.of)


# ------------------------------------------------------------------------------------------------------------ running
def bench(
    suite: Suite, *, seeds: int, first_seed: int = 1, jobs: int = 1, told: Callable[[int, int], None] | None = None
) -> tuple[Bench, bool]:
    """Run every scenario of the suite under every policy with every seed; call ``check`` before, to validate the suite.
    *told* is called with the number of runs so far and in all. Return the results, and whether all runs were made
    (false if Ctrl-C came first)."""
    result = Bench(suite=suite, first_seed=first_seed, seeds=seeds)
    asks = list(_asks(suite, range(first_seed, first_seed + seeds)))

    def take(ask: _RunSpec, answer: _RunSamples | TaskFailed) -> None:
        result.take(ask, answer)
        if told is not None:
            told(result.runs, len(asks))

    complete = map_in_order(partial(_run, suite.usd_per_million_tokens), asks, jobs, take)
    return result, complete


def _asks(suite: Suite, seeds: Iterable[int]) -> Iterator[_RunSpec]:
    for scenario, under in suite.scenarios.items():
        for policy in under.policies:
            for seed in seeds:
                yield _RunSpec(scenario, policy, suite.policies[policy], under, suite.heal_after_s, seed)


_scenario = cache(named)


def check(suite: Suite, where: str, given: Collection[str] = ()) -> None:
    """Check each policy with each scenario, for everything that a seed may draw, before anything runs. *given*: names
    of the policies from the command line.

    Raises:
        BadSuite: a scenario, the scenario's load, or a policy with the scenario cannot be run; the message begins with
            *where*, or with ``--policy``.
    """
    for name, under in suite.scenarios.items():
        try:
            scenario = _scenario(name)
        except BadScenario as error:
            raise BadSuite(f"{where}: scenarios: {error}") from None
        try:
            load = _load(scenario, under)
        except ValidationError as error:
            raise BadSuite(
                "\n".join(problems(f"{where}: scenarios.{name}.load", error, lambda path: LoadConfig))
            ) from None
        for policy in under.policies:
            whose = f"--policy {policy}" if policy in given else f"{where}: policies.{policy}"
            settings = merged(scenario.settings, suite.policies[policy])
            try:
                scenario.model_copy(update={"settings": settings, "load": load}).check_draws(f"{whose}, over {name}")
            except BadScenario as error:
                raise BadSuite(str(error)) from None


def _drawn(ask: _RunSpec) -> DrawnScenario:
    """Draw the scenario of a run. Customers have no separate abort policies here, so the suite's policy applies."""
    scenario: Scenario = _scenario(ask.scenario)
    settings = merged(scenario.settings, ask.overrides)
    load = _load(scenario, ask.under)
    operators = scenario.world.operators if ask.under.operators is None else ask.under.operators
    world = scenario.world.model_copy(update={"heal_after_s": ask.heal_after_s, "operators": operators})
    drawn = scenario.model_copy(update={"settings": settings, "load": load, "world": world}).draw(ask.seed)
    return msgspec.structs.replace(drawn, intensity=drawn.intensity * ask.under.intensity)


def _load(scenario: Scenario, under: ScenarioComparison) -> LoadConfig:
    return LoadConfig.model_validate({**scenario.load.model_dump(), **under.load, "crossing": 0.0})


def _run(usd_per_million_tokens: float, ask: _RunSpec) -> _RunSamples:
    report = simulate(_drawn(ask))
    tally, cost = report.tally, report.cost
    samples: dict[str, Sample] = {
        "recovery_s": (*tally.recoveries_s, *[None] * tally.unrecovered),
        "lost_prompts": (tally.unanswered,),
        "wasted_turns": (cost.wasted_turns,),
        "blast_radius": cost.reached,
        "wasted_tokens": (cost.wasted_tokens,),
        "wasted_usd": (cost.wasted_tokens * usd_per_million_tokens / 1e6,),
    }
    return _RunSamples(report.digest, samples, report.problems)


# ------------------------------------------------------------------------------------------------------ percentiles
# By nearest rank: each is a value that was there, so no rounding depends on a machine. What never happened counts as
# later than everything that did.
class SampleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a sample. A percentile is ``None`` if it falls on an event that never happened, or if the sample is
    empty; ``total`` is the sum of the values of events that happened."""

    count: int
    never: int
    total: float
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


def nearest_rank(ordered: Sequence[float], count: int, percent: int) -> float | None:
    """Return the smallest value that is not exceeded by at least *percent* percent of *count* events; ``None`` if there
    is no such value. *ordered* holds the sorted values of the events that happened."""
    rank = -(-count * percent // 100)
    return ordered[max(rank, 1) - 1] if 0 < rank <= len(ordered) else None


def summary_of(sample: Sequence[float | None], decimals: int) -> SampleSummary:
    """Return the summary of a sample, with values rounded to *decimals* decimals."""
    happened = sorted(round(one, decimals) if decimals else one for one in sample if one is not None)
    at = {f"p{percent}": nearest_rank(happened, len(sample), percent) for percent in (50, 90, 99)}
    return SampleSummary(
        count=len(sample),
        never=len(sample) - len(happened),
        total=round(sum(happened), decimals),
        max=nearest_rank(happened, len(sample), 100),
        **at,
    )
