"""Run one command line and return its exit status; every error is reported, never as a traceback.

An error is one message on standard error and, with ``--json``, also an object on standard output. A reader that closes
the pipe is not an error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from supervisor.cli.options import say
from supervisor.control.error_messages import BAD_INPUT, DONE, Failure, failure_of


def execute(group: click.Group, arguments: Sequence[str]) -> int:
    """Run one command line and return the exit status.

    Raises:
        SystemExit: a command exited by itself, with a status of its own.
    """
    _open_what_is_closed()
    stdout = sys.stdout
    try:
        status = group.main(list(arguments), prog_name="supervisor", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_gone()
    except SystemExit:
        if sys.stdout is stdout:  # click makes an exit of a broken pipe, and replaces the stream
            raise
        return _reader_gone()
    except (click.Abort, KeyboardInterrupt):
        return _print_failure(failure_of(KeyboardInterrupt()), arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message(), err=True)
        return BAD_INPUT
    except click.ClickException as error:
        return _print_failure(Failure(BAD_INPUT, "bad", _usage(error)), arguments)
    except Exception as error:  # the last place that can report it
        return _print_failure(_no_text(error, arguments) or failure_of(error), arguments)
    except BaseExceptionGroup as error:  # trio's Ctrl-C
        if error.subgroup(KeyboardInterrupt) is None:
            raise
        return _print_failure(failure_of(KeyboardInterrupt()), arguments)
    return status if isinstance(status, int) else DONE


def _no_text(error: Exception, arguments: Sequence[str]) -> Failure | None:
    """Return the failure to report if *error* means that an argument is not UTF-8 (paths may be any bytes; ids and
    messages must be UTF-8); else ``None``."""
    if not isinstance(error, UnicodeEncodeError):
        return None
    half = error.object[error.start]
    given = next((one for one in arguments if half in one), None)
    return None if given is None else Failure(BAD_INPUT, "bad", f"{given!r} is not UTF-8; give it as UTF-8 text")


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    help_at = f"; see `{context.command_path} --help`" if context is not None else ""
    message = " ".join(line.strip() for line in error.format_message().splitlines())
    return f"{message.rstrip('.')}{help_at}"


def _open_what_is_closed() -> None:
    """Open standard streams that the caller closed to /dev/null, so that no file opened later gets their descriptor
    numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - open for as long as the process lives
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - open for as long as the process lives
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _print_failure(failure: Failure, arguments: Sequence[str]) -> int:
    with suppress(OSError):
        for line in failure.message.splitlines():
            say(f"supervisor: {line}", err=True)
    try:
        if _wants_json(arguments):
            error = {"kind": failure.kind, "message": failure.message}
            say(json.dumps({"error": error}, ensure_ascii=False))
        sys.stdout.flush()
    except OSError:
        _silence()
    return failure.status


def _wants_json(arguments: Sequence[str]) -> bool:
    options = list(arguments)
    if "--" in options:
        options = options[: options.index("--")]
    return "--json" in options


def _reader_gone() -> int:
    _silence()
    return DONE


def _silence() -> None:
    """Redirect standard output to /dev/null for the interpreter's last flush, since the reader of the output has
    gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
