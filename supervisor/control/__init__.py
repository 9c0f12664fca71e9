"""The control socket: its protocol, its server and its client."""

__all__: list[str] = []
