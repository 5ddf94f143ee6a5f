"""The demo's model as a server, asked by the real provider, with the tools of the demo's agent on real files."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli.demo.model import DemoModel
from perdure.cli.demo.worker import Folder
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ToolSpec
from perdure.providers.openai_chat import OpenAIChat
from perdure.types.messages import Message, ToolResultPart

OVEN = """OVEN_LIMIT = 250


def preheat(degrees: int) -> None:
    'Heat the oven.'
    if degrees > OVEN_LIMIT:
        raise ValueError('too hot')
"""
FILES = {
    "README.md": "# Bakery\n\nOrders bread from the oven service.\nIt retries twice.\n",
    "docs/refunds.md": "# Refunds\n\nA refund is paid within fourteen days.\n",
    "notes.txt": "buy flour\n",
    "src/orders.py": "from oven import preheat\n\npreheat(220)\n" + "# padding\n" * 50,
    "src/oven.py": OVEN,
}
TOOLS = ("list_files", "search", "read_file", "count_lines")
LONG = "a" * 5000


@pytest.fixture(scope="module")
def model() -> Iterator[DemoModel]:
    """One for all: its end takes up to 0.05 s, and it knows nothing of earlier requests but their number."""
    with DemoModel() as model:
        yield model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


async def stream_reply(
    model: DemoModel, messages: list[Message], tools: tuple[str, ...] = TOOLS
) -> tuple[list[StreamEvent], Completed]:
    """The deltas of a reply, and its end."""
    provider = OpenAIChat(base_url=model.base_url, api_key="none")
    specs = [ToolSpec(name, "", {"type": "object", "properties": {}}) for name in tools]
    try:
        *deltas, completed = [event async for event in provider.stream(ModelRequest("demo", messages, tools=specs))]
    finally:
        await provider.aclose()
    assert isinstance(completed, Completed)
    return deltas, completed


async def converse(model: DemoModel, folder: Path, question: str, injected: str | None = None) -> list[Message]:
    """A conversation up to its answer, as the engine holds it; ``injected`` comes after the second reply."""
    messages = [Message.user(question)]
    for number in range(1, 20):
        _, completed = await stream_reply(model, messages)
        messages.append(Message(role="assistant", parts=completed.parts))
        if not messages[-1].tool_calls:
            return messages
        (call,) = messages[-1].tool_calls
        try:
            result = getattr(Folder(folder), call.name)(**call.arguments)
        except (ValueError, OSError) as error:
            result = f"{type(error).__name__}: {error}"
        messages.append(Message(role="tool", parts=(ToolResultPart(call_id=call.id, name=call.name, content=result),)))
        if injected and number == 2:
            messages.append(Message.user(injected))
    raise AssertionError("the model never answers")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Where is OVEN_LIMIT defined?", ["in `src/oven.py`, line 1:\n\n> OVEN_LIMIT = 250"]),
        ("What happens with a refund?", ["`docs/refunds.md`, line 1", "> A refund is paid within fourteen days."]),
        ("How often is `preheat` there?", ["in 3 lines of 2 files", "> def preheat", "See also `src/orders.py`."]),
        ("How often is `padding` there?", ["at least 40 lines of 1 file"]),
        ("Is “bread” from the oven?", ["I found “bread” in 1 line of 1 file", "`README.md`, line 3"]),
        ("What does README.md say about the oven?", ["1 line of 1 file", "> Orders bread from the oven service."]),
        ("How many lines has oven.py?", ["`src/oven.py` (140 bytes, 7 lines) begins:\n\n> OVEN_LIMIT"]),
        ("Which file is the largest?", ["The largest file is `src/orders.py` (539 bytes, 53 lines)."]),
        ("What are the smallest files?", ["The smallest file is `notes.txt` (10 bytes, 1 lines)."]),
        ("What is this project about?", ["5 files with 68 lines", "`README.md` begins:\n\n> # Bakery"]),
        ("List all files, please", [f"`{path}`" for path in FILES]),
        ("Where is the quetzalcoatl?", ["I found no line with “quetzalcoatl”.", "The folder has 5 files"]),
    ],
)
async def test_an_answer_rests_on_the_files(model: DemoModel, folder: Path, question: str, expected: list[str]) -> None:
    answer = (await converse(model, folder, question))[-1].text
    assert [text for text in expected if text not in answer] == [], answer


@pytest.mark.parametrize(
    "question", ["?", "hello", "Wo ist der Ofen?", "烤箱在哪里？", LONG, "`*[(`", "` `", "[]{}\\ \x00 “src/oven.py"]
)
async def test_any_question_has_an_answer_after_two_tool_calls(model: DemoModel, folder: Path, question: str) -> None:
    messages = await converse(model, folder, question)
    assert messages[-1].text
    assert sum(len(message.tool_calls) for message in messages) >= 2, "the demo kills the worker after two replies"


@pytest.mark.parametrize(
    ("name", "content"), [("blob.bin", b"\x00\xff" * 500), ("empty.txt", b""), ("a (1).txt", b"x")]
)
@pytest.mark.parametrize("question", ["What is in this folder?", "What is in blob.bin?", "Which file is the largest?"])
async def test_any_file_is_named(model: DemoModel, tmp_path: Path, name: str, content: bytes, question: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert f"`{name}`" in (await converse(model, tmp_path, question))[-1].text


async def test_an_empty_folder(model: DemoModel, tmp_path: Path) -> None:
    assert "I see no files" in (await converse(model, tmp_path, "Where is the oven?"))[-1].text


async def test_of_a_list_that_was_cut_it_says_so(model: DemoModel, tmp_path: Path) -> None:
    for number in range(201):
        (tmp_path / f"{number}.txt").write_text("pears\n" * number)
    largest = (await converse(model, tmp_path, "Which file is the largest?"))[-1].text
    assert largest.startswith("The largest file of the 200 that are listed is")
    assert "at least 200 files" in (await converse(model, tmp_path, "How many files are there?"))[-1].text


async def test_an_injected_question_is_answered_too(model: DemoModel, folder: Path) -> None:
    messages = await converse(model, folder, "What happens with a refund?", "And which file is the largest?")
    assert [call.name for message in messages for call in message.tool_calls] == [*TOOLS]
    assert [call.id for message in messages for call in message.tool_calls] == ["call_1", "call_2", "call_3", "call_4"]
    answer = messages[-1].text
    assert "> A refund is paid within fourteen days." in answer
    assert "You also asked “And which file is the largest?” The largest file is `src/orders.py`" in answer


async def test_the_next_turn_uses_the_results_of_the_last(model: DemoModel, folder: Path) -> None:
    messages = await converse(model, folder, "What is this project about?")
    _, completed = await stream_reply(model, [*messages, Message.user("How many files are there?")])
    reply = Message(role="assistant", parts=completed.parts)
    assert not reply.tool_calls
    assert reply.text == messages[-1].text


async def test_without_tools_it_answers_from_what_it_has(model: DemoModel, folder: Path) -> None:
    messages = await converse(model, folder, "Where is OVEN_LIMIT defined?")
    _, completed = await stream_reply(model, messages[:5], tools=())
    assert "`src/oven.py`, line 1:\n\n> OVEN_LIMIT = 250" in Message(role="assistant", parts=completed.parts).text
    _, completed = await stream_reply(model, messages[:1], tools=())
    assert "I see no files" in Message(role="assistant", parts=completed.parts).text


async def test_it_streams_with_usage_and_counts_requests() -> None:
    with DemoModel() as model:
        deltas, completed = await stream_reply(model, [Message.user("hello")])
        assert await fetch(model.base_url.replace("/v1", "/stats")) == (200, {"requests": 1})
    assert len([delta for delta in deltas if isinstance(delta, TextDelta)]) > 3
    assert completed.usage.input_tokens > 0
    assert completed.usage.output_tokens > 3
    assert completed.model == "demo"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": 3}', b'{"messages": [3]}', b'{"messages": [{}]}'])
async def test_a_bad_request_is_refused(model: DemoModel, body: bytes) -> None:
    status, answer = await fetch(f"{model.base_url}/chat/completions", body)
    assert (status, list(answer)) == (400, ["error"])


async def test_an_unknown_path_is_refused(model: DemoModel) -> None:
    assert (await fetch(f"{model.base_url}/nothing"))[0] == 404
    assert (await fetch(f"{model.base_url}/nothing", b"{}"))[0] == 404


async def fetch(url: str, body: bytes | None = None) -> tuple[int, dict[str, object]]:
    def send() -> tuple[int, dict[str, object]]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as response:  # noqa: S310 - loopback
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return await asyncio.to_thread(send)


async def test_a_client_that_hangs_up_is_no_error(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with DemoModel(delay=0.01) as model:
        provider = OpenAIChat(base_url=model.base_url, api_key="none")
        async for _ in provider.stream(ModelRequest("demo", [Message.user("hello")])):
            break
        await provider.aclose()
        await stream_reply(model, [Message.user("hello")])
    assert capfd.readouterr().err == ""
