"""The Vercel AI SDK's UI stream: translation of any events, and whole chats over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from hypothesis import given
from pydantic import BaseModel
from starlette.applications import Starlette

from perdure import Agent, Client, Run, callback_tool, tool
from perdure.testing import ScriptedProvider, call, finish
from perdure.types.events import Event
from perdure.web.app import build_web
from perdure.web.vercel import VercelTranslator, vercel_routes
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.web import serve
from tests.web.test_agui import Tokens
from tests.web.test_agui_translation import turns


class Verdict(BaseModel):
    verdict: str


class ChatMessage:
    """What ``useChat`` makes of a stream; an ``AssertionError`` is what it would throw."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self.end: dict[str, Any] = {}
        self._open: dict[str, dict[str, Any]] = {}
        self._is_done = False

    def take(self, part: dict[str, Any]) -> None:
        kind = part["type"]
        assert not self._is_done, f"{kind} after the end"
        if kind == "start-step":
            self.parts.append({"type": "step-start"})
        elif kind == "reset-step":
            while self.parts and self.parts[-1]["type"] != "step-start":
                self.parts.pop()
            self._open.clear()
        elif kind in ("text-start", "reasoning-start"):
            assert part["id"] not in self._open
            self._open[part["id"]] = {"type": kind[: -len("-start")], "text": ""}
            self.parts.append(self._open[part["id"]])
        elif kind in ("text-delta", "reasoning-delta"):
            self._open[part["id"]]["text"] += part["delta"]
        elif kind in ("text-end", "reasoning-end"):
            del self._open[part["id"]]
        elif kind == "tool-input-start":
            self.parts.append({"type": "dynamic-tool", "toolCallId": part["toolCallId"], "state": "input-streaming"})
        elif kind.startswith("tool-"):
            self._take_tool(kind, part)
        elif kind in ("finish", "abort"):
            assert not self._open
            self.end, self._is_done = part, True

    def _take_tool(self, kind: str, part: dict[str, Any]) -> None:
        found = [p for p in self.parts if p.get("toolCallId") == part["toolCallId"]]
        if kind == "tool-input-available" and not found:
            found = [{"type": "dynamic-tool", "toolCallId": part["toolCallId"]}]
            self.parts += found
        assert found, f"{kind} of an unknown call"
        found[-1]["state"] = kind[len("tool-") :]
        found[-1] |= {name: part[name] for name in ("input", "output", "approvalId") if name in part}

    def texts(self) -> list[str]:
        return [part["text"] for part in self.parts if part["type"] == "text"]


@given(turns())
def test_a_chat_ends_with_the_text_of_the_transcript(turn: tuple[list[Event], list[str]]) -> None:
    events, _ = turn
    message, translator = ChatMessage(), VercelTranslator("s", "k")
    for part in translator.start():
        message.take(part)
    for event in events:
        for part in translator.feed(event):
            message.take(part)
    for part in translator.finish():
        message.take(part)
    own = [event.text for event in events if event.type == "model.completed" and not event.path and event.text]
    assert message.texts() == own
    assert message.end["finishReason"] == "stop"
    assert {part["state"] for part in message.parts if part["type"] == "dynamic-tool"} <= {"output-available"}


