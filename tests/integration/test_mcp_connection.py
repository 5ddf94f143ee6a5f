"""What MCP servers, and proxies before them, answer: each request is judged by its own answer, and by a table."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import MCPError
from mcp.types import INTERNAL_ERROR

from perdure import Agent, File, ToolContext
from perdure.errors import ToolError
from perdure.mcp import MCPServer
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.servers.http import Answer, HttpServer, Request
from tests.support.checks import results
from tests.support.engine import Engine

Reply = Callable[[Answer, dict[str, Any]], Any]
"""Answers a request with its JSON-RPC message."""
TOOLS: list[dict[str, Any]] = [{"name": name, "inputSchema": {"type": "object"}} for name in ("act", "other")]
TOOLS += [{"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]


class Api:
    """An MCP server of the older protocol. ``replies``: what it answers to a tool or a method before it works."""

    def __init__(self, *, session: bool = True) -> None:
        self.calls: Counter[str] = Counter()
        """Tool calls that have arrived, by name."""
        self.methods: Counter[str] = Counter()
        """Other requests that have arrived, by method."""
        self.replies: dict[str, list[Reply]] = {}
        self.tools: list[dict[str, Any]] = TOOLS
        self._has_sessions = session

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
        else:
            self.methods[name] += 1
        if self.replies.get(name):
            await self.replies[name].pop(0)(answer, message)
        elif name == "server/discover":
            await say(answer, message, error={"code": -32601, "message": "no such method"})
        elif name == "initialize":
            info = {"name": "api", "version": "1"}
            asked = message["params"]["protocolVersion"]
            result = {"protocolVersion": asked, "capabilities": {"tools": {}}, "serverInfo": info}
            session = {"mcp-session-id": f"s{self.methods[name]}"} if self._has_sessions else None
            await say(answer, message, session, result=result)
        elif "id" not in message:
            await answer.send(202, b"")
        else:
            done = {"content": [{"type": "text", "text": "done"}]}
            await say(answer, message, result={"tools": self.tools} if name == "tools/list" else done)


async def say(answer: Answer, message: dict[str, Any], headers: dict[str, str] | None = None, **rest: Any) -> None:
    await answer.json(200, {"jsonrpc": "2.0", "id": message["id"], **rest}, headers)


def status(code: int) -> Reply:
    async def reply(answer: Answer, message: dict[str, Any]) -> None:
        await answer.send(code, b"")

    return reply


@asynccontextmanager
async def served(api: Api, **options: Any) -> AsyncIterator[MCPServer]:
    async with HttpServer(api.handle) as http:
        server = MCPServer.http(f"http://127.0.0.1:{http.port}/mcp", **options)
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
    """The SDK would list the tools after a call of one that it does not know, to check the result."""
    api = Api()
    api.replies["tools/list"] = [status(429)] * 4
    async with served(api) as server:
        assert await server.call("act", {}, ToolContext()) == "done"
    assert api.calls == {"act": 1}


# ---
# The table: what an answer says of a call.


def body(code: int, content: str | bytes, media_type: str = "application/json", **headers: str) -> Reply:
    """An answer with this body; ``"id": ID`` in it is the request's."""

    async def reply(answer: Answer, message: dict[str, Any]) -> None:
        data = content if isinstance(content, bytes) else content.replace("ID", json.dumps(message["id"])).encode()
        await answer.send(code, data, {"content-type": media_type, **headers})

    return reply


def failure(code: int, error: int, text: str, id: str = "ID") -> Reply:
    """A JSON-RPC error."""
    return body(code, f'{{"jsonrpc": "2.0", "id": {id}, "error": {{"code": {error}, "message": {json.dumps(text)}}}}}')


def result(value: str, id: str = "ID") -> Reply:
    return body(200, f'{{"jsonrpc": "2.0", "id": {id}, "result": {value}}}')


def events(*datas: str, ends: bool = True) -> Reply:
    """A stream of events, which is cut if it does not end."""

    async def reply(answer: Answer, message: dict[str, Any]) -> None:
        answer.start(200, {"content-type": "text/event-stream"})
        for data in datas:
            await answer.write(f"event: message\ndata: {data.replace('ID', json.dumps(message['id']))}\n\n".encode())
        if not ends:
            answer.abort()
        await answer.finish()

    return reply


