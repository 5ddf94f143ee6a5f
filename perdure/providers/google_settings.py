"""The canonical settings under the names of Gemini's ``generationConfig``, and what does not go together."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ..errors import SettingsError
from .settings import check_canonical, check_options

_NAMES = {
    "temperature": "temperature",
    "top_p": "topP",
    "max_tokens": "maxOutputTokens",
    "top_k": "topK",
    "stop": "stopSequences",
    "seed": "seed",
}
_RESERVED = {
    "model": "perdure",
    "contents": "perdure",
    "systemInstruction": "the agent's instructions",
    "continuationToken": "perdure",
}
_SHAPES: dict[str, type] = {"generationConfig": dict, "toolConfig": dict, "tools": list}
"""Options that are added to what perdure sends."""
_LEVELS = {
    "none": "MINIMAL",  # these models always think
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "XHIGH",
}
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576}
"""Tokens of thinking for models before Gemini 3, as Google's own OpenAI endpoint counts them."""
_VERSION = re.compile(r"gemini-(\d+(?:\.\d+)?)")
_SNAKE = re.compile(r"_([a-z])")


def generation(model: str) -> float:
    """Of a Gemini model, for instance 2.5: the newest where its name does not say (an alias); 0 for other models."""
    found = _VERSION.search(model)
    if found is not None:
        return float(found[1])
    return math.inf if "gemini-" in model else 0.0


def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
    """Whether Gemini has these ``settings``, and ``provider_options`` do not meet them.

    Options are the fields of the request beside ``contents``; ``tools`` and ``toolConfig`` are added to the agent's,
    ``generationConfig`` to the settings. Needs no SDK. Raises ``SettingsError``.
    """
    given = check_canonical("google", settings)
    effort = given.get("reasoning_effort", "low")
    if effort not in _LEVELS:
        raise SettingsError(
            f"Setting 'reasoning_effort' for provider 'google' is one of {', '.join(_LEVELS)}, not {effort!r}."
        )
    check_options("google", provider_options, _both(_RESERVED))
    for key, value in provider_options.items():
        shape = _SHAPES.get(_camel(key))
        if shape is not None and key != _camel(key):
            raise SettingsError(f"provider_options[{key!r}] for provider 'google' is written {_camel(key)!r}.")
        if shape is not None and not isinstance(value, shape):
            raise SettingsError(
                f"provider_options[{key!r}] for provider 'google' is a {shape.__name__}, not {value!r}."
            )
    taken = {_NAMES[key]: f"settings[{key!r}]" for key in given if key in _NAMES}
    config = provider_options.get("generationConfig", {})
    taken["candidateCount"] = "perdure"  # one reply is read, and each would be paid for
    check_options("google", config, _both(taken))
    if not isinstance(config.get("thinkingConfig", {}), dict):
        raise SettingsError("generationConfig['thinkingConfig'] of provider_options for provider 'google' is a dict.")
    if "reasoning_effort" in given:
        thinking = config.get("thinkingConfig", {})
        taken = dict.fromkeys(("thinkingLevel", "thinkingBudget"), "settings['reasoning_effort']")
        check_options("google", thinking, _both(taken))
    check_options("google", provider_options.get("toolConfig", {}), _both({"functionCallingConfig": "perdure"}))


def encode_config(model: str, settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``generationConfig`` from settings that were checked, and ``more`` of it from the provider's options."""
    config = {_NAMES[key]: value for key, value in settings.items() if key in _NAMES and value is not None}
    if isinstance(stop := config.get("stopSequences"), str):
        config["stopSequences"] = [stop]
    thinking = _thinking(model, settings.get("reasoning_effort"))
    if thinking or "thinkingConfig" in more:
        config["thinkingConfig"] = {**thinking, **more.get("thinkingConfig", {})}
    return {**config, **{key: value for key, value in more.items() if key != "thinkingConfig"}}


def _thinking(model: str, effort: str | None) -> dict[str, Any]:
    version = generation(model)
    if version < 2.5:
        return {}  # they do not think, and refuse to be told how
    thinking: dict[str, Any] = {"includeThoughts": True}
    if effort is None:
        return thinking
    if version >= 3:
        return {**thinking, "thinkingLevel": _LEVELS[effort]}
    budget = _BUDGETS[effort]
    if budget == 0:
        return {"thinkingBudget": 0}
    return {**thinking, "thinkingBudget": budget}


def _camel(name: str) -> str:
    return _SNAKE.sub(lambda found: found[1].upper(), name)


def _both(taken: Mapping[str, str]) -> dict[str, str]:
    """The names in both spellings: the API takes either."""
    snake = {re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name): by for name, by in taken.items()}
    return {**snake, **taken}
