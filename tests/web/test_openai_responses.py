"""Responses by the official SDK: streams, background, conversations, functions, approvals, cancel, wrong requests."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from perdure import Agent, tool
from perdure.ports.model import ModelRequest
from perdure.ports.store import EventBatch, NewEvent
from perdure.testing import ScriptedProvider, call
from perdure.types.events import MessageInjected, ModelCompleted, ModelStarted, TurnEvent
from perdure.web import sse
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually
from tests.support.web import make_caller
from tests.web.test_openai_chat import choose, connected, read_audit, refund, user
from tests.web.test_openai_items import StrictReader

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Look up the weather.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    "strict": True,
}


async def read_frames(ai: AsyncOpenAI, reader: StrictReader, stream: Any, most: int | None = None) -> None:
    """Give the reader the frames of a stream, or the first ``most`` of them."""
    async for event in stream:
        reader.take(event.to_dict(mode="json"))
        if most is not None and len(reader.numbers) >= most:
            await stream.close()
            return


async def test_a_response_and_the_next_one(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(["Hello Ada.", "You are Ada.", "Yes."]))
    async with engine.served(agent) as client, connected(client) as access:
        ai = access.sdk()
        first = await ai.responses.create(model="helper", input="I am Ada.", instructions="Be kind.")
        assert (first.output_text, first.status, first.model) == ("Hello Ada.", "completed", "helper")
        assert first.usage is not None
        assert first.usage.total_tokens > 0
        second = await ai.responses.create(
            model="helper", input=[user("Who am I?"), user("Say it.")], previous_response_id=first.id,
            instructions="Be kind.",
        )  # fmt: skip
        assert second.output_text == "You are Ada."
        assert second.conversation is not None
        session = second.conversation.id
        await client.run(session).close()  # as it does by itself when nothing comes for a while
        await client.run(session).wait_for_close()
        third = await ai.responses.create(input="Sure?", conversation=session)
        assert third.output_text == "Yes."
        said = [message.text for message in await client.run(session).transcript() if message.role == "user"]
        assert said == ["<system>\nBe kind.\n</system>\n\nI am Ada.", "Who am I?Say it.", "Sure?"]
        assert json.loads(base64.urlsafe_b64decode(first.id[5:] + "=="))[2] == 0, "from the turn's beginning"
        again = await ai.responses.retrieve(first.id)
        assert again.output == first.output
        assert again.usage == first.usage
        items = await ai.responses.input_items.list(second.id)
        assert [item.content[0].text for item in items.data] == ["Who am I?Say it."]  # type: ignore[union-attr]
        with pytest.raises(openai.ConflictError, match="not the last response"):
            await ai.responses.create(model="helper", input="x", previous_response_id=first.id)


async def test_streams_of_the_sdk_end_with_the_transcript(engine: Engine) -> None:
    class Sum(BaseModel):
        total: int

    @tool
    async def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    helper = Agent("helper", ScriptedProvider([["Let me see.", call("look", n=1)], "Seen 1."]), tools=[look])
    adder = Agent("adder", ScriptedProvider([call("__finish__", total=5)] * 2), output=Sum)
    async with engine.served(helper, adder) as client, connected(client) as access:
        ai, reader = access.sdk(), StrictReader()
        await read_frames(ai, reader, await ai.responses.create(model="helper", input="look", stream=True))
        assert reader.texts() == ["Let me see.", "Seen 1."]
        made = reader.final["output"][1]
        assert (made["type"], made["name"], made["arguments"], made["output"]) == (
            "mcp_call",
            "look",
            '{"n":1}',
            "seen 1",
        )
        async with ai.responses.stream(model="adder", input="2+3", text_format=Sum) as stream:
            final = await stream.get_final_response()
        assert final.output_parsed == Sum(total=5)
        parsed = await ai.responses.parse(model="adder", input="2+3", text_format=Sum)
        assert parsed.output_parsed == Sum(total=5)


async def test_functions_of_the_request_are_answered_by_the_next_one(engine: Engine) -> None:
    calls = [call("weather", place="Rome"), call("weather", place="Oslo")]
    agent = Agent("helper", ScriptedProvider([calls, "Sun, and snow."]), client_tools=True)
    async with engine.served(agent) as client, connected(client) as access:
        ai = access.sdk()
        async with ai.responses.stream(model="helper", input="weather?", tools=[WEATHER]) as stream:
            asked = await stream.get_final_response()
        made: Any = [item for item in asked.output if item.type == "function_call"]
        assert [item.arguments for item in made] == ['{"place":"Rome"}', '{"place":"Oslo"}']
        results: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "dry"} for item in made
        ]  # fmt: skip
        part = await ai.responses.create(model="helper", input=results[:1], previous_response_id=asked.id)
        assert [item.call_id for item in part.output if item.type == "function_call"] == [made[1].call_id]
        done = await ai.responses.create(model="helper", input=results[1:], previous_response_id=part.id)
        assert (done.output_text, done.status) == ("Sun, and snow.", "completed")
        again = await ai.responses.create(model="helper", input=results, previous_response_id=asked.id)
        assert (again.id, again.output_text) == (done.id, "Sun, and snow.")
        items = await ai.responses.input_items.list(part.id, order="asc")
        assert [item.to_dict()["call_id"] for item in items.data] == [item.call_id for item in made]


async def test_approvals_are_items_that_the_next_request_answers(engine: Engine) -> None:
    sub = Agent("sub", ScriptedProvider([call("refund", order="1"), "Sub done."]), tools=[refund], description="Does.")
    replies: Any = [[call("call_sub", task="go"), call("refund", order="7"), call("choose")], "All done."]
    agent = Agent("helper", ScriptedProvider(replies), tools=[choose, refund], subagents=[sub])
    callers = (make_caller("eve", "sender"), make_caller("bob", "approver"))
    async with engine.served(agent) as client, connected(client, *callers) as access:
        ai = access.sdk()
        asked = await ai.responses.create(model="helper", input="go")
        requests: Any = {item.server_label: item for item in asked.output if item.type == "mcp_approval_request"}
        assert {label: item.arguments for label, item in requests.items()} == {
            "sub": '{"order":"1"}', "helper": '{"order":"7"}'
        }  # fmt: skip
        (question,) = [item for item in asked.output if item.type == "function_call"]
        assert (question.name, "Which colour?" in question.arguments) == ("perdure_ask", True)
        answers: Any = [
            {"type": "mcp_approval_response", "approval_request_id": requests["sub"].id, "approve": True},
            {"type": "mcp_approval_response", "approval_request_id": requests["helper"].id, "approve": False,
             "reason": "too much"},
            {"type": "function_call_output", "call_id": question.call_id, "output": "red"},
        ]  # fmt: skip
        with pytest.raises(openai.PermissionDeniedError):
            await access.sdk("eve").responses.create(model="helper", input=answers[:1])
        wrong: Any = {"type": "function_call_output", "call_id": requests["helper"].id, "output": "x"}
        with pytest.raises(openai.BadRequestError):
            await ai.responses.create(model="helper", input=[wrong])
        await access.sdk("bob").responses.create(model="helper", input=answers[:1])
        with pytest.raises(openai.ConflictError, match="already approved by bob"):
            await ai.responses.create(model="helper", input=[answers[0] | {"approve": False}])
        answers = answers[1:]
        done = await ai.responses.create(model="helper", input=answers, previous_response_id=asked.id)
        assert done.output_text == "All done."
        assert done.conversation is not None
        results = {
            result.name: result.content
            for message in await client.run(done.conversation.id).transcript()
            for result in message.tool_results
        }
        assert results["choose"] == "chose red"
        assert "too much" in results["refund"]
        items: Any = [item.to_dict() for item in (await ai.responses.input_items.list(done.id)).data]
        decided = {item["approval_request_id"]: item["approve"] for item in items if "approve" in item}
        assert decided == {requests["sub"].id: True, requests["helper"].id: False}
        assert [row.refused is not None for row in await read_audit(client) if row.by == "eve"] == [True]


async def test_long_texts_and_arguments_are_whole(engine: Engine) -> None:
    long = "x" * 100_000
    replies: Any = [call("refund", order=long), f"Well. <finish>{long}.</finish>"]
    agent = Agent("helper", ScriptedProvider(replies), tools=[refund], finish="tag")
    plain = Agent("plain", ScriptedProvider([long + "!", long + "?"]))
    async with engine.served(agent, plain) as client, connected(client) as access:
        ai, reader = access.sdk(), StrictReader()
        asked = await ai.responses.create(model="helper", input=long)
        (request,) = [item for item in asked.output if item.type == "mcp_approval_request"]
        assert json.loads(request.arguments) == {"order": long}
        approval: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": False}
        done = await ai.responses.create(model="helper", input=[approval], previous_response_id=asked.id)
        assert done.output_text == long + "."
        await read_frames(ai, reader, await ai.responses.create(model="plain", input=long, stream=True))
        assert reader.texts() == [long + "!"]
        answer = await ai.chat.completions.create(model="plain", messages=[user(long)])
        assert answer.choices[0].message.content == long + "?"


async def test_a_client_that_keeps_the_history_itself_sends_the_items_back(engine: Engine) -> None:
    replies: Any = [["Hm.", call("refund", order="7")], "Refunded.", "Yes."]
    agent = Agent("helper", ScriptedProvider(replies), tools=[refund])
    async with engine.served(agent) as client, connected(client) as access:
        ai, items = access.sdk(), list[Any]([user("refund 7")])
        asked = await ai.responses.create(model="helper", input=items)
        items += [item.to_dict() for item in asked.output]
        items.append({"type": "mcp_approval_response", "approval_request_id": asked.output[-1].id, "approve": True})
        done = await ai.responses.create(model="helper", input=items)
        assert done.output_text == "Refunded."
        items += [*(item.to_dict() for item in done.output), user("Sure?")]
        last = await ai.responses.create(model="helper", input=items)
        assert last.output_text == "Yes."
        assert last.conversation is not None
        transcript = await client.run(last.conversation.id).transcript()
        said = [(m.role, m.text or [r.content for r in m.tool_results]) for m in transcript if m.role != "system"]
        assert said == [
            ("user", "refund 7"), ("assistant", "Hm."), ("tool", ["refunded 7"]), ("assistant", "Refunded."),
            ("user", "Sure?"), ("assistant", "Yes."),
        ]  # fmt: skip


async def test_a_background_response_is_followed_from_any_frame(engine: Engine) -> None:
    gate = Gate()

    async def reply(_: ModelRequest) -> Any:
        await gate()
        return "One two three four."

    async with engine.served(Agent("helper", ScriptedProvider(reply))) as client, connected(client) as access:
        ai, reader = access.sdk(), StrictReader()
        begun = await ai.responses.create(model="helper", input="count", background=True)
        assert (begun.status, begun.background, begun.output) == ("queued", True, [])
        assert (await ai.responses.retrieve(begun.id)).status == "in_progress"
        gate.open()
        await read_frames(ai, reader, await ai.responses.retrieve(begun.id, stream=True), most=4)
        for most in (5, 6, None):
            after = reader.numbers[-1]
            stream = await ai.responses.retrieve(begun.id, stream=True, starting_after=after)
            await read_frames(ai, reader, stream, most)
        assert reader.texts() == ["One two three four."]
        assert reader.final["status"] == "completed"
        last = [e async for e in await ai.responses.retrieve(begun.id, stream=True, starting_after=reader.numbers[-1])]
        assert last == []
        async with ai.responses.stream(response_id=begun.id, starting_after=reader.numbers[3]) as helper:
            assert (await helper.get_final_response()).output_text == "One two three four."


async def test_a_stream_that_breaks_says_so_and_the_run_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()

    async def reply(_: ModelRequest) -> Any:
        await gate()
        return "Late."

    agent = Agent("helper", ScriptedProvider(reply))
    async with engine.served(agent) as client, connected(client) as access, access.http() as http:
        ai, reader = access.sdk(), StrictReader()
        monkeypatch.setattr(sse, "STREAM_SECONDS", 0.5)
        hello: Any = {"model": "helper", "stream": True}
        with pytest.raises(openai.APIError) as broken:
            await read_frames(ai, reader, await ai.responses.create(**hello, input="go"))
        assert broken.value.code == "stream_timeout"
        with pytest.raises(openai.APIError) as broken:
            async for _ in await ai.chat.completions.create(**hello, messages=[user("go")]):
                pass
        assert broken.value.code == "stream_timeout"
        async with http.stream("GET", f"/responses/{reader.id}?stream=true") as stream:
            lines = [line async for line in stream.aiter_lines() if line]
        assert lines[-2] == "event: error"
        assert json.loads(lines[-1].removeprefix("data: "))["type"] == "error"
        monkeypatch.undo()
        with pytest.raises(openai.APITimeoutError):  # the client leaves, and nothing is held for it
            await access.sdk(timeout=0.3).responses.create(model="helper", input="go")
        gate.open()
        done = await ai.responses.retrieve(reader.id, stream=True, starting_after=reader.numbers[-1])
        await read_frames(ai, reader, done)
        assert reader.texts() == ["Late."]


async def test_a_response_is_cancelled_and_others_are_not_found(engine: Engine) -> None:
    gate = Gate()

    async def reply(_: ModelRequest) -> Any:
        await gate()
        return "Late."

    agent = Agent("helper", ScriptedProvider(reply))
    async with engine.served(agent) as client, connected(client, make_caller("bob", tenants=("bob",))) as access:
        ai = access.sdk()
        begun = await ai.responses.create(model="helper", input="go", background=True)
        await eventually(lambda: gate.entered)
        other = access.sdk("bob")
        for refused in (
            other.responses.retrieve(begun.id),
            other.responses.cancel(begun.id),
            other.responses.input_items.list(begun.id),
            other.responses.create(model="helper", input="x", previous_response_id=begun.id),
            ai.responses.retrieve("resp_nothing"),
            ai.responses.retrieve(begun.id[:-3] + "AAA"),
        ):
            with pytest.raises(openai.NotFoundError) as missing:
                await refused
            assert "session" not in missing.value.message
        with pytest.raises(openai.APIStatusError) as kept:
            await ai.responses.delete(begun.id)
        assert kept.value.status_code == 405
        stopped = await ai.responses.cancel(begun.id)
        assert stopped.status == "cancelled"
        assert (await ai.responses.cancel(begun.id)).status == "cancelled"
        assert {row.by for row in await read_audit(client) if row.refused} == {"bob"}
        gate.open()


async def test_posts_with_one_key_are_one_turn_on_any_replica(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(["One.", "Two?", "Three?"]))
    async with engine.served(agent) as client, connected(client) as first, connected(client) as second:
        headers = {"Idempotency-Key": "k1"}
        made = await asyncio.gather(
            *(
                access.sdk().responses.create(model="helper", input="go", extra_headers=headers)
                for access in (first, second, first, second)
            )
        )
        assert {response.output_text for response in made} == {"One."}
        assert len({response.id for response in made}) == 1


async def test_requests_of_a_long_conversation_read_its_last_turn_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("helper", ScriptedProvider([call("refund", order="7"), "Done.", "Bye."]), tools=[refund])
    async with engine.served(agent) as client, connected(client) as access:
        store, ai = await client.store(), access.sdk()
        for turn in range(500):
            at: dict[str, Any] = {"context_id": "long", "task_id": f"k{turn}"}
            said = MessageInjected(id=f"u{turn}", content=f"{turn}?", **at)
            replied = [ModelStarted(iteration=1, **at), ModelCompleted(iteration=1, text=f"{turn}.", **at)]
            events = [TurnEvent(state="started", **at), said, *replied, TurnEvent(state="completed", **at)]
            await store.append(EventBatch("long", [NewEvent(event) for event in events]))
        rows, read = list[int](), store.read_events

        async def count(*arguments: Any, **options: Any) -> Any:
            found = await read(*arguments, **options)
            rows.append(len(found))
            return found

        monkeypatch.setattr(store, "read_events", count)
        options: Any = {"model": "helper", "conversation": "long", "extra_headers": {"Idempotency-Key": "k"}}
        for _ in range(2):
            asked = await ai.responses.create(**options, input="refund")
        approval: Any = {"type": "mcp_approval_response", "approval_request_id": asked.output[-1].id, "approve": True}
        done = await ai.responses.create(model="helper", input=[approval], previous_response_id=asked.id)
        assert (await ai.responses.retrieve(done.id)).output_text == done.output_text == "Done."
        assert (await ai.responses.retrieve(asked.id)).output_text == "Done."
        session: Any = {"extra_headers": {"X-Perdure-Session": "long", "Idempotency-Key": "k2"}}
        for _ in range(2):
            chat = await ai.chat.completions.create(model="helper", messages=[user("bye")], **session)
            assert chat.choices[0].message.content == "Bye."
        assert sum(rows) < 3500, rows  # each of the seven requests: a window, and what has happened since


async def test_wrong_requests_name_their_parameter(engine: Engine) -> None:
    agent = Agent("helper", ScriptedProvider(lambda _: "Hello."), client_tools=True)
    async with engine.served(agent) as client, connected(client) as access, access.http() as http:
        ai = access.sdk()
        first = await ai.responses.create(model="helper", input="hi")
        hello: Any = {"model": "helper", "input": "hi"}
        wrong: list[tuple[dict[str, Any], str | None]] = [
            ({"store": False}, "store"),
            ({"truncation": "off"}, "truncation"),
            ({"tools": [{"type": "web_search"}]}, "tools[0]"),
            ({"text": {"format": {"type": "json_object"}}}, "text.format"),
            ({"previous_response_id": first.id, "conversation": "x"}, "previous_response_id"),
            ({"conversation": 7}, "conversation"),
            ({"input": []}, "input"),
            ({"input": [{"type": "item_reference", "id": "x"}]}, None),
            ({"input": [{"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}]}, "input"),
            ({"input": [{"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": 1}]}, "input"),
            ({"background": 1}, "background"),
            ({"wishes": 3}, "wishes"),
        ]
        for fields, param in wrong:
            with pytest.raises(openai.BadRequestError) as refused:
                await ai.responses.create(**hello, extra_body=fields)
            assert param is None or refused.value.param == param, (fields, refused.value)
        for query in ("starting_after=x&stream=true", "starting_after=-1&stream=true"):
            assert (await http.get(f"/responses/{first.id}?{query}")).status_code == 400
        assert (await http.get(f"/responses/{first.id}/input_items?limit=1000")).status_code == 400
        await check_hostile_ids(http)


async def check_hostile_ids(http: httpx.AsyncClient) -> None:
    """Ids of responses and calls that the service has not made."""

    def encode(plain: bytes) -> str:
        return base64.urlsafe_b64encode(plain).rstrip(b"=").decode()

    bodies = [
        b"[]", b"null", b'["s"]', b'["s","t",-1]', b'["s","t",1e99]', b'["s","t",true]', b'["","",0]', b"[" * 3000,
        b'["\\ud800","t",0]', b'["s","t",0,0]', b'{"a":1}', b"\xff\xfe", b'["s","t",0]', b'["a/../b","t",0]',
        b'["s","' + b"t" * 3000 + b'",0]', b'["' + b"s" * 3000 + b'","t",0]', b'["s\\u0000","t",0]',
    ]  # fmt: skip
    for body in bodies:
        for path in (f"/responses/resp_{encode(body)}", f"/responses/resp_{encode(body)}/input_items"):
            answer = await http.get(path)
            assert answer.status_code in (400, 404), (body[:60], answer.status_code, answer.text[:200])
            assert answer.json()["error"]["message"]
        item = {"type": "function_call_output", "call_id": f"call_{encode(body)}", "output": "x"}
        answer = await http.post("/responses", json={"model": "helper", "input": [item]})
        assert answer.status_code in (400, 404), (body[:60], answer.status_code, answer.text[:200])