async def cut(answer: Answer, message: dict[str, Any]) -> None:
    answer.abort()


NOTE = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}'
DONE = '{"content": [{"type": "text", "text": "done"}]}'
LARGE = "x" * 20_000_000
HTML = (
    "<html><head><title>502 Bad Gateway</title><style>a{b}</style></head><body><h1>502 Bad Gateway</h1></body></html>"
)
Outcome = Literal["own", "again", "new", "refused", "lost"]


@dataclass(frozen=True)
class Row:
    """``reply`` to a call means ``outcome``; without a session it means ``stateless``."""

    reply: Reply
    outcome: Outcome
    stateless: Outcome
    text: str = ""
    """What the error says."""


TABLE: dict[str, Row] = {
    # a session that the server does not know
    "404 -32001 without id (TypeScript)": Row(failure(404, -32001, "Session not found", "null"), "new", "own"),
    "404 -32001 with the id": Row(failure(404, -32001, "Session not found"), "new", "own"),
    "404 -32600 (Python)": Row(failure(404, -32600, "Session not found", '"server-error"'), "new", "own"),
    "404 -32603 (Spring)": Row(failure(404, -32603, "Session not found: 1"), "new", "own"),
    "404 -32601": Row(failure(404, -32601, "Method not found"), "new", "own"),
    "404 -32000": Row(failure(404, -32000, "x"), "new", "own"),
    "404 -32002": Row(failure(404, -32002, "x"), "new", "own"),
    "404 text": Row(body(404, "Session not found", "text/plain"), "new", "again"),
    "404 HTML": Row(body(404, "<html>no</html>", "text/html"), "new", "again"),
    "404 nothing": Row(status(404), "new", "again"),
    "404 of an API gateway": Row(body(404, '{"message": "no Route matched with those values"}'), "new", "again"),
    "404 that is JSON-RPC with a result": Row(body(404, '{"jsonrpc": "2.0", "id": ID, "result": {}}'), "new", "again"),
    "400 -32000 (TypeScript examples)": Row(
        failure(400, -32000, "Bad Request: No valid session ID provided", "null"), "new", "refused", "No valid session"
    ),
    "400 -32000 not initialized": Row(
        failure(400, -32000, "Bad Request: Server not initialized", "null"), "new", "refused", "not initialized"
    ),
    "400 session, with the id": Row(failure(400, -32600, "Unknown session"), "new", "own"),
    "400 text": Row(body(400, "No active session", "text/plain"), "new", "refused", "HTTP 400: No active session"),
    "401 of a session (Rust)": Row(
        body(401, "Unauthorized: Session not found", "text/plain"), "new", "refused", "HTTP 401: Unauthorized"
    ),
    "403 of a session": Row(body(403, '{"code": -32001, "message": "Mcp-Session-Id mismatch"}'), "new", "refused"),
    "410": Row(status(410), "new", "refused", "HTTP 410"),
    # credentials
    "401": Row(body(401, '{"error": "invalid_token"}'), "refused", "refused", "HTTP 401.*invalid_token"),
    "401 -32001": Row(failure(401, -32001, "Unauthorized", "null"), "refused", "refused", "HTTP 401: Unauthorized"),
    "403": Row(body(403, "<html><h1>Forbidden</h1></html>", "text/html"), "refused", "refused", "HTTP 403: Forbidden"),
    "407": Row(status(407), "refused", "refused", "HTTP 407"),
    # not carried out
    "400 nothing": Row(status(400), "new", "refused", "HTTP 400"),
    "405": Row(status(405), "refused", "refused", "HTTP 405"),
    "409": Row(status(409), "again", "again"),
    "413": Row(body(413, HTML, "text/html"), "refused", "refused", "HTTP 413"),
    "421": Row(status(421), "again", "again"),
    "425": Row(status(425), "again", "again"),
    "429": Row(body(429, '{"message": "API rate limit exceeded"}', **{"retry-after": "0"}), "again", "again"),
    "429 -32000": Row(failure(429, -32000, "Too many requests", "null"), "again", "again"),
    "307 to another host": Row(body(307, "", location="http://127.0.0.2:1/mcp"), "refused", "refused", "307"),
    "501": Row(status(501), "refused", "refused", "HTTP 501"),
    # the server's own answer, whatever the code
    **{
        f"{code} with the id, {error}": Row(failure(code, error, "the printer is on fire"), "own", "own")
        for code, error in [*((200, error) for error in (-32000, -32001, -32600, -32603, -32700, 7)), (400, -32602)]
    },
    "500 -32602 with the id": Row(failure(500, -32602, "the printer is on fire"), "own", "own"),
    "200 -32000 in an event": Row(
        events('{"jsonrpc": "2.0", "id": ID, "error": {"code": -32000, "message": "the printer is on fire"}}'),
        "own", "own",
    ),
    "200 with another id": Row(failure(200, -32603, "the printer is on fire", '"xxx"'), "own", "own"),
    "200 with the id null": Row(failure(200, -32603, "the printer is on fire", "null"), "own", "own"),
    # unknown
    "408": Row(status(408), "lost", "lost", "HTTP 408"),
    "499": Row(status(499), "lost", "lost", "HTTP 499"),
    "500": Row(failure(500, -32603, "Internal server error", "null"), "lost", "lost", "HTTP 500: Internal server"),
    "500 -32603 with the id": Row(failure(500, -32603, "Internal"), "lost", "lost", "HTTP 500: Internal"),
    "502 HTML": Row(body(502, HTML, "text/html"), "lost", "lost", "HTTP 502: 502 Bad Gateway 502 Bad Gateway"),
    "503": Row(body(503, "upstream connect error or disconnect/reset before headers", "text/plain"), "lost", "lost"),
    "504": Row(body(504, '{"message": "Endpoint request timed out"}'), "lost", "lost", "HTTP 504"),
    "524 (Cloudflare)": Row(status(524), "lost", "lost", "HTTP 524"),
    "cut": Row(cut, "lost", "lost", "was lost"),
    "202 to a request": Row(status(202), "lost", "lost", "cannot be read: HTTP 202"),
    "204": Row(status(204), "lost", "lost", "cannot be read: HTTP 204"),
    "200 HTML (a login page)": Row(body(200, "<html>Sign in</html>", "text/html"), "lost", "lost", "200: Sign in"),
    "200 nothing": Row(status(200), "lost", "lost", "cannot be read: HTTP 200"),
    "200 cut JSON": Row(body(200, '{"jsonrpc": "2.0", "id": ID, "res'), "lost", "lost", "cannot be read"),
    "200 null": Row(body(200, "null"), "lost", "lost", "cannot be read"),
    "200 a result of null": Row(result("null"), "lost", "lost", "cannot be read"),
    "200 neither result nor error": Row(body(200, '{"jsonrpc": "2.0", "id": ID}'), "lost", "lost", "cannot be read"),
    "200 a notification alone": Row(body(200, NOTE), "lost", "lost", "cannot be read"),
    "200 an error that is a text": Row(body(200, '{"error": "Session not found"}'), "lost", "lost", "cannot be read"),
    "200 a batch without an answer": Row(body(200, f"[{NOTE}]"), "lost", "lost", "cannot be read"),
    "200 deep": Row(result(f'{{"content": [], "structuredContent": {"[" * 250}{"]" * 250}}}'), "lost", "lost"),
    "events without an answer": Row(events(), "lost", "lost", "was lost"),
    "notifications alone": Row(events(NOTE, NOTE), "lost", "lost", "was lost"),
    "events that are cut": Row(events(NOTE, ends=False), "lost", "lost", "was lost"),
    "an event that is no JSON": Row(events('{"error": "Session not found"}'), "lost", "lost", "cannot be read"),
    "an event with a result of null": Row(
        events('{"jsonrpc": "2.0", "id": ID, "result": null}'), "lost", "lost", "cannot be read"
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "session"),
    [(name, True) for name in TABLE] + [(name, False) for name, row in TABLE.items() if row.stateless != row.outcome],
)
async def test_what_an_answer_says_of_a_call(name: str, session: bool) -> None:
    """Only a call that was not carried out is sent again; a lost one only if the server says that it is harmless."""
    row, api = TABLE[name], Api(session=session)
    outcome = row.outcome if session else row.stateless
    async with served(api) as server:
        await server.list(ToolContext())
        for tool in ("act", "look"):
            api.replies[tool] = [row.reply]
            opened = api.methods["initialize"]
            if outcome in ("again", "new") or (outcome == "lost" and tool == "look"):
                assert await server.call(tool, {}, ToolContext()) == "done"
                assert api.methods["initialize"] == opened + 1
                assert api.calls[tool] == 2
                continue
            with pytest.raises(MCPError if outcome == "own" else ToolError) as error:
                await server.call(tool, {}, ToolContext())
            assert api.calls[tool] == 1
            assert ("the call may have happened or not" in str(error.value)) == (outcome == "lost")
            assert re.search(row.text, str(error.value)), str(error.value)
            assert await server.call(tool, {}, ToolContext()) == "done", "the next one is not worse for it"


