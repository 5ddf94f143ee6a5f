"""``scripted`` in process. That it says what the real engine says: tests/integration/test_testing_kit.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.service import RPCError

from perdure import Agent, ToolContext, local, tool
from perdure.errors import AuthenticationError, InvalidInputError, RateLimitError, RunCancelledError, StoreError
from perdure.ports.model import ModelRequest
from perdure.ports.test_seams import fake_models, fake_servers
from perdure.testing import MemoryStore, ScriptError, call, cut, fail, hang, scripted
from perdure.testing.execution import MAX_ATTEMPTS
from tests.support.checks import assert_closed, results, users
from tests.support.wait import eventually


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def an_agent(*tools: Any, name: str = "scripted", **options: Any) -> Agent:
    return Agent(name, "openai:gpt-5-mini", tools=[add, *tools], **options)


# --- calls


def test_sync_in_a_plain_function() -> None:
    agent = an_agent()
    with scripted(agent, [call("add", a=1, b=2), "Three."]) as script:
        response = agent.call_sync("One and two?")
    assert (response.content, response.iterations) == ("Three.", 2)
    assert results(script.requests[1].messages) == ["3"]
    assert_closed(response.messages)


async def test_sync_block_in_an_event_loop() -> None:
    agent = an_agent()
    with scripted(agent, ["Hello."]):
        assert (await agent.call("Hi.")).content == "Hello."


async def test_replies_of_an_async_block_run_on_the_tests_own_loop() -> None:
    agent, here = an_agent(), asyncio.get_running_loop()
    opened = asyncio.Event()

    async def reply(request: ModelRequest) -> str:
        assert asyncio.get_running_loop() is here
        await opened.wait()
        return "Hello."

    async with scripted(agent, reply) as script:
        calling = asyncio.create_task(agent.call("Hi."))
        await eventually(lambda: script.requests)
        opened.set()
        assert (await calling).content == "Hello."


def test_code_under_test_may_run_in_threads() -> None:
    agent, said = an_agent(), []
    with scripted(agent, lambda request: request.messages[-1].text):
        threads = [threading.Thread(target=lambda n=n: said.append(agent.call_sync(str(n)).content)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(said) == ["0", "1", "2", "3"]


async def test_local_serves_the_scripted_agent_and_others_with_it() -> None:
    agent, other = an_agent(), an_agent(name="other")
    async with scripted(agent, ["Hello."]), scripted(other, ["I am the other."]), local([agent, other]) as client:
        assert (await (await client.start("scripted", "Hi.")).result()).content == "Hello."
        assert (await (await client.start("other", "Hi.")).result()).content == "I am the other."


def test_what_is_outside_the_block_is_as_before() -> None:
    agent = an_agent()
    with pytest.raises(ZeroDivisionError), scripted(agent, ["Never."]):
        raise ZeroDivisionError
    assert (fake_models, fake_servers) == ([], [])


def test_a_run_of_an_id_is_attached_to_also_when_it_has_ended() -> None:
    agent = an_agent()
    with scripted(agent, ["Hello."]):
        first, again = (agent.call_sync("Hi.", id="order-7") for _ in range(2))
    assert first == again


def test_blocks_may_share_a_store() -> None:
    agent, store = an_agent(), MemoryStore()
    with scripted(agent, ["I am perdure."], store=store):
        first = agent.call_sync("Who are you?")
    with scripted(agent, ["As I said."], store=store) as script:
        agent.call_sync("Again?", history=first)
    assert users(script.requests[0].messages) == ["Who are you?", "Again?"]


def test_wrong_arguments_are_refused_as_ever() -> None:
    agent = an_agent()
    with scripted(agent, []), pytest.raises(InvalidInputError, match="may have"):
        agent.call_sync("Hi.", context={"large": "x" * 20_000})


# --- a tool and what it is given


def test_tools_have_resources_context_and_memory() -> None:
    entered: list[str] = []

    @asynccontextmanager
    async def resources() -> AsyncIterator[str]:
        entered.append("entered")
        yield "a pool"
        entered.append("left")

    @tool
    async def tell(ctx: ToolContext) -> Any:
        """Tell."""
        await ctx.memory.put("test", "key", ctx.context["user"])
        ctx.heartbeat("still here")
        return [ctx.resources, ctx.cancelled, await ctx.memory.get("test", "key")]

    agent = an_agent(tell)
    with scripted(agent, [call("tell"), "Done."], lifespan=resources) as script:
        agent.call_sync("Hi.", context={"user": "ana"})
        assert entered == ["entered"]
    assert results(script.requests[1].messages) == ['["a pool",false,"ana"]']
    assert entered == ["entered", "left"]


def test_a_tool_may_steer_its_own_run() -> None:
    @tool
    async def steer(ctx: ToolContext) -> str:
        """Inject a message."""
        await script.client.run(ctx.run_id).inject("By the way.")
        return "done"

    agent = an_agent(steer)
    with scripted(agent, [call("steer"), "Heard."]) as script:
        response = agent.call_sync("Hi.")
    assert users(response.messages) == ["Hi.", "By the way."]


async def test_interrupted_tools_are_stopped_and_the_transcript_is_closed() -> None:
    began, stopped = threading.Event(), threading.Event()

    @tool
    async def wait(ctx: ToolContext) -> str:
        """Wait."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    agent, store = an_agent(wait), MemoryStore()
    async with scripted(agent, [[call("wait"), call("add", a=1, b=1)], "Stopped."], store=store) as script:
        run = await script.client.start(agent, "Hi.")
        await eventually(lambda: any(commit.outcome and commit.outcome.kind == "tool" for commit in store.commits))
        await eventually(began.is_set)
        await run.interrupt("Stop.")
        response = await run.result()
    assert stopped.is_set()
    assert_closed(response.messages)
    assert results(response.messages)[0].startswith("Cancelled: wait was cancelled")
    assert results(response.messages)[1] == "2"


