"""Hooks in real runs: their order, what they change and veto, and what becomes of their failures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import activity
from temporalio.plugin import SimplePlugin
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor
from temporalio.worker import Worker as TemporalWorker

from perdure import (
    Abort,
    Agent,
    Approval,
    Compaction,
    File,
    Message,
    PerdurePlugin,
    RunContext,
    ToolContext,
    Veto,
    hook,
    tool,
)
from perdure.errors import AbortError, DefinitionError, HookError, RateLimitError, RunCancelledError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import TextPart, ToolCallPart, ToolResultPart
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


async def ask(engine: Engine, agent: Agent, message: Any = "Go.", **options: Any) -> Any:
    """The response of one run; ``options`` are the worker's."""
    context = options.pop("context", None)
    async with engine.served(agent, **options) as client:
        return await (await client.start(agent.name, message, context=context)).result()


def noting(event: Any, said: list[str], who: str) -> Any:
    return hook(event, name=who)(lambda: said.append(f"{event} {who}"))


async def test_the_worker_s_the_agent_s_and_the_tool_s_in_this_order(engine: Engine) -> None:
    said: list[str] = []
    calls, tools = ("before_llm_call", "after_llm_call"), ("before_tool_call", "after_tool_call")

    def all_of(who: str, events: tuple[str, ...]) -> list[Any]:
        return [noting(event, said, f"{who}{n}") for event in events for n in (1, 2)]

    @tool(hooks=all_of("tool", tools))
    def act() -> str:
        """Act."""
        said.append("act")
        return "done"

    agent = Agent(
        "ordered", ScriptedProvider([call("act"), "Done."]), tools=[act], hooks=all_of("agent", (*calls, *tools))
    )
    await ask(engine, agent, hooks=all_of("worker", (*calls, *tools)))
    model = [f"{event} {who}{n}" for event in calls for who in ("worker", "agent") for n in (1, 2)]
    around = [[f"{event} {who}{n}" for who in ("worker", "agent", "tool") for n in (1, 2)] for event in tools]
    assert said == [*model, *around[0], "act", *around[1], *model]


async def test_before_llm_call_changes_what_this_call_is_asked_and_nothing_else(engine: Engine) -> None:
    @hook("before_llm_call")
    async def brief(request: ModelRequest, messages: Any, model: str, tools: Any, iteration: int) -> ModelRequest:
        seen.append((model, [one.name for one in tools], iteration, len(messages)))
        return replace(request, system="Brief.", settings={"temperature": 0}, tools=())

    @hook("before_llm_call")
    def last_only(request: ModelRequest) -> list[Message]:
        assert request.system == "Brief.", "it sees what the one before has changed"
        return [Message.user(["The last:", File(b"\x89PNG\r\n\x1a\n..", name="it.png")]), request.messages[-1]]

    @tool
    def act() -> str:
        """Act."""
        return "done"

    seen: list[Any] = []
    provider = ScriptedProvider([call("act"), "Done."])
    agent = Agent("changed", provider, instructions="Long.", tools=[act], hooks=[brief, last_only])
    response = await ask(engine, agent)
    first, second = provider.requests
    assert (first.system, dict(first.settings), first.tools) == ("Brief.", {"temperature": 0}, ())
    assert list(first.files.values()) == [b"\x89PNG\r\n\x1a\n.."]
    assert [message.role for message in second.messages] == ["user", "tool"]
    assert seen == [("ScriptedProvider:custom", ["act"], 1, 1), ("ScriptedProvider:custom", ["act"], 2, 3)]
    assert users(response.messages) == ["Go."]
    assert [message.text for message in response.messages if message.role == "system"] == ["Long."]