RESULTS: dict[str, tuple[Reply, Any]] = {
    "structured alone": (result('{"content": [], "structuredContent": {"n": 1}}'), {"n": 1}),
    "structured, no content": (result('{"structuredContent": {"n": 1}}'), {"n": 1}),
    "structured, content null": (result('{"content": null, "structuredContent": {"n": 1}, "isError": null}'), {"n": 1}),
    "content that is a text": (result('{"content": "done"}'), "done"),
    "content that is one block": (result('{"content": {"type": "text", "text": "done"}}'), "done"),
    "a block of an unknown type": (
        result('{"content": [{"type": "table", "rows": 2}]}'),
        '{"type": "table", "rows": 2}',
    ),
    "a text without type": (result('{"content": [{"text": "done"}]}'), "done"),
    "no structured content": (
        result('{"content": [{"type": "text", "text": "done"}], "structuredContent": null}'),
        "done",
    ),
    "an image that is none": (
        result('{"content": [{"type": "image", "data": "abc", "mimeType": "image/png"}]}'),
        "[image/png that cannot be read: it is not base64]",
    ),
    "an id that is a text": (result(DONE, '"ID"'), "done"),
    "the id null": (result(DONE, "null"), "done"),
    "another id": (result(DONE, "4711"), "done"),
    "no version": (body(200, f'{{"id": ID, "result": {DONE}}}'), "done"),
    "a batch": (body(200, f'[{NOTE}, {{"jsonrpc": "2.0", "id": ID, "result": {DONE}}}]'), "done"),
    "without content type": (body(200, f'{{"jsonrpc": "2.0", "id": ID, "result": {DONE}}}', ""), "done"),
    "as text": (body(200, f'{{"jsonrpc": "2.0", "id": ID, "result": {DONE}}}', "text/plain"), "done"),
    "an event with another id": (events(NOTE, f'{{"jsonrpc": "2.0", "id": 4711, "result": {DONE}}}'), "done"),
    "20 MB": (result(DONE.replace("done", LARGE)), LARGE),
    "20 MB in an event": (events(f'{{"jsonrpc": "2.0", "id": ID, "result": {DONE.replace("done", LARGE)}}}'), LARGE),
}


