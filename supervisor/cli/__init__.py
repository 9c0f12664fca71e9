"""The doors of the supervisor: what people and other programs see of it and tell it.

A door decides nothing: it reads what is recorded and sends messages.
"""

from __future__ import annotations

__all__: list[str] = []
