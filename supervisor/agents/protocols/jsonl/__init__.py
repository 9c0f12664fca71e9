"""Programs that print lines of JSON, as a mapping says what those mean."""

__all__: list[str] = []
