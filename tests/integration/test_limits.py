"""Limits of runs and turns: each of them, what happens there, and people who raise them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from perdure import Agent, Limits, Run, tool
from perdure.errors import BudgetExceededError, DefinitionError, InvalidInputError, MaxIterationsError
from perdure.ports.model import Completed, ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import Status
from perdure.types.messages import TextPart, Usage
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import replied
from tests.support.wait import eventually


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(inline=True)
async def double(n: int) -> int:
    """Twice."""
    return 2 * n


class Model(ScriptedProvider):
    """Looks for ever, 100 tokens and a quarter of a dollar a time, until it is asked for its answer or has enough."""

    def __init__(self, name: str = "add", *, at_once: int = 1) -> None:
        self.enough = False
        self._call = {"add": {"a": 1, "b": 1}, "double": {"n": 1}}[name]
        self._name, self._at_once = name, at_once
        super().__init__(self.reply)

    def reply(self, request: ModelRequest) -> Completed:
        usage = Usage(input_tokens=100)
        priced: dict[str, Any] = {"usage": usage, "model": "gpt-5-mini", "provider": "openai"}
        if self.enough or not request.tools:
            return Completed((TextPart(text="Done." if request.tools else "All I know is this."),), **priced)
        n = replied(request)
        calls = [call(self._name, **self._call).model_copy(update={"id": f"{n}-{i}"}) for i in range(self._at_once)]
        return Completed((TextPart(text=f"Still looking, {n}."), *calls), "tool_calls", **priced)


PRICE = 100 * 0.25 / 1e6
"""Of one such call."""


def looking(model: ScriptedProvider, **options: Any) -> Agent:
    return Agent("looking", model, tools=[add, double], **options)


async def paused(run: Run, name: str | None = None) -> Status:
    """Its status, as soon as it waits for a person."""

    async def seen() -> Status | None:
        status = await run.status()
        wanted = status.at_limit is not None and name in (None, status.at_limit.name)
        return status if status.state == "paused" and wanted else None

    return await eventually(seen, what="a run that is paused")


EACH = {
    "iterations": (Limits(iterations=2), 2, MaxIterationsError, "2 of 2 iterations (iterations)"),
    "tokens": (Limits(tokens=150), 2, BudgetExceededError, "200 of 150 tokens (tokens)"),
    "cost_usd": (Limits(cost_usd=PRICE * 1.5), 2, BudgetExceededError, "(cost_usd)"),
    "wall_time": (Limits(wall_time=0.001), 1, BudgetExceededError, "of 0.001 seconds (wall_time)"),
    "tool_calls": (Limits(tool_calls=2), 3, BudgetExceededError, "2 of 2 tool calls (tool_calls)"),
}
SCOPES = pytest.mark.parametrize(
    ("name", "scope"), [*((name, "run") for name in EACH), *((name, "turn") for name in EACH if name != "iterations")]
)
"""Each limit of a run and of a turn. A turn's iterations are ``max_iterations``, which test_runs.py has."""


def given(name: str, scope: str) -> Limits:
    of_run = EACH[name][0]
    return of_run if scope == "run" else Limits(turn=of_run)


@SCOPES
async def test_at_a_limit_there_is_an_answer(engine: Engine, name: str, scope: str) -> None:
    _, calls, _, said = EACH[name]
    models = {"finish": Model(), "return": Model()}
    agents = [Agent(way, model, tools=[add], limits=given(name, scope), on_limit=way) for way, model in models.items()]
    async with engine.served(*agents) as client:
        for way, model in models.items():
            run = await client.start(way, "Go.")
            response = await run.result()
            assert_closed(response.messages)
            assert response.finish_reason == "limit"
            assert (response.calls, len(model.requests)) == ((calls + 1,) * 2 if way == "finish" else (calls,) * 2)
            assert response.content == ("All I know is this." if way == "finish" else f"Still looking, {calls - 1}.")
            if way == "finish":
                assert said in users(response.messages)[-1]
            (limit,) = [event async for event in run.events() if event.type == "limit"]
            assert (limit.kind, limit.scope) == (name, scope)
            assert limit.used is not None
            assert limit.used >= limit.limit > 0
            if name == "tool_calls":
                refused = f"not run: no more tool calls are allowed, the {scope} has used {said}"
                assert results(response.messages) == ["2", "2", refused]


