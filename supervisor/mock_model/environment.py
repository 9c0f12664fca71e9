"""What points an agent at the stub: environment variables, and for codex, words of its command line. Pure.

The keys are no keys: the stub never looks at them, but agents do not start without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from supervisor.mock_model.dialects.sse import MODEL

__all__ = ["KEY", "codex_arguments", "environment", "environments"]

KEY: Final = "stub-key"


def environments(base_url: str) -> dict[str, Mapping[str, str]]:
    """For each dialect, the variables that make its agents talk to the stub at *base_url* (no slash at its end)."""
    openai = {"OPENAI_BASE_URL": f"{base_url}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL}
    return {
        "anthropic": {"ANTHROPIC_BASE_URL": base_url, "ANTHROPIC_API_KEY": KEY},
        "openai": openai,
        "google": {"GOOGLE_GEMINI_BASE_URL": base_url, "GEMINI_API_KEY": KEY},
    }


def environment(base_url: str) -> dict[str, str]:
    """The variables of all dialects together, and what keeps a proxy out of it: for an agent's ``env``."""
    together = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    for variables in environments(base_url).values():
        together.update(variables)
    return together


def codex_arguments(base_url: str, retries: int = 1) -> tuple[str, ...]:
    """What codex is told on its command line, since it takes no address from the environment. Its key it takes from
    there: ``OPENAI_API_KEY``."""
    provider = {
        "name": '"stub"',
        "base_url": f'"{base_url}/v1"',
        "env_key": '"OPENAI_API_KEY"',
        "wire_api": '"responses"',
        "request_max_retries": str(retries),
        "stream_max_retries": str(retries),
    }
    settings = {f"model_providers.stub.{name}": value for name, value in provider.items()}
    settings = {"model": f'"{MODEL}"', "model_provider": '"stub"', **settings}
    return tuple(word for name, value in settings.items() for word in ("-c", f"{name}={value}"))
