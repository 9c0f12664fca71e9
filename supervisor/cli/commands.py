"""The command line: what can be typed, and nothing else. What a command does lives in the rooms next door.

Those rooms are entered only when their command is given, so that the others start at once. The commands that need
the runtime are handed in: a surface does not know the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import click

from supervisor.cli.options import PATH, json_option, say, state_dir_option, warn
from supervisor.cli.tasks import approve, dead_letters, reject, task
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput

__all__ = ["RunRequest", "commands"]


class RunRequest(NamedTuple):
    """What ``supervisor run`` was asked."""

    plan: Path
    state_dir: Path
    workdir: Path
    backend: str
    as_json: bool
    verbose: bool
    fresh: bool = False
    resume: bool = False
    plugins: bool = True
    instead: Mapping[str, str] = {}
    """Agents of the catalogue that take the place of agents of the plan."""


Run = Callable[[RunRequest], int]
Demo = Callable[[bool, bool], int]
"""Runs the demonstration (as JSON?, verbose?); the exit status."""
Group = Callable[[], click.Group]
"""Imports the commands of a group."""

_POINTS = ("now", "tool_boundary", "turn_end")
_SCOPES = ("tool", "sibling", "session")
_AGENTS = "List the known agents, and try what one does."
_PLAN = "Check a plan, or say what one may hold."
_SIMULATE = "Run the supervisor in a simulated world, in virtual time."
_STUB_MODEL = "Serve a scripted model on loopback, for agents under test."


def _verbose(command: Any) -> Any:
    return click.option("-v", "--verbose", is_flag=True, help="Log what the runtime does to standard error.")(command)


def _all(command: Any) -> Any:
    return click.option("--all", "all_of_it", is_flag=True, help="Also agents and turns that have ended.")(command)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("supervisor-runtime")
    except PackageNotFoundError:  # run from a checkout
        return "not installed"


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        say(f"supervisor {_version()}")
        context.exit()


# ------------------------------------------------------------------------------------------------------ commands
def commands(run: Run, demo: Demo, plan: Group, simulate: Group) -> click.Group:
    """The whole command line."""

    @click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
    @click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version.",
    )
    def supervisor() -> None:
        """Run AI agents under supervision.

        Exit status: 0 done, 1 the work failed, 2 bad input.
        """

    later = (
        _Later("plan", plan, _PLAN),
        _Later("agents", _agents, _AGENTS),
        _Later("simulate", simulate, _SIMULATE),
        _Later("stub-model", _stub_model, _STUB_MODEL),
    )
    steering = (_run(run), _demo(demo), *later, abort, send, stop, permissions, answer)
    working = (approve, reject, task, dead_letters, mcp)
    seeing = (machines, ps, tree, events, inspect, why, logs, validate, replay, journal, doctor, plugins)
    for command in (*steering, *working, *seeing):
        supervisor.add_command(command)
    return supervisor


class _Later(click.Command):
    """A command that is imported when it is given, and not when it is listed."""

    def __init__(self, name: str, load: Callable[[], click.Command], short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._load = load

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        return self._load().make_context(*args, **options)


def _agents() -> click.Command:
    from supervisor.cli.agents import agents_group

    return agents_group


def _stub_model() -> click.Command:
    from supervisor.cli.stub_model import command

    return command


def _run(run: Run) -> click.Command:
    @click.command("run")
    @click.argument("plan", type=PATH)
    @state_dir_option
    @json_option
    @click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
    @click.option("--workdir", type=PATH, default=Path(), show_default=True, help="Where the agents work.")
    @click.option("--fresh", is_flag=True, help="Start anew: end what an interrupted run left, and go on with nothing.")
    @click.option(
        "--resume",
        is_flag=True,
        help="Do what the last run of the plan did not close: what was cancelled or given up, from its checkpoint.",
    )
    @click.option("--no-plugins", is_flag=True, help="Use no installed plug-in.")
    @click.option(
        "--agent",
        "instead",
        multiple=True,
        metavar="NAME=KNOWN",
        help="A known agent in the place of one of the plan: worker=codex; or worker=gemini:jsonl, to say which way.",
    )
    @_verbose
    def command(
        plan: Path,
        state_dir: Path,
        as_json: bool,
        backend: str,
        workdir: Path,
        fresh: bool,
        resume: bool,
        no_plugins: bool,
        instead: tuple[str, ...],
        verbose: bool,
    ) -> int:
        """Run the tasks of a plan (a YAML file).

        They run in the order of their dependencies. The first Ctrl-C drains: no task starts, those under way may
        finish. The second stops everything. Where an earlier run of this plan was interrupted, it goes on with that.
        """
        if not workdir.is_dir():
            raise BadInput(f"--workdir: no directory {str(workdir)!r}; make it first")
        if fresh and resume:
            raise BadInput("--fresh, --resume: one begins anew, the other goes on; give one of them")
        where = workdir.resolve()
        asked = RunRequest(plan, state_dir, where, backend, as_json, verbose, fresh, resume, not no_plugins)
        return run(asked._replace(instead=replacements(instead)))

    return command


def replacements(given: Sequence[str]) -> Mapping[str, str]:
    """Which agents of the catalogue take the place of which of a plan.

    Raises:
        BadInput: one of *given* is no ``NAME=KNOWN``, or a name is there twice.
    """
    found: dict[str, str] = {}
    for one in given:
        name, _, known = one.partition("=")
        if not (name and known):
            raise BadInput(f"--agent {one}: give NAME=KNOWN, for example worker=codex")
        if name in found:
            raise BadInput(f"--agent {one}: {name} is {found[name]} already; give it once")
        found[name] = known
    return found


def _demo(demo: Demo) -> click.Command:
    @click.command("demo")
    @json_option
    @_verbose
    def command(as_json: bool, verbose: bool) -> int:
        """Show what supervision is, with real processes.

        They work in a scratch git repository. It needs no network and no account.
        """
        return demo(as_json, verbose)

    return command


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--format", type=click.Choice(["table", "mermaid", "markdown", "json"]), default="table")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def machines(names: tuple[str, ...], format: str, as_json: bool) -> None:
    """Show the lifecycles: every state and every transition."""
    from supervisor.cli.machines import render

    try:
        say(render(names, "json" if as_json else format), newline=False)
    except ValueError as error:
        raise BadInput(str(error)) from None


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say which promises about processes this machine can keep.

    Tries what is needed for them; says how to get what is missing. Nothing is left of the tries.
    """
    from supervisor.cli.doctor import examine

    examine(say, as_json=as_json)