async def test_a_veto_answers_in_the_model_s_place_and_costs_nothing(engine: Engine) -> None:
    @hook("before_llm_call")
    def closed() -> Veto:
        return Veto("We are closed.")

    @hook("on_finish")
    def told(content: str, raw_content: str, iterations: int) -> str:
        return f"{content} ({raw_content}, {iterations})"

    provider = ScriptedProvider(["never"])
    response = await ask(engine, Agent("closed", provider, hooks=[closed, told]))
    assert (response.content, response.finish_reason) == ("We are closed. (We are closed., 1)", "veto")
    assert (provider.requests, response.usage.total_tokens, response.cost_usd) == ([], 0, 0.0)
    assert response.messages[-1].text == "We are closed."


async def test_after_llm_call_changes_the_reply_before_it_is_read(engine: Engine) -> None:
    @hook("after_llm_call")
    def other_tool(reply: Message, response: Message, usage: Any) -> Message | str | None:
        assert (reply, usage) == (response, reply.usage)
        if reply.tool_calls:
            return Message.assistant("I call.", ToolCallPart(id="", name="act", arguments={"n": 2}))
        return reply.text.replace("secret", "******")

    @tool
    def act(n: int) -> int:
        """Act."""
        return n

    agent = Agent("reread", ScriptedProvider([call("act", n=1), "A secret."]), tools=[act], hooks=[other_tool])
    response = await ask(engine, agent)
    assert (response.content, results(response.messages)) == ("A ******.", ["2"])
    assert response.usage.total_tokens > 0, "it was paid all the same"
    assert_closed(response.messages)
    assert "secret" not in json.dumps([message.model_dump(mode="json") for message in response.messages])


class User(BaseModel):
    name: str


async def test_tool_hooks_see_a_typed_context_and_change_arguments_and_result(engine: Engine) -> None:
    @hook("before_tool_call")
    async def sign(name: str, arguments: dict[str, Any], call_id: str, ctx: ToolContext[User]) -> Any:
        assert (ctx.call_id, ctx.attempt) == (call_id, 1)
        return {**arguments, "by": ctx.context.name}

    @hook("after_tool_call")
    def shout(result: ToolResultPart, arguments: dict[str, Any]) -> Any:
        assert arguments == {"text": "hi", "by": "Ana"}
        return [result.content.upper(), File(b"\x89PNG\r\n\x1a\n..", name="it.png")]

    @hook("after_tool_call")
    def whole(result: ToolResultPart) -> ToolResultPart:
        return result.model_copy(update={"content": result.content + "!", "is_error": True})

    @tool(inline=True)
    def say(text: str, by: str = "nobody") -> str:
        """Say it."""
        return f"{by}: {text}"

    provider = ScriptedProvider([call("say", text="hi"), "Done."])
    agent = Agent("signed", provider, tools=[say], context=User, hooks=[sign, shout, whole])
    response = await ask(engine, agent, context={"name": "Ana"})
    (part,) = response.messages[-2].tool_results
    assert (part.content, part.is_error, [file.name for file in part.files]) == ("ANA: HI!", True, ["it.png"])
    assert response.messages[1].tool_calls[0].arguments == {"text": "hi"}, "the model's own"
    assert list(provider.requests[1].files.values()) == [b"\x89PNG\r\n\x1a\n.."]


@pytest.mark.parametrize("inline", [True, False])
async def test_arguments_changed_in_place_are_changed_and_checked(engine: Engine, inline: bool) -> None:
    ran: list[Any] = []
    seen: list[Any] = []

    @hook("before_tool_call")
    def edits(arguments: dict[str, Any]) -> None:
        arguments["where"]["city"] = "Oslo"
        if arguments["days"] > 5:
            arguments["days"] = "many"

    @hook("before_tool_call")
    def looks(arguments: dict[str, Any]) -> None:
        seen.append(json.loads(json.dumps(arguments)))

    @hook("after_tool_call")
    def too_late(arguments: dict[str, Any]) -> None:
        arguments["where"]["city"] = "Rome"

    @tool(inline=inline)
    def book(where: dict[str, str], days: int) -> str:
        """Book."""
        ran.append((where, days))
        return "booked"

    calls = [call("book", where={"city": "Bonn"}, days=n) for n in (3, 9)]
    agent = Agent("edits", ScriptedProvider([*calls, "Done."]), tools=[book], hooks=[edits, looks, too_late])
    response = await ask(engine, agent)
    booked, refused = results(response.messages)
    assert (booked, ran) == ("booked", [({"city": "Oslo"}, 3)])
    assert seen == [{"where": {"city": "Oslo"}, "days": 3}, {"where": {"city": "Oslo"}, "days": "many"}]
    assert "- days: Input should be a valid integer" in refused
    assert refused.endswith("(the hook edits had changed the arguments)")
    said = [part.arguments["where"] for message in response.messages for part in message.tool_calls]
    assert said == [{"city": "Bonn"}] * 2