@pytest.mark.parametrize("form", RESULTS)
async def test_results_as_servers_send_them(form: str) -> None:
    """Also without a session: the call has happened, and its result is not lost for a matter of form."""
    reply, expected = RESULTS[form]
    api = Api()
    api.replies["act"] = [reply]
    async with served(api) as server:
        assert await server.call("act", {}, ToolContext()) == expected
    assert api.calls == {"act": 1}


async def test_a_server_that_breaks_its_own_schema_is_not_called_again() -> None:
    api = Api()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    api.tools = [{"name": "act", "inputSchema": {"type": "object"}, "outputSchema": schema}]
    api.replies["act"] = [result('{"content": [], "structuredContent": {"n": "one"}}'), result(DONE)]
    async with served(api) as server:
        await server.list(ToolContext())
        assert [await server.call("act", {}, ToolContext()) for _ in range(2)] == [{"n": "one"}, "done"]


@given(st.integers(200, 599), st.integers(-32768, 32767), st.sampled_from(["ID", "null", "7", '"x"']), st.booleans())
async def test_only_statuses_that_deny_it_have_a_call_sent_again(code: int, error: int, id: str, session: bool) -> None:
    api = Api(session=session)
    api.replies["act"] = [failure(code, error, "x", id)]
    denied = {404, 409, 421, 423, 425, 429} | ({400, 410} if session else set())
    async with served(api) as server:
        try:
            assert await server.call("act", {}, ToolContext()) == "done"
        except (MCPError, ToolError):
            assert api.calls["act"] == 1
        else:
            assert code in denied


