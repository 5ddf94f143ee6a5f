"""A client of OpenAI's API loses its replica and its worker, and ends with what the transcript has at another."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.support.engine import Engine
from tests.support.web import Service, serve
from tests.web.test_openai_items import StrictReader

LOST = (openai.APIConnectionError, httpx.HTTPError)


def connect(service: Service) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="ada", max_retries=0, timeout=120)


async def read_until_cut(stream: Any, reader: StrictReader, service: Service, kind: str) -> None:
    """Read until the first frame of that type, and then lose the replica."""
    with suppress(*LOST):
        async for event in stream:
            reader.take(event.to_dict(mode="json"))
            if event.type == kind:
                await service.kill()
    assert reader.numbers


@pytest.mark.server
@pytest.mark.slow
async def test_a_reply_outlives_the_replica_and_the_worker(engine: Engine) -> None:
    go = engine.folder / "go"
    worker = await engine.process("streaming", TEST_GO=str(go))
    reader, said, key = StrictReader(), "", {"Idempotency-Key": "k-1"}
    chat: Any = {"model": "slow", "messages": [{"role": "user", "content": "go"}], "stream": True}
    with suppress(BaseExceptionGroup):  # the connections of a lost replica
        async with serve(await engine.client()) as first, connect(first) as ai:
            chunks = await ai.chat.completions.create(**chat, extra_headers=key)
            async for chunk in chunks:
                said += chunk.choices[0].delta.content or ""
                if said:
                    break
            stream = await ai.responses.create(model="slow", input="go", stream=True)
            await read_until_cut(stream, reader, first, "response.output_text.delta")
    assert said == "Half "
    assert reader.texts() == ["Half "]
    await worker.kill()
    await engine.process("streaming", TEST_GO=str(go))
    go.touch()
    async with serve(await engine.client()) as second, connect(second) as ai:
        async for event in await ai.responses.retrieve(reader.id, stream=True, starting_after=reader.numbers[-1]):
            reader.take(event.to_dict(mode="json"))
        said = ""
        async for chunk in await ai.chat.completions.create(**chat, extra_headers=key):
            said += chunk.choices[0].delta.content or ""
        whole = await ai.responses.retrieve(reader.id)
    client, session = await engine.client(), reader.final["conversation"]["id"]
    messages = await client.run(session).transcript()
    assert reader.texts() == [messages[-1].text] == ["Half whole."]
    assert said == whole.output_text == "Half whole."


@pytest.mark.server
@pytest.mark.slow
async def test_an_approval_outlives_the_replica_and_the_worker(engine: Engine) -> None:
    worker = await engine.process("approving")
    asking, answering = StrictReader(), StrictReader()
    with suppress(BaseExceptionGroup):
        async with serve(await engine.client()) as first, connect(first) as ai:
            stream = await ai.responses.create(model="paying", input="ada bob", stream=True)
            await read_until_cut(stream, asking, first, "response.output_item.done")
    await worker.kill()
    await engine.process("approving")
    async with serve(await engine.client()) as second, connect(second) as ai:
        stream = await ai.responses.retrieve(asking.id, stream=True, starting_after=asking.numbers[-1])
        async for event in stream:
            asking.take(event.to_dict(mode="json"))
    ada, bob = asking.final["output"]
    assert [item["arguments"] for item in (ada, bob)] == ['{"to":"ada"}', '{"to":"bob"}']
    answers: list[Any] = [
        {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": item is ada}
        for item in (ada, bob)
    ]
    begin: Any = {"model": "paying", "input": answers, "previous_response_id": asking.id, "stream": True}
    with suppress(BaseExceptionGroup):
        async with serve(await engine.client()) as third, connect(third) as ai:
            await read_until_cut(await ai.responses.create(**begin), answering, third, "response.in_progress")
    async with serve(await engine.client()) as fourth, connect(fourth) as ai:
        repeated = await ai.responses.create(**begin | {"stream": False})
        assert repeated.id == answering.id
        stream = await ai.responses.retrieve(answering.id, stream=True, starting_after=answering.numbers[-1])
        async for event in stream:
            answering.take(event.to_dict(mode="json"))
    assert answering.texts() == ["Done."] == [repeated.output_text]
    assert [item.to_dict(mode="json") for item in repeated.output] == answering.final["output"]
    messages = await (await engine.client()).run(answering.final["conversation"]["id"]).transcript()
    assert messages[-1].text == "Done."
    assert engine.ledger.counts("pay") == {"ada": 1}
