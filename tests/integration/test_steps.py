"""The step policy: ``@hook("on_iteration")``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Client, File, Message, ModelRetry, RunContext, Step, register_provider, tool
from perdure.errors import AbortError, HookError, InvalidInputError
from perdure.hooks import Hook, hook
from perdure.ports.model import ModelRequest
from perdure.providers import registry
from perdure.testing import ScriptedProvider, call
from perdure.types.events import StepTaken
from perdure.types.interface import Response
from perdure.types.messages import ToolResultPart
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine


@tool
async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


@tool(inline=True)
async def look(at: str) -> str:
    """Look."""
    return f"seen {at}"


@tool
async def refund(order: str) -> str:
    """Refund."""
    return f"refunded {order}"


def policy(fn: Callable[[Step], Any], **options: Any) -> Hook:
    """``fn`` as the agent's policy."""

    def step_policy(step: Step) -> None:
        fn(step)

    return hook("on_iteration", **options)(step_policy)


def agent(replies: Any, *hooks: Hook, **options: Any) -> Agent:
    provider = replies if isinstance(replies, ScriptedProvider) else ScriptedProvider(replies)
    return Agent("worker", provider, **{"tools": [search, look], "hooks": hooks, **options})


async def answer(engine: Engine, one: Agent, *, tools: Iterable[Any] = (), **options: Any) -> Response:
    async with engine.served(one, tools=tools) as client:
        return await (await client.start(one, "Go.", **options)).result()


async def steps(client: Client, id: str) -> list[StepTaken]:
    return [event async for event in client.run(id).events(wait=False) if isinstance(event, StepTaken)]


def searches(count: int, answer: str = "Done.") -> list[Any]:
    return [*(call("search", query=str(n)) for n in range(1, count + 1)), answer]


async def test_it_runs_between_the_tools_and_the_next_call_and_not_before_the_first(engine: Engine) -> None:
    seen: list[Any] = []

    @hook("on_iteration")
    async def watch(step: Step, iteration: int, messages: Any, response: Message, ctx: RunContext) -> None:
        said = [result.content for result in step.results]
        seen.append((iteration, step.iteration, said, response.text, len(messages), ctx.iteration, ctx.agent))

    replies = [["Looking.", call("search", query="x"), call("look", at="y")], call("look", at="z"), "Done."]
    response = await answer(engine, agent(replies, watch))
    assert seen == [
        (1, 1, ["found x", "seen y"], "Looking.", 3, 2, "worker"),
        (2, 2, ["seen z"], "", 5, 3, "worker"),
    ]
    assert response.iterations == 3


async def test_it_runs_at_each_turn_of_a_session_anew_and_for_a_reply_without_calls(engine: Engine) -> None:
    seen: list[tuple[int, int]] = []
    watch = policy(lambda step: seen.append((step.iteration, len(step.calls))))
    one = agent(
        ["No tag.", "<finish>One.</finish>", call("look", at="y"), "<finish>Two.</finish>"], watch, finish="tag"
    )
    async with engine.served(one) as client:
        for n in (1, 2):
            await (await client.send(one, str(n), id=engine.task_queue)).result()
    assert seen == [(1, 0), (1, 1)]


async def test_a_change_holds_for_the_next_call_alone(engine: Engine) -> None:
    def change(step: Step) -> None:
        if step.iteration == 1:
            step.settings.update(temperature=0.1, max_tokens=50)
            step.instructions = "Hurry."
            step.remove_tool("look")

    provider = ScriptedProvider(searches(2))
    await answer(engine, agent(provider, policy(change), settings={"seed": 1}, instructions="Work."))
    assert [(asked.system, dict(asked.settings), len(asked.tools)) for asked in provider.requests] == [
        ("Work.", {"seed": 1}, 2),
        ("Hurry.", {"seed": 1, "temperature": 0.1, "max_tokens": 50}, 1),
        ("Work.", {"seed": 1}, 2),
    ]


async def test_what_is_kept_holds_for_the_turn_or_the_run(engine: Engine) -> None:
    def change(step: Step) -> None:
        if step.iteration == 1 and not step.settings:
            step.settings["temperature"] = 0.1
            step.keep("run")
            step.instructions = "Hurry."
            step.keep()

    provider = ScriptedProvider(searches(2) + searches(1))
    one = agent(provider, policy(change), instructions="Work.")
    async with engine.served(one) as client:
        for n in (1, 2):
            await (await client.send(one, str(n), id=engine.task_queue)).result()
        assert [event.kept for event in await steps(client, engine.task_queue)] == [("turn", "run")]
    assert [(asked.system, dict(asked.settings)) for asked in provider.requests] == [
        ("Work.", {}),
        ("Hurry.", {"temperature": 0.1}),
        ("Hurry.", {"temperature": 0.1}),
        ("Work.", {"temperature": 0.1}),
        ("Work.", {"temperature": 0.1}),
    ]


