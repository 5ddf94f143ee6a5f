"""The MCP server, judged by the official client: tools, tasks, approvals, questions, and requests that are wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
import mcp_types as types
import pytest
from mcp import Client as McpClient
from mcp import MCPError
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from pydantic import BaseModel, ConfigDict

from perdure import Agent, Client, ToolContext, tool
from perdure.testing import ScriptedProvider, call
from perdure.types.events import ApprovalDecided
from perdure.web.mcp import KEY_META, TASKS
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.web import Service, make_caller, serve


class Reply(types.Result):
    """Any answer, as it came."""

    model_config = ConfigDict(extra="allow")


class TaskRequest(types.Request[dict[str, Any], str]):
    name_param = "taskId"


@asynccontextmanager
async def connect(
    service: Service | str, name: str = "ada", *, key: str | None = None, note: Any = None, **options: Any
) -> AsyncIterator[McpClient]:
    """``service``: also its address, for one that takes requests without a token. ``key``: the ``Idempotency-Key`` of
    its requests; ``note`` is called with each request."""
    headers = {} if isinstance(service, str) else {"authorization": f"Bearer {name}"}
    headers |= {} if key is None else {"idempotency-key": key}
    url = (service if isinstance(service, str) else service.url.removesuffix("/v1")) + "/mcp"
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, event_hooks={"request": [note] if note else []}) as http,
        McpClient(streamable_http_client(url, http_client=http), **options) as client,
    ):
        yield client


async def ask(client: McpClient, method: str, task: str, **params: Any) -> dict[str, Any]:
    reply = await client.session.send_request(TaskRequest(method=method, params={"taskId": task, **params}), Reply)
    return reply.model_dump(mode="json", by_alias=True)


class TaskHandle(types.Result):
    """The tasks extension's answer of a call."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"


def with_tasks(seen: list[dict[str, Any]]) -> Any:
    class Tasks(ClientExtension):
        identifier = TASKS

        def claims(self) -> Sequence[ResultClaim[Any]]:
            async def resolve(handle: TaskHandle, _: Any) -> types.CallToolResult:
                seen.append(handle.model_dump(mode="json", by_alias=True))
                return types.CallToolResult(content=[])

            return [ResultClaim(result_type="task", model=TaskHandle, resolve=resolve)]

    return Tasks()


async def start_task(client: McpClient, seen: list[dict[str, Any]], agent: str, text: str, **options: Any) -> str:
    await client.call_tool(agent, {"message": text}, **options)
    assert seen[-1]["resultType"] == "task"
    return str(seen[-1]["taskId"])


async def poll(client: McpClient, task: str, *states: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (found := await ask(client, "tasks/get", task))["status"] not in states:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # as a client of the protocol polls
    return found


def read_text(result: types.CallToolResult | dict[str, Any]) -> str:
    plain = result if isinstance(result, dict) else result.model_dump(mode="json", by_alias=True)
    return str(plain["content"][0]["text"])


async def decline(_: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="decline")


async def accept(_: Any, params: Any) -> types.ElicitResult:
    if "approve" in params.requested_schema["properties"]:
        return types.ElicitResult(action="accept", content={"approve": True})
    return types.ElicitResult(action="accept", content={"answer": "red"})


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
async def choose(ctx: ToolContext) -> str:
    """Ask for a colour."""
    return f"chose {await ctx.ask('Which colour?', str)}"


async def list_decisions(client: Client, run: str) -> list[ApprovalDecided]:
    return [event async for event in client.run(run).events(wait=False) if isinstance(event, ApprovalDecided)]


def echoing(name: str = "echo") -> Agent:
    return Agent(name, ScriptedProvider(lambda request: f"heard: {request.messages[-1].text}"), description="Echoes.")


def refunding() -> Agent:
    return Agent("helper", ScriptedProvider([call("refund", order="7"), "Done."]), tools=[refund])


class Order(BaseModel):
    number: int


@pytest.mark.server
async def test_agents_are_tools_and_a_call_waits_for_the_answer(engine: Engine) -> None:
    typed = Agent("typed", ScriptedProvider(["Got it."]), input=Order, instructions=lambda order: str(order))
    async with engine.served(echoing(), typed) as client, serve(client) as service, connect(service) as mcp:
        tools = {tool.name: tool for tool in (await mcp.list_tools()).tools}
        assert set(tools) == {"echo", "typed"}
        assert tools["echo"].description == "Echoes."
        assert tools["echo"].input_schema["required"] == ["message"]
        assert tools["typed"].input_schema["properties"]["number"]["type"] == "integer"
        hints = tools["echo"].annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.destructive_hint) == (False, True)
        result = await mcp.call_tool("echo", {"message": "hi"})
        assert (read_text(result), result.is_error) == ("heard: hi", False)
        assert read_text(await mcp.call_tool("typed", {"number": 3})) == "Got it."
        async with connect(service, mode="legacy") as old:  # the handshake of 2025, without sessions
            assert read_text(await old.call_tool("echo", {"message": "old"})) == "heard: old"