@click.command()
@json_option
def plugins(as_json: bool) -> None:
    """List the installed plug-ins, and what they add.

    Each is loaded as a run would load it; what is wrong with one is told.
    """
    from supervisor.cli.plugins import show

    show(say, as_json=as_json)


@click.command()
@_all
@state_dir_option
@json_option
def ps(all_of_it: bool, state_dir: Path, as_json: bool) -> None:
    """List the sessions, and their agents and turns."""
    from supervisor.cli.query import read_ps

    read_ps(state_dir, say, warn, all_of_it=all_of_it, as_json=as_json)


@click.command()
@_all
@state_dir_option
@json_option
def tree(all_of_it: bool, state_dir: Path, as_json: bool) -> None:
    """Show the sessions as a tree, with their open tool calls."""
    from supervisor.cli.query import read_tree

    read_tree(state_dir, say, warn, all_of_it=all_of_it, as_json=as_json)


@click.command()
@click.argument("entity_id", metavar="[ID]", required=False)
@click.option("--follow", is_flag=True, help="Go on until the supervisor ends.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only records after this number.")
@state_dir_option
@json_option
def events(entity_id: str | None, follow: bool, after: int, state_dir: Path, as_json: bool) -> None:
    """Print the records of everything, or of ID.

    ID is that of a session, turn, agent, task or tool call.
    """
    from supervisor.cli.events import Records

    records = Records(state_dir, entity_id, say, warn, as_json=as_json)
    last = records.read(after=after, follow=follow)
    if follow:
        import anyio

        anyio.run(records.follow, last)


@click.command()
@click.argument("target", metavar="ID")
@click.option("--scope", type=click.Choice(_SCOPES), required=True, help="How far it reaches.")
@click.option("--dry-run", is_flag=True, help="Only print the plan: whom it would end, by when, and its id.")
@click.option("--plan", "plan_id", metavar="PLAN", help="Only if it would do exactly what the plan of that id said.")
@click.option("--now", is_flag=True, help="Start at the kill rung, also where an earlier abort is still asking.")
@click.option("--within", "within_s", type=click.FloatRange(min=0), metavar="SECONDS", help="End it all by then.")
@click.option("--reason", default="aborted from the command line", show_default=True)
@state_dir_option
@json_option
def abort(
    target: str,
    scope: str,
    dry_run: bool,
    plan_id: str | None,
    now: bool,
    within_s: float | None,
    reason: str,
    state_dir: Path,
    as_json: bool,
) -> None:
    """End a tool call, a session or its siblings.

    Prints the receipt: what was ended, how, and what is left of it.
    """
    from supervisor.cli import sessions as commanding
    from supervisor.lifecycles.types import AbortScope

    if within_s is not None and not isfinite(within_s):
        raise BadInput(f"--within: {within_s} is no time to end in; give seconds, 0 or more")
    if dry_run and (plan_id is not None or within_s is not None):
        raise BadInput("--dry-run: it plans anew and ends nothing; leave out --plan and --within")
    how = {"dry_run": dry_run, "plan": plan_id, "now": now, "within_s": within_s}
    commanding.abort(state_dir, target, AbortScope(scope), say, how=how, reason=reason, as_json=as_json)


