"""Thread of one plug-in, in which its hooks are called one after the other.

Records are queued for the thread without a wait. The queue is bounded: records that do not fit are dropped and counted.
A call that takes longer than its limit cannot be ended, since a thread cannot. The call is counted and logged once, and
the plug-in is not asked for opinions until the call returns. The thread is a daemon, so that it does not delay the end
of the program.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, NamedTuple

import msgspec

from supervisor.ports.logs import get_logger

QUEUE_MAX: Final = 4_096
"""Maximal number of records that may wait for a plug-in, as for any subscriber."""

CALL_S: Final = 5.0
"""Seconds that one call of a hook may take before its plug-in counts as late."""

_log = get_logger()


class Counts(msgspec.Struct, kw_only=True):
    """Counts of a plug-in's calls: ``calls`` made, ``failed`` by an exception, ``late`` beyond their limit, and
    records ``dropped`` because the queue was full."""

    calls: int = 0
    failed: int = 0
    late: int = 0
    dropped: int = 0


class Answer(NamedTuple):
    """Result of a call to a plug-in: its value, or its exception."""

    value: Any = None
    error: BaseException | None = None


Call = Callable[[], Any]
_Asked = tuple[str, Call, "Future[Answer]"]


class PluginThread:
    """Makes the calls of one plug-in in a thread of its own.

    Args:
        name: name of the plug-in.
        limit_s: seconds that one call may take before it is late.
    """

    def __init__(self, name: str, *, limit_s: float = CALL_S, queue_max: int = QUEUE_MAX) -> None:
        self.name = name
        self.limit_s = limit_s
        self.counts = Counts()
        self._queue_max = queue_max
        self._events: deque[tuple[str, Call]] = deque()
        self._asked: deque[_Asked] = deque()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        """Queue that wakes the thread: True for each call that waits, and False at the end."""
        self._since: float | None = None
        """Start of the call that runs now (monotonic seconds); ``None`` if no call runs."""
        self._logged_late = self._logged_dropped = False
        self._logged_failed: set[str] = set()
        self._stopping = False
        self._thread = self._start_thread()

    def _start_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=f"supervisor plug-in {self.name}", daemon=True)
        thread.start()
        return thread

    # ------------------------------------------------------------------ queues
    def send(self, what: str, call: Call) -> None:
        """Queue *call*; drop it if the queue is full. Never waits, never raises."""
        self.look()
        if len(self._events) >= self._queue_max:
            self.counts.dropped += 1
            if not self._logged_dropped:
                self._logged_dropped = True
                _log.warning("a plug-in cannot keep up: records are dropped", plugin=self.name, waiting=self._queue_max)
            return
        self._events.append((what, call))
        self._tokens.put(True)

    def ask(self, what: str, call: Call) -> Future[Answer] | None:
        """Queue *call* before the records that wait, and return its future; return None if the plug-in is late with
        another call."""
        if self.look():
            return None
        future: Future[Answer] = Future()
        self._asked.append((what, call, future))
        self._tokens.put(True)
        return future

    def answer(self, what: str, call: Call, limit_s: float | None = None) -> Answer | None:
        """Queue *call* and wait for its result; return None if the result is late. Blocks: call this method in a worker
        thread."""
        future = self.ask(what, call)
        if future is None:
            return None
        try:
            return future.result(self.limit_s if limit_s is None else limit_s)
        except TimeoutError:
            if not future.cancel():
                self._note_late(what)
            return None

    def look(self) -> bool:
        """Return whether the call that runs now is late; log a late call once."""
        since = self._since
        late = since is not None and monotonic() - since > self.limit_s
        if late:
            self._note_late("a hook")
        return late

    def _note_late(self, what: str) -> None:
        if not self._logged_late:
            self._logged_late = True
            self.counts.late += 1
            _log.warning("a plug-in is late: it is asked nothing until it returns", plugin=self.name, hook=what)

    def _note_failure(self, what: str, error: BaseException) -> None:
        """Count a failure; log only the first failure of each hook, since the log would be filled with them."""
        self.counts.failed += 1
        if what not in self._logged_failed:
            self._logged_failed.add(what)
            _log.error("a plug-in failed", plugin=self.name, hook=what, error=repr(error), exc_info=error)

    def replace_dead(self) -> None:
        """Start another thread if the thread has died by a bug in this module; the new thread makes the waiting
        calls."""
        if self._thread.is_alive() or self._stopping:
            return
        _log.error("the thread of a plug-in had died: another one was started", plugin=self.name)
        self._since, self._logged_late = None, False
        self._thread = self._start_thread()

    # ------------------------------------------------------------------ the end
    def stop(self) -> None:
        """Make the thread end after the calls that wait, without waiting for its end."""
        self._stopping = True
        self._tokens.put(False)

    def join(self, within_s: float) -> bool:
        """Wait for the end of the thread, then drop the records that still wait; return whether the thread has
        ended."""
        self._thread.join(within_s)
        if not self._thread.is_alive():
            return True
        self.counts.dropped += len(self._events)
        self._events.clear()
        _log.warning("a plug-in does not end: it is left behind", plugin=self.name, dropped=self.counts.dropped)
        return False

    # ------------------------------------------------------------------ in the thread
    def _run(self) -> None:
        while self._tokens.get():
            if self._asked:
                what, call, future = self._asked.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(self._make(what, call))
            elif self._events:
                self._make(*self._events.popleft())

    def _make(self, what: str, call: Call) -> Answer:
        self.counts.calls += 1
        self._since = monotonic()
        try:
            return Answer(call())
        except BaseException as error:  # SystemExit too: a plug-in must not end the program
            self._note_failure(what, error)
            return Answer(error=error)
        finally:
            self._since, self._logged_late = None, False
            if not self._events:
                self._logged_dropped = False
