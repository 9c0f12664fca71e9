"""Simulated agents, and the choice of the simulated program that a launch starts, by the launch's command line.

``sim-acp``, ``sim-command [PROMPT]`` and ``sim-jsonl`` are agents; ``sim-tool PLACE SECONDS`` is the command that ACP
agents run in terminals. ``sim-work`` works on tasks of plans, ``sim-check TASK`` is the acceptance test of a task. No
other program exists on the simulated machine.
"""

from __future__ import annotations

import errno
import os

from supervisor.ports import Launch
from supervisor.simulation.agents.acp_agent import acp_agent
from supervisor.simulation.agents.command_agent import command_agent, terminal_program
from supervisor.simulation.agents.jsonl_agent import jsonl_agent
from supervisor.simulation.agents.profile import AgentShape
from supervisor.simulation.agents.turn_plan import Spend, free
from supervisor.simulation.faults import FaultPlan
from supervisor.simulation.keyed_random import KeyedRandom
from supervisor.simulation.machine.kernel import Program

__all__ = ["program_for"]


def program_for(
    launch: Launch, shape: AgentShape, random: KeyedRandom, faults: FaultPlan, spend: Spend = free
) -> Program:
    """Return the program that *launch* starts. An agent behaves as *shape* describes; the adapter in *shape* does not
    count. *spend* is called with the tokens that the agent uses.

    Raises:
        FileNotFoundError: the launch names a program that does not exist.
    """
    match launch.argv:
        case ("sim-acp",):
            return acp_agent(shape.speaking("acp"), random, faults, spend)
        case ("sim-command",) | ("sim-command", _):
            return command_agent(shape.speaking("command"), random, faults, spend)
        case ("sim-jsonl",) | ("sim-jsonl", "--resume", _):
            return jsonl_agent(shape.speaking("jsonl"), random, faults, spend)
        case ("sim-tool", _, _):
            return terminal_program(random, faults)
        case argv:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), " ".join(argv[:1]))
