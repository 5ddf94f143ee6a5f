"""AG-UI, judged by its own client: ``HttpAgent`` of ``@ag-ui/client``, which refuses what breaks the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import Agent, Client, ToolContext, tool
from perdure.errors import AuthenticationError, RateLimitError
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import TextPart, ThinkingPart
from tests.support.engine import Engine
from tests.support.following import Slow
from tests.support.front_ends import FrontEnd, list_agui_messages, read_agui_messages
from tests.support.scripts import Gate, replied
from tests.support.web import Service, serve

pytestmark = [pytest.mark.node, pytest.mark.server]


@tool
async def look(ctx: ToolContext, at: str) -> str:
    """Look at a thing."""
    ctx.progress("halfway", {"at": at})
    return f"{at} is red"


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
async def choose(ctx: ToolContext) -> str:
    """Ask for a colour."""
    return f"chose {await ctx.ask('Which colour?', str)}"


@asynccontextmanager
async def serving(engine: Engine, agui: FrontEnd, *agents: Agent) -> AsyncIterator[Client]:
    """The agents behind a service, and a client of the first one: thread ``t1``."""
    async with engine.served(*agents) as client, serve(client) as service:
        await open_thread(agui, client, service, agents[0].name)
        yield client


async def open_thread(agui: FrontEnd, client: Client, service: Service, agent: str, key: str = "t1") -> None:
    """The thread has the name of the test's task queue: all tests share a server."""
    url, headers = f"{service.url}/agui/{agent}", {"Authorization": "Bearer ada"}
    await agui.ask("open", key=key, url=url, threadId=client.task_queue, headers=headers)


async def say(agui: FrontEnd, text: str, id: str = "u1", **parameters: Any) -> dict[str, Any]:
    await agui.ask("add", key="t1", message={"id": id, "role": "user", "content": text})
    return check(await agui.ask("run", key="t1", **parameters))


def check(ended: dict[str, Any]) -> dict[str, Any]:
    """The client refused nothing, and removed nothing that it does not know."""
    assert ended["failure"] is None, ended["failure"]
    assert ended["warnings"] == []
    return ended


async def check_messages(client: Client, held: dict[str, Any]) -> None:
    """The client holds the transcript."""
    transcript = await client.run(client.task_queue).transcript(full=True)
    assert read_agui_messages(held["messages"]) == list_agui_messages(transcript)


def list_types(ended: dict[str, Any]) -> list[str]:
    return [event["type"] for event in ended["events"]]


def resolve(interrupt: dict[str, Any], payload: Any) -> dict[str, Any]:
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}


async def test_text_reasoning_and_calls_are_those_of_the_transcript(engine: Engine, agui: FrontEnd) -> None:
    both = [call("look", at="a b"), call("look", at='"'), call("no_such_tool", x=[None])]
    agent = Agent("helper", ScriptedProvider([["Let me see.", *both], "Both are red.", "This, too."]), tools=[look])
    async with serving(engine, agui, agent) as client:
        await say(agui, "What colour?")
        ended = await say(agui, "And this?", "u2")
        finished = ended["events"][-1]
        assert (finished["type"], finished["outcome"]) == ("RUN_FINISHED", {"type": "success"})
        await check_messages(client, ended)
        again = check(await agui.ask("connect", key="t1"))
        await check_messages(client, again)