@pytest.mark.server
async def test_progress_is_notified_while_a_call_waits(engine: Engine) -> None:
    gate, noted = Gate(), list[tuple[float, str | None]]()

    @tool
    async def wait() -> str:
        await gate()
        return "open"

    async def note(progress: float, total: float | None, message: str | None) -> None:
        noted.append((progress, message))
        if message == "tool.started":
            gate.open()

    agent = Agent("slow", ScriptedProvider([call("wait"), "End."]), tools=[wait])
    async with engine.served(agent) as client, serve(client) as service, connect(service) as mcp:
        assert read_text(await mcp.call_tool("slow", {"message": "go"}, progress_callback=note)) == "End."
    assert noted == sorted(noted, key=lambda item: item[0])


@pytest.mark.server
async def test_a_repeat_with_the_same_key_is_the_same_run(engine: Engine) -> None:
    async with engine.served(echoing("repeats-of-a-key")) as client, serve(client) as service, connect(service) as mcp:
        meta: Any = {KEY_META: "k1"}
        first = await mcp.call_tool("repeats-of-a-key", {"message": "hi"}, meta=meta)
        again = await mcp.call_tool("repeats-of-a-key", {"message": "hi"}, meta=meta)
        assert first.meta is not None
        assert again.meta is not None
        assert first.meta["perdure/session"] == again.meta["perdure/session"]
        other = await mcp.call_tool("repeats-of-a-key", {"message": "other"}, meta=meta)
        assert other.is_error
        assert len(await client.list(agent="repeats-of-a-key")) == 1


@pytest.mark.server
async def test_the_header_names_a_repeat_and_another_caller_has_keys_of_its_own(engine: Engine) -> None:
    callers = [make_caller(name) for name in ("kim", "lee")]
    async with engine.served(echoing("keyed")) as client, serve(client, *callers) as service:
        runs = []
        for name in ("kim", "kim", "lee"):
            async with connect(service, name, key="k1") as mcp:
                result = await mcp.call_tool("keyed", {"message": "hi"})
                runs.append((result.meta or {})["perdure/session"])
        assert runs[0] == runs[1] != runs[2]


