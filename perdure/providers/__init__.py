"""Adapters to the models' APIs, the registry that finds them by name, and the import of conversations in their formats.

Loads no SDK, and adapters late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import NameLoader
from .registry import check_settings as check_settings
from .registry import close_providers as close_providers
from .registry import get_provider as get_provider
from .registry import keep_providers_open as keep_providers_open
from .registry import list_providers as list_providers
from .registry import parse_model as parse_model
from .registry import register_provider as register_provider

if TYPE_CHECKING:
    from .anthropic import Anthropic as Anthropic
    from .dialects import Dialect as Dialect
    from .google import Google as Google
    from .history import ImportedHistory as ImportedHistory
    from .history import import_messages as import_messages
    from .openai_chat import OpenAIChat as OpenAIChat
    from .openai_responses import OpenAIResponses as OpenAIResponses
else:
    __getattr__ = NameLoader(
        __name__,
        {
            ".anthropic": "Anthropic",
            ".dialects": "Dialect",
            ".google": "Google",
            ".history": "ImportedHistory import_messages",
            ".openai_chat": "OpenAIChat",
            ".openai_responses": "OpenAIResponses",
        },
    )
    __dir__ = __getattr__.list_names
    __all__ = [name for name in __dir__() if not name.startswith("_")]
