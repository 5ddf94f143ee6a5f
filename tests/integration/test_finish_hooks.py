"""Hooks on typed answers: what they make of one is one too, or the run says which hook did it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, field_serializer

from perdure import Agent, hook
from perdure.errors import HookError, ParseError
from perdure.testing import ScriptedProvider, finish
from tests.support.engine import Engine


class City(BaseModel):
    name: str
    people: int = 0


async def test_a_typed_answer_may_be_changed_to_another_and_the_hooks_behind_see_it(engine: Engine) -> None:
    seen: list[Any] = []

    @hook("on_finish")
    def grow(output: City) -> str:
        return City(name=output.name.upper(), people=5).model_dump_json()

    @hook("on_finish")
    def watch(output: Any) -> None:
        seen.append(output)

    agent = Agent("cities", ScriptedProvider([finish(name="Oslo")]), output=City, hooks=[grow, watch])
    async with engine.served(agent) as client:
        response = await (await client.start(agent, "Where?")).result()
    assert response.output == City(name="OSLO", people=5)
    assert seen == [City(name="OSLO", people=5)]


@pytest.mark.parametrize("said", ["Oslo.", '{"people": 5}'])
async def test_a_hook_that_makes_a_typed_answer_none_is_named(engine: Engine, said: str) -> None:
    @hook("on_finish")
    def spoil() -> str:
        return said

    agent = Agent("cities", ScriptedProvider([finish(name="Oslo")]), output=City, hooks=[spoil])
    async with engine.served(agent) as client:
        with pytest.raises(HookError, match=r"the hook spoil \(on_finish\) failed: .* which this value does not fit"):
            await (await client.start(agent, "Where?")).result()


class Whispered(BaseModel):
    """It is written in another way than it is read."""

    volume: int

    @field_serializer("volume")
    def write(self, volume: int) -> str:
        return "low" if volume < 3 else "high"


async def test_hooks_get_plain_json_of_a_type_that_cannot_read_what_it_writes(engine: Engine) -> None:
    seen: list[Any] = []

    @hook("on_finish")
    def watch(output: Whispered) -> None:
        seen.append(output)

    agent = Agent("whisper", ScriptedProvider([finish(volume=1)]), output=Whispered, hooks=[watch])
    async with engine.served(agent) as client:
        run = await client.start("whisper", "Hush.")
        assert (await run.result()).output == {"volume": "low"}
        with pytest.raises(ParseError, match="the output does not fit the type Whispered"):
            await client.run(run.id, agent).result()
    assert seen == [{"volume": "low"}]


async def test_one_that_is_only_logged_leaves_the_answer(engine: Engine) -> None:
    @hook("on_finish", on_error="log")
    def spoil() -> str:
        return "Oslo."

    agent = Agent("cities", ScriptedProvider([finish(name="Oslo")]), output=City, hooks=[spoil])
    async with engine.served(agent) as client:
        assert (await (await client.start(agent, "Where?")).result()).output == City(name="Oslo")
