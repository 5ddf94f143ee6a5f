from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import DefinitionError, SettingsError
from perdure.providers import check_settings
from perdure.providers.settings import SETTING_PROVIDERS


def check(settings: dict[str, Any] | None = None, options: dict[str, Any] | None = None) -> None:
    check_settings("openai", settings or {}, options or {})


def test_what_chat_completions_have() -> None:
    check(
        {
            "temperature": 0,
            "top_p": 0.5,
            "max_tokens": 10,
            "stop": ["a"],
            "seed": 1,
            "metadata": {"team": "a"},
            "reasoning_effort": "low",
            "top_k": None,
        },
        {"parallel_tool_calls": False, "response_format": {"type": "json_object"}},
    )
    check({"stop": "a"}, {"temperature": 1})


def test_a_setting_of_others_names_them() -> None:
    with pytest.raises(SettingsError) as caught:
        check({"top_k": 3})
    assert isinstance(caught.value, ValueError)
    for said in ("top_k", "openai", *SETTING_PROVIDERS["top_k"]):
        assert said in str(caught.value)


def test_an_unknown_setting_names_the_known() -> None:
    with pytest.raises(SettingsError, match=r"(?s)'temprature'.*'openai'.*temperature.*provider_options"):
        check({"temprature": 1})


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": "hot"},
        {"temperature": True},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"stop": [1]},
        {"seed": "x"},
        {"temperature": float("nan")},
        {"top_p": float("inf")},
        {"stop": []},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"metadata": {"team": 1}},
        {"metadata": {1: "team"}},
        {"metadata": {"team": object()}},
        {"reasoning_effort": "hgih"},
        {"reasoning_effort": ["low"]},
    ],
)
def test_values_of_the_wrong_shape(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=rf"(?s){next(iter(settings))}.*provider_options"):
        check(settings)


@pytest.mark.parametrize("name", ["openai", "openai-responses", "anthropic", "google"])
def test_an_effort_that_nobody_knows_is_refused_by_all(name: str) -> None:
    """Anthropic's models with a budget would think as for "medium", all others refuse the first request."""
    with pytest.raises(SettingsError, match=f"'reasoning_effort' for provider '{name}' must be one of none, .*'hgih'"):
        check_settings(name, {"reasoning_effort": "hgih"}, {})


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {"model": "x"}),
        ({}, {"messages": []}),
        ({}, {"stream": False}),
        ({}, {"stream_options": {}}),
        ({}, {"tools": []}),
        ({}, {"tool_choice": "required"}),
        ({}, {"n": 2}),
        ({"temperature": 1}, {"temperature": 0}),
        ({"max_tokens": 1}, {"max_tokens": 2}),
        ({"max_tokens": 1}, {"max_completion_tokens": 2}),
    ],
)
def test_options_that_collide(settings: dict[str, Any], options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        check(settings, options)


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan")])
def test_options_that_are_not_json(value: object) -> None:
    with pytest.raises(SettingsError, match="JSON"):
        check({}, {"x": value})


def test_an_unknown_provider() -> None:
    with pytest.raises(DefinitionError, match="opena1"):
        check_settings("opena1", {}, {})


@pytest.mark.parametrize(("key", "names"), SETTING_PROVIDERS.items())
def test_every_built_in_takes_what_the_table_says(key: str, names: tuple[str, ...]) -> None:
    values: dict[str, Any] = {
        "stop": ["a"],
        "metadata": {"user_id": "a"},
        "reasoning_effort": "low",
        "max_tokens": 9000,
    }
    for name in ("openai", "openai-responses", "anthropic", "google"):
        settings = {key: values.get(key, 1)}
        if name in names:
            check_settings(name, settings, {})
        else:
            with pytest.raises(SettingsError, match=rf"'{name}' has no setting '{key}'"):
                check_settings(name, settings, {})
