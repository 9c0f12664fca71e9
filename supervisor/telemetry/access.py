"""Access to the figures of a supervisor, for the HTTP API and for programs that embed a supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.host.api import Supervisor
from supervisor.policies.argument_checks import check_type
from supervisor.telemetry.service import TelemetrySlot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class TelemetryOff(LookupError):
    """Error: the figures of a supervisor whose settings do not ask for them."""

    def __init__(self) -> None:
        super().__init__("telemetry.metrics: is off in the settings of this supervisor; set it to true, and restart it")


def metrics_registry(sup: Supervisor) -> CollectorRegistry:
    """Return a registry of ``prometheus_client`` with the metrics of *sup*, for ``make_asgi_app`` or
    ``start_http_server``. Each call returns another registry, of the same figures. A scrape may come from any thread.

    Raises:
        TelemetryOff: the settings do not ask for metrics.
        TypeError: *sup* is no supervisor.
    """
    check_type("sup", sup, Supervisor)
    telemetry = sup.core.part(TelemetrySlot).telemetry
    if telemetry is None or telemetry.figures is None:
        raise TelemetryOff
    from supervisor.telemetry.collector import make_registry  # here, since it needs an extra

    return make_registry(sup.core, telemetry.figures)
