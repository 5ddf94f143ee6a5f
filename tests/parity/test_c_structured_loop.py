"""PARITY.md, part C: what a structured agentic loop does, durably."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field

from perdure import Agent, tool
from perdure.agent.xml import from_xml
from perdure.errors import ParseError
from perdure.providers.openai_chat import OpenAIChat
from perdure.testing import ScriptedProvider, call, finish
from tests.servers.model_server import Call, OpenAIServer, error
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.scripts import calls_then


@tool
def note(what: str) -> str:
    """Note something."""
    return f"noted {what}"


class Question(BaseModel):
    text: str
    words: list[str] = []


class Verdict(BaseModel):
    yes: bool = Field(description="Whether it is so")
    why: str = ""


async def test_c1_typed_input_as_xml_and_typed_output(engine: Engine) -> None:
    provider = ScriptedProvider([finish(yes=True, why="<so>")])
    judge = Agent("judge", provider, input=Question, output=Verdict)
    async with engine.served(judge) as client:
        response = await judge.call(Question(text="1 < 2 & so on?", words=["a"]), client=client)
    shown = provider.requests[0].messages[0].text
    assert shown.splitlines()[:2] == ["<input>", "  <text>1 &lt; 2 &amp; so on?</text>"]
    assert Question.model_validate(from_xml(shown, Question.model_json_schema())).words == ["a"]
    assert response.output == Verdict(yes=True, why="<so>")


async def test_c2_the_finish_tool_is_the_only_way_to_an_output(engine: Engine) -> None:
    provider = ScriptedProvider(["Yes.", [call("note", what="a")], finish(yes="maybe"), finish(yes=True)])
    judge = Agent("judge", provider, output=Verdict, tools=[note])
    async with engine.served(judge) as client:
        response = await (await client.start(judge, "So?")).result()
    spec = provider.requests[0].tools[-1]
    assert (spec.name, spec.parameters["properties"]["yes"]) == (
        "__finish__",
        {"type": "boolean", "description": "Whether it is so"},
    )
    assert (response.output, response.iterations, response.finish_called) == (Verdict(yes=True), 4, True)
    assert results(response.messages)[1].startswith("the arguments of __finish__ are not valid:\n- yes: ")


async def test_c3_a_call_that_does_not_finish_runs_and_the_result_says_so(engine: Engine) -> None:
    provider = ScriptedProvider([[call("note", what="a")], finish(yes=False)])
    once = Agent("once", provider, output=Verdict, tools=[note], max_iterations=1, on_limit="return")
    async with engine.served(once) as client:
        unfinished = await (await client.start(once, "So?")).result()
        finished = await (await client.start(once, "So?")).result()
    assert (unfinished.calls, results(unfinished.messages)) == (1, ["noted a"])
    assert (unfinished.output, unfinished.finish_called, unfinished.finish_reason) == (None, False, "limit")
    assert (finished.calls, finished.output, finished.finish_called) == (1, Verdict(yes=False), True)


async def test_c4_at_the_limit_the_finish_is_forced_by_tool_choice_or_by_a_template(engine: Engine) -> None:
    class Wordy(ScriptedProvider):
        tool_choice = False

    by_tool = ScriptedProvider([[call("note", what="a")], finish(yes=True)])
    by_words = Wordy([[call("note", what="a")], "<finish><yes>true</yes><why>a < b</why></finish>"])
    first = Agent("first", by_tool, output=Verdict, tools=[note], max_iterations=1)
    second = Agent("second", by_words, output=Verdict, tools=[note], max_iterations=1)
    async with engine.served(first, second) as client:
        chosen = await (await client.start(first, "So?")).result()
        written = await (await client.start(second, "So?")).result()
    assert (chosen.output, chosen.finish_reason) == (Verdict(yes=True), "limit")
    assert by_tool.requests[1].tool_choice == "__finish__"
    assert by_tool.requests[1].tools == by_tool.requests[0].tools
    assert (written.output, written.finish_called) == (Verdict(yes=True, why="a < b"), True)
    assert '<yes type="boolean" description="Whether it is so"></yes>' in by_words.requests[1].messages[-1].text


async def test_c5_what_does_not_parse_goes_back_and_then_fails(engine: Engine) -> None:
    judge = Agent("judge", ScriptedProvider([finish(why=str(n)) for n in range(5)]), output=Verdict)
    once = Agent("once", ScriptedProvider([finish(why="7")]), output=Verdict, parse_retries=0)
    async with engine.served(judge, once) as client:
        run = await client.start(judge, "So?")
        with pytest.raises(ParseError, match=r'(.|\n)*yes: missing(.|\n)*The model said: {"why": "2"}'):
            await run.result()
        with pytest.raises(ParseError):
            await (await client.start(once, "So?")).result()
        told = results(await run.transcript())
    assert len(told) == 3
    assert all("- yes: missing" in one for one in told)


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
