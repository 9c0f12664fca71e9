"""What a supervisor that has closed still holds: nothing, if all is well."""

from __future__ import annotations

from collections.abc import Container

from supervisor.embedding.runtime import Supervisor

__all__ = ["counted"]


def counted(sup: Supervisor, entities: Container[str]) -> list[str]:
    """Of these *entities*, whom its overseer counts for, or watches; and who still hears how models fail. A scope of a
    host's own is the host's to close."""
    overseer = sup.overseer
    hearers = [f"{len(overseer.on_model_failed)} that hear of models"] if overseer.on_model_failed else []
    return [*sorted(one for one in {*overseer._scopes, *overseer._running} if one in entities), *hearers]
