"""The store's rows of what model calls have used, and of the agents that workers serve."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Client, Veto, hook, tool
from perdure.errors import ParseError, StoreError
from perdure.ports.model import Completed
from perdure.ports.store import AgentRow
from perdure.ports.usage import UsageRow
from perdure.store.sqlite import SqliteStore
from perdure.testing import ScriptedProvider, call, finish
from perdure.types.messages import TextPart, Usage
from perdure.worker import engine as worker_engine
from tests.support.engine import Engine
from tests.support.wait import eventually


async def usage(client: Client, **filters: Any) -> list[UsageRow]:
    """The rows of the store, the first call first."""
    return (await (await client.store()).list_usage(**filters))[::-1]


async def test_each_call_of_a_model_has_a_row(engine: Engine) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "Nothing."

    counted = Usage(input_tokens=100, output_tokens=20, cached_tokens=70, reasoning_tokens=15, cache_write_tokens=5)
    said = Completed((TextPart(text="Done."),), "stop", counted, "gpt-5-2026")
    agent = Agent("desk", ScriptedProvider([call("look"), said]), tools=[look])
    async with engine.served(agent) as client:
        run = await client.start("desk", "Go.")
        response = await run.result()
        first, last = await usage(client)
    assert (last.context_id, last.task_id, last.root) == (run.id, response.task_id, None)
    assert (last.agent, last.tenant, last.user) == ("desk", None, None)
    assert (last.purpose, last.status, last.requests) == ("call", "completed", 1)
    assert (last.provider, last.model) == ("ScriptedProvider", "gpt-5-2026")
    assert {name: getattr(last, name) for name in Usage.model_fields} == dict(counted)
    assert last.milliseconds >= 0
    assert len({first.key, last.key}) == 2
    assert first.created_at <= last.created_at
    assert first.input_tokens + last.input_tokens == response.usage.input_tokens
    assert response.cost_usd is None
    assert last.cost_usd is None, "the price is unknown"


class Answer(BaseModel):
    number: int


async def test_answers_that_do_not_fit_are_paid_for_too(engine: Engine) -> None:
    agent = Agent("typed", ScriptedProvider(lambda _: finish(number="one")), output=Answer, parse_retries=1)
    async with engine.served(agent) as client:
        with pytest.raises(ParseError):
            await (await client.start("typed", "Count.")).result()
        rows = await usage(client)
    assert [row.status for row in rows] == ["rejected", "failed"]


async def test_what_no_model_has_answered_has_no_row(engine: Engine) -> None:
    @hook("before_llm_call")
    def closed() -> Veto:
        return Veto("We are closed.")

    async with engine.served(Agent("shop", ScriptedProvider([]), hooks=[closed])) as client:
        assert (await (await client.start("shop", "Hello?")).result()).content == "We are closed."
        assert await usage(client) == []


async def test_the_same_turn_over_two_tenants_is_told_apart(engine: Engine) -> None:
    async with engine.served(Agent("desk", ScriptedProvider(lambda _: "Done."))) as client:
        for tenant in ("acme", "other", "acme"):
            await (await client.start("desk", "Go.", tenant=tenant)).result()
        assert len(await usage(client, tenant="acme", agent="desk")) == 2
        assert len(await usage(client, tenant="other")) == 1


# --- agents


async def agents_of(client: Client) -> list[tuple[str, dict[str, Any]]]:
    return [(row.name, json.loads(row.body)) for row in await (await client.store()).list_agents()]


async def test_a_worker_records_its_agents_when_it_starts(engine: Engine) -> None:
    helper = Agent("helper", ScriptedProvider([]), description="Helps.")
    async with engine.served(
        Agent("desk", ScriptedProvider([]), instructions="Be kind.", subagents=[helper])
    ) as client:
        [(first, desk), (second, _)] = await agents_of(client)
        assert (first, second) == ("desk", "helper")
        assert desk["instructions"] == [{"text": "Be kind."}]
        assert desk["subagents"] == ["helper"]
        [before, _] = await (await client.store()).list_agents()
    async with engine.served(Agent("desk", ScriptedProvider([]), instructions="Be quick.")) as client:
        assert [name for name, _ in await agents_of(client)] == ["desk", "desk", "helper"]
        [now, old, _] = await (await client.store()).list_agents()
        assert json.loads(now.body)["instructions"] == [{"text": "Be quick."}]
        assert old == before, "it is not served any more"


async def test_a_worker_starts_whose_agents_cannot_be_recorded(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, record = True, SqliteStore.record_agents

    async def fail(self: SqliteStore, agents: list[AgentRow]) -> None:
        if is_full:
            raise StoreError("the disk is full")
        await record(self, agents)

    monkeypatch.setattr(SqliteStore, "record_agents", fail)
    monkeypatch.setattr(worker_engine, "_RECORD_AGAIN_SECONDS", 0.05)
    async with engine.served(Agent("desk", ScriptedProvider(["Done."]))) as client:
        assert (await (await client.start("desk", "Go.")).result()).content == "Done."
        assert await agents_of(client) == []
        is_full = False

        async def is_recorded() -> bool:
            return [name for name, _ in await agents_of(client)] == ["desk"]

        await eventually(is_recorded, what="the definition, once the disk has room")
    assert any("not recorded in the store yet: the disk is full" in line for line in caplog.messages)


async def test_an_agent_without_a_schema_does_not_stop_a_worker(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            from pydantic_core import core_schema

            return core_schema.no_info_plain_validator_function(lambda value: value)

    odd, plain = Agent("odd", ScriptedProvider(["Done."]), context=Odd), Agent("plain", ScriptedProvider([]))
    async with engine.served(odd, plain) as client:
        assert (await (await client.start("odd", "Go.")).result()).content == "Done."
        assert [name for name, _ in await agents_of(client)] == ["plain"]
    assert any("the definition of agent odd is not recorded" in line for line in caplog.messages)