async def test_at_a_limit_the_run_fails(engine: Engine) -> None:
    models = {name: Model() for name in EACH}
    agents = [
        Agent(name, models[name], tools=[add], limits=limits, on_limit="error") for name, (limits, *_) in EACH.items()
    ]
    async with engine.served(*agents) as client:
        for name, (_, calls, error, said) in EACH.items():
            run = await client.start(name, "Go.")
            with pytest.raises(error) as caught:
                await run.result()
            assert said in caught.value.message
            assert f"limits=Limits({name}=…)" in caught.value.message, "the way out"
            assert len(models[name].requests) == calls
            assert_closed(await run.transcript())
            assert [event.kind async for event in run.events() if event.type == "limit"] == [name]


@SCOPES
async def test_at_a_limit_the_run_waits_until_it_is_raised(engine: Engine, name: str, scope: str) -> None:
    _, calls, _, said = EACH[name]
    model = Model()
    async with engine.served(looking(model, limits=given(name, scope), on_limit="pause")) as client:
        run = await client.start("looking", "Go.")
        status = await paused(run)
        assert status.reason is not None
        assert said in status.reason
        assert status.at_limit is not None
        assert f"{status.at_limit.key}=<more>" in status.reason
        if name != "tool_calls":
            assert_closed(await run.transcript())
        assert len(model.requests) == calls

        await run.resume()  # and raises nothing
        await run.inject("How is it going?")
        assert (await paused(run)).queued == 1
        assert len(model.requests) == calls

        model.enough = True
        await run.resume(limits={"turn": {name: 1000}} if scope == "turn" else {name: 1000}, by="ana")
        response = await run.result()
        events = [event async for event in run.events()]
    assert (response.content, response.finish_reason, response.calls) == ("Done.", "stop", calls + 1)
    assert_closed(response.messages)
    assert results(response.messages) == ["2"] * calls, "what was held back has run"
    assert [event.type for event in events if event.type == "limit"] == ["limit"], "it is said once"
    (told,) = [event for event in events if event.type == "run" and event.state == "paused"]
    assert said in (told.reason or "")


async def test_max_iterations_may_be_raised_and_reached_again(engine: Engine) -> None:
    model = Model()
    async with engine.served(looking(model, max_iterations=2, on_limit="pause")) as client:
        run = await client.start("looking", "Go.")
        assert "2 of 2 iterations (max_iterations)" in ((await paused(run)).reason or "")
        await run.resume(limits={"max_iterations": 3})
        await eventually(lambda: len(model.requests) == 3)

        async def again() -> bool:
            return "3 of 3 iterations" in ((await run.status()).reason or "")

        await eventually(again)
        await run.interrupt()
        response = await run.result()
    assert (response.finish_reason, len(model.requests)) == ("interrupted", 3)
    assert_closed(response.messages)


async def test_of_two_people_who_raise_a_limit_the_higher_counts(engine: Engine) -> None:
    model = Model()
    async with engine.served(looking(model, limits=Limits(tokens=100), on_limit="pause")) as client:
        run = await client.start("looking", "Go.")
        await paused(run)
        await asyncio.gather(*(run.resume(limits={"tokens": n}, by=f"user {n}") for n in (500, 300)))

        async def at_500() -> bool:
            use = (await run.status()).at_limit
            return use is not None and use.allowed == 500

        await eventually(at_500)
        await run.cancel()
        await eventually(lambda: _state(run, "cancelled"))
        assert_closed(await run.transcript())
    assert len(model.requests) == 5


async def _state(run: Run, state: str) -> bool:
    return (await run.status()).state == state


async def test_limits_of_turns_and_of_the_session(engine: Engine) -> None:
    """Each turn may use 200 tokens, all together 500: the run's end is known only when it has come."""
    model = Model()
    limits = Limits(tokens=500, turn=Limits(tokens=200))
    async with engine.served(looking(model, limits=limits)) as client:
        run = await client.start("looking", "One.", mode="session")
        one = await run.turn().result()
        two = await (await run.send("Two.")).result()
        three = await (await run.send("Three.")).result()
        status = await run.status()
        events = [event async for event in run.events(wait=False)]
        await run.close()
        await run.result()
    assert [turn.calls for turn in (one, two, three)] == [3, 3, 0], "two and the answer; nothing is left for the third"
    assert [turn.finish_reason for turn in (one, two, three)] == ["limit"] * 3
    assert (three.content, len(model.requests)) == ("", 6)
    assert "Three." in users(three.messages), "it is in the transcript all the same"
    told = [(event.scope, event.used, event.limit) for event in events if event.type == "limit"]
    assert told == [("turn", 200, 200), ("run", 500, 500), ("run", 600, 500)]
    uses = {(use.scope, use.name): (use.used, use.allowed) for use in status.limits}
    assert uses[("run", "tokens")] == (600, 500)
    assert uses[("turn", "tokens")] == (0, 200)
    assert uses[("turn", "max_iterations")] == (0, 50)


