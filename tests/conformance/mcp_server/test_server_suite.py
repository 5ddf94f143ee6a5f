"""MCP's own conformance suite, its server half: how ``/mcp`` serves agents as tools."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection

from perdure.web.app import WebOptions, create_app
from perdure.web.auth import Caller
from tests.conformance.mcp_server.app import build_agents
from tests.support import npm
from tests.support.engine import Engine
from tests.support.web import ADA, serve

pytestmark = [pytest.mark.node, pytest.mark.slow]

FOLDER = Path(__file__).parent
NODE = (22, 0)
"""What the suite needs. Where the system's is older, that of the lock is used."""


class Anyone:
    """The suite sends no token."""

    async def authenticate(self, connection: HTTPConnection) -> Caller:
        return ADA


@pytest.fixture(scope="module")
def suite() -> list[str]:
    """The command of the suite."""
    modules = npm.packages(FOLDER, "the MCP server, by MCP's conformance suite")
    node = str(shutil.which("node"))
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < NODE:
        [packaged] = modules.glob("node-*/bin/node")
        packaged.chmod(0o755)
        node = str(packaged)
    return [node, str(modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")]


@pytest.fixture
async def url(engine: Engine) -> AsyncIterator[str]:
    async with engine.served(*build_agents()) as client:
        app = create_app(client, authenticator=Anyone(), options=WebOptions(dev=True))
        async with serve(client, app=app) as service:
            yield f"{service.url}/mcp"


async def test_all_scenarios_but_those_of_the_baseline_pass(suite: list[str], url: str, tmp_path: Path) -> None:
    """The suite also fails for a scenario that is in the baseline and passes."""
    baseline = FOLDER / "baseline.yml"
    command = [*suite, "server", "--url", url, "--suite", "all", "--expected-failures", str(baseline)]
    process = await asyncio.create_subprocess_exec(
        *command, "-o", str(tmp_path), cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode(errors="replace"))
    assert process.returncode == 0, text[-8000:]
    for name in (
        "server-initialize",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-error",
        "tools-call-with-progress",
    ):
        assert f"✓ {name}: 1 passed, 0 failed" in text
