"""``import_messages``: conversations in the four wire formats, as people have them, and what cannot be taken over."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from perdure.errors import InvalidInputError
from perdure.ports.model import ModelRequest
from perdure.providers import Anthropic, ImportedHistory, OpenAIChat, import_messages, register_provider, registry
from perdure.providers.history import decode_messages
from perdure.providers.openai_chat_request import encode_request
from perdure.types.messages import (
    FilePart,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    encode_canonical,
)

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n?>").decode()
HERE = "openai@here"
CALL, RESULT = (
    ToolCallPart(id="c1", name="add", arguments={"a": 1}),
    ToolResultPart(call_id="c1", name="add", content="2"),
)
TALK = [
    Message.user("hi"),
    Message.assistant("Adding.", CALL),
    Message(role="tool", parts=(RESULT,)),
    Message.assistant("Two."),
]
"""What each of ``REQUESTS`` is, in a run."""

GOOGLE_CALL = {"id": "c1", "name": "add", "args": {"a": 1}}
REQUESTS: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "openai": (
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi", "name": "ana"},
            {
                "role": "assistant",
                "content": "Adding.",
                "refusal": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            {"role": "assistant", "content": [{"type": "text", "text": "Two."}]},
        ],
        None,
    ),
    "openai-responses": (
        [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "message", "role": "assistant", "content": "Adding."},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
            {"role": "assistant", "content": "Two."},
        ],
        "Be brief.",
    ),
    "anthropic": (
        [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Adding.", "citations": None},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
            {"role": "assistant", "content": "Two."},
        ],
        [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    ),
    "google": (
        [
            {"role": "user", "parts": [{"text": "hi"}]},
            {
                "role": "model",
                "parts": [{"text": "Adding."}, {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}}],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"id": "c1", "name": "add", "response": {"output": "2"}}}],
            },
            {"role": "model", "parts": [{"text": "Two."}]},
        ],
        {"parts": [{"text": "Be brief."}]},
    ),
}


@pytest.fixture
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(registry, "_providers", {})


@pytest.mark.parametrize("format", REQUESTS)
def test_a_conversation_with_a_tool_call_comes_out_the_same_from_each_format(format: str) -> None:
    messages, system = REQUESTS[format]
    assert import_messages(format, messages, system=system) == ImportedHistory(TALK, "Be brief.")
    assert import_messages(format, tuple(messages[:0])) == ImportedHistory([], None)


def test_names_of_formats_are_those_of_models() -> None:
    assert import_messages("openai-chat", REQUESTS["openai"][0]).messages == TALK
    asked, replied, *_ = import_messages("anthropic:claude-sonnet-4-6", REQUESTS["anthropic"][0]).messages
    assert (asked.model, replied.model) == (None, "claude-sonnet-4-6")


@pytest.mark.parametrize(
    ("system", "text"),
    [
        (None, None),
        ("", None),
        ("x", "x"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\n\nb"),
        ({"role": "user", "parts": [{"text": "a"}]}, "a"),
        ({"text": "a"}, "a"),
    ],
)
def test_a_system_prompt_stays_apart(system: Any, text: str | None) -> None:
    assert import_messages("anthropic", [], system=system).system == text


@pytest.mark.parametrize("system", [7, [7], [{"type": "image"}], {"role": "user"}, object()])
def test_what_is_no_system_prompt_is_refused(system: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^system: "):
        import_messages("google", [], system=system)


@pytest.mark.usefixtures("_fresh")
def test_what_a_registered_server_gave_goes_back_to_it_alone() -> None:
    register_provider("deep", OpenAIChat(base_url="https://deep.test/v1", api_key="k"))
    register_provider("claude", Anthropic(base_url="https://gate.test", api_key="k"))
    thought = import_messages("deep:v3", [{"role": "assistant", "content": "So.", "reasoning_content": "hm"}])
    opaque = {"field": "reasoning_content"}
    assert thought.messages[0].parts[0] == ThinkingPart(text="hm", provider="openai@deep.test", opaque=opaque)
    assert thought.messages[0].model == "v3"
    sealed = {"type": "redacted_thinking", "data": "x"}
    kept = import_messages("claude", [{"role": "assistant", "content": [sealed]}]).messages[0]
    assert kept.parts == (OpaquePart(provider="anthropic@gate.test", data=sealed),)


# ---
# What is peculiar to a format.


def chat_round_trip(messages: list[Message]) -> list[Message]:
    body = json.loads(encode_request(ModelRequest("m", messages), origin=HERE))
    return decode_messages("openai", body["messages"], origin=HERE).messages


def test_what_belongs_to_a_chat_server_comes_back() -> None:
    call = ToolCallPart(id="a", name="f", provider=HERE, opaque={"extra_content": {"google": {"s": 1}}})
    details = {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]}
    thought = ThinkingPart(text="hm", provider=HERE, opaque=details)
    wordless = ThinkingPart(text="", provider=HERE, opaque={"field": "reasoning_content"})
    refused = TextPart(text="no", provider=HERE, opaque={"refusal": True})
    messages = [
        Message(role="assistant", parts=(thought, call)),
        Message(role="assistant", parts=(wordless, call)),
        Message(role="assistant", parts=(refused,), finish_reason="refusal"),
    ]
    assert encode_canonical(chat_round_trip(messages)) == encode_canonical(messages)


def test_files_find_the_result_of_a_call_that_goes_out_under_another_id() -> None:
    """The line above the files has the id and the name that the model knows the call by."""
    picture = FilePart(media_type="image/png", data=PNG)
    call = ToolCallPart(id="x" * 70, name="n" * 80)
    result = ToolResultPart(call_id=call.id, name=call.name, content="there", files=(picture,))
    asked, answered = chat_round_trip([Message.assistant("", call), Message(role="tool", parts=(result,))])
    [sent], [back] = asked.tool_calls, answered.tool_results
    assert (back.call_id, back.name, back.files) == (sent.id, sent.name, (picture,))
    assert sent.id != call.id


def test_system_messages_lead_or_stay_in_their_place() -> None:
    chat = import_messages(
        "openai",
        [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            {"role": "user", "content": "hi"},
            {"role": "system", "content": "Now in French."},
        ],
        system="Be here.",
    )
    assert chat == ImportedHistory(
        [Message.user("hi"), Message.system("Now in French.")], "Be here.\n\nBe brief.\n\nBe kind."
    )
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert import_messages("openai-responses", items) == ImportedHistory([Message.user("hi")], "Be brief.")


def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "f", "arguments": text}}
        for call_id, text in (("a", "{broken"), ("b", ""))
    ]
    [message] = import_messages("openai", [{"role": "assistant", "content": None, "tool_calls": calls}]).messages
    assert message.tool_calls == (ToolCallPart(id="a", name="f", malformed="{broken"), ToolCallPart(id="b", name="f"))


def test_items_of_a_reply_are_one_message_and_reasoning_is_of_its_model() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    items = [
        {"role": "user", "content": "add"},
        thought,
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{broken"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "no"}]},
    ]
    _, reply, result = import_messages("openai-responses:gpt-5", items).messages
    opaque = {"model": "gpt-5", "item": thought}
    assert reply.parts == (
        ThinkingPart(provider="openai-responses", opaque=opaque),
        ToolCallPart(id="c1", name="add", malformed="{broken"),
    )
    assert result.tool_results == (ToolResultPart(call_id="c1", name="add", content="no"),)


IMAGE_PARTS: dict[str, Any] = {
    "openai": lambda url: {"type": "image_url", "image_url": {"url": url}},
    "openai-responses": lambda url: {"type": "input_image", "image_url": url},
    "anthropic": lambda url: {"type": "image", "source": {"type": "url", "url": url}},
}


@pytest.mark.parametrize(
    ("format", "unknown", "own"),
    [
        (
            *("openai", "image/jpeg"),
            {"bmp": "image/bmp", "svg": "image/svg+xml", "tiff": "image/tiff", "avif": "image/avif"},
        ),
        ("openai-responses", "image/jpeg", {}),
        ("anthropic", "image/png", {}),
    ],
)
def test_the_type_of_an_image_is_guessed_from_its_url(format: str, unknown: str, own: dict[str, str]) -> None:
    known = {"png": "image/png", "webp": "image/webp", "GIF": "image/gif", "jpg": "image/jpeg", "jpeg": "image/jpeg"}
    unclear = dict.fromkeys(("bmp", "svg", "tiff", "avif", "php", "mp4", "unknown"), unknown)
    for ending, media_type in (known | unclear | own).items():
        url = f"https://x.test/a.{ending}?b=c.d"
        (message,) = import_messages(format, [{"role": "user", "content": [IMAGE_PARTS[format](url)]}]).messages
        assert message.parts == (FilePart(media_type=media_type, url=url),)


def test_google_results_find_their_calls_by_order_and_name() -> None:
    contents: list[dict[str, Any]] = [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"functionCall": {"name": name}} for name in ("add", "get", "add")]},
        {
            "parts": [
                {"function_response": {"name": "get", "response": {"output": {"a": 1}}}},
                {"functionResponse": {"name": "add", "response": {"n": 1}}},
                {"functionResponse": {"name": "add", "response": {"error": "no"}}},
                {"text": "go on"},
            ],
        },
    ]
    user, asked, answered, more = import_messages("google", contents).messages
    assert [call.id for call in asked.tool_calls] == ["call_1", "call_2", "call_3"]
    assert [(part.call_id, part.content, part.is_error) for part in answered.tool_results] == [
        ("call_2", '{"a": 1}', False),
        ("call_1", '{"n": 1}', False),
        ("call_3", "no", True),
    ]
    assert (user.text, more.text) == ("hi", "go on")


# ---
# What is refused, and where it stands.


BEFORE = {"google": {"role": "user", "parts": [{"text": "x"}]}}
UNREADABLE: dict[str, list[Any]] = {
    "openai": [
        {"content": "x"},
        {"role": "robot", "content": "x"},
        {"role": "tool", "content": "x"},
        {"role": "tool", "tool_call_id": "z", "content": "x"},
        {"role": "user", "content": 3},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"type": "video"}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"format": "wav", "data": "?"}}]},
        {"role": "assistant", "tool_calls": [{"id": "a"}]},
        {"role": "assistant", "tool_calls": [{"id": 7, "function": {"name": "f"}}]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
    ],
    "openai-responses": [
        {"type": "item_reference", "id": "msg_1"},
        {"text": "hi"},
        {"role": "robot", "content": "x"},
        {"role": "user", "content": 7},
        {"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]},
        {"type": "function_call_output", "call_id": "z", "output": "x"},
    ],
    "anthropic": [
        {"content": "x"},
        {"role": "robot", "content": "x"},
        {"role": "user", "content": 7},
        {"role": "user", "content": None},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"type": "search_result"}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "x"}}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "?", "data": PNG}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "z", "content": "x"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": "x"}]},
        {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "z"}]},
    ],
    "google": [
        {"role": "robot", "parts": []},
        {"parts": 7},
        {"parts": ["x"]},
        {"parts": [{}]},
        {"parts": [{"videoMetadata": {}}]},
        {"parts": [{"inlineData": {"mimeType": "image/png"}}]},
        {"parts": [{"functionResponse": {"name": "f", "response": {}}}]},
        {"parts": [{"functionResponse": {"id": "z", "name": "f", "response": {}}}]},
        {"role": "model", "parts": [{"functionCall": {}}]},
    ],
}
HOSTILE = ["x", None, 7, [], b"x", object(), {"role": "user", "content": float("nan")}, {1: object()}]


CASES = [
    pytest.param(name, message, id=f"{name}-{kind}-{number}")
    for name, unreadable in UNREADABLE.items()
    for kind, messages in (("own", unreadable), ("hostile", HOSTILE))
    for number, message in enumerate(messages)
]


@pytest.mark.parametrize(("format", "message"), CASES)
def test_a_message_that_cannot_be_read_is_named_with_a_reason_and_a_way_out(format: str, message: Any) -> None:
    first = BEFORE.get(format, {"role": "user", "content": "x"})
    with pytest.raises(InvalidInputError, match=rf"^messages\[1\] cannot be read as {format}: .") as refused:
        import_messages(format, [first, message, first])
    assert len(refused.value.message) < 700
    assert "Leave it out" in str(refused.value.hint)


@pytest.mark.parametrize("format", REQUESTS)
@pytest.mark.parametrize("messages", [None, "x", b"x", 7, {"messages": []}, object(), {1}])
def test_what_is_no_list_of_messages(format: str, messages: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^messages: it must be the list .* not ") as refused:
        import_messages(format, messages)
    assert str(refused.value.hint).startswith("Give what a request in the format")


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("format", ["", "gpt", "Anthropic", "own", "own:model", None, 7, "x" * 100_000, "\ud800"])
def test_a_format_that_is_unknown(format: Any) -> None:
    class Own:
        async def stream(self, request: Any) -> Any:
            yield request

    register_provider("own", Own())
    with pytest.raises(InvalidInputError, match=r"^format: ") as refused:
        import_messages(format, [])
    assert "openai, openai-responses, anthropic, google" in str(refused.value.hint)
    assert len(refused.value.message) < 300


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"x": value}
    return value


CYCLE: dict[str, Any] = {"role": "user"}
CYCLE["content"] = [CYCLE]


@pytest.mark.parametrize("format", REQUESTS)
@pytest.mark.parametrize(
    "message",
    [
        CYCLE,
        *(
            {"role": "assistant", "content": nested(levels), "parts": nested(levels)}
            for levels in (200, 5_000, 200_000)
        ),
    ],
    ids=["cycle", "200", "5,000", "200,000"],
)
def test_what_is_nested_too_deep_is_refused(format: str, message: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^messages\[0\] cannot be read"):
        import_messages(format, [message])


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.providers.history.MAX_MESSAGE_CHARS", 1000)
    with pytest.raises(InvalidInputError, match="larger than 1,000 characters"):
        import_messages("openai", [{"role": "user", "content": "x" * 1001}])


def test_texts_that_cannot_be_carried_are_repaired() -> None:
    messages, _ = REQUESTS["anthropic"]
    torn = [
        {"role": "user", "content": "a\ud800b\0c"},
        {"role": "assistant", "content": [{"type": "text", "text": "\udc00"}]},
    ]
    asked, replied, *_ = import_messages("anthropic", [*torn, *messages]).messages
    assert (asked.text, replied.text) == ("a\ufffdb\ufffdc", "\ufffd")
    assert import_messages("openai", [{"role": "user", "content": b"hi"}]).messages == [Message.user("hi")]
