"""The UI stream of the Vercel AI SDK, judged by what ``useChat`` is made of, in versions 6 and 7 of ``ai``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx
import pytest
from starlette.applications import Starlette

from perdure import Agent, Client, ToolContext, callback_tool, tool
from perdure.errors import AuthenticationError, RateLimitError
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import TextPart, ThinkingPart
from perdure.web.app import build_web
from perdure.web.vercel import vercel_routes
from tests.support.engine import Engine
from tests.support.following import Slow
from tests.support.front_ends import FrontEnd, list_chat_messages, read_chat_messages
from tests.support.scripts import Gate, replied
from tests.support.web import ADA, NamedCallers, Service, serve

pytestmark = [pytest.mark.node, pytest.mark.server, pytest.mark.parametrize("sdk", [6, 7])]
Sdk = Literal[6, 7]
HEADERS = {"Authorization": "Bearer ada"}


@tool
async def look(ctx: ToolContext, at: str) -> str:
    """Look at a thing."""
    ctx.progress("halfway", {"at": at})
    if at == "nothing":
        raise ValueError("there is nothing")
    return f"{at} is red"


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@asynccontextmanager
async def serving(engine: Engine, chat: FrontEnd, sdk: Sdk, *agents: Agent) -> AsyncIterator[tuple[Client, Service]]:
    """The agents behind a service, and a chat with the first one: key ``c1``."""
    async with engine.served(*agents) as client:
        app = Starlette(routes=vercel_routes(build_web(client, authenticator=NamedCallers(ADA)), sdk=sdk))
        async with serve(client, app=app) as service:
            await open_chat(chat, sdk, client, service)
            yield client, service


async def open_chat(
    chat: FrontEnd, sdk: Sdk, client: Client, service: Service, key: str = "c1", **options: Any
) -> None:
    """The chat has the name of the test's task queue: all tests share a server."""
    api = f"{service.url}/ui/helper"
    await chat.ask("open", key=key, sdk=sdk, api=api, chatId=client.task_queue, headers=HEADERS, **options)


def check(held: dict[str, Any], status: str = "ready") -> dict[str, Any]:
    assert (held["status"], held["warnings"]) == (status, []), held
    return held


async def check_messages(client: Client, held: dict[str, Any]) -> None:
    """The chat shows the transcript."""
    transcript = await client.run(client.task_queue).transcript(full=True)
    assert read_chat_messages(held["messages"]) == list_chat_messages(transcript)


def list_calls(held: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for message in held["messages"] for part in message["parts"] if part["type"] == "dynamic-tool"]


async def test_texts_and_calls_are_those_of_the_transcript(engine: Engine, chat: FrontEnd, sdk: Sdk) -> None:
    calls = [call("look", at="a b"), call("look", at="nothing"), call("no_such_tool", x=[None])]
    agent = Agent("helper", ScriptedProvider([["Let me see.", *calls], "Red.", "This, too."]), tools=[look])
    async with serving(engine, chat, sdk, agent) as (client, _):
        first = check(await chat.ask("send", key="c1", text="What colour?"))
        assert [part["state"] for part in list_calls(first)] == ["output-available", "output-error", "output-error"]
        ended = check(await chat.ask("send", key="c1", text="And this?"))
        assert ended["end"]["finishReason"] == "stop"
        await check_messages(client, ended)
        assert [message["role"] for message in ended["messages"]] == ["user", "assistant"] * 2


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


async def test_reasoning_is_shown_while_it_is_written(engine: Engine, chat: FrontEnd, sdk: Sdk) -> None:
    thinking = Thinking()
    async with serving(engine, chat, sdk, Agent("helper", thinking)) as (client, _):
        sending = chat.begin("send", key="c1", text="which?")
        await chat.ask("until", key="c1", text="This.")
        thinking.gate.open()
        await check_messages(client, check(await sending))