async def test_what_a_hook_does_to_a_tool_call_the_model_is_told(engine: Engine) -> None:
    @hook("before_tool_call")
    def guard(arguments: dict[str, Any]) -> Any:
        how = arguments["how"]
        if how == "veto":
            return Veto("not on Sundays")
        if how == "before":
            raise ValueError("no")
        if how == "number":
            return 7
        return {"how": 3} if how == "unfit" else None

    @hook("after_tool_call")
    def check(arguments: dict[str, Any]) -> Any:
        if arguments["how"] == "after":
            raise ValueError("no")
        return object() if arguments["how"] == "object" else None

    @tool
    def act(how: str) -> str:
        """Act."""
        acted.append(how)
        if how == "fail":
            raise RuntimeError("broken")
        return f"secret {how}"

    acted: list[str] = []
    ways = ["veto", "before", "number", "unfit", "after", "object", "fail", "fine"]
    agent = Agent(
        "guarded",
        ScriptedProvider([[call("act", how=way) for way in ways], "Done."]),
        tools=[act],
        hooks=[guard, check],
    )
    response = await ask(engine, agent)
    said = dict(zip(ways, results(response.messages), strict=True))
    assert said["veto"] == "Vetoed: not on Sundays"
    assert said["before"] == "HookError: the hook guard (before_tool_call) failed: ValueError: no\n(act was not run)"
    assert "returned 7; it may return None, a dictionary of arguments or Veto" in said["number"]
    assert said["unfit"].endswith("(the hook guard had changed the arguments)")
    assert said["after"] == (
        "HookError: the hook check (after_tool_call) failed: ValueError: no\n"
        "(act was run, and its result cannot be shown)"
    )
    assert "is not serialisable" in said["object"]
    assert (said["fail"], said["fine"]) == ("RuntimeError: broken", "secret fine")
    assert sorted(acted) == ["after", "fail", "fine", "object"]
    parts = [part for message in response.messages for part in message.tool_results]
    assert [part.is_error for part in parts] == [True] * 7 + [False]


@pytest.mark.parametrize("event", ["before_llm_call", "after_llm_call", "on_user_message", "on_finish"])
async def test_a_hook_that_fails_in_a_model_call_fails_the_run_at_once(engine: Engine, event: Any) -> None:
    @hook(event)
    def broken() -> None:
        runs.append(event)
        raise ValueError("no")

    runs: list[str] = []
    provider = ScriptedProvider(["Done."])
    with pytest.raises(HookError, match=rf"the hook broken \({event}\) failed: ValueError: no"):
        await ask(engine, Agent("broken", provider, hooks=[broken]))
    paid = event in ("after_llm_call", "on_finish")
    assert len(provider.requests) == paid
    # The ending records the message too: once more there, and the hook is not asked for leave to end.
    assert len(runs) == (2 if event == "on_user_message" else 1)