@click.command()
@click.argument("session", metavar="ID")
@click.argument("text")
@click.option("--urgent", is_flag=True, help="Do not wait for the next prompt: interrupt the turn.")
@click.option(
    "--at",
    type=click.Choice(_POINTS),
    help="When an urgent message interrupts: now (the default), when no tool call is open, or not at all, but in a "
    "turn of its own right after this one.",
)
@state_dir_option
@json_option
def send(session: str, text: str, urgent: bool, at: str | None, state_dir: Path, as_json: bool) -> None:
    """Give the session ID a message."""
    from supervisor.cli import sessions as commanding

    commanding.send(state_dir, session, text, say, urgent=urgent, at=at, as_json=as_json)


@click.command()
@state_dir_option
@json_option
def permissions(state_dir: Path, as_json: bool) -> None:
    """List what agents ask for and wait for.

    Only what a human is to answer: what a policy decides does not wait.
    """
    from supervisor.cli import permissions as permitting

    permitting.permissions(state_dir, say, as_json=as_json)


@click.command()
@click.argument("permission_id", metavar="ID")
@click.argument("decision", type=click.Choice(["allow", "deny"]))
@click.option("--always", is_flag=True, help="As often as the agent asks for the same in its session.")
@click.option("--because", default="", metavar="TEXT", help="Why, for the record.")
@state_dir_option
@json_option
def answer(permission_id: str, decision: str, always: bool, because: str, state_dir: Path, as_json: bool) -> None:
    """Answer the permission ID that an agent waits for.

    The first answer counts; a later one is refused. What nobody answers in time is denied.
    """
    from supervisor.cli import permissions as permitting

    how: dict[str, Any] = {"allow": decision == "allow", "always": always, "because": because}
    permitting.answer(state_dir, permission_id, say, **how, as_json=as_json)


@click.command()
@state_dir_option
def mcp(state_dir: Path) -> None:
    """Be an MCP server on standard input and output.

    Its tools do what the commands list, inspect, why, send, abort, permissions and answer do, with the supervisor that
    runs on the state directory.
    """
    try:
        from supervisor.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise BadInput("mcp: its library is not installed; pip install 'supervisor-runtime[mcp]'") from None
    serve(state_dir)


@click.command()
@click.option("--now", is_flag=True, help="Abort everything instead of letting turns finish.")
@state_dir_option
@json_option
def stop(now: bool, state_dir: Path, as_json: bool) -> None:
    """End the supervisor in good order."""
    from supervisor.cli import sessions as commanding

    commanding.stop(state_dir, say, warn, now=now, as_json=as_json)


@click.command()
@click.argument("entity_id", metavar="ID")
@state_dir_option
@json_option
def inspect(entity_id: str, state_dir: Path, as_json: bool) -> None:
    """Show what goes on in ID right now.

    ID is that of a living session, turn, agent, task or tool call. Also shows where one is stuck: its tasks' stacks.
    """
    from supervisor.cli import sessions as commanding

    commanding.inspect(state_dir, entity_id, say, warn, as_json=as_json)


@click.command()
@click.argument("entity_id", metavar="ID")
@state_dir_option
@json_option
def why(entity_id: str, state_dir: Path, as_json: bool) -> None:
    """Explain how ID came to be as it is.

    ID is that of a session, turn, agent, task or tool call. Prints the tree of causes, from the one root event to the
    end: who asked, policy edges, rungs, and what came too late to matter.
    """
    from supervisor.cli.query import read_why

    read_why(state_dir, entity_id, say, as_json=as_json)


@click.command()
@click.argument("entity_id", metavar="ID")
@click.option("--follow", is_flag=True, help="Go on until the session ends.")
@state_dir_option
@json_option
def logs(entity_id: str, follow: bool, state_dir: Path, as_json: bool) -> None:
    """Print what the agents of the session ID said."""
    from supervisor.cli.query import read_logs

    read_logs(state_dir, entity_id, say, follow=follow, as_json=as_json)


