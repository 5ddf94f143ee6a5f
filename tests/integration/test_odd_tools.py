"""Agents whose tools a vendor's API would refuse as they are, past servers that refuse what the real ones refuse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from perdure import Agent, Toolset, callback_tool, tool
from perdure.mcp import MCPServer
from perdure.ports.toolset import ListedTool
from perdure.types.client_tools import ClientTool
from tests.servers.http import Answer, HttpServer, Request
from tests.servers.model_server import AnthropicServer, Call, GoogleServer, OpenAIServer, Reply, ResponsesServer
from tests.support.adapters import CLAUDE, GOOGLE, OPENAI
from tests.support.checks import assert_closed
from tests.support.engine import Engine
from tests.support.tool_schemas import ODD

FORMATS: dict[str, tuple[Any, str, tuple[str, str]]] = {
    "openai": (OpenAIServer, "openai:gpt-5-mini", OPENAI),
    "openai-responses": (ResponsesServer, "openai-responses:gpt-5-mini", OPENAI),
    "anthropic": (AnthropicServer, "anthropic:claude-sonnet-4-6", CLAUDE),
    "google": (GoogleServer, "google:gemini-3-pro", GOOGLE),
}
each_format = pytest.mark.parametrize("format", FORMATS)
LONG = "a" * 60
NAMES = [
    "files.read",
    "files/list",
    "get weather",
    f"{LONG}_list_all",
    f"{LONG}_list_others",
    "x:y",
    "x.y",
    "größe",
    "3d",
]


class Server(Toolset):
    """What an MCP server may list."""

    name = "server"

    def __init__(self, *tools: ListedTool) -> None:
        self.tools = tools
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def list(self, ctx: Any) -> Sequence[ListedTool]:
        return self.tools

    async def call(self, name: str, arguments: Mapping[str, Any], ctx: Any) -> str:
        self.asked.append((name, dict(arguments)))
        return "done"


def read_tools(request: dict[str, Any]) -> dict[str, list[str]]:
    """The names that were offered, each with those of its arguments."""
    entries = [each for entry in request.get("tools", ()) for each in entry.get("functionDeclarations", [entry])]
    offered: dict[str, list[str]] = {}
    for entry in entries:
        definition = entry.get("function", entry)
        schemas = ("parameters", "input_schema", "parametersJsonSchema")
        schema = next((definition[key] for key in schemas if key in definition), {})
        offered[definition["name"]] = list(schema.get("properties", ()))
    return offered


def call_all(request: dict[str, Any]) -> Any:
    """Call each tool once with all of its arguments, then answer."""
    messages = next(request[key] for key in ("messages", "input", "contents") if key in request)
    if len(messages) > 1:
        return "Done."
    return Reply("", [Call(name, dict.fromkeys(fields, "1")) for name, fields in read_tools(request).items()])


@asynccontextmanager
async def serve(format: str, rule: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, str]]:
    """A server of the format, and the model that is asked there."""
    server_class, model, (key, url) = FORMATS[format]
    async with server_class(rule, api_key="k") as server:
        monkeypatch.setenv(key, "k")
        monkeypatch.setenv(url, server.base_url)
        yield server, model


@each_format
async def test_tools_with_odd_names_are_called_by_their_own(
    engine: Engine, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Server(*(ListedTool(name, name, {"type": "object"}, idempotent=True) for name in NAMES))
    async with serve(format, call_all, monkeypatch) as (server, model):
        agent = Agent("a", model, toolsets=[listed])
        async with engine.served(agent) as client:
            response = await (await client.start("a", "Go.")).result()
    assert response.content == "Done."
    assert_closed(response.messages)
    assert sorted(name for name, _ in listed.asked) == sorted(NAMES)
    assert server.stats.refused == 0


@each_format
async def test_one_bad_tool_does_not_take_the_agent_down(
    engine: Engine, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"properties": {"filter[id]": {"type": "string"}, "größe": {"type": "string"}}}
    listed = Server(
        *(ListedTool(f"odd {number}", name, schema) for number, (name, schema) in enumerate(ODD.items())),
        ListedTool("a text", "Its arguments are a text.", {"type": "string"}),
        ListedTool("find", "Find.", fields),
        ListedTool("", "No name.", {}),
    )

    def rule(request: dict[str, Any]) -> Any:
        messages = next(request[key] for key in ("messages", "input", "contents") if key in request)
        offered = read_tools(request)
        assert "a_text" not in offered
        return "Done." if len(messages) > 1 else Reply("", [Call("find", dict.fromkeys(offered["find"], "1"))])

    async with serve(format, rule, monkeypatch) as (server, model):
        agent = Agent("a", model, toolsets=[listed])
        async with engine.served(agent) as client:
            run = await client.start("a", "Go.")
            assert (await run.result()).content == "Done."
            started = [event async for event in run.events(wait=False) if event.type == "model.started"]
    assert listed.asked == [("find", {"filter[id]": "1", "größe": "1"})]
    assert [event.left_out for event in started] == [("", "a_text"), ("a_text",)]
    assert server.stats.refused == 0


@asynccontextmanager
async def serve_mcp(tools: Sequence[Any], asked: list[tuple[str, Any]]) -> AsyncIterator[str]:
    """A hand-written MCP server that lists ``tools`` as they are; its address."""

    async def handle(request: Request, answer: Answer) -> None:
        if request.method != "POST":
            return await answer.send(405, b"")
        message = json.loads(request.body)
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            },
            "tools/list": {"tools": list(tools)},
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
        }
        if message["method"] == "tools/call":
            asked.append((message["params"]["name"], message["params"].get("arguments")))
        if "id" not in message:
            return await answer.send(202, b"")
        if message["method"] not in results:
            error = {"code": -32601, "message": "Method not found"}
            return await answer.json(200, {"jsonrpc": "2.0", "id": message["id"], "error": error})
        return await answer.json(200, {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})

    async with HttpServer(handle) as server:
        yield f"http://127.0.0.1:{server.port}/mcp"


@each_format
async def test_an_mcp_server_may_list_what_the_specification_does_not_allow(
    engine: Engine, format: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Schemas without a type, or of older drafts, are the tool's; entries that are no tools are left out alone."""
    odd = [
        {"name": f"odd.{number}", "description": name, "inputSchema": s} for number, (name, s) in enumerate(ODD.items())
    ]
    bad = ["text", None, {"name": 7, "inputSchema": {"type": "object"}}, {"name": "bad", "inputSchema": "object"}]
    none = {"name": "none", "outputSchema": "x", "annotations": {"readOnlyHint": "maybe"}}
    fields = {"properties": {"filter[id]": {"type": "string"}, "b": None}}
    asked: list[tuple[str, Any]] = []

    def rule(request: dict[str, Any]) -> Any:
        messages = next(request[key] for key in ("messages", "input", "contents") if key in request)
        offered = read_tools(request)
        assert len(offered) == len(ODD) + 2
        assert offered["none"] == []
        return "Done." if len(messages) > 1 else Reply("", [Call("find", {offered["find"][0]: "1"})])

    async with (
        serve(format, rule, monkeypatch) as (server, model),
        serve_mcp([*odd, *bad, none, {"name": "find", "inputSchema": fields}], asked) as address,
    ):
        agent = Agent("a", model, toolsets=[MCPServer.http(address, name="odd")])
        async with engine.served(agent) as client:
            response = await (await client.start("a", "Go.")).result()
    assert response.content == "Done."
    assert asked == [("find", {"filter[id]": "1"})]
    assert server.stats.refused == 0
    assert sum("MCP server odd: a tool is left out" in text for text in caplog.messages) == len(bad)


