"""HTTP API of a running supervisor: an ASGI app that a host can mount, and the service that serves it.

The package needs the extra ``http`` (FastAPI and hypercorn). Only ``options`` and this file may be imported without
the extra; nobody who serves no HTTP imports anything else of the package.
"""

__all__: list[str] = []