@click.command()
@click.argument("file", type=PATH, metavar="FILE")
@json_option
def validate(file: Path, as_json: bool) -> int:
    """Check what a run has written.

    FILE is a transitions.jsonl (schema, order, legality, invariants of work), a journal.db, or a state directory (every
    invariant that records can show). Problems are exit status 1.
    """
    from supervisor.cli.validate import validate_path

    return DONE if validate_path(file, say, as_json=as_json) else WORK_FAILED


@click.command()
@click.argument("journal", type=PATH, metavar="JOURNAL")
@click.option("--at", type=int, metavar="SEQ", help="Only show the tree as it stood after that record.")
@click.option("--abort-policy", metavar="KEY=BOOL,...", help="What if: tool_to_sibling, sibling_to_session.")
@click.option(
    "--restart-policy",
    metavar="KEY=VALUE,...",
    help="What if: max_consecutive_errors, max_total_errors, restarts_max, restarts_within_s, backoff_base_ms, "
    "backoff_cap_ms.",
)
@json_option
def replay(journal: Path, at: int | None, abort_policy: str | None, restart_policy: str | None, as_json: bool) -> int:
    """Run what a journal tells again.

    JOURNAL is a journal.db or a state directory; it is only read. Every recorded input goes through the lifecycles once
    more: what comes out is compared with what was recorded, and the invariants are checked. A difference is exit status
    1. With a policy, it shows how the run would have gone under that one.
    """
    from supervisor.cli import replay as replaying

    edges = replaying.parse_edges(abort_policy) if abort_policy is not None else {}
    limits = replaying.parse_limits(restart_policy) if restart_policy is not None else {}
    if at is not None and (edges or limits):
        raise BadInput("--at: it shows what was, a policy what would have been; give one of them")
    if at is not None:
        replaying.replay_tree(journal, at, say, as_json=as_json)
    elif edges or limits:
        replaying.replay_under(journal, edges, limits, say, as_json=as_json)
    else:
        return DONE if replaying.replay_all(journal, say, as_json=as_json) else WORK_FAILED
    return DONE


@click.group()
def journal() -> None:
    """Check, compact or export the journal of a state directory."""


def _which(command: Any) -> Any:
    return click.argument("path", type=PATH, metavar="[JOURNAL]", required=False)(state_dir_option(command))


@journal.command("check")
@_which
@json_option
def journal_check(path: Path | None, state_dir: Path, as_json: bool) -> int:
    """Check everything: pages, the chain of hashes, entities, the snapshot.

    JOURNAL is a journal.db, an archive, or a state directory; without it, that of --state-dir, with all its archives.
    A start verifies only what came after the last snapshot, unless the machine was booted since. Damage is exit status
    1.
    """
    from supervisor.cli.journal import check

    return DONE if check(path or state_dir, say, as_json=as_json) else WORK_FAILED


@journal.command("compact")
@click.option("--keep-s", type=click.FloatRange(min=0), metavar="SECONDS", help="Keep what ended since then.")
@click.option("--records-max", type=click.IntRange(min=1), metavar="N", help="Keep at most so many records.")
@state_dir_option
@json_option
def journal_compact(keep_s: float | None, records_max: int | None, state_dir: Path, as_json: bool) -> None:
    """Move what ended long ago from the journal to the archive.

    The supervisor that runs does it, and meanwhile goes on; by default as its plan's retention says. Without one it is
    done here. What is given counts alone: --keep-s without --records-max has no bound in records.
    """
    from supervisor.cli.journal import compact
    from supervisor.ports import Retention

    if keep_s is not None and not isfinite(keep_s):
        raise BadInput(f"--keep-s: {keep_s} is no time; give seconds, 0 or more")
    given = keep_s is not None or records_max is not None
    retention = Retention(keep_s=keep_s, records_max=records_max) if given else None
    compact(state_dir, retention, say, as_json=as_json)


@journal.command("export")
@_which
@click.option("--out", type=PATH, metavar="FILE", help="Write to this file, which must not be there yet.")
@json_option
def journal_export(path: Path | None, out: Path | None, state_dir: Path, as_json: bool) -> None:
    """Write every transition as a line of JSON, in the format of transitions.jsonl; archived ones too."""
    from supervisor.cli.journal import export

    export(path or state_dir, out, say, as_json=as_json)
