"""Workspaces: the directories in which sessions work, and the merge of their work."""

__all__: list[str] = []
