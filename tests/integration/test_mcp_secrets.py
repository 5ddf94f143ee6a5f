"""What an MCP server echoes of its credentials in errors reaches neither the model nor history."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest

from perdure.errors import DefinitionError, ToolError
from perdure.mcp import MCPServer, server
from tests.servers.http import Answer, HttpServer, Request

TOKEN = "t0k3n/of+the-server"
SIGNED = "s1gned-url-0123"
LOGIN = "pass-w0rd-0123"


async def answer_with_an_echo(request: Request, answer: Answer) -> None:
    """As much MCP as it takes to be asked for tools, and to call one."""
    said = f"no {request.headers.get('authorization')} and {quote(TOKEN, safe='')} for {request.path}"
    asked = json.loads(request.body or b"{}")
    if request.method != "POST":
        await answer.send(405, b"")
    elif asked.get("method") == "initialize":
        told = {"capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
        told |= {"protocolVersion": asked["params"]["protocolVersion"]}
        await answer.json(200, {"jsonrpc": "2.0", "id": asked["id"], "result": told})
    elif "id" not in asked:
        await answer.send(202, b"")
    elif asked["method"] == "tools/call" and asked["params"]["name"] == "fails":
        failed = {"content": [{"type": "text", "text": said}], "isError": True}
        await answer.json(200, {"jsonrpc": "2.0", "id": asked["id"], "result": failed})
    else:
        code = -32601 if asked["method"] == "server/discover" else -32050
        await answer.json(200, {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": said}})


@pytest.fixture
async def echo() -> AsyncIterator[MCPServer]:
    async with HttpServer(answer_with_an_echo) as http:
        url = f"http://127.0.0.1:{http.port}/mcp?sig={SIGNED}"
        made = MCPServer.http(url, headers={"Authorization": f"Bearer {TOKEN}", "X-Kind": "application/json"})
        yield made
        await made.close()


def shown(error: BaseException) -> str:
    assert error.__cause__ is None
    assert error.__suppress_context__
    return f"{error!r} {error}"


async def test_a_configured_header_that_an_mcp_server_echoes_is_not_shown(echo: MCPServer) -> None:
    context: Any = None
    with pytest.raises(Exception, match=r"no \[redacted\] and \[redacted\] for /mcp\?sig=\[redacted\]") as listing:
        await echo.list(context)
    with pytest.raises(Exception, match=r"no \[redacted\] and") as calling:
        await echo.call("other", {}, context)
    with pytest.raises(ToolError, match=r"no \[redacted\] and \[redacted\] for /mcp\?sig=\[redacted\]") as failing:
        await echo.call("fails", {}, context)
    for caught in (listing, calling, failing):
        assert not [one for one in ("t0k3n", SIGNED) if one in shown(caught.value)]


async def test_a_server_that_cannot_be_opened_shows_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RETRY_DELAYS", ())
    context: Any = None
    url = f"http://ana:{LOGIN}@127.0.0.1:1/mcp?sig={SIGNED}"
    program = [sys.executable, "-c", "import sys; sys.exit(1)", "--token", TOKEN]
    missing = f"/no/such/{TOKEN}"
    for made in (
        MCPServer.http(url, headers={"Authorization": f"Bad\nvalue {TOKEN}"}),
        MCPServer.stdio(program[0], program[1:], env={"API_KEY": TOKEN}),
        MCPServer.stdio(missing, ["--token", TOKEN], env={"DSN": f"pg://u:{LOGIN}@h"}, name="missing"),
    ):
        with pytest.raises(ToolError) as caught:
            await made.list(context)
        await made.close()
        assert not [one for one in (TOKEN, SIGNED, LOGIN) if one in shown(caught.value)]


async def test_a_headers_function_that_fails_is_named_without_its_text() -> None:
    def headers(ctx: Any) -> dict[str, str]:
        raise PermissionError(f"the vault refuses {TOKEN}")

    context: Any = None
    with pytest.raises(ToolError, match="the headers function of MCP server 'x_dev' raised PermissionError") as caught:
        await MCPServer.http("https://x.dev/mcp", headers=headers).audience(context)
    assert TOKEN not in shown(caught.value)


def test_an_address_that_is_none_is_shown_without_its_login() -> None:
    with pytest.raises(DefinitionError, match="is not an http") as caught:
        MCPServer.http(f"ws://ana:{LOGIN}@x.dev/mcp")
    assert LOGIN not in str(caught.value)
