"""Messages that are sent while the conversation, or the namespace, changes."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from temporalio.service import RPCStatusCode

from perdure import Agent
from perdure.testing import ScriptedProvider
from perdure.testing.fake_service import InProcessService, build_rpc_error
from tests.support.engine import Engine


async def test_a_refused_attempt_leaves_no_unread_error_behind(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK keeps the error of a failed start in a future, and asyncio reports a future whose error is never read."""
    deliver, attempts = InProcessService._on_execute_multi_operation, []
    unread: list[Any] = []

    async def refuse_first(service: InProcessService, request: Any) -> Any:
        attempts.append(request)
        if len(attempts) == 1:
            raise build_rpc_error(RPCStatusCode.INVALID_ARGUMENT, "search attribute PerdureAgent is not defined")
        return await deliver(service, request)

    monkeypatch.setattr(InProcessService, "_on_execute_multi_operation", refuse_first)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))
    async with engine.served(Agent("desk", ScriptedProvider(["Done."]))) as client:
        assert (await (await client.send("desk", "Go.", id="s")).result()).content == "Done."
        gc.collect()
    assert len(attempts) == 2
    assert unread == []
