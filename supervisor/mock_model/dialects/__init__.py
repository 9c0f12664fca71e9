"""Dialects, a module for each: the content of a request, and the JSON and the events of its answers. Pure."""

from __future__ import annotations

from supervisor.mock_model.dialects.anthropic import ANTHROPIC
from supervisor.mock_model.dialects.chat import CHAT
from supervisor.mock_model.dialects.google import GOOGLE
from supervisor.mock_model.dialects.responses import RESPONSES
from supervisor.mock_model.dialects.sse import Dialect, Event

__all__ = ["ANTHROPIC", "CHAT", "GOOGLE", "RESPONSES", "Dialect", "Event"]