async def test_a_result_that_is_none_is_not_called_a_fault_of_the_arguments() -> None:
    api = Api()
    api.replies["act"] = [result('{"contents": 7}')]
    async with served(api) as server:
        with pytest.raises(ToolError, match=r"not as the protocol says.*; the call may have happened or not"):
            await server.call("act", {}, ToolContext())


# ---
# Servers that change.


async def test_a_session_that_is_never_known_is_given_up() -> None:
    api = Api()
    api.replies["act"] = [status(404)] * 9
    async with served(api) as server:
        with pytest.raises(ToolError, match="refuses: HTTP 404"):
            await server.call("act", {}, ToolContext())
    assert api.calls == {"act": 2}, "once more, in a new session"


async def test_a_server_that_wants_to_be_left_alone_for_long_is_told_of() -> None:
    api = Api()
    api.replies["act"] = [body(429, "quota", "text/plain", **{"retry-after": "3600"})] * 9
    async with served(api) as server:
        with pytest.raises(ToolError, match="HTTP 429: quota"):
            await server.call("act", {}, ToolContext())
    assert api.calls == {"act": 1}


@pytest.mark.parametrize("code", [502, 503, 504])
async def test_what_is_harmless_waits_for_a_server_that_comes_back_behind_its_proxy(code: int) -> None:
    api = Api()
    api.replies = {"tools/list": [status(code)] * 2, "look": [status(code)] * 2}
    async with served(api) as server:
        assert len(await server.list(ToolContext())) == 3
        assert await server.call("look", {}, ToolContext()) == "done"


@pytest.mark.parametrize("code", [401, 403, 405])
async def test_a_server_that_refuses_to_open_says_why_at_once(code: int) -> None:
    api = Api()
    api.replies = {name: [body(code, '{"error": "invalid_token"}')] * 9 for name in ("server/discover", "initialize")}
    async with served(api) as server:
        with pytest.raises(ToolError, match=f"cannot be opened: HTTP {code}: .*invalid_token"):
            await server.list(ToolContext())
    assert api.methods["initialize"] == 1


async def test_a_page_where_a_server_should_be_is_shown() -> None:
    api = Api()
    page = body(200, "<html><script>x</script><h1>Sign in</h1></html>", "text/html")
    api.replies = {name: [page] * 9 for name in ("server/discover", "initialize")}
    async with served(api) as server:
        with pytest.raises(ToolError, match="cannot be opened: HTTP 200: Sign in"):
            await server.list(ToolContext())


async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.mcp.exchanges.MAX_ANSWER_BYTES", 1_000_000)

    async def pour(answer: Answer, message: dict[str, Any]) -> None:
        answer.start(200, {"content-type": "application/json"})
        while True:
            await answer.write(b" " * 100_000)

    api = Api()
    api.replies["act"] = [pour]
    async with served(api) as server:
        with pytest.raises(ToolError, match=r"cannot be read: HTTP 200: it has more than .*; the call may have"):
            await server.call("act", {}, ToolContext())
        assert await server.call("act", {}, ToolContext()) == "done"


async def test_a_hostile_error_page_is_read_in_time() -> None:
    api = Api()
    api.replies["act"] = [body(403, "<style" * 200_000, "text/html"), failure(200, 7, "tool session " * 1_000_000)]
    async with served(api) as server:
        for _ in range(2):
            with pytest.raises((MCPError, ToolError)):
                await server.call("act", {}, ToolContext())


