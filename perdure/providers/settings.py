"""The canonical settings: one spelling for all providers, each checked when the agent is defined."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import SettingsError

SETTING_PROVIDERS: dict[str, tuple[str, ...]] = {
    "temperature": ("openai", "openai-responses", "anthropic", "google", "pydantic-ai"),
    "top_p": ("openai", "openai-responses", "anthropic", "google", "pydantic-ai"),
    "max_tokens": ("openai", "openai-responses", "anthropic", "google", "pydantic-ai"),
    "top_k": ("anthropic", "google", "pydantic-ai"),
    "stop": ("openai", "anthropic", "google", "pydantic-ai"),
    "seed": ("openai", "google", "pydantic-ai"),
    "metadata": ("openai", "openai-responses", "anthropic"),
    "reasoning_effort": ("openai", "openai-responses", "anthropic", "google", "pydantic-ai"),
}
"""Every canonical setting, and the providers that have it."""
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of ``reasoning_effort``; a provider may have fewer."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_stop_setting(value: object) -> bool:
    texts = value if isinstance(value, list | tuple) else [value]
    return bool(texts) and all(isinstance(text, str) and text for text in texts)


def _is_metadata(value: object) -> bool:
    # Texts alone are what every API takes that has metadata.
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)


_SETTING_SHAPES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "temperature": ("a number", _is_number),
    "top_p": ("a number", _is_number),
    "max_tokens": ("a whole number above 0", lambda value: _is_integer(value) and value > 0),  # type: ignore[operator]  # _is_integer says that it is an int
    "top_k": ("a whole number", _is_integer),
    "stop": ("a text or a list of texts, none of them empty", _is_stop_setting),
    "seed": ("a whole number", _is_integer),
    "metadata": ("a dictionary of texts by names", _is_metadata),
    "reasoning_effort": (f"one of {', '.join(REASONING_EFFORTS)}", lambda value: value in REASONING_EFFORTS),
}


def check_canonical_settings(provider: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` without what is None. Raises ``SettingsError`` naming key, ``provider`` and who has it."""
    given = {key: value for key, value in settings.items() if value is not None}
    for key, value in given.items():
        if key not in SETTING_PROVIDERS:
            raise SettingsError(
                f"Unknown setting {key!r} for provider {provider!r}. Settings are: {', '.join(SETTING_PROVIDERS)}.",
                hint=f"A parameter of one API alone goes unchanged through provider_options={{{key!r}: …}}.",
            )
        if provider not in SETTING_PROVIDERS[key]:
            raise SettingsError(
                f"Provider {provider!r} has no setting {key!r}; supported by: {', '.join(SETTING_PROVIDERS[key])}.",
                hint=f"An endpoint that takes it anyway gets it through provider_options={{{key!r}: …}}.",
            )
        shape, fits = _SETTING_SHAPES[key]
        if not fits(value):
            raise SettingsError(
                f"Setting {key!r} for provider {provider!r} is {shape}, not {value!r:.100}.",
                hint="What an API takes besides goes unchanged through provider_options, under the API's own name.",
            )
    return given


def check_provider_options(provider: str, options: Mapping[str, Any], taken: Mapping[str, str]) -> None:
    """Refuse options that meet what the adapter sets itself: ``taken`` has wire names, and what sets them.

    Raises ``SettingsError``, also for options that are not JSON.
    """
    for key in options:
        if key in taken:
            raise SettingsError(f"provider_options[{key!r}] for provider {provider!r} collides: {taken[key]} sets it.")
    try:
        json.dumps(dict(options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"provider_options for provider {provider!r} must be plain JSON: {error}") from None
