"""AG-UI over HTTP: whole turns with approvals, questions and subagents, and requests that are wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from perdure import Agent, Client, ToolContext, tool
from perdure.ports.store import EventBatch, NewEvent
from perdure.testing import ScriptedProvider, call
from perdure.types.events import MessageInjected, ModelCompleted, ModelStarted, TurnEvent
from perdure.web.agui import agui_routes
from perdure.web.app import build_web
from perdure.web.auth import Caller, Resource, Verb
from perdure.web.vercel import vercel_routes
from tests.support.engine import Engine
from tests.web.agui_rules import StrictClient


class Tokens:
    """Callers by the name that a header gives; each sees its own tenant, ``ann`` all."""

    async def authenticate(self, connection: HTTPConnection) -> Caller | None:
        name = connection.headers.get("x-user", "ann")
        tenants = None if name == "ann" else (name,)
        return Caller(name, "test", frozenset({"read", "send", "decide"}), tenants)

    async def is_allowed(self, caller: Caller, verb: Verb, resource: Resource) -> bool:
        return verb in caller.verbs and (caller.tenants is None or resource.tenant in caller.tenants)


@asynccontextmanager
async def browser(client: Client) -> AsyncIterator[httpx.AsyncClient]:
    web = build_web(client, authenticator=Tokens(), authorizer=Tokens())
    transport = httpx.ASGITransport(Starlette(routes=agui_routes(web)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as http:
        yield http


def build_input(run: str, *messages: dict[str, Any], thread: str = "t1", **fields: Any) -> dict[str, Any]:
    return {"threadId": thread, "runId": run, "protocolVersion": "1.0", "messages": list(messages), **fields}


def user(text: str, id: str = "u1") -> dict[str, Any]:
    return {"id": id, "role": "user", "content": text}


async def post(http: httpx.AsyncClient, body: dict[str, Any], agent: str = "helper") -> StrictClient:
    response = await http.post(f"/agui/{agent}", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    client = StrictClient(body["messages"])
    client.frames = read_frames(response.text)
    for frame in client.frames:
        client.take(frame)
    assert client.state == "closed"
    return client


def read_frames(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[len("data: ") :]) for line in text.split("\n") if line.startswith("data: ")]


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
async def choose(ctx: ToolContext) -> str:
    """Ask for a colour."""
    return f"chose {await ctx.ask('Which colour?', str)}"


async def test_a_repeated_post_is_the_same_turn(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(["Hello there.", "Again?"]))
    async with engine.served(agent) as client, browser(client) as http:
        first = await post(http, build_input("r1", user("hi")))
        again = await post(http, build_input("r1", user("hi")))
        assert first.texts() == again.texts() == ["Hello there."]
        assert first.end["outcome"] == {"type": "success"}
        assert first.end["usage"]
        assert len([m for m in await client.run("t1").transcript() if m.role == "user"]) == 1


async def test_an_approval_ends_the_run_and_resume_continues_the_turn(engine: Engine) -> None:
    calls = [call("refund", order="7"), call("refund", order="8")]
    agent = Agent("helper", ScriptedProvider([calls, "Both done."]), tools=[refund])
    async with engine.served(agent) as client, browser(client) as http:
        asked = await post(http, build_input("r1", user("refund")))
        outcome = asked.end["outcome"]
        assert outcome["type"] == "interrupt"
        first, second = outcome["interrupts"]
        assert first["metadata"]["arguments"] == {"order": "7"}
        yes = {"interruptId": first["id"], "status": "resolved", "payload": {"approved": True}}
        changed = {"approved": True, "editedArgs": {"order": "9"}}
        other = {"interruptId": second["id"], "status": "resolved", "payload": changed}
        refused = await http.post("/agui/helper", json=build_input("r2", user("refund"), resume=[yes]))
        assert refused.status_code == 409
        assert refused.json()["error"] == "UncoveredInterruptError"
        unknown = {"interruptId": "t1|nothing|0", "status": "cancelled"}
        done = await post(http, build_input("r2", user("refund"), resume=[yes, other, unknown]))
        assert done.texts()[-1] == "Both done."
        assert done.end["outcome"] == {"type": "success"}
        results = [m["content"] for m in done.messages.values() if m["role"] == "tool"]
        assert [result.split("\n")[-1] for result in results] == ["refunded 7", "refunded 9"]
        assert [f["value"]["interruptId"] for f in done.frames if f.get("name") == "perdure.unknown_interrupt"] == [
            "t1|nothing|0"
        ]
        again = await post(http, build_input("r3", user("refund"), resume=[yes, other]))
        assert again.texts()[-1] == "Both done."


async def test_a_restated_conversation_has_the_clients_ids_in_the_clients_order(engine: Engine) -> None:
    """A client leaves what a snapshot names where it is, and appends the rest: new ids would move what a user said."""
    agent = Agent("helper", ScriptedProvider(["Hello.", call("refund", order="7"), "Done."]), tools=[refund])
    async with engine.served(agent) as client, browser(client) as http:
        first = await post(http, build_input("r1", user("hi")))
        said = list_messages(first)
        thought = {"id": "t1/r1/1/thinking", "role": "reasoning", "content": "Hm."}
        sent = [*said, thought, user("refund", "u2")]
        asked = await post(http, build_input("r2", *sent))
        held = list_messages(asked)
        assert [message["id"] for message in held[:4]] == [*first.messages, "t1/r1/1/thinking", "u2"]
        (interrupt,) = asked.end["outcome"]["interrupts"]
        yes = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
        done = await post(http, build_input("r3", *held, resume=[yes]))
        assert list(done.messages)[: len(held)] == [message["id"] for message in held]
        assert done.texts() == ["Hello.", "Done."]
        half = [*sent, {**held[-1], "toolCalls": []}]  # cut off in the middle of r2: the same run continues
        again = await post(http, build_input("r2", *half))
        assert list(again.messages) == list(done.messages)
        elsewhere = await http.get("/agui/helper?threadId=t1")
        restated = next(f for f in read_frames(elsewhere.text) if f["type"] == "MESSAGES_SNAPSHOT")["messages"]
        assert [message["id"] for message in restated if message["role"] == "user"] == ["u1", "u2"]


async def test_requests_of_a_long_conversation_read_its_last_turn_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("helper", ScriptedProvider([call("refund", order="7"), "Done.", "Bye."]), tools=[refund])
    async with engine.served(agent) as client, browser(client) as http:
        store, held = await client.store(), list[dict[str, Any]]()
        for turn in range(500):
            at: dict[str, Any] = {"context_id": "t1", "task_id": f"k{turn}"}
            asked = MessageInjected(id=f"k{turn}|u{turn}", content=f"{turn}?", **at)
            replied = [ModelStarted(iteration=1, **at), ModelCompleted(iteration=1, text=f"{turn}.", **at)]
            events = [TurnEvent(state="started", **at), asked, *replied, TurnEvent(state="completed", **at)]
            await store.append(EventBatch("t1", [NewEvent(event) for event in events]))
            held += [user(f"{turn}?", f"u{turn}"), {"id": f"t1/k{turn}/1", "role": "assistant", "content": f"{turn}."}]
        rows, read = list[int](), store.read_events

        async def count(*arguments: Any, **options: Any) -> Any:
            found = await read(*arguments, **options)
            rows.append(len(found))
            return found

        monkeypatch.setattr(store, "read_events", count)
        asked_for = await post(http, build_input("r1", *held, user("refund", "x1")))
        (interrupt,) = asked_for.end["outcome"]["interrupts"]
        yes = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
        done = await post(http, build_input("r2", *list_messages(asked_for), resume=[yes]))
        again = await post(http, build_input("r1", *held, user("refund", "x1")))
        assert list(again.messages) == list(done.messages)
        assert [message["id"] for message in list_messages(done)[:1001]] == [message["id"] for message in held] + ["x1"]
        chat = Starlette(routes=vercel_routes(build_web(client, authenticator=Tokens(), authorizer=Tokens())))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(chat), base_url="http://test") as page:
            message = {"id": "v1", "role": "user", "parts": [{"type": "text", "text": "bye"}]}
            for _ in range(2):
                said = await page.post("/ui/helper", json={"id": "t1", "messages": [message]})
                assert "Bye." in said.text
        assert sum(rows) < 2500, rows  # each of the five requests: a window, and what has happened since


async def test_long_ids_are_names_of_messages_too(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(["Hello.", "Again."]))
    async with engine.served(agent) as client, browser(client) as http:
        for run, message in (("r" * 500, "u1"), ("r2", "u" * 500)):
            ended = await post(http, build_input(run, user("hi", message)))
            assert next(iter(ended.messages)) == message
            assert len(ended.messages) == 2
        assert len([m for m in await client.run("t1").transcript() if m.role == "user"]) == 2


async def test_a_subagents_approval_and_a_question_are_interrupts(engine: Engine) -> None:
    sub = Agent("sub", ScriptedProvider([call("refund", order="1"), "Sub done."]), tools=[refund], description="Does.")
    replies: Any = [[call("call_sub", task="go"), call("choose")], "All done."]
    agent = Agent("helper", ScriptedProvider(replies), tools=[choose], subagents=[sub])
    async with engine.served(agent) as client, browser(client) as http:
        asked = await post(http, build_input("r1", user("go")))
        interrupts = asked.end["outcome"]["interrupts"]
        by_reason = {interrupt["reason"]: interrupt for interrupt in interrupts}
        assert set(by_reason) == {"tool_call", "input_required"}
        assert by_reason["tool_call"]["subagentRunId"].startswith("t1/")
        assert by_reason["input_required"]["message"] == "Which colour?"
        resume = [
            {"interruptId": by_reason["tool_call"]["id"], "status": "cancelled"},
            {"interruptId": by_reason["input_required"]["id"], "status": "resolved", "payload": "red"},
        ]
        done = await post(http, build_input("r2", user("go"), resume=resume))
        assert done.texts()[-1] == "All done."
        assert "chose red" in {m.get("content") for m in done.messages.values()}


async def test_a_stream_is_continued_by_get(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(["One.", "Two."]))
    async with engine.served(agent) as client, browser(client) as http:
        await post(http, build_input("r1", user("a")))
        await post(http, build_input("r2", user("b", "u2")))
        response = await http.get("/agui/helper?threadId=t1&runId=r2", headers={"Last-Event-ID": "3"})
        held = StrictClient()
        for frame in read_frames(response.text):
            held.take(frame)
        assert held.texts() == ["One.", "Two."]
        assert [m["content"] for m in held.messages.values() if m["role"] == "user"] == ["a", "b"]
        for query in ("&runId=r1", "&runId=unknown", ""):
            other = await http.get(f"/agui/helper?threadId=t1{query}")
            assert read_frames(other.text)[-1]["outcome"] == {"type": "success"}
        assert (await http.get("/agui/helper?threadId=none")).status_code == 404


async def test_wrong_requests_are_problems(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(lambda _: "Hello."))
    async with engine.served(agent) as client, browser(client) as http:
        await post(http, build_input("r1", user("hi")))
        wrong: list[tuple[dict[str, Any], int]] = [
            (build_input("r1"), 400),
            ({"threadId": "t1"}, 400),
            (build_input("r1", user("x"), thread="x" * 10_000), 409),
            (build_input("r1", {"id": "u", "role": "user", "content": None}), 400),
            (build_input("r1", {"id": "u", "role": "user", "content": [{"type": "smell"}]}), 400),
        ]
        for body, status in wrong[1:]:
            assert (await http.post("/agui/helper", json=body)).status_code == status, body
        stranger = await http.post("/agui/helper", json=build_input("r9", user("x")), headers={"X-User": "bob"})
        assert stranger.status_code == 200, "it has a thread t1 of its own"
        assert "hi" not in [message.text for message in await client.run("t1", tenant="bob").transcript()]
        assert "x" not in [message.text for message in await client.run("t1").transcript()]
        taken = await http.post(
            "/agui/helper", json=build_input("r9", user("x"), thread="@a/t1"), headers={"X-User": "bob"}
        )
        assert taken.status_code == 409
        large = await http.post("/agui/helper", content=b" " * 5_000_000, headers={"Content-Type": "application/json"})
        assert large.status_code == 413
        assert (await http.post("/agui/helper", content="x")).status_code == 415
        result = {"id": "x", "role": "tool", "content": "42", "toolCallId": "no/such"}
        told = await post(http, build_input("r3", user("hi"), result))
        assert "perdure.unknown_call" in {frame.get("name") for frame in told.frames}


async def test_results_without_events_and_long_texts_are_those_of_the_transcript(engine: Engine) -> None:
    long = "x" * 100_000
    replies: Any = [[call("refund", order=long), call("no_such_tool")], "Done."]
    agent = Agent("helper", ScriptedProvider(replies), tools=[refund])
    async with engine.served(agent) as client, browser(client) as http:
        asked = await post(http, build_input("r1", user(long)))
        (interrupt,) = asked.end["outcome"]["interrupts"]
        deny = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": False, "reason": "no"}}
        done = await post(http, build_input("r2", user(long), resume=[deny]))
        assert done.texts()[-1] == "Done."
        assert done.unanswered == []
        results = [m["content"] for m in done.messages.values() if m["role"] == "tool"]
        assert len(results) == 2
        assert all(results), results
        calls = [made for message in done.messages.values() for made in message.get("toolCalls", [])]
        assert json.loads(calls[0]["function"]["arguments"]) == {"order": long}
        assert [m["content"] for m in done.messages.values() if m["role"] == "user"] == [long]


async def test_messages_of_two_runs_join_one_turn(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider([call("refund", order="7"), "Done."]), tools=[refund])
    async with engine.served(agent) as client, browser(client) as http:
        first = await post(http, build_input("r1", user("refund")))
        joined = await post(http, build_input("r2", user("and hurry", "u2")))
        (interrupt,) = first.end["outcome"]["interrupts"]
        assert joined.end["outcome"]["interrupts"] == [interrupt]
        yes = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
        done = await post(http, build_input("r3", user("and hurry", "u2"), resume=[yes]))
        assert done.texts() == ["Done."]
        said = [m["content"] for m in done.messages.values() if m["role"] == "user"]
        assert sorted(said) == ["and hurry", "refund"]


async def test_hostile_ids_are_problems_or_names(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(lambda _: "Hello \ud83d."))
    async with engine.served(agent) as client, browser(client) as http:
        for thread in ("", "a\x00b", "x" * 10_000, "a|b|c", "a/b"):
            for run in ("", "r/1", "y" * 10_000):
                body = build_input(run, user("hi"), thread=thread)
                response = await http.post("/agui/helper", json=body)
                is_named = thread == "a|b|c"
                assert response.status_code in ((200, 400, 404) if is_named else (409,)), (thread[:10], response.text)
                resume = [{"interruptId": "x" * 10_000, "status": "resolved", "payload": None}]
                response = await http.post("/agui/helper", json=body | {"resume": resume})
                assert response.status_code in (200, 400, 404, 409), (thread[:10], response.text)
        assert (await http.get("/agui/helper?threadId=a%2Fb&runId=" + "z" * 5000)).status_code in (200, 404)


async def test_a_tool_of_the_page_is_answered_by_a_tool_message(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider([call("open_page", path="/a"), "Opened."]), client_tools=True)
    tools = [{"name": "open_page", "description": "Open.", "parameters": {"type": "object"}}]
    async with engine.served(agent) as client, browser(client) as http:
        asked = await post(http, build_input("r1", user("open"), tools=tools))
        (call_id,) = asked.end["outcome"]["pendingToolCallIds"]
        assert asked.unanswered == [call_id]
        result = {"id": "x", "role": "tool", "content": "opened /a", "toolCallId": call_id}
        done = await post(http, build_input("r2", user("open"), result, tools=tools))
        assert done.texts() == ["Opened."]
        assert done.end["outcome"] == {"type": "success"}
        again = await post(http, build_input("r2", user("open"), result, tools=tools))
        assert again.texts() == ["Opened."]
    (result,) = [m for m in list_results(done) if m["content"] == "opened /a"]
    assert result["toolCallId"] == call_id


def list_messages(client: StrictClient) -> list[dict[str, Any]]:
    return [{**message, "id": message_id} for message_id, message in client.messages.items()]


def list_results(client: StrictClient) -> list[dict[str, Any]]:
    return [message for message in client.messages.values() if message["role"] == "tool"]