class Thinking:
    """Thinks aloud, and answers when the test lets it: reasoning is shown while it is written."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        yield ThinkingDelta("Which ")
        yield ThinkingDelta("one?")
        yield TextDelta("This.")
        await self.gate()
        yield Completed((ThinkingPart(text="Which one?"), TextPart(text="This.")), model=request.model)


async def test_reasoning_is_shown_while_it_is_written(engine: Engine, agui: FrontEnd) -> None:
    thinking = Thinking()
    async with serving(engine, agui, Agent("helper", thinking)) as client:
        running = asyncio.create_task(say(agui, "which?"))
        await agui.ask("until", key="t1", type="TEXT_MESSAGE_CONTENT")
        thinking.gate.open()
        ended = await running
        assert "REASONING_MESSAGE_CONTENT" in list_types(ended)
        await check_messages(client, ended)
        await say(agui, "and now?", "u2")


async def test_an_approval_and_a_question_are_interrupts(engine: Engine, agui: FrontEnd) -> None:
    asks = [call("refund", order="7"), call("refund", order="8"), call("choose")]
    agent = Agent("helper", ScriptedProvider([["I ask.", *asks], "All done."]), tools=[refund, choose])
    async with serving(engine, agui, agent) as client:
        asked = await say(agui, "refund")
        first, second, question = asked["interrupts"]
        assert [i["message"] for i in (first, second, question)] == ["Approve refund?"] * 2 + ["Which colour?"]
        uncovered = await agui.ask("run", key="t1", resume=[resolve(first, {"approved": True})])
        assert "pending interrupt" in uncovered["failure"]
        decisions = [
            resolve(first, {"approved": True, "editedArgs": {"order": "9"}}),
            {"interruptId": second["id"], "status": "cancelled"},
            resolve(question, "red"),
        ]
        ended = check(await agui.ask("run", key="t1", resume=decisions))
        assert ended["interrupts"] == []
        held = read_agui_messages(ended["messages"])
        results = {message["toolCallId"]: message["content"] for message in held if message["role"] == "tool"}
        assert "refunded 9" in results["call_1"]
        assert results["call_3"] == "chose red"
        await check_messages(client, ended)
        await say(agui, "thanks", "u2")


async def test_a_tool_of_the_page(engine: Engine, agui: FrontEnd) -> None:
    replies: Any = [[call("open_page", path="/a"), call("look", at="it")], "Opened.", "Bye."]
    agent = Agent("helper", ScriptedProvider(replies), tools=[look], client_tools=True)
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools = [{"name": "open_page", "description": "Open.", "parameters": parameters}]
    async with serving(engine, agui, agent) as client:
        asked = await say(agui, "open", tools=tools)
        (call_id,) = asked["events"][-1]["outcome"]["pendingToolCallIds"]
        result = {"id": "x1", "role": "tool", "content": "opened /a", "toolCallId": call_id}
        await agui.ask("add", key="t1", message=result)
        ended = check(await agui.ask("run", key="t1", tools=tools))
        assert [m["content"] for m in ended["messages"] if m["role"] == "tool"].count("opened /a") == 1
        assert read_agui_messages(ended["messages"])[-1] == {"role": "assistant", "content": "Opened."}
        bye = await say(agui, "bye", "u2", tools=tools)
        await check_messages(client, bye)


async def test_subagents_and_what_they_ask(engine: Engine, agui: FrontEnd) -> None:
    below = Agent("below", ScriptedProvider([call("refund", order="1"), "Below done."]), tools=[refund], description="")
    replies: Any = [[call("call_below", task="go"), call("look", at="it")], "All done."]
    agent = Agent("helper", ScriptedProvider(replies), tools=[look], subagents=[below])
    async with serving(engine, agui, agent) as client:
        asked = await say(agui, "go")
        (interrupt,) = asked["interrupts"]
        owner = interrupt["subagentRunId"]
        ended = check(await agui.ask("run", key="t1", resume=[resolve(interrupt, {"approved": True})]))
        assert {"SUBAGENT_STARTED", "SUBAGENT_FINISHED"} <= set(list_types(ended))
        await check_messages(client, ended)
        own = [m for m in read_agui_messages(ended["messages"], owner) if m["role"] == "assistant"]
        assert own[-1] == {"role": "assistant", "content": "Below done."}
        again = check(await agui.ask("connect", key="t1"))
        await check_messages(client, again)


class Stumbling:
    """Answers, and at the second message fails in the middle of a call when the test lets it; then answers."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        if replied(request) == 1 and not self.gate.left:
            yield TextDelta("Wrong words.")
            yield ToolCallDelta(0, "c1", "look", '{"at": ')
            await self.gate()
            raise RateLimitError("busy", retry_after=0.01)
        text = "Right." if replied(request) else "Hello."
        yield TextDelta(text)
        yield Completed((TextPart(text=text),), model=request.model)


async def test_a_retracted_attempt_leaves_nothing(engine: Engine, agui: FrontEnd) -> None:
    model = Stumbling()
    async with serving(engine, agui, Agent("helper", model, tools=[look])) as client:
        await say(agui, "hi")
        running = asyncio.create_task(say(agui, "look", "u2"))
        await agui.ask("until", key="t1", type="TOOL_CALL_ARGS")
        model.gate.open()
        ended = await running
        assert "MESSAGES_SNAPSHOT" in list_types(ended)
        assert "Wrong" not in json.dumps(ended["messages"])
        await check_messages(client, ended)
        assert [m["id"] for m in ended["messages"] if m["role"] == "user"] == ["u1", "u2"]


async def test_an_error_ends_the_run_and_the_thread_goes_on(engine: Engine, agui: FrontEnd) -> None:
    agent = Agent("helper", ScriptedProvider([AuthenticationError("the key is wrong"), "Better."]))
    async with serving(engine, agui, agent) as client:
        failed = await say(agui, "hi")
        assert failed["events"][-1]["type"] == "RUN_ERROR"
        assert "key is wrong" in failed["events"][-1]["message"]
        ended = await say(agui, "again", "u2")
        await check_messages(client, ended)


async def test_a_client_that_left_continues(engine: Engine, agui: FrontEnd) -> None:
    """Aborts the request in the middle of a reply; another client of the thread takes the stream up."""
    slow = Slow("Half ", "whole.")
    async with engine.served(Agent("helper", slow)) as client, serve(client) as service:
        await open_thread(agui, client, service, "helper")
        await agui.ask("add", key="t1", message={"id": "u1", "role": "user", "content": "hi"})
        running = agui.begin("run", key="t1", runId="r1")
        await agui.ask("until", key="t1", type="TEXT_MESSAGE_CONTENT")
        await agui.ask("abort", key="t1")
        await running
        await open_thread(agui, client, service, "helper", "other")
        connected = agui.begin("connect", key="other", runId="r1")
        repeated = agui.begin("run", key="t1", runId="r1")
        await agui.ask("until", key="other", type="TEXT_MESSAGE_START")
        slow.gate.open()
        await check_messages(client, check(await connected))
        await check_messages(client, check(await repeated))