@pytest.mark.server
async def test_what_is_kept_survives_continue_as_new(engine: Engine) -> None:
    def change(step: Step) -> None:
        if step.iteration == 1:
            step.settings["temperature"] = 0.1
            step.keep()

    provider = ScriptedProvider(searches(6))
    await answer(engine, agent(provider, policy(change)), max_history_events=15)
    assert [dict(asked.settings) for asked in provider.requests] == [{}, *[{"temperature": 0.1}] * 6]


async def test_another_model_is_asked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_providers", {})
    big, small = ScriptedProvider([*searches(1)[:1], "From big."]), ScriptedProvider([call("search", query="2")])
    register_provider("small", small)

    def change(step: Step) -> None:
        if step.iteration == 1:
            step.model = "small:tiny"

    one = agent(big, policy(change))
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        response = await run.result()
        (event,) = await steps(client, run.id)
    assert (event.model, event.iteration, response.content) == ("small:tiny", 2, "From big.")
    assert [asked.model for asked in small.requests] == ["tiny"]
    assert len(big.requests) == 2


async def test_a_tool_of_the_worker_is_added_by_its_name_and_runs(engine: Engine) -> None:
    def change(step: Step) -> None:
        if "refund" not in step.tools:
            step.add_tool("refund")
            step.keep()

    provider = ScriptedProvider(
        [call("refund", order="1"), call("refund", order="1"), call("refund", order="2"), "Done."]
    )
    response = await answer(engine, agent(provider, policy(change)), tools=[refund])
    refused, *done = results(response.messages)
    assert refused.startswith("tool not found: refund")
    assert done == ["refunded 1", "refunded 2"]
    offered = [[spec.name for spec in asked.tools] for asked in provider.requests]
    assert offered == [["search", "look"], *[["search", "look", "refund"]] * 3]


async def test_a_tool_that_an_override_took_away_comes_back(engine: Engine) -> None:
    provider = ScriptedProvider([call("look", at="a"), call("search", query="b"), "Done."])
    one = agent(provider, policy(lambda step: step.add_tool("search")))
    response = await answer(engine, one, override={"tools": ["look"]})
    assert results(response.messages) == ["seen a", "found b"]


async def test_nobody_outside_can_give_an_agent_a_tool_of_the_worker(engine: Engine) -> None:
    async with engine.served(agent(["Done."]), tools=[refund]) as client:
        with pytest.raises(InvalidInputError, match="add_tools"):
            await (await client.start("worker", "Go.", override={"add_tools": ["refund"]})).result()


async def test_the_model_and_the_transcript_have_rewritten_results(engine: Engine) -> None:
    def change(step: Step) -> None:
        for index, result in enumerate(step.results):
            step.results[index] = result.content.upper()
        if step.iteration == 2:
            step.set_result(step.calls[0].id, {"kept": 1})

    provider = ScriptedProvider([[call("search", query="x"), call("look", at="y")], call("look", at="z"), "Done."])
    one = agent(provider, policy(change))
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        messages = (await run.result()).messages
        told = [event.results for event in await steps(client, run.id)]
    assert results(messages) == ["FOUND X", "SEEN Y", '{"kept":1}']
    assert results(list(provider.requests[-1].messages)) == results(messages)
    assert [len(ids) for ids in told] == [2, 1]
    assert_closed(messages)


async def test_a_result_may_become_a_picture(engine: Engine) -> None:
    picture = b"\x89PNG\r\n\x1a\n."
    change = policy(lambda step: step.set_result(step.calls[0].id, ["Seen.", File(picture, "image/png")]))
    provider = ScriptedProvider([call("look", at="z"), "Done."])
    response = await answer(engine, agent(provider, change))
    (result,) = next(message for message in response.messages if message.role == "tool").tool_results
    (file,) = result.files
    assert file.blob is not None
    assert provider.requests[1].files[file.blob.hash] == picture