async def test_a_server_that_opens_later_is_waited_for() -> None:
    api = Api()
    api.replies = {"initialize": [status(503), status(429)]}
    async with served(api) as server:
        assert len(await server.list(ToolContext())) == 3


async def test_an_answer_that_breaks_off_ends_no_other_call_of_the_connection() -> None:
    api, begun, goes_on = Api(), asyncio.Event(), asyncio.Event()

    async def waits(answer: Answer, message: dict[str, Any]) -> None:
        begun.set()
        await goes_on.wait()
        await say(answer, message, result=json.loads(DONE))

    api.replies = {"act": [waits], "other": [cut]}
    async with served(api) as server:
        await server.list(ToolContext())
        acting = asyncio.ensure_future(server.call("act", {}, ToolContext()))
        await begun.wait()
        with pytest.raises(ToolError, match=r"was lost.*; the call may have happened or not"):
            await server.call("other", {}, ToolContext())
        goes_on.set()
        assert await acting == "done"
    assert api.calls == {"act": 1, "other": 1}


@pytest.mark.parametrize(
    "reply",
    [
        failure(200, -32602, "Unknown tool: act"),
        failure(400, -32602, "Tool act not found"),
        result('{"content": [{"type": "text", "text": "Unknown tool: act"}], "isError": true}'),
    ],
)
async def test_a_tool_that_was_renamed_has_the_list_read_again(reply: Reply) -> None:
    """The server need not have announced it."""
    api = Api()
    api.replies["act"] = [reply]
    async with served(api) as server:
        changes = server.changes
        with pytest.raises((MCPError, ToolError), match="act"):
            await server.call("act", {}, ToolContext())
        assert server.changes > changes


async def test_a_run_goes_on_with_the_new_name_of_a_tool_that_was_renamed(engine: Engine) -> None:
    """The server restarts with other tools in the middle of a run, and announces nothing."""
    api = Api()

    def rename(_: ModelRequest) -> Any:
        api.tools = [{"name": "do", "inputSchema": {"type": "object"}}]
        api.replies["act"] = [status(404), failure(200, -32602, "Unknown tool: act")]
        return call("act")

    provider = ScriptedProvider([call("act"), rename, call("do"), "Done."])
    async with served(api, recheck=3600.0, on_change="refresh") as server:
        agent = Agent("host", provider, toolsets=[server])
        async with engine.served(agent) as client:
            response = await (await client.start("host", "Go.")).result()
    first, gone, renamed = results(response.messages)
    assert (first, renamed) == ("done", "done")
    assert "Unknown tool: act" in gone
    assert [[tool.name for tool in request.tools] for request in provider.requests[1:3]] == [
        ["act", "other", "look"],
        ["do"],
    ]
    assert api.calls == {"act": 3, "do": 1}


async def test_an_agent_writes_each_row_once_whatever_ends_its_sessions(engine: Engine) -> None:
    """As case 20 of public reports: a server that ends idle sessions, in each form of its 404."""
    forms = [name for name in TABLE if name.startswith("404") and TABLE[name].outcome == "new"]
    api, rows = Api(), len(forms)

    def write(number: int) -> Any:
        def reply(_: ModelRequest) -> Any:
            api.replies["act"] = [TABLE[forms[number]].reply]
            return call("act", row=number)

        return reply

    provider = ScriptedProvider([*(write(number) for number in range(rows)), "Done."])
    async with served(api) as server, engine.served(Agent("host", provider, toolsets=[server])) as client:
        response = await (await client.start("host", "Go.")).result()
    assert results(response.messages) == ["done"] * rows
    assert api.calls == {"act": 2 * rows}


async def test_an_image_of_two_megabytes_in_an_event() -> None:
    """The SDK's own limit for an event is one."""
    api = Api()
    data = "A" * 2_000_000
    image = json.dumps({"content": [{"type": "image", "data": data, "mimeType": "image/png"}]})
    api.replies["act"] = [events(f'{{"jsonrpc": "2.0", "id": ID, "result": {image}}}')]
    async with served(api) as server:
        (file,) = await server.call("act", {}, ToolContext())
    assert isinstance(file, File)
    assert file.media_type == "image/png"
