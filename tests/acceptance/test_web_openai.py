"""A client of OpenAI's API loses its replica and its worker, and ends with what the transcript has at another.

Both are real processes, ended by SIGKILL.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.support.engine import Engine
from tests.support.replicas import Replicas, replicas_of
from tests.web.test_openai_items import StrictReader

pytestmark = [pytest.mark.server, pytest.mark.slow]

LOST = (openai.APIConnectionError, httpx.HTTPError)
"""What a client of a lost replica raises."""


async def connect(replicas: Replicas) -> AsyncOpenAI:
    """A client of a new replica."""
    return AsyncOpenAI(base_url=f"{await replicas.start()}/openai/v1", api_key="ada", max_retries=0, timeout=120)


async def read_until(stream: Any, reader: StrictReader, kind: str) -> None:
    """Read until the first frame of that type."""
    async for event in stream:
        reader.take(event.to_dict(mode="json"))
        if event.type == kind:
            return


async def read_rest(ai: AsyncOpenAI, reader: StrictReader) -> None:
    """Continue behind the frame that the reader had last."""
    async for event in await ai.responses.retrieve(reader.id, stream=True, starting_after=reader.numbers[-1]):
        reader.take(event.to_dict(mode="json"))


async def test_a_reply_outlives_the_replica_and_the_worker(engine: Engine) -> None:
    go = engine.folder / "go"
    worker = await engine.process("streaming", TEST_GO=str(go))
    reader, said, key = StrictReader(), "", {"Idempotency-Key": "k-1"}
    chat: Any = {"model": "slow", "messages": [{"role": "user", "content": "go"}], "stream": True}
    async with replicas_of(engine) as replicas:
        async with await connect(replicas) as ai:
            chunks = await ai.chat.completions.create(**chat, extra_headers=key)
            async for chunk in chunks:
                said += chunk.choices[0].delta.content or ""
                if said:
                    break
            stream = await ai.responses.create(model="slow", input="go", stream=True)
            await read_until(stream, reader, "response.output_text.delta")
            await asyncio.gather(replicas.kill(), worker.kill())
            with pytest.raises(LOST):
                await read_until(stream, reader, "response.completed")
            with pytest.raises(LOST):
                [chunk async for chunk in chunks]
        assert (said, reader.texts()) == ("Half ", ["Half "])
        go.touch()
        await engine.process("streaming", TEST_GO=str(go))
        async with await connect(replicas) as ai:
            await read_rest(ai, reader)
            said = ""
            async for chunk in await ai.chat.completions.create(**chat, extra_headers=key):
                said += chunk.choices[0].delta.content or ""
            whole = await ai.responses.retrieve(reader.id)
    client, session = await engine.client(), reader.final["conversation"]["id"]
    messages = await client.run(session).transcript()
    assert reader.texts() == [messages[-1].text] == ["Half whole."]
    assert said == whole.output_text == "Half whole."


async def test_an_approval_outlives_the_replica_and_the_worker(engine: Engine) -> None:
    worker = await engine.process("approving")
    asking, answering = StrictReader(), StrictReader()
    async with replicas_of(engine) as replicas:
        async with await connect(replicas) as ai:
            stream = await ai.responses.create(model="paying", input="ada bob", stream=True)
            await read_until(stream, asking, "response.output_item.done")
            await asyncio.gather(replicas.kill(), worker.kill())
        worker = await engine.process("approving")
        async with await connect(replicas) as ai:
            await read_rest(ai, asking)
            ada, bob = asking.final["output"]
            assert [item["arguments"] for item in (ada, bob)] == ['{"to":"ada"}', '{"to":"bob"}']
            answers: list[Any] = [
                {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": item is ada}
                for item in (ada, bob)
            ]
            begin: Any = {"model": "paying", "input": answers, "previous_response_id": asking.id}
            await read_until(await ai.responses.create(**begin, stream=True), answering, "response.in_progress")
            await asyncio.gather(replicas.kill(), worker.kill())
        await engine.process("approving")
        async with await connect(replicas) as ai:
            repeated = await ai.responses.create(**begin)
            assert repeated.id == answering.id
            await read_rest(ai, answering)
    assert answering.texts() == ["Done."] == [repeated.output_text]
    assert [item.to_dict(mode="json") for item in repeated.output] == answering.final["output"]
    messages = await (await engine.client()).run(answering.final["conversation"]["id"]).transcript()
    assert messages[-1].text == "Done."
    assert set(engine.ledger.counts("pay")) == {"ada"}  # an idempotent tool may be called again
