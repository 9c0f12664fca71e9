"""``supervisor serve``, and ``reload``: run a daemon, and have it read its configuration again."""

from __future__ import annotations

from pathlib import Path

import anyio
import click
import msgspec

from supervisor.cli.log_output import configure_logging, log_message
from supervisor.cli.options import (
    PATH,
    check_workdir,
    examples,
    json_option,
    log_json_option,
    say,
    state_dir_option,
    verbose_option,
    warn,
)
from supervisor.cli.rendering import json_text
from supervisor.cli.sessions import operator, send_request
from supervisor.control.error_messages import BadInput, WorkFailed, cause_of
from supervisor.control.http.options import HttpOptions
from supervisor.control.requests import Reload
from supervisor.daemon.config import DaemonConfig, load_config
from supervisor.daemon.first_process import leave_first_process
from supervisor.daemon.service import ServiceOptions, serve
from supervisor.embedding.journals import read_state
from supervisor.fleet.options import BadFleetOptions, FleetOptions, addresses_of
from supervisor.journal.statedir import StateDir
from supervisor.plans.source import BadPlan
from supervisor.ports import JournalError


@click.command(
    "serve",
    epilog=examples("supervisor serve", "supervisor serve daemon.yaml --listen 127.0.0.1:8790 --token-file tokens"),
)
@click.argument("config", type=PATH, metavar="[CONFIG]", required=False)
@state_dir_option
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True)
@click.option("--workdir", type=PATH, default=Path(), show_default=True, help="Directory of sessions without a plan.")
@click.option("--http", "serves_http", is_flag=True, help="Serve the HTTP API on the socket runtime/http.sock.")
@click.option("--listen", metavar="HOST:PORT", help="Serve the HTTP API over TCP, too; needs --token-file.")
@click.option("--token-file", metavar="FILE", help="File with the tokens for TCP; made if it does not exist.")
@click.option("--fleet", "addresses", metavar="ADDRESS,...", help="Join the fleet on these servers: nats://HOST:PORT.")
@click.option("--fleet-name", metavar="NAME", help="Name of the fleet; several may share servers.  [default: default]")
@click.option("--host-name", metavar="NAME", help="Name of this host in the fleet.  [default: the machine's name]")
@click.option("--fleet-credentials", metavar="FILE", help="File with the login: credentials, USER:PASSWORD or a token.")
@verbose_option
@log_json_option
def serve_command(
    config: Path | None,
    state_dir: Path,
    backend: str,
    workdir: Path,
    serves_http: bool,
    listen: str | None,
    token_file: str | None,
    addresses: str | None,
    fleet_name: str | None,
    host_name: str | None,
    fleet_credentials: str | None,
    verbose: int,
    log_json: bool,
) -> None:
    """CONFIG is a YAML file with agents, settings, limits, http and fleet; without it, the usual settings apply. Plans
    come from `supervisor submit`. The first Ctrl-C or SIGTERM lets turns in progress finish, the second does not; what
    is open then goes on when the daemon is started again. SIGHUP, and `supervisor reload`, read CONFIG again."""
    check_workdir(workdir)
    try:
        known = load_config(config) if config is not None else DaemonConfig()
    except BadPlan as error:
        raise BadInput(str(error)) from None
    http = known.http.value() if known.http is not None else None
    if serves_http or listen or token_file:
        http = HttpOptions(listen=listen, token_file=token_file)
    given = {"name": fleet_name, "host": host_name, "credentials": fleet_credentials}
    fleet = _fleet_options(known, addresses, {name: value for name, value in given.items() if value is not None})
    leave_first_process()
    configure_logging(verbose=verbose, as_json=log_json)
    state = StateDir.open(state_dir)
    with state.lock(daemon=True):
        try:
            options = ServiceOptions(
                config.resolve() if config is not None else None, known, workdir.resolve(), http, fleet
            )
            anyio.run(serve, options, state, log_message if log_json else warn, backend=backend)
        except Exception as error:
            cause = cause_of(error)
            if isinstance(cause, ValueError):
                raise BadInput(str(cause)) from error
            if isinstance(cause, JournalError) and _is_readable(state):
                raise WorkFailed(f"the journal is lost, and the daemon has ended: {cause}") from error
            raise
        finally:
            state.discard()


def _fleet_options(known: DaemonConfig, addresses: str | None, given: dict[str, str]) -> FleetOptions | None:
    """Return the options of the fleet: those of the configuration, replaced by what is given as options.

    Raises:
        BadInput: an option is wrong, or there is no fleet that it could be about.
    """
    options = {"name": "--fleet-name", "host": "--host-name", "credentials": "--fleet-credentials"}
    if known.fleet is None and addresses is None:
        if given:
            raise BadInput(f"{options[next(iter(given))]}: there is no fleet; give its servers with --fleet, too")
        return None
    servers = {"servers": addresses_of(addresses)} if addresses is not None else {}
    try:
        base = msgspec.structs.asdict(known.fleet.value()) if known.fleet is not None else {}
        return FleetOptions(**{**base, **servers, **given})
    except BadFleetOptions as error:
        field, _, text = str(error).partition(": ")
        raise BadInput(f"{options.get(field, '--fleet')}: {text}") from None


def _is_readable(state: StateDir) -> bool:
    """Return whether the journal was opened: else it is of another version, or damaged, and that is bad input."""
    try:
        with read_state(state):
            return True
    except JournalError:
        return False


@click.command("reload", epilog=examples("supervisor reload"))
@state_dir_option
@json_option
def reload_command(state_dir: Path, as_json: bool) -> None:
    """Agents, settings and limits are those of the file for everything that begins from then on. A file with an error
    changes nothing: the exit status is 2."""
    answer = send_request(state_dir, Reload(by=operator()))
    say(json_text(answer) if as_json else f"reloaded: {answer['reloaded']}")
