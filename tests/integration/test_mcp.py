"""MCP servers as toolsets: real processes over stdio and HTTP, that die and are started anew in the middle of runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult, Tool, ToolAnnotations

from perdure import Agent, ToolContext
from perdure.errors import DefinitionError, ToolError, ToolsetError
from perdure.mcp import MCPServer
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.mcp import COUNTER, ROOT, Served, processes
from tests.support.npm import packages
from tests.support.wait import eventually

EVERYTHING = ROOT / "tests" / "servers" / "mcp_everything"


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    return tmp_path / "counts"


@pytest.fixture
async def http(counts: Path) -> AsyncIterator[Served]:
    server = await Served.counter(counts).start()
    yield server
    server.kill()


def stdio(counts: Path, **options: Any) -> MCPServer:
    env = {"MCP_COUNTS": str(counts)}
    return MCPServer.stdio(sys.executable, COUNTER, env=env, cwd=ROOT, **{"name": "counter", **options})


def shown(request: ModelRequest) -> list[str]:
    return [spec.name for spec in request.tools]


@pytest.mark.slow
async def test_a_server_that_dies_is_opened_again_and_only_what_is_harmless_is_done_again(
    engine: Engine, counts: Path
) -> None:
    """``look`` says of itself that it only reads; whether ``act`` was done is unknown, and the model is told so.
    Between calls nothing is under way, so what is not harmless is called all the same."""
    server = stdio(counts)

    async def kill(_: ModelRequest) -> Any:
        (pid,) = processes(counts)
        os.kill(pid, signal.SIGKILL)
        await eventually(
            lambda: not any(one.is_open for one in server._connections.values()), what="the worker has noticed"
        )
        return call("act", what="now")

    replies = [call("look", what="die"), call("act", what="die"), call("act", what="again"), kill, "Done."]
    provider = ScriptedProvider(replies)
    async with engine.served(Agent("host", provider, toolsets=[server])) as client:
        response = await (await client.start("host", "Go.")).result()
        assert len(processes(counts)) == 1, "one server for the worker"
    assert processes(counts) == [], "it ends with the worker"
    looked, lost, acted, later = results(response.messages)
    assert (looked, acted, later) == ("look 2: die", "act 2: again", "act 3: now")
    assert "connection to MCP server 'counter' was lost" in lost
    assert lost.endswith("; the call may have happened or not")
    assert counts.read_text().split() == ["look", "look", "act", "act", "act"]
    assert all(request.tools == provider.requests[0].tools for request in provider.requests)


async def test_http_with_headers_of_the_run_and_a_server_that_is_started_anew(
    engine: Engine, counts: Path, http: Served
) -> None:
    server = MCPServer.http(http.url, headers=lambda ctx: {"x-user": ctx.context["user"]}, prefix="c_")

    async def restart(_: ModelRequest) -> Any:
        http.kill()
        await http.start()
        return [call("c_act", what="now"), call("c_who_am_i")]

    provider = ScriptedProvider([call("c_who_am_i"), restart, "Done.", call("c_who_am_i"), "Done."])
    async with engine.served(Agent("host", provider, toolsets=[server])) as client:
        ana = await (await client.start("host", "Go.", context={"user": "ana"})).result()
        bo = await (await client.start("host", "Go.", context={"user": "bo"})).result()
    assert results(ana.messages) == ["ana", "act 1: now", "ana"]
    assert results(bo.messages) == ["bo"]
    assert shown(provider.requests[0]) == ["c_look", "c_act", "c_wait", "c_who_am_i", "c_learn"]


async def test_a_server_that_is_down_is_an_error_that_the_model_sees(
    engine: Engine, counts: Path, http: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.mcp.server.RETRY_DELAYS", (0.0,))

    def stop(_: ModelRequest) -> Any:
        http.kill()
        return call("look", what="down")

    provider = ScriptedProvider([call("look", what="up"), stop, "It is down."])
    async with engine.served(Agent("host", provider, toolsets=[MCPServer.http(http.url)])) as client:
        response = await (await client.start("host", "Go.")).result()
    up, down = results(response.messages)
    assert up == "look 1: up"
    assert "MCP server '127_0_0_1' cannot be opened: ConnectError" in down


async def test_a_server_says_that_its_tools_have_changed_and_is_told_of_an_interrupted_call(
    engine: Engine, counts: Path
) -> None:
    """The progress of a call is the run's until it is interrupted; the server stays."""
    server = stdio(counts, recheck=3600.0, on_change="refresh")
    provider = ScriptedProvider([call("learn"), call("new"), call("wait"), call("look", what="after"), "Done."])
    async with engine.served(Agent("host", provider, toolsets=[server])) as client:
        run = await client.start("host", "Go.")
        async for event in run.events():
            if event.type == "tool.progress":
                assert event.message == "waiting"
                break
        (before,) = processes(counts)
        await run.interrupt("Never mind, look.")
        learned, new, _, looked = results((await run.result()).messages)
        assert processes(counts) == [before]
    assert (learned, new, looked) == ("learned", "new", "look 1: after")
    assert shown(provider.requests[0]) == ["look", "act", "wait", "who_am_i", "learn"]
    assert shown(provider.requests[-1]) == ["look", "act", "wait", "who_am_i", "learn", "new"]
    assert counts.read_text().split() == ["wait", "stopped", "look"]


