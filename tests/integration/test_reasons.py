"""What a client is told of a run from outside: through a codec, of a plain start, after the end, without a server."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes

from perdure import Agent, Client
from perdure.client.progress import find_pending_reason
from perdure.errors import RateLimitError, RunCancelledError, ServerUnreachableError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider
from tests.support.codec import Backwards
from tests.support.engine import Engine
from tests.support.faults import locked
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@pytest.fixture
async def encoded(engine: Engine) -> Engine:
    """The engine with a codec on everything, failures too."""
    converter = dataclasses.replace(
        DataConverter.default,
        payload_codec=Backwards(),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )
    engine._temporal = await TemporalClient.connect(engine.address, data_converter=converter)
    return engine


async def reason(run: Any, part: str) -> str:
    """The status's reason once it has ``part``."""

    async def look() -> str | None:
        said = (await run.status()).reason or ""
        return said if part in said else None

    found = await eventually(look, what=part)
    assert found is not None
    return found


async def test_a_failure_is_decoded(encoded: Engine) -> None:
    provider = ScriptedProvider(lambda _: RateLimitError("slow down", retry_after=60))
    async with encoded.served(Agent("a", provider)) as client:
        run = await client.start("a", "go")
        assert "RateLimitError: slow down" in await reason(run, "perdure.model, attempt ")
        blind = Client(await TemporalClient.connect(encoded.address), task_queue=encoded.task_queue)
        assert "Encoded failure" in str(await find_pending_reason(blind, await blind.run(run.id).handle.describe()))
        await run.cancel()


async def test_the_present_wait_is_decoded_and_hides_no_earlier_failure(encoded: Engine) -> None:
    """The attempt that waits for the store now says more than the one that failed before it."""
    gate = Gate()
    failed = False

    async def reply(request: ModelRequest) -> Any:
        nonlocal failed
        if not failed:
            failed = True
            return RateLimitError("slow down", retry_after=0.1)
        await gate()
        return "done"

    async with encoded.served(Agent("a", ScriptedProvider(reply))) as client:
        run = await client.start("a", "go")
        await eventually(lambda: gate.entered)
        await reason(run, "slow down")
        with locked(encoded.store_path):
            gate.open()
            said = await reason(run, "perdure.model waits: ")
        assert "locked" in said
        assert (await run.result()).content == "done"


async def test_a_run_that_a_plain_client_started_is_listed_with_its_agent(engine: Engine) -> None:
    name = f"plain-{uuid.uuid4().hex[:8]}"
    async with engine.served(Agent(name, ScriptedProvider(["hello"]))) as client:
        handle = await client.temporal.start_workflow(
            "AgentWorkflow", {"agent": name, "message": "hi"}, id=f"{name}-1", task_queue=engine.task_queue
        )
        await handle.result()

        async def listed() -> bool:  # Temporal's list may show it as running for a moment more
            found = await client.list(agent=name)
            return [(run.id, run.agent, run.status) for run in found] == [(handle.id, name, "completed")]

        await eventually(listed, what="the ended run in Temporal's list")


async def test_the_status_of_a_run_that_has_ended_says_what_it_took(engine: Engine) -> None:
    async with engine.served(Agent("a", ScriptedProvider(["hello"]))) as client:
        response = await (await client.start("a", "hi")).result()
        plain = await engine.client(store=False)
        for one in (client, plain):
            status = await one.run(response.context_id).status()
            assert (status.state, status.usage, status.cost_usd) == ("completed", response.usage, response.cost_usd)
            assert (status.head, status.store_id, status.iteration) == (response.head, response.store_id, 1)
        assert status.usage.total_tokens > 0
        cancelled = await client.start("nobody-serves-this", "hi")
        await cancelled.cancel()
        with pytest.raises(RunCancelledError):
            await cancelled.result()
        assert (await cancelled.status()).state == "cancelled"


@asynccontextmanager
async def forwarding(address: str) -> AsyncIterator[tuple[str, asyncio.Server]]:
    """A port of its own before the server, which can be taken away."""
    host, _, port = address.rpartition(":")
    writers = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        writers.extend([writer, back])
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", server
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


async def test_without_a_server_the_status_says_so_in_seconds(engine: Engine) -> None:
    """The SDK alone would try for longer, and say something else."""
    async with forwarding(engine.address) as (address, _):
        client = Client(await TemporalClient.connect(address))
    run = client.run("any")

    async def asked(ask: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(ServerUnreachableError, match="does not answer: nothing for 5 s"):
            await ask()

    await asyncio.gather(asked(run.status), asked(run.cancel))
