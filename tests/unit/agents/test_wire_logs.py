"""Recorded output of real agents, replayed through their codecs: the codecs write and report the same as when
recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wire.replaying import logs, read_log, replay, told_lines

LOGS = logs()


def test_there_are_logs() -> None:
    """The repository contains at least one recorded conversation."""
    assert LOGS


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_recorded_conversation_is_told_as_before(log: Path) -> None:
    """A replayed codec writes the same bytes as in the recording, and reports the events in the file ``.told`` beside
    it."""
    entries = read_log(log)
    again, told = replay(entries)
    assert again == entries
    assert "".join(told_lines(told)) == log.with_suffix(".told").read_text()


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_log_names_no_machine(log: Path) -> None:
    """No recorded conversation contains a path of the machine on which it was recorded, or a key of a provider."""
    text = log.read_text()
    assert [word for word in ("/tmp/", "/root", "/home/", "/work/", "sk-ant") if word in text] == []
