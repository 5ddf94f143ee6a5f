"""What a request says of thinking, effort, forced tools and files, and that the API would take it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from perdure.errors import SettingsError
from perdure.ports import ModelRequest, ToolSpec
from perdure.providers.anthropic import check_settings
from perdure.providers.anthropic_request import Encoded, encode_request
from perdure.types.messages import BlobRef, FilePart, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from tests.servers.anthropic import parse, sign

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {}})
CALLED = [
    Message.user("hi"),
    Message.assistant("", ToolCallPart(id="c1", name="add")),
    Message(role="tool", parts=(ToolResultPart(call_id="c1", name="add", content="1"),)),
]
PNG = b"\x89PNG\r\n"
B64 = base64.b64encode(PNG).decode()


def encode(model: str, messages: list[Message] | None = None, *, origin: str = "anthropic", **rest: Any) -> Encoded:
    rest = {"tools": [ADD], **rest}
    return encode_request(ModelRequest(model, messages or [Message.user("hi")], **rest), origin=origin)


def asked(encoded: Encoded) -> dict[str, Any]:
    """The request's JSON; fails where the API would refuse it."""
    version = encoded.headers.get("anthropic-version", "2026-10-21")
    return parse(encoded.body, version=version, beta=encoded.headers.get("anthropic-beta", ""))


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("claude-opus-5-5", 64_000),
        ("claude-sonnet-4-5-20250929", 64_000),
        ("anthropic.claude-opus-4-7", 64_000),
        ("claude-opus-4-20250514", 32_000),
        ("claude-4-opus-20250514", 32_000),
        ("claude-opus-4-1", 32_000),
        ("claude-3-7-sonnet-latest", 64_000),
        ("claude-3-5-haiku-20241022", 8_192),
        ("claude-3-opus-20240229", 4_096),
        ("claude-mythos-preview", 32_000),
        ("glm-5", 8_192),
    ],
)
def test_a_limit_is_always_given(model: str, limit: int) -> None:
    assert asked(encode(model))["max_tokens"] == limit
    assert asked(encode(model, settings={"max_tokens": 77}))["max_tokens"] == 77


ADAPTIVE = {"type": "adaptive", "display": "summarized"}
BOUND = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}


