"""Telemetry: figures for Prometheus, spans by the API of OpenTelemetry, and lines of JSON, all made from the records.

Neither library is loaded unless the settings ask for it. A program that embeds a supervisor serves the figures itself
with :func:`metrics_registry`; ``/metrics`` of the HTTP API serves the same.
"""

from supervisor.telemetry.access import TelemetryOff, metrics_registry

__all__ = ["TelemetryOff", "metrics_registry"]
