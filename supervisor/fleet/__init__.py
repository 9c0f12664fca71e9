"""Fleet: several supervisors, each on its host, that know of each other through an engine which they share.

A host mirrors the records of its journal into the engine (``mirror``), keeps a replica of every other host's
(``replicas``), and holds a lease on its name (``membership``). The engine is NATS JetStream (``nats_engine``), behind
the ports of ``ports``. A host that is in no fleet imports nothing that needs the extra.

Invariants: nothing of a session waits for the engine; the engine's records of a host are written by one process at a
time, which compare-and-set on the host's last entry enforces; a read only proposes what to try, an append decides.
"""

from __future__ import annotations

__all__ = ["FleetOptions"]

from supervisor.fleet.options import FleetOptions
