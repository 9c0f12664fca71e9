"""Show the progress of a run of the daemon, as ``supervisor run`` does, until the run has ended.

The journal is the source, as for every view; the run does not depend on this process. Ctrl-C asks whether to leave the
run to the daemon or to cancel it; where nobody can be asked, the run is left to the daemon.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from supervisor.cli.live_view import Reporter, view_for
from supervisor.cli.log_output import configure_logging
from supervisor.cli.lookup import pause
from supervisor.cli.options import say, state_dir_words, warn
from supervisor.cli.record_log import RecordLog
from supervisor.cli.rendering import json_text
from supervisor.cli.run_report import read_report
from supervisor.cli.sessions import operator, send_request
from supervisor.cli.submit import print_submitted, send_to_daemon, submission
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput, WorkFailed
from supervisor.control.requests import CancelRun
from supervisor.diagnostics.run_summary import merge_obstacle
from supervisor.embedding.journals import read_state
from supervisor.journal.statedir import StateDir, StateDirError
from supervisor.lifecycles.record_ids import id_before
from supervisor.lifecycles.run_ids import run_of
from supervisor.lifecycles.types import Kind, LifecycleEvent
from supervisor.ports import Reader

_CLAIMED: Final = "claimed"
_ADVICE: Final = "`supervisor wait {run}{options}` waits for it, `supervisor cancel {run}{options}` cancels it"


def has_daemon(state_dir: Path) -> bool:
    """Return whether a daemon holds the state directory, one that is starting included."""
    try:
        holder = StateDir(state_dir).lock_holder()
    except StateDirError:
        return False
    return holder is not None and holder.is_daemon


def run_on_daemon(given: dict[str, Any], *, detach: bool, names: tuple[str, ...]) -> int:
    """Submit the plan of ``supervisor run``, and follow the run unless *detach*; return the exit status.

    Raises:
        BadInput: an option is not for a run of a daemon, or the plan is invalid.
        WorkFailed: the daemon has ended before the run.
    """
    state_dir: Path = given["state_dir"]
    if given["resume"]:
        fix = f"name the run: `supervisor submit {given['plan']} --resume RUN`"
        raise BadInput(f"--resume: a daemon holds {state_dir}, and has many runs; {fix}")
    if given["http"] is not None:
        raise BadInput(f"--http, --listen: a daemon holds {state_dir}; it serves the API, as its configuration says")
    options = {"fail_fast": given["fail_fast"], "plugins": not given["no_plugins"], "instead": dict(given["instead"])}
    request = submission(given["plan"], given["workdir"], names, **options)
    answer = send_to_daemon(state_dir, request)
    if detach:
        print_submitted(answer, as_json=given["as_json"])
        return DONE
    for note in answer["notes"]:
        warn(note)
    shown = {name: given[name] for name in ("as_json", "verbose", "log_json")}
    return follow(state_dir, answer["run"], **shown)


def follow(state_dir: Path, run: str, *, as_json: bool, verbose: int, log_json: bool) -> int:
    """Show the progress of *run* until its end, and return the exit status that ``supervisor run`` has.

    Raises:
        WorkFailed: the daemon has ended before the run.
    """
    configure_logging(verbose=verbose, as_json=log_json)
    state = StateDir.open(state_dir, create=False)
    with read_state(state) as reader:
        row = reader.entity(run)
        assert row is not None, "it is on the disk before it is named"
        log = RecordLog().take if verbose else None
        reporter = Reporter(after=id_before(row.born_seq), log=log, select=RunRecords(run).select)
        try:
            make_view = partial(view_for, as_json=as_json, state=state, is_over=reporter.over.is_set)
            reporter.start(read_state(state), make_view)
            reporter.begin(run)
            _await_end(state, reader, reporter, run)
            ended = reader.entity(run)
            assert ended is not None, "rows stay"
            report = read_report(reader, ended, now=time.time(), supervised=True, options=state_dir_words(state.root))
            reporter.end(report.result)
            return DONE if report.result.ok else WORK_FAILED
        except KeyboardInterrupt:
            reporter.close()
            return _ask(state_dir, run, as_json=as_json)
        finally:
            reporter.close()


def _await_end(state: StateDir, reader: Reader, reporter: Reporter, run: str) -> None:
    while True:
        running = state.lock_holder() is not None  # asked first: the end that a daemon records last is still seen
        row = reader.entity(run)
        reporter.update()
        if row is not None and (row.ended or merge_obstacle(row)):
            return
        if not running:
            options = state_dir_words(state.root)
            fix = f"it goes on when the daemon is started again (`supervisor serve{options}`)"
            raise WorkFailed(f"the daemon on {state.root} has ended, and {run} has not; {fix}")
        pause()


def _ask(state_dir: Path, run: str, *, as_json: bool) -> int:
    """Ask whether *run* is to be left to the daemon or cancelled, and do that; return the exit status. Where nobody can
    be asked, the run is left to the daemon."""
    advice = _ADVICE.format(run=run, options=state_dir_words(state_dir))
    answer = "d"
    if sys.stdin.isatty() and sys.stderr.isatty():
        try:
            choice = click.Choice(["d", "c"])
            answer = click.prompt(f"\n{run}: detach (d), or cancel the run (c)?", type=choice, default="d", err=True)
        except (click.Abort, KeyboardInterrupt):
            say("", err=True)
    if answer == "c":
        request = CancelRun(run=run, reason="Ctrl-C, and an answer", by=operator())
        send_request(state_dir, request, f"the cancellation of {run} goes on")
        warn(f"{run} is cancelled")
        return WORK_FAILED
    warn(f"{run} goes on in the daemon; {advice}")
    if as_json:
        say(json_text({"run": run, "detached": True}))
    return WORK_FAILED


class RunRecords:
    """Selection of the records that belong to one run: those of the run, its tasks and their sessions.

    A session is known to belong to the run when a task has been claimed by it, which is recorded after its first
    records; these are held back until then.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._sessions: set[str] = set()
        self._held: dict[str, list[LifecycleEvent]] = {}

    def select(self, events: Iterable[LifecycleEvent]) -> list[LifecycleEvent]:
        """Return the records among *events*, and among those that were held back, that belong to the run."""
        found: list[LifecycleEvent] = []
        for event in events:
            if run_of(event.entity_id) == self._run:
                found.append(event)
                if event.entity_type == Kind.TASK and event.event == _CLAIMED:
                    session = str(event.metadata["by"])
                    self._sessions.add(session)
                    found += self._held.pop(session, [])
            elif "#" in event.entity_id:
                if event.event == _CLAIMED:
                    self._held.pop(str(event.metadata["by"]), None)
            elif (root := event.entity_id.partition(":")[0].partition("/")[0]) in self._sessions:
                found.append(event)
            elif event.entity_type == Kind.SESSION and event.outcome == "born":
                self._held[root] = [event]
            elif root in self._held:
                self._held[root].append(event)
        return sorted(found, key=lambda event: event.seq)
