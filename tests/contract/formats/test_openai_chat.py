"""What only chat completions have: what goes out in full, and what belongs to a compatible server."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any

import pytest

from perdure.errors import BadRequestError
from perdure.ports.model import ModelRequest
from perdure.providers.dialects import find_dialect
from perdure.providers.openai_chat import OpenAIChat
from perdure.types.messages import BlobRef, FilePart, Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from tests.servers.model_server import OpenAIServer
from tests.support.adapters import ADD, KEY, Api, result

ADAPTER = "openai"


async def test_the_whole_conversation_goes_out(ask: Api, server: OpenAIServer) -> None:
    calls = (ToolCallPart(id="c1", name="add", arguments={"a": 1}), ToolCallPart(id="c2", name="add", malformed="{a"))
    messages = [
        Message.user("first"),
        Message(role="assistant", parts=(ThinkingPart(text="hm"), TextPart(text="well"), *calls)),
        Message(role="tool", parts=(result("c1", "1"), result("c2", "ValueError: not JSON"))),
        Message(role="assistant", parts=(ThinkingPart(text="only thinking"),)),
        Message.user("more\n“quoted” \x00"),
    ]
    settings = {"temperature": 0.2, "top_p": 1, "max_tokens": 9, "stop": ["x"], "seed": 3, "reasoning_effort": "low"}
    options = {"parallel_tool_calls": False}
    request = ModelRequest("m", messages, "be brief", [ADD], "add", settings, options)
    await ask("fine", request)
    assert server.requests == [
        {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "tools": [
                {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD.parameters}}
            ],
            "tool_choice": {"type": "function", "function": {"name": "add"}},
            **settings,
            **options,
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "first"},
                {
                    "role": "assistant",
                    "content": "well",
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
                        {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
                {"role": "tool", "tool_call_id": "c2", "content": "ValueError: not JSON"},
                {"role": "assistant", "content": ""},
                {"role": "user", "content": "more\n“quoted” \ufffd"},
            ],
        }
    ]


async def test_max_tokens_has_the_name_that_the_endpoint_knows(server: OpenAIServer, ask: Api) -> None:
    request = ModelRequest("m", [Message.user("hi")], settings={"max_tokens": 5, "temperature": None})
    await ask("x", request)
    newer = OpenAIChat(base_url=server.base_url, api_key=KEY, max_tokens_name="max_completion_tokens")
    async for _ in newer.stream(request):
        pass
    await newer.aclose()
    assert [sorted(r) for r in server.requests] == [
        ["max_tokens", "messages", "model", "stream", "stream_options"],
        ["max_completion_tokens", "messages", "model", "stream", "stream_options"],
    ]
    assert find_dialect("openai", "api.openai.com").max_tokens_name == "max_completion_tokens"
    assert find_dialect("openai", "x.openai.azure.com").max_tokens_name == "max_completion_tokens"
    assert find_dialect("openai", "notopenai.com").max_tokens_name == "max_tokens"


async def test_metadata_goes_with_store(ask: Api, server: OpenAIServer) -> None:
    request = ModelRequest("m", [Message.user("hi")], settings={"metadata": {"team": "a"}})
    with pytest.raises(BadRequestError, match=r"{'store': True}"):
        await ask("x", request)
    await ask("x", replace(request, provider_options={"store": True}))
    assert server.requests[-1]["metadata"] == {"team": "a"}


HERE = "openai@127.0.0.1"
PNG = b"\x89PNG\r\n\x1a\n0123"
PDF = b"%PDF-1.7"
CAT = FilePart(
    media_type="image/png", name="cat.png", blob=BlobRef(hash=hashlib.sha256(PNG).hexdigest(), size=len(PNG))
)
FILES = {hashlib.sha256(PNG).hexdigest(): PNG}
CAT_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
CAT_ON_WIRE = {"type": "image_url", "image_url": {"url": CAT_URL}}


async def sent(ask: Api, server: OpenAIServer, *messages: Message) -> list[Any]:
    """The messages as they arrived, which the server has checked."""
    await ask("fine", ModelRequest("m", messages, files=FILES))
    plain: list[Any] = server.requests[-1]["messages"]
    return plain


def user(*parts: TextPart | FilePart) -> Message:
    return Message(role="user", parts=parts)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def test_files_of_a_user(ask: Api, server: OpenAIServer) -> None:
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


async def test_files_of_results_follow_all_results(ask: Api, server: OpenAIServer) -> None:
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


async def test_a_servers_own_data_goes_back(ask: Api, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_refusal_goes_back_as_one(ask: Api, server: OpenAIServer) -> None:
    said = TextPart(text="I cannot", provider=HERE, opaque={"refusal": True})
    messages = await sent(ask, server, Message.user("hi"), Message(role="assistant", parts=(said,)), Message.user("?"))
    assert messages[1] == {"role": "assistant", "content": None, "refusal": "I cannot"}
