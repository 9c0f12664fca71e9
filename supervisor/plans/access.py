"""How far agents are trusted, as a person may write it: what a level may, where agents begin, how long faults count."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from supervisor.plans.fields import Amount, Duration, Flag, Model, Name, OwnedPath
from supervisor.policies.access import RIGHTS, AccessPolicy, Level, Rights

__all__ = ["AccessConfig", "RightsConfig"]


class RightsConfig(Model):
    """What a task of an agent of one level may change, and whether it may declare the network. What is not said stays
    as it is for that level."""

    write: Flag | None = None
    network: Flag | None = None
    files_max: Amount | None = None
    directories: tuple[OwnedPath, ...] = ()

    def value(self, level: Level) -> Rights:
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return msgspec.structs.replace(RIGHTS[level], **given)


class AccessConfig(Model):
    """Graduated access: where named agents begin instead of at the bottom, after how long a violation is forgotten, and
    what each level may."""

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
