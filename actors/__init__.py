"""Small actor kernel for anyio: state machines as tables, mailboxes with priority lanes, refs, supervisors, scopes.

The package does not depend on its user. A module of the package is imported when a name of the module is first used, so
that a program that needs the state machines alone imports no event loop.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.actor import (
        Abandoned,
        Actor,
        ActorCrashed,
        CancelSwallowed,
        Context,
        Crashed,
        DeadLetter,
        Down,
        KernelEvent,
        Killed,
        Normal,
        Paused,
        Shutdown,
        TaskFailed,
    )
    from actors.backoff import Backoff
    from actors.errors import (
        ActorError,
        ActorRestarting,
        ActorStopped,
        AskTimeout,
        InvalidOption,
        MailboxFull,
        NameTaken,
        NoSuchActor,
        StartFailed,
        StrayCancellation,
    )
    from actors.inspection import Inspection, Stats, TaskSeen
    from actors.machine import ANY, Effect, Event, IllegalTransition, Machine, Rule, Step, rule
    from actors.mailbox import Lane, Limits, Mailbox
    from actors.ref import DEFERRED, Ref
    from actors.restart import Intensity, Restart
    from actors.scopes import Scope
    from actors.supervision import (
        BRUTAL_KILL,
        ChildInfo,
        ChildSpec,
        RestartLimitExceeded,
        StartChild,
        StopChild,
        Supervisor,
        WhichChildren,
    )
    from actors.system import ActorSystem, open_system

__all__ = [
    "ANY",
    "BRUTAL_KILL",
    "DEFERRED",
    "Abandoned",
    "Actor",
    "ActorCrashed",
    "ActorError",
    "ActorRestarting",
    "ActorStopped",
    "ActorSystem",
    "AskTimeout",
    "Backoff",
    "CancelSwallowed",
    "ChildInfo",
    "ChildSpec",
    "Context",
    "Crashed",
    "DeadLetter",
    "Down",
    "Effect",
    "Event",
    "IllegalTransition",
    "Inspection",
    "Intensity",
    "InvalidOption",
    "KernelEvent",
    "Killed",
    "Lane",
    "Limits",
    "Machine",
    "Mailbox",
    "MailboxFull",
    "NameTaken",
    "NoSuchActor",
    "Normal",
    "Paused",
    "Ref",
    "Restart",
    "RestartLimitExceeded",
    "Rule",
    "Scope",
    "Shutdown",
    "StartChild",
    "StartFailed",
    "Stats",
    "Step",
    "StopChild",
    "StrayCancellation",
    "Supervisor",
    "TaskFailed",
    "TaskSeen",
    "WhichChildren",
    "open_system",
    "rule",
]

_NAMES = {
    "actors.actor": (
        "Abandoned",
        "Actor",
        "ActorCrashed",
        "CancelSwallowed",
        "Context",
        "Crashed",
        "DeadLetter",
        "Down",
        "KernelEvent",
        "Killed",
        "Normal",
        "Paused",
        "Shutdown",
        "TaskFailed",
    ),
    "actors.backoff": ("Backoff",),
    "actors.errors": (
        "ActorError",
        "ActorRestarting",
        "ActorStopped",
        "AskTimeout",
        "InvalidOption",
        "MailboxFull",
        "NameTaken",
        "NoSuchActor",
        "StartFailed",
        "StrayCancellation",
    ),
    "actors.inspection": ("Inspection", "Stats", "TaskSeen"),
    "actors.machine": ("ANY", "Effect", "Event", "IllegalTransition", "Machine", "Rule", "Step", "rule"),
    "actors.mailbox": ("Lane", "Limits", "Mailbox"),
    "actors.ref": ("DEFERRED", "Ref"),
    "actors.restart": ("Intensity", "Restart"),
    "actors.scopes": ("Scope",),
    "actors.supervision": (
        "BRUTAL_KILL",
        "ChildInfo",
        "ChildSpec",
        "RestartLimitExceeded",
        "StartChild",
        "StopChild",
        "Supervisor",
        "WhichChildren",
    ),
    "actors.system": ("ActorSystem", "open_system"),
}
"""Names of the API, by the module that defines them."""
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'actors' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value