async def test_a_cancelled_call_cancels_its_run() -> None:
    agent = an_agent()
    async with scripted(agent, [hang()]) as script:
        calling = asyncio.create_task(agent.call("Hi."))
        await eventually(lambda: script.requests)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        (run,) = await script.client.list()
        assert run.status == "cancelled"


async def test_a_terminated_run() -> None:
    agent = an_agent()
    async with scripted(agent, [hang()]) as script:
        run = await script.client.start(agent, "Hi.")
        await eventually(lambda: script.requests)
        await run.handle.terminate()
        with pytest.raises(RunCancelledError, match="terminated"):
            await run.result()


# --- sessions


def test_a_session_without_an_event_loop() -> None:
    agent = an_agent()
    with scripted(agent, ["Hello, Ana.", "You are Ana."]) as script:
        assert script.send_sync("I am Ana.", id="user-7").content == "Hello, Ana."
        assert script.send_sync("Who am I?", id="user-7").content == "You are Ana."
    assert users(script.requests[1].messages) == ["I am Ana.", "Who am I?"]


async def test_a_message_that_is_refused() -> None:
    agent = an_agent()
    async with scripted(agent, ["Hello."]) as script:
        turn = await script.send("Hi.", id="user-7")
        with pytest.raises(InvalidInputError):
            await turn.run.send("x", message_id="m" * 500)
        assert (await turn.result()).content == "Hello."


# --- what goes wrong


def test_retryable_errors_are_tried_again_at_once_and_cut_streams_too() -> None:
    agent = an_agent()
    replies = [fail(RateLimitError("slow down", retry_after=3600)), cut("Half a sentence", after=4), "Hello."]
    with scripted(agent, replies) as script:
        assert agent.call_sync("Hi.").content == "Hello."
    assert len(script.requests) == 3


def test_not_for_ever() -> None:
    agent = an_agent()
    asked: list[ModelRequest] = []

    def reply(request: ModelRequest) -> Any:
        asked.append(request)
        return fail(RateLimitError("slow down"))

    said = f"given up after {MAX_ATTEMPTS} attempts"
    with pytest.raises(RateLimitError, match=said), scripted(agent, reply):
        agent.call_sync("Hi.")
    assert len(asked) == MAX_ATTEMPTS


def test_others_end_the_run() -> None:
    agent = an_agent()
    with scripted(agent, [AuthenticationError("wrong key")]), pytest.raises(AuthenticationError, match="wrong key"):
        agent.call_sync("Hi.")


def test_a_store_that_fails_for_a_while() -> None:
    agent = an_agent()

    class Failing(MemoryStore):
        away = 3

        async def find_outcomes(self, keys: Any) -> Any:
            self.away -= 1
            if self.away >= 0:
                raise StoreError("away")
            return await super().find_outcomes(keys)

    store = Failing()
    with scripted(agent, ["Hello."], store=store):
        assert agent.call_sync("Hi.").content == "Hello."
    assert store.away < 0


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        (["Hello.", "Never."], "The script has 2 replies; 1 of them was not requested."),
        (["Hello.", "Never.", "Never."], "The script has 3 replies; 2 of them were not requested."),
    ],
)
def test_replies_that_are_left_over(replies: list[str], said: str) -> None:
    agent = an_agent()
    with pytest.raises(ScriptError, match=said), scripted(agent, replies):
        agent.call_sync("Hi.")