async def test_a_person_raises_the_limit_of_one_turn(engine: Engine) -> None:
    model = Model()
    async with engine.served(looking(model, limits=Limits(turn=Limits(tokens=100)), on_limit="pause")) as client:
        run = await client.start("looking", "One.", mode="session")
        await paused(run)
        model.enough = True
        await run.resume(limits={"turn": {"tokens": 1000}})
        await run.turn().result()
        model.enough = False
        await run.send("Two.")
        status = await paused(run)
        assert status.at_limit is not None
        assert status.at_limit.allowed == 100, "the next turn has the agent's limit again"
        await run.cancel()


@pytest.mark.slow
@pytest.mark.server
async def test_counters_and_raised_limits_go_on_in_the_next_execution(engine: Engine) -> None:
    model = Model()
    agent = looking(model, limits=Limits(tool_calls=3, wall_time="1h"), on_limit="pause")
    async with engine.served(agent) as client:
        run = await client.start("looking", "Go.", max_history_events=11)
        first = (await run.describe()).run_id
        await paused(run, "tool_calls")
        await run.resume(limits={"tool_calls": 8})

        async def at_eight() -> Status | None:
            status = await run.status()
            return status if status.at_limit and status.at_limit.allowed == 8 else None

        status = await eventually(at_eight)
        assert (await client.run(run.id).describe()).run_id != first, "it has continued as new"
        assert status.at_limit is not None
        assert status.at_limit.used == 8
        (wall,) = [use for use in status.limits if use.name == "wall_time"]
        assert 0 < wall.used < 3600
        assert wall.allowed == 3600
        await run.cancel()
        await eventually(lambda: _state(run, "cancelled"))
        messages = await run.transcript()
    assert results(messages)[:-1] == ["2"] * 8
    assert_closed(messages)


async def test_waiting_for_messages_and_people_is_no_wall_time(engine: Engine) -> None:
    model = Model()
    model.enough = True
    begun = time.monotonic()
    async with engine.served(looking(model, limits=Limits(wall_time="1h"))) as client:
        run = await client.start("looking", "One.", mode="session")
        await run.turn().result()
        await eventually(lambda: _state(run, "idle"))
        idle = 1.0
        await asyncio.sleep(idle)  # nothing happens: that is what is looked at
        await (await run.send("Two.")).result()
        await eventually(lambda: _state(run, "idle"))
        elapsed = time.monotonic() - begun
        (wall,) = [use for use in (await run.status()).limits if use.name == "wall_time"]
        await run.close()
    assert 0 < wall.used <= elapsed - idle


@pytest.mark.parametrize("on_limit", ["finish", "pause"])
async def test_inline_tools_are_counted(engine: Engine, on_limit: Any) -> None:
    model = Model("double", at_once=3)
    async with engine.served(looking(model, limits=Limits(tool_calls=4), on_limit=on_limit)) as client:
        run = await client.start("looking", "Go.")
        if on_limit == "pause":
            await paused(run)
            model.enough = True
            await run.resume(limits={"tool_calls": 6})
        response = await run.result()
    ran = [text for text in results(response.messages) if text == "2"]
    assert len(ran) == (4 if on_limit == "finish" else 6)
    assert len(results(response.messages)) == 6
    assert_closed(response.messages)


async def test_an_override_has_limits(engine: Engine) -> None:
    model = Model()
    async with engine.served(looking(model, limits=Limits(tokens=100_000))) as client:
        run = await client.start("looking", "One.", mode="session", override={"limits": {"turn": {"tokens": 100}}})
        one = await run.turn().result()
        turn = await run.send("Two.", override={"limits": {"max_iterations": 3, "turn": {"tokens": 5000}}})
        two = await turn.result()
        await run.close()
    assert (one.calls, two.calls) == (2, 4)


