"""Typed output: the finish tool, what becomes of answers that will not do, validators, the forced finish."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from perdure import Agent, ModelRetry, RunContext, tool
from perdure.errors import DefinitionError, HookError, MaxIterationsError, ParseError, RunNotFoundError
from perdure.ports.model import Completed, ModelRequest
from perdure.testing import ScriptedProvider, call, finish, hang
from perdure.types.interface import FINISH_TOOL, WORKFLOW_TYPE
from perdure.types.messages import TextPart
from tests.support.apis import FORMATS, Says, strict_api
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine


class Place(BaseModel):
    name: str
    floor: int | None = None


class Resolution(BaseModel):
    """How a case was resolved."""

    verdict: Literal["refund", "replace", "none"] = Field(description="What the customer gets")
    amount: float = 0.0
    places: list[Place] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Pair(TypedDict):
    left: str
    right: str


ran: list[str] = []


@tool
async def pay(amount: int) -> str:
    """Pay."""
    ran.append(f"pay {amount}")
    return f"paid {amount}"


def agent(replies: Any, output: Any = Resolution, **more: Any) -> Agent:
    ran.clear()
    return Agent("typed", ScriptedProvider(replies), output=output, tools=[pay], **more)


def scripted(agent: Agent) -> ScriptedProvider:
    provider = agent.provider
    assert isinstance(provider, ScriptedProvider)
    return provider


async def test_the_answer_is_a_value_of_the_type_and_plain_json_for_everybody_else(engine: Engine) -> None:
    one = agent([[call("pay", amount=3)], ["Done so.", finish(verdict="refund", amount=3, places=[{"name": "Hall"}])]])
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        response = await run.result()
        plain = await client.run(run.id).result()
        raw = await run.handle.result()
        row = await (await client.store()).get_run(run.id)
    whole = {"verdict": "refund", "amount": 3.0, "places": [{"name": "Hall", "floor": None}]}
    assert response.output == Resolution(verdict="refund", amount=3, places=[Place(name="Hall")])
    assert (response.finish_called, response.finish_reason, response.iterations) == (True, "stop", 2)
    assert (plain.output, json.loads(plain.content)) == (whole, whole)
    assert raw["output"] == whole
    assert row is not None
    assert row.result is not None
    assert json.loads(row.result)["output"] == whole
    assert one.read_output(raw["output"]) == response.output
    assert_closed(response.messages)
    assert [request.tools[-1].name for request in scripted(one).requests] == [FINISH_TOOL] * 2
    assert ran == ["pay 3"]


TYPES: list[tuple[Any, Any, Any, str]] = [
    (int, finish(value=7), 7, "7"),
    (list[str], finish(value=["a", "ж"]), ["a", "ж"], '["a", "ж"]'),
    (Place | int | None, finish(value={"name": "x"}), Place(name="x"), '{"name": "x", "floor": null}'),
    (Place | int | None, finish(value=None), None, "null"),
    (Point, finish(x=1, y=2), Point(1, 2), '{"x": 1, "y": 2}'),
    (Pair, finish(left="a", right="b"), {"left": "a", "right": "b"}, '{"left": "a", "right": "b"}'),
    (dict[str, int], finish(value={"a b": 1}), {"a b": 1}, '{"a b": 1}'),
    (str, finish(content="so\nit is"), "so\nit is", "so\nit is"),
]


async def test_by_name_output_is_the_type_that_answers_are_read_as(engine: Engine) -> None:
    one = agent([finish(verdict="none")] * 3)
    async with engine.served(one) as client:
        run = await client.start("typed", "Go.", output=Resolution)
        assert (await run.result()).output == Resolution(verdict="none")
        assert (await client.run(run.id).result()).output == {"verdict": "none", "amount": 0.0, "places": []}
        assert (await client.run(run.id, output=Resolution).result()).output == Resolution(verdict="none")
        with pytest.raises(ParseError, match="the output does not fit the type Place"):
            await client.run(run.id, output=Place).result()
        again = await client.start("typed", "Go.", id=run.id, if_exists="attach", output=Resolution)
        assert (await again.result()).output == Resolution(verdict="none")
        turn = await client.send("typed", "Go.", id="session", output=Resolution)
        assert (await turn.result()).output == Resolution(verdict="none")
        fork = await client.run(run.id, one).fork("Again.")
        assert (await fork.result()).output == Resolution(verdict="none")


async def test_an_output_that_is_no_type_starts_nothing(engine: Engine) -> None:
    async with engine.served(agent(["."])) as client:
        with pytest.raises(DefinitionError, match="is a value"):
            await client.start("typed", "Go.", id="none", output=["a"])
        with pytest.raises(RunNotFoundError):
            await client.run("none").status()


async def test_the_id_of_a_turn_is_empty_until_it_is_known(engine: Engine) -> None:
    async with engine.served(agent([finish(verdict="none")])) as client:
        sent = await client.send("typed", "Go.", id="session")
        turn = client.run("session").turn()
        assert turn.task_id == ""
        assert (await turn.result()).task_id == turn.task_id == sent.task_id


async def test_every_type_that_pydantic_takes(engine: Engine) -> None:
    agents = [
        Agent(f"typed-{n}", ScriptedProvider([reply]), output=output, finish="tool")
        for n, (output, reply, *_) in enumerate(TYPES)
    ]
    async with engine.served(*agents) as client:
        for one, (_, _, value, content) in zip(agents, TYPES, strict=True):
            response = await (await client.start(one, "Go.")).result()
            assert (response.output, response.content) == (value, content)
            assert type(response.output) is type(value)
            assert response.finish_called


async def test_a_wrong_answer_goes_back_to_the_model_and_counts(engine: Engine) -> None:
    wrong = finish(verdict="maybe", amount="much", extra=1)
    one = agent([wrong, "I think it is a refund.", wrong, finish(verdict="none")])
    async with engine.served(one) as client:
        response = await (await client.start(one, "Go.")).result()
    assert response.output == Resolution(verdict="none")
    said = results(response.messages)
    assert said[0].startswith("the arguments of __finish__ are not valid:\n- verdict: ")
    assert "- amount: " in said[0]
    assert scripted(one).requests[2].messages[-1].text.startswith("Your last reply had no tool call.")
    assert_closed(response.messages)


async def test_after_the_retries_the_run_fails_with_what_the_model_said(engine: Engine) -> None:
    one = agent([finish(verdict="no"), finish(verdict="nay"), finish(verdict="never")])
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        with pytest.raises(ParseError, match=r'in 3 attempts(.|\n)*The model said: \{"verdict": "never"\}'):
            await run.result()
        messages = await run.transcript()
    assert_closed(messages)
    assert [message.tool_calls[0].arguments["verdict"] for message in messages if message.tool_calls] == [
        "no",
        "nay",
        "never",
    ]


async def test_no_retries_is_one_attempt(engine: Engine) -> None:
    one = agent([[finish(verdict="no"), call("pay", amount=1)]], parse_retries=0)
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        with pytest.raises(ParseError, match="in 1 attempt"):
            await run.result()
        messages = await run.transcript()
    assert results(messages)[1] == "not run: the run failed"
    assert ran == []


async def test_other_calls_beside_the_answer_are_not_run_but_those_beside_a_wrong_one_are(engine: Engine) -> None:
    one = agent([[call("pay", amount=1), finish(verdict="no")], [call("pay", amount=2), finish(verdict="none")]])
    async with engine.served(one) as client:
        turn = await client.send(one, "Go.", id=engine.task_queue)
        response = await turn.result()
        scripted(one)._replies = iter([finish(verdict="refund")])
        scripted(one)._count = None
        again = await (await client.send(one, "And now?", id=engine.task_queue)).result()
    assert ran == ["pay 1"]
    assert results(response.messages)[2:] == [
        "not run: the task was finished in the same reply",
        "The answer is accepted; the task is finished.",
    ]
    assert again.output == Resolution(verdict="refund")
    assert_closed(again.messages)


async def test_malformed_arguments_are_an_answer_that_will_not_do(engine: Engine) -> None:
    broken = finish().model_copy(update={"malformed": '{"verdict": '})
    one = agent([broken, finish(verdict="none")])
    async with engine.served(one) as client:
        response = await (await client.start(one, "Go.")).result()
    assert results(response.messages)[0].startswith("ArgumentsError: the arguments of __finish__ must be one JSON")
    assert response.output == Resolution(verdict="none")


async def test_xml_in_place_of_the_call_is_taken(engine: Engine) -> None:
    said = "So: <finish><verdict>none</verdict><places><item><name>a & b</name></item></places></finish>"
    one = agent(["<finish><verdict>hm</verdict></finish>", said])
    async with engine.served(one) as client:
        response = await (await client.start(one, "Go.")).result()
    assert response.output == Resolution(verdict="none", places=[Place(name="a & b")])
    assert response.finish_called
    told = scripted(one).requests[1].messages[-1].text
    assert "- verdict: " in told
    assert "call __finish__ again" in told


async def test_a_refusal_is_no_output(engine: Engine) -> None:
    one = agent([Completed((TextPart(text="I will not."),), "refusal")])
    async with engine.served(one) as client:
        response = await (await client.start(one, "Go.")).result()
    assert (response.content, response.output, response.finish_reason) == ("I will not.", None, "refusal")
    assert not response.finish_called


# --- validators


class Seats(BaseModel):
    count: int

    @field_validator("count")
    @classmethod
    def _even(cls, count: int) -> int:
        if count % 2:
            raise ValueError("only pairs are sold")
        return count


async def test_validators_change_the_answer_or_send_the_model_back(engine: Engine) -> None:
    one = Agent(
        "typed", ScriptedProvider([finish(count=3), finish(count=8), finish(count=4)]), output=Seats, context=Point
    )

    @one.output_validator
    async def free(output: Seats, ctx: RunContext[Point]) -> None:
        if output.count > ctx.context.x:
            raise ModelRetry(f"only {ctx.context.x} seats are free")

    @one.output_validator
    def doubled(output: Seats) -> Seats:
        return Seats(count=output.count * 2)

    async with engine.served(one) as client:
        response = await (await client.start(one, "Go.", context={"x": 6, "y": 0})).result()
    assert response.output == Seats(count=8)
    first, second, _ = results(response.messages)
    assert "only pairs are sold" in first
    assert second == "The answer was not accepted: only 6 seats are free"


async def test_validators_of_a_text(engine: Engine) -> None:
    def polite(output: str) -> str:
        if "please" not in output:
            raise ModelRetry("say please")
        return output.upper()

    one = Agent("talker", ScriptedProvider(["Go away.", "Go away, please."]), output_validators=[polite])
    async with engine.served(one) as client:
        response = await (await client.start(one, "Go.")).result()
        scripted(one)._replies, scripted(one)._count = iter(["No."] * 3), None
        with pytest.raises(ParseError, match="say please"):
            await (await client.start(one, "Go.")).result()
    assert (response.output, response.content) == ("GO AWAY, PLEASE.", "GO AWAY, PLEASE.")
    assert response.messages[2].text == "The answer was not accepted: say please\nPlease give another one."


async def test_a_parameter_with_a_default_keeps_it_unless_it_is_for_the_context(engine: Engine) -> None:
    given: list[Any] = []

    def strictly(output: str, strict: bool = True) -> None:
        given.append(strict)

    def named(output: str, ctx: Any = None) -> None:
        given.append(ctx)

    def annotated(output: str, about: RunContext | None = None) -> None:
        given.append(about)

    def language(lang: str = "English") -> str:
        return f"Answer in {lang}."

    def run_id(ctx: RunContext | None = None) -> str:
        return "" if ctx is None else f"This is {ctx.run_id}."

    provider = ScriptedProvider(["Fine."])
    one = Agent("talker", provider, output_validators=[strictly, named, annotated], instructions=[language, run_id])
    async with engine.served(one) as client:
        await (await client.start(one, "Go.", id="talk-1")).result()
    assert given[0] is True
    assert [isinstance(ctx, RunContext) for ctx in given] == [False, True, True]
    assert provider.requests[0].system == "Answer in English.\n\nThis is talk-1."


@pytest.mark.parametrize("wrong", ["raises", "another type"])
async def test_a_validator_that_fails_fails_the_run_and_the_reply_is_kept(engine: Engine, wrong: str) -> None:
    asked = []

    def check(output: Resolution) -> Any:
        asked.append(output)
        if wrong == "raises":
            raise KeyError("oops")
        return {"verdict": "shrug"}

    one = agent([[finish(verdict="none"), call("pay", amount=1)]], output_validators=[check])
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        with pytest.raises(HookError, match="check"):
            await run.result()
        messages = await run.transcript()
    assert len(asked) == 1
    assert ran == []
    assert_closed(messages)


# --- limits


async def test_at_the_limit_the_model_has_to_finish_with_the_same_tools(engine: Engine) -> None:
    def reply(request: ModelRequest) -> Any:
        return finish(verdict="none") if request.tool_choice else call("pay", amount=1)

    one = agent(reply, max_iterations=2)
    async with engine.served(one) as client:
        response = await (await client.start(one, "Go.")).result()
    first, _, last = scripted(one).requests
    assert (response.output, response.finish_reason) == (Resolution(verdict="none"), "limit")
    assert (first.tool_choice, last.tool_choice) == (None, FINISH_TOOL)
    assert first.tools == last.tools
    assert "Give your final answer now by calling __finish__" in last.messages[-1].text
    assert "<finish" not in last.messages[-1].text
    assert_closed(response.messages)


async def test_a_forced_answer_that_will_not_do_is_asked_for_again(engine: Engine) -> None:
    replies = [call("pay", amount=1), call("pay", amount=2), finish(verdict="x"), finish(verdict="none")]
    one = agent(replies, max_iterations=1)
    async with engine.served(one) as client:
        response = await (await client.start(one, "Go.")).result()
    assert (response.output, response.finish_reason, response.calls) == (Resolution(verdict="none"), "limit", 4)
    assert ran == ["pay 1"]
    assert results(response.messages)[1] == "not run: the task has to be finished; call __finish__"
    assert_closed(response.messages)


async def test_forced_answers_that_never_do_are_a_parse_error(engine: Engine) -> None:
    one = agent([call("pay", amount=1), "Hm.", finish(verdict="x"), "Hm?"], max_iterations=1)
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        with pytest.raises(ParseError, match=r"in 3 attempts(.|\n)*The model said: Hm\?"):
            await run.result()
        assert_closed(await run.transcript())


class Wordy(ScriptedProvider):
    """A model that cannot be made to call a tool."""

    tool_choice = False


async def test_without_tool_choice_the_model_is_given_a_template(engine: Engine) -> None:
    def reply(request: ModelRequest) -> Any:
        if request.tool_choice is None:
            return call("pay", amount=1)
        return "<finish><verdict>refund</verdict><amount>2.5</amount></finish>"

    one = Agent("typed", Wordy(reply), output=Resolution, tools=[pay], max_iterations=1)
    async with engine.served(one) as client:
        response = await (await client.start(one, "Go.")).result()
    told = scripted(one).requests[-1].messages[-1].text
    assert '<verdict type="&quot;refund&quot; or &quot;replace&quot; or &quot;none&quot;"' in told
    assert 'description="What the customer gets"' in told
    assert response.output == Resolution(verdict="refund", amount=2.5)
    assert any(message.text == told for message in response.messages)


async def test_a_turn_that_ends_at_its_limit_has_no_output(engine: Engine) -> None:
    returns = agent(["Thinking.", "Still."], max_iterations=2, on_limit="return")
    async with engine.served(returns) as client:
        response = await (await client.start(returns, "Go.")).result()
    assert (response.content, response.output, response.finish_called) == ("Still.", None, False)
    fails = agent(["Thinking."], max_iterations=1, on_limit="error")
    async with engine.served(fails) as client:
        with pytest.raises(MaxIterationsError):
            await (await client.start(fails, "Go.")).result()


# --- large ones, plain clients, formats


@pytest.mark.server
async def test_a_large_answer_goes_by_way_of_the_store(engine: Engine) -> None:
    one = agent([["T" * 40_000, finish(value=["x" * 1000] * 100)]], list[str])
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        response = await run.result()
        raw = await run.handle.result()
        history = await run.handle.fetch_history()
    assert response.output == ["x" * 1000] * 100
    assert response.content == json.dumps(response.output)
    assert response.messages[-2].text == "T" * 40_000
    assert ("output" in raw, raw["typed"], raw["blob"]["size"]) == (False, True, len(response.content))
    assert len(history.to_json()) < 60_000


@pytest.mark.server
async def test_a_plain_client_reads_the_output(engine: Engine) -> None:
    one = agent([finish(verdict="none")])
    async with engine.served(one):
        temporal = await engine.temporal()
        argument = {"agent": "typed", "message": "Go."}
        raw = await temporal.execute_workflow(
            WORKFLOW_TYPE, argument, id=engine.task_queue, task_queue=engine.task_queue
        )
    assert raw["output"] == {"verdict": "none", "amount": 0.0, "places": []}


@pytest.mark.parametrize("format", FORMATS)
async def test_each_wire_format_takes_the_tool_and_the_forced_call(engine: Engine, format: str) -> None:
    answer = {"verdict": "refund", "amount": 1.5, "places": [{"name": "Hall", "floor": 2}]}
    async with strict_api(format) as api:
        api.replies = [
            Says("", [("pay", {"amount": 1})]),
            Says("", [(FINISH_TOOL, {"verdict": "so"})]),
            Says("So.", [(FINISH_TOOL, answer)]),
            Says("", [(FINISH_TOOL, {"verdict": "none"})]),
        ]
        one = Agent("typed", api.model, output=Resolution, tools=[pay], max_iterations=2)
        async with engine.served(one) as client:
            turn = await client.send(one, "Go.", id=engine.task_queue)
            response = await turn.result()
            again = await (await client.send(one, "And then?", id=engine.task_queue)).result()
        assert (response.output, response.finish_reason) == (Resolution.model_validate(answer), "limit")
        assert again.output == Resolution(verdict="none")
        assert api.refused == 0
        assert [FINISH_TOOL in json.dumps(request) for request in api.requests] == [True] * 4


async def test_a_typed_answer_is_followed_as_it_comes(engine: Engine) -> None:
    one = agent([finish(value=["one", "two"])], list[str])
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        events = [event async for event in run.events()]
    ended = next(event for event in events if event.type == "turn" and event.state == "completed")
    assert ended.content == '["one", "two"]'
    assert [message.role for message in await run.transcript()] == ["user", "assistant", "tool"]


async def test_the_output_is_seen_as_it_comes(engine: Engine) -> None:
    """What can be read of it so far, without what wraps a type that is no object."""
    cases: list[tuple[Any, Any, Any]] = [
        (Resolution, finish(verdict="refund", amount=2.5), {"verdict": "refund", "amount": 2.5}),
        (list[str], finish(value=["one", "two"]), ["one", "two"]),
        (str, finish(content="So it is."), "So it is."),
    ]
    agents = [
        Agent(f"typed-{n}", ScriptedProvider([hang(reply), reply]), output=output, finish="tool")
        for n, (output, reply, _) in enumerate(cases)
    ]
    async with engine.served(*agents) as client:
        for one, (_, _, seen) in zip(agents, cases, strict=True):
            run = await client.start(one, "Go.")
            async for event in run.events():
                if event.type == "model.delta" and event.partial is not None:
                    assert (event.name, event.partial) == (FINISH_TOOL, seen)
                    break
            await run.cancel()
