"""Transcript → chat completions → transcript: nothing is lost that the format can hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.errors import InvalidInputError
from perdure.providers.openai_chat_request import encode_messages
from perdure.providers.openai_decode import decode_chat
from perdure.types.messages import FilePart, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, canonical

ORIGIN = "openai@here"


def round_trip(messages: list[Message]) -> list[Message]:
    plain = json.loads(b"[" + b",".join(encode_messages(messages, ORIGIN, {})) + b"]")
    system, decoded = decode_chat(plain, origin=ORIGIN)
    assert system is None
    return decoded


def test_what_belongs_to_the_server_comes_back() -> None:
    call = ToolCallPart(id="a", name="f", provider=ORIGIN, opaque={"extra_content": {"google": {"s": 1}}})
    details = {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]}
    thought = ThinkingPart(text="hm", provider=ORIGIN, opaque=details)
    refused = TextPart(text="no", provider=ORIGIN, opaque={"refusal": True})
    messages = [
        Message(role="assistant", parts=(thought, call)),
        Message(role="assistant", parts=(refused,), finish_reason="refusal"),
    ]
    assert canonical(round_trip(messages)) == canonical(messages)


def test_files_find_the_result_of_a_call_that_goes_out_under_another_id() -> None:
    """The line above the files has the id and the name that the model knows the call by."""
    picture = FilePart(media_type="image/png", data="iVBORw==")
    call = ToolCallPart(id="x" * 70, name="n" * 80)
    result = ToolResultPart(call_id=call.id, name=call.name, content="there", files=(picture,))
    asked, answered = round_trip([Message.assistant("", call), Message(role="tool", parts=(result,))])
    [sent], [back] = asked.tool_calls, answered.tool_results
    assert (back.call_id, back.name, back.files) == (sent.id, sent.name, (picture,))
    assert sent.id != call.id


def test_reasoning_without_a_word_is_kept() -> None:
    thinking = ThinkingPart(text="", provider=ORIGIN, opaque={"field": "reasoning_content"})
    [message] = round_trip([Message(role="assistant", parts=(thinking, ToolCallPart(id="c", name="f")))])
    assert message.parts[0] == thinking


def test_prompts_and_forms_of_others() -> None:
    system, messages = decode_chat(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            {"role": "user", "content": "hi", "name": "ana"},
            {"role": "assistant", "content": None, "tool_calls": [_call("a", "{broken"), _call("b", "")]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "1"}]},
            {"role": "tool", "tool_call_id": "z", "content": "2"},
            {"role": "system", "content": "Now in French."},
        ]
    )
    assert system == "Be brief.\n\nBe kind."
    assert messages == [
        Message.user("hi"),
        Message.assistant("", ToolCallPart(id="a", name="f", malformed="{broken"), ToolCallPart(id="b", name="f")),
        Message(
            role="tool",
            parts=(
                ToolResultPart(call_id="a", name="f", content="1"),
                ToolResultPart(call_id="z", name="unknown", content="2"),
            ),
        ),
        Message.system("Now in French."),
    ]


def _call(id: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"role": "robot", "content": "x"},
        {"role": "tool", "content": "x"},
        {"role": "user", "content": 3},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"type": "video"}]},
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]},
        {"role": "assistant", "tool_calls": [{"id": "a"}]},
        "x",
    ],
)
def test_what_is_no_message_is_named(message: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"messages\[1\]"):
        decode_chat([{"role": "user", "content": "x"}, message])
