"""HTTP statuses of MCP servers: each request is judged by its own, and not by those of others on its connection."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import MCPError
from mcp.types import INTERNAL_ERROR

from perdure import ToolContext
from perdure.errors import ToolError
from perdure.mcp import MCPServer
from tests.servers.http import Answer, HttpServer, Request

Reply = Callable[[Answer, dict[str, Any]], Any]
"""Answers a request with its JSON-RPC message."""
TOOLS = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("act", "other")]}


class Api:
    """An MCP server of the older protocol. ``replies``: what it answers to a tool or a method before it works."""

    def __init__(self, *, session: bool = True) -> None:
        self.calls: Counter[str] = Counter()
        """Tool calls that have arrived, by name."""
        self.replies: dict[str, list[Reply]] = {}
        self._session = {"mcp-session-id": "s"} if session else {}

    async def handle(self, request: Request, answer: Answer) -> None:
        """One HTTP request."""
        if request.method != "POST":
            await answer.send(405, b"")
            return
        message = json.loads(request.body)
        name = message["method"]
        if name == "tools/call":
            name = message["params"]["name"]
            self.calls[name] += 1
        if self.replies.get(name):
            await self.replies[name].pop(0)(answer, message)
        elif name == "server/discover":
            await say(answer, message, error={"code": -32601, "message": "no such method"})
        elif name == "initialize":
            info = {"name": "api", "version": "1"}
            asked = message["params"]["protocolVersion"]
            result = {"protocolVersion": asked, "capabilities": {"tools": {}}, "serverInfo": info}
            await say(answer, message, self._session, result=result)
        elif "id" not in message:
            await answer.send(202, b"")
        else:
            done = {"content": [{"type": "text", "text": "done"}]}
            await say(answer, message, result=TOOLS if name == "tools/list" else done)


async def say(answer: Answer, message: dict[str, Any], headers: dict[str, str] | None = None, **rest: Any) -> None:
    await answer.json(200, {"jsonrpc": "2.0", "id": message["id"], **rest}, headers)


def status(code: int) -> Reply:
    async def reply(answer: Answer, message: dict[str, Any]) -> None:
        await answer.send(code, b"")

    return reply


@asynccontextmanager
async def served(api: Api) -> AsyncIterator[MCPServer]:
    async with HttpServer(api.handle) as http:
        server = MCPServer.http(f"http://127.0.0.1:{http.port}/mcp")
        try:
            yield server
        finally:
            await server.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.mcp.server.RETRY_DELAYS", (0.0, 0.0, 0.0))


async def test_a_call_is_not_sent_again_because_another_on_its_connection_was_refused() -> None:
    api, begun, refused = Api(), asyncio.Event(), asyncio.Event()

    async def fails(answer: Answer, message: dict[str, Any]) -> None:
        begun.set()
        await refused.wait()
        await say(answer, message, error={"code": INTERNAL_ERROR, "message": "the printer is on fire"})

    api.replies = {"act": [fails] * 4, "other": [status(429)]}
    async with served(api) as server:
        await server.list(ToolContext())
        acting = asyncio.ensure_future(server.call("act", {}, ToolContext()))
        await begun.wait()
        assert await server.call("other", {}, ToolContext()) == "done"
        refused.set()
        with pytest.raises(MCPError, match="the printer is on fire"):
            await acting
    assert api.calls == {"act": 1, "other": 2}, "the one that was refused is sent again"


@pytest.mark.parametrize("session", [True, False])
async def test_a_call_that_fails_at_a_gateway_may_have_happened(session: bool) -> None:
    """Also where the server has no sessions."""
    api = Api(session=session)
    api.replies["act"] = [status(502)] * 4
    async with served(api) as server:
        with pytest.raises(ToolError, match=r"HTTP 502.*; the call may have happened or not"):
            await server.call("act", {}, ToolContext())
    assert api.calls == {"act": 1}


@pytest.mark.parametrize("code", [200, 202])
async def test_an_answer_that_cannot_be_read_may_be_that_of_a_call_which_happened(code: int) -> None:
    api = Api()

    async def garbled(answer: Answer, message: dict[str, Any]) -> None:
        await answer.send(code, b"<html>", {"content-type": "application/json"})

    api.replies["act"] = [garbled]
    async with served(api) as server:
        with pytest.raises(ToolError, match=r"cannot be read.*; the call may have happened or not"):
            await server.call("act", {}, ToolContext())
    assert api.calls == {"act": 1}


async def test_a_call_that_was_made_is_not_repeated_because_the_list_of_tools_behind_it_is_refused() -> None:
    """The SDK lists the tools after a call of one that it does not know, to check the result."""
    api = Api()
    api.replies["tools/list"] = [status(429)] * 4
    async with served(api) as server:
        with pytest.raises(ToolError, match="the call may have happened or not"):
            await server.call("act", {}, ToolContext())
    assert api.calls == {"act": 1}
