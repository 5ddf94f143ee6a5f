"""Contents as messages again: what was encoded comes back, as far as the format can hold it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.ports import ModelRequest
from perdure.providers.google_import import decode
from perdure.providers.google_request import encode_request
from perdure.types.messages import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, canonical
from tests.servers.google import check_contents
from tests.unit.providers.google_ask import MODEL, asking, result, said, tool

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=4,
)
opaque = st.sampled_from(
    [{"thoughtSignature": "c2ln"}, {"thoughtSignature": "AA==", "mediaResolution": {"level": "LOW"}}]
)
files = st.builds(FilePart, media_type=st.just("image/png"), data=st.just("AAAA")) | st.builds(
    FilePart, media_type=st.just("video/mp4"), url=st.just("https://x.test/a")
)
inside = st.builds(FilePart, media_type=st.just("image/png"), data=st.just("AAAA"), name=st.none() | text)


def carried(cls: Any, **more: Any) -> st.SearchStrategy[Any]:
    return opaque.flatmap(lambda data: st.builds(cls, provider=st.just("google"), opaque=st.just(data), **more))


texts = st.builds(TextPart, text=text) | carried(TextPart, text=text)
thoughts = st.builds(ThinkingPart, text=text, provider=st.just("google")) | carried(ThinkingPart, text=text)
code = {"executableCode": {"language": "PYTHON", "code": "1"}}
opaques = st.builds(
    OpaquePart, provider=st.just("google"), data=st.sampled_from([code, {"text": "", "thoughtSignature": "QQ=="}])
)
calls = st.lists(
    st.tuples(st.sampled_from(["add", "get"]), st.dictionaries(text, values, max_size=3), st.none() | opaque),
    max_size=3,
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 3))):
        messages.append(
            Message(role="user", parts=tuple(draw(st.lists(texts_of_users | files, min_size=1, max_size=3))))
        )
        asked: list[Part] = [
            ToolCallPart(
                id=f"c{turn}.{n}", name=name, arguments=arguments, provider="google" if data else None, opaque=data
            )
            for n, (name, arguments, data) in enumerate(draw(calls))
        ]
        parts = [*draw(st.lists(thoughts | texts | opaques, min_size=1, max_size=3)), *asked]
        messages.append(said(*parts))
        answered = [
            result(
                part.id,
                draw(text),
                part.name,
                is_error=draw(st.booleans()),
                files=tuple(draw(st.lists(inside, max_size=1))),
            )
            for part in asked
            if isinstance(part, ToolCallPart)
        ]
        if answered:
            messages.append(tool(*answered))
            messages.append(said(TextPart(text=draw(text))))
    return messages


texts_of_users = st.builds(TextPart, text=text)


@given(conversations())
def test_a_conversation_comes_back(messages: list[Message]) -> None:
    body = json.loads(encode_request(ModelRequest(MODEL, [*messages, Message.user("so?")]), origin="google"))
    check_contents(body["contents"], third=True)
    assert canonical(decode(body["contents"])[:-1]) == canonical(messages)


def test_results_find_their_calls_by_order_and_name() -> None:
    contents: list[dict[str, Any]] = [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"functionCall": {"name": name}} for name in ("add", "get", "add")]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "get", "response": {"output": {"a": 1}}}},
                {"functionResponse": {"name": "add", "response": {"n": 1}}},
                {"functionResponse": {"name": "add", "response": {"error": "no"}}},
                {"text": "go on"},
            ],
        },
    ]
    user, asked, answered, more = decode(contents)
    assert [call.id for call in asked.tool_calls] == ["call_1", "call_2", "call_3"]
    assert [(part.call_id, part.content, part.is_error) for part in answered.tool_results] == [
        ("call_2", '{"a": 1}', False),
        ("call_1", '{"n": 1}', False),
        ("call_3", "no", True),
    ]
    assert (user.text, more.text) == ("hi", "go on")


def test_results_without_ids_are_sent_in_the_order_of_their_calls() -> None:
    async def run() -> list[dict[str, Any]]:
        async with asking() as ask:
            calls = said(ToolCallPart(id="a", name="add"), ToolCallPart(id="b", name="get"))
            return await ask.contents(Message.user("hi"), calls, tool(result("b", name="get"), result("a", name="add")))

    answered = asyncio.run(run())[2]["parts"]
    assert [part["functionResponse"]["id"] for part in answered] == ["a", "b"]
