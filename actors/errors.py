"""The kernel's errors. Each composes its own message, names the actor and the value, and says what can be done."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ActorError",
    "ActorRestarting",
    "ActorStopped",
    "AskTimeout",
    "DeadlockError",
    "InvalidOption",
    "MailboxFull",
    "MessageDropped",
    "NameTaken",
    "NoSuchActor",
    "StartFailed",
    "StrayCancellation",
    "WrongMessage",
]


class ActorError(Exception):
    """Base of the kernel's errors."""


class InvalidOption(ActorError, ValueError):
    """An option has a value that it cannot have."""

    def __init__(self, whose: str, field: str, value: object, fix: str) -> None:
        self.whose, self.field, self.value = whose, field, value
        super().__init__(f"{whose}: {field} is {value!r}; {fix}")


class WrongMessage(ActorError, TypeError):
    """The actor declares which messages it ``accepts``, and this is none of them."""

    def __init__(self, actor_id: str, message: object, accepts: Sequence[type]) -> None:
        self.actor_id = actor_id
        self.accepts = tuple(accepts)
        names = ", ".join(kind.__name__ for kind in self.accepts)
        super().__init__(f"actor {actor_id!r} does not take a {type(message).__name__}; it accepts: {names}")


class NoSuchActor(ActorError, LookupError):
    """Nothing alive has that id."""

    def __init__(self, actor_id: str) -> None:
        self.actor_id = actor_id
        super().__init__(f"no living actor has the id {actor_id!r}")


class ActorStopped(ActorError):
    """The actor has stopped, or is stopping, and takes no more messages."""

    def __init__(self, actor_id: str, reason: object = None) -> None:
        self.actor_id, self.reason = actor_id, reason
        because = f": {reason}" if reason is not None else ""
        super().__init__(f"actor {actor_id!r} has stopped{because}")


class ActorRestarting(ActorError):
    """The actor crashed on the way and is started again. *started*: this message may have had its effect."""

    def __init__(self, actor_id: str, reason: object, *, started: bool) -> None:
        self.actor_id, self.reason, self.started = actor_id, reason, started
        handled = "the message may have been handled in part" if started else "the message was not handled"
        super().__init__(f"actor {actor_id!r} is restarting ({reason}); {handled}")


class MailboxFull(ActorError):
    """The actor's mailbox holds as much as it may. *passing*: waiting for room would help; *fix*: what else would."""

    def __init__(
        self, actor_id: str, capacity: int, unit: str = "messages", *, passing: bool = True, fix: str = ""
    ) -> None:
        self.actor_id, self.capacity, self.passing = actor_id, capacity, passing
        if not fix:
            fix = "wait with `await ref.send(...)`" if passing else "send less often,"
            fix = f"{fix} or give it a larger capacity"
        super().__init__(f"the mailbox of {actor_id!r} is full ({capacity} {unit}); {fix}")


class MessageDropped(ActorError):
    """The overflow policy of a full mailbox gave this ask up."""

    def __init__(self, actor_id: str, why: str) -> None:
        self.actor_id, self.why = actor_id, why
        super().__init__(f"the mailbox of {actor_id!r} dropped this ask ({why}); ask again, or ask less often")


class AskTimeout(ActorError):
    """The answer did not come in time. A late one is counted and dropped."""

    def __init__(self, actor_id: str, timeout_s: float) -> None:
        self.actor_id, self.timeout_s = actor_id, timeout_s
        super().__init__(f"actor {actor_id!r} did not answer within {timeout_s:g} s")


class DeadlockError(ActorError):
    """Waiting here would close a cycle of actors that wait for each other. Nothing was sent."""

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        super().__init__(
            f"waiting here would never end: {' -> '.join(self.cycle)}; tell instead of ask, or answer later (DEFERRED)"
        )


class NameTaken(ActorError):
    """Two actors of one system cannot have the same id, nor the same name."""

    def __init__(self, actor_id: str, what: str = "id") -> None:
        self.actor_id = actor_id
        super().__init__(f"an actor with the {what} {actor_id!r} already exists")


class StartFailed(ActorError):
    """The actor's factory, or its ``started``, raised: it never lived."""

    def __init__(self, actor_id: str, error: BaseException) -> None:
        self.actor_id, self.error = actor_id, error
        super().__init__(f"actor {actor_id!r} could not be started: {error!r}")


class StrayCancellation(ActorError):
    """A cancellation came out of something that was awaited, or looked at, and that somebody else had cancelled."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"what it waited for was cancelled by somebody else: {error!r}")
