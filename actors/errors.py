"""The kernel's errors. Each composes its own message, names the actor, and says what can be done."""

from __future__ import annotations

__all__ = ["ActorError", "ActorStopped", "AskTimeout", "MailboxFull", "NameTaken"]


class ActorError(Exception):
    """Base of the kernel's errors."""


class ActorStopped(ActorError):
    """The actor has stopped, or is stopping, and takes no more messages."""

    def __init__(self, actor_id: str, reason: object = None) -> None:
        self.actor_id, self.reason = actor_id, reason
        because = f": {reason}" if reason is not None else ""
        super().__init__(f"actor {actor_id!r} has stopped{because}")


class MailboxFull(ActorError):
    """The actor's mailbox holds as many messages as it may."""

    def __init__(self, actor_id: str, capacity: int) -> None:
        self.actor_id, self.capacity = actor_id, capacity
        super().__init__(
            f"the mailbox of {actor_id!r} is full ({capacity} messages); "
            "wait with `await ref.send(...)` or give it a larger capacity"
        )


class AskTimeout(ActorError):
    """The answer did not come in time. A late one is counted and dropped."""

    def __init__(self, actor_id: str, timeout_s: float) -> None:
        self.actor_id, self.timeout_s = actor_id, timeout_s
        super().__init__(f"actor {actor_id!r} did not answer within {timeout_s:g} s")


class NameTaken(ActorError):
    """Two actors of one system cannot have the same id."""

    def __init__(self, actor_id: str) -> None:
        self.actor_id = actor_id
        super().__init__(f"an actor with the id {actor_id!r} already exists")
