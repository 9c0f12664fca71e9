"""Triggers: schedules, webhooks and watched files that start plans in a daemon."""

__all__: list[str] = []