@pytest.mark.parametrize(
    ("model", "effort", "parameters"),
    [
        ("claude-sonnet-4-6", None, {}),
        ("claude-sonnet-4-6", "max", {"thinking": ADAPTIVE, "output_config": {"effort": "max"}}),
        ("claude-opus-5", "minimal", {"thinking": ADAPTIVE, "output_config": {"effort": "low"}}),
        ("claude-opus-5", "none", {"thinking": {"type": "disabled"}}),
        ("glm-5", "low", {"thinking": ADAPTIVE, "output_config": {"effort": "low"}}),
        ("claude-sonnet-4-5", "low", {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("claude-haiku-4-5", "max", {"thinking": {"type": "enabled", "budget_tokens": 31_999}}),
        ("claude-haiku-4-5", "none", {}),
        ("claude-opus-5-5", None, {"thinking": {"type": "adaptive"} | BOUND}),
        ("claude-fable-5-2", "high", {"thinking": ADAPTIVE | BOUND, "output_config": {"effort": "high"}}),
    ],
)
def test_effort(model: str, effort: str | None, parameters: dict[str, Any]) -> None:
    encoded = encode(model, settings={"reasoning_effort": effort})
    assert {key: value for key, value in asked(encoded).items() if key in ("thinking", "output_config")} == parameters
    assert ("anthropic-beta" in encoded.headers) == ("block_binding" in parameters.get("thinking", {}))


def test_what_needs_a_beta_goes_to_anthropic_alone() -> None:
    encoded = encode("claude-opus-5-5", origin="anthropic@gateway")
    assert "thinking" not in asked(encoded)
    assert not encoded.headers


def test_a_small_limit_leaves_no_room_for_a_budget() -> None:
    settings = {"reasoning_effort": "high", "max_tokens": 1000}
    assert "thinking" not in asked(encode("claude-haiku-4-5", settings=settings))
    settings["max_tokens"] = 4000
    assert asked(encode("claude-haiku-4-5", settings=settings))["thinking"]["budget_tokens"] == 2000


def test_a_turn_that_began_without_thinking_goes_on_without() -> None:
    settings = {"reasoning_effort": "low"}
    assert "thinking" not in asked(encode("claude-haiku-4-5", CALLED, settings=settings))
    thought = ThinkingPart(text="hm", provider="anthropic", opaque={"signature": sign("hm")})
    own = Message(role="assistant", parts=(TextPart(text=" "), thought, *CALLED[1].parts))
    assert "thinking" in asked(encode("claude-haiku-4-5", [CALLED[0], own, CALLED[2]], settings=settings))
    assert "thinking" in asked(encode("claude-haiku-4-5", [*CALLED, Message.user("more")], settings=settings))


@pytest.mark.parametrize(
    ("model", "effort", "options", "thinking"),
    [
        ("claude-haiku-4-5", "high", {}, None),
        ("claude-sonnet-4-6", "high", {}, None),
        ("claude-opus-5", None, {}, {"type": "disabled"}),
        ("claude-opus-5", "max", {}, {"type": "disabled"}),
        ("claude-opus-5", None, {"thinking": {"type": "disabled"}}, {"type": "disabled"}),
    ],
)
def test_a_forced_tool_switches_thinking_off(
    model: str, effort: str | None, options: dict[str, Any], thinking: object
) -> None:
    settings = {"reasoning_effort": effort}
    request = asked(encode(model, settings=settings, tool_choice="add", provider_options=options))
    assert request["tool_choice"] == {"type": "tool", "name": "add"}
    assert request.get("thinking") == thinking
    assert request.get("output_config", {}).get("effort") != "max"


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("claude-opus-5-5", {}),
        ("claude-fable-5-2", {}),
        ("claude-sonnet-4-6", {"thinking": {"type": "adaptive"}}),
    ],
)
def test_where_no_tool_can_be_forced_the_model_is_asked(model: str, options: dict[str, Any]) -> None:
    request = asked(encode(model, CALLED, tool_choice="add", provider_options=options))
    assert "tool_choice" not in request
    assert "call the tool add" in request["messages"][-1]["content"][-1]["text"]


def test_calls_of_the_past_need_tools_where_there_are_none_any_more() -> None:
    request = asked(encode("claude-sonnet-4-6", CALLED, tools=()))
    assert [tool["name"] for tool in request["tools"]] == ["add"]
    assert request["tool_choice"] == {"type": "none"}
    options = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    assert asked(encode("claude-sonnet-4-6", provider_options=options))["tool_choice"] == options["tool_choice"]
    without = asked(encode("claude-sonnet-4-6", tools=(), provider_options=options))
    assert not {"tools", "tool_choice"} & set(without)


def file(media_type: str, **rest: Any) -> FilePart:
    return FilePart(media_type=media_type, **rest)


BLOB = BlobRef(hash="a" * 64, size=len(PNG))


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            file("image/png", blob=BLOB),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": B64}},
        ),
        (
            file("IMAGE/JPG", data=B64),
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": B64}},
        ),
        (
            file("image/webp", url="https://x.test/a.webp"),
            {"type": "image", "source": {"type": "url", "url": "https://x.test/a.webp"}},
        ),
        (
            file("application/pdf", data=B64, name="a.pdf"),
            {
                "type": "document",
                "title": "a.pdf",
                "source": {"type": "base64", "media_type": "application/pdf", "data": B64},
            },
        ),
        (
            file("text/csv; charset=utf-8", data=base64.b64encode(b"a,b").decode(), name="t.csv"),
            {
                "type": "document",
                "title": "t.csv",
                "source": {"type": "text", "media_type": "text/plain", "data": "a,b"},
            },
        ),
    ],
)
def test_files(part: FilePart, block: dict[str, Any]) -> None:
    messages = [Message(role="user", parts=(part, TextPart(text="What is it?")))]
    said, last = asked(encode("m", messages, files={BLOB.hash: PNG}))["messages"][0]["content"]
    assert said == block
    assert last["text"] == "What is it?"


