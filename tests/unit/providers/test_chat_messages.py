"""Messages as the strict server takes them: files, what is foreign, what belongs to the server itself."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from perdure.errors import BadRequestError
from perdure.ports import ModelRequest
from perdure.types.messages import (
    BlobRef,
    FilePart,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from tests.servers.model_server import OpenAIServer, Reply
from tests.unit.providers.conftest import Ask

HERE = "openai@127.0.0.1"
PNG = b"\x89PNG\r\n\x1a\n0123"
PDF = b"%PDF-1.7"
CAT = FilePart(
    media_type="image/png", name="cat.png", blob=BlobRef(hash=hashlib.sha256(PNG).hexdigest(), size=len(PNG))
)
FILES = {hashlib.sha256(PNG).hexdigest(): PNG}
CAT_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
CAT_ON_WIRE = {"type": "image_url", "image_url": {"url": CAT_URL}}


async def sent(ask: Ask, server: OpenAIServer, *messages: Message) -> list[Any]:
    """The messages as they arrived, which the server has checked."""
    await ask("fine", ModelRequest("m", messages, files=FILES))
    plain: list[Any] = server.requests[-1]["messages"]
    return plain


def user(*parts: TextPart | FilePart) -> Message:
    return Message(role="user", parts=parts)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def test_files_of_a_user(ask: Ask, server: OpenAIServer) -> None:
    parts = (
        TextPart(text="What is this?"),
        CAT,
        FilePart(media_type="image/webp", url="https://x/y.webp"),
        FilePart(media_type="application/pdf", data=encoded(PDF)),
        FilePart(media_type="audio/mpeg", data=encoded(b"ID3")),
        FilePart(media_type="text/csv", name="a.csv", data=encoded(b"a,b")),
        FilePart(media_type="application/zip", name="a.zip", data=encoded(b"PK")),
        FilePart(media_type="image/heic", url="https://x/y.heic"),
        FilePart(media_type="application/pdf", url="https://x/y.pdf"),
    )
    (message,) = await sent(ask, server, user(*parts))
    assert message["content"] == [
        {"type": "text", "text": "What is this?"},
        CAT_ON_WIRE,
        {"type": "image_url", "image_url": {"url": "https://x/y.webp"}},
        {
            "type": "file",
            "file": {"filename": "file.pdf", "file_data": f"data:application/pdf;base64,{encoded(PDF)}"},
        },
        {"type": "input_audio", "input_audio": {"data": encoded(b"ID3"), "format": "mp3"}},
        {"type": "text", "text": "[file a.csv (text/csv, 3 bytes)]\na,b"},
        {"type": "text", "text": "[file a.zip (application/zip, 2 bytes): this model cannot read it]"},
        {"type": "text", "text": "[file (image/heic) at https://x/y.heic: this model cannot read it]"},
        {"type": "text", "text": "[file (application/pdf) at https://x/y.pdf: this model cannot read it]"},
    ]


async def test_a_file_that_was_not_loaded_is_refused(ask: Ask) -> None:
    with pytest.raises(BadRequestError, match="not loaded"):
        await ask("x", ModelRequest("m", [user(CAT)]))


async def test_files_of_results_follow_all_results(ask: Ask, server: OpenAIServer) -> None:
    """Also where the results came as several messages: nothing may part them."""
    calls = [ToolCallPart(id=f"c{n}", name="look") for n in (1, 2)]
    first = ToolResultPart(call_id="c1", name="look", content="a cat", files=(CAT,))
    second = ToolResultPart(call_id="c2", name="look", content="")
    results = [Message(role="tool", parts=(first,)), Message(role="tool", parts=(second,))]
    for _ in range(2):  # the second time from memory
        messages = await sent(ask, server, Message.user("hi"), Message.assistant("", *calls), *results)
        assert messages[2:] == [
            {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
            {"role": "tool", "tool_call_id": "c2", "content": ""},
            {
                "role": "user",
                "content": [{"type": "text", "text": "[file from the result of look, call c1]"}, CAT_ON_WIRE],
            },
        ]
    more = await sent(ask, server, Message.user("hi"), Message.assistant("", *calls), *results, Message.user("more"))
    assert more[:-1] == [*messages]
    assert more[-1] == {"role": "user", "content": "more"}


async def test_parts_of_other_servers_are_left_out(ask: Ask, server: OpenAIServer) -> None:
    call = ToolCallPart(id="c1", name="add", provider="google", opaque={"thought_signature": "s"})
    parts = (
        ThinkingPart(text="hm", provider="anthropic", opaque={"signature": "s"}),
        ThinkingPart(text="hm", provider="openai@elsewhere", opaque={"field": "reasoning_content"}),
        OpaquePart(provider="openai-responses", data={"type": "web_search_call"}),
        TextPart(text="well", provider="openai@elsewhere", opaque={"refusal": True}),
        CAT.model_copy(update={"name": None}),
        call,
    )
    result = ToolResultPart(call_id="c1", name="add", content="1")
    messages = await sent(
        ask,
        server,
        Message.user("hi"),
        Message(role="assistant", parts=parts),
        Message(role="tool", parts=(result,)),
    )
    assert messages[1] == {
        "role": "assistant",
        "content": "well[file (image/png, 12 bytes): this model cannot read it]",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
    }


async def test_ids_and_names_of_others_fit(ask: Ask, server: OpenAIServer) -> None:
    long = "fc_" + "0" * 60
    call = ToolCallPart(id=long, name="mcp.server:look up")
    result = ToolResultPart(call_id=long, name="mcp.server:look up", content="1")
    messages = await sent(
        ask, server, Message.user("hi"), Message.assistant("", call), Message(role="tool", parts=(result,))
    )
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"]
    assert messages[1]["tool_calls"][0]["function"]["name"] == "mcp_server_look_up"


async def test_thinking_goes_back_where_it_came_from(ask: Ask, server: OpenAIServer) -> None:
    *_, completed = await ask(Reply(text="x", thinking="let me see"))
    reply = Message(role="assistant", parts=completed.parts)  # type: ignore[union-attr]  # the last event is Completed
    messages = await sent(ask, server, Message.user("hi"), reply, Message.user("more"))
    assert messages[1] == {"role": "assistant", "content": "x", "reasoning_content": "let me see"}


async def test_a_servers_own_data_goes_back(ask: Ask, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the strict server knows nothing of: blocks of thinking, and Google's signatures."""
    monkeypatch.setattr("tests.servers.chat.parse", lambda body, _: __import__("json").loads(body))
    details = [{"type": "reasoning.encrypted", "data": "x"}]
    extra = {"google": {"thought_signature": "s"}}
    parts = (
        ThinkingPart(text="hm", provider=HERE, opaque={"reasoning_details": details}),
        ToolCallPart(id="c", name="f", provider=HERE, opaque={"extra_content": extra}),
    )
    messages = await sent(ask, server, Message(role="assistant", parts=parts))
    assert messages[0]["reasoning_details"] == details
    assert messages[0]["tool_calls"][0]["extra_content"] == extra
    assert "reasoning" not in messages[0]


async def test_a_refusal_goes_back_as_one(ask: Ask, server: OpenAIServer) -> None:
    said = TextPart(text="I cannot", provider=HERE, opaque={"refusal": True})
    messages = await sent(ask, server, Message.user("hi"), Message(role="assistant", parts=(said,)), Message.user("?"))
    assert messages[1] == {"role": "assistant", "content": None, "refusal": "I cannot"}


async def test_a_fragment_is_of_one_server(ask: Ask, server: OpenAIServer) -> None:
    message = Message(role="assistant", parts=(ThinkingPart(text="hm", provider=HERE, opaque={"field": "reasoning"}),))
    message.remember_wire("openai@elsewhere", b'{"role":"assistant","content":"another server\'s"}')
    server.formats["openai"].thoughts.add("hm")
    messages = await sent(ask, server, Message.user("hi"), message)
    assert messages[1] == {"role": "assistant", "content": "", "reasoning": "hm"}
