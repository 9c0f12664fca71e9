"""Reports of a supervisor to systemd: signs of life, and the state of its disk."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio

from actors import ActorStopped, AskTimeout
from supervisor.host.supervision import SupervisorCore
from supervisor.ports.systemd import Notifier

BEATS: Final = 2
"""Number of heartbeats within systemd's watchdog time, as sd_watchdog_enabled(3) advises."""
BEAT_S: Final = 30.0
"""Seconds that the core may take to reply before the next request; systemd acts long before."""


async def send_heartbeats(sup: SupervisorCore, systemd: Notifier) -> None:
    """Send heartbeats to systemd, each after a reply of the kernel's dispatcher, since a running event loop alone does
    not prove that actors run."""
    if systemd.watchdog_s is None:
        return
    while True:
        with suppress(AskTimeout, ActorStopped):  # then there is no sign of life, and systemd decides
            await sup.background.heartbeat(timeout_s=BEAT_S)
            systemd.alive()
        await anyio.sleep(systemd.watchdog_s / BEATS)


async def watch_disk(sup: SupervisorCore, systemd: Notifier) -> None:
    """Report outages of the journal to systemd; other code reports outages to the terminal and to the log."""
    while True:
        outage = await sup.journal_writer.disk.wait_down()
        if not sup.stopping.is_set():
            systemd.status(outage.words)
        await sup.journal_writer.disk.up.wait()
        if not sup.stopping.is_set():
            systemd.ready()