def test_replies_that_are_missing() -> None:
    agent = an_agent()
    said = "1 reply, and the model was called 2 times; its last message"
    with pytest.raises(ScriptError, match=said), scripted(agent, [call("add", a=1, b=2)]):
        agent.call_sync("Hi.")


async def test_replies_that_are_missing_in_the_background() -> None:
    agent = an_agent()
    block = scripted(agent, [])
    script = await block.__aenter__()
    await script.client.start(agent, "Hi.")
    await eventually(lambda: script.requests)
    with pytest.raises(ScriptError, match="0 replies"):
        await block.__aexit__(None, None, None)


def test_one_text_is_no_list_of_replies() -> None:
    with pytest.raises(TypeError, match=r"\['Hello.'\]"):
        scripted(an_agent(), "Hello.")
    with pytest.raises(ValueError, match="process"):
        scripted(an_agent(), [], engine="real")  # type: ignore[arg-type]


# --- what stands for Temporal


async def test_what_needs_a_real_server_says_so() -> None:
    agent = an_agent()
    async with scripted(agent, []) as script:
        with pytest.raises(RPCError, match='scripted\\(…, engine="temporal"\\)'):
            await script.client.temporal.get_schedule_handle("x").describe()
        with pytest.raises(RPCError, match="only AgentWorkflow"):
            await script.client.temporal.start_workflow("Other", id="x", task_queue="x")


async def test_a_bad_start_ends_the_run() -> None:
    agent = an_agent()
    async with scripted(agent, []) as script:
        handle = await script.client.temporal.start_workflow("AgentWorkflow", "hello", id="bad", task_queue="x")
        with pytest.raises(InvalidInputError, match="one JSON object"):
            await script.client.run(handle.id).result()


# --- several agents


def test_agents_that_it_calls_are_scripted_too() -> None:
    helper = an_agent(name="helper")
    boss = an_agent(name="boss", subagents=[helper])
    replies: Any = [
        [call("call_helper", task="a"), call("call_helper", task="b")],
        lambda r: "; ".join(results(r.messages)),
    ]
    with scripted(boss, replies, others={helper: lambda r: f"heard {users(r.messages)[0]}"}) as script:
        response = boss.call_sync("Go.", id="tree")
        assert response.content == "heard a; heard b"
        assert len(script.requests) == 2
        assert len(script.requests_of("helper")) == len(script.requests_of(helper)) == 2
        second = asyncio.run(script.client.run("tree").children())[1]
        assert asyncio.run(second.result()).content == "heard b"


def test_replies_of_another_agent_that_are_left_over() -> None:
    helper = an_agent(name="helper")
    boss = an_agent(name="boss", subagents=[helper])
    left_over = "helper: The script has 1 reply; 1 of them was not requested"
    with pytest.raises(ScriptError, match=left_over), scripted(boss, ["Done."], others={helper: ["unheard"]}):
        boss.call_sync("Go.")


async def test_cancelling_in_process_goes_down_the_tree() -> None:
    entered = asyncio.Event()

    async def stuck(_: ModelRequest) -> str:
        entered.set()
        await asyncio.Event().wait()
        return "never"

    low = an_agent(name="low")
    mid = an_agent(name="mid", subagents=[low])
    top = an_agent(name="top", subagents=[mid])
    down: Any = [call("call_mid", task="x")], {mid: [call("call_low", task="y")], low: stuck}
    async with scripted(top, down[0], others=down[1]) as script:
        run = await script.client.start(top, "Go.", id="tree")
        await entered.wait()
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        (middle,) = await run.children()
        for one in (run, middle, *await middle.children()):
            assert (await one.status()).state == "cancelled"
            assert_closed(await one.transcript())


async def test_a_call_that_asks_nothing_is_refused_and_does_not_wait() -> None:
    agent = Agent("shy", "openai:gpt-5")
    async with scripted(agent, []):
        with pytest.raises(InvalidInputError, match="agent 'shy' was asked nothing"):
            await agent.call(None)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="agent 'shy' was asked nothing"):
            await anext(agent.stream(None))  # type: ignore[arg-type]
