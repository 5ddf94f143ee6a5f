"""Adapters to the models' APIs, and the registry that finds them by name. Loads no SDK, and adapters late."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registry import (
    check_settings,
    close_providers,
    get_provider,
    known_providers,
    parse_model,
    register_provider,
    using_providers,
)

if TYPE_CHECKING:
    from .anthropic import Anthropic
    from .google import Google
    from .openai_chat import OpenAIChat
    from .openai_responses import OpenAIResponses


__all__ = [
    "Anthropic",
    "Google",
    "OpenAIChat",
    "OpenAIResponses",
    "check_settings",
    "close_providers",
    "get_provider",
    "known_providers",
    "parse_model",
    "register_provider",
    "using_providers",
]

_HOME = {
    "Anthropic": "anthropic",
    "Google": "google",
    "OpenAIChat": "openai_chat",
    "OpenAIResponses": "openai_responses",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
