"""Real program that executes the steps of a script: ``python -I -S interpreter.py JSON``; see ``scripts.py``.

No process of the program lives longer than two minutes, and none leaves a core file.
"""

import base64
import json
import os
import resource
import signal
import sys
import time
from typing import Any

LIFE_S = 300
CHUNK_BYTES = 65536


def write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


class Life:
    """Interpreter of the steps of one process; *ready* is the descriptor on which the parent waits for this process."""

    def __init__(self, ready: int) -> None:
        self.ready = ready
        self.children: list[int] = []
        self.heard = b""

    def do(self, steps: list[dict[str, Any]]) -> None:
        signal.alarm(LIFE_S)
        for step in steps:
            getattr(self, step.pop("do"))(**step)
        os._exit(0)

    def say(self, data: str) -> None:
        write(1, base64.b64decode(data))

    def complain(self, data: str) -> None:
        write(2, base64.b64decode(data))

    def dribble(self, data: str, every_s: float) -> None:
        for byte in base64.b64decode(data):
            write(1, bytes([byte]))
            time.sleep(every_s)

    def flood(self, size: int) -> None:
        write(1, b"x" * size)

    def read_line(self) -> None:
        while b"\n" not in self.heard:
            data = os.read(0, CHUNK_BYTES)
            if not data:
                return
            self.heard += data
        self.heard = self.heard.partition(b"\n")[2]

    def read_all(self) -> None:
        size = len(self.heard)
        while data := os.read(0, CHUNK_BYTES):
            size += len(data)
        write(1, b"%d\n" % size)

    def echo(self) -> None:
        write(1, self.heard)
        while data := os.read(0, CHUNK_BYTES):
            write(1, data)

    def close_output(self) -> None:
        os.close(1)

    def ignore_term(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def fork(self, steps: list[dict[str, Any]], new_session: bool = False, keeps_output: bool = False) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self.begin(steps, writing, new_session, keeps_output)
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        self.children.append(pid)

    def begin(self, steps: list[dict[str, Any]], ready: int, new_session: bool, keeps_output: bool) -> None:
        os.close(self.ready)
        if new_session:
            os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0,) if keeps_output else (0, 1, 2):
            os.dup2(null, fd)
        Life(ready).do(steps)

    def reap(self) -> None:
        _, status = os.waitpid(self.children.pop(0), 0)
        write(1, b"%d\n" % os.waitstatus_to_exitcode(status))

    def exit(self, status: int) -> None:
        os._exit(status)

    def die(self, signal: int) -> None:
        os.kill(os.getpid(), signal)

    def hang(self) -> None:
        while True:
            signal.pause()

    def mark_ready(self) -> None:
        write(self.ready, b"!")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    Life(os.open(os.devnull, os.O_WRONLY)).do(json.loads(sys.argv[1]))