async def test_a_hook_that_fails_behind_a_paid_reply_does_not_cost_it(engine: Engine) -> None:
    @hook("on_finish")
    def broken() -> None:
        runs.append("asked")
        if len(runs) == 1:
            raise ValueError("no")

    runs: list[str] = []
    provider = ScriptedProvider(["The first.", "The second."])
    async with engine.served(Agent("broken", provider, hooks=[broken])) as client:
        run = await client.start("broken", "Go.")
        with pytest.raises(HookError, match="no"):
            await run.result()
        await run.resume()
        response = await run.result()
        assert (response.content, len(provider.requests), runs) == ("The first.", 1, ["asked", "asked"])
        assert response.usage.output_tokens
        assert await client.memory.list(f"paid:{run.id}") == {}
        [row] = await (await client.store()).list_usage()
        assert (row.output_tokens, row.provider) == (response.usage.output_tokens, "ScriptedProvider")


async def test_one_that_only_logs_lets_the_call_go_on(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    @hook("after_llm_call", on_error="log")
    async def broken() -> None:
        raise ValueError("no")

    response = await ask(engine, Agent("logged", ScriptedProvider(["Done."]), hooks=[broken]))
    assert response.content == "Done."
    assert any("the hook broken (after_llm_call) failed, and the call goes on" in line for line in caplog.messages)


async def test_messages_are_recorded_and_told_as_hooks_have_left_them(engine: Engine) -> None:
    gate = Gate()

    @hook("on_user_message")
    async def mask(message: Message) -> Any:
        return Veto("not for us") if "private" in message.text else message.text.replace("secret", "***")

    @hook("on_user_injection")
    def joined(message: Message, messages: Any) -> Message:
        heard.append((message.text, len(messages)))
        return message.model_copy(update={"parts": (*message.parts, TextPart(text=" (joined)"))})

    @tool
    async def wait() -> str:
        """Wait."""
        await gate()
        return "waited"

    heard: list[Any] = []
    provider = ScriptedProvider([call("wait"), "Done."])
    async with engine.served(Agent("masked", provider, tools=[wait], hooks=[mask, joined])) as client:
        run = await client.start("masked", "A secret.", id=f"{engine.task_queue}-m")
        await eventually(lambda: gate.entered)
        await run.inject("Another secret.", id="m2")
        await run.inject("private", id="m3")
        gate.open()
        response = await run.result()
        events = [event async for event in run.events()]
    said = ["A ***.", "Another ***. (joined)", "[withheld: not for us]"]
    assert users(response.messages) == said
    assert heard == [("Another ***.", 3)], "a veto ends the matter"
    assert users(provider.requests[-1].messages) == said
    assert [(event.id, event.content) for event in events if event.type == "message.injected"] == [
        (None, said[0]),
        ("m2", said[1]),
        ("m3", said[2]),
    ]
    assert b" secret" not in engine.store_path.read_bytes() + _wal(engine), "the word alone names a column"
    assert [message.id for message in response.messages if message.role == "user"] == [None, "m2", "m3"]


def _wal(engine: Engine) -> bytes:
    wal = engine.store_path.with_name(engine.store_path.name + "-wal")
    return wal.read_bytes() if wal.exists() else b""


async def test_a_message_that_only_the_ending_records_goes_through_the_hooks_too(engine: Engine) -> None:
    gate = Gate()

    @hook("on_user_message")
    def mask(message: Message) -> str:
        if "break" in message.text:
            raise ValueError("no")
        return message.text.replace("secret", "***")

    async def reply(request: ModelRequest) -> str:
        await gate()
        return "never"

    said = {"A secret.": "A ***.", "break": "[withheld: HookError when it was recorded]"}
    agent = Agent("ended", ScriptedProvider(reply), hooks=[mask])
    async with engine.served(agent) as client:
        for n, (text, expected) in enumerate(said.items(), 1):
            run = await client.start("ended", "Go.")
            await eventually(lambda n=n: gate.entered == n)
            await run.inject(text)
            await run.cancel()
            await eventually(lambda run=run: _ended(run))
            assert users(await run.transcript())[-1] == expected


async def _ended(run: Any) -> bool:
    return (await run.status()).state == "cancelled"


async def test_errors_are_observed_and_abort_ends_the_run(engine: Engine) -> None:
    @hook("on_error")
    def note(error: Exception, error_type: str, name: str, attempt: int) -> None:
        noted.append((error_type, name, attempt))
        raise ValueError("of its own")  # only logged

    def reply(request: ModelRequest) -> Any:
        if len(provider.requests) == 1:
            raise RateLimitError("slow down", retry_after=0.01)
        return call("act", how="fail") if len(provider.requests) == 2 else call("act", how="abort")

    @tool
    def act(how: str) -> str:
        """Act."""
        if how == "abort":
            raise Abort("enough")
        raise RuntimeError("broken")

    noted: list[Any] = []
    provider = ScriptedProvider(reply)
    async with engine.served(Agent("failing", provider, tools=[act], hooks=[note])) as client:
        run = await client.start("failing", "Go.")
        with pytest.raises(AbortError, match="enough"):
            await run.result()
        transcript = await run.transcript()
    assert noted == [("RateLimitError", "perdure.model", 1), ("RuntimeError", "act", 1), ("AbortError", "act", 1)]
    assert results(transcript) == ["RuntimeError: broken", "AbortError: enough"]
    assert_closed(transcript)


@pytest.mark.parametrize("inline", [True, False])
async def test_abort_of_one_call_lets_those_under_way_end(engine: Engine, inline: bool) -> None:
    gate = Gate()

    @tool
    async def slow() -> str:
        """Take long."""
        await gate()
        return "slowly"

    @hook("after_tool_call")
    def enough(name: str) -> None:
        if name == "stop":
            gate.open()
            raise Abort("enough", hint="Ask less.")

    @tool(inline=inline)
    async def stop() -> str:
        """Stop."""
        if not inline:
            await eventually(lambda: gate.entered)
        return "stopped"

    calls = [call("slow"), call("stop"), call("stop")] if inline else [call("slow"), call("stop")]
    agent = Agent("aborted", ScriptedProvider([calls]), tools=[slow, stop], hooks=[enough])
    async with engine.served(agent) as client:
        run = await client.start("aborted", "Go.")
        with pytest.raises(AbortError, match="enough"):
            await run.result()
        said = results(await run.transcript())
    if inline:  # it ran before the other began: nothing else begins
        assert said == [
            "not run: the run was aborted",
            "AbortError: enough.\nAsk less.",
            "not run: the run was aborted",
        ]
    else:
        assert said == ["slowly", "AbortError: enough.\nAsk less."]


async def test_what_hooks_write_into_memory_is_kept_whatever_the_tool_comes_to(engine: Engine) -> None:
    @hook("after_tool_call")
    async def count(result: ToolResultPart, ctx: ToolContext) -> None:
        await ctx.memory.put("hooks", "seen", await ctx.memory.get("tool", "wrote"))
        await ctx.memory.put("hooks", "error", result.is_error)

    @hook("before_llm_call")
    def turns(ctx: RunContext) -> None:
        memory = ctx.memory.blocking
        memory.put("hooks", "calls", memory.get("hooks", "calls", 0) + 1)

    @tool
    async def act(ctx: ToolContext, fail: bool) -> str:
        """Act."""
        await ctx.memory.put("tool", "wrote", not fail)
        if fail:
            raise RuntimeError("broken")
        return "done"

    provider = ScriptedProvider([call("act", fail=False), call("act", fail=True), "Done."])
    async with engine.served(Agent("kept", provider, tools=[act], hooks=[count, turns])) as client:
        run = await client.start("kept", "Go.")
        await run.result()
        assert await client.memory.list("hooks") == {"seen": True, "error": True, "calls": 3}
        assert await client.memory.list("tool") == {"wrote": True}


class Noting(Interceptor):
    """A user's own."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        said = self.said

        class Around(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                said.append(f"in {type(input.args[0]).__name__}")
                try:
                    return await self.next.execute_activity(input)
                finally:
                    said.append("out")

        return Around(next)


@pytest.mark.server
async def test_a_user_s_own_interceptor_stands_outside_all_stages(engine: Engine) -> None:
    """The worker lists it before the plugin's: it sees the JSON of history, and every attempt."""
    said: list[str] = []
    hooks = [noting("before_llm_call", said, "ours"), noting("after_llm_call", said, "ours")]
    client = await engine.client()
    plugin = PerdurePlugin([Agent("plain", ScriptedProvider(["Done."]))], store_url=engine.store_url, hooks=hooks)
    async with TemporalWorker(
        client.temporal, task_queue=engine.task_queue, plugins=[plugin], interceptors=[Noting(said)]
    ):
        await (await client.start("plain", "Go.")).result()
    assert said == ["in dict", "before_llm_call ours", "after_llm_call ours", "out"]


@pytest.mark.server
async def test_an_interceptor_behind_the_plugin_s_stands_inside_all_stages(engine: Engine) -> None:
    """It is given each request of a model call and of a summary, each call of a tool, else the conversation."""
    seen: list[tuple[str, str]] = []

    class Inside(Interceptor):
        def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
            class Around(ActivityInboundInterceptor):
                async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                    seen.append((activity.info().activity_type, type(input.args[0]).__name__))
                    return await self.next.execute_activity(input)

            return Around(next)

    @tool(needs_approval=Approval(remind=1))
    def pay() -> str:
        """Pay."""
        return "paid"

    replies = ["Yes.", call("pay"), "The summary.", call("pay"), "Done."]  # a call is no summary: it is asked for again
    ways = Compaction.summarise(at=100, keep_last=1)
    plugins = [
        PerdurePlugin(
            [Agent("payer", ScriptedProvider(replies), tools=[pay], compaction=ways)], store_url=engine.store_url
        ),
        SimplePlugin("theirs", interceptors=[Inside()]),
    ]
    client = await engine.client()
    async with TemporalWorker(client.temporal, task_queue=engine.task_queue, plugins=plugins):
        run = await client.start("payer", "Well? " * 400, mode="session")
        await run.turn().result()
        turn = await run.send("Pay.")
        await eventually(lambda: "perdure.remind" in dict(seen), what="a reminder")
        await run.approve(by="ana")
        await turn.result()
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
    assert list(dict.fromkeys(seen[3:])) == [
        ("perdure.model", "RequestCall"),
        ("perdure.remind", "ConversationCall"),
        ("tool.pay", "ToolCall"),
        ("perdure.close", "ConversationCall"),
    ]
    assert seen[:3] == [("perdure.model", "RequestCall"), *[("perdure.compact", "RequestCall")] * 2]


def test_hooks_are_checked_where_they_are_given() -> None:
    provider = ScriptedProvider([])
    with pytest.raises(DefinitionError, match="agent 'a': <function"):
        Agent("a", provider, hooks=[lambda: None])
    with pytest.raises(DefinitionError, match=r"tool 'act' \(.*\): the hook ours is for on_finish"):
        tool(hooks=[noting("on_finish", [], "ours")])(act)
    with pytest.raises(DefinitionError, match=r"worker: hooks must be a list"):
        PerdurePlugin([], hooks=noting("on_finish", [], "ours"))


def act() -> None:
    """Act."""


async def test_an_agent_s_hooks_are_read_and_cleared(engine: Engine) -> None:
    said: list[str] = []
    agent = Agent("cleared", ScriptedProvider(lambda _: "Done."), hooks=[noting("after_llm_call", said, "one")])
    async with engine.served(agent) as client:
        await (await client.start("cleared", "Go.", override={"instructions": "Brief."})).result()
        assert [one.name for one in agent.hooks.on("after_llm_call")] == ["one"]
        agent.hooks.clear()
        await (await client.start("cleared", "Go.", override={"instructions": "Brief."})).result()
    assert said == ["after_llm_call one"]