@pytest.mark.server
async def test_a_call_that_lasts_is_repeated_by_its_state(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's SDK repeats it, with the state that it was given, until there is an answer."""
    monkeypatch.setattr("perdure.web.mcp.WAIT_SECONDS", 1.0)
    gate, states = Gate(), list[str]()

    @tool
    async def wait() -> str:
        await gate()
        return "open"

    async def note(request: httpx2.Request) -> None:
        if state := json.loads(request.content or b"{}").get("params", {}).get("requestState"):
            states.append(state)
            gate.open()

    agent = Agent("lasting", ScriptedProvider([call("wait"), "End."]), tools=[wait])
    async with engine.served(agent) as client, serve(client) as service, connect(service, note=note) as mcp:
        result = await mcp.call_tool("lasting", {"message": "go"})
        assert read_text(result) == "End."
        assert set(states) == {(result.meta or {})["perdure/session"]}
        assert len(await client.list(agent="lasting")) == 1


@pytest.mark.server
async def test_an_approval_in_a_subagent_is_asked_for(engine: Engine) -> None:
    boss = Agent("boss", ScriptedProvider([call("call_helper", task="refund"), "Told."]), subagents=[refunding()])
    async with engine.served(boss) as client, serve(client) as service:
        async with connect(service, elicitation_callback=accept) as mcp:
            result = await mcp.call_tool("boss", {"message": "go"})
        assert read_text(result) == "Told."
        run = client.run((result.meta or {})["perdure/session"])
        decided = [event async for event in run.events(wait=False) if isinstance(event, ApprovalDecided)]
        assert [(one.by, one.context_id != run.id) for one in decided] == [("ada", True)]


@pytest.mark.server
async def test_a_run_is_a_task_and_an_approval_its_input(engine: Engine) -> None:
    seen: list[dict[str, Any]] = []
    options: dict[str, Any] = {"extensions": [with_tasks(seen)], "elicitation_callback": accept}
    async with (
        engine.served(refunding()) as client,
        serve(client) as service,
        connect(service, **options) as mcp,
    ):
        task = await start_task(mcp, seen, "helper", "refund")
        asked = await poll(mcp, task, "input_required")
        ((key, request),) = asked["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        assert '{"order":"7"}' in request["params"]["message"]
        yes = {"action": "accept", "content": {"approve": True, "comment": "fine"}}
        wrong_hash = key.rpartition("|")[0] + "|0"
        await ask(mcp, "tasks/update", task, inputResponses={wrong_hash: yes})
        assert (await ask(mcp, "tasks/get", task))["status"] == "input_required"
        await ask(mcp, "tasks/update", task, inputResponses={key: yes})
        done = await poll(mcp, task, "completed")
        assert (read_text(done["result"]), done["result"]["isError"]) == ("Done.", False)
        (decided,) = await list_decisions(client, task)
        assert (decided.by, decided.comment, decided.decision) == ("ada", "fine", "approved")
        await ask(mcp, "tasks/update", task, inputResponses={key: yes})  # late: ignored
        await ask(mcp, "tasks/cancel", task)
        assert (await ask(mcp, "tasks/get", task))["status"] == "completed"


@pytest.mark.server
@pytest.mark.parametrize("size", [25_000, 500_000])
async def test_arguments_that_are_too_long_to_be_shown_are_not_approved(engine: Engine, size: int) -> None:
    seen: list[dict[str, Any]] = []
    agent = Agent("helper", ScriptedProvider([call("refund", order="7" * size), "Done."]), tools=[refund])
    options: dict[str, Any] = {"extensions": [with_tasks(seen)], "elicitation_callback": accept}
    async with engine.served(agent) as client, serve(client) as service, connect(service, **options) as mcp:
        task = await start_task(mcp, seen, "helper", "refund")
        ((key, request),) = (await poll(mcp, task, "input_required"))["inputRequests"].items()
        assert f"/v1/sessions/{task}/items" in request["params"]["message"]
        assert len(request["params"]["message"]) < 1000
        yes = {"action": "accept", "content": {"approve": True}}
        with pytest.raises(MCPError, match="too long to be shown"):
            await ask(mcp, "tasks/update", task, inputResponses={key: yes})
        async with service.connect() as http:
            assert "7" * size in (await http.get(f"/sessions/{task}/items")).text
        assert (await ask(mcp, "tasks/get", task))["status"] == "input_required"
        await ask(mcp, "tasks/update", task, inputResponses={key: {"action": "decline"}})
        await poll(mcp, task, "completed")
        (decided,) = await list_decisions(client, task)
        assert decided.decision == "denied"


@pytest.mark.server
async def test_a_question_and_an_approval_by_elicitation_without_tasks(engine: Engine) -> None:
    calls: Any = [[call("refund", order="7"), call("choose")], "All done."]
    agent = Agent("helper", ScriptedProvider(calls), tools=[refund, choose])
    async with engine.served(agent) as client, serve(client) as service:
        async with connect(service, elicitation_callback=accept) as mcp:
            result = await mcp.call_tool("helper", {"message": "go"})
        assert read_text(result) == "All done."
        assert result.meta is not None
        results = [m.text for m in await client.run(result.meta["perdure/session"]).transcript() if m.role == "tool"]
        assert "chose red" in str(await client.run(result.meta["perdure/session"]).transcript())
        assert results


@pytest.mark.server
async def test_a_declined_approval_is_denied(engine: Engine) -> None:
    async with engine.served(refunding()) as client, serve(client) as service:
        async with connect(service, elicitation_callback=decline) as mcp:
            result = await mcp.call_tool("helper", {"message": "go"})
        assert result.meta is not None
        (decided,) = await list_decisions(client, result.meta["perdure/session"])
        assert (decided.decision, decided.by) == ("denied", "ada")


@pytest.mark.server
async def test_who_may_not_decide_sees_that_it_waits_and_cannot_answer(engine: Engine) -> None:
    seen: list[dict[str, Any]] = []
    sender = make_caller("sam", "sender")
    async with engine.served(refunding()) as client, serve(client, sender) as service:
        options: dict[str, Any] = {"extensions": [with_tasks(seen)], "elicitation_callback": accept}
        async with connect(service, "sam", **options) as sam, connect(service, **options) as ada:
            task = await start_task(sam, seen, "helper", "refund")
            asked = await poll(sam, task, "input_required")
            assert asked["inputRequests"] == {}
            assert "approval of refund" in asked["statusMessage"]
            (key,) = (await poll(ada, task, "input_required"))["inputRequests"]
            yes = {"action": "accept", "content": {"approve": True}}
            with pytest.raises(MCPError) as refused:
                await ask(sam, "tasks/update", task, inputResponses={key: yes})
            assert refused.value.error.data["error"] == "ForbiddenError"
            assert (await ask(ada, "tasks/get", task))["status"] == "input_required"
            await ask(ada, "tasks/update", task, inputResponses={key: yes})
            assert read_text((await poll(sam, task, "completed"))["result"]) == "Done."


@pytest.mark.server
async def test_a_task_is_cancelled(engine: Engine) -> None:
    gate, seen = Gate(), list[dict[str, Any]]()

    @tool
    async def wait() -> str:
        await gate()
        return "open"

    agent = Agent("slow", ScriptedProvider([call("wait"), "End."]), tools=[wait])
    async with engine.served(agent) as client, serve(client) as service:
        async with connect(service, extensions=[with_tasks(seen)]) as mcp:
            task = await start_task(mcp, seen, "slow", "go")
            assert (await ask(mcp, "tasks/get", task))["status"] == "working"
            await ask(mcp, "tasks/cancel", task)
            await poll(mcp, task, "cancelled")
        gate.open()


@pytest.mark.server
async def test_another_tenants_task_is_not_found(engine: Engine) -> None:
    seen: list[dict[str, Any]] = []
    ann, bob = make_caller("ann", tenants=("a",)), make_caller("bob", tenants=("b",))
    async with engine.served(echoing()) as client, serve(client, ann, bob) as service:
        options: dict[str, Any] = {"extensions": [with_tasks(seen)]}
        async with connect(service, "ann", **options) as own, connect(service, "bob", **options) as other:
            meta: Any = {KEY_META: "same"}
            task = await start_task(own, seen, "echo", "hi", meta=meta)
            assert await start_task(other, seen, "echo", "hi", meta=meta) != task
            for method in ("tasks/get", "tasks/cancel", "tasks/update"):
                errors = []
                for name in (task, "mcp-nothing"):
                    with pytest.raises(MCPError) as refused:
                        await ask(other, method, name, inputResponses={})
                    errors.append((refused.value.code, refused.value.message.replace(name, "…")))
                assert errors[0] == errors[1]
                assert errors[0][0] == types.INVALID_PARAMS
            assert read_text((await poll(own, task, "completed"))["result"]) == "heard: hi"


@pytest.mark.server
async def test_wrong_requests_start_nothing(engine: Engine) -> None:
    async with engine.served(echoing("wrong")) as client, serve(client) as service, connect(service) as mcp:
        for arguments in ({}, {"message": None}, {"message": ["x"]}, {"message": "x", "more": 1}, {"message": ""}):
            assert (await mcp.call_tool("wrong", arguments)).is_error, arguments
        with pytest.raises(MCPError):
            await mcp.call_tool("nothing", {"message": "x"})
        with pytest.raises(MCPError):
            await mcp.call_tool("wrong", {"message": "x"}, meta={KEY_META: "k" * 300})  # type: ignore[arg-type]
        with pytest.raises(MCPError) as undeclared:
            await ask(mcp, "tasks/get", "mcp-x")
        assert undeclared.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY
        with pytest.raises(MCPError):
            await mcp.session.call_tool("wrong", {"message": "x"}, request_state="mcp-nothing")
        url = service.url.removesuffix("/v1") + "/mcp"
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
        async with httpx2.AsyncClient(headers=headers) as http:
            assert (await http.post(url, json={})).status_code == 401
            http.headers["authorization"] = "Bearer ada"
            assert (await http.post(url, content=b"x", headers={"content-type": "text/plain"})).status_code == 415
            assert (await http.post(url, json={}, headers={"host": "evil.example.com"})).status_code == 421
            for body in (b"null", b"[]", b"{", b'{"jsonrpc": "2.0", "id": 1, "method": 7}', b"[" * 5000 + b"]" * 5000):
                answer = await http.post(url, content=body, headers={"content-type": "application/json"})
                assert 400 <= answer.status_code < 500, (body[:40], answer.text)
        assert await client.list(agent="wrong") == []


@pytest.mark.server
async def test_hostile_values_are_refused_without_internals(engine: Engine) -> None:
    async with engine.served(echoing("hostile")) as client, serve(client) as service:
        url = service.url.removesuffix("/v1") + "/mcp"
        headers = {"accept": "application/json, text/event-stream", "authorization": "Bearer ada"}
        kind = {"content-type": "application/json"}
        texts = ['"\\ud800"', '"a\\u0000b"', "1e400", "null", "[" * 150 + "]" * 150, '{"a": 1, "a": 2}']
        calls = [f'{{"name": "hostile", "arguments": {{"message": {text}}}}}' for text in texts[2:]]
        calls += [f'{{"name": {text}, "arguments": {{"message": "x"}}}}' for text in texts]
        calls += [f'{{"name": "hostile", "arguments": {text}}}' for text in texts]
        async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
            for params in calls:
                body = f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {params}}}'
                answer = await http.post(url, content=body.encode(), headers=kind)
                assert answer.status_code < 500, (params, answer.text)
                assert '"isError":true' in answer.text or '"error"' in answer.text, (params, answer.text)
                assert "-32603" not in answer.text, (params, answer.text)
                assert "Traceback" not in answer.text
        seen: list[dict[str, Any]] = []
        async with connect(service, extensions=[with_tasks(seen)]) as mcp:
            for task in ("a\0b", "x" * 1000, "../..", "mcp-\u202e", "é/ü"):
                with pytest.raises(MCPError) as refused:
                    await ask(mcp, "tasks/get", task)
                assert refused.value.code == types.INVALID_PARAMS, (task, refused.value)
            finished = await start_task(mcp, seen, "hostile", "\ufffe text")
            await poll(mcp, finished, "completed")
            for responses in ({"k": None}, {"k": {"action": "explode"}}, {"x" * 5000: {"action": "accept"}}):
                await ask(mcp, "tasks/update", finished, inputResponses=responses)  # no such input: ignored
        assert len(await client.list(agent="hostile")) == 1


