"""``supervisor fleet``, and the hosts of a fleet for other commands: what the daemon has last seen and copied.

The commands read files of the state directory only: the status that the daemon writes, and its replicas. So they work
while the servers do not answer, and say how old their answer is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import click
import msgspec

from supervisor.cli.options import examples, json_option, say, state_dir_option, warn
from supervisor.cli.rendering import clock, columns, duration, json_text, local_time
from supervisor.control.error_messages import DONE, WORK_FAILED, BadInput
from supervisor.embedding.journals import open_file
from supervisor.fleet.membership import BEAT_S
from supervisor.fleet.replica_files import read_replica_state, replica_path, replicated_hosts
from supervisor.fleet.status import ALIVE, HERE, STATES, UNKNOWN, FleetStatus, HostStatus, read_status
from supervisor.journal.statedir import StateDir
from supervisor.ports import JournalError, Reader

_T = TypeVar("_T")

_STALE_S: Final = 3 * BEAT_S
"""Age in seconds at which a status is called old although a daemon runs."""

host_option = click.option("--host", metavar="HOST", help="Only what is on this host of the fleet.")


class RemoteHost(NamedTuple):
    """Another host of the fleet: its name, the journal that is its replica, whether its supervisor is taken to run, and
    a text about it."""

    name: str
    journal: Path
    is_running: bool
    text: str


class FleetView(NamedTuple):
    """Hosts that a command shows: the own one's name (``""``: no fleet), whether it is among them, and the others."""

    own: str
    shows_own: bool
    others: tuple[RemoteHost, ...]


def fleet_view(state: StateDir, host: str | None) -> FleetView:
    """Return the hosts of the fleet of a state directory, or only *host*.

    Raises:
        BadInput: there is no fleet, or no such host in it, or nothing of that host has been received yet.
    """
    status = read_status(state.fleet)
    if status is None:
        if host is not None:
            raise BadInput(f"--host: {state.root} is in no fleet; `supervisor serve --fleet ADDRESS` joins one")
        return FleetView("", True, ())
    status = _as_of_now(status, state)
    if host is not None and host not in {one.name for one in status.hosts}:
        known = ", ".join(one.name for one in status.hosts)
        raise BadInput(f"--host: {host!r} is no host of the fleet {status.fleet}; the hosts are {known}")
    others: list[RemoteHost] = []
    for one in status.hosts:
        if one.name == status.host or host not in (None, one.name):
            continue
        path = replica_path(state.fleet, one.name)
        if path is not None:
            is_running = one.state in (ALIVE, UNKNOWN)
            stored_at = read_replica_state(state.fleet, one.name).stored_at  # newer than the status
            others.append(RemoteHost(one.name, path, is_running, _host_text(one, stored_at)))
        elif host is not None:
            raise BadInput(f"--host: no record of {host} has come yet; {one.problem or 'try again in a moment'}")
    return FleetView(status.host, host in (None, status.host), tuple(others))


def read_replica(other: RemoteHost, work: Callable[[Reader], _T]) -> _T | None:
    """Return what *work* reads of another host's records; ``None``, with a warning, if they cannot be read now."""
    try:
        with open_file(other.journal) as reader:
            return work(reader)
    except JournalError as error:
        warn(f"host {other.name}: its records cannot be read now: {error}")
        return None


def own_heading(view: FleetView) -> str:
    return f"host {view.own} (this host)"


def _host_text(one: HostStatus, stored_at: float) -> str:
    """Return the heading of a host: its state, and when its last records and its last lease came."""
    heard = f", last heard of at {local_time(one.heard_at)}" if one.heard_at and one.state not in (ALIVE, HERE) else ""
    mirrored = f", records as of {clock(stored_at)[:8]}"
    problem = f"; {one.problem}" if one.problem else ""
    return f"host {one.name} ({one.state}{heard}{mirrored}{problem})"


