"""One module for each dialect: what a request of it asks, and the JSON and the events of its answers. Pure."""

from __future__ import annotations

from supervisor.stub_model.dialects.anthropic import ANTHROPIC
from supervisor.stub_model.dialects.chat import CHAT
from supervisor.stub_model.dialects.form import Dialect, Event, Streamed
from supervisor.stub_model.dialects.google import GOOGLE
from supervisor.stub_model.dialects.responses import RESPONSES

__all__ = ["ANTHROPIC", "CHAT", "DIALECTS", "GOOGLE", "RESPONSES", "Dialect", "Event", "Streamed"]

DIALECTS = (ANTHROPIC, CHAT, RESPONSES, GOOGLE)