@pytest.mark.server
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_that_shows_no_forms_is_told_what_the_run_waits_for(engine: Engine, mode: str) -> None:
    async with (
        engine.served(refunding()) as client,
        serve(client) as service,
        connect(service, mode=mode) as mcp,
    ):
        told = await mcp.call_tool("helper", {"message": "refund"})
        assert told.is_error
        assert "waits for approval of refund" in read_text(told)
        with pytest.raises(MCPError):
            await mcp.session.call_tool("helper", {"message": "x"}, request_state="x" * 100_000)


@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_client_of_the_older_protocol_is_asked_within_its_call(engine: Engine, action: str) -> None:
    """For an approval, and for a question of another turn; it answers by requests of their own."""
    asked: list[Any] = []

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params)
        return await (accept if action == "accept" else decline)(context, params)

    provider = ScriptedProvider([call("refund", order="7"), call("choose"), "Done."])
    agent = Agent("shop", provider, tools=[refund, choose])
    async with (
        engine.served(agent) as client,
        serve(client) as service,
        connect(service, mode="legacy", elicitation_callback=answer) as mcp,
    ):
        result = await mcp.call_tool("shop", {"message": "Refund 7."})
        assert read_text(result) == "Done."
        assert result.meta is not None
        transcript = await client.run(result.meta["perdure/session"]).transcript()
    results = [each.content for message in transcript for each in message.tool_results]
    assert [sorted(params.requested_schema["properties"]) for params in asked] == [["approve", "comment"], ["answer"]]
    assert "Approve this call of refund?" in asked[0].message
    if action == "accept":
        assert results == ["refunded 7", "chose red"]
    else:
        assert "refunded" not in str(results)
        assert "chose" not in str(results)


