"""The canonical settings: one spelling for all providers, checked when the agent is defined."""

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
PROVIDERS_WITH_SETTINGS = frozenset(name for names in SETTING_PROVIDERS.values() for name in names)
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of ``reasoning_effort``; a provider may have fewer."""


_COLLISION_HINTS = {"perdure": "Leave it out: what the agent has (model, tools, instructions, output) decides it."}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_stop_setting(value: object) -> bool:
    texts = value if isinstance(value, list | tuple) else [value]
    return bool(texts) and all(isinstance(text, str) and text for text in texts)


def _is_metadata(value: object) -> bool:
    # Every API that has metadata takes texts.
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


def find_setting_flaw(key: str, value: object) -> str | None:
    """What the value of a setting must be, if it is not."""
    shape, fits = _SETTING_SHAPES[key]
    return None if fits(value) else shape


def check_canonical_settings(provider: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` without those that are None. Raises ``SettingsError`` that names the key and its providers."""
    given = {key: value for key, value in settings.items() if value is not None}
    for key, value in given.items():
        if key not in SETTING_PROVIDERS:
            raise SettingsError(
                f"Unknown setting {key!r} for provider {provider!r}. Settings are: {', '.join(SETTING_PROVIDERS)}.",
                hint=f"Pass a parameter of one API unchanged with provider_options={{{key!r}: …}}.",
            )
        if provider not in SETTING_PROVIDERS[key]:
            raise SettingsError(
                f"Provider {provider!r} has no setting {key!r}; supported by: {', '.join(SETTING_PROVIDERS[key])}.",
                hint=f"If this endpoint takes it, pass it with provider_options={{{key!r}: …}}.",
            )
        if (shape := find_setting_flaw(key, value)) is not None:
            raise SettingsError(
                f"Setting {key!r} for provider {provider!r} must be {shape}, not {value!r:.100}.",
                hint="Pass any other value that the API takes with provider_options, under the API's own name.",
            )
    return given


def check_provider_options(provider: str, options: Mapping[str, Any], taken: Mapping[str, str]) -> None:
    """Refuse options that the adapter sets itself. ``taken`` maps each wire name to what sets it.

    Raises ``SettingsError``, also for options that are not plain JSON.
    """
    for key in options:
        if key in taken:
            raise SettingsError(
                f"provider_options[{key!r}] for provider {provider!r} collides: {taken[key]} sets it.",
                hint=_COLLISION_HINTS.get(taken[key], f"Leave it out, or change {taken[key]}."),
            )
    try:
        json.dumps(dict(options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"provider_options for provider {provider!r} must be plain JSON: {error}") from None


def check_all_settings(
    provider: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    wire_names: Mapping[str, tuple[str, ...]],
    reserved: Mapping[str, str],
) -> dict[str, Any]:
    """Check settings and options together; returns the settings without those that are None.

    ``wire_names`` are the parameters that a setting becomes, if not one of its own name; ``reserved`` are parameters
    that are never options, and what sets them. Raises ``SettingsError``.
    """
    given = check_canonical_settings(provider, settings)
    taken = {wire_name: f"settings[{key!r}]" for key in given for wire_name in wire_names.get(key, (key,))}
    check_provider_options(provider, options, {**reserved, **taken})
    return given