def _as_of_now(status: FleetStatus, state: StateDir) -> FleetStatus:
    """Return the status with hosts whose records have come since it was written, as unknown; if no daemon keeps it up
    to date, or one without a fleet runs here now, the other hosts are unknown, too."""
    known = {one.name for one in status.hosts}
    hosts = [*status.hosts]
    hosts += [HostStatus(name=one, state=UNKNOWN) for one in replicated_hosts(state.fleet) if one not in known]
    if state.lock_holder() is None or time.time() > status.written_at + _STALE_S:
        hosts = [one if one.name == status.host else msgspec.structs.replace(one, state=UNKNOWN) for one in hosts]
    return msgspec.structs.replace(status, hosts=tuple(hosts))


# ------------------------------------------------------------------------------------------------------------ commands
@click.group("fleet", epilog=examples("supervisor fleet status", "supervisor fleet hosts --json"))
def fleet_group() -> None:
    """A daemon joins a fleet with `supervisor serve --fleet nats://HOST:PORT`. Then `tree`, `ps` and `why` show what is
    on every host of the fleet."""


@fleet_group.command("status", epilog=examples("supervisor fleet status || echo 'the fleet needs a person'"))
@state_dir_option
@json_option
def status_command(state_dir: Path, as_json: bool) -> int:
    """Show the fleet as this host sees it. The exit status is 1 if the host cannot take part now."""
    state, status = _read(state_dir)
    running = state.lock_holder() is not None
    age_s = max(0.0, time.time() - status.written_at)
    problem = status.problem if running else "no daemon runs here"
    if not problem and age_s > _STALE_S:
        problem = f"the daemon has not written its status for {duration(age_s)}"
    if as_json:
        say(json_text({**msgspec.to_builtins(status), "running": running, "problem": problem}))
        return WORK_FAILED if problem else DONE
    copies = {0: "", 1: ", one copy of each record"}.get(status.replicas, f", {status.replicas} copies of each record")
    counted = Counter(one.state for one in status.hosts)
    clock_text = "not compared"
    if status.ahead_s is not None:
        clock_text = f"{duration(abs(status.ahead_s))} {'ahead of' if status.ahead_s > 0 else 'behind'} the servers'"
    rows = (
        ("fleet", status.fleet),
        ("this host", status.host),
        ("servers", f"{', '.join(status.servers)}{copies}"),
        ("seen", f"{duration(age_s)} ago"),
        ("problem", problem or "none"),
        ("records", "some are not mirrored yet" if status.is_behind else "all are mirrored"),
        ("clock", clock_text),
        ("hosts", f"{len(status.hosts)}: {', '.join(f'{number} {one}' for one, number in sorted(counted.items()))}"),
    )
    say("\n".join(f"{name:<10} {value}" for name, value in rows))
    return WORK_FAILED if problem else DONE


@fleet_group.command("hosts", epilog=examples("supervisor fleet hosts", "supervisor fleet hosts --json"))
@state_dir_option
@json_option
def hosts_command(state_dir: Path, as_json: bool) -> None:
    """List the hosts of the fleet, whether each is alive, and how new its records here are."""
    state, status = _read(state_dir)
    if state.lock_holder() is None:
        warn(f"no daemon runs on {state.root}: the list is as of {local_time(status.written_at)}")
    status = _as_of_now(status, state)
    if as_json:
        say(json_text(status.hosts))
        return
    say(columns(("HOST", "STATE", "HEARD", "RECORDS", "MACHINE", "PID", "VERSION", "NOTE"), map(_row, status.hosts)))
    for name in dict.fromkeys(one.state for one in status.hosts if one.state not in (HERE, ALIVE)):
        warn(f"{name}: {STATES[name]}")


def _row(one: HostStatus) -> tuple[str, ...]:
    heard = local_time(one.heard_at) if one.heard_at else ""
    mirrored = local_time(one.mirrored_at) if one.mirrored_at else ""
    return (one.name, one.state, heard, mirrored, one.machine, str(one.pid or ""), one.version, one.problem)


def _read(state_dir: Path) -> tuple[StateDir, FleetStatus]:
    """Return the status of a state directory.

    Raises:
        BadInput: it is in no fleet.
    """
    state = StateDir.open(state_dir, create=False)
    status = read_status(state.fleet)
    if status is None:
        raise BadInput(f"{state.root} is in no fleet; `supervisor serve --fleet nats://HOST:PORT` joins one")
    return state, status
