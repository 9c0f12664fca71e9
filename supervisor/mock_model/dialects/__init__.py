"""APIs of model providers, one module each: the content of requests, and the JSON and events of answers. Pure."""

from __future__ import annotations

from supervisor.mock_model.dialects.anthropic import ANTHROPIC
from supervisor.mock_model.dialects.chat import CHAT
from supervisor.mock_model.dialects.google import GOOGLE
from supervisor.mock_model.dialects.responses import RESPONSES
from supervisor.mock_model.dialects.sse import Dialect, Event

__all__ = ["ANTHROPIC", "CHAT", "GOOGLE", "RESPONSES", "Dialect", "Event"]
