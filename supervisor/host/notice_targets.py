"""Real receivers of notices: commands under a shim, and web addresses. A file remembers what they were told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import anyio

from supervisor.host.factories import clean_env
from supervisor.lifecycles.types import RecordId
from supervisor.ports import Launch, ProcessHost
from supervisor.ports.helper_programs import run_command
from supervisor.ports.notices import NoticeTarget
from supervisor.ports.secure_files import write_private

SEND_S = 30.0
"""Seconds that a command, or the answer of a web server, may take."""


class NoticeTargets:
    """Sends notices to commands and web addresses.

    Args:
        processes: host of the commands' processes.
        workdir: directory in which the commands run.
        memory: file that remembers what was told; ``None``: nothing is remembered.
    """

    def __init__(self, processes: ProcessHost, workdir: str, memory: Path | None) -> None:
        self._processes, self._workdir, self._memory = processes, workdir, memory

    async def send(self, target: NoticeTarget, payload: bytes) -> str:
        if target.url:
            # The thread is left behind at a cancellation: it ends by its own time-out, and its answer is dropped.
            return await anyio.to_thread.run_sync(partial(_post, target, payload), abandon_on_cancel=True)
        launch = Launch(argv=target.command, cwd=self._workdir, env=clean_env())
        ran = await run_command(self._processes, launch, timeout_s=SEND_S, given=payload)
        return "" if ran.ok else ran.problem or f"exit status {ran.status}: {ran.output[-500:]}"

    def told(self) -> Mapping[str, RecordId]:
        if self._memory is None or not self._memory.exists():
            return {}
        try:
            found = json.loads(self._memory.read_text())
        except (
            OSError,
            ValueError,
        ):  # whoever is told of new records only is told too little, and of old ones too much
            return {}
        return {str(key): RecordId(seq) for key, seq in found.items() if isinstance(seq, int)}

    def note_told(self, last: Mapping[str, RecordId]) -> None:
        if self._memory is not None:
            write_private(self._memory, json.dumps(dict(last)))


def _post(target: NoticeTarget, payload: bytes) -> str:
    from urllib.request import HTTPRedirectHandler, Request, build_opener  # 30 ms, which only a webhook pays

    class NoRedirect(HTTPRedirectHandler):
        """Handler that follows no redirect: a redirected request would be a GET without the notice."""

        def redirect_request(self, *args: Any) -> None:
            return None

    headers = {"Content-Type": "application/json", **dict(target.headers)}
    try:
        request = Request(target.url, data=payload, headers=headers, method="POST")
        with build_opener(NoRedirect).open(request, timeout=SEND_S) as answer:
            answer.read(1024)
    except (OSError, ValueError, HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    return ""
