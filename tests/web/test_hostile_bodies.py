"""The bodies of front-end protocols: whatever stands in them, the answer is none of 5xx, and tells no internals."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import Agent, tool
from perdure.testing import ScriptedProvider, call
from perdure.web.app import WebOptions, create_app
from perdure.web.limits import WebLimits
from tests.support.in_process import InProcessEngine
from tests.support.wait import eventually
from tests.support.web import ADA, NamedCallers

ODD_TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "\u202e",
    "x" * 5_000,
    "a/b",
    "..",
    "%2F",
    "|",
    "a|b|c",
    "data:;base64,",
    "😀",
    "\ufffe",
]
ODD_NUMBERS = [0, -1, 2**31, 2**53, 2**63, 2**64, 10**30, 1e308, -0.0, 0.1]
LEAVES = st.sampled_from([None, True, False, *ODD_TEXTS, *ODD_NUMBERS, [], {}]) | st.text(max_size=20)
VALUES = st.recursive(
    LEAVES,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=8,
)
RAW = ["", "null", "[]", "{", "{}", "1e999", "NaN", '{"a":1,"a":2}', '"\\ud800"', "[" * 500 + "]" * 500, "\ufeff{}"]


def nest(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


WAIT = f"waiting|call_1|{'0' * 64}"
"""The id of the call that waits, once the zeros are its hash."""
META = "io.modelcontextprotocol/"
CAPABILITIES = {"extensions": {f"{META}tasks": {}}, "elicitation": {"form": {}}}


def build_agui(thread: str) -> list[dict[str, Any]]:
    message = {"id": "m1", "role": "user", "content": [{"type": "text", "text": "Hi"}]}
    fields = {"threadId": thread, "runId": "r1", "state": {}, "context": [], "forwardedProps": {}}
    tools = [{"name": "open_page", "description": "Opens.", "parameters": {"type": "object"}}]
    answer = {"id": "m2", "role": "tool", "toolCallId": "call_1", "content": "opened"}
    resume = [{"interruptId": WAIT, "status": "resolved", "payload": {"approved": True, "editedArgs": {"order": "8"}}}]
    sent = {**fields, "messages": [message], "tools": tools}
    return [sent, {**sent, "messages": [message, answer]}, {**sent, "resume": resume}]


def build_vercel(thread: str) -> list[dict[str, Any]]:
    file = {"type": "file", "url": "data:text/plain;base64,aGk=", "mediaType": "text/plain"}
    user = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}, file]}
    approval = {"id": WAIT, "approved": True, "reason": "ok"}
    answered = {"type": "dynamic-tool", "toolCallId": "call_1", "state": "approval-responded", "approval": approval}
    output = {"type": "dynamic-tool", "toolCallId": "call_1", "state": "output-available", "output": {"a": 1}}
    assistant = {"id": "m2", "role": "assistant", "parts": [answered, output]}
    chat = {"id": thread, "trigger": "submit-message"}
    return [{**chat, "messages": [user]}, {**chat, "messages": [user, assistant]}]


def build_mcp(thread: str) -> list[dict[str, Any]]:
    meta = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": CAPABILITIES}
    meta |= {f"{META}clientInfo": {"name": "x", "version": "1"}, "perdure/idempotencyKey": "k"}
    response = {WAIT: {"action": "accept", "content": {"approve": True, "comment": "ok"}}}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": "helper", "arguments": {"message": "Hi"}}),
        ("tools/call", {"name": "helper", "requestState": thread, "inputResponses": response}),
        ("tasks/get", {"taskId": thread}),
        ("tasks/update", {"taskId": thread, "inputResponses": response}),
    ]
    return [
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**fields, "_meta": meta}} for method, fields in calls
    ]


BODIES = {"/agui/helper": build_agui, "/ui/helper": build_vercel, "/mcp": build_mcp}


def list_places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of each value in a body, but for the body itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, below in items for place in [(*path, key), *list_places(below, (*path, key))]]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """A path and a body: one of the protocol's with a few values in the place of others, or left out; or any text."""
    path = draw(st.sampled_from(sorted(BODIES)))
    if draw(st.integers(0, 9)) == 0:
        return path, draw(st.sampled_from(RAW)).encode(errors="surrogatepass")
    body = copy.deepcopy(draw(st.sampled_from(BODIES[path](draw(st.sampled_from(["s1", "waiting"]))))))
    for _ in range(draw(st.integers(0, 3))):
        places = list_places(body)
        if draw(st.integers(0, 9)):  # what MCP needs of each request
            places = [place for place in places if place[:2] != ("params", "_meta")] or places
        *above, key = draw(st.sampled_from(places))
        place = body
        for name in above:
            place = place[name]
        if draw(st.booleans()):
            place[key] = draw(VALUES | st.builds(nest, st.sampled_from([60, 140, 300])))
        elif isinstance(place, dict):
            del place[key]
        if not list_places(body):
            break
    return path, json.dumps(body, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")


def find_names(body: bytes) -> dict[str, str]:
    """The headers of MCP that say what stands in the body."""
    try:
        call = json.loads(body)
        names = {"mcp-method": call["method"], "mcp-name": call["params"].get("name", call["params"].get("taskId"))}
        return {
            name: text
            for name, text in names.items()
            if isinstance(text, str) and text.isprintable() and text.isascii()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


@tool(needs_approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(st.lists(requests(), min_size=8, max_size=16))
@settings(
    max_examples=3 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
async def test_hostile_bodies_are_no_failure(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, sent: list[tuple[str, bytes]]
) -> None:
    monkeypatch.setattr("perdure.web.mcp.WAIT_SECONDS", 1.0)
    folder: Path = tmp_path_factory.mktemp("hostile")
    engine = InProcessEngine(folder)
    agent = Agent("helper", ScriptedProvider(lambda _: call("refund", order="7")), tools=[refund], client_tools=True)
    async with engine.served(agent) as client:
        run = (await client.send("helper", "Refund.", id="waiting")).run

        async def find_pending() -> Any:
            return (await run.status()).approvals

        [pending] = await eventually(find_pending)
        limits = WebLimits(requests_per_second=1e6, burst=10**6)
        app = create_app(client, authenticator=NamedCallers(ADA), options=WebOptions(dev=True, limits=limits))
        headers = {"authorization": "Bearer ada", "content-type": "application/json"}
        headers |= {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
            for path, body in sent:
                async with asyncio.timeout(30):
                    names = find_names(body)
                    content = body.replace(b"0" * 64, pending.hash.encode())
                    answer = await http.post(path, content=content, headers=names)
                assert answer.status_code < 500, (path, body, answer.text)
                for told in (str(folder), "Traceback", "InternalError", "-32603"):
                    assert told not in answer.text, (path, body, answer.text)
    await engine.close()
