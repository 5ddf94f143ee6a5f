"""MCP's own conformance suite, its client half: how an ``MCPServer`` of perdure speaks to servers, and signs in."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import npm
from tests.support.left_out import leave_out

pytestmark = [pytest.mark.node, pytest.mark.slow]

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent.parent
NODE = (22, 0)
"""What the suite needs. Where the system's is older, that of the lock is used."""
WHAT = "MCP servers with OAuth, by MCP's conformance suite"
SCENARIOS = (
    "initialize",
    "tools_call",
    "elicitation-sep1034-client-defaults",
    "sse-retry",
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/scope-retry-limit",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
    "auth/2025-03-26-oauth-metadata-backcompat",
    "auth/2025-03-26-oauth-endpoint-fallback",
    "auth/resource-mismatch",
    "auth/offline-access-scope",
    "auth/offline-access-not-supported",
    "auth/client-credentials-jwt",
    "auth/client-credentials-basic",
    "auth/cross-app-access-complete-flow",
)


@pytest.fixture(scope="module")
def suite() -> list[str]:
    """The command of the suite."""
    modules = npm.packages(FOLDER, WHAT)
    return [_find_node(modules), str(modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")]


def _find_node(modules: Path) -> str:
    system = str(shutil.which("node"))
    said = subprocess.run([system, "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", said)[:2])) >= NODE:
        return system
    packaged = next(modules.glob("node-*/bin/node"), None)
    if packaged is None:
        why = f"node is {said.strip()}, older than {NODE[0]}, and the lock has none for this machine"
        leave_out(WHAT, why, required_by="PERDURE_REQUIRE_NPM")
    packaged.chmod(0o755)
    return str(packaged)


async def _run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return int(process.returncode or 0), re.sub(r"\x1b\[[0-9;]*m", "", output.decode(errors="replace"))


async def test_every_scenario_of_clients_is_run(suite: list[str], tmp_path: Path) -> None:
    _, said = await _run(*suite, "list", cwd=tmp_path)
    names = re.findall(r"^  - (\S+)", said.partition("Client scenarios")[2], re.MULTILINE)
    assert sorted(names) == sorted(SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_scenario(suite: list[str], tmp_path: Path, scenario: str) -> None:
    client = f"{sys.executable} -m tests.conformance.mcp.client"
    options = ["--timeout", "90000", "--expected-failures", str(FOLDER / "baseline.yml"), "-o", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    code, said = await _run(*suite, "client", "--command", client, "--scenario", scenario, *options, cwd=ROOT, env=env)
    assert code == 0, said[-6000:]
