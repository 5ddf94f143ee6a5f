"""The programs under examples/ about toolsets, as processes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.docs.asked import Request, results
from tests.docs.loopback import EXAMPLES, ROOT, Loopback, printed, succeeded
from tests.servers.model_server import Call
from tests.support.mcp import COUNTER
from tests.support.npm import packages

pytestmark = pytest.mark.server


async def test_toolset(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        match results(request):
            case []:
                return [Call("stock", {"part": "bolts"}), Call("prices", {"part": "bolts"})]
            case ["120", "0.1"]:
                return Call("artifact_create", {"name": "worth.md", "content": "120 bolts: 12.00"})
            case _:
                return "12.00 euros."

    loopback.model.rule = rule
    out = succeeded(await loopback.python(EXAMPLES / "25_toolset.py"))
    assert out == "12.00 euros.\n--- worth.md: version 1, 16 characters\n120 bolts: 12.00\n"


@pytest.mark.node
async def test_mcp_of_npm(loopback: Loopback) -> None:
    modules = packages(ROOT / "tests" / "servers" / "mcp_everything", "examples/26_mcp.py")
    script = modules / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"

    def rule(request: Request) -> Any:
        return results(request)[0] if results(request) else Call("mcp_get-sum", {"a": 19, "b": 23})

    loopback.model.rule = rule
    ended = await loopback.python(EXAMPLES / "26_mcp.py", "node", str(script))
    assert (ended.code, printed(ended)) == (0, "The sum of 19 and 23 is 42.\n"), ended  # the server writes to stderr


async def test_mcp(loopback: Loopback) -> None:
    def rule(request: Request) -> Any:
        return results(request)[0] if results(request) else Call("mcp_look", {"what": "19 and 23"})

    loopback.model.rule = rule
    count = ("env", f"MCP_COUNTS={loopback.folder / 'counts'}", f"PYTHONPATH={ROOT}", sys.executable, *COUNTER)
    ended = await loopback.python(EXAMPLES / "26_mcp.py", *count)
    assert (ended.code, printed(ended)) == (0, "look 1: 19 and 23\n"), ended
