"""Checker of launches: the record of the intent of a launch is durable before the launch, and a session has one agent
at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from supervisor.lifecycles.types import LifecycleEvent
from supervisor.simulation.machine.processes import ProcessEvent
from supervisor.simulation.oracle import HOME

TEST: Final = "$ sim-check"
"""Part of the process name of every acceptance test; no agent starts these processes."""


class LaunchChecker:
    """Checker of the launches of a simulated run. *say* reports a violation: the invariant, the entity, and the
    message."""

    def __init__(self, say: Callable[[str, str, str], None]) -> None:
        self._say = say
        self._live: dict[str, dict[int, str]] = {}
        """Living processes by session: a map from pid to name."""
        self._lost: set[int] = set()
        """Pids of processes whose shim was lost."""
        self._intents = Counter[tuple[str, str]]()
        self._launches = Counter[tuple[str, str]]()

    def wrote(self, record: LifecycleEvent) -> None:
        """Process a durable record."""
        if record.outcome != "transition":
            return
        session_id = record.entity_id.partition(":")[0]
        if record.event in ("PromptReady", "tool_started"):
            self._intents[session_id, record.event] += 1
        elif record.event == "task_assigned":  # an idle agent takes it: no launch
            self._intents[session_id, "PromptReady"] -= 1

    def process(self, event: ProcessEvent) -> None:
        """Process an event of a process: a start, a kill, or the collection of its exit status."""
        session_id = event.owner.partition("$ ")[0].removeprefix(f"{HOME}/")
        live = self._live.setdefault(session_id, {})
        match event.what:
            case "spawned":
                if event.detail == event.owner and TEST not in event.owner:  # not one that the agent has forked
                    self._check_alone(session_id, event, live)
                    # A terminal is called after the call that asked for it: agent, turn, call.
                    in_call = ":" in event.owner.partition("$ ")[2]
                    self._check_intent(session_id, "tool_started" if in_call else "PromptReady")
                live[event.pid] = event.detail
            case "killed" if event.detail == "with its warden":
                self._lost.update(live)
            case "reaped":
                live.pop(event.pid, None)

    def _check_alone(self, session_id: str, event: ProcessEvent, live: dict[int, str]) -> None:
        """Check that a new agent starts only after the last agent and everything that it started have ended. Terminals
        of a failed turn do not count: they end with the turn's clean-up."""
        there = [name for pid, name in live.items() if pid != event.pid and pid not in self._lost]
        others = [name for name in there if ":t" not in name and TEST not in name]
        if ":" not in event.owner.partition("$ ")[2] and others:
            self._say("one_holder", session_id, f"{event.detail} was started beside {', '.join(others)}")

    def _check_intent(self, session_id: str, intent: str) -> None:
        """Check that at least as many intents are durable as launches were made: prompts for agents, tool calls for
        terminals."""
        self._launches[session_id, intent] += 1
        if self._launches[session_id, intent] > self._intents[session_id, intent]:
            self._say("intent_before_effect", session_id, f"a program was started before its {intent} was durable")
