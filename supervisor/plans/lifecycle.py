"""Retries of tasks, as a plan writes them: the ``task_lifecycle`` block of spec 002 with its names and defaults.

The names of the specification have no units: all times are in seconds. ``probes_max`` and the two keys about providers
are not in the specification.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import Field

from supervisor.lifecycles.task_run import TaskRun, TaskRunData
from supervisor.plans.error_texts import Problem
from supervisor.plans.fields import Amount, Count, Duration, Flag, Model, Percentage, Seconds, Several, Share

_RUN: Final = TaskRunData()
_SAVED: Final = (TaskRun.COMPLETED, TaskRun.FAILED, TaskRun.TIMEOUT, TaskRun.CIRCUIT_OPEN, TaskRun.CANCELLED)
"""States of a task run in which an attempt has ended, so that there is work to save."""
_SAVED_NAMES: Final = ", ".join(one.value for one in _SAVED)


class CircuitBreakerConfig(Model):
    """Circuit breaker: when a task is not tried any more, and how often it is probed after that.

    Without a circuit breaker a task is given up when its attempts are used up, and is never probed.
    """

    enabled: Flag = Field(
        default=True,
        description="Whether the circuit breaker is used; false: all max_attempts attempts are made, and no probe.",
    )
    max_error_repeats: Amount = Field(
        default=_RUN.max_error_repeats, description="Repeats of the same error; one more opens the circuit."
    )
    cooldown_period: Seconds = Field(
        default=_RUN.cooldown_s, description="Seconds from the opening of the circuit to a probe."
    )
    probes_max: Amount = Field(
        default=_RUN.probes_max, description="Number of probes, which are single attempts after a time-out or a stall."
    )


class CheckpointConfig(Model):
    """States of a task run in which the work so far is saved, so that a later run can continue it."""

    enabled: Flag = Field(default=True, description="Whether the work of a task run is saved.")
    save_on_states: Several[TaskRun] = Field(
        default=(TaskRun.COMPLETED, TaskRun.FAILED, TaskRun.CIRCUIT_OPEN),
        description=f"States of a task run in which its work is saved, of {_SAVED_NAMES}.",
    )

    def problems(self) -> Iterator[Problem]:
        for number, state in enumerate(self.save_on_states):
            if state not in _SAVED:
                words = f"no attempt ends in {state.value}; use {_SAVED_NAMES}"
                yield ("save_on_states", number), words
                return


class TaskLifecycle(Model):
    """Time-outs, retries, the circuit breaker, and what is kept of an attempt."""

    default_timeout: Duration | None = Field(
        default=None,
        description="Seconds that an attempt may take, unless the task has timeout_s or scope; by default "
        "limits.turn_timeout_s if the plan sets it, else 1800, or 300 for an agent with adapter: command "
        "that is not in the catalogue.",
    )
    validation_timeout: Duration = Field(
        default=30.0, description="Seconds that an acceptance test may take, unless the test has timeout_s."
    )
    max_attempts: Count = Field(default=_RUN.max_attempts, description="Number of attempts of a task run.")
    base_retry_delay: Seconds = Field(
        default=_RUN.base_delay_s,
        description="Seconds of the pause before the second attempt; the pause doubles with each failure.",
    )
    max_retry_delay: Seconds = Field(
        default=_RUN.max_delay_s, description="Seconds of the longest pause; not less than base_retry_delay."
    )
    jitter_percentage: Percentage = Field(
        default=_RUN.jitter * 100, description="Random change of a pause, up or down, in per cent of the pause."
    )
    provider_patience_s: Seconds = Field(
        default=_RUN.provider_patience_s,
        description="Seconds for which the attempts of a task run may fail by errors of the model's provider.",
    )
    provider_wait_max_s: Seconds = Field(
        default=_RUN.provider_wait_max_s,
        description="Seconds of the longest wait that an error of the provider may ask for.",
    )
    circuit_breaker: CircuitBreakerConfig = Field(
        default=CircuitBreakerConfig(), description="Circuit breaker, which stops a task run that repeats an error."
    )
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="States in which the work of a task run is saved."
    )
    cleanup_on_cancel: Flag = Field(
        default=True, description="Whether the worktree of a cancelled task is removed; false keeps it and its branch."
    )
    save_partial_output: Flag = Field(
        default=True,
        description="Whether the last 4,000 characters of the output of a failed or cancelled attempt are kept.",
    )

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
    """Retries that a workstream may use in total."""

    share: Share = Field(
        default=0.2, description="Retries that all tasks may use together, as a share of the number of tasks."
    )
    least: Amount = Field(default=10, description="Number of retries that the workstream may use in any case.")
