"""Typed input: values in, plain JSON on the way, XML for the model; and what does not fit."""

from __future__ import annotations

import dataclasses
import json
import uuid
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from perdure import Agent
from perdure.agent.xml import from_xml
from perdure.errors import InvalidInputError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, finish
from perdure.types.interface import WORKFLOW_TYPE
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


class Person(BaseModel):
    name: str
    tags: list[str] = []


class Question(BaseModel):
    text: str = Field(description="What is asked")
    depth: int = 2
    asker: Person | None = None

    @field_validator("text")
    @classmethod
    def _asks(cls, text: str) -> str:
        if text == "nothing":
            raise ValueError("ask something")
        return text


@dataclasses.dataclass
class Order:
    id: str
    amount: float


SHOWN = """\
<input>
  <text>Why &lt;b&gt; &amp; c?</text>
  <depth>2</depth>
  <asker>
    <name>Ana</name>
    <tags>
      <item>vip</item>
    </tags>
  </asker>
</input>"""


def echo(request: ModelRequest) -> str:
    return users(request.messages)[-1]


def agent(replies: Any = echo, input: Any = Question, **more: Any) -> Agent:
    return Agent("asked", ScriptedProvider(replies), input=input, **more)


@pytest.mark.server
async def test_a_value_is_shown_as_xml(engine: Engine) -> None:
    one = agent()
    values: list[Any] = [
        Question(text="Why <b> & c?", asker=Person(name="Ana", tags=["vip"])),
        {"text": "Why <b> & c?", "asker": {"name": "Ana", "tags": ["vip"]}},
    ]
    schema = Question.model_json_schema()
    async with engine.served(one) as client:
        for value in values:
            run = await client.start(one, value)
            response = await run.result()
            history = json.dumps((await run.handle.fetch_history()).to_json_dict())
            assert response.content == SHOWN
            assert response.messages[0].by == "tests"
            assert "&lt;b" not in history.partition("activityTaskCompleted")[0]
            assert Question.model_validate(from_xml(response.content, schema)) == Question.model_validate(value)


async def test_a_dataclass_and_who_does_not_have_the_agent(engine: Engine) -> None:
    one = agent(input=Order)
    async with engine.served(one) as client:
        ours = await (await client.start(one, Order("7", 3))).result()
        named = await (await client.start("asked", Order("7", 3))).result()
        plain = await (await client.start("asked", {"id": "7", "amount": 3})).result()
    assert ours.content == named.content == plain.content
    assert "<amount>3.0</amount>" in ours.content


@pytest.mark.server
async def test_any_client_sends_plain_json(engine: Engine) -> None:
    async with engine.served(agent()):
        temporal = await engine.temporal()
        run_id = f"plain-{uuid.uuid4().hex}"
        start = {"agent": "asked", "message": {"input": {"text": "Why?"}}, "mode": "session"}
        handle = await temporal.start_workflow(WORKFLOW_TYPE, start, id=run_id, task_queue=engine.task_queue)
        await handle.execute_update("send_message", {"input": {"text": "And then?"}, "id": "2"})
        await handle.signal("close")
        await handle.result()
        client = await engine.client()
        said = users(await client.run(run_id).transcript())
    assert [from_xml(one, Question.model_json_schema())["text"] for one in said] == ["Why?", "And then?"]


async def test_where_the_agent_is_here_what_does_not_fit_is_never_sent(engine: Engine) -> None:
    one = agent([])
    wrong: list[tuple[Any, str]] = [
        ({"text": "Why?", "depth": "deep"}, "depth"),
        ({"depth": 3}, "text"),
        ({"text": "nothing"}, "ask something"),
        (Person(name="Ana"), "input"),
        (7, "input"),
    ]
    async with engine.served(one) as client:
        for value, named in wrong:
            with pytest.raises(InvalidInputError, match=f"the input does not fit agent 'asked'(.|\n)*{named}"):
                await client.start(one, value)
            with pytest.raises(InvalidInputError, match=named):
                await client.send(one, value, id=engine.task_queue)
            with pytest.raises(InvalidInputError, match=named):
                await one.call(value, client=client)


async def test_elsewhere_the_run_fails_and_says_why(engine: Engine) -> None:
    async with engine.served(agent([])) as client:
        run = await client.start("asked", {"text": "Why?", "depth": "deep"})
        with pytest.raises(InvalidInputError, match="the input does not fit agent 'asked': depth"):
            await run.result()
        assert users(await run.transcript()) == [
            '<input type="object">\n  <depth>deep</depth>\n  <text>Why?</text>\n</input>',
        ]


async def test_an_agent_that_takes_text_is_given_no_input(engine: Engine) -> None:
    one = Agent("texts", ScriptedProvider([]))
    async with engine.served(one) as client:
        with pytest.raises(InvalidInputError, match=r"takes text and files(.|\n)*input=Person"):
            await client.start(one, Person(name="x"))
        with pytest.raises(InvalidInputError, match="declares no input type"):
            await (await client.start("texts", {"a": 1})).result()


async def test_a_text_is_a_message_as_ever(engine: Engine) -> None:
    """Follow-ups of people, and injected ones, are not forms to be filled in."""
    one = agent()
    async with engine.served(one) as client:
        first = await (await client.send(one, "Hi.", id=engine.task_queue)).result()
        second = await (await client.send(one, Question(text="Why?"), id=engine.task_queue)).result()
        third = await (await client.send(one, ["So", "?"], id=engine.task_queue)).result()
    assert (first.content, third.content) == ("Hi.", "So?")
    assert second.content.startswith("<input>\n  <text>Why?</text>")


async def test_an_input_may_be_injected_and_interrupt(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        if len(users(request.messages)) == 1:
            await gate()
        return echo(request)

    one = agent(reply)
    async with engine.served(one) as client:
        run = await client.start(one, "Hi.")
        await eventually(lambda: gate.entered == 1)
        await run.interrupt(Question(text="Stop?"))
        await eventually(lambda: gate.left == 1)
        gate.open()
        response = await run.result()
        again = await client.start(one, "Hi.", mode="session")
        await again.inject({"text": "Why?"}, id="1")
        await again.inject({"text": "Why?"}, id="1")
        await again.close()
        said = users((await again.result()).messages)
    assert "<text>Stop?</text>" in response.content
    assert [one.partition("\n")[0] for one in said] == ["Hi.", "<input>"]


@pytest.mark.server
async def test_a_large_input_goes_by_way_of_the_store(engine: Engine) -> None:
    one = agent(lambda _: "Read.")
    value = Question(text="ж" * 300_000)
    async with engine.served(one) as client:
        run = await client.start(one, value)
        response = await run.result()
        history = (await run.handle.fetch_history()).to_json()
        without = await engine.client(store=False)
        with pytest.raises(InvalidInputError, match="store"):
            await without.start(one, value)
    assert from_xml(users(response.messages)[0], Question.model_json_schema())["text"] == value.text
    assert len(history) < 30_000


async def test_both_ends_typed_by_call(engine: Engine) -> None:
    one = Agent("both", ScriptedProvider([finish(name="Ana", tags=["x"])]), input=Question, output=Person)
    async with engine.served(one) as client:
        response = await one.call(Question(text="Who?"), client=client)
    assert response.output == Person(name="Ana", tags=["x"])
