"""Settings that point an agent at the model server: environment variables, and command line arguments for codex. Pure.

The API keys are placeholders: the server ignores keys, but agents do not start without a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from supervisor.mock_model.dialects.sse import MODEL

KEY: Final = "stub-key"


def environments(base_url: str) -> dict[str, Mapping[str, str]]:
    """Return, for each API, the environment variables that point agents with this API at the server at *base_url*
    (without a slash at the end)."""
    openai = {"OPENAI_BASE_URL": f"{base_url}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL}
    return {
        "anthropic": {"ANTHROPIC_BASE_URL": base_url, "ANTHROPIC_API_KEY": KEY},
        "openai": openai,
        "google": {"GOOGLE_GEMINI_BASE_URL": base_url, "GEMINI_API_KEY": KEY},
    }


def environment(base_url: str) -> dict[str, str]:
    """Return the environment variables of all APIs, and the variables that bypass a proxy, for an agent's ``env``."""
    together = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    for variables in environments(base_url).values():
        together.update(variables)
    return together


def codex_arguments(base_url: str, retries: int = 1) -> tuple[str, ...]:
    """Return the command line arguments that point codex at the server: codex reads only the API key
    (``OPENAI_API_KEY``) from the environment, but no address."""
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
