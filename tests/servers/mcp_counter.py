"""An MCP server of our own, of the SDK's Python half: ``python -m tests.servers.mcp_counter`` over stdio, with a port
over HTTP. Its tools count their calls in the file that ``MCP_COUNTS`` names, and can end or change the server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations

COUNTS = Path(os.environ["MCP_COUNTS"])
server = MCPServer("counter")
DIE = "die"


def _count(name: str) -> int:
    with COUNTS.open("a") as file:
        file.write(f"{name}\n")
    return COUNTS.read_text().split().count(name)


def _answer(name: str, what: str) -> str:
    """The first call that is to die takes the server with it."""
    count = _count(name)
    if what == DIE and count == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{name} {count}: {what}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look(what: str) -> str:
    """Only look."""
    return _answer("look", what)


@server.tool()
def act(what: str) -> str:
    """Do something that is to be done once."""
    return _answer("act", what)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def wait(ctx: Context) -> str:
    """Never end; say that it was told to."""
    _count("wait")
    await ctx.report_progress(1, 3, "waiting")
    try:
        await asyncio.Event().wait()
    finally:
        _count("stopped")
    return "never"


@server.tool(name="who.am.i", annotations=ToolAnnotations(read_only_hint=True))
def who(ctx: Context) -> str:
    """Whose request it is."""
    return str(dict(ctx.headers or {}).get("x-user"))


@server.tool()
async def learn(ctx: Context) -> str:
    """Have another tool from now on."""
    server.add_tool(lambda: "new", name="new", description="A new one.")
    await ctx.notify_tools_changed()
    return "learned"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