async def test_the_policy_says_something_to_the_model(engine: Engine) -> None:
    provider = ScriptedProvider(searches(2))
    one = agent(provider, policy(lambda step: step.inject(f"{3 - step.iteration} left.")))
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        messages = (await run.result()).messages
        events = [event async for event in run.events(wait=False)]
    assert users(messages) == ["Go.", "2 left.", "1 left."]
    assert [message.by for message in messages if message.role == "user"] == ["tests", "step", "step"]
    said = [(event.content, event.by) for event in events if event.type == "message.injected"]
    assert said == [("Go.", "tests"), ("2 left.", "step"), ("1 left.", "step")]


async def test_an_edited_history_begins_a_new_chain_and_the_old_one_stays(engine: Engine) -> None:
    def change(step: Step) -> None:
        if step.iteration == 3:
            step.trim(2)
            step.messages[0] = Message.user("Be quick.")

    provider = ScriptedProvider(searches(3))
    one = agent(provider, policy(change), instructions="Work.")
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        messages = (await run.result()).messages
        (event,) = await steps(client, run.id)
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [message.text for message in provider.requests[-1].messages] == ["Be quick.", "", ""]
    assert (users(messages), results(messages), messages[0].text) == (["Be quick."], ["found 3"], "Work.")
    before = messages[0].replaces
    assert before is not None
    assert (event.edited, event.head_before) == (True, before.head)
    async with engine.served(one) as client:
        old = await (await client.start(one, "Again.", history=before.head)).transcript()
    assert results(old)[:2] == ["found 1", "found 2"]
    assert before.messages == 7


async def test_the_policy_gives_the_answer_and_nothing_is_paid(engine: Engine) -> None:
    provider = ScriptedProvider(searches(1))
    one = agent(provider, policy(lambda step: step.finish(f"It is {step.results[0].content}.")))
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        response = await run.result()
        events = [event async for event in run.events(wait=False)]
    assert (response.content, response.output, response.finish_reason) == ("It is found 1.",) * 2 + ("stop",)
    assert (len(provider.requests), response.calls, response.iterations) == (1, 1, 2)
    assert response.usage == provider_usage(response.messages)
    assert response.messages[-1].text == "It is found 1."
    assert_closed(response.messages)
    assert [event.type for event in events if event.type.startswith(("model", "step", "turn"))][-3:] == [
        "step",
        "model.completed",
        "turn",
    ]


def provider_usage(messages: Iterable[Message]) -> Any:
    """What the one reply that a model gave has cost."""
    (paid,) = [message.usage for message in messages if message.model is not None]
    return paid


class Found(BaseModel):
    """What was found."""

    what: str
    times: int


async def test_the_policy_gives_a_typed_answer(engine: Engine) -> None:
    one = agent(searches(1)[:1], policy(lambda step: step.finish(what="a", times=1)), output=Found)
    assert (await answer(engine, one)).output in ({"what": "a", "times": 1}, Found(what="a", times=1))


async def test_a_text_that_the_policy_answers_is_the_output_under_any_protocol(engine: Engine) -> None:
    protocols: tuple[Any, ...] = ("text", "tag", "tool")
    enough = policy(lambda step: step.finish("Enough."))
    agents = [
        Agent(way, ScriptedProvider(searches(1)[:1]), tools=[search], hooks=[enough], finish=way) for way in protocols
    ]
    async with engine.served(*agents) as client:
        for way in protocols:
            response = await (await client.start(way, "Go.")).result()
            assert (response.content, response.output) == ("Enough.", "Enough.")


async def test_a_typed_answer_of_the_policy_that_does_not_fit_fails_the_run(engine: Engine) -> None:
    one = agent(searches(1)[:1], policy(lambda step: step.finish(what="a", times="often")), output=Found)
    with pytest.raises(HookError, match=r"step_policy \(on_iteration\) failed: .*\n- times: ") as failed:
        await answer(engine, one)
    assert "step.finish: the value is not of the output type" in str(failed.value)


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_answer_of_a_policy_goes_through_the_output_validators(engine: Engine, is_async: bool) -> None:
    def doubled(output: Found) -> Found:
        if output.times > 10:
            raise ModelRetry("at most 10 times")
        return output.model_copy(update={"times": output.times * 2})

    async def doubled_later(output: Found) -> Found:
        return doubled(output)

    validators = [doubled_later if is_async else doubled]
    times = [3, 11]
    one = agent(
        searches(1)[:1] * 2,
        policy(lambda step: step.finish(what="a", times=times.pop(0))),
        output=Found,
        output_validators=validators,
    )
    async with engine.served(one) as client:
        response = await (await client.start(one.name, "Go.")).result()
        assert response.output == {"what": "a", "times": 6}
        refused = await client.start(one.name, "Go.")
        with pytest.raises(HookError, match=r"step\.finish: the answer of agent .* was not accepted.*at most 10 times"):
            await refused.result()
        assert_closed(await refused.transcript())


