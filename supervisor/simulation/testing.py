"""Tests against a production supervisor in virtual time, which run once for each seed and are checked by the oracle.

The error of a failed test names the seed and the command that runs exactly that seed again. No test framework is
imported here: the pytest plugin passes the seeds and the command.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from msgspec.structs import replace

from supervisor.host.api import Supervisor
from supervisor.plans import AgentConfig, Settings
from supervisor.ports.agent_profile import AgentFunction
from supervisor.simulation.agents.profile import AgentShape, shape_of
from supervisor.simulation.engine.schedule import Schedule
from supervisor.simulation.faults import FAULTS
from supervisor.simulation.running import MainResult, simulate_main
from supervisor.simulation.scenario import FaultsConfig, Scenario, WorldConfig

T = TypeVar("T")
Agent = AgentConfig | AgentShape | AgentFunction
HORIZON_S: Final = 20_000.0
"""Default for the virtual seconds after which a test counts as hanging."""
HORIZON_MAX_S: Final = 1_000_000
EXCLUDED: Final = ("host.", "machine.", "work.")
"""Prefixes of the kinds of faults that do not strike tests: faults of operators, of plans, and of the machine (kills of
the supervisor)."""
KINDS: Final = tuple(kind for kind in FAULTS if not kind.startswith(EXCLUDED))
"""Kinds of faults that may strike a test."""


class Violated(AssertionError):
    """Error: a run violated an invariant. The message contains the problems, and the command that repeats the run."""


class Simulate:
    """Runner that runs an async function as the host of a supervisor, once for each seed.

    Args:
        seeds: the seeds, one for each run.
        again: function that returns the command that repeats the run of a seed.
        schedule: schedule that overrides the schedule of every test.
    """

    def __init__(self, seeds: Iterable[int], again: Callable[[int], str], schedule: str | None = None) -> None:
        self._seeds = tuple(seeds)
        self._again = again
        self._schedule = schedule

    def __call__(
        self,
        main: Callable[[Supervisor], Awaitable[T]],
        *,
        faults: Collection[str] = (),
        intensity: float = 1.0,
        settings: Settings | None = None,
        agents: Mapping[str, Agent] | None = None,
        schedule: str | None = None,
        horizon_s: float = HORIZON_S,
    ) -> list[MainResult[T]]:
        """Run ``main(sup)`` with every seed; return the result of each.

        Args:
            main: an async function, in plain anyio. The function has no real clock, file or socket; virtual time passes
                when all tasks wait.
            faults: kinds of faults that may strike, as patterns (``disk.*``); each seed draws which of these kinds
                strike, and how often. The supervisor itself is never killed (``machine.*``). The actions of operators
                (``host.*``) are up to *main*, and failures of a plan's tasks (``work.*``) up to the plan's agents.
            intensity: factor for the rates of faults, 0 to 1.
            settings: settings of the supervisor, as for ``open_supervisor``.
            agents: agents by name. For a configured program a simulated agent with the program's adapter runs (for
                other adapters than ``command`` and ``jsonl``, with ACP); an ``AgentShape`` describes a simulated agent;
                a function is called as it is. By default the simulated ``acp``, ``command``, ``inprocess`` and
                ``jsonl``.
            schedule: name of the schedule, which decides the order of steps; by default each seed draws a schedule.
            horizon_s: virtual seconds after which *main* counts as hanging; sleeps of the machine (``clock.*``) do not
                count.

        Raises:
            Violated: the oracle found a violation.
            ValueError, TypeError: an argument is not valid; nothing was run.
            BaseException: the error that *main* raised, with a note that contains the command that runs the seed again.
        """
        __tracebackhide__ = True
        if not inspect.iscoroutinefunction(main):
            raise TypeError(f"main: {main!r} is not an async function; write async def main(sup): ...")
        if not isinstance(settings, Settings | None):
            raise TypeError(f"settings: {settings!r} is not a Settings; give supervisor.Settings(...)")
        if not isinstance(agents, Mapping | None):
            raise TypeError(f"agents: {agents!r} does not map names to agents; give {{name: agent}}")
        scenario = _scenario(faults, intensity, _schedule(self._schedule or schedule), horizon_s)
        playing = None if agents is None else {name: _playing(name, agent) for name, agent in agents.items()}

        def played(seed: int) -> MainResult[T]:
            __tracebackhide__ = True
            with _unlogged():
                done = simulate_main(
                    main, replace(scenario.draw(seed), settings=settings or Settings()), agents=playing
                )
            return self._checked(done)

        return list(map(played, self._seeds))

    def _checked(self, played: MainResult[T]) -> MainResult[T]:
        __tracebackhide__ = True
        report, error = played.report, played.error
        words = [f"seed {report.seed}, schedule {report.schedule}", *report.problems]
        if report.violations > len(report.problems):
            words.append(f"and {report.violations - len(report.problems)} more")
        text = "\n  ".join(words) + f"\nrun it again: {self._again(report.seed)}"
        if played.gave_up is not None:
            text = f"the supervisor gave up: {played.gave_up}\n{text}"
        if error is not None:
            error.add_note(text)
            raise error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        if report.violations:
            raise Violated(text)
        return played


@contextmanager
def _unlogged() -> Iterator[None]:
    """Disable logging within the block: a log record reads the real clock, which a simulated run refuses."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _scenario(faults: Collection[str], intensity: float, schedules: tuple[Schedule, ...], horizon_s: float) -> Scenario:
    if isinstance(faults, str):
        raise ValueError(f"faults: {faults!r} is one text; give a list of patterns, [{faults!r}]")
    if not isinstance(faults, Collection):
        raise TypeError(f"faults: {faults!r} is not a list of patterns; give one, for example ['disk.*']")
    for pattern in faults:
        if not isinstance(pattern, str) or not any(fnmatchcase(kind, pattern) for kind in KINDS):
            raise ValueError(f"faults: {pattern!r} fits no kind that strikes here; the kinds are {', '.join(KINDS)}")
    _check_number("intensity", intensity, 0, 1)
    _check_number("horizon_s", horizon_s, 1, HORIZON_MAX_S)
    return Scenario(
        name="test",
        faults=FaultsConfig(kinds=tuple(faults), intensity=intensity),
        world=WorldConfig(schedules=schedules, crashes_max=0, operators=0, horizon_s=horizon_s),
    )


def _check_number(name: str, value: float, least: float, most: float) -> None:
    """Check that *value* is a number within the bounds. A scenario would check the number too, but would report a wrong
    number as a range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name}: {value!r} is not a number from {least:,} to {most:,}; give one")


def _schedule(name: str | None) -> tuple[Schedule, ...]:
    if name is None:
        return tuple(Schedule)
    if name not in list(Schedule):
        raise ValueError(f"schedule: {name!r} is unknown; use one of {', '.join(Schedule)}")
    return (Schedule(name),)


def _playing(name: str, agent: Agent) -> AgentShape | AgentFunction:
    """Return the simulated agent, or the function, that runs in place of *agent*."""
    if not isinstance(name, str):
        raise TypeError(f"agents: {name!r} is not a name; give {{name: agent}}, where the name is a text")
    if isinstance(agent, AgentShape):
        return agent
    if isinstance(agent, AgentConfig):
        return shape_of({"adapter": agent.adapter if agent.adapter in ("command", "jsonl") else "acp"})
    if not inspect.iscoroutinefunction(agent):
        raise TypeError(f"agents: {name}: {agent!r} is not an AgentConfig, an AgentShape or an async function")
    return agent
