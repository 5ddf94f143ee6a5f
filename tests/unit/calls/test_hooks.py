"""The hook stage: what hooks are given is the call's own."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, HookSet, hook, remote_tool, tool
from perdure.calls.model_hooks import ModelHookStage
from perdure.errors import HookError
from perdure.hooks import Hook
from perdure.ports.model import ModelRequest
from perdure.testing import call, scripted
from perdure.types.messages import Message
from tests.unit.calls.build import Inner, model_call, request_call


async def asked(agent: Agent, *hooks: Hook) -> ModelRequest:
    """What the model is asked behind ``hooks``."""
    asking = ModelRequest(
        model="gpt-5",
        messages=[Message.user("hi")],
        settings=agent.settings,
        provider_options=agent.provider_options,
    )

    async def run(name: str, fn: Any, *args: Any) -> Any:
        return fn(*args)

    stage = ModelHookStage(run, HookSet(hooks))  # type: ignore[arg-type]
    inner = Inner(Message.assistant("Done."))
    await stage.request(request_call(model_call(), agent, asking), inner)
    request: ModelRequest = inner.calls[0].request
    return request


async def test_what_a_hook_does_to_settings_in_place_is_done_to_this_call_alone() -> None:
    @hook("before_llm_call")
    def colder(request: ModelRequest) -> None:
        request.settings["temperature"] = 0.0  # type: ignore[index]  # it says that it is not to be changed
        request.provider_options["thinking"]["budget"] = 1  # type: ignore[index]

    agent = Agent("a", "openai:gpt-5", settings={"top_p": 0.5}, provider_options={"thinking": {"budget": 9}})
    request = await asked(agent, colder)
    assert request.settings["temperature"] == 0.0
    assert (agent.settings, agent.provider_options) == ({"top_p": 0.5}, {"thinking": {"budget": 9}})


async def test_messages_are_changed_by_what_a_hook_returns_which_is_checked() -> None:
    @hook("before_llm_call")
    def adding(request: Any) -> None:
        request.messages.append("more")

    with pytest.raises(HookError, match="adding"):
        await asked(Agent("a", "openai:gpt-5"), adding)


async def ran(agent: Agent, **arguments: Any) -> dict[str, Any]:
    """What the tool of ``agent`` is called with."""
    given: list[dict[str, Any]] = []

    @tool(name="far")
    def stand_in(amount: Any, force: Any) -> None:
        """In its place."""
        given.append({"amount": amount, "force": force})

    async with scripted(agent, [call("far", **arguments), "Done."], tools=[stand_in]) as s:
        await (await s.client.start(agent.name, "Go.")).result()
    (one,) = given
    return one


@pytest.mark.parametrize("returns", [False, True])
async def test_what_is_equal_in_python_may_be_another_value(returns: bool) -> None:
    @hook("before_tool_call")
    def exact(arguments: dict[str, Any]) -> Any:
        arguments |= {"amount": 3.0, "force": True}
        return dict(arguments) if returns else None

    agent = Agent("a", "openai:gpt-5", tools=[remote_tool("far", {}, "far")], hooks=[exact])
    given = await ran(agent, amount=3, force=1)
    assert repr(given) == "{'amount': 3.0, 'force': True}"


async def test_what_a_hook_that_fails_has_changed_in_place_no_other_hook_is_taken_to_have_changed() -> None:
    seen: list[Any] = []

    @hook("before_tool_call", on_error="log")
    def fails(arguments: dict[str, Any]) -> None:
        arguments["amount"] = 99
        raise ValueError("no")

    @hook("before_tool_call")
    def looks(arguments: dict[str, Any]) -> None:
        seen.append(arguments["amount"])

    agent = Agent("a", "openai:gpt-5", tools=[remote_tool("far", {}, "far")], hooks=[fails, looks])
    assert (await ran(agent, amount=3, force=False), seen) == ({"amount": 3, "force": False}, [3])