async def test_an_error_of_a_validator_is_the_policy_s_run_s(engine: Engine) -> None:
    def broken(output: str) -> str:
        raise ValueError("no")

    one = agent(searches(1)[:1], policy(lambda step: step.finish("Enough.")), output_validators=[broken])
    async with engine.served(one) as client:
        with pytest.raises(HookError, match=r"the output validator broken of agent .* failed: ValueError: no"):
            await (await client.start(one.name, "Go.")).result()


async def test_a_call_that_is_changed_inside_its_message_is_refused_and_stays_as_it_was(engine: Engine) -> None:
    """The message is the worker's copy of what is recorded: others would be told otherwise."""
    values: dict[str, Any] = {"text": "***", "set": {1, 2}, "function": lambda: None}

    def redact(step: Step) -> None:
        step.calls[0].arguments["query"] = values[users(step.messages)[0]]

    provider = ScriptedProvider(searches(1) * 3)
    logging = agent(provider, policy(redact, on_error="log"))
    failing = Agent("failing", ScriptedProvider(searches(1)[:1] * 3), tools=[search], hooks=[policy(redact)])
    async with engine.served(logging, failing) as client:
        for wrong in values:
            response = await (await client.start(logging, wrong)).result()
            arguments = [one.arguments for message in provider.requests[-1].messages for one in message.tool_calls]
            assert (response.content, arguments) == ("Done.", [{"query": "1"}])
            with pytest.raises(HookError, match="a call of search were changed in place"):
                await (await client.start(failing, wrong)).result()


async def test_the_policy_ends_the_run(engine: Engine) -> None:
    one = agent(searches(1), policy(lambda step: step.abort("too dear")))
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        with pytest.raises(AbortError, match="too dear"):
            await run.result()
        messages = await run.transcript()
    assert results(messages) == ["found 1"]
    assert_closed(messages)


def bad_model(step: Step) -> None:
    step.model = "nobody:x"


def bad_setting(step: Step) -> None:
    step.model = "openai:gpt-5"
    step.settings["top_k"] = 3


def orphan(step: Step) -> None:
    del step.messages[1]


async def test_what_cannot_be_carried_out_fails_the_run_and_names_the_hook(engine: Engine) -> None:
    cases: list[tuple[Callable[[Step], Any], str]] = [
        (bad_model, "nobody"),
        (bad_setting, "top_k"),
        (orphan, "message 1 has a result without a call"),
        (lambda step: step.add_tool("refund"), "there is no tool 'refund'"),
        (lambda step: step.inject("x" * 10) or 1 / 0, "ZeroDivisionError"),
        (lambda step: step.messages.append("Hi."), "only Message objects"),
        (lambda step: (step.settings.update(metadata={"x": "y" * 200_000}), step.keep()), "step.keep"),
    ]
    provider = ScriptedProvider(searches(1)[:1] * len(cases))
    agents = [
        Agent(f"worker-{n}", provider, tools=[search, look], hooks=[policy(do)]) for n, (do, _) in enumerate(cases)
    ]
    async with engine.served(*agents) as client:
        for one, (_, says) in zip(agents, cases, strict=True):
            with pytest.raises(HookError, match=r"the hook step_policy \(on_iteration\)") as failed:
                await (await client.start(one, "Go.")).result()
            assert says in str(failed.value)
    assert len(provider.requests) == len(cases), "none has asked its model again"


async def test_a_policy_that_is_only_logged_has_changed_nothing_when_it_fails(engine: Engine) -> None:
    def failing(step: Step) -> None:
        step.settings["temperature"] = 1
        step.inject("Lost.")
        step.finish("Lost.")
        raise ValueError("no")

    provider = ScriptedProvider(searches(1))
    hooks = [
        policy(lambda step: step.inject("First.")),
        policy(failing, on_error="log"),
        policy(lambda step: step.inject(f"Last, {len(step.messages)}.")),
    ]
    response = await answer(engine, agent(provider, *hooks))
    assert users(response.messages) == ["Go.", "First.", "Last, 4."]
    assert [dict(asked.settings) for asked in provider.requests] == [{}, {}]