async def test_approvals_continue_the_message(engine: Engine, chat: FrontEnd, sdk: Sdk) -> None:
    asks = [call("refund", order="7"), call("refund", order="8")]
    agent = Agent("helper", ScriptedProvider([["I ask.", *asks], "Done.", "Bye."]), tools=[refund])
    async with serving(engine, chat, sdk, agent) as (client, _):
        asked = check(await chat.ask("send", key="c1", text="refund"))
        assert asked["end"]["finishReason"] == "tool-calls"
        first, second = list_calls(asked)
        assert (first["state"], first["input"]) == ("approval-requested", {"order": "7"})
        await chat.ask("approve", key="c1", approvalId=first["approval"]["id"], approved=True, sends=False)
        no: dict[str, Any] = {"approvalId": second["approval"]["id"], "approved": False, "reason": "too late"}
        ended = check(await chat.ask("approve", key="c1", **no))
        assert [part["state"] for part in list_calls(ended)] == ["output-available", "output-denied"]
        assert "refunded 7" in list_calls(ended)[0]["output"]
        held, transcript = (
            read_chat_messages(ended["messages"]),
            list_chat_messages(await client.run(client.task_queue).transcript(full=True)),
        )
        transcript[1]["parts"][2].pop("output")  # of a denied call the SDK has no place for the text
        assert held == transcript
        assert len(check(await chat.ask("send", key="c1", text="bye"))["messages"]) == 4


async def test_a_message_in_place_of_a_decision(engine: Engine, chat: FrontEnd, sdk: Sdk) -> None:
    """It joins the turn, which has one message of the assistant; the calls in it can still be decided."""
    agent = Agent("helper", ScriptedProvider([call("refund", order="7"), "Done."]), tools=[refund])
    async with serving(engine, chat, sdk, agent) as (client, _):
        check(await chat.ask("send", key="c1", text="refund"))
        asked = check(await chat.ask("send", key="c1", text="and hurry"))
        (waiting,) = list_calls(asked)
        assert waiting["state"] == "approval-requested"
        await chat.ask("approve", key="c1", approvalId=waiting["approval"]["id"], approved=True, sends=False)
        ended = check(await chat.ask("submit", key="c1"))
        (done,) = list_calls(ended)
        assert "refunded 7" in done["output"]
        said = [message.text for message in await client.run(client.task_queue).transcript() if message.role == "user"]
        assert said == ["refund", "and hurry"]


async def test_outputs_of_the_page(engine: Engine, chat: FrontEnd, sdk: Sdk) -> None:
    open_page = callback_tool("open_page", "Open a page.")
    agent = Agent("helper", ScriptedProvider([call("open_page"), "Opened."]), tools=[open_page])
    async with serving(engine, chat, sdk, agent) as (client, _):
        (waiting,) = list_calls(check(await chat.ask("send", key="c1", text="open")))
        assert waiting["state"] == "input-available"
        output = {"key": "c1", "tool": "open_page", "toolCallId": waiting["toolCallId"], "output": {"opened": True}}
        ended = check(await chat.ask("output", **output))
        assert read_chat_messages(ended["messages"])[-1]["parts"][-1] == {"text": "Opened."}
        transcript = await client.run(client.task_queue).transcript()
        (result,) = [part.content for message in transcript for part in message.tool_results]
        assert json.loads(result) == {"opened": True}


async def test_a_subagents_call_can_be_decided(engine: Engine, chat: FrontEnd, sdk: Sdk) -> None:
    below = Agent("below", ScriptedProvider([call("refund", order="1"), "Below."]), tools=[refund], description="Does.")
    agent = Agent("helper", ScriptedProvider([call("call_below", task="go"), "All done."]), subagents=[below])
    async with serving(engine, chat, sdk, agent) as (_, _):
        asked = check(await chat.ask("send", key="c1", text="go"))
        waiting = list_calls(asked)[-1]
        ended = check(await chat.ask("approve", key="c1", approvalId=waiting["approval"]["id"], approved=True))
        assert read_chat_messages(ended["messages"])[-1]["parts"][-1] == {"text": "All done."}
        assert [part["state"] for part in list_calls(ended)] == ["output-available"] * 2


