"""The hook stage: what hooks are given is the call's own."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, HookSet, RunContext, hook
from perdure.errors import HookError
from perdure.hooks import Hook
from perdure.ports import ModelRequest
from perdure.stages.hooks import HookStage
from perdure.types.messages import Message
from tests.unit.stages.build import Inner, model_call


async def asked(agent: Agent, *hooks: Hook) -> ModelRequest:
    """What the model is asked behind ``hooks``."""
    call = model_call()
    call.agent, call.told = agent, RunContext()
    call.request = ModelRequest(
        model="gpt-5",
        messages=[Message.user("hi")],
        settings=agent.settings,
        provider_options=agent.provider_options,
    )

    async def run(name: str, fn: Any, *args: Any) -> Any:
        return fn(*args)

    stage = HookStage(run, lambda _: agent, lambda *_: None, lambda *_: None, HookSet(hooks))  # type: ignore[arg-type,return-value]
    inner = Inner("Done.")
    await stage.model(call, inner)
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
