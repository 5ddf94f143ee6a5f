"""What Temporal refuses to a client is an error of perdure's, whatever the client reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.service import RPCStatusCode

from perdure import Agent, Client, Run
from perdure.errors import PerdureError, ServerUnreachableError
from perdure.testing import ScriptedProvider
from perdure.testing.fake_service import InProcessService, build_rpc_error
from tests.support.engine import Engine


@pytest.mark.parametrize(
    "read",
    [
        lambda run, _: run.result(),
        lambda run, _: run.send("More."),
        lambda run, _: run.fork("Again."),
        lambda run, _: run.status(),
        lambda run, blind: blind.run(run.id).turn().status(),
        lambda run, blind: blind.run(run.id).turn().result(),
    ],
    ids=["result", "send", "fork", "status", "turn-status", "turn-result"],
)
async def test_a_history_that_temporal_refuses_to_show(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, read: Callable[[Run, Client], Awaitable[Any]]
) -> None:
    async def refuse(*_: Any) -> Any:
        raise build_rpc_error(RPCStatusCode.PERMISSION_DENIED, "not yours")

    async with engine.served(Agent("desk", ScriptedProvider(["Done."]))) as client:
        run = await client.start("desk", "Go.")
        await run.result()
        blind = await engine.client(store=False)
        for rpc in ("get_workflow_execution_history", "query_workflow"):
            monkeypatch.setattr(InProcessService, f"_on_{rpc}", refuse)
        with pytest.raises(PerdureError, match="Temporal refused: not yours"):
            await read(run, blind)


@pytest.mark.parametrize(
    "status",
    [
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.UNKNOWN,  # of a frontend that is killed
        RPCStatusCode.INTERNAL,
        RPCStatusCode.RESOURCE_EXHAUSTED,
    ],
    ids=lambda status: status.name,
)
async def test_a_connection_that_breaks_says_nothing_of_the_run(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, status: RPCStatusCode
) -> None:
    async def break_off(*_: Any) -> Any:
        raise build_rpc_error(status, "transport error")

    async with engine.served(Agent("desk", ScriptedProvider(["Done."]))) as client:
        run = await client.start("desk", "Go.")
        with monkeypatch.context() as patch:
            patch.setattr(InProcessService, "_on_get_workflow_execution_history", break_off)
            with pytest.raises(ServerUnreachableError, match="does not answer: transport error"):
                await run.result()
        assert (await run.result()).content == "Done."
