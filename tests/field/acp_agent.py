"""Small agent of the Agent Client Protocol whose turns a test defines; the test copies this file beside its plan."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

__all__ = ["Agent", "Path", "json", "os", "serve", "subprocess", "sys", "threading", "time"]


class Agent:
    """Connection to the supervisor, as the function that handles a turn uses it."""

    def __init__(self):
        self.conversation = f"conversation-{os.getpid()}"
        self.cancelled = threading.Event()
        self.servers = []
        self._lock, self._replies, self._number = threading.Lock(), {}, 0

    def send(self, **message):
        with self._lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def update(self, **update):
        self.send(method="session/update", params={"sessionId": self.conversation, "update": update})

    def tool_call(self, number, title="tool", status="in_progress"):
        """Send an update that a tool call has begun."""
        self.update(sessionUpdate="tool_call", toolCallId=number, title=title, kind="execute", status=status)

    def tool_ended(self, number, status="completed"):
        """Send an update that a tool call has ended."""
        self.update(sessionUpdate="tool_call_update", toolCallId=number, status=status)

    def call(self, method, **params):
        """Send a request to the supervisor, and return its whole reply."""
        with self._lock:
            self._number += 1
            number = self._number
            waiting = self._replies[number] = queue.Queue()
        self.send(id=number, method=method, params={"sessionId": self.conversation, **params})
        return waiting.get()

    def receive(self, reply):
        self._replies.pop(reply["id"]).put(reply)


def serve(prompted):
    """Serve the protocol until the end of input; each prompt is handled by *prompted* in a thread, so that a cancel can
    be received meanwhile."""
    agent = Agent()

    def handle(number, text):
        reply = prompted(agent, text)
        if reply and not agent.cancelled.is_set():
            content = {"type": "text", "text": reply}
            agent.update(sessionUpdate="agent_message_chunk", content=content)
        agent.send(id=number, result={"stopReason": "cancelled" if agent.cancelled.is_set() else "end_turn"})

    for message in map(json.loads, sys.stdin):
        method, params = message.get("method"), message.get("params") or {}
        if method is None:
            agent.receive(message)
        elif method == "initialize":
            agent.send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {"loadSession": False}})
        elif method == "session/new":
            agent.servers = params.get("mcpServers", [])
            agent.send(id=message["id"], result={"sessionId": agent.conversation})
        elif method == "session/cancel":
            agent.cancelled.set()
        elif method == "session/prompt":
            agent.cancelled.clear()
            text = "".join(block.get("text", "") for block in params["prompt"])
            threading.Thread(target=handle, args=(message["id"], text), daemon=True).start()
        elif "id" in message:
            agent.send(id=message["id"], result={})