async def test_an_override_may_give_more_than_is_used_up(engine: Engine) -> None:
    model = Model()
    async with engine.served(looking(model, limits=Limits(tokens=100), on_limit="return")) as client:
        run = await client.start("looking", "One.", mode="session")
        assert (await run.turn().result()).calls == 1
        assert (await (await run.send("Two.")).result()).calls == 0
        turn = await run.send("Three.", override={"limits": {"tokens": 300}})
        assert (await turn.result()).calls == 2
        await run.close()


async def test_limits_that_do_not_fit_are_refused(engine: Engine) -> None:
    model = Model()
    async with engine.served(looking(model, limits=Limits(tokens=100), on_limit="pause")) as client:
        run = await client.start("looking", "Go.")
        await paused(run)
        with pytest.raises(InvalidInputError, match=r"limits\.tokns: .*\nThere are: max_iterations, it"):
            await run.resume(limits={"tokns": 5})
        with pytest.raises(InvalidInputError, match="same limit"):
            await run.resume(limits={"max_iterations": 5, "turn": {"iterations": 5}})
        await run.handle.signal("resume", {"limits": {"tokens": "many"}, "by": "plain client"})
        await run.handle.signal("resume", {"limits": 7})

        async def refused() -> bool:
            return len((await run.status()).refused) == 2

        await eventually(refused)
        assert (await run.status()).state == "paused"
        await run.handle.signal("resume", {"limits": {"tokens": 150}, "by": "plain client"})
        await eventually(lambda: len(model.requests) == 2)
        await run.cancel()


async def test_a_run_that_failed_at_a_limit_is_opened_again_with_more(engine: Engine) -> None:
    model = Model()
    async with engine.served(looking(model, limits=Limits(tokens=100), on_limit="error")) as client:
        run = await client.start("looking", "Go.")
        with pytest.raises(BudgetExceededError):
            await run.result()
        await run.resume(limits={"tokens": 300})
        with pytest.raises(BudgetExceededError, match="300 of 300 tokens"):
            await run.result()
    assert len(model.requests) == 4


UNCOUNTED = Completed((TextPart(text="I look."), call("add", a=1, b=1)), "tool_calls", model="local-7b")


async def test_a_limit_of_tokens_fails_with_the_first_reply_that_reports_none(engine: Engine) -> None:
    model = ScriptedProvider([UNCOUNTED])
    async with engine.served(looking(model, limits=Limits(turn=Limits(tokens=5)))) as client:
        run = await client.start("looking", "Go.")
        with pytest.raises(DefinitionError, match="a limit of tokens, and 'local-7b' reports no usage"):
            await run.result()
        transcript = await run.transcript()
    assert_closed(transcript)
    assert results(transcript) == ["not run: the run failed"]
    assert len(model.requests) == 1


@pytest.mark.parametrize("parent", [False, True])
async def test_a_limit_of_cost_fails_with_the_first_reply_that_has_no_price(engine: Engine, parent: bool) -> None:
    """Its calls do not run. Of a subagent it is the limit of its parent."""
    model = ScriptedProvider([call("add", a=1, b=1), "Done."])
    own = looking(model, limits=Limits() if parent else Limits(cost_usd=1))
    replies = iter([call("call_looking", task="Look."), "It could not."])

    def above(request: ModelRequest) -> Completed:
        said = next(replies)
        part = TextPart(text=said) if isinstance(said, str) else said
        reason: Any = "stop" if isinstance(said, str) else "tool_calls"
        return Completed((part,), reason, usage=Usage(input_tokens=1), model="gpt-5-mini", provider="openai")

    asking = Agent("asking", ScriptedProvider(above), subagents=[own], limits=Limits(cost_usd=1))
    async with engine.served(asking if parent else own) as client:
        run = await client.start("asking" if parent else "looking", "Go.")
        if parent:
            await run.result()
            (said,) = results(await run.transcript())
            assert "limit of cost_usd, and no price of" in said
        else:
            with pytest.raises(DefinitionError, match="limit of cost_usd, and no price of") as failed:
                await run.result()
            assert "register_price(" in str(failed.value)
            transcript = await run.transcript()
            assert_closed(transcript)
            assert results(transcript) == ["not run: the run failed"]
    assert len(model.requests) == 1
