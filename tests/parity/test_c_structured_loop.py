"""PARITY.md, part C: what a structured agentic loop does, durably."""

from __future__ import annotations

import pytest

from perdure import Agent, tool
from perdure.providers.openai_chat import OpenAIChat
from perdure.testing import ScriptedProvider, call
from tests.servers.chat_wire import Call, error
from tests.servers.openai_server import OpenAIServer
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.scripts import calls_then

pytestmark = pytest.mark.server


@tool
def note(what: str) -> str:
    """Note something."""
    return f"noted {what}"


async def test_c3_one_model_call_or_a_loop(engine: Engine) -> None:
    once = Agent("once", ScriptedProvider([call("note", what="a")]), tools=[note], max_iterations=1, on_limit="return")
    loop = Agent("loop", ScriptedProvider(calls_then(4, "note", what="{n}")), tools=[note], max_iterations=5)
    async with engine.served(once, loop) as client:
        single = await (await client.start("once", "Go.")).result()
        looped = await (await client.start("loop", "Go.")).result()
    assert (single.calls, results(single.messages), single.finish_reason) == (1, ["noted a"], "limit")
    assert not single.finish_called
    assert (looped.calls, looped.content, looped.finish_reason) == (5, "Done.", "stop")


async def test_c10_api_errors_are_retried_and_tool_errors_are_told(engine: Engine) -> None:
    replies = iter([error(429, "Slow down."), Call("note", {"what": 7}), error(500, "Oops."), "Done."])
    async with OpenAIServer(lambda _: next(replies)) as server:
        provider = OpenAIChat(base_url=server.base_url, api_key="test")
        agent = Agent("caller", provider, tools=[note])
        async with engine.served(agent) as client:
            response = await (await client.start("caller", "Go.")).result()
        await provider.aclose()
    assert (response.content, response.calls, server.stats.requests) == ("Done.", 2, 4)
    assert results(response.messages)[0].startswith("the arguments of note are not valid")
