"""Errors of the kernel: each names the actor, the value and a remedy, and has these as attributes."""

from __future__ import annotations

import pytest

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
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InvalidOption("x", "capacity", 0, "give 1 or more"), "x: capacity is 0; give 1 or more"),
        (NoSuchActor("a"), "no living actor has the id 'a'"),
        (ActorStopped("a"), "actor 'a' has stopped"),
        (ActorStopped("a", "done"), "actor 'a' has stopped: done"),
        (ActorRestarting("a", "crash", started=False), "actor 'a' is restarting (crash); the message was not handled"),
        (
            ActorRestarting("a", "crash", started=True),
            "actor 'a' is restarting (crash); the message may have been handled in part",
        ),
        (
            MailboxFull("a", 3),
            "the mailbox of 'a' is full (3 messages); send less often, ask (which waits for room), or give it a larger "
            "capacity",
        ),
        (MailboxFull("a", 3, fix="wait for it"), "the mailbox of 'a' is full (3 messages); wait for it"),
        (AskTimeout("a", 2.50), "actor 'a' did not answer within 2.5 s"),
        (NameTaken("a"), "an actor with the id 'a' already exists"),
        (NameTaken("a", "name"), "an actor with the name 'a' already exists"),
        (StartFailed("a", ValueError("x")), "actor 'a' could not be started: ValueError('x')"),
    ],
)
def test_an_error_says_what_can_be_done(error: ActorError, words: str) -> None:
    """Each error has its complete message, and is an ``ActorError``."""
    assert str(error) == words
    assert isinstance(error, ActorError)


def test_a_full_mailbox_says_whether_waiting_helps() -> None:
    """A full mailbox reports that waiting helps, unless the error is made with ``passing=False``."""
    assert MailboxFull("a", 3).passing
    assert not MailboxFull("a", 3, passing=False).passing
