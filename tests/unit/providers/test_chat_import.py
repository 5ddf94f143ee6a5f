"""Transcript → chat completions → transcript: nothing is lost that the format can hold."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidInputError
from perdure.providers.chat_import import decode
from perdure.providers.chat_messages import encode_messages
from perdure.types.messages import (
    FilePart,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    canonical,
    clean,
)
from tests.servers.chat import check_messages

ORIGIN = "openai@here"


def round_trip(messages: list[Message]) -> list[Message]:
    plain = json.loads(b"[" + b",".join(encode_messages(messages, ORIGIN, {})) + b"]")
    system, decoded = decode(plain, origin=ORIGIN)
    assert system is None
    return decoded


texts = st.text(max_size=20).map(clean)
said = texts.filter(bool).map(lambda text: TextPart(text=text))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
arguments = st.dictionaries(texts, values, max_size=3)
files = st.one_of(
    st.binary(max_size=9).map(
        lambda tail: FilePart(media_type="image/png", data=base64.b64encode(b"\x89PNG" + tail).decode())
    ),
    st.just(FilePart(media_type="image/gif", url="https://x/y.gif?z=1")),
    st.just(FilePart(media_type="application/pdf", name="a.pdf", data=base64.b64encode(b"%PDF-").decode())),
    st.just(FilePart(media_type="audio/wav", data="AAAA")),
)
thinking = texts.filter(bool).map(
    lambda text: ThinkingPart(text=text, provider=ORIGIN, opaque={"field": "reasoning_content"})
)


@st.composite
def users(draw: st.DrawFn) -> Message:
    content = draw(st.just([]) | st.lists(said | files, min_size=1, max_size=4))
    if not any(isinstance(part, FilePart) for part in content):
        content = [TextPart(text="".join(part.text for part in content if isinstance(part, TextPart)))]
    return Message(role="user", parts=tuple(content))


@st.composite
def iterations(draw: st.DrawFn) -> list[Message]:
    """A reply, and the results of its calls."""
    names = draw(st.lists(st.from_regex(r"[a-zA-Z0-9_-]{1,64}", fullmatch=True), max_size=3))
    calls = [
        ToolCallPart(id=f"call_{draw(st.integers(0, 10**9))}_{n}", name=name, arguments=draw(arguments))
        for n, name in enumerate(names)
    ]
    spoken = (*draw(st.lists(thinking, max_size=1)), *draw(st.lists(said, max_size=1)), *calls)
    messages = [Message(role="assistant", parts=spoken)]
    results = tuple(
        ToolResultPart(
            call_id=call.id, name=call.name, content=draw(texts), files=tuple(draw(st.lists(files, max_size=2)))
        )
        for call in calls
    )
    return [*messages, Message(role="tool", parts=results)] if results else messages


conversations = st.lists(users().map(lambda message: [message]) | iterations(), max_size=6).map(
    lambda rounds: [message for messages in rounds for message in messages]
)


@given(conversations)
def test_nothing_is_lost(messages: list[Message]) -> None:
    assert canonical(round_trip(messages)) == canonical(messages)


@given(conversations)
def test_the_strict_rules_are_kept(messages: list[Message]) -> None:
    thoughts = {part.text for message in messages for part in message.parts if isinstance(part, ThinkingPart)}
    check_messages(json.loads(b"[" + b",".join(encode_messages(messages, ORIGIN, {})) + b"]"), thoughts)


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
    system, messages = decode(
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
        decode([{"role": "user", "content": "x"}, message])
