"""Adapters to the models' APIs, the registry that finds them by name, and the import of conversations in their formats.

Loads no SDK, and adapters late."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registry import (
    check_settings,
    close_providers,
    get_provider,
    keep_providers_open,
    list_providers,
    parse_model,
    register_provider,
)

if TYPE_CHECKING:
    from .anthropic import Anthropic
    from .google import Google
    from .history import ImportedHistory, import_messages
    from .openai_chat import OpenAIChat
    from .openai_responses import OpenAIResponses


__all__ = [
    "Anthropic",
    "Google",
    "ImportedHistory",
    "OpenAIChat",
    "OpenAIResponses",
    "check_settings",
    "close_providers",
    "get_provider",
    "import_messages",
    "keep_providers_open",
    "list_providers",
    "parse_model",
    "register_provider",
]

_HOME = {
    "Anthropic": "anthropic",
    "Google": "google",
    "ImportedHistory": "history",
    "OpenAIChat": "openai_chat",
    "OpenAIResponses": "openai_responses",
    "import_messages": "history",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
