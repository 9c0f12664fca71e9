"""Setup of sessions: the agents by name, the settings, and the working directory.

A supervisor has one setup. A run of a plan that was submitted to a daemon has a setup of its own, by the id of the run:
the agents and limits of its plan, and the directory of its submitter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from actors.one_shot_event import OneShotEvent
from supervisor.lifecycles.run_ids import run_of
from supervisor.plans import Settings
from supervisor.policies.access import AccessPolicy
from supervisor.policies.redaction import KnownSecrets
from supervisor.ports.agent_profile import AgentProfile
from supervisor.ports.logs import conceal
from supervisor.runtime.journal_writer import JournalWriter


class Setup(NamedTuple):
    """Agents by name, settings and working directory of sessions that start from now on."""

    agents: Mapping[str, AgentProfile]
    settings: Settings
    workdir: str


class Setups:
    """The setup of a supervisor (``common``), and the setups of runs that have one of their own (``of_runs``).

    The secrets of all agents, former ones included, are redacted in records, transcripts and logs.
    """

    def __init__(self, common: Setup, journal_writer: JournalWriter) -> None:
        self.common = common
        self.of_runs: dict[str, Setup] = {}
        self.configured = OneShotEvent()
        """Set, and replaced, whenever the settings change."""
        self.access_policy: AccessPolicy | None = None
        """The access policy of the settings; ``None``: there is none."""
        self._secrets = KnownSecrets()
        self._journal_writer = journal_writer
        self.configure(common.agents, common.settings)

    @property
    def settings(self) -> Settings:
        """Settings for every session that starts from now on, unless its run has settings of its own."""
        return self.common.settings

    @property
    def session_limits(self) -> Mapping[str, int]:
        """The largest number of tasks that may be at work at once with an agent, by the agent's name."""
        limits = {name: profile.max_sessions for name, profile in self.common.agents.items()}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def of(self, entity_id: str) -> Setup:
        """Return the setup of a run, or of a task, given its id; the common one if the run has none of its own, or for
        ``""``."""
        return self.of_runs.get(run_of(entity_id), self.common)

    def profile(self, name: str, entity_id: str = "") -> AgentProfile | None:
        """Return the profile of the configured agent with that name, or ``None``. *entity_id* is the run or the task
        that the agent works for."""
        return self.of(entity_id).agents.get(name)

    def configure(self, agents: Mapping[str, AgentProfile], settings: Settings) -> None:
        """Set the agents and settings for every session that starts from now on."""
        self.common = Setup(dict(agents), settings, self.common.workdir)
        self.configured.set()
        self.configured = OneShotEvent()
        self.access_policy = settings.access.value() if settings.access is not None else None
        self.hide_values([*_secrets(agents.values()), *(dict(one.headers) for one in settings.notice_targets)])

    def configure_run(self, run: str, setup: Setup) -> None:
        """Set the agents, settings and working directory of the sessions of *run*."""
        self.of_runs[run] = setup
        self.hide_values(list(_secrets(setup.agents.values())))

    def hide_values(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Redact the secrets among the values of *environments* from now on, in records, transcripts and logs. Secrets
        that no agent has any more are dropped when there are many newer ones."""
        if not self._secrets.add(environments):  # runs of a daemon often have the same
            return
        setups = (self.common, *self.of_runs.values())
        self._secrets.drop_oldest(env for one in setups for env in _secrets(one.agents.values()))
        self._journal_writer.redactor = self._secrets.redactor
        conceal(environments)


def _secrets(agents: Iterable[AgentProfile]) -> Iterator[Mapping[str, str]]:
    """Yield the environments and headers of *agents* and of their MCP servers, in which there may be secrets."""
    for profile in agents:
        yield profile.env
        for one in profile.agent_options.mcp_servers:
            yield from (one.env, one.headers)
