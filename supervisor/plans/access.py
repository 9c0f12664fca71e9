"""Trust in agents, as a plan writes it: rights of each level, initial levels, and the time until a violation is
forgotten."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from supervisor.plans.fields import Amount, Duration, Flag, Model, Name, OwnedPath, Several
from supervisor.policies.access import RIGHTS, AccessPolicy, Level, Rights


class RightsConfig(Model):
    """Rights of a task whose agent has a certain level: what it may change, and whether it may declare the network. A
    field that is not given keeps the level's default."""

    write: Flag | None = None
    network: Flag | None = None
    files_max: Amount | None = None
    directories: Several[OwnedPath] = ()

    def value(self, level: Level) -> Rights:
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return msgspec.structs.replace(RIGHTS[level], **given)


class AccessConfig(Model):
    """Graduated access: initial levels of named agents (others begin at the lowest level), seconds until a violation is
    forgotten, and the rights of each level."""

    decay_s: Duration = 86_400.0
    initial: Mapping[Name, Level] = {}
    untrusted: RightsConfig = RightsConfig()
    probationary: RightsConfig = RightsConfig()
    trusted: RightsConfig = RightsConfig()
    elevated: RightsConfig = RightsConfig()

    def value(self) -> AccessPolicy:
        said: dict[Level, RightsConfig] = {level: getattr(self, level.value) for level in Level}
        rights = {level: one.value(level) for level, one in said.items()}
        return AccessPolicy(decay_s=self.decay_s, initial=dict(self.initial), rights=rights)