@asynccontextmanager
async def browser(client: Client) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(
        Starlette(routes=vercel_routes(build_web(client, authenticator=Tokens(), authorizer=Tokens())))
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as http:
        yield http


def build_chat(*messages: dict[str, Any], chat: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"id": chat, "trigger": "submit-message", "messages": list(messages), **fields}


def user(text: str, id: str = "u1") -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": text}, {"type": "new-in-v8", "x": None}]}


def read(response: httpx.Response) -> ChatMessage:
    assert response.status_code == 200, response.text
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    lines = [line[len("data: ") :] for line in response.text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    message = ChatMessage()
    for line in lines[:-1]:
        message.take(json.loads(line))
    return message


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


async def test_an_approval_in_the_assistants_message_continues_the_turn(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider([call("refund", order="7"), "Done."]), tools=[refund])
    async with engine.served(agent) as client, browser(client) as http:
        asked = read(await http.post("/ui/helper", json=build_chat(user("refund"))))
        assert asked.end["finishReason"] == "tool-calls"
        part = next(part for part in asked.parts if part["type"] == "dynamic-tool")
        assert part["state"] == "approval-request"
        waiting = read(await http.get("/ui/helper/c1/stream"))
        assert waiting.parts == asked.parts
        approval = {"id": part["approvalId"], "approved": True}
        answered = {**part, "state": "approval-responded", "approval": approval}
        body = build_chat(user("refund"), {"id": "u1", "role": "assistant", "parts": [answered]})
        done = ChatMessage()
        done.parts = [dict(part)]
        response = await http.post("/ui/helper", json=body)
        for line in response.text.split("\n"):
            if line.startswith("data: {"):
                done.take(json.loads(line[len("data: ") :]))
        assert done.parts[0]["output"] == "refunded 7"
        assert done.texts() == ["Done."]
        assert (await http.get("/ui/helper/c1/stream")).status_code == 204


async def test_a_repeated_message_is_the_same_turn_and_wrong_requests_are_problems(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(["Hello.", "Again?"]))
    async with engine.served(agent) as client, browser(client) as http:
        body = build_chat(user("hi"))
        assert read(await http.post("/ui/helper", json=body)).texts() == ["Hello."]
        assert read(await http.post("/ui/helper", json=body)).texts() == ["Hello."]
        again = await http.post("/ui/helper", json={**body, "trigger": "regenerate-message"})
        assert again.status_code == 409
        assert (await http.post("/ui/helper", json=build_chat())).status_code == 400
        assert (await http.post("/ui/helper", json=build_chat({"id": None}))).status_code == 400
        assert (await http.get("/ui/helper/nothing/stream")).status_code == 204
        theirs = read(await http.post("/ui/helper", json=body, headers={"X-User": "bob"}))
        assert theirs.texts() == ["Again?"], "another tenant's chat of that id is another one"
        assert (await http.post("/ui/helper/c1/stop")).status_code == 403


async def test_the_answer_has_an_id_of_its_own_and_decisions_may_be_in_an_earlier_message(engine: Engine) -> None:
    """The SDK replaces the message that has the id of a stream: with the user's own it would take the question away."""
    agent = Agent("helper", ScriptedProvider([call("refund", order="7"), "Done."]), tools=[refund])
    async with engine.served(agent) as client, browser(client) as http:
        asked = await http.post("/ui/helper", json=build_chat(user("refund")))
        joined = await http.post("/ui/helper", json=build_chat(user("refund"), user("and hurry", "u2")))
        ids = [json.loads(r.text.split("\n")[0].removeprefix("data: "))["messageId"] for r in (asked, joined)]
        assert ids == ["u1/reply"] * 2
        part = next(part for part in read(asked).parts if part["type"] == "dynamic-tool")
        decided = {**part, "state": "approval-responded", "approval": {"id": part["approvalId"], "approved": True}}
        answer = {"id": "u1/reply", "role": "assistant", "parts": [decided]}
        body = build_chat(user("refund"), answer, user("and hurry", "u2"), messageId="u1/reply")
        assert '"delta":"Done."' in (await http.post("/ui/helper", json=body)).text
        edited = await http.post("/ui/helper", json=build_chat(user("other", "u2"), messageId="u2"))
        assert (edited.status_code, edited.json()["error"]) == (409, "RegenerateError")
        assert (await http.get("/ui/helper/c1/stream")).status_code == 204
        ended = read(await http.get("/ui/helper/c1/stream?ended=true"))
        assert (ended.texts(), ended.end["finishReason"]) == (["Done."], "stop")


async def test_a_subagents_call_is_asked_about_in_a_step_of_its_own_with_its_whole_arguments(engine: Engine) -> None:
    long = "7" * 200_000
    sub = Agent("sub", ScriptedProvider([call("refund", order=long), "Sub."]), tools=[refund], description="Does.")
    agent = Agent("helper", ScriptedProvider([call("call_sub", task="go"), "Done."]), subagents=[sub])
    async with engine.served(agent) as client, browser(client) as http:
        asked = read(await http.post("/ui/helper", json=build_chat(user("refund"))))
        *_, step, part = asked.parts
        assert step == {"type": "step-start"}
        assert (part["state"], part["input"]) == ("approval-request", {"order": long})
        decided = {**part, "state": "approval-responded", "approval": {"id": part["approvalId"], "approved": True}}
        del decided["input"]
        answered = build_chat(user("refund"), {"id": "u1/reply", "role": "assistant", "parts": [decided]})
        text = (await http.post("/ui/helper", json=answered)).text
        assert f'"tool-output-available","toolCallId":"{part["toolCallId"]}"' in text
        assert '"delta":"Done."' in text


async def test_outputs_of_calls_that_wait_are_answers(engine: Engine) -> None:
    open_page = callback_tool("open_page", "Open a page.")
    agent = Agent("helper", ScriptedProvider([call("open_page"), "Opened."]), tools=[open_page])
    async with engine.served(agent) as client, browser(client) as http:
        asked = read(await http.post("/ui/helper", json=build_chat(user("open"))))
        part = next(part for part in asked.parts if part["type"] == "dynamic-tool")
        assert part["state"] == "input-available"
        answered = {**part, "state": "output-available", "output": {"opened": True}}
        body = build_chat(user("open"), {"id": "u1", "role": "assistant", "parts": [answered]})
        response = await http.post("/ui/helper", json=body)
        assert '"delta":"Opened."' in response.text
        transcript = await client.run("c1").transcript()
        assert any("opened" in str(message.parts) for message in transcript if message.role == "tool")


async def test_a_page_that_is_opened_again_has_what_was_said(engine: Engine) -> None:
    """The answer of an open turn is not among the messages: its stream replays it from the start."""
    agent = Agent(
        "helper",
        ScriptedProvider([call("refund", order="7"), "Done.", call("refund", order="8"), "Done, too."]),
        tools=[refund],
    )
    async with engine.served(agent) as client, browser(client) as http:

        async def read_messages(chat: str = "c1") -> list[dict[str, Any]]:
            response = await http.get(f"/ui/helper/{chat}/messages")
            assert response.status_code == 200, response.text
            messages: list[dict[str, Any]] = response.json()
            return messages

        assert await read_messages() == []
        asked = read(await http.post("/ui/helper", json=build_chat(user("refund 7"))))
        [waiting] = await read_messages()
        assert (waiting["id"], waiting["role"], waiting["parts"][0]["text"]) == ("u1", "user", "refund 7")
        part = next(part for part in asked.parts if part["type"] == "dynamic-tool")
        assert read(await http.get("/ui/helper/c1/stream")).parts == asked.parts, "the rest comes with the stream"
        await client.run("c1").approve(part["toolCallId"], by="bob")
        await client.run("c1").turn("u1").result()

        question, answer = await read_messages()
        assert (question["id"], answer["id"], answer["role"]) == ("u1", "u1/reply", "assistant")
        tool_part = next(part for part in answer["parts"] if part["type"] == "dynamic-tool")
        assert tool_part == {
            "type": "dynamic-tool",
            "toolName": "refund",
            "toolCallId": part["toolCallId"],
            "input": {"order": "7"},
            "state": "output-available",
            "output": "refunded 7",
        }
        assert answer["parts"][-1] == {"type": "text", "text": "Done.", "state": "done"}
        assert (await http.get("/ui/helper/c1/stream")).status_code == 204

        read(await http.post("/ui/helper", json=build_chat(user("refund 8", "u2"))))
        assert [message["id"] for message in await read_messages()] == ["u1", "u1/reply", "u2"]
        theirs = await http.get("/ui/helper/c1/messages", headers={"X-User": "bob"})
        assert theirs.json() == [], "another tenant's"


async def test_a_page_that_is_opened_again_has_each_message_of_people_once(engine: Engine) -> None:
    """Also one that came without an id, in a turn that is open; and none of the engine's own."""

    class Refund(BaseModel):
        order: str

    replies: list[Any] = [
        "I will.",
        call("__finish__", order="7"),
        call("refund", order="8"),
        call("__finish__", order="8"),
    ]
    agent = Agent("helper", ScriptedProvider(replies), tools=[refund], output=Refund)
    async with engine.served(agent) as client, browser(client) as http:

        async def read_texts() -> list[tuple[str, str]]:
            messages = (await http.get("/ui/helper/c1/messages")).json()
            parts = [(message["role"], part) for message in messages for part in message["parts"]]
            return [(role, part["text"]) for role, part in parts if part["type"] == "text"]

        read(await http.post("/ui/helper", json=build_chat(user("refund 7"))))
        said = [("user", "refund 7"), ("assistant", "I will."), ("assistant", '{"order": "7"}')]
        assert await read_texts() == said
        turn = await client.run("c1").send("refund 8")
        await eventually(lambda: _waits(turn.run))
        assert await read_texts() == [*said, ("user", "refund 8")]


async def _waits(run: Run[Any]) -> bool:
    return bool((await run.status()).approvals)


async def test_a_stream_that_waits_has_what_someone_else_decides(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider([call("refund", order="7"), "Done."]), tools=[refund])
    async with engine.served(agent) as client, browser(client) as http:
        asked = read(await http.post("/ui/helper", json=build_chat(user("refund"))))
        part = next(part for part in asked.parts if part["type"] == "dynamic-tool")
        app = Starlette(routes=vercel_routes(build_web(client, authenticator=Tokens(), authorizer=Tokens())))
        async with serve(client, app=app) as service, service.connect() as page:
            page.base_url = httpx.URL(service.url)
            message = ChatMessage()
            async with page.stream("GET", "/ui/helper/c1/stream?wait=true") as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        message.take(json.loads(line.removeprefix("data: ")))
                    if '"tool-approval-request"' in line:
                        await client.run("c1").approve(part["toolCallId"], by="bob")
        called = next(part for part in message.parts if part["type"] == "dynamic-tool")
        assert (called["state"], called["output"]) == ("output-available", "refunded 7")
        assert (message.texts(), message.end["finishReason"]) == (["Done."], "stop")


async def test_a_typed_answer_is_there_again(engine: Engine) -> None:
    """The stream says it from the end of the turn; no text of a reply has it."""
    agent = Agent("helper", ScriptedProvider([finish(verdict="refund")]), output=Verdict)
    async with engine.served(agent) as client, browser(client) as http:
        streamed = read(await http.post("/ui/helper", json=build_chat(user("hi"))))
        _, answer = (await http.get("/ui/helper/c1/messages")).json()
        texts = [part["text"] for part in answer["parts"] if part["type"] == "text"]
        assert texts == streamed.texts()
        assert json.loads(texts[0]) == {"verdict": "refund"}
        assert answer.keys() == {"id", "role", "parts"}
