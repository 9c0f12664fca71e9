"""The thread of one plug-in: its hooks are called there, one after the other, and nobody waits for it unbounded.

Whoever has something for it puts that down and goes on. Its queue has a bound: what does not fit is dropped and
counted. A call that takes longer than its limit cannot be ended, since a thread cannot; it is counted, told of once,
and until it returns the plug-in is asked nothing. The thread is a daemon: it never holds up the end of the program.
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

__all__ = ["CALL_S", "QUEUE_MAX", "Answer", "Counts", "PluginThread"]

QUEUE_MAX: Final = 4_096
"""Records that may wait for a plug-in, as for any subscriber."""

CALL_S: Final = 5.0
"""How long one call of a hook may take before its plug-in counts as late, in seconds."""

_log = get_logger()


class Counts(msgspec.Struct, kw_only=True):
    """What became of a plug-in's calls: ``calls`` made, ``failed`` by an exception, ``late`` beyond their limit, and
    records ``dropped`` because too many waited."""

    calls: int = 0
    failed: int = 0
    late: int = 0
    dropped: int = 0


class Answer(NamedTuple):
    """What a call came to: its value, or the exception that it ended with."""

    value: Any = None
    error: BaseException | None = None


Call = Callable[[], Any]
_Asked = tuple[str, Call, "Future[Answer]"]


class PluginThread:
    """Calls for one plug-in.

    Args:
        name: the plug-in's.
        limit_s: how long one call may take before it is late.
    """

    def __init__(self, name: str, *, limit_s: float = CALL_S, queue_max: int = QUEUE_MAX) -> None:
        self.name = name
        self.limit_s = limit_s
        self.counts = Counts()
        self._queue_max = queue_max
        self._events: deque[tuple[str, Call]] = deque()
        self._asked: deque[_Asked] = deque()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        """One ``True`` for each call that waits, and a ``False`` at the end."""
        self._since: float | None = None
        """When the call began that runs now."""
        self._told_late = self._told_dropped = False
        self._told_failed: set[str] = set()
        self._stopping = False
        self._thread = self._start_thread()

    def _start_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=f"supervisor plug-in {self.name}", daemon=True)
        thread.start()
        return thread

    # ------------------------------------------------------------------ what is put down: never waits, never raises
    def tell(self, what: str, call: Call) -> None:
        """Have *call* made when its turn comes; dropped where too many wait."""
        self.look()
        if len(self._events) >= self._queue_max:
            self.counts.dropped += 1
            if not self._told_dropped:
                self._told_dropped = True
                _log.warning("a plug-in cannot keep up: records are dropped", plugin=self.name, waiting=self._queue_max)
            return
        self._events.append((what, call))
        self._tokens.put(True)

    def ask(self, what: str, call: Call) -> Future[Answer] | None:
        """Have *call* made before the records that wait; ``None`` where the plug-in is late with another one."""
        if self.look():
            return None
        future: Future[Answer] = Future()
        self._asked.append((what, call, future))
        self._tokens.put(True)
        return future

    def answer(self, what: str, call: Call, limit_s: float | None = None) -> Answer | None:
        """Wait, in a thread that may, for what *call* comes to; ``None`` where it is late."""
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
        """Whether the call that runs now is late."""
        since = self._since
        late = since is not None and monotonic() - since > self.limit_s
        if late:
            self._note_late("a hook")
        return late

    def _note_late(self, what: str) -> None:
        if not self._told_late:
            self._told_late = True
            self.counts.late += 1
            _log.warning("a plug-in is late: it is asked nothing until it returns", plugin=self.name, hook=what)

    def _note_failure(self, what: str, error: BaseException) -> None:
        """Count it; told of once for each hook, or the log would hold nothing else."""
        self.counts.failed += 1
        if what not in self._told_failed:
            self._told_failed.add(what)
            _log.error("a plug-in failed", plugin=self.name, hook=what, error=repr(error), exc_info=error)

    def replace_dead(self) -> None:
        """Start another thread if the thread has died of an error of ours; calls that wait are made by the new one."""
        if self._thread.is_alive() or self._stopping:
            return
        _log.error("the thread of a plug-in had died: another one was started", plugin=self.name)
        self._since, self._told_late = None, False
        self._thread = self._start_thread()

    # ------------------------------------------------------------------ the end
    def stop(self) -> None:
        """Let it end when all that waits is done."""
        self._stopping = True
        self._tokens.put(False)

    def join(self, within_s: float) -> bool:
        """Wait for that, in a thread that may; what still waits then is dropped. Whether it has ended."""
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
            self._next()

    def _next(self) -> None:
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
        except BaseException as error:  # also an exit: it is the plug-in's, and not the program's
            self._note_failure(what, error)
            return Answer(error=error)
        finally:
            self._since, self._told_late = None, False
            if not self._events:
                self._told_dropped = False
