"""``supervisor ui``: a link to the page of a running supervisor, or the page of the journal of one that has ended."""

from __future__ import annotations

import os
import sys
import webbrowser
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click

from supervisor.cli.lookup import open_journal
from supervisor.cli.options import DEFAULT, STATE_DIR, NonEmptyPath, examples, say
from supervisor.cli.rendering import json_text
from supervisor.cli.sessions import operator
from supervisor.cli.submit import send_when_started
from supervisor.control.error_messages import BadInput, NotRunning
from supervisor.control.requests import Page
from supervisor.embedding.journals import open_file, read_state
from supervisor.journal.statedir import LockHolder


@click.command("ui", epilog=examples("supervisor ui", "supervisor ui --no-browser", "supervisor ui old/.sdd"))
@click.argument(
    "state_dir", type=NonEmptyPath(path_type=Path), metavar="[STATE_DIR]", default=DEFAULT, envvar=STATE_DIR
)
@click.option("--browser/--no-browser", default=None, help="Open the link; by default on a terminal with a display.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ui_command(state_dir: Path, browser: bool | None, as_json: bool) -> None:
    """Prints a link that lets one browser in: it is good for one time, and for ten minutes. The page of a running
    supervisor lasts as long as the supervisor; of one that has ended, the page shows the journal until Ctrl-C.
    STATE_DIR is .sdd if it is left out."""
    if browser is None:
        browser = sys.stdout.isatty() and any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    announce = partial(_announce, browser=browser, as_json=as_json)
    try:
        announce(send_when_started(state_dir, Page(by=operator()), is_awaited=_is_starting)["url"])
    except NotRunning:
        _serve_journal(state_dir, announce)


def _is_starting(holder: LockHolder) -> bool:
    """Return whether a supervisor has no control socket yet: a daemon, or that of a run."""
    return holder.is_daemon or holder.starting


def _announce(url: str, *, browser: bool, as_json: bool) -> None:
    say(json_text({"url": url}) if as_json else url)
    sys.stdout.flush()
    if browser:
        webbrowser.open(url)


def _serve_journal(state_dir: Path, announce: Any) -> None:
    """Serve the page of a journal until Ctrl-C.

    Raises:
        BadInput: the extra is missing.
        StateDirError, JournalError: there is no journal, or it cannot be read.
    """
    try:
        from supervisor.control.http.journal_page import serve_journal
    except ModuleNotFoundError as error:
        raise BadInput(f"ui: {error.name} is not installed; pip install 'supervisor-runtime[http]'") from None
    with open_journal(state_dir) as (state, _), open_file(state.journal) as history:
        history.check_archives()  # of another version, or damaged: an error with the fix, before a link is printed
    anyio.run(serve_journal, partial(read_state, state), state, announce)
