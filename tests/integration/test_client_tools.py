"""Tools that the client of a turn declares and runs (``client_tools``)."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, ClientTool, deny, hook, tool
from perdure.errors import InvalidInputError
from perdure.testing import ScriptedProvider, call
from tests.integration.test_questions import asked, told
from tests.support.engine import Engine

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
open_page = ClientTool(name="open_page", description="Open a page.", parameters=PATH)


@tool
async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


def offered(provider: ScriptedProvider) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in provider.requests]


async def test_a_declared_tool_is_called_answered_and_gone_with_the_next_turn(engine: Engine) -> None:
    provider = ScriptedProvider([call("open_page", path="/a"), "Opened.", call("open_page", path="/b"), "Sorry."])
    guide = Agent("guide", provider, tools=[search], client_tools=True)
    async with engine.served(guide) as client:
        turn = await client.send(guide, "Go.", id="talk", client_tools=[open_page])
        run = client.run("talk")
        (one,) = await asked(run)
        assert (one.kind, one.tool, one.arguments, one.expires) == ("callback", "open_page", {"path": "/a"}, None)
        await run.answer(one.call_id, {"title": "A"}, by="browser")
        assert (await turn.result()).content == "Opened."
        await (await client.send("guide", "Again.", id="talk")).result()
        results = await told(run)
    assert results[0] == '{"title": "A"}'
    assert results[1].startswith("tool not found: open_page")
    both = ["search", "open_page"]
    assert offered(provider) == [both, both, ["search"], ["search"]]
    assert provider.requests[0].tools[1].parameters == PATH


async def test_arguments_are_checked_hooks_run_and_rules_do_not_apply(engine: Engine) -> None:
    seen: list[str] = []

    @hook("before_tool_call")
    async def see(name: str) -> None:
        seen.append(name)

    provider = ScriptedProvider([[call("open_page", path=1), call("open_page", path="/a")], "Done."])
    guide = Agent("guide", provider, hooks=[see], approvals=[deny("*")], client_tools=True)
    async with engine.served(guide) as client:
        run = await client.start(guide, "Go.", client_tools=[open_page.model_dump()])
        (one,) = await asked(run)
        await run.answer(one.call_id, "opened")
        await run.result()
        wrong, fine = await told(run)
    assert wrong.startswith("the arguments of open_page are not valid")
    assert (fine, seen) == ("opened", ["open_page"])


async def test_the_agents_own_tool_is_never_replaced(engine: Engine) -> None:
    provider = ScriptedProvider([call("search", query="x"), "Done."])
    guide = Agent("guide", provider, tools=[search], client_tools=True)
    shadow = ClientTool(name="search", description="Mine.")
    async with engine.served(guide) as client:
        with pytest.raises(InvalidInputError, match="agent 'guide' has a tool 'search' itself"):
            await client.start(guide, "Go.", client_tools=[shadow])
        run = await client.start("guide", "Go.", client_tools=[shadow, open_page])
        await run.result()
        assert await told(run) == ["found x"]
        started = [event async for event in run.events(wait=False) if event.type == "model.started"]
    assert [event.left_out for event in started] == [("search",)] * 2
    assert offered(provider) == [["search", "open_page"]] * 2
    assert provider.requests[0].tools[0].description == "Search."


async def test_an_override_of_the_agents_tools_leaves_the_clients(engine: Engine) -> None:
    provider = ScriptedProvider(["Done."])
    guide = Agent("guide", provider, tools=[search], client_tools=True)
    async with engine.served(guide) as client:
        run = await client.start(guide, "Go.", client_tools=[open_page], override={"tools": []})
        await run.result()
    assert offered(provider) == [["open_page"]]


async def test_an_agent_that_takes_none_refuses_them(engine: Engine) -> None:
    guide = Agent("guide", ScriptedProvider(["Done."]))
    async with engine.served(guide) as client:
        with pytest.raises(InvalidInputError, match=r"agent 'guide' takes no tools of clients"):
            await client.send(guide, "Go.", id="talk", client_tools=[open_page])
        with pytest.raises(InvalidInputError, match="there is none"):
            await client.start("guide", client_tools=[open_page])
        run = await client.start("guide", "Go.", client_tools=[open_page])
        with pytest.raises(InvalidInputError, match=r"agent 'guide' takes no tools of clients"):
            await run.result()
        assert (await (await client.start(guide, "Go.", client_tools=[])).result()).content == "Done."


async def test_a_client_without_a_store_sends_a_few(engine: Engine) -> None:
    provider = ScriptedProvider([call("open_page", path="/a"), "Done."])
    async with engine.served(Agent("guide", provider, client_tools=True)):
        client = await engine.client(store=False)
        large = ClientTool(name="large", description="x" * 10_000)
        with pytest.raises(InvalidInputError, match="more than 8,192 are sent through the store"):
            await client.start("guide", "Go.", client_tools=[large])
        run = await client.start("guide", "Go.", client_tools=[open_page])
        await asked(run)
        await run.answer(value="opened")
        assert (await run.result()).content == "Done."


async def test_a_fork_has_none_of_them(engine: Engine) -> None:
    provider = ScriptedProvider([call("open_page", path="/a"), "Opened.", "Forked."])
    guide = Agent("guide", provider, client_tools=True)
    async with engine.served(guide) as client:
        run = await client.start(guide, "Go.", client_tools=[open_page])
        await asked(run)
        await run.answer(value="opened")
        await run.result()
        fork = await run.fork("And now?")
        assert (await fork.result()).content == "Forked."
    assert offered(provider) == [["open_page"], ["open_page"], []]


async def test_they_are_kept_over_continue_as_new(engine: Engine) -> None:
    replies: list[Any] = [[call("search", query=str(n)) for n in range(4)], call("open_page", path="/a"), "Done."]
    provider = ScriptedProvider(replies)
    guide = Agent("guide", provider, tools=[search], client_tools=True)
    async with engine.served(guide) as client:
        run = await client.start(guide, "Go.", client_tools=[open_page], max_history_events=15)
        await asked(run)
        await run.answer(value="opened")
        await run.result()
    assert offered(provider) == [["search", "open_page"]] * 3
