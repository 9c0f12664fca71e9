"""Trust in agents, as a plan writes it: rights of each level, initial levels, and the time until a violation is
forgotten."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from pydantic import Field

from supervisor.plans.fields import Amount, Duration, Flag, Model, Name, OwnedPath, Several
from supervisor.policies.access import RIGHTS, AccessPolicy, Level, Rights


class RightsConfig(Model):
    """Rights of a task whose agent has a certain level: what it may change, and whether it may declare the network."""

    write: Flag | None = Field(
        default=None,
        description="Whether tasks of this level may change files; by default those of all levels but untrusted.",
    )
    network: Flag | None = Field(
        default=None,
        description="Whether this level is given tasks that declare the network; by default trusted and elevated are.",
    )
    files_max: Amount | None = Field(
        default=None,
        description="Number of files that one task may change; by default 0, 5, 20 and 100, from the lowest level up.",
    )
    directories: Several[OwnedPath] = Field(
        default=(), description="Directories of the repository that a task may change; []: all."
    )

    def value(self, level: Level) -> Rights:
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return msgspec.structs.replace(RIGHTS[level], **given)


class AccessConfig(Model):
    """Graduated access: initial levels of agents, seconds until a violation is forgotten, and the rights of each
    level."""

    decay_s: Duration = Field(
        default=86_400.0, description="Seconds after a violation for which the agent earns no level."
    )
    initial: Mapping[Name, Level] = Field(
        default={}, description="First levels of agents by name; other agents begin at untrusted."
    )
    untrusted: RightsConfig = Field(default=RightsConfig(), description="Rights of the lowest level.")
    probationary: RightsConfig = Field(
        default=RightsConfig(), description="Rights of the second level, which an agent earns with 1 closed task."
    )
    trusted: RightsConfig = Field(
        default=RightsConfig(), description="Rights of the third level, which an agent earns with 3 closed tasks."
    )
    elevated: RightsConfig = Field(
        default=RightsConfig(), description="Rights of the highest level, which an agent earns with 10 closed tasks."
    )

    def value(self) -> AccessPolicy:
        said: dict[Level, RightsConfig] = {level: getattr(self, level.value) for level in Level}
        rights = {level: one.value(level) for level, one in said.items()}
        return AccessPolicy(decay_s=self.decay_s, initial=dict(self.initial), rights=rights)
