"""An agent with an MCP server that demands OAuth; the lease of a refresh is short: a test need not wait for it."""

from __future__ import annotations

import os
from typing import Any

from perdure import Agent
from perdure.mcp import MCPServer, OAuth, grants
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.engine import run_worker


def reply(request: ModelRequest) -> Any:
    return "Done." if request.messages[-1].role == "tool" else call(request.tools[0].name)


if __name__ == "__main__":
    grants.LEASE_SECONDS = 2.0
    server = MCPServer.http(os.environ["TEST_MCP_URL"], auth=OAuth(), name="crm", recheck=3600.0)
    run_worker([Agent("host", ScriptedProvider(reply), toolsets=[server])])
