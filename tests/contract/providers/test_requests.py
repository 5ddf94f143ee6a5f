"""What goes out of a conversation, past servers that refuse what the real APIs refuse."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import pytest

from perdure.errors import BadRequestError
from perdure.types.messages import BlobRef, FilePart, Message, OpaquePart, TextPart, ThinkingPart, ToolCallPart
from tests.servers.model_server import Call, Reply
from tests.support.adapters import ADD, FORMATS, Api, answered, result, said, tool

formats = pytest.mark.parametrize("adapter", FORMATS)

PNG = b"\x89PNG\r\n\x1a\n0123"
BLOB = BlobRef(hash="ab" * 32, size=len(PNG))
MARKS = {"openai": '"reasoning_content"', "openai-responses": "gAAAA", "anthropic": '"sig/', "google": '"Z29vZ2xl'}
MARKS |= {"pydantic-ai": '"reasoning_content"'}
"""What only the server of the format can have given."""


async def test_a_conversation_with_parallel_calls_and_thinking_goes_on_until_its_answer(api: Api) -> None:
    """The server refuses what the real one refuses: a call without its result, a changed signature."""
    request = api.request(Message.user("Add."), system="Be brief.", tools=[ADD])
    for turn in range(3):
        asked = [Call("add", {"a": turn, "b": [turn]}), Call("add", {"z": 1, "a": 2})][: 1 + turn % 2]
        completed = await api.reply(Reply("I add.", asked, f"round {turn}", opaque=True), request)
        request = answered(request, completed, *("3" * (turn + 1) for _ in asked))
    completed = await api.reply("It is 3.", request)
    assert [part.text for part in completed.parts if isinstance(part, TextPart)] == ["It is 3."]
    assert (api.server.stats.refused, api.server.stats.completed) == (0, 4)
    assert "Be brief." in json.dumps(api.server.requests[-1])
    if api.adapter.name in FORMATS:  # and each call begins with the bytes of the one before, which the API has cached
        mark = b',"cache_control":{"type":"ephemeral"}'
        for before, after in pairwise(body.replace(mark, b"") for body in api.server.bodies):
            assert after.startswith(before.removesuffix(b"]}"))


async def test_thinking_goes_back_to_where_it_came_from_and_to_nobody_else(apis: dict[str, Api], api: Api) -> None:
    first = await api.reply(Reply("Three.", thinking="I see 3.", opaque=True))
    assert first.parts[0].type == "thinking"
    request = answered(api.hi, first)
    mark = MARKS[api.adapter.name]
    for other in apis.values():
        if other.adapter.origin == "pydantic-ai-openai@127.0.0.1":
            continue  # it leaves it to pydantic-ai, whether the model is told of its thinking
        await other.ask("Yes.", other.request(*request.messages))
        sent = json.dumps(api.server.requests[-1])
        kept = other is api
        assert (mark in sent) == kept, f"{api.adapter.name} → {other.adapter.name}"
        assert ("I see 3." in sent) == (kept or "Three." not in sent)
        assert "Three." in sent
    assert api.server.stats.refused == 0


@formats
async def test_what_others_gave_is_left_out(api: Api) -> None:
    """Of another provider, of the same at another address, and of none."""
    opaque = {"thoughtSignature": "Zm9y", "signature": "Zm9y", "field": "reasoning_content", "item": {"id": "Zm9y"}}
    name = api.adapter.origin.partition("@")[0]
    for origin in ("elsewhere", name, f"{name}@elsewhere"):
        theirs: dict[str, Any] = {"provider": origin, "opaque": opaque}
        call = ToolCallPart(id="c1", name="add", **theirs)
        parts = (
            ThinkingPart(text="hm", **theirs),
            OpaquePart(provider=origin, data={"text": "", **opaque}),
            TextPart(text="well", **theirs),
            FilePart(media_type="image/png", data=base64.b64encode(PNG).decode()),
            call,
        )
        sent = await api.sent(Message.user("hi"), said(*parts), tool(result("c1", "1")), tools=[ADD])
        text = json.dumps(sent)
        assert not [mark for mark in ('"hm', "Zm9y", "elsewhere") if mark in text]
        assert "well" in text
        if api.adapter.name != "google":  # whose models may have said a picture
            assert "[file (image/png, 12 bytes): this model cannot read it]" in text
    assert api.server.stats.refused == 0


async def test_ids_and_names_of_others_fit_and_a_result_finds_its_call(api: Api) -> None:
    for call_id, name in (("fc_" + "0" * 90, "mcp.server:look up"), ("functions.add:0", "n" * 80), ("c#1", "add")):
        name = name if api.adapter.name in FORMATS else "add"  # names are pydantic-ai's affair
        call = ToolCallPart(id=call_id, name=name)
        await api.sent(Message.user("hi"), Message.assistant("", call), tool(result(call_id, "1", name)), tools=[ADD])
    assert api.server.stats.refused == 0


async def test_calls_whose_arguments_are_no_json_and_errors_are_sent(api: Api) -> None:
    calls = (ToolCallPart(id="c1", name="add", malformed="{a"), ToolCallPart(id="c2", name="add", arguments={"a": 1}))
    results = (result("c1", "ValueError: not JSON", is_error=True), result("c2", "", is_error=True))
    sent = await api.sent(Message.user("hi"), Message.assistant("", *calls), tool(*results), tools=[ADD])
    assert "{a" not in json.dumps(sent)
    assert "ValueError: not JSON" in json.dumps(sent)


async def test_messages_of_any_order_are_taken(api: Api) -> None:
    """Also those that have nothing to say, and what is no text in any encoding."""
    calls = (ToolCallPart(id="c1", name="add"), ToolCallPart(id="c2", name="add"))
    for messages in (
        [Message.assistant("I begin."), Message.user("hi")],
        [Message.user("a"), Message.assistant("b"), Message.user(""), Message.user("c")],
        [Message.user("a"), Message.assistant("b"), Message.user("")],
        [Message.user("a"), said(), Message.user("b")],
        [Message.user("a"), said(ThinkingPart(text="only")), Message.user("b")],
        [Message.user("a"), Message.assistant("x"), Message.assistant("y"), Message.user("b")],
        [Message.user("a"), Message.user("b"), Message.system("Be kind."), Message.user("c")],
        [Message.user("a"), Message.assistant("", *calls), tool(result("c1")), tool(result("c2")), Message.user("b")],
    ):
        await api.sent(*messages, tools=[ADD])
    [*_, sent] = await api.sent(Message.user("more\n“quoted” \ud800.\x00"), system="s\udfff")
    assert "more\\n“quoted” \ufffd.\ufffd" in json.dumps(sent, ensure_ascii=False)
    assert api.server.stats.refused == 0


@formats
async def test_files_go_as_they_can_and_as_text_where_they_cannot(api: Api) -> None:
    encoded = base64.b64encode(PNG).decode()
    files = (
        FilePart(media_type="image/png", name="cat.png", blob=BLOB),
        FilePart(media_type="image/png", data=encoded),
        FilePart(media_type="application/pdf", name="a.pdf", data=base64.b64encode(b"%PDF-1.7").decode()),
        FilePart(media_type="application/zip", name="a.zip", data=base64.b64encode(b"PK").decode()),
    )
    drawn = result("c1", "Here.", "draw", files=files[:3])
    messages = [
        Message(role="user", parts=(TextPart(text="Look."), *files)),
        Message.assistant("", ToolCallPart(id="c1", name="draw")),
        tool(drawn),
    ]
    sent = json.dumps(await api.sent(*messages, files={BLOB.hash: PNG}, tools=[ADD]))
    assert sent.count(encoded) == 4
    assert sent.count(base64.b64encode(b"%PDF-1.7").decode()) == 2
    assert sent.count("[file a.zip (application/zip, 2 bytes): this model cannot read it]") == 1
    assert api.server.stats.refused == 0


async def test_content_that_was_not_loaded_is_refused(api: Api) -> None:
    lost = FilePart(media_type="image/png", blob=BLOB)
    asked = [Message.user("hi"), Message.assistant("", ToolCallPart(id="c", name="add"))]
    for messages in (
        [Message(role="user", parts=(TextPart(blob=BLOB),))],
        [Message(role="user", parts=(lost,))],
        [*asked, tool(result("c", "", blob=BLOB))],
        [*asked, tool(result("c", files=(lost,)))],
    ):
        with pytest.raises(BadRequestError, match="not loaded"):
            await api.sent(*messages)
    assert api.server.stats.requests == 0


KEPT = {
    "openai": ("openai@127.0.0.1 gpt-test returned False False", b'{"role":"user","content":"from memory"}'),
    "openai-responses": ("openai-responses", b'{"type":"message","role":"user","content":"from memory"}'),
    "anthropic": ("anthropic:anthropic@127.0.0.1:claude:returned", b'{"type":"text","text":"from memory"}'),
    "google": ("google:google@127.0.0.1:3", b'{"text":"from memory"}'),
}


@formats
async def test_a_message_is_encoded_once_for_a_server(api: Api) -> None:
    key, fragment = KEPT[api.adapter.name]
    message = Message.user("hi")
    assert "hi" in json.dumps(await api.sent(message))
    assert message.wire(key) is not None, "under another key"
    if api.adapter.name != "openai-responses":  # where a user's message is the same for all servers
        message.remember_wire(key.replace("127.0.0.1", "elsewhere"), b'{"role":"user","content":"of another server"}')
        assert "hi" in json.dumps(await api.sent(message))
    message.remember_wire(key, fragment)
    assert "from memory" in json.dumps(await api.sent(message))


@formats
async def test_the_servers_rules_reach_the_caller(api: Api) -> None:
    messages = [Message.user("hi"), Message.assistant("", ToolCallPart(id="c1", name="add")), Message.user("well?")]
    with pytest.raises(BadRequestError, match="function response" if api.adapter.name == "google" else "c1"):
        await api.sent(*messages, tools=[ADD])


FORCED: dict[str, Any] = {
    "openai": {"tool_choice": {"type": "function", "function": {"name": "add"}}},
    "openai-responses": {"tool_choice": {"type": "function", "name": "add"}},
    "anthropic": {"tool_choice": {"type": "tool", "name": "add"}},
    "google": {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}}},
    "pydantic-ai": {"tool_choice": "required"},  # there is one tool
}


async def test_a_tool_that_is_forced_as_for_structured_output(api: Api) -> None:
    await api.ask("x", api.request(Message.user("hi"), tools=[ADD], tool_choice="add"))
    assert api.server.requests[-1].items() >= FORCED[api.adapter.name].items()
