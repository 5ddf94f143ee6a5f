"""Runs from start to end through the public interface."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from pydantic import BaseModel, Field

from perdure import Agent, RunContext, tool
from perdure.errors import (
    AuthenticationError,
    BadRequestError,
    MaxIterationsError,
    RunCancelledError,
    RunClosedError,
    RunExistsError,
    RunNotFoundError,
    TranscriptUnavailableError,
)
from perdure.ports.model import Completed, ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import TextPart
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import calls_then
from tests.support.wait import eventually


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_tool_is_called_and_its_result_reaches_the_model(engine: Engine) -> None:
    provider = ScriptedProvider([call("add", a=1, b=2), lambda request: f"It is {results(request.messages)[-1]}."])
    async with engine.served(Agent("adder", provider, tools=[add])) as client:
        run = await client.start("adder", "1 + 2?")
        response = await run.result()
    assert response.content == response.output == "It is 3."
    assert (response.iterations, response.calls) == (2, 2)
    assert (response.finish_reason, response.finish_called) == ("stop", False)
    assert response.context_id == run.id
    assert [message.role for message in response.messages] == ["user", "assistant", "tool", "assistant"]
    assert response.usage.input_tokens == sum(m.usage.input_tokens for m in response.messages if m.usage)
    assert_closed(response.messages)


async def test_the_answer_stands_in_the_tag(engine: Engine) -> None:
    provider = ScriptedProvider(["I am thinking.", "It is <finish> 42 </finish>, I think."])
    async with engine.served(Agent("tagged", provider, instructions="Be brief.", finish="tag")) as client:
        response = await (await client.start("tagged", "6 * 7?")).result()
    assert (response.content, response.finish_called, response.iterations) == ("42", True, 2)
    assert provider.requests[0].system is not None
    assert provider.requests[0].system.startswith("Be brief.")
    assert "<finish>" in provider.requests[0].system
    assert "no <finish> tag" in provider.requests[1].messages[-1].text
    assert response.messages[0].role == "system"


async def test_at_the_limit(engine: Engine) -> None:
    def reply(request: ModelRequest) -> Any:
        return ["Still looking.", call("add", a=1, b=1)] if request.tools else "All I know is this."

    ways: dict[Any, str | None] = {"finish": "All I know is this.", "return": "Still looking.", "error": None}
    agents = [Agent(way, ScriptedProvider(reply), tools=[add], max_iterations=3, on_limit=way) for way in ways]
    async with engine.served(*agents) as client:
        for way, content in ways.items():
            run = await client.start(way, "Go on for ever.")
            if content is None:
                with pytest.raises(MaxIterationsError, match="within 3 iterations"):
                    await run.result()
                assert (await run.status()).state == "failed"
            else:
                response = await run.result()
                assert (response.content, response.finish_reason) == (content, "limit")
                assert response.calls == (4 if way == "finish" else 3)
            messages = await run.transcript()
            row = await (await client.store()).get_run(run.id)
            assert_closed(messages)
            assert results(messages) == ["2", "2", "2"]
            assert row is not None
            assert row.status == ("failed" if content is None else "completed")


async def test_instructions_may_be_a_function(engine: Engine) -> None:
    seen: list[RunContext[dict[str, Any]]] = []

    async def prompt(ctx: RunContext[dict[str, Any]]) -> str:
        seen.append(ctx)
        return f"Serve {ctx.context['user']}, step {ctx.iteration}."

    provider = ScriptedProvider([call("add", a=1, b=1), "Done."])
    async with engine.served(Agent("prompted", provider, instructions=prompt, tools=[add])) as client:
        run = await client.start("prompted", "hi", context={"user": "ana"})
        response = await run.result()
    assert [request.system for request in provider.requests] == ["Serve ana, step 1.", "Serve ana, step 2."]
    assert [message.text for message in response.messages if message.role == "system"] == [
        "Serve ana, step 1.",
        "Serve ana, step 2.",
    ]
    assert seen[0].run_id == run.id
    assert seen[0].task_id == response.task_id


async def test_a_prompt_that_raises_fails_the_run_in_the_end(engine: Engine) -> None:
    attempts = 0

    def prompt(ctx: RunContext[Any]) -> str:
        nonlocal attempts
        attempts += 1
        if attempts < 2:
            raise LookupError("no prompt today")
        return "Be brief."

    async with engine.served(Agent("moody", ScriptedProvider(["Hi."]), instructions=prompt)) as client:
        assert (await (await client.start("moody", "hi")).result()).content == "Hi."
    assert attempts == 2


async def test_the_runs_table_knows_every_run(engine: Engine) -> None:
    async with engine.served(Agent("adder", ScriptedProvider(calls_then(2, "add", a=1, b=1)), tools=[add])) as client:
        run = await client.start("adder", "Go.", id=f"known-{engine.task_queue}")
        response = await run.result()
        store = await client.store()
        row = await store.get_run(run.id)
        listed = [summary.id for summary in await client.list(agent="adder", limit=1000)]
    assert row is not None
    assert (row.status, row.agent, row.head, row.iterations) == ("completed", "adder", response.head, 3)
    assert row.result is not None
    assert json.loads(row.result)["content"] == "Done."
    assert run.id in listed


async def test_a_failing_provider_fails_the_run_with_its_own_error(engine: Engine) -> None:
    provider = ScriptedProvider([call("add", a=1, b=1), AuthenticationError("wrong key", status=401)])
    async with engine.served(Agent("locked", provider, tools=[add])) as client:
        run = await client.start("locked", "hi")
        with pytest.raises(AuthenticationError, match="wrong key"):
            await run.result()
        messages = await run.transcript()
        row = await (await client.store()).get_run(run.id)
        status = await run.status()
    assert_closed(messages)
    assert users(messages) == ["hi"]
    assert results(messages) == ["2"]
    assert row is not None
    assert row.status == "failed"
    assert json.loads(row.result or b"")["error_type"] == "AuthenticationError"
    assert status.state == "failed"


async def test_the_first_call_may_fail_for_good(engine: Engine) -> None:
    async with engine.served(Agent("bad", ScriptedProvider([BadRequestError("no such thing")]))) as client:
        run = await client.start("bad", "hello?")
        with pytest.raises(BadRequestError, match="no such thing"):
            await run.result()
        assert users(await run.transcript()) == ["hello?"]


@pytest.mark.fault("Models and tools", "The model's API fails for now.", "The call is tried again until it answers.")
async def test_a_retryable_failure_is_retried(engine: Engine) -> None:
    from perdure.errors import RateLimitError

    provider = ScriptedProvider([RateLimitError("slow down", retry_after=0.05), "Hi."])
    async with engine.served(Agent("patient", provider)) as client:
        response = await (await client.start("patient", "hi")).result()
    assert response.content == "Hi."
    assert users(response.messages) == ["hi"]
    assert len(provider.requests) == 2


async def test_an_empty_reply_is_reminded(engine: Engine) -> None:
    provider = ScriptedProvider([Completed(()), Completed((TextPart(text="  "),)), "Here."])
    async with engine.served(Agent("silent", provider)) as client:
        response = await (await client.start("silent", "hi")).result()
    assert (response.content, response.iterations) == ("Here.", 3)


async def test_known_ids(engine: Engine) -> None:
    async with engine.served(Agent("greeter", ScriptedProvider(lambda _: "Hello."))) as client:
        run = await client.start("greeter", "hi", id=f"ana-{engine.task_queue}")
        with pytest.raises(RunExistsError, match="attach"):
            await client.start("greeter", "hi", id=run.id)
        attached = await client.start("greeter", "hi", id=run.id, if_exists="attach")
        first, second = await run.result(), await attached.result()
        assert first == second
        # A finished run of the id counts too.
        with pytest.raises(RunExistsError):
            await client.start("greeter", "hi", id=run.id)
        again = await client.start("greeter", "hi", id=run.id, if_exists="attach")
        assert (await again.result()).head == first.head
        with pytest.raises(RunClosedError):
            await run.inject("too late")
        with pytest.raises(RunNotFoundError):
            await client.run("nobody").result()
        with pytest.raises(RunNotFoundError):
            await client.run("nobody").inject("hi")
        with pytest.raises(RunNotFoundError):
            await client.run("nobody").status()


async def test_an_id_with_another_message_is_an_error(engine: Engine) -> None:
    agent = Agent("greeter", ScriptedProvider(echo_last))
    other = {"match": "was started with another message"}
    async with engine.served(agent) as client:
        run = await client.start(agent, "hi", id=f"ana-{engine.task_queue}", mode="session")
        await run.turn().result()
        for message in ("something else", ["hi"], None):
            with pytest.raises(RunExistsError, **other):
                await client.start("greeter", message, id=run.id, if_exists="attach")
            with pytest.raises(RunExistsError, **other):
                await client.start("greeter", message, id=run.id)
        with pytest.raises(RunExistsError, **other):
            await agent.call("something else", id=run.id, client=client)
        # Another client with the same message, by another name.
        assert (await client.start("greeter", "hi", id=run.id, if_exists="attach", by="kim")).id == run.id
        await run.close()
        await run.result()
        with pytest.raises(RunExistsError, **other):  # a run that has ended, too
            await client.start("greeter", "something else", id=run.id, if_exists="attach")
        await (await run.send("And now?")).result()  # another execution
        with pytest.raises(RunExistsError, **other):
            await client.start("greeter", "And now?", id=run.id, if_exists="attach")
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        await run.resume()
        with pytest.raises(RunExistsError, **other):
            await client.start("greeter", "And now?", id=run.id, if_exists="attach")
        assert (await client.start("greeter", "hi", id=run.id, if_exists="attach")).id == run.id


class Visit(BaseModel):
    who: str
    at: str = Field(default_factory=lambda: uuid.uuid4().hex)
    """Another one in every process, as a time, or the order of a set, would be."""


@pytest.mark.parametrize("size", [1, 200_000], ids=["short", "long"])
async def test_a_typed_input_is_sent_again_under_the_same_id(engine: Engine, size: int) -> None:
    agent = Agent("greeter", ScriptedProvider(lambda _: "Welcome."), input=Visit)
    async with engine.served(agent) as client:
        run = await client.start(agent, Visit(who="a" * size), id=f"ana-{engine.task_queue}")
        assert (await run.result()).content == "Welcome."
        for again in (Visit(who="a" * size), {"who": "a" * size}):
            attached = await client.start(agent, again, id=run.id, if_exists="attach")
            assert (await attached.result()).content == "Welcome."


async def test_a_message_that_reopens_a_run_by_its_id_keeps_what_it_was_started_with(engine: Engine) -> None:
    agent = Agent("greeter", ScriptedProvider(echo_last))
    async with engine.served(agent) as client:
        run = await client.start(agent, "hi", id=f"ana-{engine.task_queue}")
        await run.result()
        await (await client.send(agent, "more", id=run.id)).result()
        with pytest.raises(RunExistsError, match="another message"):
            await client.start(agent, "something else", id=run.id, if_exists="attach")


def echo_last(request: ModelRequest) -> str:
    return f"You said {users(request.messages)[-1]}."


@pytest.mark.server
async def test_an_id_with_another_message_is_an_error_after_continue_as_new(engine: Engine) -> None:
    async with engine.served(Agent("greeter", ScriptedProvider(echo_last))) as client:
        run = await client.start("greeter", "hi", id=f"ana-{engine.task_queue}", mode="session", max_history_events=12)
        await run.turn().result()
        first = (await run.describe()).run_id
        while (await run.describe()).run_id == first:
            await (await run.send("More.")).result()
        with pytest.raises(RunExistsError, match="another message"):
            await client.start("greeter", "something else", id=run.id, if_exists="attach")
        assert (await client.start("greeter", "hi", id=run.id, if_exists="attach")).id == run.id


async def test_a_run_of_a_plain_client_is_attached_to(engine: Engine) -> None:
    async with engine.served(Agent("greeter", ScriptedProvider(echo_last))) as client:
        start = {"agent": "greeter", "message": "hi"}
        name = f"plain-{engine.task_queue}"
        await client.temporal.start_workflow("AgentWorkflow", start, id=name, task_queue=engine.task_queue)
        run = await client.start("greeter", "who knows", id=name, if_exists="attach")
        assert (await run.result()).content == "You said hi."


async def test_a_client_without_the_store_gets_everything_but_the_messages(engine: Engine) -> None:
    async with engine.served(Agent("greeter", ScriptedProvider(["Hello."]))):
        client = await engine.client(store=False)
        run = await client.start("greeter", "hi")
        response = await run.result()
        assert (response.content, response.messages) == ("Hello.", ())
        assert (await run.status()).state == "completed"
        with pytest.raises(TranscriptUnavailableError, match="store_url"):
            await run.transcript()


async def test_a_run_waits_for_its_first_message(engine: Engine) -> None:
    async with engine.served(Agent("greeter", ScriptedProvider(lambda r: f"Hello {r.messages[-1].text}."))) as client:
        run = await client.start("greeter")
        waiting = await eventually(lambda: _status_is(run, "idle"))
        assert waiting.doing == "message"
        await run.inject("Ana")
        assert (await run.result()).content == "Hello Ana."


async def _status_is(run: Any, state: str) -> Any:
    status = await run.status()
    return status if status.state == state else None


async def test_the_newest_run_is_listed_first_also_behind_many_open_ones(engine: Engine) -> None:
    async with engine.served(Agent("greeter", ScriptedProvider(["Hello."]))) as client:
        for _ in range(3):
            await client.start("greeter")  # waits for its first message
        run = await client.start("greeter", "Hi")
        await run.result()

        async def first() -> bool:
            (newest,) = await client.list(limit=1)
            return (newest.id, newest.status) == (run.id, "completed")

        await eventually(first, what="the run that was started last")
