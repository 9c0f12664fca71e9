"""A small actor kernel for anyio: machines as tables, mailboxes with lanes, refs, timers, scopes, and a nursery tree.

It stands on its own: nothing here knows what the actors are for.
"""

from actors.actor import DEFERRED, Actor, Context, Crashed, Down, Shutdown, TaskFailed
from actors.errors import ActorError, ActorStopped, AskTimeout, MailboxFull, NameTaken
from actors.machine import ANY, Effect, Event, IllegalTransition, Machine, Rule, Step, rule
from actors.mailbox import Lane, Mailbox
from actors.nursery import ActorSystem, DeadLetter, open_system
from actors.ref import Ref
from actors.scopes import Scope

__all__ = [
    "ANY",
    "DEFERRED",
    "Actor",
    "ActorError",
    "ActorStopped",
    "ActorSystem",
    "AskTimeout",
    "Context",
    "Crashed",
    "DeadLetter",
    "Down",
    "Effect",
    "Event",
    "IllegalTransition",
    "Lane",
    "Machine",
    "Mailbox",
    "MailboxFull",
    "NameTaken",
    "Ref",
    "Rule",
    "Scope",
    "Shutdown",
    "Step",
    "TaskFailed",
    "open_system",
    "rule",
]
