"""Command codec, for agents that are plain programs: the place of the prompt, the output, and the exit status."""

from __future__ import annotations

import signal

import pytest

from supervisor.agents.protocols.command import CommandCodec
from supervisor.ports import CloseInput, Ready, Send, Signal, Text, TurnEnded


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        (["agent", "{prompt}"], ("agent", "do it")),
        (["agent", "--ask={prompt}!"], ("agent", "--ask=do it!")),
        (["agent", "{prompt}", "{prompt}"], ("agent", "do it", "do it")),
    ],
)
def test_a_prompt_in_the_command_does_not_go_to_the_input(command: list[str], argv: tuple[str, ...]) -> None:
    """``{prompt}`` is replaced in every argument of the command; the agent's input is then closed without any text."""
    codec = CommandCodec()
    assert codec.argv(command, "do it") == argv
    assert codec.prompt("do it") == [CloseInput()]


def test_a_prompt_that_says_prompt_is_not_expanded_again() -> None:
    """A prompt that contains the text ``{prompt}`` is inserted unchanged: the placeholder inside the prompt is not
    replaced again."""
    assert CommandCodec().argv(["agent", "{prompt}"], "say {prompt}") == ("agent", "say {prompt}")


def test_a_command_without_placeholder_gets_the_prompt_on_its_input() -> None:
    """Without the placeholder the prompt is written to the input in UTF-8, and the input is closed."""
    codec = CommandCodec()
    assert codec.argv(["agent", "-"], "tu das, bitte schön") == ("agent", "-")
    assert codec.prompt("tu das, bitte schön") == [Send("tu das, bitte schön".encode()), CloseInput()]


def test_it_serves_one_prompt_and_is_ready_at_once() -> None:
    """The codec reports a plain program as ready without a handshake, serves one prompt per process, and sends nothing
    at close."""
    codec = CommandCodec()
    assert codec.one_shot
    assert codec.start("/tmp") == [Ready()]
    assert codec.close() == []


def test_output_is_decoded_across_chunks() -> None:
    """A character that is split between chunks is decoded."""
    codec = CommandCodec()
    assert codec.feed(b"sch\xc3") == [Text("message", "sch")]
    assert codec.feed(b"\xb6n") == [Text("message", "ön")]
    assert codec.feed(b"") == []


def test_invalid_output_is_replaced_and_is_no_error() -> None:
    """An invalid byte becomes a replacement character, also at the end of the output."""
    codec = CommandCodec()
    assert codec.feed(b"a\xffb\xc3") == [Text("message", "a\ufffdb")]
    assert codec.feed(b"") == [Text("message", "\ufffd")]


def test_half_a_character_at_the_exit_is_not_lost() -> None:
    """The process exits in the middle of a character, before its output has ended: the exit reports the half as a
    replacement character, then the end of the turn."""
    codec = CommandCodec()
    assert codec.feed(b"\xc3") == []
    assert codec.exited(0) == [Text("message", "\ufffd"), TurnEnded("end_turn")]


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        (0, TurnEnded("end_turn")),
        (3, TurnEnded("error", "exit status 3")),
        (-9, TurnEnded("error", "ended by signal SIGKILL")),
        (-signal.SIGRTMIN - 1, TurnEnded("error", f"ended by signal SIG{signal.SIGRTMIN + 1}")),
        (None, TurnEnded("error", "its exit status is not known: the process that watched over it was lost")),
    ],
)
def test_the_exit_status_is_its_word_on_the_turn(status: int | None, ended: TurnEnded) -> None:
    """Only exit status 0 is a successful turn; any other status is an error that names the status or the signal."""
    assert CommandCodec().exited(status) == [ended]


@pytest.mark.parametrize("status", [0, 130, -2, None])
def test_an_interrupted_command_is_cancelled_whatever_its_status(status: int | None) -> None:
    """An interrupt sends SIGINT to the command; the turn then ends as cancelled, whatever the exit status."""
    codec = CommandCodec()
    assert codec.interrupt() == [Signal(signal.SIGINT)]
    assert codec.exited(status) == [TurnEnded("cancelled")]