class Wanted(BaseModel):
    size: Literal["small", "large"] = "small"
    count: int


@tool
async def order(ctx: ToolContext) -> str:
    """Ask what is wanted."""
    wanted = await ctx.ask("What do you want?", Wanted)
    return f"{wanted.count} {wanted.size}"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_question_of_plain_fields_is_a_form_of_its_fields(
    engine: Engine, mode: Literal["legacy", "auto"]
) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(_: Any, params: Any) -> types.ElicitResult:
        asked.append(params.requested_schema)
        return types.ElicitResult(action="accept", content={"size": "large", "count": 2})

    agent = Agent("shop", ScriptedProvider([call("order"), "Done."]), tools=[order])
    async with (
        engine.served(agent) as client,
        serve(client) as service,
        connect(service, mode=mode, elicitation_callback=answer) as mcp,
    ):
        result = await mcp.call_tool("shop", {"message": "Order."})
        assert read_text(result) == "Done."
        assert result.meta is not None
        transcript = await client.run(result.meta["perdure/session"]).transcript()
    assert [each.content for message in transcript for each in message.tool_results] == ["2 large"]
    [form] = asked
    assert form["required"] == ["count"]
    assert form["properties"]["size"]["enum"] == ["small", "large"]
    assert form["properties"]["size"]["default"] == "small"
    assert form["properties"]["count"]["type"] == "integer"


