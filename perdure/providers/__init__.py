"""Adapters to the models' APIs, and the registry that finds them by name. Loads no SDK."""

from .openai_chat import OpenAIChat
from .registry import (
    check_settings,
    close_providers,
    get_provider,
    known_providers,
    parse_model,
    register_provider,
    using_providers,
)

__all__ = [
    "OpenAIChat",
    "check_settings",
    "close_providers",
    "get_provider",
    "known_providers",
    "parse_model",
    "register_provider",
    "using_providers",
]
