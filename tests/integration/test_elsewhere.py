"""Hooks and rules around calls that are run elsewhere, by other workers or by a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from temporalio import activity

from perdure import Abort, Agent, Limits, Run, ToolContext, Veto, callback_tool, deny, hook, remote_tool, tool
from perdure.errors import AbortError, RunCancelledError
from perdure.hooks import Hook
from perdure.testing import ScriptedProvider, call, scripted
from perdure.types.messages import ToolCallPart, ToolResultPart
from tests.integration.test_questions import asked, told
from tests.integration.test_remote_tools import elsewhere
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


class Seen:
    """Hooks of every kind that change what they see, and say so."""

    def __init__(self) -> None:
        self.of: list[Any] = []

    def hooks(self) -> list[Hook]:
        @hook("before_tool_call")
        async def before(name: str, arguments: dict[str, Any], ctx: ToolContext) -> dict[str, Any]:
            self.of.append(("before", name, arguments, ctx.idempotency_key))
            await ctx.memory.put("seen", name, len(self.of))
            return {**arguments, "card": "***"}

        @hook("on_error")
        def failed(error: Exception, error_type: str, name: str) -> None:
            self.of.append(("error", name, error_type, str(error)))

        @hook("after_tool_call")
        def after(name: str, arguments: dict[str, Any], result: ToolResultPart, ctx: ToolContext) -> str:
            self.of.append(("after", name, arguments, ctx.idempotency_key))
            return result.content.replace("secret", "***")

        return [before, failed, after]

    def kinds(self) -> list[str]:
        return [one[0] for one in self.of]


def far(engine: Engine, name: str = "pay", **options: Any) -> Any:
    return remote_tool(name, {}, f"{engine.task_queue}-far", **options)


def paying(seen: list[Any], gate: Gate | None = None) -> Callable[..., Any]:
    @activity.defn(name="tool.pay")
    async def pay(arguments: dict[str, Any]) -> str:
        seen.append(arguments)
        if gate is not None:
            await gate()
        if "fail" in arguments:
            raise LookupError("the secret is gone")
        return "paid, secret 7"

    return pay


async def activities(run: Run) -> list[str]:
    """Types of the activities of a run, in the order in which they were asked for."""
    history = await run.handle.fetch_history()
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def events(run: Run, *types: str) -> list[Any]:
    found = [event async for event in run.events(wait=False)]
    return [event for event in found if event.type in types]


STORY = ("tool.started", "tool.completed", "approval.decided", "question.asked")


@pytest.mark.server
async def test_hooks_change_what_a_remote_tool_is_given_and_what_it_gives(engine: Engine) -> None:
    sent: list[Any] = []
    seen = Seen()
    model = ScriptedProvider([[call("pay", card="4000"), call("pay", fail=True)], "Done."])
    async with engine.served(Agent("payer", model, tools=[far(engine)], hooks=seen.hooks())) as client:
        async with elsewhere(engine, paying(sent)):
            run = await client.start("payer", "Go.")
            assert (await run.result()).content == "Done."
        assert await told(run) == ["paid, *** 7", "LookupError: the *** is gone"]
        assert sorted(sent, key=len) == [{"card": "***"}, {"fail": True, "card": "***"}]
        assert sorted(seen.kinds()) == ["after", "after", "before", "before", "error"]
        keys = {(json.dumps(one[2], sort_keys=True), one[3]) for one in seen.of if one[0] == "after"}
        assert {arguments for arguments, _ in keys} == {'{"card": "***"}', '{"card": "***", "fail": true}'}
        assert {one[3] for one in seen.of if one[0] == "before"} == {key for _, key in keys}, "one key for one call"
        assert ("error", "pay", "LookupError", "LookupError: the secret is gone") in seen.of
        assert set(await client.memory.list("seen")) == {"pay"}
        each = ["after_tool_call.pay", "before_tool_call.pay", "perdure.model", "tool.pay"]
        assert sorted(await activities(run)) == sorted(each * 2)
        said = await events(run, *STORY)
        assert sorted(one.type for one in said) == ["tool.completed"] * 2 + ["tool.started"] * 2
        assert [one.content for one in said if one.type == "tool.completed" and not one.is_error] == ["paid, *** 7"]
        assert "secret" not in str(await events(run, "tool.completed"))


@pytest.mark.server
async def test_without_hooks_nothing_is_added_and_its_beginning_is_told(engine: Engine) -> None:
    sent: list[Any] = []
    gate = Gate()
    agent = Agent("payer", ScriptedProvider([call("pay", n=1), "Done."]), tools=[far(engine)])
    async with engine.served(agent) as client, elsewhere(engine, paying(sent, gate)):
        run = await client.start("payer", "Go.")
        await eventually(lambda: gate.entered, what="the remote tool")
        (begun,) = await events(run, *STORY)
        assert (begun.type, begun.name, begun.arguments) == ("tool.started", "pay", {"n": 1})
        gate.open()
        await run.result()
        assert [one.type for one in await events(run, *STORY)] == ["tool.started", "tool.completed"]
        assert await activities(run) == ["perdure.model", "tool.pay", "perdure.model"]


@pytest.mark.server
async def test_what_a_limit_holds_back_has_not_begun(engine: Engine) -> None:
    sent: list[Any] = []
    limits = Limits(tool_calls=1)
    model = ScriptedProvider([[call("pay", n=1), call("pay", n=2)], "Done."])
    agent = Agent("payer", model, tools=[far(engine)], limits=limits, on_limit="pause")
    async with engine.served(agent) as client, elsewhere(engine, paying(sent)):
        run = await client.start("payer", "Go.")

        async def paused() -> bool:
            return (await run.status()).state == "paused"

        await eventually(paused, what="the limit")
        assert [one.arguments for one in await events(run, "tool.started")] == [{"n": 1}]
    deployed = Agent("payer", ScriptedProvider(["Done."]), tools=[far(engine)], approvals=[deny("pay")])
    async with engine.served(deployed), elsewhere(engine, paying(sent)):
        await run.resume(limits={"tool_calls": 5})
        await run.result()
        first, second = await told(run)
        assert (first, sent) == ("paid, secret 7", [{"n": 1}])
        assert second.startswith("Denied: a rule of agent payer"), "a rule of a deploy holds for what it waited"


@pytest.mark.server
async def test_a_veto_a_wrong_change_and_a_hook_that_fails_send_nothing(engine: Engine) -> None:
    sent: list[Any] = []

    @hook("before_tool_call")
    def guard(arguments: dict[str, Any]) -> Any:
        match arguments.get("n"):
            case 1:
                return Veto("not on Sundays")
            case 2:
                return {"at": float("nan")}
            case 3:
                return {"text": "x" * 300_000}
            case 4:
                raise RuntimeError("broken")
        return None

    calls = [call("pay", n=n) for n in range(1, 6)]
    agent = Agent("payer", ScriptedProvider([calls, "Done."]), tools=[far(engine)], hooks=[guard])
    async with engine.served(agent) as client, elsewhere(engine, paying(sent)):
        run = await client.start("payer", "Go.")
        await run.result()
        vetoed, nan, long, broken, fine = await told(run)
    assert vetoed == "Vetoed: not on Sundays"
    assert "the hook guard (before_tool_call) gave arguments that are not plain JSON: a number in it is not" in nan
    assert nan.endswith("(pay was not run)")
    assert "may have 262,144" in long
    assert "guard" in broken
    assert broken.endswith("(pay was not run)")
    assert (fine, sent) == ("paid, secret 7", [{"n": 5}])


@pytest.mark.server
async def test_hooks_of_the_tool_alone_and_only_where_there_is_something_for_them(engine: Engine) -> None:
    heard: list[str] = []

    @hook("on_error")
    def failed(error_type: str) -> None:
        heard.append(error_type)

    sent: list[Any] = []
    model = ScriptedProvider([[call("pay"), call("pay", fail=True)], "Done."])
    agent = Agent("payer", model, tools=[far(engine, hooks=[failed])])
    async with engine.served(agent) as client, elsewhere(engine, paying(sent)):
        run = await client.start("payer", "Go.")
        await run.result()
        assert (await told(run))[1] == "LookupError: the secret is gone"
        assert heard == ["LookupError"]
        assert (await activities(run)).count("after_tool_call.pay") == 1, "the other had no error"


@pytest.mark.server
async def test_a_hook_ends_the_run(engine: Engine) -> None:
    @hook("after_tool_call")
    def alarm(result: ToolResultPart) -> None:
        raise Abort("call the police")

    agent = Agent("payer", ScriptedProvider([call("pay"), "Done."]), tools=[far(engine)], hooks=[alarm])
    async with engine.served(agent) as client, elsewhere(engine, paying([])):
        run = await client.start("payer", "Go.")
        with pytest.raises(AbortError, match="call the police"):
            await run.result()
        assert "secret" not in (await told(run))[0]


@pytest.mark.server
async def test_an_approved_call_is_looked_at_again_before_it_is_sent(engine: Engine) -> None:
    sent: list[Any] = []
    parts = [ToolCallPart(id=one, name="pay", arguments={}) for one in ("a", "b")]
    model = ScriptedProvider([parts, "Done."])
    agent = Agent("payer", model, tools=[far(engine, needs_approval=True)])
    async with engine.served(agent) as client, elsewhere(engine, paying(sent)):
        run = await client.start("payer", "Go.")
        await asked(run, 2)
        await run.approve("a", by="ana")
        await eventually(lambda: sent, what="the approved call")
        assert [one.type for one in await events(run, *STORY)] == ["approval.decided", "tool.started"]
    deployed = Agent("payer", ScriptedProvider(["Done."]), tools=[far(engine)], approvals=[deny("pay")])
    async with engine.served(deployed), elsewhere(engine, paying(sent)):
        await run.approve("b", by="ana")
        await run.result()
        assert [one[:15] for one in await told(run)] == ["paid, secret 7", "Denied: a rule "]
    assert len(sent) == 1


@pytest.mark.server
async def test_a_tool_that_has_become_another_is_not_sent(engine: Engine) -> None:
    @tool(name="pay")
    def here() -> str:
        """Pay."""
        return "here"

    agent = Agent("payer", ScriptedProvider([call("pay"), "Done."]), tools=[far(engine, needs_approval=True)])
    async with engine.served(agent) as client:
        run = await client.start("payer", "Go.")
        await asked(run)
    async with engine.served(Agent("payer", ScriptedProvider(["Done."]), tools=[here])):
        await run.approve(by="ana")
        await run.result()
        assert await told(run) == ["ToolError: pay is now another kind of tool; retry the call"]


# --- callbacks


async def test_hooks_see_a_callback_before_a_client_does_and_its_answer_before_the_model(engine: Engine) -> None:
    seen = Seen()

    @hook("on_approval")
    def notify(kind: str, arguments: dict[str, Any]) -> None:
        seen.of.append((kind, arguments))

    show = callback_tool("show", "Show a card.", expires="1d")
    model = ScriptedProvider([[call("show", card="4000"), call("show", n=2)], "Done."])
    agent = Agent("editor", model, tools=[show], hooks=[*seen.hooks(), notify])
    async with engine.served(agent) as client:
        run = await client.start("editor", "Go.")
        first, second = await asked(run, 2)
        assert (first.arguments, second.arguments) == ({"card": "***"}, {"n": 2, "card": "***"})
        assert sorted(seen.kinds()) == ["before", "before", "callback", "callback"]
        assert [one.arguments for one in await events(run, "question.asked") if "n" not in one.arguments] == [
            {"card": "***"}
        ]
        said = await run.answer(first.call_id, "the secret", by="ana")
        assert await run.answer(first.call_id, "the secret", by="ana") == said
        await run.answer(second.call_id, error="no secret", by="bea")
        await run.result()
        assert await told(run) == ["the ***", "no ***"]
        parts = [part for message in await run.transcript() for part in message.tool_results]
        assert [(part.given_by, part.is_error) for part in parts] == [("ana", False), ("bea", True)]
        assert [one for one in seen.of if one[0] == "error"] == [("error", "show", "ToolError", "no secret")]
        of_first = [one for one in await events(run, *STORY) if one.call_id == first.call_id]
        assert [one.type for one in of_first] == ["tool.started", "question.asked", "tool.completed"]
        assert (of_first[-1].content, of_first[-1].answered_by) == ("the ***", "ana")


@pytest.mark.server
async def test_a_callback_waits_through_continue_as_new_and_other_workers(engine: Engine) -> None:
    seen, later = Seen(), Seen()
    show = callback_tool("show", "Show a card.")

    @tool
    def look(n: int) -> str:
        """Look."""
        return str(n)

    calls = [call("show", card="4000"), *(call("look", n=n) for n in range(3))]
    model = ScriptedProvider([calls, "Done."])
    async with engine.served(Agent("editor", model, tools=[show, look], hooks=seen.hooks())) as client:
        run = await client.start("editor", "Go.", max_history_events=15)
        (one,) = await asked(run)

        async def again() -> bool:
            return (await run.describe()).run_id != run.handle.first_execution_run_id

        await eventually(again, what="the next execution")
        assert (await asked(run))[0].arguments == {"card": "***"}
    deployed = Agent("editor", ScriptedProvider(["Done."]), tools=[show, look], hooks=later.hooks())
    async with engine.served(deployed):
        await run.answer(one.call_id, "ж secret " * 40_000)
        await run.result()
        first, *_ = await told(run)
        assert first == "ж *** " * 40_000, "also of a long text, which went by way of the store"
    assert seen.kinds().count("before") == 4
    assert later.kinds() == ["after"], "what was seen before is not seen again"


async def test_a_callback_that_is_vetoed_is_never_handed_over(engine: Engine) -> None:
    @hook("before_tool_call")
    def guard() -> Veto:
        return Veto("closed")

    show = callback_tool("show", "Show.", hooks=[guard])
    async with engine.served(Agent("editor", ScriptedProvider([call("show"), "Done."]), tools=[show])) as client:
        run = await client.start("editor", "Go.")
        await run.result()
        assert await told(run) == ["Vetoed: closed"]
        assert [one.type for one in await events(run, *STORY)] == ["tool.started", "tool.completed"]


async def test_a_text_that_is_nowhere_stops_no_run_and_is_an_error_for_hooks_too(engine: Engine) -> None:
    seen = Seen()
    show = callback_tool("show", "Show.")
    agent = Agent("editor", ScriptedProvider([call("show"), "Done."]), tools=[show], hooks=seen.hooks())
    async with engine.served(agent) as client:
        run = await client.start("editor", "Go.")
        (one,) = await asked(run)
        nowhere = {"call_id": one.call_id, "blob": {"hash": "a" * 64, "size": 3}}
        await run.handle.execute_update("answer_call", nowhere)
        assert (await run.result()).content == "Done."
        (part,) = [part for message in await run.transcript() for part in message.tool_results]
        assert part.content.startswith("[the result could not be read")
        assert (part.is_error, part.given_by) == (True, "")
        assert seen.kinds() == ["before", "error", "after"]


# --- in between


@pytest.mark.server
@pytest.mark.parametrize("where", ["before", "after"])
async def test_stopped_while_a_hook_runs(engine: Engine, where: str) -> None:
    gate, sent = Gate(), list[Any]()

    async def hang() -> None:
        await gate()

    slow = hook("before_tool_call" if where == "before" else "after_tool_call")(hang)
    model = ScriptedProvider(lambda r: "Done." if r.messages[-1].text == "Enough." else call("pay"))
    agent = Agent("payer", model, tools=[far(engine)], hooks=[slow])
    async with engine.served(agent) as client, elsewhere(engine, paying(sent)):
        interrupted, cancelled = [await client.start("payer", "Go.") for _ in range(2)]
        await eventually(lambda: gate.entered == 2, what="the hooks")
        await interrupted.interrupt("Enough.")
        await interrupted.result()
        await cancelled.cancel()
        with pytest.raises(RunCancelledError):
            await cancelled.result()
        texts = [*await told(interrupted), *await told(cancelled)]
        gate.open()
    assert [text.split(":")[0].split(" ")[0] for text in texts] == ["Interrupted", "Cancelled"]
    for text in texts:
        assert "secret" not in text
        assert ("(pay was run, and its result cannot be shown)" in text) == (where == "after")
    assert len(sent) == (2 if where == "after" else 0)


@pytest.mark.server
async def test_the_worker_goes_between_the_hooks_and_another_comes(engine: Engine) -> None:
    """The call is in the hands of the other queue meanwhile: neither hook runs twice, and the newest code does."""
    seen, later, sent, gate = Seen(), Seen(), list[Any](), Gate()
    async with elsewhere(engine, paying(sent, gate)):
        model = ScriptedProvider([call("pay", card="1"), "Done."])
        agent = Agent("payer", model, tools=[far(engine)], hooks=seen.hooks())
        async with engine.served(agent) as client:
            run = await client.start("payer", "Go.")
            await eventually(lambda: gate.entered, what="the remote tool")
        gate.open()
        deployed = Agent("payer", ScriptedProvider(["Done."]), tools=[far(engine)], hooks=later.hooks())
        async with engine.served(deployed):
            await run.result()
            assert await told(run) == ["paid, *** 7"]
    assert (seen.kinds(), later.kinds(), sent) == (["before"], ["after"], [{"card": "***"}])


async def test_it_does_not_wait_before_the_worker_has_looked_at_it(engine: Engine) -> None:
    gate = Gate()

    @hook("before_tool_call")
    async def slow() -> None:
        await gate()

    show = callback_tool("show", "Show.")
    model = ScriptedProvider([ToolCallPart(id="a", name="show", arguments={}), "Done."])
    async with engine.served(Agent("editor", model, tools=[show], hooks=[slow])) as client:
        run = await client.start("editor", "Go.")
        await eventually(lambda: gate.entered, what="the hook")
        assert not (await run.status()).approvals
        answering = asyncio.create_task(run.answer("a", 1))
        await asyncio.wait([answering], timeout=0.1)  # time for an attempt that comes too early
        assert not answering.done()
        gate.open()
        await answering
        await run.result()
        assert await told(run) == ["1"]


# --- without a server


async def test_the_same_in_a_script() -> None:
    seen = Seen()

    @tool(name="pay")
    async def stand_in(card: str, n: int = 0) -> str:
        """In its place."""
        return f"secret of {card}"

    show = callback_tool("show", "Show.")
    agent = Agent("payer", "openai:gpt-5", tools=[remote_tool("pay", {}, "far"), show], hooks=seen.hooks())
    async with scripted(agent, [[call("pay", card="4000"), call("show", card="4000")], "Done."], tools=[stand_in]) as s:
        run = await s.client.start("payer", "Go.")
        (one,) = await asked(run)
        assert one.arguments == {"card": "***"}
        await run.answer(one.call_id, "secret")
        assert (await run.result()).content == "Done."
        assert await told(run) == ["*** of ***", "***"]
    assert sorted(seen.kinds()) == ["after", "after", "before", "before"]