@pytest.mark.parametrize(
    "part",
    [
        file("image/bmp", data=B64),
        file("image/png", url="http://x.test/a.png"),
        file("image/png", data=""),
        file("audio/wav", data=B64),
        file("text/plain", url="https://x.test/a.txt"),
        file("text/plain", data=base64.b64encode(b"\xff").decode()),
        file("text/plain", data=""),
    ],
)
def test_files_that_it_cannot_take_become_text(part: FilePart) -> None:
    (block,) = asked(encode("m", [Message(role="user", parts=(part,))]))["messages"][0]["content"]
    assert part.media_type in block["text"]


def test_a_tool_result_holds_files_but_an_error_tells_of_them() -> None:
    given = (file("image/png", blob=BLOB), file("application/zip", data=B64, name="x.zip"))
    call = Message.assistant("", ToolCallPart(id="c1", name="add"), ToolCallPart(id="c2", name="add"))
    good = ToolResultPart(call_id="c1", name="add", content="see", files=given)
    bad = ToolResultPart(call_id="c2", name="add", content="", files=given, is_error=True)
    messages = [Message.user("hi"), call, Message(role="tool", parts=(good, bad))]
    request = asked(encode("m", messages, files={BLOB.hash: PNG}))
    first, second = request["messages"][2]["content"]
    assert [block["type"] for block in first["content"]] == ["text", "image", "text"]
    assert "x.zip" in second["content"]
    assert "image/png" in second["content"]


def test_results_stand_before_what_a_user_has_said_meanwhile() -> None:
    """The API refuses a turn whose results come behind a text."""
    question, call, result = CALLED
    said = asked(encode("claude-sonnet-4-5", [question, call, Message.user("Hurry."), result]))["messages"]
    assert [message["role"] for message in said] == ["user", "assistant", "user"]
    assert [block["type"] for block in said[-1]["content"]] == ["tool_result", "text"]


def test_results_that_say_nothing() -> None:
    call = Message.assistant("", ToolCallPart(id="c1", name="add"), ToolCallPart(id="c2", name="add"))
    results = (
        ToolResultPart(call_id="c1", name="add", content=" "),
        ToolResultPart(call_id="c2", name="add", content="", is_error=True),
    )
    request = asked(encode("m", [Message.user("hi"), call, Message(role="tool", parts=results)]))
    assert ["content" in block for block in request["messages"][2]["content"]] == [False, True]


def test_a_file_of_the_assistants_is_told_of() -> None:
    messages = [Message.user("hi"), Message(role="assistant", parts=(file("image/png", data=B64),)), Message.user("?")]
    (block,) = asked(encode("m", messages))["messages"][1]["content"]
    assert block["type"] == "text"


def test_bytes_of_files_are_not_kept_on_the_message() -> None:
    message = Message(role="user", parts=(file("image/png", data=B64),))
    encode("m", [message])
    assert message.wire("anthropic:anthropic") is None


@pytest.mark.parametrize(
    ("settings", "options", "named"),
    [
        ({"seed": 1}, {}, "seed"),
        ({"metadata": {"team": "x"}}, {}, "team"),
        ({}, {"messages": []}, "messages"),
        ({}, {"max_tokens": 3}, "max_tokens"),
        ({"temperature": 1}, {"temperature": 0}, "temperature"),
        ({"stop": "x"}, {"stop_sequences": ["y"]}, "stop_sequences"),
        ({"reasoning_effort": "low"}, {"thinking": {"type": "disabled"}}, "reasoning_effort"),
        ({"reasoning_effort": "low"}, {"output_config": {}}, "output_config"),
        ({}, {"tools": {"name": "web_search"}}, "tools"),
        ({}, {"x": object()}, "JSON"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], options: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        check_settings(settings, options)


def test_settings_that_fit() -> None:
    check_settings(
        {"temperature": 1, "top_p": 0.5, "top_k": 5, "max_tokens": 5, "stop": ["x"], "metadata": {"user_id": "u"}},
        {"thinking": {"type": "adaptive"}, "tools": [{"type": "web_search_20260318", "name": "web_search"}]},
    )
    check_settings({"reasoning_effort": "high", "seed": None}, {"service_tier": "auto"})
    assert asked(encode("claude-sonnet-4-6", settings={"temperature": 0.5, "top_k": 3}))["top_k"] == 3
