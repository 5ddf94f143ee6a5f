"""Histories as front ends send them: each is answered as OpenAI's API does, or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Agent
from perdure.errors import InvalidInputError
from perdure.testing import ScriptedProvider
from perdure.types.messages import TextPart
from perdure.web.openai_requests import Format, Request, read_messages
from perdure.web.problems import WebError
from tests.support.engine import Engine
from tests.web.test_openai_chat import connected

USER = {"role": "user", "content": "Weather?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Oslo"}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
ANSWER = {"role": "assistant", "content": "Sunny."}
AGAIN = {"role": "user", "content": "And?"}
SYSTEM = {"role": "system", "content": "Write a title."}
ITEM_CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
ITEM_RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
THOUGHTS = {"role": "assistant", "content": "Hm.", "reasoning_content": "Let me think.", "refusal": None, "name": "bot"}
GOES_ON = [("user", "Weather?"), ("assistant", "Sunny."), ("user", "And?")]
TAIL = [("user", "Weather?"), ("assistant", ""), ("tool", "sunny")]


def calls(arguments: Any, **fields: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}], **fields}


CHATS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {
    "stopped before the answer": ([USER, CALLS, RESULT], [*TAIL, ("user", "")]),
    "stopped before the answer, and asked again": ([USER, CALLS, RESULT, AGAIN], [*TAIL, ("user", "And?")]),
    "two results": (
        [USER, {**CALLS, "tool_calls": [CALL, {**CALL, "id": "c2"}]}, RESULT, {**RESULT, "tool_call_id": "c2"}],
        [*TAIL[:2], ("tool", "sunny sunny"), ("user", "")],
    ),
    "ends with the assistant's": ([USER, ANSWER], [TAIL[0], ("assistant", "Sunny."), ("user", "")]),
    "the assistant's alone": ([ANSWER], [("assistant", "Sunny."), ("user", "")]),
    "two of the assistant's": (
        [USER, ANSWER, ANSWER, AGAIN],
        [TAIL[0], ("assistant", "Sunny."), ("assistant", "Sunny."), ("user", "And?")],
    ),
    "a system message alone": ([SYSTEM], [("user", "<system>\nWrite a title.\n</system>\n\n")]),
    "a developer message alone": (
        [{**SYSTEM, "role": "developer"}], [("user", "<system>\nWrite a title.\n</system>\n\n")],
    ),
    "a system message last": (
        [USER, ANSWER, SYSTEM],
        [TAIL[0], ("assistant", "Sunny."), ("user", "<system>\nWrite a title.\n</system>\n\n")],
    ),
    "a user's text, then a system message": (
        [USER, SYSTEM], [("user", "<system>\nWrite a title.\n</system>\n\nWeather?")],
    ),
    "an empty text": ([{"role": "user", "content": ""}], [("user", "")]),
    "no parts": ([{"role": "user", "content": []}], [("user", "")]),
    "a part with an empty text": ([{"role": "user", "content": [{"type": "text", "text": ""}]}], [("user", "")]),
    "an empty text after an answer": (
        [USER, ANSWER, {"role": "user", "content": ""}], [TAIL[0], ("assistant", "Sunny."), ("user", "")],
    ),
    "names": ([{**USER, "name": "ana"}, ANSWER, {**AGAIN, "name": "ana"}], GOES_ON),
    "an empty list of calls": ([USER, {**ANSWER, "tool_calls": []}, AGAIN], GOES_ON),
    "calls that are null": ([USER, {**ANSWER, "tool_calls": None}, AGAIN], GOES_ON),
    "arguments that are null": ([USER, calls(None), RESULT, AGAIN], [*TAIL, ("user", "And?")]),
    "arguments that are an object": ([USER, calls({"place": "Oslo"}), RESULT], [*TAIL, ("user", "")]),
    "arguments that are empty": ([USER, calls("", content=""), RESULT], [*TAIL, ("user", "")]),
    "a result that is null": ([USER, CALLS, {**RESULT, "content": None}], [*TAIL[:2], ("tool", ""), ("user", "")]),
    "a result in parts": (
        [USER, CALLS, {**RESULT, "content": [{"type": "text", "text": "sunny"}], "name": "weather"}],
        [*TAIL, ("user", "")],
    ),
    "a function of the older API": (
        [
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
            {"role": "function", "name": "weather", "content": "sunny"},
        ],
        [*TAIL, ("user", "")],
    ),
    "thoughts and other fields": ([USER, THOUGHTS, AGAIN], [TAIL[0], ("assistant", "Hm."), ("user", "And?")]),
    "a refusal": (
        [USER, {"role": "assistant", "content": None, "refusal": "No."}, AGAIN],
        [TAIL[0], ("assistant", "No."), ("user", "And?")],
    ),
    "a refusal in parts": (
        [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, AGAIN],
        [TAIL[0], ("assistant", "No."), ("user", "And?")],
    ),
    "one id in two replies": (
        [USER, CALLS, RESULT, ANSWER, USER, CALLS, RESULT],
        [*TAIL, ("assistant", "Sunny."), *TAIL, ("user", "")],
    ),
}  # fmt: skip

RESPONSES: dict[str, tuple[Any, list[tuple[str, str]]]] = {
    "stopped before the answer": ([USER, ITEM_CALL, ITEM_RESULT], [*TAIL, ("user", "")]),
    "stopped before the answer, and asked again": ([USER, ITEM_CALL, ITEM_RESULT, AGAIN], [*TAIL, ("user", "And?")]),
    "ends with the assistant's": ([USER, ANSWER], [TAIL[0], ("assistant", "Sunny."), ("user", "")]),
    "a system message alone": ([SYSTEM], [("user", "<system>\nWrite a title.\n</system>\n\n")]),
    "an empty text": ("", [("user", "")]),
    "an empty text in a part": ([{"role": "user", "content": [{"type": "input_text", "text": ""}]}], [("user", "")]),
}

REFUSED: dict[str, tuple[list[Any], str]] = {
    "a result alone": ([RESULT], "No call of this conversation has the id 'c1'"),
    "a result of another call": ([USER, CALLS, {**RESULT, "tool_call_id": "c9"}], "has the id 'c9'"),
    "a result without id": ([USER, CALLS, {"role": "tool", "content": "x"}], "No call of this conversation"),
    "a result of a function that was not called": ([USER, {"role": "function", "content": "x"}], "No call"),
    "calls without results": ([USER, CALLS, AGAIN], "c1"),
    "calls at the end": ([USER, CALLS], "c1"),
    "one result of two": ([USER, {**CALLS, "tool_calls": [CALL, {**CALL, "id": "c2"}]}, RESULT], "c2"),
    "no content": ([{"role": "user", "content": None}], "messages[0] has no content"),
    "an unknown role": ([{"role": "critic", "content": "x"}], "role"),
    "a part without text": ([{"role": "user", "content": [{"type": "text"}]}], "'text'"),
    "no message": ([7], "not an object"),
}


@pytest.fixture
def provider() -> ScriptedProvider:
    return ScriptedProvider(["hello"] * 40)


def read(messages: Any) -> list[tuple[str, str]]:
    """Roles and texts of a request to the model."""
    found = []
    for message in messages:
        if message.role == "system":
            continue
        text = " ".join(result.content for result in message.tool_results) if message.role == "tool" else message.text
        found.append((message.role, text))
    return found


async def test_chats_are_answered(engine: Engine, provider: ScriptedProvider) -> None:
    async with engine.served(Agent("helper", provider)) as client, connected(client) as access, access.http() as http:
        for name, (messages, expected) in CHATS.items():
            answer = await http.post("/chat/completions", json={"model": "helper", "messages": messages})
            assert answer.status_code == 200, (name, answer.text)
            assert answer.json()["choices"][0]["message"]["content"] == "hello", name
            assert read(provider.requests[-1].messages) == expected, name
            transcript = await client.run(answer.json()["perdure"]["session"]).transcript()
            results = [result for message in transcript for result in message.tool_results]
            assert all(result.given_by for result in results), f"{name}: who made the results up"
        assert len(provider.requests) == len(CHATS)


async def test_responses_are_answered(engine: Engine, provider: ScriptedProvider) -> None:
    async with engine.served(Agent("helper", provider)) as client, connected(client) as access, access.http() as http:
        for name, (given, expected) in RESPONSES.items():
            answer = await http.post("/responses", json={"model": "helper", "input": given})
            assert answer.status_code == 200, (name, answer.text)
            assert answer.json()["status"] == "completed", name
            assert read(provider.requests[-1].messages) == expected, name


async def test_what_cannot_be_a_history_is_refused_with_a_reason(engine: Engine, provider: ScriptedProvider) -> None:
    async with engine.served(Agent("helper", provider)) as client, connected(client) as access, access.http() as http:
        for name, (messages, reason) in REFUSED.items():
            for streams in (False, True):
                asked = {"model": "helper", "messages": messages, "stream": streams}
                answer = await http.post("/chat/completions", json=asked)
                assert answer.status_code == 400, (name, answer.text)
                assert reason in answer.json()["error"]["message"], (name, answer.text)
        assert provider.requests == []


async def test_a_session_takes_what_is_new_and_an_empty_text(engine: Engine, provider: ScriptedProvider) -> None:
    """It has the messages before: one that ends with them says nothing, and is not paid again."""
    async with engine.served(Agent("helper", provider)) as client, connected(client) as access, access.http() as http:
        headers = {"X-Perdure-Session": "chat-1"}

        async def send(*messages: Any) -> Any:
            asked = {"model": "helper", "messages": messages}
            return await http.post("/chat/completions", json=asked, headers=headers)

        assert (await send(USER)).status_code == 200
        for tail in ([ANSWER], [CALLS, RESULT]):
            answer = await send(USER, *tail)
            assert answer.status_code == 400, answer.text
            assert "Send" in answer.json()["error"]["message"] or "send" in answer.json()["error"]["message"]
        assert (await send(USER, ANSWER, {"role": "user", "content": ""})).status_code == 200
        assert len(provider.requests) == 2


_PIECES = [USER, CALLS, RESULT, ANSWER, AGAIN, SYSTEM, THOUGHTS, calls(None), {"role": "user", "content": ""}]


_ITEMS = [USER, ITEM_CALL, ITEM_RESULT, ANSWER, AGAIN, SYSTEM, {"type": "reasoning", "id": "r1", "summary": []}]


@pytest.mark.parametrize(("format", "pieces"), [("openai", _PIECES), ("openai-responses", _ITEMS)])
@given(data=st.data())
def test_any_order_of_messages_is_read_or_refused(format: Format, pieces: list[Any], data: st.DataObject) -> None:
    """Nothing that the user or the assistant said is lost: it is in the history, or what is sent."""
    messages = data.draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=8))
    request = Request("helper", None)
    try:
        read_messages(request, format, messages, all_new=False)
    except (WebError, InvalidInputError):
        return
    sent = read(request.history)
    if request.content is not None:
        sent.append(("user", "".join(part.text for part in request.content if isinstance(part, TextPart))))
    for role in ("user", "assistant"):
        said = [message.get("content") or "" for message in messages if message.get("role") == role]
        assert "".join(text for by, text in sent if by == role) == "".join(said)
