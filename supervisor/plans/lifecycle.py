"""Retries of tasks, as a plan writes them: the ``task_lifecycle`` block of spec 002 with its names and defaults.

The names of the specification have no units: all times are in seconds. ``probes_max`` and the two keys about providers
are not in the specification.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import Amount, Count, Duration, Flag, Model, Percentage, Seconds, Several, Share

_RUN: Final = TaskRunData()
_SAVED: Final = (TaskRun.COMPLETED, TaskRun.FAILED, TaskRun.TIMEOUT, TaskRun.CIRCUIT_OPEN, TaskRun.CANCELLED)
"""States of a task run in which an attempt has ended, so that there is work to save."""


class CircuitBreakerConfig(Model):
    """Circuit breaker: when a task is not tried any more, and how often it is probed after that.

    Without a circuit breaker a task is given up when its attempts are used up, and is never probed.
    """

    enabled: Flag = True
    max_error_repeats: Amount = _RUN.max_error_repeats
    cooldown_period: Seconds = _RUN.cooldown_s
    probes_max: Amount = _RUN.probes_max


class CheckpointConfig(Model):
    """States of a task run in which the work so far is saved, so that a later run can continue it."""

    enabled: Flag = True
    save_on_states: Several[TaskRun] = (TaskRun.COMPLETED, TaskRun.FAILED, TaskRun.CIRCUIT_OPEN)

    def problems(self) -> Iterator[Problem]:
        for number, state in enumerate(self.save_on_states):
            if state not in _SAVED:
                words = f"no attempt ends in {state.value}; use {', '.join(one.value for one in _SAVED)}"
                yield ("save_on_states", number), words
                return


class TaskLifecycle(Model):
    """Time-outs, retries, the circuit breaker, and what is kept of an attempt."""

    default_timeout: Duration | None = None
    validation_timeout: Duration = 30.0
    max_attempts: Count = _RUN.max_attempts
    base_retry_delay: Seconds = _RUN.base_delay_s
    max_retry_delay: Seconds = _RUN.max_delay_s
    jitter_percentage: Percentage = _RUN.jitter * 100
    provider_patience_s: Seconds = _RUN.provider_patience_s
    provider_wait_max_s: Seconds = _RUN.provider_wait_max_s
    circuit_breaker: CircuitBreakerConfig = CircuitBreakerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    cleanup_on_cancel: Flag = True
    save_partial_output: Flag = True

    def problems(self) -> Iterator[Problem]:
        if self.base_retry_delay > self.max_retry_delay:
            words = f"{self.base_retry_delay:g} is more than max_retry_delay, {self.max_retry_delay:g}; lower it"
            yield ("base_retry_delay",), words

    def value(self) -> TaskRunData:
        """Return the limits of a task run. Without a circuit breaker no repeated error ends the run early, and no probe
        is made."""
        circuit = self.circuit_breaker
        return TaskRunData(
            max_attempts=self.max_attempts,
            base_delay_s=self.base_retry_delay,
            max_delay_s=self.max_retry_delay,
            jitter=self.jitter_percentage / 100,
            max_error_repeats=circuit.max_error_repeats if circuit.enabled else self.max_attempts,
            probes_max=circuit.probes_max if circuit.enabled else 0,
            cooldown_s=circuit.cooldown_period,
            provider_patience_s=self.provider_patience_s,
            provider_wait_max_s=self.provider_wait_max_s,
            timeout_s=_RUN.timeout_s if self.default_timeout is None else self.default_timeout,
        )


class RetryBudgetConfig(Model):
    """Retries that a workstream may use in total: a share of its tasks, but at least *least*."""

    share: Share = 0.2
    least: Amount = 10
