"""The work side: what is to be done, who does it, and what becomes of what went wrong."""

__all__: list[str] = []