async def test_a_program_that_never_says_hello_is_given_up_and_killed(
    counts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.mcp.connection.OPEN_TIMEOUT", 0.5)
    monkeypatch.setattr("perdure.mcp.server.RETRY_DELAYS", ())
    mute = MCPServer.stdio("sleep", ["1000"], env={"MCP_COUNTS": str(counts)})
    with pytest.raises(ToolError, match=r"MCP server 'sleep' did not open within 0\.5 s"):
        await mute.list(ToolContext())
    await eventually(lambda: not processes(counts), what="its end")
    await mute.close()


async def test_a_tool_that_is_harmless_for_some_alone_is_done_again_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs with headers of their own are told otherwise of one name: the list that came last decides nothing."""
    server = MCPServer.http("http://127.0.0.1:1/mcp")
    reads = Tool(name="act", input_schema={}, annotations=ToolAnnotations(read_only_hint=True))
    lists, asked = iter([[Tool(name="act", input_schema={})], [reads]]), []

    async def answer(_: Any, __: Any, *, retryable: bool, **options: Any) -> Any:
        asked.append(retryable)
        return CallToolResult(content=[]) if options == {} else next(lists)

    monkeypatch.setattr(server, "_send_request", answer)
    for _ in range(2):
        await server.list(ToolContext())
    await server.call("act", {}, ToolContext())
    assert asked == [True, True, False]


async def test_a_server_that_hangs_is_given_up_and_opened_anew(counts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = stdio(counts)
    tools = await server.list(ToolContext())
    (hung,) = processes(counts)
    os.kill(hung, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr("perdure.mcp.server.LIST_TIMEOUT", 0.5)
        with pytest.raises(ToolError, match=r"MCP server 'counter' did not answer within 0\.5 s"):
            await server.list(ToolContext())
    assert await server.list(ToolContext()) == tools
    await eventually(lambda: hung not in processes(counts), what="the end of the one that hung")
    await server.close()


@pytest.mark.node
async def test_the_reference_server_of_npm_over_stdio_and_over_http(engine: Engine) -> None:
    """It speaks the older protocol, and is killed in the middle of a run too."""
    modules = packages(EVERYTHING, "MCP servers of npm")
    script = str(modules / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js")
    served = await Served(["node", script, "streamableHttp"], {"PORT": "{port}"}).start()

    async def restart(_: ModelRequest) -> Any:
        served.kill()
        await served.start()
        return [call("http_get-sum", a=2, b=3), call("std_get-sum", a="two", b=3)]

    replies = [[call("std_get-sum", a=1, b=2), call("http_echo", message="hi"), call("std_get-tiny-image")], restart]
    provider = ScriptedProvider([*replies, "Done."])
    toolsets = [
        MCPServer.stdio("node", [script], name="everything", prefix="std_"),
        MCPServer.http(served.url, prefix="http_"),
    ]
    try:
        async with engine.served(Agent("host", provider, toolsets=toolsets)) as client:
            response = await (await client.start("host", "Go.")).result()
    finally:
        served.kill()
    added, echo, image, again, wrong = results(response.messages)
    assert (added, echo, again) == ("The sum of 1 and 2 is 3.", "Echo: hi", "The sum of 2 and 3 is 5.")
    assert image.startswith("Here's the image you requested:")
    (file,) = [file for message in response.messages for result in message.tool_results for file in result.files]
    assert (file.media_type, file.blob is not None) == ("image/png", True)
    assert wrong.startswith("MCPToolError: ")
    assert "expected number, received string" in wrong


def test_what_is_no_server_is_refused_where_it_is_written() -> None:
    with pytest.raises(DefinitionError, match=r"is not an http\(s\) URL"):
        MCPServer.http("localhost:8000")
    for command in (["python", "server.py"], "", None):
        with pytest.raises(DefinitionError, match="the command is the name of a program"):
            MCPServer.stdio(command)  # type: ignore[arg-type]
    for args in ("server.py", ["--port", 8000], 7):
        with pytest.raises(DefinitionError, match="MCP server python: its arguments are a list of texts"):
            MCPServer.stdio("python", args)  # type: ignore[arg-type]
    for env in ({"PORT": 8000}, ["KEY=x"]):
        with pytest.raises(DefinitionError, match="MCP server python: env is a mapping of texts to texts"):
            MCPServer.stdio("python", env=env)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="two toolsets are called 'x'"):
        Agent("host", "openai:gpt-5", toolsets=[MCPServer.stdio("x"), MCPServer.stdio("x")])


SLOW = """
import asyncio, sys, threading
from perdure import RunContext
from perdure.mcp import MCPServer

threads = []

class Watch:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "mcp":
            threads.append((name, threading.current_thread() is threading.main_thread()))

async def main():
    server = MCPServer.stdio("no-such-server")
    sys.meta_path.insert(0, Watch())
    try:
        await server.list(RunContext())
    except Exception as error:
        print(type(error).__name__)

asyncio.run(main())
print([name for name, main in threads if main], len(threads) > 20)
"""


def test_the_sdk_is_imported_beside_the_loop_that_tools_run_on() -> None:
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, check=True, timeout=50)  # ours
    assert done.stdout.splitlines() == ["NotSentError", "[] True"]


async def test_a_command_that_is_not_there_fails_the_run_and_is_named(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.calls.retries.TOOLSET_ATTEMPTS", 1)
    agent = Agent("host", ScriptedProvider(["Hi."]), toolsets=[MCPServer.stdio("no-such-server")])
    async with engine.served(agent) as client:
        with pytest.raises(ToolsetError, match=r"toolset 'no-such-server' could not list its tools.*No such file"):
            await (await client.start("host", "Go.")).result()