@tool
def weather(position: tuple[float, float]) -> str:
    """Weather at a position."""
    return f"{position}"


class Order(BaseModel):
    """An order, which is by number or by name."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["number"]}, {"required": ["name"]}]})
    number: int = 0
    name: str = ""


@each_format
async def test_tools_of_every_kind_are_translated(engine: Engine, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function, a callback, another agent, a client's tool, and the tool that ends with a typed answer."""
    either = ODD["one of two"]

    def rule(request: dict[str, Any]) -> Any:
        offered = read_tools(request)
        assert {"weather", "show", "ask_clerk", "open_page", "__finish__"} <= offered.keys()
        return Reply("", [Call("__finish__", {offered["__finish__"][0]: [1, "one"]})])

    async with serve(format, rule, monkeypatch) as (server, model):
        clerk = Agent("clerk", model, input=Order, description="Takes orders.")
        show = callback_tool("show", "Show.", parameters=either)
        tools = [weather, show, clerk.as_tool("ask_clerk")]
        host = Agent("host", model, tools=tools, output=tuple[int, str], client_tools=True)
        page = ClientTool(name="open_page", description="Open.", parameters=either)
        async with engine.served(host, clerk) as client:
            response = await (await client.start("host", "Go.", client_tools=[page])).result()
    assert list(response.output) == [1, "one"]
    assert server.stats.refused == 0
