"""Table of the metrics: names, labels, help texts, buckets. Pure; the page, the collector and tests read it.

Rules, which a test checks: names have underscores only, since a scrape of ``a.b`` and ``a_b`` would mix them; base
units; ``_total`` at the end of a counter and of nothing else; no label has an id. The values of the labels ``agent``,
``plan``, ``provider`` and ``tool`` come from users and agents: of each label the first ``LABEL_VALUES_MAX`` values are
kept, and the others count as ``other``.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

LABEL_VALUES_MAX: Final = 100
OTHER: Final = "other"
USER_LABELS: Final = frozenset({"agent", "plan", "provider", "tool"})

TURN_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0)
CALL_S: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0)
ABORT_S: Final = (0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
COMMIT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)


class Metric(NamedTuple):
    """A metric. ``buckets`` are the upper bounds of a histogram, in seconds."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS: Final = {
    one.name: one
    for one in (
        # counted from the records
        Metric("supervisor_records_total", "counter", "Records that became durable.", ("kind", "outcome")),
        Metric("supervisor_transitions_total", "counter", "Changes of state.", ("kind", "from_state", "to_state")),
        Metric("supervisor_sessions_ended_total", "counter", "Sessions that have ended.", ("agent", "outcome")),
        Metric("supervisor_runs_ended_total", "counter", "Runs of plans that have ended.", ("plan", "outcome")),
        Metric("supervisor_tasks_ended_total", "counter", "Tasks that have ended.", ("plan", "outcome")),
        Metric(
            "supervisor_turn_duration_seconds",
            "histogram",
            "Time of a turn, from its claim to its clean-up.",
            ("agent", "outcome"),
            TURN_S,
        ),
        Metric(
            "supervisor_tool_call_duration_seconds",
            "histogram",
            "Time of a tool call.",
            ("agent", "tool", "outcome"),
            CALL_S,
        ),
        Metric(
            "supervisor_abort_duration_seconds",
            "histogram",
            "Time from the record of an abort until everything that it ends has ended, by the last stage needed.",
            ("scope", "stage"),
            ABORT_S,
        ),
        Metric("supervisor_aborts_total", "counter", "Aborts that were begun.", ("scope", "reason")),
        Metric(
            "supervisor_survivors_total",
            "counter",
            "Processes that have survived the end of their session; unknown counts ends with an unknown number.",
            ("certainty",),
        ),
        Metric("supervisor_processes_killed_total", "counter", "Processes that were killed at the end of their agent."),
        Metric("supervisor_agent_launches_total", "counter", "Launches of agents.", ("agent",)),
        Metric("supervisor_agent_restarts_total", "counter", "Launches after a failure in a session.", ("agent",)),
        Metric(
            "supervisor_retries_total",
            "counter",
            "Decisions to try a task again: after what kind of failure; claim is a new claim of the task.",
            ("reason",),
        ),
        Metric("supervisor_dead_letters_total", "counter", "Tasks that were given up.", ("plan",)),
        Metric(
            "supervisor_breaker_transitions_total", "counter", "Changes of providers' breakers.", ("provider", "state")
        ),
        Metric(
            "supervisor_tokens_total",
            "counter",
            "Tokens that agents have reported; cached tokens are a part of the input.",
            ("agent", "plan", "type"),
        ),
        Metric("supervisor_cost_usd_total", "counter", "US dollars that agents have reported.", ("agent", "plan")),
        Metric("supervisor_telemetry_lines_lost_total", "counter", "Lines that the telemetry files lack."),
        Metric("supervisor_permissions_total", "counter", "Permission requests that were answered.", ("decision",)),
        # measured at each commit
        Metric(
            "supervisor_journal_commit_duration_seconds",
            "histogram",
            "Time until a batch of records is durable.",
            (),
            COMMIT_S,
        ),
        # asked for at each scrape
        Metric("supervisor_sessions", "gauge", "Sessions that live, by state.", ("state",)),
        Metric("supervisor_turns", "gauge", "Turns that have not ended, by state.", ("state",)),
        Metric("supervisor_tasks", "gauge", "Tasks of running plans, by state.", ("state",)),
        Metric("supervisor_queued_tasks", "gauge", "Tasks that can begin and wait for a worker."),
        Metric("supervisor_queued_tasks_oldest_seconds", "gauge", "Time for which the oldest of them has waited."),
        Metric("supervisor_held_tasks", "gauge", "Tasks with a step that something outside of the work holds."),
        Metric("supervisor_breaker_open", "gauge", "1 while no agent is launched against a provider.", ("provider",)),
        Metric("supervisor_open_approvals", "gauge", "Requests that wait for a person.", ("kind",)),
        Metric(
            "supervisor_open_approvals_oldest_seconds", "gauge", "Time for which the oldest of them waits.", ("kind",)
        ),
        Metric("supervisor_pending_requests", "gauge", "Prompts whose results somebody waits for."),
        Metric("supervisor_stalled_agents", "gauge", "Agents at work that make no progress."),
        Metric("supervisor_mailbox_messages", "gauge", "Messages that wait in the mailboxes of all entities."),
        Metric("supervisor_mailbox_messages_max", "gauge", "Messages in the fullest mailbox."),
        Metric("supervisor_journal_backlog_records", "gauge", "Records that are not durable yet."),
        Metric("supervisor_journal_writable", "gauge", "1 while the journal can be written, else 0."),
        Metric("supervisor_waiting_launches", "gauge", "Programs that wait for a resource to start.", ("resource",)),
        Metric("supervisor_unidentified_processes", "gauge", "Running processes of unknown origin."),
        Metric("supervisor_subscribers", "gauge", "Readers of the records, event streams among them."),
        Metric("supervisor_build_info", "gauge", "1, with the versions as labels.", ("version", "sqlite", "python")),
    )
}
"""Metrics by their names."""
