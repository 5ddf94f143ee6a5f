"""A transcript goes out and comes back whole, as far as the format can hold it."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import InvalidInputError
from perdure.ports import ModelRequest, ToolSpec
from perdure.providers.anthropic_import import decode, decode_system
from perdure.providers.anthropic_request import encode_request
from perdure.types.messages import (
    FilePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    canonical,
)
from tests.servers.anthropic import parse, sign

ORIGIN = "anthropic"
TOOLS = [ToolSpec(name, "", {"type": "object"}) for name in ("add", "look_up")]

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
said = st.text(characters, min_size=1, max_size=20).filter(str.strip)
values = st.dictionaries(said, st.integers() | said | st.lists(st.booleans(), max_size=2), max_size=2)
data = st.binary(min_size=1, max_size=9).map(lambda raw: base64.b64encode(raw).decode())
files = st.one_of(
    st.builds(FilePart, media_type=st.sampled_from(["image/png", "image/jpeg"]), data=data),
    st.builds(FilePart, media_type=st.just("image/webp"), url=st.just("https://x.test/a.webp?b")),
    st.builds(FilePart, media_type=st.just("application/pdf"), data=data, name=st.none() | said),
    st.builds(FilePart, media_type=st.just("application/pdf"), url=st.just("https://x.test/a.pdf")),
    st.builds(
        FilePart,
        media_type=st.just("text/plain"),
        data=said.map(lambda text: base64.b64encode(text.encode()).decode()),
        name=st.none() | said,
    ),
)
texts = st.builds(TextPart, text=said)
cited = st.builds(
    TextPart,
    text=said,
    provider=st.just(ORIGIN),
    opaque=said.map(lambda text: {"citations": [{"type": "char_location", "cited_text": text}]}),
)
thoughts = (st.just("") | said).map(
    lambda text: ThinkingPart(text=text, provider=ORIGIN, opaque={"signature": sign(text)})
)
sealed = said.map(
    lambda text: OpaquePart(provider=ORIGIN, data={"type": "redacted_thinking", "data": f"sealed/{text}"})
)
searched = said.map(
    lambda text: OpaquePart(
        provider=ORIGIN, data={"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"title": text}]}
    )
)


@st.composite
def transcripts(draw: Any) -> list[Message]:
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 3))):
        messages.append(Message(role="user", parts=tuple(draw(st.lists(texts | files, min_size=1, max_size=3)))))
        for step in range(draw(st.integers(0, 2))):
            names = draw(st.lists(st.sampled_from(["add", "look_up"]), min_size=1, max_size=2))
            calls = [
                draw(
                    st.just(ToolCallPart(id=f"c_{turn}-{step}-{index}", name=name, arguments=draw(values)))
                    | st.just(
                        ToolCallPart(
                            id=f"c_{turn}-{step}-{index}",
                            name=name,
                            provider=ORIGIN,
                            opaque={"caller": {"type": "direct"}},
                        )
                    )
                )
                for index, name in enumerate(names)
            ]
            others: list[Part] = draw(st.lists(texts | cited | thoughts | sealed | searched, max_size=3))
            messages.append(Message(role="assistant", parts=tuple(draw(st.permutations([*others, *calls])))))
            in_order = messages[-1].tool_calls
            messages.append(Message(role="tool", parts=tuple(draw(results(call)) for call in in_order)))
        messages.append(
            Message(role="assistant", parts=tuple(draw(st.lists(texts | thoughts, min_size=1, max_size=2))))
        )
    messages.append(Message.user("and now?"))
    return messages


def results(call: ToolCallPart) -> st.SearchStrategy[ToolResultPart]:
    good = st.builds(
        ToolResultPart,
        call_id=st.just(call.id),
        name=st.just(call.name),
        content=st.just("") | said,
        files=st.lists(files, max_size=2).map(tuple),
    )
    bad = st.builds(
        ToolResultPart, call_id=st.just(call.id), name=st.just(call.name), content=said, is_error=st.just(True)
    )
    return good | bad


@given(transcripts())
@settings(deadline=None)
def test_nothing_is_lost_on_the_way_out_and_back(transcript: list[Message]) -> None:
    encoded = encode_request(ModelRequest("claude-sonnet-4-6", transcript, "be brief", TOOLS), origin=ORIGIN)
    wire = parse(encoded.body, version="2026-10-21", beta="")  # the API would take it
    assert canonical(decode(wire["messages"])) == canonical(transcript)
    assert decode_system(wire["system"]) == "be brief"


def test_content_may_be_text() -> None:
    assert decode([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so?"}]) == [
        Message.user("hi"),
        Message.assistant("so?"),
    ]
    wire = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]}]
    assert decode(wire) == [Message(role="tool", parts=(ToolResultPart(call_id="c", name="", content="1"),))]
    assert decode_system(None) is None
    assert decode_system("x") == "x"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "robot", "content": "x"},
        {"role": "user", "content": 7},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"type": "search_result"}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "x"}}]},
    ],
)
def test_what_is_no_message(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        decode([message])
