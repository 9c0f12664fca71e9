"""Version of this package, as it is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the version; ``0+unknown`` in a checkout that is not installed."""
    try:
        return version("supervisor-runtime")
    except PackageNotFoundError:
        return "0+unknown"
