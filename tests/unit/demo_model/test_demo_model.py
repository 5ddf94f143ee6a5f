"""The demo model as a server, spoken to by the real provider."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from perdure.demo_model.model import DemoModel
from perdure.ports import Completed, ModelRequest, StreamEvent, TextDelta, ToolSpec
from perdure.providers.openai_chat import OpenAIChat
from perdure.types.messages import Message, ToolResultPart
from tests.unit.demo_model.reader import TOOLS, Reader

SPECS = [
    ToolSpec(tool.name, "", {"type": "object", "properties": dict(tool.properties), "required": sorted(tool.required)})
    for tool in TOOLS
]


async def ask(base_url: str, messages: list[Message]) -> list[StreamEvent]:
    provider = OpenAIChat(base_url=base_url, api_key="none")
    try:
        return [event async for event in provider.stream(ModelRequest("demo", messages, tools=SPECS))]
    finally:
        await provider.aclose()


async def converse(base_url: str, root: Path, question: str) -> tuple[str, list[Message]]:
    reader = Reader(root)
    messages = [Message.user(question)]
    while True:
        completed = (await ask(base_url, messages))[-1]
        assert isinstance(completed, Completed)
        messages.append(Message(role="assistant", parts=completed.parts))
        calls = messages[-1].tool_calls
        if not calls:
            return messages[-1].text, messages
        results = [
            ToolResultPart(call_id=call.id, name=call.name, content=reader.run(call))  # type: ignore[arg-type]
            for call in calls
        ]
        messages.append(Message(role="tool", parts=tuple(results)))


async def test_a_conversation_over_the_wire(tmp_path: Path) -> None:
    (tmp_path / "oven.py").write_text("OVEN_LIMIT = 250\n")
    async with DemoModel(delay=0) as model:
        answer, messages = await converse(model.base_url, tmp_path, "Where is OVEN_LIMIT?")
        assert "> OVEN_LIMIT = 250" in answer
        assert model.requests == model.completed == 4
    ids = [call.id for message in messages for call in message.tool_calls]
    assert ids == ["call_0001", "call_0002", "call_0003"]


async def test_it_streams_with_usage() -> None:
    async with DemoModel(delay=0) as model:
        *deltas, completed = await ask(model.base_url, [Message.user("hello")])
    assert len([delta for delta in deltas if isinstance(delta, TextDelta)]) > 3
    assert isinstance(completed, Completed)
    assert completed.usage.output_tokens > 0
    assert completed.model == "demo"


def fetch(url: str, body: bytes | None = None) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as response:  # noqa: S310 - loopback
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": 3}', b'{"messages": [], "tools": [{}]}'])
async def test_bad_requests(body: bytes) -> None:
    async with DemoModel() as model:
        status, answer = await asyncio.to_thread(fetch, f"{model.base_url}/chat/completions", body)
        assert (status, "error" in answer) == (400, True)


async def test_other_paths() -> None:
    async with DemoModel() as model:
        root = model.base_url.removesuffix("/v1")
        assert (await asyncio.to_thread(fetch, f"{root}/v1/models"))[0] == 200
        assert await asyncio.to_thread(fetch, f"{root}/stats") == (200, {"requests": 0, "completed": 0})
        assert (await asyncio.to_thread(fetch, f"{root}/nothing"))[0] == 404


async def test_not_streamed() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}).encode()
    async with DemoModel() as model:
        status, answer = await asyncio.to_thread(fetch, f"{model.base_url}/chat/completions", body)
    assert status == 200
    assert answer["object"] == "chat.completion"


async def test_as_a_process(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "perdure.demo_model.model",
        "--port",
        "0",
        "--delay",
        "0",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        base_url = (await process.stdout.readline()).decode().strip()
        answer, _ = await converse(base_url, tmp_path, "How many files are there?")
        assert answer
    finally:
        process.terminate()
        await process.communicate()
