"""Images and files in messages and results: bytes in the store, references in the transcript, little in history."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import pytest

from perdure import Agent, Client, File, Message, Run, tool
from perdure.errors import InvalidInputError, TranscriptUnavailableError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import FilePart, iter_file_parts
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
LARGE = bytes(range(256)) * (80 * 1024)  # 20 MB
CAT, FILM = File(PNG, name="cat.png"), File(LARGE, "video/mp4", "film.mp4")
HISTORY = 32 * 1024


def seen(request: ModelRequest) -> str:
    """What the model has of each file: its name, and its bytes where they are given."""
    said = []
    for part in iter_file_parts(request.messages):
        body = request.files[part.blob.hash] if part.blob else b""
        said.append(f"{part.name}:{len(body)}" if body in (PNG, LARGE, b"") else f"{part.name}: not its bytes")
    return " ".join(said)


def looker(*tools: Any) -> Agent:
    return Agent("looker", ScriptedProvider(seen), tools=tools)


async def bytes_of(run: Run, messages: Any) -> list[bytes]:
    """The bytes of every file, by way of the reference that the transcript has."""
    parts = list(iter_file_parts(messages))
    assert all(part.blob is not None and part.data is None for part in parts)
    return [await run.file(part) for part in parts]


async def test_files_of_a_start_and_of_messages_come_to_the_model_and_back(engine: Engine) -> None:
    async with engine.served(looker()) as client:
        run = await client.start("looker", ["What are these?", CAT, FILM], mode="session")
        first = await run.turn().result()
        await run.inject([CAT], id="m2")
        second = await (await run.send(["And this?", FILM])).result()
        await run.interrupt([File.at("https://example.com/a.png", name="far.png"), "look"])
        await run.close()
        last = await run.result()
    assert first.content == "cat.png:10248 film.mp4:20971520"
    assert second.content.startswith("cat.png:10248 film.mp4:20971520 cat.png:10248")
    assert last.content.endswith("film.mp4:20971520 far.png:0")
    asked = [message for message in second.messages if message.role == "user"]
    assert asked[0].text == "What are these?"
    assert await bytes_of(run, asked) == [PNG, LARGE, PNG, LARGE]


async def test_a_tool_gives_files_as_an_activity_and_inline(engine: Engine) -> None:
    @tool
    async def draw() -> list[Any]:
        """Draw a cat."""
        return ["Here it is:", CAT, {"grey": True}]

    @tool(inline=True)
    def film() -> File:
        """Film a cat."""
        return FILM

    def reply(request: ModelRequest) -> Any:
        return [[call("draw"), call("film")], seen(request)][replied(request)]

    agent = Agent("looker", ScriptedProvider(reply), tools=[draw, film])
    async with engine.served(agent) as client:
        run = await client.start("looker", "Go.")
        response = await run.result()
    assert response.content == "cat.png:10248 film.mp4:20971520"
    (results,) = [message.tool_results for message in response.messages if message.tool_results]
    assert [(result.content, result.is_error) for result in results] == [
        ('Here it is:\n{"grey":true}', False),
        ("", False),
    ]
    assert await bytes_of(run, response.messages) == [PNG, LARGE]


async def test_a_conversation_with_files_goes_on_elsewhere(engine: Engine) -> None:
    """As history: by reference, by its messages, by hand, and as a flat session."""
    async with engine.served(looker()) as client:
        first = await (await client.start("looker", ["Look.", CAT])).result()
        by_hand = [Message.user(["Look.", CAT]), Message.assistant("I see.")]
        for history in (first, first.messages, by_hand):
            again = await (await client.start("looker", "Again.", history=history)).result()
            assert again.content == "cat.png:10248"
        strange = FilePart.model_validate({"media_type": "image/png", "blob": {"hash": "0" * 64, "size": 1}})
        with pytest.raises(InvalidInputError, match="history: one of its files"):
            await client.start("looker", "Again.", history=[Message(role="user", parts=(strange,))])
        bad = FilePart(media_type="image/png", data="?")
        with pytest.raises(InvalidInputError, match="history: data is not base64"):
            await client.start("looker", "Again.", history=[Message(role="user", parts=(bad,))])


async def test_a_file_that_comes_during_a_call_is_seen_by_the_next(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate()
        return "done"

    provider = ScriptedProvider(lambda request: call("wait") if replied(request) == 0 else seen(request))
    async with engine.served(Agent("looker", provider, tools=[wait])) as client:
        run = await client.start("looker", "Go.")
        await eventually(lambda: gate.entered)
        await run.inject(["This one.", CAT])
        gate.open()
        assert (await run.result()).content == "cat.png:10248"


async def test_a_client_without_a_store_can_send_what_needs_none(engine: Engine) -> None:
    async with engine.served(looker()):
        client = await engine.client(store=False)
        far = File.at("https://example.com/a.png", name="far.png")
        run = await client.start("looker", ["What is it?", far])
        assert (await run.result()).content == "far.png:0"
        with pytest.raises(InvalidInputError, match=r"this client has none\.\n.*store_url.*File.at"):
            await client.start("looker", [CAT])
        with pytest.raises(TranscriptUnavailableError):
            await run.file(FilePart.model_validate({"media_type": "image/png", "blob": {"hash": "0" * 64, "size": 1}}))
        with pytest.raises(InvalidInputError, match=r"it is at https://example.com/a.png"):
            await run.file(far.part)
        assert await client.file(CAT.part) == PNG


@pytest.mark.server
async def test_a_plain_client_sends_bytes_in_its_message(engine: Engine) -> None:
    """JSON through Temporal's own client, as any language can."""
    data = base64.b64encode(PNG).decode()
    file = {"type": "file", "media_type": "image/png", "name": "cat.png", "data": data}
    content = [{"type": "text", "text": "What is it?"}, file]
    async with engine.served(looker()) as client:
        run = await plain_start(client, {"agent": "looker", "mode": "session", "message": {"content": content}})
        first = await run.turn().result()
        taken = await run.handle.execute_update("send_message", {"content": [file]})
        second = await run.turn(taken["task_id"]).result()
        await run.handle.signal("inject_user_message", {"content": [{"type": "file", "media_type": "image/png"}]})
        refused = (await run.handle.query("status"))["refused"]
        await run.close()
        await run.result()
    assert (first.content, second.content) == ("cat.png:10248", "cat.png:10248 cat.png:10248")
    assert await bytes_of(run, second.messages) == [PNG, PNG]
    assert refused[0].startswith("content.0: a file has exactly one of blob, url and data, this one has none")


async def plain_start(client: Client, start: dict[str, Any]) -> Run:
    run = client.run(f"plain-{uuid.uuid4().hex}")
    await client.temporal.start_workflow("AgentWorkflow", start, id=run.id, task_queue=client.task_queue)
    return run


@pytest.mark.server
async def test_files_stay_out_of_history_however_many_iterations(engine: Engine) -> None:
    @tool
    async def draw(n: str) -> File:
        """Draw a cat."""
        return File(PNG + n.encode(), name=f"{n}.png")

    @tool(inline=True)
    def film() -> File:
        """Film a cat."""
        return FILM

    replies = [*(call("draw", n=str(n)) for n in range(5)), call("film"), "Done."]
    async with engine.served(Agent("painter", ScriptedProvider(replies), tools=[draw, film])) as client:
        run = await client.start("painter", ["Go on from this.", CAT, FILM])
        response = await run.result()
        described = await run.handle.describe()
    assert 0 < described.raw_description.workflow_execution_info.history_size_bytes < HISTORY
    drawn = [PNG + str(n).encode() for n in range(5)]
    assert await bytes_of(run, response.messages) == [PNG, LARGE, *drawn, LARGE]
