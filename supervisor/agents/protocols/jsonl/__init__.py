"""Programs that print lines of JSON, whose meaning a mapping describes."""

__all__: list[str] = []