async def test_a_page_that_was_loaded_again_resumes(engine: Engine, chat: FrontEnd, sdk: Sdk) -> None:
    slow = Slow("Half ", "whole.")
    async with serving(engine, chat, sdk, Agent("helper", slow)) as (client, service):
        sending = chat.begin("send", key="c1", text="hi")
        await chat.ask("until", key="c1", text="Half")
        before = (await chat.ask("state", key="c1"))["messages"]
        await open_chat(chat, sdk, client, service, "again", messages=before[:1])
        resuming = chat.begin("resume", key="again")
        await chat.ask("until", key="again", text="Half")
        await open_chat(chat, sdk, client, service, "half", messages=before, ended=True)
        other = chat.begin("resume", key="half")  # also if the turn ends before it asks
        slow.gate.open()
        for ended in (await sending, await resuming, await other):
            await check_messages(client, check(ended))
        idle = check(await chat.ask("resume", key="again"))
        await check_messages(client, idle)


async def test_stop_interrupts_the_turn(engine: Engine, chat: FrontEnd, sdk: Sdk) -> None:
    slow = Slow("Half ", "whole.")
    async with serving(engine, chat, sdk, Agent("helper", slow)) as (client, service):
        sending = chat.begin("send", key="c1", text="hi")
        await chat.ask("until", key="c1", text="Half")
        async with httpx.AsyncClient(headers=HEADERS) as http:
            stopped = await http.post(f"{service.url}/ui/helper/{client.task_queue}/stop")
            assert stopped.status_code == 204
        ended = check(await sending)
        assert (await client.run(client.task_queue).turn().result()).finish_reason == "interrupted"
        assert read_chat_messages(ended["messages"])[-1]["parts"] == ([] if sdk == 7 else [{"text": "Half "}])
        aborted = chat.begin("send", key="c1", text="again")
        await chat.ask("until", key="c1", text="Half", messages=4)
        check(await chat.ask("stop", key="c1"))
        slow.gate.open()
        await aborted
        turn = await asyncio.wait_for(client.run(client.task_queue).turn().result(), 60)
        assert turn.content == "Half whole."


class Stumbling:
    """Fails in the middle of a call when the test lets it; then answers."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        if replied(request) == 0 and not self.gate.left:
            yield TextDelta("Wrong words.")
            yield ToolCallDelta(0, "c1", "look", '{"at": ')
            await self.gate()
            raise RateLimitError("busy", retry_after=0.01)
        yield TextDelta("Right.")
        yield Completed((TextPart(text="Right."),), model=request.model)


async def test_a_retracted_attempt(engine: Engine, chat: FrontEnd, sdk: Sdk) -> None:
    model = Stumbling()
    async with serving(engine, chat, sdk, Agent("helper", model, tools=[look])) as (client, _):
        sending = chat.begin("send", key="c1", text="hi")
        await chat.ask("until", key="c1", text='"look"')
        model.gate.open()
        ended = check(await sending)
        if sdk == 7:
            await check_messages(client, ended)
        else:  # it has no part for that
            (retracted,) = [part for part in ended["data"] if part["type"] == "data-retracted"]
            assert any("text" in name for name in retracted["data"]["ids"])
            assert read_chat_messages(ended["messages"][:1]) == [{"role": "user", "parts": [{"text": "hi"}]}]


async def test_errors_are_the_chats_and_it_goes_on(engine: Engine, chat: FrontEnd, sdk: Sdk) -> None:
    agent = Agent("helper", ScriptedProvider([AuthenticationError("the key is wrong"), "Better."]))
    async with serving(engine, chat, sdk, agent) as (_, _):
        failed = check(await chat.ask("send", key="c1", text="hi"), "error")
        assert "the key is wrong" in failed["error"]
        ended = check(await chat.ask("send", key="c1", text="again"))
        assert read_chat_messages(ended["messages"])[-1]["parts"] == [{"text": "Better."}]
        refused = check(await chat.ask("regenerate", key="c1"), "error")
        assert "RegenerateError" in refused["error"]
