"""``override=``: what one run changes of its agent, checked where the code is, in force for every call of the run."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from perdure import Agent, register_provider, tool
from perdure.errors import DefinitionError, MaxIterationsError, SettingsError
from perdure.providers import registry
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import WORKFLOW_TYPE, Override
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.scripts import calls_then


@tool
async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


@tool
async def pay(amount: int) -> str:
    """Pay."""
    raise AssertionError("it is not offered")


def agent(provider: Any, **more: Any) -> Agent:
    return Agent("worker", provider, instructions="Work.", tools=[search, pay], **more)


async def test_it_holds_for_every_call_of_the_run_and_for_no_other(engine: Engine) -> None:
    def reply(request: Any) -> Any:
        if request.messages[-1].role == "user":
            return [call("search", query="x"), call("pay", amount=3)]
        return "Done."

    provider = ScriptedProvider(reply)
    override = Override(tools=("search",), instructions="Look.", settings={"temperature": 0})
    one = agent(provider, settings={"temperature": 1, "seed": 3})
    async with engine.served(one) as client:
        response = await (await client.start(one, "Go.", override=override)).result()
        assert [(asked.system, dict(asked.settings)) for asked in provider.requests] == [
            ("Look.", {"temperature": 0, "seed": 3})
        ] * 2
        assert [[spec.name for spec in asked.tools] for asked in provider.requests] == [["search"]] * 2
        found, refused = results(response.messages)
        assert found == "found x"
        assert refused.startswith("tool not found: pay")
        provider.requests.clear()
        await (await client.start(one, "Go.", override={"max_iterations": 7})).result()
    assert {asked.system for asked in provider.requests} == {"Work."}
    assert [spec.name for spec in provider.requests[0].tools] == ["search", "pay"]


async def test_another_model_for_an_agent_with_a_provider_of_its_own(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_providers", {})
    theirs, ours = ScriptedProvider(["theirs"]), ScriptedProvider(["ours"])
    register_provider("other", theirs)
    async with engine.served(agent(ours)) as client:
        response = await (await client.start("worker", "Go.", override={"model": "other:large"})).result()
    assert (response.content, response.messages[-1].model) == ("theirs", "large")
    assert ours.requests == []


async def test_limits_of_the_run(engine: Engine) -> None:
    provider = ScriptedProvider(calls_then(9, "search", query="x"))
    async with engine.served(agent(provider)) as client:
        run = await client.start("worker", "Go.", override={"max_iterations": 2, "on_limit": "error"})
        with pytest.raises(MaxIterationsError, match="2"):
            await run.result()
    assert len(provider.requests) == 2


@pytest.mark.parametrize(
    ("override", "error", "said"),
    [
        ({"tools": ["fly"]}, DefinitionError, "tools names 'fly'"),
        ({"model": "opnai:x"}, DefinitionError, "opnai"),
    ],
)
async def test_one_that_does_not_fit_is_refused_at_once_or_by_the_worker(
    engine: Engine, override: Any, error: type[Exception], said: str
) -> None:
    provider = ScriptedProvider(["never asked"])
    one = agent(provider)
    async with engine.served(one) as client:
        with pytest.raises(error, match=said):
            await client.start(one, "Go.", override=override, id=f"o-{uuid.uuid4().hex}")
        start = {"agent": "worker", "message": "Go.", "override": override}
        raw = await client.temporal.start_workflow(
            WORKFLOW_TYPE, start, id=f"o-{uuid.uuid4().hex}", task_queue=engine.task_queue
        )
        with pytest.raises(error, match=said):
            await client.run(raw.id).result()
    assert provider.requests == []


async def test_a_setting_that_the_model_lacks(engine: Engine) -> None:
    async with engine.served() as client:
        with pytest.raises(SettingsError, match="'top_k'"):
            await client.start(Agent("worker", "openai:gpt-5"), "Go.", override={"settings": {"top_k": 3}})