async def test_what_was_asked_is_answered_at_any_replica_and_by_those_who_may(engine: Engine) -> None:
    """The id of what is asked says what that is: also a client that has gone may answer, once."""
    provider = ScriptedProvider([call("refund", order="7"), "Done."])
    other = make_caller("other", agents=("nothing",))
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
    started = {"name": "shop", "arguments": {"message": "Refund 7."}}
    async with (
        engine.served(Agent("shop", provider, tools=[refund])) as client,
        serve(client) as first,
        serve(client, other) as second,
    ):

        def post(service: Service, message: Any, name: str = "ada", **more: str) -> httpx2.Request:
            body = {"jsonrpc": "2.0", **message}
            return httpx2.Request(
                "POST", f"{service.url}/mcp", json=body, headers={**headers, "authorization": f"Bearer {name}", **more}
            )

        async with httpx2.AsyncClient(timeout=60) as http:
            client_info = {"name": "old", "version": "1"}
            params = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": client_info}
            opened = await http.send(post(first, {"id": 1, "method": "initialize", "params": params}))
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
            message = {"id": 2, "method": "tools/call", "params": started}
            answered = await http.send(post(first, message, **session), stream=True)
            lines = (line async for line in answered.aiter_lines() if line.startswith("data: {"))
            asked = json.loads((await anext(lines))[6:])
            assert asked["method"] == "elicitation/create"
            reply = {"id": asked["id"], "result": {"action": "accept", "content": {"approve": True}}}
            forged = {**reply, "id": asked["id"].replace("mcp-", "mcp-0")}
            for name, refused in (("other", reply), ("ada", forged), ("ada", {**reply, "id": "x"})):
                assert 400 <= (await http.send(post(second, refused, name, **session))).status_code < 500
            assert (await http.send(post(second, {"id": asked["id"], "error": {"code": 1}}))).status_code == 202
            assert (await client.run(asked["id"].split("|")[0]).status()).approvals, "an error decides nothing"
            for _ in range(2):
                assert (await http.send(post(second, reply, **session))).status_code == 202
            assert json.loads((await anext(lines))[6:])["result"]["content"][0]["text"] == "Done."
            await answered.aclose()
            del params["capabilities"]["elicitation"]  # type: ignore[attr-defined]  # a dictionary
            opened = await http.send(post(first, {"id": 1, "method": "initialize", "params": params}))
            assert "mcp-session-id" not in opened.headers