async def test_the_next_policy_sees_what_the_one_before_has_done_and_none_runs_behind_an_answer(engine: Engine) -> None:
    seen: list[Any] = []

    def never(step: Step) -> None:
        seen.append(("never", step.tools))

    hooks = [
        policy(lambda step: step.remove_tool("look")),
        policy(lambda step: (seen.append(step.tools), step.finish("Enough."))),
        policy(never),
        policy(never, on_error="log"),  # it goes by itself: what it does is undone where it fails
        policy(never),
    ]
    assert (await answer(engine, agent(searches(1), *hooks))).content == "Enough."
    assert seen == [("search",)]


async def test_the_policy_runs_before_a_forced_answer_too(engine: Engine) -> None:
    seen: list[tuple[int, bool]] = []

    def watch(step: Step) -> None:
        seen.append((step.iteration, step.forced))

    response = await answer(engine, agent(searches(2), policy(watch), max_iterations=2))
    assert seen == [(1, False), (2, True)]
    assert (response.content, response.finish_reason) == ("Done.", "limit")


async def test_without_changes_nothing_is_said_of_a_step(engine: Engine) -> None:
    one = agent(searches(1), policy(lambda step: step.reply))
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        await run.result()
        assert await steps(client, run.id) == []


async def test_requests_of_one_agent_share_their_prefix_until_history_is_edited(engine: Engine) -> None:
    """A policy that only looks costs no prompt cache."""
    provider = ScriptedProvider(searches(3))
    await answer(engine, agent(provider, policy(lambda step: step.reply)))

    def begins(later: ModelRequest, earlier: ModelRequest) -> bool:
        return list(later.messages)[: len(earlier.messages)] == list(earlier.messages)

    assert all(begins(later, earlier) for earlier, later in zip(provider.requests, provider.requests[1:], strict=False))


async def test_a_worker_s_tool_has_its_own_hooks(engine: Engine) -> None:
    @hook("after_tool_call")
    def doubled(result: ToolResultPart) -> str:
        return result.content * 2

    @tool(hooks=[doubled])
    async def pay(order: str) -> str:
        """Pay."""
        return f"paid {order}."

    provider = ScriptedProvider([call("look", at="x"), call("pay", order="1"), "Done."])
    one = agent(provider, policy(lambda step: step.iteration == 1 and step.add_tool("pay")))
    response = await answer(engine, one, tools=[pay])
    assert results(response.messages) == ["seen x", "paid 1.paid 1."]


async def test_what_a_policy_remembers_is_kept_with_the_outcome(engine: Engine) -> None:
    @hook("on_iteration")
    async def count(step: Step, ctx: RunContext) -> None:
        steps = await ctx.memory.get("steps", ctx.agent, 0) + 1
        await ctx.memory.put("steps", ctx.agent, steps)
        step.inject(f"Step {steps}.")

    one = agent(searches(2) + searches(1), count)
    async with engine.served(one) as client:
        for _ in range(2):
            messages = (await (await client.start(one, "Go.")).result()).messages
        assert await client.memory.get("steps", "worker") == 3
    assert users(messages) == ["Go.", "Step 3."]


async def test_the_policy_of_the_worker_runs_before_the_agents(engine: Engine) -> None:
    provider = ScriptedProvider(searches(1))
    one = agent(provider, policy(lambda step: step.inject("Agent.")))
    async with engine.served(one, hooks=[policy(lambda step: step.inject("Worker."))]) as client:
        response = await (await client.start(one, "Go.")).result()
    assert users(response.messages) == ["Go.", "Worker.", "Agent."]


async def test_the_full_transcript_has_what_an_edit_left_out(engine: Engine) -> None:
    def change(step: Step) -> None:
        if step.iteration == 3:
            step.trim(2)

    one = agent(searches(4), policy(change), instructions="Work.")
    async with engine.served(one) as client:
        run = await client.start(one, "Go.")
        short, full = (await run.result()).messages, await run.transcript(full=True)
    assert results(short) == ["found 3", "found 4"]
    assert results(full) == ["found 1", "found 2", "found 3", "found 4"]
    assert users(full) == ["Go."]


async def test_instructions_of_a_step_stand_behind_the_results_that_it_was_given(engine: Engine) -> None:
    def change(step: Step) -> None:
        step.instructions = f"Hurry: {step.iteration}."

    response = await answer(engine, agent(searches(2), policy(change), instructions="Work."))
    assert_closed(response.messages)
    roles = [message.role for message in response.messages]
    step = ["assistant", "tool", "system"]
    assert roles == ["system", "user", *step, *step, "assistant"]
