"""Adapters to the models' APIs, the registry that finds them by name, and the import of conversations in their formats.

Loads no SDK, and adapters late."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registry import check_settings as check_settings
from .registry import close_providers as close_providers
from .registry import get_provider as get_provider
from .registry import keep_providers_open as keep_providers_open
from .registry import list_providers as list_providers
from .registry import parse_model as parse_model
from .registry import register_provider as register_provider

if TYPE_CHECKING:
    from .anthropic import Anthropic as Anthropic
    from .google import Google as Google
    from .history import ImportedHistory as ImportedHistory
    from .history import import_messages as import_messages
    from .openai_chat import OpenAIChat as OpenAIChat
    from .openai_responses import OpenAIResponses as OpenAIResponses


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
