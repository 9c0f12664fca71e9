"""Errors of the kernel. Each message names the actor, the value and a remedy."""

from __future__ import annotations


class ActorError(Exception):
    """Base class of the kernel's errors."""


class InvalidOption(ActorError, ValueError):
    """Error: an option has an invalid value."""

    def __init__(self, whose: str, field: str, value: object, fix: str) -> None:
        self.whose, self.field, self.value = whose, field, value
        super().__init__(f"{whose}: {field} is {value!r}; {fix}")


class NoSuchActor(ActorError, LookupError):
    """Error: no living actor has that id."""

    def __init__(self, actor_id: str) -> None:
        self.actor_id = actor_id
        super().__init__(f"no living actor has the id {actor_id!r}")


class ActorStopped(ActorError):
    """Error: the actor has stopped, or is stopping, and accepts no more messages."""

    def __init__(self, actor_id: str, reason: object = None) -> None:
        self.actor_id, self.reason = actor_id, reason
        because = f": {reason}" if reason is not None else ""
        super().__init__(f"actor {actor_id!r} has stopped{because}")


class ActorRestarting(ActorError):
    """Error: the actor crashed and is restarted. *started*: the message may have been handled in part."""

    def __init__(self, actor_id: str, reason: object, *, started: bool) -> None:
        self.actor_id, self.reason, self.started = actor_id, reason, started
        handled = "the message may have been handled in part" if started else "the message was not handled"
        super().__init__(f"actor {actor_id!r} is restarting ({reason}); {handled}")


class MailboxFull(ActorError):
    """Error: the actor's mailbox is full. *passing*: whether waiting for room would help; *fix*: another remedy."""

    def __init__(
        self, actor_id: str, capacity: int, unit: str = "messages", *, passing: bool = True, fix: str = ""
    ) -> None:
        self.actor_id, self.capacity, self.passing = actor_id, capacity, passing
        fix = fix or "send less often, ask (which waits for room), or give it a larger capacity"
        super().__init__(f"the mailbox of {actor_id!r} is full ({capacity} {unit}); {fix}")


class AskTimeout(ActorError):
    """Error: the reply to an ask did not come in time. A late reply is counted and dropped."""

    def __init__(self, actor_id: str, timeout_s: float) -> None:
        self.actor_id, self.timeout_s = actor_id, timeout_s
        super().__init__(f"actor {actor_id!r} did not answer within {timeout_s:g} s")


class NameTaken(ActorError):
    """Error: the id is in use by another actor of the system, or by another child of the supervisor."""

    def __init__(self, actor_id: str, what: str = "id") -> None:
        self.actor_id = actor_id
        super().__init__(f"an actor with the {what} {actor_id!r} already exists")


class StartFailed(ActorError):
    """Error: the actor did not start, because its factory or its ``started`` raised."""

    def __init__(self, actor_id: str, error: BaseException) -> None:
        self.actor_id, self.error = actor_id, error
        super().__init__(f"actor {actor_id!r} could not be started: {error!r}")


class StrayCancellation(ActorError):
    """Error: code raised a cancellation that was not sent to its task, such as one from a future that was cancelled
    elsewhere."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"an awaited future or task was cancelled elsewhere: {error!r}")
